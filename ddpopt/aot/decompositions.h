#ifndef DDPOPT_AOT_DECOMPOSITIONS_H_
#define DDPOPT_AOT_DECOMPOSITIONS_H_

// Operators told in terms of simpler ones, for backends that know few operators: TraceJointGraph takes a set of names, and records for each
// operator among them what its decomposition calls.
//
//   DDPOPT_ASSIGN_OR_RETURN(DecompositionSet set, DecompositionSet::Of({"aten::gelu", "aten::gelu_backward", "aten::addmm"}));
//   TraceJointGraph(piece, fakes, {.decompositions = set});
//
// What comes out is the operator's result up to rounding, with its dtype, shape and strides. Random operators draw the operator's own numbers
// if the same random operator is within; a decomposition never draws more or fewer. What decompositions call is element-wise arithmetic,
// comparisons, where, reductions (sum, amax, mean, var), products, gathers and scatters, views and copies, made by factories.

#include <memory>
#include <string>
#include <vector>

#include "ATen/core/boxing/KernelFunction.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

namespace ddpopt {

// All operators that have a decomposition, sorted: "aten::addmm", "aten::var_mean.correction". Thread-safe.
std::vector<std::string> DecompositionNames();

// A choice of them. Cheap to copy. Thread-safe once made.
class DecompositionSet {
 public:
  DecompositionSet() = default;
  // Errors: NotFound, with the name that has none.
  static absl::StatusOr<DecompositionSet> Of(const std::vector<std::string>& names);
  static DecompositionSet All();

  bool empty() const { return kernels_ == nullptr; }
  // Of the operator's own signature, on tensors below autograd; null if it isn't in the set.
  const c10::KernelFunction* Find(const c10::OperatorHandle& op) const;

 private:
  std::shared_ptr<const absl::flat_hash_map<std::string, c10::KernelFunction>> kernels_;
};

}  // namespace ddpopt

#endif  // DDPOPT_AOT_DECOMPOSITIONS_H_
