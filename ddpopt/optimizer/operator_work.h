#ifndef DDPOPT_OPTIMIZER_OPERATOR_WORK_H_
#define DDPOPT_OPTIMIZER_OPERATOR_WORK_H_

// What a call of an operator computes and moves, from its arguments and results, which may be fakes.
//
//   OperatorWork work = WorkOf(op, arguments, results);
//   work.flops;                                           // two a multiplication and addition
//
// Of operators below autograd, forward and backward ones. Floating-point operations are those that fx::Flops counts. Bytes are those of the
// tensors taken and given, each storage once; none for a view. What picks rows of a table (embedding, index) reads what it gives.

#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/ivalue.h"
#include "ddpopt/optimizer/device_profile.h"

namespace ddpopt {

OperatorWork WorkOf(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments, const std::vector<c10::IValue>& results);

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_OPERATOR_WORK_H_
