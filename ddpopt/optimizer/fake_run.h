#ifndef DDPOPT_OPTIMIZER_FAKE_RUN_H_
#define DDPOPT_OPTIMIZER_FAKE_RUN_H_

// Runs a graph on fake tensors: its forward, and the backward of what training would minimise, without any data.
//
//   FakeRunHooks hooks;
//   hooks.on_operator = [&](const c10::OperatorHandle& op, const auto& arguments, const auto& results) { ... };
//   absl::StatusOr<std::vector<c10::IValue>> outputs = RunGraphOnFakes(module, inputs, hooks);
//
// Of torch.cond both branches are run, and the first one's values go on. Nothing real changes.

#include <functional>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/ivalue.h"
#include "absl/status/statusor.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

struct FakeRunHooks {
  // Before each node of the graph itself that computes, and after it; nested graphs' nodes are parts of it.
  std::function<void(const fx::Node& node)> before_node;
  std::function<void(const fx::Node& node)> after_node;
  // Called with each node's fake value, nested graphs' nodes included.
  std::function<void(const fx::Node& node, const c10::IValue& value)> on_value;
  // Before and after each operator below autograd; after it with its schema's arguments and what it gave. Those of a node come before its
  // on_value.
  std::function<void(const c10::OperatorHandle& op)> before_operator;
  std::function<void(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments, const std::vector<c10::IValue>& results)>
      on_operator;
  // False: forward alone. Called between forward and backward otherwise, if set.
  bool backward = true;
  std::function<void()> before_backward;
};

// What training would minimise, of a graph's flat outputs: tensors whose sum it is.
std::vector<at::Tensor> LossesOf(const std::vector<c10::IValue>& outputs);

// `inputs`: one per placeholder, with or without data. Gives the flat outputs, fakes. Error: Internal, with the node and the operator.
absl::StatusOr<std::vector<c10::IValue>> RunGraphOnFakes(const fx::GraphModule& module, std::vector<c10::IValue> inputs,
                                                         const FakeRunHooks& hooks);

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_FAKE_RUN_H_
