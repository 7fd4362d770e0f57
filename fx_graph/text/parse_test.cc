#include "fx_graph/text/parse.h"

#include <cmath>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "fx_graph/constants.h"
#include "fx_graph/format.h"
#include "fx_graph/graph.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"
#include "testing/matchers.h"

namespace ddpopt::fx {
namespace {

using ::c10::IValue;
using ::ddpopt::testing::FindOperator;
using ::ddpopt::testing::IsOk;
using ::ddpopt::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::unique_ptr<Graph> Parse(absl::string_view text) {
  auto graph = ParseGraph(text);
  EXPECT_THAT(graph, IsOk()) << text;
  if (!graph.ok()) return std::make_unique<Graph>();
  EXPECT_THAT((*graph)->Lint(), IsOk());
  return *std::move(graph);
}

// Everything a graph can hold, printed and read back.
void ExpectRoundTrip(const Graph& graph) {
  const std::string exact = FormatGraph(graph, {.exact = true});
  const auto read = Parse(exact);
  EXPECT_EQ(FormatGraph(*read, {.exact = true}), exact);
  EXPECT_EQ(read->ToString(), graph.ToString());
}

constexpr char kText[] = R"text(graph():
    %x : torch.Tensor [num_users=2] = placeholder[target=x]
    %n : [num_users=0] = placeholder[target=n](default=3)
    %layer_weight : [num_users=1] = get_attr[target=layer.weight]
    %add : [num_users=2] = call_function[target=torch.ops.aten.add.Tensor](args = (%x, %layer_weight), kwargs = {alpha: 2})
    %to : [num_users=1] = call_function[target=torch.ops.aten.to.dtype](args = (%add, torch.float16), kwargs = {memory_format: torch.channels_last})
    %view : [num_users=1] = call_method[target=view](args = (%add, -1, (2, 3)), kwargs = {dtype: torch.bool, device: cpu})
    %getitem : [num_users=1] = call_function[target=operator.getitem](args = (%view, (slice(None, x, None), Ellipsis, None)), kwargs = {})
    %cond : [num_users=1] = call_function[target=torch.ops.higher_order.cond](args = ([%getitem], {key: %to, 2: mean}, 1e-05, inf, (1-2.5j)), kwargs = {})
    %layer : [num_users=1] = call_module[target=layer.0](args = (), kwargs = {})
    return (cond, [layer, 's'], {'a': 1.0}))text";

TEST(Parse, RoundTripsEveryKindOfNodeAndValue) {
  const std::string text = kText;
  const auto graph = Parse(text);
  EXPECT_EQ(graph->ToString(), text);
  std::vector<Node*> nodes;
  for (Node* node : graph->nodes()) nodes.push_back(node);
  ASSERT_EQ(nodes.size(), 10u);
  EXPECT_EQ(nodes[0]->meta().type_expr, "torch.Tensor");
  EXPECT_EQ(nodes[1]->args()[0].constant().toInt(), 3);
  EXPECT_EQ(nodes[2]->path(), "layer.weight");
  EXPECT_TRUE(nodes[3]->is_operator());
  EXPECT_EQ(nodes[4]->args()[1].constant().toInt(), 5) << "an operator's dtype is the dispatcher's integer";
  EXPECT_TRUE(nodes[5]->kwargs()[0].second.constant().is(DtypeConstant(c10::ScalarType::Bool)));
  EXPECT_EQ(nodes[5]->kwargs()[1].second.constant().toDevice(), c10::Device("cpu"));
  EXPECT_EQ(nodes[6]->all_input_nodes().size(), 2u) << "a slice's bound is a use";
  EXPECT_TRUE(std::holds_alternative<HigherOrderTarget>(nodes[7]->target()));
  EXPECT_EQ(nodes[9]->args()[0].elements()[1].elements()[1].constant().toStringRef(), "s");
  ExpectRoundTrip(*graph);
}

TEST(Parse, MayBeWrittenByHand) {
  const auto graph = Parse(R"text(
    # a comment
    graph():   # another
    %x = placeholder[target=x]

      %y : = call_function[target=torch.ops.aten.relu.default](args = (%x,))  # no kwargs
    %z : torch.Tensor = get_attr[target=a[0]]  # a target with brackets
    return (y,   z)
    # the end
  )text");
  EXPECT_EQ(graph->ToString(),
            "graph():\n"
            "    %x : [num_users=1] = placeholder[target=x]\n"
            "    %y : [num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%x,), kwargs = {})\n"
            "    %z : torch.Tensor [num_users=1] = get_attr[target=a[0]]\n"
            "    return (y, z)");
}

TEST(Parse, ReadsEmptyAndReturnlessGraphs) {
  EXPECT_EQ(Parse("graph():")->size(), 0u);
  EXPECT_EQ(Parse("graph():\n    %x : [num_users=0] = placeholder[target=x]")->output_node(), nullptr);
  EXPECT_EQ(Parse("graph() -> tuple[torch.Tensor]:\n    return ()")->ToString(), "graph() -> tuple[torch.Tensor]:\n    return ()");
  EXPECT_EQ(Parse("graph():\n    return None")->output_node()->args()[0].kind(), Argument::Kind::kNone);
}

TEST(Parse, StringsAreExactInTheExactForm) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  for (const char* text : {"mean",
                           "",
                           " ",
                           "None",
                           "True",
                           "1",
                           "1e-5",
                           "cpu",
                           "cuda:0",
                           "torch.float32",
                           "a, b",
                           "it's",
                           "\"",
                           "a\nb\t\\",
                           "%x",
                           "x",
                           "[1]",
                           "(",
                           ")",
                           "<object>",
                           "slice(1, 2, 3)",
                           "a: b",
                           "# no comment",
                           "\xc3\xa9",
                           "\xe2\x80\x8b",
                           "\xff",
                           "\x01"}) {
    graph.CallMethod("m", {x, IValue(text), Argument::List({IValue(text)}), Argument::Slice(IValue(text), Argument(), Argument())},
                     {{"k", Argument::Dict({IValue(text), IValue(text)})}});
  }
  graph.Output(IValue("x"));
  ExpectRoundTrip(graph);
  const auto read = Parse(FormatGraph(graph, {.exact = true}));
  auto original = graph.nodes().begin();
  for (const Node* node : read->nodes()) {
    if (node->op() == Op::kCallMethod) {
      EXPECT_EQ(node->args()[1].constant().toStringRef(), (*original)->args()[1].constant().toStringRef());
    }
    ++original;
  }
}

TEST(Parse, NumbersAreExact) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  for (const double value :
       {0.0, -0.0, 0.1, 1e-5, 1e300, 5e-324, 1.7976931348623157e308, 1e16, 123456789.123, HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    graph.CallMethod(
        "m", {x, IValue(value), IValue(c10::complex<double>(value, -value)), Argument::Tuple({IValue(c10::complex<double>(0, value))})});
  }
  for (const int64_t value : {int64_t{0}, INT64_MAX, INT64_MIN}) graph.CallMethod("m", {x, IValue(value)});
  ExpectRoundTrip(graph);
}

TEST(Parse, ConstantsOfEveryKind) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  graph.CallMethod("m", {x, Argument(), IValue(true), IValue(c10::Device("cuda:1")), DtypeConstant(c10::ScalarType::Float8_e5m2),
                         LayoutConstant(c10::Layout::SparseCsr), MemoryFormatConstant(c10::MemoryFormat::Preserve), EllipsisConstant(),
                         OpaqueConstant("<thing, with a comma>", "Thing"), Argument::Tuple({}), Argument::List({}), Argument::Dict({})});
  graph.Output(
      Argument::List({IValue(c10::Device("cuda:1")), DtypeConstant(c10::ScalarType::Long), OpaqueConstant("t", ""), EllipsisConstant()}));
  ExpectRoundTrip(graph);
}

TEST(Parse, BareWordsFollowTheSchema) {
  const auto graph = Parse(R"text(graph():
    %x : [num_users=3] = placeholder[target=x]
    %gelu : [num_users=0] = call_function[target=torch.ops.aten.gelu.default](args = (%x,), kwargs = {approximate: none})
    %einsum : [num_users=0] = call_function[target=torch.ops.aten.einsum.default](args = (cpu, [%x]), kwargs = {})
    %pad : [num_users=0] = call_function[target=torch.ops.aten.pad.default](args = (%x, [0, 1], constant, None), kwargs = {})
)text");
  const auto node = [&](int index) {
    auto it = graph->nodes().begin();
    while (index-- > 0) ++it;
    return *it;
  };
  EXPECT_EQ(node(1)->kwargs()[0].second.constant().toStringRef(), "none");
  EXPECT_EQ(node(2)->args()[0].constant().toStringRef(), "cpu") << "the parameter is declared a string";
  EXPECT_EQ(node(3)->args()[2].constant().toStringRef(), "constant");
  EXPECT_EQ(node(3)->args()[3].kind(), Argument::Kind::kNone);
}

TEST(Parse, UnknownOperatorsAreOpaque) {
  EXPECT_TRUE(std::holds_alternative<OpaqueTarget>(FunctionTargetFromText("torch.ops.aten.no_such_thing.default")));
  EXPECT_TRUE(std::holds_alternative<OpaqueTarget>(FunctionTargetFromText("torch.relu")));
  EXPECT_TRUE(std::holds_alternative<OpaqueTarget>(FunctionTargetFromText("torch.ops.aten.relu")));
  EXPECT_TRUE(std::holds_alternative<OperatorTarget>(FunctionTargetFromText("torch.ops.aten.relu.default")));
  EXPECT_EQ(std::get<HigherOrderTarget>(FunctionTargetFromText("torch.ops.higher_order.wrap")).name, "wrap");
}

TEST(Parse, ErrorsGiveLineColumnAndWhatWasExpected) {
  const auto error = [](const std::string& text, const std::string& message) {
    EXPECT_THAT(ParseGraph(text).status(), StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(message))) << text;
  };
  const std::string x = "graph():\n    %x : [num_users=0] = placeholder[target=x]\n";
  error("", "line 1, column 1: expected \"graph():\", got the end of the text");
  error("graph(x):", "line 1, column 1: expected \"graph():\", got \"graph(x):\"");
  error("graph() -> int", "line 1, column 12: expected a type and \":\"");
  error("graph(): x", "line 1, column 10: expected the end of the line, got \"x\"");
  error(x + "    y", "line 3, column 5: expected a node (\"%name\") or \"return\", got \"y\"");
  error(x + "    % = placeholder[target=x]", "line 3, column 6: expected a node's name");
  error(x + "    %y : [num_users=1] = relu[target=x]", "line 3, column 26: expected placeholder, get_attr, call_function");
  error(x + "    %y : [num_users=a] = placeholder[target=y]", "line 3, column 21: expected the number of users, got \"a]");
  error(x + "    %y : [num_users=1] = placeholder[target=y", "line 3, column 46: expected \"]\" after the target");
  error(x + "    %y : [num_users=1] = placeholder[target=]", "line 3, column 45: expected a target");
  error(x + "    %y = call_method[target=f](%x)", "line 3, column 35: expected \"](args = \" after the target");
  error(x + "    %y = call_method[target=f](args = (%z,), kwargs = {})",
        "line 3, column 40: expected an earlier node (there is none named %z)");
  error(x + "    %y = call_method[target=f](args = (%x), kwargs = {})", "line 3, column 42: expected \",\" (a tuple of one");
  error(x + "    %y = call_method[target=f](args = (%x, %x,), kwargs = {})", "line 3, column 47: expected another argument");
  error(x + "    %y = call_method[target=f](args = (%x,), kwargs = {a: 1, a: 2})", "line 3, column 62: the argument a is repeated");
  error(x + "    %y = call_method[target=f](args = (%x, [1, 2), kwargs = {})", "line 3, column 49: expected \",\" or \"]\"");
  error(x + "    %y = call_method[target=f](args = (%x, 99999999999999999999), kwargs = {})",
        "line 3, column 44: expected an integer of 64 bits");
  error(x + "    %y = call_method[target=f](args = (%x, 'abc), kwargs = {})", "line 3, column 44: expected a string that ends on its line");
  error(x + "    %y = call_method[target=f](args = (%x, 'a\\q'), kwargs = {})", "line 3, column 46: expected an escape");
  error(x + "    %y = call_method[target=f](args = (%x, slice(1, 2)), kwargs = {})", "line 3, column 54: expected \",\"");
  error(x + "    %y = call_method[target=f](args = (device(type='nothing'),), kwargs = {})",
        "line 3, column 47: there is no device \"nothing\"");
  error(x + "    %y = call_method[target=f](args = (tensor(shape=[2]),), kwargs = {})",
        "line 3, column 40: a tensor can't be read from text");
  error(x + "    %x = placeholder[target=x]", "line 3, column 5: the name %x is taken");
  error(x + "    %while = placeholder[target=x]", "line 3, column 5: a node can't be named %while: the name is reserved");
  error(x + "    return y", "line 3, column 12: expected a value or the name of an earlier node, got \"y\"");
  error(x + "    return (%x,)", "line 3, column 13: expected a value (nodes have no \"%\" here)");
  error(x + "    return None\n    %y = placeholder[target=y]", "line 4, column 5: expected the end of the graph after its return");
  error("graph():\n    %x : [num_users=2] = placeholder[target=x]\n    return x", "line 2, column 21: %x has 1 users in this text, not 2");
  error("graph() -> int:\n", "line 2, column 1: expected a return, since the graph has a type");
  error(absl::StrCat(x, "    return ", std::string(100000, '[')), "line 3, column 213: values are nested more than 200 levels deep");
}

TEST(Parse, UserCountsMayBeIgnored) {
  const auto graph = ParseGraph("graph():\n    %x : [num_users=7] = placeholder[target=x]\n    return x", {.check_num_users = false});
  ASSERT_THAT(graph, IsOk());
  EXPECT_EQ((*graph)->ToString(), "graph():\n    %x : [num_users=1] = placeholder[target=x]\n    return x");
}

}  // namespace
}  // namespace ddpopt::fx
