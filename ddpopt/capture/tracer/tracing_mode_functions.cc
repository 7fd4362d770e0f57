// The part of TracingMode that sees custom autograd::Functions.

#include <map>
#include <string>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "ddpopt/capture/tracer/custom_function.h"
#include "ddpopt/capture/tracer/tracing_mode.h"
#include "torch/csrc/autograd/functions/accumulate_grad.h"
#include "torch/csrc/autograd/variable.h"

namespace ddpopt {
namespace {

using c10::IValue;
using fx::Argument;

}  // namespace

void TracingMode::AttachFunctions(const IValue& value, const std::string& op) {
  std::vector<at::Tensor> outputs;
  value.visit([&](const IValue& part) {
    if (!part.isTensor() || !part.toTensor().defined() || !part.toTensor().requires_grad()) return false;
    const auto known = known_.find(part.toTensor().unsafeGetTensorImpl());
    if (known == known_.end() || known->second.grad_fn == part.toTensor().grad_fn().get()) return false;
    if (!CustomFunctionOf(part.toTensor()).empty()) outputs.push_back(part.toTensor());
    return false;
  });
  for (const at::Tensor& output : outputs) {
    // Another output's turn may have been this one's.
    if (known_.at(output.unsafeGetTensorImpl()).grad_fn != output.grad_fn().get()) AttachFunction(output, op);
  }
}

fx::Node* TracingMode::NodeOfEdge(const torch::autograd::Edge& edge, const std::string& function, const std::string& op) {
  if (const auto* accumulate = dynamic_cast<const torch::autograd::AccumulateGrad*>(edge.function.get())) {
    return TensorNode(accumulate->variable, op, nullptr).node();
  }
  for (const auto& [impl, known] : known_) {
    if (known.grad_fn != edge.function.get() || GradFnNow(known.fake) != known.grad_fn || known.fake.output_nr() != edge.input_nr) continue;
    return known.node;
  }
  TORCH_CHECK(false, "tracing ", op, ": an input of the custom autograd::Function ", function,
              " has been written to by it or after it, or comes from outside; the graph can't express that");
}

fx::Argument TracingMode::NodeOfSaved(const at::Tensor& saved, const std::string& function, const std::string& op) {
  if (!saved.defined()) return Argument();
  if (!IsFake(saved)) return TensorNode(saved, op, nullptr);
  if (const auto known = known_.find(saved.unsafeGetTensorImpl()); known != known_.end()) return known->second.node;
  // What autograd saves it hands out as another tensor over the same memory.
  const fx::Node* found = nullptr;
  if (const auto peers = by_storage_.find(saved.has_storage() ? saved.storage().unsafeGetStorageImpl() : nullptr); peers != by_storage_.end()) {
    for (const c10::TensorImpl* peer : peers->second) {
      const Known& known = known_.at(peer);
      const at::Tensor& fake = known.fake;
      if (fake.sizes() != saved.sizes() || fake.strides() != saved.strides() || fake.storage_offset() != saved.storage_offset() ||
          fake.scalar_type() != saved.scalar_type()) {
        continue;
      }
      if (found == nullptr || GradFnNow(fake) == GradFnNow(saved)) found = known.node;
    }
  }
  TORCH_CHECK(found != nullptr, "tracing ", op, ": the custom autograd::Function ", function, " saves a tensor of shape ", saved.sizes(),
              " that no operator of the graph made");
  return Argument(const_cast<fx::Node*>(found));
}

void TracingMode::AttachFunction(const at::Tensor& output, const std::string& op) {
  const std::shared_ptr<CustomFunction> function = std::make_shared<CustomFunction>(output);
  std::map<std::uint32_t, at::Tensor> outputs;  // the differentiable ones, by their numbers
  const void* node = output.grad_fn().get();
  for (const auto& [impl, known] : known_) {
    if (GradFnNow(known.fake) != node) continue;
    // A view that forward makes says that it requires grad if its base does, but has no history of its own.
    TORCH_CHECK(known.grad_fn == nullptr, "tracing ", op, ": the custom autograd::Function ", function->name(),
                " writes to an input that requires grad (mark_dirty), which the graph can't express");
    TORCH_CHECK(outputs.emplace(known.fake.output_nr(), known.fake).second, "tracing ", op, ": two tensors are the same output of the custom ",
                "autograd::Function ", function->name(), ", which the graph can't express");
  }
  // Where the function was called gradients were on: it would have no history else.
  if (!grad_ && inference_ == nullptr) {
    OpaqueCall("torch._C._set_grad_enabled", {IValue(true)}, "_set_grad_enabled");
    grad_ = true;
  }
  std::vector<Argument> made, inputs, saved, data;
  std::vector<std::uint32_t> numbers;
  std::vector<IValue> fakes;
  for (const auto& [number, fake] : outputs) {
    made.emplace_back(known_.at(fake.unsafeGetTensorImpl()).node);
    numbers.push_back(number);
    fakes.emplace_back(fake);
  }
  for (const torch::autograd::Edge& edge : function->inputs()) {
    inputs.push_back(edge.is_valid() ? Argument(NodeOfEdge(edge, function->name(), op)) : Argument());
  }
  for (const at::Tensor& tensor : function->saved()) saved.push_back(NodeOfSaved(tensor, function->name(), op));
  for (const auto& [key, value] : function->data()) {
    data.emplace_back(IValue(key));
    data.emplace_back(value);
  }
  function->set_output_numbers(std::move(numbers));
  function->Release();
  std::string path;
  do {
    path = absl::StrCat("custom_function_", num_functions_++);
  } while (module_->FindSubmodule(path) != nullptr);
  const absl::Status status = module_->AddSubmodule(path, {nullptr, function});
  TORCH_CHECK(status.ok(), status.ToString());
  fx::Node* call = MarkRegion(module_->graph().CallModule(
      path, {Argument::List(std::move(made)), Argument::List(std::move(inputs)), Argument::List(std::move(saved)),
             Argument(IValue(function->name())), Argument::Dict(std::move(data))}));
  call->meta().val = c10::ivalue::Tuple::create(fakes);
  RecordElements(call, fakes);
}

}  // namespace ddpopt
