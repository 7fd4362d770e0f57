// Which way an operator goes, as fake_tensor_mode.h tells: operators that have everything, and others that lack the first ways one after
// the other. Each way answers with a size of its own.

#include <optional>
#include <string>

#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "ATen/core/Tensor.h"
#include "c10/util/Exception.h"
#include "fake_tensor/fake_errors.h"
#include "fake_tensor/fake_kernel.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fake_tensor/test_helpers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/library.h"

namespace ddpopt {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kRule = 1, kMeta = 2, kComposite = 3, kReal = 4;
int64_t rule_answer = kRule;
int rule_calls = 0, meta_calls = 0, composite_calls = 0, real_calls = 0;

Tensor Of(int64_t size, const Tensor& self) { return at::empty({size}, self.options()); }
Tensor Rule(const Tensor& self) {
  ++rule_calls;
  return Of(rule_answer, self);
}
Tensor Meta(const Tensor& self) {
  ++meta_calls;
  return Of(kMeta, self);
}
Tensor MetaWithAGap(const Tensor& /*self*/) {
  ++meta_calls;
  TORCH_CHECK_NOT_IMPLEMENTED(false, "not for such tensors");
}
Tensor Composite(const Tensor& self) {
  ++composite_calls;
  return at::zeros({kComposite}, self.options());
}
Tensor Real(const Tensor& self) {
  ++real_calls;
  return at::ones({kReal}, self.options());
}
Tensor Doubled(const Tensor& self) {
  ++real_calls;
  return self * 2;
}

// Names tell what an operator has: a rule, a Meta kernel, a composition, a kernel for real tensors.
TORCH_LIBRARY(dispatch_order_test, m) {
  for (const char* name : {"rule_meta_composite_real", "meta_composite_real", "composite_real", "real", "gap_real", "nothing", "doubled"}) {
    m.def((std::string(name) + "(Tensor self) -> Tensor").c_str());
  }
  m.def("two(Tensor self, Tensor other) -> Tensor");
  m.def("select(Tensor self) -> Tensor", {at::Tag::dynamic_output_shape});
  m.def("select_ruleless(Tensor self) -> Tensor", {at::Tag::dynamic_output_shape});
  for (const char* name : {"rule_meta_composite_real", "meta_composite_real", "composite_real"}) m.impl(name, Composite);
}
TORCH_LIBRARY_IMPL(dispatch_order_test, Meta, m) {
  for (const char* name : {"rule_meta_composite_real", "meta_composite_real", "select_ruleless"}) m.impl(name, Meta);
  m.impl("gap_real", MetaWithAGap);
}
TORCH_LIBRARY_IMPL(dispatch_order_test, CPU, m) {
  for (const char* name :
       {"rule_meta_composite_real", "meta_composite_real", "composite_real", "real", "gap_real", "select", "select_ruleless"}) {
    m.impl(name, Real);
  }
  m.impl("doubled", Doubled);
}

class DispatchOrderTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    RegisterFakeKernel("dispatch_order_test::rule_meta_composite_real", Rule);
    RegisterFakeKernel("dispatch_order_test::select", Rule);
    RegisterFakeKernel("dispatch_order_test::doubled", [](const Tensor& self) {
      ++rule_calls;
      return at::empty_like(self);
    });
    RegisterFakeKernel("dispatch_order_test::two", [](const Tensor& self, const Tensor& /*other*/) { return Rule(self); });
  }
  void SetUp() override {
    rule_answer = kRule;
    rule_calls = meta_calls = composite_calls = real_calls = 0;
  }
  static Tensor Call(const char* name, const Tensor& x) {
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow((std::string("dispatch_order_test::") + name).c_str(), "")
        .typed<Tensor(const Tensor&)>()
        .call(x);
  }
  static Tensor Two(const Tensor& x, const Tensor& y) {
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow("dispatch_order_test::two", "")
        .typed<Tensor(const Tensor&, const Tensor&)>()
        .call(x, y);
  }
  static int64_t Answer(const char* name, const Tensor& x) { return Call(name, x).size(0); }
  Tensor Fake(at::IntArrayRef sizes = {7}) { return mode_->FromReal(at::ones(sizes)); }
  const std::shared_ptr<FakeTensorMode> mode_ = FakeTensorMode::Create();
};

TEST_F(DispatchOrderTest, RuleThenMetaThenComposition) {
  for (const bool fallback : {false, true}) {
    FakeTensorModeOptions options;
    options.allow_fallback_kernels = fallback;
    const auto mode = FakeTensorMode::Create(options);
    const Tensor x = mode->FromReal(at::ones({7}));
    EXPECT_EQ(Answer("rule_meta_composite_real", x), kRule);
    EXPECT_EQ(meta_calls + composite_calls, 0);
    EXPECT_EQ(Answer("meta_composite_real", x), kMeta);
    EXPECT_EQ(composite_calls, 0);
    EXPECT_EQ(Answer("composite_real", x), kComposite);
    EXPECT_EQ(real_calls, 0);
    SetUp();
  }
}

TEST_F(DispatchOrderTest, TheRealKernelIsTheLastResortAndOnlyIfAllowed) {
  const Tensor x = Fake();
  for (const char* name : {"real", "gap_real", "nothing"}) {
    EXPECT_THROW(Call(name, x), UnsupportedOperator) << name;
    EXPECT_THAT(ErrorOf([&] { Call(name, x); }),
                AllOf(HasSubstr(std::string("dispatch_order_test::") + name), HasSubstr("(Tensor self) -> Tensor"),
                      HasSubstr("RegisterFakeKernel"), HasSubstr("allow_fallback_kernels")));
  }
  EXPECT_THAT(ErrorOf([&] { Call("gap_real", x); }), HasSubstr("not for such tensors"));
  EXPECT_EQ(real_calls, 0);
  FakeTensorModeOptions options;
  options.allow_fallback_kernels = true;
  const auto mode = FakeTensorMode::Create(options);
  const Tensor y = mode->FromReal(at::ones({7}));
  EXPECT_EQ(Answer("real", y), kReal);
  EXPECT_EQ(Answer("gap_real", y), kReal);
  EXPECT_EQ(real_calls, 2);
  EXPECT_THROW(Call("nothing", y), c10::Error);
}

TEST_F(DispatchOrderTest, TheCacheGoesBeforeTheRule) {
  EXPECT_EQ(Answer("rule_meta_composite_real", Fake()), kRule);
  rule_answer = 9;
  EXPECT_EQ(Answer("rule_meta_composite_real", Fake()), kRule) << "another tensor of the same metadata";
  EXPECT_EQ(rule_calls, 1);
  EXPECT_EQ(Answer("rule_meta_composite_real", Fake({8})), 9);
  mode_->ClearCache();
  EXPECT_EQ(Answer("rule_meta_composite_real", Fake()), 9);
}

// What is in the cache never answers for a tensor that isn't this mode's fake, or for operands that don't go together.
TEST_F(DispatchOrderTest, TheCacheDoesNotHideARefusal) {
  Two(Fake(), Fake());
  EXPECT_EQ(rule_calls, 1);
  const auto other = FakeTensorMode::Create();
  EXPECT_THROW(Two(Fake(), other->FromReal(at::ones({7}))), NotOurFake);
  EXPECT_THROW(Two(Fake(), at::ones({7})), NotOurFake);
  EXPECT_THROW(Two(Fake(), mode_->FromReal(at::empty({7}, at::kMeta))), FakeDeviceMismatch);
  EXPECT_EQ(rule_calls, 1) << "the rule sees checked operands only";
  Two(Fake(), Fake());
  EXPECT_EQ(mode_->CacheInfo().hits, 1);
}

TEST_F(DispatchOrderTest, RealOperandsAreConvertedBeforeTheRuleAndTheCacheSeesThem) {
  FakeTensorModeOptions options;
  options.allow_non_fake_inputs = true;
  const auto mode = FakeTensorMode::Create(options);
  const Tensor x = mode->FromReal(at::ones({7}));
  EXPECT_TRUE(IsFake(Two(x, at::ones({7}))));
  EXPECT_TRUE(IsFake(Two(x, at::ones({7}))));
  EXPECT_EQ(rule_calls, 1);
  EXPECT_EQ(mode->CacheInfo().hits, 1);
}

// Where the shape needs data, known data go before the rule, and the rule before the refusal.
TEST_F(DispatchOrderTest, KnownDataGoBeforeTheRuleOfADataDependentOperator) {
  const Tensor known = mode_->FromConstant(at::ones({7}));
  EXPECT_EQ(Answer("select", known), kReal);
  EXPECT_EQ(rule_calls, 0);
  EXPECT_EQ(Answer("select", Fake()), kRule);
  EXPECT_EQ(real_calls, 1);
  EXPECT_EQ(Answer("select_ruleless", known), kReal);
  EXPECT_THROW(Call("select_ruleless", Fake()), DynamicOutputShape);
  EXPECT_EQ(meta_calls, 0) << "a Meta kernel can't know the shape";
}

// Of other operators, shapes come from the cache or the rule, and values from the known data, also on a hit.
TEST_F(DispatchOrderTest, TheCacheAnswersForShapesAndKnownDataForValues) {
  for (const double value : {1.0, 5.0}) {
    const std::optional<Tensor> doubled = FakeTensorMode::KnownValue(Call("doubled", mode_->FromConstant(at::full({2}, value))));
    ASSERT_TRUE(doubled.has_value());
    EXPECT_EQ((*doubled)[1].item<double>(), 2 * value);
  }
  EXPECT_EQ(rule_calls, 1);
  EXPECT_EQ(real_calls, 2);
  EXPECT_FALSE(FakeTensorMode::KnownValue(Call("doubled", Fake({2}))).has_value());
  EXPECT_EQ(rule_calls, 1) << "the same metadata";
}

}  // namespace
}  // namespace ddpopt
