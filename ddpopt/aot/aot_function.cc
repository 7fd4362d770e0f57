#include "ddpopt/aot/aot_function.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/_conj.h"
#include "ATen/ops/as_strided.h"
#include "ATen/ops/empty_strided.h"
#include "ATen/ops/view_as_complex.h"
#include "ATen/ops/view_as_real.h"
#include "base/autograd_node.h"
#include "base/status.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/csrc/autograd/graph_task.h"
#include "torch/csrc/autograd/saved_variable.h"

namespace ddpopt {

using c10::IValue;
using torch::autograd::variable_list;
using Output = JointGraph::Output;
using Saved = PartitionedGraph::Saved;

namespace {

// The graphs are what autograd and autocast have left of the piece.
struct BelowAutograd {
  at::AutoDispatchBelowADInplaceOrView autograd;
  c10::impl::ExcludeDispatchKeyGuard autocast{c10::autocast_dispatch_keyset};
};

std::vector<at::Tensor> RunBelowAutograd(const Executor& executor, std::vector<at::Tensor> inputs, std::vector<at::Tensor> targets = {}) {
  const BelowAutograd below;
  return executor.Run(std::move(inputs), std::move(targets));
}

// What becomes of the forward's values, updates and intermediates. The backward frees the last in this order.
ExecutorOptions ForwardOptions(const JointGraph& joint, const PartitionedGraph& parts, const AotOptions& options) {
  ExecutorOptions result;
  result.poison = options.poison_workspace;
  const std::size_t first_intermediate = joint.num_values + joint.updates.size();
  result.fates.assign(first_intermediate, ExecutorOptions::Fate::kResult);
  result.fates.resize(first_intermediate + parts.num_intermediates, ExecutorOptions::Fate::kSaved);
  result.freed_at.resize(result.fates.size(), 0);
  const fx::Graph& backward = parts.backward->graph();
  fx::NodeTable<int> last_use(backward);
  int step = 0;
  for (fx::Node* node : backward.nodes()) {
    ++step;
    for (const fx::Node* input : node->all_input_nodes()) last_use[input] = step;
  }
  const std::vector<fx::Node*> placeholders = backward.FindNodes(fx::Op::kPlaceholder);
  for (std::size_t s = 0; s < parts.saved.size(); ++s) {
    if (parts.saved[s].kind == Saved::Kind::kIntermediate) result.freed_at[first_intermediate + parts.saved[s].index] = last_use.at(placeholders[s]);
  }
  return result;
}

// Parameters' gradients come and go together; those of inputs go on to the backward of what made them.
ExecutorOptions BackwardOptions(const JointGraph& joint, const AotOptions& options) {
  ExecutorOptions result;
  result.poison = options.poison_workspace;
  for (const int p : joint.gradients) {
    result.fates.push_back(joint.primals[p].attr.defined() ? ExecutorOptions::Fate::kTogether : ExecutorOptions::Fate::kResult);
  }
  return result;
}

at::Tensor ViewOf(const at::Tensor& base, const Output& output) {
  at::Tensor view;
  if (output.is_complex == base.is_complex()) {
    view = base.as_strided(output.sizes, output.strides, base.storage_offset() + output.offset);
  } else if (base.is_complex()) {
    const at::Tensor parts = at::view_as_real(base);
    view = parts.as_strided(output.sizes, output.strides, parts.storage_offset() + output.offset);
  } else {
    std::vector<int64_t> sizes = output.sizes, strides = output.strides;
    for (int64_t& stride : strides) stride *= 2;
    sizes.push_back(2);
    strides.push_back(1);
    view = at::view_as_complex(base.as_strided(sizes, strides, base.storage_offset() + output.offset));
  }
  return output.conjugated ? at::_conj(view) : view;
}

// The values that are primals to which a history was given.
std::vector<int> PrimalsAmongValues(const JointGraph& joint) {
  std::vector<int> result;
  const auto& results = joint.module->graph().output_node()->args().front().elements();
  for (int v = 0; v < joint.num_values; ++v) {
    if (results[v].node() != nullptr && results[v].node()->op() == fx::Op::kPlaceholder) result.push_back(v);
  }
  return result;
}

// What each gradient of the joint graph depends on.
std::vector<std::vector<int>> TangentsOf(const JointGraph& joint) {
  const fx::Graph& graph = joint.module->graph();
  fx::NodeTable<std::vector<int>> reached(graph);
  std::size_t placeholder = 0;
  for (fx::Node* node : graph.nodes()) {
    if (node->op() == fx::Op::kPlaceholder) {
      if (placeholder >= joint.primals.size()) reached[node] = {static_cast<int>(placeholder - joint.primals.size())};
      ++placeholder;
      continue;
    }
    std::vector<int> all;
    for (const fx::Node* input : node->all_input_nodes()) {
      const std::vector<int>& some = reached.at(input);
      std::vector<int> both;
      std::set_union(all.begin(), all.end(), some.begin(), some.end(), std::back_inserter(both));
      all = std::move(both);
    }
    reached[node] = std::move(all);
  }
  std::vector<std::vector<int>> result;
  const auto& results = graph.output_node()->args().front().elements();
  for (std::size_t i = joint.num_values + joint.updates.size(); i < results.size(); ++i) {
    result.push_back(results[i].node() == nullptr ? std::vector<int>() : reached.at(results[i].node()));
  }
  return result;
}

}  // namespace

struct AotBackward : torch::autograd::Node {
  explicit AotBackward(std::shared_ptr<const AotFunction> function) : function(std::move(function)) {}

  std::string name() const override { return "AotBackward"; }

  variable_list apply(variable_list&& grads) override {
    TORCH_CHECK(!c10::GradMode::is_enabled(),
                "create_graph: a compiled piece has no second derivatives; run the model eagerly to have them");
    variable_list result(function->joint_.gradients.size());
    std::vector<bool> defined;
    for (const at::Tensor& grad : grads) defined.push_back(grad.defined());
    std::vector<at::Tensor> args = Unpack();
    for (std::size_t i = 0; i < grads.size(); ++i) args.push_back(function->tangents_[i].Lay(std::move(grads[i])));
    std::vector<at::Tensor> gradients = RunBelowAutograd(*function->backward_, std::move(args), Targets(defined));
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (ComesTo(i, defined)) result[i] = std::move(gradients[i]);
    }
    return result;
  }

  // Whether any of the incoming gradients makes one here. One that depends on none (zeros that a custom Function makes) always comes.
  bool ComesTo(std::size_t gradient, const std::vector<bool>& defined) const {
    const std::vector<int>& tangents = function->tangents_of_[gradient];
    return tangents.empty() || std::any_of(tangents.begin(), tangents.end(), [&](int t) { return defined[t]; });
  }

  // Where gradients may be written: of leaves that have none yet, that this backward accumulates, and at which no hook looks before.
  std::vector<at::Tensor> Targets(const std::vector<bool>& defined) const {
    std::vector<at::Tensor> targets;
    const GradientTargets* const wanted = function->options_.gradient_targets.get();
    if (wanted == nullptr) return targets;
    const auto* const exec_info = torch::autograd::get_current_graph_task_exec_info();
    targets.resize(function->joint_.gradients.size());
    for (std::size_t i = 0; i < targets.size(); ++i) {
      const at::Tensor& parameter = function->joint_.primals[function->joint_.gradients[i]].attr;
      const torch::autograd::Edge& edge = next_edge(i);
      if (!parameter.defined() || !edge.is_valid() || !ComesTo(i, defined) || parameter.grad().defined()) continue;
      if (!edge.function->tensor_pre_hooks().empty() || torch::autograd::impl::try_get_grad_accumulator(parameter) != edge.function) continue;
      // autograd::grad gives gradients to its caller, who keeps them.
      if (exec_info != nullptr && !exec_info->empty()) {
        const auto it = exec_info->find(edge.function.get());
        if (it == exec_info->end() || !it->second.needed_) continue;
      }
      targets[i] = wanted->TargetFor(parameter);
    }
    return targets;
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    Free();
  }

  std::vector<at::Tensor> Unpack() {
    const std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(!released,
                "Trying to backward through a compiled piece a second time: what it saved has been freed. Specify retain_graph=true "
                "at the first backward");
    for (torch::autograd::SavedVariable& value : shared) value.unpack(getptr());
    std::vector<at::Tensor> args;
    std::size_t variable = 0, intermediate = 0;
    for (const Saved& saved : function->parts_.saved) {
      if (saved.kind == Saved::Kind::kIntermediate) {
        args.push_back(intermediates[intermediate++]);
      } else {
        args.push_back(variables[variable++].unpack(getptr()));
      }
    }
    // From here on the values are the run's alone, and go as they are used.
    if (!torch::autograd::get_current_graph_task_keep_graph()) Free();
    return args;
  }

  void Free() {
    variables.clear();
    shared.clear();
    intermediates.clear();
    released = true;
  }

  std::shared_ptr<const AotFunction> function;
  std::vector<torch::autograd::SavedVariable> variables;
  std::vector<torch::autograd::SavedVariable> shared;  // values in whose memory intermediates lie: their versions tell of writes
  std::vector<at::Tensor> intermediates;
  bool released = false;
};

at::Tensor AotFunction::Layout::Lay(at::Tensor tensor) const {
  if (!tensor.defined()) return at::empty_strided(sizes, strides, options).zero_();
  bool same = true;
  for (std::size_t d = 0; d < sizes.size(); ++d) same &= sizes[d] <= 1 || tensor.stride(d) == strides[d];
  if (same || tensor.numel() == 0) return tensor;
  return at::empty_strided(sizes, strides, options).copy_(tensor);
}

AotFunction::AotFunction(JointGraph joint, PartitionedGraph parts, const AotOptions& options)
    : joint_(std::move(joint)),
      parts_(std::move(parts)),
      options_(options),
      forward_(Executor::Compile(parts_.forward, ForwardOptions(joint_, parts_, options))),
      backward_(Executor::Compile(parts_.backward, BackwardOptions(joint_, options))),
      tangents_of_(TangentsOf(joint_)),
      primals_among_values_(PrimalsAmongValues(joint_)) {
  std::size_t placeholder = 0;
  for (const fx::Node* node : joint_.module->graph().FindNodes(fx::Op::kPlaceholder)) {
    if (placeholder++ < joint_.primals.size()) continue;
    const at::Tensor& fake = node->meta().val.toTensor();
    tangents_.push_back({fake.sizes().vec(), fake.strides().vec(), fake.options().requires_grad(std::nullopt)});
  }
}

absl::StatusOr<std::shared_ptr<const AotFunction>> AotFunction::Compile(const fx::GraphModule& piece,
                                                                        const std::vector<IValue>& fake_inputs,
                                                                        const AotOptions& options) {
  JointGraphOptions tracing;
  if (!options.decompositions.empty()) {
    DDPOPT_ASSIGN_OR_RETURN(tracing.decompositions, DecompositionSet::Of(options.decompositions));
  }
  DDPOPT_ASSIGN_OR_RETURN(JointGraph joint, TraceJointGraph(piece, fake_inputs, tracing));
  DDPOPT_ASSIGN_OR_RETURN(PartitionedGraph parts, Partition(joint, options.partition));
  return std::shared_ptr<const AotFunction>(new AotFunction(std::move(joint), std::move(parts), options));
}

const Executor& AotFunction::inference() const {
  std::call_once(inference_once_, [this] {
    absl::StatusOr<std::shared_ptr<fx::GraphModule>> graph = InferenceGraph(joint_, parts_);
    TORCH_CHECK(graph.ok(), graph.status().ToString());
    ExecutorOptions options;
    options.poison = options_.poison_workspace;
    inference_ = Executor::Compile(*std::move(graph), std::move(options));
  });
  return *inference_;
}

int64_t AotFunction::PeakBytes() const {
  if (forward_->plan() == nullptr || backward_->plan() == nullptr) return 0;
  const Executor::MemoryUse forward = forward_->memory_use(), backward = backward_->memory_use();
  const int64_t workspace = std::max(forward.workspace, backward.workspace);
  int64_t peak = 0;
  for (const int64_t live : forward.live) peak = std::max(peak, live);

  // Values stay the caller's; what is saved goes with the last of its group.
  int64_t held = 0;
  for (int v = 0; v < joint_.num_values; ++v) held += forward.outputs[v].bytes;
  const std::size_t steps = backward.live.size();
  std::vector<int64_t> freed(steps + 1, 0);
  std::vector<std::pair<int64_t, int>> groups;  // bytes, and the step after which they go
  for (std::size_t s = 0; s < parts_.saved.size(); ++s) {
    if (parts_.saved[s].kind != Saved::Kind::kIntermediate) continue;
    const Executor::MemoryUse::Output& saved = forward.outputs[joint_.num_values + joint_.updates.size() + parts_.saved[s].index];
    held += saved.bytes;
    const int last = std::max(0, backward.inputs_freed[s]);
    if (saved.group < 0) {
      freed[std::min<std::size_t>(last + 1, steps)] += saved.bytes;
      continue;
    }
    if (groups.size() <= static_cast<std::size_t>(saved.group)) groups.resize(saved.group + 1);
    groups[saved.group].first += saved.bytes;
    groups[saved.group].second = std::max(groups[saved.group].second, last);
  }
  for (const auto& [bytes, last] : groups) freed[std::min<std::size_t>(last + 1, steps)] += bytes;
  peak = std::max(peak, held);
  for (std::size_t s = 0; s < steps; ++s) {
    held -= freed[s];
    peak = std::max(peak, held + backward.live[s]);
  }
  return workspace + peak;
}

std::vector<at::Tensor> AotFunction::Bind(const std::vector<IValue>& args) const {
  TORCH_CHECK(static_cast<int>(args.size()) == joint_.num_inputs, "a compiled piece takes ", joint_.num_inputs, " inputs, not ",
              args.size());
  for (const auto& [input, value] : joint_.number_inputs) {
    TORCH_CHECK(args[input].tagKind() == value.tagKind() && args[input] == value, "input ", input, " of a compiled piece is ", args[input],
                ", but it was compiled for ", value);
  }
  FakeTensorMode* mode = nullptr;
  for (const IValue& arg : args) {
    if (arg.isTensor() && mode == nullptr) mode = ModeOf(arg.toTensor());
  }
  std::vector<at::Tensor> primals;
  primals.reserve(joint_.primals.size());
  for (const JointGraph::Primal& primal : joint_.primals) {
    if (primal.input >= 0) {
      primals.push_back(args[primal.input].toTensor());
    } else {
      primals.push_back(mode == nullptr ? primal.attr : mode->FromReal(primal.attr));
    }
  }
  return primals;
}

IValue AotFunction::Results(const std::vector<at::Tensor>& primals, const std::vector<at::Tensor>& values) const {
  std::vector<IValue> results;
  for (const Output& output : joint_.outputs) {
    switch (output.kind) {
      case Output::Kind::kConstant:
        results.push_back(output.constant);
        break;
      case Output::Kind::kPrimal:
        results.emplace_back(primals[output.index]);
        break;
      case Output::Kind::kValue:
        results.emplace_back(values[output.index]);
        break;
      case Output::Kind::kViewOfPrimal:
      case Output::Kind::kViewOfValue: {
        const at::Tensor& base = output.kind == Output::Kind::kViewOfPrimal ? primals[output.index] : values[output.index];
        const at::AutoGradMode grad(c10::GradMode::is_enabled() && output.requires_grad);
        at::Tensor view = ViewOf(base, output);
        results.emplace_back(output.requires_grad || !base.requires_grad() ? view : view.detach());
        break;
      }
    }
  }
  switch (joint_.structure) {
    case JointGraph::Structure::kSingle:
      return results.front();
    case JointGraph::Structure::kTuple:
      return c10::ivalue::Tuple::create(std::move(results));
    case JointGraph::Structure::kList: {
      const bool tensors = std::all_of(results.begin(), results.end(), [](const IValue& r) { return r.isTensor(); });
      c10::impl::GenericList list(tensors ? c10::TypePtr(c10::TensorType::get()) : c10::TypePtr(c10::AnyType::get()));
      for (IValue& result : results) list.push_back(std::move(result));
      return list;
    }
  }
  return IValue();
}

IValue AotFunction::Call(std::vector<IValue> args) const {
  const std::vector<at::Tensor> primals = Bind(args);
  args.clear();
  bool grad = c10::GradMode::is_enabled() && !joint_.tangents.empty();
  if (grad) grad = std::any_of(joint_.gradients.begin(), joint_.gradients.end(), [&](int p) { return primals[p].requires_grad(); });

  std::vector<at::Tensor> made =
      RunBelowAutograd(grad ? *forward_ : inference(), primals);
  std::vector<at::Tensor> values(std::make_move_iterator(made.begin()), std::make_move_iterator(made.begin() + joint_.num_values));
  if (grad) {
    // The caller's own tensor keeps the history that it has.
    for (const int v : primals_among_values_) values[v] = values[v].detach();
    const NodePtr<AotBackward> node = MakeNode<AotBackward>(shared_from_this());
    variable_list leaves;
    for (const int p : joint_.gradients) leaves.push_back(primals[p]);
    node->set_next_edges(torch::autograd::collect_next_edges(leaves));
    for (const int v : joint_.tangents) torch::autograd::set_history(values[v], node);
    const std::size_t first_intermediate = joint_.num_values + joint_.updates.size();
    const auto save = [&](int v) { return torch::autograd::SavedVariable(values[v], /*is_output=*/values[v].grad_fn() == node); };
    for (const Saved& saved : parts_.saved) {
      switch (saved.kind) {
        case Saved::Kind::kPrimal:
          node->variables.emplace_back(primals[saved.index], /*is_output=*/false);
          break;
        case Saved::Kind::kValue:
          node->variables.push_back(save(saved.index));
          break;
        case Saved::Kind::kIntermediate:
          node->intermediates.push_back(std::move(made[first_intermediate + saved.index]));
          if (saved.shares_value >= 0) node->shared.push_back(save(saved.shares_value));
          break;
      }
    }
  }
  if (!joint_.updates.empty()) {
    const at::NoGradGuard no_grad;
    for (std::size_t u = 0; u < joint_.updates.size(); ++u) primals[joint_.updates[u]].copy_(made[joint_.num_values + u]);
  }
  return Results(primals, values);
}

}  // namespace ddpopt
