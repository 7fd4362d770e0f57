// Selection by index, and rearrangements that copy.

#include <vector>

#include "ATen/WrapDimUtils.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/empty_like.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;

Tensor IndexSelect(const Tensor& self, int64_t dim, const Tensor& index) {
  TORCH_CHECK(index.dim() <= 1, "index_select: the index must be a vector, not ", index.sizes());
  TORCH_CHECK(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt, "index_select: the index must be int32 or int64, not ",
              index.scalar_type());
  std::vector<int64_t> sizes = self.sizes().vec();
  dim = at::maybe_wrap_dim(dim, self.dim());
  if (!sizes.empty()) sizes[dim] = index.numel();
  return Empty(sizes, self.options());
}

Tensor Flip(const Tensor& self, at::IntArrayRef dims) {
  for (const int64_t dim : dims) at::maybe_wrap_dim(dim, self.dim());
  return at::empty_like(self, at::MemoryFormat::Preserve);
}

Tensor Roll(const Tensor& self, at::IntArrayRef shifts, at::IntArrayRef dims) {
  TORCH_CHECK(!shifts.empty(), "roll: shifts are wanted");
  if (dims.empty()) {
    TORCH_CHECK(shifts.size() == 1, "roll: as many dims as shifts are wanted");
    return EmptyContiguousLike(self);
  }
  TORCH_CHECK(dims.size() == shifts.size(), "roll: as many dims as shifts are wanted");
  if (self.numel() == 0) return at::empty_like(self, at::MemoryFormat::Preserve);
  Tensor rolled = self;
  for (const int64_t dim : dims) {
    const int64_t at = self.size(dim) / 2;
    rolled = at::cat({rolled.narrow(dim, at, self.size(dim) - at), rolled.narrow(dim, 0, at)}, dim);
  }
  return rolled;
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("index_select", IndexSelect);
  m.impl("flip", Flip);
  m.impl("roll", Roll);
}

}  // namespace
}  // namespace ddpopt::kernels
