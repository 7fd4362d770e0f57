#ifndef DDPOPT_FAKE_TENSOR_DERIVED_KERNEL_H_
#define DDPOPT_FAKE_TENSOR_DERIVED_KERNEL_H_

// In-place and out= forms that run the functional form's rule and then check and fill what they write to. Private to this package.

#include <optional>
#include <string>
#include <vector>

#include "ATen/core/boxing/KernelFunction.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "fake_tensor/fake_kernel.h"

namespace ddpopt {

// The overloads of one name, of all operators. Made once: it walks all operators.
class OverloadTable {
 public:
  OverloadTable();
  // Operators called `name` ("aten::add_"), whatever their overload.
  std::vector<c10::OperatorHandle> Named(const std::string& name) const;

 private:
  std::vector<c10::OperatorName> names_;  // sorted
};

// The kernel of `form` from the rule of `functional`, or nothing if `form` isn't an in-place or out= form of it.
std::optional<c10::KernelFunction> DeriveKernel(const c10::OperatorHandle& form, const c10::OperatorHandle& functional,
                                                const c10::KernelFunction& rule, const FakeKernelOptions& options);

}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_DERIVED_KERNEL_H_
