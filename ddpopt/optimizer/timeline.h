#ifndef DDPOPT_OPTIMIZER_TIMELINE_H_
#define DDPOPT_OPTIMIZER_TIMELINE_H_

// Predicts a data-parallel training step: when each bucket's gradients are ready, when its all-reduce runs, what of it backward doesn't
// hide, and how much memory a rank needs. Plain figures: no tensors, no graph (step_model.h makes a StepModel of a graph).
//
//   Timeline timeline = PredictTimeline(step, all_reduce, {12, 40});   // buckets end before positions 12 and 40
//   timeline.exposed;                                                   // seconds
//
// Times are seconds, sizes bytes. Pure functions; safe on several threads.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ddpopt/optimizer/cost_model.h"

namespace ddpopt {

// A node that computes, at its place in backward: positions count from the end of the graph, as backward runs.
struct StepNode {
  static constexpr int kNobody = std::numeric_limits<int>::max();  // no one uses it
  static constexpr int kOutput = -1;                               // the graph's output uses it

  double backward = 0;            // seconds
  int64_t parameter_bytes = 0;    // of the parameters whose gradients are complete after this node's backward
  uint64_t parameter_groups = 0;  // a bit for each dtype and device of these; what differs is reduced apart
  int earliest_user = kNobody;    // the least position among those that use its value
  int64_t live_bytes = 0;         // saved activations that are still held after its backward
};

struct StepModel {
  double forward = 0;
  std::vector<StepNode> nodes;  // in the order of backward
  // Parameters that forward doesn't use: in the bucket that is reduced last, and ready when backward ends.
  int64_t unused_bytes = 0;
  uint64_t unused_groups = 0;
  // Held all the time: parameters, gradients, buckets, optimizer state, buffers; and the most that forward holds beside them.
  int64_t fixed_bytes = 0;
  int64_t forward_peak_bytes = 0;

  double backward() const;
  int64_t parameter_bytes() const;  // that are reduced
};

// What overlapping costs. Zeros are a device whose communication runs beside its computation for free.
struct OverlapModel {
  double per_collective = 0;  // seconds of backward's own time that starting an all-reduce takes
  double slowdown = 0;        // what each second of communication adds to the backward beside it, in seconds
  double scratch = 0;         // bytes that the running all-reduce holds, for each byte of its bucket
};

struct BucketTime {
  int begin = 0, end = 0;  // positions [begin, end)
  int64_t bytes = 0;
  int collectives = 0;  // one for each dtype and device
  double ready = 0;     // from the beginning of backward on
  double start = 0;     // the later of ready and the end of the bucket before it
  double finish = 0;
};

struct Timeline {
  std::vector<BucketTime> buckets;  // in the order of reduction
  double forward = 0;
  double backward = 0;       // without communication
  double communication = 0;  // sum over the buckets
  double exposed = 0;        // step less forward less backward
  double step = 0;           // without the optimizer's
  int64_t peak_bytes = 0;
};

// Whether a bucket of positions [begin, end) may end there, by the rules of docs/buckets.md: it has a parameter, and a value that someone
// outside of it uses.
bool MayEndBucket(const StepModel& step, int begin, int end);
// OK if borders are ascending positions at which buckets may end, and a parameter is left for the last bucket; else InvalidArgument that
// names the border.
absl::Status CheckBorders(const StepModel& step, const std::vector<int>& borders);

// What backward loses that has `left` seconds of its own to go beside so many seconds of communication.
double SlowedBy(const OverlapModel& overlap, double communication, double left);

// `borders`: where buckets end, ascending, without 0 and the end of the graph. They are not checked.
Timeline PredictTimeline(const StepModel& step, const AllReduceModel& all_reduce, const std::vector<int>& borders,
                         const OverlapModel& overlap = {});

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_TIMELINE_H_
