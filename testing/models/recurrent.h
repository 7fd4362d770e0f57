#ifndef DDPOPT_TESTING_MODELS_RECURRENT_H_
#define DDPOPT_TESTING_MODELS_RECURRENT_H_

// A classifier of token sequences over one of LibTorch's recurrent layers.
//
//   Recurrent net(RecurrentConfig{.cell = RecurrentConfig::Cell::kGru});
//   at::Tensor loss = net->forward(tokens, labels);      // int64 [batch, time], int64 [batch]

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/dropout.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/modules/rnn.h"
#include "torch/nn/pimpl.h"

namespace ddpopt::testing {

struct RecurrentConfig {
  enum class Cell { kLstm, kGru, kTanh };
  Cell cell = Cell::kLstm;
  int64_t vocab = 23, width = 8, hidden = 12, layers = 2, classes = 4;
  bool bidirectional = true;
  double dropout = 0.2;  // between the layers too
};

class RecurrentImpl : public torch::nn::Module {
 public:
  explicit RecurrentImpl(const RecurrentConfig& config);
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& labels);

 private:
  torch::nn::Embedding embedding_{nullptr};
  torch::nn::LSTM lstm_{nullptr};
  torch::nn::GRU gru_{nullptr};
  torch::nn::RNN rnn_{nullptr};
  torch::nn::Dropout drop_{nullptr};
  torch::nn::Linear out_{nullptr};
};
TORCH_MODULE(Recurrent);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_MODELS_RECURRENT_H_
