#ifndef DDPOPT_INTERPRETER_HIGHER_ORDER_H_
#define DDPOPT_INTERPRETER_HIGHER_ORDER_H_

// The higher-order operators that an Interpreter executes (its RunHigherOrder). Private to this package.

#include "absl/strings/string_view.h"

namespace ddpopt {

// By name, with or without "torch.ops.higher_order.".
bool CanCallHigherOrder(absl::string_view name);

}  // namespace ddpopt

#endif  // DDPOPT_INTERPRETER_HIGHER_ORDER_H_
