#ifndef DDPOPT_CAPTURE_TRACER_CANONICALIZE_H_
#define DDPOPT_CAPTURE_TRACER_CANONICALIZE_H_

// What LibTorch's C++ modules and operators emit, in the form in which torch.export records the same Python code, so that both meet the
// same passes, and a layer's weight and bias are used by one node.
//
//   DDPOPT_ASSIGN_OR_RETURN(const bool changed, CanonicalizeModuleForms(*traced.module));
//
//   t, addmm                       ->  linear(x, weight, bias)        nn::Linear of a matrix
//   t, matmul, add_ (in place)     ->  linear(x, weight, bias)        nn::Linear of anything else
//   t, matmul                      ->  linear(x, weight)              nn::Linear without bias
//   add.Scalar, sub, mul, div, ... ->  add.Tensor with a number, ...  x + 1
//   empty_like, fill_, sub_        ->  rsub.Scalar                    1 - x
//
// Only where nothing can tell the difference: intermediate values have no other user, no node with an effect (effects.h) lies between, and
// metadata (meta().val) shows a matrix as weight, a vector as bias, and one dtype. Values without metadata are left as they are. Results
// are the same bits, with one exception that docs/capture.md explains: linear of a value with three dimensions and a bias adds the bias
// within the product.

#include "absl/status/statusor.h"
#include "fx_graph/graph_module.h"
#include "fx_graph/passes/pass.h"

namespace ddpopt {

// Returns whether anything changed. Graphs nested in the module are treated likewise. Linear in the number of nodes. Errors: none of its
// own.
absl::StatusOr<bool> CanonicalizeModuleForms(fx::GraphModule& module);

// "canonicalize"; no options.
class CanonicalizePass : public fx::Pass {
 public:
  static absl::Status Register(fx::PassRegistry& registry);

  absl::string_view name() const override { return "canonicalize"; }
  absl::StatusOr<bool> Run(fx::GraphModule& module) const override { return CanonicalizeModuleForms(module); }
};

}  // namespace ddpopt

#endif  // DDPOPT_CAPTURE_TRACER_CANONICALIZE_H_
