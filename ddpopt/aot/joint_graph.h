#ifndef DDPOPT_AOT_JOINT_GRAPH_H_
#define DDPOPT_AOT_JOINT_GRAPH_H_

// A piece's forward and backward as one graph of operators below autograd, without mutation, as PyTorch's AOTAutograd traces it.
//
//   DDPOPT_ASSIGN_OR_RETURN(JointGraph joint, TraceJointGraph(piece, fake_inputs));
//   joint.module->graph().ToString();
//   // graph():
//   //     %primals_1 : [num_users=2] = placeholder[target=primals_1]
//   //     ...
//   //     %tangents_1 : [num_users=1] = placeholder[target=tangents_1]
//   //     ...
//   //     return (relu, None, mm, sum_1)
//
// Placeholders: the primals (what the piece reads: its inputs, parameters, buffers, constants), then a tangent for each value that requires
// grad. The output is one tuple: the values that the forward computes; the new contents of primals that it writes to; the gradients, None
// where nothing flows. What the piece itself returns is told by `outputs`, in terms of these.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "absl/status/statusor.h"
#include "ddpopt/aot/decompositions.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

struct JointGraph {
  struct Primal {
    int input = -1;    // among the piece's placeholders; -1: an attribute
    at::Tensor attr;   // the real tensor
    std::string path;  // of the attribute
    bool requires_grad = false;
  };
  // One of the piece's results.
  struct Output {
    enum class Kind {
      kValue,         // values[index]
      kPrimal,        // the very tensor that came in as primals[index], without a history that it hadn't
      kConstant,      // `constant`: None or a number
      kViewOfValue,   // of values[index], made when the piece runs, so that both share memory as the piece's own do
      kViewOfPrimal,  // of primals[index]
    };
    Kind kind = Kind::kConstant;
    int index = -1;
    c10::IValue constant;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    int64_t offset = 0;          // in elements of the base (of its parts, where one of the two is complex alone), from where it begins
    bool requires_grad = false;  // of a view: false detaches it from its base's history
    bool is_complex = false;     // of a view: a base that isn't, or is, is seen as complex numbers, or as their parts
    bool conjugated = false;     // of a view: lazily, beyond its base
  };
  enum class Structure { kSingle, kTuple, kList };

  std::shared_ptr<fx::GraphModule> module;
  std::vector<Primal> primals;
  std::vector<std::pair<int, c10::IValue>> number_inputs;  // inputs that are no tensors, and the values that are part of the graph
  int num_inputs = 0;                                      // of the piece
  int num_values = 0;
  std::vector<int> tangents;   // the values that have one, in the placeholders' order
  std::vector<int> updates;    // the primals written to
  std::vector<int> gradients;  // the primals that require grad
  Structure structure = Structure::kSingle;
  std::vector<Output> outputs;
  std::uint32_t first_backward_id = 0;  // nodes with smaller ids, and all placeholders, were made by the forward
};

struct JointGraphOptions {
  DecompositionSet decompositions;  // operators that are recorded in terms of simpler ones
};

// Traces the piece on its fake inputs, one value for each placeholder, with the thread's grad mode and autocast. Nothing changes: no
// tensor, real or fake, no generator, no graph. Random operators are nodes that draw when the graph runs, as many numbers as the piece's
// own. Running statistics of batch_norm are written in place, by the operator itself.
//
// Errors: Unimplemented with what can't be compiled: an operator without a fake rule or whose result depends on data, an input that
// requires grad and is written to, writes through one of several inputs that share memory, resized inputs, results that share memory in a
// way that can't be remade, nested results, sparse tensors. Not thread-safe in the mode of the fakes.
absl::StatusOr<JointGraph> TraceJointGraph(const fx::GraphModule& piece, const std::vector<c10::IValue>& fake_inputs,
                                           const JointGraphOptions& options = {});

}  // namespace ddpopt

#endif  // DDPOPT_AOT_JOINT_GRAPH_H_
