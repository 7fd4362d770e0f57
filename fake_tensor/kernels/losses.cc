// Losses and their gradients, where the wheel lacks them.

#include <tuple>

#include "ATen/core/Tensor.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/resize.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

Tensor MseLossBackward(const Tensor& /*grad_output*/, const Tensor& self, const Tensor& /*target*/, int64_t /*reduction*/) {
  return EmptyContiguousLike(self);
}

Tensor SmoothL1LossBackward(const Tensor& /*grad_output*/, const Tensor& self, const Tensor& /*target*/, int64_t /*reduction*/,
                            double /*beta*/) {
  return EmptyContiguousLike(self);
}
Tensor& SmoothL1LossBackwardOut(const Tensor& /*grad_output*/, const Tensor& self, const Tensor& /*target*/, int64_t /*reduction*/,
                                double /*beta*/, Tensor& grad_input) {
  grad_input.resize_(self.sizes());
  return grad_input;
}

Tensor BinaryCrossEntropy(const Tensor& self, const Tensor& target, const MaybeTensor& /*weight*/, int64_t reduction) {
  TORCH_CHECK(self.sizes() == target.sizes(), "binary_cross_entropy: input and target differ in shape: ", self.sizes(), " and ",
              target.sizes());
  // Reduced in place, in storage for all elements.
  Tensor loss = at::empty_like(self);
  if (reduction != at::Reduction::None) loss.resize_({});
  return loss;
}
Tensor BinaryCrossEntropyBackward(const Tensor& /*grad_output*/, const Tensor& self, const Tensor& /*target*/,
                                  const MaybeTensor& /*weight*/, int64_t /*reduction*/) {
  return at::empty_like(self);
}

std::tuple<Tensor, Tensor> NllLoss2dForward(const Tensor& self, const Tensor& target, const MaybeTensor& weight, int64_t reduction,
                                            int64_t /*ignore_index*/) {
  TORCH_CHECK(self.dim() == 4 && target.dim() == 3 && self.size(0) == target.size(0) && self.size(2) == target.size(1) &&
                  self.size(3) == target.size(2),
              "nll_loss2d: shapes don't match: ", self.sizes(), " and ", target.sizes());
  TORCH_CHECK(!Given(weight) || weight->numel() == self.size(1), "nll_loss2d: the weight must have ", self.size(1), " elements");
  return {Reduced(Empty({self.size(0), self.size(2), self.size(3)}, self.options()), reduction), Empty({}, self.options())};
}
Tensor NllLoss2dBackward(const Tensor& /*grad_output*/, const Tensor& self, const Tensor& /*target*/, const MaybeTensor& /*weight*/,
                         int64_t /*reduction*/, int64_t /*ignore_index*/, const Tensor& /*total_weight*/) {
  return EmptyContiguousLike(self);
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("mse_loss_backward", MseLossBackward);
  m.impl("smooth_l1_loss_backward.grad_input", SmoothL1LossBackwardOut);
  m.impl("smooth_l1_loss_backward", SmoothL1LossBackward);
  m.impl("binary_cross_entropy", BinaryCrossEntropy);
  m.impl("binary_cross_entropy_backward", BinaryCrossEntropyBackward);
  m.impl("nll_loss2d_forward", NllLoss2dForward);
  m.impl("nll_loss2d_backward", NllLoss2dBackward);
}

}  // namespace
}  // namespace ddpopt::kernels
