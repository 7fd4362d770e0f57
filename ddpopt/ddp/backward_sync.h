#ifndef DDPOPT_DDP_BACKWARD_SYNC_H_
#define DDPOPT_DDP_BACKWARD_SYNC_H_

// Follows the autograd engine through the backwards of a wrapped module: tells the Reducer when one begins and ends, whether it is to be
// synchronised, and what went wrong. Private to this package.
//
//   sync->set_reducer(std::move(reducer));
//   sync->CheckReady();                           // throws after a failure
//   outputs = forward(...);
//   sync->Watch(outputs);                         // whether this thread is within a NoSyncScope counts here, not in backward
//   loss.backward();                              // gradients are averaged when it returns
//
// A backward is synchronised if it passes through the output of a forward that was to be. Its Reducer's whole gradients are averaged, with
// what earlier backwards accumulated in them; an average is averaged again without harm, so that several backwards through one forward, or
// several forwards before one backward, come out right. So is the first one that accumulates gradients after such a forward without passing
// through its output, as by a loss that forward keeps in a member. Backwards that only compute gradients for their caller (autograd::grad)
// are left alone. One thread at a time.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ddpopt/ddp/frozen_reducer.h"
#include "ddpopt/ddp/step_statistics.h"

namespace ddpopt {

class BackwardSync : public std::enable_shared_from_this<BackwardSync> {
 public:
  // `who` begins messages. `after_reduction`, called at the end of each synchronised backward, returns what is wrong with the gradients, or
  // nothing.
  BackwardSync(std::string who, at::Device device, std::function<std::string()> after_reduction);

  void set_reducer(std::unique_ptr<FrozenReducer> reducer);
  FrozenReducer* reducer() const { return reducer_.get(); }

  // The wrapper is gone; scopes and outputs may still refer to this.
  void Close();

  // Throws c10::Error if a backward failed, or is still running.
  void CheckReady() const;
  // Calls back when a backward comes to one of the tensors. They must have a grad_fn. Before that: the moments of the forward that made
  // them.
  void Watch(const std::vector<at::Tensor>& outputs, const ForwardStamps& forward);

  // Whether forwards are to be synchronised now.
  bool synchronises() const { return no_sync_depth_ == 0; }
  // A scope in which they are not; nests. Leaving it on another thread than it was entered on, or in another order, is warned of.
  void EnterNoSync();
  void LeaveNoSync(std::thread::id entered_on);

  // How many synchronised backwards may still come; negative: any number. For Join, where other ranks count them.
  void set_reductions_left(int64_t n) { reductions_left_ = n; }
  int64_t reductions_left() const { return reductions_left_; }

  // Marks it as failed for good: nothing shall train on with gradients that are not synchronised. Throws c10::Error.
  [[noreturn]] void Fail(const std::string& message);
  bool failed() const { return phase_ == Phase::kFailed; }

  StepStatistics& statistics() { return statistics_; }
  at::Device device() const { return device_; }

 private:
  enum class Phase { kIdle, kInBackward, kFailed };

  void OnOutput(int64_t forward, bool synchronise, const ForwardStamps& stamps);
  void OnUnexpectedGradient();
  void Synchronise(int64_t forward);
  void EndOfGraph();
  void EndOfBackward();
  void WarnOnce(bool* warned, const std::string& message);

  const std::string who_;
  const at::Device device_;
  const std::function<std::string()> after_reduction_;
  std::unique_ptr<FrozenReducer> reducer_;

  Phase phase_ = Phase::kIdle;
  std::string failure_;
  int64_t forwards_ = 0;  // number of the last one
  int64_t backward_of_ = 0;
  int task_ = -1;  // the engine's number of the backward that is running
  bool synchronising_ = false;
  int no_sync_depth_ = 0;
  int64_t reductions_left_ = -1;
  bool warned_sampled_ = false, warned_left_ = false, warned_unexpected_ = false;
  // The last forward that is to be synchronised, until a backward was.
  int64_t awaited_ = 0;
  ForwardStamps awaited_stamps_;
  StepStamps current_;
  StepStatistics statistics_;
};

}  // namespace ddpopt

#endif  // DDPOPT_DDP_BACKWARD_SYNC_H_
