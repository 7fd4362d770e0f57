#ifndef DDPOPT_CHECKPOINT_CHECKPOINT_H_
#define DDPOPT_CHECKPOINT_CHECKPOINT_H_

// Saves what a training run needs to go on, and takes it up again.
//
//   ddpopt::CheckpointState state;      // names what is saved and restored: the live objects, which it doesn't copy
//   state.AddModule(*net);
//   state.AddOptimizer("optimizer", optimizer);
//   state.AddGenerator("cpu", at::detail::getDefaultCPUGenerator());
//   const ddpopt::CheckpointRanks ranks = {group.rank(), group.world_size(), [&](const std::string& what, const std::string& mine) {
//                                            return group.AllGatherText(what, mine);
//                                          }};
//
//   auto resumed = ddpopt::LoadCheckpoint("run1", &state, ranks);   // NotFound: none there yet
//   int64_t step = resumed.ok() ? resumed->step : 0;
//   ...
//   state.step = step;
//   state.numbers["epoch"] = epoch;
//   DDPOPT_RETURN_IF_ERROR(ddpopt::SaveCheckpoint("run1", state, {}, ranks));
//
// A checkpoint is one file, <folder>/checkpoint-<step>.ckpt: an archive of LibTorch's with an end mark, all of its bytes under checksums.
// It is written beside, flushed to the disk and renamed, so that a run that ends while it saves, or a full disk, leaves the one before.
// Loading takes that of the latest step which is whole, and tells which it passed over; therefore a folder is one run's: saving beside a
// checkpoint of a later step is refused.
//
// With as many ranks as saved, a run goes on bit for bit (if its operators are deterministic). With another number, parameters, buffers,
// optimizer state, numbers and texts are those that were saved, to the bit; random states can't be (there are none for new ranks) and stay
// as they are. From then on sums over ranks are rounded in another way: for the same batches a float32 parameter differs by about 1e-6 of
// the largest one a step.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Generator.h"
#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace ddpopt {

// What is added has to outlive the state. Names are the user's; each may be added once for its kind.
class CheckpointState {
 public:
  int64_t step = 0;                        // how far the run is, 0 or more; names the file
  std::map<std::string, int64_t> numbers;  // epoch, position in the data, ...: rank 0's, restored on all ranks
  std::map<std::string, std::string> texts;

  // Parameters and buffers under `prefix` and their qualified names. Undefined ones are left out.
  void AddModule(const torch::nn::Module& module, const std::string& prefix = "");
  // Rank 0's is saved; loading writes it in place, on every rank, whatever its strides and device.
  void AddTensor(const std::string& name, at::Tensor tensor);
  // By its own save and load: its groups' options and its state. LibTorch's optimizers, or any that serialises itself.
  void AddOptimizer(const std::string& name, torch::optim::Optimizer& optimizer);
  // Of each rank its own.
  void AddGenerator(const std::string& name, at::Generator generator);

 private:
  friend class CheckpointFile;
  std::vector<std::pair<std::string, at::Tensor>> tensors_;
  std::vector<std::pair<std::string, torch::optim::Optimizer*>> optimizers_;
  std::vector<std::pair<std::string, at::Generator>> generators_;
};

// Whom a rank saves and loads with. Alone, as it is by default.
struct CheckpointRanks {
  int rank = 0;
  int world_size = 1;
  // One text per rank, in rank order, on every rank, as ProcessGroup::AllGatherText gives them.
  std::function<absl::StatusOr<std::vector<std::string>>(const std::string& what, const std::string& mine)> all_gather;
};

struct CheckpointOptions {
  // How many whole checkpoints stay, the new one among them, 1 or more. Older ones are removed when the new one is safe; damaged ones don't
  // count.
  int keep = 2;
};

struct LoadedCheckpoint {
  std::string path;
  int64_t step = 0;
  int world_size = 1;                    // of the run that saved it
  bool random_state_restored = false;    // it was saved by as many ranks
  std::vector<std::string> passed_over;  // newer ones that are damaged: what is wrong with each
};

// Collective over `ranks`. Rank 0 writes, into a folder that it makes if needed; returns the new file's path on every rank. Errors, the
// same on every rank, name file, record and cause, and leave the checkpoints that are there: ResourceExhausted (full disk),
// PermissionDenied, NotFound, Unavailable, InvalidArgument (a negative step, a name added twice, tensors without data), FailedPrecondition
// naming a rank whose generators are others, or a whole checkpoint of a later step, which another run has left.
absl::StatusOr<std::string> SaveCheckpoint(const std::string& folder, const CheckpointState& state, const CheckpointOptions& options = {},
                                           const CheckpointRanks& ranks = {});

// Collective over `ranks`, which all must see the same folder. Restores everything that was added to *state, its step, numbers and texts.
// All or nothing on each rank: everything is read first, into as much memory again as is restored. An error on one is an error on all:
// NotFound (no folder, no checkpoint in it), DataLoss (none is whole: what is wrong with each), FailedPrecondition naming what the
// checkpoint has and the run doesn't or the other way round: tensors with their shapes, optimizers with type and groups, generators.
absl::StatusOr<LoadedCheckpoint> LoadCheckpoint(const std::string& folder, CheckpointState* state, const CheckpointRanks& ranks = {});

// The checkpoints in a folder by name alone, newest first. Errors: NotFound, PermissionDenied, Unavailable.
absl::StatusOr<std::vector<std::string>> ListCheckpoints(const std::string& folder);

// Reads a file to the end. OK if every byte is what was written; errors as LoadCheckpoint's.
absl::Status VerifyCheckpoint(const std::string& path);

}  // namespace ddpopt

#endif  // DDPOPT_CHECKPOINT_CHECKPOINT_H_
