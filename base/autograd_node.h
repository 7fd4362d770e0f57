#ifndef DDPOPT_BASE_AUTOGRAD_NODE_H_
#define DDPOPT_BASE_AUTOGRAD_NODE_H_

// Makes autograd nodes, which newer LibTorch counts by intrusive_ptr and older (2.11) by shared_ptr.
//
//   NodePtr<MyBackward> node = MakeNode<MyBackward>(arguments...);
//   node->set_next_edges(torch::autograd::collect_next_edges(inputs));
//   torch::autograd::set_history(output, node);

#include <memory>
#include <type_traits>
#include <utility>

#include "ATen/core/Tensor.h"
#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/autograd/function.h"

namespace ddpopt {
namespace internal {

template <typename Pointer>
struct NodeMaker;

template <typename Node>
struct NodeMaker<c10::intrusive_ptr<Node>> {
  template <typename T>
  using Ptr = c10::intrusive_ptr<T>;
  template <typename T, typename... Args>
  static Ptr<T> Make(Args&&... args) {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  }
};

template <typename Node>
struct NodeMaker<std::shared_ptr<Node>> {
  template <typename T>
  using Ptr = std::shared_ptr<T>;
  template <typename T, typename... Args>
  static Ptr<T> Make(Args&&... args) {
    // Deletes long chains of nodes without recursion. Newer LibTorch has no such function, so the name must depend on the type.
    return std::shared_ptr<T>(new T(std::forward<Args>(args)...), [](auto* node) { deleteNode(node); });
  }
};

using ThisNodeMaker = NodeMaker<std::decay_t<decltype(std::declval<const at::Tensor&>().grad_fn())>>;

}  // namespace internal

template <typename T>
using NodePtr = internal::ThisNodeMaker::Ptr<T>;

template <typename T, typename... Args>
NodePtr<T> MakeNode(Args&&... args) {
  return internal::ThisNodeMaker::Make<T>(std::forward<Args>(args)...);
}

}  // namespace ddpopt

#endif  // DDPOPT_BASE_AUTOGRAD_NODE_H_
