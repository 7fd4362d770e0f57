#ifndef DDPOPT_CAPTURE_PT2_READ_GRAPH_H_
#define DDPOPT_CAPTURE_PT2_READ_GRAPH_H_

// A graph of torch.export's schema as an fx graph. Private to this package.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "ddpopt/capture/pt2/sym_expr.h"
#include "fx_graph/graph_module.h"
#include "fx_graph/tensor_meta.h"
#include "fx_graph/text/json_view.h"

namespace ddpopt::pt2 {

// "name" as a field that may be missing or null.
bool HasValue(const fx::JsonView& view, absl::string_view key);
// The one key of a union: its object has exactly one.
absl::StatusOr<std::string> UnionKind(const fx::JsonView& view);
absl::StatusOr<double> ReadFloat(const fx::JsonView& view);
// Of an argument that is no tensor, symbol or graph: as_none, as_int, as_float, as_string, as_bool.
absl::StatusOr<c10::IValue> ReadConstant(const fx::JsonView& view);
// A size: {"as_int": 4} or {"as_expr": {...}}.
absl::StatusOr<SymExpr> ReadSymInt(const fx::JsonView& view);

// A tensor's description. Open sizes have their values in the export's example.
struct RecordedMeta {
  fx::TensorMeta meta;
  bool strided = true;       // else meta has no strides
  bool known = true;         // false: an open size had no example
  std::string symbolic;      // "float32[s77, 12]" if a size or stride is open
};
absl::StatusOr<RecordedMeta> ReadTensorMeta(const fx::JsonView& view);

// What an input of the outer graph stands for.
struct AttributeInput {
  std::string path;
  fx::GraphModule::AttrKind kind = fx::GraphModule::AttrKind::kParameter;
};

class GraphReader {
 public:
  // Reads nodes into `module`, whose nested graphs become its submodules. `attributes`: inputs of the graph that are attributes of the module.
  GraphReader(fx::GraphModule* module, const absl::flat_hash_map<std::string, AttributeInput>* attributes)
      : module_(module), attributes_(attributes) {}

  absl::Status Begin(const fx::JsonView& graph);
  // Adds a placeholder with the value's recorded form.
  absl::Status AddPlaceholder(const std::string& name);
  absl::Status ReadNodes(const fx::JsonView& nodes);
  // A node or a constant.
  absl::StatusOr<fx::Argument> ReadArgument(const fx::JsonView& view);
  // The node of that name; a get_attr is made for an attribute that wasn't used before.
  absl::StatusOr<fx::Node*> FindNode(const fx::JsonView& place, const std::string& name);
  // The recorded description of a value; NotFound if there is none.
  absl::StatusOr<fx::JsonView> TensorValue(const std::string& name) const;
  absl::StatusOr<fx::JsonView> SymValue(const std::string& name) const;

 private:
  absl::Status ReadNode(const fx::JsonView& view);
  absl::Status ReadOutputs(const fx::JsonView& view, const fx::JsonView& outputs, const std::string& name, fx::Node* node);
  absl::StatusOr<fx::Node*> NestedGraph(const fx::JsonView& view);
  absl::Status Define(const fx::JsonView& place, const std::string& name, fx::Node* node);
  absl::Status AddItems(const fx::JsonView& outputs, const std::string& name, fx::Node* node);
  absl::Status SetValue(const std::string& name, fx::Node* node);
  absl::Status ReadMetadata(const fx::JsonView& view, fx::Node* node);

  fx::GraphModule* const module_;
  const absl::flat_hash_map<std::string, AttributeInput>* const attributes_;
  absl::flat_hash_map<std::string, fx::Node*> by_name_;
  std::unique_ptr<fx::JsonView> graph_, tensor_values_, sym_values_[3];
  absl::flat_hash_map<absl::string_view, std::size_t> tensor_index_, sym_index_[3];
  absl::flat_hash_map<std::string, fx::Node*> nested_;  // get_attr nodes of nested graphs, by the graph's name
};

// A nested graph: all inputs placeholders, and an output as its is_single_tensor_return says.
absl::StatusOr<std::shared_ptr<fx::GraphModule>> ReadNestedGraph(const fx::JsonView& graph);

}  // namespace ddpopt::pt2

#endif  // DDPOPT_CAPTURE_PT2_READ_GRAPH_H_
