#ifndef DDPOPT_DDP_PROGRAM_DATA_PARALLEL_H_
#define DDPOPT_DDP_PROGRAM_DATA_PARALLEL_H_

// DistributedDataParallel for models that were exported from Python with torch.export.
//
//   auto program = ddpopt::LoadExportedProgram("model.pt2");           // StatusOr<std::shared_ptr<ExportedProgram>>
//   auto pg  = ddpopt::InitProcessGroup();
//   auto ddp = ddpopt::DistributedDataParallel<std::shared_ptr<ddpopt::ExportedProgram>>::Create(*program, *pg);
//   at::Tensor loss = (*ddp)->forward(x, y);                           // the program's tensor inputs, in flat order
//   loss.backward();
//   optimizer.step();                                                  // over the tensors of (*program)->parameters()
//
// The program's own tensors are trained: they are never replaced or copied. One thread at a time.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "ddpopt/capture/pt2/exported_program.h"
#include "ddpopt/ddp/distributed_data_parallel.h"

namespace ddpopt {

// The program's parameters and buffers as those of a module with its submodules: the same tensors, under the same names.
std::shared_ptr<torch::nn::Module> ModuleOf(const ExportedProgram& program);

template <>
class DistributedDataParallel<std::shared_ptr<ExportedProgram>> {
 public:
  // Collective. Errors as of the wrapper of modules; FailedPrecondition for a program without data, Unimplemented for one with nodes that
  // can't be executed.
  static absl::StatusOr<std::unique_ptr<DistributedDataParallel>> Create(std::shared_ptr<ExportedProgram> program, ProcessGroup group,
                                                                         DdpOptions options = {});

  // As the program's own RunFlat and Run, with gradients synchronised in backward. Sizes within the program's ranges are captured when they
  // come. Throw c10::Error.
  std::vector<c10::IValue> RunFlat(std::vector<c10::IValue> inputs);
  c10::IValue Run(std::vector<c10::IValue> args, const std::map<std::string, c10::IValue>& kwargs = {});
  // Of a program that returns one tensor: takes the tensor inputs, in flat order. Values that the export fixed are the program's own.
  // Throws c10::Error, also for a program that takes symbolic numbers or returns anything else: use RunFlat there.
  at::Tensor Forward(const std::vector<at::Tensor>& tensors);
  template <typename... Args>
  at::Tensor forward(Args&&... args) {
    return Forward({at::Tensor(std::forward<Args>(args))...});
  }

  // As of the wrapper of modules.
  NoSyncScope no_sync() { return core_->no_sync(); }
  absl::StatusOr<std::unique_ptr<JoinScope>> join(const JoinOptions& options = {}) { return core_->join(options); }
  absl::Status RegisterCommHook(std::unique_ptr<CommHook> hook) { return core_->RegisterCommHook(std::move(hook)); }
  absl::StatusOr<std::unique_ptr<StepTrace>> Trace(const std::string& path) { return core_->Trace(path); }

  const std::shared_ptr<ExportedProgram>& program() const { return program_; }
  const DdpCore& core() const { return *core_; }

 private:
  DistributedDataParallel(std::shared_ptr<ExportedProgram> program, std::unique_ptr<DdpCore> core)
      : program_(std::move(program)), core_(std::move(core)) {}

  std::shared_ptr<ExportedProgram> program_;
  std::unique_ptr<DdpCore> core_;
};

using ProgramDataParallel = DistributedDataParallel<std::shared_ptr<ExportedProgram>>;

}  // namespace ddpopt

#endif  // DDPOPT_DDP_PROGRAM_DATA_PARALLEL_H_
