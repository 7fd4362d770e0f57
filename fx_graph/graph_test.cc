#include "fx_graph/graph.h"

#include <cstdint>
#include <memory>
#include <string>

#include "ATen/ops/ones.h"
#include "fx_graph/graph_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"

namespace ddpopt::fx {
namespace {

using testing::FindOperator;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Argument Int(int64_t value) { return c10::IValue(value); }

TEST(GraphTest, PrintsAsTorchFx) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  Node* w = graph.GetAttr("blocks.0.weight");
  Node* y = graph.CallFunction(FindOperator("aten::add", "Tensor"), {x, w}, {{"alpha", Int(2)}});
  Node* z = graph.CallFunction(FindOperator("aten::add", "Tensor"), {y, y});
  Node* c = graph.CallFunction(FindOperator("aten::cat"), {Argument::List({y, z}), Int(0)});
  graph.Output(Argument::Tuple({c}));
  EXPECT_EQ(graph.ToString(),
            "graph():\n"
            "    %x : [num_users=1] = placeholder[target=x]\n"
            "    %blocks_0_weight : [num_users=1] = get_attr[target=blocks.0.weight]\n"
            "    %add_tensor : [num_users=2] = call_function[target=torch.ops.aten.add.Tensor](args = (%x, %blocks_0_weight), kwargs = "
            "{alpha: 2})\n"
            "    %add_tensor_1 : [num_users=1] = call_function[target=torch.ops.aten.add.Tensor](args = (%add_tensor, %add_tensor), kwargs "
            "= {})\n"
            "    %cat_default : [num_users=1] = call_function[target=torch.ops.aten.cat.default](args = ([%add_tensor, %add_tensor_1], 0), "
            "kwargs = {})\n"
            "    return (cat_default,)");
  EXPECT_TRUE(graph.Lint().ok()) << graph.Lint();
}

TEST(GraphTest, NamesAreUniqueIdentifiersAndNeverReserved) {
  Graph graph;
  EXPECT_EQ(graph.Placeholder("a.b")->name(), "a_b");
  EXPECT_EQ(graph.Placeholder("a.b")->name(), "a_b_1");
  EXPECT_EQ(graph.Placeholder("a_b_1")->name(), "a_b_2");
  EXPECT_EQ(graph.Placeholder("1st")->name(), "_1st");
  EXPECT_EQ(graph.Placeholder("sum")->name(), "sum_1");
}

TEST(GraphTest, UserListsStayExact) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  Node* y = graph.Placeholder("y");
  Node* a = graph.CallFunction(FindOperator("aten::mul", "Tensor"), {x, x});
  Node* b = graph.CallFunction(FindOperator("aten::stack"), {Argument::List({x, a, y})});
  EXPECT_THAT(x->users(), ElementsAre(a, b));
  EXPECT_THAT(b->all_input_nodes(), ElementsAre(x, a, y));
  EXPECT_THAT(x->ReplaceAllUsesWith(y), ElementsAre(a, b));
  EXPECT_THAT(x->users(), IsEmpty());
  EXPECT_THAT(y->users(), ElementsAre(a, b));
  a->set_args({x, y});
  EXPECT_THAT(x->users(), ElementsAre(a));
  EXPECT_TRUE(graph.Lint().ok()) << graph.Lint();
}

TEST(GraphTest, ReplacingByAUserLeavesThatUserAlone) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  Node* relu = graph.CallFunction(FindOperator("aten::relu"), {x});
  Node* neg = graph.CallFunction(FindOperator("aten::neg"), {relu});
  Node* exp = graph.CallFunction(FindOperator("aten::exp"), {relu});
  EXPECT_THAT(relu->ReplaceAllUsesWith(neg), ElementsAre(exp));
  EXPECT_THAT(neg->all_input_nodes(), ElementsAre(relu));
  EXPECT_TRUE(graph.Lint().ok());
}

TEST(GraphTest, EraseRefusesWhatItMust) {
  Graph graph;
  Graph other;
  Node* x = graph.Placeholder("x");
  Node* y = graph.CallFunction(FindOperator("aten::relu"), {x});
  EXPECT_THAT(std::string(graph.EraseNode(x).message()), HasSubstr("%x still has users: %relu_default"));
  EXPECT_THAT(std::string(other.EraseNode(x).message()), HasSubstr("another graph"));
  EXPECT_TRUE(graph.EraseNode(y).ok());
  EXPECT_THAT(std::string(graph.EraseNode(y).message()), HasSubstr("%relu_default is erased already"));
  EXPECT_TRUE(graph.EraseNode(x).ok());
  EXPECT_EQ(graph.size(), 0u);
  EXPECT_TRUE(graph.Lint().ok());
}

TEST(GraphTest, InsertsWhereAsked) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  Node* y = graph.CallFunction(FindOperator("aten::relu"), {x});
  Node* old = graph.SetInsertBefore(y);
  Node* between = graph.CallFunction(FindOperator("aten::neg"), {x});
  graph.SetInsertBefore(old);
  EXPECT_EQ(x->next(), between);
  EXPECT_EQ(between->next(), y);
  EXPECT_EQ(y->prev(), between);
}

TEST(GraphTest, EveryEditCountsAndDropsWhatWasDerived) {
  Graph graph;
  const auto changes = [&](auto&& edit) {
    const std::uint64_t before = graph.version();
    graph.set_derived(std::make_shared<int>(1));
    EXPECT_NE(graph.derived(), nullptr);
    edit();
    EXPECT_EQ(graph.derived() == nullptr, graph.version() != before);
    return graph.version() != before;
  };
  Node* x = nullptr;
  Node* y = nullptr;
  EXPECT_EQ(graph.derived(), nullptr);
  EXPECT_TRUE(changes([&] { x = graph.Placeholder("x"); }));
  EXPECT_TRUE(changes([&] { y = graph.CallFunction(FindOperator("aten::relu"), {x}); }));
  EXPECT_TRUE(changes([&] { y->set_args({x}); }));
  EXPECT_TRUE(changes([&] { y->set_kwargs({{"a", x}}); }));
  EXPECT_TRUE(changes([&] { y->set_target(OpaqueTarget{"f"}); }));
  EXPECT_TRUE(changes([&] { y->ReplaceInputWith(x, x); }));
  EXPECT_FALSE(changes([&] { y->meta().is_buffer = true; }));
  EXPECT_FALSE(changes([&] { (void)graph.ToString(); }));
  EXPECT_TRUE(changes([&] { (void)graph.EraseNode(y); }));
}

TEST(GraphTest, LintNamesAUseBeforeItsDefinition) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  Node* y = graph.CallFunction(FindOperator("aten::relu"), {x});
  graph.SetInsertBefore(y);
  Node* early = graph.CallFunction(FindOperator("aten::neg"), {y});
  EXPECT_THAT(std::string(graph.Lint().message()),
              HasSubstr("%" + std::string(early->name()) + " takes %relu_default before its definition"));
}

TEST(GraphTest, LintNamesWhatFollowsTheOutput) {
  Graph graph;
  Node* x = graph.Placeholder("x");
  graph.Output(x);
  graph.CallFunction(FindOperator("aten::relu"), {x});
  EXPECT_THAT(std::string(graph.Lint().message()), HasSubstr("%relu_default comes after the output"));
}

TEST(GraphDeathTest, AForeignArgumentIsABrokenInvariant) {
  Graph graph;
  Graph other;
  Node* x = other.Placeholder("x");
  EXPECT_DEATH(graph.CallFunction(FindOperator("aten::relu"), {x}), "takes %x, which is not a live node of the same graph");
}

TEST(GraphTest, ArgumentsPrint) {
  EXPECT_EQ(Argument().ToString(), "None");
  EXPECT_EQ(Argument(c10::IValue()).kind(), Argument::Kind::kNone);
  EXPECT_EQ(Argument::Tuple({Int(1)}).ToString(), "(1,)");
  EXPECT_EQ(Argument::Slice(Int(0), Argument(), Int(2)).ToString(), "slice(0, None, 2)");
  EXPECT_EQ(Argument::Dict({c10::IValue(std::string("a")), c10::IValue(true)}).ToString(), "{a: True}");
}

TEST(GraphModuleTest, CloneIsIndependentButSharesTensors) {
  GraphModule module;
  const at::Tensor w = at::ones({2});
  ASSERT_TRUE(module.AddAttr("w", w, GraphModule::AttrKind::kParameter).ok());
  Node* x = module.graph().Placeholder("x");
  Node* y = module.graph().CallFunction(FindOperator("aten::add", "Tensor"), {x, module.graph().GetAttr("w")});
  y->meta().custom["note"] = c10::IValue(int64_t{1});
  module.graph().Output(y);
  auto clone = module.Clone();
  EXPECT_EQ(clone->graph().ToString(), module.graph().ToString());
  EXPECT_TRUE(clone->GetAttr("w")->value.toTensor().is_same(w));
  clone->graph().output_node()->set_args({clone->graph().front()});
  clone->graph().output_node()->prev()->meta().custom["note"] = c10::IValue(int64_t{2});
  EXPECT_NE(clone->graph().ToString(), module.graph().ToString());
  EXPECT_EQ(y->meta().custom["note"].toInt(), 1);
  ASSERT_TRUE(clone->DeleteAttr("w").ok());
  EXPECT_EQ(clone->FindAttr("w"), nullptr);
  EXPECT_EQ(clone->DeleteAttr("w").code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(clone->AddAttr("w", 2, GraphModule::AttrKind::kConstant).ok());
  EXPECT_EQ(clone->FindAttr("w")->value.toInt(), 2);
  EXPECT_TRUE(module.FindAttr("w")->value.toTensor().is_same(w));
}

TEST(GraphModuleTest, RemembersTheOrderOfAdding) {
  GraphModule module;
  for (const char* path : {"weight", "bias"}) ASSERT_TRUE(module.AddAttr(path, at::ones({2}), GraphModule::AttrKind::kParameter).ok());
  ASSERT_TRUE(module.AddSubmodule("child", {std::make_shared<GraphModule>(), nullptr}).ok());
  ASSERT_TRUE(module.AddAttr("a", 1, GraphModule::AttrKind::kConstant).ok());
  EXPECT_FALSE(module.AddAttr("a", 2, GraphModule::AttrKind::kConstant).ok());
  const auto clone = module.Clone();
  ASSERT_TRUE(clone->AddAttr("last", 3, GraphModule::AttrKind::kConstant).ok());
  EXPECT_LT(clone->GetAttr("weight")->order, clone->GetAttr("bias")->order);
  EXPECT_LT(clone->GetAttr("bias")->order, clone->GetSubmodule("child")->order);
  EXPECT_LT(clone->GetSubmodule("child")->order, clone->GetAttr("a")->order);
  EXPECT_LT(clone->GetAttr("a")->order, clone->GetAttr("last")->order);
}

// Nested paths, ties and sharing: kinds 2 and 30 of the collected public reports.
TEST(GraphModuleTest, PathsLeadIntoSubmodulesAndTiesAreTold) {
  using Kind = GraphModule::AttrKind;
  const at::Tensor w = at::ones({2});
  auto inner = std::make_shared<GraphModule>();
  ASSERT_TRUE(inner->AddAttr("lin.weight", w, Kind::kParameter).ok());
  auto block = std::make_shared<GraphModule>();
  ASSERT_TRUE(block->AddSubmodule("0", {inner, nullptr}).ok());
  GraphModule module;
  ASSERT_TRUE(module.AddAttr("head", w, Kind::kParameter).ok());
  ASSERT_TRUE(module.AddAttr("other", at::ones({2}), Kind::kParameter).ok());
  ASSERT_TRUE(module.AddSubmodule("block", {block, nullptr}).ok());
  ASSERT_TRUE(module.AddSubmodule("again", {block, nullptr}).ok());
  ASSERT_NE(module.FindAttr("block.0.lin.weight"), nullptr);
  EXPECT_TRUE(module.FindAttr("block.0.lin.weight")->value.toTensor().is_same(w));
  EXPECT_EQ(module.FindSubmodule("block.0")->graph_module, inner);
  EXPECT_EQ(module.FindAttr("block.1.lin.weight"), nullptr);
  EXPECT_THAT(module.AliasesOf("head"), ElementsAre("block.0.lin.weight", "again.0.lin.weight"));
  EXPECT_THAT(module.AliasesOf("other"), IsEmpty());
  EXPECT_EQ(module.NamedAttrs().size(), 4u);
  const auto clone = module.Clone();
  EXPECT_NE(clone->FindSubmodule("block")->graph_module, block);
  EXPECT_EQ(clone->FindSubmodule("block")->graph_module, clone->FindSubmodule("again")->graph_module);
  EXPECT_THAT(clone->AliasesOf("head"), ElementsAre("block.0.lin.weight", "again.0.lin.weight"));
  EXPECT_EQ(module.AddAttr("block", 1, Kind::kConstant).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(module.AddAttr("a..b", 1, Kind::kConstant).code(), absl::StatusCode::kInvalidArgument);
}

TEST(GraphModuleTest, UnusedSubmodulesGo) {
  GraphModule module;
  const auto leaf = std::make_shared<GraphModule>();
  for (const char* path : {"called", "called.inner", "body", "a.b", "unused", "calledx"}) {
    ASSERT_TRUE(module.AddSubmodule(path, {leaf, nullptr}).ok());
  }
  Graph& graph = module.graph();
  graph.CallModule("called", {});
  graph.GetAttr("body");
  graph.GetAttr("a.b.weight");
  EXPECT_THAT(module.DeleteAllUnusedSubmodules(), ElementsAre("calledx", "unused"));
  EXPECT_EQ(module.submodules().size(), 4u);
  EXPECT_THAT(module.DeleteAllUnusedSubmodules(), IsEmpty());
}

TEST(GraphModuleTest, ErrorsNameThePath) {
  GraphModule module;
  EXPECT_EQ(module.GetAttr("w").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(module.SetAttr("w", 1).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(module.AddAttr("w", 1, GraphModule::AttrKind::kConstant).ok());
  EXPECT_EQ(module.AddAttr("w", 1, GraphModule::AttrKind::kConstant).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(module.DeleteSubmodule("s").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(module.AddSubmodule("s", {}).code(), absl::StatusCode::kInvalidArgument);
  module.graph().Output(module.graph().CallModule("gone", {}));
  EXPECT_THAT(std::string(module.Lint().message()), HasSubstr("\"gone\""));
}

}  // namespace
}  // namespace ddpopt::fx
