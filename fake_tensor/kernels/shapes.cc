#include "fake_tensor/kernels/shapes.h"

#include "ATen/Dispatch_v2.h"
#include "ATen/ops/scalar_tensor.h"
#include "c10/core/Scalar.h"

namespace ddpopt::kernels {

at::Tensor WrappedNumber(const at::Scalar& value) {
  at::Tensor tensor = Empty({}, at::TensorOptions().dtype(value.type()));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

void CheckConvertible(const at::Scalar& value, at::ScalarType dtype) {
  AT_DISPATCH_V2(dtype, "a number for a tensor", AT_WRAP([&] { value.to<scalar_t>(); }), AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX),
                 AT_EXPAND(AT_FLOAT8_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kComplexHalf, at::kHalf, at::kBool, at::kBFloat16);
}

}  // namespace ddpopt::kernels
