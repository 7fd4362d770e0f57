#ifndef DDPOPT_TESTING_MODELS_VAE_H_
#define DDPOPT_TESTING_MODELS_VAE_H_

// A variational autoencoder of images: strided and transposed convolutions, a random sample, a KL loss.
//
//   Vae net(VaeConfig{});
//   at::Tensor loss = net->forward(x);      // float [batch, 1, 8, 8], from 0 to 1

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/conv.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/pimpl.h"

namespace ddpopt::testing {

struct VaeConfig {
  int64_t width = 6, latent = 4;
};

class VaeImpl : public torch::nn::Module {
 public:
  explicit VaeImpl(const VaeConfig& config);
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Conv2d conv1_{nullptr}, conv2_{nullptr};
  torch::nn::Linear mean_{nullptr}, log_variance_{nullptr}, back_{nullptr};
  torch::nn::ConvTranspose2d deconv1_{nullptr}, deconv2_{nullptr};
};
TORCH_MODULE(Vae);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_MODELS_VAE_H_
