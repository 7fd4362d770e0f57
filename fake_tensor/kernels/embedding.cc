// Bags of embeddings, and the gradients of embeddings.

#include <tuple>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/resize.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using Bags = std::tuple<Tensor, Tensor, Tensor, Tensor>;

constexpr int64_t kSum = 0;
constexpr int64_t kMax = 2;

void CheckIndices(const char* name, const Tensor& tensor) {
  TORCH_CHECK(tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt, name, ": indices must be int32 or int64, not ",
              tensor.scalar_type());
}

void CheckFloating(const char* name, const Tensor& tensor) {
  TORCH_CHECK(c10::isFloatingType(tensor.scalar_type()), name, ": a floating dtype is wanted, not ", tensor.scalar_type());
}

void CheckSameIndex(const char* name, const Tensor& indices, const Tensor& bags) {
  TORCH_CHECK(bags.scalar_type() == indices.scalar_type(), name, ": indices are ", indices.scalar_type(), ", bags ", bags.scalar_type());
}

void CheckContiguous(const char* name, const Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(), name, ": indices and offsets must be contiguous, not ", tensor.strides());
}

Bags EmbeddingBag(const Tensor& weight, const Tensor& indices, const Tensor& offsets, bool /*scale_grad_by_freq*/, int64_t mode,
                  bool /*sparse*/, const MaybeTensor& per_sample_weights, bool include_last_offset, int64_t padding_idx) {
  constexpr const char* kName = "_embedding_bag";
  TORCH_CHECK(mode >= kSum && mode <= kMax, kName, ": mode must be 0 (sum), 1 (mean) or 2 (max), not ", mode);
  TORCH_CHECK(weight.dim() == 2, kName, ": the weight must be a matrix, not ", weight.sizes());
  TORCH_CHECK(indices.dim() == 1 || indices.dim() == 2, kName, ": indices must have 1 or 2 dimensions, not ", indices.sizes());
  TORCH_CHECK(offsets.dim() == 1, kName, ": offsets must be a vector, not ", offsets.sizes());
  CheckIndices(kName, indices);
  CheckIndices(kName, offsets);
  CheckFloating(kName, weight);
  const bool weighted = Given(per_sample_weights);
  if (weighted) {
    TORCH_CHECK(mode == kSum, kName, ": per_sample_weights are for mode 0 (sum)");
    TORCH_CHECK(per_sample_weights->scalar_type() == weight.scalar_type(), kName, ": per_sample_weights are ",
                per_sample_weights->scalar_type(), ", the weight ", weight.scalar_type());
    TORCH_CHECK(per_sample_weights->dim() == 1 && per_sample_weights->numel() == indices.numel(), kName, ": ", indices.numel(),
                " per_sample_weights are wanted, not ", per_sample_weights->sizes());
  }
  TORCH_CHECK(!include_last_offset || offsets.size(0) >= 1, kName, ": the last offset is missing");
  const int64_t bags = offsets.size(0) - (include_last_offset ? 1 : 0);
  const at::ScalarType index = indices.scalar_type() == offsets.scalar_type() ? indices.scalar_type() : at::kLong;
  const at::TensorOptions index_options = indices.options().dtype(index);

  // Sums of rows that lie in one piece need no table of bags.
  const bool fast =
      weight.scalar_type() != at::kDouble && weight.stride(1) == 1 && padding_idx < 0 && (!weighted || per_sample_weights->stride(0) == 1);
  Tensor offset2bag = Empty({0}, index_options);
  if (mode != kSum || !fast) {
    offset2bag.resize_({indices.size(0) + 1});
    offset2bag.resize_({indices.size(0)});
  }
  Tensor bag_size = Empty(offsets.sizes(), index_options);
  bag_size.resize_({bags});
  Tensor max_indices = Empty({bags}, index_options);
  if (mode == kMax) max_indices.resize_({bags, weight.size(1)});
  return {Empty({bags, weight.size(1)}, weight.options()), offset2bag, bag_size, max_indices};
}

Tensor EmbeddingBagDenseBackward(const Tensor& grad, const Tensor& indices, const Tensor& offset2bag, const Tensor& bag_size,
                                 const Tensor& /*maximum_indices*/, int64_t num_weights, bool /*scale_grad_by_freq*/, int64_t mode,
                                 const MaybeTensor& per_sample_weights, int64_t /*padding_idx*/) {
  constexpr const char* kName = "_embedding_bag_dense_backward";
  CheckFloating(kName, grad);
  CheckIndices(kName, indices);
  TORCH_CHECK(mode >= kSum && mode <= kMax, kName, ": mode must be 0 (sum), 1 (mean) or 2 (max), not ", mode);
  if (mode != kMax) {
    CheckSameIndex(kName, indices, offset2bag);
    CheckSameIndex(kName, indices, bag_size);
  }
  TORCH_CHECK(!Given(per_sample_weights) || (mode == kSum && per_sample_weights->scalar_type() == grad.scalar_type()), kName,
              ": per_sample_weights are for mode 0 (sum), of grad's dtype");
  return Empty({num_weights, grad.size(1)}, grad.options());
}

Tensor EmbeddingBagBackward(const Tensor& grad, const Tensor& indices, const Tensor& offsets, const Tensor& offset2bag,
                            const Tensor& bag_size, const Tensor& maximum_indices, int64_t num_weights, bool scale_grad_by_freq,
                            int64_t mode, bool sparse, const MaybeTensor& per_sample_weights, int64_t padding_idx) {
  TORCH_CHECK_NOT_IMPLEMENTED(!sparse, "_embedding_bag_backward: sparse gradients have no fakes");
  CheckIndices("_embedding_bag_backward", indices);
  CheckIndices("_embedding_bag_backward", offsets);
  TORCH_CHECK(indices.dim() == 1 && offsets.dim() == 1, "_embedding_bag_backward: indices and offsets must be vectors");
  // Indices and offsets are brought to one dtype, int32 ones by a copy.
  if (indices.scalar_type() == at::kLong || indices.scalar_type() == offsets.scalar_type()) {
    CheckContiguous("_embedding_bag_backward", indices);
  }
  if (offsets.scalar_type() == at::kLong || indices.scalar_type() == offsets.scalar_type()) {
    CheckContiguous("_embedding_bag_backward", offsets);
  }
  CheckContiguous("_embedding_bag_backward", offset2bag);
  const Tensor& index = indices.scalar_type() == at::kLong ? indices : offsets;
  // Bags that weren't kept are found again.
  const Tensor& bags = offset2bag.numel() == 0 && indices.numel() != 0 ? index : offset2bag;
  return EmbeddingBagDenseBackward(grad, index, bags, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights,
                                   padding_idx);
}

Tensor EmbeddingBagPerSampleWeightsBackward(const Tensor& grad, const Tensor& weight, const Tensor& indices, const Tensor& offsets,
                                            const Tensor& offset2bag, int64_t mode, int64_t /*padding_idx*/) {
  constexpr const char* kName = "_embedding_bag_per_sample_weights_backward";
  TORCH_CHECK(mode == kSum, kName, ": per_sample_weights are for mode 0 (sum)");
  TORCH_CHECK(grad.dim() == 2 && weight.dim() == 2 && weight.size(1) == grad.size(1), kName, ": grad of shape ", grad.sizes(),
              " for a weight of ", weight.sizes());
  TORCH_CHECK(indices.dim() == 1, kName, ": indices must be a vector, not ", indices.sizes());
  CheckIndices(kName, indices);
  CheckIndices(kName, offsets);
  CheckIndices(kName, offset2bag);
  // Int32 indices beside int64 offsets are copied.
  if (indices.scalar_type() == at::kLong || indices.scalar_type() == offsets.scalar_type()) CheckContiguous(kName, indices);
  if (offset2bag.numel() != 0 || indices.numel() == 0) {
    CheckContiguous(kName, offset2bag);
    CheckSameIndex(kName, indices.scalar_type() == at::kLong ? indices : offsets, offset2bag);
  }
  CheckFloating(kName, grad);
  TORCH_CHECK(grad.scalar_type() == weight.scalar_type(), kName, ": grad is ", grad.scalar_type(), ", the weight ", weight.scalar_type());
  return Empty({indices.size(0)}, grad.options());
}

Tensor EmbeddingDenseBackward(const Tensor& grad_output, const Tensor& indices, int64_t num_weights, int64_t /*padding_idx*/,
                              bool /*scale_grad_by_freq*/) {
  CheckIndices("embedding_dense_backward", indices);
  const int64_t width = grad_output.size(-1);
  TORCH_CHECK(grad_output.numel() == indices.numel() * width, "embedding_dense_backward: grad_output of shape ", grad_output.sizes(),
              " for indices of ", indices.sizes());
  return Empty({num_weights, width}, grad_output.options());
}

Tensor& EmbeddingRenorm(Tensor& self, const Tensor& indices, double /*max_norm*/, double /*norm_type*/) {
  TORCH_CHECK(self.dim() == 2, "embedding_renorm_: a matrix is wanted, not ", self.sizes());
  CheckIndices("embedding_renorm_", indices);
  TORCH_CHECK(indices.numel() == 0 || c10::isFloatingType(self.scalar_type()) || c10::isComplexType(self.scalar_type()),
              "embedding_renorm_: not for ", self.scalar_type());
  return self;
}

Tensor EmbeddingRenormed(const Tensor& self, const Tensor& indices, double max_norm, double norm_type) {
  Tensor renormed = at::empty_like(self);
  return EmbeddingRenorm(renormed, indices, max_norm, norm_type);
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("embedding_renorm_", EmbeddingRenorm);
  m.impl("embedding_renorm", EmbeddingRenormed);
  m.impl("_embedding_bag", EmbeddingBag);
  m.impl("_embedding_bag_forward_only", EmbeddingBag);
  m.impl("_embedding_bag_backward", EmbeddingBagBackward);
  m.impl("_embedding_bag_dense_backward", EmbeddingBagDenseBackward);
  m.impl("_embedding_bag_per_sample_weights_backward", EmbeddingBagPerSampleWeightsBackward);
  m.impl("embedding_dense_backward", EmbeddingDenseBackward);
}

}  // namespace
}  // namespace ddpopt::kernels
