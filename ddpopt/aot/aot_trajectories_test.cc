// The models in testing/models, compiled whole with several partitions: ten steps of training are eager LibTorch's, and so are gradients in
// fp64 and under autocast to bfloat16.

#include <memory>
#include <string>
#include <vector>

#include "ATen/Context.h"
#include "ATen/core/grad_mode.h"
#include "ddpopt/aot/aot_function.h"
#include "ddpopt/capture/tracer/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/autocast.h"
#include "testing/matchers.h"
#include "testing/models/models.h"

namespace ddpopt {
namespace {

using c10::IValue;
using testing::AllClose;
using testing::AllModels;
using testing::Autocast;
using testing::IsOk;
using testing::Model;
using testing::TensorEq;

struct Pair {
  std::shared_ptr<torch::nn::Module> eager, net;
  std::vector<at::Tensor> batch;
  std::shared_ptr<const AotFunction> compiled;
};

class AotTrajectoryTest : public ::testing::TestWithParam<std::size_t> {
 protected:
  const Model& model() const { return AllModels()[GetParam()]; }
  // GRU's steps are written in place by LibTorch's own code, whose products are then summed in another order. Autocast in eager mode casts
  // a weight once, and sums the gradients of its uses before they are cast back; compiled, each use is cast, and the sum is taken in fp32.
  bool same_bits(bool autocast) const { return model().name != "gru" && !(autocast && (model().name == "gpt2" || model().name == "rnn")); }

  absl::StatusOr<Pair> Make(at::ScalarType dtype, bool autocast, const AotOptions& options = {}) const {
    Pair pair;
    at::manual_seed(1);
    pair.eager = model().make();
    at::manual_seed(1);
    pair.net = model().make();
    pair.batch = model().batch();
    if (dtype != at::kFloat) {
      pair.eager->to(dtype);
      pair.net->to(dtype);
      for (at::Tensor& tensor : pair.batch) {
        if (tensor.is_floating_point()) tensor = tensor.to(dtype);
      }
    }
    const Autocast region(autocast);
    // The form of torch.export rounds biases elsewhere (docs/capture.md), which fp32 kernels happen not to show.
    TraceOptions form;
    form.canonicalize = dtype == at::kFloat && !autocast;
    auto traced = TraceModule(
        *pair.net, pair.batch, FakeTensorMode::Create(), [&](const std::vector<at::Tensor>& in) { return model().loss(*pair.net, in); },
        form);
    if (!traced.ok()) return traced.status();
    auto compiled = AotFunction::Compile(*traced->module, traced->fake_inputs, options);
    if (!compiled.ok()) return compiled.status();
    pair.compiled = *std::move(compiled);
    return pair;
  }

  // Both losses of one step; the random numbers are the same.
  void Step(const Pair& pair, int step, bool autocast) const {
    at::Tensor want, got;
    {
      const Autocast region(autocast);
      at::manual_seed(static_cast<std::uint64_t>(step));
      want = model().loss(*pair.eager, pair.batch);
    }
    want.backward();
    {
      const Autocast region(autocast);
      at::manual_seed(static_cast<std::uint64_t>(step));
      got = pair.compiled->Call(std::vector<IValue>(pair.batch.begin(), pair.batch.end())).toTensor();
    }
    got.backward();
    EXPECT_THAT(got.detach(), AllClose(want.detach(), same_bits(autocast) ? 0 : autocast ? 1e-2 : 1e-4, 0));
  }

  void ExpectSameGradients(const Pair& pair, bool autocast = false) const {
    const auto parameters = pair.net->named_parameters();
    for (const auto& item : pair.eager->named_parameters()) {
      SCOPED_TRACE(item.key());
      const at::Tensor &want = item.value().grad(), &got = parameters[item.key()].grad();
      ASSERT_EQ(got.defined(), want.defined());
      if (!want.defined()) continue;
      if (same_bits(autocast)) {
        EXPECT_THAT(got, TensorEq(want));
      } else {
        EXPECT_THAT(got, autocast ? AllClose(want, 5e-2, 1e-2) : AllClose(want, 1e-4, 1e-5));
      }
    }
  }
};

void Descend(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters()) {
    if (!parameter.grad().defined()) continue;
    parameter.add_(parameter.grad(), -0.05);
    parameter.mutable_grad().reset();
  }
}

TEST_P(AotTrajectoryTest, TenSteps) {
  AotOptions options;
  if (GetParam() % 2 == 1) options.partition = {PartitionKind::kMinCut, 0.5};
  const absl::StatusOr<Pair> pair = Make(at::kFloat, /*autocast=*/false, options);
  ASSERT_THAT(pair, IsOk());
  for (int step = 0; step < 10 && !HasFailure(); ++step) {
    SCOPED_TRACE(step);
    Step(*pair, step, /*autocast=*/false);
    if (step == 9) ExpectSameGradients(*pair);
    Descend(*pair->eager);
    Descend(*pair->net);
  }
  const auto buffers = pair->net->named_buffers();
  for (const auto& item : pair->eager->named_buffers()) {
    EXPECT_THAT(buffers[item.key()], AllClose(item.value(), same_bits(false) ? 0 : 1e-4, 0)) << item.key();
  }
}

TEST_P(AotTrajectoryTest, Fp64) {
  const absl::StatusOr<Pair> pair = Make(at::kDouble, /*autocast=*/false, {.partition = {PartitionKind::kMinCut, 1}});
  ASSERT_THAT(pair, IsOk());
  Step(*pair, 3, /*autocast=*/false);
  ExpectSameGradients(*pair);
}

TEST_P(AotTrajectoryTest, Bf16Autocast) {
  if (!model().bf16_autocast) GTEST_SKIP() << "LibTorch's own code refuses the model under autocast";
  const absl::StatusOr<Pair> pair = Make(at::kFloat, /*autocast=*/true, {.partition = {PartitionKind::kMinCut, 0.5}});
  ASSERT_THAT(pair, IsOk());
  Step(*pair, 3, /*autocast=*/true);
  ExpectSameGradients(*pair, /*autocast=*/true);
}

INSTANTIATE_TEST_SUITE_P(Models, AotTrajectoryTest, ::testing::Range(std::size_t{0}, AllModels().size()),
                         [](const auto& info) { return AllModels()[info.param].name; });

}  // namespace
}  // namespace ddpopt
