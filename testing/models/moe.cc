#include "testing/models/moe.h"

#include <tuple>

#include "ATen/ops/bmm.h"
#include "ATen/ops/einsum.h"
#include "ATen/ops/mse_loss.h"
#include "ATen/ops/scatter.h"
#include "ATen/ops/silu.h"
#include "ATen/ops/softmax.h"
#include "ATen/ops/topk.h"
#include "ATen/ops/zeros.h"
#include "ATen/ops/zeros_like.h"
#include "torch/nn/init.h"

namespace ddpopt::testing {

MoeImpl::MoeImpl(const MoeConfig& config) : config_(config) {
  gate_ = register_module("gate", torch::nn::Linear(torch::nn::LinearOptions(config.width, config.experts).bias(false)));
  up_ = register_parameter("up", at::zeros({config.experts, config.width, config.hidden}));
  down_ = register_parameter("down", at::zeros({config.experts, config.hidden, config.width}));
  torch::nn::init::xavier_uniform_(up_);
  torch::nn::init::xavier_uniform_(down_);
}

at::Tensor MoeImpl::forward(const at::Tensor& x, const at::Tensor& y) {
  const at::Tensor p = at::softmax(gate_->forward(x), -1);
  const auto [values, indices] = at::topk(p, config_.chosen, -1);
  const at::Tensor weights = at::scatter(at::zeros_like(p), -1, indices, values / values.sum(-1, /*keepdim=*/true));
  const at::Tensor every = x.unsqueeze(0).expand({config_.experts, -1, -1});
  const at::Tensor out = at::bmm(at::silu(at::bmm(every, up_)), down_);
  const at::Tensor mixed = at::einsum("etw,te->tw", {out, weights});
  const at::Tensor load = at::scatter(at::zeros_like(p), -1, indices, 1.0).mean(0);
  return at::mse_loss(mixed, y) + 0.01 * (load * p.mean(0)).sum() * config_.experts;
}

}  // namespace ddpopt::testing
