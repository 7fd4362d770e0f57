// Convolution, forward and backward, as the CPU runs it: which of oneDNN's and the native kernels takes a call decides the strides.

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

#include "ATen/Context.h"
#include "ATen/Parallel.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/add.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/mul.h"
#include "ATen/ops/narrow.h"
#include "fake_tensor/fake_kernel.h"
#include "fake_tensor/kernels/dtypes.h"
#include "fake_tensor/kernels/native_convolution.h"
#include "fake_tensor/kernels/onednn.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::IntArrayRef;
using at::MemoryFormat;
using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

struct Call {
  ConvolutionWindow window;
  bool transposed;
  int64_t groups;
};

std::vector<int64_t> Expand(const char* name, IntArrayRef list, int64_t spatial) {
  if (list.size() == 1) return std::vector<int64_t>(spatial, list[0]);
  TORCH_CHECK(static_cast<int64_t>(list.size()) == spatial, "convolution: ", name, " must have 1 or ", spatial, " elements, not ",
              list.size());
  return list.vec();
}

Call MakeCall(const Tensor& input, const Tensor& weight, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
              IntArrayRef output_padding, int64_t groups) {
  const int64_t spatial = weight.dim() - 2;
  TORCH_CHECK(spatial > 0, "convolution: the weight must have at least three dimensions, not ", weight.sizes());
  TORCH_CHECK(groups > 0, "convolution: groups must be positive");
  const Call call = {{weight.sizes().slice(2).vec(), Expand("stride", stride, spatial), Expand("padding", padding, spatial),
                      Expand("dilation", dilation, spatial), Expand("output_padding", output_padding, spatial)},
                     transposed,
                     groups};
  for (int64_t i = 0; i < spatial; ++i) {
    TORCH_CHECK(call.window.padding[i] >= 0 && call.window.output_padding[i] >= 0, "convolution: negative padding");
    TORCH_CHECK(call.window.stride[i] > 0, "convolution: strides must be positive");
    TORCH_CHECK(call.window.dilation[i] >= 0, "convolution: negative dilation");
  }
  TORCH_CHECK(input.dim() == weight.dim(), "convolution: input of ", input.dim(), " dimensions for a weight of ", weight.dim());
  TORCH_CHECK(weight.size(0) >= groups && weight.size(0) % groups == 0, "convolution: a weight of shape ", weight.sizes(),
              " doesn't divide into ", groups, " groups");
  const int64_t wanted = transposed ? weight.size(0) : weight.size(1) * groups;
  TORCH_CHECK(input.size(1) == wanted, "convolution: the weight of shape ", weight.sizes(), " with ", groups, " groups wants ", wanted,
              " input channels, not ", input.size(1));
  for (int64_t i = 0; i < spatial && !transposed; ++i) {
    TORCH_CHECK(input.size(i + 2) + 2 * call.window.padding[i] > call.window.dilation[i] * (weight.size(i + 2) - 1),
                "convolution: kernel larger than the padded input, ", weight.sizes(), " on ", input.sizes());
  }
  return call;
}

// One spatial dimension runs as the second of two, on a contiguous input.
void MakeTwoDimensional(Call* call, Tensor* input, Tensor* weight) {
  if (input->dim() != 3) return;
  ConvolutionWindow& window = call->window;
  window.kernel.insert(window.kernel.begin(), 1);
  window.stride.insert(window.stride.begin(), 1);
  window.padding.insert(window.padding.begin(), 0);
  window.dilation.insert(window.dilation.begin(), 1);
  window.output_padding.insert(window.output_padding.begin(), 0);
  *input = input->contiguous().unsqueeze(2);
  *weight = weight->unsqueeze(2);
}

std::vector<int64_t> OutputSizes(const Tensor& input, const Tensor& weight, const Call& call) {
  std::vector<int64_t> sizes = {input.size(0), call.transposed ? weight.size(1) * call.groups : weight.size(0)};
  const ConvolutionWindow& window = call.window;
  for (std::size_t i = 0; i < window.kernel.size(); ++i) {
    const int64_t reach = window.dilation[i] * (window.kernel[i] - 1);
    const int64_t in = input.size(static_cast<int64_t>(i) + 2);
    sizes.push_back(call.transposed ? (in - 1) * window.stride[i] - 2 * window.padding[i] + reach + window.output_padding[i] + 1
                                    : (in + 2 * window.padding[i] - reach - 1) / window.stride[i] + 1);
  }
  return sizes;
}

enum class Backend { kEmpty, kOneDnn, kNative };

bool UsesOneDnn(const Tensor& input, const Tensor& weight, const Call& call) {
  bool strided = false;
  bool dilated = false;
  bool big_output_padding = false;
  const ConvolutionWindow& window = call.window;
  for (std::size_t i = 0; i < window.kernel.size(); ++i) {
    strided |= window.stride[i] != 1;
    dilated |= window.dilation[i] != 1;
    big_output_padding |= window.output_padding[i] >= window.stride[i];
  }
  if ((call.transposed && big_output_padding) || !at::globalContext().userEnabledMkldnn()) return false;
  if (!OneDnnComputes(input.scalar_type())) return false;
  if (input.scalar_type() != at::kFloat) return true;
  const auto last = [](const Tensor& t, int64_t i) { return t.size(t.dim() - i); };
  const bool worthwhile =
      strided || dilated || input.size(0) >= 16 || last(weight, 1) != 1 || last(weight, 2) != 1 || at::get_num_threads() > 1;
  return worthwhile && (call.groups > 1 || (last(weight, 1) > 3 && last(weight, 2) > 3) || input.size(0) > 1 ||
                        input.size(0) * input.size(1) * input.size(2) * input.size(3) > 20480);
}

Backend Choose(const Tensor& input, const Tensor& weight, const Call& call) {
  if (input.size(0) == 0 || input.size(1) == 0) return Backend::kEmpty;
  TORCH_CHECK(input.numel() != 0, "convolution: only batch and channels may be zero, not ", input.sizes());
  return UsesOneDnn(input, weight, call) ? Backend::kOneDnn : Backend::kNative;
}

MemoryFormat OneDnnFormat(const Tensor& input, const Tensor& weight) {
  if (input.scalar_type() == at::kDouble || weight.scalar_type() == at::kDouble) return MemoryFormat::Contiguous;
  if (input.dim() != 5) return NativeConvolutionFormat(input, weight);
  const bool last =
      input.suggest_memory_format() == MemoryFormat::ChannelsLast3d || weight.suggest_memory_format() == MemoryFormat::ChannelsLast3d;
  return last ? MemoryFormat::ChannelsLast3d : MemoryFormat::Contiguous;
}

// It takes a dilation of 0 for one of 1, but not in three spatial dimensions, and forward only if transposed, with one element there.
void CheckOneDnn(const Tensor& input, const Tensor& weight, const Call& call, const std::vector<int64_t>& sizes, bool forward) {
  for (const int64_t size : sizes) {
    TORCH_CHECK(size >= 0, "convolution: the output would have a negative size, input ", input.sizes(), ", weight ", weight.sizes());
  }
  for (std::size_t i = 0; i < call.window.kernel.size(); ++i) {
    TORCH_CHECK(call.window.kernel[i] > 0, "convolution: kernel sizes must be positive, not ", weight.sizes());
    const bool taken = call.window.kernel.size() < 3 && (!forward || (call.transposed && call.window.kernel[i] == 1));
    TORCH_CHECK(call.window.dilation[i] > 0 || taken, "convolution: dilations must be positive");
  }
}

// The output's gradient must have the shape of an output. Of a transposed convolution any will do from which the input's shape follows.
void CheckOneDnnGrad(const Tensor& grad_output, const Tensor& input, const Tensor& weight, const Call& call) {
  const ConvolutionWindow& window = call.window;
  bool fits = grad_output.dim() == input.dim() && grad_output.size(0) == input.size(0) &&
              grad_output.size(1) == (call.transposed ? weight.size(1) * call.groups : weight.size(0));
  for (std::size_t i = 0; i < window.kernel.size() && fits; ++i) {
    const int64_t in = input.size(static_cast<int64_t>(i) + 2), out = grad_output.size(static_cast<int64_t>(i) + 2);
    const int64_t reach = std::max<int64_t>(window.dilation[i], 1) * (window.kernel[i] - 1) + 1;
    const int64_t larger = (call.transposed ? out - window.output_padding[i] : in) + 2 * window.padding[i] - reach;
    fits = larger >= 0 && larger / window.stride[i] + 1 == (call.transposed ? in : out);
  }
  TORCH_CHECK(fits, "convolution_backward: grad_output has shape ", grad_output.sizes(), " for an input of ", input.sizes());
}

// What oneDNN computes gradients of: each product has its own list of dtypes there, and doesn't look at the third tensor's. The input is of
// a dtype that it computes.
void CheckOneDnnDtypes(const Tensor& grad_output, const Tensor& input, const Tensor& weight, bool transposed,
                       const std::array<bool, 3>& output_mask) {
  const at::ScalarType grad = grad_output.scalar_type();
  if (output_mask[1] || output_mask[2]) {
    TORCH_CHECK(grad == input.scalar_type(), "convolution_backward: grad_output is ", grad, ", the input ", input.scalar_type());
  }
  if (!output_mask[0]) return;
  if (transposed) {
    TORCH_CHECK(grad == weight.scalar_type() && OneDnnComputes(grad), "convolution_backward: grad_output is ", grad, ", the weight ",
                weight.scalar_type());
    return;
  }
  constexpr Dtypes kBoth = {at::kFloat, at::kBFloat16}, kBytes = {at::kByte, at::kChar}, kNone = {};
  const Dtypes half = OneDnnComputes(at::kHalf) ? Dtypes{at::kHalf} : kNone;
  Dtypes weights = kNone;
  if (grad == at::kFloat) {
    weights = kBoth | kBytes | Dtypes{at::kHalf};
  } else if (grad == at::kBFloat16 || grad == at::kHalf) {
    if (OneDnnComputes(grad)) weights = kBoth | kBytes | half;
  } else if (grad == at::kChar) {
    weights = Dtypes{at::kFloat, at::kChar} | (OneDnnComputes(at::kBFloat16) ? Dtypes{at::kBFloat16} : kNone);
  }
  RequireDtype("convolution_backward", weight.scalar_type(), weights);
}

Tensor JoinGroups(const Tensor& one, int64_t dim, int64_t groups) { return at::cat(std::vector<Tensor>(groups, one), dim); }
Tensor FirstGroup(const Tensor& tensor, int64_t dim, int64_t groups) {
  return groups == 1 ? tensor : at::narrow(tensor, dim, 0, tensor.size(dim) / groups);
}

Tensor Convolution(const Tensor& input_arg, const Tensor& weight_arg, const MaybeTensor& bias, IntArrayRef stride, IntArrayRef padding,
                   IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups) {
  Call call = MakeCall(input_arg, weight_arg, stride, padding, dilation, transposed, output_padding, groups);
  const int64_t channels = transposed ? weight_arg.size(1) * groups : weight_arg.size(0);
  TORCH_CHECK(!Given(bias) || (bias->dim() == 1 && bias->size(0) == channels), "convolution: the bias must have ", channels, " elements");
  Tensor input = input_arg;
  Tensor weight = weight_arg;
  MakeTwoDimensional(&call, &input, &weight);
  const std::vector<int64_t> sizes = OutputSizes(input, weight, call);
  Tensor output;
  switch (Choose(input, weight, call)) {
    case Backend::kEmpty: {
      // A product of what is there.
      const Tensor flat = weight.contiguous().view(-1);
      output = input.size(1) == 0 ? at::mul(input.view(-1), flat) : at::mul(input, flat[0]);
      if (Given(bias)) output.add_((*bias)[0]);
      output = output.view(sizes);
      break;
    }
    case Backend::kOneDnn:
      TORCH_CHECK(input.scalar_type() == weight.scalar_type() && (!Given(bias) || bias->scalar_type() == input.scalar_type()),
                  "convolution: input, weight and bias must have one dtype");
      CheckOneDnn(input, weight, call, sizes, /*forward=*/true);
      output = Empty(sizes, input.options(), OneDnnFormat(input, weight));
      break;
    case Backend::kNative: {
      const MemoryFormat format = NativeConvolutionFormat(input, weight);
      const MaybeTensor one_bias = Given(bias) ? MaybeTensor(FirstGroup(*bias, 0, groups)) : std::nullopt;
      output = NativeConvolution(FirstGroup(input.contiguous(format), 1, groups), FirstGroup(weight.contiguous(format), 0, groups),
                                 one_bias, call.window, transposed);
      if (groups > 1) output = JoinGroups(output, 1, groups);
      break;
    }
  }
  return weight_arg.dim() == 3 ? output.squeeze(2) : output;
}

std::tuple<Tensor, Tensor, Tensor> ConvolutionBackward(const Tensor& grad_output_arg, const Tensor& input_arg, const Tensor& weight_arg,
                                                       at::OptionalIntArrayRef bias_sizes, IntArrayRef stride, IntArrayRef padding,
                                                       IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups,
                                                       std::array<bool, 3> output_mask) {
  Call call = MakeCall(input_arg, weight_arg, stride, padding, dilation, transposed, output_padding, groups);
  TORCH_CHECK(grad_output_arg.dim() == input_arg.dim(), "convolution_backward: input and grad_output differ in their number of dimensions");
  for (const int64_t size : output_padding) {
    TORCH_CHECK(transposed || size == 0, "convolution_backward: output_padding is for transposed convolutions");
  }
  Tensor input = input_arg;
  Tensor weight = weight_arg;
  MakeTwoDimensional(&call, &input, &weight);
  const Tensor grad_output = grad_output_arg.dim() == 3 ? grad_output_arg.contiguous().unsqueeze(2) : grad_output_arg;
  Tensor grad_input;
  Tensor grad_weight;
  Tensor grad_bias;
  switch (Choose(input, weight, call)) {
    case Backend::kEmpty:
      if (output_mask[0]) grad_input = at::empty_like(input);
      if (output_mask[1]) grad_weight = at::empty_like(weight);
      if (output_mask[2]) {
        TORCH_CHECK(bias_sizes.has_value(), "convolution_backward: bias_sizes is wanted");
        grad_bias = Empty(*bias_sizes, weight.options());
      }
      break;
    case Backend::kOneDnn: {
      const std::vector<int64_t> sizes = OutputSizes(input, weight, call);
      const MemoryFormat format = OneDnnFormat(input, weight);
      if (output_mask[0] || output_mask[1] || output_mask[2]) {
        CheckOneDnnDtypes(grad_output, input, weight, call.transposed, output_mask);
        CheckOneDnn(input, weight, call, sizes, /*forward=*/false);
        CheckOneDnnGrad(grad_output, input, weight, call);
      }
      if (output_mask[0]) grad_input = Empty(input.sizes(), grad_output.options(), format);
      // The kernel for the bias gives the weight's gradient too, which is handed on as it is.
      if (output_mask[1] || output_mask[2]) grad_weight = Empty(weight.sizes(), grad_output.options(), format);
      if (output_mask[2]) grad_bias = Empty({grad_output.size(1)}, grad_output.options());
      break;
    }
    case Backend::kNative: {
      const MemoryFormat format = NativeConvolutionFormat(input, weight);
      const auto one = NativeConvolutionBackward(FirstGroup(grad_output, 1, groups), FirstGroup(input.contiguous(format), 1, groups),
                                                 FirstGroup(weight.contiguous(format), 0, groups), call.window, transposed, output_mask);
      std::tie(grad_input, grad_weight, grad_bias) = one;
      if (groups > 1) {
        if (output_mask[0]) grad_input = JoinGroups(grad_input, 1, groups);
        if (output_mask[1]) grad_weight = JoinGroups(grad_weight, 0, groups);
        if (output_mask[2]) grad_bias = JoinGroups(grad_bias, 0, groups);
      }
      break;
    }
  }
  if (weight_arg.dim() == 3) {
    if (output_mask[0]) grad_input = grad_input.squeeze(2);
    if (output_mask[1]) grad_weight = grad_weight.squeeze(2);
  }
  return {grad_input, grad_weight, grad_bias};
}

// The same kernel under the name that it has below convolution.
Tensor InnerConvolution(const Tensor& input, const Tensor& weight, const MaybeTensor& bias, IntArrayRef stride, IntArrayRef padding,
                        IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups, bool /*benchmark*/,
                        bool /*deterministic*/, bool /*cudnn_enabled*/, bool /*allow_tf32*/) {
  return Convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups);
}

Tensor OneDnnConvolution(const Tensor& input, const Tensor& weight, const MaybeTensor& bias, IntArrayRef padding, IntArrayRef stride,
                         IntArrayRef dilation, int64_t groups) {
  const std::vector<int64_t> no_output_padding(padding.size(), 0);
  const Call call = MakeCall(input, weight, stride, padding, dilation, false, no_output_padding, groups);
  TORCH_CHECK(input.scalar_type() == weight.scalar_type() && (!Given(bias) || bias->scalar_type() == input.scalar_type()),
              "mkldnn_convolution: input, weight and bias must have one dtype");
  TORCH_CHECK(!Given(bias) || (bias->dim() == 1 && bias->size(0) == weight.size(0)), "mkldnn_convolution: the bias must have ",
              weight.size(0), " elements");
  const std::vector<int64_t> sizes = OutputSizes(input, weight, call);
  CheckOneDnn(input, weight, call, sizes, /*forward=*/true);
  return Empty(sizes, input.options(), OneDnnFormat(input, weight));
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("convolution", Convolution);
  m.impl("_convolution", InnerConvolution);
  m.impl("mkldnn_convolution", OneDnnConvolution);
  m.impl("convolution_backward", ConvolutionBackward);
}

}  // namespace
}  // namespace ddpopt::kernels
