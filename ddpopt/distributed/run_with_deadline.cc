#include "ddpopt/distributed/run_with_deadline.h"

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace ddpopt {

bool RunWithDeadline(std::chrono::steady_clock::time_point deadline, std::function<void()> fn) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    std::exception_ptr exception;
  };
  const auto shared = std::make_shared<Shared>();
  std::thread([shared, fn = std::move(fn)]() mutable {
    std::exception_ptr exception;
    try {
      fn();
    } catch (...) {
      exception = std::current_exception();
    }
    fn = nullptr;  // what it owns goes before the caller hears of it
    std::lock_guard<std::mutex> lock(shared->mutex);
    shared->exception = exception;
    shared->done = true;
    shared->changed.notify_all();
  }).detach();
  std::unique_lock<std::mutex> lock(shared->mutex);
  if (!shared->changed.wait_until(lock, deadline, [&] { return shared->done; })) return false;
  if (shared->exception) std::rethrow_exception(shared->exception);
  return true;
}

}  // namespace ddpopt
