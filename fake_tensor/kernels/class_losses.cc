// Losses of classes: margins, negative log likelihood of images, CTC.

#include <tuple>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/nll_loss_forward.h"
#include "ATen/ops/resize.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"
#include "fake_tensor/kernels/typed_outputs.h"

namespace ddpopt::kernels {
namespace {

using at::IntArrayRef;
using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

void CheckDtype(const char* name, const Tensor& tensor, at::ScalarType dtype) {
  TORCH_CHECK(tensor.scalar_type() == dtype, name, ": expected ", dtype, ", found ", tensor.scalar_type());
}

// A vector, or a matrix whose batch may be empty.
void CheckMargin(const char* name, const Tensor& self) {
  TORCH_CHECK((self.dim() == 2 && self.size(1) != 0) || (self.dim() == 1 && self.size(0) != 0) || self.dim() == 0, name,
              ": a non-empty vector or matrix is wanted, not ", self.sizes());
}

void CheckMultiMargin(const char* name, const Tensor& self, const Tensor& target, const at::Scalar& p, const MaybeTensor& weight) {
  TORCH_CHECK(p.toDouble() == 1 || p.toDouble() == 2, name, ": p must be 1 or 2");
  CheckMargin(name, self);
  const int64_t samples = self.dim() == 2 ? self.size(0) : 1;
  const int64_t classes = self.dim() == 2 ? self.size(1) : self.numel();
  TORCH_CHECK(target.dim() <= 1 && target.numel() == samples, name, ": ", samples, " targets are wanted, not ", target.sizes());
  if (self.numel() != 0) CheckDtype(name, target, at::kLong);
  if (!Given(weight)) return;
  TORCH_CHECK(weight->dim() <= 1 && weight->numel() == classes, name, ": ", classes, " weights are wanted, not ", weight->sizes());
}

Tensor MultiMarginLoss(const Tensor& self, const Tensor& target, const at::Scalar& p, const at::Scalar& /*margin*/,
                       const MaybeTensor& weight, int64_t reduction) {
  CheckMultiMargin("multi_margin_loss", self, target, p, weight);
  if (Given(weight) && self.numel() != 0) CheckDtype("multi_margin_loss", *weight, self.scalar_type());
  return reduction == at::Reduction::None && target.dim() > 0 ? Empty({target.numel()}, self.options()) : Empty({}, self.options());
}

Tensor& MultiMarginLossOut(const Tensor& self, const Tensor& target, const at::Scalar& p, const at::Scalar& margin,
                           const MaybeTensor& weight, int64_t reduction, Tensor& out) {
  const Tensor loss = MultiMarginLoss(self, target, p, margin, weight, reduction);
  if (self.numel() != 0) CheckOutDtype(loss, out);
  out.resize_(loss.sizes());
  return out;
}

Tensor MultiMarginLossBackward(const Tensor& grad_output, const Tensor& self, const Tensor& target, const at::Scalar& p,
                               const at::Scalar& /*margin*/, const MaybeTensor& weight, int64_t reduction) {
  constexpr const char* kName = "multi_margin_loss_backward";
  CheckMultiMargin(kName, self, target, p, weight);
  TORCH_CHECK(self.numel() == 0 || reduction != at::Reduction::None || grad_output.dim() <= 1, kName, ": grad_output of shape ",
              grad_output.sizes());
  if (self.numel() != 0) {
    CheckDtype(kName, grad_output, self.scalar_type());
    if (Given(weight)) CheckDtype(kName, *weight, self.scalar_type());
  }
  return EmptyContiguousLike(self);
}

Tensor& MultiMarginLossBackwardOut(const Tensor& grad_output, const Tensor& self, const Tensor& target, const at::Scalar& p,
                                   const at::Scalar& margin, const MaybeTensor& weight, int64_t reduction, Tensor& grad_input) {
  const Tensor grad = MultiMarginLossBackward(grad_output, self, target, p, margin, weight, reduction);
  if (self.numel() == 0) {
    grad_input.resize_(grad.sizes());
  } else {
    ResizeContiguousOut(grad, grad_input);
    // grad_output is looked at afterwards, and may be the same tensor.
    TORCH_CHECK(reduction != at::Reduction::None || grad_output.dim() <= 1, "multi_margin_loss_backward: grad_input is grad_output");
  }
  return grad_input;
}

void CheckMultilabel(const char* name, const Tensor& self, const Tensor& target) {
  CheckMargin(name, self);
  TORCH_CHECK(self.dim() == 2 ? target.sizes() == self.sizes() : target.dim() <= 1 && target.numel() == self.numel(), name,
              ": target of shape ", target.sizes(), " for an input of ", self.sizes());
  if (self.numel() != 0) CheckDtype(name, target, at::kLong);
}

std::tuple<Tensor, Tensor> MultilabelMarginLossForward(const Tensor& self, const Tensor& target, int64_t reduction) {
  CheckMultilabel("multilabel_margin_loss", self, target);
  const bool each = reduction == at::Reduction::None && target.dim() > 1;
  return {each ? Empty({self.size(0)}, self.options()) : Empty({}, self.options()), Empty(target.sizes(), self.options())};
}

std::tuple<Tensor&, Tensor&> MultilabelMarginLossForwardOut(const Tensor& self, const Tensor& target, int64_t reduction, Tensor& output,
                                                            Tensor& is_target) {
  const auto [loss, targets] = MultilabelMarginLossForward(self, target, reduction);
  if (self.numel() == 0) {
    output.resize_(loss.sizes());
    is_target.resize_(targets.sizes());
    return {output, is_target};
  }
  CheckOutDtype(loss, output);
  output.resize_(loss.sizes());
  ResizeContiguousOut(targets, is_target);
  TORCH_CHECK(output.dim() == loss.dim(), "multilabel_margin_loss: output and is_target are one tensor");
  return {output, is_target};
}

Tensor MultilabelMarginLossBackward(const Tensor& grad_output, const Tensor& self, const Tensor& target, int64_t reduction,
                                    const Tensor& is_target) {
  constexpr const char* kName = "multilabel_margin_loss_backward";
  CheckMultilabel(kName, self, target);
  TORCH_CHECK(is_target.sizes() == target.sizes(), kName, ": is_target has shape ", is_target.sizes(), ", the target ", target.sizes());
  if (self.numel() != 0) {
    const int64_t samples = self.dim() == 2 ? self.size(0) : 1;
    TORCH_CHECK(reduction != at::Reduction::None || grad_output.dim() == 0 || (grad_output.dim() == 1 && grad_output.size(0) == samples),
                kName, ": grad_output of shape ", grad_output.sizes(), " for an input of ", self.sizes());
    CheckDtype(kName, grad_output, self.scalar_type());
    CheckDtype(kName, is_target, self.scalar_type());
  }
  return EmptyContiguousLike(self);
}

Tensor& MultilabelMarginLossBackwardOut(const Tensor& grad_output, const Tensor& self, const Tensor& target, int64_t reduction,
                                        const Tensor& is_target, Tensor& grad_input) {
  const Tensor grad = MultilabelMarginLossBackward(grad_output, self, target, reduction, is_target);
  ResizeContiguousOut(grad, grad_input, OutDtype::kOfElements);
  // grad_output is looked at afterwards, and may be the same tensor.
  TORCH_CHECK(self.numel() == 0 || reduction != at::Reduction::None || grad_output.dim() <= 1,
              "multilabel_margin_loss_backward: grad_input is grad_output");
  return grad_input;
}

void CheckNllLoss2d(const char* name, const Tensor& self, const Tensor& target, const MaybeTensor& weight) {
  CheckDtype(name, target, at::kLong);
  TORCH_CHECK(self.dim() == 4 && target.dim() == 3 && self.size(0) == target.size(0) && self.size(2) == target.size(1) &&
                  self.size(3) == target.size(2),
              name, ": shapes don't match: ", self.sizes(), " and ", target.sizes());
  if (!Given(weight)) return;
  TORCH_CHECK(weight->numel() == self.size(1), name, ": ", self.size(1), " weights are wanted, not ", weight->sizes());
  if (self.numel() != 0) CheckDtype(name, *weight, self.scalar_type());
}

// LibTorch's don't compare dtypes.
void CheckNllWeight(const Tensor& self, const MaybeTensor& weight) {
  if (Given(weight) && self.numel() != 0) CheckDtype("nll_loss", *weight, self.scalar_type());
}
std::tuple<Tensor, Tensor> NllLossForward(const Tensor& self, const Tensor& target, const MaybeTensor& weight, int64_t reduction,
                                          int64_t ignore_index) {
  std::tuple<Tensor, Tensor> loss = at::nll_loss_forward(self, target, weight, reduction, ignore_index);
  CheckNllWeight(self, weight);
  return loss;
}
std::tuple<Tensor&, Tensor&> NllLossForwardOut(const Tensor& self, const Tensor& target, const MaybeTensor& weight, int64_t reduction,
                                               int64_t ignore_index, Tensor& output, Tensor& total_weight) {
  at::nll_loss_forward_out(output, total_weight, self, target, weight, reduction, ignore_index);
  CheckNllWeight(self, weight);
  return {output, total_weight};
}

std::tuple<Tensor, Tensor> NllLoss2dForward(const Tensor& self, const Tensor& target, const MaybeTensor& weight, int64_t reduction,
                                            int64_t /*ignore_index*/) {
  CheckNllLoss2d("nll_loss2d", self, target, weight);
  // The forward kernel reads the weights' dtype whether there is a pixel or not.
  if (Given(weight)) CheckDtype("nll_loss2d", *weight, self.scalar_type());
  return {Reduced(Empty({self.size(0), self.size(2), self.size(3)}, self.options()), reduction), Empty({}, self.options())};
}

std::tuple<Tensor&, Tensor&> NllLoss2dForwardOut(const Tensor& self, const Tensor& target, const MaybeTensor& weight, int64_t reduction,
                                                 int64_t ignore_index, Tensor& output, Tensor& total_weight) {
  const auto [loss, total] = NllLoss2dForward(self, target, weight, reduction, ignore_index);
  CheckOutDtype(total, total_weight);
  if (self.numel() != 0 || reduction == at::Reduction::None) CheckOutDtype(loss, output);
  // The mean over nothing is NaN.
  TORCH_CHECK(self.numel() != 0 || reduction != at::Reduction::Mean || !c10::isIntegralType(output.scalar_type(), /*includeBool=*/false),
              "nll_loss2d: NaN doesn't fit ", output.scalar_type());
  total_weight.resize_({});
  output.resize_(loss.sizes());
  // Operands are looked at afterwards, and may be the same tensor.
  TORCH_CHECK(reduction != at::Reduction::None || (self.dim() == 4 && target.dim() == 3), "nll_loss2d: output is an operand");
  return {output, total_weight};
}

Tensor NllLoss2dBackwardContiguous(const Tensor& grad_output, const Tensor& self, const Tensor& target, const MaybeTensor& weight,
                                   int64_t reduction, int64_t /*ignore_index*/, const Tensor& total_weight) {
  constexpr const char* kName = "nll_loss2d_backward";
  CheckNllLoss2d(kName, self, target, weight);
  TORCH_CHECK(total_weight.numel() == 1, kName, ": total_weight must have one element, not ", total_weight.sizes());
  if (reduction == at::Reduction::None) {
    TORCH_CHECK(grad_output.sizes() == target.sizes(), kName, ": grad_output has shape ", grad_output.sizes(), ", the target ",
                target.sizes());
  } else {
    TORCH_CHECK(grad_output.dim() <= 1 && grad_output.numel() == 1, kName, ": grad_output must have one element, not ",
                grad_output.sizes());
  }
  if (self.numel() != 0) {
    CheckDtype(kName, grad_output, self.scalar_type());
    if (reduction != at::Reduction::None) CheckDtype(kName, total_weight, self.scalar_type());
  }
  return EmptyContiguousLike(self);
}

Tensor NllLoss2dBackward(const Tensor& grad_output, const Tensor& self, const Tensor& target, const MaybeTensor& weight, int64_t reduction,
                         int64_t ignore_index, const Tensor& total_weight) {
  // Made as the input is laid out, and must be contiguous.
  TORCH_CHECK(self.is_contiguous() || !self.is_non_overlapping_and_dense(), "nll_loss2d_backward: the input must be contiguous");
  return NllLoss2dBackwardContiguous(grad_output, self, target, weight, reduction, ignore_index, total_weight);
}

std::tuple<Tensor, Tensor> CtcLossTensor(const Tensor& /*log_probs*/, const Tensor& /*targets*/, const Tensor& /*input_lengths*/,
                                         const Tensor& /*target_lengths*/, int64_t /*blank*/, bool /*zero_infinity*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(false,
                              "aten::_ctc_loss.Tensor: the shape of its result depends on data (the longest target's length), which ",
                              "a fake tensor doesn't have");
}

// Fake CUDA has neither cuDNN nor MIOpen.
bool UseLibrarysCtcLoss(const Tensor& /*log_probs*/, const Tensor& /*targets*/, IntArrayRef /*input_lengths*/,
                        IntArrayRef /*target_lengths*/, int64_t /*blank*/) {
  return false;
}

void CheckCtcBackward(const Tensor& grad, const Tensor& log_probs, const Tensor& targets) {
  constexpr const char* kName = "_ctc_loss_backward";
  TORCH_CHECK(log_probs.dim() == 3, kName, ": log_probs must have 3 dimensions, not ", log_probs.sizes());
  TORCH_CHECK(targets.scalar_type() == at::kLong || targets.scalar_type() == at::kInt, kName, ": targets must be int32 or int64, not ",
              targets.scalar_type());
  CheckDtype(kName, grad, log_probs.scalar_type());
}

Tensor CtcLossBackward(const Tensor& grad, const Tensor& log_probs, const Tensor& targets, IntArrayRef /*input_lengths*/,
                       IntArrayRef /*target_lengths*/, const Tensor& /*neg_log_likelihood*/, const Tensor& /*log_alpha*/, int64_t /*blank*/,
                       bool /*zero_infinity*/) {
  CheckCtcBackward(grad, log_probs, targets);
  return EmptyContiguousLike(log_probs);
}

Tensor CtcLossBackwardTensor(const Tensor& grad, const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                             const Tensor& target_lengths, const Tensor& /*neg_log_likelihood*/, const Tensor& /*log_alpha*/,
                             int64_t /*blank*/, bool /*zero_infinity*/) {
  for (const Tensor* lengths : {&input_lengths, &target_lengths}) {
    TORCH_CHECK(c10::isIntegralType(lengths->scalar_type(), false), "_ctc_loss_backward: lengths must be integers, not ",
                lengths->scalar_type());
  }
  CheckCtcBackward(grad, log_probs, targets);
  return EmptyContiguousLike(log_probs);
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("multi_margin_loss", MultiMarginLoss);
  m.impl("multi_margin_loss.out", MultiMarginLossOut);
  m.impl("multi_margin_loss_backward", MultiMarginLossBackward);
  m.impl("multi_margin_loss_backward.grad_input", MultiMarginLossBackwardOut);
  m.impl("multilabel_margin_loss_forward", MultilabelMarginLossForward);
  m.impl("multilabel_margin_loss_forward.output", MultilabelMarginLossForwardOut);
  m.impl("multilabel_margin_loss_backward", MultilabelMarginLossBackward);
  m.impl("multilabel_margin_loss_backward.grad_input", MultilabelMarginLossBackwardOut);
  m.impl("nll_loss_forward", NllLossForward, kThisForm);
  m.impl("nll_loss_forward.output", NllLossForwardOut, kThisForm);
  m.impl("nll_loss2d_forward", NllLoss2dForward);
  m.impl("nll_loss2d_forward.output", NllLoss2dForwardOut);
  m.impl("nll_loss2d_backward", NllLoss2dBackward);
  m.impl("nll_loss2d_backward.grad_input", OutOf<NllLoss2dBackwardContiguous>::Contiguous);
  m.impl("_use_cudnn_ctc_loss", UseLibrarysCtcLoss);
  m.impl_if_present("_use_miopen_ctc_loss", UseLibrarysCtcLoss);
  m.impl("_ctc_loss.Tensor", CtcLossTensor);
  m.impl("_ctc_loss_backward", CtcLossBackward);
  m.impl("_ctc_loss_backward.Tensor", CtcLossBackwardTensor);
}

}  // namespace
}  // namespace ddpopt::kernels
