#ifndef DDPOPT_AOT_JOINT_VALUES_H_
#define DDPOPT_AOT_JOINT_VALUES_H_

// What the partitioner knows of a joint graph's nodes. Private to this package; see partition.h.

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "ddpopt/aot/joint_graph.h"
#include "fx_graph/graph.h"

namespace ddpopt {

struct JointValue {
  enum class Kind : std::uint8_t {
    kPrimal,
    kTensor,
    kView,      // shares its operand's memory, or is a list of such views: nothing to save, and free to make again
    kTuple,     // of an operator with several results: its elements are saved
    kBackward,  // a tangent, what follows from one, or what autograd made on its way back
  };
  Kind kind = Kind::kTensor;
  bool needed = false;           // the backward takes it
  bool can_recompute = false;    // the same bits come out, and nothing else happens
  bool free = false;             // its memory is a primal's or a value's
  int index = -1;                // of a primal
  int region = -1;               // marked for recomputation
  bool leaves_region = false;    // taken by the forward outside of its region
  const fx::Node* base = nullptr;  // of a view
  int64_t bytes = 0;             // of its memory
  double flops = 0;
  double seconds = 0;            // estimated; see JointValues
  int64_t bytes_moved = 0;       // by the operator
};

class JointValues {
 public:
  // Estimates are for one core: 1e11 operations and 2e10 bytes a second, whichever the operator needs.
  explicit JointValues(const JointGraph& joint);

  // Errors: Internal: no joint graph.
  absl::Status Check() const;

  const JointGraph& joint() const { return joint_; }
  const fx::Graph& graph() const { return joint_.module->graph(); }
  const JointValue& operator[](const fx::Node* node) const { return values_.at(node); }
  bool is_backward(const fx::Node* node) const { return values_.at(node).kind == JointValue::Kind::kBackward; }
  const std::vector<fx::Node*>& forward() const { return forward_; }  // in the graph's order, primals included
  const std::vector<fx::Argument>& results() const { return graph().output_node()->args().front().elements(); }
  int num_forward_results() const { return joint_.num_values + static_cast<int>(joint_.updates.size()); }
  bool has_regions() const { return has_regions_; }

 private:
  void Classify();
  void FindRegions();
  void FindRecomputable();
  void Estimate();

  const JointGraph& joint_;
  fx::NodeTable<JointValue> values_;
  std::vector<fx::Node*> forward_;
  bool has_regions_ = false;
};

}  // namespace ddpopt

#endif  // DDPOPT_AOT_JOINT_VALUES_H_
