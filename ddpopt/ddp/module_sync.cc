#include "ddpopt/ddp/module_sync.h"

#include <cstddef>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "c10/core/InferenceMode.h"

namespace ddpopt {
namespace {

constexpr int64_t kMessageBytes = int64_t{64} << 20;

int64_t BytesOf(const at::Tensor& tensor) { return tensor.numel() * static_cast<int64_t>(tensor.element_size()); }

// tensors[begin, end) in one message.
absl::Status BroadcastSome(const ProcessGroup& group, const std::vector<NamedTensor>& tensors, std::size_t begin, std::size_t end,
                           int64_t total, int root) {
  at::Tensor message = at::empty({total}, at::TensorOptions(at::kByte).device(tensors[begin].tensor.device()));
  const auto for_each = [&](auto&& copy) {
    int64_t offset = 0;
    for (std::size_t i = begin; i < end; ++i) {
      // Shares the memory, with a version counter of its own.
      const at::Tensor own = tensors[i].tensor.variable_data();
      const int64_t bytes = BytesOf(own);
      if (bytes > 0) copy(own, message.narrow(0, offset, bytes));
      offset += bytes;
    }
  };
  if (group.rank() == root) {
    for_each([](const at::Tensor& own, const at::Tensor& part) {
      part.copy_(own.resolve_conj().resolve_neg().contiguous().reshape({-1}).view(at::kByte));
    });
  }
  DDPOPT_RETURN_IF_ERROR(group.Broadcast(message, root));
  if (group.rank() == root) return absl::OkStatus();
  for_each([](const at::Tensor& own, const at::Tensor& part) {
    const at::Tensor dense = at::empty(own.sizes(), own.options());
    dense.reshape({-1}).view(at::kByte).copy_(part);
    own.copy_(dense);
  });
  return absl::OkStatus();
}

}  // namespace

absl::Status BroadcastTensors(const ProcessGroup& group, const std::vector<NamedTensor>& tensors, int root) {
  if (group.world_size() == 1) return absl::OkStatus();
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  std::size_t begin = 0;
  while (begin < tensors.size()) {
    int64_t total = BytesOf(tensors[begin].tensor);
    std::size_t end = begin + 1;
    for (; end < tensors.size(); ++end) {
      const int64_t bytes = BytesOf(tensors[end].tensor);
      if (total + bytes > kMessageBytes || tensors[end].tensor.device() != tensors[begin].tensor.device()) break;
      total += bytes;
    }
    if (total > 0) {
      const absl::Status status = CatchAsStatus("", [&] { return BroadcastSome(group, tensors, begin, end, total, root); });
      if (!status.ok()) {
        const std::string which = end == begin + 1 ? absl::StrCat("\"", tensors[begin].name, "\"")
                                                   : absl::StrCat("\"", tensors[begin].name, "\" to \"", tensors[end - 1].name, "\"");
        return Annotate(status, absl::StrCat("broadcasting ", which, " from rank ", root));
      }
    }
    begin = end;
  }
  return absl::OkStatus();
}

}  // namespace ddpopt
