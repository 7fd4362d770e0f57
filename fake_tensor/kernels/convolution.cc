// Convolution, forward and backward, in the memory formats that the CPU's oneDNN and native kernels choose.

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

// Lists may hold one element for all dimensions.
int64_t At(IntArrayRef list, int64_t i) { return list.size() == 1 ? list[0] : list[i]; }

std::vector<int64_t> OutputSizes(const Tensor& input, const Tensor& weight, IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                 bool transposed, IntArrayRef output_padding, int64_t groups) {
  const int64_t spatial = weight.dim() - 2;
  TORCH_CHECK(spatial > 0 && input.dim() == weight.dim(), "convolution: input of ", input.dim(), " dimensions for a weight of ",
              weight.dim());
  const int64_t wanted = transposed ? weight.size(0) : weight.size(1) * groups;
  TORCH_CHECK(input.size(1) == wanted, "convolution: the weight of shape ", weight.sizes(), " with ", groups, " groups wants ", wanted,
              " input channels, not ", input.size(1));
  TORCH_CHECK(input.scalar_type() == weight.scalar_type(), "convolution: input is ", input.scalar_type(), ", weight is ",
              weight.scalar_type());
  std::vector<int64_t> sizes = {input.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
  for (int64_t i = 0; i < spatial; ++i) {
    const int64_t reach = At(dilation, i) * (weight.size(i + 2) - 1);
    const int64_t in = input.size(i + 2);
    const int64_t out = transposed ? (in - 1) * At(stride, i) - 2 * At(padding, i) + reach + At(output_padding, i) + 1
                                   : (in + 2 * At(padding, i) - reach - 1) / At(stride, i) + 1;
    TORCH_CHECK(in + 2 * At(padding, i) > reach || transposed, "convolution: kernel larger than the padded input, ", weight.sizes(), " on ",
                input.sizes());
    TORCH_CHECK(out > 0, "convolution: the output would be empty, input ", input.sizes(), ", weight ", weight.sizes());
    sizes.push_back(out);
  }
  return sizes;
}

at::MemoryFormat FormatFor(const Tensor& input, const Tensor& weight) {
  if (input.scalar_type() == at::kDouble) return at::MemoryFormat::Contiguous;
  for (const at::MemoryFormat format : {at::MemoryFormat::ChannelsLast, at::MemoryFormat::ChannelsLast3d}) {
    if (input.dim() != (format == at::MemoryFormat::ChannelsLast ? 4 : 5)) continue;
    if (input.suggest_memory_format() == format || weight.suggest_memory_format() == format) return format;
  }
  return at::MemoryFormat::Contiguous;
}

Tensor Convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, IntArrayRef stride, IntArrayRef padding,
                   IntArrayRef dilation, bool transposed, IntArrayRef output_padding, int64_t groups) {
  const std::vector<int64_t> sizes = OutputSizes(input, weight, stride, padding, dilation, transposed, output_padding, groups);
  TORCH_CHECK(!Given(bias) || (bias->dim() == 1 && bias->size(0) == sizes[1]), "convolution: the bias must have ", sizes[1], " elements");
  return Empty(sizes, input.options(), FormatFor(input, weight));
}

std::tuple<Tensor, Tensor, Tensor> ConvolutionBackward(const Tensor& grad_output, const Tensor& input, const Tensor& weight,
                                                       at::OptionalIntArrayRef bias_sizes, IntArrayRef /*stride*/, IntArrayRef /*padding*/,
                                                       IntArrayRef /*dilation*/, bool /*transposed*/, IntArrayRef /*output_padding*/,
                                                       int64_t /*groups*/, std::array<bool, 3> output_mask) {
  const at::MemoryFormat format = FormatFor(input, weight);
  std::tuple<Tensor, Tensor, Tensor> grads;
  if (output_mask[0]) std::get<0>(grads) = Empty(input.sizes(), input.options(), format);
  if (output_mask[1]) std::get<1>(grads) = Empty(weight.sizes(), weight.options(), format);
  if (output_mask[2]) {
    std::get<2>(grads) =
        bias_sizes.has_value() ? Empty(*bias_sizes, grad_output.options()) : Empty({grad_output.size(1)}, grad_output.options());
  }
  return grads;
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("convolution", Convolution);
  m.impl("convolution_backward", ConvolutionBackward);
}

}  // namespace
}  // namespace ddpopt::kernels
