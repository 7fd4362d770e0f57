// What programs take, hold and give: inputs and their sizes, guards, results and writes, weights, trees.

#include <malloc.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "ATen/core/Dict.h"
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
using ::testing::ElementsAre;
using testing::ErrorOf;
using testing::ExportedJson;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Int;
using testing::IsOk;
using ::testing::Not;
using testing::Open;
using testing::OpenExpr;
using testing::Ramp;
using testing::SharesStorageWith;
using testing::StatusIs;
using testing::Symbol;
using testing::SymbolText;
using testing::Tensor;
using testing::TensorEq;
using testing::TensorMeta;

std::string Refused(const ExportedProgram& program, std::vector<IValue> inputs) {
  return ErrorOf([&] { program.RunFlat(std::move(inputs)); });
}

void Relu(ExportedJson* program, const std::string& of, const std::string& result) {
  program->Call("torch.ops.aten.relu.default", {{"self", Tensor(of)}}, {Tensor(result)});
}

TEST(SignatureKindsTest, GuardsAreEvaluated) {
  ExportedJson program;
  program.Input("x", {Open("s0"), 3});
  Relu(&program, "x", "y");
  program.Output(Tensor("y"));
  program.Guard("L['x'].size()[0] % 2 == 0");
  program.Guard("L['x'].size()[0]*L['x'].size()[1] <= 24");
  const auto parsed = Parse(program);
  EXPECT_THAT(parsed->guards(), ElementsAre("L['x'].size()[0] % 2 == 0", "L['x'].size()[0]*L['x'].size()[1] <= 24"));
  EXPECT_THAT(parsed->RunFlat({Ramp({6, 3})})[0].toTensor(), TensorEq(at::relu(Ramp({6, 3}))));
  EXPECT_THAT(Refused(*parsed, {Ramp({5, 3})}),
              AllOf(HasSubstr("exported for inputs with L['x'].size()[0] % 2 == 0"), HasSubstr("input \"x\", dimension 0, is 5")));
  EXPECT_THAT(Refused(*parsed, {Ramp({10, 3})}), HasSubstr("<= 24"));
}

TEST(SignatureKindsTest, GuardsOfNestedAndNamedInputs) {
  ExportedJson program;
  program.Input("d_x", {Open("s0")});
  program.Input("d_inner_0", {Open("s1")});
  program.IntInput("n", Open("s2"));
  Relu(&program, "d_x", "y");
  program.Output(Tensor("y"));
  const std::string leaf = R"({"type": null, "context": null, "children_spec": []})";
  const std::string list = absl::StrCat(R"({"type": "builtins.list", "context": "null", "children_spec": [)", leaf, "]}");
  const std::string dict =
      absl::StrCat(R"({"type": "builtins.dict", "context": "[\"x\", \"inner\"]", "children_spec": [)", leaf, ", ", list, "]}");
  program.Trees(absl::StrCat(R"([1, {"type": "builtins.tuple", "context": "null", "children_spec": [)",
                             R"({"type": "builtins.tuple", "context": "null", "children_spec": [)", dict,
                             R"(]}, {"type": "builtins.dict", "context": "[\"n\"]", "children_spec": [)", leaf, "]}]}]"),
                absl::StrCat("[1, ", leaf, "]"), {"d", "n"});
  program.Guard("L['d']['inner'][0].size()[0] == L['n'] + 1");
  const auto parsed = Parse(program);
  EXPECT_EQ(Refused(*parsed, {Ramp({4}), Ramp({3}), 2}), "");
  EXPECT_THAT(Refused(*parsed, {Ramp({4}), Ramp({3}), 3}),
              AllOf(HasSubstr("input \"d_inner_0\", dimension 0, is 3"), HasSubstr("input \"n\" is 3")));
}

// Never ignored: it might be what makes a result right.
TEST(SignatureKindsTest, GuardsThatAreNotUnderstoodAreRefusedWhenTheProgramIsToBeRun) {
  for (const char* text : {"L['x'].is_contiguous()", "L['z'].size()[0] == 3", "___check_type_id(L['x'], 7)", "what ever", "G['flag']"}) {
    ExportedJson program;
    program.Input("x", {Open("s0"), 3});
    Relu(&program, "x", "y");
    program.Output(Tensor("y"));
    program.Guard("L['x'].size()[0] > 0");
    program.Guard(text);
    const auto parsed = Parse(program);
    ASSERT_NE(parsed, nullptr);
    EXPECT_THAT(parsed->CheckExecutable(), StatusIs(absl::StatusCode::kUnimplemented, AllOf(HasSubstr("guards_code"), HasSubstr(text))))
        << text;
    EXPECT_THAT(Refused(*parsed, {Ramp({5, 3})}), HasSubstr(text));
  }
}

TEST(SignatureKindsTest, DerivedAndEqualSizes) {
  ExportedJson program;
  program.Input("x", {Open("s0"), Open("s1")});
  program.Input("y", {OpenExpr(absl::StrCat("Mul(Integer(2), ", SymbolText("s0"), ")"), 8), Open("s1")});
  program.Input("z", {OpenExpr(absl::StrCat("Add(", SymbolText("s1"), ", Integer(-1))"), 3)});
  Relu(&program, "x", "r");
  program.Output(Tensor("r"));
  program.Range("s0", 2, 16);
  program.Range("s1", 2, nullptr);
  const auto parsed = Parse(program);
  EXPECT_EQ(Refused(*parsed, {Ramp({3, 5}), Ramp({6, 5}), Ramp({4})}), "");
  EXPECT_THAT(Refused(*parsed, {Ramp({3, 5}), Ramp({5, 5}), Ramp({4})}),
              AllOf(HasSubstr("input \"y\", dimension 0 is 5"), HasSubstr("2*s0 = 6")));
  EXPECT_THAT(Refused(*parsed, {Ramp({3, 5}), Ramp({6, 4}), Ramp({4})}),
              AllOf(HasSubstr("input \"y\", dimension 1 is 4"), HasSubstr("must equal input \"x\", dimension 1, which is 5")));
  EXPECT_THAT(Refused(*parsed, {Ramp({3, 5}), Ramp({6, 5}), Ramp({5})}), HasSubstr("input \"z\", dimension 0 is 5"));
  EXPECT_THAT(Refused(*parsed, {Ramp({17, 5}), Ramp({34, 5}), Ramp({4})}), HasSubstr("between 2 and 16"));
  EXPECT_THAT(Refused(*parsed, {Ramp({3, 1}), Ramp({6, 1}), Ramp({0})}), HasSubstr("at least 2"));
}

// A symbol that stands nowhere alone.
TEST(SignatureKindsTest, SizesThatAreSolvedFor) {
  ExportedJson program;
  program.Input("x", {OpenExpr(absl::StrCat("Add(Mul(Integer(2), ", SymbolText("s0"), "), Integer(1))"), 9)});
  program.Input("y", {OpenExpr(absl::StrCat("Mul(Integer(3), ", SymbolText("s0"), ")"), 12)});
  Relu(&program, "x", "r");
  program.Output(Tensor("r"));
  const auto parsed = Parse(program);
  EXPECT_EQ(Refused(*parsed, {Ramp({7}), Ramp({9})}), "");
  EXPECT_THAT(Refused(*parsed, {Ramp({6}), Ramp({9})}), HasSubstr("input \"x\", dimension 0 is 6, but must be 2*s0 + 1 for a whole s0"));
  EXPECT_THAT(Refused(*parsed, {Ramp({7}), Ramp({12})}), HasSubstr("3*s0 = 9"));
  // No line: never bound by luck.
  for (const std::string& expr :
       {absl::StrCat("FloorDiv(", SymbolText("s0"), ", Integer(2))"), absl::StrCat("Pow(", SymbolText("s0"), ", Integer(2))"),
        absl::StrCat("Mul(", SymbolText("s0"), ", ", SymbolText("s0"), ")"), absl::StrCat("Mod(", SymbolText("s0"), ", Integer(7))")}) {
    ExportedJson other;
    other.Input("x", {OpenExpr(expr, 4)});
    Relu(&other, "x", "r");
    other.Output(Tensor("r"));
    EXPECT_THAT(Refused(*Parse(other), {Ramp({4})}), HasSubstr("the symbol s0 has no value")) << expr;
    other.Input("y", {Open("s0")});
    EXPECT_EQ(Refused(*Parse(other), {Ramp({4}), Ramp({expr[0] == 'F' ? 9 : expr.substr(0, 3) == "Mod" ? 11 : 2})}), "") << expr;
    EXPECT_NE(Refused(*Parse(other), {Ramp({4}), Ramp({expr[0] == 'F' ? 11 : 3})}), "") << expr;
  }
}

TEST(SignatureKindsTest, InputsOfEveryKind) {
  ExportedJson program;
  program.Input("x", {2});
  program.IntInput("n", Open("s0"));
  program.ConstantInput("mode", {{"as_string", "mean"}});
  program.ConstantInput("nothing", {{"as_none", true}});
  program.InputSpec({{"as_float", 0.5}}, {{"user_input", {{"arg", {{"as_float", 0.5}}}}}});
  program.Call("torch.ops.aten.mul.Tensor", {{"self", Tensor("x")}, {"other", Symbol("n")}}, {Tensor("y")});
  program.Output(Tensor("y"));
  program.Output({{"as_none", true}});
  program.Output(Int(7));
  program.Output({{"as_float", 1.5}});
  program.Output({{"as_bool", true}});
  program.Output({{"as_string", "done"}});
  program.Output(Symbol("n"));
  program.Output(Tensor("x"));
  program.Output(Tensor("y"));
  program.Range("s0", 1, 9);
  const auto parsed = Parse(program);
  const at::Tensor x = Ramp({2});
  const std::vector<IValue> outputs = parsed->RunFlat({x, 3, "mean", IValue(), 0.5});
  ASSERT_EQ(outputs.size(), 9u);
  EXPECT_THAT(outputs[0].toTensor(), TensorEq(x * 3));
  EXPECT_TRUE(outputs[1].isNone());
  EXPECT_EQ(outputs[2].toInt(), 7);
  EXPECT_EQ(outputs[3].toDouble(), 1.5);
  EXPECT_EQ(outputs[4].toBool(), true);
  EXPECT_EQ(outputs[5].toStringRef(), "done");
  EXPECT_EQ(outputs[6].toInt(), 3);
  EXPECT_TRUE(outputs[7].toTensor().is_same(x));
  EXPECT_TRUE(outputs[8].toTensor().is_same(outputs[0].toTensor()));
  EXPECT_THAT(Refused(*parsed, {x, 10, "mean", IValue(), 0.5}), HasSubstr("input \"n\" makes s0 = 10"));
  EXPECT_THAT(Refused(*parsed, {x, 3, "sum", IValue(), 0.5}), HasSubstr("input \"mode\" is \"sum\""));
  EXPECT_THAT(Refused(*parsed, {x, 3, "mean", 1, 0.5}), HasSubstr("input \"nothing\" is 1"));
  EXPECT_THAT(Refused(*parsed, {x, 3, "mean", IValue(), 0.25}), HasSubstr("0.25"));
  EXPECT_THAT(Refused(*parsed, {x.to_sparse(), 3, "mean", IValue(), 0.5}), HasSubstr("must be a dense tensor"));
}

TEST(SignatureKindsTest, FloatsAndBoolsThatAreNotFixed) {
  ExportedJson program;
  program.Input("x", {2});
  program.NumberInput("scale", "as_sym_float", "Symbol('zf0')");
  program.NumberInput("flag", "as_sym_bool", "Symbol('zb0')");
  program.Call("torch.ops.aten.mul.Tensor", {{"self", Tensor("x")}, {"other", Symbol("scale", "as_sym_float")}}, {Tensor("y")});
  program.Output(Tensor("y"));
  program.Output(Symbol("flag", "as_sym_bool"));
  const auto parsed = Parse(program);
  const at::Tensor x = Ramp({2});
  for (const double scale : {0.25, 3.0}) {
    const std::vector<IValue> outputs = parsed->RunFlat({x, scale, scale > 1});
    EXPECT_THAT(outputs[0].toTensor(), TensorEq(x * scale));
    EXPECT_EQ(outputs[1].toBool(), scale > 1);
  }
  EXPECT_THAT(Refused(*parsed, {x, 2, true}), HasSubstr("input \"scale\" must be a float, not 2"));
  EXPECT_THAT(Refused(*parsed, {x, 0.5, 1}), HasSubstr("input \"flag\" must be a bool, not 1"));
}

TEST(SignatureKindsTest, WhatIsNotSupportedIsNamed) {
  const auto refused = [](auto&& change) {
    ExportedJson program;
    program.Input("x", {2});
    Relu(&program, "x", "y");
    change(&program);
    return ParseExportedProgram(program.Text()).status();
  };
  const auto output = [](const char* kind, json content) {
    return [kind, content](ExportedJson* program) {
      program->MutationOutput(kind, content.items().begin().key(), content.items().begin().value(), "y");
    };
  };
  EXPECT_THAT(refused([](ExportedJson* p) {
                p->InputSpec({{"as_custom_obj", {{"name", "q"}, {"class_fqn", "Q"}}}},
                             {{"custom_obj", {{"arg", {{"name", "q"}, {"class_fqn", "Q"}}}, {"custom_obj_name", "q"}}}});
              }),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("custom_obj")));
  EXPECT_THAT(refused([](ExportedJson* p) {
                p->InputSpec({{"as_none", true}}, {{"token", {{"arg", {{"name", "t"}}}}}});
              }),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("token")));
  EXPECT_THAT(refused([](ExportedJson* p) {
                p->InputSpec({{"as_none", true}}, {{"wish", json::object()}});
              }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("wish")));
  EXPECT_THAT(refused(output("gradient_to_parameter", {{"parameter_name", "w"}})),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("gradient_to_parameter")));
  EXPECT_THAT(refused(output("gradient_to_user_input", {{"user_input_name", "x"}})),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("gradient_to_user_input")));
  EXPECT_THAT(refused(output("loss_output", {{"unused", "x"}})), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("loss_output")));
  EXPECT_THAT(refused(output("token", {{"unused", "x"}})), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("token")));
  EXPECT_THAT(refused(output("buffer_mutation", {{"buffer_name", "none"}})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"none\" is no buffer")));
  EXPECT_THAT(refused([](ExportedJson* p) { p->Range("s0", "one", 2); }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("min_val")));
  EXPECT_THAT(refused([](ExportedJson* p) { p->Output(Tensor("nobody")); }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nobody")));
}

// A result that is the new value of an input or buffer is that input or buffer; one that is the old value keeps it.
TEST(SignatureKindsTest, ResultsThatAreWritten) {
  ExportedJson program;
  program.Input("x", {2, 3});
  program.Call("torch.ops.aten.add.Tensor", {{"self", Tensor("x")}, {"other", Int(1)}}, {Tensor("new")});
  program.MutationOutput("user_input_mutation", "user_input_name", "x", "new");
  program.Output(Tensor("new"));
  const at::Tensor x = Ramp({3, 2}).t(), old = x.clone();
  const std::vector<IValue> outputs = Parse(program)->RunFlat({x});
  EXPECT_TRUE(outputs[0].toTensor().is_same(x));
  EXPECT_THAT(x, AllOf(TensorEq(old + 1), testing::HasStrides({1, 2})));
}

TEST(SignatureKindsTest, ResultsThatAreTheOldValue) {
  for (const int dtype : {7, 5}) {
    for (const bool view : {false, true}) {
      ExportedJson program;
      program.Input("x", {2, 3}, dtype);
      program.Call("torch.ops.aten.add.Tensor", {{"self", Tensor("x")}, {"other", Int(1)}}, {Tensor("new")});
      if (view) program.Call("torch.ops.aten.view.default", {{"self", Tensor("x")}, {"size", {{"as_ints", {6}}}}}, {Tensor("old")});
      program.MutationOutput("user_input_mutation", "user_input_name", "x", "new");
      program.Output(Tensor(view ? "old" : "x"));
      const at::Tensor x = at::arange(6, dtype == 7 ? at::kFloat : at::kLong).view({2, 3}), old = x.clone();
      const std::vector<IValue> outputs = Parse(program)->RunFlat({x});
      EXPECT_THAT(outputs[0].toTensor(), TensorEq(view ? old.view({6}) : old)) << dtype << view;
      EXPECT_THAT(x, TensorEq(old + 1)) << dtype << view;
    }
  }
}

TEST(SignatureKindsTest, TreesOfOtherTypes) {
  const std::string leaf = R"({"type": null, "context": null, "children_spec": []})";
  const std::string in = absl::StrCat(R"([1, {"type": "builtins.tuple", "context": "null", "children_spec": [)",
                                      R"({"type": "builtins.tuple", "context": "null", "children_spec": [)", leaf,
                                      R"(]}, {"type": "builtins.dict", "context": "[\"scale\"]", "children_spec": [)", leaf, "]}]}]");
  const auto make = [&](const std::string& out_type, const std::string& context) {
    ExportedJson program;
    program.Input("x", {2});
    program.Input("scale", {2});
    program.Call("torch.ops.aten.mul.Tensor", {{"self", Tensor("x")}, {"other", Tensor("scale")}}, {Tensor("y")});
    program.Output(Tensor("y"));
    program.Output(Tensor("x"));
    program.Trees(in,
                  absl::StrCat("[1, {\"type\": \"", out_type, "\", \"context\": ", json(context).dump(), ", \"children_spec\": [", leaf,
                               ", ", leaf, "]}]"),
                  {"x", "scale"});
    return Parse(program);
  };
  const at::Tensor x = Ramp({2}), scale = at::full({2}, 3.0);
  // By keyword as it was exported; the keyword's order doesn't matter, its name does.
  const auto tuple = make("collections.namedtuple", "{\"class_name\": \"Out\", \"fields\": [\"y\", \"x\"]}");
  EXPECT_THAT(tuple->Run({x}, {{"scale", scale}}).toTupleRef().elements()[0].toTensor(), TensorEq(x * 3));
  EXPECT_THAT(ErrorOf([&] { tuple->Run({x, scale}); }), HasSubstr("inputs[0]: expected a tuple of 1, got a tuple of 2"));
  EXPECT_THAT(ErrorOf([&] { tuple->Run({x}, {{"factor", scale}}); }), HasSubstr("inputs[1][\"scale\"] is missing"));
  EXPECT_THAT(make("collections.OrderedDict", "[\"y\", \"x\"]")->Run({x}, {{"scale", scale}}).toGenericDict().at("y").toTensor(),
              TensorEq(x * 3));
  EXPECT_EQ(make("collections.deque", "null")->Run({x}, {{"scale", scale}}).toListRef().size(), 2u);
  // A dataclass has no form in C++; its leaves do.
  const auto opaque = make("mylib.outputs.ModelOutput", "[\"y\", \"x\"]");
  EXPECT_THAT(ErrorOf([&] { opaque->Run({x}, {{"scale", scale}}); }), HasSubstr("mylib.outputs.ModelOutput"));
  EXPECT_THAT(opaque->RunFlat({x, scale})[0].toTensor(), TensorEq(x * 3));
}

json Entry(const std::string& record, const json& meta, bool is_parameter = false) {
  return {{"path_name", record}, {"is_param", is_parameter}, {"use_pickle", false}, {"tensor_meta", meta}};
}
std::string Bytes(const at::Tensor& tensor) { return std::string(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes()); }

class WeightsTest : public ::testing::Test {
 protected:
  // y = get_attr(name), for each.
  void Hold(const std::string& kind, const std::string& name, const json& meta, const std::string& record, bool persistent = true) {
    program_.Attribute(kind, absl::StrCat("p_", name), name, meta, persistent);
    program_.Output(Tensor(absl::StrCat("p_", name)));
    json entry = Entry(record, meta, kind == "parameter");
    (kind == "tensor_constant" || !persistent ? constants_ : weights_)[name] = entry;
  }
  std::vector<IValue> Load() {
    const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/weights.pt2");
    testing::WriteArchive(path, program_.Text(), weights_, constants_, records_);
    const auto loaded = LoadExportedProgram(path);
    EXPECT_THAT(loaded, IsOk());
    if (!loaded.ok()) return {};
    loaded_ = *loaded;
    return loaded_->RunFlat({});
  }
  ExportedJson program_;
  json weights_ = json::object(), constants_ = json::object();
  std::vector<std::pair<std::string, std::string>> records_;
  std::shared_ptr<ExportedProgram> loaded_;
};

TEST_F(WeightsTest, EveryDtype) {
  struct Kind {
    int schema;
    at::ScalarType dtype;
  };
  const std::vector<Kind> kinds = {{1, at::kByte},          {2, at::kChar},          {3, at::kShort},          {4, at::kInt},
                                   {5, at::kLong},          {6, at::kHalf},          {7, at::kFloat},          {8, at::kDouble},
                                   {12, at::kBool},         {10, at::kComplexFloat}, {11, at::kComplexDouble}, {13, at::kBFloat16},
                                   {29, at::kFloat8_e4m3fn}};
  std::vector<at::Tensor> expected;
  for (const Kind& kind : kinds) {
    const at::Tensor value = at::arange(6).view({2, 3}).to(kind.dtype);
    const std::string name = absl::StrCat("w", kind.schema);
    Hold("buffer", name, TensorMeta({2, 3}, kind.schema), absl::StrCat("weight_", kind.schema));
    records_.emplace_back(absl::StrCat("data/weights/weight_", kind.schema), Bytes(value));
    expected.push_back(value);
  }
  const std::vector<IValue> outputs = Load();
  ASSERT_EQ(outputs.size(), kinds.size());
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    EXPECT_EQ(outputs[i].toTensor().scalar_type(), kinds[i].dtype);
    EXPECT_EQ(Bytes(outputs[i].toTensor()), Bytes(expected[i]));
  }
}

TEST_F(WeightsTest, TiesViewsStridesAndOffsets) {
  const at::Tensor base = Ramp({12});
  Hold("parameter", "whole", TensorMeta({3, 4}, 7, {4, 1}, 0, true), "weight_0");
  Hold("parameter", "whole_too", TensorMeta({3, 4}, 7, {4, 1}, 0, true), "weight_0");
  Hold("parameter", "transposed", TensorMeta({4, 3}, 7, {1, 4}, 0, true), "weight_0");
  Hold("buffer", "tail", TensorMeta({2, 2}, 7, {2, 1}, 8), "weight_0");
  Hold("buffer", "expanded", TensorMeta({5, 2}, 7, {0, 1}, 3), "weight_0");
  Hold("parameter", "frozen", TensorMeta({2}, 7), "weight_1");
  Hold("buffer", "scratch", TensorMeta({2}, 7), "tensor_0", /*persistent=*/false);
  Hold("tensor_constant", "table", TensorMeta({2}, 7), "tensor_1");
  records_ = {{"data/weights/weight_0", Bytes(base)},
              {"data/weights/weight_1", Bytes(at::ones({2}))},
              {"data/constants/tensor_0", Bytes(at::full({2}, 2.0))},
              {"data/constants/tensor_1", Bytes(at::full({2}, 3.0))}};
  const std::vector<IValue> outputs = Load();
  ASSERT_EQ(outputs.size(), 8u);
  std::vector<at::Tensor> tensors;
  for (const IValue& output : outputs) tensors.push_back(output.toTensor());
  EXPECT_THAT(tensors[0], TensorEq(base.view({3, 4})));
  EXPECT_TRUE(tensors[1].is_same(tensors[0]));
  EXPECT_THAT(loaded_->tied(), ElementsAre(::testing::Pair("whole_too", "whole")));
  EXPECT_THAT(tensors[2], AllOf(TensorEq(base.view({3, 4}).t()), SharesStorageWith(tensors[0])));
  EXPECT_THAT(tensors[3], AllOf(TensorEq(base.slice(0, 8).view({2, 2})), SharesStorageWith(tensors[0])));
  EXPECT_THAT(tensors[4], TensorEq(base.slice(0, 3, 5).expand({5, 2})));
  EXPECT_TRUE(tensors[0].requires_grad());
  EXPECT_FALSE(tensors[5].requires_grad());
  EXPECT_THAT(tensors[6], TensorEq(at::full({2}, 2.0)));
  EXPECT_THAT(tensors[7], TensorEq(at::full({2}, 3.0)));
  ASSERT_EQ(loaded_->buffers().size(), 3u);
  EXPECT_EQ(loaded_->constants().size(), 1u);
  for (const ExportedProgram::Buffer& buffer : loaded_->buffers()) EXPECT_EQ(buffer.persistent, buffer.name != "scratch") << buffer.name;

  // The descriptions alone tell the same.
  LoadOptions options;
  options.load_weights = false;
  const auto hollow = LoadExportedProgram(absl::StrCat(std::getenv("TEST_TMPDIR"), "/weights.pt2"), options);
  ASSERT_THAT(hollow, IsOk());
  EXPECT_FALSE((*hollow)->CheckData().ok());
  EXPECT_THAT((*hollow)->tied(), ElementsAre(::testing::Pair("whole_too", "whole")));
  EXPECT_EQ((*hollow)->parameters().size(), loaded_->parameters().size());
  const auto storage = [&](const char* name) { return (*hollow)->FindTensor(name)->storage().unsafeGetStorageImpl(); };
  EXPECT_EQ(storage("tail"), storage("transposed"));
  EXPECT_NE(storage("tail"), storage("frozen"));
  EXPECT_THAT((*hollow)->LikelyTied(), IsEmpty());
}

// Of a graph file: "head" is used, and two embeddings are of its form; "other" is like two that are used, "lone" like none.
TEST(SignatureKindsTest, GraphFilesDoNotTellWhatIsTied) {
  ExportedJson program;
  const std::vector<std::pair<std::string, json>> parameters = {
      {"embedding", TensorMeta({4, 3}, 7, {3, 1}, 0, true)}, {"other", TensorMeta({3}, 7, {1}, 0, true)},
      {"lone", TensorMeta({4, 3}, 7, {1, 4}, 0, true)},      {"head", TensorMeta({4, 3}, 7, {3, 1}, 0, true)},
      {"scale", TensorMeta({3}, 7, {1}, 0, true)},           {"shift", TensorMeta({3}, 7, {1}, 0, true)},
      {"embedding2", TensorMeta({4, 3}, 7, {3, 1}, 0, true)}};
  for (const auto& [name, meta] : parameters) program.Attribute("parameter", "p_" + name, name, meta);
  program.Call("torch.ops.aten.mul.Tensor", {{"self", Tensor("p_head")}, {"other", Tensor("p_scale")}}, {Tensor("scaled")});
  program.Call("torch.ops.aten.add.Tensor", {{"self", Tensor("scaled")}, {"other", Tensor("p_shift")}}, {Tensor("y")});
  program.Output(Tensor("y"));
  const auto loaded = Parse(program);
  ASSERT_NE(loaded, nullptr);
  const auto likely = loaded->LikelyTied();
  EXPECT_THAT(likely, ElementsAre(::testing::Pair("embedding", "head"), ::testing::Pair("embedding2", "head")));
  const at::Tensor head = *loaded->FindTensor("head");
  for (const auto& [name, with] : likely) EXPECT_THAT(loaded->Tie(name, with), IsOk());
  EXPECT_THAT(loaded->LikelyTied(), IsEmpty());
  EXPECT_THAT(loaded->tied(), ElementsAre(::testing::Pair("head", "embedding"), ::testing::Pair("embedding2", "embedding")));
  ASSERT_EQ(loaded->parameters().size(), 5u);
  EXPECT_EQ(loaded->parameters()[0].name, "embedding");
  EXPECT_TRUE(loaded->parameters()[0].tensor.is_same(head));
  EXPECT_TRUE(loaded->FindTensor("embedding")->is_same(*loaded->FindTensor("head")));
  // Both names follow, and the graph with them.
  const at::Tensor weight = Ramp({4, 3});
  EXPECT_THAT(loaded->SetTensor("embedding", weight), IsOk());
  EXPECT_THAT(loaded->FindTensor("head")->detach(), TensorEq(weight));
  EXPECT_TRUE(loaded->FindTensor("embedding2")->is_same(*loaded->FindTensor("head")));
  EXPECT_THAT(loaded->SetTensor("scale", at::full({3}, 2.0)), IsOk());
  EXPECT_THAT(loaded->SetTensor("shift", at::ones({3})), IsOk());
  EXPECT_THAT(loaded->RunFlat({})[0].toTensor().detach(), TensorEq(weight * 2 + 1));

  EXPECT_EQ(loaded->Tie("embedding2", "head").code(), absl::StatusCode::kInvalidArgument);  // they are
  EXPECT_EQ(loaded->Tie("other", "other").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(loaded->Tie("lone", "embedding").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(loaded->Tie("nobody", "other").message()), HasSubstr("\"nobody\""));
}

TEST_F(WeightsTest, BuffersThatAreWritten) {
  // ema = 0.5 * ema + x; steps = steps + 1; gives the new ema and the old steps.
  program_.Attribute("buffer", "b_ema", "ema", TensorMeta({2}));
  program_.Attribute("buffer", "b_steps", "steps", TensorMeta({}, 5));
  program_.Input("x", {2});
  program_.Call("torch.ops.aten.mul.Tensor", {{"self", Tensor("b_ema")}, {"other", {{"as_float", 0.5}}}}, {Tensor("half")});
  program_.Call("torch.ops.aten.add.Tensor", {{"self", Tensor("half")}, {"other", Tensor("x")}}, {Tensor("new_ema")});
  program_.Call("torch.ops.aten.add.Tensor", {{"self", Tensor("b_steps")}, {"other", Int(1)}}, {Tensor("new_steps")});
  program_.MutationOutput("buffer_mutation", "buffer_name", "ema", "new_ema");
  program_.MutationOutput("buffer_mutation", "buffer_name", "steps", "new_steps");
  program_.Output(Tensor("new_ema"));
  program_.Output(Tensor("b_steps"));
  weights_ = {{"ema", Entry("weight_0", TensorMeta({2}))}, {"steps", Entry("weight_1", TensorMeta({}, 5))}};
  records_ = {{"data/weights/weight_0", Bytes(at::ones({2}))}, {"data/weights/weight_1", Bytes(at::full({}, 7, at::kLong))}};
  const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/written.pt2");
  testing::WriteArchive(path, program_.Text(), weights_, constants_, records_);
  const auto loaded = LoadExportedProgram(path);
  ASSERT_THAT(loaded, IsOk());
  EXPECT_THAT((*loaded)->mutated_buffers(), ElementsAre("ema", "steps"));
  at::Tensor ema = at::ones({2});
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = Ramp({2}) + step;
    ema = ema * 0.5 + x;
    const std::vector<IValue> outputs = (*loaded)->RunFlat({x});
    EXPECT_THAT(outputs[0].toTensor(), TensorEq(ema));
    EXPECT_TRUE(outputs[0].toTensor().is_same(*(*loaded)->FindTensor("ema")));
    EXPECT_EQ(outputs[1].toTensor().item<int64_t>(), 7 + step);
    EXPECT_EQ((*loaded)->FindTensor("steps")->item<int64_t>(), 8 + step);
  }
}

// Kilobytes, of a line of /proc/self/status.
int64_t StatusKb(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.compare(0, field.size() + 1, field + ":") == 0) return std::stoll(line.substr(field.size() + 1));
  }
  return 0;
}

TEST_F(WeightsTest, AreHeldOnce) {
  constexpr int64_t kElements = int64_t{16} << 20;  // 64 MiB
  const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/large.pt2");
  Hold("parameter", "w", TensorMeta({kElements}), "weight_0");
  testing::WriteArchive(path, program_.Text(), weights_, constants_, {{"data/weights/weight_0", std::string(4 * kElements, '\1')}});
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5" << std::flush;  // the highest resident memory becomes the present one
  const int64_t before = StatusKb("VmRSS");
  if (StatusKb("VmHWM") > before + 8 * 1024) GTEST_SKIP() << "this kernel doesn't forget the highest resident memory";
  const auto loaded = LoadExportedProgram(path);
  ASSERT_THAT(loaded.status(), IsOk());
  EXPECT_EQ((*loaded)->parameters()[0].tensor.numel(), kElements);
  const int64_t added = StatusKb("VmHWM") - before;
  EXPECT_GT(added, 60 * 1024);
  EXPECT_LT(added, 80 * 1024);
  std::remove(path.c_str());
}

TEST_F(WeightsTest, DataThatDoesNotFit) {
  Hold("parameter", "w", TensorMeta({3, 4}), "weight_0");
  const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/fit.pt2");
  const auto load = [&] {
    testing::WriteArchive(path, program_.Text(), weights_, constants_, records_);
    return LoadExportedProgram(path).status();
  };
  EXPECT_THAT(load(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("data/weights/weight_0")));
  records_ = {{"data/weights/weight_0", std::string(47, '\0')}};
  EXPECT_THAT(load(), StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("data/weights/weight_0"), HasSubstr("48"), HasSubstr("47"))));
  records_ = {{"data/weights/weight_0", std::string(48, '\0')}};
  EXPECT_THAT(load(), IsOk());
  weights_["w"]["tensor_meta"] = TensorMeta({4, 3});
  EXPECT_THAT(load(), StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("\"w\""), HasSubstr("[3, 4]"), HasSubstr("[4, 3]"))));
  weights_["w"]["tensor_meta"] = TensorMeta({3, 4}, 4);
  EXPECT_THAT(load(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("Int")));
  weights_.erase("w");
  EXPECT_THAT(load(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no data for \"w\"")));
}

}  // namespace
}  // namespace ddpopt
