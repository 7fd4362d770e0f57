#include "fx_graph/passes/topological_sort.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
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
using testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node* node : graph.nodes()) names.emplace_back(node->name());
  return names;
}

class TopologicalSortTest : public ::testing::Test {
 protected:
  Node* Call(const char* name, const char* op, const char* overload, std::vector<Argument> args) {
    return g_.CallFunction(FindOperator(op, overload), std::move(args), {}, name);
  }
  Node* Relu(const char* name, Node* x) { return Call(name, "aten::relu", "", {x}); }
  Node* Opaque(const char* name, const char* text, std::vector<Argument> args) {
    return g_.CreateNode(Op::kCallFunction, OpaqueTarget{text}, std::move(args), {}, name);
  }
  // Puts the nodes after the placeholders in this order.
  void List(std::vector<Node*> nodes) {
    for (Node* node : nodes) DDPOPT_EXPECT_OK(g_.back()->Append(node));
  }
  // The graph need not lint before, so that this is no RunPass. It must lint afterwards, and a second run must find nothing to do.
  absl::StatusOr<bool> Sort() {
    const std::string before = testing::ModuleText(module_);
    const absl::StatusOr<bool> changed = TopologicalSort(module_);
    if (!changed.ok()) {
      EXPECT_EQ(testing::ModuleText(module_), before);
      return changed;
    }
    DDPOPT_EXPECT_OK(module_.Lint());
    EXPECT_EQ(testing::ModuleText(module_) != before, *changed);
    EXPECT_THAT(testing::RunPass(TopologicalSortPass(), module_), IsOkAndHolds(false));
    return changed;
  }

  GraphModule module_;
  Graph& g_ = module_.graph();
  Node* x_ = g_.Placeholder("x");
  Node* y_ = g_.Placeholder("y");
};

TEST_F(TopologicalSortTest, LeavesASortedGraphAlone) {
  g_.Output(Relu("b", Relu("a", x_)));
  EXPECT_THAT(Sort(), IsOkAndHolds(false));
  GraphModule empty;
  EXPECT_THAT(TopologicalSort(empty), IsOkAndHolds(false));
}

TEST_F(TopologicalSortTest, IsStable) {
  Node* a = Relu("a", x_);
  Node* b = Relu("b", x_);
  Node* c = Relu("c", a);
  Node* d = Relu("d", y_);
  Node* e = Call("e", "aten::add", "Tensor", {c, b});
  Node* output = g_.Output(e);
  List({e, d, c, b, a, output});
  EXPECT_THAT(Sort(), IsOkAndHolds(true));
  // d could come first; then b of what is ready; a makes c ready, which is listed before; e as soon as it can.
  EXPECT_THAT(Names(g_), ElementsAre("x", "y", "d", "b", "a", "c", "e", "output"));
}

TEST_F(TopologicalSortTest, PlaceholdersFirstOutputLast) {
  Node* a = Relu("a", x_);
  g_.SetInsertBefore(g_.Output(a));
  Node* z = g_.Placeholder("z");
  g_.SetInsertBefore(nullptr);
  Relu("b", z);  // after the output
  EXPECT_THAT(Sort(), IsOkAndHolds(true));
  EXPECT_THAT(Names(g_), ElementsAre("x", "y", "z", "a", "b", "output"));
}

TEST_F(TopologicalSortTest, CyclesAreNamed) {
  Node* a = Relu("a", x_);
  Node* b = Relu("b", a);
  Node* c = Relu("c", b);
  Relu("innocent", c);
  a->ReplaceInputWith(x_, c);
  EXPECT_THAT(Sort().status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("in a cycle: "), HasSubstr("%a -> %b"), HasSubstr("%b -> %c"),
                                                                    HasSubstr("%c -> %a"), ::testing::Not(HasSubstr("innocent")))));
  a->ReplaceInputWith(c, a);
  EXPECT_THAT(Sort().status(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("%a takes its own value")));
}

TEST_F(TopologicalSortTest, ReadsAndWritesOfOneMemoryKeepTheirOrder) {
  Node* early = Relu("early", x_);
  Node* view = Call("view", "aten::view", "", {x_, Argument::List({IValue(-1)})});
  Node* write = Call("write", "aten::mul_", "Tensor", {view, y_});
  Node* late = Relu("late", x_);
  Node* sum = Call("total", "aten::add", "Tensor", {early, late});
  Node* output = g_.Output(sum);
  List({sum, early, view, write, late, output});
  EXPECT_THAT(Sort(), IsOkAndHolds(true));
  EXPECT_THAT(Names(g_), ElementsAre("x", "y", "early", "view", "write", "late", "total", "output"));
}

TEST_F(TopologicalSortTest, RandomNumbersKeepTheirOrder) {
  Node* first = Call("first", "aten::rand_like", "", {x_});
  Node* second = Call("second", "aten::rand_like", "", {y_});
  Node* third = Call("third", "aten::rand_like", "", {x_});
  Node* output = g_.Output(Argument::Tuple({first, second, third}));
  Node* base = Relu("base", x_);
  second->ReplaceInputWith(y_, base);
  List({first, second, third, base, output});
  EXPECT_THAT(Sort(), IsOkAndHolds(true));
  EXPECT_THAT(Names(g_), ElementsAre("x", "y", "first", "base", "second", "third", "output"));
}

TEST_F(TopologicalSortTest, NothingCrossesAChangeOfModes) {
  Node* before = Call("before", "aten::mm", "", {x_, y_});
  Node* off = Opaque("off", "torch._C._set_grad_enabled", {IValue(false)});
  Node* inside = Call("inside", "aten::mm", "", {x_, y_});
  Node* on = Opaque("on", "torch._C._set_grad_enabled", {IValue(true)});
  Node* after = Call("after", "aten::mm", "", {x_, y_});
  Node* sum = Call("total", "aten::add", "Tensor", {before, after});
  Node* helper = Relu("helper", x_);
  after->ReplaceInputWith(x_, helper);
  Node* output = g_.Output(Argument::Tuple({sum, inside}));
  List({sum, before, off, inside, on, after, helper, output});
  // sum is listed before the region but needs what comes after it.
  EXPECT_THAT(Sort().status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the order in which effects are listed contradicts")));
  List({before, off, inside, on, sum, after, helper, output});
  EXPECT_THAT(Sort(), IsOkAndHolds(true));
  EXPECT_THAT(Names(g_), ElementsAre("x", "y", "before", "off", "inside", "on", "helper", "after", "total", "output"));
}

TEST_F(TopologicalSortTest, NestedGraphsToo) {
  auto nested = std::make_shared<GraphModule>();
  Node* a = nested->graph().Placeholder("a");
  Node* b = nested->graph().CallFunction(FindOperator("aten::relu"), {a}, {}, "b");
  Node* c = nested->graph().CallFunction(FindOperator("aten::relu"), {b}, {}, "c");
  nested->graph().Output(c);
  DDPOPT_ASSERT_OK(b->Prepend(c));
  DDPOPT_ASSERT_OK(module_.AddSubmodule("nested", {nested, nullptr}));
  g_.Output(g_.CallModule("nested", {x_}));
  EXPECT_THAT(Sort().status(), testing::IsOk());
  EXPECT_THAT(Names(nested->graph()), ElementsAre("a", "b", "c", "output"));
  b->ReplaceInputWith(a, c);
  EXPECT_THAT(TopologicalSort(module_).status(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("in submodule \"nested\"")));
}

// Shuffled pure graphs lint again after a sort, whatever the shuffle.
TEST_F(TopologicalSortTest, SortsWhatWasShuffled) {
  for (int seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    GraphModule module;
    Graph& graph = module.graph();
    std::vector<Node*> nodes{graph.Placeholder("x"), graph.Placeholder("y")};
    for (int i = 0; i < 200; ++i) {
      nodes.push_back(
          graph.CallFunction(FindOperator("aten::add", "Tensor"), {nodes[random() % nodes.size()], nodes[random() % nodes.size()]}));
    }
    graph.Output(nodes.back());
    std::shuffle(nodes.begin(), nodes.end(), random);
    for (Node* node : nodes) DDPOPT_ASSERT_OK(graph.back()->Append(node));
    EXPECT_THAT(TopologicalSort(module), IsOkAndHolds(true)) << "seed " << seed;
    DDPOPT_EXPECT_OK(module.Lint()) << "seed " << seed;
  }
}

TEST_F(TopologicalSortTest, ALongReversedChain) {
  std::vector<Node*> chain{x_};
  for (int i = 0; i < 50000; ++i) chain.push_back(Relu("n", chain.back()));
  Node* output = g_.Output(chain.back());
  std::reverse(chain.begin() + 1, chain.end());
  List({chain.begin() + 1, chain.end()});
  List({output});
  EXPECT_THAT(TopologicalSort(module_), IsOkAndHolds(true));
  DDPOPT_EXPECT_OK(module_.Lint());
}

}  // namespace
}  // namespace ddpopt::fx
