#ifndef DDPOPT_OPTIMIZER_GRAPH_COSTS_H_
#define DDPOPT_OPTIMIZER_GRAPH_COSTS_H_

// What each node of a graph costs in a training step, forward and backward: estimated from a run on fake tensors, or measured.
//
//   absl::StatusOr<GraphCosts> costs = EstimateGraphCosts(module, inputs, profile);   // no data, no device
//   absl::StatusOr<GraphCosts> costs = MeasureGraphCosts(module, inputs);             // some steps of the graph, as it would be trained
//   costs->nodes.at(node).backward;                                                    // seconds
//
// What is minimised is the output, if the graph gives one scalar that requires gradients; else the sum of the sums of its outputs that do.
// A node's backward is that of the autograd nodes that its forward made; the nodes of nested graphs count for the one that calls them, both
// branches of a cond among them.

#include <cstdint>
#include <vector>

#include "ATen/core/ivalue.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "ddpopt/optimizer/device_profile.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

struct NodeCost {
  double forward = 0, backward = 0;  // seconds
  // The following are estimated alone.
  double forward_flops = 0, backward_flops = 0;  // see operator_work.h
  double forward_bytes = 0, backward_bytes = 0;
  int64_t live_bytes = 0;  // that forward made and that are still held after this node's backward
};

struct GraphCosts {
  absl::flat_hash_map<const fx::Node*, NodeCost> nodes;  // those that compute
  double forward = 0, backward = 0;                      // seconds
  // Estimated alone: what backward needs of forward when it begins, and the most that is held at once, gradients of parameters left out.
  int64_t saved_bytes = 0;
  int64_t peak_bytes = 0;
};

// `inputs`: one per placeholder, with or without data. Changes nothing real. Error: Internal with the node and the operator.
absl::StatusOr<GraphCosts> EstimateGraphCosts(const fx::GraphModule& module, const std::vector<c10::IValue>& inputs,
                                              const DeviceProfile& profile);

// Runs forward and backward on real inputs and the module's real parameters, for about `seconds`; the first time doesn't count, and each
// node's time is the median of at least two others, and at most nine. Nothing is left changed: the graph writes to copies of buffers and
// inputs, no gradient is accumulated, and the default generators are as before. Operators that are not ended when their call returns (GPUs)
// can't be measured so: Unimplemented for a module that is not on the CPU. Error: Internal for what can't be run.
absl::StatusOr<GraphCosts> MeasureGraphCosts(const fx::GraphModule& module, const std::vector<c10::IValue>& inputs, double seconds = 1.5);

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_GRAPH_COSTS_H_
