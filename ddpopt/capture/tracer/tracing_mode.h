#ifndef DDPOPT_CAPTURE_TRACER_TRACING_MODE_H_
#define DDPOPT_CAPTURE_TRACER_TRACING_MODE_H_

// The mode that sees every operator that a forward calls, above autograd and autocast, runs it on fakes, and writes it down as a node.
// Private to this package; see trace.h.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "ddpopt/capture/tracer/forward_constants.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fx_graph/graph_module.h"
#include "fx_graph/passes/effects.h"
#include "interpreter/mode_stack.h"
#include "torch/csrc/autograd/edge.h"

namespace ddpopt {

// All throw c10::Error.
class TracingMode : public Mode {
 public:
  TracingMode(std::shared_ptr<FakeTensorMode> fakes, fx::GraphModule* module);

  Level level() const override { return Level::kPreAutograd; }
  absl::string_view name() const override { return "TracingMode"; }

  // A placeholder for a tensor leaf of the arguments. A tensor given a second time has a placeholder too, which nobody uses.
  // `real`: what the fake stands for, to be looked at where a question about values can't be left to the graph.
  void AddInput(const std::string& name, const at::Tensor& fake, const at::Tensor& real);
  // Returns the path that stands for the tensor: the given one, or that of a tie added before.
  std::string AddAttr(const std::string& path, const at::Tensor& real, fx::GraphModule::AttrKind kind);

  void Handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) override;

  // Makes the output node of forward's result and leaves the regions that are still open. Afterwards nothing more is traced.
  void Finish(const c10::IValue& result);
  // What is wrong with the trace as a whole: hooks on traced values, gradients of a backward inside forward, tensors changed unseen.
  void CheckEnd();
  // Lets go of every traced tensor, replacing those in metadata by ones without history. Returns the nodes whose tensors somebody else
  // keeps.
  std::vector<std::string> Release();

  // Paths of constants that are the graph's own copies.
  const std::vector<std::string>& own_constants() const { return own_constants_; }

 private:
  struct Known {
    fx::Node* node;
    at::Tensor fake;  // keeps the address from being used again
    bool requires_grad;
    std::optional<std::uint32_t> version;
    const void* grad_fn;
    const void* grad;
  };
  struct AutocastRegion {
    c10::DeviceType device;
    fx::Node* handle;
    int nesting;  // of autocast in the thread, as of the region's first operator
    bool was_enabled;
    at::ScalarType was_dtype;
  };
  struct AutocastState {
    bool enabled;
    at::ScalarType dtype;
    bool operator==(const AutocastState& o) const { return enabled == o.enabled && (!enabled || dtype == o.dtype); }
  };

  // Runs and records a call on fakes, constants and attributes.
  void Emit(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  at::Tensor EmitTensor(const c10::OperatorHandle& op, std::vector<c10::IValue> args);
  // Whether nobody has written to the node's value.
  bool Untouched(const fx::Node* node) const;
  // Whether both nodes hold the same values whatever the inputs are (but NaN).
  bool SameExpression(const fx::Node* a, const fx::Node* b, int depth) const;
  // Of an input or attribute that was not computed: the tensor itself; else undefined.
  at::Tensor RealOf(const fx::Node* node) const;
  void AnswerEqual(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  // Marks a new node with the CheckpointRegion that forward is in.
  fx::Node* MarkRegion(fx::Node* node);
  fx::Node* OpaqueCall(const char* target, std::vector<fx::Argument> args, absl::string_view name);

  // Custom autograd::Functions: a tensor inside `value` that has got such a function's history since it was recorded becomes an output of a
  // node that gives it one.
  void AttachFunctions(const c10::IValue& value, const std::string& op);
  void AttachFunction(const at::Tensor& output, const std::string& op);
  fx::Node* NodeOfEdge(const torch::autograd::Edge& edge, const std::string& function, const std::string& op);
  fx::Argument NodeOfSaved(const at::Tensor& saved, const std::string& function, const std::string& op);
  static const void* GradFnNow(const at::Tensor& tensor) { return tensor.requires_grad() ? tensor.grad_fn().get() : nullptr; }

  // Modes, told from the thread's state before a node is made.
  void SyncModes(const std::string& op);
  void SyncAutocast();
  void ExitAutocast();
  AutocastState& AutocastOf(c10::DeviceType device) { return device == c10::DeviceType::CPU ? autocast_cpu_ : autocast_cuda_; }

  void Record(fx::Node* node, const at::Tensor& fake);
  void Remember(fx::Node* node, const at::Tensor& fake);
  void RecordResult(fx::Node* node, const c10::IValue& result);
  void RecordElements(fx::Node* node, const std::vector<c10::IValue>& elements);
  // After an operator that had the tensor as an argument.
  void Refresh(const at::Tensor& fake);
  void Check(const Known& known, const std::string& op) const;
  void RefuseWriteToConstants(const fx::Node& node, const std::string& op);

  // The argument a value stands for; tensors inside `value` are replaced by their fakes.
  fx::Argument Convert(c10::IValue& value, const std::string& op);
  fx::Argument TensorNode(const at::Tensor& tensor, const std::string& op, at::Tensor* fake);
  fx::Argument OutputArgument(const c10::IValue& value);
  // The fake that stands for a real tensor.
  at::Tensor FakeOfReal(const at::Tensor& real, const std::string& op);
  void Materialize(const at::Tensor& real);
  at::Tensor ViewOf(const at::Tensor& base, const at::Tensor& base_fake, const at::Tensor& view);
  at::Tensor AttrFake(const std::string& path, const at::Tensor& real);
  std::string AddConstant(const at::Tensor& real, bool own);

  std::shared_ptr<FakeTensorMode> fakes_;
  fx::GraphModule* module_;
  fx::Effects effects_;

  bool initial_grad_;
  bool grad_;
  fx::Node* inference_ = nullptr;  // the handle of the region that is open
  bool grad_before_inference_ = false;
  std::size_t autocast_depth_at_inference_ = 0;
  std::vector<AutocastRegion> autocast_regions_;
  AutocastState autocast_cpu_;
  AutocastState autocast_cuda_;

  int64_t region_ = -1;     // the CheckpointRegion seen last, and its number among those of the trace
  int64_t num_regions_ = 0;
  int num_functions_ = 0;
  int num_constants_ = 0;
  std::vector<std::string> own_constants_;
  ForwardConstants constants_;
  absl::flat_hash_map<const c10::TensorImpl*, Known> known_;
  absl::flat_hash_map<const fx::Node*, at::Tensor> real_inputs_;
  absl::flat_hash_map<const c10::StorageImpl*, std::vector<const c10::TensorImpl*>> by_storage_;
  absl::flat_hash_map<const c10::StorageImpl*, std::string> constant_storages_;  // of fakes, and what they are called
  // Real tensors: parameters, buffers and constants by their paths, and tensors made in forward that have become fakes.
  absl::flat_hash_map<const c10::TensorImpl*, std::string> attr_paths_;
  absl::flat_hash_map<const c10::StorageImpl*, std::vector<at::Tensor>> attr_storages_;
  absl::flat_hash_map<const c10::TensorImpl*, at::Tensor> real_fakes_;
  absl::flat_hash_map<const c10::StorageImpl*, std::pair<at::Tensor, at::Tensor>> real_storages_;  // the first tensor and its fake
  std::vector<at::Tensor> kept_fakes_;  // of inputs and attributes
  std::vector<at::Tensor> kept_;        // real ones, so that addresses stay theirs
};

}  // namespace ddpopt

#endif  // DDPOPT_CAPTURE_TRACER_TRACING_MODE_H_
