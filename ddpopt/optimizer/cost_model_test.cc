#include "ddpopt/optimizer/cost_model.h"

#include <limits>

#include "gtest/gtest.h"

namespace ddpopt {
namespace {

using Algorithm = AllReduceAlgorithm;

Cluster Flat(int64_t ranks) {
  Cluster cluster;
  cluster.world_size = ranks;
  cluster.bandwidth = 1e9;
  cluster.latency = 1e-5;
  return cluster;
}

Cluster Nodes(int64_t nodes, int64_t per_node) {
  Cluster cluster = Flat(nodes * per_node);
  cluster.ranks_per_node = per_node;
  cluster.node_bandwidth = 1e11;
  cluster.node_latency = 1e-6;
  return cluster;
}

AllReduceModel Of(Algorithm algorithm, const Cluster& cluster) {
  const absl::StatusOr<AllReduceModel> model = AllReduceOf(algorithm, cluster);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *model : AllReduceModel{-1, -1};
}

TEST(CostModelTest, OneRankCostsNothing) {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTree, Algorithm::kHierarchical}) {
    EXPECT_EQ(Of(algorithm, Flat(1)).Seconds(1 << 20), 0) << AllReduceAlgorithmName(algorithm);
  }
}

TEST(CostModelTest, RingOfTwoSendsEverythingOnce) {
  const AllReduceModel ring = Of(Algorithm::kRing, Flat(2));
  EXPECT_DOUBLE_EQ(ring.latency, 2e-5);
  EXPECT_DOUBLE_EQ(ring.seconds_per_byte, 1e-9);
  EXPECT_DOUBLE_EQ(ring.Seconds(1000, 3), 6e-5 + 1e-6);
}

TEST(CostModelTest, TreesHaveFewerMessagesAndMoreBytes) {
  for (const int64_t ranks : {8, 64, 4096}) {
    const AllReduceModel ring = Of(Algorithm::kRing, Flat(ranks)), tree = Of(Algorithm::kTree, Flat(ranks));
    EXPECT_LT(tree.latency, ring.latency);
    EXPECT_GT(tree.seconds_per_byte, ring.seconds_per_byte);
  }
  EXPECT_DOUBLE_EQ(Of(Algorithm::kTree, Flat(4096)).latency, 24e-5);
  EXPECT_DOUBLE_EQ(Of(Algorithm::kTree, Flat(5)).latency, 6e-5);  // three levels
}

TEST(CostModelTest, GroupsOfEqualLinksSendTheRingsBytesInFewerMessages) {
  const AllReduceModel ring = Of(Algorithm::kRing, Flat(64)), groups = Of(Algorithm::kHierarchical, Flat(64));
  EXPECT_DOUBLE_EQ(groups.seconds_per_byte, ring.seconds_per_byte);
  EXPECT_DOUBLE_EQ(groups.latency, 2 * (7 + 7) * 1e-5);
}

TEST(CostModelTest, NodesShareTheirLink) {
  const Cluster cluster = Nodes(8, 8);
  const AllReduceModel ring = Of(Algorithm::kRing, cluster), groups = Of(Algorithm::kHierarchical, cluster);
  EXPECT_DOUBLE_EQ(ring.latency, 126e-5);
  EXPECT_DOUBLE_EQ(ring.seconds_per_byte, 2 * 63.0 / 64 * 1e-9);
  EXPECT_DOUBLE_EQ(groups.latency, 14e-6 + 14e-5);
  EXPECT_DOUBLE_EQ(groups.seconds_per_byte, 2 * 7.0 / 8 * 1e-11 + 2 * 7.0 / 8 * 1e-9);
  // One node has no outside.
  EXPECT_DOUBLE_EQ(Of(Algorithm::kHierarchical, Nodes(1, 8)).seconds_per_byte, 2 * 7.0 / 8 * 1e-11);
  EXPECT_DOUBLE_EQ(Of(Algorithm::kTree, Nodes(1, 8)).latency, 6e-6);
}

TEST(CostModelTest, RefusesImpossibleFiguresByName) {
  const auto message = [](const Cluster& cluster) { return std::string(AllReduceOf(Algorithm::kRing, cluster).status().message()); };
  Cluster cluster = Flat(0);
  EXPECT_EQ(message(cluster), "world_size must be at least 1, got 0");
  cluster = Flat(8);
  cluster.bandwidth = 0;
  EXPECT_EQ(message(cluster), "bandwidth must be a number above 0, got 0");
  cluster = Flat(8);
  cluster.latency = -1;
  EXPECT_EQ(message(cluster), "latency must be a number >= 0, got -1");
  cluster.latency = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(message(cluster), "latency must be a number >= 0, got nan");
  cluster = Nodes(3, 4);
  cluster.world_size = 10;
  EXPECT_EQ(message(cluster), "ranks_per_node (4) does not divide world_size (10)");
  cluster = Nodes(3, 4);
  cluster.node_bandwidth = std::numeric_limits<double>::infinity();
  EXPECT_EQ(message(cluster), "node_bandwidth must be a number above 0, got inf");
  EXPECT_EQ(ParseAllReduceAlgorithm("star").status().message(),
            "there is no all-reduce algorithm \"star\"; there are ring, tree, hierarchical");
  EXPECT_EQ(*ParseAllReduceAlgorithm("tree"), Algorithm::kTree);
}

TEST(CostModelTest, FindsTheLineThroughMeasuredTimes) {
  const absl::StatusOr<AllReduceModel> exact =
      FitAllReduce({{4096, 1e-3 + 4096e-9}, {1 << 20, 1e-3 + (1 << 20) * 1e-9}, {8 << 20, 1e-3 + (8 << 20) * 1e-9}});
  ASSERT_TRUE(exact.ok()) << exact.status();
  EXPECT_NEAR(exact->latency, 1e-3, 1e-12);
  EXPECT_NEAR(exact->seconds_per_byte, 1e-9, 1e-15);
}

TEST(CostModelTest, NeverFitsNegativeFigures) {
  const absl::StatusOr<AllReduceModel> steep = FitAllReduce({{1000, 1e-6}, {1000000, 2e-3}});
  ASSERT_TRUE(steep.ok());
  EXPECT_EQ(steep->latency, 0);
  EXPECT_GT(steep->seconds_per_byte, 0);
  const absl::StatusOr<AllReduceModel> falling = FitAllReduce({{1000, 2e-3}, {1000000, 1e-3}});
  ASSERT_TRUE(falling.ok());
  EXPECT_GT(falling->latency, 0);
  EXPECT_EQ(falling->seconds_per_byte, 0);
}

TEST(CostModelTest, NeedsTwoSizes) {
  EXPECT_FALSE(FitAllReduce({}).ok());
  EXPECT_FALSE(FitAllReduce({{1000, 1}, {1000, 2}}).ok());
  EXPECT_EQ(FitAllReduce({{1000, 1}, {2000, 0}}).status().message(),
            "the time of an all-reduce of 2000 bytes must be a number above 0, got 0");
}

}  // namespace
}  // namespace ddpopt
