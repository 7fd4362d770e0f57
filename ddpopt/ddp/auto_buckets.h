#ifndef DDPOPT_DDP_AUTO_BUCKETS_H_
#define DDPOPT_DDP_AUTO_BUCKETS_H_

// bucket_policy = auto: measures all-reduces on the group and the graph on this rank, and chooses bucket borders by it. Private to this
// package.
//
//   DDPOPT_ASSIGN_OR_RETURN(AllReduceFigures figures, MeasureAllReduce(group, device, gradient_bytes));     // collective
//   absl::StatusOr<AutoChoice> mine = ChooseBuckets(*module, inputs, figures, options);                     // this rank alone
//   DDPOPT_ASSIGN_OR_RETURN(AutoChoice choice, AgreeOnChoice(group, mine));                                 // collective: rank 0's

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/ivalue.h"
#include "absl/status/statusor.h"
#include "ddpopt/ddp/auto_report.h"
#include "ddpopt/distributed/process_group.h"
#include "ddpopt/optimizer/bucket_assignment.h"
#include "ddpopt/optimizer/cost_model.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

struct AllReduceFigures {
  AllReduceModel model;
  double slowdown = 0;  // what a second of it takes from the computing beside it, in seconds
};

struct AutoChoice {
  AutoReport report;
  BucketOptions buckets;
};

// All-reduces of several sizes up to `largest_bytes`, smallest first, until one takes a third of a second. Every rank gets rank 0's
// figures. Collective.
absl::StatusOr<AllReduceFigures> MeasureAllReduce(const ProcessGroup& group, at::Device device, int64_t largest_bytes);

// `bare` holds what is ignored, and no caps. The caps' defaults are taken where they are as good. A graph that can't be measured (on a GPU)
// is estimated from its operations. Changes nothing real.
absl::StatusOr<AutoChoice> ChooseBuckets(const fx::GraphModule& module, const std::vector<c10::IValue>& inputs,
                                         const AllReduceFigures& figures, const BucketOptions& bare, int64_t memory_limit_bytes);

// Rank 0's choice on every rank, or rank 0's error. Collective.
absl::StatusOr<AutoChoice> AgreeOnChoice(const ProcessGroup& group, const absl::StatusOr<AutoChoice>& mine, const BucketOptions& bare);

}  // namespace ddpopt

#endif  // DDPOPT_DDP_AUTO_BUCKETS_H_
