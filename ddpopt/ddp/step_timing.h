#ifndef DDPOPT_DDP_STEP_TIMING_H_
#define DDPOPT_DDP_STEP_TIMING_H_

// What a training step cost, for people and programs.

#include <cstdint>
#include <string>
#include <vector>

namespace ddpopt {

// One reduced bucket of a backward. Times in seconds on one steady clock; for a module on another device than the CPU, when that device
// came to do it, not when it was told to.
struct BucketTiming {
  double launched = 0;  // the bucket was full and its all-reduce started
  double finished = 0;
};

struct StepTiming {
  double forward_begin = 0;  // of the forward through whose output the backward came first
  double forward_end = 0;
  double backward_begin = 0;
  double compute_end = 0;             // all gradients computed; all-reduces may still be running
  double backward_end = 0;            // all gradients reduced
  std::vector<BucketTiming> buckets;  // in backward order; none if the backward was not synchronised
  int64_t bytes = 0;                  // given to collectives for buckets
  bool synchronised = false;

  double forward_seconds() const { return forward_end - forward_begin; }
  double backward_seconds() const { return backward_end - backward_begin; }
  // In which at least one bucket was being reduced.
  double communication_seconds() const;
  // In which nothing was done but to wait for communication.
  double exposed_seconds() const { return backward_end - compute_end; }
};

// Of many steps, added up.
struct StepSummary {
  int64_t steps = 0;
  double forward_seconds = 0;
  double backward_seconds = 0;
  double communication_seconds = 0;
  double exposed_seconds = 0;
  int64_t bytes = 0;
};

// A table of the ranks' summaries, a line each, in milliseconds and MiB a step.
std::string SummaryTable(const std::vector<StepSummary>& ranks);

}  // namespace ddpopt

#endif  // DDPOPT_DDP_STEP_TIMING_H_
