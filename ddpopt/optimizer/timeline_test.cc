#include "ddpopt/optimizer/timeline.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace ddpopt {
namespace {

StepNode Layer(double backward, int64_t bytes, int position, uint64_t groups = 1) {
  StepNode node;
  node.backward = backward;
  node.parameter_bytes = bytes;
  node.parameter_groups = bytes > 0 ? groups : 0;
  node.earliest_user = position - 1;
  return node;
}

StepModel ThreeLayers() {
  StepModel step;
  step.forward = 3;
  step.nodes = {Layer(2, 10, 0), Layer(2, 10, 1), Layer(2, 20, 2)};
  return step;
}

TEST(TimelineTest, EachBucketStartsAtTheLaterOfReadyAndTheEndOfTheOneBefore) {
  const Timeline timeline = PredictTimeline(ThreeLayers(), {1, 0.2}, {1, 2});
  ASSERT_EQ(timeline.buckets.size(), 3u);
  EXPECT_DOUBLE_EQ(timeline.buckets[0].ready, 2);
  EXPECT_DOUBLE_EQ(timeline.buckets[0].start, 2);
  EXPECT_DOUBLE_EQ(timeline.buckets[0].finish, 5);
  EXPECT_DOUBLE_EQ(timeline.buckets[1].ready, 4);
  EXPECT_DOUBLE_EQ(timeline.buckets[1].start, 5);
  EXPECT_DOUBLE_EQ(timeline.buckets[2].ready, 6);
  EXPECT_DOUBLE_EQ(timeline.buckets[2].start, 8);
  EXPECT_DOUBLE_EQ(timeline.buckets[2].finish, 13);
  EXPECT_DOUBLE_EQ(timeline.communication, 11);
  EXPECT_DOUBLE_EQ(timeline.backward, 6);
  EXPECT_DOUBLE_EQ(timeline.exposed, 7);
  EXPECT_DOUBLE_EQ(timeline.step, 16);
}

TEST(TimelineTest, OneBucketHidesNothing) {
  const Timeline timeline = PredictTimeline(ThreeLayers(), {1, 0.2}, {});
  EXPECT_DOUBLE_EQ(timeline.exposed, 9);
  EXPECT_DOUBLE_EQ(timeline.communication, timeline.exposed);
}

TEST(TimelineTest, BackwardGoesOnAfterTheLastParameter) {
  StepModel step = ThreeLayers();
  step.nodes.push_back(Layer(10, 0, 3));
  const Timeline timeline = PredictTimeline(step, {1, 0.2}, {});
  EXPECT_DOUBLE_EQ(timeline.buckets[0].ready, 6);
  EXPECT_DOUBLE_EQ(timeline.exposed, 0);
  EXPECT_DOUBLE_EQ(timeline.step, 19);
}

TEST(TimelineTest, EachDtypeIsACollectiveOfItsOwn) {
  StepModel step = ThreeLayers();
  step.nodes[1].parameter_groups = 2;
  const Timeline timeline = PredictTimeline(step, {1, 0}, {});
  EXPECT_EQ(timeline.buckets[0].collectives, 2);
  EXPECT_DOUBLE_EQ(timeline.communication, 2);
}

TEST(TimelineTest, UnusedParametersAreReadyLast) {
  StepModel step = ThreeLayers();
  step.nodes.push_back(Layer(10, 0, 3));
  step.unused_bytes = 5;
  step.unused_groups = 1;
  const Timeline timeline = PredictTimeline(step, {1, 0.2}, {1});
  EXPECT_EQ(timeline.buckets[1].bytes, 35);
  EXPECT_DOUBLE_EQ(timeline.buckets[1].ready, 16);
}

// A simulation in small steps of time, for the share that communication takes from backward.
double SimulatedExposed(const StepModel& step, const AllReduceModel& all_reduce, std::vector<int> borders, double slowdown) {
  borders.push_back(static_cast<int>(step.nodes.size()));
  std::vector<double> ready, costs;
  double computed = 0;
  int begin = 0;
  for (const int border : borders) {
    int64_t bytes = 0;
    for (; begin < border; ++begin) {
      computed += step.nodes[static_cast<std::size_t>(begin)].backward;
      bytes += step.nodes[static_cast<std::size_t>(begin)].parameter_bytes;
    }
    ready.push_back(computed);
    costs.push_back(all_reduce.Seconds(bytes));
  }
  constexpr double kStep = 1e-4;
  double time = 0, progress = 0, left = 0;
  std::size_t next = 0;
  while (progress < computed - kStep / 2 || next < costs.size() || left > 0) {
    if (left <= 0 && next < costs.size() && progress >= ready[next] - kStep / 2) left += costs[next++];
    const bool communicating = left > 0;
    time += kStep;
    progress += communicating ? kStep * (1 - slowdown) : kStep;
    if (communicating) left -= kStep;
  }
  return time - computed;
}

TEST(TimelineTest, CommunicationSlowsBackwardAsASimulationSays) {
  std::mt19937_64 random(7);
  const auto draw = [&](int below) { return static_cast<int>(random() % static_cast<uint64_t>(below)); };
  for (int i = 0; i < 40; ++i) {
    StepModel step;
    std::vector<int> borders;
    const int size = 2 + draw(5);
    for (int k = 0; k < size; ++k) {
      step.nodes.push_back(Layer(0.05 + 0.1 * draw(5), 1 + draw(10), k));
      if (k > 0 && draw(2) == 0) borders.push_back(k);
    }
    const AllReduceModel all_reduce{0.02 * draw(3), 0.01 * (1 + draw(6))};
    const double slowdown = 0.2 * draw(4);
    const Timeline timeline = PredictTimeline(step, all_reduce, borders, {0, slowdown, 0});
    EXPECT_NEAR(timeline.exposed, SimulatedExposed(step, all_reduce, borders, slowdown), 5e-3) << "case " << i;
  }
}

TEST(TimelineTest, BackwardThatGoesOnAfterTheLastBucketIsSlowedToo) {
  // Communication of 4 s begins when 2 s of backward are left, of which 0.4 run in each second of it: 1.6 then, and 0.4 afterwards.
  StepModel step;
  step.nodes = {Layer(8, 20, 0), Layer(2, 0, 1)};
  EXPECT_DOUBLE_EQ(PredictTimeline(step, {0, 0.2}, {}, {0, 0.6, 0}).exposed, 2.4);
  // 1 s of it would run in 2.5 s.
  step.nodes[1].backward = 1;
  EXPECT_DOUBLE_EQ(PredictTimeline(step, {0, 0.2}, {}, {0, 0.6, 0}).exposed, 3);
  EXPECT_DOUBLE_EQ(PredictTimeline(step, {0, 0.1}, {}, {0, 0.6, 0}).exposed, 1.2);
}

TEST(TimelineTest, PeakIsForwardsOrThatOfABucket) {
  StepModel step = ThreeLayers();
  step.fixed_bytes = 100;
  step.forward_peak_bytes = 30;
  step.nodes[0].live_bytes = 28;
  step.nodes[1].live_bytes = 5;
  EXPECT_EQ(PredictTimeline(step, {}, {1}).peak_bytes, 130);
  EXPECT_EQ(PredictTimeline(step, {}, {1}, {0, 0, 1}).peak_bytes, 138);
  EXPECT_EQ(PredictTimeline(step, {}, {2}, {0, 0, 2}).peak_bytes, 145);
}

TEST(TimelineTest, BordersAreChecked) {
  StepModel step = ThreeLayers();
  EXPECT_TRUE(CheckBorders(step, {1, 2}).ok());
  EXPECT_EQ(CheckBorders(step, {2, 1}).message(), "border 1 is not between 2 and 3");
  EXPECT_EQ(CheckBorders(step, {3}).message(), "border 3 is not between 0 and 3");
  step.nodes[0].earliest_user = StepNode::kNobody;
  EXPECT_EQ(CheckBorders(step, {1}).message(),
            "no bucket can reach from 0 to border 1: it has no parameter, or no value that is used outside");
  step = ThreeLayers();
  step.nodes[2].parameter_groups = 0;
  EXPECT_EQ(CheckBorders(step, {2}).message(), "border 2 leaves no parameter for the last bucket");
}

TEST(TimelineTest, AnEmptyGraph) {
  const Timeline timeline = PredictTimeline(StepModel(), {1, 1}, {});
  EXPECT_EQ(timeline.step, 0);
  EXPECT_EQ(timeline.exposed, 0);
}

}  // namespace
}  // namespace ddpopt
