#ifndef DDPOPT_DDP_MODULE_SYNC_H_
#define DDPOPT_DDP_MODULE_SYNC_H_

// One rank's parameters and buffers for all ranks. Private to this package.

#include <vector>

#include "absl/status/status.h"
#include "ddpopt/ddp/module_tensors.h"
#include "ddpopt/distributed/process_group.h"

namespace ddpopt {

// Collective: every rank's tensors become the root's, in any dtype and layout, in messages of some MiB. A graph that saved one of them for
// its backward may still be alive: version counters, by which autograd would refuse that backward, stay as they are. Errors: of the group.
absl::Status BroadcastTensors(const ProcessGroup& group, const std::vector<NamedTensor>& tensors, int root);

}  // namespace ddpopt

#endif  // DDPOPT_DDP_MODULE_SYNC_H_
