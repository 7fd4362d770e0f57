#ifndef DDPOPT_BASE_MASKED_FILL_INDEX_H_
#define DDPOPT_BASE_MASKED_FILL_INDEX_H_

// LibTorch's question whether index_put_() with these indices fills by one mask, which stands elsewhere in 2.11.
//
//   const auto [is_fill, mask] = CanDispatchToMaskedFill(self, indices);

#include <optional>
#include <tuple>

#include "ATen/TensorIndexing.h"
#include "ATen/core/List.h"
#include "ATen/core/Tensor.h"
#include "torch/version.h"

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR <= 11
#include "ATen/native/TensorAdvancedIndexingUtils.h"
#include "ATen/ops/empty.h"
#endif

namespace ddpopt {

inline std::tuple<bool, at::Tensor> CanDispatchToMaskedFill(const at::Tensor& self, const torch::List<std::optional<at::Tensor>>& indices) {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR > 11
  return at::indexing::impl::canDispatchToMaskedFill(self, indices);
#else
  return at::native::canDispatchToMaskedFill(self, indices, at::empty({}, at::kCPU));
#endif
}

}  // namespace ddpopt

#endif  // DDPOPT_BASE_MASKED_FILL_INDEX_H_
