#include <memory>
#include <string>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ddpopt/backends/backend.h"
#include "fx_graph/graph_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"

namespace ddpopt {
namespace {

using testing::FindOperator;
using ::testing::HasSubstr;

TEST(EagerBackend, RunsThePieceWithItsOwnParameters) {
  auto gm = std::make_shared<fx::GraphModule>();
  at::Tensor w = at::ones({3}).requires_grad_();
  ASSERT_TRUE(gm->AddAttr("w", w, fx::GraphModule::AttrKind::kParameter).ok());
  fx::Node* x = gm->graph().Placeholder("x");
  fx::Node* y = gm->graph().CallFunction(FindOperator("aten::mul", "Tensor"), {x, gm->graph().GetAttr("w")});
  gm->graph().Output(fx::Argument::Tuple({y, x}));

  auto piece = EagerBackend()(gm, {}, CompileContext{"submod_0"});
  ASSERT_TRUE(piece.ok()) << piece.status();
  EXPECT_EQ((*piece)->output_meta().size(), 2u);
  EXPECT_FALSE((*piece)->output_meta()[0].has_value());
  at::Tensor input = at::arange(3, at::kFloat);
  c10::IValue result = (*piece)->Call({input});
  at::Tensor out = result.toTupleRef().elements()[0].toTensor();
  EXPECT_TRUE(at::equal(out, input));
  out.sum().backward();
  EXPECT_TRUE(at::equal(w.grad(), input));
}

TEST(EagerBackend, RefusesWhatCannotBeExecuted) {
  auto gm = std::make_shared<fx::GraphModule>();
  fx::Node* x = gm->graph().Placeholder("x");
  fx::Node* y = gm->graph().CallMethod("frobnicate", {x});
  gm->graph().Output(y);
  auto piece = EagerBackend()(gm, {}, CompileContext{"submod_0"});
  ASSERT_FALSE(piece.ok());
  EXPECT_EQ(piece.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(piece.status().message()), HasSubstr("'frobnicate'"));
}

}  // namespace
}  // namespace ddpopt
