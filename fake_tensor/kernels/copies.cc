// Rearrangements that copy.

#include <algorithm>
#include <vector>

#include "ATen/ExpandUtils.h"
#include "ATen/MemoryOverlap.h"
#include "ATen/WrapDimUtils.h"
#include "ATen/WrapDimUtilsMulti.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/resize.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;

Tensor Flip(const Tensor& self, at::IntArrayRef dims) {
  at::dim_list_to_bitset(dims, self.dim());
  return at::empty_like(self, at::MemoryFormat::Preserve);
}

Tensor Roll(const Tensor& self, at::IntArrayRef shifts, at::IntArrayRef dims) {
  if (dims.size() != 1 || shifts.size() != 1) {
    TORCH_CHECK(!shifts.empty(), "roll: shifts are wanted");
    if (dims.empty() && shifts.size() == 1) return EmptyContiguousLike(self);
    TORCH_CHECK(dims.size() == shifts.size(), "roll: ", shifts.size(), " shifts for ", dims.size(), " dimensions");
    Tensor rolled = self;
    for (std::size_t i = 0; i < dims.size(); ++i) rolled = Roll(rolled, shifts[i], dims[i]);
    return rolled;
  }
  if (self.numel() == 0) return self.clone(at::MemoryFormat::Preserve);
  const int64_t size = self.size(dims[0]);
  int64_t start = (size - shifts[0]) % size;
  if (start < 0) start += size;
  return at::cat({self.narrow(dims[0], start, size - start), self.narrow(dims[0], 0, start)}, dims[0]);
}

// The dimension is inserted, so it is one of the result's.
Tensor& StackOut(at::TensorList tensors, int64_t dim, Tensor& out) {
  TORCH_CHECK(!tensors.empty(), "stack: tensors are wanted");
  std::vector<Tensor> inserted;
  for (const Tensor& tensor : tensors) {
    TORCH_CHECK(tensor.sizes() == tensors[0].sizes(), "stack: sizes differ: ", tensors[0].sizes(), " and ", tensor.sizes());
    inserted.push_back(tensor.unsqueeze(dim));
  }
  return at::cat_out(out, inserted, dim);
}

// In the memory format that the input suggests, which the CPU kernels keep.
Tensor Suggested(at::IntArrayRef sizes, const Tensor& self) {
  Tensor out = Empty({0}, self.options());
  out.resize_(sizes, self.suggest_memory_format());
  return out;
}

Tensor NativeChannelShuffle(const Tensor& self, int64_t /*groups*/) {
  return self.numel() == 0 ? self.alias() : Suggested(self.sizes(), self);
}
Tensor ChannelShuffle(const Tensor& self, int64_t groups) {
  TORCH_CHECK(self.dim() > 2, "channel_shuffle: more than 2 dimensions are wanted, not ", self.sizes());
  TORCH_CHECK(groups > 0, "channel_shuffle: ", groups, " groups");
  TORCH_CHECK(self.size(1) % groups == 0, "channel_shuffle: ", self.size(1), " channels don't divide into ", groups, " groups");
  return NativeChannelShuffle(self, groups);
}

Tensor& NarrowCopyOut(const Tensor& self, int64_t dim, int64_t start, int64_t length, Tensor& out) {
  TORCH_CHECK(self.dim() > 0, "narrow: a tensor without dimensions");
  TORCH_CHECK(self.scalar_type() == out.scalar_type(), "narrow: the result must have the input's dtype ", self.scalar_type(), ", not ",
              out.scalar_type());
  dim = at::maybe_wrap_dim(dim, self.dim());
  const int64_t size = self.size(dim);
  TORCH_CHECK(length >= 0, "narrow: the length is negative: ", length);
  TORCH_CHECK(-size <= start && start <= size, "narrow: start ", start, " is outside of dimension ", dim, " of size ", size);
  if (start < 0) start += size;
  TORCH_CHECK(start <= size - length, "narrow: ", length, " elements from ", start, " are outside of dimension ", dim, " of size ", size);
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[dim] = length;
  out.resize_(sizes);
  return out;
}
Tensor NarrowCopy(const Tensor& self, int64_t dim, int64_t start, int64_t length) {
  Tensor out = Empty({0}, self.options());
  return NarrowCopyOut(self, dim, start, length, out);
}

// LibTorch's Meta kernel lets tensors be written whose elements share memory.
Tensor& Copy(Tensor& self, const Tensor& src, bool /*non_blocking*/) {
  if (self.is_same(src)) return self;
  if (self.sizes() != src.sizes()) {
    TORCH_CHECK(at::infer_size(self.sizes(), src.sizes()) == self.sizes(), "copy_: shape ", src.sizes(), " doesn't broadcast to ",
                self.sizes());
  }
  if (self.numel() == 0) return self;
  const bool same_data = self.storage().unsafeGetStorageImpl() == src.storage().unsafeGetStorageImpl() &&
                         self.storage_offset() == src.storage_offset() && self.sizes() == src.sizes() && self.strides() == src.strides() &&
                         self.scalar_type() == src.scalar_type();
  if (same_data) return self;
  at::assert_no_internal_overlap(self);
  at::assert_no_partial_overlap(self, src);
  TORCH_CHECK(src.is_neg() == self.is_neg() || self.scalar_type() != at::kBool, "copy_: Bool can't be negated");
  return self;
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("copy_", Copy, kNestedToo);
  m.impl("flip", Flip, kThisForm);
  m.impl("roll", Roll, kThisForm);
  m.impl("_stack.out", StackOut, kThisForm);
  m.impl("channel_shuffle", ChannelShuffle, kThisForm);
  m.impl("native_channel_shuffle", NativeChannelShuffle, kThisForm);
  m.impl("narrow_copy", NarrowCopy, kThisForm);
  m.impl("narrow_copy.out", NarrowCopyOut, kThisForm);
}

}  // namespace
}  // namespace ddpopt::kernels
