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

// Operators of which //tools:cross_ref --all has found a call that a fake answers differently: without "aten::".
constexpr char kUnfinished[] = R"(
_add_relu.out _add_relu_.Tensor _addmm_activation _addmm_activation.out _batch_norm_with_update _batch_norm_with_update.out
_cdist_forward _cdist_forward.out _conj _convolution _convolution.out _embedding_bag _embedding_bag_backward
_embedding_bag_per_sample_weights_backward _embedding_bag_per_sample_weights_backward.out _euclidean_dist _euclidean_dist.out
_fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_channel_affine.out
_fake_quantize_learnable_per_channel_affine_backward _fake_quantize_learnable_per_tensor_affine_backward _fft_r2c.out
_foreach_add.ScalarList _foreach_addcdiv.ScalarList _foreach_addcdiv.ScalarList_out _foreach_addcdiv_.ScalarList
_foreach_addcmul.ScalarList _foreach_addcmul.ScalarList_out _foreach_addcmul.Scalar_out _foreach_addcmul.Tensor
_foreach_addcmul.Tensor_out _foreach_addcmul_.Scalar _foreach_addcmul_.ScalarList _foreach_clamp_max.ScalarList
_foreach_clamp_max_.ScalarList _foreach_div.List _foreach_lerp.ScalarList _foreach_lerp.ScalarList_out _foreach_lerp_.ScalarList
_foreach_minimum.ScalarList _foreach_minimum.ScalarList_out _foreach_mm _foreach_mul.ScalarList _foreach_powsum.Scalar
_foreach_powsum.Scalar_out _foreach_sub.ScalarList _fused_sdp_choice _grid_sampler_2d_cpu_fallback _grid_sampler_2d_cpu_fallback.out
_grid_sampler_2d_cpu_fallback_backward _histogramdd_bin_edges _index_put_impl _index_put_impl.out _index_put_impl_ _linalg_det.result
_linalg_eigh.eigenvalues _linalg_slogdet.sign _linalg_solve_ex.result _linalg_svd.U _log_softmax.out _log_softmax_backward_data
_log_softmax_backward_data.out _logcumsumexp.out _native_batch_norm_legit.no_stats_out _native_batch_norm_legit.out _neg_view
_slow_conv2d_backward.grad_input _slow_conv2d_backward.output_mask _slow_conv2d_backward.output_mask_out _slow_conv2d_forward.output
_softmax.out _softmax_backward_data _softmax_backward_data.out _trilinear _trilinear.out _unsafe_index_put _upsample_bicubic2d_aa
_upsample_bicubic2d_aa.out _upsample_bilinear2d_aa _upsample_bilinear2d_aa.out _upsample_lanczos2d_aa _upsample_lanczos2d_aa.out
_upsample_nearest_exact1d.out _weight_norm_interface.out _weight_norm_interface_backward _weight_norm_interface_backward.out
adaptive_avg_pool1d.out adaptive_avg_pool2d.out adaptive_avg_pool3d.out adaptive_avg_pool3d_backward.grad_input
adaptive_max_pool3d_backward.grad_input add.Scalar add.out addbmm addbmm.out addbmm_ addcmul.out addmm.out addmv addmv.out addmv_
addr.out affine_grid_generator.out all.out amin.out aminmax.out any.out argmax.out argmin.out as_strided_copy as_strided_copy.out
as_strided_scatter as_strided_scatter.out atan2 atan2.out avg_pool1d.out avg_pool2d_backward avg_pool2d_backward.grad_input
avg_pool3d.out avg_pool3d_backward avg_pool3d_backward.grad_input batch_norm_backward bitwise_right_shift.Tensor clamp.Tensor
clamp.Tensor_out clamp_max.out clamp_max_ constant_pad_nd.out convolution convolution.out convolution_backward convolution_backward.out
cummax.out cummin.out cumprod cumprod_ cumsum cumsum_ diag_embed.out dist dot.out embedding.out embedding_renorm.out embedding_renorm_
eq.Tensor fake_quantize_per_channel_affine_cachemask fractional_max_pool2d fractional_max_pool2d.output fractional_max_pool3d
fractional_max_pool3d.output gelu_backward gelu_backward.grad_input geqrf.a glu_backward_jvp glu_backward_jvp.out gt.Tensor
hardsigmoid_backward.grad_input hash_tensor histc.out histogram.bin_ct_out histogram.bins_tensor_out im2col.out index.Tensor
index.Tensor_out index_add index_add.out index_add_ index_put index_put.out index_put_ index_reduce index_reduce.out index_reduce_
kaiser_window.beta_out kaiser_window.out kaiser_window.periodic_out ldexp.Tensor ldexp.out lerp.Scalar_out linalg__powsum
linalg_cross.out linalg_lu_solve linalg_lu_solve.out linalg_matrix_sqrth linalg_matrix_sqrth.out linalg_qr.out linalg_vector_norm.out
linear.out linspace linspace.Tensor_Scalar_out linspace.out logical_and_ logical_xor logical_xor.out logspace logspace.Scalar_Tensor_out
logspace.Tensor_Tensor_out logspace.out max.dim_max max_pool3d_with_indices max_unpool2d.out max_unpool3d.out mean.out median.dim_values
min.dim_min mse_loss.out multi_margin_loss multi_margin_loss_backward multi_margin_loss_backward.grad_input
multilabel_margin_loss_backward multilabel_margin_loss_backward.grad_input multilabel_margin_loss_forward.output multinomial.out mv.out
nansum.out native_batch_norm.out native_batch_norm_backward native_group_norm.out native_group_norm_backward
native_group_norm_backward.out native_layer_norm_backward native_layer_norm_backward.out new_empty_strided new_empty_strided.out
nll_loss2d_backward.grad_input nll_loss2d_forward.output nll_loss_backward.grad_input nll_loss_forward nll_loss_forward.output
norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype norm.ScalarOpt_dtype_out norm.dtype_out norm.out
normal.Tensor_Tensor_out normal.Tensor_float_out normal.float_Tensor_out pow.Scalar pow.Scalar_out pow.Tensor_Scalar prod.int_out
randint_like.Tensor randint_like.Tensor_generator randint_like.Tensor_generator_out randint_like.Tensor_out reflection_pad2d.out
reflection_pad2d_backward reflection_pad2d_backward.grad_input renorm.out renorm_ repeat.out repeat_interleave.Tensor
repeat_interleave.Tensor_out replication_pad2d_backward.grad_input resize_as_ rrelu_with_noise_backward rrelu_with_noise_backward.out
rsub.Scalar scatter.src_out scatter.value_out scatter.value_reduce scatter_add.out scatter_reduce.two scatter_reduce.two_out
scatter_reduce_.two segment_reduce segment_reduce.out set.source_Tensor set.source_Tensor_out silu_backward.grad_input
slow_conv3d_forward.output slow_conv_dilated2d slow_conv_dilated3d slow_conv_dilated3d.out slow_conv_transpose2d
slow_conv_transpose2d.out slow_conv_transpose3d slow_conv_transpose3d.out smooth_l1_loss_backward smooth_l1_loss_backward.grad_input
special_legendre_polynomial_p special_shifted_chebyshev_polynomial_w.out special_xlog1py std.correction_out sub.Scalar sum.IntList_out
topk.values triangular_solve.X tril_ triu_ upsample_bicubic2d_backward upsample_bicubic2d_backward.grad_input upsample_linear1d.out
upsample_nearest1d.out upsample_nearest1d_backward.grad_input upsample_trilinear3d.out var.correction_out vdot.out xlogy.Tensor
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
