#ifndef DDPOPT_TESTING_MODELS_CONVNET_H_
#define DDPOPT_TESTING_MODELS_CONVNET_H_

// A convolutional classifier of images: batch norm, pooling of both kinds, a depthwise convolution.
//
//   Convnet net(ConvnetConfig{});
//   at::Tensor loss = net->forward(x, labels);      // float [batch, channels, 16, 16], int64 [batch]

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/conv.h"
#include "torch/nn/modules/dropout.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/pimpl.h"

namespace ddpopt::testing {

struct ConvnetConfig {
  int64_t channels = 3, width = 8, classes = 5;
  double dropout = 0.2;
};

class ConvnetImpl : public torch::nn::Module {
 public:
  explicit ConvnetImpl(const ConvnetConfig& config);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& labels);

 private:
  torch::nn::Conv2d conv1_{nullptr}, conv2_{nullptr}, depthwise_{nullptr};
  torch::nn::BatchNorm2d norm1_{nullptr}, norm2_{nullptr};
  torch::nn::Dropout2d drop_{nullptr};
  torch::nn::Linear out_{nullptr};
};
TORCH_MODULE(Convnet);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_MODELS_CONVNET_H_
