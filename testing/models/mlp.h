#ifndef DDPOPT_TESTING_MODELS_MLP_H_
#define DDPOPT_TESTING_MODELS_MLP_H_

// A classifier of vectors: linear layers, a layer norm, dropout.
//
//   Mlp net(MlpConfig{});
//   at::Tensor loss = net->forward(x, labels);      // float [batch, in], int64 [batch]

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/dropout.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/modules/normalization.h"
#include "torch/nn/pimpl.h"

namespace ddpopt::testing {

struct MlpConfig {
  int64_t in = 12, width = 20, classes = 5;
  double dropout = 0.25;
};

class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(const MlpConfig& config);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& labels);

 private:
  torch::nn::Linear in_{nullptr}, hidden_{nullptr}, out_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Dropout drop_{nullptr};
};
TORCH_MODULE(Mlp);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_MODELS_MLP_H_
