#ifndef DDPOPT_TESTING_MODELS_VIT_H_
#define DDPOPT_TESTING_MODELS_VIT_H_

// A small vision transformer: patches, a class token, learnt positions, pre-norm blocks, soft labels.
//
//   Vit net(VitConfig{});
//   at::Tensor loss = net->forward(x, labels);      // float [batch, 3, size, size], float [batch, classes] that add up to 1

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/container/modulelist.h"
#include "torch/nn/modules/conv.h"
#include "torch/nn/modules/dropout.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/modules/normalization.h"
#include "torch/nn/pimpl.h"

namespace ddpopt::testing {

struct VitConfig {
  int64_t size = 16, patch = 4, width = 24, heads = 3, layers = 2, classes = 5;
  double dropout = 0.1;
};

class VitBlockImpl : public torch::nn::Module {
 public:
  explicit VitBlockImpl(const VitConfig& config);
  at::Tensor forward(const at::Tensor& x);

 private:
  int64_t heads_;
  torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  torch::nn::Linear qkv_{nullptr}, proj_{nullptr}, fc1_{nullptr}, fc2_{nullptr};
  torch::nn::Dropout drop_{nullptr};
};
TORCH_MODULE(VitBlock);

class VitImpl : public torch::nn::Module {
 public:
  explicit VitImpl(const VitConfig& config);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& labels);

 private:
  torch::nn::Conv2d patches_{nullptr};
  at::Tensor class_token_, positions_;
  torch::nn::Dropout drop_{nullptr};
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Vit);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_MODELS_VIT_H_
