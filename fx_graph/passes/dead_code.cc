#include "fx_graph/passes/dead_code.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "base/status.h"

namespace ddpopt::fx {
namespace {

absl::StatusOr<bool> Eliminate(GraphModule& module, const DeadCodeOptions& options, absl::flat_hash_set<const GraphModule*>& done) {
  bool changed = false;
  if (!done.insert(&module).second) return changed;
  // Nested graphs first: what is dropped there can make the node that calls them pure.
  for (const auto& [path, submodule] : module.submodules()) {
    if (submodule.graph_module == nullptr) continue;
    DDPOPT_ASSIGN_OR_RETURN(const bool nested, Eliminate(*submodule.graph_module, options, done));
    changed |= nested;
  }
  Effects effects(module);
  Graph& graph = module.graph();
  // Backwards, so that a node's users are judged before it.
  for (Node* node = graph.back(); node != nullptr;) {
    Node* const previous = node->prev();
    const bool stays = !node->users().empty() || node->op() == Op::kPlaceholder || node->op() == Op::kOutput ||
                       (options.is_impure ? options.is_impure(*node) : IsImpure(effects, *node, options.random_is_impure));
    if (!stays) {
      DDPOPT_RETURN_IF_ERROR(graph.EraseNode(node));
      changed = true;
    }
    node = previous;
  }
  return changed;
}

}  // namespace

bool IsImpure(Effects& effects, const Node& node, bool random_is_impure) {
  if (node.op() == Op::kPlaceholder || node.op() == Op::kOutput) return true;
  const NodeEffects of = effects.Of(node);
  return of.writes || of.other || of.anything || (of.random && random_is_impure);
}

absl::StatusOr<bool> EliminateDeadCode(GraphModule& module, const DeadCodeOptions& options) {
  absl::flat_hash_set<const GraphModule*> done;
  return Eliminate(module, options, done);
}

absl::Status DeadCodePass::Register(PassRegistry& registry) {
  return registry.Add("dead_code",
                      "drops nodes whose value nobody uses and that do nothing else; random_is_impure=false drops random ones too",
                      [](const PassOptions& given) -> absl::StatusOr<std::unique_ptr<Pass>> {
                        DDPOPT_RETURN_IF_ERROR(CheckPassOptions(given, {"random_is_impure"}));
                        DeadCodeOptions options;
                        DDPOPT_ASSIGN_OR_RETURN(options.random_is_impure, BoolPassOption(given, "random_is_impure", true));
                        return std::make_unique<DeadCodePass>(std::move(options));
                      });
}

std::string DeadCodePass::ToString() const { return options_.random_is_impure ? "dead_code" : "dead_code{random_is_impure=false}"; }

}  // namespace ddpopt::fx
