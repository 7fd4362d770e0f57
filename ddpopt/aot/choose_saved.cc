#include "ddpopt/aot/choose_saved.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ddpopt/aot/min_cut.h"

namespace ddpopt {
namespace {

using Kind = JointValue::Kind;
using Problem = RecomputeProblem;

// A byte kept through forward and backward weighs as much as 16 bytes that operators read and write once more: a chain of element-wise
// operators is worth computing again, a layer norm for the sake of its means is not.
constexpr int64_t kKeptByte = 16;

bool IsDear(const JointValue& value) { return value.flops > 0; }

class Chooser {
 public:
  explicit Chooser(const JointValues& values) : values_(values), index_(values.graph()) {
    for (std::size_t i = 0; i < values_.forward().size(); ++i) index_[values_.forward()[i]] = static_cast<int>(i);
  }

  // `cost`: of computing the operator again, or kNever; asked for what can be computed again, outside of the marked regions.
  absl::StatusOr<SavedChoice> Solve(absl::FunctionRef<int64_t(const fx::Node*)> cost) const {
    Problem problem;
    problem.values.reserve(values_.forward().size());
    for (const fx::Node* node : values_.forward()) {
      const JointValue& of = values_[node];
      Problem::Value value;
      value.needed = of.needed;
      value.save_cost = of.free ? 0 : kKeptByte * of.bytes;
      if (of.kind == Kind::kView || of.kind == Kind::kTuple) value.save_cost = Problem::kNever;
      if (of.kind == Kind::kPrimal || !of.can_recompute) {
        value.recompute_cost = Problem::kNever;
      } else if (of.region >= 0) {
        // What leaves a region is where the next one begins from.
        if (!of.leaves_region) value.save_cost = Problem::kNever;
        if (of.leaves_region && of.kind == Kind::kTensor) value.recompute_cost = Problem::kNever;
      } else if (of.kind != Kind::kView) {
        value.recompute_cost = cost(node);
      }
      for (const fx::Node* input : node->all_input_nodes()) value.operands.push_back(index_.at(input));
      problem.values.push_back(std::move(value));
    }
    absl::StatusOr<RecomputeChoice> solution = SolveRecompute(problem);
    if (!solution.ok()) return absl::InternalError(absl::StrCat("partitioning: ", solution.status().message()));
    SavedChoice choice(values_.graph());
    absl::flat_hash_set<const c10::StorageImpl*> counted;
    for (std::size_t i = 0; i < values_.forward().size(); ++i) {
      const fx::Node* node = values_.forward()[i];
      choice.saved[node] = solution->saved[i];
      choice.recomputed[node] = solution->recomputed[i];
      if (solution->recomputed[i]) choice.seconds += values_[node].seconds;
      if (!solution->saved[i] || values_[node].free || !node->meta().val.isTensor() || !node->meta().val.toTensor().has_storage()) continue;
      if (counted.insert(node->meta().val.toTensor().storage().unsafeGetStorageImpl()).second) choice.bytes += values_[node].bytes;
    }
    return choice;
  }

  absl::StatusOr<SavedChoice> KeepAll() const {
    return Solve([](const fx::Node*) { return Problem::kNever; });
  }
  absl::StatusOr<SavedChoice> KeepDear() const {
    return Solve([&](const fx::Node* node) { return IsDear(values_[node]) ? Problem::kNever : values_[node].bytes_moved; });
  }
  absl::StatusOr<SavedChoice> KeepLittle() const {
    return Solve([](const fx::Node*) { return int64_t{0}; });
  }

  // Of many choices, which don't depend on the budget, the one that fits and computes least again: so a larger budget never makes for
  // fewer bytes saved, nor for more time.
  absl::StatusOr<SavedChoice> Within(double budget) const {
    DDPOPT_ASSIGN_OR_RETURN(SavedChoice most, KeepDear());
    DDPOPT_ASSIGN_OR_RETURN(SavedChoice least, KeepLittle());
    const int64_t spread = std::max<int64_t>(most.bytes - least.bytes, 0);
    const int64_t limit = least.bytes + static_cast<int64_t>(std::floor(budget * static_cast<double>(spread)));
    SavedChoice best = least;
    const auto consider = [&](SavedChoice choice) {
      if (choice.bytes > limit || choice.bytes > most.bytes) return;
      if (choice.seconds < best.seconds || (choice.seconds == best.seconds && choice.bytes < best.bytes)) best = std::move(choice);
    };
    // Prices of a second, in kept bytes.
    for (double price = 1e7; price < 1e14; price *= 2) {
      DDPOPT_ASSIGN_OR_RETURN(SavedChoice choice, Solve([&](const fx::Node* node) {
                                return static_cast<int64_t>(std::ceil(values_[node].seconds * price)) * kKeptByte;
                              }));
      consider(std::move(choice));
    }
    DDPOPT_RETURN_IF_ERROR(ForEachKnapsack(most, least, spread, consider));
    consider(std::move(most));
    return best;
  }

 private:
  // Of the values that one choice saves and another doesn't, those worth keeping for each of several sizes of memory.
  absl::Status ForEachKnapsack(const SavedChoice& most, const SavedChoice& least, int64_t spread,
                               absl::FunctionRef<void(SavedChoice)> consider) const {
    constexpr int kSteps = 512, kSizes = 32;
    std::vector<const fx::Node*> items;
    for (const fx::Node* node : values_.forward()) {
      if (most.saved.at(node) && !least.saved.at(node) && values_[node].can_recompute && values_[node].region < 0) items.push_back(node);
    }
    if (items.empty() || spread == 0) return absl::OkStatus();
    std::vector<double> value(kSteps + 1, 0);
    std::vector<std::vector<bool>> taken(items.size(), std::vector<bool>(kSteps + 1));
    std::vector<int> weight(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      weight[i] = static_cast<int>(std::ceil(static_cast<double>(values_[items[i]].bytes) * kSteps / static_cast<double>(spread)));
      const double seconds = SecondsToMake(items[i], most);
      for (int c = kSteps; c >= weight[i]; --c) {
        if (value[c - weight[i]] + seconds <= value[c]) continue;
        value[c] = value[c - weight[i]] + seconds;
        taken[i][c] = true;
      }
    }
    for (int size = 1; size < kSizes; ++size) {
      fx::NodeTable<std::uint8_t> kept(values_.graph());
      int room = kSteps * size / kSizes;
      for (std::size_t i = items.size(); i-- > 0;) {
        if (!taken[i][room]) continue;
        kept[items[i]] = true;
        room -= weight[i];
      }
      DDPOPT_ASSIGN_OR_RETURN(SavedChoice choice,
                              Solve([&](const fx::Node* node) { return kept.at(node) ? Problem::kNever : values_[node].bytes_moved; }));
      consider(std::move(choice));
    }
    return absl::OkStatus();
  }

  // From the other values that the choice saves.
  double SecondsToMake(const fx::Node* node, const SavedChoice& choice) const {
    double seconds = 0;
    absl::flat_hash_set<const fx::Node*> seen = {node};
    std::vector<const fx::Node*> pending = {node};
    while (!pending.empty()) {
      const fx::Node* next = pending.back();
      pending.pop_back();
      seconds += values_[next].seconds;
      for (const fx::Node* input : next->all_input_nodes()) {
        if (values_[input].kind != Kind::kPrimal && !choice.saved.at(input) && seen.insert(input).second) pending.push_back(input);
      }
    }
    return seconds;
  }

  const JointValues& values_;
  fx::NodeTable<int> index_;
};

}  // namespace

absl::StatusOr<SavedChoice> ChooseSaved(const JointValues& values, const PartitionOptions& options) {
  if (!(options.memory_budget >= 0 && options.memory_budget <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("a memory budget of ", options.memory_budget, ", where 0 to 1 is meant"));
  }
  const Chooser chooser(values);
  if (options.kind == PartitionKind::kDefault) return chooser.KeepAll();
  if (options.memory_budget == 1) return chooser.KeepDear();
  if (options.memory_budget == 0) return chooser.KeepLittle();
  return chooser.Within(options.memory_budget);
}

}  // namespace ddpopt
