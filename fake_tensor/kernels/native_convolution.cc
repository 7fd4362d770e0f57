// aten's slow_conv* kernels.

#include "fake_tensor/kernels/native_convolution.h"

#include <algorithm>
#include <string>

#include "ATen/native/Resize.h"
#include "ATen/ops/resize.h"
#include "fake_tensor/fake_kernel.h"
#include "fake_tensor/kernels/dtypes.h"
#include "fake_tensor/kernels/shapes.h"
#include "fake_tensor/kernels/typed_outputs.h"

namespace ddpopt::kernels {
namespace {

using at::IntArrayRef;
using at::MemoryFormat;
using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using Sizes = std::vector<int64_t>;

bool AllPositive(const Sizes& list) {
  return std::all_of(list.begin(), list.end(), [](int64_t value) { return value > 0; });
}

int64_t FloorDivide(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

void CheckWindow(const char* name, const ConvolutionWindow& window, bool dilated) {
  TORCH_CHECK(AllPositive(window.kernel), name, ": kernel sizes must be positive, not ", IntArrayRef(window.kernel));
  TORCH_CHECK(AllPositive(window.stride), name, ": strides must be positive, not ", IntArrayRef(window.stride));
  TORCH_CHECK(!dilated || AllPositive(window.dilation), name, ": dilations must be positive, not ", IntArrayRef(window.dilation));
}

void CheckSize(const char* name, const Tensor& tensor, int64_t dims, int64_t dim, int64_t size) {
  TORCH_CHECK(tensor.dim() == dims && tensor.size(dim) == size, name, ": a tensor of ", dims, " dimensions with size(", dim, ") == ", size,
              " is wanted, not ", tensor.sizes());
}

// The spatial sizes of the output, all at least `smallest`.
Sizes SpatialOutput(const char* name, const Tensor& input, int64_t first, const ConvolutionWindow& window, bool transposed,
                    int64_t smallest = 1) {
  Sizes sizes;
  for (std::size_t i = 0; i < window.kernel.size(); ++i) {
    const int64_t in = input.size(first + static_cast<int64_t>(i));
    const int64_t reach = window.dilation[i] * (window.kernel[i] - 1) + 1;
    const int64_t out = transposed ? (in - 1) * window.stride[i] - 2 * window.padding[i] + reach + window.output_padding[i]
                                   : FloorDivide(in + 2 * window.padding[i] - reach, window.stride[i]) + 1;
    TORCH_CHECK(out >= smallest, name, ": the output would be too small, input ", input.sizes(), ", kernel ", IntArrayRef(window.kernel));
    sizes.push_back(out);
  }
  return sizes;
}

void CheckGrad(const char* name, const Tensor& grad_output, int64_t channels, const Sizes& spatial) {
  const int64_t dims = static_cast<int64_t>(spatial.size()) + 2;
  CheckSize(name, grad_output, dims, 1, channels);
  for (int64_t i = 2; i < dims; ++i) CheckSize(name, grad_output, dims, i, spatial[i - 2]);
}

// slow_conv2d, whose weight may come as a matrix, and slow_conv3d.
Sizes PlainOutput(const char* name, const Tensor& input, const Tensor& weight, const MaybeTensor& bias, const ConvolutionWindow& window) {
  const int64_t spatial = static_cast<int64_t>(window.kernel.size());
  CheckWindow(name, window, false);
  const bool matrix = spatial == 2 && weight.dim() == 2 && input.suggest_memory_format() == MemoryFormat::Contiguous;
  TORCH_CHECK(weight.numel() > 0 && (matrix || weight.dim() == spatial + 2), name, ": a non-empty weight of ", spatial + 2,
              " dimensions is wanted, not ", weight.sizes());
  if (Given(bias)) CheckSize(name, *bias, 1, 0, weight.size(0));
  TORCH_CHECK(input.dim() == spatial + 2, name, ": an input of ", spatial + 2, " dimensions is wanted, not ", input.sizes());
  for (int64_t i = spatial == 2 ? 2 : 1; i < input.dim(); ++i) {
    TORCH_CHECK(input.size(i) != 0, name, ": the input has no elements: ", input.sizes());
  }
  for (int64_t i = 0; i < spatial; ++i) {
    TORCH_CHECK(input.size(i + 2) + 2 * window.padding[i] >= window.kernel[i], name, ": kernel ", IntArrayRef(window.kernel),
                " is larger than the padded input, ", input.sizes());
  }
  const Sizes out = SpatialOutput(name, input, 2, window, false);
  int64_t taps = 1;
  for (const int64_t size : window.kernel) taps *= size;
  // In three dimensions input channels that are a multiple of the weight's are as many groups.
  const int64_t planes = spatial == 3 ? weight.size(1) * (input.size(1) / weight.size(1)) : weight.numel() / weight.size(0) / taps;
  CheckSize(name, input, spatial + 2, 1, planes);
  Sizes sizes = {input.size(0), weight.size(0)};
  sizes.insert(sizes.end(), out.begin(), out.end());
  return sizes;
}

// What the kernels of dilated and transposed convolutions are compiled for.
constexpr Dtypes kTransposedDtypes = kFloatDtypes | Dtypes{at::kLong};

void CheckDtypes(const char* name, const Tensor& input, const Tensor& weight) {
  TORCH_CHECK(input.scalar_type() == weight.scalar_type(), name, ": expected the weight to be ", input.scalar_type(), ", found ",
              weight.scalar_type());
}

// slow_conv_dilated2d and 3d, which take unbatched inputs too.
Sizes DilatedOutput(const char* name, const Tensor& input, const Tensor& weight, const MaybeTensor& bias, const ConvolutionWindow& window) {
  const int64_t spatial = static_cast<int64_t>(window.kernel.size());
  CheckWindow(name, window, true);
  TORCH_CHECK(input.dim() == spatial + 2 || input.dim() == spatial + 1, name, ": an input of ", spatial + 1, " or ", spatial + 2,
              " dimensions is wanted, not ", input.sizes());
  const int64_t batch_dims = input.dim() - spatial - 1;
  const Sizes out = SpatialOutput(name, input, batch_dims + 1, window, false, /*smallest=*/0);
  TORCH_CHECK(weight.dim() == spatial + 2 && weight.sizes().slice(2) == IntArrayRef(window.kernel), name, ": a weight of kernel size ",
              IntArrayRef(window.kernel), " is wanted, not ", weight.sizes());
  TORCH_CHECK(input.size(batch_dims) == weight.size(1), name, ": ", weight.size(1), " input channels are wanted, not ",
              input.size(batch_dims));
  if (Given(bias)) CheckSize(name, *bias, 1, 0, weight.size(0));
  Sizes sizes(input.sizes().begin(), input.sizes().begin() + batch_dims);
  sizes.push_back(weight.size(0));
  sizes.insert(sizes.end(), out.begin(), out.end());
  return sizes;
}

Sizes TransposedOutput(const char* name, const Tensor& input, const Tensor& weight, const MaybeTensor& bias,
                       const ConvolutionWindow& window) {
  const int64_t spatial = static_cast<int64_t>(window.kernel.size());
  CheckWindow(name, window, true);
  for (int64_t i = 0; i < spatial; ++i) {
    TORCH_CHECK(window.output_padding[i] < window.stride[i] || window.output_padding[i] < window.dilation[i], name,
                ": output_padding must be smaller than stride or dilation");
  }
  TORCH_CHECK(input.numel() != 0 && (input.dim() == spatial + 1 || input.dim() == spatial + 2), name, ": a non-empty input of ",
              spatial + 1, " or ", spatial + 2, " dimensions is wanted, not ", input.sizes());
  TORCH_CHECK(weight.numel() != 0 && (weight.dim() == 2 || weight.dim() == spatial + 2), name, ": a non-empty weight of ", spatial + 2,
              " dimensions is wanted, not ", weight.sizes());
  TORCH_CHECK(spatial == 2 || weight.sizes().slice(2) == IntArrayRef(window.kernel), name, ": a weight of kernel size ",
              IntArrayRef(window.kernel), " is wanted, not ", weight.sizes());
  if (Given(bias)) {
    TORCH_CHECK(spatial == 2 || bias->scalar_type() == input.scalar_type(), name, ": expected the bias to be ", input.scalar_type(),
                ", found ", bias->scalar_type());
    CheckSize(name, *bias, 1, 0, weight.size(1));
    TORCH_CHECK(c10::canCast(bias->scalar_type(), input.scalar_type()), name, ": a bias of ", bias->scalar_type(), " can't be added to ",
                input.scalar_type());
  }
  const int64_t batch_dims = input.dim() - spatial - 1;
  const Sizes out = SpatialOutput(name, input, batch_dims + 1, window, true);
  CheckSize(name, input, input.dim(), batch_dims, weight.size(0));
  Sizes sizes(input.sizes().begin(), input.sizes().begin() + batch_dims);
  sizes.push_back(weight.size(1));
  sizes.insert(sizes.end(), out.begin(), out.end());
  return sizes;
}

// Every pixel on its own.
bool HasOneTap(const ConvolutionWindow& window) {
  const auto all = [](const Sizes& list, int64_t wanted) {
    return std::all_of(list.begin(), list.end(), [&](int64_t value) { return value == wanted; });
  };
  return all(window.kernel, 1) && all(window.stride, 1) && all(window.padding, 0);
}

bool IsDilated(const ConvolutionWindow& window) {
  return std::any_of(window.dilation.begin(), window.dilation.end(), [](int64_t value) { return value != 1; });
}

// The kernel gives an input without a batch one of a single image. Of one that had to be copied nobody sees it; else it is the operand
// itself, which keeps the batch, and so does the result.
Tensor Transposed2d(const char* name, const Tensor& input, const Tensor& weight, const MaybeTensor& bias, const ConvolutionWindow& window) {
  Sizes sizes = TransposedOutput(name, input, weight, bias, window);
  CheckDtypes(name, input, weight);
  const MemoryFormat format = NativeConvolutionFormat(input, weight);
  TORCH_CHECK(input.dim() == 4 || format == MemoryFormat::Contiguous, name, ": channels-last is for batched inputs");
  if (sizes.size() == 3 && input.is_contiguous()) {
    sizes.insert(sizes.begin(), 1);
    input.resize_({1, input.size(0), input.size(1), input.size(2)});
  }
  return Empty(sizes, input.options(), format);
}

Tensor Transposed3d(const char* name, const Tensor& input, const Tensor& weight, const MaybeTensor& bias, const ConvolutionWindow& window) {
  const Sizes sizes = TransposedOutput(name, input, weight, bias, window);
  CheckDtypes(name, input, weight);
  // The output begins with the input's shape, and its storage keeps that size.
  Tensor output = EmptyContiguousLike(input);
  output.resize_(sizes);
  return output;
}

ConvolutionWindow Window(const char* name, int64_t spatial, IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding,
                         at::OptionalIntArrayRef dilation = {}, at::OptionalIntArrayRef output_padding = {}) {
  const auto checked = [&](IntArrayRef list) {
    TORCH_CHECK(static_cast<int64_t>(list.size()) == spatial, name, ": lists of ", spatial, " elements are wanted, not ", list);
    return list.vec();
  };
  const Sizes none(spatial, 0);
  const Sizes ones(spatial, 1);
  return {checked(kernel), checked(stride), checked(padding), checked(dilation.value_or(ones)), checked(output_padding.value_or(none))};
}

}  // namespace

MemoryFormat NativeConvolutionFormat(const Tensor& input, const Tensor& weight) {
  const bool last =
      input.suggest_memory_format() == MemoryFormat::ChannelsLast || weight.suggest_memory_format() == MemoryFormat::ChannelsLast;
  return last ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous;
}

Tensor NativeConvolution(const Tensor& input, const Tensor& weight, const MaybeTensor& bias, const ConvolutionWindow& window,
                         bool transposed) {
  const bool flat = window.kernel.size() == 2;
  if (transposed) {
    RequireDtype("slow_conv_transpose", input.scalar_type(), kTransposedDtypes);
    return flat ? Transposed2d("slow_conv_transpose2d", input, weight, bias, window)
                : Transposed3d("slow_conv_transpose3d", input, weight, bias, window);
  }
  const bool dilated = IsDilated(window);
  const char* name = dilated ? (flat ? "slow_conv_dilated2d" : "slow_conv_dilated3d") : (flat ? "slow_conv2d" : "slow_conv3d");
  const Sizes sizes = dilated ? DilatedOutput(name, input, weight, bias, window) : PlainOutput(name, input, weight, bias, window);
  RequireDtype(name, input.scalar_type(), dilated ? kTransposedDtypes : kRealDtypes);
  CheckDtypes(name, input, weight);
  return Empty(sizes, input.options(), NativeConvolutionFormat(input, weight));
}

ConvolutionGrads NativeConvolutionBackward(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                                           const ConvolutionWindow& window, bool transposed, std::array<bool, 3> output_mask) {
  const bool flat = window.kernel.size() == 2;
  const bool dilated = IsDilated(window);
  const char* name = transposed ? (flat ? "slow_conv_transpose2d_backward" : "slow_conv_transpose3d_backward")
                     : dilated  ? (flat ? "slow_conv_dilated2d_backward" : "slow_conv_dilated3d_backward")
                                : (flat ? "slow_conv2d_backward" : "slow_conv3d_backward");
  TORCH_CHECK(c10::isFloatingType(grad_output.scalar_type()) || c10::isComplexType(grad_output.scalar_type()) || (dilated && !transposed) ||
                  (!output_mask[0] && !output_mask[1]),
              name, ": not implemented for ", grad_output.scalar_type());
  // Without anything but the bias to compute, some kernels aren't reached.
  const bool reached = output_mask[0] || output_mask[1] || (dilated && !transposed) || (transposed && !flat && output_mask[2]);
  ConvolutionGrads grads;
  if (reached) {
    const Sizes sizes = transposed ? TransposedOutput(name, input, weight, {}, window)
                        : dilated  ? DilatedOutput(name, input, weight, {}, window)
                                   : PlainOutput(name, input, weight, {}, window);
    CheckGrad(name, grad_output, sizes[1], Sizes(sizes.begin() + 2, sizes.end()));
    // Some look at the batches; a transposed one comes to the gradient of each of the input's images.
    TORCH_CHECK(!dilated || transposed || grad_output.size(0) == input.size(0), name, ": grad_output is of ", grad_output.size(0),
                " images, the input of ", input.size(0));
    TORCH_CHECK(!transposed || grad_output.size(0) >= input.size(0), name, ": grad_output is of ", grad_output.size(0),
                " images, the input of ", input.size(0));
  }
  if (dilated && !transposed) RequireDtype(name, input.scalar_type(), kTransposedDtypes);
  if (output_mask[0]) {
    // The one kernel that asks for its gradient's dtype and not the input's, which only columns have.
    const Tensor& asked = transposed && flat ? grad_output : input;
    if (!dilated || transposed) RequireDtype(name, asked.scalar_type(), kFloatDtypes);
    if (!transposed || !flat || dilated || !HasOneTap(window)) CheckDtypes(name, grad_output, input);
    CheckDtypes(name, grad_output, weight);
  }
  if (transposed && !flat && reached) RequireDtype(name, input.scalar_type(), kFloatDtypes);
  if (output_mask[1]) {
    // Real numbers alone, without a batch as well.
    if (transposed || !dilated) RequireDtype(name, input.scalar_type(), kFloatDtypes);
    CheckDtypes(name, grad_output, input);
  }
  const MemoryFormat format = NativeConvolutionFormat(input, weight);
  if (output_mask[0]) std::get<0>(grads) = Empty(input.sizes(), grad_output.options(), format);
  if (output_mask[1] && input.numel() != 0 && flat && !transposed && !dilated && format == MemoryFormat::Contiguous && HasOneTap(window)) {
    input.view({input.size(0), input.size(1), -1});  // takes the input for its columns
  }
  if (output_mask[1]) {
    const MemoryFormat weight_format = flat && (transposed || !dilated) ? weight.suggest_memory_format() : format;
    std::get<1>(grads) = Empty(weight.sizes(), grad_output.options(), weight_format);
    TORCH_CHECK(std::get<1>(grads).is_contiguous(format), name, ": the weight's gradient isn't laid out as the input");
  }
  if (output_mask[2]) {
    // Sums are added up, and those of bools are integers.
    TORCH_CHECK(!dilated || transposed || grad_output.scalar_type() != at::kBool, name, ": not implemented for ",
                grad_output.scalar_type());
    TORCH_CHECK(grad_output.dim() >= (flat ? 4 : 5), name, ": grad_output has shape ", grad_output.sizes());
    std::get<2>(grads) = Empty({grad_output.size(1)}, grad_output.options());
  }
  return grads;
}

namespace {

Tensor SlowConv2d(const Tensor& input, const Tensor& weight, IntArrayRef kernel, const MaybeTensor& bias, IntArrayRef stride,
                  IntArrayRef padding) {
  return NativeConvolution(input, weight, bias, Window("slow_conv2d", 2, kernel, stride, padding), false);
}
ConvolutionGrads SlowConv2dBackward(const Tensor& grad_output, const Tensor& input, const Tensor& weight, IntArrayRef kernel,
                                    IntArrayRef stride, IntArrayRef padding, std::array<bool, 3> output_mask) {
  return NativeConvolutionBackward(grad_output, input, weight, Window("slow_conv2d_backward", 2, kernel, stride, padding), false,
                                   output_mask);
}
Tensor SlowConv3d(const Tensor& input, const Tensor& weight, IntArrayRef kernel, const MaybeTensor& bias, IntArrayRef stride,
                  IntArrayRef padding) {
  return NativeConvolution(input, weight, bias, Window("slow_conv3d", 3, kernel, stride, padding), false);
}

template <int kSpatial>
Tensor SlowConvDilated(const Tensor& input, const Tensor& weight, IntArrayRef kernel, const MaybeTensor& bias, IntArrayRef stride,
                       IntArrayRef padding, IntArrayRef dilation) {
  constexpr const char* kName = kSpatial == 2 ? "slow_conv_dilated2d" : "slow_conv_dilated3d";
  const Sizes sizes = DilatedOutput(kName, input, weight, bias, Window(kName, kSpatial, kernel, stride, padding, dilation));
  if (sizes.size() == kSpatial + 1 || sizes[0] != 0) CheckDtypes(kName, input, weight);  // compared image by image
  return Empty(sizes, input.options(), NativeConvolutionFormat(input, weight));
}

Tensor SlowConvTranspose3d(const Tensor& input, const Tensor& weight, IntArrayRef kernel, const MaybeTensor& bias, IntArrayRef stride,
                           IntArrayRef padding, IntArrayRef output_padding, IntArrayRef dilation) {
  constexpr const char* kName = "slow_conv_transpose3d";
  return Transposed3d(kName, input, weight, bias, Window(kName, 3, kernel, stride, padding, dilation, output_padding));
}

Tensor SlowConvTranspose2d(const Tensor& input, const Tensor& weight, IntArrayRef kernel, const MaybeTensor& bias, IntArrayRef stride,
                           IntArrayRef padding, IntArrayRef output_padding, IntArrayRef dilation) {
  constexpr const char* kName = "slow_conv_transpose2d";
  return Transposed2d(kName, input, weight, bias, Window(kName, 2, kernel, stride, padding, dilation, output_padding));
}

Tensor& SlowConvTranspose2dOut(const Tensor& input, const Tensor& weight, IntArrayRef kernel, const MaybeTensor& bias, IntArrayRef stride,
                               IntArrayRef padding, IntArrayRef output_padding, IntArrayRef dilation, Tensor& out) {
  const Tensor result = SlowConvTranspose2d(input, weight, kernel, bias, stride, padding, output_padding, dilation);
  CheckOutDtype(result, out);
  if (result.dim() == 3) {
    // Batched first.
    at::native::resize_output(out, result.unsqueeze(0).sizes());
    out.resize_(result.sizes());
  } else if (at::native::resize_output(out, result.sizes())) {
    out.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides());
  }
  return out;
}

// The output is batched for as long as it is computed, and contiguous afterwards.
Tensor& SlowConvTranspose3dOut(const Tensor& input, const Tensor& weight, IntArrayRef kernel, const MaybeTensor& bias, IntArrayRef stride,
                               IntArrayRef padding, IntArrayRef output_padding, IntArrayRef dilation, Tensor& out) {
  const Tensor result = SlowConvTranspose3d(input, weight, kernel, bias, stride, padding, output_padding, dilation);
  CheckOutDtype(result, out);
  if (result.dim() == 4) out.resize_(result.unsqueeze(0).sizes());
  out.resize_(result.sizes());
  return out;
}

std::tuple<Tensor&, Tensor&, Tensor&> SlowConv2dBackwardOut(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                                                            IntArrayRef kernel, IntArrayRef stride, IntArrayRef padding, Tensor& grad_input,
                                                            Tensor& grad_weight, Tensor& grad_bias) {
  const std::array<bool, 3> mask = {grad_input.defined(), grad_weight.defined(), grad_bias.defined()};
  const auto grads = SlowConv2dBackward(grad_output, input, weight, kernel, stride, padding, mask);
  const auto fill = [](const Tensor& from, Tensor& to) {
    if (!to.defined()) return;
    to.resize_(from.sizes(), from.suggest_memory_format());
  };
  if (mask[0]) CheckOutDtype(std::get<0>(grads), grad_input);
  if (mask[1]) CheckOutDtype(std::get<1>(grads), grad_weight);
  fill(std::get<0>(grads), grad_input);
  fill(std::get<1>(grads), grad_weight);
  fill(std::get<2>(grads), grad_bias);
  return {grad_input, grad_weight, grad_bias};
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("_slow_conv2d_forward", SlowConv2d);
  m.impl("_slow_conv2d_forward.output", OutOf<SlowConv2d>::Restrided);
  m.impl("_slow_conv2d_backward.output_mask", SlowConv2dBackward);
  m.impl("_slow_conv2d_backward.grad_input", SlowConv2dBackwardOut);
  m.impl("slow_conv3d_forward", SlowConv3d);
  m.impl("slow_conv3d_forward.output", OutOf<SlowConv3d>::Contiguous);
  m.impl("slow_conv_dilated2d", SlowConvDilated<2>);
  m.impl("slow_conv_dilated3d", SlowConvDilated<3>);
  m.impl("slow_conv_transpose2d", SlowConvTranspose2d);
  m.impl("slow_conv_transpose2d.out", SlowConvTranspose2dOut);
  m.impl("slow_conv_transpose3d", SlowConvTranspose3d);
  m.impl("slow_conv_transpose3d.out", SlowConvTranspose3dOut);
}

}  // namespace
}  // namespace ddpopt::kernels
