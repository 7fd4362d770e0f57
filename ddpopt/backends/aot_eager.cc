#include "ddpopt/backends/aot_eager.h"

#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "ddpopt/aot/aot_function.h"

namespace ddpopt {
namespace {

class AotPiece : public CompiledPiece {
 public:
  explicit AotPiece(std::shared_ptr<const AotFunction> function) : function_(std::move(function)) {}

  c10::IValue Call(std::vector<c10::IValue> args) const override { return function_->Call(std::move(args)); }
  // ATen's kernels lay outputs out just as the piece's own operators do.
  std::vector<absl::optional<OutputMeta>> output_meta() const override {
    return std::vector<absl::optional<OutputMeta>>(function_->joint().outputs.size());
  }

 private:
  std::shared_ptr<const AotFunction> function_;
};

}  // namespace

CompileFn AotEagerBackend(AotOptions options) {
  return [options](std::shared_ptr<const fx::GraphModule> piece, const std::vector<c10::IValue>& fake_inputs,
                   const CompileContext& context) -> absl::StatusOr<std::shared_ptr<const CompiledPiece>> {
    DDPOPT_RETURN_IF_ERROR(piece->Lint());
    AotOptions with_targets = options;
    if (context.gradient_targets != nullptr) with_targets.gradient_targets = context.gradient_targets;
    DDPOPT_ASSIGN_OR_RETURN(std::shared_ptr<const AotFunction> function, AotFunction::Compile(*piece, fake_inputs, with_targets));
    return std::make_shared<const AotPiece>(std::move(function));
  };
}

}  // namespace ddpopt
