#include "interpreter/interpreter.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "ATen/core/Dict.h"
#include "ATen/core/List.h"
#include "ATen/core/jit_type.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "interpreter/call_operator.h"
#include "interpreter/get_item.h"
#include "interpreter/higher_order.h"
#include "interpreter/mode_scopes.h"
#include "interpreter/node_context.h"
#include "interpreter/plan.h"
#include "interpreter/scalar_functions.h"

namespace ddpopt {
namespace {

using c10::IValue;
using Submodule = fx::GraphModule::Submodule;

// A submodule as a value, for higher-order operators.
struct SubmoduleHolder : torch::CustomClassHolder {
  explicit SubmoduleHolder(Submodule held) : submodule(std::move(held)) {}
  Submodule submodule;
};

// For an argument that the schema wants to be Tensor[]: the list, without a detour over a generic one. None if an element is no tensor.
template <typename Fn>
IValue TensorList(const c10::TypePtr& type, const fx::Argument& argument, Fn&& value_of) {
  if (argument.kind() != fx::Argument::Kind::kList && argument.kind() != fx::Argument::Kind::kTuple) return IValue();
  if (type->kind() != c10::TypeKind::ListType || type->containedType(0)->kind() != c10::TypeKind::TensorType) return IValue();
  c10::List<at::Tensor> list;
  list.reserve(argument.elements().size());
  for (const fx::Argument& element : argument.elements()) {
    if (!element.is_node()) return IValue();
    const IValue& value = value_of(element.node());
    if (!value.isTensor()) return IValue();
    list.push_back(value.toTensor());
  }
  return list;
}

}  // namespace

Interpreter::Interpreter(const fx::GraphModule& module, InterpreterOptions options) : module_(module), options_(options) {}

Interpreter::~Interpreter() = default;

void Interpreter::UsePlan() {
  if (plan_ == nullptr || plan_version_ != module_.graph().version()) {
    plan_version_ = module_.graph().version();
    plan_ = PlanOf(module_.graph());
  }
  Clear();
  values_.resize(plan_->steps.size());
  present_.assign(plan_->steps.size(), 0);
}

void Interpreter::Clear() {
  values_.clear();
  present_.clear();
  stack_.clear();
  inputs_.clear();
  next_input_ = 0;
  current_ = 0;
}

IValue Interpreter::Run(Values inputs) { return Run(std::move(inputs), Environment()); }

IValue Interpreter::Run(Values inputs, const Environment& initial) {
  UsePlan();
  std::size_t placeholders = plan_->placeholders;
  for (const auto& [node, value] : initial) {
    const Plan::Slot slot = plan_->SlotOf(node);
    TORCH_CHECK(slot != Plan::kNoSlot, "an initial value was given for a node that is not in the graph");
    values_[slot] = value;
    present_[slot] = 1;
    placeholders -= node->op() == fx::Op::kPlaceholder;
  }
  bool takes_all = false;
  for (std::size_t slot = 0; slot < plan_->steps.size() && plan_->steps[slot].code == Plan::Code::kPlaceholder; ++slot) {
    takes_all |= absl::StartsWith(plan_->steps[slot].node->path(), "*");
  }
  TORCH_CHECK(takes_all || inputs.size() <= placeholders, "the graph takes ", placeholders, " inputs, but ", inputs.size(), " were given");
  inputs_ = std::move(inputs);
  return RunAll();
}

IValue Interpreter::RunBoxed(Values& inputs) {
  UsePlan();
  TORCH_CHECK(inputs.size() == plan_->placeholders, "the graph takes ", plan_->placeholders, " inputs, but ", inputs.size(), " were given");
  inputs_ = std::move(inputs);
  inputs.clear();
  return RunAll();
}

IValue Interpreter::RunAll() {
  // Values are let go and modes put back also when a node throws.
  struct Cleanup {
    Interpreter* self;
    bool keep;
    ~Cleanup() {
      self->scopes_.reset();
      self->inputs_.clear();
      self->stack_.clear();
      if (!keep) self->Clear();
    }
  } cleanup{this, false};

  const std::shared_ptr<const Plan> plan = plan_;
  const auto size = static_cast<std::uint32_t>(plan->steps.size());
  for (std::uint32_t slot = 0; slot < size; ++slot) {
    const Plan::Step& step = plan->steps[slot];
    if (present_[slot]) {  // the caller's
      if (step.code == Plan::Code::kOutput) return std::move(values_[slot]);
      FreeLastUses(slot);
      if (!step.is_used && options_.garbage_collect_values) values_[slot] = IValue();
      continue;
    }
    current_ = slot;
    IValue value;
    try {
      value = RunNode(*step.node);
    } catch (c10::Error& error) {
      error.add_context(NodeContext(*step.node));
      throw;
    } catch (const std::exception& error) {
      TORCH_CHECK(false, error.what(), " (", NodeContext(*step.node), ")");
    } catch (...) {
      TORCH_CHECK(false, "an exception of unknown type (", NodeContext(*step.node), ")");
    }
    // Also when an override didn't take them.
    FreeLastUses(slot);
    if (step.code == Plan::Code::kOutput) {
      cleanup.keep = !options_.garbage_collect_values;
      if (cleanup.keep) {
        values_[slot] = value;
        present_[slot] = 1;
      }
      return value;
    }
    if (step.is_used || !options_.garbage_collect_values) {
      values_[slot] = std::move(value);
      present_[slot] = 1;
    }
  }
  cleanup.keep = !options_.garbage_collect_values;
  return IValue();
}

void Interpreter::FreeLastUses(std::uint32_t slot) {
  if (!options_.garbage_collect_values) return;
  const Plan::Step& step = plan_->steps[slot];
  for (std::uint32_t i = 0; i < step.free_count; ++i) {
    const Plan::Slot freed = plan_->frees[step.first_free + i];
    values_[freed] = IValue();
    present_[freed] = 0;
  }
}

std::uint32_t Interpreter::SlotOf(const fx::Node& node) const {
  if (plan_ != nullptr && current_ < plan_->steps.size() && plan_->steps[current_].node == &node) return current_;
  const Plan::Slot slot = plan_ == nullptr ? Plan::kNoSlot : plan_->SlotOf(&node);
  TORCH_CHECK(slot != Plan::kNoSlot, "%", node.name(), " is not a node of the graph that runs");
  return slot;
}

IValue Interpreter::RunNode(const fx::Node& node) {
  switch (node.op()) {
    case fx::Op::kPlaceholder:
      return RunPlaceholder(node);
    case fx::Op::kGetAttr:
      return RunGetAttr(node);
    case fx::Op::kCallFunction: {
      Arguments arguments(*this, node);
      return RunCallFunction(node, arguments);
    }
    case fx::Op::kCallMethod: {
      Arguments arguments(*this, node);
      return RunCallMethod(node, arguments);
    }
    case fx::Op::kCallModule: {
      Arguments arguments(*this, node);
      return RunCallModule(node, arguments);
    }
    case fx::Op::kOutput: {
      Arguments arguments(*this, node);
      TORCH_CHECK(arguments.args().size() == 1, "an output node takes one argument, not ", arguments.args().size());
      return RunOutput(node, std::move(arguments.args().front()));
    }
  }
  return IValue();
}

Interpreter::Values& Interpreter::Arguments::args() {
  if (!gathered_) Gather();
  return args_;
}

Interpreter::NamedValues& Interpreter::Arguments::kwargs() {
  if (!gathered_) Gather();
  return kwargs_;
}

void Interpreter::Arguments::Gather() {
  gathered_ = true;
  args_.reserve(node_.args().size());
  for (const fx::Argument& argument : node_.args()) args_.push_back(interpreter_.Evaluate(argument));
  kwargs_.reserve(node_.kwargs().size());
  for (const auto& keyword : node_.kwargs()) kwargs_.emplace_back(std::string(keyword.first), interpreter_.Evaluate(keyword.second));
  // From here the arguments alone hold values that are used for the last time, so that what is called can free them early.
  interpreter_.FreeLastUses(interpreter_.SlotOf(node_));
}

IValue Interpreter::RunPlaceholder(const fx::Node& node) {
  if (absl::StartsWith(node.path(), "*")) {
    c10::impl::GenericList rest(c10::AnyType::get());
    while (next_input_ < inputs_.size()) rest.push_back(std::move(inputs_[next_input_++]));
    return rest;
  }
  if (next_input_ < inputs_.size()) return std::move(inputs_[next_input_++]);
  // As in torch.fx, a placeholder's argument is its default.
  TORCH_CHECK(!node.args().empty(), "no value was given for input '", node.path(), "' (", inputs_.size(), " were given)");
  return Evaluate(node.args().front());
}

IValue Interpreter::RunGetAttr(const fx::Node& node) {
  if (const fx::GraphModule::Attr* const attr = module_.FindAttr(node.path()); attr != nullptr) return attr->value;
  const Submodule* const submodule = module_.FindSubmodule(node.path());
  TORCH_CHECK(submodule != nullptr, std::string(module_.GetAttr(node.path()).status().message()));
  return IValue::make_capsule(c10::make_intrusive<SubmoduleHolder>(*submodule));
}

IValue Interpreter::RunOperator(const fx::Node& node) {
  const Plan::Step& step = plan_->steps[current_];
  const c10::OperatorHandle& op = node.operator_handle();
  const bool collect = options_.garbage_collect_values;
  stack_.clear();
  for (std::uint32_t i = 0; i < step.source_count; ++i) {
    const Plan::Source source = plan_->sources[step.first_source + i];
    switch (source.kind) {
      case Plan::Source::Kind::kConstant:
        stack_.push_back(plan_->constants[source.index]);
        break;
      case Plan::Source::Kind::kCopy:
      case Plan::Source::Kind::kMove: {
        IValue& value = values_[source.index];
        const bool fits = (source.takes_tensor && value.isTensor()) || (source.takes_none && value.isNone());
        if (fits && collect && source.kind == Plan::Source::Kind::kMove) {
          stack_.push_back(std::move(value));
        } else if (fits) {
          stack_.push_back(value);
        } else {
          stack_.push_back(ConvertArgument(op, i, value));
        }
        break;
      }
      case Plan::Source::Kind::kNested: {
        const fx::Argument& argument = *plan_->arguments[source.index];
        const auto value_of = [this](const fx::Node* input) -> const IValue& { return ValueOf(input); };
        IValue list = TensorList(op.schema().arguments()[i].type(), argument, value_of);
        stack_.push_back(list.isNone() ? ConvertArgument(op, i, Evaluate(argument)) : std::move(list));
        break;
      }
    }
  }
  FreeLastUses(current_);
  op.callBoxed(stack_);
  return TakeResults(stack_);
}

IValue Interpreter::RunCallFunction(const fx::Node& node, Arguments& arguments) {
  const bool untouched = !arguments.gathered_ && plan_->steps[current_].node == &node;
  if (node.is_operator()) {
    if (untouched && plan_->steps[current_].code == Plan::Code::kOperator) return RunOperator(node);
    return CallOperator(node.operator_handle(), std::move(arguments.args()), std::move(arguments.kwargs()));
  }
  if (IsGetItem(node.target())) {
    if (untouched && plan_->steps[current_].code == Plan::Code::kGetItem) {
      const Plan::Step& step = plan_->steps[current_];
      return GetItem(values_[step.container], plan_->constants[step.key]);
    }
    TORCH_CHECK(arguments.args().size() == 2 && arguments.kwargs().empty(), "operator.getitem: takes two positional arguments");
    return GetItem(arguments.args()[0], arguments.args()[1]);
  }
  if (const auto* higher_order = std::get_if<fx::HigherOrderTarget>(&node.target())) return RunHigherOrder(higher_order->name, arguments);
  if (const auto* opaque = std::get_if<fx::OpaqueTarget>(&node.target())) {
    if (const auto function = ModeScopes::Find(opaque->text)) {
      TORCH_CHECK(arguments.kwargs().empty(), opaque->text, ": takes positional arguments alone, but '", arguments.kwargs().front().first,
                  "' was given by keyword");
      if (scopes_ == nullptr) scopes_ = std::make_unique<ModeScopes>();
      return scopes_->Run(*function, arguments.args());
    }
    if (const ScalarFunction* function = FindScalarFunction(opaque->text)) {
      TORCH_CHECK(arguments.kwargs().empty(), opaque->text, ": takes positional arguments alone, but '", arguments.kwargs().front().first,
                  "' was given by keyword");
      return CallScalarFunction(*function, arguments.args());
    }
  }
  TORCH_CHECK(false, "cannot execute the opaque target '", fx::TargetToString(node.target()), "'");
}

IValue Interpreter::RunCallMethod(const fx::Node& node, Arguments& /*arguments*/) {
  TORCH_CHECK(false, "cannot execute the method target '", fx::TargetToString(node.target()), "'");
}

IValue Interpreter::RunCallModule(const fx::Node& node, Arguments& arguments) {
  absl::StatusOr<Submodule> submodule = module_.GetSubmodule(node.path());
  TORCH_CHECK(submodule.ok(), std::string(submodule.status().message()));
  if (arguments.kwargs().empty()) return CallSubmodule(*submodule, std::move(arguments.args()));
  TORCH_CHECK(submodule->callable == nullptr && submodule->graph_module != nullptr, "call_module '", node.path(),
              "': keyword arguments are not supported, but '", arguments.kwargs().front().first, "' was given");
  return CallGraphModule(*submodule->graph_module, BindKeywords(node, submodule->graph_module->graph(), arguments));
}

// By the names of the callee's placeholders. One that isn't given needs its default.
Interpreter::Values Interpreter::BindKeywords(const fx::Node& node, const fx::Graph& callee, Arguments& arguments) const {
  NamedValues& kwargs = arguments.kwargs();
  Values& args = arguments.args();
  Values bound;
  std::size_t position = 0;
  for (const fx::Node* input : callee.nodes()) {
    if (input->op() != fx::Op::kPlaceholder) continue;
    const auto keyword = std::find_if(kwargs.begin(), kwargs.end(), [&](const auto& named) { return named.first == input->path(); });
    if (position < args.size()) {
      TORCH_CHECK(keyword == kwargs.end(), "call_module '", node.path(), "': input '", input->path(), "' was given twice, by position and by keyword");
      bound.push_back(std::move(args[position]));
    } else if (keyword != kwargs.end()) {
      bound.push_back(std::move(keyword->second));
    } else {
      TORCH_CHECK(!input->args().empty(), "call_module '", node.path(), "': no value was given for input '", input->path(), "'");
      bound.push_back(Evaluate(input->args().front()));
    }
    ++position;
  }
  TORCH_CHECK(position >= args.size(), "call_module '", node.path(), "': the graph takes ", position, " inputs, but ", args.size(), " were given");
  for (const auto& [name, value] : kwargs) {
    bool known = false;
    for (const fx::Node* input : callee.nodes()) known |= input->op() == fx::Op::kPlaceholder && name == input->path();
    TORCH_CHECK(known, "call_module '", node.path(), "': the graph has no input '", name, "'");
  }
  args.clear();
  kwargs.clear();
  return bound;
}

IValue Interpreter::RunOutput(const fx::Node& /*node*/, IValue value) { return value; }

Submodule Interpreter::SubmoduleOf(const IValue& value) {
  TORCH_CHECK(value.isCapsule(), "a higher-order operator takes a nested graph here, not ", value.tagKind());
  auto* holder = dynamic_cast<SubmoduleHolder*>(value.toCapsule().get());
  TORCH_CHECK(holder != nullptr, "a higher-order operator takes a nested graph here, not a foreign capsule");
  return holder->submodule;
}

const IValue& Interpreter::ValueOf(const fx::Node* node) const {
  const std::uint32_t slot = SlotOf(*node);
  TORCH_CHECK(slot < present_.size() && present_[slot], "the value of %", node->name(), " is not there: not yet computed, or freed");
  return values_[slot];
}

IValue Interpreter::Evaluate(const fx::Argument& argument) const {
  switch (argument.kind()) {
    case fx::Argument::Kind::kNone:
      return IValue();
    case fx::Argument::Kind::kNode:
      return ValueOf(argument.node());
    case fx::Argument::Kind::kConstant:
      return ConstantValue(argument.constant());
    case fx::Argument::Kind::kList: {
      c10::impl::GenericList list(c10::AnyType::get());
      list.reserve(argument.elements().size());
      for (const fx::Argument& element : argument.elements()) list.push_back(Evaluate(element));
      return list;
    }
    case fx::Argument::Kind::kTuple: {
      std::vector<IValue> elements;
      elements.reserve(argument.elements().size());
      for (const fx::Argument& element : argument.elements()) elements.push_back(Evaluate(element));
      return c10::ivalue::Tuple::create(std::move(elements));
    }
    case fx::Argument::Kind::kDict: {
      c10::impl::GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
      const auto& elements = argument.elements();
      for (std::size_t i = 0; i + 1 < elements.size(); i += 2) dict.insert_or_assign(Evaluate(elements[i]), Evaluate(elements[i + 1]));
      return dict;
    }
    case fx::Argument::Kind::kSlice:
      TORCH_CHECK(false, "cannot execute the slice argument ", argument.ToString());
  }
  return IValue();
}

bool CanExecute(const fx::Node& node) {
  if (node.op() == fx::Op::kCallMethod) return false;
  if (const auto* opaque = std::get_if<fx::OpaqueTarget>(&node.target())) {
    if (IsGetItem(node.target()) || ModeScopes::Find(opaque->text).has_value()) return true;
    if (FindScalarFunction(opaque->text) == nullptr) return false;
    bool numbers = true;  // as far as is known
    for (const fx::Node* input : node.all_input_nodes()) numbers &= !input->has_meta() || !input->meta().val.isTensor();
    return numbers;
  }
  const auto* higher_order = std::get_if<fx::HigherOrderTarget>(&node.target());
  return higher_order == nullptr || CanCallHigherOrder(higher_order->name);
}

IValue CallGraphModule(const fx::GraphModule& module, std::vector<IValue> args) { return Interpreter(module).Run(std::move(args)); }

IValue CallSubmodule(const Submodule& submodule, std::vector<IValue> args) {
  if (submodule.callable != nullptr) return submodule.callable->Call(std::move(args));
  TORCH_CHECK(submodule.graph_module != nullptr, "the submodule has neither a graph nor a callable");
  return CallGraphModule(*submodule.graph_module, std::move(args));
}

}  // namespace ddpopt
