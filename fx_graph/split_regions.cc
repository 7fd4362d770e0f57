#include "fx_graph/split_regions.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace ddpopt::fx {
namespace {

enum class State { kNone, kEnter, kExit, kGradMode };

State StateOf(const Node& node) {
  const auto* opaque = std::get_if<OpaqueTarget>(&node.target());
  if (opaque == nullptr || node.op() != Op::kCallFunction) return State::kNone;
  absl::string_view name = opaque->text;
  if (const std::size_t dot = name.rfind('.'); dot != absl::string_view::npos) name.remove_prefix(dot + 1);
  if (name.empty() || name[0] != '_') return State::kNone;
  if (name == "_enter_autocast" || name == "_enter_inference_mode") return State::kEnter;
  if (name == "_exit_autocast" || name == "_exit_inference_mode") return State::kExit;
  return name == "_set_grad_enabled" ? State::kGradMode : State::kNone;
}

template <typename... Parts>
absl::Status Fail(const Node& node, const Parts&... parts) {
  return absl::FailedPreconditionError(absl::StrCat("%", node.name(), " (", TargetToString(node.target()), ") ", parts...));
}

void AddPartition(SplitRegion& region, int partition) {
  if (region.partitions.empty() || region.partitions.back() != partition) region.partitions.push_back(partition);
}

// With regions, the partitions' numbers never go down.
absl::Status CheckMonotonic(const Graph& graph, absl::FunctionRef<int(const Node&)> partition_of) {
  int highest = -1;
  const Node* last = nullptr;
  for (const Node* node : graph.nodes()) {
    const int partition = partition_of(*node);
    if (partition < 0) continue;
    if (partition < highest) {
      return absl::FailedPreconditionError(absl::StrCat("a graph with autocast or grad-mode regions can't be cut so that %",
                                                        node->name(), " lies in a partition before that of %", last->name(),
                                                        ", which comes earlier in the graph"));
    }
    highest = partition;
    last = node;
  }
  return absl::OkStatus();
}

}  // namespace

bool IsStateNode(const Node& node) { return StateOf(node) != State::kNone; }

absl::StatusOr<SplitRegions> FindSplitRegions(const Graph& graph, absl::FunctionRef<int(const Node&)> partition_of) {
  SplitRegions result;
  std::vector<SplitRegion> entered;
  std::vector<std::size_t> active;  // indices into `entered`
  std::vector<SplitRegion> grad_modes;
  std::vector<int> ambient;
  for (const Node* node : graph.nodes()) {
    const int partition = partition_of(*node);
    if (partition < 0) continue;
    switch (StateOf(*node)) {
      case State::kEnter:
        if (!node->all_input_nodes().empty())
          return Fail(*node, "takes %", node->all_input_nodes()[0]->name(), ", but must take constants");
        active.push_back(entered.size());
        entered.push_back({node, nullptr, {}});
        break;
      case State::kExit: {
        const Node* enter = node->args().size() == 1 && node->args()[0].is_node() ? node->args()[0].node() : nullptr;
        const auto region =
            std::find_if(active.begin(), active.end(), [&](std::size_t index) { return entered[index].enter == enter; });
        if (region == active.end()) return Fail(*node, "leaves no region that was entered before it");
        entered[*region].exit = node;
        AddPartition(entered[*region], partition);
        active.erase(region);
        break;
      }
      case State::kGradMode:
        if (node->args().size() != 1 || node->args()[0].kind() != Argument::Kind::kConstant || !node->args()[0].constant().isBool()) {
          return Fail(*node, "must take one bool");
        }
        grad_modes.push_back({node, nullptr, {}});
        break;
      case State::kNone:
        break;
    }
    for (const std::size_t index : active) AddPartition(entered[index], partition);
    if (!grad_modes.empty()) {
      AddPartition(grad_modes.back(), partition);
    } else if (ambient.empty() || ambient.back() != partition) {
      ambient.push_back(partition);
    }
  }
  if (!active.empty()) return Fail(*entered[active.front()].enter, "is never left");
  if (entered.empty() && grad_modes.empty()) return result;
  if (absl::Status status = CheckMonotonic(graph, partition_of); !status.ok()) return status;
  if (!grad_modes.empty()) result.ambient_grad_mode = std::move(ambient);
  result.regions = std::move(entered);
  for (SplitRegion& region : grad_modes) result.regions.push_back(std::move(region));
  return result;
}

}  // namespace ddpopt::fx
