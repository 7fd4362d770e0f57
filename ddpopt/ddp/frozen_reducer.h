#ifndef DDPOPT_DDP_FROZEN_REDUCER_H_
#define DDPOPT_DDP_FROZEN_REDUCER_H_

// c10d::Reducer with buckets that stay as they were given, exact knowledge of which parameters a backward leaves out, and the times at
// which buckets were reduced. Includes c10d's headers: for .cc files of this package only.
//
//   FrozenReducer reducer(parameters, names, {{2, 3}, {0, 1}}, group, {}, AllReduceHook());   // backward order: bucket 0 is reduced first
//   reducer.CountForward();
//   // In a backward, before the first parameter's gradient:
//   reducer.EnterBackward();
//   reducer.Synchronise();
//   // At its end, when all gradients are computed, and again when the engine has run the Reducer's own callback:
//   reducer.EndOfGraph();
//   if (!reducer.Finished()) throw ... reducer.MissingParameters() ...;
//   reducer.EndBackward();
//
// A backward without Synchronise only accumulates gradients.

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ddpopt/ddp/comm_hook.h"
#include "ddpopt/distributed/device_streams.h"
#include "torch/csrc/distributed/c10d/reducer.hpp"

namespace ddpopt {

struct FrozenReducerOptions {
  bool find_unused_parameters = false;
  bool static_graph = false;                   // what the first backward leaves out, all leave out
  bool skip_all_reduce_unused_params = false;  // with either of these: the same on all ranks
  bool gradient_as_bucket_view = false;
  // How long a hook's future may take beside the all-reduces that it waits for, which have deadlines of their own.
  std::chrono::milliseconds hook_timeout = std::chrono::minutes(5);

  bool MayLeaveOut() const { return find_unused_parameters || static_graph; }
  bool Learns() const { return static_graph || skip_all_reduce_unused_params; }
};

class FrozenReducer : public c10d::Reducer {
 public:
  // On the streams of the bucket's device.
  struct Times {
    StreamStamp launched;
    StreamStamp finished;
  };
  struct BucketContent {
    int64_t bytes = 0;
    std::vector<std::size_t> indices;  // of parameters
    std::vector<std::string> names;
  };

  // Every parameter must be in exactly one bucket; a bucket holds one dtype and one device (throws c10::Error otherwise).
  // Installs hooks on the parameters' gradient accumulators until destroyed.
  FrozenReducer(std::vector<at::Tensor> parameters, std::vector<std::string> names, std::vector<std::vector<std::size_t>> buckets,
                c10::intrusive_ptr<c10d::ProcessGroup> group, FrozenReducerOptions options, std::shared_ptr<CommHook> hook);
  ~FrozenReducer();

  void CountForward();
  bool MayLeaveOut() const { return options_.MayLeaveOut(); }
  bool Learnt() const { return learnt_ || !options_.Learns(); }
  // Whether the backward that runs on this thread accumulates any parameter's gradient; one that only computes gradients for its caller
  // (autograd::grad) does not.
  bool TakesPartInBackward() const;
  // Called when a parameter's gradient comes in a backward that was not entered.
  void set_on_unexpected_gradient(std::function<void()> call) { on_unexpected_gradient_ = std::move(call); }
  // Called, in a backward, with what is wrong with a hook's result; it must throw.
  void set_on_failure(std::function<void(const std::string&)> call) { on_failure_ = std::move(call); }
  // In a backward. Forgets which gradients came in the last one.
  void EnterBackward();
  // After that: expects gradients, and reduces each bucket when it is full. Gradients that came since EnterBackward count in EndOfGraph.
  void Synchronise();
  // With gradient_as_bucket_view, between Synchronise and the bucket's reduction: where the gradient of the parameter, which has none yet, may be
  // written, as a tensor made for the call. Undefined for others, and the second time in a backward.
  at::Tensor TargetFor(const at::Tensor& parameter);
  // How often the last synchronised backward was given one.
  int64_t targets_given() const { return targets_given_; }
  // All gradients are computed. Where parameters may be left out, those that were count as ready now, and what is left is reduced.
  void EndOfGraph();
  // Whether every bucket was reduced and copied back since Synchronise.
  bool Finished() const;
  // Names of the parameters that kept their buckets from being reduced.
  std::vector<std::string> MissingParameters() const;
  // After Finished(), or without Synchronise. Learns, where it is to, which parameters are used. The reason why there is no going on, else
  // empty.
  std::string EndBackward();

  // Join: how many ranks still have gradients, and by what hooks divide sums. At first, and after LeaveJoin, both are the number of ranks.
  // What was averaged before, and is still in a gradient, counts as often as is divided by: only `active` ranks bring it.
  void EnterJoin() { keeps_averaged_ = true; }
  void SetShares(int64_t divisor, int64_t active);
  void LeaveJoin();
  // One shadowed backward of a rank that has none of its own: takes part in each bucket's reduction with zeros, or with what it has
  // accumulated since the last one. Collective with the others' backward; blocks. What went wrong with a hook, else empty.
  std::string Shadow();

  // Read back from the base class, in its own order.
  std::vector<BucketContent> Buckets() const;
  // How many forwards there were.
  int64_t NumForwards() const { return num_forwards_; }
  // Length of the list from which the base class would rebuild its buckets: zero if frozen.
  std::size_t RebuildListSize() const;
  // Per bucket, of the last backward.
  std::vector<Times> BucketTimes() const;
  // Bytes that were given to collectives for buckets since Synchronise.
  int64_t BytesSent() const;
  // The parameters with gradients that are not finite, by name.
  std::vector<std::string> NotFinite() const;
  // The same of what this rank gave to the last reduction. Only kept if asked for.
  void set_check_finite(bool check) { check_finite_ = check; }
  const std::vector<std::string>& NotFiniteHere() const { return not_finite_here_; }

  // Shared with the communication hook's callbacks, which may outlive the reducer.
  struct Clock {
    mutable std::mutex mutex;
    std::vector<Times> times;
    uint64_t step = 0;
    int64_t bytes = 0;
    // All-reduces that hooks have begun and that have not ended, and when the last one did.
    int64_t outstanding = 0;
    std::chrono::steady_clock::time_point last_ended;
    std::condition_variable changed;
  };

 private:
  class TimedHook;
  class LayoutCheck;
  struct Arrival {
    int64_t in_backward = 0;  // how often the gradient came in the current backward, or in the last one
    bool accumulated = false;  // a defined one came, and was not synchronised yet
  };

  class Communicator;
  // A bucket that a hook was given.
  struct Launched {
    std::size_t bucket;
    CommFuture future;
  };
  void OnGradient(std::size_t index, const at::Tensor& gradient);
  void ShareAveraged(const GradBucket& bucket) const;
  void CheckNotTooLate(std::size_t index) const;
  std::string Learn();
  std::string HookOn(std::size_t bucket) const;  // for messages
  // Never null; its value is one tensor as the base class takes it, or an error without HookOn.
  CommFuture RunHook(const GradBucket& bucket) const;
  // Until it is there; `begin` is when waiting began. What went wrong, else empty.
  std::string Await(const Launched& launched, std::chrono::steady_clock::time_point begin) const;
  void AwaitNext();

  const std::vector<std::string> names_;
  const FrozenReducerOptions options_;
  const std::shared_ptr<CommHook> hook_;
  const std::shared_ptr<Clock> clock_;
  const std::unique_ptr<GradBucket::Communicator> communicator_;
  std::vector<GradBucket::Layout> layouts_;
  int64_t divisor_;
  double averaged_share_ = 1;        // of what was averaged before, among what this rank brings
  bool keeps_averaged_ = false;
  std::vector<at::Tensor> averaged_;  // then, each gradient as it was before more was added to it; undefined for none
  int64_t num_forwards_ = 0;
  std::vector<Arrival> arrivals_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> index_of_;
  std::vector<bool> target_given_;  // in this backward
  int64_t targets_given_ = 0;
  std::function<void()> on_unexpected_gradient_;
  std::function<void(const std::string&)> on_failure_;
  std::vector<Launched> launched_;  // in the backward that runs
  std::size_t awaited_ = 0;         // how many of these
  std::chrono::steady_clock::time_point await_begin_;
  bool in_backward_ = false;
  bool synchronising_ = false;
  bool check_finite_ = false;
  std::vector<std::string> not_finite_here_;

  bool learnt_ = false;
  std::vector<bool> used_here_;      // in each synchronised backward
  std::vector<bool> used_anywhere_;
  std::vector<bool> skipped_buckets_;
};

}  // namespace ddpopt

#endif  // DDPOPT_DDP_FROZEN_REDUCER_H_
