// What LibTorch's own modules emit: captured, and the same to the bit.

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ddpopt/capture/tracer/trace_forward.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "interpreter/interpreter.h"
#include "testing/matchers.h"
#include "torch/nn/functional/loss.h"
#include "torch/nn/modules/activation.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/dropout.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/modules/normalization.h"
#include "torch/types.h"
#include "torch/utils.h"

namespace ddpopt {
namespace {

using testing::AllClose;
using testing::TensorEq;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
namespace nn = torch::nn;
namespace F = torch::nn::functional;

std::vector<std::string> Operators(const TracedModule& traced) {
  std::vector<std::string> result;
  for (const fx::Node* node : traced.module->graph().nodes()) {
    if (node->is_operator()) result.push_back(c10::toString(node->operator_handle().operator_name()));
  }
  return result;
}

// Traces the net, then takes three steps with the graph and with a twin that runs eagerly: losses, gradients, parameters and buffers are
// the same bits.
template <typename Net, typename... Args>
TracedModule ExpectSame(const Net& net, const Net& twin, const Args&... args) {
  {
    const torch::NoGradGuard no_grad;
    for (const auto& item : net->named_parameters()) twin->named_parameters()[item.key()].copy_(item.value());
    for (const auto& item : net->named_buffers()) twin->named_buffers()[item.key()].copy_(item.value());
  }
  auto traced = TraceForward(net, FakeTensorMode::Create(), args...);
  if (!traced.ok()) {
    ADD_FAILURE() << traced.status();
    return {};
  }
  std::vector<at::Tensor> inputs;
  FlattenValue(ToValue(std::make_tuple(args...)), &inputs);
  const auto step = [](Net net, const at::Tensor& loss) {
    net->zero_grad();
    loss.backward();
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& parameter : net->parameters()) {
      if (parameter.grad().defined()) parameter.sub_(parameter.grad(), 0.1);
    }
  };
  for (int i = 0; i < 3; ++i) {
    torch::manual_seed(7 + i);
    const at::Tensor loss = CallGraphModule(*traced->module, std::vector<c10::IValue>(inputs.begin(), inputs.end())).toTensor();
    torch::manual_seed(7 + i);
    const at::Tensor expected = twin->forward(args...);
    EXPECT_THAT(loss, TensorEq(expected)) << "step " << i;
    step(net, loss);
    step(twin, expected);
    for (const auto& item : net->named_parameters()) {
      EXPECT_THAT(item.value(), TensorEq(twin->named_parameters()[item.key()])) << item.key() << ", step " << i;
    }
    for (const auto& item : net->named_buffers()) EXPECT_THAT(item.value(), TensorEq(twin->named_buffers()[item.key()])) << item.key();
  }
  return *std::move(traced);
}

struct ClassifierImpl : nn::Module {
  explicit ClassifierImpl(bool max_norm = false) {
    table = register_module("table", nn::Embedding(max_norm ? nn::EmbeddingOptions(10, 8).max_norm(0.5) : nn::EmbeddingOptions(10, 8)));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({8})));
    first = register_module("first", nn::Linear(8, 16));
    batch_norm = register_module("batch_norm", nn::BatchNorm1d(16));
    dropout = register_module("dropout", nn::Dropout(0.5));
    gelu = register_module("gelu", nn::GELU());
    second = register_module("second", nn::Linear(16, 5));
  }
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets) {
    const at::Tensor hidden = batch_norm(first(norm(table(tokens))));
    return F::cross_entropy(second(dropout(gelu(hidden))), targets, F::CrossEntropyFuncOptions().label_smoothing(0.1));
  }
  nn::Embedding table{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::Linear first{nullptr}, second{nullptr};
  nn::BatchNorm1d batch_norm{nullptr};
  nn::Dropout dropout{nullptr};
  nn::GELU gelu{nullptr};
};

TEST(TraceModulesTest, Classifier) {
  torch::manual_seed(1);
  const at::Tensor tokens = torch::tensor({1, 3, 3, 7, 9, 0}), targets = torch::tensor({0, 1, 2, 3, 4, 1});
  for (const bool max_norm : {false, true}) {
    const auto net = std::make_shared<ClassifierImpl>(max_norm), twin = std::make_shared<ClassifierImpl>(max_norm);
    const TracedModule traced = ExpectSame(net, twin, tokens, targets);
    EXPECT_THAT(Operators(traced), Contains("aten::batch_norm"));
    EXPECT_THAT(Operators(traced), Contains("aten::linear").Times(2));
    EXPECT_THAT(Operators(traced), Not(Contains("aten::addmm")));
    if (max_norm) {
      EXPECT_THAT(Operators(traced), Contains("aten::embedding_renorm_"));
    }
  }
  const auto net = std::make_shared<ClassifierImpl>(), twin = std::make_shared<ClassifierImpl>();
  net->eval();
  twin->eval();
  ExpectSame(net, twin, tokens, targets);
}

struct AttentionImpl : nn::Module {
  AttentionImpl() {
    attention = register_module("attention", nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2).dropout(0.1)));
    out = register_module("out", nn::Linear(nn::LinearOptions(8, 1).bias(false)));
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& memory) {
    const at::Tensor self = std::get<0>(attention(x, x, x));
    const at::Tensor cross = std::get<0>(attention(self + x, memory, memory));
    return F::mse_loss(out(cross), torch::zeros({x.size(0), x.size(1), 1}));
  }
  nn::MultiheadAttention attention{nullptr};
  nn::Linear out{nullptr};
};

TEST(TraceModulesTest, MultiheadAttention) {
  torch::manual_seed(1);
  const auto net = std::make_shared<AttentionImpl>();
  const at::Tensor x = torch::randn({5, 3, 8}), memory = torch::randn({5, 3, 8});
  auto traced = TraceForward(net, FakeTensorMode::Create(), x, memory);
  ASSERT_THAT(traced, testing::IsOk());
  // Every projection is one node with its weight and bias, and nothing is left that transposes a weight.
  EXPECT_THAT(Operators(*traced), Not(Contains("aten::t")));
  EXPECT_THAT(Operators(*traced), Not(Contains("aten::addmm")));
  // Biases of values with three dimensions are added within the product, so the last bits may differ.
  torch::manual_seed(3);
  const at::Tensor loss = CallGraphModule(*traced->module, {x, memory}).toTensor();
  loss.backward();
  std::vector<at::Tensor> grads;
  for (const at::Tensor& parameter : net->parameters()) grads.push_back(parameter.grad().clone());
  net->zero_grad();
  torch::manual_seed(3);
  const at::Tensor expected = net->forward(x, memory);
  expected.backward();
  EXPECT_THAT(loss, AllClose(expected, 1e-5, 1e-6));
  for (std::size_t i = 0; i < grads.size(); ++i) EXPECT_THAT(grads[i], AllClose(net->parameters()[i].grad(), 1e-4, 1e-6)) << i;
}

struct LossesImpl : nn::Module {
  LossesImpl() { layer = register_module("layer", nn::Linear(4, 4)); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor z = layer(x);
    at::Tensor loss = F::mse_loss(z, y) + F::smooth_l1_loss(z, y) + F::l1_loss(z, y) + F::kl_div(z.log_softmax(1), y.softmax(1));
    loss = loss + F::binary_cross_entropy_with_logits(z, y.sigmoid()) + F::nll_loss(z.log_softmax(1), torch::arange(4));
    return loss + (1 - z).mean() + F::cosine_embedding_loss(z, y, torch::ones({4}));
  }
  nn::Linear layer{nullptr};
};

TEST(TraceModulesTest, Losses) {
  torch::manual_seed(1);
  const auto net = std::make_shared<LossesImpl>(), twin = std::make_shared<LossesImpl>();
  ExpectSame(net, twin, torch::randn({4, 4}), torch::randn({4, 4}));
}

}  // namespace
}  // namespace ddpopt
