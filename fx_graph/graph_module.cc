#include "fx_graph/graph_module.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace ddpopt::fx {
namespace {

absl::Status CheckPath(absl::string_view path) {
  if (path.empty() || path.front() == '.' || path.back() == '.' || absl::StrContains(path, "..")) {
    return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" is no path: it has an empty part"));
  }
  return absl::OkStatus();
}

// Looks a path up in the submodules that it begins with.
template <typename T>
const T* FindWithin(const GraphModule& module, const T* (GraphModule::*find)(absl::string_view) const, absl::string_view path) {
  if (module.submodules().empty()) return nullptr;
  for (std::size_t dot = path.find('.'); dot != absl::string_view::npos; dot = path.find('.', dot + 1)) {
    const auto it = module.submodules().find(path.substr(0, dot));
    if (it == module.submodules().end() || it->second.graph_module == nullptr) continue;
    if (const T* found = (*it->second.graph_module.*find)(path.substr(dot + 1))) return found;
  }
  return nullptr;
}

// The object that a value is a handle of, null if it has no identity.
const void* Identity(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() ? value.toTensor().unsafeGetTensorImpl() : nullptr;
  return value.isPtrType() ? value.internalToPointer() : nullptr;
}

template <typename Map>
std::vector<typename Map::const_iterator> InOrderOfAdding(const Map& map) {
  std::vector<typename Map::const_iterator> order;
  for (auto it = map.begin(); it != map.end(); ++it) order.push_back(it);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a->second.order < b->second.order; });
  return order;
}

}  // namespace

absl::Status GraphModule::AddAttr(absl::string_view path, c10::IValue value, AttrKind kind) {
  DDPOPT_RETURN_IF_ERROR(CheckPath(path));
  if (submodules_.contains(path)) {
    return absl::AlreadyExistsError(absl::StrCat("the module has a submodule \"", path, "\" already"));
  }
  const auto [entry, is_new] = attrs_.emplace(std::string(path), Attr{std::move(value), kind, next_order_});
  if (!is_new) return absl::AlreadyExistsError(absl::StrCat("the module has an attribute \"", path, "\" already"));
  attr_index_.emplace(entry->first, &entry->second);
  ++next_order_;
  return absl::OkStatus();
}

const GraphModule::Attr* GraphModule::FindAttr(absl::string_view path) const {
  if (const auto own = attr_index_.find(path); own != attr_index_.end()) return own->second;
  return FindWithin(*this, &GraphModule::FindAttr, path);
}

absl::StatusOr<GraphModule::Attr> GraphModule::GetAttr(absl::string_view path) const {
  const Attr* attr = FindAttr(path);
  if (attr == nullptr) return absl::NotFoundError(absl::StrCat("the module has no attribute \"", path, "\""));
  return *attr;
}

absl::Status GraphModule::SetAttr(absl::string_view path, c10::IValue value) {
  const Attr* attr = FindAttr(path);
  if (attr == nullptr) return absl::NotFoundError(absl::StrCat("the module has no attribute \"", path, "\""));
  const_cast<Attr*>(attr)->value = std::move(value);  // found in this object or in one that it shares
  return absl::OkStatus();
}

absl::Status GraphModule::DeleteAttr(absl::string_view path) {
  const auto found = attrs_.find(path);
  if (found == attrs_.end()) return absl::NotFoundError(absl::StrCat("the module has no attribute \"", path, "\""));
  attr_index_.erase(found->first);
  attrs_.erase(found);
  return absl::OkStatus();
}

void GraphModule::CollectAttrs(const std::string& prefix, std::vector<const GraphModule*>& within,
                               std::vector<std::pair<std::string, const Attr*>>& found) const {
  if (std::find(within.begin(), within.end(), this) != within.end()) return;  // a module inside itself
  within.push_back(this);
  for (const auto& it : InOrderOfAdding(attrs_)) found.emplace_back(absl::StrCat(prefix, it->first), &it->second);
  for (const auto& it : InOrderOfAdding(submodules_)) {
    if (it->second.graph_module != nullptr) it->second.graph_module->CollectAttrs(absl::StrCat(prefix, it->first, "."), within, found);
  }
  within.pop_back();
}

std::vector<std::pair<std::string, const GraphModule::Attr*>> GraphModule::NamedAttrs() const {
  std::vector<std::pair<std::string, const Attr*>> found;
  std::vector<const GraphModule*> within;
  CollectAttrs("", within, found);
  return found;
}

std::vector<std::string> GraphModule::AliasesOf(absl::string_view path) const {
  std::vector<std::string> aliases;
  const Attr* attr = FindAttr(path);
  const void* identity = attr == nullptr ? nullptr : Identity(attr->value);
  if (identity == nullptr) return aliases;
  for (auto& [other, candidate] : NamedAttrs()) {
    if (Identity(candidate->value) == identity && other != path) aliases.push_back(std::move(other));
  }
  return aliases;
}

absl::Status GraphModule::AddSubmodule(absl::string_view path, Submodule submodule) {
  DDPOPT_RETURN_IF_ERROR(CheckPath(path));
  if (submodule.graph_module == nullptr && submodule.callable == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("submodule \"", path, "\" is neither a graph nor a callable"));
  }
  if (attr_index_.contains(path)) {
    return absl::AlreadyExistsError(absl::StrCat("the module has an attribute \"", path, "\" already"));
  }
  submodule.order = next_order_;
  if (!submodules_.emplace(std::string(path), std::move(submodule)).second) {
    return absl::AlreadyExistsError(absl::StrCat("the module has a submodule \"", path, "\" already"));
  }
  ++next_order_;
  return absl::OkStatus();
}

const GraphModule::Submodule* GraphModule::FindSubmodule(absl::string_view path) const {
  if (const auto own = submodules_.find(path); own != submodules_.end()) return &own->second;
  return FindWithin(*this, &GraphModule::FindSubmodule, path);
}

absl::StatusOr<GraphModule::Submodule> GraphModule::GetSubmodule(absl::string_view path) const {
  const Submodule* submodule = FindSubmodule(path);
  if (submodule == nullptr) return absl::NotFoundError(absl::StrCat("the module has no submodule \"", path, "\""));
  return *submodule;
}

absl::Status GraphModule::DeleteSubmodule(absl::string_view path) {
  if (submodules_.erase(std::string(path)) == 0) return absl::NotFoundError(absl::StrCat("the module has no submodule \"", path, "\""));
  return absl::OkStatus();
}

std::vector<std::string> GraphModule::DeleteAllUnusedSubmodules() {
  std::set<std::string> named;  // what a node names, and everything that this lies in
  std::set<std::string> called;
  for (const Node* node : graph_->nodes()) {
    if (node->op() != Op::kGetAttr && node->op() != Op::kCallModule) continue;
    const std::string& path = node->path();
    named.insert(path);
    for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1)) named.insert(path.substr(0, dot));
    if (node->op() == Op::kCallModule) called.insert(path);
  }
  std::vector<std::string> deleted;
  for (auto it = submodules_.begin(); it != submodules_.end();) {
    const std::string& path = it->first;
    bool used = named.contains(path);
    for (std::size_t dot = path.find('.'); !used && dot != std::string::npos; dot = path.find('.', dot + 1)) {
      used = called.contains(path.substr(0, dot));
    }
    if (used) {
      ++it;
    } else {
      deleted.push_back(path);
      it = submodules_.erase(it);
    }
  }
  return deleted;
}

std::shared_ptr<GraphModule> GraphModule::Clone() const {
  Clones clones;
  return Clone(clones);
}

std::shared_ptr<GraphModule> GraphModule::Clone(Clones& clones) const {
  if (const auto it = clones.find(this); it != clones.end()) return it->second;
  auto clone = std::make_shared<GraphModule>();
  clones.emplace(this, clone);
  clone->graph_->CopyFrom(*graph_);
  clone->attrs_ = attrs_;
  clone->attr_index_.reserve(attrs_.size());
  for (const auto& [path, attr] : clone->attrs_) clone->attr_index_.emplace(path, &attr);
  for (const auto& [key, value] : meta_) clone->meta_.emplace(key, CopyContainers(value));
  clone->next_order_ = next_order_;
  for (const auto& [path, submodule] : submodules_) {
    clone->submodules_[path] =
        Submodule{submodule.graph_module == nullptr ? nullptr : submodule.graph_module->Clone(clones), submodule.callable, submodule.order};
  }
  return clone;
}

absl::Status GraphModule::Lint() const {
  absl::flat_hash_set<const GraphModule*> seen;
  return Lint(seen);
}

absl::Status GraphModule::Lint(absl::flat_hash_set<const GraphModule*>& seen) const {
  if (!seen.insert(this).second) return absl::OkStatus();
  DDPOPT_RETURN_IF_ERROR(graph_->Lint());
  for (const Node* node : graph_->nodes()) {
    const bool exists = node->op() == Op::kGetAttr      ? FindAttr(node->path()) != nullptr || FindSubmodule(node->path()) != nullptr
                        : node->op() == Op::kCallModule ? FindSubmodule(node->path()) != nullptr
                                                        : true;
    if (!exists)
      return absl::InternalError(absl::StrCat("lint: %", node->name(), " names \"", node->path(), "\", which the module does not have"));
  }
  for (const auto& [path, submodule] : submodules_) {
    if (submodule.graph_module == nullptr) continue;
    DDPOPT_RETURN_IF_ERROR(Annotate(submodule.graph_module->Lint(seen), absl::StrCat("in submodule \"", path, "\"")));
  }
  return absl::OkStatus();
}

}  // namespace ddpopt::fx
