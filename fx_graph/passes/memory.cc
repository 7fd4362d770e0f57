#include "fx_graph/passes/memory.h"

#include <utility>

#include "ATen/core/Tensor.h"
#include "absl/container/flat_hash_map.h"

namespace ddpopt::fx {
namespace {

class UnionFind {
 public:
  explicit UnionFind(std::size_t size) : parent_(size) {
    for (std::size_t i = 0; i < size; ++i) parent_[i] = static_cast<std::uint32_t>(i);
  }
  std::uint32_t Find(std::uint32_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void Union(std::uint32_t a, std::uint32_t b) {
    a = Find(a);
    b = Find(b);
    // Towards the older node: trees stay flat, as the newer one is usually alone.
    if (a < b) std::swap(a, b);
    parent_[a] = b;
  }

 private:
  std::vector<std::uint32_t> parent_;
};

// Something to tell memory by: the storage, or the tensor where there is none. Null for an undefined tensor.
const void* MemoryOf(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return impl->has_storage() ? static_cast<const void*>(impl->unsafe_storage().unsafeGetStorageImpl()) : impl;
}

}  // namespace

Memory::Memory(const GraphModule& module, Effects& effects) : index_(module.graph()) {
  const Graph& graph = module.graph();
  std::uint32_t next = 0;
  for (const Node* node : graph.nodes()) index_[node] = next++;

  UnionFind sets(graph.size());
  std::vector<const Node*> externals;  // inputs and attributes that hold tensors
  bool any_unknown = false;
  absl::flat_hash_map<const void*, std::uint32_t> owner;
  // Whether the value holds tensors.
  const auto add_memory = [&](const Node* node, const c10::IValue& value) {
    bool tensors = false;
    value.visit([&](const c10::IValue& part) {
      if (!part.isTensor()) return false;
      tensors = true;
      if (const void* memory = MemoryOf(part.toTensor()); memory != nullptr) {
        sets.Union(index_.at(node), owner.emplace(memory, index_.at(node)).first->second);
      }
      return false;
    });
    return tensors;
  };
  for (const Node* node : graph.nodes()) {
    if (node->op() == Op::kPlaceholder) {
      const bool unknown = node->meta().val.isNone();
      any_unknown |= unknown;
      if (add_memory(node, node->meta().val) || unknown) externals.push_back(node);
    } else if (node->op() == Op::kGetAttr) {
      const absl::StatusOr<GraphModule::Attr> attr = module.GetAttr(node->path());
      if (attr.ok() && add_memory(node, attr->value)) externals.push_back(node);
    } else {
      effects.ForEachAliased(*node, [&](Node* input) { sets.Union(index_.at(node), index_.at(input)); });
    }
  }
  if (any_unknown) {
    for (const Node* node : externals) sets.Union(index_.at(node), index_.at(externals.front()));
  }

  // Dense numbers.
  classes_.resize(graph.size());
  std::vector<std::uint32_t> number(graph.size(), static_cast<std::uint32_t>(-1));
  for (std::uint32_t i = 0; i < classes_.size(); ++i) {
    std::uint32_t& of_root = number[sets.Find(i)];
    if (of_root == static_cast<std::uint32_t>(-1)) of_root = size_++;
    classes_[i] = of_root;
  }
  exposed_.resize(size_);
  for (const Node* node : externals) exposed_[ClassOf(*node)] = true;
  for (const Node* node : graph.nodes()) {
    if (!effects.Of(*node).anything) continue;
    exposed_[ClassOf(*node)] = true;
    for (const Node* input : node->all_input_nodes()) exposed_[ClassOf(*input)] = true;
  }
}

}  // namespace ddpopt::fx
