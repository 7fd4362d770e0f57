#include "ddpopt/aot/decompositions.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ddpopt/aot/decomposition_table.h"

namespace ddpopt {
namespace {

const DecompositionTable& Table() {
  static const DecompositionTable* table = [] {
    auto* made = new DecompositionTable;
    AddElementwiseDecompositions(made);
    AddLossDecompositions(made);
    AddNormDecompositions(made);
    return made;
  }();
  return *table;
}

}  // namespace

std::vector<std::string> DecompositionNames() {
  std::vector<std::string> names;
  for (const auto& [name, kernel] : Table().kernels()) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<DecompositionSet> DecompositionSet::Of(const std::vector<std::string>& names) {
  auto kernels = std::make_shared<absl::flat_hash_map<std::string, c10::KernelFunction>>();
  for (const std::string& name : names) {
    const auto found = Table().kernels().find(name);
    if (found == Table().kernels().end()) return absl::NotFoundError(absl::StrCat("there is no decomposition of '", name, "'"));
    kernels->emplace(name, found->second);
  }
  DecompositionSet set;
  if (!kernels->empty()) set.kernels_ = std::move(kernels);
  return set;
}

DecompositionSet DecompositionSet::All() {
  DecompositionSet set;
  set.kernels_ = std::make_shared<absl::flat_hash_map<std::string, c10::KernelFunction>>(Table().kernels());
  return set;
}

const c10::KernelFunction* DecompositionSet::Find(const c10::OperatorHandle& op) const {
  if (kernels_ == nullptr) return nullptr;
  const auto found = kernels_->find(c10::toString(op.operator_name()));
  return found == kernels_->end() ? nullptr : &found->second;
}

}  // namespace ddpopt
