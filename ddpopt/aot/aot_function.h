#ifndef DDPOPT_AOT_AOT_FUNCTION_H_
#define DDPOPT_AOT_AOT_FUNCTION_H_

// A piece compiled ahead of time: its forward and its backward are graphs below autograd, and autograd sees one node for both.
//
//   DDPOPT_ASSIGN_OR_RETURN(std::shared_ptr<const AotFunction> function, AotFunction::Compile(piece, fake_inputs));
//   c10::IValue result = function->Call({x});      // what the piece gives; result.toTensor().sum().backward() works

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "absl/status/statusor.h"
#include "ddpopt/aot/aot_options.h"
#include "ddpopt/aot/executor.h"
#include "ddpopt/aot/gradient_targets.h"
#include "ddpopt/aot/joint_graph.h"
#include "ddpopt/aot/partition.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

class AotFunction : public fx::Callable, public std::enable_shared_from_this<AotFunction> {
 public:
  // See TraceJointGraph and Partition, with their errors. Parameters, buffers and constants are shared with the piece. Valid for inputs of the fakes'
  // metadata (which is not checked: the guards' matter), autocast and requires_grad.
  static absl::StatusOr<std::shared_ptr<const AotFunction>> Compile(const fx::GraphModule& piece,
                                                                    const std::vector<c10::IValue>& fake_inputs,
                                                                    const AotOptions& options = {});

  // One value for each of the piece's placeholders. Fakes give fakes. Several threads may call at once, unless the piece writes buffers.
  // The node frees what it saved as its backward goes, unless retain_graph. Throws c10::Error: numbers other than those compiled for; a
  // parameter written to between forward and backward; create_graph (no second derivatives).
  c10::IValue Call(std::vector<c10::IValue> args) const override;

  const JointGraph& joint() const { return joint_; }
  const PartitionedGraph& parts() const { return parts_; }
  const Executor& forward() const { return *forward_; }
  const Executor& backward() const { return *backward_; }
  // The most bytes that a forward and its backward hold at once, besides parameters and inputs: workspace, saved values, results and
  // gradients; what operators allocate inside isn't known. 0 if one of the graphs is interpreted.
  int64_t PeakBytes() const;

 private:
  friend struct AotBackward;
  AotFunction(JointGraph joint, PartitionedGraph parts, const AotOptions& options);
  const Executor& inference() const;

  std::vector<at::Tensor> Bind(const std::vector<c10::IValue>& args) const;
  c10::IValue Results(const std::vector<at::Tensor>& primals, const std::vector<at::Tensor>& values) const;

  JointGraph joint_;
  PartitionedGraph parts_;
  const AotOptions options_;
  std::shared_ptr<const Executor> forward_, backward_;
  mutable std::once_flag inference_once_;
  mutable std::shared_ptr<const Executor> inference_;  // made at its first call
  struct Layout {
    // The tensor itself if it lies so, else a copy; zeros for an undefined one.
    at::Tensor Lay(at::Tensor tensor) const;
    std::vector<int64_t> sizes, strides;
    at::TensorOptions options;
  };
  std::vector<Layout> tangents_;
  // For each gradient, the tangents that it depends on.
  std::vector<std::vector<int>> tangents_of_;
  std::vector<int> primals_among_values_;
};

}  // namespace ddpopt

#endif  // DDPOPT_AOT_AOT_FUNCTION_H_
