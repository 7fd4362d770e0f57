#ifndef DDPOPT_DDP_STEP_TRACE_H_
#define DDPOPT_DDP_STEP_TRACE_H_

// A Chrome trace of training steps, for chrome://tracing or ui.perfetto.dev: what LibTorch's profiler (Kineto) sees of operators on this
// rank, and above that two tracks of ours: steps (forward, backward, the piece of the backward that fills each bucket, the wait for
// communication at its end) and communication (each bucket's reduction, under its name and parameters).
//
//   auto trace = ddp->Trace("run1");                // StatusOr; from here on
//   for (...) { ...forward, backward, step...; }
//   absl::Status status = (*trace)->Finish();       // writes run1.rank<N>.json
//
// Names begin with the bucket, as in errors: "bucket 2 (fc.weight, fc.bias)". Profiling slows steps down; a rank may be traced alone.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ddpopt {

class BackwardSync;

class StepTrace {
 public:
  // Finishes, if that has not been done; an error is a warning in the log.
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  // Ends the trace and writes the file; a backward that is running is left out. On the thread on which it began. Errors: FailedPrecondition
  // on another thread or the second time; what opening and writing the file gives.
  absl::Status Finish();
  const std::string& path() const;

 private:
  friend class DdpCore;
  struct State;
  explicit StepTrace(std::unique_ptr<State> state);
  // Errors: InvalidArgument for an empty path, FailedPrecondition if this thread has a profiler already.
  static absl::StatusOr<std::unique_ptr<StepTrace>> Begin(const std::string& prefix, std::shared_ptr<BackwardSync> sync, int rank,
                                                          int world_size);
  std::unique_ptr<State> state_;
};

}  // namespace ddpopt

#endif  // DDPOPT_DDP_STEP_TRACE_H_
