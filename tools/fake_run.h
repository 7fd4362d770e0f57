#ifndef DDPOPT_TOOLS_FAKE_RUN_H_
#define DDPOPT_TOOLS_FAKE_RUN_H_

// Runs an exported program on fake tensors: its forward, and the backward of what training would minimise, without any data.
//
//   FakeRun run;
//   absl::Status status = RunOnFakes(*program, {}, &run);
//   run.operators;                                    // every overload that autograd called: "aten::addmm", "aten::native_batch_norm_backward", ...
//
// The loss is the output, if the program gives one scalar that requires gradients; else the sum of the sums of its outputs that do. Of torch.cond both branches
// are run, and the first one's values go on. Nothing real changes. A program's open sizes are those of its example.

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/ivalue.h"
#include "absl/status/status.h"
#include "ddpopt/capture/pt2/exported_program.h"

namespace ddpopt {

struct FakeRunOptions {
  bool backward = true;
  // Called with each node's fake value, nested graphs' nodes included.
  std::function<void(const fx::Node& node, const c10::IValue& value)> on_value;
  // Called after each operator below autograd, with its schema's arguments and what it gave. Those of a node come before its on_value.
  std::function<void(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments, const std::vector<c10::IValue>& results)> on_operator;
};

struct FakeRun {
  std::set<std::string> operators;  // reached below autograd, until an error if there was one
  std::string last_operator;        // the last one that was called
  std::vector<c10::IValue> outputs;
};

// Error: Internal with the node and the operator, Unimplemented for a program without what a run needs (an example of its open sizes).
absl::Status RunOnFakes(const ExportedProgram& program, const FakeRunOptions& options, FakeRun* run);

}  // namespace ddpopt

#endif  // DDPOPT_TOOLS_FAKE_RUN_H_
