#include "fx_graph/passes/builtin_passes.h"

#include "base/logging.h"
#include "fx_graph/passes/common_subexpression.h"
#include "fx_graph/passes/dead_code.h"
#include "fx_graph/passes/topological_sort.h"

namespace ddpopt::fx {

const PassRegistry& BuiltinPasses() {
  static const auto* registry = [] {
    auto* passes = new PassRegistry;
    for (const auto& add : {CommonSubexpressionPass::Register, DeadCodePass::Register, TopologicalSortPass::Register}) {
      const absl::Status status = add(*passes);
      CHECK(status.ok()) << status;
    }
    return passes;
  }();
  return *registry;
}

}  // namespace ddpopt::fx
