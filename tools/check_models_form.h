#ifndef DDPOPT_TOOLS_CHECK_MODELS_FORM_H_
#define DDPOPT_TOOLS_CHECK_MODELS_FORM_H_

// The cases of check_models about a folder of forms/: recorded calls of one program, and sizes that it must refuse.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ddpopt/backends/backend.h"
#include "ddpopt/capture/pt2/exported_program.h"
#include "ddpopt/capture/pt2/safetensors.h"
#include "fx_graph/text/json_view.h"
#include "tools/check_models_compare.h"
#include "tools/check_models_rounding.h"
#include "tools/program_runner.h"

namespace ddpopt {

class FormChecker {
 public:
  // A null backend: the program itself runs.
  FormChecker(std::filesystem::path dir, CompileFn backend) : dir_(std::move(dir)), backend_(std::move(backend)) {}

  // Reads the folder. Precondition of all else.
  absl::Status Begin();
  absl::StatusOr<std::size_t> NumCalls() const;
  // Calls run one after another on the same program.
  absl::Status Call(std::size_t k, Differences* differences);
  // Each tensor input in turn with a size that the archive doesn't allow, and with another number of dimensions.
  absl::Status RefusedSize(Differences* differences);
  // See ProgramRunner.
  std::string refusal() const { return runner_ == nullptr ? "" : runner_->refusal(); }

 private:
  absl::Status CompareCallGradients(std::size_t k, Differences* differences) const;
  // Of call k, if the weights had been others from the beginning.
  absl::StatusOr<Gradients> MovedGradients(std::size_t k, uint64_t seed) const;
  absl::StatusOr<std::vector<c10::IValue>> ReadValues(const fx::JsonView& call, const char* key) const;
  absl::StatusOr<c10::IValue> ReadValue(const fx::JsonView& view) const;
  absl::Status CompareOutputs(const fx::JsonView& call, const std::vector<c10::IValue>& outputs, const std::vector<bool>& requires_grad,
                              Differences* differences) const;

  const std::filesystem::path dir_;
  const CompileFn backend_;
  std::unique_ptr<Manifest> manifest_;
  std::unique_ptr<SafetensorsFile> file_;
  std::shared_ptr<ExportedProgram> program_;
  std::unique_ptr<ProgramRunner> runner_;
};

}  // namespace ddpopt

#endif  // DDPOPT_TOOLS_CHECK_MODELS_FORM_H_
