#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "ddpopt/optimizer/bucket_rules.h"
#include "ddpopt/optimizer/bucket_walk.h"

namespace ddpopt {
namespace {

using fx::GraphModule;
using fx::Node;

// Finds the nodes that the user's bucket ends name.
class BucketEnds {
 public:
  BucketEnds(const GraphModule& module, const ParameterUses& uses, const Readiness& ready)
      : module_(module), uses_(uses), ready_(ready) {}

  absl::StatusOr<const Node*> Find(const std::string& end) const {
    absl::string_view name = end;
    const bool node = absl::ConsumePrefix(&name, "node:");
    const bool module = !node && absl::ConsumePrefix(&name, "module:");
    const bool parameter = !node && !module && absl::ConsumePrefix(&name, "parameter:");
    const bool any = !node && !module && !parameter;

    std::vector<std::pair<const char*, const Node*>> found;
    if (const Node* meant = ByNode(name); (any || node) && meant != nullptr) found.emplace_back("node", meant);
    if (const Node* meant = ByModule(name); (any || module) && meant != nullptr) found.emplace_back("module", meant);
    if (const Node* meant = ByParameter(name); (any || parameter) && meant != nullptr) found.emplace_back("parameter", meant);
    if (found.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("bucket end \"", end, "\" is no operator's node, no module of one, and no parameter that counts"));
    }
    for (const auto& [kind, meant] : found) {
      if (meant == found[0].second) continue;
      return absl::InvalidArgumentError(absl::StrCat("bucket end \"", end, "\" is ambiguous: as ", found[0].first, " it means %",
                                                     found[0].second->name(), ", as ", kind, " %", meant->name(), "; write \"",
                                                     found[0].first, ":", end, "\" or \"", kind, ":", end, "\""));
    }
    return found[0].second;
  }

 private:
  const Node* ByNode(absl::string_view name) const {
    for (const Node* node : module_.graph().nodes()) {
      if (IsComputation(*node) && absl::string_view(node->name()) == name) return node;
    }
    return nullptr;
  }

  const Node* ByModule(absl::string_view path) const {
    const auto within = [path](absl::string_view other) {
      return absl::StartsWith(other, path) && (other.size() == path.size() || other[path.size()] == '.');
    };
    for (const Node* node = module_.graph().back(); node != nullptr; node = node->prev()) {
      if (!IsComputation(*node)) continue;
      if (within(node->meta().nn_module) || (node->op() == fx::Op::kCallModule && within(node->path()))) return node;
    }
    return nullptr;
  }

  const Node* ByParameter(absl::string_view name) const {
    const at::Tensor tensor = uses_.Find(name);
    const auto found = tensor.defined() ? ready_.node_of.find(tensor.unsafeGetTensorImpl()) : ready_.node_of.end();
    return found == ready_.node_of.end() ? nullptr : found->second;
  }

  const GraphModule& module_;
  const ParameterUses& uses_;
  const Readiness& ready_;
};

}  // namespace

absl::StatusOr<RuleResult> DefaultRule(const GraphModule& module, const BucketOptions& options, const BucketCaps& caps,
                                       const ParameterUses& uses) {
  DDPOPT_ASSIGN_OR_RETURN(Readiness ready, FindReadiness(module, uses));
  absl::flat_hash_map<const Node*, std::string> ends;
  for (const std::string& end : options.bucket_ends) {
    DDPOPT_ASSIGN_OR_RETURN(const Node* node, BucketEnds(module, uses, ready).Find(end));
    ends.emplace(node, end);
  }

  BucketWalk walk(module.graph().size());
  std::vector<std::string> warnings;
  bool past_an_end = false;
  for (const Node* node = module.graph().back(); node != nullptr; node = node->prev()) {
    if (!IsComputation(*node)) continue;
    const Bucket& current = walk.current();
    bool full = !current.parameters.empty() && current.bytes >= caps.Of(walk.closed());
    if (!options.bucket_ends.empty()) {
      const auto end = ends.find(node);
      if (end != ends.end() && current.parameters.empty() && !current.nodes.empty()) {
        warnings.push_back(absl::StrCat("the bucket end \"", end->second, "\" is left out: no parameter counts after it",
                                        walk.closed() > 0 ? ", up to the next end" : ""));
      }
      past_an_end = (past_an_end || end != ends.end()) && !current.parameters.empty();
      full = past_an_end;
    }
    if (walk.Place(node, full)) past_an_end = false;
    if (const auto parameters = ready.at.find(node); parameters != ready.at.end()) {
      for (auto parameter = parameters->second.rbegin(); parameter != parameters->second.rend(); ++parameter) {
        walk.Count(std::move(parameter->name), parameter->tensor, OwnBytes(parameter->tensor));
      }
    }
  }

  RuleResult result;
  result.first_counting_node = walk.first_counting_node();
  result.assignment = std::move(walk).Finish();
  result.assignment.warnings = std::move(warnings);
  // What forward doesn't use is reduced last.
  uses.ForEach([&](const std::string& name, const at::Tensor& tensor) {
    if (!ready.node_of.contains(tensor.unsafeGetTensorImpl())) {
      CountInto(result.assignment.buckets.front(), name, tensor, OwnBytes(tensor));
    }
  });
  return result;
}

}  // namespace ddpopt
