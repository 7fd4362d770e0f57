// Activations and their gradients.

#include <cmath>

#include "ATen/MemoryOverlap.h"
#include "ATen/OpMathType.h"
#include "ATen/TensorIterator.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/clamp.h"
#include "ATen/ops/clamp_min.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/leaky_relu.h"
#include "ATen/ops/resize_as.h"
#include "ATen/ops/result_type.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/converted.h"
#include "fake_tensor/kernels/dtypes.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Scalar;
using at::Tensor;
using at::TensorIterator;
using at::TensorIteratorConfig;

Tensor Unary(const Tensor& self) {
  Tensor out;
  return TensorIterator::unary_op(out, self).output();
}
Tensor Binary(const Tensor& a, const Tensor& b) {
  Tensor out;
  return TensorIterator::binary_op(out, a, b).output();
}

Tensor Relu(const Tensor& self) {
  TORCH_CHECK(self.scalar_type() != at::kBool, "relu: bool tensors are not supported");
  return at::clamp_min(self, 0);
}
Tensor& ReluInPlace(Tensor& self) {
  TORCH_CHECK(self.scalar_type() != at::kBool, "relu: bool tensors are not supported");
  return at::clamp_min_(self, 0);
}

Tensor& HardtanhOut(const Tensor& self, const Scalar& min, const Scalar& max, Tensor& out) {
  TORCH_CHECK(self.scalar_type() != at::kBool, "hardtanh: bool tensors are not supported");
  // Integers stay integers, whatever the limits are.
  if (c10::isIntegralType(self.scalar_type(), /*includeBool=*/false)) return at::clamp_out(out, self, min.toLong(), max.toLong());
  return at::clamp_out(out, self, min.toDouble(), max.toDouble());
}
Tensor Hardtanh(const Tensor& self, const Scalar& min, const Scalar& max) {
  Tensor out = at::empty_like(self);
  return HardtanhOut(self, min, max, out);
}
Tensor& HardtanhInPlace(Tensor& self, const Scalar& min, const Scalar& max) { return HardtanhOut(self, min, max, self); }
void CheckLimits(const Scalar& min, const Scalar& max, at::ScalarType dtype) {
  RequireDtype("hardtanh_backward", dtype, kFloatDtypes);
  for (const Scalar* limit : {&min, &max}) CheckConvertible(*limit, at::toOpMathType(dtype));
}
Tensor HardtanhBackward(const Tensor& grad, const Tensor& self, const Scalar& min, const Scalar& max) {
  Tensor grad_input = Binary(grad, self);
  CheckLimits(min, max, grad_input.scalar_type());
  return grad_input;
}
Tensor& HardtanhBackwardOut(const Tensor& grad, const Tensor& self, const Scalar& min, const Scalar& max, Tensor& grad_input) {
  CheckLimits(min, max, TensorIterator::binary_op(grad_input, grad, self).common_dtype());
  return grad_input;
}

Tensor Hardswish(const Tensor& self) {
  RequireDtype("hardswish", self.scalar_type(), kFloatDtypes);
  return Unary(self);
}
Tensor& HardswishOut(const Tensor& self, Tensor& out) {
  RequireDtype("hardswish", TensorIterator::unary_op(out, self).common_dtype(), kFloatDtypes);
  return out;
}
Tensor& HardswishInPlace(Tensor& self) { return HardswishOut(self, self); }
Tensor HardswishBackward(const Tensor& grad, const Tensor& self) {
  const Tensor grad_input = Binary(grad, self);
  RequireDtype("hardswish_backward", grad_input.scalar_type(), kFloatDtypes);
  return grad_input;
}

Tensor& LogitOut(const Tensor& self, std::optional<double> /*eps*/, Tensor& out) {
  RequireDtype("logit", TensorIterator::unary_float_op(out, self).common_dtype(), kFloatDtypes);
  return out;
}
Tensor Logit(const Tensor& self, std::optional<double> /*eps*/) {
  Tensor out;
  out = TensorIterator::unary_float_op(out, self).output();
  RequireDtype("logit", out.scalar_type(), kFloatDtypes);
  return out;
}
Tensor& LogitInPlace(Tensor& self, std::optional<double> eps) { return LogitOut(self, eps, self); }

Tensor Prelu(const Tensor& self, const Tensor& weight) {
  Tensor out = at::empty_like(self);
  TensorIteratorConfig().add_output(out).add_const_input(self).add_const_input(weight).build();
  RequireDtype("prelu", self.scalar_type(), kFloatDtypes);
  return out;
}
std::tuple<Tensor, Tensor> PreluBackward(const Tensor& grad, const Tensor& self, const Tensor& weight) {
  Tensor grad_self = Empty({0}, self.options());
  Tensor grad_weight = Empty({0}, weight.options());
  TensorIteratorConfig()
      .add_output(grad_self)
      .add_output(grad_weight)
      .add_const_input(self)
      .add_const_input(weight)
      .add_const_input(grad)
      .build();
  RequireDtype("prelu_backward", self.scalar_type(), kFloatDtypes);
  return {grad_self, grad_weight};
}

// While training, out= is written as it is; else it is a leaky ReLU's.
Tensor& RreluWithNoiseOut(const Tensor& self, Tensor& noise, const Scalar& lower, const Scalar& upper, bool training,
                          std::optional<at::Generator> /*generator*/, Tensor& out) {
  TORCH_CHECK(self.sizes() == noise.sizes(), "rrelu: the noise's shape ", noise.sizes(), " isn't the input's, ", self.sizes());
  RequireDtype("rrelu", self.scalar_type(), training ? kFloatOrDouble | Dtypes{at::kBFloat16} : kFloatDtypes);
  if (!training) return at::leaky_relu_out(out, self, (lower.toDouble() + upper.toDouble()) / 2);
  TORCH_CHECK(noise.scalar_type() == self.scalar_type() && out.scalar_type() == self.scalar_type(), "rrelu: the input is of dtype ",
              self.scalar_type(), ", the noise of ", noise.scalar_type(), ", the result of ", out.scalar_type());
  return out;
}
Tensor RreluWithNoise(const Tensor& self, Tensor& noise, const Scalar& lower, const Scalar& upper, bool training,
                      std::optional<at::Generator> generator) {
  Tensor out = EmptyContiguousLike(self);
  return RreluWithNoiseOut(self, noise, lower, upper, training, std::move(generator), out);
}
Tensor& RreluWithNoiseInPlace(Tensor& self, Tensor& noise, const Scalar& lower, const Scalar& upper, bool training,
                              std::optional<at::Generator> generator) {
  return RreluWithNoiseOut(self, noise, lower, upper, training, std::move(generator), self);
}

// Without noise it is the gradient of a leaky relu.
Tensor RreluBackward(const Tensor& grad, const Tensor& self, const Tensor& noise, const at::Scalar& lower, const at::Scalar& upper,
                     bool training, bool /*self_is_result*/) {
  if (training && std::abs(upper.toDouble() - lower.toDouble()) > 1e-6) {
    const at::ScalarType common = at::result_type(noise, grad);
    RequireDtype("rrelu_with_noise_backward", common, kRealDtypes | kBoolDtype | kComplexDtypes | Dtypes{at::kComplexHalf});
    return Converted(noise, common).mul(Converted(grad, common));
  }
  Tensor out;
  const at::ScalarType common = at::result_type(self, grad);
  const Tensor dense_self = Converted(self, common), dense_grad = Converted(grad, common);
  const at::TensorIterator iter = at::TensorIterator::borrowing_binary_op(out, dense_self, dense_grad);
  RequireDtype("rrelu_with_noise_backward", iter.common_dtype(), kFloatDtypes);
  return iter.output();
}

std::tuple<Tensor&, Tensor&> LogSigmoidForwardOut(const Tensor& self, Tensor& out, Tensor& buffer) {
  RequireDtype("log_sigmoid", self.scalar_type(), kFloatDtypes);
  TORCH_CHECK(out.scalar_type() == self.scalar_type() && buffer.scalar_type() == self.scalar_type(),
              "log_sigmoid: results of the input's dtype ", self.scalar_type(), " are wanted, not ", out.scalar_type(), " and ",
              buffer.scalar_type());
  at::assert_no_internal_overlap(out);
  out.resize_as_(self);
  buffer.resize_as_(self, at::MemoryFormat::Contiguous);
  return {out, buffer};
}
std::tuple<Tensor, Tensor> LogSigmoidForward(const Tensor& self) {
  RequireDtype("log_sigmoid", self.scalar_type(), kFloatDtypes);
  return {EmptyContiguousLike(self), EmptyContiguousLike(self)};
}
Tensor& LogSigmoidBackwardOut(const Tensor& grad, const Tensor& self, const Tensor& buffer, Tensor& grad_input) {
  TensorIteratorConfig().add_output(grad_input).add_const_input(self).add_const_input(buffer).add_const_input(grad).build();
  RequireDtype("log_sigmoid_backward", self.scalar_type(), kFloatDtypes);
  return grad_input;
}
Tensor LogSigmoidBackward(const Tensor& grad, const Tensor& self, const Tensor& buffer) {
  Tensor grad_input = at::empty_like(grad);
  return LogSigmoidBackwardOut(grad, self, buffer, grad_input);
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("relu", Relu, kThisForm);
  m.impl("relu_", ReluInPlace, kNestedToo);
  m.impl("hardtanh", Hardtanh, kThisForm);
  m.impl("hardtanh.out", HardtanhOut, kThisForm);
  m.impl("hardtanh_", HardtanhInPlace, kNestedToo);
  m.impl("hardtanh_backward", HardtanhBackward, kThisForm);
  m.impl("hardtanh_backward.grad_input", HardtanhBackwardOut, kThisForm);
  m.impl("hardswish", Hardswish, kThisForm);
  m.impl("hardswish.out", HardswishOut, kThisForm);
  m.impl("hardswish_", HardswishInPlace, kNestedToo);
  m.impl("hardswish_backward", HardswishBackward, kThisForm);
  m.impl("logit", Logit, kThisForm);
  m.impl("logit.out", LogitOut, kThisForm);
  m.impl("logit_", LogitInPlace, kNestedToo);
  m.impl("_prelu_kernel", Prelu, kThisForm);
  m.impl("_prelu_kernel_backward", PreluBackward, kThisForm);
  m.impl("rrelu_with_noise", RreluWithNoise, kThisForm);
  m.impl("rrelu_with_noise.out", RreluWithNoiseOut, kThisForm);
  m.impl("rrelu_with_noise_", RreluWithNoiseInPlace, kNestedToo);
  m.impl("rrelu_with_noise_backward", RreluBackward);
  m.impl("log_sigmoid_forward", LogSigmoidForward, kThisForm);
  m.impl("log_sigmoid_forward.output", LogSigmoidForwardOut, kThisForm);
  m.impl("log_sigmoid_backward", LogSigmoidBackward, kThisForm);
  m.impl("log_sigmoid_backward.grad_input", LogSigmoidBackwardOut, kThisForm);
}

}  // namespace
}  // namespace ddpopt::kernels
