#ifndef DDPOPT_OPTIMIZER_BUCKET_ASSIGNMENT_H_
#define DDPOPT_OPTIMIZER_BUCKET_ASSIGNMENT_H_

// Where the gradient buckets of a graph end: see docs/buckets.md for the rules.
//
//   BucketOptions options;
//   options.bucket_cap_bytes = 8 << 20;
//   absl::StatusOr<BucketAssignment> assignment = AssignBuckets(module, options);
//   std::cout << assignment->ToTable();
//
// Pure functions of graph and options; safe on several threads as long as nobody edits the graph.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "c10/core/Device.h"
#include "c10/core/ScalarType.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

enum class BucketRule {
  kDefault,    // the project's: what the Reducer is built with
  kReference,  // PyTorch 2.15's DDPOptimizer, its quirks included, for comparison
};

struct BucketOptions {
  BucketRule rule = BucketRule::kDefault;

  // Bytes, not negative. Unset: 25 MiB, and a first cap (of the bucket that is reduced first) of 1 MiB. Only the cap set: the first
  // cap equals it (kReference: stays 1 MiB). A first cap above the cap is an InvalidArgument error that names both.
  absl::optional<int64_t> bucket_cap_bytes;
  absl::optional<int64_t> first_bucket_cap_bytes;

  // A cap for each bucket, in the order of reduction; the last one holds for all that follow. Not together with the two above.
  // kReference: as PyTorch, the largest of them is the cap of all.
  std::vector<int64_t> bucket_cap_bytes_list;

  // Where buckets end, instead of caps (kDefault only). Each entry names a node ("relu_1"), a module ("blocks.3") or a parameter
  // ("blocks.3.weight"): a bucket ends, in forward order, right after that node, the module's last node, or the node at which the
  // parameter counts. A name that means several of these at different places can be told apart as "node:x", "module:x" or
  // "parameter:x".
  std::vector<std::string> bucket_ends;

  // Qualified names that never count.
  absl::flat_hash_set<std::string> ignored_parameters;
};

struct Bucket {
  // What one Reducer bucket can hold: parameters of one dtype on one device.
  struct Group {
    c10::ScalarType dtype;
    c10::Device device;
    int64_t bytes = 0;
    int parameters = 0;
  };

  int64_t bytes = 0;
  // Qualified names, in reverse graph order: the order of readiness in backward. kReference: in PyTorch's spelling, once per use.
  std::vector<std::string> parameters;
  std::vector<Group> groups;           // in order of first appearance; empty without parameters
  std::vector<const fx::Node*> nodes;  // graph order; kReference: get_attr nodes too
  int extended_by_nodes = 0;           // taken in while over the cap (or past a chosen end), for want of a value used outside
  int64_t bytes_before_extension = 0;
};

struct BucketAssignment {
  BucketRule rule = BucketRule::kDefault;
  std::vector<Bucket> buckets;  // graph order: the last one is reduced first
  absl::flat_hash_map<const fx::Node*, int> bucket_of;

  bool fused_preamble = false;  // the first piece had no parameters and was merged into the one after it
  // Why there is nothing to cut, when there is one bucket; empty otherwise.
  std::string inactive_reason;
  // What the user should hear of: a graph larger than the cap in one bucket, no parameter that counts, a chosen end that ends nothing.
  std::vector<std::string> warnings;

  // How the assignment came out, in this order and where they hold: "single_bucket", "fused_preamble", "extended", "no_params".
  std::vector<std::string> Path() const;
  std::string ToTable() const;  // for people: in the order of reduction, with extensions, mixed dtypes and warnings
  std::string ToJson() const;
};

// What AssignBuckets would say of the options alone: InvalidArgument for bad or contradicting ones.
absl::Status CheckBucketOptions(const BucketOptions& options);

// Errors, InvalidArgument: bad or contradicting options (both values named), a bucket end that names nothing or several things, a
// placeholder that stands for a parameter but has no value. NotFound: a path that the module doesn't have, with the node.
absl::StatusOr<BucketAssignment> AssignBuckets(const fx::GraphModule& module, const BucketOptions& options);

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_BUCKET_ASSIGNMENT_H_
