#include "fx_graph/passes/common_subexpression.h"

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/ones.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"
#include "testing/matchers.h"
#include "testing/pass_test.h"

namespace ddpopt::fx {
namespace {

using c10::IValue;
using testing::FindOperator;
using testing::IsOkAndHolds;
using testing::RunPass;

class CommonSubexpressionTest : public ::testing::Test {
 protected:
  Node* Call(const char* name, const char* overload, std::vector<Argument> args, Kwargs kwargs = {}) {
    return g_.CallFunction(FindOperator(name, overload), std::move(args), std::move(kwargs));
  }
  Node* Relu(Node* x) { return Call("aten::relu", "", {x}); }
  Node* Opaque(const char* text, std::vector<Argument> args) {
    return g_.CreateNode(Op::kCallFunction, OpaqueTarget{text}, std::move(args));
  }
  // An output that depends on the nodes but none of which can leave through it.
  void Use(std::vector<Node*> nodes) {
    std::vector<Argument> results;
    for (Node* node : nodes) results.emplace_back(Call("aten::sum", "", {node}, {{"dtype", IValue(next_use_++)}}));
    g_.Output(Argument::Tuple(std::move(results)));
  }
  absl::StatusOr<bool> Run() { return RunPass(CommonSubexpressionPass(), module_); }
  // Whether a and b are merged in a graph that uses both.
  bool Merges(Node* a, Node* b) {
    Use({a, b});
    const absl::StatusOr<bool> changed = Run();
    EXPECT_THAT(changed, testing::IsOk());
    return changed.ok() && *changed;
  }

  GraphModule module_;
  Graph& g_ = module_.graph();
  Node* x_ = g_.Placeholder("x");
  Node* y_ = g_.Placeholder("y");
  int64_t next_use_ = 0;
};

TEST_F(CommonSubexpressionTest, MergesWholeChains) {
  Node* a = Relu(Relu(x_));
  Node* b = Relu(Relu(x_));
  g_.Output(Call("aten::add", "Tensor", {a, b}));
  EXPECT_THAT(Run(), IsOkAndHolds(true));
  EXPECT_EQ(g_.size(), 6u);
  EXPECT_EQ(g_.back()->prev()->args()[0].node(), a);
  EXPECT_EQ(g_.back()->prev()->args()[1].node(), a);
}

TEST_F(CommonSubexpressionTest, NothingAlike) {
  EXPECT_FALSE(Merges(Relu(x_), Relu(y_)));
}

TEST_F(CommonSubexpressionTest, GetAttrOfOnePathIsOneObject) {
  DDPOPT_ASSERT_OK(module_.AddAttr("w", at::ones({2}), GraphModule::AttrKind::kParameter));
  DDPOPT_ASSERT_OK(module_.AddAttr("v", at::ones({2}), GraphModule::AttrKind::kParameter));
  Node* w = g_.GetAttr("w");
  Node* v = g_.GetAttr("v");
  Node* again = g_.GetAttr("w");
  Call("aten::add_", "Scalar", {w, IValue(1)});  // one object, written or not
  Node* last = g_.GetAttr("w");
  Use({w, v, again, last});
  EXPECT_THAT(Run(), IsOkAndHolds(true));
  EXPECT_EQ(w->users().size(), 4u);
  EXPECT_EQ(v->users().size(), 1u);
}

struct ConstantPair {
  IValue a, b;
};
class Constants : public CommonSubexpressionTest, public ::testing::WithParamInterface<ConstantPair> {};
TEST_P(Constants, DifferIfTypeOrBitsDo) {
  const auto node = [&](const IValue& value) { return Opaque("_operator.add", {x_, value}); };
  EXPECT_FALSE(Merges(node(GetParam().a), node(GetParam().b)));
}
TEST_P(Constants, AreAlikeIfTypeAndBitsAre) {
  const auto node = [&](const IValue& value) { return Opaque("_operator.add", {x_, Argument::List({Argument::Tuple({value})})}); };
  EXPECT_TRUE(Merges(node(GetParam().a), node(GetParam().a)));
}
INSTANTIATE_TEST_SUITE_P(All, Constants,
                         ::testing::Values(ConstantPair{1, 1.0}, ConstantPair{1, true}, ConstantPair{1.0, true}, ConstantPair{0, false},
                                           ConstantPair{0.0, -0.0}, ConstantPair{"1", 1}, ConstantPair{"a", "b"}, ConstantPair{1, 2},
                                           ConstantPair{std::numeric_limits<double>::quiet_NaN(),
                                                        -std::numeric_limits<double>::quiet_NaN()},
                                           ConstantPair{c10::complex<double>(0, 0.0), c10::complex<double>(0, -0.0)},
                                           ConstantPair{std::vector<int64_t>{1}, std::vector<double>{1}},
                                           ConstantPair{std::vector<int64_t>{1, 2}, std::vector<int64_t>{2, 1}},
                                           ConstantPair{c10::Device("cpu"), c10::Device("meta")}, ConstantPair{c10::Device("cpu"), "cpu"}));

TEST_F(CommonSubexpressionTest, ConstantTensorsAreTheSameByIdentity) {
  const at::Tensor one = at::ones({2}), other = at::ones({2});
  EXPECT_FALSE(Merges(Call("aten::add", "Tensor", {x_, IValue(one)}), Call("aten::add", "Tensor", {x_, IValue(other)})));
}

TEST_F(CommonSubexpressionTest, TheSameConstantTensor) {
  const at::Tensor one = at::ones({2});
  EXPECT_TRUE(Merges(Call("aten::add", "Tensor", {x_, IValue(one)}), Call("aten::add", "Tensor", {x_, IValue(one)})));
}

TEST_F(CommonSubexpressionTest, OperatorsArgumentsByPositionNameOrDefault) {
  Node* plain = Call("aten::add", "Tensor", {x_, y_});
  Node* named = Call("aten::add", "Tensor", {}, {{"other", y_}, {"self", x_}});
  Node* with_default = Call("aten::add", "Tensor", {x_, y_}, {{"alpha", IValue(1)}});
  Node* scaled = Call("aten::add", "Tensor", {x_, y_}, {{"alpha", IValue(2)}});
  Node* floating = Call("aten::add", "Tensor", {x_, y_}, {{"alpha", IValue(1.0)}});
  Node* swapped = Call("aten::add", "Tensor", {y_, x_});
  Use({plain, named, with_default, scaled, floating, swapped});
  EXPECT_THAT(Run(), IsOkAndHolds(true));
  EXPECT_EQ(plain->users().size(), 3u);
  EXPECT_EQ(g_.size(), 2u + 4 + 6 + 1);
}

TEST_F(CommonSubexpressionTest, OpaqueFunctionsTakeNamesLiterally) {
  const auto node = [&](std::vector<Argument> args, Kwargs kwargs) {
    return g_.CreateNode(Op::kCallFunction, OpaqueTarget{"torch.add"}, std::move(args), std::move(kwargs));
  };
  Node* plain = node({x_, y_}, {});
  Node* named = node({x_}, {{"other", y_}});
  Node* same = node({x_}, {{"other", y_}});
  Node* otherwise = node({x_}, {{"alpha", y_}});
  Use({plain, named, same, otherwise});
  EXPECT_THAT(Run(), IsOkAndHolds(true));
  EXPECT_EQ(named->users().size(), 2u);
  EXPECT_EQ(plain->users().size(), 1u);
}

TEST_F(CommonSubexpressionTest, OverloadsDiffer) {
  EXPECT_FALSE(Merges(Call("aten::add", "Tensor", {x_, IValue(1)}), Call("aten::add", "Scalar", {x_, IValue(1)})));
}

TEST_F(CommonSubexpressionTest, FunctionsAndMethodsDiffer) {
  EXPECT_FALSE(Merges(g_.CallMethod("torch.relu", {x_}), Opaque("torch.relu", {x_})));
}

TEST_F(CommonSubexpressionTest, MethodsAlike) { EXPECT_TRUE(Merges(g_.CallMethod("relu", {x_}), g_.CallMethod("relu", {x_}))); }

TEST_F(CommonSubexpressionTest, RandomNumbersAreNeverAlike) {
  EXPECT_FALSE(Merges(Call("aten::rand_like", "", {x_}), Call("aten::rand_like", "", {x_})));
}

TEST_F(CommonSubexpressionTest, AssertionsStay) {
  Call("aten::_assert_async", "msg", {x_, IValue("positive")});
  Call("aten::_assert_async", "msg", {x_, IValue("positive")});
  g_.Output(x_);
  EXPECT_THAT(Run(), IsOkAndHolds(false));
}

TEST_F(CommonSubexpressionTest, WritesAreNeverMerged) {
  Call("aten::add_", "Scalar", {x_, IValue(1)});
  Call("aten::add_", "Scalar", {x_, IValue(1)});
  g_.Output(x_);
  EXPECT_THAT(Run(), IsOkAndHolds(false));
}

TEST_F(CommonSubexpressionTest, MemoryWrittenBetween) {
  Node* a = Relu(x_);
  Call("aten::add_", "Scalar", {x_, IValue(1)});
  EXPECT_FALSE(Merges(a, Relu(x_)));
}

TEST_F(CommonSubexpressionTest, MemoryWrittenThroughAView) {
  Node* base = Call("aten::clone", "", {x_});
  Node* view = Call("aten::select", "int", {base, IValue(0), IValue(0)});
  Node* a = Relu(base);
  Call("aten::zero_", "", {view});
  EXPECT_FALSE(Merges(a, Relu(base)));
}

TEST_F(CommonSubexpressionTest, MemoryThatInputsMayShare) {
  Node* a = Relu(x_);
  Call("aten::zero_", "", {y_});  // y may be x
  EXPECT_FALSE(Merges(a, Relu(x_)));
}

TEST_F(CommonSubexpressionTest, InputsKnownToBeApart) {
  x_->meta().val = at::ones({2});
  y_->meta().val = at::ones({2});
  Node* a = Relu(x_);
  Call("aten::zero_", "", {y_});
  EXPECT_TRUE(Merges(a, Relu(x_)));
}

TEST_F(CommonSubexpressionTest, InputsKnownToShare) {
  x_->meta().val = at::ones({2});
  y_->meta().val = x_->meta().val.toTensor().select(0, 0);
  Node* a = Relu(x_);
  Call("aten::zero_", "", {y_});
  EXPECT_FALSE(Merges(a, Relu(x_)));
}

TEST_F(CommonSubexpressionTest, AttributesThatShareStorage) {
  x_->meta().val = at::ones({2});
  y_->meta().val = at::ones({2});
  const at::Tensor w = at::ones({4});
  DDPOPT_ASSERT_OK(module_.AddAttr("w", w, GraphModule::AttrKind::kParameter));
  DDPOPT_ASSERT_OK(module_.AddAttr("tied", w, GraphModule::AttrKind::kParameter));
  DDPOPT_ASSERT_OK(module_.AddAttr("apart", at::ones({4}), GraphModule::AttrKind::kBuffer));
  Node* w_node = g_.GetAttr("w");
  Node* apart = g_.GetAttr("apart");
  Node* a = Relu(w_node);
  Node* b = Relu(apart);
  Call("aten::zero_", "", {g_.GetAttr("tied")});
  Node* c = Relu(w_node);
  Node* d = Relu(apart);
  Use({a, b, c, d});
  EXPECT_THAT(Run(), IsOkAndHolds(true));
  EXPECT_EQ(a->users().size(), 1u);
  EXPECT_EQ(b->users().size(), 2u);
}

TEST_F(CommonSubexpressionTest, StatisticsThatBatchNormWrites) {
  DDPOPT_ASSERT_OK(module_.AddAttr("mean", at::ones({2}), GraphModule::AttrKind::kBuffer));
  Node* mean = g_.GetAttr("mean");
  Node* a = Relu(mean);
  const Argument none;
  Call("aten::batch_norm", "", {x_, none, none, mean, mean, IValue(true), IValue(0.1), IValue(1e-5), IValue(false)});
  EXPECT_FALSE(Merges(a, Relu(mean)));
}

// Case 34: two fresh tensors, one of which is written afterwards.
TEST_F(CommonSubexpressionTest, AValueThatIsWrittenLater) {
  Node* a = Call("aten::clone", "", {x_});
  Node* b = Call("aten::clone", "", {x_});
  Call("aten::add_", "Scalar", {a, IValue(1)});
  EXPECT_FALSE(Merges(a, b));
}

TEST_F(CommonSubexpressionTest, AValueOfWhichAViewIsWrittenLater) {
  Node* a = Call("aten::clone", "", {x_});
  Node* b = Call("aten::clone", "", {x_});
  Call("aten::zero_", "", {Call("aten::diagonal", "", {b})});
  EXPECT_FALSE(Merges(a, b));
}

TEST_F(CommonSubexpressionTest, AValueWrittenBeforeOnly) {
  Node* base = Call("aten::clone", "", {x_});
  Call("aten::add_", "Scalar", {base, IValue(1)});
  EXPECT_TRUE(Merges(Relu(base), Relu(base)));
}

TEST_F(CommonSubexpressionTest, ModesBetween) {
  Node* a = Call("aten::mm", "", {x_, y_});
  Opaque("torch._C._set_grad_enabled", {IValue(false)});
  EXPECT_FALSE(Merges(a, Call("aten::mm", "", {x_, y_})));
}

TEST_F(CommonSubexpressionTest, UnknownCodeMayWriteWhatItReaches) {
  Node* fresh = Call("aten::exp", "", {x_});
  Node* given = Call("aten::neg", "", {x_});
  Opaque("torch.frobnicate", {given});
  Node* a = Relu(given);
  Node* b = Relu(fresh);
  Opaque("torch.frobnicate", {});
  Node* c = Relu(given);
  Node* d = Relu(fresh);
  Use({a, b, c, d});
  // Modes may have changed too.
  EXPECT_THAT(Run(), IsOkAndHolds(false));
}

TEST_F(CommonSubexpressionTest, TwoThatLeaveStayTwo) {
  Node* a = Relu(x_);
  Node* b = Relu(x_);
  g_.Output(Argument::Tuple({a, Call("aten::view", "", {b, Argument::List({IValue(-1)})})}));
  EXPECT_THAT(Run(), IsOkAndHolds(false));
}

TEST_F(CommonSubexpressionTest, OneThatLeavesAndOneThatDoesNot) {
  Node* a = Relu(x_);
  Node* b = Relu(x_);
  g_.Output(Argument::Tuple({b, Call("aten::sum", "", {a})}));
  EXPECT_THAT(Run(), IsOkAndHolds(true));
  // Only one may stand for a third.
  EXPECT_EQ(g_.output_node()->args()[0].elements()[0].node(), a);
}

std::shared_ptr<GraphModule> Nested(const char* op, const char* overload) {
  auto nested = std::make_shared<GraphModule>();
  Graph& g = nested->graph();
  Node* a = g.Placeholder("a");
  Node* once = g.CallFunction(FindOperator(op, overload), {a, IValue(1)});
  Node* twice = g.CallFunction(FindOperator(op, overload), {a, IValue(1)});
  g.Output(g.CallFunction(FindOperator("aten::mul", "Tensor"), {once, twice}));
  return nested;
}

TEST_F(CommonSubexpressionTest, NestedGraphsAndTheirCalls) {
  auto pure = Nested("aten::add", "Scalar");
  auto writer = Nested("aten::add_", "Scalar");
  DDPOPT_ASSERT_OK(module_.AddSubmodule("pure", {pure, nullptr}));
  DDPOPT_ASSERT_OK(module_.AddSubmodule("writer", {writer, nullptr}));
  const std::size_t writer_size = writer->graph().size();
  Node* a = g_.CallModule("pure", {x_});
  Node* b = g_.CallModule("pure", {x_});
  Node* c = g_.CallModule("writer", {y_});
  Node* d = g_.CallModule("writer", {y_});
  Use({a, b, c, d});
  EXPECT_THAT(Run(), IsOkAndHolds(true));
  EXPECT_EQ(pure->graph().size(), 4u);
  EXPECT_EQ(writer->graph().size(), writer_size);
  // Composite-like: what a module returns may be its input, which the writer may write.
  EXPECT_EQ(a->users().size() + b->users().size(), 2u);
  EXPECT_EQ(d->users().size(), 1u);
}

TEST_F(CommonSubexpressionTest, CallsOfAPureModule) {
  DDPOPT_ASSERT_OK(module_.AddSubmodule("pure", {Nested("aten::add", "Scalar"), nullptr}));
  EXPECT_TRUE(Merges(g_.CallModule("pure", {x_}), g_.CallModule("pure", {x_})));
}

TEST_F(CommonSubexpressionTest, AHundredThousandAlikeInLinearTime) {
  std::vector<Argument> leaving;
  Node* sum = Relu(y_);
  for (int i = 0; i < 20000; ++i) {
    leaving.emplace_back(Relu(x_));
    sum = Call("aten::add", "Tensor", {sum, Call("aten::exp", "", {x_})});
  }
  leaving.emplace_back(sum);
  g_.Output(Argument::Tuple(std::move(leaving)));
  EXPECT_THAT(EliminateCommonSubexpressions(module_), IsOkAndHolds(true));
  EXPECT_EQ(g_.size(), 2u + 1 + 20000 + 1 + 20000 + 1);
}

}  // namespace
}  // namespace ddpopt::fx
