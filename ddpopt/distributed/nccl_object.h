#ifndef DDPOPT_DISTRIBUTED_NCCL_OBJECT_H_
#define DDPOPT_DISTRIBUTED_NCCL_OBJECT_H_

// Internal: what a program and libddpopt_nccl.so, which it loads when NCCL is asked for, have in common. They are compiled apart, and must
// have been with the same LibTorch: the marker lets the program see that before it loads the object.

#include <chrono>
#include <string>

#include "torch/csrc/distributed/c10d/Backend.hpp"
#include "torch/csrc/distributed/c10d/Store.hpp"
#include "torch/version.h"

namespace ddpopt {

// A constant string in the object's file: DDPOPT_NCCL_MARKER_BEGIN, then words NAME=VALUE separated by spaces, then a newline.
#define DDPOPT_NCCL_MARKER_BEGIN "@ddpopt-nccl-object@ "
// Of the structs below. To be increased with every change to them.
#define DDPOPT_NCCL_INTERFACE "1"

struct NcclBackendRequest {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int world_size = 1;
  std::chrono::milliseconds timeout{0};
};

struct NcclObject {
  // The number of CUDA devices, at least one. Throws c10::Error that says why there is none.
  int (*device_count)();
  // Where there are devices: what keeps this object from working with the LibTorch that it was loaded beside; empty if nothing.
  std::string (*check)();
  // Throws what c10d throws.
  c10::intrusive_ptr<c10d::Backend> (*make_backend)(const NcclBackendRequest& request);
};

// The object's one exported function.
constexpr char kNcclObjectFunction[] = "ddpopt_nccl_object";
using NcclObjectFunction = const NcclObject* (*)();

}  // namespace ddpopt

#endif  // DDPOPT_DISTRIBUTED_NCCL_OBJECT_H_
