#include "ddpopt/capture/tracer/custom_function.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/csrc/autograd/graph_task.h"
#include "torch/csrc/autograd/saved_variable.h"

namespace ddpopt::custom_function_internal {

// A function of nobody's, whose node is laid out as every other function's: no member depends on the function. It is no type of this file
// alone, or the compiler would know that there are no such nodes.
struct AnyFunction {
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, const torch::autograd::variable_list& grads);
};
struct ContextAccess;

}  // namespace ddpopt::custom_function_internal

namespace torch::autograd {

// The contexts' friends are all CppNodes; this one is a way to what they saved.
template <>
struct CppNode<ddpopt::custom_function_internal::ContextAccess> {
  static std::vector<SavedVariable>& Saved(AutogradContext& context) { return context.saved_variables_; }
};

}  // namespace torch::autograd

namespace ddpopt {

torch::autograd::variable_list custom_function_internal::AnyFunction::backward(torch::autograd::AutogradContext*,
                                                                               const torch::autograd::variable_list& grads) {
  return grads;
}

namespace {

using c10::IValue;
using custom_function_internal::AnyFunction;
using custom_function_internal::ContextAccess;
using torch::autograd::AutogradContext;
using torch::autograd::Edge;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using Access = torch::autograd::CppNode<ContextAccess>;

using AnyCppNode = torch::autograd::CppNode<AnyFunction>;

constexpr absl::string_view kPrefix = "torch::autograd::CppNode<";

AnyCppNode& CppNodeOf(torch::autograd::Node& node) { return static_cast<AnyCppNode&>(node); }

bool HoldsTensors(const IValue& value) {
  bool found = false;
  value.visit([&](const IValue& part) {
    found |= part.isTensor();
    return found;
  });
  return found;
}

struct CustomFunctionNode : torch::autograd::Node {
  explicit CustomFunctionNode(std::shared_ptr<const CustomFunction> function) : function(std::move(function)) {}

  std::string name() const override { return "CustomFunction<" + function->name() + ">"; }

  variable_list apply(variable_list&& grads) override {
    std::vector<at::Tensor> tensors;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      TORCH_CHECK(!released, "Trying to backward through ", function->name(),
                  " a second time: what it saved has been freed. Specify retain_graph=true at the first backward");
      for (SavedVariable& variable : saved) tensors.push_back(variable.unpack(getptr()));
    }
    return function->Backward(std::move(grads), tensors, next_edges());
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    saved.clear();
    released = true;
  }

  std::shared_ptr<const CustomFunction> function;
  std::vector<SavedVariable> saved;
  bool released = false;
};

}  // namespace

std::string CustomFunctionOf(const at::Tensor& tensor) {
  const auto& node = tensor.grad_fn();
  if (node == nullptr) return "";
  const std::string name = node->name();
  if (!absl::StartsWith(name, kPrefix)) return "";
  return name.substr(kPrefix.size(), name.size() - kPrefix.size() - 1);
}

CustomFunction::CustomFunction(const at::Tensor& output) : name_(CustomFunctionOf(output)), node_(output.grad_fn()) {
  TORCH_CHECK(!name_.empty(), "no output of a custom autograd::Function");
  AutogradContext& context = CppNodeOf(*node_).ctx_;
  num_outputs_ = static_cast<std::uint32_t>(node_->num_inputs());
  inputs_ = node_->next_edges();
  saved_ = context.get_saved_variables();
  num_saved_variables_ = saved_.size();
  std::map<std::string, IValue> sorted(context.saved_data.begin(), context.saved_data.end());
  for (auto& [key, value] : sorted) {
    if (value.isTensor()) {
      tensor_keys_.push_back(key);
      saved_.push_back(value.toTensor());
      context.saved_data[key] = IValue();
      continue;
    }
    TORCH_CHECK(!HoldsTensors(value), "the custom autograd::Function ", name_, " keeps tensors in a container in saved_data[\"", key,
                "\"], which can't be captured; save them by save_for_backward");
    TORCH_CHECK(!value.isObject() && !value.isCapsule() && !value.isPyObject(), "the custom autograd::Function ", name_,
                " keeps an object in saved_data[\"", key, "\"], which can't be captured");
    data_.emplace_back(key, value);
  }
  Access::Saved(context).clear();
}

void CustomFunction::Release() {
  saved_.clear();
  inputs_.clear();
  // The prototype has no place in a graph of autograd's.
  node_->next_edges().clear();
}

IValue CustomFunction::Call(std::vector<IValue> args) const {
  TORCH_CHECK(args.size() >= 3, "a custom autograd::Function takes outputs, inputs and what it saved");
  const auto tensors = [](const IValue& list) {
    std::vector<at::Tensor> result;
    for (const IValue& element : list.toListRef()) result.push_back(element.isTensor() ? element.toTensor() : at::Tensor());
    return result;
  };
  std::vector<at::Tensor> outputs = tensors(args[0]);
  const std::vector<at::Tensor> inputs = tensors(args[1]), saved = tensors(args[2]);
  args.clear();
  const bool any = std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) { return input.defined() && input.requires_grad(); });
  if (c10::GradMode::is_enabled() && any) {
    const NodePtr<CustomFunctionNode> node = MakeNode<CustomFunctionNode>(shared_from_this());
    torch::autograd::edge_list edges;
    for (const at::Tensor& input : inputs) {
      edges.push_back(input.defined() && input.requires_grad() ? torch::autograd::impl::gradient_edge(input) : Edge());
    }
    node->set_next_edges(std::move(edges));
    std::size_t next = 0;
    for (std::uint32_t number = 0; number < num_outputs_; ++number) {
      if (next < output_numbers_.size() && output_numbers_[next] == number) {
        node->add_input_metadata(outputs[next++]);
      } else {
        node->add_input_metadata(torch::autograd::Node::undefined_input());
      }
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) torch::autograd::impl::set_gradient_edge(outputs[i], {node, output_numbers_[i]});
    for (const at::Tensor& tensor : saved) {
      if (!tensor.defined()) {
        node->saved.emplace_back();
        continue;
      }
      node->saved.emplace_back(tensor, /*is_output=*/tensor.requires_grad() && tensor.grad_fn() == node);
    }
  }
  return c10::ivalue::Tuple::create(std::vector<IValue>(outputs.begin(), outputs.end()));
}

variable_list CustomFunction::Backward(variable_list grads, const std::vector<at::Tensor>& saved, const std::vector<Edge>& edges) const {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  AnyCppNode& node = CppNodeOf(*node_);
  std::vector<SavedVariable> variables;
  for (std::size_t i = 0; i < num_saved_variables_; ++i) {
    if (saved[i].defined()) {
      variables.emplace_back(saved[i], /*is_output=*/false);
    } else {
      variables.emplace_back();
    }
  }
  // For the time of the call, the context is that of this run; a backward that leads here again finds its own.
  struct Restore {
    Restore(const CustomFunction& function, AnyCppNode& node, std::vector<SavedVariable> variables, const std::vector<at::Tensor>& saved,
            const std::vector<Edge>& edges)
        : function(function), node(node), variables(std::move(variables)), edges(node.next_edges()) {
      std::swap(Access::Saved(node.ctx_), this->variables);
      for (std::size_t i = 0; i < function.tensor_keys_.size(); ++i) {
        IValue& slot = node.ctx_.saved_data[function.tensor_keys_[i]];
        data.push_back(std::exchange(slot, IValue(saved[function.num_saved_variables_ + i])));
      }
      node.next_edges() = edges;
    }
    ~Restore() {
      std::swap(Access::Saved(node.ctx_), variables);
      for (std::size_t i = 0; i < data.size(); ++i) node.ctx_.saved_data[function.tensor_keys_[i]] = data[i];
      node.next_edges() = std::move(edges);
    }
    const CustomFunction& function;
    AnyCppNode& node;
    std::vector<SavedVariable> variables;
    torch::autograd::edge_list edges;
    std::vector<IValue> data;
  };
  const Restore restore(*this, node, std::move(variables), saved, edges);
  return (*node_)(std::move(grads));
}

}  // namespace ddpopt
