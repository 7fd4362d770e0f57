// Selection and filling by index and by mask.

#define AT_PER_OPERATOR_HEADERS

#include <utility>
#include <vector>

#include "ATen/ExpandUtils.h"
#include "ATen/MemoryOverlap.h"
#include "ATen/TensorIterator.h"
#include "ATen/WrapDimUtils.h"
#include "ATen/core/Tensor.h"
#include "ATen/native/Resize.h"
#include "ATen/native/UnfoldBackward.h"
#include "ATen/ops/index_add.h"
#include "ATen/ops/index_reduce.h"
#include "fake_tensor/fake_errors.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/dtypes.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Scalar;
using at::Tensor;
using at::TensorIteratorConfig;

bool IsIndexType(at::ScalarType type) { return type == at::kLong || type == at::kInt; }

// What is written must not share memory with what is read.
void CheckNoOverlap(const Tensor& out, std::initializer_list<const Tensor*> inputs) {
  at::assert_no_internal_overlap(out);
  for (const Tensor* input : inputs) at::assert_no_overlap(out, *input);
}

Tensor& IndexSelectOut(const Tensor& self, int64_t dim, const Tensor& index, Tensor& out) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(index.dim() <= 1, "index_select: the index must be a vector, not ", index.sizes());
  TORCH_CHECK(self.dim() > 0 || index.numel() == 1, "index_select: a tensor without dimensions takes one index, not ", index.numel());
  TORCH_CHECK(IsIndexType(index.scalar_type()), "index_select: the index must be int32 or int64, not ", index.scalar_type());
  TORCH_CHECK(self.scalar_type() == out.scalar_type(), "index_select: the result must have the input's dtype ", self.scalar_type(),
              ", not ", out.scalar_type());
  CheckNoOverlap(out, {&self, &index});
  std::vector<int64_t> sizes = self.sizes().vec();
  if (!sizes.empty()) sizes[dim] = index.numel();
  at::native::resize_output(out, sizes);
  if (self.dim() > 1 && index.numel() > 0 && self.numel() == 0) {
    TORCH_CHECK(self.size(dim) > 0, "index_select: dimension ", dim, " has no elements");
  }
  return out;
}
Tensor IndexSelect(const Tensor& self, int64_t dim, const Tensor& index) {
  Tensor out = Empty({0}, self.options());
  return IndexSelectOut(self, dim, index, out);
}

Tensor& TakeOut(const Tensor& self, const Tensor& index, Tensor& out) {
  TORCH_CHECK(index.scalar_type() == at::kLong, "take: the index must be int64, not ", index.scalar_type());
  TORCH_CHECK(self.scalar_type() == out.scalar_type(), "take: the result must have the input's dtype ", self.scalar_type(), ", not ",
              out.scalar_type());
  TORCH_CHECK(self.numel() != 0 || index.numel() == 0, "take: the tensor has no elements");
  CheckNoOverlap(out, {&index, &self});
  TensorIteratorConfig().set_check_mem_overlap(false).check_all_same_dtype(false).add_output(out).add_const_input(index).build();
  return out;
}
Tensor Take(const Tensor& self, const Tensor& index) {
  Tensor out = Empty(index.sizes(), self.options());
  return TakeOut(self, index, out);
}

Tensor& Put(Tensor& self, const Tensor& index, const Tensor& source, bool /*accumulate*/) {
  TORCH_CHECK(index.scalar_type() == at::kLong, "put_: the index must be int64, not ", index.scalar_type());
  TORCH_CHECK(self.scalar_type() == source.scalar_type(), "put_: dtypes differ: ", self.scalar_type(), " and ", source.scalar_type());
  TORCH_CHECK(index.numel() == source.numel(), "put_: ", index.numel(), " indices for ", source.numel(), " elements");
  TORCH_CHECK(self.numel() != 0 || index.numel() == 0, "put_: the tensor has no elements");
  CheckNoOverlap(self, {&index, &source});
  return self;
}

Tensor& IndexFillScalar(Tensor& self, int64_t dim, const Tensor& index, const Scalar& value) {
  TORCH_CHECK(index.scalar_type() == at::kLong, "index_fill_: the index must be int64, not ", index.scalar_type());
  at::assert_no_overlap(self, index);
  TORCH_CHECK(self.is_complex() || !value.isComplex(), "index_fill_: a complex number for a tensor of dtype ", self.scalar_type());
  at::maybe_wrap_dim(dim, self.dim());
  TORCH_CHECK(index.dim() <= 1, "index_fill_: the index must be a vector, not ", index.sizes());
  if (index.numel() > 0 && self.numel() > 0) CheckConvertible(value, self.scalar_type());
  return self;
}
Tensor& IndexFillTensor(Tensor& self, int64_t dim, const Tensor& index, const Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "index_fill_: a value without dimensions is wanted, not one of shape ", value.sizes());
  return IndexFillScalar(self, dim, index, value.is_complex() ? Scalar(c10::complex<double>(0, 1)) : Scalar(0));
}

void MaskedFill(const Tensor& self, const Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_fill_: the mask must be bool, not ", mask.scalar_type());
  at::assert_no_partial_overlap(self, mask);
  TensorIteratorConfig()
      .set_check_mem_overlap(false)
      .check_all_same_dtype(false)
      .resize_outputs(false)
      .add_output(self)
      .add_const_input(mask)
      .build();
}
Tensor& MaskedFillScalar(Tensor& self, const Tensor& mask, const Scalar& value) {
  MaskedFill(self, mask);
  CheckConvertible(value, self.scalar_type());
  return self;
}
Tensor& MaskedFillTensor(Tensor& self, const Tensor& mask, const Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "masked_fill_: a value without dimensions is wanted, not one of shape ", value.sizes());
  MaskedFill(self, mask);
  return self;
}

Tensor& MaskedScatter(Tensor& self, const Tensor& mask, const Tensor& source) {
  at::assert_no_internal_overlap(self);
  TORCH_CHECK(self.scalar_type() == source.scalar_type(), "masked_scatter_: dtypes differ: ", self.scalar_type(), " and ",
              source.scalar_type());
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_scatter_: the mask must be bool, not ", mask.scalar_type());
  at::expand_inplace(self, mask, "masked_scatter_");
  return self;
}
Tensor MaskedScatterBackward(const Tensor& grad, const Tensor& mask, at::IntArrayRef sizes) {
  TORCH_CHECK(mask.scalar_type() == at::kBool || mask.scalar_type() == at::kByte, "masked_select: the mask must be bool, not ",
              mask.scalar_type());
  at::infer_size(grad.sizes(), mask.sizes());
  return Empty(sizes, grad.options());
}

Tensor& NonzeroStaticOut(const Tensor& self, int64_t size, int64_t /*fill_value*/, Tensor& out) {
  TORCH_CHECK(size >= 0, "nonzero_static: the size can't be negative: ", size);
  TORCH_CHECK(out.scalar_type() == at::kLong, "nonzero_static: the result must be of dtype long, not ", out.scalar_type());
  at::native::resize_output(out, {size, self.dim()});
  CheckNoOverlap(out, {&self});
  return out;
}
Tensor NonzeroStatic(const Tensor& self, int64_t size, int64_t fill_value) {
  Tensor out = Empty({0}, self.options().dtype(at::kLong));
  return NonzeroStaticOut(self, size, fill_value, out);
}

Tensor UnfoldBackward(const Tensor& grad, at::IntArrayRef sizes, int64_t dim, int64_t size, int64_t step) {
  Tensor out = Empty(sizes, grad.options());
  dim = at::maybe_wrap_dim(dim, out.dim());
  at::native::_make_unfold_backward_iter_over_grad_out(out, grad, dim, size, step);
  return out;
}

// index_add and index_reduce. LibTorch's Meta kernels look at the source's first slice, which an empty index needn't have: without it, one
// index and one slice give the same result.
std::pair<Tensor, Tensor> WithSlice(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  if (index.dim() > 1 || index.numel() != 0 || self.dim() == 0 || source.dim() != self.dim() || source.size(dim) != 0)
    return {index, source};
  std::vector<int64_t> sizes = source.sizes().vec();
  sizes[dim] = 1;
  return {Empty({1}, index.options()), Empty(sizes, source.options())};
}
// Nothing is done along a dimension of size 0, into which no index could point.
bool IsNothing(const Tensor& self, int64_t dim, const Tensor& index) {
  return index.dim() <= 1 && index.numel() == 0 && self.dim() > 0 && self.size(dim) == 0;
}
// Where something is only added, and in several dimensions, the indices aren't looked at then.
bool AddsNothing(const Tensor& self, int64_t dim, const Tensor& index) {
  return IsNothing(self, dim, index) || (index.dim() <= 1 && self.dim() > 1 && self.size(dim) == 0);
}
Tensor WithSize(const Tensor& tensor, int64_t dim, int64_t size) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[at::maybe_wrap_dim(dim, tensor.dim())] = size;
  return Empty(sizes, tensor.options());
}

// What is written to is neither the index nor the source, even if these have no elements.
void CheckApart(const Tensor& out, const Tensor& index, const Tensor& source) {
  for (const Tensor* read : {&index, &source}) at::assert_no_overlap(out, *read);
}

Tensor IndexAdd(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, const Scalar& alpha) {
  if (AddsNothing(self, dim, index)) return WithSize(IndexAdd(WithSize(self, dim, 1), dim, index, source, alpha), dim, 0);
  const auto [one, slice] = WithSlice(self, dim, index, source);
  return at::index_add(self, dim, one, slice, alpha);
}
Tensor& IndexAddInPlace(Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, const Scalar& alpha) {
  if (AddsNothing(self, dim, index)) {
    IndexAdd(self, dim, index, source, alpha);
  } else {
    const auto [one, slice] = WithSlice(self, dim, index, source);
    self.index_add_(dim, one, slice, alpha);
  }
  CheckApart(self, index, source);
  return self;
}
Tensor& IndexAddOut(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, const Scalar& alpha, Tensor& out) {
  if (AddsNothing(self, dim, index)) {
    const Tensor result = IndexAdd(self, dim, index, source, alpha);
    TORCH_CHECK(out.scalar_type() == result.scalar_type(), "index_add: out= must be ", result.scalar_type(), ", not ", out.scalar_type());
    at::native::resize_output(out, result.sizes());
  } else {
    const auto [one, slice] = WithSlice(self, dim, index, source);
    at::index_add_out(out, self, dim, one, slice, alpha);
  }
  CheckApart(out, index, source);
  return out;
}

// What is reduced without self is cleared by a kernel for real numbers; vectors have a kernel of their own.
void CheckReducible(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, c10::string_view reduce,
                    bool include_self) {
  if (!include_self) {
    RequireDtype("index_reduce", self.scalar_type(), kRealDtypes);
  } else if (self.dim() <= 1) {
    RequireDtype("index_reduce", self.scalar_type(), kRealDtypes);
  } else if (index.numel() > 0 && (reduce == "amax" || reduce == "amin")) {
    RequireDtype("index_reduce", self.scalar_type(), kRealDtypes | kBoolDtype);
  } else if (reduce == "mean" && index.numel() > 0) {
    RequireDtype("index_reduce", self.scalar_type(), kRealDtypes | kComplexDtypes);
  }
  // The second slice of equal elements, which the kernel for 16-bit products takes for a number, finds it without that operand.
  if (reduce == "prod" && index.numel() > 1 && self.dim() > 1 && c10::isReducedFloatingType(self.scalar_type())) {
    dim = at::maybe_wrap_dim(dim, self.dim());
    bool numbers = true;
    for (int64_t i = 0; i < source.dim(); ++i) numbers &= i == dim || source.size(i) == 1 || source.stride(i) == 0;
    TORCH_CHECK(!numbers, "index_reduce: no products of equal elements of dtype ", self.scalar_type());
  }
}
Tensor IndexReduce(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, c10::string_view reduce, bool include_self) {
  if (IsNothing(self, dim, index)) {
    return WithSize(IndexReduce(WithSize(self, dim, 1), dim, index, source, reduce, include_self), dim, 0);
  }
  const auto [one, slice] = WithSlice(self, dim, index, source);
  CheckReducible(self, dim, index, source, reduce, include_self);
  return at::index_reduce(self, dim, one, slice, reduce, include_self);
}
Tensor& IndexReduceInPlace(Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, c10::string_view reduce,
                           bool include_self) {
  if (IsNothing(self, dim, index)) {
    IndexReduce(self, dim, index, source, reduce, include_self);
  } else {
    const auto [one, slice] = WithSlice(self, dim, index, source);
    CheckReducible(self, dim, index, source, reduce, include_self);
    self.index_reduce_(dim, one, slice, reduce, include_self);
  }
  CheckApart(self, index, source);
  return self;
}
Tensor& IndexReduceOut(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source, c10::string_view reduce,
                       bool include_self, Tensor& out) {
  if (IsNothing(self, dim, index)) {
    const Tensor result = IndexReduce(self, dim, index, source, reduce, include_self);
    TORCH_CHECK(out.scalar_type() == result.scalar_type(), "index_reduce: out= must be ", result.scalar_type(), ", not ",
                out.scalar_type());
    at::native::resize_output(out, result.sizes());
  } else {
    const auto [one, slice] = WithSlice(self, dim, index, source);
    CheckReducible(self, dim, index, source, reduce, include_self);
    at::index_reduce_out(out, self, dim, one, slice, reduce, include_self);
    if (!out.is_same(self)) at::assert_no_partial_overlap(out, self);  // self is copied there
  }
  CheckApart(out, index, source);
  return out;
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("index_add", IndexAdd, kThisForm);
  m.impl("index_add_", IndexAddInPlace, kThisForm);
  m.impl("index_add.out", IndexAddOut, kThisForm);
  m.impl("index_reduce", IndexReduce, kThisForm);
  m.impl("index_reduce_", IndexReduceInPlace, kThisForm);
  m.impl("index_reduce.out", IndexReduceOut, kThisForm);
  m.impl("index_select", IndexSelect, kThisForm);
  m.impl("index_select.out", IndexSelectOut, kThisForm);
  m.impl("take", Take, kThisForm);
  m.impl("take.out", TakeOut, kThisForm);
  m.impl("put_", Put, kNestedToo);
  m.impl("index_fill_.int_Scalar", IndexFillScalar, kNestedToo);
  m.impl("index_fill_.int_Tensor", IndexFillTensor, kNestedToo);
  m.impl("masked_fill_.Scalar", MaskedFillScalar, kNestedToo);
  m.impl("masked_fill_.Tensor", MaskedFillTensor, kNestedToo);
  m.impl("masked_scatter_", MaskedScatter, kNestedToo);
  m.impl("masked_scatter_backward", MaskedScatterBackward, kThisForm);
  m.impl("nonzero_static", NonzeroStatic, kThisForm);
  m.impl("nonzero_static.out", NonzeroStaticOut, kThisForm);
  m.impl("unfold_backward", UnfoldBackward, kThisForm);
}

}  // namespace
}  // namespace ddpopt::kernels
