#include "testing/models/unet.h"

#include <optional>

#include "ATen/ops/binary_cross_entropy_with_logits.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/max_pool2d.h"
#include "ATen/ops/sigmoid.h"
#include "ATen/ops/silu.h"
#include "ATen/ops/upsample_bilinear2d.h"

namespace ddpopt::testing {

UnetStageImpl::UnetStageImpl(int64_t in, int64_t out, int64_t groups) {
  conv1_ = register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1)));
  norm1_ = register_module("norm1", torch::nn::GroupNorm(torch::nn::GroupNormOptions(groups, out)));
  conv2_ = register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(out, out, 3).padding(1)));
  norm2_ = register_module("norm2", torch::nn::GroupNorm(torch::nn::GroupNormOptions(groups, out)));
}

at::Tensor UnetStageImpl::forward(const at::Tensor& x) {
  const at::Tensor h = at::silu(norm1_->forward(conv1_->forward(x)));
  return at::silu(norm2_->forward(conv2_->forward(h)));
}

UnetImpl::UnetImpl(const UnetConfig& config) {
  const int64_t width = config.width, groups = config.groups;
  down1_ = register_module("down1", UnetStage(config.channels, width, groups));
  down2_ = register_module("down2", UnetStage(width, 2 * width, groups));
  bottom_ = register_module("bottom", UnetStage(2 * width, 4 * width, groups));
  grow_ = register_module("grow", torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(4 * width, 2 * width, 2).stride(2)));
  up2_ = register_module("up2", UnetStage(4 * width, 2 * width, groups));
  up1_ = register_module("up1", UnetStage(3 * width, width, groups));
  out_ = register_module("out", torch::nn::Conv2d(torch::nn::Conv2dOptions(width, 1, 1)));
}

at::Tensor UnetImpl::forward(const at::Tensor& x, const at::Tensor& mask) {
  const at::Tensor fine = down1_->forward(x);
  const at::Tensor coarse = down2_->forward(at::max_pool2d(fine, 2));
  at::Tensor h = bottom_->forward(at::max_pool2d(coarse, 2));
  h = up2_->forward(at::cat({grow_->forward(h), coarse}, 1));
  h = at::upsample_bilinear2d(h, {fine.size(2), fine.size(3)}, /*align_corners=*/false);
  const at::Tensor logits = out_->forward(up1_->forward(at::cat({h, fine}, 1)));
  const at::Tensor p = at::sigmoid(logits);
  const at::Tensor dice = 1 - (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1);
  return at::binary_cross_entropy_with_logits(logits, mask) + dice;
}

}  // namespace ddpopt::testing
