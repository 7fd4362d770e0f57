#ifndef DDPOPT_BASE_FOR_EACH_TENSOR_H_
#define DDPOPT_BASE_FOR_EACH_TENSOR_H_

// The tensors in an operator's argument or result: a tensor, or lists and tuples of them, however deep.
//
//   ForEachTensor(value, [&](const at::Tensor& tensor) { bytes += tensor.nbytes(); });

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"

namespace ddpopt {

// In order; undefined tensors, and what isn't a tensor, are left out. A tensor that is there twice is seen twice.
template <typename Fn>
void ForEachTensor(const c10::IValue& value, const Fn& fn) {
  if (value.isTensor()) {
    if (const at::Tensor& tensor = value.toTensor(); tensor.defined()) fn(tensor);
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) ForEachTensor(element, fn);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) ForEachTensor(element, fn);
  }
}

}  // namespace ddpopt

#endif  // DDPOPT_BASE_FOR_EACH_TENSOR_H_
