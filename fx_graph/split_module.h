#ifndef DDPOPT_FX_GRAPH_SPLIT_MODULE_H_
#define DDPOPT_FX_GRAPH_SPLIT_MODULE_H_

// Cuts a GraphModule into submodules "submod_<id>", called one after another by an outer graph, as torch.fx's split_module.

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "fx_graph/graph_module.h"

namespace ddpopt::fx {

// `partition(node)` gives the id (>= 0) of every node that is not a placeholder, get_attr or output; get_attr nodes are copied into each
// partition that uses them, so that parameters are reached inside and never cross borders. Values that cross become
// placeholders (keeping their names) and outputs; a partition with one output returns it bare, with several a tuple that the
// outer graph takes apart by getitem nodes (opaque target "operator.getitem", executed by the Interpreter).
// A get_attr that the outer output returns is copied into the outer graph.
// The outer graph has call_module nodes in topological order of partitions, each graph lints, attributes are shared.
// The input is left unchanged. Errors: InvalidArgument for a negative id, FailedPrecondition for a cycle between partitions (named).
absl::StatusOr<std::shared_ptr<GraphModule>> SplitModule(const GraphModule& module, absl::FunctionRef<int(const Node*)> partition);

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_SPLIT_MODULE_H_
