#ifndef DDPOPT_TESTING_MODELS_TCN_H_
#define DDPOPT_TESTING_MODELS_TCN_H_

// Dilated causal convolutions over a series: conv1d with padding, instance norm, PReLU, a smooth loss.
//
//   Tcn net(TcnConfig{});
//   at::Tensor loss = net->forward(x, y);      // float [batch, channels, time], each

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/activation.h"
#include "torch/nn/modules/container/modulelist.h"
#include "torch/nn/modules/conv.h"
#include "torch/nn/modules/dropout.h"
#include "torch/nn/modules/instancenorm.h"
#include "torch/nn/pimpl.h"

namespace ddpopt::testing {

struct TcnConfig {
  int64_t channels = 3, width = 8, layers = 3;
  double dropout = 0.1;
};

class TcnBlockImpl : public torch::nn::Module {
 public:
  TcnBlockImpl(const TcnConfig& config, int64_t dilation);
  at::Tensor forward(const at::Tensor& x);

 private:
  int64_t dilation_;
  torch::nn::Conv1d conv_{nullptr}, gate_{nullptr};
  torch::nn::InstanceNorm1d norm_{nullptr};
  torch::nn::PReLU activation_{nullptr};
  torch::nn::Dropout drop_{nullptr};
};
TORCH_MODULE(TcnBlock);

class TcnImpl : public torch::nn::Module {
 public:
  explicit TcnImpl(const TcnConfig& config);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y);

 private:
  torch::nn::Conv1d in_{nullptr}, out_{nullptr};
  torch::nn::ModuleList blocks_;
};
TORCH_MODULE(Tcn);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_MODELS_TCN_H_
