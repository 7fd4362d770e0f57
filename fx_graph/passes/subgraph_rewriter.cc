#include "fx_graph/passes/subgraph_rewriter.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "fx_graph/passes/effects.h"
#include "fx_graph/passes/identical.h"

namespace ddpopt::fx {
namespace {

// The values that a pattern returns: one, or those of a list or tuple.
std::vector<Argument> Returned(const Graph& graph) {
  const Node* output = graph.output_node();
  if (output == nullptr || output->args().empty()) return {};
  const Argument& value = output->args()[0];
  if (value.kind() == Argument::Kind::kList || value.kind() == Argument::Kind::kTuple) return value.elements();
  if (value.kind() == Argument::Kind::kNone) return {};
  return {value};
}

// A pattern laid over the nodes that lead to one node of a graph.
class Match {
 public:
  // `taken` are nodes that can't be part of it.
  Match(const Graph& pattern, NodeTable<char>& taken) : stands_for_(pattern), taken_(taken) {}

  bool Lay(const Node* pattern, Node* node) {
    if (pattern->op() == Op::kPlaceholder) return Lay(Argument(const_cast<Node*>(pattern)), Argument(node));
    const Argument& known = stands_for_.at(pattern);
    if (known.is_node()) return known.node() == node;
    if (inside_.contains(node) || taken_[node] || pattern->op() != node->op() || !(pattern->target() == node->target())) return false;
    if (pattern->args().size() != node->args().size() || pattern->kwargs().size() != node->kwargs().size()) return false;
    stands_for_[pattern] = Argument(node);
    inside_.insert(node);
    nodes_.push_back(node);
    for (std::size_t i = 0; i < node->args().size(); ++i) {
      if (!Lay(pattern->args()[i], node->args()[i])) return false;
    }
    for (const auto& [name, argument] : pattern->kwargs()) {
      bool found = false;
      for (const auto& [other, value] : node->kwargs()) found = found || (name == other && Lay(argument, value));
      if (!found) return false;
    }
    return true;
  }

  // What a node of the pattern stands for.
  const Argument& of(const Node* pattern) const { return stands_for_.at(pattern); }
  bool inside(const Node* node) const { return inside_.contains(node); }
  const std::vector<Node*>& nodes() const { return nodes_; }

 private:
  bool Lay(const Argument& pattern, const Argument& argument) {
    if (pattern.is_node() && pattern.node()->op() == Op::kPlaceholder) {
      Argument& known = stands_for_[pattern.node()];
      if (bound_.size() <= pattern.node()->id()) bound_.resize(pattern.node()->id() + 1);
      if (bound_[pattern.node()->id()]) return Same(known, argument);
      bound_[pattern.node()->id()] = true;
      known = argument;
      return true;
    }
    if (pattern.is_node()) return argument.is_node() && Lay(pattern.node(), argument.node());
    return Structure(pattern, argument, [this](const Argument& a, const Argument& b) { return Lay(a, b); });
  }
  static bool Same(const Argument& a, const Argument& b) {
    if (a.is_node() || b.is_node()) return a.node() == b.node();
    return Structure(a, b, [](const Argument& x, const Argument& y) { return Same(x, y); });
  }
  template <typename Fn>
  static bool Structure(const Argument& a, const Argument& b, const Fn& each) {
    if (a.kind() != b.kind() || a.elements().size() != b.elements().size()) return false;
    if (a.kind() == Argument::Kind::kConstant) return Identical(a.constant(), b.constant());
    for (std::size_t i = 0; i < a.elements().size(); ++i) {
      if (!each(a.elements()[i], b.elements()[i])) return false;
    }
    return true;
  }

  NodeTable<Argument> stands_for_;
  std::vector<bool> bound_;  // placeholders that stand for something, if only for None
  absl::flat_hash_set<const Node*> inside_;
  NodeTable<char>& taken_;
  std::vector<Node*> nodes_;
};

// InvalidArgument if the two can't be pattern and replacement.
absl::Status Check(const Graph& pattern, const std::vector<Argument>& values, const Graph& replacement,
                   const std::vector<Argument>& new_values) {
  if (values.empty()) return absl::InvalidArgumentError("the pattern returns nothing");
  for (const Argument& value : values) {
    if (!value.is_node() || value.node()->op() == Op::kPlaceholder) {
      return absl::InvalidArgumentError(
          absl::StrCat("the pattern returns ", value.ToString(), ", which no node of it computes: it would match anything"));
    }
  }
  for (const Argument& value : new_values) {
    if (!value.is_node())
      return absl::InvalidArgumentError(absl::StrCat("the replacement returns ", value.ToString(), ", which is no node"));
  }
  const std::size_t inputs = pattern.FindNodes(Op::kPlaceholder).size(), new_inputs = replacement.FindNodes(Op::kPlaceholder).size();
  if (inputs != new_inputs) {
    return absl::InvalidArgumentError(absl::StrCat("the pattern has ", inputs, " inputs, and the replacement ", new_inputs));
  }
  if (values.size() != new_values.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the pattern returns ", values.size(), " values, and the replacement ", new_values.size()));
  }
  NodeTable<char> leads(pattern);
  leads[values.back().node()] = true;
  for (Node* node = pattern.back(); node != nullptr; node = node->prev()) {
    if (node->op() == Op::kOutput) continue;
    if (leads.at(node)) {
      for (Node* input : node->all_input_nodes()) leads[input] = true;
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("%", node->name(), " of the pattern doesn't lead to its last value, %", values.back().node()->name()));
    }
  }
  return absl::OkStatus();
}

// Whether the nodes can be taken out and their values be made where `anchor` stands.
bool CanReplace(const Match& match, const std::vector<Argument>& values, const Node* anchor, const NodeTable<int>& effects_before,
                Effects& effects) {
  const auto returned = [&](const Node* node) {
    return std::any_of(values.begin(), values.end(), [&](const Argument& value) { return match.of(value.node()).node() == node; });
  };
  const Node* first = anchor;
  int effects_inside = 0;
  for (const Node* node : match.nodes()) {
    if (node->IsBefore(first)) first = node;
    if (node != anchor && !effects.Of(*node).pure()) ++effects_inside;
    for (const Node* user : node->users()) {
      if (match.inside(user)) continue;
      if (!returned(node) || user->IsBefore(anchor)) return false;
    }
  }
  return effects_before.at(anchor) - effects_before.at(first) == effects_inside;
}

}  // namespace

absl::StatusOr<std::vector<ReplacedPattern>> ReplacePattern(GraphModule& module, const Graph& pattern, const Graph& replacement) {
  const std::vector<Argument> values = Returned(pattern), new_values = Returned(replacement);
  DDPOPT_RETURN_IF_ERROR(Check(pattern, values, replacement, new_values));
  const std::vector<Node*> inputs = pattern.FindNodes(Op::kPlaceholder), new_inputs = replacement.FindNodes(Op::kPlaceholder);
  const Node* last = values.back().node();

  Graph& graph = module.graph();
  Effects effects(module);
  NodeTable<int> effects_before(graph);
  int count = 0;
  for (Node* node : graph.nodes()) {
    effects_before[node] = count;
    if (!effects.Of(*node).pure()) ++count;
  }

  std::vector<ReplacedPattern> result;
  NodeTable<char> taken(graph);
  for (Node* anchor : graph.FindNodes(last->op(), last->target())) {
    if (anchor->erased()) continue;
    Match match(pattern, taken);
    if (!match.Lay(last, anchor) || !CanReplace(match, values, anchor, effects_before, effects)) continue;
    // An input must outlive the match; and a value that is an input must be a node's.
    bool inputs_fit = true;
    for (Node* input : inputs) match.of(input).ForEachNode([&](Node* node) { inputs_fit = inputs_fit && !match.inside(node); });
    for (const Argument& value : new_values) {
      const auto input = std::find(new_inputs.begin(), new_inputs.end(), value.node());
      if (input != new_inputs.end()) inputs_fit = inputs_fit && match.of(inputs[input - new_inputs.begin()]).is_node();
    }
    if (!inputs_fit) continue;

    ReplacedPattern replaced{std::string(anchor->name()), {}};
    NodeTable<Argument> made(replacement);
    for (std::size_t i = 0; i < inputs.size(); ++i) made[new_inputs[i]] = match.of(inputs[i]);
    {
      const auto before_anchor = graph.InsertingBefore(anchor);
      for (Node* node : replacement.nodes()) {
        if (node->op() == Op::kPlaceholder || node->op() == Op::kOutput) continue;
        Node* copy = graph.CopyNode(*node, [&](Node* input) { return made.at(input); });
        taken[copy] = true;
        made[node] = Argument(copy);
        replaced.replacements.push_back(copy);
      }
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      Node* old = match.of(values[i].node()).node();
      Node* now = made.at(new_values[i].node()).node();
      if (now->meta().val.isNone()) now->meta().val = old->meta().val;
      old->ReplaceAllUsesWith(now, [&](Node* user) { return !match.inside(user); });
    }
    DDPOPT_RETURN_IF_ERROR(graph.EraseNodes(match.nodes()));
    result.push_back(std::move(replaced));
  }
  return result;
}

}  // namespace ddpopt::fx
