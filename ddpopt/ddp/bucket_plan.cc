#include "ddpopt/ddp/bucket_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace ddpopt {

absl::StatusOr<ReducerBuckets> BucketsOfGraph(const BucketAssignment& assignment, const ModuleTensors& tensors) {
  const std::vector<NamedTensor>& trainable = tensors.trainable();
  ReducerBuckets result;
  std::vector<bool> placed(trainable.size(), false);
  // A Reducer bucket is one flat tensor: one dtype, one device.
  const auto add = [&](const std::vector<std::size_t>& members) {
    std::vector<std::vector<std::size_t>> groups;
    for (const std::size_t index : members) {
      const at::Tensor& tensor = trainable[index].tensor;
      const auto fits = [&](const std::vector<std::size_t>& other) {
        const at::Tensor& first = trainable[other.front()].tensor;
        return first.scalar_type() == tensor.scalar_type() && first.device() == tensor.device();
      };
      const auto it = std::find_if(groups.begin(), groups.end(), fits);
      if (it == groups.end()) {
        groups.push_back({index});
      } else {
        it->push_back(index);
      }
    }
    for (auto& members_of_one_dtype : groups) result.push_back(std::move(members_of_one_dtype));
  };

  const std::vector<Bucket>& buckets = assignment.buckets;
  std::vector<std::size_t> members;
  for (std::size_t i = buckets.size(); i-- > 0;) {
    members.clear();
    for (const std::string& name : buckets[i].parameters) {
      const std::size_t* const index = tensors.FindTrainable(name);
      if (index == nullptr) {
        return absl::InternalError(absl::StrCat("bucket ", i, " holds \"", name, "\", which is no trainable parameter of the module"));
      }
      if (placed[*index]) continue;  // Another name of the same tensor.
      placed[*index] = true;
      members.push_back(*index);
    }
    if (i > 0) add(members);
  }
  // What the graph does not use is reduced last, if ever: a backward without its gradient is refused.
  if (buckets.empty()) members.clear();
  for (std::size_t index = 0; index < trainable.size(); ++index) {
    if (!placed[index]) members.push_back(index);
  }
  add(members);
  return result;
}

ReducerBuckets BucketsByCaps(const BucketOptions& options, const ModuleTensors& tensors) {
  constexpr int64_t kMebi = 1 << 20;
  const int64_t cap = options.bucket_cap_bytes.value_or(25 * kMebi);
  const int64_t first_cap = options.first_bucket_cap_bytes.value_or(options.bucket_cap_bytes.has_value() ? cap : kMebi);
  const std::vector<int64_t>& list = options.bucket_cap_bytes_list;
  ReducerBuckets result;
  const std::vector<NamedTensor>& trainable = tensors.trainable();
  int64_t bytes = 0, limit = 0;
  for (std::size_t index = trainable.size(); index-- > 0;) {
    const at::Tensor& tensor = trainable[index].tensor;
    const bool fits = !result.empty() && trainable[result.back().back()].tensor.scalar_type() == tensor.scalar_type();
    if (!fits || bytes >= limit) {
      const std::size_t number = result.size();
      limit = list.empty() ? (number == 0 ? first_cap : cap) : list[std::min(number, list.size() - 1)];
      result.emplace_back();
      bytes = 0;
    }
    result.back().push_back(index);
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return result;
}

absl::StatusOr<ReducerBuckets> BucketsOfRank0(const ProcessGroup& group, const ReducerBuckets& own, const ModuleTensors& tensors) {
  std::vector<std::string> texts;
  for (const std::vector<std::size_t>& bucket : own) texts.push_back(absl::StrJoin(bucket, ","));
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<std::string> tables, group.AllGatherText("bucket tables", absl::StrJoin(texts, ";")));
  ReducerBuckets result;
  std::vector<bool> placed(tensors.trainable().size(), false);
  for (const std::string& bucket : std::vector<std::string>(absl::StrSplit(tables.at(0), ';'))) {
    result.emplace_back();
    for (const std::string& text : std::vector<std::string>(absl::StrSplit(bucket, ','))) {
      std::size_t index;
      if (!absl::SimpleAtoi(text, &index) || index >= placed.size() || placed[index]) {
        return absl::InternalError(absl::StrCat("rank 0's bucket table can't be read: \"", tables.at(0), "\""));
      }
      placed[index] = true;
      result.back().push_back(index);
    }
  }
  return result;
}

}  // namespace ddpopt
