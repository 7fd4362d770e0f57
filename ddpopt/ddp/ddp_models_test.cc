// Whole models through the wrapper, cut into many pieces, against the same module run by LibTorch: three steps of losses, gradients and
// buffers.

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ddpopt/ddp/distributed_data_parallel.h"
#include "gtest/gtest.h"
#include "testing/distributed_test.h"
#include "torch/nn/functional/activation.h"
#include "torch/nn/functional/loss.h"
#include "torch/nn/modules/activation.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/conv.h"
#include "torch/nn/modules/dropout.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/modules/normalization.h"
#include "torch/nn/modules/pooling.h"
#include "torch/nn/modules/rnn.h"
#include "torch/optim/sgd.h"
#include "torch/utils.h"

namespace ddpopt {
namespace {

namespace nn = torch::nn;

struct ConvNetImpl : nn::Module {
  ConvNetImpl() {
    register_module("stem", stem);
    register_module("norm1", norm1);
    register_module("conv", conv);
    register_module("norm2", norm2);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& images, const at::Tensor& labels) {
    at::Tensor x = at::max_pool2d(at::relu(norm1(stem(images))), 2);
    x = at::relu(norm2(conv(x)) + x);  // a residual connection across the pieces
    x = at::adaptive_avg_pool2d(x, {1, 1}).flatten(1);
    return nn::functional::cross_entropy(head(x), labels);
  }
  nn::Conv2d stem{nn::Conv2dOptions(3, 8, 3).padding(1).bias(false)}, conv{nn::Conv2dOptions(8, 8, 3).padding(1).groups(2)};
  nn::BatchNorm2d norm1{8}, norm2{8};
  nn::Linear head{8, 5};
};
TORCH_MODULE(ConvNet);

struct TransformerImpl : nn::Module {
  TransformerImpl() {
    register_module("token", token);
    register_module("norm1", norm1);
    register_module("qkv", qkv);
    register_module("out", out);
    register_module("norm2", norm2);
    register_module("mlp", mlp);
  }
  at::Tensor forward(const at::Tensor& ids, const at::Tensor& targets) {
    at::Tensor x = token(ids);
    const int64_t batch = x.size(0), time = x.size(1);
    const auto parts = qkv(norm1(x)).view({batch, time, 3, 2, 8}).permute({2, 0, 3, 1, 4}).unbind(0);
    const at::Tensor attended = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    x = x + dropout(out(attended.transpose(1, 2).reshape({batch, time, 16})));
    x = x + mlp->forward(norm2(x));
    const at::Tensor logits = at::matmul(x, token->weight.t());  // the embedding is tied to the head
    return nn::functional::cross_entropy(logits.view({-1, 11}), targets.view({-1}));
  }
  nn::Embedding token{11, 16};
  nn::LayerNorm norm1{nn::LayerNormOptions({16})}, norm2{nn::LayerNormOptions({16})};
  nn::Linear qkv{16, 48}, out{16, 16};
  nn::Sequential mlp{nn::Linear(16, 32), nn::GELU(), nn::Linear(32, 16)};
  nn::Dropout dropout{0.25};
};
TORCH_MODULE(Transformer);

// In-place operators, views, split, concatenation, index, constants born in forward.
struct OddsAndEndsImpl : nn::Module {
  OddsAndEndsImpl() {
    register_module("a", a);
    register_module("b", b);
    scale = register_parameter("scale", at::full({6}, 1.5));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = a(x);
    h.mul_(scale);
    h.slice(1, 0, 2).add_(1.0);
    const auto halves = h.chunk(2, 1);
    at::Tensor y = at::cat({halves[1].sigmoid(), halves[0].tanh(), at::ones({1, 1}).expand({x.size(0), 2})}, 1);
    y = b(y);
    y = y + at::where(y < 0.5, 0.3, 0.6);
    const at::Tensor mask = at::zeros({x.size(0), 4}).triu(1).eq(0);
    return y.masked_fill(mask.logical_not(), 0.25).pow(2).mean() + y.std() + std::get<0>(y.max(1)).sum();
  }
  nn::Linear a{4, 6}, b{8, 4};
  at::Tensor scale;
};
TORCH_MODULE(OddsAndEnds);

std::vector<at::Tensor> Copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

// The losses and, after each backward, gradients and buffers of three SGD steps. `forward` is the module's own or the wrapper's.
std::vector<at::Tensor> Train(nn::Module& net, const std::function<at::Tensor()>& forward) {
  torch::optim::SGD optimizer(net.parameters(), 0.1);
  std::vector<at::Tensor> seen;
  for (int step = 0; step < 3; ++step) {
    torch::manual_seed(100 + step);  // dropout draws the same masks in both runs
    optimizer.zero_grad();
    const at::Tensor loss = forward();
    loss.backward();
    seen.push_back(loss.detach().clone());
    for (const at::Tensor& parameter : net.parameters()) seen.push_back(parameter.grad().detach().clone());
    for (const at::Tensor& buffer : Copies(net.buffers())) seen.push_back(buffer);
    optimizer.step();
  }
  return seen;
}

template <typename Net, typename... Inputs>
void ExpectEqualsEager(const Inputs&... inputs) {
  torch::manual_seed(7);
  Net net;
  torch::manual_seed(7);
  Net twin;
  const std::vector<at::Tensor> expected = Train(*twin, [&] { return twin->forward(inputs...); });
  DdpOptions options;
  options.bucket_cap_mb = 1.0 / (1024 * 1024);  // a bucket ends after every operator that completes a parameter
  auto ddp = DistributedDataParallel<Net>::Create(net, testing::TestProcessGroup(), std::move(options));
  ASSERT_TRUE(ddp.ok()) << ddp.status();
  const std::vector<at::Tensor> seen = Train(*net, [&] { return (*ddp)->forward(inputs...); });
  EXPECT_GE((*ddp)->core().reducer_buckets().size(), 3u) << (*ddp)->core().bucket_table();
  ASSERT_EQ(seen.size(), expected.size());
  for (std::size_t i = 0; i < seen.size(); ++i) {
    EXPECT_TRUE(at::allclose(seen[i], expected[i], 1e-6, 1e-7))
        << "value " << i << " of " << seen.size() << ": " << seen[i] << " instead of " << expected[i];
  }
}

TEST(Models, ConvNetWithBatchNorm) {
  torch::manual_seed(1);
  ExpectEqualsEager<ConvNet>(at::randn({4, 3, 8, 8}), at::tensor({0, 4, 2, 1}, at::kLong));
}

TEST(Models, TransformerWithDropoutAndATiedEmbedding) {
  torch::manual_seed(1);
  ExpectEqualsEager<Transformer>(at::randint(11, {3, 5}, at::kLong), at::randint(11, {3, 5}, at::kLong));
}

TEST(Models, ViewsInPlaceOperatorsAndConstants) {
  torch::manual_seed(1);
  ExpectEqualsEager<OddsAndEnds>(at::randn({4, 4}));
}

struct RecurrentImpl : nn::Module {
  RecurrentImpl() {
    register_module("lstm", lstm);
    register_module("hidden", hidden);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto [steps, state] = lstm(x);
    return head(at::tanh(hidden(steps + std::get<0>(state)))).pow(2).mean();
  }
  nn::LSTM lstm{nn::LSTMOptions(4, 6)};
  nn::Linear hidden{6, 6}, head{6, 1};
};
TORCH_MODULE(Recurrent);

TEST(Models, ARecurrentNet) {
  torch::manual_seed(1);
  ExpectEqualsEager<Recurrent>(at::randn({5, 2, 4}));
}

}  // namespace
}  // namespace ddpopt
