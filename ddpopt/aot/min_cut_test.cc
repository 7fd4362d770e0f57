#include "ddpopt/aot/min_cut.h"

#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/matchers.h"

namespace ddpopt {
namespace {

using ::testing::ElementsAre;
using testing::IsOk;
using testing::StatusIs;
using Problem = RecomputeProblem;
constexpr int64_t kNever = Problem::kNever;

TEST(MinCut, ComputesCheapThingsAgain) {
  Problem problem;
  problem.values.push_back({.save_cost = 0, .recompute_cost = kNever});
  problem.values.push_back({.save_cost = 64, .recompute_cost = 4, .operands = {0}});
  problem.values.push_back({.save_cost = 64, .recompute_cost = 4, .needed = true, .operands = {1}});
  const auto choice = SolveRecompute(problem);
  ASSERT_THAT(choice, IsOk());
  EXPECT_THAT(choice->saved, ElementsAre(true, false, false));
  EXPECT_THAT(choice->recomputed, ElementsAre(false, true, true));
  EXPECT_EQ(choice->cost, 8);
}

// Two values are made of one small one: it is kept rather than both.
TEST(MinCut, OneSmallValueForTwoLargeOnes) {
  Problem problem;
  problem.values.push_back({.save_cost = kNever, .recompute_cost = kNever});
  problem.values.push_back({.save_cost = 10, .recompute_cost = kNever, .operands = {0}});
  problem.values.push_back({.save_cost = 8, .recompute_cost = 0, .needed = true, .operands = {1}});
  problem.values.push_back({.save_cost = 8, .recompute_cost = 0, .needed = true, .operands = {1}});
  auto choice = SolveRecompute(problem);
  ASSERT_THAT(choice, IsOk());
  EXPECT_THAT(choice->saved, ElementsAre(false, true, false, false));
  problem.values[3].needed = false;
  choice = SolveRecompute(problem);
  ASSERT_THAT(choice, IsOk());
  EXPECT_THAT(choice->saved, ElementsAre(false, false, true, false));
}

TEST(MinCut, OfEqualChoicesTheOneThatComputesLeast) {
  Problem problem;
  problem.values.push_back({.save_cost = 8, .recompute_cost = kNever});
  problem.values.push_back({.save_cost = 8, .recompute_cost = 0, .operands = {0}});
  problem.values.push_back({.save_cost = 8, .recompute_cost = 0, .needed = true, .operands = {1}});
  const auto choice = SolveRecompute(problem);
  ASSERT_THAT(choice, IsOk());
  EXPECT_THAT(choice->saved, ElementsAre(false, false, true));
}

TEST(MinCut, WhatCantBeDoneIsAnError) {
  Problem problem;
  problem.values.push_back({.save_cost = kNever, .recompute_cost = kNever});
  problem.values.push_back({.save_cost = kNever, .recompute_cost = 1, .needed = true, .operands = {0}});
  EXPECT_THAT(SolveRecompute(problem), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(SolveRecompute(Problem()), IsOk());
}

// The cheapest of all choices, tried one by one; kNever if there is none.
int64_t TryAll(const Problem& problem) {
  const std::size_t count = problem.values.size();
  int64_t best = kNever;
  std::vector<int> state(count);  // 0: nothing, 1: saved, 2: computed again
  const auto cost = [&]() -> int64_t {
    int64_t sum = 0;
    for (std::size_t v = 0; v < count; ++v) {
      const Problem::Value& value = problem.values[v];
      if (value.needed && state[v] == 0) return kNever;
      if (state[v] == 0) continue;
      const int64_t own = state[v] == 1 ? value.save_cost : value.recompute_cost;
      if (own == kNever) return kNever;
      sum += own;
      if (state[v] == 1) continue;
      for (const int operand : value.operands) {
        if (state[operand] == 0) return kNever;
      }
    }
    return sum;
  };
  while (true) {
    if (const int64_t sum = cost(); sum != kNever && (best == kNever || sum < best)) best = sum;
    std::size_t v = 0;
    while (v < count && ++state[v] == 3) state[v++] = 0;
    if (v == count) return best;
  }
}

TEST(MinCut, IsTheCheapestOfAllChoices) {
  int solved = 0;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % n); };
    Problem problem;
    const int count = 2 + below(7);
    for (int v = 0; v < count; ++v) {
      Problem::Value value;
      value.save_cost = below(8) == 0 ? kNever : below(12);
      value.recompute_cost = v == 0 || below(5) == 0 ? kNever : below(6);
      value.needed = below(3) == 0;
      for (int operand = 0; operand < v; ++operand) {
        if (below(3) == 0) value.operands.push_back(operand);
      }
      problem.values.push_back(value);
    }
    const auto choice = SolveRecompute(problem);
    const int64_t best = TryAll(problem);
    if (best == kNever) {
      EXPECT_THAT(choice, StatusIs(absl::StatusCode::kFailedPrecondition));
      continue;
    }
    ++solved;
    ASSERT_THAT(choice, IsOk());
    EXPECT_EQ(choice->cost, best);
    int64_t sum = 0;
    for (int v = 0; v < count; ++v) {
      const Problem::Value& value = problem.values[v];
      EXPECT_FALSE(choice->saved[v] && choice->recomputed[v]);
      EXPECT_TRUE(!value.needed || choice->saved[v] || choice->recomputed[v]);
      if (choice->saved[v]) sum += value.save_cost;
      if (!choice->recomputed[v]) continue;
      sum += value.recompute_cost;
      for (const int operand : value.operands) EXPECT_TRUE(choice->saved[operand] || choice->recomputed[operand]);
    }
    EXPECT_EQ(sum, best);
  }
  EXPECT_GT(solved, 100);
}

}  // namespace
}  // namespace ddpopt
