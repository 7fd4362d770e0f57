#include "ddpopt/ddp/no_sync_scope.h"

#include <utility>

#include "ddpopt/ddp/backward_sync.h"

namespace ddpopt {

NoSyncScope::NoSyncScope(std::shared_ptr<BackwardSync> sync) : sync_(std::move(sync)), thread_(std::this_thread::get_id()) {
  sync_->EnterNoSync();
}

NoSyncScope::~NoSyncScope() {
  if (sync_ != nullptr) sync_->LeaveNoSync(thread_);
}

}  // namespace ddpopt
