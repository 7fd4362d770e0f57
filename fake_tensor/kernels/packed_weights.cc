// Products with weights of few bits, packed for the CPU, and conversions between padded and jagged batches.

#include <tuple>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/util/Exception.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;

void CheckActivations(const Tensor& self, const char* op) {
  const c10::ScalarType dtype = self.scalar_type();
  TORCH_CHECK(dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kFloat, op, ": activations can't be ", dtype);
  TORCH_CHECK(self.is_contiguous() && self.dim() == 2, op, ": activations must be a contiguous matrix");
}

Tensor Int8PackMm(const Tensor& self, const Tensor& weight, const Tensor& scales) {
  constexpr char kOp[] = "_weight_int8pack_mm";
  CheckActivations(self, kOp);
  TORCH_CHECK(weight.scalar_type() == at::kChar && weight.is_contiguous() && weight.dim() == 2 && weight.size(1) == self.size(1), kOp,
              ": the weight must be a contiguous int8 matrix of ", self.size(1), " columns, not ", weight.scalar_type(), " of ",
              weight.sizes());
  TORCH_CHECK(scales.scalar_type() == self.scalar_type(), kOp, ": scales must be ", self.scalar_type(), ", not ", scales.scalar_type());
  TORCH_CHECK(scales.dim() == 1 && scales.size(0) == weight.size(0), kOp, ": scales must be a vector of ", weight.size(0), " elements");
  return Empty({self.size(0), weight.size(0)}, self.options());
}

Tensor ConvertToInt4Pack(const Tensor& weight, int64_t inner_k_tiles) {
  constexpr char kOp[] = "_convert_weight_to_int4pack_for_cpu";
  TORCH_CHECK(weight.dim() == 2 && weight.scalar_type() == at::kInt && weight.is_contiguous(), kOp,
              ": the weight must be a contiguous int32 matrix");
  TORCH_CHECK(inner_k_tiles == 2 || inner_k_tiles == 4 || inner_k_tiles == 8, kOp, ": innerKTiles must be 2, 4 or 8, not ", inner_k_tiles);
  TORCH_CHECK(weight.size(0) % 16 == 0 && weight.size(1) % 2 == 0, kOp, ": the weight's shape ", weight.sizes(), " can't be packed");
  return Empty({weight.size(0), weight.size(1) / 2}, weight.options().dtype(at::kByte));
}

Tensor Int4PackMm(const Tensor& self, const Tensor& weight, int64_t group_size, const Tensor& scales_and_zeros) {
  constexpr char kOp[] = "_weight_int4pack_mm_for_cpu";
  CheckActivations(self, kOp);
  const int64_t k = self.size(1);
  const int64_t n = weight.size(0);
  TORCH_CHECK(weight.scalar_type() == at::kByte && weight.is_contiguous() && weight.dim() == 2 && weight.size(1) == k / 2, kOp,
              ": the weight must be a contiguous uint8 matrix of ", k / 2, " columns, not ", weight.scalar_type(), " of ", weight.sizes());
  TORCH_CHECK((group_size == 32 || group_size == 64 || group_size == 128 || group_size == 256) && k % group_size == 0, kOp,
              ": qGroupSize can't be ", group_size, " for ", k, " columns");
  TORCH_CHECK(scales_and_zeros.scalar_type() == self.scalar_type(), kOp, ": scales must be ", self.scalar_type(), ", not ",
              scales_and_zeros.scalar_type());
  TORCH_CHECK(scales_and_zeros.dim() == 3 && scales_and_zeros.size(1) == n && scales_and_zeros.size(2) == 2, kOp,
              ": scales and zeros must have shape [groups, ", n, ", 2], not ", scales_and_zeros.sizes());
  return Empty({self.size(0), n}, self.options());
}

// A batch of sequences one after the other, to one padded to equal lengths.
Tensor JaggedToPadded(const Tensor& values, at::TensorList offsets, at::IntArrayRef max_lengths, double /*padding_value*/) {
  TORCH_CHECK(offsets.size() == 1 && max_lengths.size() == 1, "_jagged_to_padded_dense_forward: only one jagged dimension is supported");
  std::vector<int64_t> sizes = values.sizes().vec();
  TORCH_CHECK(!sizes.empty() && offsets[0].numel() > 0, "_jagged_to_padded_dense_forward: there are no sequences");
  sizes[0] = max_lengths[0];
  sizes.insert(sizes.begin(), offsets[0].numel() - 1);
  return Empty(sizes, values.options());
}

Tensor PaddedToJagged(const Tensor& dense, at::TensorList offsets, std::optional<int64_t> total_length) {
  TORCH_CHECK(offsets.size() == 1 && dense.dim() >= 2, "_padded_dense_to_jagged_forward: only one jagged dimension is supported");
  TORCH_CHECK(total_length.has_value(), "aten::_padded_dense_to_jagged_forward: without total_L the shape of its result depends on data, ",
              "which a fake tensor doesn't have");
  std::vector<int64_t> sizes = dense.sizes().slice(1).vec();
  sizes[0] = *total_length;
  return Empty(sizes, dense.options());
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("_weight_int8pack_mm", Int8PackMm);
  m.impl("_convert_weight_to_int4pack_for_cpu", ConvertToInt4Pack);
  m.impl("_weight_int4pack_mm_for_cpu", Int4PackMm);
  m.impl("_jagged_to_padded_dense_forward", JaggedToPadded);
  m.impl("_padded_dense_to_jagged_forward", PaddedToJagged);
}

}  // namespace
}  // namespace ddpopt::kernels
