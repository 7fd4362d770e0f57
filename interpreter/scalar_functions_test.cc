#include "interpreter/scalar_functions.h"

#include <string>

#include "ATen/ops/ones.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"

namespace ddpopt {
namespace {

using c10::IValue;
using ::testing::HasSubstr;
using testing::ErrorOf;

IValue Call(const char* name, const std::vector<IValue>& args) {
  const ScalarFunction* function = FindScalarFunction(name);
  TORCH_CHECK(function != nullptr, name, " is not known");
  return CallScalarFunction(*function, args);
}
int64_t IntOf(const char* name, const std::vector<IValue>& args) { return Call(name, args).toInt(); }
double FloatOf(const char* name, const std::vector<IValue>& args) { return Call(name, args).toDouble(); }
bool BoolOf(const char* name, const std::vector<IValue>& args) { return Call(name, args).toBool(); }

TEST(ScalarFunctionsTest, PythonsArithmetic) {
  EXPECT_EQ(IntOf("operator.add", {3, 4}), 7);
  EXPECT_EQ(IntOf("_operator.add", {3, true}), 4);
  EXPECT_EQ(FloatOf("operator.mul", {3, 0.5}), 1.5);
  EXPECT_EQ(IntOf("operator.floordiv", {-7, 2}), -4);
  EXPECT_EQ(IntOf("operator.mod", {-7, 2}), 1);
  EXPECT_EQ(IntOf("operator.mod", {7, -2}), -1);
  EXPECT_EQ(FloatOf("operator.mod", {-0.5, 2.0}), 1.5);
  EXPECT_EQ(FloatOf("operator.truediv", {7, 2}), 3.5);
  EXPECT_EQ(IntOf("operator.pow", {-2, 3}), -8);
  EXPECT_EQ(IntOf("operator.pow", {-1, 1000000001}), -1);
  EXPECT_EQ(FloatOf("operator.pow", {2, -1}), 0.5);
  EXPECT_EQ(IntOf("operator.neg", {true}), -1);
  EXPECT_EQ(IntOf("math.ceil", {2.5}), 3);
  EXPECT_EQ(IntOf("math.floor", {-2.5}), -3);
  EXPECT_EQ(IntOf("math.trunc", {-2.5}), -2);
  EXPECT_EQ(IntOf("builtins.round", {2.5}), 2);
  EXPECT_EQ(FloatOf("builtins.round", {2.25, 1}), 2.2);
  EXPECT_EQ(FloatOf("torch.sym_float", {3}), 3.0);
  EXPECT_EQ(IntOf("torch.sym_max", {3, 8}), 8);
  EXPECT_EQ(FloatOf("torch.sym_min", {3, 2.5}), 2.5);
  EXPECT_EQ(IntOf("torch.sym_ite", {false, 3, 8}), 8);
  EXPECT_EQ(IntOf("torch.sym_sum", {c10::ivalue::Tuple::create({IValue(1), IValue(2), IValue(3)})}), 6);
  EXPECT_EQ(IntOf("operator.rshift", {-5, 1}), -3);
  EXPECT_EQ(IntOf("operator.invert", {5}), -6);
}

TEST(ScalarFunctionsTest, ComparisonsAndLogic) {
  EXPECT_TRUE(BoolOf("operator.ge", {3, 3.0}));
  EXPECT_FALSE(BoolOf("operator.lt", {3, 3}));
  EXPECT_TRUE(BoolOf("operator.ne", {std::nan(""), 1}));
  EXPECT_FALSE(BoolOf("operator.le", {std::nan(""), 1}));
  EXPECT_TRUE(BoolOf("operator.and_", {true, true}));
  EXPECT_EQ(IntOf("operator.or_", {1, 4}), 5);
  EXPECT_TRUE(BoolOf("torch.sym_not", {0}));
  // Integers beyond what a double tells apart.
  EXPECT_TRUE(BoolOf("operator.lt", {(int64_t{1} << 60), (int64_t{1} << 60) + 1}));
}

TEST(ScalarFunctionsTest, Refuses) {
  EXPECT_EQ(FindScalarFunction("operator.getitem"), nullptr);
  EXPECT_EQ(FindScalarFunction("torch.relu"), nullptr);
  EXPECT_THAT(ErrorOf([] { Call("operator.add", {1}); }), HasSubstr("operator.add: takes 2 arguments, not 1"));
  EXPECT_THAT(ErrorOf([] { Call("operator.add", {1, at::ones({1})}); }), HasSubstr("'operator.add' on Tensor"));
  EXPECT_THAT(ErrorOf([] { Call("operator.floordiv", {1, 0}); }), HasSubstr("zero"));
  EXPECT_THAT(ErrorOf([] { Call("operator.mul", {int64_t{1} << 62, 4}); }), HasSubstr("64 bits"));
  EXPECT_THAT(ErrorOf([] { Call("operator.pow", {10, 30}); }), HasSubstr("64 bits"));
  EXPECT_THAT(ErrorOf([] { Call("math.ceil", {1e30}); }), HasSubstr("64 bits"));
}

}  // namespace
}  // namespace ddpopt
