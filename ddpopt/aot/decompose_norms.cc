// Normalisations and their backwards.

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "ddpopt/aot/decomposition_table.h"

namespace ddpopt {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool Given(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }
Tensor Up(const Tensor& x) { return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf ? x.to(at::kFloat) : x; }

std::vector<int64_t> Range(int64_t from, int64_t to) {
  std::vector<int64_t> dims;
  for (int64_t d = from; d < to; ++d) dims.push_back(d);
  return dims;
}
// One number for each channel, so that it meets x's second dimension.
Tensor Channels(const Tensor& values, int64_t dim) {
  std::vector<int64_t> sizes(dim, 1);
  sizes[1] = values.size(0);
  return at::reshape(values, sizes);
}

std::tuple<Tensor, Tensor, Tensor> NativeLayerNorm(const Tensor& input, c10::SymIntArrayRef shape, const OptionalTensor& weight,
                                                   const OptionalTensor& bias, double eps) {
  const std::vector<int64_t> dims = Range(input.dim() - static_cast<int64_t>(shape.size()), input.dim());
  const Tensor x = Up(input).contiguous(), mean = at::mean(x, dims, true), off = x - mean;
  const Tensor rstd = at::rsqrt(at::mean(off * off, dims, true) + eps);
  Tensor result = off * rstd;
  if (Given(weight)) result = result * Up(*weight);
  if (Given(bias)) result = result + Up(*bias);
  // Statistics have the parameters' dtype where that differs from the input's.
  const at::ScalarType statistics = Given(weight) ? weight->scalar_type() : input.scalar_type();
  return {result.to(input.scalar_type()), mean.to(statistics), rstd.to(statistics)};
}

std::tuple<Tensor, Tensor, Tensor> NativeLayerNormBackward(const Tensor& grad_out, const Tensor& input, c10::SymIntArrayRef shape,
                                                           const Tensor& mean, const Tensor& rstd, const OptionalTensor& weight,
                                                           const OptionalTensor& bias, std::array<bool, 3> mask) {
  const int64_t outer = input.dim() - static_cast<int64_t>(shape.size());
  const std::vector<int64_t> dims = Range(outer, input.dim()), rows = Range(0, outer);
  const Tensor x = Up(input).contiguous(), g = Up(grad_out).contiguous(), r = Up(rstd), normal = (x - Up(mean)) * r;
  Tensor for_input, for_weight, for_bias;
  if (mask[0]) {
    const Tensor gw = Given(weight) ? g * Up(*weight) : g;
    for_input = (r * (gw - at::mean(gw, dims, true) - normal * at::mean(gw * normal, dims, true))).to(input.scalar_type());
  }
  const auto over_rows = [&](const Tensor& values) { return rows.empty() ? values : at::sum(values, rows); };
  if (mask[1] && Given(weight)) for_weight = over_rows(g * normal).to(weight->scalar_type());
  if (mask[2] && Given(bias)) for_bias = over_rows(g).to(bias->scalar_type());
  return {for_input, for_weight, for_bias};
}

std::tuple<Tensor, Tensor, Tensor> NativeBatchNorm(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                                                   const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
                                                   double momentum, double eps) {
  std::vector<int64_t> dims = Range(2, input.dim());
  dims.insert(dims.begin(), 0);
  const Tensor x = Up(input);
  Tensor mean, rstd, save_mean, save_rstd;
  if (training) {
    save_mean = at::mean(x, dims);
    mean = Channels(save_mean, input.dim());
    const Tensor off = x - mean, var = at::mean(off * off, dims);
    save_rstd = at::rsqrt(var + eps);
    rstd = Channels(save_rstd, input.dim());
    const double count = static_cast<double>(input.numel()) / static_cast<double>(input.size(1));
    // As the operator does, in place.
    if (Given(running_mean)) running_mean->copy_(*running_mean * (1 - momentum) + save_mean * momentum);
    if (Given(running_var)) running_var->copy_(*running_var * (1 - momentum) + var * (momentum * count / (count - 1)));
  } else {
    mean = Channels(Up(*running_mean), input.dim());
    rstd = Channels(at::rsqrt(Up(*running_var) + eps), input.dim());
    save_mean = save_rstd = at::empty({0}, x.options());
  }
  Tensor result = (x - mean) * rstd;
  if (Given(weight)) result = result * Channels(Up(*weight), input.dim());
  if (Given(bias)) result = result + Channels(Up(*bias), input.dim());
  return {result.to(input.scalar_type()), save_mean, save_rstd};
}

std::tuple<Tensor, Tensor, Tensor> NativeGroupNorm(const Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                                                   c10::SymInt n, c10::SymInt channels, c10::SymInt spatial, int64_t groups, double eps) {
  const int64_t batch = n.expect_int(), c = channels.expect_int();
  const Tensor x = at::reshape(Up(input).contiguous(), {batch, groups, c / groups * spatial.expect_int()});
  const Tensor mean = at::mean(x, {2}, true), off = x - mean, rstd = at::rsqrt(at::mean(off * off, {2}, true) + eps);
  Tensor result = at::reshape(off * rstd, input.sizes());
  if (Given(weight)) result = result * Channels(Up(*weight), input.dim());
  if (Given(bias)) result = result + Channels(Up(*bias), input.dim());
  const at::ScalarType statistics = Given(weight) ? weight->scalar_type() : input.scalar_type();
  return {result.to(input.scalar_type()), at::reshape(mean, {batch, groups}).to(statistics),
          at::reshape(rstd, {batch, groups}).to(statistics)};
}

}  // namespace

void AddNormDecompositions(DecompositionTable* table) {
  table->Add("native_layer_norm", NativeLayerNorm);
  table->Add("native_layer_norm_backward", NativeLayerNormBackward);
  table->Add("native_batch_norm", NativeBatchNorm);
  table->Add("native_group_norm", NativeGroupNorm);
}

}  // namespace ddpopt
