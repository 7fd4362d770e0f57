// Element by element: the iterator that the CPU kernels use finds shape, dtype and strides, and refuses what they refuse.

#include <cstdint>
#include <limits>

#include "ATen/TensorIterator.h"
#include "ATen/core/Tensor.h"
#include "ATen/native/Resize.h"
#include "ATen/ops/ne.h"
#include "ATen/ops/real.h"
#include "ATen/ops/remainder.h"
#include "ATen/ops/result_type.h"
#include "ATen/ops/sub.h"
#include "c10/core/ScalarType.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/dtypes.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Scalar;
using at::Tensor;
using at::TensorIterator;
using at::TensorIteratorConfig;

Tensor Binary(const Tensor& a, const Tensor& b) {
  Tensor out;
  return TensorIterator::binary_op(out, a, b).output();
}

// abs and angle: complex numbers become real ones, unless the result is asked to be complex.
Tensor& MagnitudeOut(const Tensor& self, Tensor& out, TensorIterator (*make)(at::TensorBase&, const at::TensorBase&)) {
  if (self.is_complex() && !out.is_complex()) {
    const at::ScalarType real = c10::toRealValueType(self.scalar_type());
    TORCH_CHECK(c10::canCast(real, out.scalar_type()), "result type ", real, " can't be cast to the desired output type ",
                out.scalar_type());
    Tensor complex = Empty({0}, self.options());
    make(complex, self);
    at::native::resize_output(out, complex.sizes());
    out.copy_(at::real(complex));
    return out;
  }
  make(out, self);
  return out;
}
Tensor& AbsOut(const Tensor& self, Tensor& out) {
  TORCH_CHECK(self.scalar_type() != at::kBool, "abs: not implemented for dtype Bool");
  return MagnitudeOut(self, out, TensorIterator::unary_op);
}
Tensor& AngleOut(const Tensor& self, Tensor& out) { return MagnitudeOut(self, out, TensorIterator::unary_float_op); }
Tensor Angle(const Tensor& self) {
  if (self.is_complex()) {
    Tensor out = Empty({0}, self.options().dtype(c10::toRealValueType(self.scalar_type())));
    return AngleOut(self, out);
  }
  Tensor out;
  return TensorIterator::unary_float_op(out, self).output();
}

Tensor& ConjPhysicalOut(const Tensor& self, Tensor& out) {
  TensorIterator::unary_op(out, self);
  return out;
}

Tensor& ComplexOut(const Tensor& a, const Tensor& b, Tensor& out) {
  for (const Tensor* part : {&a, &b}) {
    const at::ScalarType type = part->scalar_type();
    TORCH_CHECK(type == at::kFloat || type == at::kDouble || type == at::kHalf, "complex numbers are made of half, float or double, not ",
                type);
  }
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "both parts must have one dtype, not ", a.scalar_type(), " and ", b.scalar_type());
  TORCH_CHECK(out.scalar_type() == c10::toComplexType(a.scalar_type()), "the result must have dtype ", c10::toComplexType(a.scalar_type()),
              ", not ", out.scalar_type());
  TensorIteratorConfig().add_output(out).add_const_input(a).add_const_input(b).check_all_same_dtype(false).build();
  return out;
}

Tensor& NanToNumOut(const Tensor& self, std::optional<double> /*nan*/, std::optional<double> /*posinf*/, std::optional<double> /*neginf*/,
                    Tensor& out) {
  TORCH_CHECK(self.scalar_type() == out.scalar_type(), "nan_to_num: out has dtype ", out.scalar_type(), ", the input ", self.scalar_type());
  if (c10::isIntegralType(self.scalar_type(), /*includeBool=*/true)) {
    at::native::resize_output(out, self.sizes());
    out.copy_(self);
  } else {
    TensorIterator::unary_op(out, self);
  }
  return out;
}

Tensor Isnan(const Tensor& self) { return at::ne(self, self); }

std::tuple<Tensor&, Tensor&> FrexpOut(const Tensor& self, Tensor& mantissa, Tensor& exponent) {
  TORCH_CHECK(c10::isFloatingType(self.scalar_type()), "frexp: floating-point tensors are wanted, not ", self.scalar_type());
  TORCH_CHECK(mantissa.scalar_type() == self.scalar_type(), "frexp: the mantissa must have dtype ", self.scalar_type(), ", not ",
              mantissa.scalar_type());
  TORCH_CHECK(exponent.scalar_type() == at::kInt, "frexp: the exponent must have dtype int, not ", exponent.scalar_type());
  TensorIteratorConfig().add_output(mantissa).add_output(exponent).add_const_input(self).check_all_same_dtype(false).build();
  return {mantissa, exponent};
}

Tensor& FloorDivideOut(const Tensor& self, const Tensor& other, Tensor& out) {
  RequireDtype("floor_divide", TensorIterator::binary_op(out, self, other).common_dtype(), kRealDtypes);
  return out;
}
Tensor FloorDivide(const Tensor& self, const Tensor& other) {
  const Tensor out = Binary(self, other);
  RequireDtype("floor_divide", out.scalar_type(), kRealDtypes);
  return out;
}
Tensor& FloorDivideInPlace(Tensor& self, const Tensor& other) { return FloorDivideOut(self, other, self); }

Tensor RemainderOfScalar(const Scalar& self, const Tensor& other) {
  const Tensor out = at::remainder(WrappedNumber(self), other);
  RequireDtype("remainder", out.scalar_type(), kRealDtypes);
  return out;
}
Tensor Rsub(const Tensor& self, const Tensor& other, const Scalar& alpha) {
  TORCH_CHECK(self.scalar_type() != at::kBool && other.scalar_type() != at::kBool, "rsub: bool tensors are not supported");
  return at::sub(other, self, alpha);
}

Tensor Shift(const Tensor& self, const Tensor& other) {
  const Tensor out = Binary(self, other);
  RequireDtype("shift", out.scalar_type(), kIntegerDtypes);
  return out;
}
Tensor ShiftScalar(const Tensor& self, const Scalar& other) { return Shift(self, WrappedNumber(other)); }
Tensor& ShiftInPlace(Tensor& self, const Tensor& other) {
  RequireDtype("shift", TensorIterator::binary_op(self, self, other).common_dtype(), kIntegerDtypes);
  return self;
}
Tensor& ShiftScalarInPlace(Tensor& self, const Scalar& other) { return ShiftInPlace(self, WrappedNumber(other)); }

// Its CPU kernel clamps to the dtype's range, for signed integers, float and double alone.
void CheckAddRelu(const Tensor& self, const Scalar& alpha) {
  const at::ScalarType type = self.scalar_type();
  const bool known =
      type == at::kInt || type == at::kLong || type == at::kShort || type == at::kChar || type == at::kFloat || type == at::kDouble;
  TORCH_CHECK(known, "add_relu: dtype ", type, " is not supported");
  CheckConvertible(alpha, type);
}
// The range's end must fit what is computed in, which is smaller if self is a mere number.
void CheckAddReluRange(const Tensor& self, at::ScalarType computed) {
  switch (self.scalar_type()) {
    case at::kInt:
      return CheckConvertible(std::numeric_limits<int32_t>::max(), computed);
    case at::kLong:
      return CheckConvertible(std::numeric_limits<int64_t>::max(), computed);
    case at::kShort:
      return CheckConvertible(std::numeric_limits<int16_t>::max(), computed);
    case at::kChar:
      return CheckConvertible(std::numeric_limits<int8_t>::max(), computed);
    case at::kFloat:
      return CheckConvertible(std::numeric_limits<float>::max(), computed);
    default:
      return CheckConvertible(std::numeric_limits<double>::max(), computed);
  }
}
Tensor AddRelu(const Tensor& self, const Tensor& other, const Scalar& alpha) {
  CheckAddRelu(self, alpha);
  const Tensor out = Binary(self, other);
  CheckAddReluRange(self, out.scalar_type());
  RequireDtype("add_relu", out.scalar_type(), kIntegerDtypes | kFloatOrDouble);
  return out;
}
Tensor& AddReluOut(const Tensor& self, const Tensor& other, const Scalar& alpha, Tensor& out) {
  CheckAddRelu(self, alpha);
  const TensorIterator iter = TensorIterator::binary_op(out, self, other);
  RequireDtype("add_relu", iter.common_dtype(), kIntegerDtypes | kFloatOrDouble);
  CheckAddReluRange(self, iter.common_dtype());
  // The kernel hands on what it computed in, which isn't `out` if that has another dtype. LibTorch's layers above a fake don't.
  TORCH_CHECK(iter.common_dtype() == out.scalar_type(), "add_relu: into a tensor of ", out.scalar_type(), ", computed in ",
              iter.common_dtype(), ", the kernel returns another tensor than the one to write to, which a fake can't");
  return out;
}
Tensor& AddReluInPlace(Tensor& self, const Tensor& other, const Scalar& alpha) { return AddReluOut(self, other, alpha, self); }
Tensor AddReluScalar(const Tensor& self, const Scalar& other, const Scalar& alpha) { return AddRelu(self, WrappedNumber(other), alpha); }
Tensor& AddReluScalarInPlace(Tensor& self, const Scalar& other, const Scalar& alpha) {
  return AddReluOut(self, WrappedNumber(other), alpha, self);
}

Tensor& LogicalBinaryOut(const Tensor& self, const Tensor& other, Tensor& out) {
  TensorIterator::comparison_op(out, self, other);
  return out;
}
Tensor& LogicalNotOut(const Tensor& self, Tensor& out) {
  TensorIteratorConfig().check_all_same_dtype(false).add_output(out).add_const_input(self).build();
  return out;
}

Tensor& WhereOut(const Tensor& condition, const Tensor& self, const Tensor& other, Tensor& out) {
  const at::ScalarType type = at::result_type(self, other);
  TORCH_CHECK(out.scalar_type() == type, "where: the result must have dtype ", type, ", not ", out.scalar_type());
  TORCH_CHECK(condition.scalar_type() == at::kBool || condition.scalar_type() == at::kByte, "where: the condition must be bool, not ",
              condition.scalar_type());
  const Tensor mask = condition.to(at::kBool);
  const Tensor a = self.to(type);
  const Tensor b = other.to(type);
  TensorIteratorConfig().check_all_same_dtype(false).add_output(out).add_const_input(mask).add_const_input(a).add_const_input(b).build();
  return out;
}
Tensor Where(const Tensor& condition, const Tensor& self, const Tensor& other) {
  Tensor out = Empty({0}, self.options().dtype(at::result_type(self, other)));
  return WhereOut(condition, self, other, out);
}

Tensor& FillScalar(Tensor& self, const Scalar& value) {
  CheckConvertible(value, self.scalar_type());
  TensorIteratorConfig().set_check_mem_overlap(false).check_all_same_dtype(false).resize_outputs(false).add_output(self).build();
  return self;
}
Tensor& FillTensor(Tensor& self, const Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "fill_: a value without dimensions is wanted, not one of shape ", value.sizes());
  return self.copy_(value);
}

Tensor& ConjPhysicalInPlace(Tensor& self) { return self.is_complex() ? ConjPhysicalOut(self, self) : self; }

DDPOPT_FAKE_KERNELS(m) {
  m.impl("abs.out", AbsOut, kThisForm);
  m.impl("angle", Angle, kThisForm);
  m.impl("angle.out", AngleOut, kThisForm);
  m.impl("conj_physical.out", ConjPhysicalOut, kThisForm);
  m.impl("conj_physical_", ConjPhysicalInPlace, kNestedToo);
  m.impl("complex.out", ComplexOut, kThisForm);
  m.impl("polar.out", ComplexOut, kThisForm);
  m.impl("nan_to_num.out", NanToNumOut, kThisForm);
  m.impl("isnan", Isnan, kThisForm);
  m.impl("frexp.Tensor_out", FrexpOut, kThisForm);
  m.impl("floor_divide", FloorDivide, kThisForm);
  m.impl("floor_divide.out", FloorDivideOut, kThisForm);
  m.impl("floor_divide_.Tensor", FloorDivideInPlace, kNestedToo);
  m.impl("remainder.Scalar_Tensor", RemainderOfScalar, kThisForm);
  m.impl("rsub.Tensor", Rsub, kThisForm);
  m.impl("__lshift__.Tensor", Shift, kNestedToo);
  m.impl("__lshift__.Scalar", ShiftScalar, kNestedToo);
  m.impl("__ilshift__.Tensor", ShiftInPlace, kNestedToo);
  m.impl("__ilshift__.Scalar", ShiftScalarInPlace, kNestedToo);
  m.impl("__rshift__.Tensor", Shift, kNestedToo);
  m.impl("__rshift__.Scalar", ShiftScalar, kNestedToo);
  m.impl("__irshift__.Tensor", ShiftInPlace, kNestedToo);
  m.impl("__irshift__.Scalar", ShiftScalarInPlace, kNestedToo);
  m.impl("_add_relu.Tensor", AddRelu, kThisForm);
  m.impl("_add_relu.out", AddReluOut, kThisForm);
  m.impl("_add_relu_.Tensor", AddReluInPlace, kNestedToo);
  m.impl("_add_relu.Scalar", AddReluScalar, kThisForm);
  m.impl("_add_relu_.Scalar", AddReluScalarInPlace, kNestedToo);
  m.impl("logical_and.out", LogicalBinaryOut, kThisForm);
  m.impl("logical_or.out", LogicalBinaryOut, kThisForm);
  m.impl("logical_xor.out", LogicalBinaryOut, kThisForm);
  m.impl("logical_not.out", LogicalNotOut, kThisForm);
  m.impl("where.self", Where, kThisForm);
  m.impl("where.self_out", WhereOut, kThisForm);
  m.impl("fill_.Scalar", FillScalar, kNestedToo);
  m.impl("fill_.Tensor", FillTensor, kNestedToo);
}

}  // namespace
}  // namespace ddpopt::kernels
