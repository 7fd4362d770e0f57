#include "fx_graph/graph_module.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace ddpopt::fx {

absl::Status GraphModule::AddAttr(absl::string_view path, c10::IValue value, AttrKind kind) {
  if (!attrs_.emplace(std::string(path), Attr{std::move(value), kind, next_order_}).second) {
    return absl::AlreadyExistsError(absl::StrCat("the module has an attribute \"", path, "\" already"));
  }
  ++next_order_;
  return absl::OkStatus();
}

absl::StatusOr<GraphModule::Attr> GraphModule::GetAttr(absl::string_view path) const {
  const auto it = attrs_.find(std::string(path));
  if (it == attrs_.end()) return absl::NotFoundError(absl::StrCat("the module has no attribute \"", path, "\""));
  return it->second;
}

absl::Status GraphModule::SetAttr(absl::string_view path, c10::IValue value) {
  const auto it = attrs_.find(std::string(path));
  if (it == attrs_.end()) return absl::NotFoundError(absl::StrCat("the module has no attribute \"", path, "\""));
  it->second.value = std::move(value);
  return absl::OkStatus();
}

absl::Status GraphModule::AddSubmodule(absl::string_view path, Submodule submodule) {
  if (submodule.graph_module == nullptr && submodule.callable == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("submodule \"", path, "\" is neither a graph nor a callable"));
  }
  submodule.order = next_order_;
  if (!submodules_.emplace(std::string(path), std::move(submodule)).second) {
    return absl::AlreadyExistsError(absl::StrCat("the module has a submodule \"", path, "\" already"));
  }
  ++next_order_;
  return absl::OkStatus();
}

absl::StatusOr<GraphModule::Submodule> GraphModule::GetSubmodule(absl::string_view path) const {
  const auto it = submodules_.find(std::string(path));
  if (it == submodules_.end()) return absl::NotFoundError(absl::StrCat("the module has no submodule \"", path, "\""));
  return it->second;
}

absl::Status GraphModule::DeleteSubmodule(absl::string_view path) {
  if (submodules_.erase(std::string(path)) == 0) return absl::NotFoundError(absl::StrCat("the module has no submodule \"", path, "\""));
  return absl::OkStatus();
}

std::shared_ptr<GraphModule> GraphModule::Clone() const {
  auto clone = std::make_shared<GraphModule>();
  clone->graph_->CopyFrom(*graph_);
  clone->attrs_ = attrs_;
  clone->meta_ = meta_;
  clone->next_order_ = next_order_;
  for (const auto& [path, submodule] : submodules_) {
    clone->submodules_[path] =
        Submodule{submodule.graph_module == nullptr ? nullptr : submodule.graph_module->Clone(), submodule.callable, submodule.order};
  }
  return clone;
}

absl::Status GraphModule::Lint() const {
  DDPOPT_RETURN_IF_ERROR(graph_->Lint());
  for (const Node* node : graph_->nodes()) {
    const bool exists = node->op() == Op::kGetAttr      ? attrs_.contains(node->path()) || submodules_.contains(node->path())
                        : node->op() == Op::kCallModule ? submodules_.contains(node->path())
                                                        : true;
    if (!exists) return absl::InternalError(absl::StrCat("lint: %", node->name(), " names \"", node->path(), "\", which the module does not have"));
  }
  for (const auto& [path, submodule] : submodules_) {
    if (submodule.graph_module == nullptr) continue;
    DDPOPT_RETURN_IF_ERROR(Annotate(submodule.graph_module->Lint(), absl::StrCat("in submodule \"", path, "\"")));
  }
  return absl::OkStatus();
}

}  // namespace ddpopt::fx
