// Fourier transforms as MKL's kernels on the CPU do them: into a contiguous buffer whose first dimensions are those that aren't
// transformed, in the order of the input's strides, and whose last are those that are.

#include <algorithm>
#include <numeric>
#include <vector>

#include "ATen/MemoryOverlap.h"
#include "ATen/WrapDimUtils.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/empty_like.h"
#include "c10/core/ScalarType.h"
#include "c10/util/Exception.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Dims = std::vector<int64_t>;

void CheckDims(const Tensor& self, IntArrayRef dim, const char* op) {
  for (const int64_t d : dim) {
    TORCH_CHECK(d >= 0 && d < self.dim(), op, ": there is no dimension ", d, " in a tensor of shape ", self.sizes());
  }
}

// Slowest first. The last `kept` dimensions stay where they are.
Dims ByStride(const Tensor& self, IntArrayRef dim, int64_t kept) {
  Dims sorted = dim.vec();
  const IntArrayRef strides = self.strides();
  std::sort(sorted.begin(), sorted.end() - kept, [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  return sorted;
}

Tensor Transform(const Tensor& self, IntArrayRef sizes, IntArrayRef dim, const at::TensorOptions& options) {
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return Empty(sizes, options);
  const c10::ScalarType dtype = c10::toRealValueType(self.scalar_type());
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kDouble, "fft: there is no kernel for ", self.scalar_type());
  for (const int64_t d : dim) {
    // Either side of a transform may be the half of a signal that is its own mirror.
    const int64_t signal = std::max(self.size(d), sizes[d]);
    for (const int64_t side : {self.size(d), sizes[d]}) {
      TORCH_CHECK(side > 0 && (side == signal || side == signal / 2 + 1), "fft: there is no transform of ", self.size(d), " elements to ",
                  sizes[d], " along dimension ", d);
    }
  }
  const int64_t ndim = self.dim();
  Dims order(ndim);
  std::iota(order.begin(), order.end(), 0);
  const auto is_batch = [&](int64_t d) { return std::find(dim.begin(), dim.end(), d) == dim.end(); };
  const auto batch_end = std::partition(order.begin(), order.end(), is_batch);
  const IntArrayRef strides = self.strides();
  std::sort(order.begin(), batch_end, [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  std::copy(dim.begin(), dim.end(), batch_end);

  Dims buffer_sizes(ndim);
  for (int64_t i = 0; i < ndim; ++i) buffer_sizes[i] = sizes[order[i]];
  const Tensor buffer = Empty(buffer_sizes, options);
  Dims inverse(ndim);
  for (int64_t i = 0; i < ndim; ++i) inverse[order[i]] = i;
  return buffer.permute(inverse);
}

Tensor ComplexToComplex(const Tensor& self, IntArrayRef dim, int64_t /*normalization*/, bool /*forward*/) {
  TORCH_CHECK(self.is_complex(), "_fft_c2c: a complex tensor is wanted, not ", self.scalar_type());
  if (dim.empty()) return at::empty_like(self);
  CheckDims(self, dim, "_fft_c2c");
  return Transform(self, self.sizes(), ByStride(self, dim, 0), self.options());
}

Tensor RealToComplex(const Tensor& self, IntArrayRef dim, int64_t /*normalization*/, bool onesided) {
  TORCH_CHECK(self.is_floating_point(), "_fft_r2c: a floating-point tensor is wanted, not ", self.scalar_type());
  TORCH_CHECK(!dim.empty(), "_fft_r2c: dimensions are wanted");
  CheckDims(self, dim, "_fft_r2c");
  Dims sizes = self.sizes().vec();
  if (onesided) sizes[dim.back()] = sizes[dim.back()] / 2 + 1;
  return Transform(self, sizes, ByStride(self, dim, 1), self.options().dtype(c10::toComplexType(self.scalar_type())));
}

// All dimensions but the last are transformed as complex ones first.
Tensor ComplexToReal(const Tensor& self, IntArrayRef dim, int64_t normalization, int64_t last_dim_size) {
  TORCH_CHECK(self.is_complex(), "_fft_c2r: a complex tensor is wanted, not ", self.scalar_type());
  TORCH_CHECK(!dim.empty(), "_fft_c2r: dimensions are wanted");
  CheckDims(self, dim, "_fft_c2r");
  Tensor input = self;
  if (dim.size() > 1) input = ComplexToComplex(self, dim.slice(0, dim.size() - 1), normalization, false);
  Dims sizes = input.sizes().vec();
  TORCH_CHECK(last_dim_size >= 1, "_fft_c2r: the result's last dimension can't have ", last_dim_size, " elements");
  sizes[dim.back()] = last_dim_size;
  return Transform(input, sizes, dim.slice(dim.size() - 1), self.options().dtype(c10::toRealValueType(self.scalar_type())));
}

// Results are copied into an out= tensor.
Tensor& Fill(Tensor& out, IntArrayRef sizes) {
  if (out.sizes() != sizes) out.resize_(sizes);
  at::assert_no_internal_overlap(out);
  return out;
}
Tensor& ComplexToComplexOut(const Tensor& self, IntArrayRef dim, int64_t normalization, bool forward, Tensor& out) {
  return Fill(out, ComplexToComplex(self, dim, normalization, forward).sizes());
}
Tensor& RealToComplexOut(const Tensor& self, IntArrayRef dim, int64_t normalization, bool onesided, Tensor& out) {
  const int64_t last = dim.empty() ? 0 : at::maybe_wrap_dim(dim.back(), self.dim());
  const bool mirrored = !onesided && self.numel() != 0 && self.dim() > 0 && self.size(last) > 2;
  TORCH_CHECK(!mirrored || out.is_complex(), "_fft_r2c: the whole spectrum needs a complex out=, not one of ", out.scalar_type());
  // The other half is filled in afterwards.
  const Tensor half = RealToComplex(self, dim, normalization, /*onesided=*/true);
  return Fill(out, onesided ? half.sizes() : self.sizes());
}
Tensor& ComplexToRealOut(const Tensor& self, IntArrayRef dim, int64_t normalization, int64_t last_dim_size, Tensor& out) {
  return Fill(out, ComplexToReal(self, dim, normalization, last_dim_size).sizes());
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("_fft_c2c", ComplexToComplex);
  m.impl("_fft_c2c.out", ComplexToComplexOut);
  m.impl("_fft_r2c", RealToComplex);
  m.impl("_fft_r2c.out", RealToComplexOut);
  m.impl("_fft_c2r", ComplexToReal);
  m.impl("_fft_c2r.out", ComplexToRealOut);
}

}  // namespace
}  // namespace ddpopt::kernels
