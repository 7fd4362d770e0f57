#ifndef DDPOPT_TESTING_MODELS_EXPORTED_TWINS_H_
#define DDPOPT_TESTING_MODELS_EXPORTED_TWINS_H_

// The architectures of some models in testing/testdata/exported as C++ modules, with the names and shapes of their parameters: what Python exported and
// what is captured here can be compared operator by operator.
//
//   CustomLinear net;
//   at::Tensor loss = net->forward(x, labels);      // float [batch, 32], int64 [batch]

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/conv.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/pimpl.h"

namespace ddpopt::testing {

// Convolutions (strided, grouped), batch norm and a residual connection. x: [batch, 3, height, width]; ten classes.
class ConvnetBnImpl : public torch::nn::Module {
 public:
  ConvnetBnImpl();
  at::Tensor forward(const at::Tensor& x, const at::Tensor& labels);

 private:
  torch::nn::Conv2d c1_{nullptr}, c2_{nullptr}, c3_{nullptr};
  torch::nn::BatchNorm2d b1_{nullptr}, b2_{nullptr}, b3_{nullptr};
  torch::nn::Linear fc_{nullptr};
};
TORCH_MODULE(ConvnetBn);

// A layer of a user's own, in which two numbers become tensors: y = mm(x, t(weight)); y + where(y < 0.5, 0.3, 0.6).
class OwnLinearImpl : public torch::nn::Module {
 public:
  OwnLinearImpl(int64_t in, int64_t out);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_;
};
TORCH_MODULE(OwnLinear);

class CustomLinearImpl : public torch::nn::Module {
 public:
  CustomLinearImpl();
  at::Tensor forward(const at::Tensor& x, const at::Tensor& labels);

 private:
  torch::nn::Sequential seq_{nullptr};
};
TORCH_MODULE(CustomLinear);

// One layer that forward never uses, one that is frozen, and a buffer. x: [batch, 64].
class UnusedParamsImpl : public torch::nn::Module {
 public:
  UnusedParamsImpl();
  at::Tensor forward(const at::Tensor& x, const at::Tensor& labels);

 private:
  torch::nn::Linear a_{nullptr}, never_{nullptr}, frozen_{nullptr}, b_{nullptr};
  at::Tensor scale_;
};
TORCH_MODULE(UnusedParams);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_MODELS_EXPORTED_TWINS_H_
