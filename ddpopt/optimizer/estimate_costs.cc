#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "ATen/SequenceNumber.h"
#include "absl/container/flat_hash_set.h"
#include "base/for_each_tensor.h"
#include "base/status.h"
#include "c10/core/Storage.h"
#include "ddpopt/optimizer/fake_run.h"
#include "ddpopt/optimizer/graph_costs.h"
#include "ddpopt/optimizer/operator_work.h"
#include "torch/csrc/autograd/function.h"

namespace ddpopt {
namespace {

using c10::IValue;
using fx::Node;

// How many bytes of the storages that operators made are alive over time, a moment being a node of the graph or of autograd.
class LiveBytes {
 public:
  void See(const IValue& result) {
    ForEachTensor(result, [&](const at::Tensor& tensor) {
      if (!tensor.has_storage()) return;
      c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
      if (storage->nbytes() == 0 || !living_.insert(storage).second) return;
      entries_.push_back({c10::weak_intrusive_ptr<c10::StorageImpl>(tensor.storage().getWeakStorageImpl()), storage,
                          static_cast<int64_t>(storage->nbytes()), now_});
    });
  }
  // What was there before is not to be counted.
  void Ignore(const IValue& value) {
    ForEachTensor(value, [&](const at::Tensor& tensor) {
      if (tensor.has_storage() && living_.insert(tensor.storage().unsafeGetStorageImpl()).second) {
        ignored_.push_back(tensor.storage());  // alive as long as this, so that no other gets its place
      }
    });
  }
  // Goes on to the next moment; gives its number.
  int Tick() {
    std::size_t kept = 0;
    for (Entry& entry : entries_) {
      if (entry.storage.expired()) {
        living_.erase(entry.address);
        ended_.push_back({entry.bytes, entry.born, now_});
      } else {
        if (&entries_[kept] != &entry) entries_[kept] = std::move(entry);
        ++kept;
      }
    }
    entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(kept), entries_.end());
    return ++now_;
  }
  // By moment. What is still alive at the end, gradients of parameters that is, is left out from moment `gradients_from` on.
  std::vector<int64_t> Curve(int gradients_from) {
    std::vector<int64_t> change(static_cast<std::size_t>(now_) + 2);
    const auto add = [&](int64_t bytes, int born, int died) {
      change[static_cast<std::size_t>(born)] += bytes;
      change[static_cast<std::size_t>(died) + 1] -= bytes;
    };
    for (const Life& life : ended_) add(life.bytes, life.born, life.died);
    for (const Entry& entry : entries_) {
      if (entry.born < gradients_from) add(entry.bytes, entry.born, now_);
    }
    int64_t live = 0;
    for (int64_t& value : change) value = live += value;
    return change;
  }

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const void* address;
    int64_t bytes;
    int born;
  };
  struct Life {
    int64_t bytes;
    int born, died;
  };
  int now_ = 0;
  std::vector<Entry> entries_;
  std::vector<Life> ended_;
  absl::flat_hash_set<const void*> living_;
  std::vector<c10::Storage> ignored_;
};

class Estimate {
 public:
  explicit Estimate(const DeviceProfile& profile) : profile_(profile) {}

  absl::StatusOr<GraphCosts> Run(const fx::GraphModule& module, const std::vector<IValue>& inputs) {
    FakeRunHooks hooks;
    hooks.before_node = [&](const Node& node) { current_ = &node; };
    hooks.after_node = [&](const Node& node) {
      made_.push_back({at::sequence_number::peek(), &node});
      current_ = nullptr;
      live_.Tick();
    };
    hooks.on_value = [&](const Node& node, const IValue& value) {
      if (node.op() == fx::Op::kGetAttr || node.op() == fx::Op::kPlaceholder) live_.Ignore(value);
    };
    hooks.before_backward = [&] {
      backward_ = true;
      backward_begins_ = live_.Tick();
    };
    hooks.before_operator = [&](const c10::OperatorHandle&) {
      if (backward_) EnterBackwardNode();
    };
    hooks.on_operator = [&](const c10::OperatorHandle& op, const std::vector<IValue>& arguments, const std::vector<IValue>& results) {
      Add(WorkOf(op, arguments, results));
      for (const IValue& result : results) live_.See(result);
    };
    begin_ = at::sequence_number::peek();
    {
      // Freed before the memory is counted up: outputs live as long as the caller likes.
      const absl::StatusOr<std::vector<IValue>> outputs = RunGraphOnFakes(module, inputs, hooks);
      if (!outputs.ok()) return outputs.status();
      if (current_ != nullptr) left_at_[current_] = live_.Tick();
    }
    Settle(module);
    return std::move(costs_);
  }

 private:
  // Which node of the graph made the autograd node that runs.
  void EnterBackwardNode() {
    const auto running = torch::autograd::get_current_node();
    const Node* node = current_;
    if (running != nullptr) {
      const uint64_t number = running->sequence_nr();
      const auto after =
          std::upper_bound(made_.begin(), made_.end(), number, [](uint64_t value, const Made& made) { return value < made.end; });
      if (number < begin_ || after == made_.end()) return;  // an accumulation, or the loss's own sum
      node = after->node;
    }
    if (node == current_) return;
    const int moment = live_.Tick();
    if (current_ != nullptr) left_at_[current_] = moment - 1;
    current_ = node;
  }

  void Add(const OperatorWork& work) {
    const double seconds = profile_.Seconds(work);
    if (backward_) {
      costs_.backward += seconds;
    } else {
      costs_.forward += seconds;
    }
    if (current_ == nullptr) return;
    NodeCost& cost = costs_.nodes[current_];
    (backward_ ? cost.backward : cost.forward) += seconds;
    (backward_ ? cost.backward_flops : cost.forward_flops) += work.flops;
    (backward_ ? cost.backward_bytes : cost.forward_bytes) += work.bytes;
  }

  void Settle(const fx::GraphModule& module) {
    if (backward_begins_ == 0) backward_begins_ = live_.Tick();
    const std::vector<int64_t> curve = live_.Curve(backward_begins_);
    const auto at = [&](int moment) { return curve[static_cast<std::size_t>(moment)]; };
    costs_.saved_bytes = at(backward_begins_);
    costs_.peak_bytes = *std::max_element(curve.begin(), curve.end());
    // Backward of a node without any comes with that of the node after it.
    int64_t live = costs_.saved_bytes;
    for (const Node* node = module.graph().back(); node != nullptr; node = node->prev()) {
      if (node->op() == fx::Op::kPlaceholder || node->op() == fx::Op::kGetAttr || node->op() == fx::Op::kOutput) continue;
      if (const auto left = left_at_.find(node); left != left_at_.end()) live = std::min(live, at(left->second));
      costs_.nodes[node].live_bytes = live;
    }
  }

  struct Made {
    uint64_t end;  // autograd nodes with lower numbers are of this node or those before it
    const Node* node;
  };
  const DeviceProfile& profile_;
  GraphCosts costs_;
  LiveBytes live_;
  uint64_t begin_ = 0;
  std::vector<Made> made_;
  const Node* current_ = nullptr;
  bool backward_ = false;
  int backward_begins_ = 0;
  absl::flat_hash_map<const Node*, int> left_at_;
};

}  // namespace

absl::StatusOr<GraphCosts> EstimateGraphCosts(const fx::GraphModule& module, const std::vector<IValue>& inputs,
                                              const DeviceProfile& profile) {
  return Estimate(profile).Run(module, inputs);
}

}  // namespace ddpopt
