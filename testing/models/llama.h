#ifndef DDPOPT_TESTING_MODELS_LLAMA_H_
#define DDPOPT_TESTING_MODELS_LLAMA_H_

// A Llama-like decoder: RMSNorm, rotary embedding, fewer key heads than query heads, SwiGLU.
//
//   Llama net(LlamaConfig{});
//   at::Tensor loss = net->forward(tokens, next);      // int64 [batch, time], each

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/container/modulelist.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/pimpl.h"

namespace ddpopt::testing {

struct LlamaConfig {
  int64_t vocab = 31, context = 12, width = 16, heads = 4, key_heads = 2, layers = 2;
};

class RmsNormImpl : public torch::nn::Module {
 public:
  explicit RmsNormImpl(int64_t width);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_;
};
TORCH_MODULE(RmsNorm);

class LlamaBlockImpl : public torch::nn::Module {
 public:
  explicit LlamaBlockImpl(const LlamaConfig& config);
  // cos, sin: [time, width of a head]; mask: [time, time], true where a position may look.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& mask);

 private:
  int64_t heads_, key_heads_;
  RmsNorm norm1_{nullptr}, norm2_{nullptr};
  torch::nn::Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, o_{nullptr}, gate_{nullptr}, up_{nullptr}, down_{nullptr};
};
TORCH_MODULE(LlamaBlock);

class LlamaImpl : public torch::nn::Module {
 public:
  explicit LlamaImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& next);

 private:
  torch::nn::Embedding embed_{nullptr};
  at::Tensor cos_, sin_;  // buffers [context, width of a head]
  torch::nn::ModuleList blocks_;
  RmsNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Llama);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_MODELS_LLAMA_H_
