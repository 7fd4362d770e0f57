#ifndef DDPOPT_FX_GRAPH_SPLIT_REGIONS_H_
#define DDPOPT_FX_GRAPH_SPLIT_REGIONS_H_

// Regions of a graph in which something other than its values decides what operators do: between an _enter_autocast and its
// _exit_autocast (inference mode likewise), or from a _set_grad_enabled to the next. SplitModule enters them again in each partition.

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "fx_graph/graph.h"

namespace ddpopt::fx {

// Whether a node changes the state that regions are about. Such a node's arguments don't cross borders: each partition has its own.
bool IsStateNode(const Node& node);

struct SplitRegion {
  const Node* enter = nullptr;
  const Node* exit = nullptr;   // null for a grad mode
  std::vector<int> partitions;  // those it spans, in the order of their numbers
};

struct SplitRegions {
  // In the order of entering: first autocast and inference mode, then grad modes.
  std::vector<SplitRegion> regions;
  // The partitions with operators before the first _set_grad_enabled, in order: they run in the grad mode of the caller, and so must
  // run before any that changes it. Empty if nothing changes it.
  std::vector<int> ambient_grad_mode;
};

// `partition_of(node)` is its partition, or -1 if it has none. Partitions must be numbered in the order of their first
// nodes. FailedPrecondition: with regions, a node whose partition comes before that of an earlier node; an exit without its enter, or
// an enter without its exit; arguments that are no constants.
absl::StatusOr<SplitRegions> FindSplitRegions(const Graph& graph, absl::FunctionRef<int(const Node&)> partition_of);

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_SPLIT_REGIONS_H_
