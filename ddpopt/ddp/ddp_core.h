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
#include "absl/types/optional.h"
#include "ddpopt/backends/backend.h"
#include "ddpopt/distributed/process_group.h"

namespace torch::nn {
class Module;
}

namespace ddpopt {

// Names and defaults as PyTorch's DistributedDataParallel.
struct DdpOptions {
  // MiB; see BucketOptions for the defaults and the relation between the two.
  absl::optional<double> bucket_cap_mb;
  absl::optional<double> first_bucket_cap_mb;
  // MiB for each bucket, in the order of reduction, instead of the two above; the last one holds for all that follow.
  std::vector<double> bucket_cap_mb_list;
  // Instead of caps, where buckets end: see BucketOptions::bucket_ends.
  std::vector<std::string> bucket_ends;
  // Whether rank 0's buffers (BatchNorm's running statistics) go to all ranks before each forward with gradients.
  bool broadcast_buffers = true;
  // Whether parameters may be left without gradient: those that the outputs don't depend on are found after each forward, which walks its
  // whole graph. One that no rank used keeps the gradient that it had.
  bool find_unused_parameters = false;
  bool init_sync = true;                          // broadcast parameters and buffers of rank 0 at creation
  std::vector<std::string> parameters_to_ignore;  // qualified names, of buffers too; never compared, broadcast or reduced
  // The one CUDA device of the module, if its inputs are to be moved there: by a side stream, beside the work of the current one. Empty:
  // they are given on the right device.
  std::vector<int> device_ids;
  CompileFn backend;                              // empty: EagerBackend()
  // Every how many forwards with gradients the module is traced again, to see whether what forward reads of the host (a member, a counter,
  // a random number) has changed; so it is at the second one, and after train() or eval(). 0: never.
  int64_t retrace_every = 100;
  // Whether a forward that can't be captured is called as it is, after a warning, and trained with the same buckets; false: an error.
  bool eager_fallback = true;
};

// One reduced bucket of the last backward. Times in seconds on one steady clock; for a module on another device than the CPU, when that
// device came to do it, not when it was told to.
struct BucketTiming {
  double launched = 0;  // the bucket was full and its all-reduce started
  double finished = 0;
};
struct StepTiming {
  double backward_begin = 0;
  double compute_end = 0;             // all gradients computed; all-reduces may still be running
  double backward_end = 0;            // all gradients reduced
  std::vector<BucketTiming> buckets;  // in backward order
};

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

  // Throws c10::Error. The first call with gradients is collective. With gradients, each call must be followed by exactly one backward
  // through its output; one that fails or leaves a parameter without gradient ends the synchronisation for good: later forwards
  // with gradients throw, and say why.
  c10::IValue Forward(const c10::IValue& arguments, const EagerForward& eager);

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
  int64_t num_recompiles() const;
  bool runs_eagerly() const;
  // How often the Reducer was told of a forward: exactly the number of forwards with gradients.
  int64_t num_prepared_forwards() const;
  // Length of the Reducer's list for rebuilding its buckets: zero, since they are frozen.
  int64_t reducer_rebuild_list_size() const;
  // Of the last complete backward; zeros before. Waits until the device has done it.
  const StepTiming& last_step() const;
  // OK if all ranks hold bitwise identical parameters and buffers (ignored ones excepted), else FailedPrecondition naming the ranks and the
  // first that differs. Collective.
  absl::Status CheckParametersEqual() const;

 private:
  struct State;
  explicit DdpCore(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;  // autograd hooks hold it weakly
};

}  // namespace ddpopt

#endif  // DDPOPT_DDP_DDP_CORE_H_
