#include "examples/program.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"

namespace ddpopt::examples {

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::chrono::milliseconds Milliseconds(double seconds) {
  constexpr double kMost = 1e9;
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(std::min(seconds, kMost) * 1000)));
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

void AddBucketPolicy(Flags* flags, std::string* value) { flags->Choice("bucket_policy", value, {"caps", "auto"}); }

BucketPolicy BucketPolicyOf(const std::string& value) { return value == "auto" ? BucketPolicy::kAuto : BucketPolicy::kCaps; }

std::string AutoText(const DdpCore& core) {
  const AutoReport& report = core.auto_report();
  const StepSummary sum = core.summary();
  if (!report.active) return "";
  const double steps = static_cast<double>(std::max<int64_t>(sum.steps, 1));
  return absl::StrFormat("%sGot in the mean of %d steps: %.1f ms of communication, %.1f ms of it exposed\n", report.ToString(), sum.steps,
                         1e3 * sum.communication_seconds / steps, 1e3 * sum.exposed_seconds / steps);
}

nlohmann::ordered_json AutoJson(const DdpCore& core) {
  const AutoReport& report = core.auto_report();
  if (!report.active) return nullptr;
  const StepSummary sum = core.summary();
  const double steps = static_cast<double>(std::max<int64_t>(sum.steps, 1));
  return {{"took_caps", report.took_caps},
          {"expected_communication_ms", 1e3 * report.communication},
          {"expected_exposed_ms", 1e3 * report.exposed},
          {"expected_exposed_of_caps_ms", 1e3 * report.exposed_of_caps},
          {"communication_ms", 1e3 * sum.communication_seconds / steps},
          {"exposed_ms", 1e3 * sum.exposed_seconds / steps}};
}

void ShareProcessors(int64_t ranks) {
  const int64_t threads = std::max<int64_t>(1, static_cast<int64_t>(std::thread::hardware_concurrency()) / ranks);
  setenv("OMP_NUM_THREADS", std::to_string(threads).c_str(), /*overwrite=*/0);
}

}  // namespace ddpopt::examples
