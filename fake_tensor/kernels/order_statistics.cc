// Median, k-th value and mode; cumulative extrema and logcumsumexp.

#define AT_PER_OPERATOR_HEADERS

#include <tuple>
#include <vector>

#include "ATen/MemoryOverlap.h"
#include "ATen/TensorIterator.h"
#include "ATen/WrapDimUtils.h"
#include "ATen/core/Tensor.h"
#include "ATen/native/ReduceOpsUtils.h"
#include "ATen/native/Resize.h"
#include "ATen/native/SortingUtils.h"
#include "ATen/ops/empty_like.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/dtypes.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;
using PairOut = std::tuple<Tensor&, Tensor&>;

void CheckTypes(const Tensor& self, const Tensor& values, const Tensor& indices) {
  TORCH_CHECK(values.scalar_type() == self.scalar_type(), "the values must have the input's dtype ", self.scalar_type(), ", not ",
              values.scalar_type());
  TORCH_CHECK(indices.scalar_type() == at::kLong, "the indices must be of dtype long, not ", indices.scalar_type());
}

Tensor MedianOfAll(const Tensor& self) {
  if (self.numel() > 0) RequireDtype("median", self.scalar_type(), kRealDtypes);
  return Empty({}, self.options());
}

PairOut MedianOut(const Tensor& self, int64_t dim, bool keepdim, Tensor& values, Tensor& indices) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(self.dim() == 0 || self.size(dim) > 0, "median: dimension ", dim, " has no elements");
  CheckTypes(self, values, indices);
  std::vector<int64_t> sizes = self.sizes().vec();
  if (self.dim() > 0) {
    if (keepdim) {
      sizes[dim] = 1;
    } else {
      sizes.erase(sizes.begin() + dim);
    }
  }
  at::native::resize_output(values, sizes);
  at::native::resize_output(indices, sizes);
  RequireDtype("median", self.scalar_type(), kRealDtypes);
  for (const Tensor* out : {&values, &indices}) {
    at::assert_no_internal_overlap(*out);
    // Unless the kernel works on a copy, with the dimension's elements side by side.
    if (self.dim() > 0 && self.stride(dim) > 1) continue;
    at::assert_no_partial_overlap(keepdim || self.dim() == 0 ? *out : out->unsqueeze(dim), self);
  }
  return {values, indices};
}

PairOut KthvalueOut(const Tensor& self, int64_t k, int64_t dim, bool keepdim, Tensor& values, Tensor& indices) {
  const int64_t wrapped = at::maybe_wrap_dim(dim, self.dim());
  at::native::zero_numel_check_dims(self, wrapped, "kthvalue()");
  at::assert_no_overlap(self, values);
  TORCH_CHECK(k >= 1 && k <= (self.dim() > 0 ? self.size(wrapped) : 1), "kthvalue: k = ", k, " is out of range");
  at::native::_reduction_with_indices_allocate_or_resize_output(values, indices, self, dim, keepdim);
  if (self.dim() > 0) {
    RequireDtype("kthvalue", self.scalar_type(), kRealDtypes);
    at::assert_no_internal_overlap(values);
    at::assert_no_internal_overlap(indices);
  }
  if (self.dim() > 0 && !keepdim) {
    values.squeeze_(wrapped);
    indices.squeeze_(wrapped);
  }
  return {values, indices};
}

PairOut ModeOut(const Tensor& self, int64_t dim, bool keepdim, Tensor& values, Tensor& indices) {
  CheckTypes(self, values, indices);
  dim = at::maybe_wrap_dim(dim, self.dim());
  if (self.numel() == 0) {
    const std::vector<int64_t> sizes = at::native::get_zero_numel_tensor_size(self, dim, keepdim, "mode()");
    at::native::resize_output(values, sizes);
    at::native::resize_output(indices, sizes);
    return {values, indices};
  }
  if (self.numel() == 1 && self.dim() == 0) {
    values.resize_({});
    indices.resize_({});
    return {values, indices};
  }
  RequireDtype("mode", self.scalar_type(), kRealDtypes | kBoolDtype);
  std::vector<int64_t> sizes = at::native::ensure_nonempty_vec(self.sizes().vec());
  sizes[dim] = 1;
  for (Tensor* out : {&values, &indices}) {
    if (!keepdim && out->dim() >= dim) out->unsqueeze_(dim);
    at::native::resize_output(*out, sizes);
  }
  at::TensorIteratorConfig()
      .check_all_same_dtype(false)
      .resize_outputs(false)
      .declare_static_shape(self.sizes(), /*squash_dims=*/dim)
      .add_output(values)
      .add_output(indices)
      .add_const_input(self)
      .build();
  if (!keepdim) {
    values.squeeze_(dim);
    indices.squeeze_(dim);
  }
  return {values, indices};
}
Pair Mode(const Tensor& self, int64_t dim, bool keepdim) {
  Pair results(Empty({0}, self.options()), Empty({0}, self.options().dtype(at::kLong)));
  ModeOut(self, dim, keepdim, std::get<0>(results), std::get<1>(results));
  return results;
}

// Writes tensors that cummax and cummin have made of the right shape.
void CumulativeExtremum(const Tensor& self, Tensor& values, Tensor& indices, int64_t dim) {
  at::maybe_wrap_dim(dim, self.dim());
  CheckTypes(self, values, indices);
  RequireDtype("cummax and cummin", self.scalar_type(), kRealDtypes | kBoolDtype);
}

Tensor& LogcumsumexpOut(const Tensor& self, int64_t dim, Tensor& out) {
  at::maybe_wrap_dim(dim, self.dim());
  RequireDtype("logcumsumexp", self.scalar_type(), kFloatDtypes | kComplexDtypes);
  if (out.sizes() != self.sizes()) at::native::resize_output(out, self.sizes());
  if (self.numel() == 0 || self.dim() == 0) return out;
  at::assert_no_internal_overlap(out);
  at::assert_no_partial_overlap(out, self);
  return out;
}
Tensor Logcumsumexp(const Tensor& self, int64_t dim) {
  Tensor out = at::empty_like(self, at::MemoryFormat::Contiguous);
  return LogcumsumexpOut(self, dim, out);
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("median", MedianOfAll, kThisForm);
  m.impl("median.dim_values", MedianOut, kThisForm);
  m.impl("nanmedian", MedianOfAll, kThisForm);
  m.impl("nanmedian.dim_values", MedianOut, kThisForm);
  m.impl("kthvalue.values", KthvalueOut, kThisForm);
  m.impl("mode", Mode, kThisForm);
  m.impl("mode.values", ModeOut, kThisForm);
  m.impl("_cummax_helper", CumulativeExtremum, kThisForm);
  m.impl("_cummin_helper", CumulativeExtremum, kThisForm);
  m.impl("_logcumsumexp", Logcumsumexp, kThisForm);
  m.impl("_logcumsumexp.out", LogcumsumexpOut, kThisForm);
}

}  // namespace
}  // namespace ddpopt::kernels
