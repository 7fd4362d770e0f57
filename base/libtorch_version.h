#ifndef DDPOPT_BASE_LIBTORCH_VERSION_H_
#define DDPOPT_BASE_LIBTORCH_VERSION_H_

// For what LibTorch's versions do differently and no name of LibTorch's own tells.
//
//   if constexpr (kLibTorchAfter211) …

#include "torch/version.h"

namespace ddpopt {

inline constexpr bool kLibTorchAfter211 = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR > 11;

}  // namespace ddpopt

#endif  // DDPOPT_BASE_LIBTORCH_VERSION_H_
