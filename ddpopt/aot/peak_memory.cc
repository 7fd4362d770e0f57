#include "ddpopt/aot/peak_memory.h"

#include <algorithm>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "base/for_each_tensor.h"
#include "fx_graph/graph.h"

namespace ddpopt {
namespace {

using c10::IValue;
using Memory = const c10::StorageImpl*;

template <typename Fn>
void ForEachMemory(const fx::Node* node, const Fn& fn) {
  if (!node->has_meta()) return;
  ForEachTensor(node->meta().val, [&](const at::Tensor& tensor) {
    if (!tensor.has_storage()) return;
    const c10::Storage& storage = tensor.storage();
    fn(storage.unsafeGetStorageImpl(), static_cast<int64_t>(storage.nbytes()));
  });
}

// The largest sum of what lives at a time. What `held` holds lives all the time, and isn't counted; of other placeholders' memory, what is
// there when the run begins.
int64_t Peak(const fx::Graph& graph, const absl::flat_hash_set<Memory>& held) {
  absl::flat_hash_map<Memory, const fx::Node*> last;
  for (const fx::Node* node : graph.nodes()) {
    ForEachMemory(node, [&](Memory memory, int64_t) { last[memory] = node; });
    for (const fx::Node* input : node->all_input_nodes()) {
      ForEachMemory(input, [&](Memory memory, int64_t) { last[memory] = node; });
    }
  }
  int64_t live = 0, peak = 0;
  absl::flat_hash_map<Memory, int64_t> sizes;
  absl::flat_hash_set<Memory> made;
  for (const fx::Node* node : graph.nodes()) {
    std::vector<Memory> touched;
    const auto touch = [&](Memory memory, int64_t bytes) {
      if (held.contains(memory)) return;
      touched.push_back(memory);
      if (!made.insert(memory).second) return;
      sizes[memory] = bytes;
      live += bytes;
    };
    ForEachMemory(node, touch);
    peak = std::max(peak, live);
    for (const fx::Node* input : node->all_input_nodes()) ForEachMemory(input, touch);
    if (node->op() == fx::Op::kOutput) continue;
    for (const Memory memory : touched) {
      if (last.at(memory) != node) continue;
      if (const auto found = sizes.find(memory); found != sizes.end()) {
        live -= found->second;
        sizes.erase(found);
      }
    }
  }
  return peak;
}

}  // namespace

PeakMemory PredictPeakMemory(const JointGraph& joint, const PartitionedGraph& parts) {
  PeakMemory result;
  const fx::Graph& forward = parts.forward->graph();
  absl::flat_hash_set<Memory> primals;
  std::size_t placeholder = 0;
  for (const fx::Node* node : forward.FindNodes(fx::Op::kPlaceholder)) {
    if (placeholder++ < joint.primals.size()) ForEachMemory(node, [&](Memory memory, int64_t) { primals.insert(memory); });
  }
  result.forward_bytes = Peak(forward, primals);

  absl::flat_hash_set<Memory> values = primals;
  int64_t value_bytes = 0;
  const auto& results = forward.output_node()->args().front().elements();
  for (int i = 0; i < joint.num_values; ++i) {
    if (results[i].node() == nullptr) continue;
    ForEachMemory(results[i].node(), [&](Memory memory, int64_t bytes) {
      if (values.insert(memory).second) value_bytes += bytes;
    });
  }
  result.kept_bytes = value_bytes + parts.intermediate_bytes;
  const fx::Graph& backward = parts.backward->graph();
  int64_t tangent_bytes = 0;
  std::size_t input = 0;
  for (const fx::Node* node : backward.FindNodes(fx::Op::kPlaceholder)) {
    if (input++ < parts.saved.size()) continue;
    ForEachMemory(node, [&](Memory memory, int64_t bytes) {
      if (values.insert(memory).second) tangent_bytes += bytes;
    });
  }
  result.backward_bytes = value_bytes + tangent_bytes + Peak(backward, values);
  result.peak_bytes = std::max(result.forward_bytes, result.backward_bytes);
  return result;
}

}  // namespace ddpopt
