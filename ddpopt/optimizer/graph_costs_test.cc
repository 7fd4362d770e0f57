#include "ddpopt/optimizer/graph_costs.h"

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/rand.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "ddpopt/optimizer/auto_borders.h"
#include "ddpopt/optimizer/planner.h"
#include "ddpopt/optimizer/step_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"

namespace ddpopt {
namespace {

using c10::IValue;
using fx::Node;
using testing::FindOperator;
using Kind = fx::GraphModule::AttrKind;
using ::testing::HasSubstr;

constexpr int64_t kRows = 64, kWidth = 32;

// `layers` times linear (without bias) and relu; then the sum. Frozen layers' weights require no gradient.
std::shared_ptr<fx::GraphModule> Chain(int layers, int frozen = 0) {
  auto gm = std::make_shared<fx::GraphModule>();
  fx::Graph& g = gm->graph();
  Node* value = g.Placeholder("x");
  for (int i = 0; i < layers; ++i) {
    const std::string name = absl::StrCat("w", i);
    EXPECT_TRUE(gm->AddAttr(name, at::rand({kWidth, kWidth}).requires_grad_(i >= frozen), Kind::kParameter).ok());
    Node* weight = g.GetAttr(name);
    value = g.CallFunction(FindOperator("aten::relu"), {g.CallFunction(FindOperator("aten::linear"), {value, weight})});
  }
  g.Output(g.CallFunction(FindOperator("aten::sum"), {value}));
  return gm;
}

DeviceProfile Toy() {
  DeviceProfile profile;
  profile.name = "toy";
  profile.matmul_flops_per_second = {{"float32", 1e9}};
  profile.memory_bytes_per_second = 1e30;
  return profile;
}

const Node* Find(const fx::GraphModule& module, const std::string& name) {
  for (const Node* node : module.graph().nodes()) {
    if (node->name() == name) return node;
  }
  return nullptr;
}

TEST(GraphCostsTest, CountsTheProductsOfForwardAndBackward) {
  const auto gm = Chain(3);
  const absl::StatusOr<GraphCosts> costs = EstimateGraphCosts(*gm, {at::ones({kRows, kWidth})}, Toy());
  ASSERT_TRUE(costs.ok()) << costs.status();
  const double product = 2.0 * kRows * kWidth * kWidth;
  double forward = 0;
  for (const char* name : {"linear_default", "linear_default_1", "linear_default_2"}) {
    const NodeCost& cost = costs->nodes.at(Find(*gm, name));
    EXPECT_DOUBLE_EQ(cost.forward_flops, product) << name;
    // The input of the first needs no gradient.
    EXPECT_DOUBLE_EQ(cost.backward_flops, std::string(name) == "linear_default" ? product : 2 * product) << name;
    EXPECT_NEAR(cost.forward, product / 1e9, 1e-12);
    EXPECT_NEAR(cost.backward, cost.backward_flops / 1e9, 1e-12);
    forward += cost.forward;
  }
  EXPECT_NEAR(costs->forward, forward, 1e-12);
  EXPECT_NEAR(costs->backward, 5 * product / 1e9, 1e-12);
  EXPECT_GE(costs->nodes.at(Find(*gm, "relu_default")).forward_bytes, 2.0 * kRows * kWidth * 4);
}

TEST(GraphCostsTest, WhatBackwardDoesNotReachCostsNothingThere) {
  const auto gm = Chain(2, /*frozen=*/1);
  const absl::StatusOr<GraphCosts> costs = EstimateGraphCosts(*gm, {at::ones({kRows, kWidth})}, Toy());
  ASSERT_TRUE(costs.ok()) << costs.status();
  EXPECT_EQ(costs->nodes.at(Find(*gm, "linear_default")).backward_flops, 0);
  EXPECT_GT(costs->nodes.at(Find(*gm, "linear_default_1")).backward_flops, 0);
}

TEST(GraphCostsTest, SavedActivationsAreFreedAsBackwardGoes) {
  const auto gm = Chain(4);
  const absl::StatusOr<GraphCosts> costs = EstimateGraphCosts(*gm, {at::ones({kRows, kWidth})}, Toy());
  ASSERT_TRUE(costs.ok()) << costs.status();
  const int64_t activation = kRows * kWidth * 4;
  // Each relu's result, which it and the next linear keep.
  EXPECT_GE(costs->saved_bytes, 4 * activation);
  EXPECT_LE(costs->saved_bytes, 5 * activation);
  EXPECT_GE(costs->peak_bytes, costs->saved_bytes);
  EXPECT_LE(costs->peak_bytes, 8 * activation);
  EXPECT_LT(costs->nodes.at(Find(*gm, "linear_default")).live_bytes, costs->nodes.at(Find(*gm, "linear_default_3")).live_bytes);
  EXPECT_LE(costs->nodes.at(Find(*gm, "linear_default_3")).live_bytes, costs->saved_bytes);
}

TEST(GraphCostsTest, MeasuringChangesNothing) {
  auto gm = std::make_shared<fx::GraphModule>();
  ASSERT_TRUE(gm->AddAttr("w", at::rand({8, 8}).requires_grad_(), Kind::kParameter).ok());
  ASSERT_TRUE(gm->AddAttr("count", at::zeros({8, 8}), Kind::kBuffer).ok());
  fx::Graph& g = gm->graph();
  Node* x = g.Placeholder("x");
  Node* w = g.GetAttr("w");
  Node* count = g.GetAttr("count");
  Node* dropped = g.CallFunction(FindOperator("aten::dropout"), {x, IValue(0.5), IValue(true)});
  Node* y = g.CallFunction(FindOperator("aten::mm"), {dropped, w});
  g.CallFunction(FindOperator("aten::add_", "Tensor"), {count, x});
  g.CallFunction(FindOperator("aten::mul_", "Scalar"), {x, IValue(2)});
  g.Output(g.CallFunction(FindOperator("aten::sum"), {y}));
  const at::Tensor input = at::ones({8, 8});
  const int64_t version = gm->FindAttr("w")->value.toTensor()._version();
  const at::Tensor generator = at::detail::getDefaultCPUGenerator().get_state();
  const absl::StatusOr<GraphCosts> costs = MeasureGraphCosts(*gm, {input});
  ASSERT_TRUE(costs.ok()) << costs.status();
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(generator));
  EXPECT_TRUE(input.equal(at::ones({8, 8})));
  EXPECT_TRUE(gm->FindAttr("count")->value.toTensor().equal(at::zeros({8, 8})));
  EXPECT_FALSE(gm->FindAttr("w")->value.toTensor().grad().defined());
  EXPECT_EQ(gm->FindAttr("w")->value.toTensor()._version(), version);
  EXPECT_GT(costs->forward, 0);
  EXPECT_GT(costs->nodes.at(y).forward, 0);
  EXPECT_GT(costs->nodes.at(y).backward, 0);
}

TEST(GraphCostsTest, ErrorsNameTheNode) {
  auto gm = std::make_shared<fx::GraphModule>();
  fx::Graph& g = gm->graph();
  Node* x = g.Placeholder("x");
  g.Output(g.CallFunction(FindOperator("aten::mm"), {x, x}));
  EXPECT_THAT(EstimateGraphCosts(*gm, {at::ones({2, 3})}, Toy()).status().message(), HasSubstr("%mm"));
  EXPECT_THAT(MeasureGraphCosts(*gm, {at::ones({2, 3})}).status().message(), HasSubstr("%mm"));
}

// Layers with weights of two dtypes, values that are used much later, or by nobody, and writes that give nothing new.
std::shared_ptr<fx::GraphModule> RandomNet(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](std::size_t below) { return static_cast<std::size_t>(random() % below); };
  auto gm = std::make_shared<fx::GraphModule>();
  fx::Graph& g = gm->graph();
  std::vector<Node*> values = {g.Placeholder("x")};
  std::vector<Node*> weights;
  const std::size_t steps = 5 + draw(20);
  for (std::size_t i = 0; i < steps; ++i) {
    Node* const last = values.back();
    switch (draw(6)) {
      case 0:
        values.push_back(g.CallFunction(FindOperator("aten::add", "Tensor"), {last, values[draw(values.size())]}));
        break;
      case 1:
        g.CallFunction(FindOperator("aten::relu_"), {last});
        break;
      case 2:
        if (!weights.empty()) values.push_back(g.CallFunction(FindOperator("aten::mul", "Tensor"), {last, weights[draw(weights.size())]}));
        break;
      default: {
        const std::string name = absl::StrCat("w", i);
        at::Tensor weight = at::rand({1 + static_cast<int64_t>(draw(9))}).to(draw(4) == 0 ? at::kDouble : at::kFloat);
        EXPECT_TRUE(gm->AddAttr(name, weight.requires_grad_(draw(8) > 0), Kind::kParameter).ok());
        Node* const read = g.GetAttr(name);
        if (draw(10) > 0) values.push_back(g.CallFunction(FindOperator("aten::mul", "Tensor"), {last, read}));
        weights.push_back(read);
      }
    }
  }
  g.Output(values.back());
  return gm;
}

// Borders go to bucket ends and come back, whatever the graph.
TEST(StepModelTest, BucketAssignmentMakesTheBucketsThatThePlanHas) {
  int several = 0;
  for (int seed = 1; seed <= 60; ++seed) {
    const auto gm = RandomNet(static_cast<uint64_t>(seed));
    GraphCosts costs;
    int number = 0;
    for (const Node* node : gm->graph().nodes()) costs.nodes[node].backward = 1e-3 * (1 + number++ % 7);
    const absl::StatusOr<GraphStep> step = MakeGraphStep(*gm, {}, costs);
    ASSERT_TRUE(step.ok()) << step.status();
    for (const double per_byte : {1e-7, 1e-5, 1e-3}) {
      const absl::StatusOr<AutoBorders> best = FindBorders(step->model, {1e-5, per_byte});
      ASSERT_TRUE(best.ok()) << best.status();
      ASSERT_TRUE(CheckBorders(step->model, best->borders).ok()) << "seed " << seed;
      if (best->borders.empty()) continue;
      BucketOptions options;
      options.bucket_ends = step->BucketEnds(best->borders);
      const absl::StatusOr<BucketAssignment> assignment = AssignBuckets(*gm, options);
      ASSERT_TRUE(assignment.ok()) << assignment.status();
      ASSERT_EQ(step->BordersOf(*assignment), best->borders) << "seed " << seed;
      ASSERT_EQ(assignment->buckets.size(), best->timeline.buckets.size());
      for (std::size_t i = 0; i < assignment->buckets.size(); ++i) {
        const BucketTime& time = best->timeline.buckets[best->timeline.buckets.size() - 1 - i];
        EXPECT_EQ(assignment->buckets[i].bytes, time.bytes) << "seed " << seed;
        EXPECT_EQ(static_cast<int>(assignment->buckets[i].groups.size()), time.collectives) << "seed " << seed;
      }
      several += best->borders.size() > 1;
    }
    // No cap does better than what is best.
    const AllReduceModel all_reduce{1e-5, 1e-5};
    const double least = FindBorders(step->model, all_reduce)->timeline.step;
    for (const int64_t cap : {0, 16, 64, 256, 1024}) {
      BucketOptions options;
      options.bucket_cap_bytes = cap;
      const absl::StatusOr<BucketAssignment> assignment = AssignBuckets(*gm, options);
      ASSERT_TRUE(assignment.ok()) << assignment.status();
      EXPECT_GE(PredictTimeline(step->model, all_reduce, step->BordersOf(*assignment)).step, least - 1e-12)
          << "seed " << seed << " cap " << cap;
    }
  }
  EXPECT_GT(several, 20);
}

TEST(PlannerTest, PlansAChain) {
  const auto gm = Chain(8);
  PlanOptions options;
  options.cluster.world_size = 64;
  options.cluster.bandwidth = 1e6;
  options.cluster.latency = 1e-6;
  options.device = Toy();
  options.caps_mib = {4096.0 / (1 << 20), 1};
  const absl::StatusOr<Plan> plan = MakePlan(*gm, {at::ones({kRows, kWidth})}, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->policies.size(), 4u);
  EXPECT_EQ(plan->chosen().name, "auto");
  EXPECT_EQ(plan->buckets.size(), plan->chosen().timeline.buckets.size());
  for (const Policy& policy : plan->policies) EXPECT_LE(plan->chosen().timeline.step, policy.timeline.step * 1.001) << policy.name;
  const int64_t bytes = 8 * kWidth * kWidth * 4;
  EXPECT_EQ(plan->memory.parameters, bytes);
  EXPECT_EQ(plan->memory.gradients, bytes);
  EXPECT_EQ(plan->memory.optimizer, 2 * bytes);
  EXPECT_GE(plan->memory.peak, 5 * bytes);
  int rows = 0;
  for (const ScalingRow& row : plan->scaling) {
    rows += row.world_size == 64;
    EXPECT_LE(row.efficiency, 1 + 1e-9);
    if (row.world_size == 1) {
      EXPECT_EQ(row.exposed_auto, 0);
    }
  }
  EXPECT_EQ(rows, 3);
  EXPECT_EQ(plan->scaling.back().world_size, 4096);
  EXPECT_THAT(plan->recommendation, HasSubstr("takes longer than backward"));

  options.cluster.world_size = 1;
  const absl::StatusOr<Plan> alone = MakePlan(*gm, {at::ones({kRows, kWidth})}, options);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_THAT(alone->recommendation, HasSubstr("nothing to communicate"));

  options.cluster.world_size = 2;
  options.cluster.bandwidth = -1;
  EXPECT_THAT(MakePlan(*gm, {at::ones({kRows, kWidth})}, options).status().message(), HasSubstr("bandwidth must be"));
}

TEST(PlannerTest, ShowsTheCapsThatAreAskedFor) {
  const auto gm = Chain(8);
  PlanOptions options;
  options.cluster.world_size = 2;
  options.cluster.bandwidth = 1e9;
  options.device = Toy();
  options.buckets.bucket_cap_bytes = 2 * kWidth * kWidth * 4;
  const absl::StatusOr<Plan> plan = MakePlan(*gm, {at::ones({kRows, kWidth})}, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->chosen().name, "chosen");
  ASSERT_EQ(plan->buckets.size(), 4u);
  EXPECT_EQ(plan->buckets[0].first, "w7");
  EXPECT_EQ(plan->buckets[3].last, "w0");
}

}  // namespace
}  // namespace ddpopt
