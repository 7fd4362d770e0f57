#include "ddpopt/optimizer/bucket_assignment.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ddpopt/optimizer/bucket_caps.h"
#include "ddpopt/optimizer/bucket_rules.h"
#include "ddpopt/optimizer/parameter_uses.h"

namespace ddpopt {
namespace {

// Why no parameter is in any bucket.
std::string WhyNoneCounts(const ParameterUses& uses) {
  std::size_t counting = 0;
  uses.ForEach([&](const std::string&, const at::Tensor&) { ++counting; });
  if (counting > 0) {
    return absl::StrCat("the graph takes its ", counting,
                        " parameters in ways that PyTorch's rule does not see: by keyword, inside lists or in nested graphs");
  }
  const ParameterUses::Excluded excluded = uses.CountExcluded();
  if (excluded.frozen + excluded.ignored == 0) return "the graph has no parameters";
  return absl::StrCat("no parameter counts: ", excluded.frozen, " do not require a gradient, ", excluded.ignored, " are ignored");
}

// Why a graph with at least a cap of parameters is one bucket.
std::string WhyOneBucket(const Bucket& bucket, const fx::Node* first_counting_node) {
  if (bucket.extended_by_nodes > 0) {
    return absl::StrCat("when full, it was extended by ", bucket.extended_by_nodes,
                        " operators, for want of a value that is used outside");
  }
  if (first_counting_node == nullptr) return "no operator uses its parameters";
  const bool opaque =
      first_counting_node->op() == fx::Op::kCallModule || std::holds_alternative<fx::HigherOrderTarget>(first_counting_node->target());
  return absl::StrCat("the cap is reached only at %", first_counting_node->name(), ", the first operator that takes a parameter",
                      opaque ? "; it is one opaque region, which is never cut" : "");
}

bool HasComputation(const Bucket& bucket) {
  for (const fx::Node* node : bucket.nodes) {
    if (node->op() != fx::Op::kGetAttr) return true;
  }
  return false;
}

void Diagnose(const BucketOptions& options, const BucketCaps& caps, const ParameterUses& uses, const fx::Node* first_counting_node,
              BucketAssignment* assignment) {
  int with_computation = 0;
  bool counted = false;
  for (const Bucket& bucket : assignment->buckets) {
    with_computation += HasComputation(bucket);
    counted |= !bucket.parameters.empty();
  }
  const auto warn = [&](std::string text) { assignment->warnings.push_back(std::move(text)); };
  std::string& reason = assignment->inactive_reason;
  if (!counted) {
    reason = WhyNoneCounts(uses);
    warn(absl::StrCat("there is nothing to reduce, and so to overlap: ", reason));
    if (assignment->buckets.size() > 1) reason.clear();  // cut nevertheless, under a cap of 0
    return;
  }
  if (with_computation > 1) return;
  const Bucket& bucket = assignment->buckets.front();
  if (assignment->buckets.size() > 1) {
    reason = "all operators are in one bucket: the graph reads its parameters (get_attr) at its top, not where they are used";
    warn(absl::StrCat("the buckets cut nothing: ", reason));
  } else if (!options.bucket_ends.empty()) {
    reason = "none of the chosen bucket ends lies between two operators with parameters";
    warn(absl::StrCat("the graph is one bucket: ", reason));
  } else if (bucket.bytes < caps.Of(0)) {
    reason = absl::StrCat("its ", bucket.bytes, " bytes of parameters are less than the cap of ", caps.Of(0));
  } else {
    reason = WhyOneBucket(bucket, first_counting_node);
    warn(absl::StrCat("the graph's ", bucket.bytes, " bytes of parameters are one bucket, though the cap is ", caps.Of(0), ": ",
                      reason));
  }
}

}  // namespace

absl::Status CheckBucketOptions(const BucketOptions& options) { return BucketCaps::FromOptions(options).status(); }

absl::StatusOr<BucketAssignment> AssignBuckets(const fx::GraphModule& module, const BucketOptions& options) {
  DDPOPT_ASSIGN_OR_RETURN(const BucketCaps caps, BucketCaps::FromOptions(options));
  const ParameterUses uses(module, options.ignored_parameters);
  absl::StatusOr<RuleResult> result =
      options.rule == BucketRule::kReference ? ReferenceRule(module, caps, uses) : DefaultRule(module, options, caps, uses);
  if (!result.ok()) return result.status();
  result->assignment.rule = options.rule;
  Diagnose(options, caps, uses, result->first_counting_node, &result->assignment);
  return std::move(result->assignment);
}

std::vector<std::string> BucketAssignment::Path() const {
  std::vector<std::string> path;
  bool extended = false;
  int64_t bytes = 0;
  for (const Bucket& bucket : buckets) {
    extended |= bucket.extended_by_nodes > 0;
    bytes += bucket.bytes;
  }
  if (buckets.size() == 1) path.push_back("single_bucket");
  if (fused_preamble) path.push_back("fused_preamble");
  if (extended) path.push_back("extended");
  if (bytes == 0) path.push_back("no_params");
  return path;
}

}  // namespace ddpopt
