#include "ddpopt/ddp/step_trace.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/record_function.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/logging.h"
#include "base/status.h"
#include "ddpopt/ddp/backward_sync.h"
#include "ddpopt/distributed/device_streams.h"
#include "nlohmann/json.hpp"
#include "torch/csrc/autograd/profiler_kineto.h"

namespace ddpopt {
namespace {

using Json = nlohmann::json;

// Where the profiler's clock and ours meet.
constexpr char kMarker[] = "ddpopt: the trace begins ";
// Tracks are threads to the trace's format; these are beyond what the kernel gives to threads.
constexpr int64_t kStepTrack = 1'000'000'000;
constexpr int64_t kCommunicationTrack = kStepTrack + 1;  // and those after it

struct TracedStep {
  int64_t number;
  StepTiming timing;
  std::vector<FrozenReducer::BucketContent> buckets;
};

torch::profiler::impl::ProfilerConfig Config() {
  return torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::KINETO);
}

// "bucket 2 (fc.weight, fc.bias)"; of many parameters the first ones.
std::string BucketName(std::size_t index, const FrozenReducer::BucketContent& bucket) {
  constexpr std::size_t kMost = 4;
  std::vector<std::string> names = bucket.names;
  if (names.size() > kMost) {
    const std::size_t more = names.size() - kMost + 1;
    names.resize(kMost - 1);
    names.push_back(absl::StrCat("and ", more, " more"));
  }
  return absl::StrCat("bucket ", index, " (", absl::StrJoin(names, ", "), ")");
}

// Events of ours, with moments in steady seconds.
class Tracks {
 public:
  Tracks(Json* events, Json process, double offset_us) : events_(events), process_(std::move(process)), offset_us_(offset_us) {}

  void Add(const TracedStep& step) {
    const StepTiming& timing = step.timing;
    const Json number = {{"step", step.number}};
    if (timing.forward_begin != 0) {
      Range(kStepTrack, absl::StrCat("forward ", step.number), timing.forward_begin, timing.forward_end, number);
    }
    Range(kStepTrack, absl::StrCat("backward ", step.number), timing.backward_begin, timing.backward_end, number);
    double begin = timing.backward_begin;
    for (std::size_t i = 0; i < timing.buckets.size(); ++i) {
      const BucketTiming& times = timing.buckets[i];
      if (times.launched == 0) continue;  // no parameter of it was used anywhere
      const std::string name = BucketName(i, step.buckets.at(i));
      const Json what = {{"step", step.number}, {"bucket", i}, {"bytes", step.buckets[i].bytes}, {"parameters", step.buckets[i].names}};
      const double full = std::min(times.launched, timing.compute_end);
      if (full > begin) Range(kStepTrack, absl::StrCat("backward of ", name), begin, full, what);
      begin = std::max(begin, full);
      Range(Lane(times), name, times.launched, times.finished, what);
    }
    if (timing.synchronised) Range(kStepTrack, "waiting for communication", timing.compute_end, timing.backward_end, number);
  }

  void NameTracks() {
    Name(kStepTrack, "ddpopt: steps", 0);
    for (std::size_t lane = 0; lane < busy_until_.size(); ++lane) {
      const std::string more = lane == 0 ? "" : absl::StrCat(" (", lane + 1, ")");
      Name(kCommunicationTrack + static_cast<int64_t>(lane), absl::StrCat("ddpopt: communication", more), static_cast<int>(lane) + 1);
    }
  }

 private:
  // Reductions that overlap each other are side by side.
  int64_t Lane(const BucketTiming& times) {
    std::size_t lane = 0;
    while (lane < busy_until_.size() && busy_until_[lane] > times.launched) ++lane;
    if (lane == busy_until_.size()) busy_until_.push_back(0);
    busy_until_[lane] = times.finished;
    return kCommunicationTrack + static_cast<int64_t>(lane);
  }
  void Range(int64_t track, const std::string& name, double begin, double end, Json args) {
    events_->push_back({{"ph", "X"},
                        {"cat", "ddpopt"},
                        {"name", name},
                        {"pid", process_},
                        {"tid", track},
                        {"ts", begin * 1e6 + offset_us_},
                        {"dur", std::max(0.0, (end - begin) * 1e6)},
                        {"args", std::move(args)}});
  }
  void Name(int64_t track, const std::string& name, int order) {
    events_->push_back({{"ph", "M"}, {"name", "thread_name"}, {"pid", process_}, {"tid", track}, {"args", {{"name", name}}}});
    events_->push_back(
        {{"ph", "M"}, {"name", "thread_sort_index"}, {"pid", process_}, {"tid", track}, {"args", {{"sort_index", order - 1000}}}});
  }

  Json* const events_;
  const Json process_;
  const double offset_us_;
  std::vector<double> busy_until_;  // of each lane
};

}  // namespace

struct StepTrace::State {
  std::string path;
  int rank = 0;
  int world_size = 1;
  std::shared_ptr<BackwardSync> sync;
  std::thread::id thread = std::this_thread::get_id();
  std::string marker;
  double marker_seconds = 0, marker_doubt = 1e9;  // when it was, give or take
  std::vector<TracedStep> steps;
  bool finished = false;

  absl::Status Write(torch::autograd::profiler::ProfilerResult& result) const;
};

absl::StatusOr<std::unique_ptr<StepTrace>> StepTrace::Begin(const std::string& prefix, std::shared_ptr<BackwardSync> sync, int rank,
                                                            int world_size) {
  if (prefix.empty()) return absl::InvalidArgumentError("the trace's path is empty");
  if (torch::profiler::impl::profilerType() != torch::profiler::impl::ActiveProfilerType::NONE) {
    return absl::FailedPreconditionError("a profiler is running on this thread already; there can be one");
  }
  auto state = std::make_unique<State>();
  state->path = absl::StrCat(prefix, ".rank", rank, ".json");
  state->rank = rank;
  state->world_size = world_size;
  state->sync = std::move(sync);
  // What can't be written is to be known before the steps, not after.
  if (!std::ofstream(state->path, std::ios::app)) {
    return absl::InvalidArgumentError(absl::StrCat("the trace \"", state->path, "\" can't be opened: ", std::strerror(errno)));
  }
  // Kineto tells of devices that are not there.
  setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);
  std::set<torch::profiler::impl::ActivityType> activities = {torch::profiler::impl::ActivityType::CPU};
  if (state->sync->device().is_cuda()) activities.insert(torch::profiler::impl::ActivityType::CUDA);
  const absl::Status started = CatchAsStatus("starting LibTorch's profiler", [&] {
    torch::autograd::profiler::prepareProfiler(Config(), activities);
    torch::autograd::profiler::enableProfiler(Config(), activities,
                                              {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE});
  });
  if (!started.ok()) return started;
  // The thread may lose its processor between the two: the closest pair counts.
  for (int i = 0; i < 20 && state->marker_doubt > 20e-6; ++i) {
    const std::string marker = absl::StrCat(kMarker, i);
    const double before = SteadySeconds();
    { RECORD_USER_SCOPE(marker); }
    const double doubt = (SteadySeconds() - before) / 2;
    if (doubt >= state->marker_doubt) continue;
    state->marker = marker;
    state->marker_seconds = before + doubt;
    state->marker_doubt = doubt;
  }
  State* const raw = state.get();
  raw->sync->statistics().set_on_step([raw](int64_t number, const StepTiming& timing) {
    const FrozenReducer* const reducer = raw->sync->reducer();
    raw->steps.push_back({number, timing, reducer == nullptr ? std::vector<FrozenReducer::BucketContent>() : reducer->Buckets()});
  });
  return std::unique_ptr<StepTrace>(new StepTrace(std::move(state)));
}

StepTrace::StepTrace(std::unique_ptr<State> state) : state_(std::move(state)) {}

StepTrace::~StepTrace() {
  if (state_->finished) return;
  if (const absl::Status status = Finish(); !status.ok()) LOG(WARNING) << status.message();
  state_->sync->statistics().set_on_step(nullptr);
}

const std::string& StepTrace::path() const { return state_->path; }

absl::Status StepTrace::Finish() {
  if (state_->finished) return absl::FailedPreconditionError(absl::StrCat("the trace \"", state_->path, "\" is finished already"));
  if (std::this_thread::get_id() != state_->thread) {
    return absl::FailedPreconditionError(absl::StrCat("the trace \"", state_->path, "\" began on another thread, which must finish it"));
  }
  state_->finished = true;
  state_->sync->statistics().last();  // those that a device has come to since
  state_->sync->statistics().set_on_step(nullptr);
  return Annotate(CatchAsStatus("", [&] { return state_->Write(*torch::autograd::profiler::disableProfiler()); }),
                  absl::StrCat("writing the trace \"", state_->path, "\""));
}

absl::Status StepTrace::State::Write(torch::autograd::profiler::ProfilerResult& result) const {
  result.save(path);
  DDPOPT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  Json trace = Json::parse(text);
  Json& events = trace["traceEvents"];
  double marker_us = -1;
  Json process;
  for (auto it = events.begin(); it != events.end();) {
    const std::string name = it->value("name", "");
    if (name == marker) {
      marker_us = it->at("ts").get<double>() + it->value("dur", 0.0) / 2;
      process = it->at("pid");
    }
    it = absl::StartsWith(name, kMarker) ? events.erase(it) : std::next(it);
  }
  if (process.is_null()) return absl::InternalError("LibTorch's profiler recorded nothing of this thread");
  Tracks tracks(&events, process, marker_us - marker_seconds * 1e6);
  for (const TracedStep& step : steps) tracks.Add(step);
  tracks.NameTracks();
  for (Json& event : events) {
    if (event.value("name", "") == "process_labels") event["args"]["labels"] = absl::StrCat("rank ", rank);
  }
  trace["ddpopt"] = {{"clock_doubt_us", marker_doubt * 1e6}};
  trace["distributedInfo"] = {{"rank", rank}, {"world_size", world_size}, {"backend", "ddpopt"}};
  return WriteFile(path, trace.dump());
}

}  // namespace ddpopt
