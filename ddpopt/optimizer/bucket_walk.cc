#include "ddpopt/optimizer/bucket_walk.h"

#include <algorithm>

namespace ddpopt {

bool BucketWalk::Place(const fx::Node* node, bool full) {
  bool closed_one = false;
  if (full && used_outside_) {
    buckets_.emplace_back();
    used_outside_ = false;
    closed_one = true;
  } else if (full) {
    Bucket& bucket = buckets_.back();
    if (bucket.extended_by_nodes++ == 0) bucket.bytes_before_extension = bucket.bytes;
  }
  const int index = static_cast<int>(buckets_.size()) - 1;
  index_of_.emplace(node, index);
  buckets_.back().nodes.push_back(node);
  for (const fx::Node* user : node->users()) {
    if (used_outside_) break;
    const auto found = index_of_.find(user);
    used_outside_ = found == index_of_.end() || found->second != index;
  }
  return closed_one;
}

void BucketWalk::Count(std::string name, const at::Tensor& tensor, int64_t bytes) {
  first_counting_node_ = buckets_.back().nodes.back();
  CountInto(buckets_.back(), std::move(name), tensor, bytes);
}

BucketAssignment BucketWalk::Finish() && {
  BucketAssignment assignment;
  std::reverse(buckets_.begin(), buckets_.end());
  for (Bucket& bucket : buckets_) std::reverse(bucket.nodes.begin(), bucket.nodes.end());
  const int last = static_cast<int>(buckets_.size()) - 1;
  if (last > 0 && buckets_.front().parameters.empty()) {
    Bucket& successor = buckets_[1];
    successor.nodes.insert(successor.nodes.begin(), buckets_.front().nodes.begin(), buckets_.front().nodes.end());
    buckets_.erase(buckets_.begin());
    assignment.fused_preamble = true;
  }
  const int shift = assignment.fused_preamble ? 1 : 0;
  for (auto& [node, index] : index_of_) index = std::max(last - index - shift, 0);
  assignment.bucket_of = std::move(index_of_);
  assignment.buckets = std::move(buckets_);
  return assignment;
}

void CountInto(Bucket& bucket, std::string name, const at::Tensor& tensor, int64_t bytes) {
  bucket.bytes += bytes;
  bucket.parameters.push_back(std::move(name));
  const auto fits = [&](const Bucket::Group& group) { return group.dtype == tensor.scalar_type() && group.device == tensor.device(); };
  auto group = std::find_if(bucket.groups.begin(), bucket.groups.end(), fits);
  if (group == bucket.groups.end()) group = bucket.groups.insert(group, Bucket::Group{tensor.scalar_type(), tensor.device()});
  group->bytes += bytes;
  ++group->parameters;
}

}  // namespace ddpopt
