#include "testing/models/t5.h"

#include <cmath>
#include <limits>

#include "ATen/ops/abs.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/full_like.h"
#include "ATen/ops/gelu.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/log.h"
#include "ATen/ops/matmul.h"
#include "ATen/ops/minimum.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/rsqrt.h"
#include "ATen/ops/softmax.h"
#include "ATen/ops/where.h"
#include "ATen/ops/zeros_like.h"

namespace ddpopt::testing {

T5NormImpl::T5NormImpl(int64_t width) { weight_ = register_parameter("weight", at::ones({width})); }

at::Tensor T5NormImpl::forward(const at::Tensor& x) {
  const at::Tensor variance = x.to(at::kFloat).pow(2).mean(-1, /*keepdim=*/true);
  return weight_ * (x * at::rsqrt(variance + 1e-6));
}

T5AttentionImpl::T5AttentionImpl(const T5Config& config) : heads_(config.heads) {
  const auto linear = [&] { return torch::nn::Linear(torch::nn::LinearOptions(config.width, config.width).bias(false)); };
  q_ = register_module("q", linear());
  k_ = register_module("k", linear());
  v_ = register_module("v", linear());
  o_ = register_module("o", linear());
  drop_ = register_module("drop", torch::nn::Dropout(config.dropout));
}

at::Tensor T5AttentionImpl::forward(const at::Tensor& x, const at::Tensor& memory, const at::Tensor& bias) {
  const int64_t batch = x.size(0), width = x.size(2);
  const auto by_head = [&](const at::Tensor& t) { return t.view({batch, -1, heads_, width / heads_}).transpose(1, 2); };
  at::Tensor scores = at::matmul(by_head(q_->forward(x)), by_head(k_->forward(memory)).transpose(3, 2));
  if (bias.defined()) scores += bias;
  const at::Tensor weights = drop_->forward(at::softmax(scores.to(at::kFloat), -1).type_as(scores));
  const at::Tensor mixed = at::matmul(weights, by_head(v_->forward(memory)));
  return o_->forward(mixed.transpose(1, 2).contiguous().view({batch, -1, width}));
}

T5BlockImpl::T5BlockImpl(const T5Config& config, bool decoder) {
  const int64_t width = config.width;
  const auto linear = [](int64_t in, int64_t out) { return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false)); };
  norm1_ = register_module("norm1", T5Norm(width));
  self_ = register_module("self", T5Attention(config));
  if (decoder) {
    norm2_ = register_module("norm2", T5Norm(width));
    cross_ = register_module("cross", T5Attention(config));
  }
  norm3_ = register_module("norm3", T5Norm(width));
  gate_ = register_module("gate", linear(width, 2 * width));
  up_ = register_module("up", linear(width, 2 * width));
  down_ = register_module("down", linear(2 * width, width));
  drop_ = register_module("drop", torch::nn::Dropout(config.dropout));
}

at::Tensor T5BlockImpl::forward(const at::Tensor& x, const at::Tensor& memory, const at::Tensor& bias) {
  const at::Tensor normed = norm1_->forward(x);
  at::Tensor h = x + drop_->forward(self_->forward(normed, normed, bias));
  if (!cross_.is_empty()) h = h + drop_->forward(cross_->forward(norm2_->forward(h), memory, {}));
  const at::Tensor in = norm3_->forward(h);
  return h + drop_->forward(down_->forward(drop_->forward(at::gelu(gate_->forward(in), "tanh") * up_->forward(in))));
}

T5Impl::T5Impl(const T5Config& config) : config_(config) {
  shared_ = register_module("shared", torch::nn::Embedding(config.vocab, config.width));
  encoder_bias_ = register_module("encoder_bias", torch::nn::Embedding(config.buckets, config.heads));
  decoder_bias_ = register_module("decoder_bias", torch::nn::Embedding(config.buckets, config.heads));
  encoder_ = register_module("encoder", torch::nn::ModuleList());
  decoder_ = register_module("decoder", torch::nn::ModuleList());
  for (int64_t i = 0; i < config.layers; ++i) {
    encoder_->push_back(T5Block(config, false));
    decoder_->push_back(T5Block(config, true));
  }
  encoder_norm_ = register_module("encoder_norm", T5Norm(config.width));
  decoder_norm_ = register_module("decoder_norm", T5Norm(config.width));
  drop_ = register_module("drop", torch::nn::Dropout(config.dropout));
}

at::Tensor T5Impl::Bias(const torch::nn::Embedding& table, int64_t time, bool both_ways, const at::Tensor& like) const {
  const at::Tensor steps = at::arange(time, like.options().dtype(at::kLong));
  const at::Tensor relative = steps.unsqueeze(0) - steps.unsqueeze(1);
  int64_t buckets = config_.buckets;
  at::Tensor bucket = at::zeros_like(relative);
  at::Tensor distance;
  if (both_ways) {
    buckets /= 2;
    bucket += (relative > 0).to(at::kLong) * buckets;
    distance = at::abs(relative);
  } else {
    distance = -at::minimum(relative, at::zeros_like(relative));
  }
  // Half of the buckets for exact distances, the others for logarithmically larger ones.
  const int64_t exact = buckets / 2;
  const double scale = static_cast<double>(buckets - exact) / std::log(static_cast<double>(config_.max_distance) / exact);
  at::Tensor far = exact + (at::log(distance.to(at::kFloat) / exact) * scale).to(at::kLong);
  far = at::minimum(far, at::full_like(far, buckets - 1));
  bucket += at::where(distance < exact, distance, far);
  at::Tensor bias = torch::nn::Embedding(table)->forward(bucket).permute({2, 0, 1}).unsqueeze(0);
  if (!both_ways) bias = bias.masked_fill(relative > 0, -std::numeric_limits<float>::infinity());
  return bias;
}

at::Tensor T5Impl::forward(const at::Tensor& source, const at::Tensor& target, const at::Tensor& next) {
  at::Tensor h = drop_->forward(shared_->forward(source));
  at::Tensor bias = Bias(encoder_bias_, source.size(1), true, source);
  for (const auto& block : *encoder_) h = block->as<T5BlockImpl>()->forward(h, {}, bias);
  const at::Tensor memory = drop_->forward(encoder_norm_->forward(h));
  h = drop_->forward(shared_->forward(target));
  bias = Bias(decoder_bias_, target.size(1), false, target);
  for (const auto& block : *decoder_) h = block->as<T5BlockImpl>()->forward(h, memory, bias);
  h = drop_->forward(decoder_norm_->forward(h)) * std::pow(static_cast<double>(config_.width), -0.5);
  const at::Tensor logits = at::linear(h, shared_->weight);
  return at::cross_entropy_loss(logits.view({-1, config_.vocab}), next.view({-1}));
}

}  // namespace ddpopt::testing
