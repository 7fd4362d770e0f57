#ifndef DDPOPT_DDP_BUCKET_PLAN_H_
#define DDPOPT_DDP_BUCKET_PLAN_H_

// The optimizer's buckets as the Reducer takes them. Private to this package.

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "ddpopt/ddp/module_tensors.h"
#include "ddpopt/distributed/process_group.h"
#include "ddpopt/optimizer/bucket_assignment.h"

namespace ddpopt {

// Indices into tensors.trainable(), in backward order, each in exactly one bucket of one dtype.
using ReducerBuckets = std::vector<std::vector<std::size_t>>;

// Those of a captured graph: one that mixes dtypes becomes several; parameters that the graph does not use come into the last.
absl::StatusOr<ReducerBuckets> BucketsOfGraph(const BucketAssignment& assignment, const ModuleTensors& tensors);

// Without a graph: by caps, in the reverse of the order of registration, as DistributedDataParallel does in Python.
ReducerBuckets BucketsByCaps(const BucketOptions& options, const ModuleTensors& tensors);

// Rank 0's buckets on every rank: where each rank's forward may use other parameters, so do their graphs. Collective.
absl::StatusOr<ReducerBuckets> BucketsOfRank0(const ProcessGroup& group, const ReducerBuckets& own, const ModuleTensors& tensors);

}  // namespace ddpopt

#endif  // DDPOPT_DDP_BUCKET_PLAN_H_
