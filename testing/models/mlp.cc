#include "testing/models/mlp.h"

#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/gelu.h"
#include "ATen/ops/relu.h"

namespace ddpopt::testing {

MlpImpl::MlpImpl(const MlpConfig& config) {
  in_ = register_module("in", torch::nn::Linear(config.in, config.width));
  norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width})));
  hidden_ = register_module("hidden", torch::nn::Linear(config.width, config.width));
  drop_ = register_module("drop", torch::nn::Dropout(config.dropout));
  out_ = register_module("out", torch::nn::Linear(torch::nn::LinearOptions(config.width, config.classes).bias(false)));
}

at::Tensor MlpImpl::forward(const at::Tensor& x, const at::Tensor& labels) {
  const at::Tensor h = at::relu(norm_->forward(in_->forward(x)));
  return at::cross_entropy_loss(out_->forward(drop_->forward(h + at::gelu(hidden_->forward(h)))), labels);
}

}  // namespace ddpopt::testing
