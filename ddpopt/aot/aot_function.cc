#include "ddpopt/aot/aot_function.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/as_strided.h"
#include "ATen/ops/empty_strided.h"
#include "absl/strings/str_cat.h"
#include "base/autograd_node.h"
#include "base/status.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "interpreter/interpreter.h"
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

std::vector<at::Tensor> RunBelowAutograd(const fx::GraphModule& graph, std::vector<IValue> args) {
  const BelowAutograd below;
  const IValue result = CallGraphModule(graph, std::move(args));
  std::vector<at::Tensor> tensors;
  tensors.reserve(result.toTupleRef().elements().size());
  for (const IValue& element : result.toTupleRef().elements()) tensors.push_back(element.isNone() ? at::Tensor() : element.toTensor());
  return tensors;
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
    std::vector<IValue> args = Unpack();
    for (std::size_t i = 0; i < grads.size(); ++i) args.emplace_back(function->tangents_[i].Lay(std::move(grads[i])));
    std::vector<at::Tensor> gradients = RunBelowAutograd(*function->parts_.backward, std::move(args));
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const std::vector<int>& tangents = function->tangents_of_[i];
      if (std::any_of(tangents.begin(), tangents.end(), [&](int t) { return defined[t]; })) result[i] = std::move(gradients[i]);
    }
    return result;
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    Free();
  }

  std::vector<IValue> Unpack() {
    const std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(!released,
                "Trying to backward through a compiled piece a second time: what it saved has been freed. Specify retain_graph=true "
                "at the first backward");
    std::vector<IValue> args;
    std::size_t variable = 0, intermediate = 0;
    for (const Saved& saved : function->parts_.saved) {
      if (saved.kind == Saved::Kind::kIntermediate) {
        args.emplace_back(intermediates[intermediate++]);
      } else {
        args.emplace_back(variables[variable++].unpack(getptr()));
      }
    }
    // From here on the values are the run's alone, and go as they are used.
    if (!torch::autograd::get_current_graph_task_keep_graph()) Free();
    return args;
  }

  void Free() {
    variables.clear();
    intermediates.clear();
    released = true;
  }

  std::shared_ptr<const AotFunction> function;
  std::vector<torch::autograd::SavedVariable> variables;
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

AotFunction::AotFunction(JointGraph joint, PartitionedGraph parts)
    : joint_(std::move(joint)), parts_(std::move(parts)), tangents_of_(TangentsOf(joint_)) {
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
  DDPOPT_ASSIGN_OR_RETURN(JointGraph joint, TraceJointGraph(piece, fake_inputs));
  DDPOPT_ASSIGN_OR_RETURN(PartitionedGraph parts, Partition(joint, options.partition));
  return std::shared_ptr<const AotFunction>(new AotFunction(std::move(joint), std::move(parts)));
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
        at::Tensor view = base.as_strided(output.sizes, output.strides, base.storage_offset() + output.offset);
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
      RunBelowAutograd(grad ? *parts_.forward : *parts_.inference, std::vector<IValue>(primals.begin(), primals.end()));
  std::vector<at::Tensor> values(std::make_move_iterator(made.begin()), std::make_move_iterator(made.begin() + joint_.num_values));
  if (grad) {
    const NodePtr<AotBackward> node = MakeNode<AotBackward>(shared_from_this());
    variable_list leaves;
    for (const int p : joint_.gradients) leaves.push_back(primals[p]);
    node->set_next_edges(torch::autograd::collect_next_edges(leaves));
    for (const int v : joint_.tangents) torch::autograd::set_history(values[v], node);
    const std::size_t first_intermediate = joint_.num_values + joint_.updates.size();
    for (const Saved& saved : parts_.saved) {
      switch (saved.kind) {
        case Saved::Kind::kPrimal:
          node->variables.emplace_back(primals[saved.index], /*is_output=*/false);
          break;
        case Saved::Kind::kValue:
          node->variables.emplace_back(values[saved.index], /*is_output=*/values[saved.index].grad_fn() == node);
          break;
        case Saved::Kind::kIntermediate:
          node->intermediates.push_back(std::move(made[first_intermediate + saved.index]));
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
