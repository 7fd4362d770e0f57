#ifndef DDPOPT_OPTIMIZER_PLANNER_H_
#define DDPOPT_OPTIMIZER_PLANNER_H_

// What data-parallel training of a graph would be like on a cluster that need not be there: buckets, their timeline, memory, and how it
// scales.
//
//   PlanOptions options;
//   options.cluster = {.world_size = 512, .bandwidth = 12.5e9, .latency = 10e-6};
//   options.device = *FindDeviceProfile("nvidia_a100_sxm_80gb");
//   absl::StatusOr<Plan> plan = MakePlan(module, inputs, options);
//   plan->chosen().timeline.exposed;     // seconds
//
// Times are seconds, sizes bytes. Pure.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ddpopt/optimizer/auto_borders.h"
#include "ddpopt/optimizer/bucket_assignment.h"
#include "ddpopt/optimizer/cost_model.h"
#include "ddpopt/optimizer/device_profile.h"
#include "ddpopt/optimizer/step_model.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

struct PlanOptions {
  Cluster cluster;
  AllReduceAlgorithm algorithm = AllReduceAlgorithm::kRing;
  DeviceProfile device;
  // Which buckets are shown in full: with caps or ends set, those; else auto's.
  BucketOptions buckets;
  OverlapModel overlap;
  double optimizer_state_per_parameter = 2;  // bytes for each byte of a trainable parameter: 0 plain SGD, 1 momentum, 2 Adam
  bool gradient_as_bucket_view = false;
  int64_t memory_limit_bytes = 0;  // of a rank, for auto; 0: none
  std::vector<double> caps_mib = {1, 2, 4, 8, 12, 16, 25, 32, 50, 64, 100, 150, 200};
  int64_t largest_world_size = 4096;  // of the scaling table
};

struct Policy {
  std::string name;    // "cap 8 MiB", "default", "auto", "chosen"
  double cap_mib = 0;  // 0: none
  std::vector<int> borders;
  Timeline timeline;
};

struct PlannedBucket {
  BucketTime time;
  int parameters = 0;
  std::string first, last;  // parameters, as they become ready; empty without any
};

struct MemoryNeeds {
  int64_t parameters = 0, buffers = 0, gradients = 0, buckets = 0, optimizer = 0;
  int64_t activations = 0;  // the most that forward and backward hold beside these
  int64_t peak = 0;
};

struct ScalingRow {
  int64_t world_size = 1;
  AllReduceAlgorithm algorithm = AllReduceAlgorithm::kRing;
  double communication = 0;  // of auto
  double exposed_default = 0;
  double exposed_auto = 0;
  double efficiency = 0;  // auto: the step without communication, over the step
};

struct Plan {
  AllReduceModel all_reduce;
  GraphStep step;
  GraphCosts costs;
  std::vector<Policy> policies;  // caps in ascending order, default, auto, and the one asked for, if any
  std::size_t chosen_index = 0;
  std::vector<PlannedBucket> buckets;  // of the chosen policy, in the order of reduction
  MemoryNeeds memory;
  std::vector<ScalingRow> scaling;
  std::vector<std::string> warnings;
  std::string recommendation;

  const Policy& chosen() const { return policies[chosen_index]; }
};

// `inputs`: one per placeholder, with or without data. Errors: impossible figures by name (CheckCluster, FindBorders), what can't be run on
// fakes.
absl::StatusOr<Plan> MakePlan(const fx::GraphModule& module, const std::vector<c10::IValue>& inputs, const PlanOptions& options);

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_PLANNER_H_
