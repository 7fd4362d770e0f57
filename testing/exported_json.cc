#include "testing/exported_json.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "caffe2/serialize/inline_container.h"

namespace ddpopt::testing {

using nlohmann::json;

namespace {

json Size(const json& size) { return size.is_number() ? json{{"as_int", size}} : size; }

}  // namespace

json Tensor(const std::string& name) { return {{"as_tensor", {{"name", name}}}}; }
json Symbol(const std::string& name, const std::string& kind) { return {{kind, {{"as_name", name}}}}; }
json Int(int64_t value) { return {{"as_int", value}}; }
json Float(double value) { return {{"as_float", value}}; }
json None() { return {{"as_none", true}}; }
std::string SymbolText(const std::string& symbol) { return absl::StrCat("Symbol('", symbol, "', positive=True, integer=True)"); }
json OpenExpr(const std::string& srepr, int64_t example) { return {{"as_expr", {{"expr_str", srepr}, {"hint", {{"as_int", example}}}}}}; }
json Open(const std::string& symbol, int64_t example) { return OpenExpr(SymbolText(symbol), example); }

json TensorMeta(const std::vector<json>& sizes, int dtype, const std::vector<int64_t>& strides, int64_t offset, bool requires_grad) {
  json size_list = json::array(), stride_list = json::array();
  for (const json& size : sizes) size_list.push_back(Size(size));
  int64_t stride = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    stride_list.insert(stride_list.begin(), json{{"as_int", strides.empty() ? stride : strides[i]}});
    if (sizes[i].is_number()) stride *= sizes[i].get<int64_t>();
    if (sizes[i].is_object() && sizes[i]["as_expr"]["hint"].is_object()) stride *= sizes[i]["as_expr"]["hint"]["as_int"].get<int64_t>();
  }
  return {{"dtype", dtype},
          {"sizes", size_list},
          {"requires_grad", requires_grad},
          {"device", {{"type", "cpu"}, {"index", nullptr}}},
          {"strides", stride_list},
          {"storage_offset", {{"as_int", offset}}},
          {"layout", 7}};
}

void ExportedJson::Input(const std::string& name, const std::vector<json>& sizes, int dtype) {
  Describe(name, TensorMeta(sizes, dtype));
  InputSpec(Tensor(name), {{"user_input", {{"arg", Tensor(name)}}}});
}

void ExportedJson::IntInput(const std::string& name, const json& expr) {
  sym_ints_[name] = Size(expr);
  InputSpec(Symbol(name), {{"user_input", {{"arg", Symbol(name)}}}});
}

void ExportedJson::NumberInput(const std::string& name, const std::string& kind, const std::string& symbol) {
  json& values = kind == "as_sym_float" ? sym_floats_ : sym_bools_;
  const json hint = kind == "as_sym_float" ? json{{"as_float", 0.5}} : json{{"as_bool", true}};
  values[name] = {{"as_expr", {{"expr_str", symbol}, {"hint", hint}}}};
  InputSpec(Symbol(name, kind), {{"user_input", {{"arg", Symbol(name, kind)}}}});
}

void ExportedJson::ConstantInput(const std::string& name, const json& value) {
  InputSpec({{"as_none", true}}, {{"constant_input", {{"name", name}, {"value", value}}}});
}

void ExportedJson::Attribute(const std::string& kind, const std::string& input, const std::string& path, const json& meta,
                             bool persistent) {
  Describe(input, meta);
  json content = {{"arg", {{"name", input}}}, {kind + "_name", path}};
  if (kind == "buffer") content["persistent"] = persistent;
  InputSpec(Tensor(input), {{kind, content}});
}

void ExportedJson::InputSpec(const json& graph_input, const json& spec) {
  inputs_.push_back(graph_input);
  input_specs_.push_back(spec);
}

void ExportedJson::Call(const std::string& target, const std::vector<Argument>& arguments, const std::vector<json>& outputs,
                        const std::string& name) {
  json inputs = json::array();
  for (const Argument& argument : arguments)
    inputs.push_back({{"name", argument.name}, {"arg", argument.value}, {"kind", argument.by_keyword ? 2 : 1}});
  json node = {
      {"target", target}, {"inputs", inputs}, {"outputs", outputs}, {"metadata", json::object()}, {"is_hop_single_tensor_return", nullptr}};
  if (!name.empty()) node["name"] = name;
  nodes_.push_back(std::move(node));
}

void ExportedJson::Output(const json& value) {
  outputs_.push_back(value);
  output_specs_.push_back({{"user_output", {{"arg", value}}}});
}

void ExportedJson::MutationOutput(const std::string& kind, const std::string& key, const std::string& path, const std::string& value) {
  outputs_.push_back(Tensor(value));
  output_specs_.push_back({{kind, {{"arg", {{"name", value}}}, {key, path}}}});
}

void ExportedJson::Trees(const std::string& in_spec, const std::string& out_spec, const std::vector<std::string>& argument_names) {
  calls_.push_back({{"fqn", ""},
                    {"signature",
                     {{"inputs", json::array()},
                      {"outputs", json::array()},
                      {"in_spec", in_spec},
                      {"out_spec", out_spec},
                      {"forward_arg_names", argument_names}}}});
}

json ExportedJson::Graph() const {
  return {{"inputs", inputs_},
          {"outputs", outputs_},
          {"nodes", nodes_},
          {"tensor_values", tensors_},
          {"sym_int_values", sym_ints_},
          {"sym_bool_values", sym_bools_},
          {"is_single_tensor_return", false},
          {"custom_obj_values", json::object()},
          {"sym_float_values", sym_floats_}};
}

json ExportedJson::AsGraph(const std::string& name) const { return {{"as_graph", {{"name", name}, {"graph", Graph()}}}}; }

std::string ExportedJson::Text() const {
  return json{{"graph_module",
               {{"graph", Graph()},
                {"signature", {{"input_specs", input_specs_}, {"output_specs", output_specs_}}},
                {"module_call_graph", calls_},
                {"metadata", json::object()},
                {"treespec_namedtuple_fields", json::object()}}},
              {"opset_version", {{"aten", 10}}},
              {"range_constraints", ranges_},
              {"schema_version", {{"major", 8}, {"minor", 14}}},
              {"verifiers", {"TRAINING"}},
              {"torch_version", "2.12.0"},
              {"guards_code", guards_}}
      .dump();
}

void WriteArchive(const std::string& path, const std::string& model, const json& weights, const json& constants,
                  const std::vector<std::pair<std::string, std::string>>& records) {
  std::remove(path.c_str());
  caffe2::serialize::PyTorchStreamWriter writer(path);
  const auto write = [&](const std::string& name, const std::string& content) { writer.writeRecord(name, content.data(), content.size()); };
  write("archive_format", "pt2");
  write("archive_version", "0");
  write("byteorder", "little");
  write("models/model.json", model);
  write("data/weights/model_weights_config.json", json{{"config", weights}}.dump());
  write("data/constants/model_constants_config.json", json{{"config", constants}}.dump());
  for (const auto& [name, content] : records) write(name, content);
  writer.writeEndOfFile();
}

}  // namespace ddpopt::testing
