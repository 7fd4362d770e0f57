#ifndef DDPOPT_AOT_AOT_OPTIONS_H_
#define DDPOPT_AOT_AOT_OPTIONS_H_

// How pieces are compiled ahead of time.
//
//   AotEagerBackend({.partition = {.kind = PartitionKind::kMinCut, .memory_budget = 0.5}})

#include "ddpopt/aot/partition_options.h"

namespace ddpopt {

struct AotOptions {
  PartitionOptions partition;  // what forward saves, and what backward computes again
};

}  // namespace ddpopt

#endif  // DDPOPT_AOT_AOT_OPTIONS_H_
