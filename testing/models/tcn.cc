#include "testing/models/tcn.h"

#include "ATen/ops/constant_pad_nd.h"
#include "ATen/ops/huber_loss.h"
#include "ATen/ops/l1_loss.h"
#include "ATen/ops/mse_loss.h"
#include "ATen/ops/sigmoid.h"
#include "ATen/ops/smooth_l1_loss.h"

namespace ddpopt::testing {

TcnBlockImpl::TcnBlockImpl(const TcnConfig& config, int64_t dilation) : dilation_(dilation) {
  const int64_t width = config.width;
  conv_ = register_module("conv", torch::nn::Conv1d(torch::nn::Conv1dOptions(width, width, 3).dilation(dilation)));
  gate_ = register_module("gate", torch::nn::Conv1d(torch::nn::Conv1dOptions(width, width, 1)));
  const auto norm = torch::nn::InstanceNorm1dOptions(width).affine(true).track_running_stats(true);
  norm_ = register_module("norm", torch::nn::InstanceNorm1d(norm));
  activation_ = register_module("activation", torch::nn::PReLU(torch::nn::PReLUOptions().num_parameters(width)));
  drop_ = register_module("drop", torch::nn::Dropout(config.dropout));
}

at::Tensor TcnBlockImpl::forward(const at::Tensor& x) {
  const at::Tensor h = norm_->forward(conv_->forward(at::constant_pad_nd(x, {2 * dilation_, 0})));
  return x + drop_->forward(activation_->forward(h) * at::sigmoid(gate_->forward(x)));
}

TcnImpl::TcnImpl(const TcnConfig& config) {
  in_ = register_module("in", torch::nn::Conv1d(torch::nn::Conv1dOptions(config.channels, config.width, 1)));
  blocks_ = register_module("blocks", torch::nn::ModuleList());
  for (int64_t i = 0; i < config.layers; ++i) blocks_->push_back(TcnBlock(config, int64_t{1} << i));
  out_ = register_module("out", torch::nn::Conv1d(torch::nn::Conv1dOptions(config.width, config.channels, 1)));
}

at::Tensor TcnImpl::forward(const at::Tensor& x, const at::Tensor& y) {
  at::Tensor h = in_->forward(x);
  for (const auto& block : *blocks_) h = block->as<TcnBlockImpl>()->forward(h);
  const at::Tensor out = out_->forward(h);
  return at::smooth_l1_loss(out, y) + at::huber_loss(out, y) + 0.5 * at::mse_loss(out, y) + 0.1 * at::l1_loss(out, y);
}

}  // namespace ddpopt::testing
