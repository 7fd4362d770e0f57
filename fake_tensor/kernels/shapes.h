#ifndef DDPOPT_FAKE_TENSOR_KERNELS_SHAPES_H_
#define DDPOPT_FAKE_TENSOR_KERNELS_SHAPES_H_

// Shared by the Meta kernels here. They are what the CPU kernels leave behind, without data: shapes, strides, dtypes, aliasing. LibTorch's
// wheel lacks them, since PyTorch registers them from Python. They stand below the Fake key, so nested calls find them as well.

#include <optional>

#include "ATen/core/Reduction.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/empty.h"
#include "fake_tensor/fake_kernels.h"

namespace ddpopt::kernels {

inline at::Tensor Empty(at::IntArrayRef sizes, const at::TensorOptions& options) { return at::empty(sizes, options.device(c10::kMeta)); }
inline at::Tensor Empty(at::IntArrayRef sizes, const at::TensorOptions& options, at::MemoryFormat format) {
  return at::empty(sizes, options.device(c10::kMeta), format);
}
inline at::Tensor EmptyContiguousLike(const at::Tensor& like) { return Empty(like.sizes(), like.options()); }
// In the memory format that the tensor suggests: contiguous or channels-last.
inline at::Tensor EmptySuggestedLike(const at::Tensor& like) { return Empty(like.sizes(), like.options(), like.suggest_memory_format()); }
// The shape of a loss over `unreduced` elements.
inline at::Tensor Reduced(at::Tensor unreduced, int64_t reduction) {
  return reduction == at::Reduction::None ? unreduced : Empty({}, unreduced.options());
}
// For rules that stand for themselves: LibTorch composes the operator's other forms, or they have rules too.
inline constexpr FakeKernelOptions kThisForm = {.derive_in_place = false, .derive_out = false};
// For in-place operators whose Meta kernels in LibTorch check nothing, so that operators made of them are checked as well.
inline constexpr FakeKernelOptions kNestedToo = {.derive_in_place = false, .derive_out = false, .replace_meta_kernel = true};
// A number as the tensor that takes part in type promotion as a number.
at::Tensor WrappedNumber(const at::Scalar& value);
// Throws if the number doesn't fit the dtype, as kernels that turn numbers into elements do.
void CheckConvertible(const at::Scalar& value, at::ScalarType dtype);
inline bool Given(const std::optional<at::Tensor>& tensor) { return tensor.has_value() && tensor->defined(); }

}  // namespace ddpopt::kernels

#endif  // DDPOPT_FAKE_TENSOR_KERNELS_SHAPES_H_
