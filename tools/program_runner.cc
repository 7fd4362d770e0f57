#include "tools/program_runner.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/GradMode.h"
#include "c10/util/Exception.h"
#include "fake_tensor/fake_tensor_mode.h"

namespace ddpopt {
namespace {

using c10::IValue;

// What a compiled piece holds for.
std::string KindOf(const std::vector<IValue>& inputs) {
  std::string kind = c10::GradMode::is_enabled() ? "grad" : "no grad";
  for (const IValue& input : inputs) {
    if (!input.isTensor()) {
      absl::StrAppend(&kind, ";", c10::str(input));
      continue;
    }
    const at::Tensor& tensor = input.toTensor();
    absl::StrAppend(&kind, ";", c10::toString(tensor.scalar_type()), "[", absl::StrJoin(tensor.sizes(), ","), "][",
                    absl::StrJoin(tensor.strides(), ","), "]", tensor.requires_grad() ? "g" : "");
  }
  return kind;
}

}  // namespace

ProgramRunner::ProgramRunner(std::shared_ptr<const ExportedProgram> program, CompileFn backend)
    : program_(std::move(program)), backend_(std::move(backend)) {}

std::vector<IValue> ProgramRunner::RunFlat(std::vector<IValue> inputs) {
  if (backend_ == nullptr) return program_->RunFlat(std::move(inputs));
  const auto bound = program_->BindInputs(inputs);
  TORCH_CHECK_VALUE(bound.ok(), std::string(bound.status().message()));
  const auto [entry, is_new] = pieces_.try_emplace(KindOf(inputs));
  if (is_new) {
    const std::shared_ptr<FakeTensorMode> mode = FakeTensorMode::Create();
    std::vector<IValue> fakes;
    for (const IValue& input : inputs) fakes.push_back(mode->FromReal(input));
    auto piece = backend_(program_->module(), fakes, CompileContext{"program", 0, 1});
    if (piece.ok()) {
      entry->second = *std::move(piece);
    } else {
      TORCH_CHECK(absl::IsUnimplemented(piece.status()), "compiling the program: ", std::string(piece.status().message()));
      refusal_ = std::string(piece.status().message());
    }
  }
  if (entry->second == nullptr) return program_->RunFlat(std::move(inputs));
  IValue result = entry->second->Call(std::move(inputs));
  if (program_->out_tree().kind == TreeSpec::Kind::kLeaf) return {std::move(result)};
  return std::move(*std::move(result).toTuple()).elements().vec();
}

}  // namespace ddpopt
