#ifndef DDPOPT_AOT_RECORDING_MODE_H_
#define DDPOPT_AOT_RECORDING_MODE_H_

// The mode that writes down what autograd has left of a computation: every operator below it, on fakes, as a node. Private to this package;
// see joint_graph.h.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "ddpopt/aot/decompositions.h"
#include "fx_graph/graph.h"
#include "interpreter/mode_stack.h"

namespace ddpopt {

// Lies on the stack above the FakeTensorMode whose fakes it sees. All throw c10::Error.
class RecordingMode : public Mode, public std::enable_shared_from_this<RecordingMode> {
 public:
  // Operators of the set are recorded as what their decompositions call.
  RecordingMode(fx::Graph* graph, DecompositionSet decompositions) : graph_(graph), decompositions_(std::move(decompositions)) {}

  Level level() const override { return Level::kPostAutograd; }
  absl::string_view name() const override { return "RecordingMode"; }

  // A placeholder that stands for the fake.
  fx::Node* AddPlaceholder(absl::string_view name, const at::Tensor& fake);
  // The node that stands for it; an undefined tensor's is None. Names `what` if there is none.
  fx::Argument NodeOf(const at::Tensor& fake, absl::string_view what) const;

  void Handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) override;

  // What the piece calls at the moment: the operators that come are this one or parts of it.
  void set_caller(const c10::OperatorHandle* caller) { caller_ = caller; }

  // The marked region that the nodes to come belong to; -1: none.
  void set_region(int64_t region) { region_ = region; }
  int64_t region() const { return region_; }

  // Lets go of all tensors but those in the nodes' metadata.
  void Release();

 private:
  fx::Node* Mark(fx::Node* node) const;
  void Remember(fx::Node* node, const at::Tensor& fake);
  void RecordResult(fx::Node* node, const c10::IValue& result);
  void RecordElements(fx::Node* node, const std::vector<c10::IValue>& elements);
  fx::Argument Convert(const c10::IValue& value, absl::string_view op) const;

  bool DrawInPlace(const c10::OperatorHandle& op, torch::jit::Stack* stack);

  fx::Graph* graph_;
  const DecompositionSet decompositions_;
  const c10::OperatorHandle* caller_ = nullptr;
  int64_t region_ = -1;
  absl::flat_hash_map<const c10::TensorImpl*, fx::Node*> nodes_;
  std::vector<at::Tensor> kept_;  // so that an address stays its tensor's
};

}  // namespace ddpopt

#endif  // DDPOPT_AOT_RECORDING_MODE_H_
