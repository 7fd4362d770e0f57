#ifndef DDPOPT_FX_GRAPH_TEXT_JSON_H_
#define DDPOPT_FX_GRAPH_TEXT_JSON_H_

// Graphs and GraphModules as JSON, complete but for what is listed here; docs/graph_json.md is the format.
//
//   DDPOPT_ASSIGN_OR_RETURN(std::string json, fx::ToJson(module));
//   DDPOPT_ASSIGN_OR_RETURN(std::shared_ptr<fx::GraphModule> twin, fx::ModuleFromJson(json));
//
// Kept: nodes with names, targets, arguments, keyword order, types and metadata; attributes by kind and order; nested modules; gm.meta.
// What is shared stays shared: one tensor under two paths, tensors over one storage, one submodule under two paths.
//
// Tensors are descriptions. The content of real CPU tensors is kept for storages up to max_data_bytes; a larger one, or one on another
// device, is an error unless drop_large_data says that its loss is meant. Tensors without data (fakes, meta tensors, hollow tensors) and
// those whose data was dropped come back hollow (fx_graph/tensor_meta.h): same form and device, no data.
// Not kept: gradients and the autograd history of tensors, and that a tensor was a fake. Refused by name: sparse, nested, conjugated and
// negated tensors, compiled callables, and constants of kinds that JSON has no form for here (script objects, generators, futures, ...).
//
// Thread-safe as long as nobody changes the module. No exception escapes.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fx_graph/graph.h"
#include "fx_graph/graph_module.h"

namespace ddpopt::fx {

inline constexpr int kJsonVersion = 1;

struct ToJsonOptions {
  int64_t max_data_bytes = 4096;  // of a storage
  bool drop_large_data = false;
};

// Errors: Unimplemented, naming the node or path and the value, for what can't be kept; FailedPrecondition for data too large to keep.
absl::StatusOr<std::string> ToJson(const GraphModule& module, const ToJsonOptions& options = {});
absl::StatusOr<std::string> ToJson(const Graph& graph, const ToJsonOptions& options = {});

// Errors: InvalidArgument, with line and column for what is no JSON, else with the place in the document
// ("modules[0].nodes[3].args[1]: ..."); a version that this build doesn't know, and an operator that this LibTorch doesn't have, are named.
// The module passes GraphModule::Lint.
absl::StatusOr<std::shared_ptr<GraphModule>> ModuleFromJson(absl::string_view json);
// Of either document; of a module's, the outer graph alone.
absl::StatusOr<std::unique_ptr<Graph>> GraphFromJson(absl::string_view json);

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_TEXT_JSON_H_
