#ifndef DDPOPT_TESTING_CALLS_H_
#define DDPOPT_TESTING_CALLS_H_

// What tests of operators and of code that throws keep needing.
//
//   EXPECT_THAT(ErrorOf([&] { interpreter.Run({}); }), HasSubstr("placeholder"));

#include <string>
#include <utility>

#include "ATen/core/dispatch/Dispatcher.h"
#include "c10/util/Exception.h"

namespace ddpopt::testing {

// The operator overload; throws c10::Error if there is none.
inline c10::OperatorHandle FindOperator(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

// The message of the c10::Error that fn throws, without its backtrace; "" if it throws nothing. Other exceptions pass through, and so fail
// the test: what runs a graph promises c10::Error.
template <typename Fn>
std::string ErrorOf(Fn&& fn) {
  try {
    std::forward<Fn>(fn)();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_CALLS_H_
