// On two ranks; every rank runs every case.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ddpopt/ddp/distributed_data_parallel.h"
#include "ddpopt/distributed/process_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "testing/distributed_test.h"
#include "torch/nn/modules/linear.h"

namespace ddpopt {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

const ProcessGroup& Group() { return testing::TestProcessGroup(); }

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("first", first);
    register_module("second", second);
    register_module("third", third);
  }
  at::Tensor forward(const at::Tensor& x) { return third->forward(at::relu(second->forward(at::relu(first->forward(x))))); }
  torch::nn::Linear first{4, 6}, second{6, 6}, third{6, 2};
};
TORCH_MODULE(Net);

std::unique_ptr<DistributedDataParallel<Net>> Wrap(ExecutionMode mode) {
  DdpOptions options;
  options.bucket_cap_mb = 25.0 / (1 << 20);
  options.mode = mode;
  auto ddp = DistributedDataParallel<Net>::Create(Net(), Group(), options);
  if (!ddp.ok()) ADD_FAILURE() << ddp.status();
  return *std::move(ddp);
}

std::string Prefix(const std::string& name) { return absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name, ".", getppid()); }
at::Tensor Batch() { return at::sin(at::arange(12, at::kFloat).reshape({3, 4})); }

struct Range {
  double begin, end;
  Json args;
  bool Contains(const Range& other) const { return begin <= other.begin + 0.1 && other.end <= end + 0.1; }  // rounding
};

// The ranges of one name. Kinds of events differ in their fields; ours and the profiler's ranges have "ph": "X".
std::multimap<std::string, Range> RangesOf(const std::string& path, double* clock_doubt = nullptr) {
  std::multimap<std::string, Range> ranges;
  std::ifstream file(path);
  const Json trace = Json::parse(file);
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const double begin = event["ts"].get<double>();
    ranges.insert({event["name"].get<std::string>(), {begin, begin + event["dur"].get<double>(), event.value("args", Json::object())}});
  }
  EXPECT_EQ(trace["distributedInfo"]["rank"], Group().rank());
  if (clock_doubt != nullptr) *clock_doubt = trace["ddpopt"]["clock_doubt_us"].get<double>();
  return ranges;
}

TEST(StepTrace, HasEveryBucketOfEveryStepOnItsTrack) {
  for (const ExecutionMode mode : {ExecutionMode::kCompiled, ExecutionMode::kEager}) {
    auto ddp = Wrap(mode);
    ddp->forward(Batch()).sum().backward();
    auto trace = ddp->Trace(Prefix("steps"));
    ASSERT_TRUE(trace.ok()) << trace.status();
    for (int step = 0; step < 2; ++step) ddp->forward(Batch()).sum().backward();
    ASSERT_EQ((*trace)->Finish(), absl::OkStatus());
    EXPECT_EQ((*trace)->Finish().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ((*trace)->path(), absl::StrCat(Prefix("steps"), ".rank", Group().rank(), ".json"));
    ddp->forward(Batch()).sum().backward();  // no more in the trace

    double clock_doubt = 0;
    const std::multimap<std::string, Range> ranges = RangesOf((*trace)->path(), &clock_doubt);
    const auto buckets = ddp->core().reducer_buckets();
    ASSERT_EQ(buckets.size(), 3u);
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      const std::string name = absl::StrCat("bucket ", i, " (", absl::StrJoin(buckets[i].parameters, ", "), ")");
      EXPECT_EQ(ranges.count(name), 2u) << name;
      for (auto [it, end] = ranges.equal_range(name); it != end; ++it) {
        EXPECT_EQ(it->second.args["parameters"], Json(buckets[i].parameters));
        EXPECT_EQ(it->second.args["bytes"], buckets[i].bytes);
        const int64_t step = it->second.args["step"].get<int64_t>();
        const auto backward = ranges.find(absl::StrCat("backward ", step));
        ASSERT_NE(backward, ranges.end());
        EXPECT_TRUE(backward->second.Contains(it->second)) << name << " in step " << step;
      }
      EXPECT_EQ(ranges.count(absl::StrCat("backward of ", name)), 2u);
      EXPECT_EQ(ranges.count(absl::StrCat("forward of submod_", i)), mode == ExecutionMode::kCompiled ? 2u : 0u);
    }
    EXPECT_EQ(ranges.count("DistributedDataParallel.forward"), 2u);
    EXPECT_EQ(ranges.count("forward 2") + ranges.count("forward 3"), 2u);
    EXPECT_EQ(ranges.count("waiting for communication"), 2u);
    // The profiler's clock and ours agree: each of our forwards lies in the profiler's range of it, give or take how exactly they are
    // compared.
    for (auto [it, end] = ranges.equal_range("DistributedDataParallel.forward"); it != end; ++it) {
      Range wide = it->second;
      wide.begin -= clock_doubt + 1000, wide.end += clock_doubt + 1000;
      EXPECT_TRUE(wide.Contains(ranges.find("forward 2")->second) || wide.Contains(ranges.find("forward 3")->second));
    }
    EXPECT_GT(ranges.count("aten::addmm") + ranges.count("aten::mm"), 0u);
    std::remove((*trace)->path().c_str());
  }
}

TEST(StepTrace, OneRankAloneAndWithoutSynchronisation) {
  auto ddp = Wrap(ExecutionMode::kCompiled);
  const std::string path = absl::StrCat(Prefix("one"), ".rank", Group().rank(), ".json");
  {
    const auto trace = Group().rank() == 1 ? ddp->Trace(Prefix("one")) : absl::StatusOr<std::unique_ptr<StepTrace>>(nullptr);
    ASSERT_TRUE(trace.ok()) << trace.status();
    ddp->forward(Batch()).sum().backward();  // captures
    const NoSyncScope scope = ddp->no_sync();
    ddp->forward(Batch()).sum().backward();
  }
  if (Group().rank() != 1) return;
  const auto ranges = RangesOf(path);
  EXPECT_EQ(ranges.count("backward 1"), 1u);
  EXPECT_EQ(ranges.count("backward 2"), 1u);
  EXPECT_EQ(ranges.count("waiting for communication"), 1u);
  std::remove(path.c_str());
}

TEST(StepTrace, OutlivesTheWrapper) {
  auto ddp = Wrap(ExecutionMode::kEager);
  auto trace = ddp->Trace(Prefix("outlives"));
  ASSERT_TRUE(trace.ok()) << trace.status();
  ddp->forward(Batch()).sum().backward();
  ddp.reset();
  ASSERT_EQ((*trace)->Finish(), absl::OkStatus());
  EXPECT_EQ(RangesOf((*trace)->path()).count("waiting for communication"), 1u);
  std::remove((*trace)->path().c_str());
}

TEST(StepTrace, WhatItRefuses) {
  auto ddp = Wrap(ExecutionMode::kEager);
  EXPECT_EQ(ddp->Trace("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ddp->Trace("/nowhere/at/all").status().message()), HasSubstr("/nowhere/at/all.rank"));
  auto trace = ddp->Trace(Prefix("refuses"));
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_THAT(std::string(ddp->Trace(Prefix("second")).status().message()), HasSubstr("a profiler is running"));
  absl::Status status;
  std::thread([&] { status = (*trace)->Finish(); }).join();
  EXPECT_THAT(std::string(status.message()), HasSubstr("another thread"));
  EXPECT_EQ((*trace)->Finish(), absl::OkStatus());
  std::remove((*trace)->path().c_str());
}

}  // namespace
}  // namespace ddpopt
