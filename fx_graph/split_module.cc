#include "fx_graph/split_module.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace ddpopt::fx {
namespace {

// A set of nodes that remembers the order in which they came.
class OrderedNodes {
 public:
  void Add(const Node* node) {
    if (index_.emplace(node, nodes_.size()).second) nodes_.push_back(node);
  }
  const std::vector<const Node*>& nodes() const { return nodes_; }

 private:
  std::vector<const Node*> nodes_;
  absl::flat_hash_map<const Node*, std::size_t> index_;
};

struct Partition {
  std::vector<const Node*> nodes;
  OrderedNodes inputs;   // values of placeholders and other partitions
  OrderedNodes outputs;  // values used by other partitions or the outer output
  std::set<int> depends_on;
};

using Partitions = std::map<int, Partition>;

bool IsComputed(const Node* node) {
  return node->op() == Op::kCallFunction || node->op() == Op::kCallMethod || node->op() == Op::kCallModule;
}

absl::Status ShareTarget(const GraphModule& from, const Node* node, GraphModule& to) {
  const std::string& path = node->path();
  if (auto attr = from.GetAttr(path); attr.ok()) {
    return to.attrs().contains(path) ? absl::OkStatus() : to.AddAttr(path, attr->value, attr->kind);
  }
  DDPOPT_ASSIGN_OR_RETURN(GraphModule::Submodule submodule, from.GetSubmodule(path));
  return to.submodules().contains(path) ? absl::OkStatus() : to.AddSubmodule(path, std::move(submodule));
}

absl::StatusOr<std::vector<int>> TopologicalOrder(const Partitions& partitions) {
  std::map<int, std::set<int>> waiting;
  for (const auto& [id, partition] : partitions) waiting[id] = partition.depends_on;
  std::vector<int> order;
  while (!waiting.empty()) {
    auto ready = waiting.begin();
    while (ready != waiting.end() && !ready->second.empty()) ++ready;
    if (ready == waiting.end()) {
      std::vector<std::string> names;
      for (const auto& [id, unused] : waiting) names.push_back(absl::StrCat("submod_", id));
      return absl::FailedPreconditionError(
          absl::StrCat("the partitions depend on each other in a cycle, among: ", absl::StrJoin(names, ", ")));
    }
    const int id = ready->first;
    waiting.erase(ready);
    for (auto& [other, needs] : waiting) needs.erase(id);
    order.push_back(id);
  }
  return order;
}

absl::StatusOr<std::shared_ptr<GraphModule>> BuildSubmodule(const GraphModule& module, const Partition& partition) {
  auto sub = std::make_shared<GraphModule>();
  sub->meta() = module.meta();
  absl::flat_hash_map<const Node*, Node*> copies;
  for (const Node* input : partition.inputs.nodes()) {
    Node* placeholder = sub->graph().Placeholder(input->name());
    placeholder->meta() = input->meta();
    copies[input] = placeholder;
  }
  for (const Node* node : partition.nodes) {
    for (const Node* input : node->all_input_nodes()) {
      if (input->op() != Op::kGetAttr || copies.contains(input)) continue;
      DDPOPT_RETURN_IF_ERROR(ShareTarget(module, input, *sub));
      copies[input] = sub->graph().CopyNode(*input, [](Node* n) { return Argument(n); });
    }
    if (node->op() == Op::kCallModule) DDPOPT_RETURN_IF_ERROR(ShareTarget(module, node, *sub));
    copies[node] = sub->graph().CopyNode(*node, [&](Node* input) { return Argument(copies.at(input)); });
  }
  std::vector<Argument> results;
  for (const Node* output : partition.outputs.nodes()) results.emplace_back(copies.at(output));
  sub->graph().Output(results.empty() ? Argument() : results.size() == 1 ? results[0] : Argument::Tuple(std::move(results)));
  return sub;
}

}  // namespace

absl::StatusOr<std::shared_ptr<GraphModule>> SplitModule(const GraphModule& module, absl::FunctionRef<int(const Node*)> partition_of) {
  Partitions partitions;
  absl::flat_hash_map<const Node*, int> id_of;
  for (const Node* node : module.graph().nodes()) {
    if (!IsComputed(node)) continue;
    const int id = partition_of(node);
    if (id < 0) return absl::InvalidArgumentError(absl::StrCat("%", node->name(), " was given the partition ", id, "; ids must not be negative"));
    id_of[node] = id;
    partitions[id].nodes.push_back(node);
  }
  for (const Node* node : module.graph().nodes()) {
    if (!IsComputed(node) && node->op() != Op::kOutput) continue;
    const auto own = id_of.find(node);
    for (const Node* input : node->all_input_nodes()) {
      if (input->op() == Op::kGetAttr) continue;
      const auto from = id_of.find(input);
      if (own != id_of.end()) {
        if (from != id_of.end() && from->second == own->second) continue;
        partitions[own->second].inputs.Add(input);
        if (from != id_of.end()) partitions[own->second].depends_on.insert(from->second);
      }
      if (from != id_of.end()) partitions[from->second].outputs.Add(input);
    }
  }
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<int> order, TopologicalOrder(partitions));

  auto outer = std::make_shared<GraphModule>();
  outer->meta() = module.meta();
  absl::flat_hash_map<const Node*, Node*> values;
  for (const Node* node : module.graph().nodes()) {
    if (node->op() == Op::kPlaceholder) values[node] = outer->graph().CopyNode(*node, [](Node* n) { return Argument(n); });
  }
  for (const int id : order) {
    const Partition& partition = partitions.at(id);
    DDPOPT_ASSIGN_OR_RETURN(std::shared_ptr<GraphModule> sub, BuildSubmodule(module, partition));
    const std::string path = absl::StrCat("submod_", id);
    DDPOPT_RETURN_IF_ERROR(outer->AddSubmodule(path, GraphModule::Submodule{std::move(sub), nullptr}));
    std::vector<Argument> args;
    for (const Node* input : partition.inputs.nodes()) args.emplace_back(values.at(input));
    Node* call = outer->graph().CallModule(path, std::move(args));
    const std::vector<const Node*>& outputs = partition.outputs.nodes();
    if (outputs.size() == 1) {
      call->meta() = outputs[0]->meta();
      values[outputs[0]] = call;
      continue;
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      Node* item = outer->graph().CreateNode(Op::kCallFunction, OpaqueTarget{"operator.getitem"},
                                             {call, c10::IValue(static_cast<int64_t>(i))}, {}, "getitem");
      item->meta() = outputs[i]->meta();
      values[outputs[i]] = item;
    }
  }
  if (const Node* output = module.graph().output_node(); output != nullptr) {
    for (const Node* input : output->all_input_nodes()) {
      if (input->op() != Op::kGetAttr) continue;
      DDPOPT_RETURN_IF_ERROR(ShareTarget(module, input, *outer));
      values[input] = outer->graph().CopyNode(*input, [](Node* n) { return Argument(n); });
    }
    outer->graph().CopyNode(*output, [&](Node* input) { return Argument(values.at(input)); });
  }
  DDPOPT_RETURN_IF_ERROR(outer->Lint());
  return outer;
}

}  // namespace ddpopt::fx
