#include "testing/models/exported_twins.h"

#include "ATen/TensorOperators.h"
#include "ATen/ops/adaptive_avg_pool2d.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/flatten.h"
#include "ATen/ops/full.h"
#include "ATen/ops/gelu.h"
#include "ATen/ops/max_pool2d.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/relu.h"
#include "ATen/ops/tanh.h"
#include "ATen/ops/where.h"
#include "torch/nn/modules/activation.h"

namespace ddpopt::testing {

namespace nn = torch::nn;

ConvnetBnImpl::ConvnetBnImpl() {
  c1_ = register_module("c1", nn::Conv2d(nn::Conv2dOptions(3, 16, 3).padding(1)));
  b1_ = register_module("b1", nn::BatchNorm2d(16));
  c2_ = register_module("c2", nn::Conv2d(nn::Conv2dOptions(16, 32, 3).padding(1).stride(2).bias(false)));
  b2_ = register_module("b2", nn::BatchNorm2d(32));
  c3_ = register_module("c3", nn::Conv2d(nn::Conv2dOptions(32, 32, 3).padding(1).groups(4)));
  b3_ = register_module("b3", nn::BatchNorm2d(32));
  fc_ = register_module("fc", nn::Linear(32, 10));
}

at::Tensor ConvnetBnImpl::forward(const at::Tensor& x, const at::Tensor& labels) {
  at::Tensor h = at::max_pool2d(at::relu(b1_->forward(c1_->forward(x))), 2);
  h = at::relu(b2_->forward(c2_->forward(h)));
  h = h + at::gelu(b3_->forward(c3_->forward(h)));
  return at::cross_entropy_loss(fc_->forward(at::adaptive_avg_pool2d(h, {1, 1}).flatten(1)), labels);
}

OwnLinearImpl::OwnLinearImpl(int64_t in, int64_t out) { weight_ = register_parameter("weight", at::randn({out, in}) * 0.05); }

at::Tensor OwnLinearImpl::forward(const at::Tensor& x) {
  const at::Tensor y = at::mm(x, weight_.t());
  return y + at::where(y < 0.5, at::Scalar(0.3), at::Scalar(0.6));
}

CustomLinearImpl::CustomLinearImpl() {
  seq_ = register_module("seq", nn::Sequential(nn::Linear(32, 96), nn::ReLU(), OwnLinear(96, 96), nn::ReLU(), OwnLinear(96, 96), nn::ReLU(),
                                               OwnLinear(96, 10)));
}

at::Tensor CustomLinearImpl::forward(const at::Tensor& x, const at::Tensor& labels) {
  return at::cross_entropy_loss(seq_->forward(x), labels);
}

UnusedParamsImpl::UnusedParamsImpl() {
  a_ = register_module("a", nn::Linear(64, 64));
  never_ = register_module("never", nn::Linear(64, 64));
  frozen_ = register_module("frozen", nn::Linear(64, 64));
  b_ = register_module("b", nn::Linear(64, 10));
  for (at::Tensor& parameter : frozen_->parameters()) parameter.requires_grad_(false);
  scale_ = register_buffer("scale", at::full({64}, 0.5));
}

at::Tensor UnusedParamsImpl::forward(const at::Tensor& x, const at::Tensor& labels) {
  return at::cross_entropy_loss(b_->forward(at::tanh(frozen_->forward(at::relu(a_->forward(x)) * scale_))), labels);
}

}  // namespace ddpopt::testing
