#ifndef DDPOPT_DISTRIBUTED_WATCHED_BACKEND_H_
#define DDPOPT_DISTRIBUTED_WATCHED_BACKEND_H_

// Internal: a c10d backend around another, whose collectives end by a deadline, and whose errors say which ranks are at fault. What the
// Reducer does goes through it too.
//
//   group->setBackend(at::kCPU, type, WatchBackend(backend, monitor, deadline));
//
// A collective that the inner backend has not ended by the deadline fails here, though it may go on there: the tensors are not to be used
// then. send, recv and what is coalesced are handed through. Dtypes that no backend moves are refused by name before anything starts, and so
// is everything after shutdown() or abort(), which end what is outstanding. Thread-safe as the inner backend is.

#include <chrono>
#include <memory>

#include "ddpopt/distributed/group_monitor.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"

namespace ddpopt {

c10::intrusive_ptr<c10d::Backend> WatchBackend(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<GroupMonitor> monitor,
                                               std::chrono::milliseconds deadline);

}  // namespace ddpopt

#endif  // DDPOPT_DISTRIBUTED_WATCHED_BACKEND_H_
