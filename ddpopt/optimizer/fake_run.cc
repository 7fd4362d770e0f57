#include "ddpopt/optimizer/fake_run.h"

#include <memory>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/sum.h"
#include "base/status.h"
#include "ddpopt/optimizer/fake_interpreter.h"
#include "ddpopt/optimizer/parameter_uses.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "torch/csrc/autograd/autograd.h"

namespace ddpopt {
namespace {

using c10::IValue;

class Recorder : public Mode {
 public:
  explicit Recorder(const FakeRunHooks* hooks) : hooks_(hooks) {}
  Level level() const override { return Level::kPostAutograd; }
  absl::string_view name() const override { return "Recorder"; }
  void Handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    if (hooks_->before_operator) hooks_->before_operator(op);
    if (!hooks_->on_operator) return op.callBoxed(stack);
    const auto count = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
    const std::vector<IValue> arguments(stack->end() - count, stack->end());
    op.callBoxed(stack);
    const auto results = static_cast<std::ptrdiff_t>(op.schema().returns().size());
    hooks_->on_operator(op, arguments, std::vector<IValue>(stack->end() - results, stack->end()));
  }

 private:
  const FakeRunHooks* const hooks_;
};

class Reporter : public FakeInterpreter {
 public:
  Reporter(const fx::GraphModule& module, FakeTensorMode* mode, const FakeRunHooks* hooks, bool nested)
      : FakeInterpreter(module, mode), hooks_(hooks), nested_(nested) {}

 protected:
  IValue RunNode(const fx::Node& node) override {
    const bool own = !nested_ && IsComputation(node);
    if (own && hooks_->before_node) hooks_->before_node(node);
    IValue value = FakeInterpreter::RunNode(node);
    if (hooks_->on_value && !value.isCapsule()) hooks_->on_value(node, value);
    if (own && hooks_->after_node) hooks_->after_node(node);
    return value;
  }
  std::unique_ptr<FakeInterpreter> Nested(const fx::GraphModule& module) const override {
    return std::make_unique<Reporter>(module, mode(), hooks_, true);
  }

 private:
  const FakeRunHooks* const hooks_;
  const bool nested_;
};

// Trainable tensors that the graph has as attributes or takes as inputs.
std::vector<at::Tensor> Leaves(const fx::GraphModule& module, const std::vector<IValue>& inputs, FakeTensorMode* mode) {
  std::vector<at::Tensor> leaves;
  for (const Parameter& parameter : NamedParameters(module)) {
    at::Tensor fake = mode->FromReal(parameter.tensor);
    if (fake.requires_grad()) leaves.push_back(std::move(fake));
  }
  std::size_t next = 0;
  for (const fx::Node* node : module.graph().nodes()) {
    if (node->op() != fx::Op::kPlaceholder) continue;
    if (next < inputs.size() && node->meta().is_parameter && inputs[next].isTensor() && inputs[next].toTensor().requires_grad()) {
      leaves.push_back(inputs[next].toTensor());
    }
    ++next;
  }
  return leaves;
}

}  // namespace

std::vector<at::Tensor> LossesOf(const std::vector<IValue>& outputs) {
  std::vector<at::Tensor> losses;
  for (const IValue& output : outputs) {
    if (!output.isTensor() || !output.toTensor().defined() || !output.toTensor().requires_grad()) continue;
    losses.push_back(output.toTensor().dim() == 0 ? output.toTensor() : at::sum(output.toTensor()));
  }
  return losses;
}

absl::StatusOr<std::vector<IValue>> RunGraphOnFakes(const fx::GraphModule& module, std::vector<IValue> inputs, const FakeRunHooks& hooks) {
  const std::shared_ptr<FakeTensorMode> mode = FakeTensorMode::Create();
  std::vector<IValue> outputs;
  const absl::Status status = CatchAsStatus("on fakes", [&] {
    const ModeGuard fakes(mode);
    const ModeGuard recorder(std::make_shared<Recorder>(&hooks));
    const at::AutoGradMode grad(true);
    for (IValue& input : inputs) input = mode->FromReal(input);
    // Before the run, so that what makes their fakes is none of it.
    std::vector<at::Tensor> leaves = Leaves(module, inputs, mode.get());
    const IValue result = Reporter(module, mode.get(), &hooks, false).Run(std::move(inputs));
    outputs = result.isTuple()  ? result.toTupleRef().elements().vec()
              : result.isList() ? result.toListRef().vec()
                                : std::vector<IValue>{result};
    if (!hooks.backward) return;
    if (hooks.before_backward) hooks.before_backward();
    const std::vector<at::Tensor> losses = LossesOf(outputs);
    if (losses.empty() || leaves.empty()) return;
    torch::autograd::grad(losses, leaves, {}, /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
  });
  if (!status.ok()) return status;
  return outputs;
}

}  // namespace ddpopt
