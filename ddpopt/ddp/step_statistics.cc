#include "ddpopt/ddp/step_statistics.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/logging.h"

namespace ddpopt {

StepTiming StepStamps::ToTiming() const {
  StepTiming timing;
  const StreamStamp& origin = forward.begin.recorded() ? forward.begin : backward_begin;
  timing.forward_begin = forward.begin.Seconds(origin);
  timing.forward_end = forward.end.Seconds(origin);
  timing.backward_begin = backward_begin.Seconds(origin);
  timing.compute_end = compute_end.Seconds(origin);
  timing.backward_end = backward_end.Seconds(origin);
  for (const FrozenReducer::Times& times : buckets) {
    timing.buckets.push_back({times.launched.Seconds(origin), times.finished.Seconds(origin)});
  }
  timing.bytes = bytes;
  timing.synchronised = synchronised;
  return timing;
}

StepStatistics::~StepStatistics() {
  if (log_ != nullptr) std::fclose(log_);
}

bool StepStatistics::OpenLog(const std::string& path, int rank) {
  rank_ = rank;
  log_path_ = path;
  log_ = std::fopen(path.c_str(), "a");
  return log_ != nullptr;
}

void StepStatistics::Settle() const {
  for (const StepStamps& step : pending_) {
    last_ = step.ToTiming();
    ++sum_.steps;
    sum_.forward_seconds += last_.forward_seconds();
    sum_.backward_seconds += last_.backward_seconds();
    sum_.communication_seconds += last_.communication_seconds();
    sum_.exposed_seconds += last_.exposed_seconds();
    sum_.bytes += last_.bytes;
    if (on_step_) on_step_(sum_.steps, last_);
    if (log_ == nullptr) continue;
    const std::string line = absl::StrFormat(
        "{\"step\": %d, \"rank\": %d, \"synchronised\": %s, \"forward_s\": %.9f, \"backward_s\": %.9f, \"communication_s\": %.9f, "
        "\"exposed_s\": %.9f, \"bytes\": %d, \"buckets\": %d}\n",
        sum_.steps, rank_, last_.synchronised ? "true" : "false", last_.forward_seconds(), last_.backward_seconds(),
        last_.communication_seconds(), last_.exposed_seconds(), last_.bytes, last_.buckets.size());
    if (std::fwrite(line.data(), 1, line.size(), log_) == line.size() && std::fflush(log_) == 0) continue;
    LOG(WARNING) << "step_log: \"" << log_path_ << "\" can't be written: " << std::strerror(errno) << "; it ends with step "
                 << sum_.steps - 1 << ", training goes on";
    std::fclose(std::exchange(log_, nullptr));
  }
  pending_.clear();
}

void StepStatistics::Add(StepStamps step) {
  pending_.push_back(std::move(step));
  // Moments of a device that is behind are asked for later: that would wait for it.
  constexpr std::size_t kMostPending = 64;
  if (pending_.back().backward_end.Reached() || pending_.size() > kMostPending) Settle();
}

const StepTiming& StepStatistics::last() const {
  Settle();
  return last_;
}

StepSummary StepStatistics::Summary() const {
  Settle();
  return sum_;
}

}  // namespace ddpopt
