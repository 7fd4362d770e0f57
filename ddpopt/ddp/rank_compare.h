#ifndef DDPOPT_DDP_RANK_COMPARE_H_
#define DDPOPT_DDP_RANK_COMPARE_H_

// Agreement between ranks on something that each describes as lines of text.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "ddpopt/distributed/process_group.h"

namespace ddpopt {

// FNV-1a over 8-byte words: the same in every process.
uint64_t StableHash(absl::string_view bytes);

// Collective. `local` is this rank's own success so far: if any rank failed, every rank learns of it (its own error, or FailedPrecondition
// "rank 2: <message>"). Else compares hashes of the lines, and only if these differ the lines: FailedPrecondition naming the ranks that
// differ from rank 0, and the first difference. `what` is a plural: "the models' parameters".
absl::Status CompareBetweenRanks(const ProcessGroup& group, const std::string& what, const absl::Status& local,
                                 const std::vector<std::string>& lines);

}  // namespace ddpopt

#endif  // DDPOPT_DDP_RANK_COMPARE_H_
