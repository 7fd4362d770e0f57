#ifndef DDPOPT_DDP_DDP_CORE_H_
#define DDPOPT_DDP_DDP_CORE_H_

// The type-erased part of DistributedDataParallel. Users reach it through distributed_data_parallel.h.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ddpopt/ddp/auto_report.h"
#include "ddpopt/ddp/comm_hook.h"
#include "ddpopt/ddp/ddp_options.h"
#include "ddpopt/ddp/join.h"
#include "ddpopt/ddp/no_sync_scope.h"
#include "ddpopt/ddp/step_timing.h"
#include "ddpopt/ddp/step_trace.h"
#include "ddpopt/distributed/process_group.h"

namespace torch::nn {
class Module;
}

namespace ddpopt {

class DdpCore {
 public:
  // Takes a tuple of the arguments, nested as ddpopt/capture/tracer/values.h says, and returns forward's result.
  using EagerForward = std::function<c10::IValue(const c10::IValue&)>;

  // Collective. An error on one rank is an error on all: InvalidArgument where the module or the options are at fault, FailedPrecondition
  // on the others, naming the rank.
  static absl::StatusOr<std::unique_ptr<DdpCore>> Create(std::shared_ptr<torch::nn::Module> module, ProcessGroup group, DdpOptions options);
  // The module may be wrapped again after this. Outputs of earlier forwards can't be used for backward any more.
  ~DdpCore();
  DdpCore(const DdpCore&) = delete;
  DdpCore& operator=(const DdpCore&) = delete;

  // Throws c10::Error. The first call with gradients is collective, and so is each one that broadcasts buffers. A backward through the
  // output leaves averaged gradients behind, see docs/ddp.md; one that fails or leaves a parameter without gradient, where none may be,
  // ends the synchronisation for good: later forwards with gradients throw, and say why.
  c10::IValue Forward(const c10::IValue& arguments, const EagerForward& eager);

  // See no_sync_scope.h.
  NoSyncScope no_sync();
  // See join.h. InvalidArgument with check_gradients_equal_every or check_gradients_finite, in which ranks without inputs can't take part;
  // FailedPrecondition within another such scope of this process group.
  absl::StatusOr<std::unique_ptr<JoinScope>> join(const JoinOptions& options = {});
  // See comm_hook.h. Once, before the first forward with gradients; FailedPrecondition after that, InvalidArgument for null and for a hook
  // that can't be used with the options. That all ranks have the same one is checked in the first forward with gradients.
  absl::Status RegisterCommHook(std::unique_ptr<CommHook> hook);

  // Empty before the first forward with gradients. Bytes, and qualified parameter names, of the Reducer's buckets in backward order, read
  // back from the Reducer.
  struct ReducerBucket {
    int64_t bytes;
    std::vector<std::string> parameters;
  };
  std::vector<ReducerBucket> reducer_buckets() const;
  // The optimizer's table for people; empty before the first forward with gradients.
  std::string bucket_table() const;
  // The optimizer's buckets in backward order, as it made them: one may be several of the Reducer's, if it mixes dtypes.
  std::vector<ReducerBucket> optimizer_buckets() const;
  // What captured graphs hold for, how often forward was captured again and why, or why it runs eagerly; for people.
  std::string explain() const;
  // Of bucket_policy kAuto; not active before the first forward with gradients, and with other policies.
  const AutoReport& auto_report() const;
  int64_t num_recompiles() const;
  bool runs_eagerly() const;
  // How often the Reducer was told of a forward: exactly the number of forwards with gradients.
  int64_t num_prepared_forwards() const;
  // Length of the Reducer's list for rebuilding its buckets: zero, since they are frozen.
  int64_t reducer_rebuild_list_size() const;

  // Begins a Chrome trace, see step_trace.h.
  absl::StatusOr<std::unique_ptr<StepTrace>> Trace(const std::string& path);

  // Of the last complete backward; zeros before. Waits until the device has done it.
  const StepTiming& last_step() const;
  // Of all backwards so far.
  StepSummary summary() const;
  // The summaries of all ranks as a table, on every rank. Collective.
  absl::StatusOr<std::string> SummarizeSteps() const;
  // OK if all ranks' trainable parameters have bitwise identical gradients, or none, as after a synchronised backward; else
  // FailedPrecondition naming the ranks and the first that differs. Collective.
  absl::Status CheckGradientsEqual() const;
  // OK if all ranks hold bitwise identical parameters and buffers (ignored ones excepted), else FailedPrecondition naming the ranks and the
  // first that differs. Collective.
  absl::Status CheckParametersEqual() const;

 private:
  struct State;
  explicit DdpCore(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ddpopt

#endif  // DDPOPT_DDP_DDP_CORE_H_
