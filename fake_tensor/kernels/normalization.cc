// Layer, group and weight norm.

#include <array>
#include <tuple>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/empty_strided.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/dtypes.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::IntArrayRef;
using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using Normed = std::tuple<Tensor, Tensor, Tensor>;

// Statistics have the parameters' dtype: the input's, or float beside a 16-bit input.
at::TensorOptions StatOptions(const char* name, const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias) {
  std::optional<at::ScalarType> dtype;
  for (const MaybeTensor* tensor : {&weight, &bias}) {
    if (!Given(*tensor)) continue;
    if (!dtype.has_value()) dtype = (*tensor)->scalar_type();
    TORCH_CHECK(*dtype == (*tensor)->scalar_type(), name, ": the parameters' dtypes differ");
  }
  const at::ScalarType own = input.scalar_type();
  TORCH_CHECK(!dtype.has_value() || *dtype == own || (*dtype == at::kFloat && (own == at::kBFloat16 || own == at::kHalf)), name,
              ": parameters are ", dtype.value_or(own), ", the input ", own);
  return input.options().dtype(dtype.value_or(own));
}

// How many of the input's dimensions stay.
int64_t CheckLayerNorm(const char* name, const Tensor& input, IntArrayRef normalized_shape, const MaybeTensor& weight,
                       const MaybeTensor& bias) {
  const int64_t kept = input.dim() - static_cast<int64_t>(normalized_shape.size());
  TORCH_CHECK(!normalized_shape.empty() && kept >= 0 && input.sizes().slice(kept) == normalized_shape, name, ": normalized_shape ",
              normalized_shape, " doesn't end the input's shape ", input.sizes());
  for (const MaybeTensor* tensor : {&weight, &bias}) {
    TORCH_CHECK(!Given(*tensor) || (*tensor)->sizes() == normalized_shape, name, ": a parameter's shape differs from normalized_shape ",
                normalized_shape);
  }
  return kept;
}

Normed NativeLayerNorm(const Tensor& input, IntArrayRef normalized_shape, const MaybeTensor& weight, const MaybeTensor& bias,
                       double /*eps*/) {
  constexpr const char* kName = "native_layer_norm";
  const int64_t kept = CheckLayerNorm(kName, input, normalized_shape, weight, bias);
  std::vector<int64_t> stat_sizes = input.sizes().slice(0, kept).vec();
  stat_sizes.resize(input.dim(), 1);
  const at::TensorOptions stats = StatOptions(kName, input, weight, bias);
  return {EmptyContiguousLike(input), Empty(stat_sizes, stats), Empty(stat_sizes, stats)};
}

Normed NativeLayerNormBackward(const Tensor& grad_out, const Tensor& input, IntArrayRef normalized_shape, const Tensor& mean,
                               const Tensor& rstd, const MaybeTensor& weight, const MaybeTensor& bias, std::array<bool, 3> output_mask) {
  constexpr const char* kName = "native_layer_norm_backward";
  CheckLayerNorm(kName, input, normalized_shape, weight, bias);
  TORCH_CHECK((!output_mask[1] || Given(weight)) && (!output_mask[2] || Given(bias)), kName,
              ": a parameter that isn't there has no gradient");
  const at::TensorOptions stats = StatOptions(kName, input, weight, bias);
  bool any_rows = true;
  for (const int64_t size : input.sizes().slice(0, input.dim() - static_cast<int64_t>(normalized_shape.size()))) any_rows &= size != 0;
  if (any_rows) RequireDtype(kName, input.scalar_type(), kFloatDtypes);
  if (input.numel() != 0) {
    TORCH_CHECK(grad_out.scalar_type() == input.scalar_type(), kName, ": grad_out is ", grad_out.scalar_type(), ", the input ",
                input.scalar_type());
    for (const Tensor* stat : {&mean, &rstd}) {
      TORCH_CHECK(stat->dtype() == stats.dtype() || !Given(weight), kName, ": statistics are ", stat->dtype(), ", the parameters ",
                  stats.dtype());
    }
  }
  Normed grads;
  if (output_mask[0]) std::get<0>(grads) = EmptyContiguousLike(input);
  if (output_mask[1]) std::get<1>(grads) = EmptyContiguousLike(*weight);
  if (output_mask[2]) std::get<2>(grads) = EmptyContiguousLike(*bias);
  return grads;
}

Normed NativeGroupNorm(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, int64_t n, int64_t channels, int64_t hxw,
                       int64_t groups, double /*eps*/) {
  constexpr const char* kName = "native_group_norm";
  TORCH_CHECK(channels > 0 && hxw > 0, kName, ": channels and positions must be positive, not ", channels, " and ", hxw);
  TORCH_CHECK(groups > 0 && channels % groups == 0, kName, ": ", channels, " channels don't divide into ", groups, " groups");
  for (const MaybeTensor* tensor : {&weight, &bias}) {
    TORCH_CHECK(!Given(*tensor) || ((*tensor)->dim() == 1 && (*tensor)->numel() == channels), kName, ": a parameter doesn't have ",
                channels, " elements");
  }
  if (n != 0 && input.numel() != 0) RequireDtype(kName, input.scalar_type(), kFloatDtypes);
  TORCH_CHECK(n == 0 || input.numel() == n * channels * hxw, kName, ": an input of ", input.sizes(), " hasn't ", n, " x ", channels, " x ",
              hxw, " elements");
  const at::TensorOptions stats = StatOptions(kName, input, weight, bias);
  return {EmptySuggestedLike(input), Empty({n, groups}, stats), Empty({n, groups}, stats)};
}

Normed NativeGroupNormBackward(const Tensor& grad_out, const Tensor& input, const Tensor& mean, const Tensor& rstd,
                               const MaybeTensor& weight, int64_t n, int64_t channels, int64_t hxw, int64_t groups,
                               std::array<bool, 3> output_mask) {
  constexpr const char* kName = "native_group_norm_backward";
  TORCH_CHECK(input.scalar_type() == grad_out.scalar_type(), kName, ": grad_out is ", grad_out.scalar_type(), ", the input ",
              input.scalar_type());
  const at::TensorOptions stats = StatOptions(kName, input, weight, mean);
  if (n != 0) {
    RequireDtype(kName, input.scalar_type(), kFloatDtypes);
    TORCH_CHECK(mean.scalar_type() == rstd.scalar_type(), kName, ": mean and rstd differ in dtype");
    TORCH_CHECK(grad_out.numel() == n * channels * hxw && input.numel() == grad_out.numel(), kName, ": tensors of ", grad_out.sizes(),
                " and ", input.sizes(), " haven't ", n, " x ", channels, " x ", hxw, " elements");
    TORCH_CHECK(mean.numel() == n * groups && rstd.numel() == n * groups, kName, ": statistics don't have ", n, " x ", groups, " elements");
    TORCH_CHECK(groups > 0 && channels % groups == 0, kName, ": ", channels, " channels don't divide into ", groups, " groups");
    TORCH_CHECK(!Given(weight) || weight->numel() == channels, kName, ": the weight doesn't have ", channels, " elements");
    TORCH_CHECK(input.suggest_memory_format() == at::MemoryFormat::Contiguous || grad_out.dim() == input.dim(), kName,
                ": a gradient of ", grad_out.dim(), " dimensions can't have the input's memory format");
  }
  Normed grads;
  if (output_mask[0]) std::get<0>(grads) = EmptySuggestedLike(input);
  if (output_mask[1]) std::get<1>(grads) = Empty({channels}, stats);
  if (output_mask[2]) std::get<2>(grads) = Empty({channels}, stats);
  return grads;
}

// Norms of 16-bit weights are floats.
at::ScalarType NormType(const Tensor& g) {
  return g.scalar_type() == at::kBFloat16 || g.scalar_type() == at::kHalf ? at::kFloat : g.scalar_type();
}

void CheckWeightNorm(const char* name, const Tensor& v, const Tensor& g, int64_t dim) {
  TORCH_CHECK(dim == 0 || dim == v.dim() - 1, name, ": dim must be the first or the last one, not ", dim);
  TORCH_CHECK(v.scalar_type() == g.scalar_type() || v.numel() == 0, name, ": expected ", v.scalar_type(), ", found ", g.scalar_type());
}

std::tuple<Tensor, Tensor> WeightNorm(const Tensor& v, const Tensor& g, int64_t dim) {
  CheckWeightNorm("_weight_norm_interface", v, g, dim);
  return {EmptyContiguousLike(v), at::empty_strided(g.sizes(), g.strides(), g.options().dtype(NormType(g)))};
}

std::tuple<Tensor, Tensor> WeightNormBackward(const Tensor& grad_w, const Tensor& saved_v, const Tensor& saved_g, const Tensor& saved_norms,
                                              int64_t dim) {
  constexpr const char* kName = "_weight_norm_interface_backward";
  CheckWeightNorm(kName, saved_v, saved_g, dim);
  TORCH_CHECK(saved_v.is_contiguous() && saved_g.is_contiguous() && saved_norms.is_contiguous(), kName,
              ": saved tensors must be contiguous");
  TORCH_CHECK(grad_w.scalar_type() == saved_v.scalar_type(), kName, ": grad_w is ", grad_w.scalar_type(), ", the weight ",
              saved_v.scalar_type());
  TORCH_CHECK(saved_v.numel() == 0 || saved_norms.scalar_type() == NormType(saved_g), kName, ": saved norms must be ", NormType(saved_g),
              ", not ", saved_norms.scalar_type());
  return {EmptyContiguousLike(saved_v), EmptyContiguousLike(saved_g)};
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("native_layer_norm", NativeLayerNorm);
  m.impl("native_layer_norm_backward", NativeLayerNormBackward);
  m.impl("native_group_norm", NativeGroupNorm);
  m.impl("native_group_norm_backward", NativeGroupNormBackward);
  m.impl("_weight_norm_interface", WeightNorm);
  m.impl("_weight_norm_interface_backward", WeightNormBackward);
}

}  // namespace
}  // namespace ddpopt::kernels
