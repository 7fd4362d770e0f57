#include "ddpopt/optimizer/auto_borders.h"

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace ddpopt {
namespace {

// A chain: each node's value goes to the one after it in forward, which is the one before it in backward.
StepModel Chain(const std::vector<double>& backward, const std::vector<int64_t>& bytes) {
  StepModel step;
  for (std::size_t i = 0; i < backward.size(); ++i) {
    StepNode node;
    node.backward = backward[i];
    node.parameter_bytes = bytes[i];
    node.parameter_groups = bytes[i] > 0 ? 1 : 0;
    node.earliest_user = static_cast<int>(i) - 1;
    step.nodes.push_back(node);
  }
  return step;
}

StepModel RandomStep(std::mt19937_64& random) {
  const auto draw = [&](int below) { return static_cast<int>(random() % static_cast<uint64_t>(below)); };
  StepModel step;
  step.forward = draw(5);
  const int size = 1 + draw(9);
  const int dtypes = 1 + draw(2);
  for (int i = 0; i < size; ++i) {
    StepNode node;
    node.backward = draw(4);
    if (draw(5) < 3) {
      node.parameter_bytes = draw(8) == 0 ? 0 : 1 + draw(40);
      node.parameter_groups = uint64_t{1} << draw(dtypes);
    }
    // Some values are used near the end, some by the next node, some by nobody.
    const int kind = draw(6);
    node.earliest_user = kind == 0 ? StepNode::kNobody : kind == 1 ? draw(i + 1) - 1 : i - 1;
    node.live_bytes = draw(50);
    step.nodes.push_back(node);
  }
  if (draw(4) == 0) {
    step.unused_bytes = draw(30);
    step.unused_groups = uint64_t{1} << draw(dtypes);
  }
  step.fixed_bytes = draw(20);
  step.forward_peak_bytes = draw(30);
  return step;
}

// Of all sets of borders that are allowed.
double LeastStep(const StepModel& step, const AllReduceModel& all_reduce, const AutoBordersOptions& options) {
  double least = std::numeric_limits<double>::infinity();
  const int size = static_cast<int>(step.nodes.size());
  for (uint64_t set = 0; set < (uint64_t{1} << (size - 1)); ++set) {
    std::vector<int> borders;
    for (int i = 1; i < size; ++i) {
      if ((set >> (i - 1)) & 1) borders.push_back(i);
    }
    if (!CheckBorders(step, borders).ok()) continue;
    const Timeline timeline = PredictTimeline(step, all_reduce, borders, options.overlap);
    if (options.memory_limit_bytes > 0 && timeline.peak_bytes > options.memory_limit_bytes) continue;
    least = std::min(least, timeline.step);
  }
  return least;
}

TEST(AutoBordersTest, IsNeverBeatenByAnyAllowedBorders) {
  std::mt19937_64 random(20261130);
  int cut = 0, limited = 0, refused = 0, overlapping = 0;
  for (int i = 0; i < 4000; ++i) {
    const auto draw = [&](int below) { return static_cast<int>(random() % static_cast<uint64_t>(below)); };
    const StepModel step = RandomStep(random);
    const AllReduceModel all_reduce{draw(3) * 0.5, draw(5) * 0.05};
    AutoBordersOptions options;
    if (draw(2) == 0) options.overlap = {draw(3) * 0.25, draw(6) * 0.2, draw(3) * 0.5};
    if (draw(3) == 0) options.memory_limit_bytes = 30 + draw(80);
    const double least = LeastStep(step, all_reduce, options);
    const absl::StatusOr<AutoBorders> found = FindBorders(step, all_reduce, options);
    if (least == std::numeric_limits<double>::infinity()) {
      EXPECT_EQ(found.status().code(), absl::StatusCode::kResourceExhausted) << "case " << i;
      ++refused;
      continue;
    }
    ASSERT_TRUE(found.ok()) << "case " << i << ": " << found.status();
    ASSERT_TRUE(CheckBorders(step, found->borders).ok()) << "case " << i << ": " << CheckBorders(step, found->borders);
    ASSERT_NEAR(found->timeline.step, least, 1e-9) << "case " << i;
    if (options.memory_limit_bytes > 0) {
      ASSERT_LE(found->timeline.peak_bytes, options.memory_limit_bytes) << "case " << i;
      ++limited;
    }
    cut += found->borders.size() > 1;
    overlapping += options.overlap.slowdown > 0 && !found->borders.empty();
  }
  // The cases are what they should be.
  EXPECT_GT(cut, 500);
  EXPECT_GT(limited, 300);
  EXPECT_GT(refused, 50);
  EXPECT_GT(overlapping, 300);
}

// Of the borders before a layer one leaves the next bucket much to reach, one holds too much; the third is needed.
TEST(AutoBordersTest, ABorderMayBeNeededForMemoryAndReachTogether) {
  StepModel step;
  const auto add = [&](double backward, int64_t bytes, uint64_t groups, int user, int64_t live) {
    step.nodes.push_back({backward, bytes, groups, user, live});
  };
  add(3, 11, 1, StepNode::kOutput, 15);
  add(1, 0, 0, 0, 39);
  add(2, 0, 0, 1, 3);
  add(1, 40, 2, StepNode::kNobody, 27);
  add(3, 38, 1, 3, 25);
  add(2, 29, 2, 2, 31);
  step.fixed_bytes = 10;
  AutoBordersOptions options;
  options.memory_limit_bytes = 47;
  const absl::StatusOr<AutoBorders> found = FindBorders(step, {0, 0.2}, options);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_NEAR(found->timeline.step, LeastStep(step, {0, 0.2}, options), 1e-9);
  EXPECT_EQ(found->borders.front(), 1);
}

TEST(AutoBordersTest, HidesWhatCanBeHidden) {
  // Two layers of equal compute; all-reduce of one takes as long as the backward of the other.
  const StepModel step = Chain({1, 1}, {10, 10});
  const absl::StatusOr<AutoBorders> found = FindBorders(step, {0, 0.1});
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->borders, std::vector<int>({1}));
  EXPECT_DOUBLE_EQ(found->timeline.exposed, 1);
  EXPECT_DOUBLE_EQ(found->timeline.communication, 2);
}

TEST(AutoBordersTest, MakesOneBucketWhereStartingCostsMoreThanItHides) {
  const absl::StatusOr<AutoBorders> found = FindBorders(Chain({1, 1}, {10, 10}), {5, 0.1});
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found->borders.empty());
}

TEST(AutoBordersTest, TakesFewerBucketsWithinTheTolerance) {
  StepModel step = Chain(std::vector<double>(8, 1), std::vector<int64_t>(8, 1));
  AutoBordersOptions options;
  const absl::StatusOr<AutoBorders> best = FindBorders(step, {0.001, 0.001}, options);
  options.tolerance = 0.01;
  const absl::StatusOr<AutoBorders> few = FindBorders(step, {0.001, 0.001}, options);
  ASSERT_TRUE(best.ok() && few.ok());
  EXPECT_FALSE(best->borders.empty());
  EXPECT_TRUE(few->borders.empty());
  EXPECT_LE(few->timeline.step, best->timeline.step + 0.01 * 8);
}

TEST(AutoBordersTest, EndsABucketRightAfterItsLastParameter) {
  // A gap of nodes without parameters between two layers.
  const StepModel step = Chain({1, 1, 1, 1}, {10, 0, 0, 10});
  const absl::StatusOr<AutoBorders> found = FindBorders(step, {0, 0.1});
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->borders, std::vector<int>({1}));
}

TEST(AutoBordersTest, SaysWhatTheLeastNeeds) {
  StepModel step = Chain({1, 1}, {10, 10});
  step.fixed_bytes = 100;
  AutoBordersOptions options;
  options.overlap.scratch = 1;
  options.memory_limit_bytes = 105;
  const absl::Status status = FindBorders(step, {0, 0.1}, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "no buckets fit in memory_limit_bytes (105): with the smallest ones a rank needs 110 bytes");
}

TEST(AutoBordersTest, EmptyGraphs) {
  const absl::StatusOr<AutoBorders> found = FindBorders(StepModel(), {1, 1});
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found->borders.empty());
  EXPECT_EQ(found->timeline.step, 0);
}

}  // namespace
}  // namespace ddpopt
