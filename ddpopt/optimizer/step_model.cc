#include "ddpopt/optimizer/step_model.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ddpopt/optimizer/parameter_uses.h"

namespace ddpopt {
namespace {

// A bit for each dtype and device.
class Groups {
 public:
  absl::StatusOr<uint64_t> Of(const at::Tensor& tensor) {
    const std::pair<c10::ScalarType, c10::Device> kind(tensor.scalar_type(), tensor.device());
    auto found = std::find(kinds_.begin(), kinds_.end(), kind);
    if (found == kinds_.end()) {
      if (kinds_.size() == 64) return absl::UnimplementedError("the parameters have more than 64 kinds of dtype and device");
      found = kinds_.insert(found, kind);
    }
    return uint64_t{1} << (found - kinds_.begin());
  }

 private:
  std::vector<std::pair<c10::ScalarType, c10::Device>> kinds_;
};

// Parameters, buffers and constants, each tensor once.
class HeldBytes {
 public:
  void Add(const c10::IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined()) return;
    if (seen_.insert(value.toTensor().unsafeGetTensorImpl()).second) bytes_ += OwnBytes(value.toTensor());
  }
  void Add(const fx::GraphModule& module) {
    for (const auto& [path, attr] : module.attrs()) Add(attr.value);
    for (const auto& [path, submodule] : module.submodules()) {
      if (submodule.graph_module != nullptr) Add(*submodule.graph_module);
    }
    for (const fx::Node* node : module.graph().nodes()) {
      if (node->op() == fx::Op::kPlaceholder && node->meta().is_parameter) Add(node->meta().val);
    }
  }
  int64_t bytes() const { return bytes_; }

 private:
  absl::flat_hash_set<const at::TensorImpl*> seen_;
  int64_t bytes_ = 0;
};

}  // namespace

std::vector<std::string> GraphStep::BucketEnds(const std::vector<int>& borders) const {
  std::vector<std::string> ends;
  for (const int border : borders) ends.push_back(absl::StrCat("node:", nodes[static_cast<std::size_t>(border)]->name()));
  return ends;
}

std::vector<int> GraphStep::BordersOf(const BucketAssignment& assignment) const {
  std::vector<int> borders;
  int position = 0;
  for (std::size_t bucket = assignment.buckets.size(); bucket-- > 1;) {
    for (const fx::Node* node : assignment.buckets[bucket].nodes) position += IsComputation(*node);
    borders.push_back(position);
  }
  return borders;
}

absl::StatusOr<GraphStep> MakeGraphStep(const fx::GraphModule& module, const BucketOptions& options, const GraphCosts& costs) {
  GraphStep step;
  const ParameterUses uses(module, options.ignored_parameters);
  DDPOPT_ASSIGN_OR_RETURN(const Readiness ready, FindReadiness(module, uses));
  absl::flat_hash_map<const fx::Node*, int> position_of;
  Groups groups;
  const double known = [&] {
    double seconds = 0;
    for (const auto& [node, cost] : costs.nodes) seconds += cost.backward;
    return seconds;
  }();
  // What isn't any node's (accumulations, the loss's own) is spread over all.
  const double scale = known > 0 && costs.backward > known ? costs.backward / known : 1;
  for (const fx::Node* node = module.graph().back(); node != nullptr; node = node->prev()) {
    if (!IsComputation(*node)) continue;
    StepNode entry;
    if (const auto cost = costs.nodes.find(node); cost != costs.nodes.end()) {
      entry.backward = cost->second.backward * scale;
      entry.live_bytes = cost->second.live_bytes;
    }
    for (const fx::Node* user : node->users()) {
      const auto known_user = position_of.find(user);
      entry.earliest_user = std::min(entry.earliest_user, known_user == position_of.end() ? StepNode::kOutput : known_user->second);
    }
    if (const auto parameters = ready.at.find(node); parameters != ready.at.end()) {
      for (const Parameter& parameter : parameters->second) {
        DDPOPT_ASSIGN_OR_RETURN(const uint64_t group, groups.Of(parameter.tensor));
        entry.parameter_bytes += OwnBytes(parameter.tensor);
        entry.parameter_groups |= group;
      }
    }
    position_of.emplace(node, static_cast<int>(step.nodes.size()));
    step.nodes.push_back(node);
    step.model.nodes.push_back(entry);
  }
  std::vector<at::Tensor> unused;
  uses.ForEach([&](const std::string&, const at::Tensor& tensor) {
    if (!ready.node_of.contains(tensor.unsafeGetTensorImpl())) unused.push_back(tensor);
  });
  for (const at::Tensor& tensor : unused) {
    DDPOPT_ASSIGN_OR_RETURN(const uint64_t group, groups.Of(tensor));
    step.model.unused_bytes += OwnBytes(tensor);
    step.model.unused_groups |= group;
  }
  step.model.forward = costs.forward;
  step.model.forward_peak_bytes = costs.peak_bytes;
  // Gradients, and the buckets that they are copied to.
  HeldBytes held;
  held.Add(module);
  step.model.fixed_bytes = held.bytes() + 2 * step.model.parameter_bytes();
  return step;
}

}  // namespace ddpopt
