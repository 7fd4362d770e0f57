#include "fake_tensor/kernels/dtypes.h"

#include "c10/util/Exception.h"

namespace ddpopt::kernels {

void RequireDtype(const char* op, c10::ScalarType dtype, Dtypes supported) {
  TORCH_CHECK(supported.Has(dtype), op, ": not implemented for dtype ", dtype);
}

}  // namespace ddpopt::kernels
