#include "testing/oracle_graph.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/file.h"
#include "fx_graph/tensor_meta.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"
#include "testing/matchers.h"

namespace ddpopt::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

OracleGraph Load(const std::string& name) {
  auto oracle = LoadOracleGraph(absl::StrCat("testing/testdata/ddp_buckets/graphs/", name, ".json.gz"));
  EXPECT_THAT(oracle, IsOk());
  EXPECT_THAT(oracle->module->Lint(), IsOk());
  return *std::move(oracle);
}

const fx::Node* Find(const fx::Graph& graph, absl::string_view name) {
  for (const fx::Node* node : graph.nodes()) {
    if (absl::string_view(node->name()) == name) return node;
  }
  ADD_FAILURE() << "no node " << name;
  return nullptr;
}

// A document with one node, or with `nodes` given as JSON.
absl::Status ParseNodes(const std::string& nodes) {
  return ParseOracleGraph(absl::StrCat(R"({"model": "m", "form": "lifted", "graph": 0, "nodes": [)", nodes, "]}")).status();
}

TEST(OracleGraph, DynamoFormPrintsAsRecorded) {
  const OracleGraph oracle = Load("S_Kwargs.dynamo.0");
  EXPECT_EQ(oracle.model, "S_Kwargs");
  EXPECT_EQ(oracle.form, "dynamo");
  const std::string text = oracle.module->graph().ToString();
  EXPECT_THAT(text, HasSubstr("\n    %l_self_modules_l_modules_0_parameters_weight_ : torch.nn.parameter.Parameter [num_users=1] = "
                              "placeholder[target=L_self_modules_l_modules_0_parameters_weight_]\n"));
  EXPECT_THAT(text, HasSubstr("\n    %l_x_ : torch.Tensor [num_users=1] = placeholder[target=L_x_]\n"));
  EXPECT_THAT(text, HasSubstr("= call_function[target=torch._C._nn.linear](args = (%l_x_,), kwargs = {weight: "
                              "%l_self_modules_l_modules_0_parameters_weight_, bias: %l_self_modules_l_modules_0_parameters_bias_})\n"));
  const OracleParameter& weight = oracle.parameters.at("l_self_modules_l_modules_0_parameters_weight_");
  EXPECT_EQ(weight.name, "L_self_modules_l_modules_0_parameters_weight_");
  EXPECT_EQ(weight.storage_bytes, 16384);
  EXPECT_TRUE(weight.requires_grad);
  EXPECT_FALSE(weight.ignored);
  EXPECT_FALSE(oracle.parameters.contains("l_x_"));
}

TEST(OracleGraph, NestedGraphsAreSubmodules) {
  const OracleGraph oracle = Load("S_Cond.dynamo.0");
  EXPECT_THAT(oracle.module->graph().ToString(), HasSubstr("call_function[target=torch.ops.higher_order.cond](args = (%gt, %cond_true_0, "));
  const auto nested = oracle.module->GetSubmodule("cond_true_0");
  ASSERT_THAT(nested, IsOk());
  EXPECT_THAT(nested->graph_module->graph().ToString(), HasSubstr("%x_1 : [num_users=1] = placeholder[target=x]"));
  EXPECT_EQ(OracleTarget(*Find(oracle.module->graph(), "gt")), "function:_operator.gt");
  EXPECT_EQ(OracleTarget(*Find(oracle.module->graph(), "cond")), "function:cond");
  EXPECT_EQ(OracleTarget(*Find(oracle.module->graph(), "cond_true_0")), "get_attr:cond_true_0");
  EXPECT_EQ(OracleTarget(*Find(oracle.module->graph(), "sum_1")), "method:sum");
}

TEST(OracleGraph, OperatorsAreResolved) {
  const OracleGraph oracle = Load("mlp.lifted.0");
  const fx::Node* relu = Find(oracle.module->graph(), "relu");
  ASSERT_TRUE(relu->is_operator());
  EXPECT_EQ(OracleTarget(*relu), "function:aten.relu.default");
  ASSERT_TRUE(relu->meta().val.isTensor());
  EXPECT_TRUE(fx::IsHollow(relu->meta().val.toTensor()));
  EXPECT_EQ(relu->meta().val.toTensor().device(), c10::Device("cpu"));
  EXPECT_THAT(ErrorOf([&] { relu->meta().val.toTensor().data_ptr(); }), HasSubstr("without its data"));
}

TEST(OracleGraph, AttributesCarryParameters) {
  const OracleGraph oracle = Load("mlp.lazy.0");
  ASSERT_FALSE(oracle.parameters.empty());
  for (const auto& [node, parameter] : oracle.parameters) {
    const auto attr = oracle.module->GetAttr(parameter.name);
    ASSERT_THAT(attr, IsOk());
    EXPECT_EQ(attr->kind, fx::GraphModule::AttrKind::kParameter);
    EXPECT_EQ(static_cast<int64_t>(attr->value.toTensor().storage().nbytes()), parameter.storage_bytes);
    EXPECT_EQ(attr->value.toTensor().requires_grad(), parameter.requires_grad);
  }
}

TEST(OracleGraph, AStorageMayBeLargerThanItsTensor) {
  const OracleGraph oracle = Load("S_ViewParam.dynamo.0");
  int views = 0;
  for (const auto& [name, parameter] : oracle.parameters) {
    const at::Tensor& value = Find(oracle.module->graph(), name)->meta().val.toTensor();
    EXPECT_EQ(static_cast<int64_t>(value.storage().nbytes()), parameter.storage_bytes);
    views += parameter.storage_bytes > value.numel() * static_cast<int64_t>(value.element_size());
  }
  EXPECT_EQ(views, 4);
}

TEST(OracleGraph, ModulesAreRefusedByNameWhenRun) {
  const OracleGraph oracle = Load("S_call_module_shared.symbolic.0");
  const OracleModule& b = oracle.modules.at("b");
  EXPECT_EQ(b.class_name, "Sequential");
  ASSERT_EQ(b.parameters.size(), 4u);
  EXPECT_EQ(b.parameters[0].name, "0.weight");
  EXPECT_EQ(b.parameters[0].storage_bytes, 16384);
  const auto submodule = oracle.module->GetSubmodule("b");
  ASSERT_THAT(submodule, IsOk());
  EXPECT_THAT(submodule->graph_module->graph().ToString(), HasSubstr("call_function[target=Sequential.forward](args = (%input_1, "));
  EXPECT_EQ(submodule->graph_module->attrs().size(), 4u);
}

TEST(OracleGraph, SymbolicValuesKeepTheirText) {
  const OracleGraph oracle = Load("S_Inplace_dyn.dynamo.0");
  const fx::Node* x = Find(oracle.module->graph(), "l_x_");
  EXPECT_TRUE(x->meta().val.isNone());
  EXPECT_EQ(x->meta().custom.at("symbolic").toStringRef(), "torch.float32[s77, 64]");
  EXPECT_EQ(x->meta().type_expr, "torch.Tensor");
  EXPECT_EQ(Find(oracle.module->graph(), "s77")->meta().type_expr, "torch.SymInt");
}

TEST(OracleGraph, EverySymbolOfAValueIsInItsText) {
  const auto oracle = ParseOracleGraph(R"({"model": "m", "form": "dynamo", "graph": 0, "nodes": [
      {"n": "x", "op": "placeholder", "t": "x", "m": {"d": "f32", "s": [8, "4"], "st": ["s3", 1], "nb": "4*s77*s3"}},
      {"n": "y", "op": "call_method", "t": "split", "a": [{"n": "x"}, 2],
       "m": [{"d": "f32", "s": ["u0"], "st": [1], "nb": 8}, {"repr": "2*s77"}]}]})");
  ASSERT_THAT(oracle, IsOk());
  const auto text = [&](const char* name) { return Find(oracle->module->graph(), name)->meta().custom.at("symbolic").toStringRef(); };
  EXPECT_EQ(text("x"), "torch.float32[8, 4] strides [s3, 1]");
  EXPECT_EQ(text("y"), "torch.float32[u0]; 2*s77");
}

TEST(OracleGraph, ConstantsOfEveryKind) {
  const auto oracle = ParseOracleGraph(R"({"model": "m", "form": "dynamo", "graph": 0, "nodes": [
      {"n": "x", "op": "placeholder", "t": "x"},
      {"n": "f", "op": "call_function", "t": "torch.f", "a": [null, true, 1, 1e-05, "s", {"f": "-inf"}, {"f": "nan"}, {"c": [1.0, -2.5]},
        {"dtype": "bf16"}, {"device": "cuda:1"}, {"mf": "channels_last"}, {"layout": "strided"}, [1, {"n": "x"}], {"tuple": [{"n": "x"}]},
        {"tuple": [{"slice": [null, {"n": "x"}, null]}, {"ellipsis": 1}]}, {"dict": [["k", {"n": "x"}], [1, 2]]}, {"repr": "<thing>"}],
       "k": {"z": 1, "a": {"dtype": "b8"}}},
      {"n": "to", "op": "call_function", "t": "aten.to.dtype", "a": [{"n": "x"}, {"dtype": "f16"}]},
      {"n": "output", "op": "output", "t": "output", "a": [{"tuple": [{"n": "f"}]}]}]})");
  ASSERT_THAT(oracle, IsOk());
  const fx::Graph& graph = oracle->module->graph();
  EXPECT_EQ(Find(graph, "f")->ToString(),
            "%f : [num_users=1] = call_function[target=torch.f](args = (None, True, 1, 1e-05, s, -inf, nan, (1-2.5j), torch.bfloat16, "
            "cuda:1, torch.channels_last, torch.strided, [1, %x], (%x,), (slice(None, x, None), Ellipsis), {k: %x, 1: 2}, <thing>), "
            "kwargs = {z: 1, a: torch.bool})");
  // An operator takes its dtype as the dispatcher does.
  EXPECT_TRUE(Find(graph, "to")->args()[1].constant().isInt());
  EXPECT_THAT(Find(graph, "to")->ToString(), HasSubstr("(%x, torch.float16)"));
}

TEST(OracleGraph, ErrorsGiveThePlace) {
  const auto error = [](const std::string& nodes, const std::string& message) {
    EXPECT_THAT(ParseNodes(nodes), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message))) << nodes;
  };
  const std::string x = R"({"n": "x", "op": "placeholder", "t": "x"},)";
  error(R"({"op": "placeholder", "t": "x"})", "nodes[0]: lacks \"n\"");
  error(R"({"n": "x", "op": "holder", "t": "x"})", "nodes[0]: \"holder\" is no kind of node");
  error(x + x.substr(0, x.size() - 1), "nodes[1]: the name \"x\" is taken");
  error(x + R"({"n": "f", "op": "call_function", "t": "f", "a": [1, [{"n": "y"}]]})", "nodes[1].a[1][0].n: no earlier node is named \"y\"");
  error(x + R"({"n": "f", "op": "call_function", "t": "f", "k": {"w": {"slice": [1]}}})", "nodes[1].k.w.slice: expected start, stop and step");
  error(x + R"({"n": "f", "op": "call_function", "t": "f", "a": [123456789012345678901234567890]})", "expected an integer of 64 bits");
  error(R"({"n": "x", "op": "placeholder", "t": "x", "m": {"d": "f33", "s": [], "st": []}})", "nodes[0].m.d: expected a dtype, got \"f33\"");
  error(R"({"n": "x", "op": "placeholder", "t": "x", "m": {"d": "f32", "s": [2, -1], "st": [1, 1]}})", "nodes[0].m: a tensor can't have the size -1");
  error(R"({"n": "x", "op": "placeholder", "t": "x", "m": {"d": "f32", "s": [4], "st": [1], "nb": 15}})", "a storage of 15 bytes is too small");
  error(R"({"n": "x", "op": "placeholder", "t": "x", "m": {"d": "f32", "s": [4000000000, 4000000000], "st": [1, 1], "nb": 15}})", "pass 2^63");
  error(R"({"n": "x", "op": "placeholder", "t": "x", "param": true})", "nodes[0]: lacks \"nb\"");
  error(R"({"n": "while", "op": "placeholder", "t": "while"})", "a node can't be named \"while\"");
  error(x + R"({"n": "output", "op": "output", "t": "output", "a": [{"n": "x"}]}, {"n": "y", "op": "placeholder", "t": "y"})",
        "nodes[2]: the node \"y\" comes after the output");
  EXPECT_THAT(ParseOracleGraph("{\"model\": \"m\",\n \"form\" }").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("line 2, column 9: ")));
  EXPECT_THAT(ParseOracleGraph("[]").status(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the document: expected an object")));
  EXPECT_THAT(ParseOracleGraph(R"({"model": "m", "model": "n"})").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the key \"model\" is repeated")));
  EXPECT_THAT(ParseOracleGraph(std::string(100000, '[')).status(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("levels deep")));
}

}  // namespace
}  // namespace ddpopt::testing
