// Tensors that take over another's memory. The CPU's kernel wants it to be large enough where they keep their sizes and strides; LibTorch's
// Meta kernel makes it so instead.

#include "ATen/core/Tensor.h"
#include "ATen/native/Resize.h"
#include "ATen/ops/set.h"
#include "fake_tensor/fake_kernels.h"

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

DDPOPT_FAKE_KERNELS(m) { m.impl("set_.source_Tensor", Set); }

}  // namespace
}  // namespace ddpopt::kernels
