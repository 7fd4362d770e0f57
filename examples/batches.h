#ifndef DDPOPT_EXAMPLES_BATCHES_H_
#define DDPOPT_EXAMPLES_BATCHES_H_

// Inputs of an exported program, batch by batch: from a safetensors file, or made up.
//
//   DDPOPT_ASSIGN_OR_RETURN(Batches batches, Batches::Open(program, "batches.safetensors"));   // or Batches::MakeUp(program, seed)
//   std::vector<c10::IValue> inputs = *batches.Get(step * world_size + rank);                    // for program->RunFlat
//
// A file's tensors are named "<batch><number>.<input>": batch0.x, batch0.y, batch1.x, ... (any word before the number), or "<input>" alone
// if there is one batch; <input> is an input's name, or arg0, arg1, ... for the tensor inputs in flat order.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/ivalue.h"
#include "absl/status/statusor.h"
#include "ddpopt/capture/pt2/exported_program.h"

namespace ddpopt::examples {

class Batches {
 public:
  // Every batch is checked: errors name the file, the batch, and the input with what the program takes.
  static absl::StatusOr<Batches> Open(std::shared_ptr<ExportedProgram> program, const std::string& path);
  // As many as one asks for, in the sizes of the export's example: floats normally distributed; integers below what they index (rows of an
  // embedding, classes of a loss, ...; below 2 where nothing tells), booleans either. The same for the same seed and number.
  static absl::StatusOr<Batches> MakeUp(std::shared_ptr<ExportedProgram> program, int64_t seed);

  // How many there are; 0: any number.
  int64_t size() const { return static_cast<int64_t>(batches_.size()); }
  // Batch `number` modulo size, in flat order, with the values that the program fixed.
  absl::StatusOr<std::vector<c10::IValue>> Get(int64_t number) const;

 private:
  std::shared_ptr<ExportedProgram> program_;
  std::vector<std::vector<c10::IValue>> batches_;
  std::vector<c10::IValue> examples_;  // of each flat input: a constant, a number, or a tensor whose form is meant
  std::vector<int64_t> below_;         // of integer tensors
  int64_t seed_ = 0;
};

}  // namespace ddpopt::examples

#endif  // DDPOPT_EXAMPLES_BATCHES_H_
