#ifndef DDPOPT_DDP_NO_SYNC_SCOPE_H_
#define DDPOPT_DDP_NO_SYNC_SCOPE_H_

// Gradient accumulation without communication:
//
//   {
//     const ddpopt::NoSyncScope no_sync = ddp->no_sync();
//     for (i < n - 1) ddp->forward(x[i]).backward();       // adds to this rank's gradients
//   }
//   ddp->forward(x[n - 1]).backward();                     // gradients are now the mean over ranks of the sums
//
// What counts is whether *forward* is called within the scope. A backward of such a forward that runs outside of it is not synchronised
// either, and one that runs within, of a forward from outside, is; both are warned of, once. Buffers are not broadcast within. Scopes nest.
// All ranks must do the same. The scope may outlive the wrapper.

#include <memory>
#include <thread>

namespace ddpopt {

class BackwardSync;

class NoSyncScope {
 public:
  explicit NoSyncScope(std::shared_ptr<BackwardSync> sync);
  ~NoSyncScope();
  NoSyncScope(NoSyncScope&& other) noexcept = default;
  NoSyncScope(const NoSyncScope&) = delete;
  NoSyncScope& operator=(const NoSyncScope&) = delete;

 private:
  std::shared_ptr<BackwardSync> sync_;
  std::thread::id thread_;
};

}  // namespace ddpopt

#endif  // DDPOPT_DDP_NO_SYNC_SCOPE_H_
