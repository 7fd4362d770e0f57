#ifndef DDPOPT_TESTING_MODELS_BERT_H_
#define DDPOPT_TESTING_MODELS_BERT_H_

// A BERT-like encoder of LibTorch's TransformerEncoder (hence MultiheadAttention), with a masked-token and a next-sentence loss.
//
//   Bert net(BertConfig{});
//   at::Tensor loss = net->forward(tokens, types, padding, masked, next);
//
// tokens, types (0 or 1), masked (the right token, -100 where none is asked for): int64 [batch, time]; padding: bool [batch, time], true
// where there is no token; next: int64 [batch], 0 or 1.

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/dropout.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/modules/normalization.h"
#include "torch/nn/modules/transformercoder.h"
#include "torch/nn/pimpl.h"

namespace ddpopt::testing {

struct BertConfig {
  int64_t vocab = 31, positions = 12, width = 16, heads = 2, layers = 2;
  double dropout = 0.1;
};

class BertImpl : public torch::nn::Module {
 public:
  explicit BertImpl(const BertConfig& config);
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& types, const at::Tensor& padding, const at::Tensor& masked,
                     const at::Tensor& next);

 private:
  torch::nn::Embedding tokens_{nullptr}, positions_{nullptr}, types_{nullptr};
  torch::nn::LayerNorm norm_{nullptr}, head_norm_{nullptr};
  torch::nn::Dropout drop_{nullptr};
  torch::nn::TransformerEncoder encoder_{nullptr};
  torch::nn::Linear pooler_{nullptr}, next_{nullptr}, head_{nullptr};
  at::Tensor head_bias_;
};
TORCH_MODULE(Bert);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_MODELS_BERT_H_
