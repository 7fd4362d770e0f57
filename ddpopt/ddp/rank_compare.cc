#include "ddpopt/ddp/rank_compare.h"

#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace ddpopt {
namespace {

constexpr char kOk[] = "ok ";

std::string LineOrNothing(const std::vector<std::string>& lines, std::size_t i) {
  return i < lines.size() ? absl::StrCat("'", lines[i], "'") : std::string("nothing more");
}

}  // namespace

uint64_t StableHash(absl::string_view bytes) {
  constexpr uint64_t kPrime = 1099511628211u;
  uint64_t hash = 14695981039346656037u ^ bytes.size();
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    hash = (hash ^ word) * kPrime;
    hash ^= hash >> 32;
  }
  for (; i < bytes.size(); ++i) hash = (hash ^ static_cast<unsigned char>(bytes[i])) * kPrime;
  return hash ^ (hash >> 29);
}

absl::Status CompareBetweenRanks(const ProcessGroup& group, const std::string& what, const absl::Status& local,
                                 const std::vector<std::string>& lines) {
  const std::string text = absl::StrJoin(lines, "\n");
  const std::string mine = local.ok() ? absl::StrCat(kOk, absl::Hex(StableHash(text), absl::kZeroPad16)) : std::string(local.message());
  const auto summaries = group.AllGatherText(what, local.ok() ? mine : absl::StrCat("error ", mine));
  if (!local.ok()) return local;
  if (!summaries.ok()) return Annotate(summaries.status(), absl::StrCat("comparing ", what, " between ranks"));
  bool equal = true;
  for (std::size_t rank = 0; rank < summaries->size(); ++rank) {
    const std::string& theirs = (*summaries)[rank];
    if (!absl::StartsWith(theirs, kOk)) {
      return absl::FailedPreconditionError(absl::StrCat("rank ", rank, " failed: ", theirs.substr(std::strlen("error "))));
    }
    equal = equal && theirs == mine;
  }
  if (equal) return absl::OkStatus();

  const auto texts = group.AllGatherText(absl::StrCat(what, " in full"), text);
  if (!texts.ok()) return Annotate(texts.status(), absl::StrCat("comparing ", what, " between ranks"));
  std::vector<std::size_t> different;
  for (std::size_t rank = 1; rank < texts->size(); ++rank) {
    if ((*texts)[rank] != texts->front()) different.push_back(rank);
  }
  if (different.empty()) return absl::InternalError(absl::StrCat(what, ": equal on all ranks, but their hashes differ"));
  const std::vector<std::string> ours = absl::StrSplit(texts->front(), '\n');
  const std::vector<std::string> theirs = absl::StrSplit((*texts)[different.front()], '\n');
  std::size_t i = 0;
  while (i < ours.size() && i < theirs.size() && ours[i] == theirs[i]) ++i;
  return absl::FailedPreconditionError(absl::StrCat(what, " differ between ranks: ", different.size() == 1 ? "rank " : "ranks ",
                                                    absl::StrJoin(different, ", "), different.size() == 1 ? " differs" : " differ",
                                                    " from rank 0; first difference: rank 0 has ", LineOrNothing(ours, i), ", rank ",
                                                    different.front(), " has ", LineOrNothing(theirs, i)));
}

}  // namespace ddpopt
