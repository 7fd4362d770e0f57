#include "ddpopt/ddp/gradient_checks.h"

#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "ddpopt/ddp/rank_compare.h"

namespace ddpopt {

absl::Status CheckEqualOnAllRanks(const ProcessGroup& group, const std::string& what, const std::vector<TensorsOfKind>& tensors) {
  std::vector<std::string> lines;
  const absl::Status local = CatchAsStatus("", [&] {
    const at::NoGradGuard no_grad;
    for (const TensorsOfKind& list : tensors) {
      for (const NamedTensor& entry : *list.tensors) {
        const at::Tensor& tensor = list.gradients ? entry.tensor.grad() : entry.tensor;
        if (!tensor.defined()) {
          lines.push_back(absl::StrCat(list.kind, " ", entry.name, " undefined"));
          continue;
        }
        const at::Tensor dense = tensor.detach().cpu().contiguous();
        const absl::string_view bytes(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
        lines.push_back(absl::StrCat(list.kind, " ", entry.name, " with hash ", absl::Hex(StableHash(bytes), absl::kZeroPad16)));
      }
    }
  });
  return CompareBetweenRanks(group, what, local, lines);
}

std::string DescribeNotFinite(const ProcessGroup& group, const std::vector<std::string>& reduced, const std::vector<std::string>& here) {
  const auto quoted = [](const std::vector<std::string>& names) {
    return absl::StrCat("\"", absl::StrJoin(names, "\", \""), "\"");
  };
  const auto everywhere = group.AllGatherText("gradients that are not finite", here.empty() ? "" : quoted(here));
  std::string text = absl::StrCat("the reduced gradients of ", quoted(reduced), " are not finite: ");
  if (!everywhere.ok()) return absl::StrCat(text, std::string(everywhere.status().message()));
  std::vector<std::string> sources;
  for (std::size_t rank = 0; rank < everywhere->size(); ++rank) {
    if (!(*everywhere)[rank].empty()) sources.push_back(absl::StrCat("rank ", rank, " gave such gradients of ", (*everywhere)[rank]));
  }
  if (sources.empty()) return absl::StrCat(text, "what each rank gave was finite, the sum or the communication hook's precision was not");
  return absl::StrCat(text, absl::StrJoin(sources, "; "));
}

}  // namespace ddpopt
