// Losses and their backwards.

#include <optional>
#include <tuple>

#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "ATen/core/Reduction.h"
#include "ddpopt/aot/decomposition_table.h"

namespace ddpopt {
namespace {

using at::Tensor;

Tensor Reduced(const Tensor& each, int64_t reduction) {
  if (reduction == at::Reduction::Mean) return at::mean(each);
  if (reduction == at::Reduction::Sum) return at::sum(each);
  return each;
}
// Of each element, for the loss's own gradient.
Tensor Spread(const Tensor& grad, const Tensor& self, int64_t reduction) {
  return reduction == at::Reduction::Mean ? grad / static_cast<double>(self.numel()) : grad;
}

Tensor MseLoss(const Tensor& self, const Tensor& target, int64_t reduction) {
  const Tensor off = self - target;
  return Reduced(off * off, reduction);
}
Tensor MseLossBackward(const Tensor& grad, const Tensor& self, const Tensor& target, int64_t reduction) {
  return (self - target) * 2 * Spread(grad, self, reduction);
}
Tensor SmoothL1Loss(const Tensor& self, const Tensor& target, int64_t reduction, double beta) {
  const Tensor off = (self - target).abs();
  if (beta == 0) return Reduced(off, reduction);
  return Reduced(at::where(off < beta, off * off * (0.5 / beta), off - 0.5 * beta), reduction);
}
Tensor HuberLoss(const Tensor& self, const Tensor& target, int64_t reduction, double delta) {
  const Tensor off = (self - target).abs();
  return Reduced(at::where(off <= delta, off * off * 0.5, (off - 0.5 * delta) * delta), reduction);
}
Tensor BinaryCrossEntropyWithLogits(const Tensor& self, const Tensor& target, const std::optional<Tensor>& weight,
                                    const std::optional<Tensor>& pos_weight, int64_t reduction) {
  // log(1 + exp(-|x|)) never overflows.
  const Tensor soft = (-self.abs()).exp().log1p(), negative = at::clamp_min(-self, 0);
  Tensor each;
  if (pos_weight.has_value() && pos_weight->defined()) {
    each = at::rsub(target, 1) * self + ((*pos_weight - 1) * target + 1) * (soft + negative);
  } else {
    each = at::rsub(target, 1) * self + soft + negative;
  }
  if (weight.has_value() && weight->defined()) each = each * *weight;
  return Reduced(each, reduction);
}

// The classes' rows as a matrix, where there is one row and no batch.
struct Rows {
  Rows(const Tensor& values, const Tensor& classes, int64_t ignore_index)
      : batch(values.dim() == 2),
        self(batch ? values : values.unsqueeze(0)),
        target(batch ? classes : at::reshape(classes, {1})),
        valid(target != ignore_index),
        // An ignored one may be no class at all.
        safe(at::where(valid, target, at::zeros({}, target.options()))) {}
  bool batch;
  Tensor self, target, valid, safe;
};

std::tuple<Tensor, Tensor> NllLossForward(const Tensor& self, const Tensor& target, const std::optional<Tensor>& weight, int64_t reduction,
                                          int64_t ignore_index) {
  const Rows rows(self, target, ignore_index);
  const Tensor zero = at::zeros({}, self.options());
  Tensor each = -at::squeeze(at::gather(rows.self, 1, rows.safe.unsqueeze(1)), 1);
  Tensor weights = rows.valid.to(self.scalar_type());
  if (weight.has_value() && weight->defined()) {
    weights = at::where(rows.valid, at::index_select(*weight, 0, rows.safe), zero);
    each = each * weights;
  }
  each = at::where(rows.valid, each, zero);
  if (reduction == at::Reduction::None) return {rows.batch ? each : at::reshape(each, {}), at::zeros({}, self.options())};
  const Tensor total = at::sum(weights);
  const Tensor sum = at::sum(each);
  return {reduction == at::Reduction::Mean ? sum / total : sum, total};
}
Tensor NllLossBackward(const Tensor& grad, const Tensor& self, const Tensor& target, const std::optional<Tensor>& weight, int64_t reduction,
                       int64_t ignore_index, const Tensor& total_weight) {
  const Rows rows(self, target, ignore_index);
  const Tensor zero = at::zeros({}, self.options());
  Tensor each = reduction == at::Reduction::Mean ? grad / total_weight : grad;
  each = -at::reshape(each, {each.dim() == 1 ? each.size(0) : 1});
  if (weight.has_value() && weight->defined()) each = each * at::index_select(*weight, 0, rows.safe);
  each = at::where(rows.valid, each, zero);
  const Tensor result =
      at::scatter(at::zeros_like(rows.self, {}, at::MemoryFormat::Contiguous), 1, rows.safe.unsqueeze(1), each.unsqueeze(1));
  return rows.batch ? result : at::reshape(result, {result.size(1)});
}

Tensor Up(const Tensor& x) { return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf ? x.to(at::kFloat) : x; }

Tensor Softmax(const Tensor& self, int64_t dim, bool half_to_float) {
  if (self.dim() == 0) return at::ones_like(self);
  const Tensor x = Up(self).contiguous(), e = at::exp(x - at::amax(x, {dim}, true));
  const Tensor result = e / at::sum(e, {dim}, true);
  return half_to_float ? result : result.to(self.scalar_type());
}
Tensor SoftmaxBackward(const Tensor& grad, const Tensor& output, int64_t dim, at::ScalarType dtype) {
  const Tensor y = Up(output), product = Up(grad).contiguous() * y;
  if (output.dim() == 0) return at::zeros_like(output).to(dtype);
  return (product - y * at::sum(product, {dim}, true)).to(dtype);
}
Tensor LogSoftmax(const Tensor& self, int64_t dim, bool half_to_float) {
  if (self.dim() == 0) return at::zeros_like(self);
  const Tensor x = Up(self).contiguous(), off = x - at::amax(x, {dim}, true);
  const Tensor result = off - at::log(at::sum(at::exp(off), {dim}, true));
  return half_to_float ? result : result.to(self.scalar_type());
}
Tensor LogSoftmaxBackward(const Tensor& grad, const Tensor& output, int64_t dim, at::ScalarType dtype) {
  if (output.dim() == 0) return at::zeros_like(output).to(dtype);
  const Tensor g = Up(grad).contiguous();
  return (g - at::exp(Up(output)) * at::sum(g, {dim}, true)).to(dtype);
}

}  // namespace

void AddLossDecompositions(DecompositionTable* table) {
  table->Add("mse_loss", MseLoss);
  table->Add("mse_loss_backward", MseLossBackward);
  table->Add("smooth_l1_loss", SmoothL1Loss);
  table->Add("huber_loss", HuberLoss);
  table->Add("binary_cross_entropy_with_logits", BinaryCrossEntropyWithLogits);
  table->Add("nll_loss_forward", NllLossForward);
  table->Add("nll_loss_backward", NllLossBackward);
  table->Add("_softmax", Softmax);
  table->Add("_softmax_backward_data", SoftmaxBackward);
  table->Add("_log_softmax", LogSoftmax);
  table->Add("_log_softmax_backward_data", LogSoftmaxBackward);
}

}  // namespace ddpopt
