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

// Operators of which //tools:cross_ref --all has found a call that a fake answers differently, without "aten::". Known of them:
// kernels that hand back another tensor than the one to write to (_add_relu*), give an operand another shape (slow_conv_transpose2d), read
// and write one tensor (max_unpool3d, _linalg_solve_ex, slow_conv3d_forward.output), grow one that is lazily conjugated (addbmm_,
// resize_as_); what oneDNN takes of mixed dtypes (convolution_backward); bytes interpolated with AVX (_upsample_*_aa.out).
constexpr char kUnfinished[] = R"(
_add_relu.out _add_relu_.Scalar _add_relu_.Tensor _foreach_powsum.Scalar_out _fused_sdp_choice _linalg_solve_ex.result
_log_softmax_backward_data.out _upsample_bilinear2d_aa.out _upsample_lanczos2d_aa.out adaptive_avg_pool3d.out addbmm_
avg_pool3d_backward.grad_input convolution_backward convolution_backward.out im2col.out index_reduce.out linalg_solve_triangular.out
max_pool3d_with_indices max_pool3d_with_indices.out max_unpool3d.out multi_margin_loss.out multi_margin_loss_backward
multi_margin_loss_backward.grad_input multilabel_margin_loss_backward.grad_input multilabel_margin_loss_forward.output
nll_loss2d_forward.output resize_as_ rrelu_with_noise_backward slow_conv3d_forward.output slow_conv_dilated3d slow_conv_transpose2d
slow_conv_transpose2d.out
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
