#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "ATen/Functions.h"
#include "absl/strings/str_cat.h"
#include "ddpopt/backends/minimizer.h"
#include "ddpopt/backends/registry.h"
#include "fx_graph/graph_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"
#include "testing/matchers.h"
#include "testing/tensors.h"
#include "tools/minimize_run.h"

namespace ddpopt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::FindOperator;
using testing::IsOk;

struct Outcome {
  int status;
  std::string out, err;
};

Outcome Minimizing(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  const int status = RunMinimize(arguments, out, err);
  return {status, out.str(), err.str()};
}

std::string Temp(const std::string& name) { return absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name); }

// Fails to compile what holds a tanh.
CompileFn Wrong() {
  return [](std::shared_ptr<const fx::GraphModule> piece, const std::vector<c10::IValue>& fakes,
            const CompileContext& context) -> absl::StatusOr<std::shared_ptr<const CompiledPiece>> {
    for (const fx::Node* node : piece->graph().nodes()) {
      if (node->is_operator() && node->operator_handle().operator_name().name == "aten::tanh") return absl::InternalError("tanh is too much");
    }
    return EagerBackend()(std::move(piece), fakes, context);
  };
}

TEST(Minimize, ShrinksAFileAndRunsItAgain) {
  ASSERT_THAT(RegisterBackend("no_tanh", Wrong), IsOk());
  auto gm = std::make_shared<fx::GraphModule>();
  fx::Node* x = gm->graph().Placeholder("x");
  for (const char* name : {"aten::sin", "aten::cos", "aten::tanh", "aten::exp"}) x = gm->graph().CallFunction(FindOperator(name, ""), {x});
  gm->graph().Output(fx::Argument::Tuple({x}));
  Reproducer whole;
  whole.backend = "no_tanh";
  whole.module = gm;
  whole.inputs = {testing::Ramp({2, 3})};
  ASSERT_THAT(WriteReproducer(whole, Temp("whole.json")), IsOk());

  const Outcome shrunk = Minimizing({"--shrink=" + Temp("whole.json"), "--output=" + Temp("small.json"), "--json"});
  EXPECT_EQ(shrunk.status, 1) << shrunk.err;
  EXPECT_THAT(shrunk.out, AllOf(HasSubstr("is wrong: compiling: INTERNAL: tanh is too much"), HasSubstr("aten.tanh.default"),
                                HasSubstr("\"nodes\":3")));
  const Outcome again = Minimizing({"--run=" + Temp("small.json")});
  EXPECT_EQ(again.status, 1);
  EXPECT_THAT(again.out, AllOf(HasSubstr("the backend no_tanh is wrong"), ::testing::Not(HasSubstr("aten.sin"))));
  const Outcome other = Minimizing({"--run=" + Temp("small.json"), "--backend=aot_eager"});
  EXPECT_EQ(other.status, 0);
  EXPECT_THAT(other.out, HasSubstr("computes what eager does"));
}

TEST(Minimize, WrongCommandLines) {
  EXPECT_EQ(Minimizing({"--help"}).status, 0);
  EXPECT_THAT(Minimizing({"--help"}).out, HasSubstr("usage: minimize"));
  EXPECT_EQ(Minimizing({}).status, 2);
  EXPECT_THAT(Minimizing({"--run=a", "--model=b"}).err, HasSubstr("one of --run, --model and --shrink"));
  EXPECT_THAT(Minimizing({"--run=a", "--max_tries=x"}).err, HasSubstr("--max_tries=x"));
  EXPECT_THAT(Minimizing({"--run=/nowhere/a.json"}).err, HasSubstr("/nowhere/a.json"));
  EXPECT_EQ(Minimizing({"--run=/nowhere/a.json"}).status, 2);
  ASSERT_EQ(Minimizing({"--frobnicate"}).status, 2);
}

}  // namespace
}  // namespace ddpopt
