#include "ddpopt/aot/partition.h"

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ddpopt/aot/peak_memory.h"
#include "ddpopt/capture/tracer/checkpoint_region.h"
#include "ddpopt/capture/tracer/trace_forward.h"
#include "fx_graph/graph_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/matchers.h"

namespace ddpopt {
namespace {

using c10::IValue;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;
using ::testing::UnorderedElementsAre;
using Kind = PartitionedGraph::Saved::Kind;

at::Tensor Leaf(at::IntArrayRef sizes) { return at::ones(sizes).requires_grad_(); }

template <typename Fn, typename... Args>
absl::StatusOr<JointGraph> Trace(Fn fn, const Args&... args) {
  absl::StatusOr<TracedModule> traced = TraceFunction(fn, FakeTensorMode::Create(), args...);
  if (!traced.ok()) return traced.status();
  return TraceJointGraph(*traced->module, traced->fake_inputs);
}

PartitionedGraph Cut(const JointGraph& joint, double budget) {
  absl::StatusOr<PartitionedGraph> parts = Partition(joint, {.kind = PartitionKind::kMinCut, .memory_budget = budget});
  EXPECT_THAT(parts, IsOk());
  return parts.ok() ? *std::move(parts) : PartitionedGraph();
}

std::vector<std::string> Recomputed(const PartitionedGraph& parts) {
  std::vector<std::string> names;
  for (const auto& value : parts.report.recomputed) names.push_back(value.node);
  return names;
}
std::vector<std::string> SavedNames(const PartitionedGraph& parts) {
  std::vector<std::string> names;
  for (const auto& value : parts.report.saved) names.push_back(value.node);
  return names;
}

TEST(Partition, ViewsAreMadeAgainInBackward) {
  const auto joint = Trace([](at::Tensor x, at::Tensor w) { return at::mm(x, w.t()).sin(); }, Leaf({4, 3}), Leaf({5, 3}));
  ASSERT_THAT(joint, IsOk());
  const auto parts = Partition(*joint);
  ASSERT_THAT(parts, IsOk());
  std::vector<std::pair<Kind, int>> saved;
  for (const auto& one : parts->saved) saved.emplace_back(one.kind, one.index);
  // The product, x, and w, of which backward makes the transpose.
  EXPECT_THAT(saved, UnorderedElementsAre(std::pair(Kind::kIntermediate, 0), std::pair(Kind::kPrimal, 0), std::pair(Kind::kPrimal, 1)));
  EXPECT_EQ(parts->intermediate_bytes, 4 * 5 * 4);
  EXPECT_EQ(parts->forward->graph().output_node()->args()[0].ToString(), "(%sin, %mm)");
  const auto inference = InferenceGraph(*joint, *parts);
  ASSERT_THAT(inference, IsOk());
  EXPECT_EQ((*inference)->graph().output_node()->args()[0].ToString(), "(%sin,)");
  EXPECT_THAT(parts->report.recomputed, ::testing::IsEmpty());
}

// Parts of one product, taken apart by an operator that gives a list of views.
TEST(Partition, ListsOfViewsAreMadeAgainToo) {
  const auto joint = Trace(
      [](at::Tensor x, at::Tensor w) {
        const std::vector<at::Tensor> parts = at::mm(x, w).split(2, 1);
        return parts[0] * parts[1];
      },
      Leaf({4, 3}), Leaf({3, 4}));
  ASSERT_THAT(joint, IsOk());
  const auto parts = Partition(*joint);
  ASSERT_THAT(parts, IsOk());
  EXPECT_THAT(SavedNames(*parts), ElementsAre("mm"));
}

// Four values of the same size, each needed: the product is kept, and the rest made of it.
TEST(MinCutPartition, ElementwiseChainsAreComputedAgain) {
  const auto joint =
      Trace([](at::Tensor x, at::Tensor w) { return at::mm(x, w).sin().exp().tanh().sum(); }, Leaf({64, 64}), Leaf({64, 64}));
  ASSERT_THAT(joint, IsOk());
  const auto standard = Partition(*joint);
  ASSERT_THAT(standard, IsOk());
  EXPECT_EQ(standard->intermediate_bytes, 3 * 64 * 64 * 4);  // sin's operand, exp's and tanh's results
  const PartitionedGraph parts = Cut(*joint, 1);
  EXPECT_EQ(parts.intermediate_bytes, 64 * 64 * 4);
  EXPECT_THAT(SavedNames(parts), ElementsAre("mm"));
  EXPECT_THAT(Recomputed(parts), ElementsAre("sin", "exp", "tanh"));
  EXPECT_EQ(parts.report.default_bytes, standard->intermediate_bytes);
  EXPECT_EQ(parts.report.recomputed_flops, 0);
  EXPECT_THAT(parts.report.ToString(), HasSubstr("1 intermediates are saved, 16384 bytes (the default partition: 49152)"));
  EXPECT_THAT(parts.report.ToString(), HasSubstr("aten.mm.default Float[64, 64]"));

  const PartitionedGraph none = Cut(*joint, 0);
  EXPECT_EQ(none.intermediate_bytes, 0);
  EXPECT_THAT(Recomputed(none), ElementsAre("mm", "sin", "exp", "tanh"));
  EXPECT_EQ(none.report.recomputed_flops, 2.0 * 64 * 64 * 64);
}

// To have two numbers again for each row, the whole layer would run again.
TEST(MinCutPartition, LittleIsNotWorthMuch) {
  const auto joint = Trace([](at::Tensor x, at::Tensor w, at::Tensor b) { return at::layer_norm(x, {64}, w, b).sum(); }, Leaf({64, 64}),
                           Leaf({64}), Leaf({64}));
  ASSERT_THAT(joint, IsOk());
  EXPECT_THAT(Recomputed(Cut(*joint, 1)), ::testing::IsEmpty());
}

TEST(MinCutPartition, RandomNumbersAreDrawnOnce) {
  const auto joint = Trace([](at::Tensor x) { return at::dropout(x.sin(), 0.5, true).exp().sum(); }, Leaf({64, 64}));
  ASSERT_THAT(joint, IsOk());
  const PartitionedGraph parts = Cut(*joint, 0);
  EXPECT_THAT(Recomputed(parts), ::testing::Not(::testing::Contains("bernoulli_")));
  EXPECT_EQ(parts.intermediate_bytes, 64 * 64 * 4);  // the mask
}

// A value that is made of a buffer's old content, which is gone when backward runs.
TEST(MinCutPartition, WhatIsOverwrittenIsNotReadAgain) {
  const auto joint = Trace(
      [](at::Tensor x, at::Tensor buffer) {
        const at::Tensor y = (buffer.exp() * x).sin();
        buffer.add_(1);
        return y.sum();
      },
      Leaf({64, 64}), at::ones({64, 64}));
  ASSERT_THAT(joint, IsOk());
  const PartitionedGraph parts = Cut(*joint, 0);
  for (const auto& saved : parts.saved) EXPECT_FALSE(saved.kind == Kind::kPrimal && saved.index == 1);
  EXPECT_THAT(Recomputed(parts), ::testing::Not(::testing::Contains("exp")));
}

TEST(MinCutPartition, ABudgetBetweenKeepsWhatIsDearest) {
  // Products of equal size whose sums are of different lengths.
  const auto joint = Trace([](at::Tensor x, at::Tensor a, at::Tensor b, at::Tensor c,
                              at::Tensor d) { return at::mm(at::mm(at::mm(at::mm(x, a).sin(), b).sin(), c).sin(), d).sin().sum(); },
                           Leaf({64, 64}), Leaf({64, 64}), Leaf({64, 512}), Leaf({512, 64}), Leaf({64, 64}));
  ASSERT_THAT(joint, IsOk());
  int64_t bytes = -1;
  double flops = 1e30;
  const int64_t most = Cut(*joint, 1).intermediate_bytes;
  int steps = 0;
  for (int budget = 0; budget <= 16; ++budget) {
    const PartitionedGraph parts = Cut(*joint, budget / 16.0);
    EXPECT_GE(parts.intermediate_bytes, bytes);
    EXPECT_LE(parts.intermediate_bytes, most * budget / 16);
    EXPECT_LE(parts.report.recomputed_flops, flops);
    steps += parts.intermediate_bytes != bytes;
    bytes = parts.intermediate_bytes;
    flops = parts.report.recomputed_flops;
  }
  EXPECT_GE(steps, 4);
  EXPECT_EQ(flops, 0);
}

TEST(MinCutPartition, RefusesOtherBudgets) {
  const auto joint = Trace([](at::Tensor x) { return x.sin().sum(); }, Leaf({4}));
  ASSERT_THAT(joint, IsOk());
  for (const double budget : {-0.1, 1.1, std::nan("")}) {
    EXPECT_THAT(Partition(*joint, {.kind = PartitionKind::kMinCut, .memory_budget = budget}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("memory budget")));
  }
}

// Computed again where it is first asked for: the last layer's first.
TEST(MinCutPartition, RecomputationWaitsUntilItIsNeeded) {
  const auto joint = Trace([](at::Tensor x, at::Tensor a, at::Tensor b) { return at::mm(at::mm(x, a).sin().exp(), b).cos().exp().sum(); },
                           Leaf({64, 64}), Leaf({64, 64}), Leaf({64, 64}));
  ASSERT_THAT(joint, IsOk());
  EXPECT_THAT(Recomputed(Cut(*joint, 1)), ElementsAre("cos", "exp_1", "sin", "exp"));
}

at::Tensor Layers(at::Tensor x, const at::Tensor& w, bool marked) {
  const auto layer = [&w](const at::Tensor& in) { return at::mm(at::mm(in, w).sin(), w).tanh(); };
  for (int i = 0; i < 3; ++i) x = marked ? Checkpoint(layer, x) : layer(x);
  return x.sum();
}

TEST(CheckpointRegions, InsidesAreComputedAgainWhateverTheKind) {
  const at::Tensor x = Leaf({16, 16}), w = Leaf({16, 16});
  const auto plain = Trace([](at::Tensor x, at::Tensor w) { return Layers(x, w, false); }, x, w);
  const auto marked = Trace([](at::Tensor x, at::Tensor w) { return Layers(x, w, true); }, x, w);
  ASSERT_THAT(plain, IsOk());
  ASSERT_THAT(marked, IsOk());
  const auto all = Partition(*plain), some = Partition(*marked);
  ASSERT_THAT(all, IsOk());
  ASSERT_THAT(some, IsOk());
  // Of each layer its result, which the next one's backward begins from (the last one's tanh is its own derivative's operand).
  EXPECT_EQ(all->intermediate_bytes, 9 * 16 * 16 * 4);
  EXPECT_EQ(some->intermediate_bytes, 3 * 16 * 16 * 4);
  EXPECT_GE(some->report.recomputed_flops, 3 * 2.0 * 16 * 16 * 16);
  EXPECT_LT(PredictPeakMemory(*marked, *some).peak_bytes, PredictPeakMemory(*plain, *all).peak_bytes);

  // A region's random numbers are kept.
  const auto random = Trace(
      [](at::Tensor x) { return Checkpoint([](const at::Tensor& in) { return at::dropout(in.sin(), 0.5, true).exp(); }, x).sum(); }, x);
  ASSERT_THAT(random, IsOk());
  const auto parts = Partition(*random);
  ASSERT_THAT(parts, IsOk());
  EXPECT_THAT(Recomputed(*parts), ::testing::Not(::testing::Contains("bernoulli_")));
}

// The same of a graph that torch.export made, where a region is a nested graph.
TEST(CheckpointRegions, OfExportedPrograms) {
  const auto find = [](const char* name, const char* overload) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload); };
  auto body = std::make_shared<fx::GraphModule>();
  fx::Node* in = body->graph().Placeholder("in");
  fx::Node* sin = body->graph().CallFunction(find("aten::sin", ""), {in});
  fx::Node* exp = body->graph().CallFunction(find("aten::exp", ""), {sin});
  body->graph().Output(fx::Argument::Tuple({body->graph().CallFunction(find("aten::tanh", ""), {exp})}));
  fx::GraphModule module;
  ASSERT_THAT(module.AddSubmodule("body", {body, nullptr}), IsOk());
  fx::Node* x = module.graph().Placeholder("x");
  fx::Node* call =
      module.graph().CreateNode(fx::Op::kCallFunction, fx::HigherOrderTarget{"torch.ops.higher_order.tag_activation_checkpoint"},
                                {module.graph().GetAttr("body"), x});
  fx::Node* item = module.graph().CreateNode(fx::Op::kCallFunction, fx::OpaqueTarget{"operator.getitem"}, {call, IValue(0)});
  module.graph().Output(module.graph().CallFunction(find("aten::cos", ""), {item}));
  const auto mode = FakeTensorMode::Create();
  const auto joint = TraceJointGraph(module, {mode->FromReal(Leaf({8, 8}))});
  ASSERT_THAT(joint, IsOk());
  const auto parts = Partition(*joint);
  ASSERT_THAT(parts, IsOk());
  EXPECT_THAT(Recomputed(*parts), ::testing::IsSupersetOf({"sin", "exp"}));
  EXPECT_LE(parts->intermediate_bytes, 8 * 8 * 4);
}

TEST(PeakMemory, OfAChain) {
  const auto joint = Trace([](at::Tensor x) { return x.sin().cos().exp(); }, Leaf({256}));
  ASSERT_THAT(joint, IsOk());
  const auto parts = Partition(*joint);
  ASSERT_THAT(parts, IsOk());
  const PeakMemory peak = PredictPeakMemory(*joint, *parts);
  // Forward: sin's result is saved; cos and exp are there together. Backward: exp, the tangent, sin, and of the three products two.
  EXPECT_EQ(peak.forward_bytes, 3 * 1024);
  EXPECT_EQ(peak.kept_bytes, 2 * 1024);
  EXPECT_GE(peak.backward_bytes, 4 * 1024);
  EXPECT_LE(peak.backward_bytes, 6 * 1024);
  EXPECT_EQ(peak.peak_bytes, peak.backward_bytes);
}

}  // namespace
}  // namespace ddpopt
