#ifndef DDPOPT_AOT_GRADIENT_TARGETS_H_
#define DDPOPT_AOT_GRADIENT_TARGETS_H_

// Where parameters' gradients are wanted, for a backward that can write them there at once instead of somewhere from where they are copied.

#include "ATen/core/Tensor.h"

namespace ddpopt {

class GradientTargets {
 public:
  virtual ~GradientTargets() = default;

  // Asked in a backward, before it computes the gradient of `parameter`, a leaf without a .grad: a tensor of the parameter's shape in the memory
  // where its gradient is wanted, made for this call, so that nobody else holds it. It is written whole and becomes the gradient that
  // autograd accumulates. Undefined: there is no such place, or it holds a part of this backward's gradient already. Called on any thread.
  virtual at::Tensor TargetFor(const at::Tensor& parameter) const = 0;
};

}  // namespace ddpopt

#endif  // DDPOPT_AOT_GRADIENT_TARGETS_H_
