#include "ddpopt/distributed/communication_error.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace ddpopt {

// c10d tells timeouts and lost peers apart in its text alone.
absl::Status CommunicationError(const std::exception& error, absl::string_view context) {
  const std::string text = ExceptionMessage(error);
  const std::string message = absl::StrCat(context, ": ", text);
  for (const char* sign : {"mismatch between collectives", "mismatched sequence", "collectives differ between ranks",
                           "has been shut down"}) {
    if (absl::StrContains(text, sign)) return absl::FailedPreconditionError(message);
  }
  for (const char* sign : {"timed out", "Timed out", "timeout", "Timeout", "has not ended within"}) {
    if (absl::StrContains(text, sign)) return absl::DeadlineExceededError(message);
  }
  for (const char* sign : {"onnection", "onnect", "roken pipe", "peer", "socket", "Socket", "address already in use", "EADDRINUSE"}) {
    if (absl::StrContains(text, sign)) return absl::UnavailableError(message);
  }
  return absl::InternalError(message);
}

std::string Seconds(std::chrono::milliseconds duration) { return absl::StrCat(static_cast<double>(duration.count()) / 1000.0, " s"); }

std::chrono::milliseconds Remaining(std::chrono::steady_clock::time_point deadline) {
  return std::max(std::chrono::milliseconds(1),
                  std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()));
}

std::chrono::steady_clock::time_point DeadlineIn(std::chrono::milliseconds timeout) {
  constexpr std::chrono::hours kFar(24 * 365 * 10);
  return std::chrono::steady_clock::now() + (timeout > kFar ? std::chrono::milliseconds(kFar) : timeout);
}

}  // namespace ddpopt
