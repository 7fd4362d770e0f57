#ifndef DDPOPT_OPTIMIZER_BUCKET_RULES_H_
#define DDPOPT_OPTIMIZER_BUCKET_RULES_H_

// The two rules behind AssignBuckets. Each returns buckets and warnings of its own; AssignBuckets adds what both have in common.

#include "absl/status/statusor.h"
#include "ddpopt/optimizer/bucket_assignment.h"
#include "ddpopt/optimizer/bucket_caps.h"
#include "ddpopt/optimizer/parameter_uses.h"

namespace ddpopt {

struct RuleResult {
  BucketAssignment assignment;
  const fx::Node* first_counting_node = nullptr;  // the first in the graph that brings a parameter into a bucket
};

// The project's rule (docs/buckets.md).
absl::StatusOr<RuleResult> DefaultRule(const fx::GraphModule& module, const BucketOptions& options, const BucketCaps& caps,
                                       const ParameterUses& uses);

// PyTorch 2.15's DDPOptimizer:
//   - get_attr nodes are steps like any others;
//   - what counts are direct positional arguments of functions that are placeholders for parameters, get_attr nodes of parameters at
//     their own place, and the parameters of a called module (once a module). Methods count like functions, but only if called on
//     something that has a name for a target: not on a function's result. A method whose first argument's target is also a module's
//     path counts that module;
//   - a parameter counts at each use, with its whole storage; unused ones don't count;
//   - an empty bucket is full under a cap of 0.
absl::StatusOr<RuleResult> ReferenceRule(const fx::GraphModule& module, const BucketCaps& caps, const ParameterUses& uses);

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_BUCKET_RULES_H_
