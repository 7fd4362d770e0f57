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

// Operators of which //tools:cross_ref --all has found a call that a fake answers differently, with their other forms: without "aten::".
// Of elementwise operators these are the out= forms, where an expanded operand that is converted first decides the strides of out=.
constexpr char kUnfinished[] = R"(
_adaptive_avg_pool2d _adaptive_avg_pool2d.out _adaptive_avg_pool3d.out _add_relu.Scalar _add_relu.Scalar_out _add_relu.out
_add_relu_.Scalar _add_relu_.Tensor _addmm_activation _addmm_activation.out _batch_norm_with_update _batch_norm_with_update.out
_batch_norm_with_update_functional _cdist_forward _cdist_forward.out _conj _convolution _convolution.out _embedding_bag _embedding_bag.out
_embedding_bag_backward _embedding_bag_forward_only _embedding_bag_forward_only.out _embedding_bag_per_sample_weights_backward
_embedding_bag_per_sample_weights_backward.out _euclidean_dist _euclidean_dist.out _fake_quantize_learnable_per_channel_affine
_fake_quantize_learnable_per_channel_affine.out _fake_quantize_learnable_per_channel_affine_backward
_fake_quantize_learnable_per_tensor_affine_backward _fft_r2c.out _foreach_add.ScalarList _foreach_add.ScalarList_out
_foreach_add_.ScalarList _foreach_addcdiv.ScalarList _foreach_addcdiv.ScalarList_out _foreach_addcdiv_.ScalarList _foreach_addcmul.Scalar
_foreach_addcmul.ScalarList _foreach_addcmul.ScalarList_out _foreach_addcmul.Scalar_out _foreach_addcmul.Tensor
_foreach_addcmul.Tensor_out _foreach_addcmul_.Scalar _foreach_addcmul_.ScalarList _foreach_addcmul_.Tensor _foreach_clamp_max.ScalarList
_foreach_clamp_max.ScalarList_out _foreach_clamp_max_.ScalarList _foreach_div.List _foreach_div.List_out _foreach_div.Tensor
_foreach_div.Tensor_out _foreach_div_.List _foreach_div_.Tensor _foreach_lerp.ScalarList _foreach_lerp.ScalarList_out
_foreach_lerp_.ScalarList _foreach_minimum.ScalarList _foreach_minimum.ScalarList_out _foreach_minimum_.ScalarList _foreach_mm
_foreach_mul.ScalarList _foreach_mul.ScalarList_out _foreach_mul.Tensor _foreach_mul.Tensor_out _foreach_mul_.ScalarList
_foreach_mul_.Tensor _foreach_powsum.Scalar _foreach_powsum.Scalar_out _foreach_sub.ScalarList _foreach_sub.ScalarList_out
_foreach_sub_.ScalarList _fused_sdp_choice _grid_sampler_2d_cpu_fallback _grid_sampler_2d_cpu_fallback.out
_grid_sampler_2d_cpu_fallback_backward _histogramdd_bin_edges _histogramdd_bin_edges.out _index_put_impl _index_put_impl.out
_index_put_impl_ _linalg_det.result _linalg_eigh.eigenvalues _linalg_slogdet.sign _linalg_solve_ex.result _linalg_svd.U _log_softmax.out
_log_softmax_backward_data _log_softmax_backward_data.out _logcumsumexp.out _native_batch_norm_legit _native_batch_norm_legit.no_stats
_native_batch_norm_legit.no_stats_out _native_batch_norm_legit.out _native_batch_norm_legit_functional
_native_batch_norm_legit_no_training _native_batch_norm_legit_no_training.out _neg_view _slow_conv2d_backward.grad_input
_slow_conv2d_backward.output_mask _slow_conv2d_backward.output_mask_out _slow_conv2d_forward.output _softmax.out _softmax_backward_data
_softmax_backward_data.out _trilinear _trilinear.out _unsafe_index_put _upsample_bicubic2d_aa _upsample_bicubic2d_aa.out
_upsample_bilinear2d_aa _upsample_bilinear2d_aa.out _upsample_lanczos2d_aa _upsample_lanczos2d_aa.out _upsample_nearest_exact1d.out
_upsample_nearest_exact1d_backward.grad_input _weight_norm_interface.out _weight_norm_interface_backward
_weight_norm_interface_backward.out adaptive_avg_pool1d.out adaptive_avg_pool2d.out adaptive_avg_pool3d.out
adaptive_avg_pool3d_backward.grad_input adaptive_max_pool3d_backward.grad_input add.Scalar add.Scalar_out add.out add_.Scalar addbmm
addbmm.out addbmm_ addcdiv addcdiv.out addcdiv_ addcmul addcmul.out addcmul_ addmm addmm.out addmm_ addmv addmv.out addmv_ addr.out
affine_grid_generator affine_grid_generator.out all.dims_out all.out amax.out amin.out aminmax.out any.dims_out any.out argmax.out
argmin.out as_strided_copy as_strided_copy.out as_strided_scatter as_strided_scatter.out atan2 atan2.out atan2_ avg_pool1d.out
avg_pool2d_backward avg_pool2d_backward.grad_input avg_pool3d.out avg_pool3d_backward avg_pool3d_backward.grad_input baddbmm baddbmm.out
baddbmm_ batch_norm_backward bitwise_and.Scalar_Tensor_out bitwise_and.Scalar_out bitwise_and.Tensor_out
bitwise_left_shift.Scalar_Tensor_out bitwise_left_shift.Tensor_Scalar_out bitwise_left_shift.Tensor_out bitwise_not.out
bitwise_or.Scalar_Tensor_out bitwise_or.Scalar_out bitwise_or.Tensor_out bitwise_right_shift.Scalar_Tensor_out bitwise_right_shift.Tensor
bitwise_right_shift.Tensor_Scalar_out bitwise_right_shift.Tensor_out bitwise_right_shift_.Tensor bitwise_xor.Scalar_Tensor_out
bitwise_xor.Scalar_out bitwise_xor.Tensor_out bmm bmm.out clamp clamp.Tensor clamp.Tensor_out clamp.out clamp_ clamp_.Tensor clamp_max
clamp_max.Tensor clamp_max.Tensor_out clamp_max.out clamp_max_ clamp_max_.Tensor clamp_min.Tensor_out clamp_min.out col2im.out
constant_pad_nd.out convolution convolution.out convolution_backward convolution_backward.out copy_ copysign.Scalar_out copysign.out
cummax.out cummin.out cumprod cumprod.out cumprod_ cumsum cumsum.out cumsum_ diag_embed.out diagonal_backward.out dist dist.out
div.Scalar_mode_out div.Scalar_out div.Tensor div.out div.out_mode div_.Tensor dot.out embedding.out embedding_renorm.out
embedding_renorm_ empty_strided empty_strided.out eq.Scalar_out eq.Tensor eq.Tensor_out eq_.Tensor
fake_quantize_per_channel_affine_cachemask fake_quantize_per_channel_affine_cachemask.out floor_divide.Scalar_out floor_divide.out
fmax.out fmin.out fmod.Scalar_out fmod.Tensor_out fractional_max_pool2d fractional_max_pool2d.output fractional_max_pool3d
fractional_max_pool3d.output gcd.out ge.Scalar_out ge.Tensor_out gelu_backward gelu_backward.grad_input geqrf.a glu_backward.grad_input
glu_backward_jvp glu_backward_jvp.out gt.Scalar_out gt.Tensor gt.Tensor_out gt_.Tensor hardsigmoid_backward.grad_input hardtanh_
hash_tensor hash_tensor.out heaviside.out histc.out histogram.bin_ct_out histogram.bins_tensor_out hypot.out igamma.out igammac.out
im2col.out index.Tensor index.Tensor_out index_add index_add.out index_add_ index_copy.out index_put index_put.out index_put_ index_reduce
index_reduce.out index_reduce_ kaiser_window.beta_out kaiser_window.out kaiser_window.periodic_out kthvalue kthvalue.values lcm.out
ldexp.Tensor ldexp.out ldexp_ le.Scalar_out le.Tensor_out lerp.Scalar_out lerp.Tensor lerp.Tensor_out lerp_.Tensor linalg__powsum
linalg_cross.out linalg_eig.out linalg_lstsq linalg_lstsq.out linalg_lu_solve linalg_lu_solve.out linalg_matrix_sqrth
linalg_matrix_sqrth.out linalg_qr.out linalg_solve_triangular.out linalg_vector_norm.out linear.out linspace linspace.Tensor_Scalar_out
linspace.out logaddexp.out logaddexp2.out logical_and logical_and.out logical_and_ logical_not.out logical_or.out logical_xor
logical_xor.out logical_xor_ logspace logspace.Scalar_Tensor logspace.Scalar_Tensor_out logspace.Tensor_Scalar_out
logspace.Tensor_Tensor_out logspace.out lt.Scalar_out lt.Tensor_out max.dim_max max.unary_out max_pool3d_with_indices
max_pool3d_with_indices.out max_unpool2d.out max_unpool3d.out maximum maximum.out mean.out median.dim_values min.dim_min minimum.out mm
mm.out mse_loss.out mul.Scalar mul.Scalar_out mul.Tensor mul.out mul_.Scalar mul_.Tensor multi_margin_loss multi_margin_loss.out
multi_margin_loss_backward multi_margin_loss_backward.grad_input multilabel_margin_loss_backward
multilabel_margin_loss_backward.grad_input multilabel_margin_loss_forward multilabel_margin_loss_forward.output multinomial.out mv.out
nansum.out native_batch_norm native_batch_norm.out native_batch_norm_backward native_batch_norm_backward.out native_group_norm
native_group_norm.out native_group_norm_backward native_group_norm_backward.out native_layer_norm_backward native_layer_norm_backward.out
ne.Scalar_out ne.Tensor_out new_empty_strided new_empty_strided.out nextafter.out nll_loss2d_backward.grad_input nll_loss2d_forward
nll_loss2d_forward.output nll_loss_backward.grad_input nll_loss_forward nll_loss_forward.output norm.ScalarOpt_dim
norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype norm.ScalarOpt_dtype_out norm.dtype_out norm.out normal.Tensor_Tensor_out
normal.Tensor_float_out normal.float_Tensor_out polygamma.out pow.Scalar pow.Scalar_out pow.Tensor_Scalar pow.Tensor_Scalar_out
pow.Tensor_Tensor_out pow_.Scalar prod.int_out randint_like randint_like.Tensor randint_like.Tensor_generator
randint_like.Tensor_generator_out randint_like.Tensor_out randint_like.out reflection_pad2d.out reflection_pad2d_backward
reflection_pad2d_backward.grad_input remainder.Scalar_Tensor_out remainder.Scalar_out remainder.Tensor_out renorm.out renorm_ repeat.out
repeat_interleave.Tensor repeat_interleave.Tensor_out replication_pad2d_backward.grad_input replication_pad3d_backward.grad_input
resize_as_ rrelu_with_noise_backward rrelu_with_noise_backward.out rsub.Scalar rsub.Scalar_out rsub.Tensor_out scatter.reduce_out
scatter.src_out scatter.value scatter.value_out scatter.value_reduce scatter.value_reduce_out scatter_.value scatter_.value_reduce
scatter_add.out scatter_reduce.two scatter_reduce.two_out scatter_reduce_.two segment_reduce segment_reduce.out set.source_Tensor
set.source_Tensor_out set_.source_Tensor silu_backward.grad_input slow_conv3d_forward slow_conv3d_forward.output slow_conv_dilated2d
slow_conv_dilated2d.out slow_conv_dilated3d slow_conv_dilated3d.out slow_conv_transpose2d slow_conv_transpose2d.out slow_conv_transpose3d
slow_conv_transpose3d.out smooth_l1_loss_backward smooth_l1_loss_backward.grad_input softshrink_backward softshrink_backward.grad_input
special_airy_ai.out special_bessel_j0.out special_bessel_j1.out special_bessel_y0.out special_bessel_y1.out
special_chebyshev_polynomial_t.n_scalar_out special_chebyshev_polynomial_t.out special_chebyshev_polynomial_t.x_scalar_out
special_chebyshev_polynomial_u.n_scalar_out special_chebyshev_polynomial_u.out special_chebyshev_polynomial_u.x_scalar_out
special_chebyshev_polynomial_v special_chebyshev_polynomial_v.n_scalar_out special_chebyshev_polynomial_v.out
special_chebyshev_polynomial_v.x_scalar_out special_chebyshev_polynomial_w.n_scalar_out special_chebyshev_polynomial_w.out
special_chebyshev_polynomial_w.x_scalar_out special_entr.out special_erfcx.out special_hermite_polynomial_h.n_scalar_out
special_hermite_polynomial_h.out special_hermite_polynomial_h.x_scalar_out special_hermite_polynomial_he.n_scalar_out
special_hermite_polynomial_he.out special_hermite_polynomial_he.x_scalar_out special_i0e.out special_i1.out special_i1e.out
special_laguerre_polynomial_l.n_scalar_out special_laguerre_polynomial_l.out special_laguerre_polynomial_l.x_scalar_out
special_legendre_polynomial_p special_legendre_polynomial_p.n_scalar_out special_legendre_polynomial_p.out
special_legendre_polynomial_p.x_scalar_out special_log_ndtr.out special_modified_bessel_i0.out special_modified_bessel_i1.out
special_modified_bessel_k0.out special_modified_bessel_k1.out special_ndtri.out special_scaled_modified_bessel_k0.out
special_scaled_modified_bessel_k1.out special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_t.n_scalar_out
special_shifted_chebyshev_polynomial_t.out special_shifted_chebyshev_polynomial_t.x_scalar_out
special_shifted_chebyshev_polynomial_u.n_scalar_out special_shifted_chebyshev_polynomial_u.out
special_shifted_chebyshev_polynomial_u.x_scalar_out special_shifted_chebyshev_polynomial_v.n_scalar_out
special_shifted_chebyshev_polynomial_v.out special_shifted_chebyshev_polynomial_v.x_scalar_out
special_shifted_chebyshev_polynomial_w.n_scalar_out special_shifted_chebyshev_polynomial_w.out
special_shifted_chebyshev_polynomial_w.x_scalar_out special_spherical_bessel_j0.out special_xlog1py special_xlog1py.other_scalar_out
special_xlog1py.out special_xlog1py.self_scalar_out special_zeta.other_scalar_out special_zeta.out special_zeta.self_scalar_out
std.correction_out sub.Scalar sub.Scalar_out sub.out sub_.Scalar sum.IntList_out topk.values triangular_solve.X tril_ triu_
unsafe_split.Tensor_out upsample_bicubic2d_backward upsample_bicubic2d_backward.grad_input upsample_bilinear2d.out
upsample_bilinear2d.vec_out upsample_linear1d.out upsample_nearest1d.out upsample_nearest1d_backward.grad_input upsample_nearest2d.vec_out
upsample_nearest3d.out upsample_trilinear3d.out var.correction_out vdot.out where.self_out xlogy.OutScalar_Other xlogy.OutScalar_Self
xlogy.OutTensor xlogy.Tensor xlogy_.Tensor
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
