// Every kind of argument, symbolic function and nested graph that torch.export's schema has, in small programs: read and run as ATen does,
// or refused by name.

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "absl/strings/str_cat.h"
#include "ddpopt/capture/pt2/exported_program.h"
#include "ddpopt/capture/pt2/parse_for_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"
#include "testing/exported_json.h"
#include "testing/matchers.h"
#include "testing/tensors.h"

namespace ddpopt {
namespace {

using c10::IValue;
using nlohmann::json;
using ::testing::AllOf;
using testing::ErrorOf;
using testing::ExportedJson;
using testing::Float;
using ::testing::HasSubstr;
using testing::Int;
using testing::IsOk;
using testing::None;
using testing::Open;
using testing::Ramp;
using testing::StatusIs;
using testing::Symbol;
using testing::Tensor;
using testing::TensorEq;

std::vector<IValue> Outputs(const ExportedJson& program, std::vector<IValue> inputs) {
  const auto parsed = Parse(program);
  if (parsed == nullptr) return {};
  EXPECT_THAT(parsed->CheckExecutable(), IsOk());
  return parsed->RunFlat(std::move(inputs));
}

// y = target(x, arguments...), of x [4, 3].
at::Tensor Call(const std::string& target, std::vector<ExportedJson::Argument> arguments, const at::Tensor& x = Ramp({4, 3})) {
  ExportedJson program;
  std::vector<json> sizes;
  for (const int64_t size : x.sizes()) sizes.emplace_back(size);
  program.Input("x", sizes);
  program.Call(target, arguments, {Tensor("y")});
  program.Output(Tensor("y"));
  const std::vector<IValue> outputs = Outputs(program, {x});
  return outputs.empty() ? at::Tensor() : outputs[0].toTensor();
}

TEST(SchemaKindsTest, ArgumentsOfOperators) {
  const at::Tensor x = Ramp({4, 3});
  EXPECT_THAT(Call("torch.ops.aten.clamp.default", {{"self", Tensor("x")}, {"min", None()}, {"max", Float(0.5)}}),
              TensorEq(at::clamp(x, std::nullopt, 0.5)));
  EXPECT_THAT(Call("torch.ops.aten.clamp.default", {{"self", Tensor("x")}, {"min", Int(0)}}), TensorEq(at::clamp(x, 0)));
  EXPECT_THAT(Call("torch.ops.aten.view.default", {{"self", Tensor("x")}, {"size", {{"as_ints", {2, 6}}}}}), TensorEq(x.view({2, 6})));
  EXPECT_THAT(
      Call("torch.ops.aten.sum.dim_IntList", {{"self", Tensor("x")}, {"dim", {{"as_ints", {0}}}}, {"keepdim", {{"as_bool", true}}}}),
      TensorEq(x.sum({0}, true)));
  EXPECT_THAT(Call("torch.ops.aten.einsum.default",
                   {{"equation", {{"as_string", "ij,kj->ik"}}}, {"tensors", {{"as_tensors", {{{"name", "x"}}, {{"name", "x"}}}}}}}),
              TensorEq(at::einsum("ij,kj->ik", {x, x})));
  EXPECT_THAT(Call("torch.ops.aten.cat.default", {{"tensors", {{"as_tensors", {{{"name", "x"}}, {{"name", "x"}}}}}}, {"dim", Int(-1)}}),
              TensorEq(at::cat({x, x}, -1)));
  EXPECT_THAT(Call("torch.ops.aten.to.dtype", {{"self", Tensor("x")}, {"dtype", {{"as_scalar_type", 8}}}}), TensorEq(x.to(at::kDouble)));
  EXPECT_THAT(Call("torch.ops.aten.mul.Scalar", {{"self", Tensor("x")}, {"other", {{"as_complex", {{"real", 1.0}, {"imag", -2.0}}}}}}),
              TensorEq(at::mul(x, c10::complex<double>(1, -2))));
  EXPECT_THAT(Call("torch.ops.aten.mul.Tensor", {{"self", Tensor("x")}, {"other", Float(3)}}), TensorEq(x * 3));
  EXPECT_THAT(Call("torch.ops.aten.div.Tensor_mode",
                   {{"self", Tensor("x")}, {"other", Float(0.3)}, {"rounding_mode", {{"as_string", "floor"}}, true}}),
              TensorEq(at::div(x, at::full({}, 0.3, at::kDouble), "floor")));
}

TEST(SchemaKindsTest, DevicesLayoutsAndMemoryFormats) {
  const at::Tensor image = Ramp({2, 3, 4, 5});
  EXPECT_THAT(Call("torch.ops.aten.clone.default", {{"self", Tensor("x")}, {"memory_format", {{"as_memory_format", 2}}, true}}, image),
              AllOf(TensorEq(image), testing::HasStrides({60, 1, 15, 3})));
  ExportedJson program;
  program.Call("torch.ops.aten.full.default",
               {{"size", {{"as_ints", {2}}}},
                {"fill_value", {{"as_float", "Infinity"}}},
                {"dtype", {{"as_scalar_type", 13}}, true},
                {"layout", {{"as_layout", 7}}, true},
                {"device", {{"as_device", {{"type", "cpu"}, {"index", nullptr}}}}, true},
                {"pin_memory", {{"as_bool", false}}, true}},
               {Tensor("y")});
  program.Output(Tensor("y"));
  EXPECT_THAT(Outputs(program, {})[0].toTensor(), TensorEq(at::full({2}, INFINITY, at::kBFloat16)));
}

TEST(SchemaKindsTest, OptionalTensorsAndLists) {
  ExportedJson program;
  program.Input("x", {4, 3});
  program.Input("i", {2}, 5);
  program.Call("torch.ops.aten.index.Tensor",
               {{"self", Tensor("x")}, {"indices", {{"as_optional_tensors", {{{"as_none", true}}, {{"as_tensor", {{"name", "i"}}}}}}}}},
               {Tensor("y")});
  program.Call("torch.ops.aten.layer_norm.default",
               {{"input", Tensor("y")},
                {"normalized_shape", {{"as_ints", {2}}}},
                {"weight", {{"as_optional_tensor", {{"as_none", true}}}}},
                {"bias", None()},
                {"eps", Float(1e-5)}},
               {Tensor("z")});
  program.Call("torch.ops.aten.native_layer_norm_backward.default",
               {{"grad_out", Tensor("z")},
                {"input", Tensor("y")},
                {"normalized_shape", {{"as_ints", {2}}}},
                {"mean", Tensor("m")},
                {"rstd", Tensor("r")},
                {"weight", None()},
                {"bias", None()},
                {"output_mask", {{"as_bools", {true, false, false}}}}},
               {Tensor("g"), None(), None()}, "native_layer_norm_backward");
  program.Input("m", {4, 1});
  program.Input("r", {4, 1});
  program.Output(Tensor("y"));
  program.Output(Tensor("z"));
  program.Output(Tensor("g"));
  const at::Tensor x = Ramp({4, 3}), i = at::arange(2).flip(0);
  const std::vector<IValue> outputs = Outputs(program, {x, i, at::zeros({4, 1}), at::ones({4, 1})});
  ASSERT_EQ(outputs.size(), 3u);
  const at::Tensor y = x.index_select(1, i), z = at::layer_norm(y, {2});
  EXPECT_THAT(outputs[0].toTensor(), TensorEq(y));
  EXPECT_THAT(outputs[1].toTensor(), TensorEq(z));
  EXPECT_THAT(
      outputs[2].toTensor(),
      TensorEq(std::get<0>(at::native_layer_norm_backward(z, y, {2}, at::zeros({4, 1}), at::ones({4, 1}), {}, {}, {true, false, false}))));
}

TEST(SchemaKindsTest, SeveralAndListedResults) {
  ExportedJson program;
  program.Input("x", {4, 3});
  program.Call("torch.ops.aten.split.Tensor", {{"self", Tensor("x")}, {"split_size", Int(2)}},
               {{{"as_tensors", {{{"name", "a"}}, {{"name", "b"}}}}}}, "split");
  program.Call("torch.ops.aten.topk.default", {{"self", Tensor("a")}, {"k", Int(1)}}, {Tensor("values"), Tensor("topk_unused_1")}, "topk");
  program.Call("torch.ops.aten.std_mean.default", {{"self", Tensor("b")}, {"unbiased", {{"as_bool", false}}}},
               {Tensor("std"), Tensor("mean")}, "std_mean");
  for (const char* name : {"values", "std", "mean", "b"}) program.Output(Tensor(name));
  const at::Tensor x = Ramp({4, 3});
  const std::vector<IValue> outputs = Outputs(program, {x});
  ASSERT_EQ(outputs.size(), 4u);
  EXPECT_THAT(outputs[0].toTensor(), TensorEq(std::get<0>(x.slice(0, 0, 2).topk(1))));
  EXPECT_THAT(outputs[1].toTensor(), TensorEq(at::std(x.slice(0, 2, 4), false)));
  EXPECT_THAT(outputs[2].toTensor(), TensorEq(x.slice(0, 2, 4).mean()));
  EXPECT_THAT(outputs[3].toTensor(), TensorEq(x.slice(0, 2, 4)));
}

// What only other operators take is kept as it was, and refused by name when the program is to be run.
TEST(SchemaKindsTest, ArgumentsOfOperatorsThatAreNotKnown) {
  ExportedJson program;
  program.Input("x", {4, 3});
  program.Call("torch.ops.mylib.mix.default",
               {{"lists", {{"as_int_lists", {{1, 2}, {3}}}}},
                {"reals", {{"as_float_lists", {{0.5}, {1.5, 2.5}}}}},
                {"words", {{"as_strings", {"a", "b"}}}},
                {"scales", {{"as_floats", {0.5, 2.0}}}},
                {"nested", {{"as_nested_tensors", {{{{"name", "x"}}}, {{{"name", "x"}}, {{"name", "x"}}}}}}},
                {"options", {{"as_string_to_argument", {{"k", {{"as_int", 7}}}, {"t", Tensor("x")}}}}},
                {"op", {{"as_operator", "torch.ops.aten.add.Tensor"}}},
                {"object",
                 {{"as_custom_obj",
                   {{
                        "name",
                        "queue",
                    },
                    {"class_fqn", "__torch__.Queue"}}}}}},
               {Tensor("y")});
  program.Output(Tensor("y"));
  const auto parsed = Parse(program);
  ASSERT_NE(parsed, nullptr);
  const std::string text = parsed->module()->graph().ToString();
  for (const char* part : {"[[1, 2], [3]]", "[[0.5], [1.5, 2.5]]", "[a, b]", "[0.5, 2.0]", "[[%x], [%x, %x]]", "{k: 7, t: %x}",
                           "torch.ops.aten.add.Tensor", "queue"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(parsed->CheckExecutable(),
              StatusIs(absl::StatusCode::kUnimplemented, AllOf(HasSubstr("%y"), HasSubstr("torch.ops.mylib.mix.default"))));
  EXPECT_THAT(ErrorOf([&] { parsed->RunFlat({Ramp({4, 3})}); }), HasSubstr("torch.ops.mylib.mix.default"));
}

TEST(SchemaKindsTest, AnOperatorOfAnotherVersion) {
  ExportedJson program;
  program.Input("x", {4, 3});
  program.Call("torch.ops.aten.relu.default", {{"self", Tensor("x")}, {"slope", Float(0.1), true}}, {Tensor("y")});
  program.Output(Tensor("y"));
  const auto parsed = Parse(program);
  ASSERT_NE(parsed, nullptr);
  EXPECT_THAT(parsed->CheckExecutable(),
              StatusIs(absl::StatusCode::kUnimplemented, AllOf(HasSubstr("%y"), HasSubstr("torch.ops.aten.relu.default"))));
}

TEST(SchemaKindsTest, KindsThatDoNotExist) {
  ExportedJson program;
  program.Input("x", {4, 3});
  program.Call("torch.ops.aten.relu.default", {{"self", {{"as_quaternion", 1}}}}, {Tensor("y")});
  program.Output(Tensor("y"));
  EXPECT_THAT(ParseExportedProgram(program.Text()),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("as_quaternion"), HasSubstr("nodes"))));
}

// Functions of sizes: name, arguments (with n for the size, 5), result.
TEST(SchemaKindsTest, FunctionsOfSizes) {
  struct Case {
    const char* target;
    std::vector<json> args;
    const char* kind;
    IValue expected;
  };
  const json n = Symbol("n");
  const std::vector<Case> cases = {
      {"_operator.add", {n, Int(2)}, "as_sym_int", 7},
      {"_operator.sub", {Int(2), n}, "as_sym_int", -3},
      {"_operator.mul", {n, n}, "as_sym_int", 25},
      {"_operator.floordiv", {n, Int(2)}, "as_sym_int", 2},
      {"_operator.mod", {n, Int(3)}, "as_sym_int", 2},
      {"_operator.truediv", {n, Int(2)}, "as_sym_float", 2.5},
      {"_operator.pow", {n, Int(2)}, "as_sym_int", 25},
      {"_operator.neg", {n}, "as_sym_int", -5},
      {"_operator.eq", {n, Int(5)}, "as_sym_bool", true},
      {"_operator.ne", {n, Int(5)}, "as_sym_bool", false},
      {"_operator.le", {n, Int(5)}, "as_sym_bool", true},
      {"_operator.lt", {n, Int(5)}, "as_sym_bool", false},
      {"_operator.ge", {n, Int(6)}, "as_sym_bool", false},
      {"_operator.gt", {n, Int(4)}, "as_sym_bool", true},
      {"torch.sym_max", {n, Int(9)}, "as_sym_int", 9},
      {"torch.sym_min", {n, Int(9)}, "as_sym_int", 5},
      {"torch.sym_float", {n}, "as_sym_float", 5.0},
      {"torch._sym_sqrt", {n}, "as_sym_float", std::sqrt(5.0)},
      {"torch._sym_log2", {n}, "as_sym_float", std::log2(5.0)},
      {"math.ceil", {Float(2.5)}, "as_sym_int", 3},
      {"math.floor", {Float(2.5)}, "as_sym_int", 2},
      {"math.trunc", {Float(-2.5)}, "as_sym_int", -2},
      {"builtins.round", {Float(2.5)}, "as_sym_int", 2},
      {"torch.sym_sum", {{{"as_sym_ints", {{{"as_name", "n"}}, {{"as_int", 3}}}}}}, "as_sym_int", 8},
  };
  for (const Case& each : cases) {
    ExportedJson program;
    program.Input("x", {Open("s0"), 3});
    program.Call("torch.ops.aten.sym_size.int", {{"self", Tensor("x")}, {"dim", Int(0)}}, {n});
    std::vector<ExportedJson::Argument> arguments;
    for (const json& value : each.args) arguments.push_back({absl::StrCat("arg", arguments.size()), value});
    program.Call(each.target, arguments, {Symbol("result", each.kind)});
    program.Output(Symbol("result", each.kind));
    const std::vector<IValue> outputs = Outputs(program, {Ramp({5, 3})});
    ASSERT_EQ(outputs.size(), 1u) << each.target;
    EXPECT_EQ(outputs[0].tagKind(), each.expected.tagKind()) << each.target;
    EXPECT_EQ(outputs[0].toScalar().to<double>(), each.expected.toScalar().to<double>()) << each.target;
  }
}

// sym_not of a comparison decides; sizes are used in views, slices and factories.
TEST(SchemaKindsTest, SizesAsArguments) {
  ExportedJson program;
  program.Input("x", {Open("s0"), 4});
  program.Call("torch.ops.aten.sym_size.int", {{"self", Tensor("x")}, {"dim", Int(0)}}, {Symbol("n")});
  program.Call("_operator.mul", {{"a", Symbol("n")}, {"b", Int(2)}}, {Symbol("double")});
  program.Call("torch.ops.aten.view.default",
               {{"self", Tensor("x")}, {"size", {{"as_sym_ints", {{{"as_name", "double"}}, {{"as_int", 2}}}}}}}, {Tensor("view")});
  program.Call("torch.ops.aten.slice.Tensor",
               {{"self", Tensor("view")}, {"dim", Int(0)}, {"start", Symbol("n")}, {"end", Int(9223372036854775807)}}, {Tensor("half")});
  program.Call("torch.ops.aten.mul.Tensor", {{"self", Tensor("half")}, {"other", Symbol("n")}}, {Tensor("scaled")});
  program.Call("torch.ops.aten.arange.default", {{"end", Symbol("n")}}, {Tensor("range")});
  program.Call("torch.ops.aten.full.default", {{"size", {{"as_sym_ints", {{{"as_name", "n"}}}}}}, {"fill_value", Float(2)}},
               {Tensor("full")});
  program.Call("_operator.le", {{"a", Symbol("n")}, {"b", Int(10)}}, {Symbol("small", "as_sym_bool")});
  program.Call("torch.ops.aten._assert_scalar.default",
               {{"self", Symbol("small", "as_sym_bool")}, {"assert_msg", {{"as_string", "n is large"}}}}, {});
  for (const char* name : {"scaled", "range", "full"}) program.Output(Tensor(name));
  for (const int64_t n : {2, 5}) {
    const at::Tensor x = Ramp({n, 4});
    const std::vector<IValue> outputs = Outputs(program, {x});
    ASSERT_EQ(outputs.size(), 3u);
    EXPECT_THAT(outputs[0].toTensor(), TensorEq(x.view({2 * n, 2}).slice(0, n) * n));
    EXPECT_THAT(outputs[1].toTensor(), TensorEq(at::arange(n)));
    EXPECT_THAT(outputs[2].toTensor(), TensorEq(at::full({n}, 2.0)));
  }
  EXPECT_THAT(ErrorOf([&] { Outputs(program, {Ramp({11, 4})}); }), HasSubstr("n is large"));
}

// A size that comes from data: no symbol of an input, and no example.
TEST(SchemaKindsTest, SizesFromData) {
  ExportedJson program;
  program.Input("x", {4}, 5);
  program.Call("torch.ops.aten.max.default", {{"self", Tensor("x")}}, {Tensor("m")});
  program.Call("torch.ops.aten.item.default", {{"self", Tensor("m")}}, {Symbol("u")});
  program.Call("torch.ops.aten.sym_constrain_range_for_size.default",
               {{"size", Symbol("u")}, {"min", Int(0), true}, {"max", Int(100), true}}, {});
  program.Call("torch.ops.aten.zeros.default", {{"size", {{"as_sym_ints", {{{"as_name", "u"}}, {{"as_int", 2}}}}}}}, {Tensor("y")});
  program.Describe("y",
                   testing::TensorMeta({{{"as_expr", {{"expr_str", "Symbol('u0', integer=True)"}, {"hint", nullptr}}}}, 2}, 7, {2, 1}));
  program.Output(Tensor("y"));
  EXPECT_THAT(Outputs(program, {at::arange(4)})[0].toTensor(), TensorEq(at::zeros({3, 2})));
}

TEST(SchemaKindsTest, AssertionsOfMetadata) {
  ExportedJson program;
  program.Input("x", {4});
  program.Call("torch.ops.aten._assert_tensor_metadata.default",
               {{"a", Tensor("x")},
                {"size", None()},
                {"stride", None()},
                {"dtype", {{"as_scalar_type", 8}}},
                {"device", {{"as_device", {{"type", "cpu"}}}}, true},
                {"layout", {{"as_layout", 7}}, true}},
               {});
  program.Output(Tensor("x"));
  EXPECT_THAT(ErrorOf([&] { Outputs(program, {Ramp({4})}); }), HasSubstr("dtype"));
}

ExportedJson Body(const std::vector<std::string>& inputs, const std::string& target, const std::vector<ExportedJson::Argument>& arguments) {
  ExportedJson body;
  for (const std::string& input : inputs) body.Input(input, {3});
  body.Call(target, arguments, {Tensor("result")});
  body.Output(Tensor("result"));
  return body;
}

TEST(SchemaKindsTest, NestedGraphs) {
  const at::Tensor x = Ramp({4, 3}), w = Ramp({3});
  {
    ExportedJson body = Body({"row", "w"}, "torch.ops.aten.mul.Tensor", {{"self", Tensor("row")}, {"other", Tensor("w")}});
    ExportedJson program;
    program.Input("x", {4, 3});
    program.Input("w", {3});
    program.Call("torch.ops.higher_order.map_impl",
                 {{"f", body.AsGraph("body_graph_0")},
                  {"xs", {{"as_tensors", {{{"name", "x"}}}}}},
                  {"pos_args", {{"as_tensors", {{{"name", "w"}}}}}}},
                 {{{"as_tensors", {{{"name", "y"}}}}}}, "map_impl");
    program.Output(Tensor("y"));
    EXPECT_THAT(Outputs(program, {x, w})[0].toTensor(), TensorEq(x * w));
  }
  {
    ExportedJson body = Body({"carry", "row"}, "torch.ops.aten.add.Tensor", {{"self", Tensor("carry")}, {"other", Tensor("row")}});
    body.Output(Tensor("carry"));
    ExportedJson program;
    program.Input("x", {4, 3});
    program.Input("w", {3});
    program.Call("torch.ops.higher_order.scan",
                 {{"combine_fn", body.AsGraph("scan_graph_0")},
                  {"init", {{"as_tensors", {{{"name", "w"}}}}}},
                  {"xs", {{"as_tensors", {{{"name", "x"}}}}}},
                  {"additional", {{"as_tensors", json::array()}}}},
                 {{{"as_tensors", {{{"name", "last"}}, {{"name", "all"}}}}}}, "scan");
    program.Output(Tensor("last"));
    program.Output(Tensor("all"));
    const std::vector<IValue> outputs = Outputs(program, {x, w});
    ASSERT_EQ(outputs.size(), 2u);
    EXPECT_THAT(outputs[0].toTensor(), TensorEq(w + x[0] + x[1] + x[2] + x[3]));
    EXPECT_THAT(outputs[1].toTensor(), TensorEq(at::stack({w, w + x[0], w + x[0] + x[1], w + x[0] + x[1] + x[2]})));
  }
  {  // an autocast region within one without gradients
    ExportedJson inner = Body({"a", "b"}, "torch.ops.aten.outer.default", {{"self", Tensor("a")}, {"vec2", Tensor("b")}});
    ExportedJson middle;
    middle.Input("a", {3});
    middle.Call("torch.ops.higher_order.wrap_with_autocast",
                {{"", {{"as_string", "cpu"}}},
                 {"", {{"as_scalar_type", 13}}},
                 {"", {{"as_bool", true}}},
                 {"", {{"as_bool", false}}},
                 {"", inner.AsGraph("submod_1")},
                 {"", Tensor("a")},
                 {"", Tensor("a")}},
                {{{"as_tensors", {{{"name", "product"}}}}}}, "wrap_with_autocast");
    middle.Output(Tensor("product"));
    ExportedJson program;
    program.Input("w", {3});
    program.Call("torch.ops.higher_order.wrap_with_set_grad_enabled",
                 {{"", {{"as_bool", false}}}, {"", middle.AsGraph("submod_3")}, {"", Tensor("w")}}, {{{"as_tensors", {{{"name", "y"}}}}}},
                 "wrap_with_set_grad_enabled");
    program.Output(Tensor("y"));
    const at::Tensor leaf = w.clone().set_requires_grad(true);
    const at::Tensor y = Outputs(program, {leaf})[0].toTensor();
    EXPECT_FALSE(y.requires_grad());
    EXPECT_TRUE(leaf.requires_grad());
  }
}

TEST(SchemaKindsTest, WhileLoopsAndConditions) {
  ExportedJson condition = Body({"i", "x"}, "torch.ops.aten.lt.Scalar", {{"self", Tensor("i")}, {"other", Int(3)}});
  ExportedJson body;
  body.Input("i", {});
  body.Input("x", {3});
  body.Call("torch.ops.aten.add.Tensor", {{"self", Tensor("i")}, {"other", Int(1)}}, {Tensor("next")});
  body.Call("torch.ops.aten.mul.Tensor", {{"self", Tensor("x")}, {"other", Int(2)}}, {Tensor("doubled")});
  body.Output(Tensor("next"));
  body.Output(Tensor("doubled"));
  ExportedJson program;
  program.Input("i", {}, 5);
  program.Input("x", {3});
  // The condition's graph gives a tuple of one here.
  json graph = condition.AsGraph("while_loop_cond_graph_0");
  graph["as_graph"]["graph"]["is_single_tensor_return"] = true;
  program.Call("torch.ops.higher_order.while_loop",
               {{"cond_fn", graph},
                {"body_fn", body.AsGraph("while_loop_body_graph_0")},
                {"carried", {{"as_tensors", {{{"name", "i"}}, {{"name", "x"}}}}}},
                {"additional", {{"as_tensors", json::array()}}}},
               {{{"as_tensors", {{{"name", "i_out"}}, {{"name", "x_out"}}}}}}, "while_loop");
  program.Output(Tensor("i_out"));
  program.Output(Tensor("x_out"));
  const at::Tensor x = Ramp({3});
  const std::vector<IValue> outputs = Outputs(program, {at::zeros({}, at::kLong), x});
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_EQ(outputs[0].toTensor().item<int64_t>(), 3);
  EXPECT_THAT(outputs[1].toTensor(), TensorEq(x * 8));

  // A comparison of sizes chooses; branches take sizes too.
  ExportedJson yes;
  yes.Input("a", {3});
  yes.IntInput("n", Open("s0"));
  yes.Call("torch.ops.aten.mul.Tensor", {{"self", Tensor("a")}, {"other", Symbol("n")}}, {Tensor("r")});
  yes.Output(Tensor("r"));
  ExportedJson no;
  no.Input("a", {3});
  no.IntInput("n", Open("s0"));
  no.Call("torch.ops.aten.neg.default", {{"self", Tensor("a")}}, {Tensor("r")});
  no.Output(Tensor("r"));
  ExportedJson choice;
  choice.Input("x", {Open("s0")});
  choice.Call("torch.ops.aten.sym_size.int", {{"self", Tensor("x")}, {"dim", Int(0)}}, {Symbol("n")});
  choice.Call("_operator.gt", {{"", Symbol("n")}, {"", Int(3)}}, {Symbol("p", "as_sym_bool")});
  choice.Call("torch.ops.higher_order.cond",
              {{"", Symbol("p", "as_sym_bool")},
               {"", yes.AsGraph("true_graph_0")},
               {"", no.AsGraph("false_graph_0")},
               {"", {{"as_tensors", {{{"name", "x"}}, {{"name", "n"}}}}}}},
              {{{"as_tensors", {{{"name", "y"}}}}}}, "cond");
  choice.Output(Tensor("y"));
  EXPECT_THAT(Outputs(choice, {Ramp({4})})[0].toTensor(), TensorEq(Ramp({4}) * 4));
  EXPECT_THAT(Outputs(choice, {Ramp({3})})[0].toTensor(), TensorEq(-Ramp({3})));
}

TEST(SchemaKindsTest, HigherOrderOperatorsThatAreNotExecuted) {
  for (const char* name :
       {"flex_attention", "autograd_function_apply", "auto_functionalized_v2", "triton_kernel_wrapper_mutation", "with_effects"}) {
    ExportedJson body = Body({"a"}, "torch.ops.aten.neg.default", {{"self", Tensor("a")}});
    ExportedJson program;
    program.Input("x", {3});
    program.Call(absl::StrCat("torch.ops.higher_order.", name), {{"", body.AsGraph("g")}, {"", Tensor("x")}},
                 {{{"as_tensors", {{{"name", "y"}}}}}}, "call");
    program.Output(Tensor("y"));
    const auto parsed = Parse(program);
    ASSERT_NE(parsed, nullptr);
    EXPECT_THAT(parsed->CheckExecutable(), StatusIs(absl::StatusCode::kUnimplemented, AllOf(HasSubstr("%call"), HasSubstr(name))));
    EXPECT_THAT(ErrorOf([&] { parsed->RunFlat({Ramp({3})}); }), HasSubstr(name));
  }
}

}  // namespace
}  // namespace ddpopt
