// Graph::Lint against graphs that were corrupted on purpose: each kind of damage is found, and the error says where.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "fx_graph/graph.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"

namespace ddpopt::fx {

// Reaches into the private parts that only a bug of ours could damage.
struct GraphTestPeer {
  static NodeLink* Link(Node* node) { return node->link_; }
  static Node*& NextSameTarget(Node* node) { return node->next_same_target_; }
  static Node*& PrevSameTarget(Node* node) { return node->prev_same_target_; }
  static void SwapTargets(Node* a, Node* b) { std::swap(a->target_, b->target_); }
  static void SetOp(Node* node, Op op) { node->op_ = op; }
  static NodeUse* Uses(Node* node) { return node->uses_; }
  static NodeUse*& FirstUse(Node* node) { return node->first_use_; }
  static NodeUse*& LastUse(Node* node) { return node->last_use_; }
  static std::uint32_t& NumUsers(Node* node) { return node->num_users_; }
  static std::uint32_t& NumInputs(Node* node) { return node->num_inputs_; }
  static Argument& Arg(Node* node, int index) { return node->arg_array()[index]; }
  static std::uint64_t& Order(Node* node) { return node->order_; }
  static std::uint32_t& Id(Node* node) { return node->id_; }
  static bool& Erased(Node* node) { return node->erased_; }
  static void TakeNameOf(Node* node, const Node* other) {
    node->name_ = other->name_;
    node->name_size_ = other->name_size_;
    node->name_base_ = other->name_base_;
  }
  static void CutName(Node* node) { --node->name_size_; }
  static std::size_t& Size(Graph& graph) { return graph.size_; }
  static NodeLink*& First(Graph& graph) { return graph.first_; }
  static NodeLink*& Last(Graph& graph) { return graph.last_; }
  static std::size_t& TableSize(Node* node) { return node->target_->size; }
  static void SetInsertPoint(Graph& graph, Node* node) { graph.insert_.node = node; }
};

namespace {

using testing::FindOperator;
using ::testing::HasSubstr;
using Peer = GraphTestPeer;

// x, y; a = x + y; b = relu(a); c = [a, b] stacked; d = relu(c); output d.
struct Sample {
  Sample() {
    x = graph.Placeholder("x");
    y = graph.Placeholder("y");
    a = graph.CallFunction(FindOperator("aten::add", "Tensor"), {x, y}, {}, "a");
    b = graph.CallFunction(FindOperator("aten::relu"), {a}, {}, "b");
    c = graph.CallFunction(FindOperator("aten::stack"), {Argument::List({a, b})}, {}, "c");
    d = graph.CallFunction(FindOperator("aten::relu"), {c}, {}, "d");
    out = graph.Output(d);
    stranger = other.Placeholder("stranger");
  }
  Graph graph;
  Graph other;
  Node *x, *y, *a, *b, *c, *d, *out, *stranger;
};

struct Damage {
  const char* name;
  std::function<void(Sample&)> seed;
  const char* complaint;
};

class LintTest : public ::testing::TestWithParam<Damage> {};

TEST_P(LintTest, FindsTheDamage) {
  Sample sample;
  ASSERT_TRUE(sample.graph.Lint().ok()) << sample.graph.Lint();
  GetParam().seed(sample);
  EXPECT_THAT(std::string(sample.graph.Lint().message()), HasSubstr(GetParam().complaint));
}

INSTANTIATE_TEST_SUITE_P(
    AllKinds, LintTest,
    ::testing::Values(
        // The list.
        Damage{"prev_link", [](Sample& s) { Peer::Link(s.b)->prev = Peer::Link(s.x); }, "%b has a wrong link to the node before it"},
        Damage{"skipped_node", [](Sample& s) { Peer::Link(s.a)->next = Peer::Link(s.c); }, "%c has a wrong link to the node before it"},
        Damage{"cycle", [](Sample& s) { Peer::Link(s.d)->next = Peer::Link(s.a); }, "%a has a wrong link to the node before it"},
        Damage{"cut_short", [](Sample& s) { Peer::Link(s.d)->next = nullptr; }, "%d is not linked as the last node"},
        Damage{"wrong_first", [](Sample& s) { Peer::First(s.graph) = Peer::Link(s.y); }, "%y has a wrong link to the node before it"},
        Damage{"wrong_last", [](Sample& s) { Peer::Last(s.graph) = Peer::Link(s.d); }, "%output is not linked as the last node"},
        Damage{"no_nodes", [](Sample& s) { Peer::First(s.graph) = nullptr; }, "%output is not linked as the last node"},
        Damage{"foreign_node", [](Sample& s) { Peer::Link(s.out)->next = Peer::Link(s.stranger); }, "%stranger belongs to another graph"},
        Damage{"count_too_high", [](Sample& s) { ++Peer::Size(s.graph); }, "the graph lists 7 nodes, not 8"},
        Damage{"count_too_low", [](Sample& s) { --Peer::Size(s.graph); }, "%output is one more than the graph's 6 nodes"},
        Damage{"erased_node_listed", [](Sample& s) { Peer::Erased(s.y) = true; }, "%y was erased but is still listed"},
        Damage{"order", [](Sample& s) { std::swap(Peer::Order(s.a), Peer::Order(s.b)); }, "no later place in the order"},
        Damage{"order_equal", [](Sample& s) { Peer::Order(s.b) = Peer::Order(s.a); }, "%b has no later place in the order than %a"},
        Damage{"id", [](Sample& s) { Peer::Id(s.b) = Peer::Id(s.a); }, "%b has an id that is not its own"},
        Damage{"id_too_high", [](Sample& s) { Peer::Id(s.b) = 100; }, "%b has an id that is not its own"},
        Damage{"insertion_point", [](Sample& s) { Peer::SetInsertPoint(s.graph, s.stranger); }, "%stranger is the insertion point"},
        // Names.
        Damage{"same_name", [](Sample& s) { Peer::TakeNameOf(s.c, s.b); }, "%b shares its name with an earlier node"},
        Damage{"unknown_name", [](Sample& s) { Peer::CutName(s.stranger), Peer::TakeNameOf(s.c, s.stranger); },
               "a name that the graph did not give out"},
        Damage{"foreign_name", [](Sample& s) { Peer::TakeNameOf(s.c, s.stranger); },
               "%stranger has a name that the graph did not give out"},
        // Kinds and targets.
        Damage{"kind", [](Sample& s) { Peer::SetOp(s.b, Op::kCallModule); }, "%b is not in the table of its target"},
        Damage{"swapped_targets", [](Sample& s) { Peer::SwapTargets(s.a, s.b); }, "table of its target"},
        Damage{"method_target", [](Sample& s) { s.b->set_target(MethodTarget{"relu"}); },
               "%b (call_function) has a target that is no function"},
        Damage{"path_target", [](Sample& s) { s.x->set_target(OpaqueTarget{"f"}); }, "%x (placeholder) has a target that is no path"},
        Damage{"table_next", [](Sample& s) { Peer::NextSameTarget(s.b) = nullptr; }, "table of its target"},
        Damage{"table_prev", [](Sample& s) { Peer::PrevSameTarget(s.d) = nullptr; },
               "%d is not where it should be in the table of its target"},
        Damage{"table_size", [](Sample& s) { ++Peer::TableSize(s.b); }, "the tables of targets hold 8 nodes, the graph 7"},
        // Arguments.
        Damage{"foreign_argument", [](Sample& s) { Peer::Arg(s.b, 0) = s.stranger; }, "%b takes %stranger, which is not in this graph"},
        Damage{"nested_foreign_argument",
               [](Sample& s) {
                 Peer::Arg(s.c, 0) = Argument::List({s.a, Argument::Tuple({s.stranger})});
               },
               "%c takes %stranger, which is not in this graph"},
        Damage{"null_argument", [](Sample& s) { Peer::Arg(s.b, 0) = Argument(static_cast<Node*>(nullptr)); }, "%b takes a null node"},
        Damage{"silent_argument", [](Sample& s) { Peer::Arg(s.b, 0) = s.x; }, "%b lists an input that is not %x"},
        Damage{"lost_argument", [](Sample& s) { Peer::Arg(s.b, 0) = Argument(); }, "%b lists 1 inputs, but its arguments have 0"},
        Damage{"use_before_definition", [](Sample& s) { EXPECT_TRUE(s.a->Prepend(s.b).ok()); }, "%b takes %a before its definition"},
        Damage{"takes_itself", [](Sample& s) { s.b->set_args({s.b}); }, "%b takes %b before its definition"},
        Damage{"two_outputs", [](Sample& s) { s.graph.Output(s.x); }, "is a second output, after %output"},
        Damage{"after_output", [](Sample& s) { s.graph.Placeholder("late"); }, "%late comes after the output"},
        Damage{"empty_output", [](Sample& s) { s.out->set_args({}); }, "%output (output) must have exactly one argument"},
        // Users.
        Damage{"stale_user", [](Sample& s) { Peer::FirstUse(s.y) = Peer::LastUse(s.y) = Peer::Uses(s.b), Peer::Uses(s.b)->prev = nullptr; },
               "%y lists 1 user(s) that are not exactly the nodes that take it"},
        Damage{"lost_user", [](Sample& s) { Peer::FirstUse(s.b) = Peer::LastUse(s.b) = nullptr, Peer::NumUsers(s.b) = 0; },
               "%b doesn't list %c among its users"},
        Damage{"user_count", [](Sample& s) { ++Peer::NumUsers(s.a); }, "%a lists 3 user(s)"},
        Damage{"user_list_cycle", [](Sample& s) { Peer::LastUse(s.a)->next = Peer::FirstUse(s.a); }, "%a lists 2 user(s)"},
        Damage{"user_prev", [](Sample& s) { Peer::LastUse(s.a)->prev = nullptr; }, "%a lists 2 user(s)"},
        Damage{"last_user", [](Sample& s) { Peer::LastUse(s.a) = Peer::FirstUse(s.a); }, "%a lists 2 user(s)"},
        Damage{"user_of_use", [](Sample& s) { Peer::Uses(s.b)->user = s.d; }, "%a lists 2 user(s)"},
        Damage{"input_of_use", [](Sample& s) { Peer::Uses(s.d)->input = s.b; }, "%c lists 1 user(s)"},
        Damage{"input_count", [](Sample& s) { Peer::NumInputs(s.y) = 1; }, "%y lists 1 inputs, but its arguments have 0"}),
    [](const auto& info) { return info.param.name; });

TEST(LintManyInputsTest, ANodeWithManyInputsIsChecked) {
  Graph graph;
  std::vector<Argument> inputs;
  for (int i = 0; i < 100; ++i) inputs.emplace_back(graph.Placeholder("x"));
  inputs.insert(inputs.end(), inputs.begin(), inputs.begin() + 50);
  Node* cat = graph.CallFunction(FindOperator("aten::cat"), {Argument::List(inputs)});
  EXPECT_EQ(cat->all_input_nodes().size(), 100u);
  EXPECT_TRUE(graph.Lint().ok()) << graph.Lint();
  std::swap(GraphTestPeer::Uses(cat)[70].input, GraphTestPeer::Uses(cat)[71].input);
  EXPECT_FALSE(graph.Lint().ok());
}

}  // namespace
}  // namespace ddpopt::fx
