#ifndef DDPOPT_DDP_ANCHOR_OUTPUTS_H_
#define DDPOPT_DDP_ANCHOR_OUTPUTS_H_

// Private to this package.

#include "ATen/core/ivalue.h"

namespace ddpopt {

// Forward's result with its floating-point tensors as outputs of an autograd node that gives nothing on: where a rank's forward used no
// parameter, backward still runs through its output, and the rank takes part in the reduction.
c10::IValue AnchorOutputs(const c10::IValue& result);

}  // namespace ddpopt

#endif  // DDPOPT_DDP_ANCHOR_OUTPUTS_H_
