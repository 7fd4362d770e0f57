#ifndef DDPOPT_OPTIMIZER_COST_MODEL_H_
#define DDPOPT_OPTIMIZER_COST_MODEL_H_

// What an all-reduce costs, and what a training step looks like to the planner. Plain figures: no tensors, no graph.
//
//   Cluster cluster;
//   cluster.world_size = 512;
//   cluster.bandwidth = 12.5e9;                                       // bytes per second: 100 Gbit/s
//   cluster.latency = 10e-6;
//   absl::StatusOr<AllReduceModel> ring = AllReduceOf(AllReduceAlgorithm::kRing, cluster);
//   double seconds = ring->Seconds(25 << 20);
//
//   absl::StatusOr<AllReduceModel> measured = FitAllReduce({{4096, 2.1e-4}, {1 << 20, 9.1e-3}});
//
// Times are seconds, sizes bytes, bandwidths bytes per second. Pure functions; safe on several threads.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ddpopt {

// The α–β model: a start-up time a collective, and a time a byte.
struct AllReduceModel {
  double latency = 0;
  double seconds_per_byte = 0;

  // Of `collectives` all-reduces that hold so many bytes together.
  double Seconds(int64_t bytes, int collectives = 1) const { return latency * collectives + seconds_per_byte * static_cast<double>(bytes); }
};

enum class AllReduceAlgorithm {
  kRing,          // 2(p-1) messages one after another; 2(p-1)/p of the bytes over each link
  kTree,          // up and down a binary tree in small chunks: 2 log2(p) messages, twice the bytes
  kHierarchical,  // reduce-scatter within groups, rings between equal members of the groups, all-gather within groups
};
absl::string_view AllReduceAlgorithmName(AllReduceAlgorithm algorithm);  // "ring", "tree", "hierarchical"
absl::StatusOr<AllReduceAlgorithm> ParseAllReduceAlgorithm(absl::string_view name);

struct Cluster {
  int64_t world_size = 1;      // ranks
  int64_t ranks_per_node = 1;  // divides world_size, unless there is one node
  // Between nodes, of the link that the ranks of a node share. With one rank a node: the rank's own.
  double bandwidth = 0;
  double latency = 0;
  // Between ranks of one node. Used with several ranks a node only.
  double node_bandwidth = 0;
  double node_latency = 0;
};

// Impossible figures, InvalidArgument with name and value: no ranks, ranks that don't fill their nodes, a bandwidth that is not above 0, a
// negative latency, what is no finite number.
absl::Status CheckCluster(const Cluster& cluster);

// One rank: an all-reduce costs nothing. The groups of kHierarchical are nodes; with one rank a node they have the largest size up to the
// square root of the number of ranks that divides it.
absl::StatusOr<AllReduceModel> AllReduceOf(AllReduceAlgorithm algorithm, const Cluster& cluster);

struct AllReduceSample {
  int64_t bytes = 0;
  double seconds = 0;
};

// The line through measured times that misses them least in proportion (so that small messages count as much as large ones); neither figure
// is negative. Error: InvalidArgument for fewer than two sizes and for times that are not above 0.
absl::StatusOr<AllReduceModel> FitAllReduce(const std::vector<AllReduceSample>& samples);

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_COST_MODEL_H_
