#include "testing/models/convnet.h"

#include "ATen/ops/avg_pool2d.h"
#include "ATen/ops/flatten.h"
#include "ATen/ops/hardswish.h"
#include "ATen/ops/leaky_relu.h"
#include "ATen/ops/log_softmax.h"
#include "ATen/ops/max_pool2d.h"
#include "ATen/ops/nll_loss.h"
#include "ATen/ops/relu.h"

namespace ddpopt::testing {

ConvnetImpl::ConvnetImpl(const ConvnetConfig& config) {
  const int64_t width = config.width;
  conv1_ = register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(config.channels, width, 3).padding(1).bias(false)));
  norm1_ = register_module("norm1", torch::nn::BatchNorm2d(width));
  depthwise_ = register_module("depthwise", torch::nn::Conv2d(torch::nn::Conv2dOptions(width, width, 3).padding(1).groups(width)));
  conv2_ = register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(width, 2 * width, 3).padding(2).dilation(2)));
  norm2_ = register_module("norm2", torch::nn::BatchNorm2d(2 * width));
  drop_ = register_module("drop", torch::nn::Dropout2d(config.dropout));
  out_ = register_module("out", torch::nn::Linear(2 * width * 4 * 4, config.classes));
}

at::Tensor ConvnetImpl::forward(const at::Tensor& x, const at::Tensor& labels) {
  at::Tensor h = norm1_->forward(conv1_->forward(x));
  at::relu_(h);
  h = at::max_pool2d(at::hardswish(depthwise_->forward(h)), 2);
  h = at::leaky_relu(norm2_->forward(conv2_->forward(h)), 0.1);
  h = drop_->forward(at::avg_pool2d(h, 2));
  return at::nll_loss(at::log_softmax(out_->forward(h.flatten(1)), -1), labels);
}

}  // namespace ddpopt::testing
