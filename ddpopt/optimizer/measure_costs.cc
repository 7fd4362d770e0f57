#include <time.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/SequenceNumber.h"
#include "ATen/core/grad_mode.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/generator_guard.h"
#include "base/status.h"
#include "ddpopt/optimizer/fake_run.h"
#include "ddpopt/optimizer/graph_costs.h"
#include "ddpopt/optimizer/parameter_uses.h"
#include "fx_graph/passes/effects.h"
#include "fx_graph/passes/memory.h"
#include "interpreter/interpreter.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/function_hook.h"

namespace ddpopt {
namespace {

using c10::IValue;
using fx::Node;

double Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Parameters and inputs whose memory the graph may write, by node.
absl::flat_hash_set<const Node*> MayBeWritten(const fx::GraphModule& module) {
  fx::Effects effects(module);
  const fx::Memory memory(module, effects);
  absl::flat_hash_set<std::uint32_t> written;
  bool anything = false;
  for (const Node* node : module.graph().nodes()) {
    anything |= effects.Of(*node).anything;
    effects.ForEachWritten(*node, [&](Node* input) { written.insert(memory.ClassOf(*input)); });
  }
  absl::flat_hash_set<const Node*> result;
  for (const Node* node : module.graph().nodes()) {
    if (node->op() != fx::Op::kGetAttr && node->op() != fx::Op::kPlaceholder) continue;
    if (anything || written.contains(memory.ClassOf(*node))) result.insert(node);
  }
  return result;
}

// What stands for the module's tensors and inputs in a run: leaves that share the data of what isn't written, copies of what is.
class Substitutes {
 public:
  IValue Of(const IValue& value, bool copy) {
    if (!value.isTensor() || !value.toTensor().defined()) return value;
    const at::Tensor& tensor = value.toTensor();
    auto& entry = made_[tensor.unsafeGetTensorImpl()];
    if (!entry.defined()) {
      entry = copy ? tensor.detach().clone() : tensor.detach();
      if (tensor.requires_grad()) leaves_.push_back(entry.set_requires_grad(true));
    }
    return entry;
  }
  const std::vector<at::Tensor>& leaves() const { return leaves_; }

 private:
  absl::flat_hash_map<const at::TensorImpl*, at::Tensor> made_;
  std::vector<at::Tensor> leaves_;
};

class TimedRun : public Interpreter {
 public:
  struct Made {
    uint64_t end;
    const Node* node;
  };
  TimedRun(const fx::GraphModule& module, Substitutes* substitutes, const absl::flat_hash_set<const Node*>* written, bool nested)
      : Interpreter(module), substitutes_(substitutes), written_(written), nested_(nested) {}

  std::vector<Made> made;
  std::vector<std::pair<const Node*, double>> forward;

 protected:
  IValue RunNode(const Node& node) override {
    if (nested_ || !IsComputation(node)) return Interpreter::RunNode(node);
    const double start = Now();
    IValue value = Interpreter::RunNode(node);
    forward.emplace_back(&node, Now() - start);
    made.push_back({at::sequence_number::peek(), &node});
    return value;
  }
  IValue RunPlaceholder(const Node& node) override {
    IValue value = Interpreter::RunPlaceholder(node);
    if (nested_) return value;
    return substitutes_->Of(value, !node.meta().is_parameter || written_->contains(&node));
  }
  IValue RunGetAttr(const Node& node) override {
    IValue value = Interpreter::RunGetAttr(node);
    if (value.isCapsule() || !value.isTensor()) return value;
    return substitutes_->Of(value, nested_ || !value.toTensor().requires_grad() || written_->contains(&node));
  }
  IValue RunCallModule(const Node& node, Arguments& arguments) override {
    const absl::StatusOr<fx::GraphModule::Submodule> submodule = module().GetSubmodule(node.path());
    TORCH_CHECK(submodule.ok() && submodule->graph_module != nullptr && arguments.kwargs().empty(), "%", node.name(),
                " calls a module without a graph, which can't be measured without changing it");
    return RunSubgraph(*submodule, std::move(arguments.args()));
  }
  IValue RunSubgraph(const fx::GraphModule::Submodule& submodule, Values args) override {
    return TimedRun(*submodule.graph_module, substitutes_, written_, true).Run(std::move(args));
  }

 private:
  Substitutes* const substitutes_;
  const absl::flat_hash_set<const Node*>* const written_;
  const bool nested_;
};

// When an autograd node has ended.
class Stamp : public torch::autograd::FunctionPostHook {
 public:
  Stamp(uint64_t number, std::vector<std::pair<uint64_t, double>>* stamps) : number_(number), stamps_(stamps) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) override {
    stamps_->emplace_back(number_, Now());
    return outputs;
  }

 private:
  const uint64_t number_;
  std::vector<std::pair<uint64_t, double>>* const stamps_;
};

void StampAll(const std::vector<at::Tensor>& losses, std::vector<std::pair<uint64_t, double>>* stamps) {
  absl::flat_hash_set<const torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> open;
  for (const at::Tensor& loss : losses) {
    if (torch::autograd::Node* node = loss.grad_fn().get(); node != nullptr && seen.insert(node).second) open.push_back(node);
  }
  while (!open.empty()) {
    torch::autograd::Node* const node = open.back();
    open.pop_back();
    node->add_post_hook(std::make_unique<Stamp>(node->sequence_nr(), stamps));
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      if (edge.function != nullptr && seen.insert(edge.function.get()).second) open.push_back(edge.function.get());
    }
  }
}

struct Times {
  std::vector<double> forward, backward;  // one a run that counts
};

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// One step; adds each node's times.
void Step(const fx::GraphModule& module, const std::vector<IValue>& inputs, const absl::flat_hash_set<const Node*>& written, bool counts,
          absl::flat_hash_map<const Node*, Times>* times, Times* whole) {
  Substitutes substitutes;
  TimedRun run(module, &substitutes, &written, false);
  const uint64_t begin = at::sequence_number::peek();
  const IValue result = run.Run(inputs);
  const std::vector<IValue> outputs = result.isTuple()  ? result.toTupleRef().elements().vec()
                                      : result.isList() ? result.toListRef().vec()
                                                        : std::vector<IValue>{result};
  const std::vector<at::Tensor> losses = LossesOf(outputs);
  std::vector<std::pair<uint64_t, double>> stamps;
  StampAll(losses, &stamps);
  const double start = Now();
  if (!losses.empty() && !substitutes.leaves().empty()) {
    torch::autograd::grad(losses, substitutes.leaves(), {}, /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
  }
  if (!counts) return;
  absl::flat_hash_map<const Node*, double> backward;
  double before = start, total = 0;
  for (const auto& [number, end] : stamps) {
    const double seconds = end - before;
    before = end;
    total += seconds;
    const auto after = std::upper_bound(run.made.begin(), run.made.end(), number,
                                        [](uint64_t value, const TimedRun::Made& made) { return value < made.end; });
    if (number >= begin && after != run.made.end()) backward[after->node] += seconds;
  }
  double forward = 0;
  for (const auto& [node, seconds] : run.forward) {
    Times& of = (*times)[node];
    of.forward.push_back(seconds);
    of.backward.push_back(backward.contains(node) ? backward[node] : 0);
    forward += seconds;
  }
  whole->forward.push_back(forward);
  whole->backward.push_back(total);
}

absl::Status CheckOnCpu(const fx::GraphModule& module, const std::vector<IValue>& inputs) {
  const auto check = [](const std::string& what, const IValue& value) {
    if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().device().is_cpu()) return absl::OkStatus();
    return absl::UnimplementedError(absl::StrCat("measuring a graph: ", what, " is on ", value.toTensor().device().str(),
                                                 ", where operators go on after their call has returned"));
  };
  for (const auto& [path, attr] : module.attrs()) DDPOPT_RETURN_IF_ERROR(check(absl::StrCat("'", path, "'"), attr.value));
  for (std::size_t i = 0; i < inputs.size(); ++i) DDPOPT_RETURN_IF_ERROR(check(absl::StrCat("input ", i), inputs[i]));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GraphCosts> MeasureGraphCosts(const fx::GraphModule& module, const std::vector<IValue>& inputs, double seconds) {
  DDPOPT_RETURN_IF_ERROR(CheckOnCpu(module, inputs));
  absl::flat_hash_map<const Node*, Times> times;
  Times whole;
  DDPOPT_RETURN_IF_ERROR(CatchAsStatus("measuring a graph", [&] {
    const GeneratorGuard generator;
    const at::AutoGradMode grad(true);
    const absl::flat_hash_set<const Node*> written = MayBeWritten(module);
    const double start = Now();
    for (int i = 0; i < 3 || (i < 10 && Now() - start < seconds); ++i) Step(module, inputs, written, i > 0, &times, &whole);
  }));
  GraphCosts costs;
  for (auto& [node, of] : times) {
    NodeCost& cost = costs.nodes[node];
    cost.forward = Median(std::move(of.forward));
    cost.backward = Median(std::move(of.backward));
  }
  costs.forward = Median(std::move(whole.forward));
  costs.backward = Median(std::move(whole.backward));
  return costs;
}

}  // namespace ddpopt
