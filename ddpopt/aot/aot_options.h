#ifndef DDPOPT_AOT_AOT_OPTIONS_H_
#define DDPOPT_AOT_AOT_OPTIONS_H_

// How pieces are compiled ahead of time.
//
//   AotEagerBackend({.partition = {.kind = PartitionKind::kMinCut, .memory_budget = 0.5}})

#include <memory>
#include <string>
#include <vector>

#include "ddpopt/aot/partition_options.h"

namespace ddpopt {

class GradientTargets;  // gradient_targets.h

struct AotOptions {
  PartitionOptions partition;  // what forward saves, and what backward computes again
  // Operators to be told in terms of simpler ones: names of decompositions.h. One that has no decomposition is an error (NotFound).
  std::vector<std::string> decompositions = {};
  // Where the gradients of parameters are wanted; may be null.
  std::shared_ptr<const GradientTargets> gradient_targets = nullptr;
  // Overwrites what lives within one run after it, for tests (ExecutorOptions).
  bool poison_workspace = false;
};

}  // namespace ddpopt

#endif  // DDPOPT_AOT_AOT_OPTIONS_H_
