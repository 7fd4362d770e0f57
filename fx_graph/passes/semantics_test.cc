// Passes leave alone what random graphs compute, and what they leave in their inputs.

#include <string>
#include <vector>

#include "c10/core/GradMode.h"
#include "fx_graph/passes/builtin_passes.h"
#include "gtest/gtest.h"
#include "interpreter/interpreter.h"
#include "testing/matchers.h"
#include "testing/pass_test.h"
#include "testing/random_graph.h"

namespace ddpopt::fx {
namespace {

class SemanticsTest : public ::testing::TestWithParam<int> {};

TEST_P(SemanticsTest, PassesKeepThem) {
  const at::NoGradGuard no_grad;
  for (const char* pipeline : {"dead_code", "common_subexpression", "common_subexpression,dead_code,common_subexpression"}) {
    const testing::RandomGraph random = testing::MakeRandomGraph(GetParam(), 10 + GetParam() % 60);
    const std::string before = testing::ModuleText(*random.module);
    auto passes = BuiltinPasses().CreatePipeline(pipeline);
    DDPOPT_ASSERT_OK(passes);
    for (const auto& pass : *passes) DDPOPT_ASSERT_OK(testing::RunPass(*pass, *random.module, {.idempotent = false}));
    std::vector<c10::IValue> inputs = random.CloneInputs();
    EXPECT_TRUE(testing::SameValues(CallGraphModule(*random.module, inputs), random.expected) &&
                testing::SameValues(inputs, random.expected_inputs))
        << "seed " << GetParam() << ", " << pipeline << "\n" << before << "became\n" << testing::ModuleText(*random.module);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, SemanticsTest, ::testing::Range(0, 100));

}  // namespace
}  // namespace ddpopt::fx
