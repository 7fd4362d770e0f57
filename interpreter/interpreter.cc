#include "interpreter/interpreter.h"

#include <exception>
#include <utility>

#include "ATen/core/Dict.h"
#include "ATen/core/List.h"
#include "ATen/core/jit_type.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "interpreter/call_operator.h"

namespace ddpopt {
namespace {

using c10::IValue;

constexpr char kGetItem[] = "operator.getitem";

IValue GetItem(const IValue& container, const IValue& key) {
  if (container.isGenericDict()) {
    const auto dict = container.toGenericDict();
    const auto found = dict.find(key);
    TORCH_CHECK(found != dict.end(), kGetItem, ": the dict has no such key");
    return found->value();
  }
  TORCH_CHECK(container.isTuple() || container.isList(), kGetItem, ": takes a tuple, list or dict, not ", container.tagKind());
  TORCH_CHECK(key.isInt(), kGetItem, ": the index must be an int, not ", key.tagKind());
  const int64_t size =
      container.isTuple() ? static_cast<int64_t>(container.toTupleRef().size()) : static_cast<int64_t>(container.toList().size());
  const int64_t index = key.toInt() < 0 ? key.toInt() + size : key.toInt();
  TORCH_CHECK_INDEX(index >= 0 && index < size, kGetItem, ": index ", key.toInt(), " is out of range for ", size, " elements");
  if (container.isTuple()) return container.toTupleRef().elements()[index];
  return container.toList().get(index);
}

}  // namespace

Interpreter::Interpreter(const fx::GraphModule& module) : module_(module) {
  // The last node to take a value, found from the end.
  absl::flat_hash_set<const fx::Node*> seen;
  for (const fx::Node* node = module.graph().back(); node != nullptr; node = node->prev()) {
    for (const fx::Node* input : node->all_input_nodes()) {
      if (seen.insert(input).second) last_uses_[node].push_back(input);
    }
  }
}

IValue Interpreter::Run(Values inputs) {
  std::size_t placeholders = 0;
  for (const fx::Node* node : module_.graph().nodes()) placeholders += node->op() == fx::Op::kPlaceholder;
  TORCH_CHECK(inputs.size() <= placeholders, "the graph takes ", placeholders, " inputs, but ", inputs.size(), " were given");

  // Values are let go also when a node throws.
  struct Cleanup {
    Interpreter* self;
    ~Cleanup() {
      self->env_.clear();
      self->inputs_.clear();
      self->next_input_ = 0;
    }
  } cleanup{this};
  env_.clear();
  inputs_ = std::move(inputs);
  next_input_ = 0;

  for (const fx::Node* node : module_.graph().nodes()) {
    IValue value;
    try {
      value = RunNode(*node);
    } catch (c10::Error& error) {
      error.add_context(absl::StrCat("While executing ", node->ToString()));
      throw;
    } catch (const std::exception& error) {
      TORCH_CHECK(false, error.what(), " (While executing ", node->ToString(), ")");
    }
    if (node->op() == fx::Op::kOutput) return value;
    // Also when an override of RunNode didn't take them.
    if (const auto last = last_uses_.find(node); last != last_uses_.end()) {
      for (const fx::Node* input : last->second) env_.erase(input);
    }
    if (!node->users().empty()) env_[node] = std::move(value);
  }
  return IValue();
}

IValue Interpreter::RunNode(const fx::Node& node) {
  if (node.op() == fx::Op::kPlaceholder) return RunPlaceholder(node);
  if (node.op() == fx::Op::kGetAttr) return RunGetAttr(node);

  Values args;
  args.reserve(node.args().size());
  for (const fx::Argument& argument : node.args()) args.push_back(Evaluate(argument));
  NamedValues kwargs;
  kwargs.reserve(node.kwargs().size());
  for (const auto& [name, argument] : node.kwargs()) kwargs.emplace_back(name, Evaluate(argument));
  // From here the arguments alone hold values that are used for the last time, so that what is called can free them early.
  if (const auto last = last_uses_.find(&node); last != last_uses_.end()) {
    for (const fx::Node* input : last->second) env_.erase(input);
  }

  switch (node.op()) {
    case fx::Op::kCallFunction:
      return RunCallFunction(node, std::move(args), std::move(kwargs));
    case fx::Op::kCallMethod:
      return RunCallMethod(node, std::move(args), std::move(kwargs));
    case fx::Op::kCallModule:
      return RunCallModule(node, std::move(args), std::move(kwargs));
    default:
      TORCH_CHECK(args.size() == 1, "an output node takes one argument, not ", args.size());
      return RunOutput(node, std::move(args.front()));
  }
}

IValue Interpreter::RunPlaceholder(const fx::Node& node) {
  if (next_input_ < inputs_.size()) return std::move(inputs_[next_input_++]);
  // As in torch.fx, a placeholder's argument is its default.
  TORCH_CHECK(!node.args().empty(), "no value was given for input '", node.path(), "' (", inputs_.size(), " were given)");
  return Evaluate(node.args().front());
}

IValue Interpreter::RunGetAttr(const fx::Node& node) {
  absl::StatusOr<fx::GraphModule::Attr> attr = module_.GetAttr(node.path());
  TORCH_CHECK(attr.ok(), std::string(attr.status().message()));
  return std::move(attr->value);
}

IValue Interpreter::RunCallFunction(const fx::Node& node, Values args, NamedValues kwargs) {
  if (node.is_operator()) return CallOperator(node.operator_handle(), std::move(args), std::move(kwargs));
  const auto* opaque = std::get_if<fx::OpaqueTarget>(&node.target());
  if (opaque != nullptr && opaque->text == kGetItem) {
    TORCH_CHECK(args.size() == 2 && kwargs.empty(), kGetItem, ": takes two positional arguments");
    return GetItem(args[0], args[1]);
  }
  const char* kind = opaque != nullptr                                              ? "opaque"
                     : std::holds_alternative<fx::HigherOrderTarget>(node.target()) ? "higher-order"
                                                                                    : "unknown";
  TORCH_CHECK(false, "cannot execute the ", kind, " target '", fx::TargetToString(node.target()), "'");
}

IValue Interpreter::RunCallMethod(const fx::Node& node, Values /*args*/, NamedValues /*kwargs*/) {
  TORCH_CHECK(false, "cannot execute the method target '", fx::TargetToString(node.target()), "'");
}

IValue Interpreter::RunCallModule(const fx::Node& node, Values args, NamedValues kwargs) {
  TORCH_CHECK(kwargs.empty(), "call_module '", node.path(), "': keyword arguments are not supported, but '", kwargs.front().first,
              "' was given");
  absl::StatusOr<fx::GraphModule::Submodule> submodule = module_.GetSubmodule(node.path());
  TORCH_CHECK(submodule.ok(), std::string(submodule.status().message()));
  if (submodule->callable != nullptr) return submodule->callable->Call(std::move(args));
  TORCH_CHECK(submodule->graph_module != nullptr, "submodule '", node.path(), "' has neither a graph nor a callable");
  return CallGraphModule(*submodule->graph_module, std::move(args));
}

IValue Interpreter::RunOutput(const fx::Node& /*node*/, IValue value) { return value; }

const IValue& Interpreter::ValueOf(const fx::Node* node) const {
  const auto found = env_.find(node);
  TORCH_CHECK(found != env_.end(), "the value of %", node->name(), " is not there: not yet computed, or freed");
  return found->second;
}

IValue Interpreter::Evaluate(const fx::Argument& argument) const {
  switch (argument.kind()) {
    case fx::Argument::Kind::kNone:
      return IValue();
    case fx::Argument::Kind::kNode:
      return ValueOf(argument.node());
    case fx::Argument::Kind::kConstant:
      return argument.constant();
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
      const std::vector<fx::Argument>& elements = argument.elements();
      for (std::size_t i = 0; i + 1 < elements.size(); i += 2) dict.insert_or_assign(Evaluate(elements[i]), Evaluate(elements[i + 1]));
      return dict;
    }
    case fx::Argument::Kind::kSlice:
      TORCH_CHECK(false, "cannot execute the slice argument ", argument.ToString());
  }
  return IValue();
}

IValue CallGraphModule(const fx::GraphModule& module, std::vector<IValue> args) { return Interpreter(module).Run(std::move(args)); }

}  // namespace ddpopt
