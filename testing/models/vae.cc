#include "testing/models/vae.h"

#include "ATen/core/Reduction.h"
#include "ATen/ops/binary_cross_entropy.h"
#include "ATen/ops/elu.h"
#include "ATen/ops/exp.h"
#include "ATen/ops/randn_like.h"
#include "ATen/ops/sigmoid.h"
#include "ATen/ops/softplus.h"

namespace ddpopt::testing {

VaeImpl::VaeImpl(const VaeConfig& config) {
  const int64_t width = config.width, flat = 2 * width * 2 * 2;
  conv1_ = register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, width, 3).stride(2).padding(1)));
  conv2_ = register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(width, 2 * width, 3).stride(2).padding(1)));
  mean_ = register_module("mean", torch::nn::Linear(flat, config.latent));
  log_variance_ = register_module("log_variance", torch::nn::Linear(flat, config.latent));
  back_ = register_module("back", torch::nn::Linear(config.latent, flat));
  const auto deconv = [](int64_t in, int64_t out) {
    return torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(in, out, 3).stride(2).padding(1).output_padding(1));
  };
  deconv1_ = register_module("deconv1", deconv(2 * width, width));
  deconv2_ = register_module("deconv2", deconv(width, 1));
}

at::Tensor VaeImpl::forward(const at::Tensor& x) {
  const at::Tensor h = at::elu(conv2_->forward(at::elu(conv1_->forward(x)))).flatten(1);
  const at::Tensor mean = mean_->forward(h), log_variance = log_variance_->forward(h);
  const at::Tensor z = mean + at::randn_like(mean) * at::exp(0.5 * log_variance);
  const at::Tensor wide = at::softplus(back_->forward(z)).view({x.size(0), -1, 2, 2});
  const at::Tensor out = at::sigmoid(deconv2_->forward(at::elu(deconv1_->forward(wide))));
  const at::Tensor kl = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum();
  return (at::binary_cross_entropy(out, x, {}, at::Reduction::Sum) + kl) / x.size(0);
}

}  // namespace ddpopt::testing
