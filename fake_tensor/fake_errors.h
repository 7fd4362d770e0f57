#ifndef DDPOPT_FAKE_TENSOR_FAKE_ERRORS_H_
#define DDPOPT_FAKE_TENSOR_FAKE_ERRORS_H_

// What operators on fake tensors throw because the tensors are fake; errors that the real operator would throw are LibTorch's own.
//
//   try { Run(model, fakes); } catch (const DataDependentOutput& error) { … }     // a graph break, say
//
// All derive from c10::Error, and their messages name the operator.

#include <cstdint>

#include "c10/util/Exception.h"

namespace ddpopt {

// The result's value isn't known without data: item(), equal().
class DataDependentOutput : public c10::NotImplementedError {
  using c10::NotImplementedError::NotImplementedError;
};

// The result's shape isn't known without data: nonzero(), a mask as an index.
class DynamicOutputShape : public c10::NotImplementedError {
  using c10::NotImplementedError::NotImplementedError;
};

// The operator has no rule; the message tells its schema and how to add one.
class UnsupportedOperator : public c10::NotImplementedError {
  using c10::NotImplementedError::NotImplementedError;
};

// Operands are on devices that the operator doesn't take together.
class FakeDeviceMismatch : public c10::Error {
  using c10::Error::Error;
};

// A real tensor, or another mode's fake, where a fake of this mode is wanted.
class NotOurFake : public c10::Error {
  using c10::Error::Error;
};

namespace fake_errors_internal {

template <typename Class, typename... Parts>
[[noreturn]] void Throw(const Parts&... parts) {
  throw Class({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, c10::str(parts...));
}

}  // namespace fake_errors_internal
}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_FAKE_ERRORS_H_
