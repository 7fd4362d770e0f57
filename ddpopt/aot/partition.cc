#include "ddpopt/aot/partition.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "ddpopt/aot/choose_saved.h"
#include "ddpopt/aot/joint_values.h"
#include "fx_graph/graph.h"
#include "fx_graph/passes/dead_code.h"

namespace ddpopt {
namespace {

using Saved = PartitionedGraph::Saved;

const c10::StorageImpl* MemoryOf(const fx::Node* node) {
  if (!node->has_meta() || !node->meta().val.isTensor() || !node->meta().val.toTensor().has_storage()) return nullptr;
  return node->meta().val.toTensor().storage().unsafeGetStorageImpl();
}

std::string Describe(const fx::Node* node) {
  std::string text = fx::TargetToString(node->target());
  // An element of an operator's result.
  if (!node->is_operator() && !node->args().empty() && node->args()[0].is_node()) {
    text = absl::StrCat(fx::TargetToString(node->args()[0].node()->target()), "[", node->args()[1].constant().toInt(), "]");
  }
  if (!node->has_meta() || !node->meta().val.isTensor()) return text;
  const at::Tensor& fake = node->meta().val.toTensor();
  return absl::StrCat(text, " ", c10::toString(fake.scalar_type()), "[", absl::StrJoin(fake.sizes(), ", "), "]");
}

// What these nodes of a graph compute of the results.
absl::StatusOr<std::shared_ptr<fx::GraphModule>> Copy(const std::vector<fx::Node*>& nodes, const fx::Graph& graph,
                                                      const std::vector<fx::Argument>& results) {
  auto module = std::make_shared<fx::GraphModule>();
  fx::NodeTable<fx::Node*> copies(graph);
  const auto map = [&](fx::Node* node) -> fx::Argument { return copies.at(node); };
  for (fx::Node* node : nodes) copies[node] = module->graph().CopyNode(*node, map);
  std::vector<fx::Argument> mapped;
  for (const fx::Argument& result : results) mapped.push_back(result.Map(map));
  module->graph().Output(fx::Argument::Tuple(std::move(mapped)));
  DDPOPT_RETURN_IF_ERROR(fx::EliminateDeadCode(*module).status());
  DDPOPT_RETURN_IF_ERROR(module->Lint());
  return module;
}

class Cutter {
 public:
  Cutter(const JointValues& values, const SavedChoice& choice)
      : values_(values), choice_(choice), graph_(values.graph()), emitted_(graph_) {}

  absl::StatusOr<PartitionedGraph> Run() {
    DDPOPT_RETURN_IF_ERROR(Order());
    DDPOPT_RETURN_IF_ERROR(Forward());
    DDPOPT_RETURN_IF_ERROR(Backward());
    parts_.num_intermediates = static_cast<int>(intermediates_.size());
    parts_.intermediate_bytes = choice_.bytes;
    Report();
    return std::move(parts_);
  }

 private:
  // The backward's nodes in their order, each after what it needs of the forward's.
  absl::Status Order() {
    for (fx::Node* node : graph_.nodes()) {
      if (node->op() == fx::Op::kOutput || !values_.is_backward(node)) continue;
      if (node->op() == fx::Op::kPlaceholder) {
        emitted_[node] = true;
        tangents_.push_back(node);
        continue;
      }
      DDPOPT_RETURN_IF_ERROR(Emit(node));
    }
    for (std::size_t i = values_.num_forward_results(); i < values_.results().size(); ++i) {
      if (fx::Node* node = values_.results()[i].node(); node != nullptr) DDPOPT_RETURN_IF_ERROR(Emit(node));
    }
    return absl::OkStatus();
  }

  absl::Status Emit(fx::Node* node) {
    std::vector<std::pair<fx::Node*, std::size_t>> open = {{node, 0}};
    while (!open.empty()) {
      auto& [next, input] = open.back();
      if (input == 0) {
        if (emitted_.at(next)) {
          open.pop_back();
          continue;
        }
        if (!values_.is_backward(next) && choice_.saved.at(next)) {
          emitted_[next] = true;
          DDPOPT_RETURN_IF_ERROR(Save(next));
          open.pop_back();
          continue;
        }
        if (next->op() == fx::Op::kPlaceholder) {
          return absl::InternalError(absl::StrCat("the backward asks for %", std::string(next->name()), ", which isn't saved"));
        }
      }
      const auto inputs = next->all_input_nodes();
      if (input < inputs.size()) {
        fx::Node* operand = inputs[input++];
        open.emplace_back(operand, 0);
        continue;
      }
      if (!emitted_.at(next)) order_.push_back(next);
      emitted_[next] = true;
      open.pop_back();
    }
    return absl::OkStatus();
  }

  absl::Status Save(fx::Node* node) {
    saved_.push_back(node);
    const JointValue& value = values_[node];
    const JointGraph& joint = values_.joint();
    if (value.kind == JointValue::Kind::kPrimal) {
      // Autograd refuses to go backward through what was written to since, so no backward asks for it.
      if (std::find(joint.updates.begin(), joint.updates.end(), value.index) != joint.updates.end()) {
        return absl::InternalError(
            absl::StrCat("the backward asks for the old content of primal ", value.index, ", which the forward writes to"));
      }
      parts_.saved.push_back({Saved::Kind::kPrimal, value.index});
      return absl::OkStatus();
    }
    int sharing = -1;
    for (int i = 0; i < joint.num_values; ++i) {
      const fx::Node* result = values_.results()[i].node();
      if (result == node) {
        parts_.saved.push_back({Saved::Kind::kValue, i});
        return absl::OkStatus();
      }
      if (sharing < 0 && MemoryOf(result) != nullptr && MemoryOf(result) == MemoryOf(node)) sharing = i;
    }
    parts_.saved.push_back({Saved::Kind::kIntermediate, static_cast<int>(intermediates_.size()), sharing});
    intermediates_.push_back(node);
    return absl::OkStatus();
  }

  absl::Status Forward() {
    std::vector<fx::Argument> results(values_.results().begin(), values_.results().begin() + values_.num_forward_results());
    for (fx::Node* node : intermediates_) results.emplace_back(node);
    DDPOPT_ASSIGN_OR_RETURN(parts_.forward, Copy(values_.forward(), graph_, results));
    return absl::OkStatus();
  }

  absl::Status Backward() {
    parts_.backward = std::make_shared<fx::GraphModule>();
    fx::Graph& graph = parts_.backward->graph();
    fx::NodeTable<fx::Node*> copies(graph_);
    const auto map = [&](fx::Node* node) -> fx::Argument { return copies.at(node); };
    for (fx::Node* node : saved_) {
      fx::Node* placeholder = graph.Placeholder(node->name());
      placeholder->meta() = fx::CopyMeta(node->meta());
      copies[node] = placeholder;
    }
    for (fx::Node* node : tangents_) copies[node] = graph.CopyNode(*node, map);
    for (fx::Node* node : order_) copies[node] = graph.CopyNode(*node, map);
    std::vector<fx::Argument> results;
    for (std::size_t i = values_.num_forward_results(); i < values_.results().size(); ++i) results.push_back(values_.results()[i].Map(map));
    graph.Output(fx::Argument::Tuple(std::move(results)));
    DDPOPT_RETURN_IF_ERROR(fx::EliminateDeadCode(*parts_.backward).status());
    return parts_.backward->Lint();
  }

  void Report() {
    PartitionReport& report = parts_.report;
    report.saved_bytes = choice_.bytes;
    for (const fx::Node* node : intermediates_) report.saved.push_back({std::string(node->name()), Describe(node), values_[node].bytes});
    std::stable_sort(report.saved.begin(), report.saved.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
    for (const fx::Node* node : order_) {
      const JointValue& value = values_[node];
      if (value.kind != JointValue::Kind::kTensor && value.kind != JointValue::Kind::kTuple) continue;
      if (!node->is_operator()) continue;  // an element of one that is
      report.recomputed.push_back({std::string(node->name()), Describe(node), value.flops});
      report.recomputed_flops += value.flops;
      report.recomputed_seconds += value.seconds;
    }
  }

  const JointValues& values_;
  const SavedChoice& choice_;
  const fx::Graph& graph_;
  fx::NodeTable<std::uint8_t> emitted_;
  std::vector<fx::Node*> tangents_;
  std::vector<fx::Node*> saved_;  // in the order of the backward's placeholders
  std::vector<fx::Node*> order_;  // of the backward's operators, those computed again among them
  std::vector<fx::Node*> intermediates_;
  PartitionedGraph parts_;
};

}  // namespace

std::string PartitionReport::ToString() const {
  const auto line = [](const std::string& node, const std::string& what, double number, const char* unit) {
    char text[320];
    std::snprintf(text, sizeof(text), "  %-28s %-56s %14.0f %s\n", node.c_str(), what.c_str(), number, unit);
    return std::string(text);
  };
  std::string text =
      absl::StrCat(saved.size(), " intermediates are saved, ", saved_bytes, " bytes (the default partition: ", default_bytes, ")\n");
  for (const Value& value : saved) text += line(value.node, value.what, static_cast<double>(value.bytes), "bytes");
  absl::StrAppend(&text, recomputed.size(), " operators are run again, ", recomputed_flops, " FLOPs\n");
  for (const Recomputed& value : recomputed) text += line(value.node, value.what, value.flops, "FLOPs");
  return text;
}

absl::StatusOr<PartitionedGraph> Partition(const JointGraph& joint, const PartitionOptions& options) {
  const JointValues values(joint);
  DDPOPT_RETURN_IF_ERROR(values.Check());
  DDPOPT_ASSIGN_OR_RETURN(const SavedChoice choice, ChooseSaved(values, options));
  DDPOPT_ASSIGN_OR_RETURN(PartitionedGraph parts, Cutter(values, choice).Run());
  parts.report.default_bytes = choice.bytes;
  if (options.kind != PartitionKind::kDefault) {
    DDPOPT_ASSIGN_OR_RETURN(const SavedChoice standard, ChooseSaved(values, {}));
    parts.report.default_bytes = standard.bytes;
  }
  return parts;
}

absl::StatusOr<std::shared_ptr<fx::GraphModule>> InferenceGraph(const JointGraph& joint, const PartitionedGraph& parts) {
  const fx::Graph& forward = parts.forward->graph();
  std::vector<fx::Node*> nodes;
  for (fx::Node* node : forward.nodes()) {
    if (node->op() != fx::Op::kOutput) nodes.push_back(node);
  }
  const auto& results = forward.output_node()->args().front().elements();
  const auto size = static_cast<std::ptrdiff_t>(joint.num_values + joint.updates.size());
  return Copy(nodes, forward, {results.begin(), results.begin() + size});
}

}  // namespace ddpopt
