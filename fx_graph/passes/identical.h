#ifndef DDPOPT_FX_GRAPH_PASSES_IDENTICAL_H_
#define DDPOPT_FX_GRAPH_PASSES_IDENTICAL_H_

// When two constants are the same to a pass: same type and same bits, recursively (1, 1.0 and True differ, and so do 0.0 and -0.0); tensors
// and other objects by identity.
//
//   fx::Identical(c10::IValue(1), c10::IValue(1.0));   // false
//
// Thread-safe.

#include <cstdint>

#include "ATen/core/ivalue.h"

namespace ddpopt::fx {

std::uint64_t FloatBits(double value);
bool Identical(const c10::IValue& a, const c10::IValue& b);

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_PASSES_IDENTICAL_H_
