#include "ddpopt/ddp/backward_sync.h"

#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/logging.h"
#include "c10/util/Exception.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/graph_task.h"

namespace ddpopt {
namespace {

// Two wrappers in one backward reduce their buckets in the order in which these fill. That is the same on all ranks as long as each rank's
// backward runs over the same parameters: a wrapper whose parameters may be left out must be alone.
class WrappersOfBackward {
 public:
  // The first wrapper of the backward with this number other than `wrapper`, if one of the two may leave parameters out.
  static bool Conflicts(int task, const void* wrapper, bool may_leave_out) {
    static std::mutex mutex;
    static int last_task = -1;
    static const void* first = nullptr;
    static bool any_may = false;
    std::lock_guard<std::mutex> lock(mutex);
    if (task != last_task) {
      last_task = task;
      first = wrapper;
      any_may = may_leave_out;
      return false;
    }
    any_may = any_may || may_leave_out;
    return wrapper != first && any_may;
  }
};

}  // namespace

BackwardSync::BackwardSync(std::string who, at::Device device, std::function<std::string()> after_reduction)
    : who_(std::move(who)), device_(device), after_reduction_(std::move(after_reduction)) {}

void BackwardSync::set_reducer(std::unique_ptr<FrozenReducer> reducer) {
  reducer_ = std::move(reducer);
  reducer_->set_on_unexpected_gradient([this] { OnUnexpectedGradient(); });
  reducer_->set_on_failure([this](const std::string& why) { Fail(why); });
}

void BackwardSync::Fail(const std::string& message) {
  phase_ = Phase::kFailed;
  failure_ = message;
  TORCH_CHECK(false, who_, ": ", message);
}

void BackwardSync::Close() {
  reducer_.reset();
  phase_ = Phase::kFailed;
  failure_ = "the wrapper has been destroyed";
}

void BackwardSync::CheckReady() const {
  TORCH_CHECK(phase_ != Phase::kFailed, who_, ": an earlier backward failed: ", failure_,
              ". Its gradients are not synchronised; make a new DistributedDataParallel");
  TORCH_CHECK(phase_ != Phase::kInBackward, who_, ": the backward of forward number ", backward_of_,
              " has not ended, or failed with an error of its own; its gradients are not synchronised. Make a new DistributedDataParallel");
}

void BackwardSync::WarnOnce(bool* warned, const std::string& message) {
  if (!std::exchange(*warned, true)) LOG(WARNING) << who_ << ": " << message;
}

void BackwardSync::EnterNoSync() { ++no_sync_depth_; }

void BackwardSync::LeaveNoSync(std::thread::id entered_on) {
  --no_sync_depth_;
  if (entered_on != std::this_thread::get_id()) {
    WarnOnce(&warned_left_,
             "a no_sync scope was left on another thread than it was entered on; forwards of both threads are sampled alike");
  }
}

void BackwardSync::Watch(const std::vector<at::Tensor>& outputs, const ForwardStamps& forward) {
  const int64_t number = ++forwards_;
  const bool synchronise = synchronises();
  if (synchronise) {
    awaited_ = number;
    awaited_stamps_ = forward;
  }
  for (const at::Tensor& output : outputs) {
    output.register_hook([weak = weak_from_this(), number, synchronise, forward](const at::Tensor&) {
      const std::shared_ptr<BackwardSync> sync = weak.lock();
      TORCH_CHECK(sync != nullptr && sync->reducer_ != nullptr,
                  "DistributedDataParallel: backward through the output of a wrapper that has been destroyed; its gradients "
                  "could not be synchronised");
      sync->OnOutput(number, synchronise, forward);
    });
  }
}

void BackwardSync::OnUnexpectedGradient() {
  if (phase_ != Phase::kIdle) return;
  if (awaited_ != 0) return OnOutput(awaited_, /*synchronise=*/true, awaited_stamps_);
  if (!synchronises()) return;
  WarnOnce(&warned_unexpected_,
           "a backward that did not come from the wrapper's forward computed gradients of its parameters; they are this rank's own until "
           "the next synchronised backward");
}

// Runs when the gradient of a forward's output is known, before that of any parameter within the graph.
void BackwardSync::OnOutput(int64_t forward, bool synchronise, const ForwardStamps& stamps) {
  if (!reducer_->TakesPartInBackward()) return;
  TORCH_CHECK(phase_ != Phase::kFailed, who_, ": an earlier backward failed: ", failure_);
  const int task = torch::autograd::get_current_graph_task_id();
  if (phase_ == Phase::kIdle) {
    phase_ = Phase::kInBackward;
    task_ = task;
    backward_of_ = forward;
    synchronising_ = false;
    current_ = StepStamps();
    current_.forward = stamps;
    current_.backward_begin = StreamStamp::Record(device_);
    reducer_->EnterBackward();
    auto& engine = torch::autograd::Engine::get_default_engine();
    engine.queue_callback([weak = weak_from_this()] {
      // Queueing may move this very closure: nothing captured is used afterwards.
      const std::weak_ptr<BackwardSync> self = weak;
      if (const auto sync = self.lock()) sync->EndOfGraph();
      // The Reducer's own callback, which waits for the all-reduces, has been queued by now; the next one comes after it.
      torch::autograd::Engine::get_default_engine().queue_callback([self] {
        if (const auto sync = self.lock()) sync->EndOfBackward();
      });
    });
  }
  TORCH_CHECK(task == task_, who_, ": a backward through forward number ", forward, " began while that of forward number ", backward_of_,
              " was running, or after it failed with an error of its own; gradients are not synchronised any more. Make a new "
              "DistributedDataParallel");
  if (synchronise && !synchronising_) Synchronise(forward);
  if (!synchronise && synchronises() && !synchronising_) {
    WarnOnce(&warned_sampled_, absl::StrCat("forward number ", forward,
                                            " ran within no_sync, its backward runs outside: it is not synchronised, since that is decided "
                                            "in forward"));
  } else if (synchronise && !synchronises()) {
    WarnOnce(&warned_sampled_, absl::StrCat("forward number ", forward,
                                            " ran outside of no_sync, its backward runs within: it is synchronised, since that is decided "
                                            "in forward"));
  }
}

void BackwardSync::Synchronise(int64_t forward) {
  if (WrappersOfBackward::Conflicts(task_, this, reducer_->MayLeaveOut())) {
    Fail(absl::StrCat("the backward of forward number ", forward,
                      " runs through another DistributedDataParallel's output too. With find_unused_parameters or static_graph, ranks may "
                      "then reduce buckets in different orders: call backward for each, or wrap both modules as one"));
  }
  if (reductions_left_ == 0) {
    Fail(absl::StrCat("within join, each forward has exactly one backward, but another one came through forward number ", forward));
  }
  if (reductions_left_ > 0) --reductions_left_;
  synchronising_ = true;
  reducer_->Synchronise();
}

void BackwardSync::EndOfGraph() {
  if (phase_ != Phase::kInBackward) return;
  current_.compute_end = StreamStamp::Record(device_);
  reducer_->EndOfGraph();
}

void BackwardSync::EndOfBackward() {
  if (phase_ != Phase::kInBackward) return;
  if (synchronising_ && !reducer_->Finished()) {
    std::vector<std::string> quoted;
    for (const std::string& name : reducer_->MissingParameters()) quoted.push_back(absl::StrCat("\"", name, "\""));
    const std::string why =
        reducer_->MayLeaveOut()
            ? "They got one in the first synchronised backward: the graph is not static"
            : "Every trainable parameter must take part in every backward; name exceptions in parameters_to_ignore, or set "
              "find_unused_parameters";
    const bool one = quoted.size() == 1;
    Fail(absl::StrCat(one ? "parameter " : "parameters ", absl::StrJoin(quoted, ", "), " got no gradient in this backward, so ",
                      one ? "its bucket and those after it" : "their buckets and those after them", " were not synchronised. ", why));
  }
  if (const std::string why = reducer_->EndBackward(); !why.empty()) Fail(why);
  if (synchronising_) {
    if (const std::string why = after_reduction_(); !why.empty()) Fail(why);
  }
  current_.backward_end = StreamStamp::Record(device_);
  current_.synchronised = synchronising_;
  if (synchronising_) {
    awaited_ = 0;
    awaited_stamps_ = ForwardStamps();
    current_.buckets = reducer_->BucketTimes();
    current_.bytes = reducer_->BytesSent();
  }
  phase_ = Phase::kIdle;
  statistics_.Add(std::move(current_));
}

}  // namespace ddpopt
