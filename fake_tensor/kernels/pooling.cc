// What pooling lacks in the wheel; max_pool2d and avg_pool2d are structured and have their Meta kernels.

#include <vector>

#include "ATen/core/Tensor.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;

Tensor AdaptiveAvgPool2d(const Tensor& self, at::IntArrayRef output_size) {
  TORCH_CHECK(output_size.size() == 2, "adaptive_avg_pool2d: output_size must have 2 elements, not ", output_size.size());
  TORCH_CHECK(self.dim() == 3 || self.dim() == 4, "adaptive_avg_pool2d: expected 3 or 4 dimensions, got ", self.sizes());
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[sizes.size() - 2] = output_size[0];
  sizes[sizes.size() - 1] = output_size[1];
  return Empty(sizes, self.options(), self.suggest_memory_format());
}

Tensor AdaptiveAvgPool2dBackward(const Tensor& /*grad_output*/, const Tensor& self) { return EmptySuggestedLike(self); }

DDPOPT_FAKE_KERNELS(m) {
  m.impl("_adaptive_avg_pool2d", AdaptiveAvgPool2d);
  m.impl("_adaptive_avg_pool2d_backward", AdaptiveAvgPool2dBackward);
}

}  // namespace
}  // namespace ddpopt::kernels
