#include "testing/models/recurrent.h"

#include <tuple>

#include "ATen/ops/cat.h"
#include "ATen/ops/cross_entropy_loss.h"

namespace ddpopt::testing {

RecurrentImpl::RecurrentImpl(const RecurrentConfig& config) {
  embedding_ = register_module("embedding", torch::nn::Embedding(torch::nn::EmbeddingOptions(config.vocab, config.width).padding_idx(0)));
  const auto configure = [&](auto options) {
    return options.num_layers(config.layers).batch_first(true).bidirectional(config.bidirectional).dropout(config.dropout);
  };
  switch (config.cell) {
    case RecurrentConfig::Cell::kLstm:
      lstm_ = register_module("lstm", torch::nn::LSTM(configure(torch::nn::LSTMOptions(config.width, config.hidden))));
      break;
    case RecurrentConfig::Cell::kGru:
      gru_ = register_module("gru", torch::nn::GRU(configure(torch::nn::GRUOptions(config.width, config.hidden))));
      break;
    case RecurrentConfig::Cell::kTanh:
      rnn_ = register_module("rnn", torch::nn::RNN(configure(torch::nn::RNNOptions(config.width, config.hidden))));
      break;
  }
  drop_ = register_module("drop", torch::nn::Dropout(config.dropout));
  out_ = register_module("out", torch::nn::Linear((config.bidirectional ? 4 : 2) * config.hidden, config.classes));
}

at::Tensor RecurrentImpl::forward(const at::Tensor& tokens, const at::Tensor& labels) {
  const at::Tensor x = embedding_->forward(tokens);
  at::Tensor steps, last;
  if (!lstm_.is_empty()) {
    const auto [output, state] = lstm_->forward(x);
    steps = output;
    last = std::get<0>(state);
  } else if (!gru_.is_empty()) {
    std::tie(steps, last) = gru_->forward(x);
  } else {
    std::tie(steps, last) = rnn_->forward(x);
  }
  // The last layer's states, of both directions, beside the mean over time.
  const int64_t directions = steps.size(2) / last.size(2);
  const at::Tensor state = last.narrow(0, last.size(0) - directions, directions).transpose(0, 1).flatten(1);
  return at::cross_entropy_loss(out_->forward(drop_->forward(at::cat({state, steps.mean(1)}, 1))), labels);
}

}  // namespace ddpopt::testing
