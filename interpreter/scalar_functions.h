#ifndef DDPOPT_INTERPRETER_SCALAR_FUNCTIONS_H_
#define DDPOPT_INTERPRETER_SCALAR_FUNCTIONS_H_

// Python's functions on numbers, by which exported graphs compute with sizes: operator.floordiv, operator.ge, math.ceil, torch.sym_max, ... Private to the
// repository.
//
//   if (const ScalarFunction* function = FindScalarFunction("operator.floordiv")) result = CallScalarFunction(*function, {7, 2});   // 3

#include <vector>

#include "ATen/core/ivalue.h"
#include "absl/strings/string_view.h"

namespace ddpopt {

struct ScalarFunction;

// By the name of an opaque target ("operator.add", "_operator.add", "torch.sym_float"); null if it is none of these functions.
const ScalarFunction* FindScalarFunction(absl::string_view target);

// On ints, floats and bools, with Python's rules: floor division and remainder follow the divisor's sign, true division gives a float, comparisons give bools.
// Throws c10::Error naming the function: for other arguments or another number of them, for a division by zero, and where an int passes 64 bits.
c10::IValue CallScalarFunction(const ScalarFunction& function, const std::vector<c10::IValue>& args);

}  // namespace ddpopt

#endif  // DDPOPT_INTERPRETER_SCALAR_FUNCTIONS_H_
