#ifndef DDPOPT_DISTRIBUTED_WATCHED_BACKEND_H_
#define DDPOPT_DISTRIBUTED_WATCHED_BACKEND_H_

// Internal: a c10d backend around another, whose collectives end by a deadline, and whose errors say which ranks are at fault. What the
// Reducer does goes through it too.
//
//   group->setBackend(at::kCPU, type, WatchBackend(backend, backend, monitor, deadline));
//
// A collective that the inner backend has not ended by the deadline fails here, though it may go on there: the tensors are not to be used
// then. send, recv and monitoredBarrier go to a backend of their own, which may be the same, and end by its timeout. Refused by name before
// anything starts: dtypes that no backend moves, memory with gaps where the backend would write into these, and everything after shutdown()
// or abort(), which end what is outstanding. reduce leaves the tensors of all ranks but the root alone. Thread-safe as the inner backend is.

#include <chrono>
#include <memory>

#include "ddpopt/distributed/group_monitor.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"

namespace ddpopt {

c10::intrusive_ptr<c10d::Backend> WatchBackend(c10::intrusive_ptr<c10d::Backend> inner, c10::intrusive_ptr<c10d::Backend> transfers,
                                               std::shared_ptr<GroupMonitor> monitor, std::chrono::milliseconds deadline);

}  // namespace ddpopt

#endif  // DDPOPT_DISTRIBUTED_WATCHED_BACKEND_H_
