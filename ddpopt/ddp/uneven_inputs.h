#ifndef DDPOPT_DDP_UNEVEN_INPUTS_H_
#define DDPOPT_DDP_UNEVEN_INPUTS_H_

// What happens within a JoinScope. Private to this package.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "ddpopt/ddp/backward_sync.h"
#include "ddpopt/ddp/join.h"
#include "ddpopt/ddp/module_tensors.h"
#include "ddpopt/distributed/process_group.h"

namespace ddpopt {

class UnevenInputs {
 public:
  UnevenInputs(ProcessGroup group, const ModuleTensors* tensors, std::shared_ptr<BackwardSync> sync, bool broadcast_buffers)
      : group_(std::move(group)), tensors_(tensors), sync_(std::move(sync)), broadcast_buffers_(broadcast_buffers) {}

  bool active() const { return active_; }
  // FailedPrecondition within another scope of the same process group.
  absl::Status Begin(const JoinOptions& options);
  // In each forward with gradients, before all else that is collective. Returns the rank whose buffers count. Throws c10::Error.
  int Announce();
  void Finish();
  void Abandon();
  // The wrapper is gone; the scope may still be there.
  void Close();

 private:
  // What each rank does next.
  enum Step : int64_t { kSynchronised = 1, kUnsynchronised = 2, kJoined = 3, kJoinedUnprepared = 4 };
  std::vector<Step> Exchange(Step own);
  void End();
  void CheckBackwardCame() const;

  const ProcessGroup group_;
  const ModuleTensors* const tensors_;
  const std::shared_ptr<BackwardSync> sync_;
  const bool broadcast_buffers_;
  JoinOptions options_;
  bool active_ = false;
  bool closed_ = false;
  // The first rank that trained in the last step, and whether others had joined by then.
  int last_active_ = -1;
  bool joined_before_last_ = false;
};

}  // namespace ddpopt

#endif  // DDPOPT_DDP_UNEVEN_INPUTS_H_
