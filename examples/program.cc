#include "examples/program.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"

namespace ddpopt::examples {

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Progress::Progress(bool on, int64_t steps, std::string unit)
    : on_(on), terminal_(isatty(STDERR_FILENO) != 0), steps_(steps), unit_(std::move(unit)), begin_(std::chrono::steady_clock::now()) {}

void Progress::Step(int64_t done, double loss, double units_per_step) {
  if (!on_) return;
  const double seconds = SecondsSince(begin_);
  const bool first = first_done_ == 0;
  if (first) {
    first_ = seconds;
    first_done_ = done;
  }
  const bool last = done == steps_;
  const bool due = terminal_ ? seconds - shown_ > 0.2 : done * 10 / steps_ != (done - 1) * 10 / steps_;
  if (!last && !first && !due) return;
  shown_ = seconds;
  // The first step captures and compiles: it says nothing about the others.
  const double pace = first ? seconds : (seconds - first_) / static_cast<double>(done - first_done_);
  const std::string left = first ? "" : absl::StrFormat(", %.0f s left", pace * static_cast<double>(steps_ - done));
  std::fprintf(stderr, "%s%s%s", terminal_ ? "\r" : "",
               absl::StrFormat("step %d/%d: loss %.3f, %.0f %s/s%s", done, steps_, loss, units_per_step / pace, unit_, left).c_str(),
               terminal_ ? (last ? "\033[K\n" : "\033[K") : "\n");
  std::fflush(stderr);
}

void ShareProcessors(int64_t ranks) {
  const int64_t threads = std::max<int64_t>(1, static_cast<int64_t>(std::thread::hardware_concurrency()) / ranks);
  setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), /*overwrite=*/0);
}

}  // namespace ddpopt::examples
