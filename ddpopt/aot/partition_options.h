#ifndef DDPOPT_AOT_PARTITION_OPTIONS_H_
#define DDPOPT_AOT_PARTITION_OPTIONS_H_

// What a forward saves for its backward, and what the backward computes again; see partition.h.

namespace ddpopt {

enum class PartitionKind {
  kDefault,  // as PyTorch's default partitioner: what the forward computed and the backward asks for is saved, nothing is computed again
  kMinCut,   // cheap values are computed again where that saves memory, dear ones as far as the budget asks
};

struct PartitionOptions {
  PartitionKind kind = PartitionKind::kDefault;
  // kMinCut: the memory for intermediates, from 0 to 1. 1: nothing that fx::Flops counts (products, convolutions, attention) is computed
  // again. 0: as little as can be, everything is computed again from the primals. Between: the part of the difference that may be used,
  // for the values that take longest to compute.
  double memory_budget = 1;
};

}  // namespace ddpopt

#endif  // DDPOPT_AOT_PARTITION_OPTIONS_H_
