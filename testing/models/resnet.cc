#include "testing/models/resnet.h"

#include "ATen/core/Reduction.h"
#include "ATen/ops/adaptive_avg_pool2d.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/max_pool2d.h"
#include "ATen/ops/relu.h"

namespace ddpopt::testing {

namespace {

torch::nn::Conv2d Conv(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

}  // namespace

BasicBlockImpl::BasicBlockImpl(int64_t in, int64_t out, int64_t stride) {
  conv1_ = register_module("conv1", Conv(in, out, 3, stride));
  norm1_ = register_module("norm1", torch::nn::BatchNorm2d(out));
  conv2_ = register_module("conv2", Conv(out, out, 3, 1));
  norm2_ = register_module("norm2", torch::nn::BatchNorm2d(out));
  if (stride == 1 && in == out) return;
  shortcut_ = register_module("shortcut", Conv(in, out, 1, stride));
  shortcut_norm_ = register_module("shortcut_norm", torch::nn::BatchNorm2d(out));
}

at::Tensor BasicBlockImpl::forward(const at::Tensor& x) {
  at::Tensor h = norm2_->forward(conv2_->forward(at::relu(norm1_->forward(conv1_->forward(x)))));
  h += shortcut_.is_empty() ? x : shortcut_norm_->forward(shortcut_->forward(x));
  return at::relu_(h);
}

ResnetImpl::ResnetImpl(const ResnetConfig& config) : label_smoothing_(config.label_smoothing) {
  conv_ = register_module("conv", Conv(3, config.width, 7, 2));
  norm_ = register_module("norm", torch::nn::BatchNorm2d(config.width));
  blocks_ = register_module("blocks", torch::nn::ModuleList());
  int64_t in = config.width;
  for (int64_t stage = 0; stage < 4; ++stage) {
    const int64_t out = config.width << stage;
    blocks_->push_back(BasicBlock(in, out, stage == 0 ? 1 : 2));
    blocks_->push_back(BasicBlock(out, out, 1));
    in = out;
  }
  out_ = register_module("out", torch::nn::Linear(in, config.classes));
}

at::Tensor ResnetImpl::forward(const at::Tensor& x, const at::Tensor& labels) {
  at::Tensor h = at::max_pool2d(at::relu(norm_->forward(conv_->forward(x))), 3, 2, 1);
  for (const auto& block : *blocks_) h = block->as<BasicBlockImpl>()->forward(h);
  const at::Tensor logits = out_->forward(at::adaptive_avg_pool2d(h, {1, 1}).flatten(1));
  return at::cross_entropy_loss(logits, labels, {}, at::Reduction::Mean, -100, label_smoothing_);
}

}  // namespace ddpopt::testing
