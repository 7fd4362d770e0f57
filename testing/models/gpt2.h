#ifndef DDPOPT_TESTING_MODELS_GPT2_H_
#define DDPOPT_TESTING_MODELS_GPT2_H_

// GPT-2, as a torch::nn::Module whose forward returns the loss. For tests in a small size, for benchmarks in the published ones.
//
//   Gpt2 net(Gpt2Config{});
//   at::Tensor loss = net->forward(tokens, next);       // both int64 [batch, time]

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/container/modulelist.h"
#include "torch/nn/modules/dropout.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/modules/normalization.h"
#include "torch/nn/pimpl.h"

namespace ddpopt::testing {

struct Gpt2Config {
  int64_t vocab = 29;
  int64_t context = 10;  // positions
  int64_t width = 16;
  int64_t heads = 2;
  int64_t layers = 2;
  double dropout = 0.1;

  // 774,030,080 parameters.
  static Gpt2Config Large() { return {.vocab = 50257, .context = 1024, .width = 1280, .heads = 20, .layers = 36, .dropout = 0.1}; }
};

class Gpt2BlockImpl : public torch::nn::Module {
 public:
  explicit Gpt2BlockImpl(const Gpt2Config& config);
  // [batch, time, width], as the result.
  at::Tensor forward(const at::Tensor& x);

 private:
  int64_t heads_;
  double dropout_;
  torch::nn::LayerNorm ln_1_{nullptr}, ln_2_{nullptr};
  torch::nn::Linear attn_{nullptr}, attn_proj_{nullptr}, fc_{nullptr}, proj_{nullptr};
  torch::nn::Dropout attn_drop_{nullptr}, drop_{nullptr};
};
TORCH_MODULE(Gpt2Block);

class Gpt2Impl : public torch::nn::Module {
 public:
  explicit Gpt2Impl(const Gpt2Config& config);
  // The mean cross entropy of the tokens that follow.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& next);

 private:
  torch::nn::Embedding wte_{nullptr}, wpe_{nullptr};  // wte's weight is the head's too
  torch::nn::Dropout drop_{nullptr};
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm ln_f_{nullptr};
};
TORCH_MODULE(Gpt2);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_MODELS_GPT2_H_
