#ifndef DDPOPT_BACKENDS_COMPARE_VALUES_H_
#define DDPOPT_BACKENDS_COMPARE_VALUES_H_

// Helpers of the minimizer. Private to this package; see minimizer.h.

#include <vector>

#include "ATen/core/ivalue.h"

namespace ddpopt {

// Leaves with memory of their own and the same strides, requires_grad and shared memory; what is no tensor is shared.
std::vector<c10::IValue> CloneInputs(const std::vector<c10::IValue>& inputs);

}  // namespace ddpopt

#endif  // DDPOPT_BACKENDS_COMPARE_VALUES_H_
