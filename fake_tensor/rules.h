#ifndef DDPOPT_FAKE_TENSOR_RULES_H_
#define DDPOPT_FAKE_TENSOR_RULES_H_

// The process's table of rules (fake_kernel.h), as the mode sees it. Private to this package.

#include <cstdint>

#include "ATen/core/boxing/KernelFunction.h"
#include "ATen/core/operator_name.h"
#include "c10/core/Device.h"

namespace ddpopt {

struct Rule {
  c10::KernelFunction kernel;
  bool derived;  // from the functional form's
};

// The operator's rule or null; the pointer stays valid. Matches rules that are waiting to their operators first; throws c10::Error for
// those that don't fit.
const Rule* FindRule(const c10::OperatorName& name);
// Matches the waiting rules.
void ResolveRules();
// Grows with every rule; what is remembered about operators holds for one epoch.
uint64_t RulesEpoch();

// Sets ClaimedDevice() for the lifetime of the guard.
class ClaimedDeviceGuard {
 public:
  explicit ClaimedDeviceGuard(c10::Device device);
  ~ClaimedDeviceGuard();
  ClaimedDeviceGuard(const ClaimedDeviceGuard&) = delete;
  ClaimedDeviceGuard& operator=(const ClaimedDeviceGuard&) = delete;

 private:
  c10::Device previous_;
};

}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_RULES_H_
