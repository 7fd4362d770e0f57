#include "interpreter/cond_operands.h"

#include <utility>

#include "ATen/core/grad_mode.h"
#include "torch/csrc/autograd/custom_function.h"

namespace ddpopt {
namespace {

// Autograd fills the gradients that didn't come with zeros.
struct Tie : torch::autograd::Function<Tie> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext*, at::TensorList tensors) { return tensors.vec(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list gradients) { return gradients; }
};

}  // namespace

std::vector<c10::IValue> TieOperands(std::vector<c10::IValue> operands) {
  if (!at::GradMode::is_enabled()) return operands;
  std::vector<at::Tensor> tensors;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i].isTensor() || !operands[i].toTensor().requires_grad()) continue;
    tensors.push_back(operands[i].toTensor());
    places.push_back(i);
  }
  if (tensors.empty()) return operands;
  const torch::autograd::variable_list tied = Tie::apply(at::TensorList(tensors));
  for (std::size_t i = 0; i < places.size(); ++i) operands[places[i]] = tied[i];
  return operands;
}

}  // namespace ddpopt
