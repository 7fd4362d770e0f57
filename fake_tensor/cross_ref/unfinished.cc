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
_adaptive_avg_pool2d.out _adaptive_avg_pool3d _adaptive_avg_pool3d.out _add_relu.Scalar _add_relu.Scalar_out _add_relu.Tensor
_add_relu.out _add_relu_.Scalar _add_relu_.Tensor _batch_norm_with_update.out _euclidean_dist _euclidean_dist.out _fft_r2c.out
_foreach_powsum.Scalar _foreach_powsum.Scalar_out _linalg_solve_ex.result _native_batch_norm_legit.no_stats_out
_native_batch_norm_legit.out _slow_conv2d_backward.grad_input _slow_conv2d_backward.output_mask _slow_conv2d_backward.output_mask_out
_upsample_bicubic2d_aa.out _upsample_bilinear2d_aa.out _upsample_lanczos2d_aa.out addbmm_ batch_norm_backward col2im.out im2col.out
index_reduce index_reduce.out index_reduce_ linalg__powsum logspace.Scalar_Tensor_out logspace.Tensor_Scalar logspace.Tensor_Scalar_out
logspace.Tensor_Tensor logspace.Tensor_Tensor_out max_unpool2d max_unpool3d.out mse_loss_backward.grad_input multi_margin_loss
multi_margin_loss.out multi_margin_loss_backward multi_margin_loss_backward.grad_input multilabel_margin_loss_backward.grad_input
multilabel_margin_loss_forward.output native_batch_norm.out native_batch_norm_backward native_batch_norm_backward.out
nll_loss2d_forward.output nll_loss_forward.output normal.Tensor_Tensor normal.Tensor_Tensor_out normal.Tensor_float
normal.Tensor_float_out normal.float_Tensor normal.float_Tensor_out resize_as_ set.source_Tensor set.source_Tensor_out slow_conv_dilated2d
slow_conv_dilated2d.out slow_conv_dilated3d slow_conv_dilated3d.out slow_conv_transpose2d slow_conv_transpose2d.out slow_conv_transpose3d
slow_conv_transpose3d.out stack.out
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
