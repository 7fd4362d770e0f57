#ifndef DDPOPT_AOT_CHOOSE_SAVED_H_
#define DDPOPT_AOT_CHOOSE_SAVED_H_

// What a forward saves for its backward. Private to this package; see partition.h.

#include <cstdint>

#include "absl/status/statusor.h"
#include "ddpopt/aot/joint_values.h"
#include "ddpopt/aot/partition_options.h"
#include "fx_graph/graph.h"

namespace ddpopt {

struct SavedChoice {
  explicit SavedChoice(const fx::Graph& graph) : saved(graph), recomputed(graph) {}
  fx::NodeTable<std::uint8_t> saved;
  fx::NodeTable<std::uint8_t> recomputed;  // views included
  int64_t bytes = 0;               // of the distinct memory saved, beyond primals and values
  double seconds = 0;              // to compute again what isn't saved
};

// Errors: InvalidArgument for a budget outside of [0, 1]; Internal if the backward asks for what can't be had.
absl::StatusOr<SavedChoice> ChooseSaved(const JointValues& values, const PartitionOptions& options);

}  // namespace ddpopt

#endif  // DDPOPT_AOT_CHOOSE_SAVED_H_
