#ifndef DDPOPT_CAPTURE_TRACER_CHECKPOINT_REGION_H_
#define DDPOPT_CAPTURE_TRACER_CHECKPOINT_REGION_H_

// Marks what forward computes in a scope for recomputation, as Python's torch.utils.checkpoint: a backend that compiles the backward saves
// what enters and leaves the region, and computes its inside again.
//
//   for (auto& block : blocks) x = Checkpoint([&](at::Tensor in) { return block->forward(in); }, x);
//
//   { CheckpointRegion region;  x = block->forward(x); }      // the same
//
// It is a mark on the nodes of a captured graph, and changes no value: random numbers drawn inside are saved, not drawn again. Where forward
// runs eagerly, or the backend is `eager`, it has no effect. A region inside another belongs to the outer one. Per thread.

#include <cstdint>
#include <functional>
#include <utility>

namespace ddpopt {

class CheckpointRegion {
 public:
  CheckpointRegion();
  ~CheckpointRegion();
  CheckpointRegion(const CheckpointRegion&) = delete;
  CheckpointRegion& operator=(const CheckpointRegion&) = delete;

  // Of the outermost region that the thread is in: different for each, never negative. -1 outside.
  static int64_t Current();
};

template <typename Fn, typename... Args>
decltype(auto) Checkpoint(Fn&& fn, Args&&... args) {
  const CheckpointRegion region;
  return std::invoke(std::forward<Fn>(fn), std::forward<Args>(args)...);
}

}  // namespace ddpopt

#endif  // DDPOPT_CAPTURE_TRACER_CHECKPOINT_REGION_H_
