// Operators whose results' shapes depend on data: refused, after the checks that the real kernels make first. Where the caller gives the
// size, or a size is known, the result is. Composite operators find these as Meta kernels and so are refused for the right reason.

#include <tuple>
#include <vector>

#include "ATen/ExpandUtils.h"
#include "ATen/WrapDimUtils.h"
#include "ATen/core/Tensor.h"
#include "c10/util/Exception.h"
#include "fake_tensor/fake_errors.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

[[noreturn]] void RefuseShape(const char* op) {
  fake_errors_internal::Throw<DynamicOutputShape>(
      "aten::", op, ": the shape of its result depends on data, which a fake tensor doesn't have");
}

void CheckOutDtype(const Tensor& out, c10::ScalarType dtype, const char* op) {
  TORCH_CHECK(out.scalar_type() == dtype, op, ": out= must be ", dtype, ", not ", out.scalar_type());
}

Tensor Nonzero(const Tensor& /*self*/) { RefuseShape("nonzero"); }
Tensor& NonzeroOut(const Tensor& /*self*/, Tensor& out) {
  CheckOutDtype(out, at::kLong, "nonzero");
  RefuseShape("nonzero.out");
}

void CheckMask(const Tensor& self, const Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: the mask must be bool, not ", mask.scalar_type());
  at::infer_size(self.sizes(), mask.sizes());
}
Tensor MaskedSelect(const Tensor& self, const Tensor& mask) {
  CheckMask(self, mask);
  RefuseShape("masked_select");
}
Tensor& MaskedSelectOut(const Tensor& self, const Tensor& mask, Tensor& out) {
  CheckMask(self, mask);
  CheckOutDtype(out, self.scalar_type(), "masked_select");
  RefuseShape("masked_select.out");
}

std::tuple<Tensor, Tensor> Unique(const Tensor& /*self*/, bool /*sorted*/, bool /*return_inverse*/) { RefuseShape("_unique"); }
std::tuple<Tensor, Tensor, Tensor> Unique2(const Tensor& /*self*/, bool /*sorted*/, bool /*return_inverse*/, bool /*return_counts*/) {
  RefuseShape("_unique2");
}

// Along a dimension; other dimensions must have elements, unless there is nothing along this one either.
void CheckUniqueDim(const Tensor& self, int64_t dim, const char* op) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  int64_t empty = 0;
  for (const int64_t size : self.sizes()) empty += size == 0;
  TORCH_CHECK(empty == 0 || (self.size(dim) == 0 && empty == 1), op, ": dimensions without elements in ", self.sizes());
}
std::tuple<Tensor, Tensor, Tensor> UniqueDim(const Tensor& self, int64_t dim, bool /*sorted*/, bool /*return_inverse*/,
                                             bool /*return_counts*/) {
  CheckUniqueDim(self, dim, "unique_dim");
  RefuseShape("unique_dim");
}
std::tuple<Tensor, Tensor, Tensor> UniqueDimConsecutive(const Tensor& self, int64_t dim, bool /*return_inverse*/, bool /*return_counts*/) {
  CheckUniqueDim(self, dim, "unique_dim_consecutive");
  RefuseShape("unique_dim_consecutive");
}
std::tuple<Tensor, Tensor, Tensor> UniqueConsecutive(const Tensor& self, bool /*return_inverse*/, bool /*return_counts*/,
                                                     std::optional<int64_t> dim) {
  if (dim.has_value()) CheckUniqueDim(self, *dim, "unique_consecutive");
  RefuseShape("unique_consecutive");
}

Tensor Bincount(const Tensor& self, const MaybeTensor& weights, int64_t minlength) {
  TORCH_CHECK(minlength >= 0, "bincount: minlength must not be negative, but is ", minlength);
  if (self.dim() == 1 && self.numel() == 0) return Empty({minlength}, self.options().dtype(at::kLong));
  TORCH_CHECK(self.dim() == 1, "bincount: a vector is wanted, not ", self.sizes());
  TORCH_CHECK(!Given(weights) || (weights->dim() == 1 && weights->numel() == self.numel()),
              "bincount: weights must be a vector of self's length");
  TORCH_CHECK(at::isIntegralType(self.scalar_type(), /*includeBool=*/false), "bincount: integers are wanted, not ", self.scalar_type());
  RefuseShape("bincount");
}

Tensor RepeatInterleave(const Tensor& repeats, std::optional<int64_t> output_size) {
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave: repeats must be a vector, not ", repeats.sizes());
  TORCH_CHECK(c10::isIntegralType(repeats.scalar_type(), /*includeBool=*/false), "repeat_interleave: repeats can't be ",
              repeats.scalar_type());
  if (repeats.numel() == 0) return Empty({0}, repeats.options());
  if (!output_size.has_value()) RefuseShape("repeat_interleave");
  TORCH_CHECK(*output_size >= 0, "repeat_interleave: output_size is negative");
  return Empty({*output_size}, repeats.options());
}

[[noreturn]] void RefuseValue(const char* op) {
  fake_errors_internal::Throw<DataDependentOutput>(
      "aten::", op, ": data-dependent: its result needs data, which a fake tensor doesn't have");
}

bool Equal(const Tensor& self, const Tensor& other) {
  if (self.is_same(other)) return true;
  RefuseValue("equal");
}

constexpr FakeKernelOptions kNoOut = {.derive_in_place = false, .derive_out = false};

DDPOPT_FAKE_KERNELS(m) {
  m.impl("nonzero", Nonzero, kNoOut);
  m.impl("nonzero.out", NonzeroOut);
  m.impl("masked_select", MaskedSelect, kNoOut);
  m.impl("masked_select.out", MaskedSelectOut);
  m.impl("_unique", Unique);
  m.impl("_unique2", Unique2);
  m.impl("unique_dim", UniqueDim);
  m.impl("unique_dim_consecutive", UniqueDimConsecutive);
  m.impl("unique_consecutive", UniqueConsecutive);
  m.impl("bincount", Bincount);
  m.impl("repeat_interleave.Tensor", RepeatInterleave);
  m.impl("equal", Equal);
}

}  // namespace
}  // namespace ddpopt::kernels
