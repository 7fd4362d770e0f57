#ifndef DDPOPT_AOT_PARTITION_H_
#define DDPOPT_AOT_PARTITION_H_

// Cuts a joint graph in two: what runs in forward, and what runs in backward from values that forward saved.
//
//   DDPOPT_ASSIGN_OR_RETURN(PartitionedGraph parts, PartitionDefault(joint));
//   parts.forward->graph().ToString();    // primals -> (values..., updates..., saved intermediates...)
//   parts.backward->graph().ToString();   // (saved..., tangents...) -> gradients

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "ddpopt/aot/joint_graph.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

struct PartitionedGraph {
  struct Saved {
    enum class Kind { kPrimal, kValue, kIntermediate };
    Kind kind;
    int index;  // of the primal, of the value, or among the intermediates
  };

  std::shared_ptr<fx::GraphModule> forward;
  // The same without saved intermediates, for calls without gradients.
  std::shared_ptr<fx::GraphModule> inference;
  std::shared_ptr<fx::GraphModule> backward;
  std::vector<Saved> saved;  // in the order of the backward's placeholders
  int num_intermediates = 0;
  int64_t intermediate_bytes = 0;  // of the distinct memory that intermediates keep
};

// As PyTorch's default partitioner: whatever the forward computed and the backward asks for is saved, nothing is computed again. Views are
// made again from what they are views of, which costs no memory.
// Errors: Internal for a graph that is no joint graph (a value that depends on a tangent).
absl::StatusOr<PartitionedGraph> PartitionDefault(const JointGraph& joint);

}  // namespace ddpopt

#endif  // DDPOPT_AOT_PARTITION_H_
