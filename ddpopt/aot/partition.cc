#include "ddpopt/aot/partition.h"

#include <algorithm>
#include <utility>

#include "ATen/core/alias_info.h"
#include "ATen/core/function_schema.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "fx_graph/graph.h"
#include "fx_graph/passes/dead_code.h"

namespace ddpopt {
namespace {

using Saved = PartitionedGraph::Saved;

// The node of which this one is a view and nothing else; null for others.
fx::Node* BaseOfView(const fx::Node& node) {
  if (node.op() != fx::Op::kCallFunction || !node.is_operator()) return nullptr;
  const c10::FunctionSchema& schema = node.operator_handle().schema();
  if (schema.returns().size() != 1 || schema.returns()[0].type()->kind() != c10::TypeKind::TensorType) return nullptr;
  const c10::AliasInfo* result = schema.returns()[0].alias_info();
  if (result == nullptr || result->isWrite() || node.args().empty()) return nullptr;
  const c10::AliasInfo* operand = schema.arguments()[0].alias_info();
  if (operand == nullptr || operand->isWrite()) return nullptr;
  return node.args()[0].node();
}

int64_t StorageBytes(const at::Tensor& fake) { return fake.has_storage() ? static_cast<int64_t>(fake.storage().nbytes()) : 0; }

class Partitioner {
 public:
  explicit Partitioner(const JointGraph& joint)
      : joint_(joint), graph_(joint.module->graph()), backward_(graph_), remade_(graph_), index_of_(graph_) {}

  absl::StatusOr<PartitionedGraph> Run() {
    const fx::Node* output = graph_.output_node();
    results_ = &output->args().front().elements();
    num_forward_ = joint_.num_values + static_cast<int>(joint_.updates.size());
    Classify();
    for (int i = 0; i < num_forward_; ++i) {
      const fx::Node* node = (*results_)[i].node();
      if (node == nullptr || backward_.at(node)) {
        return absl::InternalError(absl::StrCat("result ", i, " of the joint graph is no result of its forward"));
      }
    }
    for (fx::Node* node : graph_.nodes()) {
      if (!backward_.at(node)) continue;
      for (fx::Node* input : node->all_input_nodes()) Save(input);
    }
    for (std::size_t i = num_forward_; i < results_->size(); ++i) {
      if (fx::Node* node = (*results_)[i].node(); node != nullptr) Save(node);
    }
    // Autograd refuses to go backward through what was written to since, so no backward asks for it.
    for (const Saved& saved : parts_.saved) {
      if (saved.kind != Saved::Kind::kPrimal) continue;
      if (std::find(joint_.updates.begin(), joint_.updates.end(), saved.index) == joint_.updates.end()) continue;
      return absl::InternalError(
          absl::StrCat("the backward asks for the old content of primal ", saved.index, ", which the forward writes to"));
    }
    DDPOPT_ASSIGN_OR_RETURN(parts_.inference, Forward({}));
    DDPOPT_ASSIGN_OR_RETURN(parts_.forward, Forward(intermediates_));
    DDPOPT_RETURN_IF_ERROR(Backward());
    parts_.num_intermediates = static_cast<int>(intermediates_.size());
    absl::flat_hash_set<const c10::StorageImpl*> counted;
    for (const fx::Node* node : intermediates_) {
      if (!node->has_meta() || !node->meta().val.isTensor()) continue;
      const at::Tensor& fake = node->meta().val.toTensor();
      if (fake.has_storage() && counted.insert(fake.storage().unsafeGetStorageImpl()).second)
        parts_.intermediate_bytes += StorageBytes(fake);
    }
    return std::move(parts_);
  }

 private:
  // What follows from a tangent, or was made while autograd went backward.
  void Classify() {
    const std::size_t num_primals = joint_.primals.size();
    std::size_t placeholder = 0;
    for (fx::Node* node : graph_.nodes()) {
      if (node->op() == fx::Op::kPlaceholder) {
        if (placeholder < num_primals) {
          index_of_[node] = static_cast<int>(placeholder);
          primals_.push_back(node);
        } else {
          backward_[node] = true;
          tangents_.push_back(node);
        }
        ++placeholder;
      } else if (node->op() != fx::Op::kOutput) {
        backward_[node] = node->id() >= joint_.first_backward_id;
      }
    }
  }

  void Save(fx::Node* node) {
    if (backward_.at(node) || remade_.at(node) || !saved_.insert(node).second) return;
    if (fx::Node* base = BaseOfView(*node); base != nullptr) {
      saved_.erase(node);
      remade_[node] = true;
      Save(base);
      return;
    }
    order_.push_back(node);
    if (node->op() == fx::Op::kPlaceholder) {
      parts_.saved.push_back({Saved::Kind::kPrimal, index_of_.at(node)});
      return;
    }
    for (int i = 0; i < joint_.num_values; ++i) {
      if ((*results_)[i].node() != node) continue;
      parts_.saved.push_back({Saved::Kind::kValue, i});
      return;
    }
    parts_.saved.push_back({Saved::Kind::kIntermediate, static_cast<int>(intermediates_.size())});
    intermediates_.push_back(node);
  }

  absl::StatusOr<std::shared_ptr<fx::GraphModule>> Forward(const std::vector<fx::Node*>& intermediates) {
    auto module = std::make_shared<fx::GraphModule>();
    fx::NodeTable<fx::Node*> copies(graph_);
    const auto map = [&](fx::Node* node) -> fx::Argument { return copies.at(node); };
    for (fx::Node* node : graph_.nodes()) {
      if (backward_.at(node) || node->op() == fx::Op::kOutput) continue;
      copies[node] = module->graph().CopyNode(*node, map);
    }
    std::vector<fx::Argument> results;
    for (int i = 0; i < num_forward_; ++i) results.push_back((*results_)[i].Map(map));
    for (fx::Node* node : intermediates) results.push_back(copies.at(node));
    module->graph().Output(fx::Argument::Tuple(std::move(results)));
    DDPOPT_RETURN_IF_ERROR(fx::EliminateDeadCode(*module).status());
    DDPOPT_RETURN_IF_ERROR(module->Lint());
    return module;
  }

  absl::Status Backward() {
    parts_.backward = std::make_shared<fx::GraphModule>();
    fx::Graph& graph = parts_.backward->graph();
    fx::NodeTable<fx::Node*> copies(graph_);
    const auto map = [&](fx::Node* node) -> fx::Argument { return copies.at(node); };
    for (fx::Node* node : order_) {
      fx::Node* placeholder = graph.Placeholder(node->name());
      placeholder->meta() = fx::CopyMeta(node->meta());
      copies[node] = placeholder;
    }
    for (fx::Node* node : tangents_) copies[node] = graph.CopyNode(*node, map);
    for (fx::Node* node : graph_.nodes()) {
      if (copies.at(node) != nullptr || node->op() == fx::Op::kOutput || !(backward_.at(node) || remade_.at(node))) continue;
      copies[node] = graph.CopyNode(*node, map);
    }
    std::vector<fx::Argument> results;
    for (std::size_t i = num_forward_; i < results_->size(); ++i) results.push_back((*results_)[i].Map(map));
    graph.Output(fx::Argument::Tuple(std::move(results)));
    DDPOPT_RETURN_IF_ERROR(fx::EliminateDeadCode(*parts_.backward).status());
    return parts_.backward->Lint();
  }

  const JointGraph& joint_;
  const fx::Graph& graph_;
  fx::NodeTable<std::uint8_t> backward_;
  fx::NodeTable<std::uint8_t> remade_;  // views that the backward makes again
  fx::NodeTable<int> index_of_;         // of primals
  const std::vector<fx::Argument>* results_ = nullptr;
  int num_forward_ = 0;
  std::vector<fx::Node*> primals_, tangents_;
  absl::flat_hash_set<const fx::Node*> saved_;
  std::vector<fx::Node*> order_;  // of what is saved
  std::vector<fx::Node*> intermediates_;
  PartitionedGraph parts_;
};

}  // namespace

absl::StatusOr<PartitionedGraph> PartitionDefault(const JointGraph& joint) { return Partitioner(joint).Run(); }

}  // namespace ddpopt
