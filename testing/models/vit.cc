#include "testing/models/vit.h"

#include "ATen/ops/cat.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/gelu.h"
#include "ATen/ops/scaled_dot_product_attention.h"
#include "ATen/ops/zeros.h"
#include "torch/nn/init.h"

namespace ddpopt::testing {

VitBlockImpl::VitBlockImpl(const VitConfig& config) : heads_(config.heads) {
  const int64_t width = config.width;
  norm1_ = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  qkv_ = register_module("qkv", torch::nn::Linear(width, 3 * width));
  proj_ = register_module("proj", torch::nn::Linear(width, width));
  norm2_ = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  fc1_ = register_module("fc1", torch::nn::Linear(width, 2 * width));
  fc2_ = register_module("fc2", torch::nn::Linear(2 * width, width));
  drop_ = register_module("drop", torch::nn::Dropout(config.dropout));
}

at::Tensor VitBlockImpl::forward(const at::Tensor& x) {
  const int64_t batch = x.size(0), time = x.size(1), width = x.size(2);
  const at::Tensor qkv = qkv_->forward(norm1_->forward(x)).reshape({batch, time, 3, heads_, width / heads_}).permute({2, 0, 3, 1, 4});
  const auto parts = qkv.unbind(0);
  const at::Tensor mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
  const at::Tensor y = x + drop_->forward(proj_->forward(mixed.transpose(1, 2).reshape({batch, time, width})));
  return y + drop_->forward(fc2_->forward(drop_->forward(at::gelu(fc1_->forward(norm2_->forward(y))))));
}

VitImpl::VitImpl(const VitConfig& config) {
  const int64_t width = config.width, side = config.size / config.patch;
  patches_ = register_module("patches", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, width, config.patch).stride(config.patch)));
  class_token_ = register_parameter("class_token", at::zeros({1, 1, width}));
  positions_ = register_parameter("positions", at::zeros({1, side * side + 1, width}));
  torch::nn::init::normal_(positions_, 0.0, 0.02);
  drop_ = register_module("drop", torch::nn::Dropout(config.dropout));
  blocks_ = register_module("blocks", torch::nn::ModuleList());
  for (int64_t i = 0; i < config.layers; ++i) blocks_->push_back(VitBlock(config));
  norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
  head_ = register_module("head", torch::nn::Linear(width, config.classes));
}

at::Tensor VitImpl::forward(const at::Tensor& x, const at::Tensor& labels) {
  const at::Tensor patches = patches_->forward(x).flatten(2).transpose(1, 2);
  at::Tensor h = at::cat({class_token_.expand({x.size(0), -1, -1}), patches}, 1);
  h = drop_->forward(h + positions_);
  for (const auto& block : *blocks_) h = block->as<VitBlockImpl>()->forward(h);
  return at::cross_entropy_loss(head_->forward(norm_->forward(h).select(1, 0)), labels);
}

}  // namespace ddpopt::testing
