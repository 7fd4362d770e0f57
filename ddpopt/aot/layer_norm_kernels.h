#ifndef DDPOPT_AOT_LAYER_NORM_KERNELS_H_
#define DDPOPT_AOT_LAYER_NORM_KERNELS_H_

// LibTorch's own kernels of layer norm, which write into memory that is there. They are reached by their dispatch stubs, whose form depends
// on the processor and may change between versions: where it isn't the known one, they are not used. Private to this package.
//
//   if (HasLayerNormKernels()) LayerNormInto(x, weight, bias, rows, elements, eps, &out, &mean, &rstd);

#include <cstdint>

#include "ATen/core/Tensor.h"

namespace ddpopt {

// Known: LibTorch 2.11 to 2.15 for x86-64, in whose library the stubs are as its headers say.
bool HasLayerNormKernels();

// Of contiguous tensors of one floating dtype on the CPU, not empty; the weight, the bias and gradients that aren't wanted may be
// undefined. `x` has that many rows, each of that many elements that are normalised together. Throw c10::Error if there are no kernels.
void LayerNormInto(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t rows, int64_t elements, double eps,
                   at::Tensor* out, at::Tensor* mean, at::Tensor* rstd);
void LayerNormBackwardInto(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd,
                           const at::Tensor& weight, int64_t rows, int64_t elements, at::Tensor* grad_x, at::Tensor* grad_weight,
                           at::Tensor* grad_bias);

}  // namespace ddpopt

#endif  // DDPOPT_AOT_LAYER_NORM_KERNELS_H_
