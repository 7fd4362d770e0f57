#ifndef DDPOPT_DISTRIBUTED_NCCL_LOADER_H_
#define DDPOPT_DISTRIBUTED_NCCL_LOADER_H_

// Internal: loads libddpopt_nccl.so, when NCCL is asked for.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ddpopt/distributed/nccl_object.h"

namespace ddpopt {

// The object, loaded and usable on device `local_rank`. It is looked for
//   - where DDPOPT_NCCL_LIBRARY says, if it is set, and nowhere else;
//   - in the program's runfiles (where Bazel puts it with --config=cuda);
//   - beside the library that holds this code, and beside the program;
//   - in the folders of LD_LIBRARY_PATH.
// It is never unloaded.
// Errors say what is missing: NotFound for the object itself; FailedPrecondition for one made for another LibTorch or another ddpopt, for
// libraries it needs, for the driver, for a device; InvalidArgument for a file that is no such object, and for LOCAL_RANK beyond the devices.
absl::StatusOr<const NcclObject*> LoadNcclObject(int local_rank);

// Where it would be looked for now, in this order.
std::vector<std::string> NcclObjectCandidates();

// The first of `candidates` that there is. For tests.
absl::StatusOr<const NcclObject*> LoadNcclObject(const std::vector<std::string>& candidates, int local_rank);

}  // namespace ddpopt

#endif  // DDPOPT_DISTRIBUTED_NCCL_LOADER_H_
