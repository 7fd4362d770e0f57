#include "fx_graph/passes/common_subexpression.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Dict.h"
#include "ATen/core/function_schema.h"
#include "ATen/core/jit_type.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "base/status.h"
#include "fx_graph/passes/effects.h"
#include "fx_graph/passes/identical.h"
#include "fx_graph/passes/memory.h"

namespace ddpopt::fx {
namespace {

using c10::IValue;

std::uint64_t Mix(std::uint64_t seed, std::uint64_t value) {
  seed ^= value + 0x9e3779b97f4a7c15ull + (seed << 6) + (seed >> 2);
  return seed * 0xff51afd7ed558ccdull;
}

template <typename T>
std::uint64_t HashOf(const T& value) {
  return std::hash<T>()(value);
}

std::uint64_t Hash(const IValue& value) {
  if (value.isInt()) return Mix(1, static_cast<std::uint64_t>(value.toInt()));
  if (value.isBool()) return Mix(2, value.toBool());
  if (value.isDouble()) return Mix(3, FloatBits(value.toDouble()));
  if (value.isString()) return Mix(4, HashOf(value.toStringRef()));
  if (value.isTuple() || value.isList()) {
    std::uint64_t hash = value.isTuple() ? 5 : 6;
    if (value.isTuple()) {
      for (const IValue& element : value.toTupleRef().elements()) hash = Mix(hash, Hash(element));
    } else {
      for (const IValue& element : value.toListRef()) hash = Mix(hash, Hash(element));
    }
    return hash;
  }
  return 7;
}

bool Identical(const Argument& a, const Argument& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Argument::Kind::kNone:
      return true;
    case Argument::Kind::kNode:
      return a.node() == b.node();
    case Argument::Kind::kConstant:
      return fx::Identical(a.constant(), b.constant());
    default:
      break;
  }
  const auto& x = a.elements();
  const auto& y = b.elements();
  if (x.size() != y.size()) return false;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!Identical(x[i], y[i])) return false;
  }
  return true;
}

std::uint64_t Hash(const Argument& argument) {
  std::uint64_t hash = static_cast<std::uint64_t>(argument.kind());
  if (argument.is_node()) return Mix(hash, HashOf<const void*>(argument.node()));
  if (argument.kind() == Argument::Kind::kConstant) return Mix(hash, Hash(argument.constant()));
  if (argument.kind() == Argument::Kind::kNone) return hash;
  for (const Argument& element : argument.elements()) hash = Mix(hash, Hash(element));
  return hash;
}

// An operator's arguments in the order of its schema, wherever they were given; null where nothing was. False if they don't fit the schema.
bool BySchema(const Node& node, std::vector<const Argument*>& arguments) {
  const auto& declared = node.operator_handle().schema().arguments();
  if (node.args().size() > declared.size()) return false;
  arguments.assign(declared.size(), nullptr);
  for (std::size_t i = 0; i < node.args().size(); ++i) arguments[i] = &node.args()[i];
  for (const auto& keyword : node.kwargs()) {
    const auto place = std::find_if(declared.begin(), declared.end(), [&](const c10::Argument& a) { return a.name() == keyword.first; });
    if (place == declared.end() || arguments[place - declared.begin()] != nullptr) return false;
    arguments[place - declared.begin()] = &keyword.second;
  }
  return true;
}

// Of nodes alike that may not be merged with one another this many are looked at, so that time stays linear.
constexpr int kMaxTries = 32;

class Merger {
 public:
  explicit Merger(GraphModule& module) : module_(module), effects_(module), memory_(module, effects_) {}

  absl::StatusOr<bool> Run() {
    FindWritesAndLeavers();
    bool changed = false;
    seen_.reserve(module_.graph().size());
    for (Node* node = module_.graph().front(); node != nullptr;) {
      Node* const next = node->next();
      DDPOPT_ASSIGN_OR_RETURN(const bool merged, Visit(node));
      changed |= merged;
      node = next;
    }
    return changed;
  }

 private:
  struct Seen {
    Node* node;
    std::uint64_t state;    // StateRead when it was seen
    std::int64_t previous;  // one of the same hash, or -1
  };

  // Looks ahead: the last write to each class, and which values may leave through the output.
  void FindWritesAndLeavers() {
    last_write_.assign(memory_.size(), -1);
    written_at_.assign(memory_.size(), 0);
    leaves_.assign(module_.graph().size(), false);
    for (const Node* node : module_.graph().nodes()) {
      const auto at = static_cast<std::int64_t>(memory_.IndexOf(*node));
      effects_.ForEachWritten(*node, [&](Node* input) { last_write_[memory_.ClassOf(*input)] = at; });
      if (effects_.Of(*node).anything) last_exposed_write_ = at;
    }
    for (const Node* node = module_.graph().back(); node != nullptr; node = node->prev()) {
      if (node->op() == Op::kOutput) {
        for (const Node* input : node->all_input_nodes()) leaves_[memory_.IndexOf(*input)] = true;
      } else if (leaves_[memory_.IndexOf(*node)]) {
        effects_.ForEachAliased(*node, [&](Node* input) { leaves_[memory_.IndexOf(*input)] = true; });
      }
    }
  }

  absl::StatusOr<bool> Visit(Node* node) {
    if (node->op() == Op::kPlaceholder || node->op() == Op::kOutput) return false;
    const NodeEffects effects = effects_.Of(*node);
    if (!effects.pure()) {
      ++clock_;
      effects_.ForEachWritten(*node, [&](Node* input) { written_at_[memory_.ClassOf(*input)] = clock_; });
      if (effects.writes || effects.anything) any_write_at_ = clock_;
      if (effects.anything) exposed_written_at_ = clock_;
      if (effects.modes) modes_changed_at_ = clock_;
      return false;
    }
    const std::uint64_t state = StateRead(*node);
    std::uint64_t hash = Mix(static_cast<std::uint64_t>(node->op()), state);
    AddCall(*node, hash);
    const auto [place, is_new] = seen_.try_emplace(hash, static_cast<std::int64_t>(all_.size()));
    if (!is_new) {
      int tries = 0;
      for (std::int64_t i = place->second; i >= 0 && tries < kMaxTries; i = all_[i].previous, ++tries) {
        Node* earlier = all_[i].node;
        if (all_[i].state != state || !Same(*earlier, *node) || !MayMerge(*earlier, *node)) continue;
        if (leaves_[memory_.IndexOf(*node)]) leaves_[memory_.IndexOf(*earlier)] = true;
        node->ReplaceAllUsesWith(earlier);
        DDPOPT_RETURN_IF_ERROR(module_.graph().EraseNode(node));
        return true;
      }
    }
    all_.push_back(Seen{node, state, is_new ? -1 : place->second});
    place->second = static_cast<std::int64_t>(all_.size()) - 1;
    return false;
  }

  // When that which the node's value depends on, besides its arguments' identity, last changed.
  std::uint64_t StateRead(const Node& node) const {
    if (node.op() == Op::kGetAttr) return 0;
    std::uint64_t state = modes_changed_at_;
    for (const Node* input : node.all_input_nodes()) {
      const std::uint32_t memory_class = memory_.ClassOf(*input);
      state = std::max(state, written_at_[memory_class]);
      if (memory_.IsExposed(memory_class)) state = std::max(state, exposed_written_at_);
    }
    // Graphs read attributes of their own.
    if (node.op() == Op::kCallModule || std::holds_alternative<HigherOrderTarget>(node.target())) state = std::max(state, any_write_at_);
    return state;
  }

  bool MayMerge(const Node& earlier, const Node& node) const {
    if (node.op() == Op::kGetAttr) return true;  // the same object
    if (leaves_[memory_.IndexOf(earlier)] && leaves_[memory_.IndexOf(node)]) return false;
    const auto made = static_cast<std::int64_t>(memory_.IndexOf(earlier));
    for (const std::uint32_t memory_class : {memory_.ClassOf(earlier), memory_.ClassOf(node)}) {
      if (last_write_[memory_class] > made) return false;
      if (memory_.IsExposed(memory_class) && last_exposed_write_ > made) return false;
    }
    return true;
  }

  void AddCall(const Node& node, std::uint64_t& hash) {
    if (node.is_operator() && BySchema(node, by_schema_)) {
      const auto& declared = node.operator_handle().schema().arguments();
      hash = Mix(hash, HashOf<const void*>(&node.operator_handle().schema()));
      for (std::size_t i = 0; i < declared.size(); ++i) hash = Mix(hash, HashOrDefault(by_schema_[i], declared[i]));
      return;
    }
    hash = Mix(hash, HashOf(TargetToString(node.target())));
    for (const Argument& argument : node.args()) hash = Mix(hash, Hash(argument));
    for (const auto& keyword : node.kwargs()) hash = Mix(hash, Hash(keyword.second));
  }

  static std::uint64_t HashOrDefault(const Argument* argument, const c10::Argument& declared) {
    if (argument != nullptr) return Hash(*argument);
    return declared.default_value().has_value() ? Hash(Argument(*declared.default_value())) : 0;
  }

  bool Same(const Node& a, const Node& b) {
    if (a.op() != b.op() || !(a.target() == b.target())) return false;
    if (a.is_operator() && BySchema(a, by_schema_) && BySchema(b, other_by_schema_)) {
      const auto& declared = a.operator_handle().schema().arguments();
      for (std::size_t i = 0; i < declared.size(); ++i) {
        const Argument* x = by_schema_[i];
        const Argument* y = other_by_schema_[i];
        if (x == nullptr && y == nullptr) continue;
        if (x != nullptr && y != nullptr) {
          if (!Identical(*x, *y)) return false;
          continue;
        }
        if (!declared[i].default_value().has_value()) return false;
        if (!Identical(x != nullptr ? *x : *y, Argument(*declared[i].default_value()))) return false;
      }
      return true;
    }
    if (a.args().size() != b.args().size() || a.kwargs().size() != b.kwargs().size()) return false;
    for (std::size_t i = 0; i < a.args().size(); ++i) {
      if (!Identical(a.args()[i], b.args()[i])) return false;
    }
    for (std::size_t i = 0; i < a.kwargs().size(); ++i) {
      if (a.kwargs()[i].first != b.kwargs()[i].first || !Identical(a.kwargs()[i].second, b.kwargs()[i].second)) return false;
    }
    return true;
  }

  GraphModule& module_;
  Effects effects_;
  Memory memory_;
  // Of the graph as it was, by class or by index.
  std::vector<std::int64_t> last_write_;
  std::int64_t last_exposed_write_ = -1;
  std::vector<bool> leaves_;
  // As the walk goes: times of writes, 0 for none.
  std::uint64_t clock_ = 0;
  std::vector<std::uint64_t> written_at_;
  std::uint64_t exposed_written_at_ = 0;
  std::uint64_t any_write_at_ = 0;
  std::uint64_t modes_changed_at_ = 0;
  std::vector<Seen> all_;
  absl::flat_hash_map<std::uint64_t, std::int64_t> seen_;  // hash -> the latest in all_
  std::vector<const Argument*> by_schema_, other_by_schema_;
};

absl::StatusOr<bool> Eliminate(GraphModule& module, absl::flat_hash_set<const GraphModule*>& done) {
  bool changed = false;
  if (!done.insert(&module).second) return changed;
  for (const auto& [path, submodule] : module.submodules()) {
    if (submodule.graph_module == nullptr) continue;
    DDPOPT_ASSIGN_OR_RETURN(const bool nested, Eliminate(*submodule.graph_module, done));
    changed |= nested;
  }
  DDPOPT_ASSIGN_OR_RETURN(const bool merged, Merger(module).Run());
  return changed || merged;
}

}  // namespace

absl::StatusOr<bool> EliminateCommonSubexpressions(GraphModule& module) {
  absl::flat_hash_set<const GraphModule*> done;
  return Eliminate(module, done);
}

absl::Status CommonSubexpressionPass::Register(PassRegistry& registry) {
  return registry.Add("common_subexpression", "merges nodes that give the same value, unless memory or modes change between them",
                      [](const PassOptions& given) -> absl::StatusOr<std::unique_ptr<Pass>> {
                        DDPOPT_RETURN_IF_ERROR(CheckPassOptions(given, {}));
                        return std::make_unique<CommonSubexpressionPass>();
                      });
}

}  // namespace ddpopt::fx
