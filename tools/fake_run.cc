#include "tools/fake_run.h"

#include <memory>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/sum.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ddpopt/optimizer/fake_interpreter.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "interpreter/interpreter.h"
#include "torch/csrc/autograd/autograd.h"

namespace ddpopt {
namespace {

using c10::IValue;

class Recorder : public Mode {
 public:
  Recorder(FakeRun* run, const FakeRunOptions* options) : run_(run), options_(options) {}
  Level level() const override { return Level::kPostAutograd; }
  absl::string_view name() const override { return "Recorder"; }
  void Handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    run_->last_operator = c10::toString(op.operator_name());
    run_->operators.insert(run_->last_operator);
    if (!options_->on_operator) return op.callBoxed(stack);
    const auto count = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
    const std::vector<IValue> arguments(stack->end() - count, stack->end());
    op.callBoxed(stack);
    const auto results = static_cast<std::ptrdiff_t>(op.schema().returns().size());
    options_->on_operator(op, arguments, std::vector<IValue>(stack->end() - results, stack->end()));
  }

 private:
  FakeRun* const run_;
  const FakeRunOptions* const options_;
};

class Reporter : public FakeInterpreter {
 public:
  Reporter(const fx::GraphModule& module, FakeTensorMode* mode, const FakeRunOptions* options)
      : FakeInterpreter(module, mode), options_(options) {}

 protected:
  IValue RunNode(const fx::Node& node) override {
    IValue value = FakeInterpreter::RunNode(node);
    if (options_->on_value && !value.isCapsule()) options_->on_value(node, value);
    return value;
  }
  std::unique_ptr<FakeInterpreter> Nested(const fx::GraphModule& module) const override {
    return std::make_unique<Reporter>(module, mode(), options_);
  }

 private:
  const FakeRunOptions* const options_;
};

}  // namespace

absl::Status RunOnFakes(const ExportedProgram& program, const FakeRunOptions& options, FakeRun* run) {
  const std::shared_ptr<FakeTensorMode> mode = FakeTensorMode::Create();
  std::vector<IValue> inputs;
  for (const fx::Node* node : program.module()->graph().nodes()) {
    if (node->op() != fx::Op::kPlaceholder) continue;
    if (node->meta().val.isNone() && node->has_meta() && node->meta().custom.contains("symbolic")) {
      return absl::UnimplementedError(absl::StrCat("input \"", node->path(), "\" has open sizes of which the archive has no example"));
    }
    inputs.push_back(node->meta().val);
  }
  return CatchAsStatus("on fakes", [&] {
    const ModeGuard fakes(mode);
    const ModeGuard recorder(std::make_shared<Recorder>(run, &options));
    at::AutoGradMode grad(true);
    for (IValue& input : inputs) input = mode->FromReal(input);
    IValue result = Reporter(*program.module(), mode.get(), &options).Run(std::move(inputs));
    run->outputs = result.isTuple() ? result.toTupleRef().elements().vec() : std::vector<IValue>{result};
    if (!options.backward) return;
    std::vector<at::Tensor> leaves;
    for (const auto& parameter : program.parameters()) {
      const at::Tensor fake = mode->FromReal(parameter.tensor);
      if (fake.requires_grad()) leaves.push_back(fake);
    }
    std::vector<at::Tensor> losses;  // whose sum is the loss
    for (const IValue& output : run->outputs) {
      if (!output.isTensor() || !output.toTensor().requires_grad()) continue;
      losses.push_back(output.toTensor().dim() == 0 ? output.toTensor() : at::sum(output.toTensor()));
    }
    if (!losses.empty() && !leaves.empty()) {
      torch::autograd::grad(losses, leaves, {}, /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
    }
  });
}

}  // namespace ddpopt
