#include "ddpopt/aot/recording_mode.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "ATen/core/ivalue.h"
#include "ATen/ops/empty_like.h"
#include "absl/strings/str_cat.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fx_graph/checkpoint_region.h"
#include "interpreter/tracing.h"

namespace ddpopt {
namespace {

using c10::IValue;
using fx::Argument;

// Functionalisation asks meta kernels for the shape that an in-place operator gives, on meta tensors of its own.
bool IsShapeQuestion(const IValue& value) {
  const auto is_meta = [](const at::Tensor& tensor) { return tensor.defined() && tensor.is_meta() && !IsFake(tensor); };
  if (value.isTensor()) return is_meta(value.toTensor());
  if (value.isTensorList()) {
    const auto tensors = value.toTensorList();
    return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) { return is_meta(tensor); });
  }
  return false;
}

// Results that stand for their operand: without writes, nothing tells them apart.
bool IsIdentity(absl::string_view name) { return name == "aten::detach" || name == "aten::alias" || name == "aten::lift_fresh"; }

}  // namespace

fx::Node* RecordingMode::AddPlaceholder(absl::string_view name, const at::Tensor& fake) {
  fx::Node* node = graph_->Placeholder(name);
  node->meta().val = fake;
  Remember(node, fake);
  return node;
}

fx::Node* RecordingMode::Mark(fx::Node* node) const {
  if (region_ >= 0) node->meta().custom[fx::kCheckpointRegion] = IValue(region_);
  return node;
}

void RecordingMode::Remember(fx::Node* node, const at::Tensor& fake) {
  nodes_.insert_or_assign(fake.unsafeGetTensorImpl(), node);
  kept_.push_back(fake);
}

Argument RecordingMode::NodeOf(const at::Tensor& fake, absl::string_view what) const {
  if (!fake.defined()) return Argument();
  const auto found = nodes_.find(fake.unsafeGetTensorImpl());
  TORCH_CHECK(found != nodes_.end(), std::string(what), ": takes a tensor of shape ", fake.sizes(),
              " that comes from outside of the graph, or from something that no operator is");
  return found->second;
}

Argument RecordingMode::Convert(const IValue& value, absl::string_view op) const {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.defined() && !IsFake(tensor) && tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      const DisableModesGuard real(Level::kPostAutograd);
      return Argument(IValue(tensor.item()));
    }
    return NodeOf(tensor, op);
  }
  if (value.isTensorList() || value.isOptionalTensorList()) {
    std::vector<Argument> elements;
    for (const IValue& element : value.toListRef()) elements.push_back(element.isNone() ? Argument() : Convert(element, op));
    return Argument::List(std::move(elements));
  }
  TORCH_CHECK(!value.isGenerator(), std::string(op), ": an explicit random generator can't be part of a compiled graph");
  TORCH_CHECK(!value.isStorage(), std::string(op), ": a storage as an argument can't be part of a compiled graph");
  return Argument(value);
}

void RecordingMode::Handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const auto operands = torch::jit::last(*stack, schema.arguments().size());
  if (std::any_of(operands.begin(), operands.end(), IsShapeQuestion)) {
    const DisableModesGuard off(Level::kPostAutograd);
    op.callBoxed(stack);
    return;
  }
  const std::string name = c10::toString(op.operator_name());
  if (IsIdentity(schema.name())) {
    const Argument operand = Convert(operands[0], name);
    op.callBoxed(stack);
    Remember(operand.node(), stack->back().toTensor());
    return;
  }

  if (const c10::KernelFunction* decomposition = decompositions_.Find(op); decomposition != nullptr) {
    const ModeGuard recording(shared_from_this());
    decomposition->callBoxed(op, c10::DispatchKeySet(), stack);
    return;
  }
  if (DrawInPlace(op, stack)) return;

  std::vector<Argument> args;
  fx::Kwargs kwargs;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (!argument.kwarg_only()) {
      args.push_back(Convert(operands[i], name));
    } else if (!operands[i].isNone()) {
      kwargs.emplace_back(argument.name(), Convert(operands[i], name));
    }
  }
  op.callBoxed(stack);
  const std::size_t num_returns = schema.returns().size();
  const auto results = torch::jit::last(*stack, num_returns);
  const bool any_tensor = std::any_of(results.begin(), results.end(), [](const IValue& r) { return r.isTensor() || r.isTensorList(); });
  // Questions about metadata are answered by the fakes and leave nothing to run.
  if (num_returns > 0 && !any_tensor) return;
  fx::Node* node = Mark(graph_->CallFunction(op, std::move(args), std::move(kwargs), PacketName(op)));
  if (num_returns == 1) {
    RecordResult(node, results[0]);
  } else if (num_returns > 1) {
    std::vector<IValue> elements(results.begin(), results.end());
    for (IValue& element : elements) {
      if (element.isTensor() && !element.toTensor().defined()) element = IValue();
    }
    node->meta().val = c10::ivalue::Tuple::create(elements);
    RecordElements(node, elements);
  }
}

// Functionalisation makes bernoulli.p of bernoulli_, by which dropout draws. It gives a contiguous tensor whatever its operand is, filled
// in that order, where bernoulli_ keeps the operand's strides and fills it as it lies: other numbers for the same seed.
bool RecordingMode::DrawInPlace(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const c10::OperatorHandle bernoulli = c10::Dispatcher::singleton().findSchemaOrThrow("aten::bernoulli", "p");
  static const c10::OperatorHandle bernoulli_ = c10::Dispatcher::singleton().findSchemaOrThrow("aten::bernoulli_", "float");
  static const c10::OperatorHandle empty_like = c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty_like", "");
  if (!(op == bernoulli) || (caller_ != nullptr && *caller_ == bernoulli)) return false;
  const auto operands = torch::jit::last(*stack, 3);
  const Argument self = Convert(operands[0], "aten::bernoulli_.float");
  Convert(operands[2], "aten::bernoulli_.float");  // refuses a generator
  fx::Node* fresh = Mark(graph_->CallFunction(empty_like, {self}, {}, "empty_like"));
  fx::Node* node = Mark(graph_->CallFunction(bernoulli_, {fresh, Argument(operands[1])}, {}, "bernoulli_"));
  const at::Tensor result = at::empty_like(operands[0].toTensor());
  fresh->meta().val = node->meta().val = result;
  Remember(node, result);
  torch::jit::drop(*stack, 3);
  torch::jit::push(*stack, result);
  return true;
}

void RecordingMode::RecordResult(fx::Node* node, const IValue& result) {
  node->meta().val = result;
  if (result.isTensor()) {
    if (result.toTensor().defined()) Remember(node, result.toTensor());
  } else if (result.isTensorList()) {
    const auto elements = result.toListRef();
    RecordElements(node, std::vector<IValue>(elements.begin(), elements.end()));
  }
}

void RecordingMode::RecordElements(fx::Node* node, const std::vector<IValue>& elements) {
  for (std::size_t i = 0; i < elements.size(); ++i) {
    if (!elements[i].isTensor() && !elements[i].isTensorList()) continue;
    RecordResult(Mark(graph_->CreateNode(fx::Op::kCallFunction, fx::OpaqueTarget{"operator.getitem"},
                                         {node, IValue(static_cast<int64_t>(i))}, {}, "getitem")),
                 elements[i]);
  }
}

void RecordingMode::Release() {
  nodes_.clear();
  kept_.clear();
}

}  // namespace ddpopt
