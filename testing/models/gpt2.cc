#include "testing/models/gpt2.h"

#include <optional>
#include <vector>

#include "ATen/ops/arange.h"
#include "ATen/ops/cross_entropy_loss.h"
#include "ATen/ops/gelu.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/scaled_dot_product_attention.h"

namespace ddpopt::testing {
namespace {

torch::nn::LayerNorm MakeNorm(int64_t width) { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})); }

}  // namespace

Gpt2BlockImpl::Gpt2BlockImpl(const Gpt2Config& config) : heads_(config.heads), dropout_(config.dropout) {
  const int64_t width = config.width;
  ln_1_ = register_module("ln_1", MakeNorm(width));
  attn_ = register_module("attn", torch::nn::Linear(width, 3 * width));
  attn_proj_ = register_module("attn_proj", torch::nn::Linear(width, width));
  attn_drop_ = register_module("attn_drop", torch::nn::Dropout(config.dropout));
  ln_2_ = register_module("ln_2", MakeNorm(width));
  fc_ = register_module("fc", torch::nn::Linear(width, 4 * width));
  proj_ = register_module("proj", torch::nn::Linear(4 * width, width));
  drop_ = register_module("drop", torch::nn::Dropout(config.dropout));
}

at::Tensor Gpt2BlockImpl::forward(const at::Tensor& x) {
  const int64_t batch = x.size(0), time = x.size(1), width = x.size(2);
  std::vector<at::Tensor> qkv = attn_->forward(ln_1_->forward(x)).split(width, 2);
  for (at::Tensor& t : qkv) t = t.view({batch, time, heads_, width / heads_}).transpose(1, 2);
  const at::Tensor mixed = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, is_training() ? dropout_ : 0.0, /*is_causal=*/true);
  const at::Tensor joined = mixed.transpose(1, 2).contiguous().view({batch, time, width});
  const at::Tensor y = x + attn_drop_->forward(attn_proj_->forward(joined));
  return y + drop_->forward(proj_->forward(at::gelu(fc_->forward(ln_2_->forward(y)), "tanh")));
}

Gpt2Impl::Gpt2Impl(const Gpt2Config& config) {
  TORCH_CHECK(config.heads > 0 && config.width % config.heads == 0, "a GPT-2's heads divide its width");
  wte_ = register_module("wte", torch::nn::Embedding(config.vocab, config.width));
  wpe_ = register_module("wpe", torch::nn::Embedding(config.context, config.width));
  drop_ = register_module("drop", torch::nn::Dropout(config.dropout));
  blocks_ = register_module("blocks", torch::nn::ModuleList());
  for (int64_t i = 0; i < config.layers; ++i) blocks_->push_back(Gpt2Block(config));
  ln_f_ = register_module("ln_f", MakeNorm(config.width));
}

at::Tensor Gpt2Impl::forward(const at::Tensor& tokens, const at::Tensor& next) {
  const at::Tensor positions = at::arange(tokens.size(1), tokens.options());
  at::Tensor h = drop_->forward(wte_->forward(tokens) + wpe_->forward(positions));
  for (const auto& block : *blocks_) h = block->as<Gpt2BlockImpl>()->forward(h);
  const at::Tensor logits = at::linear(ln_f_->forward(h), wte_->weight);
  return at::cross_entropy_loss(logits.view({-1, logits.size(-1)}), next.view(-1));
}

}  // namespace ddpopt::testing
