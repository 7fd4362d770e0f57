#ifndef DDPOPT_DDP_AUTO_REPORT_H_
#define DDPOPT_DDP_AUTO_REPORT_H_

// What bucket_policy = auto chose, and what it expects of it; ddp->core().auto_report() tells after the first forward with gradients.

#include <string>

namespace ddpopt {

struct AutoReport {
  bool active = false;     // false: the policy is another one, or forward can't be captured
  bool took_caps = false;  // the default caps were as good
  bool measured = false;   // the graph was run to learn what its nodes cost; else that was estimated
  int buckets = 0;
  // Seconds of a step, as predicted.
  double forward = 0, backward = 0, communication = 0, exposed = 0;
  double exposed_of_caps = 0;  // with the default caps
  // Of an all-reduce.
  double all_reduce_latency = 0, all_reduce_seconds_per_byte = 0, overlap_slowdown = 0;

  std::string ToString() const;  // for people
};

}  // namespace ddpopt

#endif  // DDPOPT_DDP_AUTO_REPORT_H_
