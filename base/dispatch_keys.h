#ifndef DDPOPT_BASE_DISPATCH_KEYS_H_
#define DDPOPT_BASE_DISPATCH_KEYS_H_

// The two dispatch keys that the mode stack lives on. LibTorch 2.11 to 2.15 leave both without a fallback; registering one here fails
// loudly at start-up, naming both registrations, should a later version claim them.

#include "c10/core/DispatchKey.h"

namespace ddpopt {

// Above autograd and autocast: composite operators arrive whole.
inline constexpr c10::DispatchKey kPreAutogradKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
// Below autograd. Also the key that marks fake tensors.
inline constexpr c10::DispatchKey kPostAutogradKey = c10::DispatchKey::Fake;

}  // namespace ddpopt

#endif  // DDPOPT_BASE_DISPATCH_KEYS_H_
