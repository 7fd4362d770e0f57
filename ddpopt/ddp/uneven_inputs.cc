#include "ddpopt/ddp/uneven_inputs.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "c10/util/Exception.h"
#include "ddpopt/ddp/module_sync.h"

namespace ddpopt {
namespace {

void Check(const absl::Status& status, const ProcessGroup& group) {
  TORCH_CHECK(status.ok(), "DistributedDataParallel on rank ", group.rank(), ", join: ", std::string(status.message()));
}

// Ranks without inputs take part in whatever step comes next, and can't tell whose it is.
class GroupsInScope {
 public:
  static bool Add(const void* group) {
    std::lock_guard<std::mutex> lock(Mutex());
    return Groups().insert(group).second;
  }
  static void Remove(const void* group) {
    std::lock_guard<std::mutex> lock(Mutex());
    Groups().erase(group);
  }

 private:
  // Outlive wrappers in static storage.
  static std::mutex& Mutex() {
    static auto* const mutex = new std::mutex;
    return *mutex;
  }
  static std::set<const void*>& Groups() {
    static auto* const groups = new std::set<const void*>;
    return *groups;
  }
};

}  // namespace

JoinScope::~JoinScope() {
  if (inputs_->active()) inputs_->Abandon();
}

void JoinScope::Finish() { inputs_->Finish(); }

absl::Status UnevenInputs::Begin(const JoinOptions& options) {
  if (active_) return absl::FailedPreconditionError("a join scope is open already");
  if (!GroupsInScope::Add(group_.impl().get())) {
    return absl::FailedPreconditionError(
        "a join scope of another DistributedDataParallel of this process group is open; ranks without inputs could not tell which one's "
        "steps they take part in. Wrap both modules as one");
  }
  options_ = options;
  active_ = true;
  last_active_ = -1;
  joined_before_last_ = false;
  sync_->set_reductions_left(0);
  if (sync_->reducer() != nullptr) sync_->reducer()->EnterJoin();
  return absl::OkStatus();
}

void UnevenInputs::Close() {
  if (std::exchange(active_, false)) GroupsInScope::Remove(group_.impl().get());
  closed_ = true;
}

void UnevenInputs::End() {
  if (std::exchange(active_, false)) GroupsInScope::Remove(group_.impl().get());
  sync_->set_reductions_left(-1);
  if (sync_->reducer() != nullptr) sync_->reducer()->LeaveJoin();
}

void UnevenInputs::Abandon() {
  LOG(WARNING) << "DistributedDataParallel on rank " << group_.rank()
               << ": a join scope was left without Finish(); ranks that still train wait for this one";
  End();
}

std::vector<UnevenInputs::Step> UnevenInputs::Exchange(Step own) {
  const at::NoGradGuard no_grad;
  at::Tensor steps = at::zeros({group_.world_size()}, at::TensorOptions(at::kLong).device(tensors_->device()));
  steps[group_.rank()] = static_cast<int64_t>(own);
  Check(group_.AllReduceSum(steps), group_);
  const at::Tensor all = steps.cpu();
  std::vector<Step> result;
  int active = 0, first_active = -1;
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    result.push_back(static_cast<Step>(all.const_data_ptr<int64_t>()[rank]));
    if (result.back() == kSynchronised || result.back() == kUnsynchronised) {
      ++active;
      if (first_active < 0) first_active = rank;
    }
  }
  if (active == 0) return result;
  last_active_ = first_active;
  joined_before_last_ = active < group_.world_size();
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    const Step step = result[static_cast<std::size_t>(rank)];
    const bool joined = step == kJoined || step == kJoinedUnprepared;
    if ((joined && options_.throw_on_early_termination) || step == kJoinedUnprepared) End();
    TORCH_CHECK(!(joined && options_.throw_on_early_termination), "DistributedDataParallel on rank ", group_.rank(), ", join: rank ", rank,
                " has no more inputs, and throw_on_early_termination is set");
    TORCH_CHECK(step != kJoinedUnprepared, "DistributedDataParallel on rank ", group_.rank(), ", join: rank ", rank,
                " had no input at all; each rank needs one, before which gradient buckets are not made (with static_graph or "
                "skip_all_reduce_unused_params, one whose backward is synchronised)");
    TORCH_CHECK(joined || step == result[static_cast<std::size_t>(first_active)], "DistributedDataParallel on rank ", group_.rank(),
                ", join: rank ", rank, " is ", step == kSynchronised ? "not within" : "within", " a no_sync scope, rank ", first_active,
                step == kSynchronised ? " is" : " is not");
  }
  if (FrozenReducer* const reducer = sync_->reducer(); reducer != nullptr) {
    reducer->EnterJoin();
    reducer->SetShares(options_.divide_by_initial_world_size ? group_.world_size() : active, active);
  }
  return result;
}

void UnevenInputs::CheckBackwardCame() const {
  TORCH_CHECK(sync_->reductions_left() == 0, "DistributedDataParallel on rank ", group_.rank(),
              ", join: the last forward was not followed by a backward; within join, each forward has exactly one");
}

int UnevenInputs::Announce() {
  CheckBackwardCame();
  const bool synchronises = sync_->synchronises();
  Exchange(synchronises ? kSynchronised : kUnsynchronised);
  if (synchronises) sync_->set_reductions_left(1);
  return last_active_;
}

void UnevenInputs::Finish() {
  TORCH_CHECK(!closed_, "DistributedDataParallel on rank ", group_.rank(),
              ", join: the wrapper has been destroyed before the scope's Finish(); ranks that still train wait for this one");
  TORCH_CHECK(active_, "DistributedDataParallel on rank ", group_.rank(), ", join: the scope has ended already");
  sync_->CheckReady();
  CheckBackwardCame();
  while (true) {
    const FrozenReducer* const reducer = sync_->reducer();
    const std::vector<Step> steps = Exchange(reducer != nullptr && reducer->Learnt() ? kJoined : kJoinedUnprepared);
    const bool all_joined = std::all_of(steps.begin(), steps.end(), [](Step step) { return step == kJoined || step == kJoinedUnprepared; });
    if (all_joined) break;
    if (steps[static_cast<std::size_t>(last_active_)] != kSynchronised) continue;
    if (broadcast_buffers_) Check(BroadcastTensors(group_, tensors_->buffers(), last_active_), group_);
    if (const std::string why = sync_->reducer()->Shadow(); !why.empty()) {
      End();
      sync_->Fail(absl::StrCat("join, without inputs of its own: ", why));
    }
  }
  if (joined_before_last_) {
    Check(BroadcastTensors(group_, tensors_->parameters(), last_active_), group_);
    Check(BroadcastTensors(group_, tensors_->buffers(), last_active_), group_);
  }
  End();
}

}  // namespace ddpopt
