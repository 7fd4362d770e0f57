#include "testing/models/llama.h"

#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/cos.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/outer.h"
#include "ATen/ops/pow.h"
#include "ATen/ops/rsqrt.h"
#include "ATen/ops/scaled_dot_product_attention.h"
#include "ATen/ops/silu.h"
#include "ATen/ops/sin.h"

namespace ddpopt::testing {

namespace {

torch::nn::Linear MakeLinear(int64_t in, int64_t out) { return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false)); }

// x: [batch, heads, time, width]
at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const auto halves = x.chunk(2, -1);
  return x * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
}

// [batch, heads, time, width] with each head several times.
at::Tensor Repeat(const at::Tensor& x, int64_t times) {
  const int64_t batch = x.size(0), heads = x.size(1), time = x.size(2), width = x.size(3);
  return x.unsqueeze(2).expand({batch, heads, times, time, width}).reshape({batch, heads * times, time, width});
}

}  // namespace

RmsNormImpl::RmsNormImpl(int64_t width) { weight_ = register_parameter("weight", at::ones({width})); }

at::Tensor RmsNormImpl::forward(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kFloat);
  return (wide * at::rsqrt(wide.pow(2).mean(-1, /*keepdim=*/true) + 1e-6)).type_as(x) * weight_;
}

LlamaBlockImpl::LlamaBlockImpl(const LlamaConfig& config) : heads_(config.heads), key_heads_(config.key_heads) {
  const int64_t width = config.width, head = width / config.heads;
  norm1_ = register_module("norm1", RmsNorm(width));
  q_ = register_module("q", MakeLinear(width, width));
  k_ = register_module("k", MakeLinear(width, head * key_heads_));
  v_ = register_module("v", MakeLinear(width, head * key_heads_));
  o_ = register_module("o", MakeLinear(width, width));
  norm2_ = register_module("norm2", RmsNorm(width));
  gate_ = register_module("gate", MakeLinear(width, 3 * width));
  up_ = register_module("up", MakeLinear(width, 3 * width));
  down_ = register_module("down", MakeLinear(3 * width, width));
}

at::Tensor LlamaBlockImpl::forward(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& mask) {
  const int64_t batch = x.size(0), time = x.size(1), width = x.size(2), head = width / heads_;
  const auto by_head = [&](const at::Tensor& t) { return t.view({batch, time, -1, head}).transpose(1, 2); };
  const at::Tensor h = norm1_->forward(x);
  const at::Tensor q = Rotate(by_head(q_->forward(h)), cos, sin);
  const at::Tensor k = Repeat(Rotate(by_head(k_->forward(h)), cos, sin), heads_ / key_heads_);
  const at::Tensor v = Repeat(by_head(v_->forward(h)), heads_ / key_heads_);
  const at::Tensor mixed = at::scaled_dot_product_attention(q, k, v, mask);
  const at::Tensor y = x + o_->forward(mixed.transpose(1, 2).contiguous().view({batch, time, width}));
  const at::Tensor in = norm2_->forward(y);
  return y + down_->forward(at::silu(gate_->forward(in)) * up_->forward(in));
}

LlamaImpl::LlamaImpl(const LlamaConfig& config) {
  TORCH_CHECK(config.width % (2 * config.heads) == 0 && config.heads % config.key_heads == 0, "a Llama's heads divide its width");
  const int64_t head = config.width / config.heads;
  embed_ = register_module("embed", torch::nn::Embedding(config.vocab, config.width));
  const at::Tensor frequencies = at::pow(10000.0, at::arange(0, head, 2, at::kFloat) / -static_cast<double>(head));
  const at::Tensor angles = at::outer(at::arange(config.context, at::kFloat), frequencies).repeat({1, 2});
  cos_ = register_buffer("cos", at::cos(angles));
  sin_ = register_buffer("sin", at::sin(angles));
  blocks_ = register_module("blocks", torch::nn::ModuleList());
  for (int64_t i = 0; i < config.layers; ++i) blocks_->push_back(LlamaBlock(config));
  norm_ = register_module("norm", RmsNorm(config.width));
  head_ = register_module("head", MakeLinear(config.width, config.vocab));
}

at::Tensor LlamaImpl::forward(const at::Tensor& tokens, const at::Tensor& next) {
  const int64_t time = tokens.size(1);
  const at::Tensor mask = at::ones({time, time}, tokens.options().dtype(at::kBool)).tril();
  at::Tensor h = embed_->forward(tokens);
  const at::Tensor cos = cos_.narrow(0, 0, time).to(h.scalar_type()), sin = sin_.narrow(0, 0, time).to(h.scalar_type());
  for (const auto& block : *blocks_) h = block->as<LlamaBlockImpl>()->forward(h, cos, sin, mask);
  return at::cross_entropy_loss(head_->forward(norm_->forward(h)).transpose(1, 2), next);
}

}  // namespace ddpopt::testing
