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
_add_relu.Scalar _add_relu.Tensor _add_relu.out _add_relu_.Scalar _add_relu_.Tensor _euclidean_dist _euclidean_dist.out
_fake_quantize_learnable_per_tensor_affine_backward _fft_r2c.out _foreach_powsum.Scalar _foreach_powsum.Scalar_out _fused_sdp_choice
_linalg_solve_ex.result _log_softmax_backward_data.out _upsample_bicubic2d_aa.out _upsample_bilinear2d_aa.out _upsample_lanczos2d_aa.out
adaptive_avg_pool3d.out adaptive_avg_pool3d_backward.grad_input addbmm_ avg_pool3d_backward.grad_input baddbmm_ batch_norm_backward
convolution_backward convolution_backward.out dist.out gelu_backward gelu_backward.grad_input glu_backward_jvp im2col.out index_reduce.out
index_reduce_ linalg__powsum linalg_lstsq linalg_lstsq.out linalg_solve_triangular.out max_pool3d_with_indices max_pool3d_with_indices.out
max_unpool2d max_unpool3d.out multi_margin_loss.out multi_margin_loss_backward multi_margin_loss_backward.grad_input
multilabel_margin_loss_backward.grad_input multilabel_margin_loss_forward.output multinomial.out nll_loss2d_forward.output
normal.Tensor_Tensor_out normal.Tensor_float_out normal.float_Tensor_out replication_pad2d_backward.grad_input
replication_pad3d_backward.grad_input resize_as_ rrelu_with_noise_backward scatter_reduce_.two set.source_Tensor set.source_Tensor_out
slow_conv3d_forward slow_conv3d_forward.output slow_conv_dilated2d slow_conv_dilated2d.out slow_conv_dilated3d slow_conv_transpose2d
slow_conv_transpose2d.out slow_conv_transpose3d.out upsample_bicubic2d.out upsample_bilinear2d.out
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
