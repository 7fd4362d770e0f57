#ifndef DDPOPT_DISTRIBUTED_PROCESS_GROUP_H_
#define DDPOPT_DISTRIBUTED_PROCESS_GROUP_H_

// Process groups from torchrun's environment, without Python.
//
//   absl::StatusOr<ProcessGroup> pg = InitProcessGroup();    // MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK
//   pg->AllReduceSum(tensor);

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ddpopt {

struct InitOptions {
  // "gloo" (cpu tensors), "nccl" (cuda tensors), or one for each kind of device as in PyTorch: "cpu:gloo,cuda:nccl". NCCL is loaded when
  // asked for (docs/cuda.md), and uses device cuda:LOCAL_RANK.
  std::string backend = "gloo";
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // of start-up and of every collective
  // A collective that has not ended within this time, because another rank has not come, fails, and names that rank. 0: what
  // DDPOPT_STALL_TIMEOUT in the environment says in seconds (the launcher's --stall_timeout sets it), else `timeout` alone. Gloo's alone:
  // refused where NCCL takes part, whose collectives end by `timeout`.
  std::chrono::milliseconds stall_timeout{0};
  // Before each collective of Gloo all ranks compare what they are about to run (operation, shapes, dtype, sequence number), the Reducer's
  // too; an error names the ranks that differ. Slow: nothing overlaps any more. TORCH_DISTRIBUTED_DEBUG=DETAIL in the environment does the
  // same. Refused where NCCL takes part.
  bool debug = false;
};

// A handle, cheap to copy; thread-safe for collectives as c10d is (one at a time).
class ProcessGroup {
 public:
  int rank() const;
  int world_size() const;
  int local_rank() const;
  const InitOptions& options() const;
  // Where this rank's model belongs: cuda:LOCAL_RANK if NCCL takes part, else cpu.
  at::Device device() const;
  // The interface that Gloo uses, such as "eth0 (10.0.0.1)". Chosen by GLOO_SOCKET_IFNAME, else it is the one by which MASTER_ADDR is
  // reached. The first rank of each machine prints it to standard error, unless it is loopback.
  const std::string& network() const;
  // OK if one of the group's backends takes tensors on `device`; else InvalidArgument that begins with `what` and names the device, the
  // backends and what they take.
  absl::Status CheckDevice(const std::string& what, at::Device device) const;

  // OK if tensors of this dtype can be summed over the ranks: float, double, half, bfloat16, int8, uint8, int32, int64. Else InvalidArgument
  // that begins with `what`.
  static absl::Status CheckSummable(const std::string& what, at::ScalarType dtype);

  // Blocking collectives, in place, on tensors that CheckDevice allows. They have ended on the device too when they return. Errors name the
  // operation and the rank, and which other ranks have not come, have left or don't answer. Collectives that differ between the ranks
  // (operation, number of elements, dtype) are named: at once with InitOptions::debug; else within about a second, in the next one, or when
  // gloo, to which more data came than it expected, ends the process. After an error the tensor's values are lost.
  // Broadcast takes any dtype, AllReduceSum those that CheckSummable allows.
  absl::Status Broadcast(at::Tensor& tensor, int root) const;
  absl::Status AllReduceSum(at::Tensor& tensor) const;
  absl::Status Barrier() const;
  // One text per rank, in rank order, on every rank (any lengths). `what` names the exchange in errors.
  absl::StatusOr<std::vector<std::string>> AllGatherText(const std::string& what, const std::string& mine) const;

  // Takes the group down for all handles, and tells the other ranks that this one leaves; what is outstanding ends with an error. Later
  // collectives, of a Reducer too, are refused by name, on this rank at once and on others that wait for it. Rank 0's store goes on until the
  // last handle has gone. Without this, the group lives as long as its last handle.
  void Shutdown() const;
  bool is_shut_down() const;

  // What c10d::Reducer takes. Defined in process_group_c10d.h, which includes c10d's headers.
  struct Impl;
  const std::shared_ptr<Impl>& impl() const { return impl_; }
  explicit ProcessGroup(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

 private:
  std::shared_ptr<Impl> impl_;
};

// With NCCL, cuda:LOCAL_RANK becomes this thread's current device. From here on the process ignores SIGPIPE, unless it has a handler for
// it: else a rank that has gone could end the others through their sockets, silently. Errors: InvalidArgument naming the variable (missing,
// not a number, rank >= world size) or the backend, DeadlineExceeded/Unavailable naming the master address, NotFound/FailedPrecondition
// naming what NCCL lacks, on this rank or on another.
absl::StatusOr<ProcessGroup> InitProcessGroup(const InitOptions& options = {});

}  // namespace ddpopt

#endif  // DDPOPT_DISTRIBUTED_PROCESS_GROUP_H_
