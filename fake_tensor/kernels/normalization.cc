// Batch, layer and group norm. Running statistics are not touched: a fake has no values to update.

#include <array>
#include <tuple>
#include <vector>

#include "ATen/core/Tensor.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::IntArrayRef;
using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

// Statistics are kept in the parameters' type where that differs (bfloat16 inputs, float parameters).
at::TensorOptions StatOptions(const Tensor& input, const MaybeTensor& parameter) {
  return Given(parameter) ? input.options().dtype(parameter->scalar_type()) : input.options();
}

std::tuple<Tensor, Tensor, Tensor> NativeBatchNorm(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                                                   const MaybeTensor& running_mean, const MaybeTensor& running_var, bool training,
                                                   double /*momentum*/, double /*eps*/) {
  TORCH_CHECK(input.dim() >= 2, "native_batch_norm: expected at least 2 dimensions, got ", input.sizes());
  const int64_t channels = input.size(1);
  for (const MaybeTensor* tensor : {&weight, &bias, &running_mean, &running_var}) {
    TORCH_CHECK(!Given(*tensor) || (*tensor)->numel() == channels, "native_batch_norm: ", channels,
                " channels, but a parameter or buffer of shape ", Given(*tensor) ? (*tensor)->sizes() : IntArrayRef());
  }
  const at::TensorOptions stats = StatOptions(input, Given(weight) ? weight : running_mean);
  const int64_t saved = training ? channels : 0;
  return {EmptySuggestedLike(input), Empty({saved}, stats), Empty({saved}, stats)};
}

std::tuple<Tensor, Tensor, Tensor> NativeBatchNormBackward(const Tensor& /*grad_out*/, const Tensor& input, const MaybeTensor& weight,
                                                           const MaybeTensor& running_mean, const MaybeTensor& /*running_var*/,
                                                           const MaybeTensor& /*save_mean*/, const MaybeTensor& /*save_invstd*/,
                                                           bool /*train*/, double /*eps*/, std::array<bool, 3> output_mask) {
  const at::TensorOptions stats = StatOptions(input, Given(weight) ? weight : running_mean);
  std::tuple<Tensor, Tensor, Tensor> grads;
  if (output_mask[0]) std::get<0>(grads) = EmptySuggestedLike(input);
  if (output_mask[1]) std::get<1>(grads) = Empty({input.size(1)}, stats);
  if (output_mask[2]) std::get<2>(grads) = Empty({input.size(1)}, stats);
  return grads;
}

std::tuple<Tensor, Tensor, Tensor> NativeLayerNorm(const Tensor& input, IntArrayRef normalized_shape, const MaybeTensor& weight,
                                                   const MaybeTensor& bias, double /*eps*/) {
  const int64_t kept = input.dim() - static_cast<int64_t>(normalized_shape.size());
  TORCH_CHECK(!normalized_shape.empty() && kept >= 0 && input.sizes().slice(kept) == normalized_shape,
              "native_layer_norm: normalized_shape ", normalized_shape, " doesn't end the input's shape ", input.sizes());
  for (const MaybeTensor* tensor : {&weight, &bias}) {
    TORCH_CHECK(!Given(*tensor) || (*tensor)->sizes() == normalized_shape,
                "native_layer_norm: a parameter's shape differs from normalized_shape ", normalized_shape);
  }
  std::vector<int64_t> stat_sizes = input.sizes().slice(0, kept).vec();
  stat_sizes.resize(input.dim(), 1);
  const at::TensorOptions stats = StatOptions(input, weight);
  return {EmptyContiguousLike(input), Empty(stat_sizes, stats), Empty(stat_sizes, stats)};
}

std::tuple<Tensor, Tensor, Tensor> NativeLayerNormBackward(const Tensor& /*grad_out*/, const Tensor& input,
                                                           IntArrayRef /*normalized_shape*/, const Tensor& /*mean*/, const Tensor& /*rstd*/,
                                                           const MaybeTensor& weight, const MaybeTensor& bias,
                                                           std::array<bool, 3> output_mask) {
  std::tuple<Tensor, Tensor, Tensor> grads;
  if (output_mask[0]) std::get<0>(grads) = EmptyContiguousLike(input);
  if (output_mask[1] && Given(weight)) std::get<1>(grads) = EmptyContiguousLike(*weight);
  if (output_mask[2] && Given(bias)) std::get<2>(grads) = EmptyContiguousLike(*bias);
  return grads;
}

std::tuple<Tensor, Tensor, Tensor> NativeGroupNorm(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, int64_t n,
                                                   int64_t channels, int64_t /*hxw*/, int64_t groups, double /*eps*/) {
  TORCH_CHECK(groups > 0 && channels % groups == 0, "native_group_norm: ", channels, " channels don't divide into ", groups, " groups");
  for (const MaybeTensor* tensor : {&weight, &bias}) {
    TORCH_CHECK(!Given(*tensor) || (*tensor)->numel() == channels, "native_group_norm: a parameter doesn't have ", channels, " elements");
  }
  const at::TensorOptions stats = StatOptions(input, weight);
  return {EmptySuggestedLike(input), Empty({n, groups}, stats), Empty({n, groups}, stats)};
}

std::tuple<Tensor, Tensor, Tensor> NativeGroupNormBackward(const Tensor& /*grad_out*/, const Tensor& input, const Tensor& mean,
                                                           const Tensor& /*rstd*/, const MaybeTensor& weight, int64_t /*n*/,
                                                           int64_t channels, int64_t /*hxw*/, int64_t /*groups*/,
                                                           std::array<bool, 3> output_mask) {
  const at::TensorOptions parameters = Given(weight) ? weight->options() : mean.options();
  std::tuple<Tensor, Tensor, Tensor> grads;
  if (output_mask[0]) std::get<0>(grads) = EmptySuggestedLike(input);
  if (output_mask[1]) std::get<1>(grads) = Empty({channels}, parameters);
  if (output_mask[2]) std::get<2>(grads) = Empty({channels}, parameters);
  return grads;
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("native_batch_norm", NativeBatchNorm);
  m.impl("native_batch_norm_backward", NativeBatchNormBackward);
  m.impl("native_layer_norm", NativeLayerNorm);
  m.impl("native_layer_norm_backward", NativeLayerNormBackward);
  m.impl("native_group_norm", NativeGroupNorm);
  m.impl("native_group_norm_backward", NativeGroupNormBackward);
}

}  // namespace
}  // namespace ddpopt::kernels
