#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "c10/core/ScalarType.h"
#include "ddpopt/optimizer/bucket_assignment.h"
#include "nlohmann/json.hpp"

namespace ddpopt {
namespace {

const char* RuleName(BucketRule rule) { return rule == BucketRule::kReference ? "reference" : "default"; }

std::string HumanBytes(int64_t bytes) {
  if (bytes >= int64_t{1} << 30) return absl::StrFormat("%.2f GiB", static_cast<double>(bytes) / (int64_t{1} << 30));
  if (bytes >= int64_t{1} << 20) return absl::StrFormat("%.2f MiB", static_cast<double>(bytes) / (1 << 20));
  if (bytes >= 1 << 10) return absl::StrFormat("%.2f KiB", static_cast<double>(bytes) / (1 << 10));
  return absl::StrFormat("%d B", bytes);
}

std::string GroupText(const Bucket::Group& group) {
  return absl::StrCat(c10::toString(group.dtype), " on ", group.device.str(), ": ", HumanBytes(group.bytes), " in ", group.parameters);
}

}  // namespace

std::string BucketAssignment::ToTable() const {
  std::string table =
      absl::StrFormat("%6s  %10s  %14s  %10s  %5s  %s\n", "bucket", "size", "bytes", "parameters", "nodes", "first to last ready");
  // As they are reduced.
  for (std::size_t i = buckets.size(); i-- > 0;) {
    const Bucket& bucket = buckets[i];
    std::string range = "-";
    if (!bucket.parameters.empty()) range = bucket.parameters.front();
    if (bucket.parameters.size() > 1) absl::StrAppend(&range, " .. ", bucket.parameters.back());
    absl::StrAppendFormat(&table, "%6d  %10s  %14d  %10d  %5d  %s", i, HumanBytes(bucket.bytes), bucket.bytes,
                          bucket.parameters.size(), bucket.nodes.size(), range);
    if (bucket.extended_by_nodes > 0) {
      absl::StrAppendFormat(&table, "  (extended by %d nodes from %s: nothing in it was used outside)", bucket.extended_by_nodes,
                            HumanBytes(bucket.bytes_before_extension));
    }
    table += "\n";
    if (bucket.groups.size() < 2) continue;
    absl::StrAppendFormat(&table, "%6s  reduced in %d parts:", "", bucket.groups.size());
    for (std::size_t k = 0; k < bucket.groups.size(); ++k) absl::StrAppend(&table, k == 0 ? " " : "; ", GroupText(bucket.groups[k]));
    table += "\n";
  }
  for (const std::string& warning : warnings) absl::StrAppend(&table, "warning: ", warning, "\n");
  if (warnings.empty() && !inactive_reason.empty()) absl::StrAppend(&table, "not cut: ", inactive_reason, "\n");
  return table;
}

std::string BucketAssignment::ToJson() const {
  nlohmann::json list = nlohmann::json::array();
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const Bucket& bucket = buckets[i];
    std::vector<std::string> names;
    for (const fx::Node* node : bucket.nodes) names.emplace_back(node->name());
    nlohmann::json groups = nlohmann::json::array();
    for (const Bucket::Group& group : bucket.groups) {
      groups.push_back({{"dtype", c10::toString(group.dtype)},
                        {"device", group.device.str()},
                        {"bytes", group.bytes},
                        {"parameters", group.parameters}});
    }
    list.push_back({{"index", i},
                    {"bytes", bucket.bytes},
                    {"parameters", bucket.parameters},
                    {"groups", groups},
                    {"nodes", names},
                    {"extended_by_nodes", bucket.extended_by_nodes},
                    {"bytes_before_extension", bucket.bytes_before_extension}});
  }
  return nlohmann::json{
      {"rule", RuleName(rule)}, {"buckets", list}, {"path", Path()}, {"inactive_reason", inactive_reason}, {"warnings", warnings}}
      .dump();
}

}  // namespace ddpopt
