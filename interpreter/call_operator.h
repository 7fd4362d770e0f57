#ifndef DDPOPT_INTERPRETER_CALL_OPERATOR_H_
#define DDPOPT_INTERPRETER_CALL_OPERATOR_H_

// Calls an ATen operator with positional and keyword arguments, as Python would.
//
//   c10::IValue y = CallOperator(add, {x, 1}, {{"alpha", 2}});     // aten::add.Tensor: the 1 becomes a wrapped number
//
// Arguments are bound and converted by the operator's schema: defaults, keyword-only arguments, generic lists to Tensor[], Tensor?[],
// int[], float[], bool[] or Scalar[], one int where int[2] is asked, an int for a float, a number for a Tensor. What doesn't fit is an
// error that names operator and argument. The call goes through the dispatcher: autograd, autocast and modes see it.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/ivalue.h"

namespace ddpopt {

// One result comes back bare, several as a tuple, none as None. Throws c10::Error.
c10::IValue CallOperator(const c10::OperatorHandle& op, std::vector<c10::IValue> args,
                         std::vector<std::pair<std::string, c10::IValue>> kwargs = {});

// The two halves of CallOperator, for those who call the same operator again and again.
//
// Where each argument of the schema comes from: 0 … positional - 1 is a positional argument, positional + k the keyword argument k, and
// kDefaultArgument the schema's default. Throws c10::Error as CallOperator does.
inline constexpr int kDefaultArgument = -1;
std::vector<int> BindArguments(const c10::OperatorHandle& op, std::size_t positional, const std::vector<std::string>& keywords);
// The value as the schema's argument `index` wants it. Throws c10::Error.
c10::IValue ConvertArgument(const c10::OperatorHandle& op, std::size_t index, c10::IValue value);
// What is left on the stack after the call, as CallOperator returns it. Empties the stack.
c10::IValue TakeResults(std::vector<c10::IValue>& stack);

// "aten::add.Tensor".
std::string OperatorName(const c10::OperatorHandle& op);

}  // namespace ddpopt

#endif  // DDPOPT_INTERPRETER_CALL_OPERATOR_H_
