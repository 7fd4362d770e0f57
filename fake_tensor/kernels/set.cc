// Tensors that take over another's memory. The CPU's kernel wants it to be large enough where they keep their sizes and strides; LibTorch's
// Meta kernel makes it so instead.

#include "ATen/ops/set.h"

#include "ATen/MemoryOverlap.h"
#include "ATen/core/Tensor.h"
#include "ATen/native/Resize.h"
#include "ATen/ops/empty_like.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;

Tensor& Set(Tensor& self, const Tensor& source) {
  // self keeps its dtype. A tensor that gets other sizes or strides has the memory resized to what it needs.
  if (!self.is_same(source) && self.sizes() == source.sizes() && self.strides() == source.strides()) {
    at::native::checkInBoundsForStorage(source.sizes(), source.strides(), source.storage_offset(), self.dtype(), source.storage());
  }
  return self.set_(source);
}

// A copy of self takes over the source's memory, which is resized as well.
Tensor SetCopy(const Tensor& self, const Tensor& source) {
  Tensor copy = at::empty_like(self);
  return Set(copy, source);
}
Tensor& SetOut(const Tensor& self, const Tensor& source, Tensor& out) {
  const Tensor copy = SetCopy(self, source);
  at::native::resize_output(out, copy.sizes());
  TORCH_CHECK(out.scalar_type() == copy.scalar_type(), "set: out= must be ", copy.scalar_type(), ", not ", out.scalar_type());
  // Nothing is copied to where it stands.
  const bool itself = out.is_alias_of(copy) && out.storage_offset() == copy.storage_offset() && out.strides() == copy.strides();
  if (!itself) {
    at::assert_no_internal_overlap(out);
    at::assert_no_partial_overlap(out, copy);
  }
  return out;
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("set_.source_Tensor", Set);
  m.impl("set.source_Tensor", SetCopy, kThisForm);
  m.impl("set.source_Tensor_out", SetOut, kThisForm);
}

}  // namespace
}  // namespace ddpopt::kernels
