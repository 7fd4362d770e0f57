#ifndef DDPOPT_AOT_DECOMPOSITION_TABLE_H_
#define DDPOPT_AOT_DECOMPOSITION_TABLE_H_

// How decompositions are written down. Private to this package; see decompositions.h.

#include <string>
#include <utility>

#include "ATen/core/boxing/KernelFunction.h"
#include "absl/container/flat_hash_map.h"

namespace ddpopt {

class DecompositionTable {
 public:
  // `fn` has the operator's own signature, and calls functional operators only.
  template <typename Fn>
  void Add(const char* name, Fn* fn) {
    kernels_.emplace(std::string("aten::") + name, c10::KernelFunction::makeFromUnboxedRuntimeFunction(fn));
  }
  const absl::flat_hash_map<std::string, c10::KernelFunction>& kernels() const { return kernels_; }

 private:
  absl::flat_hash_map<std::string, c10::KernelFunction> kernels_;
};

void AddElementwiseDecompositions(DecompositionTable* table);
void AddLossDecompositions(DecompositionTable* table);
void AddNormDecompositions(DecompositionTable* table);

}  // namespace ddpopt

#endif  // DDPOPT_AOT_DECOMPOSITION_TABLE_H_
