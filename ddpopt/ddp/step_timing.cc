#include "ddpopt/ddp/step_timing.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_format.h"

namespace ddpopt {

double StepTiming::communication_seconds() const {
  std::vector<BucketTiming> sorted = buckets;
  std::sort(sorted.begin(), sorted.end(), [](const BucketTiming& a, const BucketTiming& b) { return a.launched < b.launched; });
  double total = 0, covered_until = 0;
  for (const BucketTiming& bucket : sorted) {
    const double begin = std::max(bucket.launched, covered_until);
    if (bucket.finished > begin) total += bucket.finished - begin;
    covered_until = std::max(covered_until, bucket.finished);
  }
  return total;
}

std::string SummaryTable(const std::vector<StepSummary>& ranks) {
  std::string text = "rank    steps  forward ms  backward ms  communication ms  exposed ms     MiB  (means of a step)\n";
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const StepSummary& sum = ranks[rank];
    const double steps = static_cast<double>(std::max<int64_t>(sum.steps, 1));
    absl::StrAppendFormat(&text, "%4d %8d %11.3f %12.3f %17.3f %11.3f %7.2f\n", rank, sum.steps, 1e3 * sum.forward_seconds / steps,
                          1e3 * sum.backward_seconds / steps, 1e3 * sum.communication_seconds / steps, 1e3 * sum.exposed_seconds / steps,
                          static_cast<double>(sum.bytes) / steps / (1024 * 1024));
  }
  return text;
}

}  // namespace ddpopt
