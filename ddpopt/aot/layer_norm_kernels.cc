#include "ddpopt/aot/layer_norm_kernels.h"

#include "c10/util/Exception.h"
#include "torch/headeronly/version.h"

#if defined(__x86_64__) && TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 11 && TORCH_VERSION_MINOR <= 15
#define DDPOPT_HAS_STUBS
// The stubs' headers must be read as LibTorch itself was compiled, for every x86-64.
#define HAVE_AVX2_CPU_DEFINITION
#define HAVE_AVX512_CPU_DEFINITION
#include "ATen/native/layer_norm.h"
#endif

namespace ddpopt {

#ifdef DDPOPT_HAS_STUBS

// All that is taken of the library besides its operators. The names tell the kernels' arguments and the instruction sets: a library that
// was built otherwise lacks some. Being weak, they are null then, and the program starts nevertheless.
#define DDPOPT_LAYER_NORM_STUB \
  "_ZN2at6native12DispatchStubIPFvRKNS_6TensorES4_S4_lldPS2_S5_S5_ENS0_37LayerNormKernel_DECLARE_DISPATCH_typeEE"
#define DDPOPT_LAYER_NORM_BACKWARD_STUB \
  "_ZN2at6native12DispatchStubIPFvRKNS_6TensorES4_S4_S4_S4_llPS2_S5_S5_ENS0_45LayerNormBackwardKernel_DECLARE_DISPATCH_typeEE"
extern "C" {
#define DDPOPT_WEAK_SYMBOL(variable, symbol) extern const char variable __asm__(symbol) __attribute__((weak))
DDPOPT_WEAK_SYMBOL(ddpopt_get_call_ptr, "_ZN2at6native16DispatchStubImpl12get_call_ptrEN3c1010DeviceTypeEPvS4_S4_");
DDPOPT_WEAK_SYMBOL(ddpopt_layer_norm, "_ZN2at6native15LayerNormKernelE");
DDPOPT_WEAK_SYMBOL(ddpopt_layer_norm_default, DDPOPT_LAYER_NORM_STUB "7DEFAULTE");
DDPOPT_WEAK_SYMBOL(ddpopt_layer_norm_avx2, DDPOPT_LAYER_NORM_STUB "4AVX2E");
DDPOPT_WEAK_SYMBOL(ddpopt_layer_norm_avx512, DDPOPT_LAYER_NORM_STUB "6AVX512E");
DDPOPT_WEAK_SYMBOL(ddpopt_layer_norm_backward, "_ZN2at6native23LayerNormBackwardKernelE");
DDPOPT_WEAK_SYMBOL(ddpopt_layer_norm_backward_default, DDPOPT_LAYER_NORM_BACKWARD_STUB "7DEFAULTE");
DDPOPT_WEAK_SYMBOL(ddpopt_layer_norm_backward_avx2, DDPOPT_LAYER_NORM_BACKWARD_STUB "4AVX2E");
DDPOPT_WEAK_SYMBOL(ddpopt_layer_norm_backward_avx512, DDPOPT_LAYER_NORM_BACKWARD_STUB "6AVX512E");
#undef DDPOPT_WEAK_SYMBOL
}

bool HasLayerNormKernels() {
  static const bool all = [] {
    for (const char* symbol : {&ddpopt_get_call_ptr, &ddpopt_layer_norm, &ddpopt_layer_norm_default, &ddpopt_layer_norm_avx2,
                               &ddpopt_layer_norm_avx512, &ddpopt_layer_norm_backward, &ddpopt_layer_norm_backward_default,
                               &ddpopt_layer_norm_backward_avx2, &ddpopt_layer_norm_backward_avx512}) {
      if (symbol == nullptr) return false;
    }
    return true;
  }();
  return all;
}

void LayerNormInto(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t rows, int64_t elements, double eps,
                   at::Tensor* out, at::Tensor* mean, at::Tensor* rstd) {
  TORCH_CHECK(HasLayerNormKernels(), "this LibTorch's kernels of layer norm aren't known");
  at::native::LayerNormKernel(at::kCPU, x, weight, bias, rows, elements, eps, out, mean, rstd);
}

void LayerNormBackwardInto(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd,
                           const at::Tensor& weight, int64_t rows, int64_t elements, at::Tensor* grad_x, at::Tensor* grad_weight,
                           at::Tensor* grad_bias) {
  TORCH_CHECK(HasLayerNormKernels(), "this LibTorch's kernels of layer norm aren't known");
  at::native::LayerNormBackwardKernel(at::kCPU, grad, x, mean, rstd, weight, rows, elements, grad_x, grad_weight, grad_bias);
}

#else

bool HasLayerNormKernels() { return false; }

void LayerNormInto(const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, int64_t, double, at::Tensor*, at::Tensor*,
                   at::Tensor*) {
  TORCH_CHECK(false, "this LibTorch's kernels of layer norm aren't known");
}

void LayerNormBackwardInto(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, int64_t,
                           at::Tensor*, at::Tensor*, at::Tensor*) {
  TORCH_CHECK(false, "this LibTorch's kernels of layer norm aren't known");
}

#endif

}  // namespace ddpopt
