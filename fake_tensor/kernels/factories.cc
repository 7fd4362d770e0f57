// Ranges, permutations and triangles of indices.

#define AT_PER_OPERATOR_HEADERS

#include <cmath>
#include <optional>
#include <type_traits>

#include "ATen/core/Tensor.h"
#include "ATen/native/TensorFactories.h"
#include "ATen/ops/linspace.h"
#include "ATen/ops/linspace_meta_dispatch.h"
#include "ATen/ops/logspace.h"
#include "ATen/ops/logspace_meta_dispatch.h"
#include "ATen/ops/scalar_tensor.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/dtypes.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Scalar;
using at::Tensor;
using Dtype = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Device = std::optional<at::Device>;
using Pin = std::optional<bool>;

at::TensorOptions Options(Dtype dtype, Layout layout) {
  return at::TensorOptions().dtype(dtype.value_or(at::typeMetaToScalarType(at::get_default_dtype()))).layout(layout);
}

// An end of a range. Of a tensor's value only its being complex has a say in the result.
Scalar End(const Scalar& value) { return value; }
Scalar End(const Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "linspace and logspace: ends without dimensions are wanted, not one of shape ", value.sizes());
  return value.is_complex() ? Scalar(c10::complex<double>(0, 0)) : Scalar(0.0);
}

// What the kernels check of a range: the dtype if there are two numbers or more, else whether the number fits, which a tensor doesn't tell.
Tensor& CheckRange(Tensor& out, int64_t steps, const Scalar& start, const Scalar& end) {
  if (steps > 1) {
    CheckConvertible(start, out.scalar_type());
    CheckConvertible(end, out.scalar_type());
  }
  if (steps > 1) RequireDtype("linspace and logspace", out.scalar_type(), kRealDtypes | kComplexDtypes);
  return out;
}

template <typename Start, typename Stop>
Tensor& LinspaceOut(const Start& start, const Stop& end, int64_t steps, Tensor& out) {
  const Scalar first = End(start);
  at::meta::linspace_out(out, first, End(end), steps);
  if (steps > 0) CheckConvertible(first, out.scalar_type());
  return CheckRange(out, steps, End(start), End(end));
}
template <typename Start, typename Stop>
Tensor Linspace(const Start& start, const Stop& end, int64_t steps, Dtype dtype, Layout layout, Device /*device*/, Pin /*pin*/) {
  Tensor out = at::linspace(End(start), End(end), steps, dtype, layout, c10::Device(c10::kMeta), std::nullopt);
  if (steps > 0) CheckConvertible(End(start), out.scalar_type());
  return CheckRange(out, steps, End(start), End(end));
}
template <typename Start, typename Stop>
Tensor& LogspaceOut(const Start& start, const Stop& end, int64_t steps, double base, Tensor& out) {
  if constexpr (std::is_same_v<Start, Scalar>) {
    if (steps == 1 && !start.isComplex()) CheckConvertible(std::pow(base, start.toDouble()), out.scalar_type());
  }
  at::meta::logspace_out(out, End(start), End(end), steps, base);
  return CheckRange(out, steps, End(start), End(end));
}
template <typename Start, typename Stop>
Tensor Logspace(const Start& start, const Stop& end, int64_t steps, double base, Dtype dtype, Layout layout, Device /*device*/,
                Pin /*pin*/) {
  Tensor out = at::logspace(End(start), End(end), steps, base, dtype, layout, c10::Device(c10::kMeta), std::nullopt);
  return CheckRange(out, steps, End(start), End(end));
}

Tensor& RandpermOut(int64_t n, std::optional<at::Generator> /*generator*/, Tensor& out) {
  RequireDtype("randperm", out.scalar_type(), kRealDtypes);
  TORCH_CHECK(n >= 0, "randperm: n can't be negative: ", n);
  // The largest number must fit the dtype, exactly.
  CheckConvertible(Scalar(n > 0 ? n - 1 : n), out.scalar_type());
  at::native::check_supported_max_int_with_precision(n, out);
  out.resize_({n});
  return out;
}

Tensor TriangleIndices(int64_t row, int64_t col, int64_t size, Dtype dtype, Layout layout) {
  at::native::check_args(row, col, layout);
  RequireDtype("tril_indices and triu_indices", dtype.value_or(at::kLong), {at::kInt, at::kLong});
  return Empty({2, size}, Options(dtype.value_or(at::kLong), layout));
}
Tensor TrilIndices(int64_t row, int64_t col, int64_t offset, Dtype dtype, Layout layout, Device /*device*/, Pin /*pin*/) {
  return TriangleIndices(row, col, at::native::get_tril_size(row, col, offset), dtype, layout);
}
Tensor TriuIndices(int64_t row, int64_t col, int64_t offset, Dtype dtype, Layout layout, Device /*device*/, Pin /*pin*/) {
  return TriangleIndices(row, col, row * col - at::native::get_tril_size(row, col, offset - 1), dtype, layout);
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("linspace.Tensor_Tensor", Linspace<Tensor, Tensor>, kThisForm);
  m.impl("linspace.Tensor_Scalar", Linspace<Tensor, Scalar>, kThisForm);
  m.impl("linspace.Scalar_Tensor", Linspace<Scalar, Tensor>, kThisForm);
  m.impl("linspace.out", LinspaceOut<Scalar, Scalar>, kNestedToo);
  m.impl("logspace.out", LogspaceOut<Scalar, Scalar>, kNestedToo);
  m.impl("linspace.Tensor_Tensor_out", LinspaceOut<Tensor, Tensor>, kThisForm);
  m.impl("linspace.Tensor_Scalar_out", LinspaceOut<Tensor, Scalar>, kThisForm);
  m.impl("linspace.Scalar_Tensor_out", LinspaceOut<Scalar, Tensor>, kThisForm);
  m.impl("logspace.Tensor_Tensor", Logspace<Tensor, Tensor>, kThisForm);
  m.impl("logspace.Tensor_Scalar", Logspace<Tensor, Scalar>, kThisForm);
  m.impl("logspace.Scalar_Tensor", Logspace<Scalar, Tensor>, kThisForm);
  m.impl("logspace.Tensor_Tensor_out", LogspaceOut<Tensor, Tensor>, kThisForm);
  m.impl("logspace.Tensor_Scalar_out", LogspaceOut<Tensor, Scalar>, kThisForm);
  m.impl("logspace.Scalar_Tensor_out", LogspaceOut<Scalar, Tensor>, kThisForm);
  m.impl("randperm.generator_out", RandpermOut, kThisForm);
  m.impl("tril_indices", TrilIndices, kThisForm);
  m.impl("triu_indices", TriuIndices, kThisForm);
}

}  // namespace
}  // namespace ddpopt::kernels
