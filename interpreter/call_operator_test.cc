#include "interpreter/call_operator.h"

#include <string>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"

namespace ddpopt {
namespace {

using c10::IValue;
using ::testing::AllOf;
using testing::ErrorOf;
using testing::FindOperator;
using ::testing::HasSubstr;

IValue AnyList(std::vector<IValue> elements) {
  c10::impl::GenericList list(c10::AnyType::get());
  for (IValue& element : elements) list.push_back(std::move(element));
  return list;
}

TEST(CallOperator, BindsPositionalKeywordAndDefaults) {
  const at::Tensor x = at::arange(3, at::kFloat);
  EXPECT_TRUE(at::equal(CallOperator(FindOperator("aten::add", "Tensor"), {x, x}).toTensor(), x + x));
  EXPECT_TRUE(at::equal(CallOperator(FindOperator("aten::add", "Tensor"), {x, x}, {{"alpha", 3}}).toTensor(), x * 4));
  EXPECT_TRUE(at::equal(CallOperator(FindOperator("aten::add", "Tensor"), {}, {{"other", x}, {"self", x}}).toTensor(), x + x));
}

TEST(CallOperator, NumberForATensorIsAWrappedNumber) {
  const at::Tensor x = at::arange(3, at::kInt);
  const at::Tensor half = at::arange(3, at::kHalf);
  // A plain double tensor of one element would not change the type either, but a plain one in integers would make it int64.
  EXPECT_EQ(CallOperator(FindOperator("aten::add", "Tensor"), {x, 2}).toTensor().scalar_type(), at::kInt);
  EXPECT_EQ(CallOperator(FindOperator("aten::mul", "Tensor"), {half, 2.5}).toTensor().scalar_type(), at::kHalf);
  EXPECT_EQ(CallOperator(FindOperator("aten::where", "self"), {x > 1, 0.5, 1}).toTensor().scalar_type(), at::kFloat);
}

TEST(CallOperator, ListsTakeTheSchemasType) {
  const at::Tensor x = at::arange(6, at::kFloat).reshape({2, 3});
  EXPECT_EQ(CallOperator(FindOperator("aten::cat"), {AnyList({x, x}), 1}).toTensor().sizes(), (std::vector<int64_t>{2, 6}));
  EXPECT_EQ(CallOperator(FindOperator("aten::view"), {x, AnyList({3, 2})}).toTensor().sizes(), (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(CallOperator(FindOperator("aten::permute"), {x, c10::ivalue::Tuple::create({IValue(1), IValue(0)})}).toTensor().sizes(),
            (std::vector<int64_t>{3, 2}));
  // Tensor?[] with a None.
  EXPECT_TRUE(at::equal(CallOperator(FindOperator("aten::index", "Tensor"), {x, AnyList({IValue(), at::tensor({2, 0})})}).toTensor(),
                        x.index_select(1, at::tensor({2, 0}))));
  // float[]: ints among them become floats.
  EXPECT_EQ(
      CallOperator(FindOperator("aten::upsample_nearest2d", "vec"), {x.view({1, 1, 2, 3}), IValue(), AnyList({2, 2.0})}).toTensor().sizes(),
      (std::vector<int64_t>{1, 1, 4, 6}));
  // bool[3]
  const at::Tensor g = at::ones({2, 3});
  const IValue grads =
      CallOperator(FindOperator("aten::native_layer_norm_backward"),
                   {g, x, AnyList({3}), at::ones({2, 1}), at::ones({2, 1}), IValue(), IValue(), AnyList({true, false, false})});
  EXPECT_TRUE(grads.toTupleRef().elements()[0].toTensor().defined());
  // Scalar[]
  EXPECT_EQ(CallOperator(FindOperator("aten::_foreach_add", "ScalarList"), {AnyList({x, x}), AnyList({1, 2.5})}).toTensorVector().size(),
            2u);
}

TEST(CallOperator, OneNumberExpandsToAFixedSizeList) {
  const at::Tensor x = at::arange(16, at::kFloat).view({1, 1, 4, 4});
  EXPECT_TRUE(at::equal(CallOperator(FindOperator("aten::max_pool2d"), {x, 2}).toTensor(), at::max_pool2d(x, {2, 2})));
  EXPECT_TRUE(at::equal(CallOperator(FindOperator("aten::sum", "dim_IntList"), {x, 3}).toTensor(), x.sum(3)));
  EXPECT_THAT(ErrorOf([&] { CallOperator(FindOperator("aten::view"), {x, 16}); }), AllOf(HasSubstr("aten::view"), HasSubstr("'size'")));
}

TEST(CallOperator, ResultsAreBareTupleOrNone) {
  const at::Tensor x = at::arange(4, at::kFloat).view({2, 2});
  EXPECT_TRUE(CallOperator(FindOperator("aten::relu"), {x}).isTensor());
  const IValue max = CallOperator(FindOperator("aten::max", "dim"), {x, 1});
  ASSERT_TRUE(max.isTuple());
  EXPECT_EQ(max.toTupleRef().size(), 2u);
  EXPECT_TRUE(CallOperator(FindOperator("aten::_assert_async", "msg"), {at::ones({}), "fine"}).isNone());
  // An int where a float is asked, a Python bool where an int is.
  EXPECT_TRUE(at::equal(CallOperator(FindOperator("aten::dropout"), {x, 0, false}).toTensor(), x));
  EXPECT_TRUE(CallOperator(FindOperator("aten::sum"), {x}, {{"dtype", IValue()}}).isTensor());
}

TEST(CallOperator, ErrorsNameOperatorAndArgument) {
  const at::Tensor x = at::ones({2});
  const auto add = FindOperator("aten::add", "Tensor");
  const auto operator_and = [](const std::string& rest) { return AllOf(HasSubstr("aten::add.Tensor"), HasSubstr(rest)); };
  EXPECT_THAT(ErrorOf([&] { CallOperator(add, {x}); }), operator_and("'other' is missing"));
  EXPECT_THAT(ErrorOf([&] { CallOperator(add, {x, "two"}); }), operator_and("'other' must be Tensor"));
  EXPECT_THAT(ErrorOf([&] { CallOperator(add, {x, IValue()}); }), operator_and("'other'"));
  EXPECT_THAT(ErrorOf([&] { CallOperator(add, {x, x, 2}); }), operator_and("'alpha' must be given by keyword"));
  EXPECT_THAT(ErrorOf([&] { CallOperator(add, {x, x, 2, 3}); }), operator_and("takes 3 arguments"));
  EXPECT_THAT(ErrorOf([&] { CallOperator(add, {x, x}, {{"beta", 2}}); }), operator_and("no argument 'beta'"));
  EXPECT_THAT(ErrorOf([&] { CallOperator(add, {x, x}, {{"other", x}}); }), operator_and("'other' was given twice"));
  EXPECT_THAT(ErrorOf([&] { CallOperator(add, {x, x}, {{"alpha", 1}, {"alpha", 2}}); }), operator_and("'alpha' was given twice"));
  EXPECT_THAT(ErrorOf([&] {
                CallOperator(FindOperator("aten::cat"), {AnyList({x, "no"})});
              }),
              AllOf(HasSubstr("aten::cat"), HasSubstr("'tensors'")));
}

TEST(CallOperator, GoesThroughAutograd) {
  at::Tensor x = at::ones({2}).requires_grad_();
  CallOperator(FindOperator("aten::mul", "Tensor"), {x, 3}).toTensor().sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({2}, 3.0)));
}

}  // namespace
}  // namespace ddpopt
