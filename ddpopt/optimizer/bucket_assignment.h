#ifndef DDPOPT_OPTIMIZER_BUCKET_ASSIGNMENT_H_
#define DDPOPT_OPTIMIZER_BUCKET_ASSIGNMENT_H_

// Where the gradient buckets of a graph end (the default rule of the project; see docs/buckets.md).

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

struct BucketOptions {
  // Bytes. Unset: 25 MiB, and a first cap (the first bucket to be reduced) of 1 MiB. Only the cap set: the first cap equals it. A first cap
  // above the cap, or a negative one, is an InvalidArgument error.
  absl::optional<int64_t> bucket_cap_bytes;
  absl::optional<int64_t> first_bucket_cap_bytes;
  // Qualified names that never count.
  absl::flat_hash_set<std::string> ignored_parameters;
};

struct Bucket {
  int64_t bytes = 0;
  std::vector<std::string> parameters;  // qualified names, in reverse graph order: the order of readiness in backward
  std::vector<const fx::Node*> nodes;   // graph order
  int extended_by_nodes = 0;            // taken in while over the cap, for want of a value used outside
  int64_t bytes_before_extension = 0;
};

struct BucketAssignment {
  std::vector<Bucket> buckets;  // graph order: the last one is reduced first
  absl::flat_hash_map<const fx::Node*, int> bucket_of;
  std::string ToTable() const;  // for people: index, bytes, parameters, extensions
  std::string ToJson() const;
};

absl::StatusOr<BucketAssignment> AssignBuckets(const fx::GraphModule& module, const BucketOptions& options);

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_BUCKET_ASSIGNMENT_H_
