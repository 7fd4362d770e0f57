#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ddpopt/backends/backend.h"
#include "interpreter/interpreter.h"

namespace ddpopt {
namespace {

class EagerPiece : public CompiledPiece {
 public:
  EagerPiece(std::shared_ptr<const fx::GraphModule> graph_module, std::size_t outputs)
      : graph_module_(std::move(graph_module)), outputs_(outputs) {}

  c10::IValue Call(std::vector<c10::IValue> args) const override { return CallGraphModule(*graph_module_, std::move(args)); }
  // ATen's kernels lay outputs out just as the graph says.
  std::vector<absl::optional<OutputMeta>> output_meta() const override { return std::vector<absl::optional<OutputMeta>>(outputs_); }
  bool interprets_graph() const override { return true; }

 private:
  std::shared_ptr<const fx::GraphModule> graph_module_;
  std::size_t outputs_;
};

// What the interpreter would refuse when run is refused here, when compiled.
absl::Status CheckExecutable(const fx::GraphModule& piece) {
  for (const fx::Node* node : piece.graph().nodes()) {
    if (!CanExecute(*node)) {
      return absl::UnimplementedError(
          absl::StrCat("the eager backend cannot execute the target '", fx::TargetToString(node->target()), "' of node %", node->name()));
    }
  }
  for (const auto& [path, submodule] : piece.submodules()) {
    if (submodule.graph_module == nullptr) continue;
    DDPOPT_RETURN_IF_ERROR(Annotate(CheckExecutable(*submodule.graph_module), path));
  }
  return absl::OkStatus();
}

}  // namespace

CompileFn EagerBackend() {
  return [](std::shared_ptr<const fx::GraphModule> piece, const std::vector<c10::IValue>& /*fake_inputs*/,
            const CompileContext& /*context*/) -> absl::StatusOr<std::shared_ptr<const CompiledPiece>> {
    DDPOPT_RETURN_IF_ERROR(piece->Lint());
    DDPOPT_RETURN_IF_ERROR(CheckExecutable(*piece));
    const fx::Node* output = piece->graph().output_node();
    std::size_t outputs = 0;
    if (output != nullptr && !output->args().empty()) {
      const fx::Argument& result = output->args().front();
      switch (result.kind()) {
        case fx::Argument::Kind::kNone:
          break;
        case fx::Argument::Kind::kList:
        case fx::Argument::Kind::kTuple:
          outputs = result.elements().size();
          break;
        default:
          outputs = 1;
      }
    }
    return std::make_shared<const EagerPiece>(std::move(piece), outputs);
  };
}

}  // namespace ddpopt
