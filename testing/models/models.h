#ifndef DDPOPT_TESTING_MODELS_MODELS_H_
#define DDPOPT_TESTING_MODELS_MODELS_H_

// The models of this folder in small sizes, with a batch each, for tests that go over all of them.
//
//   for (const Model& model : AllModels()) {
//     const auto net = model.make();
//     const at::Tensor loss = model.loss(*net, model.batch());
//   }
//
// Parameters and batches come from the default generator, and are fake where a fake mode is pushed.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"

namespace ddpopt::testing {

struct Model {
  std::string name;
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  std::function<std::vector<at::Tensor>()> batch;
  // The module's forward; a scalar. `module` is one that `make` made.
  std::function<at::Tensor(torch::nn::Module& module, const std::vector<at::Tensor>& batch)> loss;
  // False where LibTorch's own code refuses the model under autocast to bfloat16.
  bool bf16_autocast = true;
};

// In an order that stays.
const std::vector<Model>& AllModels();

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_MODELS_MODELS_H_
