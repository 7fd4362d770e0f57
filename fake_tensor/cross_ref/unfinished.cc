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

// Operators of which //tools:cross_ref --unfinished has found a call that a fake answers differently, without "aten::". Known of them:
// kernels that hand back another tensor than the one to write to (_add_relu*), which LibTorch's layers above a fake don't pass on; that give
// an operand another shape (slow_conv_transpose2d, of an input without a batch); that grow a tensor which is lazily conjugated (addbmm_,
// resize_as_): LibTorch then resizes the fake itself; that ask whether a gradient is contiguous whose memory format sizes of 1 leave open
// (convolution_backward, transposed).
constexpr char kUnfinished[] = R"(
_add_relu.out _add_relu_.Scalar _add_relu_.Tensor addbmm_ convolution_backward convolution_backward.out
resize_as_ slow_conv_transpose2d slow_conv_transpose2d.out
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
