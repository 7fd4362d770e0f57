// Batch norm under its many names. Running statistics are not touched: a fake has no values to update.

#include <array>
#include <tuple>
#include <vector>

#include "ATen/MemoryOverlap.h"
#include "ATen/TensorIterator.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/resize.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using Normed = std::tuple<Tensor, Tensor, Tensor>;

// The dtype of parameters and statistics: the input's, or float beside a 16-bit input.
at::ScalarType ParameterType(const char* name, const Tensor& input, std::initializer_list<const MaybeTensor*> tensors) {
  std::optional<at::ScalarType> dtype;
  for (const MaybeTensor* tensor : tensors) {
    if (!Given(*tensor)) continue;
    if (!dtype.has_value()) dtype = (*tensor)->scalar_type();
    TORCH_CHECK(*dtype == (*tensor)->scalar_type(), name, ": parameters and statistics must have one dtype, not ", *dtype, " and ",
                (*tensor)->scalar_type());
  }
  const at::ScalarType own = input.scalar_type();
  TORCH_CHECK(!dtype.has_value() || *dtype == own || (*dtype == at::kFloat && (own == at::kBFloat16 || own == at::kHalf)), name,
              ": parameters are ", dtype.value_or(own), ", the input ", own);
  return dtype.value_or(own);
}

void CheckInput(const char* name, const Tensor& input, bool training) {
  TORCH_CHECK(input.dim() >= 2, name, ": expected at least 2 dimensions, got ", input.sizes());
  TORCH_CHECK(c10::isFloatingType(input.scalar_type()), name, ": not for ", input.scalar_type());
  TORCH_CHECK(!training || input.numel() > 0, name, ": the input has no elements: ", input.sizes());
}

// Whether the kernel for contiguous tensors takes it.
bool Fits(const Tensor& tensor) {
  return tensor.is_contiguous() || (tensor.dim() == 4 && tensor.is_contiguous(at::MemoryFormat::ChannelsLast)) ||
         (tensor.dim() == 5 && tensor.is_contiguous(at::MemoryFormat::ChannelsLast3d));
}

// Whether the kernel for contiguous tensors takes them; it looks at less.
bool AllContiguous(const Tensor& input, const Tensor& out, std::initializer_list<const MaybeTensor*> parameters) {
  bool contiguous = Fits(input) && Fits(out);
  for (const MaybeTensor* parameter : parameters) contiguous &= !Given(*parameter) || (*parameter)->is_contiguous();
  return contiguous;
}

// In the input's memory format. Where sizes of 1 leave open which it is, the kernel for contiguous tensors takes the first that fits.
Tensor EmptyInFormat(const Tensor& input, std::initializer_list<const MaybeTensor*> tensors) {
  at::MemoryFormat format = input.suggest_memory_format();
  bool contiguous = Fits(input);
  for (const MaybeTensor* tensor : tensors) contiguous &= !Given(*tensor) || (*tensor)->is_contiguous();
  if (contiguous) {
    const at::MemoryFormat last = input.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
    format = input.is_contiguous() ? at::MemoryFormat::Contiguous : last;
  }
  return Empty(input.sizes(), input.options(), format);
}

at::TensorOptions CheckBatchNorm(const char* name, const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                                 const MaybeTensor& running_mean, const MaybeTensor& running_var, bool training) {
  TORCH_CHECK(Given(running_mean) == Given(running_var), name, ": running_mean and running_var go together");
  TORCH_CHECK(training || Given(running_mean), name, ": evaluation needs running_mean");
  const at::ScalarType dtype = ParameterType(name, input, {&weight, &bias, &running_mean, &running_var});
  CheckInput(name, input, training);
  return input.options().dtype(dtype);
}

// Other tensors than contiguous ones are broadcast, and decide over the result's shape, too.
void Broadcast(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, const MaybeTensor& mean, const MaybeTensor& var,
               Tensor& out) {
  at::TensorIteratorConfig config;
  config.add_output(out).add_const_input(input);
  for (const MaybeTensor* parameter : {&mean, &var, &weight, &bias}) {
    if (!Given(*parameter)) continue;
    TORCH_CHECK((*parameter)->dim() == 1, "batch norm: parameters and statistics must be vectors, not ", (*parameter)->sizes());
    std::vector<int64_t> sizes(input.dim(), 1), strides(input.dim(), 0);
    sizes[1] = (*parameter)->size(0);
    strides[1] = (*parameter)->stride(0);
    config.add_owned_const_input((*parameter)->as_strided(sizes, strides));
  }
  config.check_all_same_dtype(false).promote_inputs_to_common_dtype(false).build();
}

Normed NativeBatchNorm(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, const MaybeTensor& running_mean,
                       const MaybeTensor& running_var, bool training, double /*momentum*/, double /*eps*/) {
  const at::TensorOptions stats = CheckBatchNorm("native_batch_norm", input, weight, bias, running_mean, running_var, training);
  const int64_t saved = training ? input.size(1) : 0;
  Tensor out = EmptyInFormat(input, {&weight, &bias, &running_mean, &running_var});
  if (!AllContiguous(input, out, {&weight, &bias, &running_mean, &running_var})) {
    const MaybeTensor none;
    Broadcast(input, weight, bias, training ? none : running_mean, training ? none : running_var, out);
  }
  return {out, Empty({saved}, stats), Empty({saved}, stats)};
}

std::tuple<Tensor&, Tensor&, Tensor&> NativeBatchNormOut(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                                                         const MaybeTensor& running_mean, const MaybeTensor& running_var, bool training,
                                                         double /*momentum*/, double /*eps*/, Tensor& out, Tensor& save_mean,
                                                         Tensor& save_invstd) {
  constexpr const char* kName = "native_batch_norm.out";
  const at::TensorOptions stats = CheckBatchNorm(kName, input, weight, bias, running_mean, running_var, training);
  out.resize_(input.sizes());
  at::assert_no_internal_overlap(out);
  const bool all_contiguous = AllContiguous(input, out, {&weight, &bias, &running_mean, &running_var});
  TORCH_CHECK(out.scalar_type() == input.scalar_type() || (input.numel() == 0 && all_contiguous), kName, ": out must be ",
              input.scalar_type());
  if (!all_contiguous) {
    const MaybeTensor none;
    Broadcast(input, weight, bias, training ? none : running_mean, training ? none : running_var, out);
  }
  if (!training && (input.numel() == 0 || !all_contiguous)) return {out, save_mean, save_invstd};
  for (Tensor* saved : {&save_mean, &save_invstd}) {
    TORCH_CHECK(saved->dtype() == stats.dtype(), kName, ": saved statistics must be ", stats.dtype());
    if (training) saved->resize_({input.size(1)});
    TORCH_CHECK(saved->dim() == 1 || input.numel() == 0, kName, ": saved statistics must be vectors, not ", saved->sizes());
  }
  return {out, save_mean, save_invstd};
}

// running_mean and running_var are what such a call changes.
Normed BatchNormLegit(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, Tensor& running_mean, Tensor& running_var,
                      bool training, double momentum, double eps) {
  return NativeBatchNorm(input, weight, bias, running_mean, running_var, training, momentum, eps);
}
std::tuple<Tensor&, Tensor&, Tensor&> BatchNormLegitOut(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                                                        Tensor& running_mean, Tensor& running_var, bool training, double momentum,
                                                        double eps, Tensor& out, Tensor& save_mean, Tensor& save_invstd) {
  return NativeBatchNormOut(input, weight, bias, running_mean, running_var, training, momentum, eps, out, save_mean, save_invstd);
}
Normed BatchNormNoStats(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, bool training, double momentum,
                        double eps) {
  return NativeBatchNorm(input, weight, bias, {}, {}, training, momentum, eps);
}
std::tuple<Tensor&, Tensor&, Tensor&> BatchNormNoStatsOut(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                                                          bool training, double momentum, double eps, Tensor& out, Tensor& save_mean,
                                                          Tensor& save_invstd) {
  return NativeBatchNormOut(input, weight, bias, {}, {}, training, momentum, eps, out, save_mean, save_invstd);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> BatchNormWithUpdate(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                                                               Tensor& running_mean, Tensor& running_var, double momentum, double eps) {
  const auto [out, mean, invstd] = NativeBatchNorm(input, weight, bias, running_mean, running_var, true, momentum, eps);
  return {out, mean, invstd, Empty({0}, input.options().dtype(at::kByte))};
}
std::tuple<Tensor&, Tensor&, Tensor&, Tensor&> BatchNormWithUpdateOut(const Tensor& input, const MaybeTensor& weight,
                                                                      const MaybeTensor& bias, Tensor& running_mean, Tensor& running_var,
                                                                      double momentum, double eps, Tensor& out, Tensor& save_mean,
                                                                      Tensor& save_invstd, Tensor& reserve) {
  NativeBatchNormOut(input, weight, bias, running_mean, running_var, true, momentum, eps, out, save_mean, save_invstd);
  return {out, save_mean, save_invstd, reserve};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> BatchNormNoUpdate(const Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias,
                                                             const MaybeTensor& running_mean, const MaybeTensor& running_var,
                                                             double momentum, double eps) {
  const auto [out, mean, invstd] = NativeBatchNorm(input, weight, bias, running_mean, running_var, false, momentum, eps);
  return {out, mean, invstd, Empty({0}, input.options().dtype(at::kByte))};
}

std::tuple<Tensor, Tensor> BatchNormUpdateStats(const Tensor& input, const MaybeTensor& running_mean, const MaybeTensor& running_var,
                                                double /*momentum*/) {
  constexpr const char* kName = "batch_norm_update_stats";
  const at::ScalarType dtype = ParameterType(kName, input, {&running_mean, &running_var});
  CheckInput(kName, input, true);
  const at::TensorOptions stats = input.options().dtype(dtype);
  return {Empty({input.size(1)}, stats), Empty({input.size(1)}, stats)};
}

Normed NativeBatchNormBackward(const Tensor& grad_out, const Tensor& input, const MaybeTensor& weight, const MaybeTensor& running_mean,
                               const MaybeTensor& running_var, const MaybeTensor& save_mean, const MaybeTensor& save_invstd, bool train,
                               double /*eps*/, std::array<bool, 3> output_mask) {
  constexpr const char* kName = "native_batch_norm_backward";
  TORCH_CHECK(input.dim() >= 2, kName, ": expected at least 2 dimensions, got ", input.sizes());
  TORCH_CHECK(grad_out.scalar_type() == input.scalar_type(), kName, ": grad_out is ", grad_out.scalar_type(), ", the input ",
              input.scalar_type());
  ParameterType(kName, input, {&weight, train ? &save_mean : &running_mean, train ? &save_invstd : &running_var});
  const MaybeTensor& like = Given(weight) ? weight : running_mean;
  const at::TensorOptions stats = Given(like) ? input.options().dtype(like->scalar_type()) : input.options();
  Normed grads;
  if (output_mask[0]) {
    // The kernel for contiguous tensors takes two of one format.
    const bool contiguous = Fits(grad_out) && grad_out.suggest_memory_format() == input.suggest_memory_format();
    std::get<0>(grads) = contiguous ? EmptyInFormat(input, {}) : EmptySuggestedLike(input);
  }
  if (output_mask[1]) std::get<1>(grads) = Empty({input.size(1)}, stats);
  if (output_mask[2]) std::get<2>(grads) = Empty({input.size(1)}, stats);
  return grads;
}

Normed BatchNormBackward(const Tensor& grad_out, const Tensor& input, const Tensor& weight, const MaybeTensor& running_mean,
                         const MaybeTensor& running_var, const MaybeTensor& save_mean, const MaybeTensor& save_var, bool update, double eps,
                         std::array<bool, 3> output_mask, const Tensor& /*reserve*/) {
  return NativeBatchNormBackward(grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask);
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("native_batch_norm", NativeBatchNorm);
  m.impl("native_batch_norm.out", NativeBatchNormOut);
  m.impl("_native_batch_norm_legit", BatchNormLegit);
  m.impl("_native_batch_norm_legit.out", BatchNormLegitOut);
  m.impl("_native_batch_norm_legit.no_stats", BatchNormNoStats);
  m.impl("_native_batch_norm_legit.no_stats_out", BatchNormNoStatsOut);
  m.impl("_batch_norm_with_update", BatchNormWithUpdate);
  m.impl("_batch_norm_with_update.out", BatchNormWithUpdateOut);
  m.impl("_batch_norm_no_update", BatchNormNoUpdate);
  m.impl("batch_norm_update_stats", BatchNormUpdateStats);
  m.impl("native_batch_norm_backward", NativeBatchNormBackward);
  m.impl("batch_norm_backward", BatchNormBackward);
}

}  // namespace
}  // namespace ddpopt::kernels
