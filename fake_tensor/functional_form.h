#ifndef DDPOPT_FAKE_TENSOR_FUNCTIONAL_FORM_H_
#define DDPOPT_FAKE_TENSOR_FUNCTIONAL_FORM_H_

// From an operator's in-place or out= overload to the functional one: aten::add.out → aten::add.Tensor. Private to this package.

#include <optional>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/function_schema.h"
#include "absl/strings/string_view.h"

namespace ddpopt {

// Whether the argument is an out= tensor, or a list of them.
bool IsOut(const c10::Argument& argument);

// The overload of `aten::name` that has the schema's arguments, out= left out, and writes to none. Thread-safe.
std::optional<c10::OperatorHandle> FunctionalForm(const c10::FunctionSchema& schema, absl::string_view name);

}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_FUNCTIONAL_FORM_H_
