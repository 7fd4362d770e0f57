#ifndef DDPOPT_BASE_STATUS_H_
#define DDPOPT_BASE_STATUS_H_

// Status helpers. Errors of set-up and compile time are absl::Status; LibTorch's exceptions stop here.
//
//   DDPOPT_ASSIGN_OR_RETURN(auto graph, Trace(module));
//   return CatchAsStatus("tracing Net", [&] { return Something(); });   // a c10::Error becomes a Status

#include <exception>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ddpopt {

// "context: message", same code. OK stays OK.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

// The message of an exception without LibTorch's backtrace.
std::string ExceptionMessage(const std::exception& error);

// Runs fn (returning T, Status or StatusOr<T>) and turns any std::exception into an Internal Status "context: message".
template <typename Fn>
auto CatchAsStatus(absl::string_view context, Fn&& fn) {
  using R = std::invoke_result_t<Fn>;
  if constexpr (std::is_void_v<R>) {
    try {
      fn();
      return absl::OkStatus();
    } catch (const std::exception& e) {
      return Annotate(absl::InternalError(ExceptionMessage(e)), context);
    }
  } else if constexpr (std::is_constructible_v<R, absl::Status>) {
    try {
      return R(fn());
    } catch (const std::exception& e) {
      return R(Annotate(absl::InternalError(ExceptionMessage(e)), context));
    }
  } else {
    try {
      return absl::StatusOr<R>(fn());
    } catch (const std::exception& e) {
      return absl::StatusOr<R>(Annotate(absl::InternalError(ExceptionMessage(e)), context));
    }
  }
}

}  // namespace ddpopt

#define DDPOPT_CONCAT_INNER_(a, b) a##b
#define DDPOPT_CONCAT_(a, b) DDPOPT_CONCAT_INNER_(a, b)
#define DDPOPT_RETURN_IF_ERROR(expr)                                  \
  do {                                                                \
    if (absl::Status ddpopt_status_ = (expr); !ddpopt_status_.ok()) { \
      return ddpopt_status_;                                          \
    }                                                                 \
  } while (false)
#define DDPOPT_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                  \
  if (!tmp.ok()) return tmp.status();                 \
  lhs = *std::move(tmp)
#define DDPOPT_ASSIGN_OR_RETURN(lhs, expr) DDPOPT_ASSIGN_OR_RETURN_IMPL_(DDPOPT_CONCAT_(ddpopt_statusor_, __LINE__), lhs, expr)

#endif  // DDPOPT_BASE_STATUS_H_
