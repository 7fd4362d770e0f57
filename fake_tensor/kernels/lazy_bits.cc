// Operators that may give a lazily conjugated or negated tensor another shape in place. LibTorch has them write to a copy, resizes the
// tensor itself, without an operator, and copies back; a fake's size is known to its mode alone. So here the size is changed by an
// operator, of fakes only.

#include "ATen/core/Tensor.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/stack.h"
#include "ATen/native/Resize.h"
#include "ATen/ops/clone.h"
#include "ATen/ops/copy.h"
#include "ATen/ops/resize.h"
#include "c10/core/DispatchKeySet.h"
#include "torch/library.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;
using c10::DispatchKey;

bool HasBit(const Tensor& tensor, DispatchKey key) { return key == DispatchKey::Conjugate ? tensor.is_conj() : tensor.is_neg(); }

// The first argument is the tensor to write to, and the result.
template <DispatchKey kKey>
void WriteToCopy(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const std::size_t first = stack->size() - op.schema().arguments().size();
  Tensor written;
  for (std::size_t i = first; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (!value.isTensor() || !value.toTensor().defined() || !HasBit(value.toTensor(), kKey)) continue;
    if (i == first) written = value.toTensor();
    value = at::clone(value.toTensor());
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
  if (!written.defined()) return;
  const Tensor result = stack->back().toTensor();
  if (!written.key_set().has(DispatchKey::Fake)) {
    at::native::resize_output(written, result.sizes());
  } else if (written.sizes() != result.sizes()) {
    written.resize_(result.sizes());
  }
  written.copy_(result);
  stack->back() = std::move(written);
}

TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  for (const char* name : {"addbmm_", "resize_as_"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&WriteToCopy<DispatchKey::Conjugate>>());
  }
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  for (const char* name : {"addbmm_", "resize_as_"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&WriteToCopy<DispatchKey::Negative>>());
  }
}

}  // namespace
}  // namespace ddpopt::kernels
