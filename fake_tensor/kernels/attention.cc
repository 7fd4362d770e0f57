// The CPU's flash attention. Its gradients are transposed views of [batch, length, heads, size] buffers; consumers see those strides.

#include <tuple>

#include "ATen/core/Tensor.h"
#include "ATen/ops/empty_like.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;

// [batch, heads, length, size] over a [batch, length, heads, size] buffer.
Tensor HeadsLast(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return Empty({sizes[0], sizes[2], sizes[1], sizes[3]}, options).transpose(1, 2);
}

std::tuple<Tensor, Tensor> FlashAttention(const Tensor& query, const Tensor& key, const Tensor& value, double dropout_p, bool /*is_causal*/,
                                          const std::optional<Tensor>& /*attn_mask*/, std::optional<double> /*scale*/) {
  TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && value.dim() == 4, "flash attention: 4-D tensors are wanted, not ", query.sizes(), ", ",
              key.sizes(), ", ", value.sizes());
  TORCH_CHECK(dropout_p == 0.0, "flash attention: dropout is not supported on the CPU");
  TORCH_CHECK(query.size(3) == key.size(3) && query.size(3) == value.size(3) && key.size(2) == value.size(2),
              "flash attention: shapes don't match: ", query.sizes(), ", ", key.sizes(), ", ", value.sizes());
  const bool low_precision = query.scalar_type() == at::kBFloat16 || query.scalar_type() == at::kHalf;
  const at::TensorOptions accumulated = low_precision ? query.options().dtype(at::kFloat) : query.options();
  const Tensor logsumexp = Empty({query.size(0), query.size(2), query.size(1)}, accumulated).transpose(1, 2);
  return {at::empty_like(query), logsumexp};
}

std::tuple<Tensor, Tensor, Tensor> FlashAttentionBackward(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                                          const Tensor& value, const Tensor& /*out*/, const Tensor& /*logsumexp*/,
                                                          double /*dropout_p*/, bool /*is_causal*/,
                                                          const std::optional<Tensor>& /*attn_mask*/, std::optional<double> /*scale*/) {
  if (!grad_out.defined()) return {};
  return {HeadsLast(query.sizes(), query.options()), HeadsLast(key.sizes(), key.options()), HeadsLast(value.sizes(), value.options())};
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("_scaled_dot_product_flash_attention_for_cpu", FlashAttention);
  m.impl("_scaled_dot_product_flash_attention_for_cpu_backward", FlashAttentionBackward);
}

}  // namespace
}  // namespace ddpopt::kernels
