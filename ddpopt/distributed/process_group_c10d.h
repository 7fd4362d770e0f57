#ifndef DDPOPT_DISTRIBUTED_PROCESS_GROUP_C10D_H_
#define DDPOPT_DISTRIBUTED_PROCESS_GROUP_C10D_H_

// The c10d objects behind a ProcessGroup, for what is built over c10d itself (the Reducer). Everything else needs process_group.h alone:
// c10d's headers are expensive to include.

#include <cstdint>
#include <mutex>
#include <string>

#include "ddpopt/distributed/process_group.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace ddpopt {

struct ProcessGroup::Impl {
  InitOptions options;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  std::string master;                            // host:port, for messages
  c10::intrusive_ptr<c10d::Store> store;         // the TCPStore that rank 0 serves
  c10::intrusive_ptr<c10d::Store> text_store;    // where AllGatherText lives
  c10::intrusive_ptr<c10d::ProcessGroup> group;  // has the backend for CPU tensors

  std::mutex text_mutex;
  int64_t text_exchanges = 0;  // the same on every rank: exchanges happen in the same order
};

}  // namespace ddpopt

#endif  // DDPOPT_DISTRIBUTED_PROCESS_GROUP_C10D_H_
