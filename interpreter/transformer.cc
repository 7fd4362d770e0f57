#include "interpreter/transformer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "c10/util/Exception.h"

namespace ddpopt {
namespace {

// The entries of a map from path to something with an `order`, in that order.
template <typename Map>
std::vector<const typename Map::value_type*> InOrder(const Map& map) {
  std::vector<const typename Map::value_type*> entries;
  entries.reserve(map.size());
  for (const auto& entry : map) entries.push_back(&entry);
  std::sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) { return a->second.order < b->second.order; });
  return entries;
}

// All but what depends on the node's value.
void CopyProvenance(const fx::NodeMeta& from, fx::NodeMeta& to) {
  to.nn_module = from.nn_module;
  to.stack_trace = from.stack_trace;
  to.nn_module_stack = from.nn_module_stack;
  to.from_node = from.from_node;
  to.custom = from.custom;
}

bool HasProvenance(const fx::NodeMeta& meta) {
  return !meta.nn_module.empty() || !meta.stack_trace.empty() || !meta.nn_module_stack.empty() || !meta.from_node.empty() || !meta.custom.empty();
}

}  // namespace

Transformer::Transformer(const fx::GraphModule& module) : module_(module) {}

absl::StatusOr<std::shared_ptr<fx::GraphModule>> Transformer::Transform() {
  if (new_module_ != nullptr) return absl::FailedPreconditionError("a Transformer transforms once");
  new_module_ = std::make_shared<fx::GraphModule>();
  for (const auto* entry : InOrder(module_.attrs())) {
    DDPOPT_RETURN_IF_ERROR(new_module_->AddAttr(entry->first, entry->second.value, entry->second.kind));
  }
  for (const auto* entry : InOrder(module_.submodules())) DDPOPT_RETURN_IF_ERROR(new_module_->AddSubmodule(entry->first, entry->second));
  new_module_->meta() = module_.meta();

  for (const fx::Node* node : module_.graph().nodes()) {
    const fx::Node* last = graph().back();
    const absl::Status status = CatchAsStatus(absl::StrCat("transforming ", node->ToString()), [&] { values_[node] = TransformNode(*node); });
    if (!status.ok()) return status;
    for (fx::Node* made = last == nullptr ? graph().front() : last->next(); made != nullptr; made = made->next()) {
      if (!HasProvenance(made->meta())) CopyProvenance(node->meta(), made->meta());
    }
  }
  DDPOPT_RETURN_IF_ERROR(Annotate(new_module_->Lint(), "the transformed graph"));
  return new_module_;
}

fx::Argument Transformer::TransformNode(const fx::Node& node) {
  const auto value_of = [&](fx::Node* input) {
    const auto value = values_.find(input);
    TORCH_CHECK(value != values_.end(), "%", input->name(), " is used before it is defined");
    return value->second;
  };
  std::vector<fx::Argument> args;
  args.reserve(node.args().size());
  for (const fx::Argument& argument : node.args()) args.push_back(argument.Map(value_of));
  fx::Kwargs kwargs;
  kwargs.reserve(node.kwargs().size());
  for (const auto& keyword : node.kwargs()) kwargs.emplace_back(std::string(keyword.first), keyword.second.Map(value_of));
  switch (node.op()) {
    case fx::Op::kPlaceholder:
      return TransformPlaceholder(node, std::move(args));
    case fx::Op::kGetAttr:
      return TransformGetAttr(node);
    case fx::Op::kCallFunction:
      return TransformCallFunction(node, std::move(args), std::move(kwargs));
    case fx::Op::kCallMethod:
      return TransformCallMethod(node, std::move(args), std::move(kwargs));
    case fx::Op::kCallModule:
      return TransformCallModule(node, std::move(args), std::move(kwargs));
    case fx::Op::kOutput: {
      TORCH_CHECK(args.size() == 1, "an output node takes one argument, not ", args.size());
      fx::Argument result = TransformOutput(node, std::move(args.front()));
      args.clear();
      args.push_back(std::move(result));
      fx::Node* output = Emit(node, std::move(args), {});
      output->meta() = node.meta();
      return output;
    }
  }
  return fx::Argument();
}

fx::Node* Transformer::Emit(const fx::Node& node, std::vector<fx::Argument> args, fx::Kwargs kwargs) {
  return graph().CreateNode(node.op(), node.target(), std::move(args), std::move(kwargs), node.name());
}

fx::Argument Transformer::TransformPlaceholder(const fx::Node& node, std::vector<fx::Argument> args) {
  fx::Node* copy = Emit(node, std::move(args), {});
  copy->meta() = node.meta();
  return copy;
}

fx::Argument Transformer::TransformGetAttr(const fx::Node& node) {
  fx::Node* copy = Emit(node, {}, {});
  copy->meta() = node.meta();
  return copy;
}

fx::Argument Transformer::TransformCallFunction(const fx::Node& node, std::vector<fx::Argument> args, fx::Kwargs kwargs) {
  return Emit(node, std::move(args), std::move(kwargs));
}

fx::Argument Transformer::TransformCallMethod(const fx::Node& node, std::vector<fx::Argument> args, fx::Kwargs kwargs) {
  return Emit(node, std::move(args), std::move(kwargs));
}

fx::Argument Transformer::TransformCallModule(const fx::Node& node, std::vector<fx::Argument> args, fx::Kwargs kwargs) {
  return Emit(node, std::move(args), std::move(kwargs));
}

fx::Argument Transformer::TransformOutput(const fx::Node& /*node*/, fx::Argument result) { return result; }

}  // namespace ddpopt
