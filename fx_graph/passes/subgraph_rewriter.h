#ifndef DDPOPT_FX_GRAPH_PASSES_SUBGRAPH_REWRITER_H_
#define DDPOPT_FX_GRAPH_PASSES_SUBGRAPH_REWRITER_H_

// Replaces every occurrence of a pattern in a graph, as torch.fx's subgraph_rewriter. Pattern and replacement are graphs with
// the same inputs:
//
//   auto pattern = fx::ParseGraph("graph():\n %x = placeholder[target=x]\n %r = call_function[target=torch.ops.aten.relu.default](args = (%x,))"
//                                "\n return r");
//   ... a replacement with one input and one output ...
//   DDPOPT_ASSIGN_OR_RETURN(auto replaced, fx::ReplacePattern(module, **pattern, **replacement));
//
// A pattern's placeholder stands for any argument, a node or a constant, and for the same one wherever it occurs. Every other node of it
// stands for one node of the same kind, target and arguments. All of them must lead to the last value that the pattern returns.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fx_graph/graph_module.h"

namespace ddpopt::fx {

struct ReplacedPattern {
  std::string anchor;               // the name that the node of the pattern's last value had
  std::vector<Node*> replacements;  // what was put in its place, in order
};

// Occurrences are taken from the graph's front to its back; a node belongs to one at most, and what was put in is never matched itself. Not
// an occurrence: nodes whose value is used outside though the pattern doesn't return it; ones with an effect (effects.h) of another node
// between them, across which they can't be moved together; ones one of whose values is used before the last one is there; ones that take
// one of their own nodes for an input too, or a constant for an input that the replacement returns.
// Attributes and submodules that the replacement names must be the module's. Errors, with nothing changed: InvalidArgument for a pattern
// that returns an input or nothing, has nodes that don't lead to its last value, or whose inputs or values are not as many as the
// replacement's.
absl::StatusOr<std::vector<ReplacedPattern>> ReplacePattern(GraphModule& module, const Graph& pattern, const Graph& replacement);

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_PASSES_SUBGRAPH_REWRITER_H_
