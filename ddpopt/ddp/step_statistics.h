#ifndef DDPOPT_DDP_STEP_STATISTICS_H_
#define DDPOPT_DDP_STEP_STATISTICS_H_

// What steps cost: moments on the device, as seconds when they are asked for. Private to this package, but for the types of its results.

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ddpopt/ddp/frozen_reducer.h"
#include "ddpopt/ddp/step_timing.h"
#include "ddpopt/distributed/device_streams.h"

namespace ddpopt {

struct ForwardStamps {
  StreamStamp begin;
  StreamStamp end;
};

// A StepTiming in the making: moments on the device, which may still be to come.
struct StepStamps {
  ForwardStamps forward;
  StreamStamp backward_begin;
  StreamStamp compute_end;
  StreamStamp backward_end;
  std::vector<FrozenReducer::Times> buckets;
  int64_t bytes = 0;
  bool synchronised = false;

  StepTiming ToTiming() const;  // waits until the device has got there
};

class StepStatistics {
 public:
  StepStatistics() = default;
  ~StepStatistics();
  StepStatistics(const StepStatistics&) = delete;
  StepStatistics& operator=(const StepStatistics&) = delete;

  // Appends a line for each step to a file from now on. False, with errno, if it can't be opened. If it can't be written later (a full disk),
  // a warning says where it ends.
  bool OpenLog(const std::string& path, int rank);
  void Add(StepStamps step);
  // Told of each step, with its number, when its moments have come. Null: nobody.
  void set_on_step(std::function<void(int64_t number, const StepTiming& timing)> on_step) { on_step_ = std::move(on_step); }
  const StepTiming& last() const;
  // Of all steps so far.
  StepSummary Summary() const;

 private:
  void Settle() const;  // turns moments that have come into seconds

  mutable std::FILE* log_ = nullptr;
  std::string log_path_;
  int rank_ = 0;
  std::function<void(int64_t, const StepTiming&)> on_step_;
  mutable std::vector<StepStamps> pending_;
  mutable StepTiming last_;
  mutable StepSummary sum_;
};

}  // namespace ddpopt

#endif  // DDPOPT_DDP_STEP_STATISTICS_H_
