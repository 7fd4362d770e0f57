#include "testing/models/bert.h"

#include "ATen/ops/arange.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/gelu.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/tanh.h"
#include "ATen/ops/zeros.h"
#include "torch/nn/modules/transformerlayer.h"
#include "torch/nn/options/transformercoder.h"

namespace ddpopt::testing {

BertImpl::BertImpl(const BertConfig& config) {
  const int64_t width = config.width;
  const auto norm = [&] { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}).eps(1e-12)); };
  tokens_ = register_module("tokens", torch::nn::Embedding(torch::nn::EmbeddingOptions(config.vocab, width).padding_idx(0)));
  positions_ = register_module("positions", torch::nn::Embedding(config.positions, width));
  types_ = register_module("types", torch::nn::Embedding(2, width));
  norm_ = register_module("norm", norm());
  drop_ = register_module("drop", torch::nn::Dropout(config.dropout));
  const auto layer = torch::nn::TransformerEncoderLayerOptions(width, config.heads)
                         .dim_feedforward(2 * width)
                         .dropout(config.dropout)
                         .activation(torch::kGELU);
  encoder_ = register_module("encoder", torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(layer, config.layers)));
  pooler_ = register_module("pooler", torch::nn::Linear(width, width));
  next_ = register_module("next", torch::nn::Linear(width, 2));
  head_ = register_module("head", torch::nn::Linear(width, width));
  head_norm_ = register_module("head_norm", norm());
  head_bias_ = register_parameter("head_bias", at::zeros({config.vocab}));
}

at::Tensor BertImpl::forward(const at::Tensor& tokens, const at::Tensor& types, const at::Tensor& padding, const at::Tensor& masked,
                             const at::Tensor& next) {
  const at::Tensor positions = at::arange(tokens.size(1), tokens.options()).expand_as(tokens);
  const at::Tensor embedded = tokens_->forward(tokens) + positions_->forward(positions) + types_->forward(types);
  const at::Tensor h =
      encoder_->forward(drop_->forward(norm_->forward(embedded)).transpose(0, 1), {}, padding).transpose(0, 1);
  const at::Tensor follows = next_->forward(at::tanh(pooler_->forward(h.select(1, 0))));
  const at::Tensor logits = at::linear(head_norm_->forward(at::gelu(head_->forward(h))), tokens_->weight, head_bias_);
  return at::cross_entropy_loss(logits.flatten(0, 1), masked.flatten()) + at::cross_entropy_loss(follows, next);
}

}  // namespace ddpopt::testing
