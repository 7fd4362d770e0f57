// Edits of graphs: each way of changing one, what it must leave exact, and random sequences of them against a plain model.
// Numbers of "kinds" are those of the collected public reports: 32 copies that share, 37 double erase and stale users, 38 order of
// erasing, 39 uses inside nested lists.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/ones.h"
#include "absl/strings/str_cat.h"
#include "fx_graph/graph.h"
#include "fx_graph/graph_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"

namespace ddpopt::fx {
namespace {

using testing::FindOperator;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> Names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node* node : graph.nodes()) names.emplace_back(node->name());
  return names;
}

Node* Relu(Graph& graph, Argument x, const char* name) { return graph.CallFunction(FindOperator("aten::relu"), {std::move(x)}, {}, name); }

TEST(GraphEditTest, NodesMoveInConstantTimeAndKeepTheirUses) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  Node* a = Relu(graph, x, "a");
  Node* b = Relu(graph, x, "b");
  Node* c = Relu(graph, a, "c");
  ASSERT_TRUE(x->Append(b).ok());
  EXPECT_THAT(Names(graph), ElementsAre("x", "b", "a", "c"));
  EXPECT_TRUE(b->IsBefore(a));
  ASSERT_TRUE(a->Prepend(a).ok());
  ASSERT_TRUE(c->Append(b).ok());
  EXPECT_EQ(graph.back(), b);
  ASSERT_TRUE(b->Append(c).ok());
  EXPECT_THAT(Names(graph), ElementsAre("x", "a", "b", "c"));
  ASSERT_TRUE(x->Prepend(a).ok());
  EXPECT_EQ(graph.front(), a);
  EXPECT_THAT(std::string(graph.Lint().message()), HasSubstr("%a takes %x before its definition"));
  ASSERT_TRUE(x->Append(a).ok());
  EXPECT_TRUE(graph.Lint().ok()) << graph.Lint();
  EXPECT_THAT(x->users(), ElementsAre(a, b));
}

TEST(GraphEditTest, MovesAreRefusedByName) {
  Graph graph;
  Graph other;
  Node* x = graph.Placeholder("x");
  Node* y = graph.Placeholder("y");
  Node* z = other.Placeholder("z");
  EXPECT_THAT(std::string(x->Append(z).message()), HasSubstr("%z next to %x: they are of two graphs"));
  EXPECT_EQ(x->Append(nullptr).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(graph.EraseNode(y).ok());
  EXPECT_THAT(std::string(x->Prepend(y).message()), HasSubstr("%y is erased"));
  EXPECT_THAT(std::string(y->Prepend(x).message()), HasSubstr("%y is erased"));
  EXPECT_TRUE(graph.Lint().ok());
}

TEST(GraphEditTest, InsertionScopesNestAndRestore) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  Node* out = graph.Output(x);
  {
    const auto before = graph.InsertingBefore(out);
    Relu(graph, x, "a");
    {
      const auto after = graph.InsertingAfter(x);  // as in torch.fx, nodes made after one come out in reverse
      Relu(graph, x, "b");
      Relu(graph, x, "c");
    }
    Relu(graph, x, "d");
    {
      const auto start = graph.InsertingBefore(nullptr);
      graph.Placeholder("first");
    }
  }
  EXPECT_THAT(Names(graph), ElementsAre("first", "x", "c", "b", "a", "d", "output"));
  Node* y = Relu(graph, x, "y");
  EXPECT_EQ(graph.back(), y);
  {
    const auto before = graph.InsertingBefore(y);
    ASSERT_TRUE(graph.EraseNode(y).ok());
    Relu(graph, x, "z");
  }
  EXPECT_EQ(graph.back()->name(), "z");
}

// Each insertion halves the room between two order numbers; the order must survive that.
TEST(GraphEditTest, ManyInsertionsAtOnePlaceKeepTheOrder) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  Node* out = graph.Output(x);
  std::vector<Node*> expected = {x};
  {
    const auto before = graph.InsertingBefore(out);
    for (int i = 0; i < 3000; ++i) expected.push_back(Relu(graph, x, "r"));
  }
  std::vector<Node*> reversed;
  {
    const auto after = graph.InsertingAfter(x);
    for (int i = 0; i < 3000; ++i) reversed.push_back(Relu(graph, x, "s"));
  }
  expected.insert(expected.begin() + 1, reversed.rbegin(), reversed.rend());
  expected.push_back(out);
  const std::vector<Node*> nodes(graph.nodes().begin(), graph.nodes().end());
  EXPECT_EQ(nodes, expected);
  EXPECT_TRUE(graph.Lint().ok()) << graph.Lint();
}

TEST(GraphEditTest, ArgumentsAreUpdatedInPlace) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  Node* y = graph.Placeholder("y");
  Node* a = graph.CallFunction(FindOperator("aten::add", "Tensor"), {x, x}, {{"alpha", c10::IValue(2)}}, "a");
  ASSERT_TRUE(a->UpdateArg(1, y).ok());
  EXPECT_THAT(a->all_input_nodes(), ElementsAre(x, y));
  ASSERT_TRUE(a->InsertArg(2, Argument::Tuple({y, x})).ok());
  ASSERT_TRUE(a->InsertArg(0, c10::IValue(7)).ok());
  EXPECT_THAT(a->all_input_nodes(), ElementsAre(x, y));
  EXPECT_EQ(a->args().size(), 4u);
  EXPECT_THAT(std::string(a->UpdateArg(4, x).message()), HasSubstr("can't update argument 4 of node %a, which has 4"));
  EXPECT_EQ(a->InsertArg(5, x).code(), absl::StatusCode::kOutOfRange);
  a->UpdateKwarg("alpha", y);
  a->UpdateKwarg("out", x);
  EXPECT_EQ(a->kwargs().size(), 2u);
  a->set_args(a->args().subspan(0, 1));  // its own arguments
  EXPECT_THAT(a->all_input_nodes(), ElementsAre(y, x));
  a->set_kwargs({});
  EXPECT_THAT(x->users(), IsEmpty());
  EXPECT_TRUE(graph.Lint().ok()) << graph.Lint();
}

TEST(GraphEditTest, ReplacementsAskAndCarryMetadata) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  Node* a = Relu(graph, x, "a");
  Node* b = Relu(graph, a, "b");
  Node* c = Relu(graph, Argument::List({a, Argument::Dict({c10::IValue("k"), a})}), "c");  // kind 39: uses deep inside
  a->meta().nn_module = "layer";
  Node* other = Relu(graph, x, "other");
  ASSERT_TRUE(x->Append(other).ok());
  EXPECT_THAT(a->ReplaceAllUsesWith(other, [&](Node* user) { return user == c; }, /*propagate_meta=*/true), ElementsAre(c));
  EXPECT_THAT(a->users(), ElementsAre(b));
  EXPECT_THAT(other->users(), ElementsAre(c));
  EXPECT_EQ(c->args()[0].ToString(), "[%other, {k: %other}]");
  EXPECT_EQ(other->meta().nn_module, "layer");
  EXPECT_TRUE(graph.Lint().ok()) << graph.Lint();
  EXPECT_DEATH(a->ReplaceAllUsesWith(other, [](Node*) { return true; }, true), "%other has metadata already");
  Graph elsewhere;
  Node* foreign = elsewhere.Placeholder("foreign");
  EXPECT_DEATH(a->ReplaceAllUsesWith(foreign), "not a live node of the same graph");
}

// Kind 37.
TEST(GraphEditTest, ErasingTwiceIsAnErrorThatChangesNothing) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  Node* a = Relu(graph, x, "a");
  ASSERT_TRUE(graph.EraseNode(a).ok());
  EXPECT_THAT(x->users(), IsEmpty());
  EXPECT_EQ(graph.EraseNode(a).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(graph.size(), 1u);
  EXPECT_TRUE(a->erased());
  EXPECT_EQ(a->next(), nullptr);
  EXPECT_EQ(graph.EraseNode(nullptr).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_DEATH(a->set_args({x}), "%a was erased");
  EXPECT_DEATH(Relu(graph, a, "b"), "takes %a, which is not a live node");
  EXPECT_TRUE(graph.Lint().ok());
}

// Kind 38.
TEST(GraphEditTest, ASetIsErasedInWhateverOrderItIsGiven) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  Node* a = Relu(graph, x, "a");
  Node* b = Relu(graph, a, "b");
  Node* c = Relu(graph, Argument::List({a, b}), "c");
  Node* d = Relu(graph, x, "d");
  EXPECT_THAT(std::string(graph.EraseNodes({a, b}).message()), HasSubstr("%a still has users: %c, which is not among"));
  EXPECT_THAT(std::string(graph.EraseNodes({d, d}).message()), HasSubstr("%d: it was given twice"));
  EXPECT_EQ(graph.size(), 5u);
  ASSERT_TRUE(graph.EraseNodes({a, c, b}).ok());
  EXPECT_THAT(Names(graph), ElementsAre("x", "d"));
  EXPECT_EQ(graph.EraseNodes({d, a}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(graph.size(), 2u);
  EXPECT_TRUE(graph.Lint().ok()) << graph.Lint();
}

TEST(GraphEditTest, AWalkGoesOnThroughEdits) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  for (int i = 0; i < 5; ++i) Relu(graph, x, "r");
  std::vector<std::string> seen;
  for (Node* node : graph.nodes()) {
    seen.emplace_back(node->name());
    if (node->name() != "r_1") continue;
    // The one at hand, and the one that would come next.
    ASSERT_TRUE(graph.EraseNodes({node, node->next()}).ok());
  }
  EXPECT_THAT(seen, ElementsAre("x", "r", "r_1", "r_3", "r_4"));
}

TEST(GraphEditTest, FindsNodesByKindAndTarget) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  Node* y = graph.Placeholder("y");
  Node* a = Relu(graph, x, "a");
  Node* b = graph.CallFunction(FindOperator("aten::neg"), {x});
  Node* c = Relu(graph, b, "c");
  const Target relu = OperatorTarget{FindOperator("aten::relu")};
  ASSERT_TRUE(x->Append(c).ok());
  EXPECT_THAT(graph.FindNodes(Op::kCallFunction, relu), ElementsAre(c, a));
  EXPECT_THAT(graph.FindNodes(Op::kCallFunction, relu, /*sort=*/false), ElementsAre(a, c));
  EXPECT_THAT(graph.FindNodes(Op::kPlaceholder), ElementsAre(x, y));
  EXPECT_THAT(graph.FindNodes(Op::kPlaceholder, PathTarget{"y"}), ElementsAre(y));
  EXPECT_THAT(graph.FindNodes(Op::kGetAttr, PathTarget{"y"}), IsEmpty());
  EXPECT_THAT(graph.FindNodes(Op::kCallMethod, MethodTarget{"relu"}), IsEmpty());
  b->set_target(relu);
  EXPECT_THAT(graph.FindNodes(Op::kCallFunction, relu), ElementsAre(c, a, b));
  ASSERT_TRUE(graph.EraseNode(c).ok());
  EXPECT_THAT(graph.FindNodes(Op::kCallFunction), ElementsAre(a, b));
}

TEST(GraphEditTest, RenamesAreUnique) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  Node* y = graph.Placeholder("y");
  y->Rename("x");
  EXPECT_EQ(y->name(), "x_1");
  y->Rename("x_1");
  EXPECT_EQ(y->name(), "x_1");
  x->Rename("y");
  EXPECT_EQ(x->name(), "y_1");  // a name is not given twice, also when its node has another now
  EXPECT_TRUE(graph.Lint().ok()) << graph.Lint();
}

TEST(GraphEditTest, CopiesKeepWhatTheRuleSays) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  Node* a = graph.CallFunction(FindOperator("aten::add", "Tensor"), {x, c10::IValue(1)}, {{"alpha", c10::IValue(3)}}, "a");
  a->meta().type_expr = "torch.Tensor";
  a->meta().from_node.push_back({"old", "aten.add.Tensor", "some_pass"});
  a->meta().nn_module_stack.emplace_back("layers.0", "Linear");
  const at::Tensor shared = at::ones({1});
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(shared);
  a->meta().custom["list"] = list;
  Graph other;
  Node* y = other.Placeholder("y");
  Node* copy = other.CopyNode(*a, [&](Node*) { return Argument(y); });
  EXPECT_EQ(copy->ToString(),
            "%a : torch.Tensor [num_users=0] = call_function[target=torch.ops.aten.add.Tensor](args = (%y, 1), kwargs = {alpha: 3})");
  EXPECT_EQ(copy->meta().from_node[0].name, "old");
  EXPECT_EQ(copy->meta().nn_module_stack[0].second, "Linear");
  // Kind 32: containers in the metadata are not shared, tensors are.
  copy->meta().custom["list"].toList().push_back(c10::IValue(1));
  EXPECT_EQ(a->meta().custom["list"].toList().size(), 1u);
  EXPECT_TRUE(copy->meta().custom["list"].toList().get(0).toTensor().is_same(shared));
  EXPECT_FALSE(x->has_meta());
  // Texts are shared until one side changes.
  copy->meta().nn_module_stack.emplace_back("layers.0.norm", "LayerNorm");
  copy->meta().from_node.clear();
  copy->meta().stack_trace = "line 7";
  EXPECT_EQ(a->meta().nn_module_stack.size(), 1u);
  EXPECT_EQ(copy->meta().nn_module_stack.back().first, "layers.0.norm");
  EXPECT_EQ(a->meta().from_node.size(), 1u);
  EXPECT_TRUE(a->meta().stack_trace.empty());
  a->meta().stack_trace = copy->meta().stack_trace;
  copy->meta().stack_trace = "line 8";
  EXPECT_EQ(a->meta().stack_trace, "line 7");
}

TEST(GraphEditTest, ACopierCopiesIntoSeveralGraphs) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  Node* a = graph.CallFunction(FindOperator("aten::add", "Tensor"), {x, c10::IValue(1)}, {}, "relu_3");
  a->meta().nn_module = "layers.0";
  Node* b = Relu(graph, a, "relu");
  Graph::Copier copier(graph);
  for (const bool keep_name : {true, false}) {
    for (int i = 0; i < 2; ++i) {
      Graph other;
      if (i == 1) Relu(other, other.Placeholder("x"), "relu");
      copier.SetTarget(&other, 2);
      Node* y = other.Placeholder("y");
      Node* a_copy = copier.Copy(*a, [&](Node*) { return Argument(y); }, keep_name);
      Node* b_copy = copier.Copy(*b, [&](Node*) { return Argument(a_copy); }, keep_name);
      EXPECT_EQ(a_copy->name(), keep_name ? "relu_3" : "add_tensor");
      EXPECT_EQ(b_copy->name(), !keep_name ? "relu_default" : i == 0 ? "relu" : "relu_4");
      EXPECT_EQ(a_copy->meta().nn_module, "layers.0");
      EXPECT_FALSE(b_copy->has_meta());
      EXPECT_TRUE(other.Lint().ok()) << other.Lint();
      EXPECT_EQ(other.FindNodes(Op::kCallFunction, b->target()).size(), i == 0 ? 1u : 2u);
    }
  }
  EXPECT_TRUE(graph.Lint().ok()) << graph.Lint();
}

TEST(GraphEditTest, AGraphIsCopiedIntoItselfAndInlined) {
  Graph body;
  Node* p = body.Placeholder("p");
  body.Output(Argument::Tuple({Relu(body, p, "r"), p}));
  Graph graph;
  Node* x = graph.Placeholder("x");
  for (int i = 0; i < 2; ++i) {
    NodeMap values(body);
    values[p] = x;
    const auto result = graph.GraphCopy(body, values);
    ASSERT_TRUE(result.ok());
    x = result->elements()[0].node();
  }
  EXPECT_THAT(Names(graph), ElementsAre("x", "r", "r_1"));
  EXPECT_THAT(x->all_input_nodes()[0]->name(), "r");
  const NodeMap copies = graph.CopyFrom(graph);
  EXPECT_EQ(copies.at(x)->name(), "r_3");
  EXPECT_THAT(Names(graph), ElementsAre("x", "r", "r_1", "x_1", "r_2", "r_3"));
  EXPECT_TRUE(graph.Lint().ok()) << graph.Lint();
}

// A hub that everything uses: each edit of a user must not search the hub's list. Quadratic work would take minutes.
TEST(GraphEditTest, AHubOfManyUsersIsEditedQuickly) {
  Graph graph;
  Node* hub = graph.Placeholder("hub");
  Node* other = graph.Placeholder("other");
  constexpr int kUsers = 100000;
  std::vector<Node*> users;
  for (int i = 0; i < kUsers; ++i) users.push_back(Relu(graph, hub, "r"));
  EXPECT_EQ(hub->users().size(), static_cast<std::size_t>(kUsers));
  for (int i = 0; i < kUsers; i += 2) users[i]->set_args({other});
  EXPECT_EQ(hub->ReplaceAllUsesWith(other).size(), static_cast<std::size_t>(kUsers / 2));
  EXPECT_THAT(hub->users(), IsEmpty());
  EXPECT_TRUE(graph.Lint().ok()) << graph.Lint();
  EXPECT_TRUE(graph.EraseNodes(users).ok());
  EXPECT_EQ(graph.size(), 2u);
}

// What a graph is, told by lists and maps: names in order, and the inputs of each name.
struct Model {
  std::vector<Node*> order;
  std::map<Node*, std::vector<Node*>> inputs;

  bool HasUsers(Node* node) const {
    return std::any_of(inputs.begin(), inputs.end(),
                       [&](const auto& entry) { return std::find(entry.second.begin(), entry.second.end(), node) != entry.second.end(); });
  }
};

void ExpectSame(const Graph& graph, const Model& model) {
  const std::vector<Node*> nodes(graph.nodes().begin(), graph.nodes().end());
  ASSERT_EQ(nodes, model.order);
  ASSERT_EQ(graph.size(), model.order.size());
  std::map<Node*, std::set<Node*>> users;
  for (const auto& [node, inputs] : model.inputs) {
    for (Node* input : inputs) users[input].insert(node);
  }
  for (Node* node : model.order) {
    const std::vector<Node*>& wanted = model.inputs.at(node);
    std::vector<Node*> distinct;
    for (Node* input : wanted) {
      if (std::find(distinct.begin(), distinct.end(), input) == distinct.end()) distinct.push_back(input);
    }
    ASSERT_THAT(node->all_input_nodes(), ElementsAreArray(distinct)) << node->name();
    const std::set<Node*> actual(node->users().begin(), node->users().end());
    ASSERT_EQ(actual, users[node]) << node->name();
    ASSERT_EQ(node->users().size(), actual.size());
  }
}

TEST(GraphEditTest, RandomEditsAgreeWithAPlainModel) {
  const c10::OperatorHandle op = FindOperator("aten::stack");
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    const auto pick = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    Graph graph;
    Model model;
    std::vector<Node*> erased;
    const auto add = [&](std::size_t at, std::vector<Node*> inputs) {
      std::vector<Argument> flat;
      for (Node* input : inputs) flat.push_back(pick(2) == 0 ? Argument(input) : Argument::Tuple({c10::IValue(1), input}));
      Kwargs kwargs;
      if (!flat.empty() && pick(4) == 0) {
        kwargs.emplace_back("last", flat.back());
        flat.pop_back();
      }
      graph.SetInsertBefore(at < model.order.size() ? model.order[at] : nullptr);
      Node* node = graph.CallFunction(op, {Argument::List(flat), c10::IValue(0)}, kwargs);
      graph.SetInsertBefore(nullptr);
      model.order.insert(model.order.begin() + static_cast<std::ptrdiff_t>(at), node);
      model.inputs[node] = std::move(inputs);
    };
    for (int step = 0; step < 300; ++step) {
      const std::size_t size = model.order.size();
      const std::size_t kind = size < 3 ? 0 : pick(8);
      if (kind <= 1) {
        const std::size_t at = pick(size + 1);
        std::vector<Node*> inputs;
        for (std::size_t i = 0; at > 0 && i < pick(5); ++i) inputs.push_back(model.order[pick(at)]);
        add(at, std::move(inputs));
      } else if (kind == 2) {
        Node* node = model.order[pick(size)];
        const bool allowed = !model.HasUsers(node);
        ASSERT_EQ(graph.EraseNode(node).ok(), allowed) << node->name();
        if (allowed) {
          model.order.erase(std::find(model.order.begin(), model.order.end(), node));
          model.inputs.erase(node);
          erased.push_back(node);
        }
      } else if (kind == 3) {  // a later node for an earlier one is a use before its definition: only ask for the other way round
        const std::size_t i = pick(size);
        Node* from = model.order[i];
        Node* to = model.order[pick(i + 1)];
        from->ReplaceAllUsesWith(to);
        for (auto& [user, inputs] : model.inputs) {
          if (user != to) std::replace(inputs.begin(), inputs.end(), from, to);
        }
      } else if (kind == 4) {
        Node* node = model.order[pick(size)];
        Node* anchor = model.order[pick(size)];
        const bool after = pick(2) == 0;
        ASSERT_TRUE((after ? anchor->Append(node) : anchor->Prepend(node)).ok());
        if (node != anchor) {
          model.order.erase(std::find(model.order.begin(), model.order.end(), node));
          const auto at = std::find(model.order.begin(), model.order.end(), anchor);
          model.order.insert(at + (after ? 1 : 0), node);
        }
      } else if (kind == 5) {
        Node* node = model.order[pick(size)];
        std::vector<Node*> inputs = {model.order[pick(size)], model.order[pick(size)]};
        node->set_kwargs({});
        node->set_args({inputs[0], Argument::List({inputs[1], inputs[0]})});
        model.inputs[node] = {inputs[0], inputs[1]};
      } else if (kind == 6 && !erased.empty()) {
        ASSERT_FALSE(graph.EraseNode(erased[pick(erased.size())]).ok());
      } else if (kind == 7) {  // a node with all that depends on it
        std::set<Node*> doomed = {model.order[pick(size)]};
        for (bool grown = true; grown;) {
          grown = false;
          for (const auto& [user, inputs] : model.inputs) {
            for (Node* input : inputs) grown |= doomed.contains(input) && doomed.insert(user).second;
          }
        }
        if (doomed.size() > 6) continue;
        std::vector<Node*> shuffled(doomed.begin(), doomed.end());
        std::shuffle(shuffled.begin(), shuffled.end(), random);
        ASSERT_TRUE(graph.EraseNodes(shuffled).ok());
        for (Node* node : shuffled) {
          model.order.erase(std::find(model.order.begin(), model.order.end(), node));
          model.inputs.erase(node);
          erased.push_back(node);
        }
      }
      if (step % 10 == 0) {
        ASSERT_NO_FATAL_FAILURE(ExpectSame(graph, model));
      }
    }
    ExpectSame(graph, model);
    // Moves and new arguments may have put uses before definitions, which Lint must see, and nothing else.
    bool in_order = true;
    for (std::size_t i = 0; i < model.order.size(); ++i) {
      for (Node* input : model.inputs.at(model.order[i])) {
        in_order &= std::find(model.order.begin(), model.order.begin() + static_cast<std::ptrdiff_t>(i), input) !=
                    model.order.begin() + static_cast<std::ptrdiff_t>(i);
      }
    }
    const absl::Status lint = graph.Lint();
    EXPECT_EQ(lint.ok(), in_order) << lint;
    if (!in_order) {
      EXPECT_THAT(std::string(lint.message()), HasSubstr("before its definition"));
    }
  }
}

}  // namespace
}  // namespace ddpopt::fx
