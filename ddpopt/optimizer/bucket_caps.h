#ifndef DDPOPT_OPTIMIZER_BUCKET_CAPS_H_
#define DDPOPT_OPTIMIZER_BUCKET_CAPS_H_

// The caps that bucket options come to, for both rules.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "ddpopt/optimizer/bucket_assignment.h"

namespace ddpopt {

class BucketCaps {
 public:
  // InvalidArgument, with the values, for options that are negative, contradict each other or don't go with the rule.
  static absl::StatusOr<BucketCaps> FromOptions(const BucketOptions& options);

  // Bytes; `index` counts in the order of reduction.
  int64_t Of(std::size_t index) const { return caps_[index < caps_.size() ? index : caps_.size() - 1]; }

 private:
  explicit BucketCaps(std::vector<int64_t> caps) : caps_(std::move(caps)) {}
  std::vector<int64_t> caps_;  // not empty; the last one repeats
};

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_BUCKET_CAPS_H_
