#include "interpreter/mode_stack.h"

#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ATen/ops/add.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/mul.h"
#include "ATen/ops/ones.h"
#include "base/dispatch_keys.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ddpopt {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

class Recorder : public Mode {
 public:
  explicit Recorder(Level level, std::vector<std::string>* log, std::string tag = "") : level_(level), log_(log), tag_(std::move(tag)) {}
  Level level() const override { return level_; }
  absl::string_view name() const override { return "Recorder"; }
  void Handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    log_->push_back(tag_ + op.schema().name());
    if (inside) inside();
    op.callBoxed(stack);
  }
  std::function<void()> inside;

 private:
  Level level_;
  std::vector<std::string>* log_;
  std::string tag_;
};

class ModeStackTest : public ::testing::TestWithParam<Mode::Level> {
 protected:
  static bool KeyIncluded() {
    return c10::impl::tls_is_dispatch_key_included(GetParam() == Mode::Level::kPreAutograd ? kPreAutogradKey : kPostAutogradKey);
  }
  std::shared_ptr<Recorder> Make(std::string tag = "") { return std::make_shared<Recorder>(GetParam(), &log_, std::move(tag)); }
  std::vector<std::string> log_;
  const at::Tensor x_ = at::ones({2});
};

TEST_P(ModeStackTest, SeesOperatorsWhilePushedOnly) {
  {
    ModeGuard guard(Make());
    EXPECT_TRUE(KeyIncluded());
    at::add(x_, x_);
  }
  EXPECT_THAT(log_, ElementsAre("aten::add"));
  EXPECT_FALSE(KeyIncluded());
  at::mul(x_, x_);
  EXPECT_THAT(log_, ElementsAre("aten::add"));
}

TEST_P(ModeStackTest, ResultsAreTheKernels) {
  ModeGuard guard(Make());
  EXPECT_EQ(at::add(x_, x_).const_data_ptr<float>()[0], 2.0F);
}

TEST_P(ModeStackTest, FactoriesAreSeenWithoutTensorArguments) {
  ModeGuard guard(Make());
  at::ones({3});
  EXPECT_THAT(log_, Contains("aten::ones"));
}

// Case 45: a call from a handler goes down the stack, and reaches the kernel when it is empty.
TEST_P(ModeStackTest, RedispatchReachesTheLowerModesOnceEach) {
  auto outer = Make("outer ");
  auto inner = Make("inner ");
  Mode* seen_by_inner = inner.get();
  Mode* seen_by_outer = inner.get();
  inner->inside = [&] { seen_by_inner = CurrentMode(GetParam()); };
  outer->inside = [&] { seen_by_outer = CurrentMode(GetParam()); };
  ModeGuard outer_guard(outer);
  ModeGuard inner_guard(inner);
  at::add(x_, x_);
  EXPECT_THAT(log_, ElementsAre("inner aten::add", "outer aten::add"));
  EXPECT_EQ(seen_by_inner, outer.get());
  EXPECT_EQ(seen_by_outer, nullptr);
  EXPECT_EQ(CurrentMode(GetParam()), inner.get());
}

// Case 43: what is current while a mode handles is the mode below it.
TEST_P(ModeStackTest, OperatorsCalledInHandleSkipTheMode) {
  auto mode = Make();
  mode->inside = [&] { at::mul(x_, x_); };
  ModeGuard guard(mode);
  at::add(x_, x_);
  EXPECT_THAT(log_, ElementsAre("aten::add"));
}

TEST_P(ModeStackTest, AModePushedInHandleLiesOnTheLowerOnes) {
  auto outer = Make("outer ");
  auto inner = Make("inner ");
  inner->inside = [&] {
    ModeGuard again(Make("pushed "));
    at::mul(x_, x_);
  };
  ModeGuard outer_guard(outer);
  ModeGuard inner_guard(inner);
  at::add(x_, x_);
  EXPECT_THAT(log_, ElementsAre("inner aten::add", "pushed aten::mul", "outer aten::mul", "outer aten::add"));
}

TEST_P(ModeStackTest, ExceptionsUnwindGuardsAndHandlers) {
  auto outer = Make("outer ");
  auto inner = Make("inner ");
  outer->inside = [] { throw std::runtime_error("boom"); };
  ModeGuard outer_guard(outer);
  EXPECT_THROW(
      {
        ModeGuard inner_guard(inner);
        at::add(x_, x_);
      },
      std::runtime_error);
  EXPECT_EQ(CurrentMode(GetParam()), outer.get());
  EXPECT_TRUE(KeyIncluded());
  outer->inside = nullptr;
  log_.clear();
  at::add(x_, x_);
  EXPECT_THAT(log_, ElementsAre("outer aten::add"));
}

TEST_P(ModeStackTest, KernelErrorsUnwindToo) {
  ModeGuard guard(Make());
  EXPECT_THROW(at::add(at::ones({2}), at::ones({3})), c10::Error);
  log_.clear();
  at::add(x_, x_);
  EXPECT_THAT(log_, ElementsAre("aten::add"));
}

TEST_P(ModeStackTest, DisableModesGuardHidesTheLevel) {
  ModeGuard guard(Make());
  {
    DisableModesGuard disable(GetParam());
    EXPECT_EQ(CurrentMode(GetParam()), nullptr);
    EXPECT_FALSE(KeyIncluded());
    at::add(x_, x_);
    ModeGuard inner(Make("inner "));
    at::add(x_, x_);
  }
  at::mul(x_, x_);
  EXPECT_THAT(log_, ElementsAre("inner aten::add", "aten::mul"));
}

TEST_P(ModeStackTest, ANewThreadHasNoModes) {
  ModeGuard guard(Make());
  Mode* seen = CurrentMode(GetParam());
  std::thread([&] {
    seen = CurrentMode(GetParam());
    at::add(x_, x_);
  }).join();
  EXPECT_EQ(seen, nullptr);
  EXPECT_THAT(log_, IsEmpty());
}

TEST_P(ModeStackTest, ANullModeIsRefused) { EXPECT_THROW(ModeGuard(std::shared_ptr<Mode>()), c10::Error); }

using ModeStackDeathTest = ModeStackTest;

TEST_P(ModeStackDeathTest, GuardsOutOfOrder) {
  EXPECT_DEATH(
      {
        auto outer = std::make_unique<ModeGuard>(Make());
        ModeGuard inner(Make());
        outer.reset();
      },
      "reverse order");
}

INSTANTIATE_TEST_SUITE_P(Levels, ModeStackTest, ::testing::Values(Mode::Level::kPreAutograd, Mode::Level::kPostAutograd),
                         [](const auto& info) { return info.param == Mode::Level::kPreAutograd ? "PreAutograd" : "PostAutograd"; });
INSTANTIATE_TEST_SUITE_P(Levels, ModeStackDeathTest, ::testing::Values(Mode::Level::kPreAutograd));

TEST(ModeLevelsTest, CompositesAreWholeAboveAutogradOnly) {
  std::vector<std::string> pre;
  std::vector<std::string> post;
  const at::Tensor x = at::ones({2, 2}).requires_grad_();
  ModeGuard pre_guard(std::make_shared<Recorder>(Mode::Level::kPreAutograd, &pre));
  ModeGuard post_guard(std::make_shared<Recorder>(Mode::Level::kPostAutograd, &post));
  const at::Tensor y = at::linear(x, x, x.detach().select(0, 0));
  EXPECT_TRUE(y.grad_fn());
  EXPECT_THAT(pre, Contains("aten::linear"));
  EXPECT_THAT(pre, Not(Contains("aten::addmm")));
  EXPECT_THAT(post, Contains("aten::addmm"));
  EXPECT_THAT(post, Not(Contains("aten::linear")));
}

}  // namespace
}  // namespace ddpopt
