#ifndef DDPOPT_DISTRIBUTED_RUN_WITH_DEADLINE_H_
#define DDPOPT_DISTRIBUTED_RUN_WITH_DEADLINE_H_

// Internal: a call that may never come back, such as one to a store whose process was stopped.
//
//   std::string value;
//   if (!RunWithDeadline(deadline, [store, shared] { shared->value = store->get("key"); })) return absl::DeadlineExceededError(...);

#include <chrono>
#include <functional>

namespace ddpopt {

// Calls fn on a thread of its own and waits for it until `deadline`. True if it came back; what it throws is thrown here. False otherwise:
// fn then goes on on a thread that nobody waits for, so that it must own all that it uses.
bool RunWithDeadline(std::chrono::steady_clock::time_point deadline, std::function<void()> fn);

}  // namespace ddpopt

#endif  // DDPOPT_DISTRIBUTED_RUN_WITH_DEADLINE_H_
