#ifndef DDPOPT_OPTIMIZER_STEP_MODEL_H_
#define DDPOPT_OPTIMIZER_STEP_MODEL_H_

// A graph as the planner sees it, and borders as bucket assignment takes them.
//
//   DDPOPT_ASSIGN_OR_RETURN(GraphStep step, MakeGraphStep(module, options, costs));
//   DDPOPT_ASSIGN_OR_RETURN(AutoBorders best, FindBorders(step.model, all_reduce));
//   options.bucket_ends = step.BucketEnds(best.borders);       // AssignBuckets(module, options) now makes these buckets
//   step.BordersOf(*AssignBuckets(module, caps));              // and the other way round

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ddpopt/optimizer/bucket_assignment.h"
#include "ddpopt/optimizer/graph_costs.h"
#include "ddpopt/optimizer/timeline.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

struct GraphStep {
  StepModel model;
  std::vector<const fx::Node*> nodes;  // by position: the reverse of the graph's order

  std::vector<std::string> BucketEnds(const std::vector<int>& borders) const;
  // Of an assignment of the same graph by the default rule.
  std::vector<int> BordersOf(const BucketAssignment& assignment) const;
};

// Reads options.ignored_parameters alone. fixed_bytes are the parameters', their gradients', the buckets' and the buffers'; whoever knows
// of an optimizer adds its state. Errors: as AssignBuckets'; Unimplemented for a graph whose parameters have more than 64 kinds of dtype
// and device.
absl::StatusOr<GraphStep> MakeGraphStep(const fx::GraphModule& module, const BucketOptions& options, const GraphCosts& costs);

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_STEP_MODEL_H_
