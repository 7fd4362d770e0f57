#include "base/progress.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

namespace ddpopt {
namespace {

std::atomic<bool> telling{false};  // one scope at a time

void Write(const std::string& text) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

struct ProgressScope::Teller {
  using Clock = std::chrono::steady_clock;

  Teller(std::string what, std::chrono::milliseconds patience)
      : what(std::move(what)), patience(patience), terminal(isatty(STDERR_FILENO) != 0) {
    thread = std::thread([this] { Run(); });
  }
  ~Teller() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      done = true;
      changed.notify_all();
    }
    thread.join();
    telling = false;
  }

  void Run() {
    const Clock::time_point begin = Clock::now();
    Clock::time_point due = begin + patience;
    bool told = false;
    std::unique_lock<std::mutex> lock(mutex);
    while (!changed.wait_until(lock, due, [&] { return done; })) {
      char seconds[32];
      std::snprintf(seconds, sizeof(seconds), "%.0f s", std::chrono::duration<double>(Clock::now() - begin).count());
      Write(terminal ? "\r" + what + ", " + seconds + " ...\033[K" : what + ", " + seconds + " ...\n");
      told = true;
      due = terminal ? Clock::now() + std::chrono::seconds(1) : begin + 2 * (due - begin);
    }
    if (told && terminal) Write("\r\033[K");
  }

  const std::string what;
  const std::chrono::milliseconds patience;
  const bool terminal;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::thread thread;
};

bool ProgressScope::Wanted() {
  const char* asked = std::getenv("DDPOPT_PROGRESS");
  if (asked != nullptr && *asked != '\0') return std::string_view(asked) != "0";
  return isatty(STDERR_FILENO) != 0;
}

ProgressScope::ProgressScope(bool on, std::string what, std::chrono::milliseconds patience) {
  if (!on || !Wanted() || telling.exchange(true)) return;
  teller_ = std::make_unique<Teller>(std::move(what), patience);
}

ProgressScope::~ProgressScope() = default;

}  // namespace ddpopt
