// Three tensors, or a tensor and two limits, where a number goes into the kernel as an element of the dtype it computes in. These stand for
// LibTorch's Meta kernels too, since _foreach_ operators are made of them.

#include <initializer_list>
#include <optional>

#include "ATen/MemoryOverlap.h"
#include "ATen/OpMathType.h"
#include "ATen/core/Tensor.h"
#include "ATen/native/TypeProperties.h"
#include "ATen/ops/addcdiv_meta_dispatch.h"
#include "ATen/ops/addcmul_meta_dispatch.h"
#include "ATen/ops/clamp_max_meta_dispatch.h"
#include "ATen/ops/clamp_meta_dispatch.h"
#include "ATen/ops/clamp_min_meta_dispatch.h"
#include "ATen/ops/lerp_meta_dispatch.h"
#include "base/libtorch_version.h"
#include "c10/core/Scalar.h"
#include "c10/core/ScalarType.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/dtypes.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Scalar;
using at::Tensor;

at::ScalarType CommonType(std::initializer_list<const Tensor*> tensors) {
  at::native::ResultTypeState state;
  for (const Tensor* tensor : tensors) state = at::native::update_result_type_state(*tensor, state);
  return at::native::result_type(state);
}

// (Of numbers that may change from step to step only the kind and the sign are in a cached call's key; up to 127 nothing else counts.)
void CheckTerms(const char* name, at::ScalarType type, Dtypes supported, const Scalar& number) {
  RequireDtype(name, type, supported);
  CheckConvertible(number, at::toOpMathType(type));
}

void CheckAddcmul(const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, const Scalar& value) {
  CheckTerms("addcmul", CommonType({&self, &tensor1, &tensor2}), kRealDtypes | kComplexDtypes | Dtypes{at::kComplexHalf}, value);
}
Tensor Addcmul(const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, const Scalar& value) {
  Tensor result = at::meta::addcmul(self, tensor1, tensor2, value);
  CheckAddcmul(self, tensor1, tensor2, value);
  return result;
}
Tensor& AddcmulInPlace(Tensor& self, const Tensor& tensor1, const Tensor& tensor2, const Scalar& value) {
  CheckAddcmul(self, tensor1, tensor2, value);
  return at::meta::addcmul_(self, tensor1, tensor2, value);
}
Tensor& AddcmulOut(const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, const Scalar& value, Tensor& out) {
  CheckAddcmul(self, tensor1, tensor2, value);
  return at::meta::addcmul_out(out, self, tensor1, tensor2, value);
}

void CheckAddcdiv(const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, const Scalar& value) {
  CheckTerms("addcdiv", CommonType({&self, &tensor1, &tensor2}), kRealDtypes | kComplexDtypes, value);
}
Tensor Addcdiv(const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, const Scalar& value) {
  Tensor result = at::meta::addcdiv(self, tensor1, tensor2, value);
  CheckAddcdiv(self, tensor1, tensor2, value);
  return result;
}
Tensor& AddcdivInPlace(Tensor& self, const Tensor& tensor1, const Tensor& tensor2, const Scalar& value) {
  CheckAddcdiv(self, tensor1, tensor2, value);
  return at::meta::addcdiv_(self, tensor1, tensor2, value);
}
Tensor& AddcdivOut(const Tensor& self, const Tensor& tensor1, const Tensor& tensor2, const Scalar& value, Tensor& out) {
  CheckAddcdiv(self, tensor1, tensor2, value);
  return at::meta::addcdiv_out(out, self, tensor1, tensor2, value);
}

void CheckLerp(const Tensor& self, const Scalar& weight) {
  CheckTerms("lerp", self.scalar_type(), kFloatDtypes | kComplexDtypes | Dtypes{at::kComplexHalf}, weight);
}
Tensor Lerp(const Tensor& self, const Tensor& end, const Scalar& weight) {
  Tensor result = at::meta::lerp(self, end, weight);
  CheckLerp(self, weight);
  return result;
}
Tensor& LerpInPlace(Tensor& self, const Tensor& end, const Scalar& weight) {
  CheckLerp(self, weight);
  return at::meta::lerp_(self, end, weight);
}
Tensor& LerpOut(const Tensor& self, const Tensor& end, const Scalar& weight, Tensor& out) {
  CheckLerp(self, weight);
  return at::meta::lerp_out(out, self, end, weight);
}

// A limit beyond the far end of an integer dtype's range leaves no number. Floating-point limits make a floating-point result.
// LibTorch 2.11 takes any.
void CheckLimits(const Tensor& self, const std::optional<Scalar>& min, const std::optional<Scalar>& max) {
  if constexpr (!kLibTorchAfter211) return;
  int64_t lowest, highest;
  switch (self.scalar_type()) {
    case at::kByte:
      lowest = 0, highest = 255;
      break;
    case at::kChar:
      lowest = -128, highest = 127;
      break;
    case at::kShort:
      lowest = -32768, highest = 32767;
      break;
    case at::kInt:
      lowest = -2147483648, highest = 2147483647;
      break;
    default:
      return;
  }
  for (const std::optional<Scalar>* limit : {&min, &max}) {
    if (limit->has_value() && !(*limit)->isIntegral(/*includeBool=*/true)) return;
  }
  TORCH_CHECK(!max.has_value() || max->toLong() >= lowest, "clamp: no ", self.scalar_type(), " is at most ", *max);
  TORCH_CHECK(!min.has_value() || min->toLong() <= highest, "clamp: no ", self.scalar_type(), " is at least ", *min);
}
using MaybeScalar = std::optional<Scalar>;
Tensor Clamp(const Tensor& self, const MaybeScalar& min, const MaybeScalar& max) {
  CheckLimits(self, min, max);
  return at::meta::clamp(self, min, max);
}
Tensor& ClampInPlace(Tensor& self, const MaybeScalar& min, const MaybeScalar& max) {
  CheckLimits(self, min, max);
  return at::meta::clamp_(self, min, max);
}
Tensor& ClampOut(const Tensor& self, const MaybeScalar& min, const MaybeScalar& max, Tensor& out) {
  CheckLimits(self, min, max);
  return at::meta::clamp_out(out, self, min, max);
}
Tensor ClampMin(const Tensor& self, const Scalar& min) {
  CheckLimits(self, min, std::nullopt);
  return at::meta::clamp_min(self, min);
}
Tensor& ClampMinInPlace(Tensor& self, const Scalar& min) {
  CheckLimits(self, min, std::nullopt);
  return at::meta::clamp_min_(self, min);
}
Tensor& ClampMinOut(const Tensor& self, const Scalar& min, Tensor& out) {
  CheckLimits(self, min, std::nullopt);
  return at::meta::clamp_min_out(out, self, min);
}
Tensor ClampMax(const Tensor& self, const Scalar& max) {
  CheckLimits(self, std::nullopt, max);
  return at::meta::clamp_max(self, max);
}
Tensor& ClampMaxInPlace(Tensor& self, const Scalar& max) {
  CheckLimits(self, std::nullopt, max);
  return at::meta::clamp_max_(self, max);
}
Tensor& ClampMaxOut(const Tensor& self, const Scalar& max, Tensor& out) {
  CheckLimits(self, std::nullopt, max);
  return at::meta::clamp_max_out(out, self, max);
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("addcmul", Addcmul, kNestedToo);
  m.impl("addcmul_", AddcmulInPlace, kNestedToo);
  m.impl("addcmul.out", AddcmulOut, kNestedToo);
  m.impl("addcdiv", Addcdiv, kNestedToo);
  m.impl("addcdiv_", AddcdivInPlace, kNestedToo);
  m.impl("addcdiv.out", AddcdivOut, kNestedToo);
  m.impl("lerp.Scalar", Lerp, kNestedToo);
  m.impl("lerp_.Scalar", LerpInPlace, kNestedToo);
  m.impl("lerp.Scalar_out", LerpOut, kNestedToo);
  m.impl("clamp", Clamp, kNestedToo);
  m.impl("clamp_", ClampInPlace, kNestedToo);
  m.impl("clamp.out", ClampOut, kNestedToo);
  m.impl("clamp_min", ClampMin, kNestedToo);
  m.impl("clamp_min_", ClampMinInPlace, kNestedToo);
  m.impl("clamp_min.out", ClampMinOut, kNestedToo);
  m.impl("clamp_max", ClampMax, kNestedToo);
  m.impl("clamp_max_", ClampMaxInPlace, kNestedToo);
  m.impl("clamp_max.out", ClampMaxOut, kNestedToo);
}

}  // namespace
}  // namespace ddpopt::kernels
