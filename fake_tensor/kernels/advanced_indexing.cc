// Reading and writing by index. A mask selects as many elements as its data says; what can be told without data is checked.

#include <optional>

#include "ATen/ExpandUtils.h"
#include "ATen/MemoryOverlap.h"
#include "ATen/core/Tensor.h"
#include "ATen/native/IndexingUtils.h"
#include "ATen/ops/index.h"
#include "ATen/ops/masked_fill.h"
#include "base/masked_fill_index.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;
using IndexList = torch::List<std::optional<Tensor>>;

bool IsMask(at::ScalarType type) { return type == at::kBool || type == at::kByte; }

// Checks the masks' shapes; returns whether there are any.
bool CheckMasks(const Tensor& self, const IndexList& indices) {
  bool any = false;
  int64_t dim = 0;
  for (const std::optional<Tensor> index : indices) {
    if (!Given(index) || !IsMask(index->scalar_type())) {
      ++dim;
      continue;
    }
    any = true;
    for (int64_t i = 0; i < index->dim(); ++i, ++dim) {
      TORCH_CHECK_INDEX(dim < self.dim() && index->size(i) == self.size(dim), "index_put_: a mask of shape ", index->sizes(),
                        " doesn't fit a tensor of shape ", self.sizes());
    }
  }
  return any;
}

// A mask without dimensions is no index for any of self's.
void CheckAnyIndex(const char* name, const IndexList& indices, bool counts_scalar_masks = true) {
  bool any = false;
  for (const std::optional<Tensor> index : indices) {
    any |= Given(index) && (counts_scalar_masks || index->dim() > 0 || !IsMask(index->scalar_type()));
  }
  TORCH_CHECK(any, name, ": no index is given");
}

Tensor& IndexPut(Tensor& self, const IndexList& indices, const Tensor& values, bool accumulate, bool /*unsafe*/) {
  TORCH_CHECK_INDEX(static_cast<int64_t>(indices.size()) <= self.dim(), "index_put_: ", indices.size(), " indices for ", self.dim(),
                    " dimensions");
  // Filling by a mask wants a mask; the kernel wants an index, unless it has nothing to do.
  const bool may_fill = !accumulate && values.numel() == 1;
  if (may_fill || self.numel() > 0) CheckAnyIndex("index_put_", indices);
  if (may_fill) {
    const auto [is_fill, mask] = CanDispatchToMaskedFill(self, indices);
    if (is_fill) return self.masked_fill_(mask, Empty({}, self.options()));
  }
  at::assert_no_overlap(self, values);
  for (const std::optional<Tensor> index : indices) {
    if (Given(index)) at::assert_no_overlap(self, *index);
  }
  at::native::checkIndexTensorTypes(indices, /*allow_int=*/true);
  TORCH_CHECK(self.scalar_type() == values.scalar_type(), "index_put_: dtypes differ: ", self.scalar_type(), " and ", values.scalar_type());
  if (self.numel() > 0) CheckAnyIndex("index_put_", indices, /*counts_scalar_masks=*/false);
  if (CheckMasks(self, indices)) return self;
  const Tensor selected = at::index(self, indices);
  TORCH_CHECK(at::is_expandable_to(values.sizes(), selected.sizes()), "index_put_: shape ", values.sizes(), " doesn't broadcast to ",
              selected.sizes(), ", what the indices select");
  return self;
}

// The CPU kernel of index fails without an index, unless it has nothing to do.
Tensor Index(const Tensor& self, const IndexList& indices) {
  if (self.numel() > 0) CheckAnyIndex("index", indices);
  return at::index(self, indices);
}
Tensor UnsafeIndex(const Tensor& self, const IndexList& indices) {
  for (const std::optional<Tensor> index : indices) {
    TORCH_CHECK(!Given(index) || index->scalar_type() == at::kLong || index->scalar_type() == at::kInt,
                "_unsafe_index: indices must be int32 or int64, not ", index->scalar_type());
  }
  return Index(self, indices);
}
Tensor& IndexOut(const Tensor& self, const IndexList& indices, Tensor& out) {
  if (self.numel() > 0) CheckAnyIndex("index", indices);
  return at::index_out(out, self, indices);
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("_index_put_impl_", IndexPut, kNestedToo);
  m.impl("index.Tensor", Index, kThisForm);
  m.impl("index.Tensor_out", IndexOut, kThisForm);
  m.impl("_unsafe_index.Tensor", UnsafeIndex, kThisForm);
}

}  // namespace
}  // namespace ddpopt::kernels
