#include "ddpopt/optimizer/timeline.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"

namespace ddpopt {

double StepModel::backward() const {
  double seconds = 0;
  for (const StepNode& node : nodes) seconds += node.backward;
  return seconds;
}

int64_t StepModel::parameter_bytes() const {
  int64_t bytes = unused_bytes;
  for (const StepNode& node : nodes) bytes += node.parameter_bytes;
  return bytes;
}

bool MayEndBucket(const StepModel& step, int begin, int end) {
  bool parameters = false, used_outside = false;
  for (int i = begin; i < end; ++i) {
    const StepNode& node = step.nodes[static_cast<std::size_t>(i)];
    parameters |= node.parameter_groups != 0;
    used_outside |= node.earliest_user < begin;
  }
  return parameters && used_outside;
}

absl::Status CheckBorders(const StepModel& step, const std::vector<int>& borders) {
  const int size = static_cast<int>(step.nodes.size());
  int begin = 0;
  for (const int border : borders) {
    if (border <= begin || border >= size) {
      return absl::InvalidArgumentError(absl::StrCat("border ", border, " is not between ", begin, " and ", size));
    }
    if (!MayEndBucket(step, begin, border)) {
      return absl::InvalidArgumentError(absl::StrCat("no bucket can reach from ", begin, " to border ", border,
                                                     ": it has no parameter, or no value that is used outside"));
    }
    begin = border;
  }
  bool parameters = borders.empty();  // unused ones don't make a bucket
  for (int i = begin; i < size; ++i) parameters |= step.nodes[static_cast<std::size_t>(i)].parameter_groups != 0;
  if (parameters) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("border ", begin, " leaves no parameter for the last bucket"));
}

double SlowedBy(const OverlapModel& overlap, double communication, double left) {
  if (overlap.slowdown >= 1) return overlap.slowdown * communication;
  return std::min(overlap.slowdown * communication, overlap.slowdown / (1 - overlap.slowdown) * left);
}

Timeline PredictTimeline(const StepModel& step, const AllReduceModel& all_reduce, const std::vector<int>& borders,
                         const OverlapModel& overlap) {
  Timeline timeline;
  timeline.forward = step.forward;
  timeline.peak_bytes = step.fixed_bytes + step.forward_peak_bytes;
  const int size = static_cast<int>(step.nodes.size());
  double computed = 0;  // backward's own time so far
  double finish = 0;    // of the communication so far
  int collectives = 0;
  int begin = 0;
  for (std::size_t k = 0; k <= borders.size(); ++k) {
    const bool last = k == borders.size();
    BucketTime bucket;
    bucket.begin = begin;
    bucket.end = last ? size : borders[k];
    uint64_t groups = last ? step.unused_groups : 0;
    bucket.bytes = last ? step.unused_bytes : 0;
    double ready = computed;
    for (int i = begin; i < bucket.end; ++i) {
      const StepNode& node = step.nodes[static_cast<std::size_t>(i)];
      computed += node.backward;
      bucket.bytes += node.parameter_bytes;
      groups |= node.parameter_groups;
      if (node.parameter_groups != 0) ready = computed;
    }
    if (last && step.unused_groups != 0) ready = computed;
    bucket.collectives = std::popcount(groups);
    // Communication so far took its share of the time of the backward beside it. What of it is still running when this bucket is ready
    // would have this start at its end in any case.
    collectives += bucket.collectives;
    bucket.ready = ready + overlap.per_collective * collectives + overlap.slowdown * timeline.communication;
    bucket.start = std::max(bucket.ready, finish);
    const double seconds = all_reduce.Seconds(bucket.bytes, bucket.collectives);
    bucket.finish = bucket.start + seconds;
    finish = bucket.finish;
    timeline.communication += seconds;
    const int64_t live = bucket.end > 0 ? step.nodes[static_cast<std::size_t>(bucket.end) - 1].live_bytes : 0;
    timeline.peak_bytes =
        std::max(timeline.peak_bytes, step.fixed_bytes + live + static_cast<int64_t>(overlap.scratch * static_cast<double>(bucket.bytes)));
    timeline.buckets.push_back(bucket);
    begin = bucket.end;
  }
  timeline.backward = computed;
  // Backward may go on after the last bucket was ready, slowed by its communication for as long as both last.
  double end = computed + overlap.per_collective * collectives;
  if (!timeline.buckets.empty()) {
    const BucketTime& last = timeline.buckets.back();
    const double before = timeline.communication - (last.finish - last.start);
    end += overlap.slowdown * before;
    if (end > last.start) end += SlowedBy(overlap, last.finish - last.start, end - last.start);
  }
  timeline.exposed = std::max(end, finish) - computed;
  timeline.step = step.forward + std::max(end, finish);
  return timeline;
}

}  // namespace ddpopt
