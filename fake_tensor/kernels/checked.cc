// Operators whose Meta kernels in LibTorch find the right result, but don't refuse all that the CPU kernels refuse.

#include <cstddef>
#include <tuple>
#include <vector>

#include "ATen/MemoryOverlap.h"
#include "ATen/OpMathType.h"
#include "ATen/core/Tensor.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/stack.h"
#include "ATen/ops/sort.h"
#include "c10/core/ScalarType.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Scalar;
using at::Tensor;
using torch::jit::Stack;

bool IsWritten(const c10::Argument& argument) { return argument.alias_info() != nullptr && argument.alias_info()->isWrite(); }

struct Operands {
  std::vector<Scalar> numbers;
  std::vector<Tensor> read;
  std::vector<Tensor> written;
};
Operands OperandsOf(const c10::OperatorHandle& op, const Stack& stack) {
  Operands operands;
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = stack[stack.size() - arguments.size() + i];
    if (value.isScalar()) operands.numbers.push_back(value.toScalar());
    if (value.isTensor() && value.toTensor().defined()) {
      (IsWritten(arguments[i]) ? operands.written : operands.read).push_back(value.toTensor());
    }
  }
  return operands;
}

// The dtype in which the kernel computes: the inputs', of which an in-place operator's self is one.
at::ScalarType ComputeType(const c10::OperatorHandle& op, const Operands& operands) {
  std::vector<Tensor> inputs = operands.read;
  if (op.schema().name().back() == '_') inputs.insert(inputs.end(), operands.written.begin(), operands.written.end());
  at::ScalarType type = inputs[0].scalar_type();
  for (const Tensor& input : inputs) type = c10::promoteTypes(type, input.scalar_type());
  return type;
}

// Numbers become elements of the dtype that the kernel computes in.
void CheckedNumbers(const c10::OperatorHandle& op, Stack* stack) {
  const Operands operands = OperandsOf(op, *stack);
  op.callBoxed(stack);
  const at::ScalarType type = at::toOpMathType(ComputeType(op, operands));
  for (const Scalar& number : operands.numbers) CheckConvertible(number, type);
}

// The same of operators whose numbers may change from step to step, so that only their kind can count.
void CheckedKinds(const c10::OperatorHandle& op, Stack* stack) {
  const Operands operands = OperandsOf(op, *stack);
  op.callBoxed(stack);
  const at::ScalarType type = ComputeType(op, operands);
  for (const Scalar& number : operands.numbers) {
    TORCH_CHECK(!number.isComplex() || c10::isComplexType(type), c10::toString(op.operator_name()), ": a complex number for dtype ", type);
  }
}

// Kernels that write with an iterator of their own.
void CheckedOverlap(const c10::OperatorHandle& op, Stack* stack) {
  const Operands operands = OperandsOf(op, *stack);
  op.callBoxed(stack);
  for (const Tensor& out : operands.written) {
    at::assert_no_internal_overlap(out);
    for (const Tensor& input : operands.read) at::assert_no_partial_overlap(out, input);
  }
}

std::tuple<Tensor&, Tensor&> SortOut(const Tensor& self, int64_t dim, bool descending, Tensor& values, Tensor& indices) {
  at::sort_out(values, indices, self, /*stable=*/false, dim, descending);
  for (const Tensor* out : {&values, &indices}) {
    at::assert_no_internal_overlap(*out);
    at::assert_no_partial_overlap(*out, self);
  }
  return {values, indices};
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("sort.values", SortOut, kThisForm);
  for (const char* name :
       {"threshold", "threshold_", "threshold.out", "threshold_backward", "threshold_backward.grad_input", "elu", "elu_", "elu.out",
        "elu_backward", "elu_backward.grad_input", "leaky_relu", "leaky_relu_", "leaky_relu.out", "leaky_relu_backward",
        "leaky_relu_backward.grad_input", "softplus", "softplus.out", "softplus_backward", "softplus_backward.grad_input"}) {
    m.impl(name, CheckedNumbers, kThisForm);
  }
  for (const char* name :
       {"addcmul", "addcmul_", "addcmul.out", "addcdiv", "addcdiv_", "addcdiv.out", "lerp.Scalar", "lerp_.Scalar", "lerp.Scalar_out"}) {
    m.impl(name, CheckedKinds, kThisForm);
  }
  for (const char* name :
       {"sort.values_stable", "pow.Scalar_out", "cumsum.out", "cumsum_", "cumprod.out", "cumprod_", "renorm.out", "renorm_", "tril.out",
        "tril_", "triu.out", "triu_", "isin.Tensor_Scalar_out"}) {
    m.impl(name, CheckedOverlap, kThisForm);
  }
}

}  // namespace
}  // namespace ddpopt::kernels
