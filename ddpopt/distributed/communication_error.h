#ifndef DDPOPT_DISTRIBUTED_COMMUNICATION_ERROR_H_
#define DDPOPT_DISTRIBUTED_COMMUNICATION_ERROR_H_

// Internal: c10d's exceptions as Statuses, and the times in messages.

#include <chrono>
#include <exception>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ddpopt {

// "context: message": DeadlineExceeded, Unavailable or Internal, as c10d's text lets one guess.
absl::Status CommunicationError(const std::exception& error, absl::string_view context);

// "2.5 s".
std::string Seconds(std::chrono::milliseconds duration);

// From now on, at least a millisecond.
std::chrono::milliseconds Remaining(std::chrono::steady_clock::time_point deadline);
// Far enough away if there would be no such moment.
std::chrono::steady_clock::time_point DeadlineIn(std::chrono::milliseconds timeout);

}  // namespace ddpopt

#endif  // DDPOPT_DISTRIBUTED_COMMUNICATION_ERROR_H_
