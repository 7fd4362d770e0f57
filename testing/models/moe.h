#ifndef DDPOPT_TESTING_MODELS_MOE_H_
#define DDPOPT_TESTING_MODELS_MOE_H_

// A mixture of experts: each token's best two by a learnt gate, weighted by it, with a balancing loss. All experts see all tokens, so that
// no shape depends on data.
//
//   Moe net(MoeConfig{});
//   at::Tensor loss = net->forward(x, y);      // float [tokens, width], each

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/pimpl.h"

namespace ddpopt::testing {

struct MoeConfig {
  int64_t width = 8, hidden = 12, experts = 4, chosen = 2;
};

class MoeImpl : public torch::nn::Module {
 public:
  explicit MoeImpl(const MoeConfig& config);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y);

 private:
  MoeConfig config_;
  torch::nn::Linear gate_{nullptr};
  at::Tensor up_, down_;  // parameters [experts, width, hidden], [experts, hidden, width]
};
TORCH_MODULE(Moe);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_MODELS_MOE_H_
