#ifndef DDPOPT_FAKE_TENSOR_KERNELS_NATIVE_CONVOLUTION_H_
#define DDPOPT_FAKE_TENSOR_KERNELS_NATIVE_CONVOLUTION_H_

// The CPU's own convolution kernels (those of aten's slow_conv*), which know no groups. Arguments have two or three spatial dimensions, and
// all lists have as many elements. `bias` is not looked at by the backward ones.

#include <array>
#include <tuple>
#include <vector>

#include "ATen/core/Tensor.h"

namespace ddpopt::kernels {

struct ConvolutionWindow {
  std::vector<int64_t> kernel, stride, padding, dilation, output_padding;
};
using ConvolutionGrads = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Channels-last if one of the operands suggests it, for two spatial dimensions and no doubles.
at::MemoryFormat NativeConvolutionFormat(const at::Tensor& input, const at::Tensor& weight);

at::Tensor NativeConvolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                             const ConvolutionWindow& window, bool transposed);
ConvolutionGrads NativeConvolutionBackward(const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                                           const ConvolutionWindow& window, bool transposed, std::array<bool, 3> output_mask);

}  // namespace ddpopt::kernels

#endif  // DDPOPT_FAKE_TENSOR_KERNELS_NATIVE_CONVOLUTION_H_
