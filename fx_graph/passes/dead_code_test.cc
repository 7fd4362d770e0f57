#include "fx_graph/passes/dead_code.h"

#include <memory>
#include <string>
#include <vector>

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
using ::testing::ElementsAre;

std::vector<std::string> Names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node* node : graph.nodes()) names.emplace_back(node->name());
  return names;
}

class DeadCodeTest : public ::testing::Test {
 protected:
  Node* Call(const char* name, const char* overload, std::vector<Argument> args, Kwargs kwargs = {}) {
    const std::string op(name);  // named as a tracer would
    return g_.CallFunction(FindOperator(name, overload), std::move(args), std::move(kwargs), op.substr(op.rfind(":") + 1));
  }
  Node* Opaque(const char* text, std::vector<Argument> args) {
    return g_.CreateNode(Op::kCallFunction, OpaqueTarget{text}, std::move(args));
  }
  absl::StatusOr<bool> Run(DeadCodeOptions options = {}) { return RunPass(DeadCodePass(std::move(options)), module_); }

  GraphModule module_;
  Graph& g_ = module_.graph();
  Node* x_ = g_.Placeholder("x");
  Node* y_ = g_.Placeholder("y");
};

TEST_F(DeadCodeTest, DropsWholeChainsAndKeepsPlaceholders) {
  DDPOPT_ASSERT_OK(module_.AddAttr("w", 1, GraphModule::AttrKind::kConstant));
  Node* live = Call("aten::relu", "", {x_});
  Node* dead = Call("aten::mul", "Tensor", {live, g_.GetAttr("w")});
  Call("aten::neg", "", {Call("aten::cat", "", {Argument::List({dead, dead}), IValue(0)})});
  g_.Output(live);
  EXPECT_THAT(Run(), IsOkAndHolds(true));
  EXPECT_THAT(Names(g_), ElementsAre("x", "y", "relu", "output"));
}

TEST_F(DeadCodeTest, NothingToDrop) {
  g_.Output(Call("aten::relu", "", {x_}));
  EXPECT_THAT(Run(), IsOkAndHolds(false));
  GraphModule empty;
  EXPECT_THAT(RunPass(DeadCodePass(), empty), IsOkAndHolds(false));
}

// Cases 33 and 46: an in-place operator whose result nobody takes, on the tensor itself and on a view of it.
TEST_F(DeadCodeTest, KeepsWritesAndTheViewsTheyGoThrough) {
  Call("aten::mul_", "Scalar", {x_, IValue(2)});
  Node* diagonal = Call("aten::diagonal", "", {x_});
  Call("aten::add_", "Scalar", {diagonal, IValue(1)});
  Call("aten::diagonal", "", {y_});
  g_.Output(x_);
  EXPECT_THAT(Run(), IsOkAndHolds(true));
  EXPECT_THAT(Names(g_), ElementsAre("x", "y", "mul_", "diagonal", "add_", "output"));
}

TEST_F(DeadCodeTest, KeepsOutVariantsAndWritesToLists) {
  Call("aten::neg", "out", {x_}, {{"out", y_}});
  Call("aten::_foreach_add_", "Scalar", {Argument::List({x_, y_}), IValue(1)});
  g_.Output(y_);
  EXPECT_THAT(Run(), IsOkAndHolds(false));
}

TEST_F(DeadCodeTest, KeepsStatisticsInTrainingAlone) {
  const Argument none, momentum(IValue(0.1)), eps(IValue(1e-5));
  for (const bool training : {true, false}) {
    Call("aten::batch_norm", "", {x_, none, none, x_, y_, IValue(training), momentum, eps, IValue(false)});
    Call("aten::native_batch_norm", "", {x_, none, none, x_, y_, IValue(training), momentum, eps});
    Call("aten::cudnn_batch_norm", "", {x_, y_, none, x_, y_, IValue(training), momentum, eps});
    Call("aten::instance_norm", "", {x_, none, none, x_, y_, IValue(training), momentum, eps, IValue(false)});
  }
  // Without statistics there is nothing to write.
  Call("aten::instance_norm", "", {x_, none, none, none, none, IValue(true), momentum, eps, IValue(false)});
  g_.Output(x_);
  EXPECT_THAT(Run(), IsOkAndHolds(true));
  EXPECT_THAT(Names(g_), ElementsAre("x", "y", "batch_norm", "native_batch_norm", "cudnn_batch_norm", "instance_norm", "output"));
}

TEST_F(DeadCodeTest, RandomOperatorsStayUnlessToldOtherwise) {
  Call("aten::dropout", "", {x_, IValue(0.5), IValue(true)});
  Call("aten::rand_like", "", {x_});
  Call("aten::bernoulli_", "float", {x_});
  g_.Output(x_);
  EXPECT_THAT(Run(), IsOkAndHolds(false));
  EXPECT_THAT(Run({.random_is_impure = false}), IsOkAndHolds(true));
  EXPECT_THAT(Names(g_), ElementsAre("x", "y", "bernoulli_", "output"));
}

TEST_F(DeadCodeTest, KeepsModesAssertionsAndTheUnknown) {
  Opaque("torch._C._set_grad_enabled", {IValue(false)});
  Node* entered = Opaque("torch.amp.autocast_mode._enter_autocast", {IValue("cpu"), Argument(), IValue(true), Argument()});
  Opaque("torch.amp.autocast_mode._exit_autocast", {entered});
  Call("aten::_assert_async", "msg", {x_, IValue("positive")});
  Call("aten::_assert_tensor_metadata", "", {x_});
  Opaque("torch.frobnicate", {x_});
  g_.CallMethod("frobnicate", {x_});
  g_.CallMethod("relu_", {x_});
  Opaque("_operator.setitem", {x_, IValue(0), y_});
  g_.Output(x_);
  EXPECT_THAT(Run(), IsOkAndHolds(false));
}

TEST_F(DeadCodeTest, DropsPythonFunctionsAndMethodsThatAtenKnowsAsPure) {
  Opaque("torch.nn.functional.relu", {x_});
  Opaque("_operator.add", {x_, y_});
  Opaque("operator.getitem", {x_, IValue(0)});
  g_.CallMethod("transpose", {x_, IValue(0), IValue(1)});
  g_.Output(x_);
  EXPECT_THAT(Run(), IsOkAndHolds(true));
  EXPECT_THAT(Names(g_), ElementsAre("x", "y", "output"));
}

std::shared_ptr<GraphModule> Nested(const char* op, const char* overload, int args) {
  auto nested = std::make_shared<GraphModule>();
  std::vector<Argument> arguments;
  for (int i = 0; i < args; ++i) arguments.emplace_back(nested->graph().Placeholder("a"));
  Node* dead = nested->graph().CallFunction(FindOperator("aten::neg"), {arguments[0]});
  nested->graph().CallFunction(FindOperator("aten::neg"), {dead});
  nested->graph().Output(
      nested->graph().CreateNode(Op::kCallFunction, OperatorTarget{FindOperator(op, overload)}, std::move(arguments), {}, "result"));
  return nested;
}

TEST_F(DeadCodeTest, NestedGraphsAreCleanedAndJudged) {
  DDPOPT_ASSERT_OK(module_.AddSubmodule("pure", {Nested("aten::relu", "", 1), nullptr}));
  auto writer = Nested("aten::add_", "Tensor", 2);
  DDPOPT_ASSERT_OK(module_.AddSubmodule("writer", {writer, nullptr}));
  g_.CallModule("pure", {x_});
  g_.CallModule("writer", {x_, y_});
  g_.CreateNode(Op::kCallFunction, HigherOrderTarget{"cond"}, {y_, g_.GetAttr("pure"), g_.GetAttr("pure"), Argument::Tuple({x_})});
  g_.CreateNode(Op::kCallFunction, HigherOrderTarget{"cond"}, {y_, g_.GetAttr("pure"), g_.GetAttr("writer"), Argument::Tuple({x_})});
  g_.Output(x_);
  EXPECT_THAT(Run(), IsOkAndHolds(true));
  EXPECT_THAT(Names(g_), ElementsAre("x", "y", "writer", "pure_3", "writer_1", "cond_1", "output"));
  EXPECT_THAT(Names(writer->graph()), ElementsAre("a", "a_1", "result", "output"));
}

// Nested graphs are cleaned first, so that what is dropped there counts no more for the node that calls them.
TEST_F(DeadCodeTest, AModuleMadePureByCleaningGoesInTheSameRun) {
  auto nested = std::make_shared<GraphModule>();
  Node* a = nested->graph().Placeholder("a");
  nested->graph().CallFunction(FindOperator("aten::rand_like"), {a});
  nested->graph().Output(a);
  DDPOPT_ASSERT_OK(module_.AddSubmodule("nested", {nested, nullptr}));
  g_.CallModule("nested", {x_});
  g_.Output(x_);
  EXPECT_THAT(Run(), IsOkAndHolds(false));
  EXPECT_THAT(Run({.random_is_impure = false}), IsOkAndHolds(true));
  EXPECT_THAT(Names(g_), ElementsAre("x", "y", "output"));
}

TEST_F(DeadCodeTest, TheCallersJudgementReplacesTheDefault) {
  Call("aten::mul_", "Scalar", {x_, IValue(2)});
  Call("aten::relu", "", {x_});
  g_.Output(x_);
  EXPECT_THAT(Run({.is_impure = [](const Node& node) { return node.name() == "relu"; }}), IsOkAndHolds(true));
  EXPECT_THAT(Names(g_), ElementsAre("x", "y", "relu", "output"));
  // It may build upon the default.
  Effects effects(module_);
  EXPECT_THAT(Run({.is_impure = [&](const Node& node) { return IsImpure(effects, node); }}), IsOkAndHolds(true));
  EXPECT_THAT(Names(g_), ElementsAre("x", "y", "output"));
}

TEST_F(DeadCodeTest, ALongDeadChain) {
  Node* node = x_;
  for (int i = 0; i < 100000; ++i) node = Call("aten::relu", "", {node});
  g_.Output(x_);
  EXPECT_THAT(EliminateDeadCode(module_), IsOkAndHolds(true));
  EXPECT_EQ(g_.size(), 3u);
  DDPOPT_EXPECT_OK(module_.Lint());
}

TEST(DeadCodePass, IsMadeFromItsText) {
  PassRegistry registry;
  DDPOPT_ASSERT_OK(DeadCodePass::Register(registry));
  for (const char* text : {"dead_code", "dead_code{random_is_impure=false}"}) {
    auto passes = registry.CreatePipeline(text);
    DDPOPT_ASSERT_OK(passes);
    EXPECT_EQ(passes->front()->ToString(), text);
  }
}

}  // namespace
}  // namespace ddpopt::fx
