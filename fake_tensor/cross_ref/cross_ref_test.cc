#include "fake_tensor/cross_ref/cross_ref.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "c10/core/ScalarType.h"
#include "fake_tensor/cross_ref/generator.h"
#include "fake_tensor/cross_ref/recipe.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ddpopt::cross_ref {
namespace {

using ::testing::IsEmpty;

// Of every operator some calls: //tools:cross_ref makes more. CROSS_REF_SEED chooses other ones (--test_env=CROSS_REF_SEED=7).
TEST(CrossRefTest, FakesDoWhatRealTensorsDo) {
  at::set_num_threads(1);
  const char* chosen = std::getenv("CROSS_REF_SEED");
  const uint64_t seed = chosen == nullptr ? 20 : std::strtoull(chosen, nullptr, 10);
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  CrossRef cross_ref({.seed = seed, .substrings = {}});
  std::set<std::string> operators;
  int rejected = 0;
  const int cases = static_cast<int>(2 * cross_ref.operators().size());
  for (int i = 0; i < cases; ++i) {
    const Comparison comparison = cross_ref.Compare(i);
    operators.insert(comparison.op);
    rejected += comparison.rejected_by_real;
    EXPECT_TRUE(comparison.agrees()) << "seed " << seed << ", call " << i << ": " << comparison.call << "\n" << comparison.difference;
  }
  EXPECT_GE(operators.size(), 600u);
  EXPECT_GE(rejected, cases / 10);
}

TEST(CrossRefTest, ACallIsAFunctionOfTheSeed) {
  CrossRef one({.seed = 5, .substrings = {"aten::add", "aten::cat", "aten::convolution"}});
  CrossRef two({.seed = 5, .substrings = {"aten::add", "aten::cat", "aten::convolution"}});
  CrossRef other({.seed = 6, .substrings = {"aten::add", "aten::cat", "aten::convolution"}});
  int different = 0;
  for (int i = 0; i < 50; ++i) {
    const std::string call = one.Compare(i).call;
    EXPECT_EQ(call, two.Compare(i).call);
    different += call != other.Compare(i).call;
  }
  EXPECT_GT(different, 40);
}

// A comparison that finds nothing wrong with anything would be of no use.
TEST(CrossRefTest, WhatIsComparedDiffersBetweenCalls) {
  CrossRef cross_ref({.seed = 1, .substrings = {"aten::add.Tensor$"}});
  int rejected = 0, transposed = 0, empty = 0, numbers = 0, mixed = 0;
  for (int i = 0; i < 400; ++i) {
    const Comparison comparison = cross_ref.Compare(i);
    rejected += comparison.rejected_by_real;
    transposed += absl::StrContains(comparison.call, "permuted");
    empty += absl::StrContains(comparison.call, ",0,") || absl::StrContains(comparison.call, "[0");
    numbers += absl::StrContains(comparison.call, "number");
    mixed += absl::StrContains(comparison.call, "self=f32") && !absl::StrContains(comparison.call, "other=f32");
  }
  EXPECT_GT(rejected, 20);
  EXPECT_GT(transposed, 20);
  EXPECT_GT(empty, 5);
  EXPECT_GT(numbers, 3);
  EXPECT_GT(mixed, 4);
}

TEST(RecipeTest, EveryNameIsAnOperators) {
  std::set<std::string> known;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    known.insert(name.name);
    known.insert(name.overload_name.empty() ? name.name : absl::StrCat(name.name, ".", name.overload_name));
  }
  std::vector<std::string> unknown;
  for (const std::string& name : RecipeNames()) {
    // A name may be that of the in-place form alone.
    if (known.count("aten::" + name) == 0 && known.count("aten::" + name + "_") == 0) unknown.push_back(name);
  }
  EXPECT_THAT(unknown, IsEmpty());
}

TEST(RecipeTest, EveryUnfinishedOperatorIsOneOfThoseThatAreCalled) {
  std::set<std::string> known;
  for (const c10::OperatorHandle& op : Operators({}, true)) known.insert(c10::toString(op.operator_name()).substr(6));
  std::vector<std::string> unknown;
  for (const std::string& name : UnfinishedOperators()) {
    if (known.count(name) == 0) unknown.push_back(name);
  }
  EXPECT_THAT(unknown, IsEmpty());
}

// Recipes are for calls that the real kernel takes: of each operator at least some must be.
TEST(RecipeTest, RealKernelsTakeSomeCallsOfEachFunctionalOperator) {
  at::set_num_threads(1);
  std::vector<std::string> never;
  for (const c10::OperatorHandle& op : Operators({}, false)) {
    if (op.schema().is_mutable()) continue;
    bool taken = false;
    for (uint64_t seed = 0; seed < 40 && !taken; ++seed) {
      const std::optional<Call> call = RandomCall(op, seed, {.damage = false, .dtype = std::nullopt});
      if (!call.has_value()) continue;
      try {
        MadeCall made = Make(*call);
        cross_ref::Run(op, std::move(made.arguments));
        taken = true;
      } catch (const std::exception&) {
      }
    }
    if (!taken) never.push_back(c10::toString(op.operator_name()));
  }
  EXPECT_THAT(never, IsEmpty());
}

}  // namespace
}  // namespace ddpopt::cross_ref
