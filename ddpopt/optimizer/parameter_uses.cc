#include "ddpopt/optimizer/parameter_uses.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace ddpopt {
namespace {

using fx::GraphModule;

bool IsParameter(const GraphModule::Attr& attr) {
  return attr.kind == GraphModule::AttrKind::kParameter && attr.value.isTensor() && attr.value.toTensor().defined();
}

// The values of a name -> Attr or Submodule map, in the order they were added.
template <typename Map>
std::vector<const typename Map::value_type*> InOrder(const Map& map) {
  std::vector<const typename Map::value_type*> entries;
  for (const auto& entry : map) entries.push_back(&entry);
  std::stable_sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) { return a->second.order < b->second.order; });
  return entries;
}

void AppendNamedParameters(const GraphModule& module, const std::string& prefix, absl::flat_hash_set<const at::TensorImpl*>& seen,
                           std::vector<Parameter>& result) {
  for (const auto* entry : InOrder(module.attrs())) {
    if (!IsParameter(entry->second)) continue;
    const at::Tensor& tensor = entry->second.value.toTensor();
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) result.push_back({prefix + entry->first, tensor});
  }
  for (const auto* entry : InOrder(module.submodules())) {
    if (entry->second.graph_module == nullptr) continue;
    AppendNamedParameters(*entry->second.graph_module, absl::StrCat(prefix, entry->first, "."), seen, result);
  }
}

}  // namespace

int64_t OwnBytes(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.numel()) * static_cast<int64_t>(tensor.itemsize()); }

int64_t StorageBytes(const at::Tensor& tensor) {
  return tensor.has_storage() ? static_cast<int64_t>(tensor.storage().nbytes()) : OwnBytes(tensor);
}

bool IsComputation(const fx::Node& node) {
  return node.op() != fx::Op::kPlaceholder && node.op() != fx::Op::kGetAttr && node.op() != fx::Op::kOutput;
}

std::vector<Parameter> NamedParameters(const GraphModule& module) {
  std::vector<Parameter> result;
  absl::flat_hash_set<const at::TensorImpl*> seen;
  AppendNamedParameters(module, "", seen, result);
  return result;
}

ParameterUses::ParameterUses(const GraphModule& module, const absl::flat_hash_set<std::string>& ignored) : module_(module) {
  if (ignored.empty() && module.submodules().empty()) return;
  ForEachParameter([&](const std::string& name, const at::Tensor& tensor) {
    names_.emplace(tensor.unsafeGetTensorImpl(), name);
    if (ignored.contains(name)) ignored_.insert(tensor.unsafeGetTensorImpl());
  });
}

void ParameterUses::ForEachParameter(absl::FunctionRef<void(const std::string&, const at::Tensor&)> fn) const {
  for (const auto& [path, attr] : module_.attrs()) {
    if (IsParameter(attr)) fn(path, attr.value.toTensor());
  }
  for (const auto& [path, submodule] : module_.submodules()) {
    if (submodule.graph_module == nullptr) continue;
    for (const Parameter& parameter : NamedParameters(*submodule.graph_module))
      fn(absl::StrCat(path, ".", parameter.name), parameter.tensor);
  }
  for (const fx::Node* node : module_.graph().nodes()) {
    if (node->op() != fx::Op::kPlaceholder || !node->meta().is_parameter || !node->meta().val.isTensor()) continue;
    if (node->meta().val.toTensor().defined()) fn(node->path(), node->meta().val.toTensor());
  }
}

absl::StatusOr<std::vector<Parameter>> ParameterUses::Of(const fx::Node& node) const {
  std::vector<Parameter> result;
  for (const fx::Node* input : node.all_input_nodes()) {
    if (input->op() != fx::Op::kGetAttr && input->op() != fx::Op::kPlaceholder) continue;
    if (const absl::Status added = AddInput(module_, "", *input, result); !added.ok()) {
      return Annotate(added, absl::StrCat("the parameters of %", node.name()));
    }
  }
  if (node.op() == fx::Op::kCallModule) {
    const absl::StatusOr<GraphModule::Submodule> submodule = module_.GetSubmodule(node.path());
    if (!submodule.ok()) return Annotate(submodule.status(), absl::StrCat("the parameters of %", node.name()));
    if (submodule->graph_module != nullptr) {
      DDPOPT_RETURN_IF_ERROR(AddInner(*submodule->graph_module, absl::StrCat(node.path(), "."), result));
    }
  }
  return result;
}

void ParameterUses::ForEach(absl::FunctionRef<void(const std::string&, const at::Tensor&)> fn) const {
  absl::flat_hash_set<const at::TensorImpl*> seen;
  seen.reserve(module_.attrs().size());
  ForEachParameter([&](const std::string& name, const at::Tensor& tensor) {
    if (Counts(tensor) && seen.insert(tensor.unsafeGetTensorImpl()).second) fn(name, tensor);
  });
}

at::Tensor ParameterUses::Find(absl::string_view name) const {
  at::Tensor found;
  ForEachParameter([&](const std::string& path, const at::Tensor& tensor) {
    if (path == name && !found.defined()) found = tensor;
  });
  return found;
}

ParameterUses::Excluded ParameterUses::CountExcluded() const {
  Excluded excluded;
  absl::flat_hash_set<const at::TensorImpl*> seen;
  ForEachParameter([&](const std::string& /*name*/, const at::Tensor& tensor) {
    if (Counts(tensor) || !seen.insert(tensor.unsafeGetTensorImpl()).second) return;
    ++(tensor.requires_grad() ? excluded.ignored : excluded.frozen);
  });
  return excluded;
}

void ParameterUses::Add(const std::string& prefix, const std::string& name, const at::Tensor& tensor,
                        std::vector<Parameter>& result) const {
  if (!Counts(tensor)) return;
  if (prefix.empty()) {
    result.push_back({name, tensor});
    return;
  }
  const auto known = names_.find(tensor.unsafeGetTensorImpl());
  result.push_back({known != names_.end() ? known->second : absl::StrCat(prefix, name), tensor});
}

absl::Status ParameterUses::AddInput(const GraphModule& owner, const std::string& prefix, const fx::Node& input,
                                     std::vector<Parameter>& result) const {
  if (input.op() == fx::Op::kPlaceholder && input.meta().is_parameter) {
    if (!input.meta().val.isTensor()) {
      return absl::InvalidArgumentError(
          absl::StrCat("placeholder %", input.name(), " stands for a parameter but has no value to tell its size"));
    }
    Add(prefix, input.path(), input.meta().val.toTensor(), result);
    return absl::OkStatus();
  }
  if (input.op() != fx::Op::kGetAttr) return absl::OkStatus();
  if (const GraphModule::Attr* const attr = owner.FindAttr(input.path()); attr != nullptr) {
    if (IsParameter(*attr)) Add(prefix, input.path(), attr->value.toTensor(), result);
    return absl::OkStatus();
  }
  // The nested graph of a higher-order operator, or a module whose method is called.
  const GraphModule::Submodule* const submodule = owner.FindSubmodule(input.path());
  if (submodule == nullptr) return owner.GetAttr(input.path()).status();
  if (submodule->graph_module == nullptr) return absl::OkStatus();
  return AddInner(*submodule->graph_module, absl::StrCat(prefix, input.path(), "."), result);
}

absl::Status ParameterUses::AddInner(const GraphModule& inner, const std::string& prefix, std::vector<Parameter>& result) const {
  if (inner.graph().size() == 0) {
    // A module without a graph of its own: it may use whatever it has.
    for (const Parameter& parameter : NamedParameters(inner)) Add(prefix, parameter.name, parameter.tensor, result);
    return absl::OkStatus();
  }
  for (const fx::Node* node : inner.graph().nodes()) {
    if (node->op() == fx::Op::kGetAttr) {
      DDPOPT_RETURN_IF_ERROR(AddInput(inner, prefix, *node, result));
    } else if (node->op() == fx::Op::kCallModule) {
      DDPOPT_ASSIGN_OR_RETURN(const GraphModule::Submodule submodule, inner.GetSubmodule(node->path()));
      if (submodule.graph_module == nullptr) continue;
      DDPOPT_RETURN_IF_ERROR(AddInner(*submodule.graph_module, absl::StrCat(prefix, node->path(), "."), result));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Readiness> FindReadiness(const GraphModule& module, const ParameterUses& uses) {
  Readiness ready;
  ready.node_of.reserve(module.attrs().size());
  for (const fx::Node* node : module.graph().nodes()) {
    if (!IsComputation(*node)) continue;
    DDPOPT_ASSIGN_OR_RETURN(std::vector<Parameter> parameters, uses.Of(*node));
    for (Parameter& parameter : parameters) {
      if (ready.node_of.emplace(parameter.tensor.unsafeGetTensorImpl(), node).second) ready.at[node].push_back(std::move(parameter));
    }
  }
  return ready;
}

}  // namespace ddpopt
