// Training steps of the models in testing/models, compiled whole: losses, gradients and buffers are eager LibTorch's.

#include <memory>
#include <string>
#include <vector>

#include "ATen/Context.h"
#include "ddpopt/aot/aot_function.h"
#include "ddpopt/capture/tracer/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/matchers.h"
#include "testing/models/models.h"

namespace ddpopt {
namespace {

using testing::AllClose;
using testing::AllModels;
using testing::IsOk;
using testing::Model;
using testing::TensorEq;

class AotModelTest : public ::testing::TestWithParam<std::size_t> {};

TEST_P(AotModelTest, TrainsAsEager) {
  const Model& model = AllModels()[GetParam()];
  at::manual_seed(1);
  const auto eager = model.make();
  at::manual_seed(1);
  const auto net = model.make();
  const std::vector<at::Tensor> batch = model.batch();
  auto traced = TraceModule(*net, batch, FakeTensorMode::Create(), [&](const std::vector<at::Tensor>& in) { return model.loss(*net, in); });
  ASSERT_THAT(traced, IsOk());
  AotOptions options;
  options.poison_workspace = true;
  auto compiled = AotFunction::Compile(*traced->module, traced->fake_inputs, options);
  ASSERT_THAT(compiled, IsOk());

  // GRU's steps are written in place by LibTorch's own code, whose products are then summed in another order.
  const bool same_bits = model.name != "gru";
  for (int step = 0; step < 2; ++step) {
    SCOPED_TRACE(step);
    at::manual_seed(5);
    const at::Tensor want = model.loss(*eager, batch);
    want.backward();
    at::manual_seed(5);
    const at::Tensor got = (*compiled)->Call(std::vector<c10::IValue>(batch.begin(), batch.end())).toTensor();
    got.backward();
    EXPECT_THAT(got.detach(), AllClose(want.detach(), same_bits ? 0 : 1e-6, 0));
    const auto parameters = net->named_parameters(), eager_parameters = eager->named_parameters();
    for (const auto& item : eager_parameters) {
      SCOPED_TRACE(item.key());
      const at::Tensor& want_grad = item.value().grad();
      const at::Tensor& got_grad = parameters[item.key()].grad();
      ASSERT_EQ(got_grad.defined(), want_grad.defined());
      if (!want_grad.defined()) continue;
      if (same_bits) {
        EXPECT_THAT(got_grad, TensorEq(want_grad));
      } else {
        EXPECT_THAT(got_grad, AllClose(want_grad, 1e-5, 1e-6));
      }
    }
    const auto buffers = net->named_buffers();
    for (const auto& item : eager->named_buffers()) {
      SCOPED_TRACE(item.key());
      EXPECT_THAT(buffers[item.key()], TensorEq(item.value()));
    }
  }
}

// What is computed again is the same bits; a smaller budget saves no more.
TEST_P(AotModelTest, EveryPartitionGivesTheSameGradients) {
  const Model& model = AllModels()[GetParam()];
  at::manual_seed(1);
  const auto net = model.make();
  const std::vector<at::Tensor> batch = model.batch();
  auto traced = TraceModule(*net, batch, FakeTensorMode::Create(), [&](const std::vector<at::Tensor>& in) { return model.loss(*net, in); });
  ASSERT_THAT(traced, IsOk());
  std::vector<at::Tensor> expected;
  int64_t bytes = 0;
  for (const double budget : {-1.0, 1.0, 0.5, 0.0}) {
    SCOPED_TRACE(budget);
    AotOptions options;
    options.poison_workspace = true;
    if (budget >= 0) options.partition = {PartitionKind::kMinCut, budget};
    auto compiled = AotFunction::Compile(*traced->module, traced->fake_inputs, options);
    ASSERT_THAT(compiled, IsOk());
    const PartitionedGraph& parts = (*compiled)->parts();
    EXPECT_TRUE(budget < 0 || parts.intermediate_bytes <= bytes) << parts.intermediate_bytes << " after " << bytes;
    EXPECT_LE(parts.intermediate_bytes, parts.report.default_bytes);
    bytes = parts.intermediate_bytes;
    net->zero_grad();
    at::manual_seed(5);
    (*compiled)->Call(std::vector<c10::IValue>(batch.begin(), batch.end())).toTensor().backward();
    std::vector<at::Tensor> gradients;
    for (const auto& item : net->named_parameters()) {
      if (item.value().grad().defined()) gradients.push_back(item.value().grad().clone());
    }
    if (budget < 0) {
      expected = gradients;
      continue;
    }
    ASSERT_EQ(gradients.size(), expected.size());
    for (std::size_t i = 0; i < gradients.size(); ++i) EXPECT_THAT(gradients[i], TensorEq(expected[i])) << "gradient " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, AotModelTest, ::testing::Range(std::size_t{0}, AllModels().size()),
                         [](const auto& info) { return AllModels()[info.param].name; });

}  // namespace
}  // namespace ddpopt
