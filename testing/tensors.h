#ifndef DDPOPT_TESTING_TENSORS_H_
#define DDPOPT_TESTING_TENSORS_H_

// Tensors for tests.

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/sin.h"

namespace ddpopt::testing {

// Different values without a pattern, always the same: sin(0), sin(1), ... as floats of that shape.
inline at::Tensor Ramp(at::IntArrayRef sizes) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  return at::sin(at::arange(numel, at::kFloat)).reshape(sizes);
}

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_TENSORS_H_
