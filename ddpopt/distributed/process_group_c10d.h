#ifndef DDPOPT_DISTRIBUTED_PROCESS_GROUP_C10D_H_
#define DDPOPT_DISTRIBUTED_PROCESS_GROUP_C10D_H_

// The c10d objects behind a ProcessGroup, for what is built over c10d itself (the Reducer). Everything else needs process_group.h alone:
// c10d's headers are expensive to include.

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ddpopt/distributed/process_group.h"
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
  c10::intrusive_ptr<c10d::Store> store;         // the TCPStore that rank 0 serves
  c10::intrusive_ptr<c10d::Store> text_store;    // where AllGatherText lives
  c10::intrusive_ptr<c10d::ProcessGroup> group;  // has the backends

  std::mutex text_mutex;
  int64_t text_exchanges = 0;  // the same on every rank: exchanges happen in the same order
};

}  // namespace ddpopt

#endif  // DDPOPT_DISTRIBUTED_PROCESS_GROUP_C10D_H_
