#include "testing/pass_test.h"

#include <functional>
#include <memory>
#include <utility>

#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "testing/calls.h"
#include "testing/matchers.h"

namespace ddpopt::testing {
namespace {

class FnPass : public fx::Pass {
 public:
  explicit FnPass(std::function<absl::StatusOr<bool>(fx::GraphModule&)> run) : run_(std::move(run)) {}
  absl::string_view name() const override { return "fn"; }
  absl::StatusOr<bool> Run(fx::GraphModule& module) const override { return run_(module); }

 private:
  std::function<absl::StatusOr<bool>(fx::GraphModule&)> run_;
};

void Fill(fx::GraphModule& module) {
  fx::Node* x = module.graph().Placeholder("x");
  module.graph().Output(module.graph().CallFunction(FindOperator("aten::relu"), {x}));
}

// A nested graph's text counts too.
fx::GraphModule& Module() {
  static fx::GraphModule* module = nullptr;
  delete module;
  module = new fx::GraphModule;
  Fill(*module);
  auto nested = std::make_shared<fx::GraphModule>();
  Fill(*nested);
  DDPOPT_EXPECT_OK(module->AddSubmodule("nested", {nested, nullptr}));
  return *module;
}

absl::StatusOr<bool> AppendToNested(fx::GraphModule& module, bool claim) {
  fx::Graph& graph = module.GetSubmodule("nested")->graph_module->graph();
  fx::Node* old = graph.SetInsertBefore(graph.back());
  graph.CallFunction(FindOperator("aten::relu"), {graph.front()});
  graph.SetInsertBefore(old);
  return claim;
}

TEST(RunPass, PassesResultsOn) {
  EXPECT_THAT(RunPass(FnPass([](fx::GraphModule&) { return false; }), Module()), IsOkAndHolds(false));
  EXPECT_THAT(RunPass(FnPass([](fx::GraphModule& m) { return AppendToNested(m, true); }), Module(), {.idempotent = false}), IsOkAndHolds(true));
  EXPECT_THAT(RunPass(FnPass([](fx::GraphModule&) { return absl::InternalError("no"); }), Module()), StatusIs(absl::StatusCode::kInternal));
}

TEST(RunPass, FailsForAFalseClaim) {
  EXPECT_NONFATAL_FAILURE((void)RunPass(FnPass([](fx::GraphModule&) { return true; }), Module(), {.idempotent = false}), "but did not");
  EXPECT_NONFATAL_FAILURE((void)RunPass(FnPass([](fx::GraphModule& m) { return AppendToNested(m, false); }), Module()), "changed nothing");
}

TEST(RunPass, FailsForAnEndlessPass) {
  EXPECT_NONFATAL_FAILURE((void)RunPass(FnPass([](fx::GraphModule& m) { return AppendToNested(m, true); }), Module()), "in a second run");
}

TEST(RunPass, FailsForAGraphThatDoesNotLint) {
  EXPECT_NONFATAL_FAILURE((void)RunPass(FnPass([](fx::GraphModule& m) -> absl::StatusOr<bool> {
                                          m.graph().GetAttr("gone");
                                          return true;
                                        }),
                                        Module(), {.idempotent = false}),
                          "after pass fn");
}

}  // namespace
}  // namespace ddpopt::testing
