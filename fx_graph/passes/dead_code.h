#ifndef DDPOPT_FX_GRAPH_PASSES_DEAD_CODE_H_
#define DDPOPT_FX_GRAPH_PASSES_DEAD_CODE_H_

// Drops nodes whose value nobody uses, as torch.fx's eliminate_dead_code, but never one that does more than give a value.
//
//   DDPOPT_ASSIGN_OR_RETURN(const bool changed, fx::EliminateDeadCode(module));
//
// Placeholders and the output stay. So does whatever writes a tensor (`add_`, `out=`, a view that is written to and the view's base,
// running statistics in training), draws random numbers, asserts, changes modes, calls a nested graph that does one of these, or can't be
// told (see effects.h). Graphs nested in the module are treated likewise. Linear in the number of nodes.

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "fx_graph/graph_module.h"
#include "fx_graph/passes/effects.h"
#include "fx_graph/passes/pass.h"

namespace ddpopt::fx {

// The default judgement: whether a node must stay though nobody uses its value.
bool IsImpure(Effects& effects, const Node& node, bool random_is_impure = true);

struct DeadCodeOptions {
  // False drops unused random operators too: later random numbers then differ from the original graph's.
  bool random_is_impure = true;
  // If set, replaces the default judgement for all nodes but placeholders and outputs, as in torch.fx. It may ask IsImpure.
  std::function<bool(const Node& node)> is_impure = nullptr;
};

// Returns whether a node was dropped. A node listed before one that takes it is found whole; in a graph that isn't in topological order
// (Lint) dead code may remain. Errors: none of its own.
absl::StatusOr<bool> EliminateDeadCode(GraphModule& module, const DeadCodeOptions& options = {});

// "dead_code", with the option random_is_impure=true|false.
class DeadCodePass : public Pass {
 public:
  explicit DeadCodePass(DeadCodeOptions options = {}) : options_(std::move(options)) {}
  static absl::Status Register(PassRegistry& registry);

  absl::string_view name() const override { return "dead_code"; }
  std::string ToString() const override;
  absl::StatusOr<bool> Run(GraphModule& module) const override { return EliminateDeadCode(module, options_); }

 private:
  DeadCodeOptions options_;
};

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_PASSES_DEAD_CODE_H_
