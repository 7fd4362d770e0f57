// Random graphs run to what ATen, called directly, computes; by every way of running them.

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "c10/core/GradMode.h"
#include "gtest/gtest.h"
#include "interpreter/interpreter.h"
#include "interpreter/transformer.h"
#include "testing/matchers.h"
#include "testing/random_graph.h"

namespace ddpopt {
namespace {

using c10::IValue;
using testing::MakeRandomGraph;
using testing::RandomGraph;
using testing::SameValues;

// Takes every node the general way.
class Gathering : public Interpreter {
 public:
  using Interpreter::Interpreter;

 protected:
  IValue RunCallFunction(const fx::Node& node, Arguments& arguments) override {
    arguments.args();
    return Interpreter::RunCallFunction(node, arguments);
  }
};

class RandomGraphTest : public ::testing::TestWithParam<int> {};

TEST_P(RandomGraphTest, RunsToTheReference) {
  const at::NoGradGuard no_grad;
  const RandomGraph random = MakeRandomGraph(GetParam(), 10 + GetParam() % 60);
  SCOPED_TRACE("seed " + std::to_string(GetParam()) + "\n" + random.module->graph().ToString());
  const auto check = [&](const char* way, const fx::GraphModule& module, auto&& run) {
    std::vector<IValue> inputs = random.CloneInputs();
    EXPECT_TRUE(SameValues(run(module, inputs), random.expected)) << way;
    EXPECT_TRUE(SameValues(inputs, random.expected_inputs)) << way << " leaves other inputs";
  };
  check("plain", *random.module, [](const auto& module, const auto& inputs) { return Interpreter(module).Run(inputs); });
  check("boxed", *random.module, [](const auto& module, auto inputs) { return Interpreter(module).RunBoxed(inputs); });
  check("general", *random.module, [](const auto& module, const auto& inputs) { return Gathering(module).Run(inputs); });
  check("keeping", *random.module, [](const auto& module, const auto& inputs) {
    InterpreterOptions options;
    options.garbage_collect_values = false;
    return Interpreter(module, options).Run(inputs);
  });
  check("clone", *random.module->Clone(), [](const auto& module, const auto& inputs) { return Interpreter(module).Run(inputs); });
  const auto transformed = Transformer(*random.module).Transform();
  DDPOPT_ASSERT_OK(transformed);
  EXPECT_EQ((*transformed)->graph().ToString(), random.module->graph().ToString());
  check("transformed", **transformed, [](const auto& module, const auto& inputs) { return Interpreter(module).Run(inputs); });
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomGraphTest, ::testing::Range(0, 100));

}  // namespace
}  // namespace ddpopt
