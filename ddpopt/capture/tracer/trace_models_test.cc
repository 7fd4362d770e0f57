// The models of testing/models as graphs: the operators that forward calls give eager's bits, and the canonical form its values.

#include <memory>
#include <string>
#include <vector>

#include "ATen/Context.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/clone.h"
#include "ddpopt/capture/tracer/compare_traces.h"
#include "ddpopt/capture/tracer/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "interpreter/interpreter.h"
#include "testing/matchers.h"
#include "testing/models/models.h"

namespace ddpopt {
namespace {

using testing::AllClose;
using testing::AllModels;
using testing::IsOk;
using testing::Model;
using testing::TensorEq;

// One training step's worth: the loss, gradients, and buffers afterwards.
struct Outcome {
  at::Tensor loss;
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
};

void Copy(const std::vector<at::Tensor>& from, torch::nn::Module& net) {
  const at::NoGradGuard no_grad;
  std::size_t i = 0;
  for (const at::Tensor& buffer : net.buffers()) buffer.copy_(from[i++]);
}

std::vector<at::Tensor> Buffers(const torch::nn::Module& net) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& buffer : net.buffers()) result.push_back(at::clone(buffer));
  return result;
}

// Steps from the same buffers and random numbers, which stay as they were.
template <typename Loss>
Outcome Step(torch::nn::Module& net, const Loss& loss) {
  const std::vector<at::Tensor> buffers = Buffers(net);
  net.zero_grad();
  at::manual_seed(11);
  Outcome outcome;
  outcome.loss = loss();
  if (outcome.loss.requires_grad()) outcome.loss.backward();
  for (const auto& item : net.named_parameters()) {
    outcome.names.push_back(item.key());
    outcome.tensors.push_back(item.value().grad().defined() ? at::clone(item.value().grad()) : at::Tensor());
  }
  for (const auto& item : net.named_buffers()) {
    outcome.names.push_back(item.key());
    outcome.tensors.push_back(at::clone(item.value()));
  }
  Copy(buffers, net);
  return outcome;
}

class TraceModelsTest : public ::testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    at::manual_seed(5);
    net_ = GetParam().make();
    batch_ = GetParam().batch();
  }
  absl::StatusOr<TracedModule> Trace(bool canonicalize) const {
    return TraceModule(*net_, batch_, FakeTensorMode::Create(),
                       [&](const std::vector<at::Tensor>& batch) { return GetParam().loss(*net_, batch); }, {.canonicalize = canonicalize});
  }
  Outcome Eager() const {
    return Step(*net_, [&] { return GetParam().loss(*net_, batch_); });
  }
  Outcome Run(const TracedModule& traced) const {
    return Step(*net_, [&] {
      return CallGraphModule(*traced.module, std::vector<c10::IValue>(batch_.begin(), batch_.end())).toTensor();
    });
  }
  void ExpectSameBits(const Outcome& outcome, const Outcome& expected) const {
    EXPECT_THAT(outcome.loss, TensorEq(expected.loss));
    for (std::size_t i = 0; i < expected.tensors.size(); ++i) {
      ASSERT_EQ(outcome.tensors[i].defined(), expected.tensors[i].defined()) << expected.names[i];
      if (!expected.tensors[i].defined()) continue;
      EXPECT_THAT(outcome.tensors[i], TensorEq(expected.tensors[i])) << expected.names[i];
    }
  }

  std::shared_ptr<torch::nn::Module> net_;
  std::vector<at::Tensor> batch_;
};

TEST_P(TraceModelsTest, GivesEagersBits) {
  for (const bool training : {true, false}) {
    net_->train(training);
    const auto traced = Trace(/*canonicalize=*/false);
    ASSERT_THAT(traced, IsOk());
    ExpectSameBits(Run(*traced), Eager());
    // Once more: nothing is left over from the first run, or from tracing.
    ExpectSameBits(Run(*traced), Eager());
    const auto again = Trace(/*canonicalize=*/false);
    ASSERT_THAT(again, IsOk());
    const auto difference = CompareTraces(*traced, *again);
    EXPECT_FALSE(difference.has_value()) << difference->what;
  }
}

TEST_P(TraceModelsTest, TheCanonicalFormGivesEagersValues) {
  const auto traced = Trace(/*canonicalize=*/true);
  ASSERT_THAT(traced, IsOk());
  const Outcome outcome = Run(*traced), expected = Eager();
  EXPECT_THAT(outcome.loss, AllClose(expected.loss, 1e-5, 1e-6));
  for (std::size_t i = 0; i < expected.tensors.size(); ++i) {
    ASSERT_EQ(outcome.tensors[i].defined(), expected.tensors[i].defined()) << expected.names[i];
    if (!expected.tensors[i].defined()) continue;
    const double largest = expected.tensors[i].numel() == 0 ? 0 : expected.tensors[i].abs().max().item<double>();
    EXPECT_THAT(outcome.tensors[i], AllClose(expected.tensors[i], 0, 1e-4 * largest + 1e-12)) << expected.names[i];
  }
  // Each weight of a Linear is used with its bias, in one node.
  for (const fx::Node* node : traced->module->graph().nodes()) {
    if (!node->is_operator()) continue;
    EXPECT_NE(c10::toString(node->operator_handle().operator_name()), "aten::addmm");
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TraceModelsTest, ::testing::ValuesIn(AllModels()),
                         [](const ::testing::TestParamInfo<Model>& info) { return info.param.name; });

}  // namespace
}  // namespace ddpopt
