#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/status.h"
#include "ddpopt/optimizer/bucket_rules.h"
#include "ddpopt/optimizer/bucket_walk.h"

namespace ddpopt {
namespace {

using fx::Argument;
using fx::GraphModule;
using fx::Node;
using fx::Op;

class Reference {
 public:
  Reference(const GraphModule& module, const BucketCaps& caps, const ParameterUses& uses)
      : module_(module), caps_(caps), uses_(uses), walk_(module.graph().size()) {}

  absl::StatusOr<RuleResult> Run() && {
    for (const Node* node = module_.graph().back(); node != nullptr; node = node->prev()) {
      if (node->op() == Op::kPlaceholder || node->op() == Op::kOutput) continue;
      walk_.Place(node, walk_.current().bytes >= caps_.Of(walk_.closed()));
      const absl::Status counted = CountNode(*node);
      if (!counted.ok()) return Annotate(counted, absl::StrCat("the parameters of %", node->name()));
    }
    RuleResult result;
    result.first_counting_node = walk_.first_counting_node();
    result.assignment = std::move(walk_).Finish();
    return result;
  }

 private:
  absl::Status CountNode(const Node& node) {
    switch (node.op()) {
      case Op::kCallFunction:
        return CountArguments(node);
      case Op::kGetAttr:
        CountAttribute(node);
        return absl::OkStatus();
      case Op::kCallModule:
        return CountModule(std::string(node.path()), std::string(node.path()), /*must_exist=*/true);
      case Op::kCallMethod: {
        if (node.args().empty() || !node.args()[0].is_node()) return absl::OkStatus();
        const absl::optional<std::string> self = TextOfTarget(*node.args()[0].node());
        if (!self.has_value()) return absl::OkStatus();
        DDPOPT_RETURN_IF_ERROR(CountModule(*self, fx::TargetToString(node.target()), /*must_exist=*/false));
        return CountArguments(node);
      }
      default:
        return absl::OkStatus();
    }
  }

  // Targets that are strings in torch.fx: all but functions.
  static absl::optional<std::string> TextOfTarget(const Node& node) {
    if (node.op() == Op::kCallFunction) return absl::nullopt;
    return fx::TargetToString(node.target());
  }

  absl::Status CountArguments(const Node& node) {
    for (const Argument& argument : node.args()) {
      if (!argument.is_node() || argument.node()->op() != Op::kPlaceholder) continue;
      const Node& input = *argument.node();
      if (!input.meta().is_parameter) continue;
      if (!input.meta().val.isTensor()) {
        return absl::InvalidArgumentError(
            absl::StrCat("placeholder %", input.name(), " stands for a parameter but has no value to tell its size"));
      }
      Count(std::string(input.path()), input.meta().val.toTensor());
    }
    return absl::OkStatus();
  }

  void CountAttribute(const Node& node) {
    const absl::StatusOr<GraphModule::Attr> attr = module_.GetAttr(node.path());
    if (!attr.ok() || attr->kind != GraphModule::AttrKind::kParameter || !attr->value.isTensor()) return;
    Count(std::string(node.path()), attr->value.toTensor());
  }

  absl::Status CountModule(const std::string& path, const std::string& prefix, bool must_exist) {
    const absl::StatusOr<GraphModule::Submodule> submodule = module_.GetSubmodule(path);
    if (!submodule.ok()) return must_exist ? submodule.status() : absl::OkStatus();
    if (submodule->graph_module == nullptr || !counted_modules_.insert(submodule->graph_module.get()).second) return absl::OkStatus();
    for (const Parameter& parameter : NamedParameters(*submodule->graph_module)) {
      Count(absl::StrCat(prefix, "_", parameter.name), parameter.tensor);
    }
    return absl::OkStatus();
  }

  void Count(std::string name, const at::Tensor& tensor) {
    if (uses_.Counts(tensor)) walk_.Count(std::move(name), tensor, StorageBytes(tensor));
  }

  const GraphModule& module_;
  const BucketCaps& caps_;
  const ParameterUses& uses_;
  BucketWalk walk_;
  absl::flat_hash_set<const GraphModule*> counted_modules_;
};

}  // namespace

absl::StatusOr<RuleResult> ReferenceRule(const GraphModule& module, const BucketCaps& caps, const ParameterUses& uses) {
  return Reference(module, caps, uses).Run();
}

}  // namespace ddpopt
