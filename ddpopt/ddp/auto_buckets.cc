#include "ddpopt/ddp/auto_buckets.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>
#include <utility>

#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "ddpopt/optimizer/auto_borders.h"
#include "ddpopt/optimizer/builtin_device_profiles.h"
#include "ddpopt/optimizer/graph_costs.h"
#include "ddpopt/optimizer/step_model.h"
#include "nlohmann/json.hpp"

namespace ddpopt {
namespace {

// A gain that is worth leaving the default caps for, as a share of the step; and what fewer buckets are worth, as one of backward.
constexpr double kWorth = 0.01, kTolerance = 0.002;
constexpr double kLongest = 0.3;  // seconds of one all-reduce
constexpr double kBeside = 0.03;  // seconds of all-reduces that computing is measured beside, at least

double Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Rank 0's figure on every rank. On the gradients' device, which is the one that the group is sure to take.
absl::StatusOr<double> FromRank0(const ProcessGroup& group, at::Device device, double value) {
  at::Tensor figure = at::empty({1}, at::dtype(at::kDouble));
  figure.fill_(value);
  figure = figure.to(device);
  DDPOPT_RETURN_IF_ERROR(group.Broadcast(figure, 0));
  return figure.item<double>();
}

// What computing loses while all-reduces run: kernels of this thread alone, and beside so many.
absl::StatusOr<double> MeasureSlowdown(const ProcessGroup& group, at::Device device, int64_t bytes, int all_reduces) {
  if (!device.is_cpu()) return 0.0;  // other units do it
  const at::NoGradGuard no_grad;
  const at::Tensor a = at::ones({192, 192});
  const auto count = [&](const std::atomic<bool>& done, double least) {
    const double start = Now();
    int64_t calls = 0;
    do {
      at::mm(a, a);
      ++calls;
    } while (!done.load() || Now() - start < least);
    return static_cast<double>(calls) / (Now() - start);
  };
  std::vector<double> shares;
  for (int i = 0; i < 3; ++i) {
    DDPOPT_RETURN_IF_ERROR(group.Barrier());
    const std::atomic<bool> yes{true};
    const double alone = count(yes, 0.02);
    at::Tensor tensor = at::zeros({std::max<int64_t>(bytes / 4, 1)});
    std::atomic<bool> done{false};
    absl::Status status;
    DDPOPT_RETURN_IF_ERROR(group.Barrier());
    std::thread communication([&] {
      for (int k = 0; k < all_reduces && status.ok(); ++k) status = group.AllReduceSum(tensor);
      done.store(true);
    });
    const double beside = count(done, 0);
    communication.join();
    DDPOPT_RETURN_IF_ERROR(status);
    shares.push_back(std::clamp(1 - beside / alone, 0.0, 0.9));
  }
  return Median(std::move(shares));
}

}  // namespace

absl::StatusOr<AllReduceFigures> MeasureAllReduce(const ProcessGroup& group, at::Device device, int64_t largest_bytes) {
  AllReduceFigures figures;
  if (group.world_size() == 1) return figures;
  std::vector<AllReduceSample> samples;
  int64_t last = 0;
  // One that is too small to fill the link, for the latency; then what buckets can be. In between, links let bursts pass that they don't sustain.
  const int64_t largest = std::clamp(largest_bytes, int64_t{65536}, int64_t{64} << 20) / 4 * 4;
  std::vector<int64_t> sizes = {4096};
  for (int64_t bytes = largest; bytes >= std::max<int64_t>(largest / 64, 65536); bytes /= 8) sizes.insert(sizes.begin() + 1, bytes / 4 * 4);
  for (const int64_t bytes : sizes) {
    at::Tensor tensor = at::zeros({bytes / 4}, at::dtype(at::kFloat).device(device));
    const int repeat = bytes < (1 << 20) ? 5 : 3;
    std::vector<double> seconds;
    DDPOPT_RETURN_IF_ERROR(group.Barrier());
    for (int i = -1; i < repeat; ++i) {  // the first is not counted
      const double start = Now();
      DDPOPT_RETURN_IF_ERROR(group.AllReduceSum(tensor));
      if (i >= 0) seconds.push_back(Now() - start);
    }
    // Latency is what remains where nothing else disturbs.
    const double least = *std::min_element(seconds.begin(), seconds.end());
    DDPOPT_ASSIGN_OR_RETURN(const double median, FromRank0(group, device, bytes == 4096 ? least : Median(std::move(seconds))));
    samples.push_back({bytes, std::max(median, 1e-9)});
    last = bytes;
    if (samples.size() >= 2 && median > kLongest) break;
  }
  DDPOPT_ASSIGN_OR_RETURN(figures.model, FitAllReduce(samples));
  // Rank 0's figures, so that all do the same.
  const double alone = std::max(figures.model.Seconds(last), 1e-6);
  DDPOPT_ASSIGN_OR_RETURN(const double slowdown,
                          MeasureSlowdown(group, device, last, static_cast<int>(std::clamp(kBeside / alone, 1.0, 200.0))));
  DDPOPT_ASSIGN_OR_RETURN(figures.slowdown, FromRank0(group, device, slowdown));
  return figures;
}

absl::StatusOr<AutoChoice> ChooseBuckets(const fx::GraphModule& module, const std::vector<c10::IValue>& inputs,
                                         const AllReduceFigures& figures, const BucketOptions& bare, int64_t memory_limit_bytes) {
  AutoChoice choice;
  absl::StatusOr<GraphCosts> costs = MeasureGraphCosts(module, inputs);
  choice.report.measured = costs.ok();
  if (!costs.ok() || memory_limit_bytes > 0) {
    // What matters is how nodes compare.
    DDPOPT_ASSIGN_OR_RETURN(const DeviceProfile profile, FindDeviceProfile("nvidia_a100_sxm_80gb"));
    absl::StatusOr<GraphCosts> estimate = EstimateGraphCosts(module, inputs, profile);
    if (!estimate.ok()) return estimate.status();
    if (costs.ok()) {
      // Memory is only estimated.
      for (auto& [node, cost] : costs->nodes) {
        if (const auto found = estimate->nodes.find(node); found != estimate->nodes.end()) cost.live_bytes = found->second.live_bytes;
      }
      costs->saved_bytes = estimate->saved_bytes;
      costs->peak_bytes = estimate->peak_bytes;
    } else {
      costs = std::move(estimate);
    }
  }
  DDPOPT_ASSIGN_OR_RETURN(const GraphStep step, MakeGraphStep(module, bare, *costs));
  AutoBordersOptions options;
  options.overlap.slowdown = figures.slowdown;
  options.memory_limit_bytes = memory_limit_bytes;
  options.tolerance = kTolerance;
  DDPOPT_ASSIGN_OR_RETURN(const AutoBorders best, FindBorders(step.model, figures.model, options));
  DDPOPT_ASSIGN_OR_RETURN(const BucketAssignment caps, AssignBuckets(module, bare));
  const Timeline of_caps = PredictTimeline(step.model, figures.model, step.BordersOf(caps), options.overlap);

  choice.buckets = bare;
  AutoReport& report = choice.report;
  report.active = true;
  const bool caps_fit = memory_limit_bytes <= 0 || of_caps.peak_bytes <= memory_limit_bytes;
  report.took_caps = caps_fit && best.timeline.step >= of_caps.step * (1 - kWorth);
  const Timeline& chosen = report.took_caps ? of_caps : best.timeline;
  if (!report.took_caps) {
    choice.buckets.bucket_ends = step.BucketEnds(best.borders);
    // One bucket has no ends.
    if (best.borders.empty()) choice.buckets.bucket_cap_bytes = step.model.parameter_bytes() + 1;
  }
  report.buckets = static_cast<int>(chosen.buckets.size());
  report.forward = chosen.forward;
  report.backward = chosen.backward;
  report.communication = chosen.communication;
  report.exposed = chosen.exposed;
  report.exposed_of_caps = of_caps.exposed;
  report.all_reduce_latency = figures.model.latency;
  report.all_reduce_seconds_per_byte = figures.model.seconds_per_byte;
  report.overlap_slowdown = figures.slowdown;
  return choice;
}

absl::StatusOr<AutoChoice> AgreeOnChoice(const ProcessGroup& group, const absl::StatusOr<AutoChoice>& mine, const BucketOptions& bare) {
  nlohmann::json text;
  if (group.rank() == 0) {
    if (mine.ok()) {
      const AutoReport& r = mine->report;
      text["report"] = {r.took_caps,
                        r.measured,
                        r.buckets,
                        r.forward,
                        r.backward,
                        r.communication,
                        r.exposed,
                        r.exposed_of_caps,
                        r.all_reduce_latency,
                        r.all_reduce_seconds_per_byte,
                        r.overlap_slowdown};
      text["ends"] = mine->buckets.bucket_ends;
      if (mine->buckets.bucket_cap_bytes.has_value()) text["cap"] = *mine->buckets.bucket_cap_bytes;
    } else {
      text["error"] = std::string(mine.status().message());
      text["code"] = static_cast<int>(mine.status().code());
    }
  }
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<std::string> texts, group.AllGatherText("bucket choices", text.dump()));
  const nlohmann::json agreed = nlohmann::json::parse(texts.at(0), nullptr, /*allow_exceptions=*/false);
  if (!agreed.is_object()) return absl::InternalError(absl::StrCat("rank 0's choice of buckets can't be read: \"", texts.at(0), "\""));
  if (agreed.contains("error")) {
    return absl::Status(static_cast<absl::StatusCode>(agreed.value("code", static_cast<int>(absl::StatusCode::kInternal))),
                        absl::StrCat("on rank 0: ", agreed["error"].dump()));
  }
  return CatchAsStatus("reading rank 0's choice of buckets", [&] {
    AutoChoice choice;
    choice.buckets = bare;
    choice.buckets.bucket_ends = agreed.at("ends").get<std::vector<std::string>>();
    if (agreed.contains("cap")) choice.buckets.bucket_cap_bytes = agreed["cap"].get<int64_t>();
    const nlohmann::json& figures = agreed.at("report");
    AutoReport& r = choice.report;
    r.active = true;
    r.took_caps = figures.at(0).get<bool>();
    r.measured = figures.at(1).get<bool>();
    r.buckets = figures.at(2).get<int>();
    double* const values[] = {&r.forward,
                              &r.backward,
                              &r.communication,
                              &r.exposed,
                              &r.exposed_of_caps,
                              &r.all_reduce_latency,
                              &r.all_reduce_seconds_per_byte,
                              &r.overlap_slowdown};
    for (std::size_t i = 0; i < std::size(values); ++i) *values[i] = figures.at(3 + i).get<double>();
    return choice;
  });
}

std::string AutoReport::ToString() const {
  if (!active) return "";
  return absl::StrFormat(
      "bucket_policy auto: %d buckets%s. An all-reduce takes %.3f ms and %.3f ms a MiB, and %.0f %% of its time from the computing beside "
      "it; %s, backward takes "
      "%.1f ms. Expected of a step: %.1f ms of communication, %.1f ms of it exposed (%.1f ms with the default caps)\n",
      buckets, took_caps ? " by the default caps, which nothing else beats by a hundredth of the step" : "", 1e3 * all_reduce_latency,
      1e3 * all_reduce_seconds_per_byte * (1 << 20), 100 * overlap_slowdown, measured ? "as measured" : "as estimated", 1e3 * backward,
      1e3 * communication, 1e3 * exposed, 1e3 * exposed_of_caps);
}

}  // namespace ddpopt
