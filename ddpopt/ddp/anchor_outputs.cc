#include "ddpopt/ddp/anchor_outputs.h"

#include "ATen/ops/zeros.h"
#include "ddpopt/capture/tracer/values.h"
#include "torch/csrc/autograd/custom_function.h"

namespace ddpopt {
namespace {

struct Anchor : torch::autograd::Function<Anchor> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& value, const at::Tensor&) { return value.view_as(value); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, const torch::autograd::variable_list&) {
    return {at::Tensor(), at::Tensor()};
  }
};

}  // namespace

c10::IValue AnchorOutputs(const c10::IValue& result) {
  return MapTensors(result, [](const at::Tensor& output) -> c10::IValue {
    if (!output.defined() || !(output.is_floating_point() || output.is_complex())) return output;
    return Anchor::apply(output, at::zeros({}).requires_grad_());
  });
}

}  // namespace ddpopt
