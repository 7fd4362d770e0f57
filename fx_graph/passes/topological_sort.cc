#include "fx_graph/passes/topological_sort.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "fx_graph/passes/effects.h"
#include "fx_graph/passes/memory.h"

namespace ddpopt::fx {
namespace {

bool IsSorted(const Graph& graph) {
  bool placeholders_over = false;
  for (const Node* node : graph.nodes()) {
    if (node->op() == Op::kPlaceholder && placeholders_over) return false;
    placeholders_over |= node->op() != Op::kPlaceholder;
    if (node->op() == Op::kOutput && node->next() != nullptr) return false;
    for (const Node* input : node->all_input_nodes()) {
      if (!input->IsBefore(node)) return false;
    }
  }
  return true;
}

// What must come before what, as edges between indices in the listed order.
class Sorter {
 public:
  explicit Sorter(GraphModule& module) : module_(module), effects_(module), memory_(module, effects_) {
    for (Node* node : module.graph().nodes()) nodes_.push_back(node);
    after_.resize(nodes_.size());
    waits_for_.assign(nodes_.size(), 0);
    AddUses();
    AddEffects();
  }

  absl::StatusOr<bool> Run() {
    for (const Node* node : nodes_) {
      for (const Node* input : node->all_input_nodes()) {
        if (input == node) return absl::FailedPreconditionError(absl::StrCat("%", node->name(), " takes its own value"));
      }
    }
    // Placeholders before all, the output after all, else as listed.
    const auto rank = [this](std::uint32_t i) -> std::uint64_t {
      const Op op = nodes_[i]->op();
      return op == Op::kPlaceholder ? i : i + nodes_.size() * (op == Op::kOutput ? 2 : 1);
    };
    using Entry = std::pair<std::uint64_t, std::uint32_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
    std::vector<std::uint32_t> waits_for = waits_for_;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      if (waits_for[i] == 0) ready.emplace(rank(i), i);
    }
    std::vector<Node*> order;
    order.reserve(nodes_.size());
    while (!ready.empty()) {
      const std::uint32_t next = ready.top().second;
      ready.pop();
      order.push_back(nodes_[next]);
      for (const std::uint32_t i : after_[next]) {
        if (--waits_for[i] == 0) ready.emplace(rank(i), i);
      }
    }
    if (order.size() < nodes_.size()) return Cycle(waits_for);
    if (order == nodes_) return false;
    for (Node* node : order) {
      if (Node* last = module_.graph().back(); node != last) DDPOPT_RETURN_IF_ERROR(last->Append(node));
    }
    return true;
  }

 private:
  void AddEdge(std::uint32_t from, std::uint32_t to) {
    if (from == to) return;
    after_[from].push_back(to);
    ++waits_for_[to];
  }

  void AddUses() {
    std::int64_t output = -1;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      for (const Node* input : nodes_[i]->all_input_nodes()) AddEdge(memory_.IndexOf(*input), i);
      if (nodes_[i]->op() == Op::kOutput) output = i;
    }
    // The output follows everything, what nobody uses included.
    if (output < 0) return;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) AddEdge(i, static_cast<std::uint32_t>(output));
  }

  // The listed order of what has effects. Each node is given its edges from what it must follow.
  void AddEffects() {
    constexpr std::int64_t kNone = -1;
    struct State {
      std::int64_t barrier = kNone;  // the one that this is counted from
      std::int64_t last_write = kNone;
      std::vector<std::uint32_t> reads;  // since then
    };
    std::vector<State> states(memory_.size());
    std::int64_t last_barrier = kNone, last_ordered = kNone;
    std::uint32_t after_barrier = 0;  // the first node after last_barrier
    // Edges to what lies before the barrier go through the barrier.
    const auto state_of = [&](const Node* input) -> State& {
      State& state = states[memory_.ClassOf(*input)];
      if (state.barrier != last_barrier) state = State{last_barrier, kNone, {}};
      return state;
    };
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      const Node* node = nodes_[i];
      if (node->op() == Op::kPlaceholder || node->op() == Op::kOutput) continue;
      const NodeEffects effects = effects_.Of(*node);
      if (effects.modes) {
        // Everything since the last barrier before it.
        for (std::uint32_t k = after_barrier; k < i; ++k) {
          if (IsOrdered(nodes_[k])) AddEdge(k, i);
        }
        if (last_barrier != kNone) AddEdge(static_cast<std::uint32_t>(last_barrier), i);
        last_barrier = last_ordered = i;
        after_barrier = i + 1;
        continue;
      }
      if (node->op() == Op::kGetAttr) continue;
      if (last_barrier != kNone) AddEdge(static_cast<std::uint32_t>(last_barrier), i);
      if (!effects.pure()) {
        if (last_ordered != kNone && last_ordered != last_barrier) AddEdge(static_cast<std::uint32_t>(last_ordered), i);
        last_ordered = i;
      }
      for (const Node* input : node->all_input_nodes()) {
        State& state = state_of(input);
        if (state.last_write != kNone) AddEdge(static_cast<std::uint32_t>(state.last_write), i);
        state.reads.push_back(i);
      }
      effects_.ForEachWritten(*node, [&](Node* input) {
        State& state = state_of(input);
        for (const std::uint32_t reader : state.reads) AddEdge(reader, i);
        state.reads.clear();
        state.last_write = i;
      });
    }
  }

  static bool IsOrdered(const Node* node) {
    return node->op() != Op::kPlaceholder && node->op() != Op::kGetAttr && node->op() != Op::kOutput;
  }

  // Names the nodes of one cycle, by walking among those that are left.
  absl::Status Cycle(const std::vector<std::uint32_t>& waits_for) const {
    std::vector<std::vector<std::uint32_t>> before(nodes_.size());
    std::uint32_t at = 0;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      if (waits_for[i] == 0) continue;
      at = i;
      for (const std::uint32_t k : after_[i]) {
        if (waits_for[k] != 0) before[k].push_back(i);
      }
    }
    // Every node that is left waits for another one that is left: going back must come round.
    std::vector<std::int64_t> step_of(nodes_.size(), -1);
    std::vector<std::uint32_t> path;
    while (step_of[at] < 0) {
      step_of[at] = static_cast<std::int64_t>(path.size());
      path.push_back(at);
      at = before[at].front();
    }
    path.erase(path.begin(), path.begin() + step_of[at]);
    std::reverse(path.begin(), path.end());
    bool by_uses = true;
    for (std::size_t i = 0; i < path.size(); ++i) {
      const auto inputs = nodes_[path[(i + 1) % path.size()]]->all_input_nodes();
      by_uses &= std::find(inputs.begin(), inputs.end(), nodes_[path[i]]) != inputs.end();
    }
    const std::string names =
        absl::StrJoin(path, " -> ", [&](std::string* out, std::uint32_t i) { absl::StrAppend(out, "%", nodes_[i]->name()); });
    return absl::FailedPreconditionError(
        by_uses
            ? absl::StrCat("nodes take each other's values in a cycle: ", names, " -> %", nodes_[path[0]]->name())
            : absl::StrCat("the order in which effects are listed contradicts what nodes take: ", names, " -> %", nodes_[path[0]]->name()));
  }

  GraphModule& module_;
  Effects effects_;
  Memory memory_;
  std::vector<Node*> nodes_;
  std::vector<std::vector<std::uint32_t>> after_;
  std::vector<std::uint32_t> waits_for_;
};

absl::StatusOr<bool> Sort(GraphModule& module, absl::flat_hash_set<const GraphModule*>& done) {
  bool changed = false;
  if (!done.insert(&module).second) return changed;
  for (const auto& [path, submodule] : module.submodules()) {
    if (submodule.graph_module == nullptr) continue;
    absl::StatusOr<bool> nested = Sort(*submodule.graph_module, done);
    if (!nested.ok()) return Annotate(nested.status(), absl::StrCat("in submodule \"", path, "\""));
    changed |= *nested;
  }
  if (IsSorted(module.graph())) return changed;
  DDPOPT_ASSIGN_OR_RETURN(const bool moved, Sorter(module).Run());
  return changed || moved;
}

}  // namespace

absl::StatusOr<bool> TopologicalSort(GraphModule& module) {
  absl::flat_hash_set<const GraphModule*> done;
  return Sort(module, done);
}

absl::Status TopologicalSortPass::Register(PassRegistry& registry) {
  return registry.Add("topological_sort", "puts every node after those that it takes, and keeps the order of effects",
                      [](const PassOptions& given) -> absl::StatusOr<std::unique_ptr<Pass>> {
                        DDPOPT_RETURN_IF_ERROR(CheckPassOptions(given, {}));
                        return std::make_unique<TopologicalSortPass>();
                      });
}

}  // namespace ddpopt::fx
