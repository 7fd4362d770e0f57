#include "ddpopt/backends/aot_eager.h"

#include <memory>
#include <string>
#include <vector>

#include "ATen/Context.h"
#include "ddpopt/capture/tracer/trace.h"
#include "ddpopt/optimizer/ddp_optimizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "interpreter/interpreter.h"
#include "testing/matchers.h"
#include "testing/models/models.h"

namespace ddpopt {
namespace {

using testing::AllModels;
using testing::IsOk;
using testing::Model;
using testing::TensorEq;

// Cut into pieces, each compiled: what the pieces hand each other, values saved across them and the order of gradients.
TEST(AotEagerBackend, PiecesTrainAsTheWhole) {
  for (const Model& model : AllModels()) {
    if (model.name != "gpt2" && model.name != "resnet" && model.name != "t5" && model.name != "unet") continue;
    SCOPED_TRACE(model.name);
    at::manual_seed(1);
    const auto eager = model.make();
    at::manual_seed(1);
    const auto net = model.make();
    const std::vector<at::Tensor> batch = model.batch();
    const auto mode = FakeTensorMode::Create();
    auto traced = TraceModule(*net, batch, mode, [&](const std::vector<at::Tensor>& in) { return model.loss(*net, in); });
    ASSERT_THAT(traced, IsOk());
    BucketOptions buckets;
    buckets.bucket_cap_bytes = 10000;
    auto optimized = OptimizeDdp(traced->module, traced->fake_inputs, mode, AotEagerBackend(), buckets);
    ASSERT_THAT(optimized, IsOk());
    ASSERT_GT(optimized->assignment.buckets.size(), 2u);

    // What was refused would run by the interpreter, as one autograd node for each operator.
    at::manual_seed(5);
    const at::Tensor want = model.loss(*eager, batch);
    want.backward();
    at::manual_seed(5);
    const at::Tensor got = CallGraphModule(*optimized->module, std::vector<c10::IValue>(batch.begin(), batch.end())).toTensor();
    ASSERT_NE(got.grad_fn(), nullptr);
    EXPECT_EQ(got.grad_fn()->name(), "AotBackward");
    got.backward();
    EXPECT_THAT(got.detach(), TensorEq(want.detach()));
    const auto parameters = net->named_parameters();
    for (const auto& item : eager->named_parameters()) {
      SCOPED_TRACE(item.key());
      ASSERT_EQ(parameters[item.key()].grad().defined(), item.value().grad().defined());
      if (!item.value().grad().defined()) continue;
      EXPECT_THAT(parameters[item.key()].grad(), TensorEq(item.value().grad()));
    }
  }
}

}  // namespace
}  // namespace ddpopt
