#include "ddpopt/optimizer/cost_model.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace ddpopt {
namespace {

absl::Status CheckAbove0(absl::string_view name, double value) {
  if (std::isfinite(value) && value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " must be a number above 0, got ", value));
}

absl::Status CheckFrom0(absl::string_view name, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " must be a number >= 0, got ", value));
}

// Of the tree's messages on the way from a leaf to the root.
int64_t Levels(int64_t leaves) {
  int64_t levels = 0;
  for (int64_t reached = 1; reached < leaves; reached *= 2) ++levels;
  return levels;
}

int64_t LargestDivisorUpToRoot(int64_t value) {
  int64_t divisor = 1;
  for (int64_t i = 1; i * i <= value; ++i) {
    if (value % i == 0) divisor = i;
  }
  return divisor;
}

}  // namespace

absl::string_view AllReduceAlgorithmName(AllReduceAlgorithm algorithm) {
  switch (algorithm) {
    case AllReduceAlgorithm::kRing:
      return "ring";
    case AllReduceAlgorithm::kTree:
      return "tree";
    case AllReduceAlgorithm::kHierarchical:
      return "hierarchical";
  }
  return "?";
}

absl::StatusOr<AllReduceAlgorithm> ParseAllReduceAlgorithm(absl::string_view name) {
  for (const AllReduceAlgorithm algorithm : {AllReduceAlgorithm::kRing, AllReduceAlgorithm::kTree, AllReduceAlgorithm::kHierarchical}) {
    if (AllReduceAlgorithmName(algorithm) == name) return algorithm;
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no all-reduce algorithm \"", name, "\"; there are ring, tree, hierarchical"));
}

absl::Status CheckCluster(const Cluster& cluster) {
  if (cluster.world_size < 1) return absl::InvalidArgumentError(absl::StrCat("world_size must be at least 1, got ", cluster.world_size));
  const int64_t per_node = cluster.ranks_per_node;
  if (per_node < 1) return absl::InvalidArgumentError(absl::StrCat("ranks_per_node must be at least 1, got ", per_node));
  const int64_t on_one = std::min(per_node, cluster.world_size);
  if (cluster.world_size % on_one != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranks_per_node (", per_node, ") does not divide world_size (", cluster.world_size, ")"));
  }
  if (cluster.world_size > on_one) {
    DDPOPT_RETURN_IF_ERROR(CheckAbove0("bandwidth", cluster.bandwidth));
    DDPOPT_RETURN_IF_ERROR(CheckFrom0("latency", cluster.latency));
  }
  if (on_one > 1) {
    DDPOPT_RETURN_IF_ERROR(CheckAbove0("node_bandwidth", cluster.node_bandwidth));
    DDPOPT_RETURN_IF_ERROR(CheckFrom0("node_latency", cluster.node_latency));
  }
  return absl::OkStatus();
}

absl::StatusOr<AllReduceModel> AllReduceOf(AllReduceAlgorithm algorithm, const Cluster& cluster) {
  DDPOPT_RETURN_IF_ERROR(CheckCluster(cluster));
  AllReduceModel model;
  const int64_t ranks = cluster.world_size;
  if (ranks == 1) return model;
  const int64_t per_node = std::min(cluster.ranks_per_node, ranks), nodes = ranks / per_node;
  const double p = static_cast<double>(ranks), g = static_cast<double>(per_node), m = static_cast<double>(nodes);
  // The slowest link on the way.
  const double latency = nodes == 1      ? cluster.node_latency
                         : per_node == 1 ? cluster.latency
                                         : std::max(cluster.latency, cluster.node_latency);
  const double bandwidth = nodes == 1      ? cluster.node_bandwidth
                           : per_node == 1 ? cluster.bandwidth
                                           : std::min(cluster.bandwidth, cluster.node_bandwidth);
  switch (algorithm) {
    case AllReduceAlgorithm::kRing:
      model.latency = 2 * (p - 1) * latency;
      model.seconds_per_byte = 2 * (p - 1) / p / bandwidth;
      break;
    case AllReduceAlgorithm::kTree:
      model.latency =
          2 * (static_cast<double>(Levels(nodes)) * cluster.latency + static_cast<double>(Levels(per_node)) * cluster.node_latency);
      if (nodes == 1) model.latency = 2 * static_cast<double>(Levels(ranks)) * latency;
      model.seconds_per_byte = 2 / bandwidth;
      break;
    case AllReduceAlgorithm::kHierarchical: {
      if (nodes == 1) return AllReduceOf(AllReduceAlgorithm::kRing, cluster);
      if (per_node > 1) {
        // All ranks of a node send a part of their own at once over the link that they share.
        model.latency = 2 * (g - 1) * cluster.node_latency + 2 * (m - 1) * cluster.latency;
        model.seconds_per_byte = 2 * (g - 1) / g / cluster.node_bandwidth + 2 * (m - 1) / m / cluster.bandwidth;
        break;
      }
      const double group = static_cast<double>(LargestDivisorUpToRoot(ranks));
      model.latency = 2 * (group - 1 + p / group - 1) * latency;
      model.seconds_per_byte = 2 * (p - 1) / p / bandwidth;
      break;
    }
  }
  return model;
}

absl::StatusOr<AllReduceModel> FitAllReduce(const std::vector<AllReduceSample>& samples) {
  // Minimises the sum of ((latency + bytes * per_byte) / seconds - 1)^2: linear least squares in the two.
  double aa = 0, ab = 0, bb = 0, a = 0, b = 0;
  int64_t least = 0, most = 0;
  for (const AllReduceSample& sample : samples) {
    if (sample.bytes < 0) return absl::InvalidArgumentError(absl::StrCat("an all-reduce of ", sample.bytes, " bytes"));
    DDPOPT_RETURN_IF_ERROR(CheckAbove0(absl::StrCat("the time of an all-reduce of ", sample.bytes, " bytes"), sample.seconds));
    if (&sample == &samples.front()) least = most = sample.bytes;
    least = std::min(least, sample.bytes);
    most = std::max(most, sample.bytes);
    const double u = 1 / sample.seconds, v = static_cast<double>(sample.bytes) / sample.seconds;
    aa += u * u;
    ab += u * v;
    bb += v * v;
    a += u;
    b += v;
  }
  if (samples.empty() || least == most) {
    return absl::InvalidArgumentError("all-reduces of at least two sizes are needed to tell their latency from their bandwidth");
  }
  const double determinant = aa * bb - ab * ab;
  AllReduceModel model{(a * bb - b * ab) / determinant, (aa * b - ab * a) / determinant};
  if (model.latency < 0) model = {0, b / bb};
  if (model.seconds_per_byte < 0) model = {a / aa, 0};
  return model;
}

}  // namespace ddpopt
