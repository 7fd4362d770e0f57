#ifndef DDPOPT_OPTIMIZER_AUTO_BORDERS_H_
#define DDPOPT_OPTIMIZER_AUTO_BORDERS_H_

// Bucket borders that minimise the predicted time of a step.
//
//   absl::StatusOr<AutoBorders> best = FindBorders(step, all_reduce, {});
//   best->borders;              // positions for PredictTimeline; none: one bucket
//   best->timeline.exposed;     // what it expects
//
// Exact: of all borders that docs/buckets.md allows, and that keep within the memory limit, none has a smaller predicted step, whatever the
// figures. That is found by dynamic programming over the borders: what remains after a border depends on the communication's end and the
// number of collectives before it alone, so of each border's predecessors only those matter that no other beats in both.
//
// Pure; safe on several threads.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "ddpopt/optimizer/cost_model.h"
#include "ddpopt/optimizer/timeline.h"

namespace ddpopt {

struct AutoBordersOptions {
  OverlapModel overlap;
  // Of Timeline::peak_bytes; 0: none.
  int64_t memory_limit_bytes = 0;
  // Of borders whose predicted steps differ by no more than this share of the best one's backward, those with the fewest buckets are taken.
  // 0: of equal ones only.
  double tolerance = 0;
};

struct AutoBorders {
  std::vector<int> borders;
  Timeline timeline;
};

// Error: ResourceExhausted if nothing fits in the memory limit; it names the limit and what the least needs.
absl::StatusOr<AutoBorders> FindBorders(const StepModel& step, const AllReduceModel& all_reduce, const AutoBordersOptions& options = {});

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_AUTO_BORDERS_H_
