#include "fx_graph/node.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "base/logging.h"
#include "fx_graph/graph.h"

namespace ddpopt::fx {
namespace {

bool Contains(const std::vector<Node*>& nodes, const Node* node) { return std::find(nodes.begin(), nodes.end(), node) != nodes.end(); }

std::vector<Node*> InputNodes(const std::vector<Argument>& args, const Kwargs& kwargs) {
  std::vector<Node*> inputs;
  absl::flat_hash_set<Node*> seen;  // used once the list is long
  const auto add = [&](Node* node) {
    if (inputs.size() <= 16) {
      if (Contains(inputs, node)) return;
    } else {
      if (seen.empty()) seen.insert(inputs.begin(), inputs.end());
      if (seen.contains(node)) return;
      seen.insert(node);
    }
    inputs.push_back(node);
  };
  for (const Argument& argument : args) argument.ForEachNode(add);
  for (const auto& [name, argument] : kwargs) argument.ForEachNode(add);
  return inputs;
}

}  // namespace

const char* OpName(Op op) {
  switch (op) {
    case Op::kPlaceholder:
      return "placeholder";
    case Op::kGetAttr:
      return "get_attr";
    case Op::kCallFunction:
      return "call_function";
    case Op::kCallMethod:
      return "call_method";
    case Op::kCallModule:
      return "call_module";
    case Op::kOutput:
      return "output";
  }
  return "unknown";
}

Argument::Argument(c10::IValue constant) : kind_(constant.isNone() ? Kind::kNone : Kind::kConstant), constant_(std::move(constant)) {}

Argument Argument::List(std::vector<Argument> elements) {
  Argument argument;
  argument.kind_ = Kind::kList;
  argument.elements_ = std::move(elements);
  return argument;
}

Argument Argument::Tuple(std::vector<Argument> elements) {
  Argument argument = List(std::move(elements));
  argument.kind_ = Kind::kTuple;
  return argument;
}

Argument Argument::Dict(std::vector<Argument> keys_and_values) {
  CHECK(keys_and_values.size() % 2 == 0) << "a dict argument needs a value for each key, got " << keys_and_values.size() << " elements";
  Argument argument = List(std::move(keys_and_values));
  argument.kind_ = Kind::kDict;
  return argument;
}

Argument Argument::Slice(Argument start, Argument stop, Argument step) {
  Argument argument;
  argument.kind_ = Kind::kSlice;
  argument.elements_.reserve(3);
  argument.elements_.push_back(std::move(start));
  argument.elements_.push_back(std::move(stop));
  argument.elements_.push_back(std::move(step));
  return argument;
}

void Argument::ForEachNode(absl::FunctionRef<void(Node*)> fn) const {
  if (kind_ == Kind::kNode) fn(node_);
  for (const Argument& element : elements_) element.ForEachNode(fn);
}

Argument Argument::Map(absl::FunctionRef<Argument(Node*)> fn) const {
  if (kind_ == Kind::kNode) return fn(node_);
  if (elements_.empty()) return *this;
  Argument argument;
  argument.kind_ = kind_;
  argument.elements_.reserve(elements_.size());
  for (const Argument& element : elements_) argument.elements_.push_back(element.Map(fn));
  return argument;
}

void Node::Update(std::vector<Argument> args, Kwargs kwargs) {
  CHECK(!erased_) << "node %" << name_ << " was erased from its graph";
  std::vector<Node*> inputs = InputNodes(args, kwargs);
  for (const Node* input : inputs) {
    CHECK(input != nullptr && input->graph_ == graph_ && !input->erased_)
        << "node %" << name_ << " takes %" << (input == nullptr ? std::string("<null>") : input->name_)
        << ", which is not a live node of the same graph";
  }
  // As in torch.fx, an updated node becomes the last user of each of its inputs.
  for (Node* input : inputs_) input->users_.erase(std::find(input->users_.begin(), input->users_.end(), this));
  for (Node* input : inputs) input->users_.push_back(this);
  args_ = std::move(args);
  kwargs_ = std::move(kwargs);
  inputs_ = std::move(inputs);
  ++graph_->version_;
}

void Node::set_target(Target target) {
  target_ = std::move(target);
  ++graph_->version_;
}

void Node::set_args(std::vector<Argument> args) { Update(std::move(args), kwargs_); }

void Node::set_kwargs(Kwargs kwargs) { Update(args_, std::move(kwargs)); }

std::vector<Node*> Node::ReplaceAllUsesWith(Node* other) {
  CHECK(other != nullptr) << "node %" << name_ << " can't be replaced by a null node";
  std::vector<Node*> changed;
  if (other == this) return changed;
  for (Node* user : std::vector<Node*>(users_)) {
    if (user == other) continue;
    user->ReplaceInputWith(this, other);
    changed.push_back(user);
  }
  return changed;
}

void Node::ReplaceInputWith(Node* from, Node* to) {
  const auto replace = [from, to](Node* node) { return Argument(node == from ? to : node); };
  std::vector<Argument> args;
  args.reserve(args_.size());
  for (const Argument& argument : args_) args.push_back(argument.Map(replace));
  Kwargs kwargs;
  kwargs.reserve(kwargs_.size());
  for (const auto& [name, argument] : kwargs_) kwargs.emplace_back(name, argument.Map(replace));
  Update(std::move(args), std::move(kwargs));
}

}  // namespace ddpopt::fx
