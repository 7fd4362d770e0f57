#include "tools/fake_run.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "ddpopt/optimizer/fake_run.h"

namespace ddpopt {

absl::Status RunOnFakes(const ExportedProgram& program, const FakeRunOptions& options, FakeRun* run) {
  std::vector<c10::IValue> inputs;
  for (const fx::Node* node : program.module()->graph().nodes()) {
    if (node->op() != fx::Op::kPlaceholder) continue;
    if (node->meta().val.isNone() && node->has_meta() && node->meta().custom.contains("symbolic")) {
      return absl::UnimplementedError(absl::StrCat("input \"", node->path(), "\" has open sizes of which the archive has no example"));
    }
    inputs.push_back(node->meta().val);
  }
  FakeRunHooks hooks;
  hooks.backward = options.backward;
  hooks.on_value = options.on_value;
  hooks.on_operator = options.on_operator;
  hooks.before_operator = [run](const c10::OperatorHandle& op) {
    run->last_operator = c10::toString(op.operator_name());
    run->operators.insert(run->last_operator);
  };
  absl::StatusOr<std::vector<c10::IValue>> outputs = RunGraphOnFakes(*program.module(), std::move(inputs), hooks);
  if (!outputs.ok()) return outputs.status();
  run->outputs = *std::move(outputs);
  return absl::OkStatus();
}

}  // namespace ddpopt
