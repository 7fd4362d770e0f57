#include "ddpopt/aot/joint_values.h"

#include <algorithm>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/for_each_tensor.h"
#include "fx_graph/checkpoint_region.h"
#include "fx_graph/passes/effects.h"
#include "fx_graph/passes/flops.h"

namespace ddpopt {
namespace {

using c10::IValue;
using Kind = JointValue::Kind;

template <typename Fn>
void ForEachTensorOf(const fx::Node* node, const Fn& fn) {
  if (node->has_meta()) ForEachTensor(node->meta().val, fn);
}

const c10::StorageImpl* MemoryOf(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

bool IsGetItem(const fx::Node* node) {
  const auto* opaque = std::get_if<fx::OpaqueTarget>(&node->target());
  return opaque != nullptr && opaque->text == "operator.getitem";
}

// The operand in whose memory all of the node's tensors lie; null if there is none.
const fx::Node* OperandViewed(const fx::Node* node) {
  const c10::StorageImpl* memory = nullptr;
  bool one = true;
  ForEachTensorOf(node, [&](const at::Tensor& tensor) {
    const c10::StorageImpl* own = MemoryOf(tensor);
    one &= own != nullptr && (memory == nullptr || memory == own);
    memory = own;
  });
  if (!one || memory == nullptr) return nullptr;
  for (const fx::Node* input : node->all_input_nodes()) {
    bool same = false;
    ForEachTensorOf(input, [&](const at::Tensor& tensor) { same |= MemoryOf(tensor) == memory; });
    if (same) return input;
  }
  return nullptr;
}

// Operators that look at the grad mode, which is off when backward runs: this one keeps what its own backward needs only if it is on.
bool AsksForGradMode(const fx::Node* node) { return node->operator_handle().operator_name().name == "aten::mkldnn_rnn_layer"; }

// Attention without dropout draws no number, whatever its tag says.
bool DrawsNothing(const fx::Node* node) {
  if (!absl::StrContains(node->operator_handle().operator_name().name, "scaled_dot_product")) return false;
  const auto& arguments = node->operator_handle().schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() != "dropout_p") continue;
    IValue given = arguments[i].default_value().value_or(IValue());
    if (i < node->args().size()) given = node->args()[i].constant();
    for (const auto& [name, argument] : node->kwargs()) {
      if (name == arguments[i].name()) given = argument.constant();
    }
    return (given.isDouble() && given.toDouble() == 0) || (given.isInt() && given.toInt() == 0);
  }
  return false;
}

}  // namespace

JointValues::JointValues(const JointGraph& joint) : joint_(joint), values_(joint.module->graph()) {
  Classify();
  FindRegions();
  FindRecomputable();
  Estimate();
}

absl::Status JointValues::Check() const {
  for (int i = 0; i < num_forward_results(); ++i) {
    const fx::Node* node = results()[i].node();
    if (node == nullptr || is_backward(node)) {
      return absl::InternalError(absl::StrCat("result ", i, " of the joint graph is no result of its forward"));
    }
  }
  return absl::OkStatus();
}

void JointValues::Classify() {
  fx::Effects effects(*joint_.module);
  int placeholder = 0;
  for (fx::Node* node : graph().nodes()) {
    if (node->op() == fx::Op::kOutput) continue;
    JointValue& value = values_[node];
    if (node->op() == fx::Op::kPlaceholder) {
      const bool primal = placeholder < static_cast<int>(joint_.primals.size());
      value.kind = primal ? Kind::kPrimal : Kind::kBackward;
      if (primal) value.index = placeholder;
      ++placeholder;
    } else if (node->id() >= joint_.first_backward_id) {
      value.kind = Kind::kBackward;
    } else if (IsGetItem(node)) {
      const fx::Node* of = node->args()[0].node();
      if (of != nullptr && values_.at(of).kind == Kind::kView) {
        value.kind = Kind::kView;
        value.base = of;
      }
    } else if (effects.Of(*node).pure()) {
      value.base = OperandViewed(node);
      if (value.base != nullptr) value.kind = Kind::kView;
    }
    if (value.kind == Kind::kBackward) {
      for (const fx::Node* input : node->all_input_nodes()) values_[input].needed = true;
      continue;
    }
    if (value.kind == Kind::kTensor && !(node->has_meta() && node->meta().val.isTensor())) value.kind = Kind::kTuple;
    forward_.push_back(node);
  }
  for (std::size_t i = num_forward_results(); i < results().size(); ++i) {
    if (const fx::Node* node = results()[i].node(); node != nullptr) values_[node].needed = true;
  }
  absl::flat_hash_set<const c10::StorageImpl*> kept;
  const auto keep = [&](const fx::Node* node) {
    ForEachTensorOf(node, [&](const at::Tensor& tensor) { kept.insert(MemoryOf(tensor)); });
  };
  for (const fx::Node* node : forward_) {
    if (values_.at(node).kind == Kind::kPrimal) keep(node);
  }
  for (int i = 0; i < joint_.num_values; ++i) {
    if (const fx::Node* node = results()[i].node(); node != nullptr) keep(node);
  }
  for (const fx::Node* node : forward_) {
    if (!node->has_meta() || !node->meta().val.isTensor() || !node->meta().val.toTensor().has_storage()) continue;
    const at::Tensor& fake = node->meta().val.toTensor();
    values_[node].free = kept.contains(MemoryOf(fake));
    values_[node].bytes = static_cast<int64_t>(fake.storage().nbytes());
  }
}

void JointValues::FindRegions() {
  for (const fx::Node* node : forward_) {
    if (!node->has_meta() || values_.at(node).kind == Kind::kPrimal) continue;
    const auto found = node->meta().custom.find(fx::kCheckpointRegion);
    if (found == node->meta().custom.end() || !found->second.isInt()) continue;
    values_[node].region = static_cast<int>(found->second.toInt());
    has_regions_ = true;
  }
  if (!has_regions_) return;
  for (int i = 0; i < num_forward_results(); ++i) {
    if (const fx::Node* node = results()[i].node(); node != nullptr) values_[node].leaves_region = true;
  }
  for (auto node = forward_.rbegin(); node != forward_.rend(); ++node) {
    JointValue& value = values_[*node];
    for (const fx::Node* user : (*node)->users()) {
      if (user->op() == fx::Op::kOutput || is_backward(user)) continue;
      const JointValue& of_user = values_.at(user);
      // What is looked at from outside through a view is itself looked at.
      value.leaves_region |= of_user.region != value.region || (of_user.kind == Kind::kView && of_user.leaves_region);
    }
  }
}

void JointValues::FindRecomputable() {
  fx::Effects effects(*joint_.module);
  // The last node that writes to a memory: what was read or made before it can't be had again afterwards.
  absl::flat_hash_map<const c10::StorageImpl*, const fx::Node*> written;
  for (const fx::Node* node : forward_) {
    effects.ForEachWritten(*node, [&](const fx::Node* input) {
      ForEachTensorOf(input, [&](const at::Tensor& tensor) { written[MemoryOf(tensor)] = node; });
    });
  }
  absl::flat_hash_set<const c10::StorageImpl*> updated;
  for (const fx::Node* node : forward_) {
    const JointValue& value = values_.at(node);
    if (value.kind != Kind::kPrimal) break;
    if (std::find(joint_.updates.begin(), joint_.updates.end(), value.index) == joint_.updates.end()) continue;
    ForEachTensorOf(node, [&](const at::Tensor& tensor) { updated.insert(MemoryOf(tensor)); });
  }
  for (const fx::Node* node : forward_) {
    JointValue& value = values_[node];
    if (value.kind == Kind::kPrimal) continue;
    if (!IsGetItem(node)) {
      if (!node->is_operator() || !absl::StartsWith(node->operator_handle().operator_name().name, "aten::")) continue;
      const fx::NodeEffects of = effects.Of(*node);
      if (of.writes || of.other || of.anything || (of.random && !DrawsNothing(node)) || AsksForGradMode(node)) continue;
    }
    bool lost = false;
    const auto look = [&](const at::Tensor& tensor) {
      const auto found = written.find(MemoryOf(tensor));
      lost |= updated.contains(MemoryOf(tensor)) || (found != written.end() && node->IsBefore(found->second));
    };
    for (const fx::Node* input : node->all_input_nodes()) ForEachTensorOf(input, look);
    ForEachTensorOf(node, look);
    value.can_recompute = !lost;
  }
}

void JointValues::Estimate() {
  constexpr double kFlopsPerSecond = 1e11, kBytesPerSecond = 2e10;
  for (const fx::Node* node : forward_) {
    JointValue& value = values_[node];
    if (value.kind == Kind::kPrimal || value.kind == Kind::kView || IsGetItem(node)) continue;
    const auto add = [&](const at::Tensor& tensor) { value.bytes_moved += static_cast<int64_t>(tensor.numel() * tensor.element_size()); };
    for (const fx::Node* input : node->all_input_nodes()) ForEachTensorOf(input, add);
    ForEachTensorOf(node, add);
    value.flops = fx::Flops(*node);
    value.seconds = std::max(value.flops / kFlopsPerSecond, static_cast<double>(value.bytes_moved) / kBytesPerSecond);
  }
}

}  // namespace ddpopt
