// Fused optimizer steps and gradient scaling, which change tensors' values alone; is_set_to.

#include <optional>

#include "ATen/TensorIterator.h"
#include "ATen/core/Tensor.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/dtypes.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;
using at::TensorList;
using MaybeTensor = std::optional<Tensor>;

// Without a single tensor the dispatcher has no device to go to.
void CheckCounts(TensorList parameters, std::initializer_list<TensorList> others, bool has_tensors) {
  TORCH_CHECK(!parameters.empty() || has_tensors, "a fused step over no parameters");
  for (const Tensor& parameter : parameters) RequireDtype("a fused step", parameter.scalar_type(), kFloatDtypes);
  for (const TensorList list : others) {
    TORCH_CHECK(list.size() == parameters.size(), "a fused step over ", parameters.size(), " parameters got a list of ", list.size());
  }
}
void CheckFloat(const MaybeTensor& tensor) {
  TORCH_CHECK(!Given(tensor) || tensor->scalar_type() == at::kFloat, "a fused step's scale must be float, not ", tensor->scalar_type());
}
bool CheckRate(double /*lr*/) { return false; }
bool CheckRate(const Tensor& lr) {
  TORCH_CHECK(lr.numel() == 1, "a fused step's learning rate has ", lr.numel(), " elements");
  return true;
}

template <typename Rate>
void FusedAdam(TensorList self, TensorList grads, TensorList exp_avgs, TensorList exp_avg_sqs, TensorList max_exp_avg_sqs,
               TensorList state_steps, Rate lr, double /*beta1*/, double /*beta2*/, double /*weight_decay*/, double /*eps*/, bool amsgrad,
               bool /*maximize*/, const MaybeTensor& grad_scale, const MaybeTensor& found_inf) {
  const bool has_tensors = CheckRate(lr) || Given(grad_scale) || Given(found_inf);
  CheckFloat(grad_scale);
  CheckFloat(found_inf);
  CheckCounts(self, {grads, exp_avgs, exp_avg_sqs, state_steps}, has_tensors);
  TORCH_CHECK(max_exp_avg_sqs.size() == (amsgrad ? self.size() : 0), "a fused step got ", max_exp_avg_sqs.size(), " maxima");
}
template <typename Rate>
void FusedSgd(TensorList self, TensorList grads, TensorList momentum_buffers, double /*weight_decay*/, double momentum, Rate lr,
              double /*dampening*/, bool /*nesterov*/, bool /*maximize*/, bool /*is_first_step*/, const MaybeTensor& grad_scale,
              const MaybeTensor& found_inf) {
  const bool has_tensors = CheckRate(lr) || Given(grad_scale) || Given(found_inf);
  CheckFloat(grad_scale);
  CheckFloat(found_inf);
  CheckCounts(self, {grads}, has_tensors);
  TORCH_CHECK(momentum == 0.0 || momentum_buffers.size() == self.size(), "a fused step over ", self.size(), " parameters got ",
              momentum_buffers.size(), " momentum buffers");
}
template <typename Rate>
void FusedAdagrad(TensorList self, TensorList grads, TensorList state_sums, TensorList state_steps, Rate lr, double /*lr_decay*/,
                  double /*weight_decay*/, double /*eps*/, bool /*maximize*/, const MaybeTensor& grad_scale, const MaybeTensor& found_inf) {
  const bool has_tensors = CheckRate(lr) || Given(grad_scale) || Given(found_inf);
  CheckFloat(grad_scale);
  CheckFloat(found_inf);
  CheckCounts(self, {grads, state_sums, state_steps}, has_tensors);
}

void CheckOneElement(const Tensor& tensor, at::ScalarType dtype) {
  TORCH_CHECK(tensor.numel() == 1, "gradient scaling wants 1 element, not shape ", tensor.sizes());
  TORCH_CHECK(tensor.scalar_type() == dtype, "gradient scaling wants dtype ", dtype, ", not ", tensor.scalar_type());
}
void AmpUnscale(TensorList grads, Tensor& found_inf, const Tensor& inv_scale) {
  if (grads.empty()) return;
  CheckOneElement(inv_scale, at::kFloat);
  CheckOneElement(found_inf, at::kFloat);
  for (const Tensor& grad : grads) {
    Tensor out = grad;
    at::TensorIterator::unary_op(out, grad);
    RequireDtype("gradient scaling", grad.scalar_type(), kFloatDtypes);
  }
}
Tensor& AmpUpdateScale(Tensor& self, Tensor& growth_tracker, const Tensor& found_inf, double /*growth*/, double /*backoff*/,
                       int64_t /*interval*/) {
  CheckOneElement(growth_tracker, at::kInt);
  CheckOneElement(self, at::kFloat);
  CheckOneElement(found_inf, at::kFloat);
  return self;
}

bool IsSetTo(const Tensor& self, const Tensor& tensor) {
  return self.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl() &&
         self.storage_offset() == tensor.storage_offset() && self.sizes() == tensor.sizes() && self.strides() == tensor.strides();
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("_fused_adam_", FusedAdam<double>, kThisForm);
  m.impl("_fused_adam_.tensor_lr", FusedAdam<const Tensor&>, kThisForm);
  m.impl("_fused_adamw_", FusedAdam<double>, kThisForm);
  m.impl("_fused_adamw_.tensor_lr", FusedAdam<const Tensor&>, kThisForm);
  m.impl("_fused_sgd_", FusedSgd<double>, kThisForm);
  m.impl("_fused_sgd_.tensor_lr", FusedSgd<const Tensor&>, kThisForm);
  m.impl("_fused_adagrad_", FusedAdagrad<double>, kThisForm);
  m.impl_if_present("_fused_adagrad_.tensor_lr", FusedAdagrad<const Tensor&>, kThisForm);
  m.impl("_amp_foreach_non_finite_check_and_unscale_", AmpUnscale, kThisForm);
  m.impl("_amp_update_scale_", AmpUpdateScale, kNestedToo);
  m.impl("is_set_to", IsSetTo, kThisForm);
}

}  // namespace
}  // namespace ddpopt::kernels
