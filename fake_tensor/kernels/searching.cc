// Searching sorted sequences.

#include <limits>
#include <optional>

#include "ATen/MemoryOverlap.h"
#include "ATen/core/Tensor.h"
#include "ATen/native/Resize.h"
#include "ATen/ops/result_type.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Scalar;
using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using MaybeSide = std::optional<c10::string_view>;

void CheckSide(bool right, const MaybeSide& side) {
  if (!side.has_value()) return;
  TORCH_CHECK(*side == "left" || *side == "right", "searchsorted: side is 'left' or 'right', not '", *side, "'");
  TORCH_CHECK(!right || *side == "right", "searchsorted: side is 'left' though right is true");
}

Tensor& SearchOut(const Tensor& sequence, const Tensor& values, bool out_int32, bool right, MaybeSide side, const MaybeTensor& sorter,
                  Tensor& out) {
  CheckSide(right, side);
  if (Given(sorter)) {
    TORCH_CHECK(sorter->sizes() == sequence.sizes(), "searchsorted: the sorter's shape ", sorter->sizes(), " isn't the sequence's, ",
                sequence.sizes());
    TORCH_CHECK(sorter->scalar_type() == at::kLong, "searchsorted: the sorter must be of dtype long, not ", sorter->scalar_type());
  }
  TORCH_CHECK(values.dim() > 0 || sequence.dim() == 1, "searchsorted: a single value needs a sequence of 1 dimension, not ",
              sequence.sizes());
  TORCH_CHECK(sequence.dim() != 0, "searchsorted: the sequence has no dimension");
  if (sequence.dim() != 1) {
    const auto leading = [](const Tensor& tensor) { return tensor.sizes().slice(0, tensor.dim() - 1); };
    TORCH_CHECK(sequence.dim() == values.dim() && leading(sequence) == leading(values),
                "searchsorted: all dimensions but the last must agree: ", sequence.sizes(), " and ", values.sizes());
  }
  TORCH_CHECK(out.scalar_type() == (out_int32 ? at::kInt : at::kLong), "searchsorted: the result must be of dtype ",
              out_int32 ? at::kInt : at::kLong, ", not ", out.scalar_type());
  TORCH_CHECK(!out_int32 || sequence.size(-1) < std::numeric_limits<int>::max(), "searchsorted: the sequence is too long for int32");
  at::native::resize_output(out, values.sizes());
  at::assert_no_internal_overlap(out);
  if (values.numel() == 0) return out;
  const at::ScalarType type = at::result_type(sequence, values);
  TORCH_CHECK(!c10::isComplexType(type) && type != at::kBool, "searchsorted: dtype ", type, " is not supported");
  return out;
}
Tensor Search(const Tensor& sequence, const Tensor& values, bool out_int32, bool right, MaybeSide side, const MaybeTensor& sorter) {
  Tensor out = Empty({0}, at::TensorOptions().dtype(out_int32 ? at::kInt : at::kLong));
  return SearchOut(sequence, values, out_int32, right, side, sorter, out);
}
Tensor SearchScalar(const Tensor& sequence, const Scalar& value, bool out_int32, bool right, MaybeSide side, const MaybeTensor& sorter) {
  return Search(sequence, WrappedNumber(value), out_int32, right, side, sorter);
}
Tensor& SearchScalarOut(const Tensor& sequence, const Scalar& value, bool out_int32, bool right, MaybeSide side, const MaybeTensor& sorter,
                        Tensor& out) {
  return SearchOut(sequence, WrappedNumber(value), out_int32, right, side, sorter, out);
}

void CheckBoundaries(const Tensor& boundaries) {
  TORCH_CHECK(boundaries.dim() == 1, "bucketize: boundaries must have 1 dimension, not ", boundaries.sizes());
}
Tensor& BucketizeOut(const Tensor& self, const Tensor& boundaries, bool out_int32, bool right, Tensor& out) {
  CheckBoundaries(boundaries);
  return SearchOut(boundaries, self, out_int32, right, std::nullopt, std::nullopt, out);
}
Tensor Bucketize(const Tensor& self, const Tensor& boundaries, bool out_int32, bool right) {
  CheckBoundaries(boundaries);
  return Search(boundaries, self, out_int32, right, std::nullopt, std::nullopt);
}
Tensor BucketizeScalar(const Scalar& self, const Tensor& boundaries, bool out_int32, bool right) {
  return Bucketize(WrappedNumber(self), boundaries, out_int32, right);
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("searchsorted.Tensor", Search, kThisForm);
  m.impl("searchsorted.Tensor_out", SearchOut, kThisForm);
  m.impl("searchsorted.Scalar", SearchScalar, kThisForm);
  m.impl("searchsorted.Scalar_out", SearchScalarOut, kThisForm);
  m.impl("bucketize.Tensor", Bucketize, kThisForm);
  m.impl("bucketize.Tensor_out", BucketizeOut, kThisForm);
  m.impl("bucketize.Scalar", BucketizeScalar, kThisForm);
}

}  // namespace
}  // namespace ddpopt::kernels
