// Losses of elements, and their gradients. The steps are those of the real kernels, on tensors without data: they decide when a tensor is
// resized, and how large its storage stays.

#include "ATen/TensorIterator.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/mean.h"
#include "ATen/ops/mul.h"
#include "ATen/ops/resize.h"
#include "ATen/ops/squeeze.h"
#include "ATen/ops/sum.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

// Inputs of one dtype.
template <typename... Inputs>
void Iterate(Tensor& out, const Inputs&... inputs) {
  at::TensorIteratorConfig config;
  config.add_output(out);
  (config.add_owned_const_input(inputs), ...);
  config.build();
}
// Inputs of any dtypes.
template <typename... Inputs>
void IterateCasting(Tensor& out, const Inputs&... inputs) {
  at::TensorIteratorConfig config;
  config.add_output(out);
  (config.add_owned_const_input(inputs), ...);
  config.promote_inputs_to_common_dtype(true).cast_common_dtype_to_outputs(true).enforce_safe_casting_to_output(true).build();
}

Tensor ReduceLoss(const Tensor& loss, int64_t reduction) {
  if (reduction == at::Reduction::Mean) return at::mean(loss);
  return reduction == at::Reduction::Sum ? at::sum(loss) : loss;
}

// Gradients of a mean are divided by the number of elements, which for none no integer holds.
void CheckMean(const char* name, const Tensor& grad_output, const Tensor& self, const Tensor& target, int64_t reduction) {
  if (reduction != at::Reduction::Mean || self.numel() != 0) return;
  const at::ScalarType type = c10::promoteTypes(grad_output.scalar_type(), c10::promoteTypes(self.scalar_type(), target.scalar_type()));
  TORCH_CHECK(!c10::isIntegralType(type, /*includeBool=*/false), name, ": a mean over no elements doesn't fit ", type);
}

Tensor& MseLossBackwardOut(const Tensor& grad_output, const Tensor& self, const Tensor& target, int64_t reduction, Tensor& grad_input) {
  CheckMean("mse_loss_backward", grad_output, self, target, reduction);
  IterateCasting(grad_input, self, target, grad_output);
  return grad_input;
}
Tensor MseLossBackward(const Tensor& grad_output, const Tensor& self, const Tensor& target, int64_t reduction) {
  Tensor grad_input = EmptyContiguousLike(self);
  return MseLossBackwardOut(grad_output, self, target, reduction, grad_input);
}

Tensor& SmoothL1LossBackwardOut(const Tensor& grad_output, const Tensor& self, const Tensor& target, int64_t reduction, double /*beta*/,
                                Tensor& grad_input) {
  CheckMean("smooth_l1_loss_backward", grad_output, self, target, reduction);
  IterateCasting(grad_input, self, target, grad_output);
  return grad_input;
}
Tensor SmoothL1LossBackward(const Tensor& grad_output, const Tensor& self, const Tensor& target, int64_t reduction, double beta) {
  Tensor grad_input = EmptyContiguousLike(self);
  return SmoothL1LossBackwardOut(grad_output, self, target, reduction, beta, grad_input);
}

Tensor HuberLoss(const Tensor& self, const Tensor& target, int64_t reduction, double delta) {
  TORCH_CHECK(delta > 0, "huber_loss: delta must be positive");
  Tensor loss = at::empty_like(self);
  IterateCasting(loss, self, target);
  return ReduceLoss(loss, reduction);
}
Tensor& HuberLossOut(const Tensor& self, const Tensor& target, int64_t reduction, double delta, Tensor& out) {
  TORCH_CHECK(delta > 0, "huber_loss: delta must be positive");
  IterateCasting(out, self, target);
  if (reduction != at::Reduction::None) out.resize_({});
  return out;
}
Tensor& HuberLossBackwardOut(const Tensor& grad_output, const Tensor& self, const Tensor& target, int64_t /*reduction*/, double /*delta*/,
                             Tensor& grad_input) {
  Iterate(grad_input, self, target, grad_output);
  return grad_input;
}

Tensor& BinaryCrossEntropyOut(const Tensor& self, const Tensor& target, const MaybeTensor& weight, int64_t reduction, Tensor& loss) {
  // Resizes the squeezed view, not the tensor.
  Tensor squeezed = at::squeeze(loss);
  Iterate(squeezed, at::squeeze(self), at::squeeze(target));
  if (Given(weight)) loss.mul_(*weight);
  if (reduction == at::Reduction::Mean || reduction == at::Reduction::Sum) loss.resize_({});
  return loss;
}
Tensor BinaryCrossEntropy(const Tensor& self, const Tensor& target, const MaybeTensor& weight, int64_t reduction) {
  Tensor loss = at::empty_like(self);
  return BinaryCrossEntropyOut(self, target, weight, reduction, loss);
}

Tensor& BinaryCrossEntropyBackwardOut(const Tensor& grad_output, const Tensor& self, const Tensor& target, const MaybeTensor& weight,
                                      int64_t /*reduction*/, Tensor& grad_input) {
  Tensor squeezed = at::squeeze(grad_input);
  Iterate(squeezed, at::squeeze(grad_output), at::squeeze(self), at::squeeze(target));
  if (Given(weight)) grad_input.mul_(*weight);
  return grad_input;
}
Tensor BinaryCrossEntropyBackward(const Tensor& grad_output, const Tensor& self, const Tensor& target, const MaybeTensor& weight,
                                  int64_t reduction) {
  Tensor grad_input = at::empty_like(self);
  return BinaryCrossEntropyBackwardOut(grad_output, self, target, weight, reduction, grad_input);
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("mse_loss_backward", MseLossBackward);
  m.impl("mse_loss_backward.grad_input", MseLossBackwardOut);
  m.impl("smooth_l1_loss_backward", SmoothL1LossBackward);
  m.impl("smooth_l1_loss_backward.grad_input", SmoothL1LossBackwardOut);
  m.impl("huber_loss", HuberLoss);
  m.impl("huber_loss.out", HuberLossOut);
  m.impl("huber_loss_backward.out", HuberLossBackwardOut);
  m.impl("binary_cross_entropy", BinaryCrossEntropy);
  m.impl("binary_cross_entropy.out", BinaryCrossEntropyOut);
  m.impl("binary_cross_entropy_backward", BinaryCrossEntropyBackward);
  m.impl("binary_cross_entropy_backward.grad_input", BinaryCrossEntropyBackwardOut);
}

}  // namespace
}  // namespace ddpopt::kernels
