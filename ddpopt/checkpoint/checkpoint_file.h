#ifndef DDPOPT_CHECKPOINT_CHECKPOINT_FILE_H_
#define DDPOPT_CHECKPOINT_CHECKPOINT_FILE_H_

// What is in a checkpoint's file, and how a state goes in and out of it. Internal to checkpoints; one rank's work, no collectives.
//
//   DDPOPT_RETURN_IF_ERROR(CheckpointFile::Write(folder, state, {*CheckpointFile::RankPart(state)}));
//   DDPOPT_ASSIGN_OR_RETURN(CheckpointFile file, CheckpointFile::Open(path));
//   DDPOPT_RETURN_IF_ERROR(file.Prepare(state, ranks));   // nothing is changed yet
//   DDPOPT_RETURN_IF_ERROR(file.Apply(&state));

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ddpopt/checkpoint/checkpoint.h"
#include "ddpopt/checkpoint/record_file.h"

namespace ddpopt {

// One thread.
class CheckpointFile {
 public:
  // "checkpoint-000000000007.ckpt", and the step of such a name; -1 for any other.
  static std::string NameOf(int64_t step);
  static int64_t StepOf(absl::string_view name);

  // InvalidArgument for a state that can't be saved or loaded, whatever the file.
  static absl::Status CheckState(const CheckpointState& state);

  // This rank's part, for rank 0 to save: for each generator its name, the length of its state and the state.
  static absl::StatusOr<std::string> RankPart(const CheckpointState& state);
  // Names and states of such a part, in its order.
  static absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParseRankPart(absl::string_view text);

  // Errors as RecordWriter::Commit's, and Internal naming the tensor or optimizer that can't be written.
  static absl::Status Write(const std::string& folder, const CheckpointState& state, const std::vector<std::string>& rank_parts);

  // Errors as RecordFile::Open's.
  static absl::StatusOr<CheckpointFile> Open(const std::string& path);

  // OK if the file has what the state names, and nothing else: FailedPrecondition otherwise. Reads all of it into memory, so that what can
  // fail has failed before anything is changed.
  absl::Status Prepare(const CheckpointState& state, const CheckpointRanks& ranks);
  // After Prepare of the same state; once. An error leaves the state as it was.
  absl::Status Apply(CheckpointState* state);

  const RecordFile& file() const { return file_; }
  int64_t step() const { return step_; }
  int world_size() const { return world_size_; }
  bool restores_random_state() const { return restores_random_state_; }

 private:
  struct Entry {
    std::string name, type, record;
    std::vector<int64_t> sizes;
  };

  explicit CheckpointFile(RecordFile file) : file_(std::move(file)) {}
  static const Entry* Find(const std::vector<Entry>& entries, const std::string& name);
  template <typename T>
  absl::Status CompareNames(const char* kind, const std::vector<Entry>& theirs, const std::vector<std::pair<std::string, T>>& mine) const;

  RecordFile file_;
  int64_t step_ = 0;
  int world_size_ = 1;
  std::map<std::string, int64_t> numbers_;
  std::map<std::string, std::string> texts_;
  std::vector<Entry> tensors_, optimizers_;
  // What Prepare read, in the state's order.
  std::vector<at::Tensor> tensor_data_;
  std::vector<std::string> optimizer_bytes_;
  std::vector<std::string> random_states_;  // of this rank
  bool restores_random_state_ = false;
};

}  // namespace ddpopt

#endif  // DDPOPT_CHECKPOINT_CHECKPOINT_FILE_H_
