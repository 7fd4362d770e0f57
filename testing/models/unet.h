#ifndef DDPOPT_TESTING_MODELS_UNET_H_
#define DDPOPT_TESTING_MODELS_UNET_H_

// A U-Net for masks of images: group norm, transposed convolutions, skips, bilinear upsampling.
//
//   Unet net(UnetConfig{});
//   at::Tensor loss = net->forward(x, mask);      // float [batch, channels, height, width], multiples of 4; float [batch, 1, …]

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/conv.h"
#include "torch/nn/modules/dropout.h"
#include "torch/nn/modules/normalization.h"
#include "torch/nn/pimpl.h"

namespace ddpopt::testing {

struct UnetConfig {
  int64_t channels = 3, width = 8, groups = 4;
};

// Two convolutions, each with group norm and SiLU.
class UnetStageImpl : public torch::nn::Module {
 public:
  UnetStageImpl(int64_t in, int64_t out, int64_t groups);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Conv2d conv1_{nullptr}, conv2_{nullptr};
  torch::nn::GroupNorm norm1_{nullptr}, norm2_{nullptr};
};
TORCH_MODULE(UnetStage);

class UnetImpl : public torch::nn::Module {
 public:
  explicit UnetImpl(const UnetConfig& config);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask);

 private:
  UnetStage down1_{nullptr}, down2_{nullptr}, bottom_{nullptr}, up2_{nullptr}, up1_{nullptr};
  torch::nn::ConvTranspose2d grow_{nullptr};
  torch::nn::Conv2d out_{nullptr};
};
TORCH_MODULE(Unet);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_MODELS_UNET_H_
