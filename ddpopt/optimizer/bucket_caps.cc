#include "ddpopt/optimizer/bucket_caps.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace ddpopt {
namespace {

constexpr int64_t kDefaultCap = int64_t{25} << 20;
constexpr int64_t kDefaultFirstCap = int64_t{1} << 20;

absl::Status CheckNotNegative(absl::string_view name, int64_t value) {
  return value < 0 ? absl::InvalidArgumentError(absl::StrCat(name, " is negative: ", value)) : absl::OkStatus();
}

absl::Status Contradiction(absl::string_view one, absl::string_view other, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(one, " and ", other, " are both set; ", why));
}

// The options that are set, as "name (value)".
std::vector<std::string> CapsAsSet(const BucketOptions& options) {
  std::vector<std::string> set;
  if (options.bucket_cap_bytes.has_value()) set.push_back(absl::StrCat("bucket_cap_bytes (", *options.bucket_cap_bytes, ")"));
  if (options.first_bucket_cap_bytes.has_value())
    set.push_back(absl::StrCat("first_bucket_cap_bytes (", *options.first_bucket_cap_bytes, ")"));
  return set;
}

std::string ListAsSet(const BucketOptions& options) {
  return absl::StrCat("bucket_cap_bytes_list ([", absl::StrJoin(options.bucket_cap_bytes_list, ", "), "])");
}

absl::Status CheckConsistent(const BucketOptions& options) {
  DDPOPT_RETURN_IF_ERROR(CheckNotNegative("bucket_cap_bytes", options.bucket_cap_bytes.value_or(0)));
  DDPOPT_RETURN_IF_ERROR(CheckNotNegative("first_bucket_cap_bytes", options.first_bucket_cap_bytes.value_or(0)));
  for (std::size_t i = 0; i < options.bucket_cap_bytes_list.size(); ++i) {
    DDPOPT_RETURN_IF_ERROR(CheckNotNegative(absl::StrCat("bucket_cap_bytes_list[", i, "]"), options.bucket_cap_bytes_list[i]));
  }
  const std::vector<std::string> caps = CapsAsSet(options);
  if (!options.bucket_cap_bytes_list.empty() && !caps.empty()) {
    return Contradiction(ListAsSet(options), caps.front(), "the list gives each bucket its cap, the first one's too");
  }
  if (options.bucket_ends.empty()) return absl::OkStatus();
  const std::string ends = absl::StrCat("bucket_ends (", absl::StrJoin(options.bucket_ends, ", "), ")");
  if (options.rule == BucketRule::kReference) {
    return Contradiction(ends, "rule (kReference)", "PyTorch's rule knows no chosen ends");
  }
  if (!options.bucket_cap_bytes_list.empty())
    return Contradiction(ends, ListAsSet(options), "buckets end by name or by cap, not by both");
  if (!caps.empty()) return Contradiction(ends, caps.front(), "buckets end by name or by cap, not by both");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BucketCaps> BucketCaps::FromOptions(const BucketOptions& options) {
  DDPOPT_RETURN_IF_ERROR(CheckConsistent(options));
  const std::vector<int64_t>& list = options.bucket_cap_bytes_list;
  const bool reference = options.rule == BucketRule::kReference;
  if (!reference && !list.empty()) return BucketCaps(list);

  const bool cap_is_set = options.bucket_cap_bytes.has_value() || !list.empty();
  const int64_t cap = list.empty() ? options.bucket_cap_bytes.value_or(kDefaultCap) : *std::max_element(list.begin(), list.end());
  const int64_t default_first = cap_is_set && !reference ? cap : kDefaultFirstCap;
  const int64_t first_cap = options.first_bucket_cap_bytes.value_or(default_first);
  if (first_cap > cap) {
    return absl::InvalidArgumentError(absl::StrCat(options.first_bucket_cap_bytes.has_value() ? "" : "the default ",
                                                   "first_bucket_cap_bytes (", first_cap, ") is above ",
                                                   cap_is_set ? "" : "the default ", "bucket_cap_bytes (", cap, ")"));
  }
  return BucketCaps({first_cap, cap});
}

}  // namespace ddpopt
