#include "ddpopt/optimizer/fake_interpreter.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "ddpopt/optimizer/piece_contract.h"

namespace ddpopt {

using c10::IValue;

std::unique_ptr<FakeInterpreter> FakeInterpreter::Nested(const fx::GraphModule& module) const {
  return std::make_unique<FakeInterpreter>(module, mode_);
}

IValue FakeInterpreter::RunGetAttr(const fx::Node& node) {
  IValue value = Interpreter::RunGetAttr(node);
  return mode_ == nullptr || value.isCapsule() ? value : mode_->FromReal(value);
}

IValue FakeInterpreter::RunCallModule(const fx::Node& node, Arguments& arguments) {
  const absl::StatusOr<fx::GraphModule::Submodule> submodule = module().GetSubmodule(node.path());
  if (!submodule.ok() || !arguments.kwargs().empty()) return Interpreter::RunCallModule(node, arguments);
  return RunSubgraph(*submodule, std::move(arguments.args()));
}

IValue FakeInterpreter::RunSubgraph(const fx::GraphModule::Submodule& submodule, Values args) {
  // What has no graph, such as a user's autograd::Function, gives fakes for fakes.
  if (submodule.graph_module == nullptr) return Interpreter::RunSubgraph(submodule, std::move(args));
  return Nested(*submodule.graph_module)->Run(std::move(args));
}

IValue FakeInterpreter::RunCond(const IValue& predicate, const fx::GraphModule::Submodule& on_true,
                                const fx::GraphModule::Submodule& on_false, Values operands) {
  if (!predicate.isTensor() || !IsFake(predicate.toTensor())) {
    return Interpreter::RunCond(predicate, on_true, on_false, std::move(operands));
  }
  const IValue result = RunSubgraph(on_true, operands);
  const std::vector<IValue> expected = OutputList(result);
  const std::vector<IValue> other = OutputList(RunSubgraph(on_false, std::move(operands)));
  TORCH_CHECK(expected.size() == other.size(), "cond: one branch returns ", expected.size(), " values, the other ", other.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    TORCH_CHECK(expected[i].isTensor() == other[i].isTensor(), "cond: output ", i, " is a tensor in one branch alone");
    if (!expected[i].isTensor()) continue;
    const at::Tensor &a = expected[i].toTensor(), &b = other[i].toTensor();
    TORCH_CHECK(a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides(), "cond: output ", i, " is ",
                a.scalar_type(), a.sizes(), " with strides ", a.strides(), " in one branch and ", b.scalar_type(), b.sizes(),
                " with strides ", b.strides(), " in the other");
  }
  return result;
}

}  // namespace ddpopt
