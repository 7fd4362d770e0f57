#ifndef DDPOPT_AOT_EXECUTION_PLAN_H_
#define DDPOPT_AOT_EXECUTION_PLAN_H_

// What an Executor works out about a graph before it runs it: which kernel each operator is, where each value lies, and how long. Private to
// this package; see executor.h.
//
// A *value* is a tensor that a node makes (an element, where it makes several). Its *memory* is another thing: a view is a value in the
// memory of what it is a view of. Which values share memory is told by the fakes in the nodes' metadata.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/ivalue.h"
#include "absl/status/statusor.h"
#include "ddpopt/aot/direct_kernels.h"
#include "ddpopt/aot/executor.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

struct ExecutionPlan {
  struct Memory {
    enum class Kind : std::uint8_t {
      kInput,     // the caller's, or a constant of the graph
      kPlanned,   // in the workspace, at `offset`
      kOwn,       // made by the operator's kernel
      kResult,    // allocated for itself before its operator runs: a result, or too large for the workspace
      kTogether,  // allocated with others of `group`, but every value a storage of its own
      kSaved,     // a part of the one storage of `group`
    };
    Kind kind = Kind::kOwn;
    int value = -1;     // which lies in all of it
    int64_t bytes = 0;  // as the fake tells
    int64_t offset = 0;
    int group = -1;
    int output = -1;  // the element of the output that lies in all of it, if nothing else of it is returned
    // The first and the last step at which it is there; `first` is -1 for inputs, `last` the number of steps for what is returned.
    int first = 0;
    int last = 0;
  };

  struct Value {
    int memory = -1;
    std::vector<int64_t> sizes, strides;
    at::ScalarType dtype = at::kFloat;
    int64_t byte_offset = 0;  // from where the memory's value begins
    at::Tensor constant;      // of get_attr
  };

  struct Source {
    enum class Kind : std::uint8_t { kConstant, kValue, kTensors, kOptionalTensors };
    Kind kind;
    // In `constants` or `values`; of lists: where in `lists`.
    int index;
    int size = 0;  // of lists
  };

  struct Range {
    int first = 0;
    int size = 0;
  };

  struct Step {
    enum class Code : std::uint8_t {
      kCall,    // gives its results
      kOut,     // writes into the results, which follow the arguments
      kDirect,  // the same, by `kernel`
    };
    Code code = Code::kCall;
    c10::OperatorHandle op;
    c10::OperatorHandle giving;  // the form that gives its results
    DirectKernel kernel = nullptr;
    const fx::Node* node = nullptr;
    Range sources;
    Range results;    // in `result_values`; -1 for what isn't there
    Range views;      // in `bound_views`: to be laid over their memory before
    Range allocated;  // in `allocations`
    Range freed;      // in `freed_values`, after
  };

  // Of one allocation: kTogether or kSaved.
  struct Group {
    int64_t bytes = 0;
  };

  std::vector<Memory> memories;
  std::vector<Value> values;
  std::vector<int> inputs;  // values of the placeholders
  std::vector<Step> steps;
  std::vector<Source> sources;
  std::vector<c10::IValue> constants;
  std::vector<int> lists;  // values; -1 for None
  std::vector<int> result_values, bound_views, allocations, freed_values;
  std::vector<int> outputs;  // values; -1 for None
  std::vector<int> output_views;  // of these, the ones to be laid over their memory at the end, anew for each run
  std::vector<Group> groups;
  int64_t workspace_bytes = 0;
  std::size_t max_stack = 0;

  bool InWorkspace(int value) const { return memories[values[value].memory].kind == Memory::Kind::kPlanned; }
  // Whether it is the tensor that its memory was made for, and no view.
  bool IsWhole(int value) const { return memories[values[value].memory].value == value; }
};

// Errors: Unimplemented for graphs that must be interpreted: other devices than the CPU, nodes that call no operator, nodes without metadata.
absl::StatusOr<std::shared_ptr<const ExecutionPlan>> PlanExecution(const fx::GraphModule& module, const ExecutorOptions& options);

}  // namespace ddpopt

#endif  // DDPOPT_AOT_EXECUTION_PLAN_H_
