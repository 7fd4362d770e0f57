#ifndef DDPOPT_FAKE_TENSOR_CALL_RECORDER_H_
#define DDPOPT_FAKE_TENSOR_CALL_RECORDER_H_

// Sees the operators that a FakeTensorMode answers. Private to this package.

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/stack.h"
#include "absl/functional/function_ref.h"

namespace ddpopt {

class CallRecorder {
 public:
  virtual ~CallRecorder() = default;
  // The operator's arguments are on the stack. Must call `answer`, which replaces them by its results. Compositions aren't shown, but the
  // operators that they are made of.
  virtual void Record(const c10::OperatorHandle& op, torch::jit::Stack* stack, absl::FunctionRef<void()> answer) = 0;
};

}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_CALL_RECORDER_H_
