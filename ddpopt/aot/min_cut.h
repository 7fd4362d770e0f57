#ifndef DDPOPT_AOT_MIN_CUT_H_
#define DDPOPT_AOT_MIN_CUT_H_

// Which values to keep and which to compute again, so that it costs least: a minimum cut. Private to this package.
//
//   RecomputeProblem problem;
//   problem.values.push_back({.save_cost = 0, .recompute_cost = RecomputeProblem::kNever});                  // 0: an input
//   problem.values.push_back({.save_cost = 64, .recompute_cost = 4, .operands = {0}});                       // 1 = f(0)
//   problem.values.push_back({.save_cost = 64, .recompute_cost = 4, .needed = true, .operands = {1}});       // 2 = g(1), wanted later
//   SolveRecompute(problem)->recomputed;      // {false, true, true}
//
// A value that is needed is saved or computed again; what is computed again has operands that are saved or computed again.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace ddpopt {

struct RecomputeProblem {
  static constexpr int64_t kNever = -1;
  struct Value {
    int64_t save_cost = 0;       // >= 0; kNever: it can't be saved
    int64_t recompute_cost = 0;  // >= 0; kNever: it can't be computed again
    bool needed = false;
    std::vector<int> operands = {};  // smaller indices
  };
  std::vector<Value> values;
};

struct RecomputeChoice {
  std::vector<bool> saved;
  std::vector<bool> recomputed;
  int64_t cost = 0;
};

// The cheapest choice; of several, the one that computes least again (as a set, it is part of each other). The costs' sum must fit in an
// int64. By maximum flow: about linear in practice. Errors: FailedPrecondition if there is no choice. Thread-safe.
absl::StatusOr<RecomputeChoice> SolveRecompute(const RecomputeProblem& problem);

}  // namespace ddpopt

#endif  // DDPOPT_AOT_MIN_CUT_H_
