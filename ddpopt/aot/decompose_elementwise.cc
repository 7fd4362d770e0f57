// Activations, their backwards, and arithmetic of several steps.

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "ddpopt/aot/decomposition_table.h"

namespace ddpopt {
namespace {

using at::Scalar;
using at::Tensor;
using OptionalScalar = std::optional<Scalar>;

// Kernels compute in float what is stored in less.
Tensor Up(const Tensor& x) { return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf ? x.to(at::kFloat) : x; }
Tensor Down(const Tensor& x, const Tensor& like) { return x.scalar_type() == like.scalar_type() ? x : x.to(like.scalar_type()); }
// Numbers of the place of tensors, so that a 0 or 1 doesn't change the dtype.
Tensor Number(const Tensor& like, double value) { return at::full({}, value, like.options()); }

constexpr double kSqrt2Pi = 0.7978845608028654, kTanhCube = 0.044715, kSqrtHalf = 0.7071067811865476, kInvSqrt2Pi = 0.3989422804014327;

Tensor Gelu(const Tensor& self, c10::string_view approximate) {
  const Tensor x = Up(self);
  if (approximate == "tanh") {
    const Tensor inner = (x + x * x * x * kTanhCube) * kSqrt2Pi;
    return Down(x * 0.5 * (inner.tanh() + 1), self);
  }
  return Down(x * 0.5 * ((x * kSqrtHalf).erf() + 1), self);
}
Tensor GeluBackward(const Tensor& grad, const Tensor& self, c10::string_view approximate) {
  const Tensor x = Up(self), g = Up(grad);
  if (approximate == "tanh") {
    const Tensor t = ((x + x * x * x * kTanhCube) * kSqrt2Pi).tanh();
    const Tensor slope = at::rsub(t * t, 1) * ((x * x * (3 * kTanhCube) + 1) * kSqrt2Pi);
    return Down(g * ((t + 1) * 0.5 + x * 0.5 * slope), self);
  }
  const Tensor cdf = ((x * kSqrtHalf).erf() + 1) * 0.5, pdf = (x * x * -0.5).exp() * kInvSqrt2Pi;
  return Down(g * (cdf + x * pdf), self);
}

Tensor Silu(const Tensor& self) {
  const Tensor x = Up(self);
  return Down(x * at::sigmoid(x), self);
}
Tensor SiluBackward(const Tensor& grad, const Tensor& self) {
  const Tensor x = Up(self), s = at::sigmoid(x);
  return Down(Up(grad) * s * (x * at::rsub(s, 1) + 1), self);
}
Tensor SigmoidBackward(const Tensor& grad, const Tensor& output) { return grad * (output * at::rsub(output, 1)); }
Tensor TanhBackward(const Tensor& grad, const Tensor& output) { return grad * at::rsub(output * output, 1); }

Tensor ThresholdBackward(const Tensor& grad, const Tensor& self, const Scalar& threshold) {
  return at::where(self <= threshold, Number(grad, 0), grad);
}
Tensor Hardtanh(const Tensor& self, const Scalar& low, const Scalar& high) { return at::clamp(self, low, high); }
Tensor HardtanhBackward(const Tensor& grad, const Tensor& self, const Scalar& low, const Scalar& high) {
  return at::where((self <= low).logical_or(self >= high), Number(grad, 0), grad);
}
Tensor LeakyRelu(const Tensor& self, const Scalar& slope) { return at::where(self > 0, self, self * slope); }
Tensor LeakyReluBackward(const Tensor& grad, const Tensor& self, const Scalar& slope, bool /*self_is_result*/) {
  return at::where(self > 0, grad, grad * slope);
}
Tensor Elu(const Tensor& self, const Scalar& alpha, const Scalar& scale, const Scalar& input_scale) {
  const Tensor x = Up(self);
  return Down(at::where(x <= 0, (x * input_scale).expm1() * (alpha.to<double>() * scale.to<double>()), x * scale), self);
}
Tensor Softplus(const Tensor& self, const Scalar& beta, const Scalar& threshold) {
  const Tensor x = Up(self), scaled = x * beta;
  return Down(at::where(scaled > threshold, x, at::div(scaled.exp().log1p(), beta)), self);
}
Tensor SoftplusBackward(const Tensor& grad, const Tensor& self, const Scalar& beta, const Scalar& threshold) {
  const Tensor x = Up(self), g = Up(grad), z = (x * beta).exp();
  return Down(at::where(x * beta > threshold, g, g * z / (z + 1)), self);
}
Tensor Hardsigmoid(const Tensor& self) {
  const Tensor x = Up(self);
  return Down(at::clamp(x + 3, 0, 6) / 6, self);
}
Tensor Hardswish(const Tensor& self) {
  const Tensor x = Up(self);
  return Down(x * at::clamp(x + 3, 0, 6) / 6, self);
}

Tensor Clamp(const Tensor& self, const OptionalScalar& low, const OptionalScalar& high) {
  Tensor result = self;
  if (low.has_value()) result = at::maximum(result, at::full({}, *low, at::device(self.device()).dtype(at::result_type(self, *low))));
  if (high.has_value()) result = at::minimum(result, at::full({}, *high, at::device(self.device()).dtype(at::result_type(self, *high))));
  return result;
}

Tensor Addmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  Tensor product = at::mm(a, b);
  if (!alpha.equal(1)) product = product * alpha;
  if (beta.equal(0)) return product;
  // The product first: it gives the result its strides.
  return product + (beta.equal(1) ? self : self * beta);
}
Tensor Baddbmm(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  Tensor product = at::bmm(a, b);
  if (!alpha.equal(1)) product = product * alpha;
  if (beta.equal(0)) return product;
  return product + (beta.equal(1) ? self : self * beta);
}
Tensor Addcmul(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& value) {
  return self + (value.equal(1) ? a * b : a * b * value);
}
Tensor Addcdiv(const Tensor& self, const Tensor& a, const Tensor& b, const Scalar& value) {
  return self + (value.equal(1) ? a / b : a / b * value);
}
Tensor Lerp(const Tensor& self, const Tensor& end, const Scalar& weight) { return self + (end - self) * weight; }

std::tuple<Tensor, Tensor> NativeDropout(const Tensor& self, double p, std::optional<bool> train) {
  if (train.has_value() && !*train) return {at::clone(self), at::ones_like(self, self.options().dtype(at::kBool))};
  // What the operator itself draws.
  const Tensor mask = at::bernoulli(self, 1 - p);
  return {self * mask * (p == 1 ? 0.0 : 1 / (1 - p)), mask.to(at::kBool)};
}
Tensor NativeDropoutBackward(const Tensor& grad, const Tensor& mask, double scale) { return grad * mask * scale; }

std::tuple<Tensor, Tensor> VarMean(const Tensor& self, at::OptionalIntArrayRef dim, const OptionalScalar& correction, bool keepdim) {
  std::vector<int64_t> dims;
  if (dim.has_value()) dims = dim->vec();
  if (dims.empty()) {
    for (int64_t d = 0; d < self.dim(); ++d) dims.push_back(d);
  }
  const Tensor x = Up(self), mean = at::mean(x, dims, /*keepdim=*/true);
  int64_t count = 1;
  for (const int64_t d : dims) count *= self.size(d);
  const double divisor = std::max(static_cast<double>(count) - (correction.has_value() ? correction->to<double>() : 1.0), 0.0);
  const Tensor off = x - mean, sum = at::sum(off * off, dims, keepdim);
  return {Down(sum / divisor, self), Down(keepdim ? mean : at::mean(x, dims, false), self)};
}

Tensor EmbeddingDenseBackward(const Tensor& grad, const Tensor& indices, int64_t num_weights, int64_t padding_idx, bool scale_by_freq) {
  const int64_t width = grad.size(-1);
  const Tensor flat = at::reshape(indices, {-1}).to(at::kLong);
  Tensor rows = at::reshape(grad, {flat.numel(), width});
  if (scale_by_freq) {
    const Tensor ones = at::ones({flat.numel()}, rows.options());
    const Tensor counts = at::index_add(at::zeros({num_weights}, rows.options()), 0, flat, ones);
    rows = rows / at::index_select(counts, 0, flat).unsqueeze(1);
  }
  if (padding_idx >= 0) rows = at::where((flat == padding_idx).unsqueeze(1), Number(rows, 0), rows);
  return at::index_add(at::zeros({num_weights, width}, rows.options()), 0, flat, rows);
}

}  // namespace

void AddElementwiseDecompositions(DecompositionTable* table) {
  table->Add("gelu", Gelu);
  table->Add("gelu_backward", GeluBackward);
  table->Add("silu", Silu);
  table->Add("silu_backward", SiluBackward);
  table->Add("sigmoid_backward", SigmoidBackward);
  table->Add("tanh_backward", TanhBackward);
  table->Add("threshold_backward", ThresholdBackward);
  table->Add("hardtanh", Hardtanh);
  table->Add("hardtanh_backward", HardtanhBackward);
  table->Add("leaky_relu", LeakyRelu);
  table->Add("leaky_relu_backward", LeakyReluBackward);
  table->Add("elu", Elu);
  table->Add("softplus", Softplus);
  table->Add("softplus_backward", SoftplusBackward);
  table->Add("hardsigmoid", Hardsigmoid);
  table->Add("hardswish", Hardswish);
  table->Add("clamp", Clamp);
  table->Add("addmm", Addmm);
  table->Add("baddbmm", Baddbmm);
  table->Add("addcmul", Addcmul);
  table->Add("addcdiv", Addcdiv);
  table->Add("lerp.Scalar", Lerp);
  table->Add("native_dropout", NativeDropout);
  table->Add("native_dropout_backward", NativeDropoutBackward);
  table->Add("var_mean.correction", VarMean);
  table->Add("embedding_dense_backward", EmbeddingDenseBackward);
}

}  // namespace ddpopt
