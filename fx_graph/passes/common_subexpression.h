#ifndef DDPOPT_FX_GRAPH_PASSES_COMMON_SUBEXPRESSION_H_
#define DDPOPT_FX_GRAPH_PASSES_COMMON_SUBEXPRESSION_H_

// Merges nodes that give the same value: the later one's users take the earlier one.
//
//   DDPOPT_ASSIGN_OR_RETURN(const bool changed, fx::EliminateCommonSubexpressions(module));
//
// Two nodes are the same if they have the same target and the same arguments: constants of the same type and bits (1, 1.0 and True differ,
// and so do 0.0 and -0.0), operators' arguments by position or by name, given or left to their default. get_attr nodes of one path are the
// same.
//
// Not merged: what draws random numbers, writes or asserts; what reads memory that is written between the two; what runs under other modes
// (autocast, grad mode); values that are written later, or a view of them; two values that both leave the graph, whose receiver may
// write one of them. Graphs nested in the module are treated likewise. Linear in the number of nodes.

#include "absl/status/statusor.h"
#include "fx_graph/graph_module.h"
#include "fx_graph/passes/pass.h"

namespace ddpopt::fx {

// Returns whether nodes were merged. The earlier node keeps its name and metadata. Errors: none of its own.
absl::StatusOr<bool> EliminateCommonSubexpressions(GraphModule& module);

// "common_subexpression"; no options.
class CommonSubexpressionPass : public Pass {
 public:
  static absl::Status Register(PassRegistry& registry);

  absl::string_view name() const override { return "common_subexpression"; }
  absl::StatusOr<bool> Run(GraphModule& module) const override { return EliminateCommonSubexpressions(module); }
};

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_PASSES_COMMON_SUBEXPRESSION_H_
