#ifndef DDPOPT_FX_GRAPH_PASSES_TOPOLOGICAL_SORT_H_
#define DDPOPT_FX_GRAPH_PASSES_TOPOLOGICAL_SORT_H_

// Puts every node after those that it takes, and else keeps the order. For passes and readers that put new nodes wherever it was handy.
//
//   DDPOPT_ASSIGN_OR_RETURN(const bool changed, fx::TopologicalSort(module));
//
// Stable: a graph in order stays as it is, and of the nodes that could come next the one listed first does. What has effects keeps its
// order too, as it was listed: writes and random numbers among each other, reads and writes of one memory, and everything around a change
// of modes or code that nothing is known of. Placeholders come first, in their order, and the output last. Graphs nested in the module are
// sorted likewise.

#include "absl/status/statusor.h"
#include "fx_graph/graph_module.h"
#include "fx_graph/passes/pass.h"

namespace ddpopt::fx {

// Returns whether nodes were moved. Errors (the graph is left as it was): FailedPrecondition for nodes that depend on each other in a
// cycle, naming these, or whose listed order of effects contradicts what they take. Time is n log n in the number of nodes, and linear
// where nothing needs to move.
absl::StatusOr<bool> TopologicalSort(GraphModule& module);

// "topological_sort"; no options. Unlike other passes it takes modules that do not lint, if this is for their order alone.
class TopologicalSortPass : public Pass {
 public:
  static absl::Status Register(PassRegistry& registry);

  absl::string_view name() const override { return "topological_sort"; }
  absl::StatusOr<bool> Run(GraphModule& module) const override { return TopologicalSort(module); }
};

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_PASSES_TOPOLOGICAL_SORT_H_
