#ifndef DDPOPT_OPTIMIZER_PARAMETER_USES_H_
#define DDPOPT_OPTIMIZER_PARAMETER_USES_H_

// Which trainable parameters a node of a graph takes, whatever the graph's form: parameters as get_attr nodes, as placeholders, or
// inside modules that the graph calls; as direct, keyword or nested arguments, or in the nested graphs of higher-order operators.
//
//   ParameterUses uses(module, {"frozen_by_me.weight"});
//   absl::StatusOr<std::vector<Parameter>> taken = uses.Of(*node);
//
// Keeps a reference to the module. Not thread-safe while the module is edited.

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

struct Parameter {
  std::string name;  // qualified
  at::Tensor tensor;
};

// Its elements' bytes; what a Reducer bucket gives it.
int64_t OwnBytes(const at::Tensor& tensor);
// The bytes of the storage that it may share with others.
int64_t StorageBytes(const at::Tensor& tensor);

// Not a placeholder, get_attr or output: what has a place in a bucket.
bool IsComputation(const fx::Node& node);

// A module's parameters as PyTorch's named_parameters() lists them: its own in the order they were added, then its children's, each
// tensor once, named relative to the module.
std::vector<Parameter> NamedParameters(const fx::GraphModule& module);

class ParameterUses {
 public:
  // A parameter that is ignored under one of its names is ignored under all.
  ParameterUses(const fx::GraphModule& module, const absl::flat_hash_set<std::string>& ignored);

  // In the order of the arguments; a tensor may come twice, under two names. Only what requires a gradient and is not ignored.
  // Errors: a placeholder for a parameter without a value, a path that the module doesn't have; they name the node.
  absl::StatusOr<std::vector<Parameter>> Of(const fx::Node& node) const;

  // Calls fn(name, tensor) for every parameter of the module that counts, used or not, each tensor once.
  void ForEach(absl::FunctionRef<void(const std::string&, const at::Tensor&)> fn) const;

  // The parameter of that qualified name, whether it counts or not; undefined if there is none.
  at::Tensor Find(absl::string_view name) const;

  // How many parameters of the module don't count, and why. Each tensor once.
  struct Excluded {
    int frozen = 0;
    int ignored = 0;
  };
  Excluded CountExcluded() const;

  bool Counts(const at::Tensor& tensor) const {
    return tensor.defined() && tensor.requires_grad() && !ignored_.contains(tensor.unsafeGetTensorImpl());
  }

 private:
  absl::Status AddInput(const fx::GraphModule& owner, const std::string& prefix, const fx::Node& input,
                        std::vector<Parameter>& result) const;
  absl::Status AddInner(const fx::GraphModule& inner, const std::string& prefix, std::vector<Parameter>& result) const;
  // Nested graphs often name a parameter of the whole by a path of their own.
  void Add(const std::string& prefix, const std::string& name, const at::Tensor& tensor, std::vector<Parameter>& result) const;
  // Calls fn(path, tensor) for everything that stands for a parameter, in the module, its submodules and its placeholders.
  void ForEachParameter(absl::FunctionRef<void(const std::string&, const at::Tensor&)> fn) const;

  const fx::GraphModule& module_;
  absl::flat_hash_map<const at::TensorImpl*, std::string> names_;  // only of a module with nested graphs
  absl::flat_hash_set<const at::TensorImpl*> ignored_;
};

// The node after which a parameter's gradient is complete in backward, for every parameter that counts: its earliest use in the graph.
struct Readiness {
  absl::flat_hash_map<const fx::Node*, std::vector<Parameter>> at;
  absl::flat_hash_map<const at::TensorImpl*, const fx::Node*> node_of;
};

// Errors: as ParameterUses::Of's.
absl::StatusOr<Readiness> FindReadiness(const fx::GraphModule& module, const ParameterUses& uses);

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_PARAMETER_USES_H_
