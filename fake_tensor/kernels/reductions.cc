// Sums, products, variances and extrema.

#define AT_PER_OPERATOR_HEADERS

#include <tuple>

#include "ATen/MemoryOverlap.h"
#include "ATen/TensorIterator.h"
#include "ATen/core/Tensor.h"
#include "ATen/native/ReduceOpsUtils.h"
#include "ATen/native/Resize.h"
#include "ATen/ops/add.h"
#include "ATen/ops/alias.h"
#include "ATen/ops/aminmax.h"
#include "ATen/ops/complex.h"
#include "ATen/ops/imag.h"
#include "ATen/ops/max.h"
#include "ATen/ops/min.h"
#include "ATen/ops/ne.h"
#include "ATen/ops/real.h"
#include "ATen/ops/sqrt.h"
#include "ATen/ops/sum.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/dtypes.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::OptionalIntArrayRef;
using at::ScalarType;
using at::Tensor;
using MaybeScalar = std::optional<at::Scalar>;

void CheckVarianceInput(const Tensor& self) {
  TORCH_CHECK(self.is_floating_point() || self.is_complex(), "var and std: floating-point or complex tensors are wanted, not ",
              self.scalar_type());
}

// A complex variance is the sum of the parts' variances.
Tensor& VarianceOutOf(const Tensor& self, OptionalIntArrayRef dim, const MaybeScalar& correction, bool keepdim, bool root, Tensor& out) {
  CheckVarianceInput(self);
  if (self.is_complex()) {
    const ScalarType real = c10::toRealValueType(out.scalar_type());
    Tensor parts[2];
    for (int i = 0; i < 2; ++i) {
      parts[i] = Empty({0}, self.options().dtype(real));
      VarianceOutOf(i == 0 ? at::real(self) : at::imag(self), dim, correction, keepdim, false, parts[i]);
    }
    at::add_out(out, parts[0], parts[1]);
    if (root) at::sqrt_out(out, out);
    return out;
  }
  if (correction.has_value()) correction->toDouble();
  const at::TensorIterator iter = at::native::make_reduction("var", out, self, dim, keepdim, out.scalar_type());
  TORCH_CHECK(c10::canCast(self.scalar_type(), out.scalar_type()), "result type ", self.scalar_type(),
              " can't be cast to the desired output type ", out.scalar_type());
  // A kernel of its own for one result, which reads the input as it is.
  if (iter.numel() > 0 && out.numel() == 1 && iter.common_dtype() != at::kBFloat16 && iter.common_dtype() != at::kHalf) {
    TORCH_CHECK(self.scalar_type() == at::kFloat || self.scalar_type() == at::kDouble, "var and std: dtype ", self.scalar_type(),
                " with a result of dtype ", out.scalar_type());
  } else if (iter.numel() > 0) {
    RequireDtype("var and std", out.scalar_type(), kFloatDtypes);
  }
  return out;
}
at::TensorOptions RealOptions(const Tensor& self) { return self.options().dtype(c10::toRealValueType(self.scalar_type())); }

Tensor Variance(const Tensor& self, OptionalIntArrayRef dim, const MaybeScalar& correction, bool keepdim) {
  CheckVarianceInput(self);
  Tensor out = Empty({0}, RealOptions(self));
  return VarianceOutOf(self, dim, correction, keepdim, false, out);
}
Tensor& VarianceOut(const Tensor& self, OptionalIntArrayRef dim, const MaybeScalar& correction, bool keepdim, Tensor& out) {
  return VarianceOutOf(self, dim, correction, keepdim, false, out);
}
Tensor& DeviationOut(const Tensor& self, OptionalIntArrayRef dim, const MaybeScalar& correction, bool keepdim, Tensor& out) {
  return VarianceOutOf(self, dim, correction, keepdim, true, out);
}

void VarianceAndMeanOut(const Tensor& self, OptionalIntArrayRef dim, bool keepdim, Tensor& variance, Tensor& mean) {
  if (self.is_complex()) {
    Tensor variances[2];
    Tensor means[2];
    for (int i = 0; i < 2; ++i) {
      variances[i] = Empty({0}, variance.options());
      means[i] = Empty({0}, variance.options());
      VarianceAndMeanOut(i == 0 ? at::real(self) : at::imag(self), dim, keepdim, variances[i], means[i]);
    }
    at::complex_out(mean, means[0], means[1]);
    at::add_out(variance, variances[0], variances[1]);
  } else {
    at::native::make_reduction("var_mean", variance, mean, self, dim, keepdim, variance.scalar_type());
  }
}
std::tuple<Tensor, Tensor> VarianceAndMean(const Tensor& self, OptionalIntArrayRef dim, const MaybeScalar& /*correction*/, bool keepdim) {
  CheckVarianceInput(self);
  std::tuple<Tensor, Tensor> results(Empty({0}, RealOptions(self)), Empty({0}, self.options()));
  VarianceAndMeanOut(self, dim, keepdim, std::get<0>(results), std::get<1>(results));
  return results;
}

// Whether the CPU sums short floating-point numbers in a float tensor of its own, and copies the sums: its loops, which see two dimensions
// at a time, would keep adding to the same element of out=.
bool SumsInFloat(const at::TensorIterator& iter) {
  if (!at::isReducedFloatingType(iter.common_dtype()) || iter.numel() == 0) return false;
  // Neighbouring dimensions that are walked as one; on the meta device the iterator leaves them apart.
  const at::IntArrayRef shape = iter.shape();
  const at::IntArrayRef out = iter.strides(0), in = iter.strides(1);
  int64_t dims = 0, size = 1, out_stride = 0, in_stride = 0;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1) continue;
    if (dims > 0 && size * out_stride == out[i] && size * in_stride == in[i]) {
      size *= shape[i];
      continue;
    }
    if (out[i] != 0) return false;
    if (++dims == 2) return true;
    size = shape[i];
    out_stride = out[i];
    in_stride = in[i];
  }
  return false;
}
Tensor& SumOut(const Tensor& self, OptionalIntArrayRef dim, bool keepdim, std::optional<ScalarType> dtype, Tensor& out) {
  // (It may be out=, which the sum gives another shape.)
  const Tensor operand = out.is_same(self) ? at::alias(self) : self;
  at::sum_out(out, self, dim, keepdim, dtype);
  const ScalarType type = out.scalar_type();
  if (SumsInFloat(at::native::make_reduction("sum", out, operand, dim, keepdim, type, type))) at::assert_no_internal_overlap(out);
  return out;
}

Tensor Prod(const Tensor& self, std::optional<ScalarType> dtype) { return at::sum(self, dtype); }

Tensor& NansumOut(const Tensor& self, OptionalIntArrayRef dim, bool keepdim, std::optional<ScalarType> dtype, Tensor& out) {
  TORCH_CHECK(!self.is_complex(), "nansum: complex tensors are not supported");
  if (c10::isIntegralType(self.scalar_type(), /*includeBool=*/true)) return SumOut(self, dim, keepdim, dtype, out);
  const at::TensorIterator iter = at::native::make_reduction("nansum", out, self, dim, keepdim, dtype.value_or(out.scalar_type()));
  if (iter.numel() > 0) RequireDtype("nansum", out.scalar_type(), dtype.has_value() ? kRealDtypes | kBoolDtype : kFloatDtypes);
  return out;
}
Tensor Nansum(const Tensor& self, OptionalIntArrayRef dim, bool keepdim, std::optional<ScalarType> dtype) {
  const ScalarType type = at::native::get_dtype_from_self(self, dtype, /*promote_integers=*/true);
  Tensor out = at::native::create_reduction_result(self, dim, keepdim, type);
  return NansumOut(self, dim, keepdim, type, out);
}

Tensor CountNonzero(const Tensor& self, at::IntArrayRef dim) {
  if (!dim.empty()) return at::ne(self, 0).sum(dim);
  at::TensorIteratorConfig().add_const_input(self).build();
  return Empty({}, self.options().dtype(at::kLong));
}

Tensor Trace(const Tensor& self) {
  TORCH_CHECK(self.dim() == 2, "trace: a matrix is wanted, not ", self.sizes());
  RequireDtype("trace", self.scalar_type(), kRealDtypes | kComplexDtypes);
  return Empty({}, self.options().dtype(at::native::get_dtype_from_self(self, std::nullopt, /*promote_integers=*/true)));
}

Tensor Extremum(const Tensor& self) {
  TORCH_CHECK(self.numel() > 0, "max and min: a tensor without elements has none, unless a dimension is given");
  RequireDtype("max and min", self.scalar_type(), kRealDtypes | kBoolDtype);
  return Empty({}, self.options());
}
Tensor& ExtremumOut(const Tensor& self, Tensor& out) {
  TORCH_CHECK(c10::canCast(self.scalar_type(), out.scalar_type()), "result type ", self.scalar_type(),
              " can't be cast to the desired output type ", out.scalar_type());
  at::native::resize_output(out, {});
  RequireDtype("max and min", self.scalar_type(), kRealDtypes | kBoolDtype);
  return out;
}
// Of no integers the extremum is the far end of their range, which out= may not have; floating-point numbers become infinite.
template <bool kMax>
Tensor& IntegerExtremumOut(const Tensor& self, Tensor& out) {
  ExtremumOut(self, out);
  if (self.numel() == 0 && c10::isIntegralType(self.scalar_type(), /*includeBool=*/false) && !c10::isFloatingType(out.scalar_type())) {
    const int64_t bits = static_cast<int64_t>(self.itemsize()) * 8;
    const bool is_signed = self.scalar_type() != at::kByte;
    const int64_t highest = is_signed ? static_cast<int64_t>((uint64_t{1} << (bits - 1)) - 1) : 255;
    CheckConvertible(kMax ? (is_signed ? -highest - 1 : 0) : highest, out.scalar_type());
  }
  return out;
}
// LibTorch's Meta kernels of max and min, and then what the CPU kernels' iterator refuses.
using Extrema = std::tuple<Tensor&, Tensor&>;
Extrema CheckExtrema(const Tensor& self, Tensor& values, Tensor& indices) {
  if (self.numel() == 0 || self.dim() == 0) return {values, indices};
  for (const Tensor* out : {&values, &indices}) {
    at::assert_no_internal_overlap(*out);
    at::assert_no_partial_overlap(*out, self);
  }
  return {values, indices};
}
Extrema MaxOfDimOut(const Tensor& self, int64_t dim, bool keepdim, Tensor& values, Tensor& indices) {
  at::max_out(values, indices, self, dim, keepdim);
  return CheckExtrema(self, values, indices);
}
Extrema MinOfDimOut(const Tensor& self, int64_t dim, bool keepdim, Tensor& values, Tensor& indices) {
  at::min_out(values, indices, self, dim, keepdim);
  return CheckExtrema(self, values, indices);
}

Extrema AminmaxOut(const Tensor& self, std::optional<int64_t> dim, bool keepdim, Tensor& min, Tensor& max) {
  at::aminmax_out(min, max, self, dim, keepdim);
  return dim.has_value() ? CheckExtrema(self, min, max) : Extrema(min, max);
}

std::tuple<Tensor, Tensor> Aminmax(const Tensor& self) { return at::aminmax(self); }
std::tuple<Tensor, Tensor> AminmaxOfDim(const Tensor& self, int64_t dim, bool keepdim) { return at::aminmax(self, dim, keepdim); }

DDPOPT_FAKE_KERNELS(m) {
  m.impl("var.correction", Variance, kThisForm);
  m.impl("var.correction_out", VarianceOut, kThisForm);
  m.impl("std.correction", Variance, kThisForm);
  m.impl("std.correction_out", DeviationOut, kThisForm);
  m.impl("var_mean.correction", VarianceAndMean, kThisForm);
  m.impl("std_mean.correction", VarianceAndMean, kThisForm);
  m.impl("sum.IntList_out", SumOut, kThisForm);
  m.impl("prod", Prod, kThisForm);
  m.impl("nansum", Nansum, kThisForm);
  m.impl("nansum.out", NansumOut, kThisForm);
  m.impl("count_nonzero.dim_IntList", CountNonzero, kThisForm);
  m.impl("trace", Trace, kThisForm);
  m.impl("max", Extremum, kThisForm);
  m.impl("max.unary_out", IntegerExtremumOut<true>, kThisForm);
  m.impl("min", Extremum, kThisForm);
  m.impl("min.unary_out", IntegerExtremumOut<false>, kThisForm);
  m.impl("max.dim_max", MaxOfDimOut, kThisForm);
  m.impl("min.dim_min", MinOfDimOut, kThisForm);
  m.impl("aminmax.out", AminmaxOut, kThisForm);
  m.impl("_aminmax", Aminmax, kThisForm);
  m.impl("_aminmax.dim", AminmaxOfDim, kThisForm);
}

}  // namespace
}  // namespace ddpopt::kernels
