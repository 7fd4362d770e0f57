#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace ddpopt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kResnet = "testing/testdata/exported/graphs/resnet50.model.json.gz";
const std::string kGpt2 = "testing/testdata/model_graphs/hf_GPT2.model.json.gz";
const std::string kCluster = " --world_size=64 --bandwidth_gbps=25 --latency_us=10 ";

std::string RunPlan(const std::string& arguments, int expected_status = 0) {
  FILE* pipe = popen(absl::StrCat("tools/plan ", arguments, " 2>&1").c_str(), "r");
  std::string output;
  char buffer[4096];
  while (const std::size_t got = fread(buffer, 1, sizeof(buffer), pipe)) output.append(buffer, got);
  EXPECT_EQ(WEXITSTATUS(pclose(pipe)), expected_status) << output;
  return output;
}

nlohmann::json LastLine(const std::string& text) { return nlohmann::json::parse(text.substr(text.rfind('\n', text.size() - 2) + 1)); }

TEST(PlanTest, TextHasEveryPart) {
  EXPECT_THAT(RunPlan(kResnet + kCluster),
              AllOf(HasSubstr("64 ranks, 25 Gbit/s, 10 us, ring"), HasSubstr("first to last ready"), HasSubstr("  compute     |FF"),
                    HasSubstr("cap 25 MiB"), HasSubstr("memory of a rank: "), HasSubstr("hierarchical"), HasSubstr("    4096")));
}

TEST(PlanTest, JsonAgreesWithItself) {
  const nlohmann::json plan = LastLine(RunPlan(kGpt2 + kCluster + "--json"));
  // What backward takes comes from FLOPs: three products' worth of forward's two, and less than the device's peak allows.
  EXPECT_GT(plan["timeline"]["backward_ms"], plan["timeline"]["forward_ms"]);
  int64_t bytes = 0;
  double end = 0;
  for (const nlohmann::json& bucket : plan["buckets"]) {
    bytes += bucket["bytes"].get<int64_t>();
    EXPECT_GE(bucket["start_ms"].get<double>(), bucket["ready_ms"].get<double>() - 1e-9);
    EXPECT_GE(bucket["start_ms"].get<double>(), end - 1e-9);
    end = bucket["end_ms"];
  }
  EXPECT_EQ(bytes, plan["parameter_bytes"]);
  EXPECT_EQ(plan["bucket_ends"].size() + 1, plan["buckets"].size());
  const double step = plan["timeline"]["step_ms"];
  int caps = 0;
  for (const nlohmann::json& policy : plan["policies"]) {
    EXPECT_GE(policy["step_ms"].get<double>(), step * (1 - 2e-3)) << policy["name"];
    caps += policy.contains("cap_mib");
  }
  EXPECT_GE(caps, 10);
  EXPECT_GE(plan["memory"]["peak"].get<int64_t>(), 5 * plan["parameter_bytes"].get<int64_t>());
  EXPECT_EQ(plan["scaling"].back()["world_size"], 4096);
}

// The embedding is the head's weight too: in a graph file a parameter that no one uses, beside the head's.
TEST(PlanTest, TiedParametersCountOnce) {
  const std::string text = RunPlan(kGpt2 + kCluster + "--json");
  EXPECT_EQ(LastLine(text)["parameter_bytes"], 4 * 124'439'808);
  EXPECT_THAT(text, HasSubstr("warning: \"m.transformer.wte.weight\" is taken for another name of \"m.lm_head.weight\""));
  // T5 has its embedding under four names.
  const std::string t5 = RunPlan("testing/testdata/model_graphs/hf_T5_small.model.json.gz" + kCluster + "--json");
  EXPECT_EQ(LastLine(t5)["parameter_bytes"], 4 * 60'506'624);
  EXPECT_THAT(RunPlan(kResnet + kCluster), Not(HasSubstr("another name")));
}

TEST(PlanTest, ShowsCapsIfAsked) {
  const nlohmann::json plan = LastLine(RunPlan(kResnet + kCluster + "--bucket_cap_mb=10 --json"));
  EXPECT_EQ(plan["chosen"], "chosen");
  EXPECT_GT(plan["buckets"].size(), 5u);
  for (std::size_t i = 0; i + 1 < plan["buckets"].size(); ++i) EXPECT_GE(plan["buckets"][i]["bytes"], 10 << 20);
}

TEST(PlanTest, WritesAPictureAndATrace) {
  const std::string folder = std::getenv("TEST_TMPDIR");
  RunPlan(absl::StrCat(kResnet, kCluster, "--html=", folder, "/plan.html --trace=", folder, "/plan.trace"));
  const absl::StatusOr<std::string> html = ReadFile(folder + "/plan.html"), trace = ReadFile(folder + "/plan.trace");
  ASSERT_TRUE(html.ok() && trace.ok());
  EXPECT_THAT(*html, AllOf(HasSubstr("<svg"), HasSubstr("</svg>"), HasSubstr("</html>"), Not(HasSubstr("http")), Not(HasSubstr("src="))));
  const nlohmann::json events = nlohmann::json::parse(*trace)["traceEvents"];
  int reductions = 0, backward = 0;
  for (const nlohmann::json& event : events) {
    reductions += event.value("cat", "") == "all-reduce";
    backward += event.value("cat", "") == "backward";
    if (event["ph"] == "X") {
      EXPECT_GE(event["dur"].get<double>(), 0);
    }
  }
  EXPECT_GE(reductions, 1);
  EXPECT_GT(backward, 150);
}

TEST(PlanTest, NodesAndAlgorithms) {
  const std::string nodes =
      " --world_size=64 --bandwidth_gbps=100 --latency_us=10 --ranks_per_node=8 --node_bandwidth_gbps=2400 --node_latency_us=2 --json "
      "--algorithm=";
  const nlohmann::json ring = LastLine(RunPlan(kResnet + nodes + "ring")), groups = LastLine(RunPlan(kResnet + nodes + "hierarchical"));
  EXPECT_LT(groups["all_reduce"]["latency_ms"].get<double>(), ring["all_reduce"]["latency_ms"].get<double>());
  EXPECT_EQ(ring["scaling"][0]["world_size"], 1);
}

TEST(PlanTest, RefusesImpossibleFiguresByName) {
  const auto refused = [](const std::string& flags) { return RunPlan(kResnet + " " + flags, 2); };
  EXPECT_THAT(refused("--bandwidth_gbps=1 --latency_us=1"), HasSubstr("--world_size is missing"));
  EXPECT_THAT(refused("--world_size=8 --latency_us=1"), HasSubstr("--bandwidth_gbps is missing"));
  EXPECT_THAT(refused("--world_size=8 --bandwidth_gbps=1"), HasSubstr("--latency_us is missing"));
  EXPECT_THAT(refused("--world_size=0 --bandwidth_gbps=1 --latency_us=1"), HasSubstr("--world_size=0: must be a whole number"));
  EXPECT_THAT(refused("--world_size=2.5 --bandwidth_gbps=1 --latency_us=1"), HasSubstr("--world_size=2.5"));
  EXPECT_THAT(refused("--world_size=8 --bandwidth_gbps=0 --latency_us=1"), HasSubstr("--bandwidth_gbps=0: must be a number above 0"));
  EXPECT_THAT(refused("--world_size=8 --bandwidth_gbps=-3 --latency_us=1"), HasSubstr("--bandwidth_gbps=-3"));
  EXPECT_THAT(refused("--world_size=8 --bandwidth_gbps=nan --latency_us=1"), HasSubstr("--bandwidth_gbps=nan"));
  EXPECT_THAT(refused("--world_size=8 --bandwidth_gbps=1 --latency_us=-1"), HasSubstr("--latency_us=-1"));
  EXPECT_THAT(refused("--world_size=9 --bandwidth_gbps=1 --latency_us=1 --ranks_per_node=8 --node_bandwidth_gbps=9"),
              HasSubstr("ranks_per_node (8) does not divide world_size (9)"));
  EXPECT_THAT(refused(kCluster + "--ranks_per_node=8"), HasSubstr("needs --node_bandwidth_gbps"));
  EXPECT_THAT(refused(kCluster + "--algorithm=star"), HasSubstr("--algorithm=star: must be one of ring, tree, hierarchical"));
  EXPECT_THAT(refused(kCluster + "--device_profile=none_such"), HasSubstr("nvidia_a100_sxm_80gb"));
  EXPECT_THAT(refused(kCluster + "--bucket_cap_mb=1 --first_bucket_cap_mb=2"), HasSubstr("is above"));
  EXPECT_THAT(refused(kCluster + "--colour=red"), HasSubstr("--colour"));
  EXPECT_THAT(RunPlan(kResnet + kCluster + "--memory_gb=0.001", 1), HasSubstr("no buckets fit in memory_limit_bytes (1000000)"));
  EXPECT_THAT(RunPlan("nothing.pt2" + kCluster, 1), HasSubstr("nothing.pt2"));
  EXPECT_THAT(RunPlan("--help"), HasSubstr("Exit status"));
}

TEST(PlanTest, OneRank) { EXPECT_THAT(RunPlan(kResnet + " --world_size=1"), HasSubstr("nothing to communicate")); }

}  // namespace
}  // namespace ddpopt
