// Simulated quantization: floats that went through integers and back, with the mask of those that weren't clipped.

#include <tuple>
#include <vector>

#include "ATen/TensorIterator.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/empty_strided.h"
#include "c10/util/Exception.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;

void CheckLevels(int64_t quant_min, int64_t quant_max) {
  TORCH_CHECK(quant_min <= quant_max, "fake_quantize: quant_min ", quant_min, " is above quant_max ", quant_max);
}

void CheckOne(const Tensor& tensor, const char* what) {
  TORCH_CHECK(tensor.numel() == 1, "fake_quantize: ", what, " must have one element, not ", tensor.sizes());
}

std::tuple<Tensor, Tensor> LikeWithMask(const Tensor& self) { return {at::empty_like(self), at::empty_like(self, at::kBool)}; }

std::tuple<Tensor, Tensor> PerTensor(const Tensor& self, double /*scale*/, int64_t zero_point, int64_t quant_min, int64_t quant_max) {
  CheckLevels(quant_min, quant_max);
  TORCH_CHECK(zero_point >= quant_min && zero_point <= quant_max, "fake_quantize: the zero point ", zero_point, " is no level from ",
              quant_min, " to ", quant_max);
  TORCH_CHECK(self.is_floating_point(), "fake_quantize: floating-point tensors are wanted, not ", self.scalar_type());
  return LikeWithMask(self);
}

std::tuple<Tensor, Tensor> PerTensorOfTensors(const Tensor& self, const Tensor& scale, const Tensor& zero_point,
                                              const Tensor& fake_quant_enabled, int64_t quant_min, int64_t quant_max) {
  CheckLevels(quant_min, quant_max);
  TORCH_CHECK(self.is_floating_point(), "fake_quantize: floating-point tensors are wanted, not ", self.scalar_type());
  CheckOne(scale, "scale");
  CheckOne(zero_point, "zero_point");
  CheckOne(fake_quant_enabled, "fake_quant_enabled");
  return LikeWithMask(self);
}

void CheckChannels(const Tensor& self, const Tensor& scale, const Tensor& zero_point, int64_t axis) {
  TORCH_CHECK(scale.dim() == 1 && zero_point.dim() == 1 && scale.numel() == zero_point.numel(),
              "fake_quantize: scales and zero points must be vectors of one length, not ", scale.sizes(), " and ", zero_point.sizes());
  TORCH_CHECK(scale.numel() == self.size(axis), "fake_quantize: ", scale.numel(), " scales for ", self.size(axis), " channels");
}

std::tuple<Tensor, Tensor> PerChannel(const Tensor& self, const Tensor& scale, const Tensor& zero_point, int64_t axis, int64_t quant_min,
                                      int64_t quant_max) {
  TORCH_CHECK(scale.scalar_type() == at::kFloat, "fake_quantize: scales must be float, not ", scale.scalar_type());
  const c10::ScalarType zero_dtype = zero_point.scalar_type();
  TORCH_CHECK(zero_dtype == at::kInt || zero_dtype == at::kFloat || zero_dtype == at::kHalf, "fake_quantize: zero points can't be ",
              zero_dtype);
  CheckChannels(self, scale, zero_point, axis);
  CheckLevels(quant_min, quant_max);
  TORCH_CHECK(zero_point.numel() > 0 || zero_point.scalar_type() != at::kInt, "fake_quantize: there are no channels");
  TORCH_CHECK(axis >= 0 && axis <= self.dim(), "fake_quantize: there is no axis ", axis);
  TORCH_CHECK(self.is_floating_point(), "fake_quantize: floating-point tensors are wanted, not ", self.scalar_type());
  return LikeWithMask(self);
}

Tensor LearnablePerTensor(const Tensor& self, const Tensor& scale, const Tensor& zero_point, int64_t quant_min, int64_t quant_max,
                          double /*grad_factor*/) {
  CheckLevels(quant_min, quant_max);
  TORCH_CHECK(scale.dim() >= 1 && zero_point.dim() >= 1, "fake_quantize: scale and zero_point must not be scalars");
  CheckOne(scale[0], "scale");
  CheckOne(zero_point[0], "zero_point");
  TORCH_CHECK(self.is_floating_point(), "fake_quantize: floating-point tensors are wanted, not ", self.scalar_type());
  return at::empty_like(self);
}

// A bfloat16 input is made float first, and all else with it; otherwise all must be float.
void CheckLearnableBackward(const Tensor& grad, const Tensor& self, const Tensor& scale, int64_t quant_min, int64_t quant_max) {
  TORCH_CHECK(self.scalar_type() == at::kBFloat16 ||
                  (grad.scalar_type() == at::kFloat && self.scalar_type() == at::kFloat && scale.scalar_type() == at::kFloat),
              "fake_quantize: gradient, input and scales must be float");
  TORCH_CHECK(grad.numel() == self.numel(), "fake_quantize: gradient and input differ in size");
  TORCH_CHECK(quant_min <= 0 && quant_max >= 0, "fake_quantize: there is no level 0 from ", quant_min, " to ", quant_max);
}

std::tuple<Tensor, Tensor, Tensor> LearnablePerTensorBackward(const Tensor& grad, const Tensor& self, const Tensor& scale,
                                                              const Tensor& zero_point, int64_t quant_min, int64_t quant_max,
                                                              double /*grad_factor*/) {
  TORCH_CHECK(scale.dim() >= 1 && zero_point.dim() >= 1, "fake_quantize: scale and zero_point must not be scalars");
  CheckOne(scale[0], "scale");
  CheckOne(zero_point[0], "zero_point");
  CheckLearnableBackward(grad, self, scale, quant_min, quant_max);
  TORCH_CHECK(self.scalar_type() == at::kBFloat16 || zero_point.scalar_type() == at::kFloat, "fake_quantize: zero_point must be float");
  if (self.numel() == 0) return {self, scale, zero_point};
  const at::TensorOptions options = self.options().dtype(at::kFloat);
  Tensor out;
  const at::TensorIterator iter = at::TensorIterator::borrowing_binary_op(out, self, grad);
  const Tensor& both = iter.output();
  const bool broadcast = self.sizes() != both.sizes();
  return {broadcast ? at::empty_strided(both.sizes(), both.strides(), options) : at::empty_like(self, options), Empty({1}, options),
          Empty({1}, options)};
}

Tensor LearnablePerChannel(const Tensor& self, const Tensor& scale, const Tensor& zero_point, int64_t axis, int64_t quant_min,
                           int64_t quant_max, double /*grad_factor*/) {
  TORCH_CHECK(zero_point.scalar_type() != at::kBool && !zero_point.is_complex(), "fake_quantize: zero_point can't be ",
              zero_point.scalar_type());
  return std::get<0>(PerChannel(self, scale, zero_point.to(at::kInt), axis, quant_min, quant_max));
}

std::tuple<Tensor, Tensor, Tensor> LearnablePerChannelBackward(const Tensor& grad, const Tensor& self, const Tensor& scale,
                                                               const Tensor& zero_point, int64_t axis, int64_t quant_min, int64_t quant_max,
                                                               double /*grad_factor*/) {
  CheckLearnableBackward(grad, self, scale, quant_min, quant_max);
  TORCH_CHECK(self.scalar_type() == at::kBFloat16 || zero_point.scalar_type() == at::kFloat, "fake_quantize: zero_point must be float");
  TORCH_CHECK(grad.sizes() == self.sizes(), "fake_quantize: gradient and input differ in shape: ", grad.sizes(), " and ", self.sizes());
  CheckChannels(self, scale, zero_point, axis);
  TORCH_CHECK(zero_point.numel() > 0, "fake_quantize: there are no channels");
  if (self.numel() == 0) return {self, scale, zero_point};
  TORCH_CHECK(axis >= 0 && axis < self.dim(), "fake_quantize: there is no axis ", axis);
  const at::TensorOptions options = self.options().dtype(at::kFloat);
  // Summed over the other dimensions; where there are none, over all.
  const at::IntArrayRef channels = self.dim() == 1 ? at::IntArrayRef() : scale.sizes();
  return {at::empty_like(self, options), Empty(channels, options), Empty(channels, options)};
}

// A tensor of limits or of parameters that the observer fills: one element, or one for each channel.
void CheckObserved(const Tensor& tensor, int64_t channels, const char* what) {
  TORCH_CHECK(tensor.numel() == channels, "_fused_moving_avg_obs_fq_helper: ", what, " must have ", channels, " elements, not ",
              tensor.sizes());
}

// Whether the observer is on is data; it is taken to be, and then fills empty tensors.
std::tuple<Tensor, Tensor> MovingAverage(const Tensor& self, const Tensor& observer_on, const Tensor& fake_quant_on, Tensor& running_min,
                                         Tensor& running_max, Tensor& scale, Tensor& zero_point, double /*averaging_const*/,
                                         int64_t quant_min, int64_t quant_max, int64_t ch_axis, bool per_row_fake_quant,
                                         bool /*symmetric_quant*/) {
  TORCH_CHECK(ch_axis < self.dim(), "_fused_moving_avg_obs_fq_helper: there is no axis ", ch_axis, " in ", self.sizes());
  CheckOne(observer_on, "observer_on");
  CheckOne(fake_quant_on, "fake_quant_on");
  const int64_t channels = per_row_fake_quant ? self.size(ch_axis) : 1;
  for (Tensor* tensor : {&running_min, &running_max, &scale, &zero_point}) {
    if (per_row_fake_quant && tensor->numel() == 0) tensor->resize_({channels});
  }
  CheckObserved(running_min, channels, "running_min");
  CheckObserved(running_max, channels, "running_max");
  if (!per_row_fake_quant) return PerTensorOfTensors(self, scale, zero_point, fake_quant_on, quant_min, quant_max);
  CheckObserved(scale, channels, "scale");
  CheckObserved(zero_point, channels, "zero_point");
  return PerChannel(self, scale, zero_point, ch_axis, quant_min, quant_max);
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("fake_quantize_per_tensor_affine_cachemask", PerTensor);
  m.impl("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", PerTensorOfTensors);
  m.impl("fake_quantize_per_channel_affine_cachemask", PerChannel);
  m.impl("_fake_quantize_learnable_per_tensor_affine", LearnablePerTensor);
  m.impl("_fake_quantize_learnable_per_tensor_affine_backward", LearnablePerTensorBackward);
  m.impl("_fake_quantize_learnable_per_channel_affine", LearnablePerChannel);
  m.impl("_fake_quantize_learnable_per_channel_affine_backward", LearnablePerChannelBackward);
  m.impl("_fused_moving_avg_obs_fq_helper", MovingAverage);
}

}  // namespace
}  // namespace ddpopt::kernels
