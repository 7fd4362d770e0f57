// Pooling and unpooling, forward and backward, where LibTorch has no Meta kernel.

#include <tuple>
#include <vector>

#include "ATen/MemoryOverlap.h"
#include "ATen/core/Tensor.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/stack.h"
#include "ATen/ops/avg_pool2d_backward.h"
#include "ATen/ops/avg_pool3d_backward.h"
#include "ATen/ops/fractional_max_pool2d.h"
#include "ATen/ops/fractional_max_pool3d.h"
#include "ATen/ops/resize.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/dtypes.h"
#include "fake_tensor/kernels/shapes.h"
#include "fake_tensor/kernels/typed_outputs.h"

namespace ddpopt::kernels {
namespace {

using at::IntArrayRef;
using at::MemoryFormat;
using at::Tensor;
using Sizes = std::vector<int64_t>;

void CheckBatched(const char* name, const Tensor& input, int64_t spatial) {
  TORCH_CHECK(input.dim() == spatial + 1 || input.dim() == spatial + 2, name, ": expected ", spatial + 1, " or ", spatial + 2,
              " dimensions, got ", input.sizes());
}

// All but the dimensions before `first` must have elements.
void CheckNonEmpty(const char* name, const Tensor& input, int64_t first) {
  for (int64_t i = first; i < input.dim(); ++i) {
    TORCH_CHECK(input.size(i) > 0, name, ": dimension ", i, " is empty: ", input.sizes());
  }
}

void CheckSameDtype(const char* name, const Tensor& a, const Tensor& b) {
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), name, ": expected ", a.scalar_type(), ", found ", b.scalar_type());
}

Sizes WithSpatial(const Tensor& input, IntArrayRef spatial) {
  const auto last = static_cast<int64_t>(spatial.size());
  Sizes sizes(input.sizes().begin(), input.sizes().end() - last);
  sizes.insert(sizes.end(), spatial.begin(), spatial.end());
  return sizes;
}

Tensor AdaptiveAvgPool2d(const Tensor& self, IntArrayRef output_size) {
  constexpr const char* kName = "adaptive_avg_pool2d";
  TORCH_CHECK(output_size.size() == 2, kName, ": output_size must have 2 elements, not ", output_size.size());
  CheckBatched(kName, self, 2);
  CheckNonEmpty(kName, self, self.dim() - 2);
  Tensor out = Empty(WithSpatial(self, output_size), self.options(), self.suggest_memory_format());
  if (out.numel() != 0) RequireDtype(kName, self.scalar_type(), kFloatDtypes);
  return out;
}

Tensor AdaptiveAvgPool2dBackward(const Tensor& grad_output, const Tensor& self) {
  constexpr const char* kName = "adaptive_avg_pool2d_backward";
  CheckNonEmpty(kName, grad_output, 1);
  CheckBatched(kName, self, 2);
  TORCH_CHECK(grad_output.dim() == self.dim(), kName, ": grad_output has ", grad_output.dim(), " dimensions, the input ", self.dim());
  CheckSameDtype(kName, self, grad_output);
  return EmptySuggestedLike(self);
}

Sizes AdaptiveAvgPool3dSizes(const Tensor& self, IntArrayRef output_size) {
  constexpr const char* kName = "adaptive_avg_pool3d";
  TORCH_CHECK(output_size.size() == 3, kName, ": output_size must have 3 elements, not ", output_size.size());
  CheckBatched(kName, self, 3);
  CheckNonEmpty(kName, self, 1);
  return WithSpatial(self, output_size);
}
Tensor AdaptiveAvgPool3d(const Tensor& self, IntArrayRef output_size) {
  return Empty(AdaptiveAvgPool3dSizes(self, output_size), self.options());
}
// Resizing doesn't ask whether a size is negative, where another one is 0.
Tensor& AdaptiveAvgPool3dOut(const Tensor& self, IntArrayRef output_size, Tensor& out) {
  const Sizes sizes = AdaptiveAvgPool3dSizes(self, output_size);
  CheckOutDtype(self, out);
  out.resize_(sizes);
  return out;
}

Tensor AdaptiveAvgPool3dBackward(const Tensor& grad_output, const Tensor& self) {
  constexpr const char* kName = "adaptive_avg_pool3d_backward";
  CheckNonEmpty(kName, grad_output, 1);
  CheckBatched(kName, self, 3);
  TORCH_CHECK(grad_output.dim() == self.dim(), kName, ": grad_output has ", grad_output.dim(), " dimensions, the input ", self.dim());
  CheckSameDtype(kName, self, grad_output);
  return EmptyContiguousLike(self);
}

// Max pooling in a channels-last format counts positions in integers of the elements' size.
void CheckPositions(const Tensor& self, std::size_t spatial) {
  if (!ClaimedDevice().is_cpu() || !c10::isIntegralType(self.scalar_type(), false)) return;
  int64_t positions = 1;
  for (const int64_t size : self.sizes().slice(self.dim() - spatial)) positions *= size;
  const int64_t limit = self.itemsize() == 1 ? 127 : self.itemsize() == 2 ? 32767 : positions;
  TORCH_CHECK(positions <= limit, "pooling: ", positions, " positions can't be counted in ", self.itemsize(), " bytes");
}
void MaxPool2dBoxed(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Tensor self = (*stack)[stack->size() - op.schema().arguments().size()].toTensor();
  op.callBoxed(stack);
  if (self.suggest_memory_format() == MemoryFormat::ChannelsLast) CheckPositions(self, 2);
}

struct Window3d {
  Sizes kernel, stride, padding, dilation;
};

Window3d MakeWindow3d(IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation) {
  const auto expand = [](const char* what, IntArrayRef list) {
    TORCH_CHECK(list.size() == 1 || list.size() == 3, "max_pool3d: ", what, " must have 1 or 3 elements, not ", list.size());
    return list.size() == 1 ? Sizes(3, list[0]) : list.vec();
  };
  Window3d window;
  window.kernel = expand("kernel_size", kernel);
  window.stride = stride.empty() ? window.kernel : expand("stride", stride);
  window.padding = expand("padding", padding);
  window.dilation = expand("dilation", dilation);
  return window;
}

// The output's spatial sizes; the checks are those of the real kernel.
Sizes MaxPool3dSpatial(const char* name, const Tensor& self, const Window3d& window, bool ceil_mode) {
  CheckBatched(name, self, 3);
  for (int64_t i = 0; i < 3; ++i) {
    TORCH_CHECK(window.kernel[i] > 0 && window.stride[i] > 0 && window.dilation[i] > 0, name,
                ": kernel sizes, strides and dilations must be positive");
  }
  CheckNonEmpty(name, self, self.dim() - 4);
  Sizes sizes;
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t in = self.size(self.dim() - 3 + i);
    const int64_t pad = window.padding[i];
    const int64_t reach = window.dilation[i] * (window.kernel[i] - 1) + 1;
    TORCH_CHECK(pad >= 0 && pad <= window.kernel[i] / 2, name, ": padding must be at most half of the kernel, not ", pad);
    const int64_t span = in + 2 * pad - reach + (ceil_mode ? window.stride[i] - 1 : 0);
    int64_t out = (span >= 0 ? span / window.stride[i] : -((-span + window.stride[i] - 1) / window.stride[i])) + 1;
    if (ceil_mode && (out - 1) * window.stride[i] >= in + pad) --out;
    TORCH_CHECK(out >= 1, name, ": the output would be empty, input ", self.sizes());
    sizes.push_back(out);
  }
  return sizes;
}

// Without a batch, channels may come last as well, and then do so in the result.
bool HasLastChannels(const Tensor& self) { return self.dim() == 4 && !self.is_contiguous() && self.permute({1, 2, 3, 0}).is_contiguous(); }
Tensor EmptyWithLastChannels(const Sizes& sizes, const at::TensorOptions& options) {
  return Empty({sizes[1], sizes[2], sizes[3], sizes[0]}, options).permute({3, 0, 1, 2});
}

std::tuple<Tensor, Tensor> MaxPool3d(const Tensor& self, IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                     bool ceil_mode) {
  const Window3d window = MakeWindow3d(kernel, stride, padding, dilation);
  const Sizes sizes = WithSpatial(self, MaxPool3dSpatial("max_pool3d", self, window, ceil_mode));
  const MemoryFormat format = self.suggest_memory_format();
  TORCH_CHECK(format != MemoryFormat::ChannelsLast, "max_pool3d: unbatched inputs must not be channels-last");
  if (format == MemoryFormat::ChannelsLast3d || HasLastChannels(self)) CheckPositions(self, 3);
  if (HasLastChannels(self)) {
    return {EmptyWithLastChannels(sizes, self.options()), EmptyWithLastChannels(sizes, self.options().dtype(at::kLong))};
  }
  return {Empty(sizes, self.options(), format), Empty(sizes, self.options().dtype(at::kLong), format)};
}

std::tuple<Tensor&, Tensor&> MaxPool3dOut(const Tensor& self, IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding,
                                          IntArrayRef dilation, bool ceil_mode, Tensor& out, Tensor& indices) {
  const auto [values, positions] = MaxPool3d(self, kernel, stride, padding, dilation, ceil_mode);
  RestrideBatchedOut(values, out, 5);
  RestrideBatchedOut(positions, indices, 5);
  if (HasLastChannels(self)) {
    for (Tensor* each : {&out, &indices}) each->unsafeGetTensorImpl()->set_sizes_and_strides(values.sizes(), values.strides());
  }
  return {out, indices};
}

Tensor MaxPool3dBackward(const Tensor& grad_output, const Tensor& self, IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding,
                         IntArrayRef dilation, bool ceil_mode, const Tensor& indices) {
  constexpr const char* kName = "max_pool3d_backward";
  const Window3d window = MakeWindow3d(kernel, stride, padding, dilation);
  CheckSameDtype(kName, self, grad_output);
  TORCH_CHECK(indices.scalar_type() == at::kLong, kName, ": indices must be int64, not ", indices.scalar_type());
  const Sizes sizes = WithSpatial(self, MaxPool3dSpatial(kName, self, window, ceil_mode));
  for (const Tensor* tensor : {&grad_output, &indices}) {
    TORCH_CHECK(tensor->dim() == self.dim() && tensor->sizes().slice(self.dim() - 4) == IntArrayRef(sizes).slice(self.dim() - 4), kName,
                ": the output has shape ", IntArrayRef(sizes), ", not ", tensor->sizes());
  }
  const MemoryFormat format = self.suggest_memory_format();
  TORCH_CHECK(format != MemoryFormat::ChannelsLast, kName, ": unbatched inputs must not be channels-last");
  return Empty(self.sizes(), self.options(), format);
}

void CheckUnpool(const char* name, const Tensor& self, const Tensor& indices, IntArrayRef output_size, int64_t spatial) {
  TORCH_CHECK(indices.scalar_type() == at::kLong, name, ": indices must be int64, not ", indices.scalar_type());
  TORCH_CHECK(static_cast<int64_t>(output_size.size()) == spatial, name, ": output_size must have ", spatial, " elements, not ",
              output_size.size());
  CheckBatched(name, self, spatial);
  TORCH_CHECK(self.sizes() == indices.sizes(), name, ": indices have shape ", indices.sizes(), ", the input ", self.sizes());
  CheckNonEmpty(name, self, 1);
  for (const int64_t size : output_size) TORCH_CHECK(size >= 0, name, ": negative output_size ", output_size);
}

Tensor MaxUnpool2d(const Tensor& self, const Tensor& indices, IntArrayRef output_size) {
  CheckUnpool("max_unpool2d", self, indices, output_size, 2);
  Tensor out = Empty(WithSpatial(self, output_size), self.options(), self.suggest_memory_format());
  if (out.numel() != 0) RequireDtype("max_unpool2d", self.scalar_type(), kFloatDtypes);
  return out;
}

Tensor MaxUnpool3d(const Tensor& self, const Tensor& indices, IntArrayRef output_size, IntArrayRef stride, IntArrayRef padding) {
  constexpr const char* kName = "max_unpool3d";
  TORCH_CHECK(stride.size() == 3 && padding.size() == 3, kName, ": stride and padding must have 3 elements");
  for (const int64_t step : stride) TORCH_CHECK(step > 0, kName, ": strides must be positive, not ", stride);
  CheckUnpool(kName, self, indices, output_size, 3);
  Tensor out = Empty(WithSpatial(self, output_size), self.options());
  if (out.numel() != 0) RequireDtype(kName, self.scalar_type(), kFloatDtypes);
  return out;
}

Tensor FractionalMaxPool3dBackward(const Tensor& grad_output, const Tensor& self, IntArrayRef /*kernel*/, IntArrayRef output_size,
                                   const Tensor& indices) {
  constexpr const char* kName = "fractional_max_pool3d_backward";
  TORCH_CHECK(output_size.size() == 3, kName, ": output_size must have 3 elements");
  TORCH_CHECK(self.dim() == 4 || self.dim() == 5, kName, ": 4 or 5 dimensions are wanted, not ", self.sizes());
  for (int64_t i = 0; i < 3; ++i) {
    TORCH_CHECK(grad_output.size(self.dim() - 3 + i) == output_size[i], kName, ": grad_output has shape ", grad_output.sizes());
  }
  CheckSameDtype(kName, self, grad_output);
  TORCH_CHECK(indices.scalar_type() == at::kLong, kName, ": indices must be int64, not ", indices.scalar_type());
  return EmptyContiguousLike(self);
}

// LibTorch's Meta kernels look at the samples' shape less than the real ones.
void CheckSamples(const char* name, const Tensor& self, const Tensor& samples, int64_t spatial) {
  TORCH_CHECK(samples.scalar_type() == self.scalar_type(), name, ": random_samples are ", samples.scalar_type(), ", the input ",
              self.scalar_type());
  TORCH_CHECK(samples.dim() == 3 && samples.size(2) == spatial, name, ": random_samples of shape ", samples.sizes());
  const bool batched = self.dim() == spatial + 2;
  TORCH_CHECK(samples.size(0) >= (batched ? self.size(0) : 1) && samples.size(1) == self.size(batched ? 1 : 0), name,
              ": random_samples of shape ", samples.sizes(), " for an input of ", self.sizes());
}
std::tuple<Tensor, Tensor> FractionalMaxPool2d(const Tensor& self, IntArrayRef kernel, IntArrayRef output_size, const Tensor& samples) {
  std::tuple<Tensor, Tensor> pooled = at::fractional_max_pool2d(self, kernel, output_size, samples);
  CheckSamples("fractional_max_pool2d", self, samples, 2);
  if (std::get<0>(pooled).numel() != 0) RequireDtype("fractional_max_pool2d", self.scalar_type(), kFloatDtypes);
  return pooled;
}
std::tuple<Tensor, Tensor> FractionalMaxPool3d(const Tensor& self, IntArrayRef kernel, IntArrayRef output_size, const Tensor& samples) {
  std::tuple<Tensor, Tensor> pooled = at::fractional_max_pool3d(self, kernel, output_size, samples);
  CheckSamples("fractional_max_pool3d", self, samples, 3);
  if (std::get<0>(pooled).numel() != 0) RequireDtype("fractional_max_pool3d", self.scalar_type(), kFloatDtypes);
  return pooled;
}

// LibTorch's doesn't compare dtypes.
Tensor AvgPool2dBackward(const Tensor& grad_output, const Tensor& self, IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding,
                         bool ceil_mode, bool count_include_pad, std::optional<int64_t> divisor_override) {
  CheckSameDtype("avg_pool2d_backward", self, grad_output);
  return at::avg_pool2d_backward(grad_output, self, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override);
}

Tensor AvgPool3dBackward(const Tensor& grad_output, const Tensor& self, IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding,
                         bool ceil_mode, bool count_include_pad, std::optional<int64_t> divisor_override) {
  CheckSameDtype("avg_pool3d_backward", self, grad_output);
  return at::avg_pool3d_backward(grad_output, self, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override);
}

// Unbatched results are written in place; others that aren't laid out as wanted are copied into.
Tensor& PooledInto(const Tensor& result, Tensor& out) {
  if (result.dim() == 4) {
    out.resize_(result.sizes(), result.suggest_memory_format());
  } else {
    out.resize_(result.sizes());
  }
  if (out.numel() != 0 && !out.is_contiguous(result.suggest_memory_format())) at::assert_no_internal_overlap(out);
  return out;
}
Tensor& AdaptiveAvgPool2dOut(const Tensor& self, IntArrayRef output_size, Tensor& out) {
  const Tensor result = AdaptiveAvgPool2d(self, output_size);
  CheckOutDtype(result, out);
  return PooledInto(result, out);
}
Tensor& MaxUnpool2dOut(const Tensor& self, const Tensor& indices, IntArrayRef output_size, Tensor& out) {
  const Tensor result = MaxUnpool2d(self, indices, output_size);
  if (result.numel() != 0) CheckOutDtype(result, out);
  return PooledInto(result, out);
}

// The kernels write where they are told to, and look at nothing but dtypes.
constexpr FakeKernelOptions kInto = {.out_dtype = FakeKernelOptions::OutDtype::kEqual, .overlap = FakeKernelOptions::Overlap::kUnchecked};

DDPOPT_FAKE_KERNELS(m) {
  m.impl("avg_pool2d_backward", AvgPool2dBackward, {.out_dtype = FakeKernelOptions::OutDtype::kEqual});
  m.impl("avg_pool3d_backward", AvgPool3dBackward, kInto);
  m.impl("_adaptive_avg_pool2d", AdaptiveAvgPool2d);
  m.impl("adaptive_avg_pool2d.out", AdaptiveAvgPool2dOut);
  m.impl("_adaptive_avg_pool2d_backward", AdaptiveAvgPool2dBackward);
  m.impl("_adaptive_avg_pool3d", AdaptiveAvgPool3d);
  m.impl("adaptive_avg_pool3d.out", AdaptiveAvgPool3dOut);
  m.impl("_adaptive_avg_pool3d_backward", AdaptiveAvgPool3dBackward);
  m.impl("adaptive_avg_pool3d_backward.grad_input", OutOf<AdaptiveAvgPool3dBackward>::Resized);
  m.impl("max_pool2d_with_indices", MaxPool2dBoxed, kThisForm);
  m.impl("max_pool3d_with_indices", MaxPool3d);
  m.impl("max_pool3d_with_indices.out", MaxPool3dOut);
  m.impl("max_pool3d_with_indices_backward", MaxPool3dBackward);
  m.impl("max_pool3d_with_indices_backward.grad_input", OutOf<MaxPool3dBackward>::Restrided);
  m.impl("max_unpool2d", MaxUnpool2d);
  m.impl("max_unpool2d.out", MaxUnpool2dOut);
  m.impl("max_unpool3d", MaxUnpool3d);
  m.impl("max_unpool3d.out", OutOf<MaxUnpool3d, OutDtype::kOfElements>::Contiguous);
  m.impl("fractional_max_pool2d", FractionalMaxPool2d, kInto);
  m.impl("fractional_max_pool3d", FractionalMaxPool3d, kInto);
  m.impl("fractional_max_pool3d_backward", FractionalMaxPool3dBackward);
  m.impl("fractional_max_pool3d_backward.grad_input", OutOf<FractionalMaxPool3dBackward>::Resized);
}

}  // namespace
}  // namespace ddpopt::kernels
