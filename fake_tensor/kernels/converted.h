#ifndef DDPOPT_FAKE_TENSOR_KERNELS_CONVERTED_H_
#define DDPOPT_FAKE_TENSOR_KERNELS_CONVERTED_H_

// The CPU's elementwise kernels convert operands of other dtypes before they look at strides, and what is converted is dense. On the meta
// device nothing is converted; rules whose operands aren't laid out for them (op_info.h) do it with this.

#include "ATen/core/Tensor.h"
#include "ATen/ops/empty_like.h"

namespace ddpopt::kernels {

// `operand` as a kernel sees it that computes in `dtype`.
inline at::Tensor Converted(const at::Tensor& operand, at::ScalarType dtype) {
  const bool kept = operand.dim() == 0 || operand.scalar_type() == dtype || operand.unsafeGetTensorImpl()->is_non_overlapping_and_dense();
  return kept ? operand : at::empty_like(operand, at::MemoryFormat::Preserve);
}

}  // namespace ddpopt::kernels

#endif  // DDPOPT_FAKE_TENSOR_KERNELS_CONVERTED_H_
