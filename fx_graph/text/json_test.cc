#include "fx_graph/text/json.h"

#include <cmath>
#include <memory>
#include <string>

#include "ATen/ops/empty.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/scalar_tensor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fx_graph/constants.h"
#include "fx_graph/format.h"
#include "fx_graph/tensor_meta.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"
#include "testing/matchers.h"

namespace ddpopt::fx {
namespace {

using ::c10::IValue;
using ::ddpopt::testing::ErrorOf;
using ::ddpopt::testing::FindOperator;
using ::ddpopt::testing::IsOk;
using ::ddpopt::testing::StatusIs;
using ::ddpopt::testing::TensorEq;
using ::testing::HasSubstr;
using AttrKind = GraphModule::AttrKind;

std::string Json(const GraphModule& module, const ToJsonOptions& options = {}) {
  const auto json = ToJson(module, options);
  EXPECT_THAT(json, IsOk());
  return json.ok() ? *json : "";
}

// Reads the module's JSON back, and checks that nothing changed.
std::shared_ptr<GraphModule> RoundTrip(const GraphModule& module) {
  const std::string json = Json(module);
  auto read = ModuleFromJson(json);
  EXPECT_THAT(read, IsOk()) << json;
  if (!read.ok()) return std::make_shared<GraphModule>();
  EXPECT_EQ(Json(**read), json);
  EXPECT_EQ(FormatGraph((*read)->graph(), {.exact = true}), FormatGraph(module.graph(), {.exact = true}));
  return *read;
}

const Node* Find(const GraphModule& module, absl::string_view name) {
  for (const Node* node : module.graph().nodes()) {
    if (absl::string_view(node->name()) == name) return node;
  }
  return nullptr;
}

TEST(Json, KeepsNodesOfEachKindWithTheirMetadata) {
  GraphModule module;
  Graph& g = module.graph();
  DDPOPT_ASSERT_OK(module.AddAttr("w", at::ones({2, 3}), AttrKind::kParameter));
  auto body = std::make_shared<GraphModule>();
  body->graph().Output(body->graph().Placeholder("y"));
  DDPOPT_ASSERT_OK(module.AddSubmodule("body", {body, nullptr}));
  Node* x = g.Placeholder("x");
  x->meta().type_expr = "torch.Tensor";
  x->meta().val = at::empty({2, 3}, at::TensorOptions().device(at::kMeta));
  x->meta().custom["note"] = IValue("text");
  Node* n = g.CreateNode(Op::kPlaceholder, PathTarget{"n"}, {IValue(3)});
  Node* w = g.GetAttr("w");
  w->meta().is_parameter = true;
  Node* nested = g.GetAttr("body");
  Node* add = g.CallFunction(FindOperator("aten::add", "Tensor"), {x, w}, {{"alpha", n}});
  add->meta().nn_module = "layers.0";
  add->meta().stack_trace = "File \"m.py\", line 3";
  add->meta().nn_module_stack = {{"layers", "Sequential"}, {"layers.0", "Linear"}};
  add->meta().from_node = {{"sum", "aten.sum.default", "decompose"}};
  Node* cond = g.CreateNode(Op::kCallFunction, HigherOrderTarget{"cond"}, {add, nested});
  Node* item = g.CreateNode(Op::kCallFunction, OpaqueTarget{"operator.getitem"}, {cond, IValue(0)}, {}, "getitem");
  Node* method = g.CallMethod("view", {item, Argument::Tuple({IValue(-1), Argument::Slice(n, Argument(), IValue(2))})});
  g.Output(Argument::Dict({IValue("out"), g.CallModule("body", {method})}));
  module.meta()["origin"] = IValue(std::vector<int64_t>{1, 2});

  const auto read = RoundTrip(module);
  EXPECT_EQ(Find(*read, "x")->meta().type_expr, "torch.Tensor");
  EXPECT_EQ(Find(*read, "x")->meta().val.toTensor().sizes(), at::IntArrayRef({2, 3}));
  EXPECT_TRUE(Find(*read, "x")->meta().val.toTensor().is_meta());
  EXPECT_EQ(Find(*read, "x")->meta().custom.at("note").toStringRef(), "text");
  EXPECT_TRUE(Find(*read, "w")->meta().is_parameter);
  EXPECT_EQ(Find(*read, std::string(add->name()))->meta().nn_module, "layers.0");
  EXPECT_EQ(Find(*read, std::string(add->name()))->meta().stack_trace, add->meta().stack_trace);
  EXPECT_EQ(Find(*read, std::string(add->name()))->meta().nn_module_stack, add->meta().nn_module_stack);
  EXPECT_EQ(Find(*read, std::string(add->name()))->meta().from_node[0].pass_name, "decompose");
  EXPECT_EQ(read->meta().at("origin").toIntVector(), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(read->GetSubmodule("body")->graph_module->graph().ToString(), body->graph().ToString());
}

TEST(Json, KeepsConstantsOfEachKind) {
  GraphModule module;
  Graph& g = module.graph();
  const double nan = std::nan("");
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  dict.insert("k", IValue(1));
  std::vector<Argument> args;
  for (const IValue& value : std::vector<IValue>{true,
                                                 1,
                                                 INT64_MIN,
                                                 INT64_MAX,
                                                 0.1,
                                                 1.0,
                                                 -0.0,
                                                 1e-5,
                                                 1e300,
                                                 HUGE_VAL,
                                                 -HUGE_VAL,
                                                 nan,
                                                 c10::complex<double>(1, nan),
                                                 "text",
                                                 "",
                                                 "\xff\xfe",
                                                 "\n\"\\",
                                                 c10::Device("cuda:1"),
                                                 std::vector<int64_t>{1},
                                                 std::vector<double>{0.5},
                                                 std::vector<bool>{true},
                                                 dict,
                                                 c10::List<std::string>({"a"}),
                                                 c10::ivalue::Tuple::create({IValue(1), IValue()}),
                                                 at::Tensor(),
                                                 c10::List<std::optional<int64_t>>({std::nullopt, 2}),
                                                 DtypeConstant(c10::ScalarType::BFloat16),
                                                 LayoutConstant(c10::Layout::Sparse),
                                                 MemoryFormatConstant(c10::MemoryFormat::Preserve),
                                                 EllipsisConstant(),
                                                 OpaqueConstant("<thing>", "Thing")}) {
    args.push_back(value);
  }
  args.push_back(Argument());
  args.push_back(Argument::List({}));
  args.push_back(Argument::Tuple({Argument::Dict({})}));
  g.CreateNode(Op::kCallFunction, OpaqueTarget{"f"}, args);
  const auto read = RoundTrip(module);
  const Node* f = read->graph().front();
  ASSERT_EQ(f->args().size(), args.size());
  for (std::size_t i = 0; i < args.size(); ++i) {
    EXPECT_EQ(f->args()[i].kind(), args[i].kind()) << i;
    if (args[i].kind() != Argument::Kind::kConstant) continue;
    EXPECT_EQ(f->args()[i].constant().tagKind(), args[i].constant().tagKind()) << i;
    if (args[i].constant().isList()) {
      EXPECT_EQ(*f->args()[i].constant().type(), *args[i].constant().type()) << i;
    }
  }
  EXPECT_TRUE(std::signbit(f->args()[6].constant().toDouble()));
  EXPECT_EQ(f->args()[15].constant().toStringRef(), "\xff\xfe");
  EXPECT_EQ(AsTypedConstant(f->args()[30].constant())->type_name, "Thing");
}

TEST(Json, WhatIsSharedStaysShared) {
  GraphModule module;
  const at::Tensor base = at::ones({4, 2});
  const at::Tensor view = at::Tensor(base).as_strided({2}, {2}, 1);
  DDPOPT_ASSERT_OK(module.AddAttr("z", base, AttrKind::kParameter));
  DDPOPT_ASSERT_OK(module.AddAttr("tied", base, AttrKind::kParameter));
  DDPOPT_ASSERT_OK(module.AddAttr("a", view, AttrKind::kBuffer));
  auto shared = std::make_shared<GraphModule>();
  DDPOPT_ASSERT_OK(shared->AddAttr("w", base, AttrKind::kParameter));
  auto outer = std::make_shared<GraphModule>();
  DDPOPT_ASSERT_OK(outer->AddSubmodule("inner", {shared, nullptr}));
  DDPOPT_ASSERT_OK(module.AddSubmodule("second", {outer, nullptr}));
  DDPOPT_ASSERT_OK(module.AddSubmodule("first", {shared, nullptr}));

  const auto read = RoundTrip(module);
  const at::Tensor z = read->GetAttr("z")->value.toTensor();
  EXPECT_TRUE(z.is_same(read->GetAttr("tied")->value.toTensor()));
  EXPECT_TRUE(z.is_same(read->GetSubmodule("first")->graph_module->GetAttr("w")->value.toTensor()));
  EXPECT_EQ(read->GetSubmodule("first")->graph_module, read->GetSubmodule("second")->graph_module->GetSubmodule("inner")->graph_module);
  EXPECT_TRUE(z.storage().is_alias_of(read->GetAttr("a")->value.toTensor().storage()));
  EXPECT_EQ(read->GetAttr("a")->value.toTensor().storage_offset(), 1);
  EXPECT_THAT(z, TensorEq(base));
  EXPECT_EQ(read->GetAttr("a")->kind, AttrKind::kBuffer);
  EXPECT_LT(read->attrs().at("z").order, read->attrs().at("a").order) << "the order of adding is named_parameters()'s";
}

TEST(Json, LargeDataIsRefusedUnlessItsLossIsMeant) {
  GraphModule module;
  const at::Tensor large = at::ones({64, 64}).set_requires_grad(true);
  DDPOPT_ASSERT_OK(module.AddAttr("w", large, AttrKind::kParameter));
  EXPECT_THAT(ToJson(module), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("attribute \"w\": its storage of 16384 bytes")));
  EXPECT_THAT(ToJson(module, {.max_data_bytes = 16384}), IsOk());
  const auto read = ModuleFromJson(Json(module, {.drop_large_data = true}));
  ASSERT_THAT(read, IsOk());
  const at::Tensor w = (*read)->GetAttr("w")->value.toTensor();
  EXPECT_TRUE(IsHollow(w));
  EXPECT_EQ(*DescribeTensor(w), *DescribeTensor(large));
  EXPECT_THAT(ErrorOf([&] { w.add(1); }), HasSubstr("without its data"));
  // Hollow tensors stay what they are, whatever their size.
  EXPECT_EQ(Json(**read), Json(module, {.drop_large_data = true}));
}

TEST(Json, HollowTensorsOnAbsentDevicesKeepTheirForm) {
  GraphModule module;
  TensorMeta meta;
  meta.dtype = c10::ScalarType::BFloat16;
  meta.sizes = {2, 0, 3};
  meta.strides = {1, 2, 4};
  meta.device = c10::Device("cuda:3");
  meta.storage_nbytes = 100;
  meta.requires_grad = true;
  const auto tensor = HollowTensor(meta);
  ASSERT_THAT(tensor, IsOk());
  DDPOPT_ASSERT_OK(module.AddAttr("w", *tensor, AttrKind::kParameter));
  const auto read = RoundTrip(module);
  EXPECT_EQ(*DescribeTensor(read->GetAttr("w")->value.toTensor()), meta);
}

TEST(Json, WrappedNumbersStayWrapped) {
  GraphModule module;
  at::Tensor number = at::scalar_tensor(2.5, at::kDouble);
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  DDPOPT_ASSERT_OK(module.AddAttr("c", number, AttrKind::kConstant));
  const auto read = RoundTrip(module);
  EXPECT_TRUE(read->GetAttr("c")->value.toTensor().unsafeGetTensorImpl()->is_wrapped_number());
}

TEST(Json, WhatHasNoFormIsRefusedByName) {
  struct Piece : Callable {
    IValue Call(std::vector<IValue>) const override { return {}; }
  };
  GraphModule compiled;
  DDPOPT_ASSERT_OK(compiled.AddSubmodule("piece", {nullptr, std::make_shared<Piece>()}));
  EXPECT_THAT(ToJson(compiled), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("submodule \"piece\" is a compiled callable")));
  GraphModule conjugated;
  DDPOPT_ASSERT_OK(conjugated.AddAttr("c", at::ones({2}, at::kComplexFloat).conj(), AttrKind::kConstant));
  EXPECT_THAT(ToJson(conjugated),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("attribute \"c\": a tensor with a lazy conjugation")));
  Graph graph;
  graph.CallMethod("m", {IValue(c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get()))});
  EXPECT_THAT(ToJson(graph), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("node %m: a constant of kind Future has no JSON form")));
}

TEST(Json, GraphsWithoutTheirModule) {
  Graph graph;
  graph.Output(graph.GetAttr("elsewhere"));
  const auto json = ToJson(graph);
  ASSERT_THAT(json, IsOk());
  const auto read = GraphFromJson(*json);
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ((*read)->ToString(), graph.ToString());
  EXPECT_THAT(ModuleFromJson(*json), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("holds a graph, not a module")));
  GraphModule module;
  DDPOPT_ASSERT_OK(module.AddAttr("elsewhere", IValue(1), AttrKind::kConstant));
  module.graph().Output(module.graph().GetAttr("elsewhere"));
  const auto outer = GraphFromJson(Json(module));
  ASSERT_THAT(outer, IsOk());
  EXPECT_EQ((*outer)->ToString(), graph.ToString());
}

TEST(Json, DamageIsReportedWithItsPlace) {
  GraphModule module;
  DDPOPT_ASSERT_OK(module.AddAttr("w", at::ones({2}), AttrKind::kParameter));
  Node* w = module.graph().GetAttr("w");
  module.graph().Output(module.graph().CallFunction(FindOperator("aten::relu"), {w}));
  const std::string json = Json(module);
  const auto error = [&](const std::string& from, const std::string& to, const std::string& message) {
    const std::string damaged = absl::StrReplaceAll(json, {{from, to}});
    ASSERT_NE(damaged, json) << from;
    EXPECT_THAT(ModuleFromJson(damaged), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message))) << damaged;
  };
  error("\"version\": 1", "\"version\": 7",
        "the document: has version 7 of the format ddpopt.fx, which this build does not know; it reads version 1");
  error("ddpopt.fx", "other", "has the format \"other\"");
  error("\"modules\"", "\"models\"", "has an unknown field \"models\"");
  error("aten::relu", "aten::nothing", "modules[0].nodes[1].target: this LibTorch has no operator aten::nothing");
  error("{\"node\":\"w\"}", "{\"node\":\"v\"}", "modules[0].nodes[1].args[0].node: no earlier node is named \"v\"");
  error("\"op\":\"get_attr\"", "\"op\":\"get\"", "modules[0].nodes[0]: \"get\" is no kind of node");
  error("\"name\":\"w\"", "\"name\":\"while\"", "modules[0].nodes[0]: a node can't be named \"while\"");
  error("\"path\":\"w\"", "\"path\":\"v\"", "modules[0]:");  // lint: %w names an attribute that isn't there
  error("\"kind\":\"parameter\"", "\"kind\":\"param\"", "modules[0].attributes[0]: there is no kind of attribute \"param\"");
  error("{\"tensor\":0}", "{\"tensor\":1}", "there is no tensor 1 among the 1");
  error("\"sizes\":[2]", "\"sizes\":[3]", "tensors[0]: a storage of 8 bytes is too small");
  error("\"sizes\":[2]", "\"sizes\":[-2]", "tensors[0]: a tensor can't have the size -2");
  error("\"storage\":0", "\"storage\":3", "tensors[0]: there is no storage 3 among the 1");
  error("\"nbytes\":8", "\"nbytes\":9", "storages[0].data: holds 8 bytes, not 9");
  error("\"device\":\"cpu\"", "\"device\":\"cuda\"", "only storages on the CPU can have data");
  error("]}\n],\n", "]}\n],\n,", "line ");  // syntax
  for (std::size_t length = 0; length + 2 < json.size(); length += 7) {
    EXPECT_THAT(ModuleFromJson(json.substr(0, length)), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("line "))) << length;
  }
}

TEST(Json, ManyNodes) {
  // A small stand-in: what is quadratic in nodes, users or tensors would take minutes.
  Graph graph;
  Node* x = graph.Placeholder("x");
  Node* last = x;
  for (int i = 0; i < 20000; ++i) last = graph.CallMethod("m", {last, x});
  graph.Output(last);
  const auto json = ToJson(graph);
  ASSERT_THAT(json, IsOk());
  const auto read = GraphFromJson(*json);
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ((*read)->size(), graph.size());
}

}  // namespace
}  // namespace ddpopt::fx
