// Attention: the CPU's flash kernels, softmax under a mask, and the parts of nn::Transformer's fast path.

#include <algorithm>
#include <tuple>
#include <vector>

#include "ATen/Context.h"
#include "ATen/ExpandUtils.h"
#include "ATen/WrapDimUtils.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/_log_softmax_backward_data.h"
#include "ATen/ops/_softmax_backward_data.h"
#include "ATen/ops/empty_like.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

bool IsFlashDtype(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf;
}

// [batch, heads, length, size] over a [batch, length, heads, size] buffer.
Tensor HeadsLast(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return Empty({sizes[0], sizes[2], sizes[1], sizes[3]}, options).transpose(1, 2);
}

void CheckMask(const char* name, const Tensor& mask, const Tensor& query, const Tensor& key) {
  TORCH_CHECK(mask.scalar_type() == query.scalar_type(), name, ": the mask is ", mask.scalar_type(), ", the query ", query.scalar_type());
  TORCH_CHECK(mask.dim() == 2 || mask.dim() == 4, name, ": the mask must have 2 or 4 dimensions, not ", mask.sizes());
  TORCH_CHECK(mask.size(-1) == 1 || mask.size(-1) == key.size(2), name, ": a mask of ", mask.sizes(), " for keys of ", key.sizes());
  TORCH_CHECK(mask.size(-2) == 1 || mask.size(-2) == query.size(2), name, ": a mask of ", mask.sizes(), " for queries of ", query.sizes());
}

std::tuple<Tensor, Tensor> FlashAttention(const Tensor& query, const Tensor& key, const Tensor& value, double dropout_p, bool /*is_causal*/,
                                          const MaybeTensor& attn_mask, std::optional<double> /*scale*/) {
  constexpr const char* kName = "flash attention";
  TORCH_CHECK(IsFlashDtype(query.scalar_type()), kName, ": not for ", query.scalar_type());
  TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && value.dim() == 4, kName, ": 4-D tensors are wanted, not ", query.sizes(), ", ",
              key.sizes(), ", ", value.sizes());
  TORCH_CHECK(dropout_p == 0.0, kName, ": dropout is not supported on the CPU");
  TORCH_CHECK(query.size(3) == key.size(3) && query.size(3) == value.size(3), kName, ": heads differ in size: ", query.sizes(), ", ",
              key.sizes(), ", ", value.sizes());
  TORCH_CHECK(query.scalar_type() == key.scalar_type() && query.scalar_type() == value.scalar_type(), kName, ": dtypes differ");
  if (Given(attn_mask)) CheckMask(kName, *attn_mask, query, key);
  const bool low_precision = query.scalar_type() == at::kBFloat16 || query.scalar_type() == at::kHalf;
  const at::TensorOptions accumulated = low_precision ? query.options().dtype(at::kFloat) : query.options();
  const Tensor logsumexp = Empty({query.size(0), query.size(2), query.size(1)}, accumulated).transpose(1, 2);
  return {at::empty_like(query), logsumexp};
}

std::tuple<Tensor, Tensor, Tensor> FlashAttentionBackward(const Tensor& grad_out, const Tensor& query, const Tensor& key,
                                                          const Tensor& value, const Tensor& /*out*/, const Tensor& logsumexp,
                                                          double /*dropout_p*/, bool /*is_causal*/, const MaybeTensor& attn_mask,
                                                          std::optional<double> /*scale*/) {
  constexpr const char* kName = "flash attention backward";
  if (!grad_out.defined()) return {};
  TORCH_CHECK(query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && grad_out.dim() == 4, kName, ": 4-D tensors are wanted");
  for (const Tensor* tensor : {&key, &value, &grad_out}) {
    TORCH_CHECK(tensor->scalar_type() == query.scalar_type(), kName, ": expected ", query.scalar_type(), ", found ", tensor->scalar_type());
  }
  const bool low_precision = query.scalar_type() == at::kBFloat16 || query.scalar_type() == at::kHalf;
  TORCH_CHECK(logsumexp.scalar_type() == (low_precision ? at::kFloat : query.scalar_type()), kName, ": logsumexp is ",
              logsumexp.scalar_type());
  if (Given(attn_mask)) CheckMask(kName, *attn_mask, query, key);
  return {HeadsLast(query.sizes(), query.options()), HeadsLast(key.sizes(), key.options()), HeadsLast(value.sizes(), value.options())};
}

Tensor MaskedSoftmax(const Tensor& input, const Tensor& mask, std::optional<int64_t> dim, std::optional<int64_t> mask_type) {
  constexpr const char* kName = "_masked_softmax";
  TORCH_CHECK(mask.scalar_type() == at::kBool, kName, ": the mask must be bool, not ", mask.scalar_type());
  TORCH_CHECK(mask_type.has_value() || mask.sizes() == input.sizes(), kName, ": a mask type is wanted");
  const int64_t type = mask_type.value_or(2);
  TORCH_CHECK(type >= 0 && type <= 2, kName, ": mask type ", type, " is none of 0, 1, 2");
  const int64_t wrapped = at::maybe_wrap_dim(dim.value_or(input.dim() - 1), input.dim());
  if (type == 2) {
    TORCH_CHECK(mask.sizes() == input.sizes(), kName, ": a mask of ", mask.sizes(), " for an input of ", input.sizes());
    return at::empty_like(input);
  }
  TORCH_CHECK(input.dim() == 4, kName, ": an input of 4 dimensions is wanted, not ", input.sizes());
  TORCH_CHECK(wrapped == 3, kName, ": the last dimension is wanted");
  if (type == 0) {
    TORCH_CHECK(mask.dim() == 2 && mask.size(0) == input.size(2) && mask.size(1) == input.size(3), kName, ": a mask of ", mask.sizes(),
                " for an input of ", input.sizes());
  } else {
    TORCH_CHECK(mask.dim() == 2 && mask.size(0) == input.size(0) && mask.size(1) == input.size(3), kName, ": a mask of ", mask.sizes(),
                " for an input of ", input.sizes());
  }
  return at::empty_like(input);
}

Tensor MaskedSoftmaxBackward(const Tensor& grad, const Tensor& output, const Tensor& mask, std::optional<int64_t> dim) {
  constexpr const char* kName = "_masked_softmax_backward";
  TORCH_CHECK(grad.sizes() == mask.sizes(), kName, ": a mask of ", mask.sizes(), " for a gradient of ", grad.sizes());
  TORCH_CHECK(mask.scalar_type() == at::kBool, kName, ": the mask must be bool, not ", mask.scalar_type());
  at::maybe_wrap_dim(dim.value_or(output.dim() - 1), output.dim());
  TORCH_CHECK(grad.scalar_type() == output.scalar_type(), kName, ": expected ", grad.scalar_type(), ", found ", output.scalar_type());
  if (grad.dim() == 0) return Empty({1}, grad.options());
  return EmptyContiguousLike(grad);
}

// LibTorch's don't compare dtypes.
void CheckSoftmaxDtypes(const Tensor& grad_output, const Tensor& output, const char* name) {
  TORCH_CHECK(grad_output.numel() == 0 || grad_output.scalar_type() == output.scalar_type(), name, ": expected ", grad_output.scalar_type(),
              ", found ", output.scalar_type());
}
Tensor SoftmaxBackward(const Tensor& grad_output, const Tensor& output, int64_t dim, at::ScalarType input_dtype) {
  CheckSoftmaxDtypes(grad_output, output, "_softmax_backward_data");
  return at::_softmax_backward_data(grad_output, output, dim, input_dtype);
}
Tensor LogSoftmaxBackward(const Tensor& grad_output, const Tensor& output, int64_t dim, at::ScalarType input_dtype) {
  CheckSoftmaxDtypes(grad_output, output, "_log_softmax_backward_data");
  return at::_log_softmax_backward_data(grad_output, output, dim, input_dtype);
}

std::tuple<Tensor, Tensor, Tensor> TransformBiasRescaleQkv(const Tensor& qkv, const Tensor& /*qkv_bias*/, int64_t num_heads) {
  const int64_t batch = qkv.size(0);
  const int64_t length = qkv.size(1);
  const int64_t width = qkv.size(2);
  TORCH_CHECK(width % 3 == 0 && num_heads > 0 && (width / 3) % num_heads == 0, "_transform_bias_rescale_qkv: ", width,
              " columns don't divide into queries, keys and values of ", num_heads, " heads");
  const Tensor all = Empty({3, batch, num_heads, length, width / 3 / num_heads}, qkv.options());
  return {all.select(0, 0), all.select(0, 1), all.select(0, 2)};
}

void CheckHeads(const char* name, const Tensor& query, int64_t embed_dim, int64_t num_heads, const Tensor& qkv_weight,
                const Tensor& qkv_bias) {
  TORCH_CHECK(query.dim() == 3, name, ": inputs of 3 dimensions are wanted, not ", query.sizes());
  TORCH_CHECK(embed_dim == query.size(2), name, ": embed_dim is ", embed_dim, ", the query has ", query.sizes());
  TORCH_CHECK(num_heads > 0 && embed_dim % num_heads == 0, name, ": ", embed_dim, " doesn't divide into ", num_heads, " heads");
  TORCH_CHECK(qkv_weight.dim() == 2 && qkv_weight.size(0) == 3 * embed_dim && qkv_weight.size(1) == embed_dim, name, ": a qkv weight of ",
              qkv_weight.sizes());
  TORCH_CHECK(qkv_bias.dim() == 1 && qkv_bias.size(0) == 3 * embed_dim, name, ": a qkv bias of ", qkv_bias.sizes());
}

std::tuple<Tensor, Tensor> NativeMultiHeadAttention(const Tensor& query, const Tensor& key, const Tensor& value, int64_t embed_dim,
                                                    int64_t num_heads, const Tensor& qkv_weight, const Tensor& qkv_bias,
                                                    const Tensor& proj_weight, const Tensor& /*proj_bias*/, const MaybeTensor& mask,
                                                    bool need_weights, bool average_weights, std::optional<int64_t> mask_type) {
  constexpr const char* kName = "_native_multi_head_attention";
  TORCH_CHECK(!Given(mask) || mask_type.has_value(), kName, ": a mask needs its type");
  CheckHeads(kName, query, embed_dim, num_heads, qkv_weight, qkv_bias);
  TORCH_CHECK(key.sizes() == query.sizes() && value.sizes() == query.sizes(), kName, ": query, key and value differ in shape");
  TORCH_CHECK(proj_weight.dim() == 2 && proj_weight.size(1) == embed_dim, kName, ": a projection of ", proj_weight.sizes());
  const int64_t batch = query.size(0);
  const int64_t length = query.size(1);
  Tensor weights;
  if (need_weights) {
    weights =
        average_weights ? Empty({batch, length, length}, query.options()) : Empty({batch, num_heads, length, length}, query.options());
  }
  return {Empty({batch, length, proj_weight.size(0)}, query.options()), weights};
}

Tensor TransformerEncoderLayer(const Tensor& src, int64_t embed_dim, int64_t num_heads, const Tensor& qkv_weight, const Tensor& qkv_bias,
                               const Tensor& proj_weight, const Tensor& /*proj_bias*/, bool /*use_gelu*/, bool /*norm_first*/,
                               double /*eps*/, const Tensor& /*norm_weight_1*/, const Tensor& /*norm_bias_1*/,
                               const Tensor& /*norm_weight_2*/, const Tensor& /*norm_bias_2*/, const Tensor& ffn_weight_1,
                               const Tensor& /*ffn_bias_1*/, const Tensor& ffn_weight_2, const Tensor& /*ffn_bias_2*/,
                               const MaybeTensor& mask, std::optional<int64_t> mask_type) {
  constexpr const char* kName = "_transformer_encoder_layer_fwd";
  TORCH_CHECK(!Given(mask) || mask_type.has_value(), kName, ": a mask needs its type");
  CheckHeads(kName, src, embed_dim, num_heads, qkv_weight, qkv_bias);
  TORCH_CHECK(proj_weight.dim() == 2 && proj_weight.size(0) == embed_dim && proj_weight.size(1) == embed_dim && ffn_weight_1.dim() == 2 &&
                  ffn_weight_1.size(1) == embed_dim && ffn_weight_2.dim() == 2 && ffn_weight_2.size(0) == embed_dim &&
                  ffn_weight_2.size(1) == ffn_weight_1.size(0),
              kName, ": weights don't fit an embedding of ", embed_dim);
  return EmptyContiguousLike(src);
}

// 1, the flash kernel, where it takes the operands; 0 is the composition of products and a softmax.
int64_t FusedSdpChoice(const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& mask, double dropout_p,
                       bool /*is_causal*/, std::optional<double> /*scale*/, bool enable_gqa) {
  constexpr int64_t kMath = 0, kFlash = 1;
  if (!ClaimedDevice().is_cpu() || !at::globalContext().userEnabledFlashSDP() || dropout_p > 0.0) return kMath;
  if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4) return kMath;
  if (key.size(0) != query.size(0) || value.size(0) != query.size(0) || key.size(1) != value.size(1)) return kMath;
  // One key may serve all heads; several, as many heads each, only on demand.
  const int64_t heads = query.size(1), keys = key.size(1);
  if (enable_gqa ? keys == 0 || heads % keys != 0 : keys != heads && (keys != 1 || heads == 0)) return kMath;
  TORCH_CHECK(!Given(mask) || mask->requires_grad() || mask->dim() >= 2, "_fused_sdp_choice: a mask of shape ", mask->sizes());
  if (!IsFlashDtype(query.scalar_type())) return kMath;
  for (const Tensor* other : {&key, &value}) {
    if (other->scalar_type() != query.scalar_type() || other->size(3) != query.size(3)) return kMath;
  }
  if (query.size(2) == 0 || key.size(2) == 0) return kMath;
  if (Given(mask)) {
    const auto fits = [&](int64_t dim, int64_t wanted) { return mask->size(dim) == wanted || mask->size(dim) == 1; };
    if (mask->requires_grad() || !fits(-2, query.size(2)) || !fits(-1, key.size(2))) return kMath;
    if (mask->dim() != 2 && !(mask->dim() == 4 && fits(0, query.size(0)) && fits(1, query.size(1)))) return kMath;
  }
  for (const Tensor* each : {&query, &key, &value}) {
    if (each->stride(3) != 1) return kMath;
  }
  return kFlash;
}

constexpr FakeKernelOptions kSoftmax = {.out_dtype = FakeKernelOptions::OutDtype::kEqual,
                                        .overlap = FakeKernelOptions::Overlap::kUnchecked};

DDPOPT_FAKE_KERNELS(m) {
  m.impl("_scaled_dot_product_flash_attention_for_cpu", FlashAttention);
  m.impl("_scaled_dot_product_flash_attention_for_cpu_backward", FlashAttentionBackward);
  m.impl("_fused_sdp_choice", FusedSdpChoice);
  m.impl("_softmax_backward_data", SoftmaxBackward, kSoftmax);
  m.impl("_log_softmax_backward_data", LogSoftmaxBackward, kSoftmax);
  m.impl("_masked_softmax", MaskedSoftmax);
  m.impl("_masked_softmax_backward", MaskedSoftmaxBackward);
  m.impl("_transform_bias_rescale_qkv", TransformBiasRescaleQkv);
  m.impl("_native_multi_head_attention", NativeMultiHeadAttention);
  m.impl("_transformer_encoder_layer_fwd", TransformerEncoderLayer);
}

}  // namespace
}  // namespace ddpopt::kernels
