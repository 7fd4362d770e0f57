#ifndef DDPOPT_TESTING_MODELS_T5_H_
#define DDPOPT_TESTING_MODELS_T5_H_

// A T5-like encoder and decoder: RMS norms, bucketed relative positions, gated GELU, attention to the encoder.
//
//   T5 net(T5Config{});
//   at::Tensor loss = net->forward(source, target, next);      // int64 [batch, time]; target and next of one shape

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/container/modulelist.h"
#include "torch/nn/modules/dropout.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/pimpl.h"

namespace ddpopt::testing {

struct T5Config {
  int64_t vocab = 37, width = 16, heads = 2, layers = 2;
  int64_t buckets = 8, max_distance = 20;  // of relative positions
  double dropout = 0.1;
};

class T5NormImpl : public torch::nn::Module {
 public:
  explicit T5NormImpl(int64_t width);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_;
};
TORCH_MODULE(T5Norm);

class T5AttentionImpl : public torch::nn::Module {
 public:
  explicit T5AttentionImpl(const T5Config& config);
  // x attends to memory; bias: what is added to the scores, or undefined.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& memory, const at::Tensor& bias);

 private:
  int64_t heads_;
  torch::nn::Linear q_{nullptr}, k_{nullptr}, v_{nullptr}, o_{nullptr};
  torch::nn::Dropout drop_{nullptr};
};
TORCH_MODULE(T5Attention);

class T5BlockImpl : public torch::nn::Module {
 public:
  T5BlockImpl(const T5Config& config, bool decoder);
  // memory: what the encoder made, for a decoder's block.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& memory, const at::Tensor& bias);

 private:
  T5Norm norm1_{nullptr}, norm2_{nullptr}, norm3_{nullptr};
  T5Attention self_{nullptr}, cross_{nullptr};
  torch::nn::Linear gate_{nullptr}, up_{nullptr}, down_{nullptr};
  torch::nn::Dropout drop_{nullptr};
};
TORCH_MODULE(T5Block);

class T5Impl : public torch::nn::Module {
 public:
  explicit T5Impl(const T5Config& config);
  at::Tensor forward(const at::Tensor& source, const at::Tensor& target, const at::Tensor& next);

 private:
  // [1, heads, time, time]
  at::Tensor Bias(const torch::nn::Embedding& table, int64_t time, bool both_ways, const at::Tensor& like) const;

  T5Config config_;
  torch::nn::Embedding shared_{nullptr}, encoder_bias_{nullptr}, decoder_bias_{nullptr};
  torch::nn::ModuleList encoder_, decoder_;
  T5Norm encoder_norm_{nullptr}, decoder_norm_{nullptr};
  torch::nn::Dropout drop_{nullptr};
};
TORCH_MODULE(T5);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_MODELS_T5_H_
