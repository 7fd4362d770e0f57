#ifndef DDPOPT_AOT_AOT_OPTIONS_H_
#define DDPOPT_AOT_AOT_OPTIONS_H_

// How pieces are compiled ahead of time.
//
//   AotEagerBackend({.partition = {.kind = PartitionKind::kMinCut, .memory_budget = 0.5}})

#include <memory>

#include "ddpopt/aot/partition_options.h"

namespace ddpopt {

class GradientTargets;  // gradient_targets.h

struct AotOptions {
  PartitionOptions partition;  // what forward saves, and what backward computes again
  // Where the gradients of parameters are wanted; may be null.
  std::shared_ptr<const GradientTargets> gradient_targets = nullptr;
  // Overwrites what lives within one run after it, for tests (ExecutorOptions).
  bool poison_workspace = false;
};

}  // namespace ddpopt

#endif  // DDPOPT_AOT_AOT_OPTIONS_H_
