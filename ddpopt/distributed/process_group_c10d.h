#ifndef DDPOPT_DISTRIBUTED_PROCESS_GROUP_C10D_H_
#define DDPOPT_DISTRIBUTED_PROCESS_GROUP_C10D_H_

// The c10d objects behind a ProcessGroup, for what is built over c10d itself (the Reducer). Everything else needs process_group.h alone:
// c10d's headers are expensive to include.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddpopt/distributed/group_monitor.h"
#include "ddpopt/distributed/process_group.h"
#include "ddpopt/distributed/text_exchange.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace ddpopt {

// "gloo" or "nccl", for each kind of device that the group takes.
using BackendsByDevice = std::vector<std::pair<at::DeviceType, std::string>>;

struct ProcessGroup::Impl {
  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();

  InitOptions options;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  at::Device device = at::kCPU;                  // of this rank's model
  BackendsByDevice backends;                     // what options.backend says
  std::string master;                            // host:port, for messages
  int restart = 0;                               // which start of the run the group is, as rank 0 counts
  c10::intrusive_ptr<c10d::Store> store;         // the TCPStore that rank 0 serves
  std::string network;                           // Gloo's interface, for people
  std::shared_ptr<TextExchange> texts;           // where AllGatherText lives
  std::shared_ptr<GroupMonitor> monitor;         // who is where; set_describe() lets it name buckets
  c10::intrusive_ptr<c10d::ProcessGroup> group;  // has the backends
  std::atomic<bool> shut_down{false};

  // Of each collective.
  std::chrono::milliseconds deadline() const {
    return options.stall_timeout.count() > 0 ? std::min(options.stall_timeout, options.timeout) : options.timeout;
  }
};

}  // namespace ddpopt

#endif  // DDPOPT_DISTRIBUTED_PROCESS_GROUP_C10D_H_
