#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "fake_tensor/cross_ref/recipe.h"

namespace ddpopt::cross_ref {
namespace {

// Operators of which //tools:cross_ref --all has found a call that a fake answers differently, without "aten::".
constexpr char kUnfinished[] = R"(
_adaptive_avg_pool2d _adaptive_avg_pool2d.out _adaptive_avg_pool3d _adaptive_avg_pool3d.out _add_relu.Scalar _add_relu.Scalar_out
_add_relu.Tensor _add_relu.out _add_relu_.Scalar _add_relu_.Tensor _addmm_activation _addmm_activation.out _batch_norm_with_update.out
_cdist_forward _cdist_forward.out _convolution _convolution.out _embedding_bag _embedding_bag.out _embedding_bag_backward
_embedding_bag_forward_only _embedding_bag_forward_only.out _embedding_bag_per_sample_weights_backward
_embedding_bag_per_sample_weights_backward.out _euclidean_dist _euclidean_dist.out _fake_quantize_learnable_per_channel_affine
_fake_quantize_learnable_per_channel_affine.out _fake_quantize_learnable_per_channel_affine_backward
_fake_quantize_learnable_per_tensor_affine_backward _fft_r2c.out _foreach_mm _foreach_pow.List _foreach_pow.List_out _foreach_pow_.List
_foreach_powsum.Scalar _foreach_powsum.Scalar_out _fused_sdp_choice _grid_sampler_2d_cpu_fallback _grid_sampler_2d_cpu_fallback.out
_grid_sampler_2d_cpu_fallback_backward _histogramdd_bin_edges _histogramdd_bin_edges.out _linalg_det.result _linalg_eigh.eigenvalues
_linalg_slogdet.sign _linalg_solve_ex.result _linalg_svd.U _log_softmax.out _log_softmax_backward_data.out _logcumsumexp.out
_native_batch_norm_legit.no_stats _native_batch_norm_legit.no_stats_out _native_batch_norm_legit.out _native_batch_norm_legit_functional
_native_batch_norm_legit_no_training.out _slow_conv2d_backward.grad_input _slow_conv2d_backward.output_mask
_slow_conv2d_backward.output_mask_out _slow_conv2d_forward _slow_conv2d_forward.output _softmax.out _softmax_backward_data.out _trilinear
_trilinear.out _upsample_bicubic2d_aa _upsample_bicubic2d_aa.out _upsample_bilinear2d_aa _upsample_bilinear2d_aa.out
_upsample_lanczos2d_aa _upsample_lanczos2d_aa.out _upsample_nearest_exact1d.out _upsample_nearest_exact1d_backward.grad_input
_weight_norm_interface.out _weight_norm_interface_backward _weight_norm_interface_backward.out adaptive_avg_pool1d.out
adaptive_avg_pool2d.out adaptive_avg_pool3d.out adaptive_avg_pool3d_backward.grad_input adaptive_max_pool3d_backward.grad_input addbmm
addbmm.out addbmm_ addmm.out affine_grid_generator affine_grid_generator.out aminmax.out as_strided_copy as_strided_copy.out
as_strided_scatter as_strided_scatter.out avg_pool1d.out avg_pool2d_backward.grad_input avg_pool3d.out avg_pool3d_backward.grad_input
baddbmm.out baddbmm_ batch_norm_backward bmm.out col2im.out constant_pad_nd.out convolution.out convolution_backward
convolution_backward.out cummax.out cummin.out diag_embed.out diagonal_backward.out dist dist.out dot.out embedding.out
embedding_renorm.out embedding_renorm_ empty_strided empty_strided.out fake_quantize_per_channel_affine_cachemask
fake_quantize_per_channel_affine_cachemask.out fractional_max_pool2d fractional_max_pool2d.output fractional_max_pool3d
fractional_max_pool3d.output gelu_backward gelu_backward.grad_input geqrf.a glu_backward.grad_input glu_backward_jvp glu_backward_jvp.out
hardsigmoid_backward.grad_input hash_tensor hash_tensor.out histc.out histogram.bin_ct_out histogram.bins_tensor_out im2col.out index_add
index_add.out index_add_ index_reduce index_reduce.out index_reduce_ kaiser_window.beta_out kaiser_window.out kaiser_window.periodic_out
kthvalue.values ldexp.Tensor ldexp.out ldexp_ linalg__powsum linalg_cross.out linalg_eig.out linalg_lstsq linalg_lstsq.out linalg_lu_solve
linalg_lu_solve.out linalg_matrix_sqrth linalg_matrix_sqrth.out linalg_qr.out linalg_solve_triangular.out linalg_vector_norm.out
linear.out logspace logspace.Scalar_Tensor logspace.Scalar_Tensor_out logspace.Tensor_Scalar logspace.Tensor_Scalar_out
logspace.Tensor_Tensor logspace.Tensor_Tensor_out logspace.out max_pool3d_with_indices max_pool3d_with_indices.out max_unpool2d
max_unpool2d.out max_unpool3d max_unpool3d.out median.dim_values mm.out mse_loss_backward mse_loss_backward.grad_input multi_margin_loss
multi_margin_loss.out multi_margin_loss_backward multi_margin_loss_backward.grad_input multilabel_margin_loss_backward
multilabel_margin_loss_backward.grad_input multilabel_margin_loss_forward multilabel_margin_loss_forward.output multinomial.out
native_batch_norm.out native_batch_norm_backward native_batch_norm_backward.out native_group_norm native_group_norm.out
native_group_norm_backward.out native_layer_norm_backward.out new_empty_strided new_empty_strided.out nll_loss2d_backward.grad_input
nll_loss2d_forward nll_loss2d_forward.output nll_loss_backward.grad_input nll_loss_forward.output norm.ScalarOpt_dim
norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype norm.ScalarOpt_dtype_out norm.dtype_out norm.out normal.Tensor_Tensor
normal.Tensor_Tensor_out normal.Tensor_float normal.Tensor_float_out normal.float_Tensor normal.float_Tensor_out randint_like
randint_like.Tensor randint_like.Tensor_generator randint_like.Tensor_generator_out randint_like.Tensor_out randint_like.out
reflection_pad2d.out reflection_pad2d_backward reflection_pad2d_backward.grad_input renorm.out renorm_ repeat.out repeat_interleave.Tensor
repeat_interleave.Tensor_out replication_pad2d_backward.grad_input replication_pad3d_backward.grad_input resize_as_
rrelu_with_noise_backward rrelu_with_noise_backward.out scatter_reduce.two scatter_reduce.two_out scatter_reduce_.two segment_reduce
segment_reduce.out set.source_Tensor set.source_Tensor_out set_.source_Tensor silu_backward.grad_input slow_conv3d_forward
slow_conv3d_forward.output slow_conv_dilated2d slow_conv_dilated2d.out slow_conv_dilated3d slow_conv_dilated3d.out slow_conv_transpose2d
slow_conv_transpose2d.out slow_conv_transpose3d slow_conv_transpose3d.out smooth_l1_loss_backward.grad_input
softshrink_backward.grad_input stack.out topk.values triangular_solve.X unsafe_split.Tensor_out upsample_bicubic2d.out
upsample_bicubic2d_backward.grad_input upsample_bilinear2d.out upsample_bilinear2d.vec_out upsample_linear1d.out upsample_nearest1d.out
upsample_nearest1d_backward.grad_input upsample_nearest2d.vec_out upsample_nearest3d.out upsample_trilinear3d.out vdot.out
)";

}  // namespace

std::vector<std::string> UnfinishedOperators() {
  return absl::StrSplit(kUnfinished, absl::ByAnyChar(" \n"), absl::SkipEmpty());
}

bool IsUnfinished(const std::string& name, const std::string& overload) {
  static const auto& all = *[] {
    auto* set = new absl::flat_hash_set<std::string>();
    for (std::string& each : UnfinishedOperators()) set->insert(std::move(each));
    return set;
  }();
  const absl::string_view base = absl::StripPrefix(name, "aten::");
  return all.contains(overload.empty() ? std::string(base) : absl::StrCat(base, ".", overload));
}

}  // namespace ddpopt::cross_ref
