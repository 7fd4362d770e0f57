#ifndef DDPOPT_AOT_PARTITION_H_
#define DDPOPT_AOT_PARTITION_H_

// Cuts a joint graph in two: what runs in forward, and what runs in backward from values that forward saved.
//
//   DDPOPT_ASSIGN_OR_RETURN(PartitionedGraph parts, Partition(joint, {.kind = PartitionKind::kMinCut, .memory_budget = 0.5}));
//   parts.forward->graph().ToString();    // primals -> (values..., updates..., saved intermediates...)
//   parts.backward->graph().ToString();   // (saved..., tangents...) -> gradients
//   parts.report.ToString();              // what is saved, with its bytes, and what is computed again

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ddpopt/aot/joint_graph.h"
#include "ddpopt/aot/partition_options.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

struct PartitionReport {
  struct Value {
    std::string node;
    std::string what;  // "aten.gelu.default float32[8, 64]"
    int64_t bytes = 0;
  };
  struct Recomputed {
    std::string node;
    std::string what;
    double flops = 0;  // as fx::Flops counts them
  };
  std::vector<Value> saved;  // intermediates, the largest first
  int64_t saved_bytes = 0;
  int64_t default_bytes = 0;            // what the default partition would save
  std::vector<Recomputed> recomputed;  // in the order of the backward; views aren't listed
  double recomputed_flops = 0;
  double recomputed_seconds = 0;  // estimated, for one core; good for comparing partitions of one graph

  std::string ToString() const;
};

struct PartitionedGraph {
  struct Saved {
    enum class Kind { kPrimal, kValue, kIntermediate };
    Kind kind;
    int index;  // of the primal, of the value, or among the intermediates
    // Of an intermediate: a value that lies in the same memory, so that whoever writes to the value changes the intermediate; -1: none.
    int shares_value = -1;
  };

  std::shared_ptr<fx::GraphModule> forward;
  std::shared_ptr<fx::GraphModule> backward;
  std::vector<Saved> saved;  // in the order of the backward's placeholders
  int num_intermediates = 0;
  int64_t intermediate_bytes = 0;  // of the distinct memory that intermediates keep, beyond primals and values
  PartitionReport report;
};

// Views are made again in the backward from what they are views of, which costs no memory; primals and the forward's values are there
// anyway, and cost none. What is computed again is the same bits: the same operators on the same operands, just before the backward first
// asks for it. Random operators, and those that write or aren't ATen's, are never run twice: their results are saved.
//
// Regions that the user has marked for recomputation (checkpoint_region.h) are computed again whatever the kind and the budget are: of the
// values in a region only those are saved that leave it, and what can't be computed again.
//
// Errors: InvalidArgument: a budget outside of [0, 1]. Internal: a graph that is no joint graph (a value that depends on a tangent).
absl::StatusOr<PartitionedGraph> Partition(const JointGraph& joint, const PartitionOptions& options = {});

// The forward without what it saves, for calls without gradients: primals -> (values..., updates...).
absl::StatusOr<std::shared_ptr<fx::GraphModule>> InferenceGraph(const JointGraph& joint, const PartitionedGraph& parts);

inline absl::StatusOr<PartitionedGraph> PartitionDefault(const JointGraph& joint) { return Partition(joint, {}); }

}  // namespace ddpopt

#endif  // DDPOPT_AOT_PARTITION_H_
