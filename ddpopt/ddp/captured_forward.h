#ifndef DDPOPT_DDP_CAPTURED_FORWARD_H_
#define DDPOPT_DDP_CAPTURED_FORWARD_H_

// A module's forward as compiled graphs, one for each kind of call, and what watches that they still are what forward would do. Knows no
// processes. Private to this package.
//
//   CapturedForward captured(module, options);
//   DDPOPT_RETURN_IF_ERROR(captured.CaptureFirst(arguments, forward));
//   ...
//   c10::IValue result = captured.Run(arguments, forward);
//
// A call of another kind (call_guards.h) is captured too, at most kMaxRecompiles times. What forward reads of the host can't be guarded, so
// forward is traced again under fakes at the second call of a kind, at the first one after train() or eval(), and every `retrace_every`
// calls; a trace that differs replaces the graph, with a warning that names the node; a second one that does, or a recompile too many, ends
// it: forward is called as it is from then on, with one warning. A kind of call that can't be captured runs forward as it is each time it
// comes, while other kinds go on as graphs; kMaxEagerKinds of these, each with a warning, and one more ends it too. One thread at a time.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/ivalue.h"
#include "absl/status/status.h"
#include "ddpopt/backends/backend.h"
#include "ddpopt/capture/tracer/trace.h"
#include "ddpopt/ddp/call_guards.h"
#include "ddpopt/optimizer/ddp_optimizer.h"

namespace ddpopt {

struct CapturedForwardOptions {
  CompileFn backend;
  BucketOptions buckets;
  int64_t retrace_every = 100;  // 0: never trace again
  at::Device device = at::kCPU;
  std::string who;        // begins warnings
  bool tells_progress = false;
};

class CapturedForward {
 public:
  static constexpr int64_t kMaxRecompiles = 8;
  static constexpr std::size_t kMaxEagerKinds = 8;

  CapturedForward(std::shared_ptr<torch::nn::Module> module, CapturedForwardOptions options);

  // The trace of the first call, for whoever chooses its buckets. Errors: whatever can't be traced.
  absl::Status TraceFirst(const c10::IValue& arguments, const ValueForward& forward);
  // After TraceFirst, before CaptureFirst.
  const TracedModule& first_trace() const { return *first_trace_; }
  // These instead of the options' buckets. Before CaptureFirst.
  void ChooseBuckets(BucketOptions buckets) { fixed_buckets_ = std::move(buckets); }
  // Traces (unless TraceFirst has), splits and compiles. Its buckets are what later captures are cut to. Errors: whatever can't be captured.
  absl::Status CaptureFirst(const c10::IValue& arguments, const ValueForward& forward);
  // Calls forward as it is from now on, with a warning.
  void GiveUp(std::string reason);
  // The same, because that is wanted: without one.
  void RunEagerly(std::string reason);

  // Precondition: CaptureFirst, GiveUp or RunEagerly was called. Throws c10::Error.
  c10::IValue Run(const c10::IValue& arguments, const ValueForward& forward);

  // Of the first capture; no buckets if there was none.
  const BucketAssignment& assignment() const { return first_.optimized.assignment; }
  // Of the graph that ran last, or of the first.
  const BucketAssignment& last_assignment() const { return last_ == nullptr ? assignment() : last_->optimized.assignment; }
  bool eager() const { return eager_; }
  const std::string& eager_reason() const { return eager_reason_; }
  int64_t recompiles() const { return static_cast<int64_t>(recompile_reasons_.size()); }
  int64_t retraces() const { return retraces_; }
  // Kinds of call that can't be captured and run eagerly, beside the graphs.
  std::size_t eager_kinds() const { return eager_kinds_.size(); }
  // What is guarded, how often it was captured again and why, what is watched; for people.
  std::string Explain() const;

 private:
  struct Graph {
    std::unique_ptr<CallGuards> guards;
    TracedModule traced;  // the assignment points into its graph
    OptimizedModule optimized;
    int64_t calls = 0;
    int64_t calls_since_trace = 0;
    bool doubtful = false;  // to be traced again at its next call
  };
  struct EagerKind {
    CallGuards guards;
    std::string why;
    int64_t calls = 0;
  };
  absl::Status Compile(TracedModule traced, const Call& call, Graph* graph) const;
  absl::Status Capture(const c10::IValue& arguments, const Call& call, const ValueForward& forward, Graph* graph) const;
  // Null: call forward. Else with the tensors among the arguments.
  Graph* GraphFor(const c10::IValue& arguments, const ValueForward& forward, std::vector<at::Tensor>* tensors);
  // After forward has run such a call as it is.
  void RememberEagerKind(CallGuards guards);
  bool TrainingChanged();
  void Retrace(Graph* graph, const c10::IValue& arguments, const Call& call, const ValueForward& forward);

  std::shared_ptr<torch::nn::Module> module_;
  CapturedForwardOptions options_;
  BucketOptions fixed_buckets_;  // of recompiles
  std::unique_ptr<TracedModule> first_trace_;
  Graph first_;                  // kept as it was: its buckets are the Reducer's
  std::vector<std::unique_ptr<Graph>> graphs_;  // the one used last is in front
  Graph* last_ = nullptr;
  std::vector<bool> training_;
  int64_t retraces_ = 0;
  int64_t differences_ = 0;
  std::vector<std::string> recompile_reasons_;
  bool eager_ = false;
  std::string eager_reason_;
  std::vector<EagerKind> eager_kinds_;
  std::string cannot_capture_;  // why the call at hand, the first of its kind, can't be
};

}  // namespace ddpopt

#endif  // DDPOPT_DDP_CAPTURED_FORWARD_H_
