#ifndef DDPOPT_TESTING_EXPORTED_JSON_H_
#define DDPOPT_TESTING_EXPORTED_JSON_H_

// Writes exported programs as torch.export does, for tests of what reads them.
//
//   ExportedJson program;
//   program.Input("x", {Open("s0"), 3});
//   program.Call("torch.ops.aten.relu.default", {{"self", Tensor("x")}}, {Tensor("y")});
//   program.Output(Tensor("y"));
//   ParseExportedProgram(program.Text());
//
// Nothing is checked: programs that can't be are written too.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

namespace ddpopt::testing {

// {"as_tensor": {"name": name}}; as_sym_int and its like by `kind`.
nlohmann::json Tensor(const std::string& name);
nlohmann::json Symbol(const std::string& name, const std::string& kind = "as_sym_int");
nlohmann::json Int(int64_t value);
nlohmann::json Float(double value);
nlohmann::json None();
// A size: a symbol of that name, or any expression in SymPy's srepr, with the value that it had in the export's example.
nlohmann::json Open(const std::string& symbol, int64_t example = 4);
nlohmann::json OpenExpr(const std::string& srepr, int64_t example);
// "Symbol('s0', positive=True, integer=True)".
std::string SymbolText(const std::string& symbol);
// A tensor's description; sizes are numbers or what Open gives. `dtype` is the schema's number (7: float). Strides follow from the sizes if
// none are given.
nlohmann::json TensorMeta(const std::vector<nlohmann::json>& sizes, int dtype = 7, const std::vector<int64_t>& strides = {},
                          int64_t offset = 0, bool requires_grad = false);

class ExportedJson {
 public:
  // An argument of a call. `by_keyword` as torch.export marks it.
  struct Argument {
    std::string name;
    nlohmann::json value;
    bool by_keyword = false;
  };

  // User inputs, in order.
  void Input(const std::string& name, const std::vector<nlohmann::json>& sizes, int dtype = 7);
  void IntInput(const std::string& name, const nlohmann::json& expr);
  // A float or bool that isn't fixed: `kind` "as_sym_float" or "as_sym_bool"; `symbol` in SymPy's srepr.
  void NumberInput(const std::string& name, const std::string& kind, const std::string& symbol);
  void ConstantInput(const std::string& name, const nlohmann::json& value);
  // "parameter", "buffer" or "tensor_constant", under the input's name in the graph.
  void Attribute(const std::string& kind, const std::string& input, const std::string& path, const nlohmann::json& meta,
                 bool persistent = true);
  // An input of any other kind.
  void InputSpec(const nlohmann::json& graph_input, const nlohmann::json& spec);

  // `name`: the node's, as newer archives have it.
  void Call(const std::string& target, const std::vector<Argument>& arguments, const std::vector<nlohmann::json>& outputs,
            const std::string& name = "");
  // What the graph tells of a value.
  void Describe(const std::string& value, const nlohmann::json& meta) { tensors_[value] = meta; }

  void Output(const nlohmann::json& value);
  // "buffer_mutation" of a buffer_name, "user_input_mutation" of a user_input_name, or any other kind.
  void MutationOutput(const std::string& kind, const std::string& key, const std::string& path, const std::string& value);

  void Range(const std::string& symbol, const nlohmann::json& min, const nlohmann::json& max) {
    ranges_[symbol] = {{"min_val", min}, {"max_val", max}};
  }
  void Guard(const std::string& text) { guards_.push_back(text); }
  // The trees of inputs and outputs, in pytree's text, and the names of forward's arguments.
  void Trees(const std::string& in_spec, const std::string& out_spec, const std::vector<std::string>& argument_names);

  // The graph alone, as a nested one: {"as_graph": {"name", "graph"}}. Its outputs are a tuple.
  nlohmann::json AsGraph(const std::string& name) const;
  std::string Text() const;

 private:
  nlohmann::json Graph() const;

  nlohmann::json inputs_ = nlohmann::json::array(), input_specs_ = nlohmann::json::array(), nodes_ = nlohmann::json::array(),
                 outputs_ = nlohmann::json::array(), output_specs_ = nlohmann::json::array(), tensors_ = nlohmann::json::object(),
                 sym_ints_ = nlohmann::json::object(), sym_floats_ = nlohmann::json::object(), sym_bools_ = nlohmann::json::object(),
                 ranges_ = nlohmann::json::object(), guards_ = nlohmann::json::array(), calls_ = nlohmann::json::array();
};

// A whole archive's records over the program's text: `weights` and `constants` are the entries of their configs, `records` the raw bytes by
// name
// ("data/weights/weight_0").
void WriteArchive(const std::string& path, const std::string& model, const nlohmann::json& weights, const nlohmann::json& constants,
                  const std::vector<std::pair<std::string, std::string>>& records);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_EXPORTED_JSON_H_
