#include "examples/gpt.h"

#include <cmath>
#include <limits>
#include <string>

#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/gelu.h"
#include "ATen/ops/masked_fill.h"
#include "ATen/ops/matmul.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/softmax.h"
#include "ATen/ops/triu.h"
#include "ATen/ops/zeros.h"
#include "torch/nn/init.h"

namespace ddpopt::examples {
namespace {

// Small enough that the first predictions are near uniform.
constexpr double kHeadStd = 0.002;
constexpr double kStd = 0.02;

torch::nn::Linear MakeLinear(int64_t in, int64_t out, double std) {
  torch::nn::Linear linear(in, out);
  torch::nn::init::normal_(linear->weight, 0.0, std);
  torch::nn::init::zeros_(linear->bias);
  return linear;
}

torch::nn::LayerNorm MakeNorm(int64_t width) { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})); }

}  // namespace

BlockImpl::BlockImpl(const GptConfig& config) : heads_(config.heads) {
  const int64_t width = config.width;
  const double in_std = 1.0 / std::sqrt(static_cast<double>(width));
  // What a block adds to the residual stream shrinks with depth.
  const double out_std = in_std / std::sqrt(2.0 * static_cast<double>(config.layers));
  table_ = register_module("table", torch::nn::Embedding(config.table, width));
  torch::nn::init::normal_(table_->weight, 0.0, kStd);
  norm1_ = register_module("norm1", MakeNorm(width));
  query_ = register_module("query", MakeLinear(width, width, in_std));
  key_ = register_module("key", MakeLinear(width, width, in_std));
  value_ = register_module("value", MakeLinear(width, width, in_std));
  proj_ = register_module("proj", MakeLinear(width, width, out_std));
  norm2_ = register_module("norm2", MakeNorm(width));
  up_ = register_module("up", MakeLinear(width, 4 * width, in_std));
  down_ = register_module("down", MakeLinear(4 * width, width, out_std / 2));
}

at::Tensor BlockImpl::forward(const at::Tensor& input, const at::Tensor& grams, const at::Tensor& future) {
  const at::Tensor x = input + table_->forward(grams);
  const int64_t batch = x.size(0), time = x.size(1), width = x.size(2);
  const auto by_head = [&](const at::Tensor& t) { return t.view({batch, time, heads_, width / heads_}).transpose(1, 2); };
  const at::Tensor h = norm1_->forward(x);
  const at::Tensor q = by_head(query_->forward(h)), k = by_head(key_->forward(h)), v = by_head(value_->forward(h));
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) * (1.0 / std::sqrt(static_cast<double>(width / heads_)));
  const at::Tensor weights = at::softmax(scores.masked_fill(future, -std::numeric_limits<float>::infinity()), -1);
  const at::Tensor mixed = at::matmul(weights, v).transpose(1, 2).reshape({batch, time, width});
  const at::Tensor y = x + proj_->forward(mixed);
  return y + down_->forward(at::gelu(up_->forward(norm2_->forward(y))));
}

GptImpl::GptImpl(const GptConfig& config) : config_(config) {
  TORCH_CHECK(config.vocab > 0 && config.context > 0 && config.layers > 0 && config.table > 0 && config.heads > 0 &&
                  config.width % config.heads == 0,
              "a GPT needs positive sizes, and a width that the heads divide");
  token_ = register_module("token", torch::nn::Embedding(config.vocab, config.width));
  torch::nn::init::normal_(token_->weight, 0.0, kStd * 10);
  position_ = register_parameter("position", at::zeros({config.context, config.width}));
  torch::nn::init::normal_(position_, 0.0, kStd);
  future_ = register_buffer("future", at::ones({config.context, config.context}, at::kBool).triu(1));
  blocks_ = register_module("blocks", torch::nn::ModuleList());
  for (int64_t i = 0; i < config.layers; ++i) blocks_->push_back(Block(config));
  norm_ = register_module("norm", MakeNorm(config.width));
  head_ = register_module("head", MakeLinear(config.width, config.vocab, kHeadStd));
}

at::Tensor GptImpl::Logits(const GptInput& input) {
  const int64_t time = input.characters.size(1);
  TORCH_CHECK(time <= config_.context, "the text has ", time, " characters, the model sees at most ", config_.context);
  const bool whole = time == config_.context;
  const at::Tensor position = whole ? position_ : position_.narrow(0, 0, time);
  const at::Tensor future = whole ? future_ : future_.narrow(0, 0, time).narrow(1, 0, time);
  at::Tensor h = token_->forward(input.characters) + position;
  int64_t layer = 0;
  for (const auto& block : *blocks_) {
    const bool pairs = 2 * layer++ < config_.layers;
    h = block->as<BlockImpl>()->forward(h, pairs ? input.pairs : input.triples, future);
  }
  return head_->forward(norm_->forward(h));
}

at::Tensor GptImpl::forward(const at::Tensor& characters, const at::Tensor& pairs, const at::Tensor& triples, const at::Tensor& next) {
  const at::Tensor logits = Logits({characters, pairs, triples});
  return at::cross_entropy_loss(logits.reshape({-1, config_.vocab}), next.reshape({-1}));
}

}  // namespace ddpopt::examples
