#ifndef DDPOPT_INTERPRETER_COND_OPERANDS_H_
#define DDPOPT_INTERPRETER_COND_OPERANDS_H_

// What autograd sees of torch.cond's operands. Private to this package.

#include <vector>

#include "ATen/core/ivalue.h"

namespace ddpopt {

// The operands, tied together: in backward each that requires a gradient gets one, zero where the branch that ran doesn't use it, as PyTorch's cond gives
// them. Nothing happens without grad mode or if none requires a gradient.
std::vector<c10::IValue> TieOperands(std::vector<c10::IValue> operands);

}  // namespace ddpopt

#endif  // DDPOPT_INTERPRETER_COND_OPERANDS_H_
