#include "ddpopt/aot/buffer_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace ddpopt {

int64_t AlignBytes(int64_t bytes) { return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment; }

BufferPlan PlanBuffers(const std::vector<BufferRequest>& requests) {
  struct Placed {
    int64_t begin, end;
    int first, last;
  };
  BufferPlan plan;
  plan.offsets.assign(requests.size(), 0);
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return requests[a].bytes > requests[b].bytes; });
  std::vector<Placed> placed;  // by `begin`
  placed.reserve(requests.size());
  for (const std::size_t index : order) {
    const BufferRequest& request = requests[index];
    const int64_t bytes = AlignBytes(request.bytes);
    if (bytes == 0) continue;
    // Over those that live at the same time, from the lowest up: the tightest gap, else behind the last.
    int64_t free_from = 0, best = -1, best_gap = std::numeric_limits<int64_t>::max();
    for (const Placed& other : placed) {
      if (other.last < request.first || request.last < other.first) continue;
      const int64_t gap = other.begin - free_from;
      if (gap >= bytes && gap < best_gap) {
        best = free_from;
        best_gap = gap;
      }
      free_from = std::max(free_from, other.end);
    }
    if (best < 0) best = free_from;
    plan.offsets[index] = best;
    plan.bytes = std::max(plan.bytes, best + bytes);
    const Placed here{best, best + bytes, request.first, request.last};
    placed.insert(std::upper_bound(placed.begin(), placed.end(), here, [](const Placed& a, const Placed& b) { return a.begin < b.begin; }),
                  here);
  }
  return plan;
}

}  // namespace ddpopt
