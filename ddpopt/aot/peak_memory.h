#ifndef DDPOPT_AOT_PEAK_MEMORY_H_
#define DDPOPT_AOT_PEAK_MEMORY_H_

// How much memory a partitioned graph takes when it runs, told from fakes.
//
//   PredictPeakMemory(joint, parts).peak_bytes;      // of one forward and backward, beyond parameters and inputs
//
// Operators run one after another; a value's memory is made when its operator runs and freed after the last operator that takes it or a
// view of it. What operators take for themselves while they run isn't counted. Thread-safe.

#include <cstdint>

#include "ddpopt/aot/joint_graph.h"
#include "ddpopt/aot/partition.h"

namespace ddpopt {

// In bytes, beyond the primals'.
struct PeakMemory {
  int64_t forward_bytes = 0;   // at most, while the forward runs
  int64_t kept_bytes = 0;      // between the two: the values, and what is saved
  int64_t backward_bytes = 0;  // at most, while the backward runs, which ends with the gradients; the values and tangents are held till then
  int64_t peak_bytes = 0;      // the larger of the two
};

PeakMemory PredictPeakMemory(const JointGraph& joint, const PartitionedGraph& parts);

}  // namespace ddpopt

#endif  // DDPOPT_AOT_PEAK_MEMORY_H_
