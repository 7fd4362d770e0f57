#ifndef DDPOPT_TESTING_MODELS_RESNET_H_
#define DDPOPT_TESTING_MODELS_RESNET_H_

// ResNet-18 with fewer channels: basic blocks, strided shortcuts, adaptive pooling.
//
//   Resnet net(ResnetConfig{});
//   at::Tensor loss = net->forward(x, labels);      // float [batch, 3, height, width], int64 [batch]

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/container/modulelist.h"
#include "torch/nn/modules/conv.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/pimpl.h"

namespace ddpopt::testing {

struct ResnetConfig {
  int64_t width = 4;  // channels after the first layer; doubled by each of the three later stages
  int64_t classes = 5;
  double label_smoothing = 0.1;
};

class BasicBlockImpl : public torch::nn::Module {
 public:
  BasicBlockImpl(int64_t in, int64_t out, int64_t stride);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Conv2d conv1_{nullptr}, conv2_{nullptr}, shortcut_{nullptr};
  torch::nn::BatchNorm2d norm1_{nullptr}, norm2_{nullptr}, shortcut_norm_{nullptr};
};
TORCH_MODULE(BasicBlock);

class ResnetImpl : public torch::nn::Module {
 public:
  explicit ResnetImpl(const ResnetConfig& config);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& labels);

 private:
  double label_smoothing_;
  torch::nn::Conv2d conv_{nullptr};
  torch::nn::BatchNorm2d norm_{nullptr};
  torch::nn::ModuleList blocks_;
  torch::nn::Linear out_{nullptr};
};
TORCH_MODULE(Resnet);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_MODELS_RESNET_H_
