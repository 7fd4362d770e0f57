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

const std::string kData = "testing/testdata/exported/";

std::string RunInspect(const std::string& arguments, int expected_status = 0) {
  FILE* pipe = popen(absl::StrCat("tools/inspect ", arguments, " 2>&1").c_str(), "r");
  std::string output;
  char buffer[4096];
  while (const std::size_t got = fread(buffer, 1, sizeof(buffer), pipe)) output.append(buffer, got);
  EXPECT_EQ(WEXITSTATUS(pclose(pipe)), expected_status) << output;
  return output;
}

TEST(InspectTest, WhatTheModelTakesHoldsAndGives) {
  const std::string text = RunInspect(kData + "forms/batchnorm_decomposed/model.pt2 --parameters");
  EXPECT_THAT(text, AllOf(HasSubstr("exported by PyTorch 2.15.0"), HasSubstr("inputs ((*,), {})"),
                          HasSubstr("writes the buffers n.num_batches_tracked, n.running_mean"), HasSubstr("6 parameters"),
                          HasSubstr("float32[6, 3, 3, 3]"), HasSubstr("aten._native_batch_norm_legit_functional.default")));
  EXPECT_THAT(RunInspect(kData + "forms/dynamic_batch/model.pt2"), AllOf(HasSubstr("float32[s77, 12]"), HasSubstr("s77: 2 to 64")));
  EXPECT_THAT(RunInspect(kData + "forms/values_in/model.pt2"), HasSubstr("always 0.5"));
}

// The line of a node in the table of costs.
std::string CostLine(const std::string& text, const std::string& node) {
  const std::size_t begin = text.find(absl::StrCat("\n", node, " "));
  return begin == std::string::npos ? "" : text.substr(begin + 1, text.find('\n', begin + 1) - begin - 1);
}

TEST(InspectTest, CostsOfNodes) {
  // 4 rows of 12 into 20: 2 * 4 * 20 * 12 operations; 4 * (48 + 240 + 20 + 80) bytes.
  const std::string text = RunInspect(kData + "forms/dynamic_batch/model.pt2 --costs");
  EXPECT_THAT(CostLine(text, "linear"), AllOf(HasSubstr("float32[4, 20]"), HasSubstr(" 1552 "), HasSubstr(" 1920")));
  EXPECT_THAT(CostLine(text, "view"), HasSubstr(" 0 "));
  // ResNet-50, a batch of 32 images of 224 by 224: 4.09 GMAC an image.
  EXPECT_THAT(RunInspect(kData + "graphs/resnet50.model.json.gz --costs"), HasSubstr("2.617e+11 FLOPs"));
}

nlohmann::json LastLine(const std::string& text) { return nlohmann::json::parse(text.substr(text.rfind('\n', text.size() - 2) + 1)); }

TEST(InspectTest, NestedGraphsCostWhatTheirNodesDo) {
  // Three linears of [2, 4] by [4, 4], one of them in a graph that the higher-order operator calls: 2 * 8 * 4 operations each.
  const std::string text = RunInspect(kData + "forms/no_grad_region/model.pt2 --costs --json");
  EXPECT_THAT(text, HasSubstr("528 B, 192 FLOPs"));
  int linears = 0;
  double flops = 0, bytes = 0;
  const nlohmann::json report = LastLine(text);
  for (const nlohmann::json& cost : report["costs"]) {
    flops += cost["flops"].get<double>();
    bytes += cost["bytes"].get<double>();
    linears += cost["operator"] == "aten.linear.default";
    if (cost["operator"] == "wrap_with_set_grad_enabled") {
      EXPECT_EQ(cost["bytes"], 0);
      EXPECT_EQ(cost["flops"], 0);
    }
  }
  EXPECT_EQ(linears, 3);
  EXPECT_EQ(flops, 192);
  EXPECT_EQ(bytes, 528);
}

TEST(InspectTest, Json) {
  const nlohmann::json report = LastLine(RunInspect(kData + "forms/dynamic_batch/model.pt2 --json"));
  EXPECT_EQ(report["inputs"], nlohmann::json::parse(R"([{"name": "x", "form": "float32[s77, 12]"}])"));
  EXPECT_EQ(report["ranges"], nlohmann::json::parse(R"({"s77": [2, 64]})"));
  EXPECT_EQ(report["parameters"][0], nlohmann::json::parse(R"({"name": "a.weight", "form": "float32[20, 12]", "bytes": 960})"));
  EXPECT_EQ(report["operators"]["aten.linear.default"], 2);
  EXPECT_FALSE(report.contains("costs"));
}

TEST(InspectTest, Graphs) {
  const std::string model = kData + "forms/cond/model.pt2";
  EXPECT_THAT(RunInspect(model + " --print=graph"), HasSubstr("torch.ops.higher_order.cond"));
  EXPECT_THAT(RunInspect(model + " --print=tabular"), HasSubstr("opcode"));
  EXPECT_THAT(RunInspect(model + " --print=readable"), HasSubstr("true_graph_0"));
  const std::string dot = absl::StrCat(std::getenv("TEST_TMPDIR"), "/graph.dot");
  RunInspect(absl::StrCat(model, " --dot=", dot));
  EXPECT_THAT(*ReadFile(dot), HasSubstr("digraph"));
}

TEST(InspectTest, SvgIsDrawnByDot) {
  const std::string folder = absl::StrCat(std::getenv("TEST_TMPDIR"), "/bin"), svg = absl::StrCat(std::getenv("TEST_TMPDIR"), "/graph.svg");
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(WriteFile(folder + "/dot", "#!/bin/sh\necho \"<svg $1>\"; /bin/cat\n").ok());
  std::filesystem::permissions(folder + "/dot", std::filesystem::perms::owner_all);
  const std::string path = std::getenv("PATH");
  setenv("PATH", folder.c_str(), 1);
  RunInspect(absl::StrCat(kData, "forms/cond/model.pt2 --svg=", svg));
  setenv("PATH", "/nowhere", 1);
  const std::string missing = RunInspect(absl::StrCat(kData, "forms/cond/model.pt2 --svg=", svg), 1);
  setenv("PATH", path.c_str(), 1);
  // All of the graph goes through, its branches too.
  EXPECT_THAT(*ReadFile(svg), AllOf(::testing::StartsWith("<svg -Tsvg>\ndigraph"), HasSubstr("cluster_true_graph_0")));
  EXPECT_THAT(missing, HasSubstr("apt-get install graphviz"));
}

TEST(InspectTest, Errors) {
  EXPECT_THAT(RunInspect("/no/such/model.pt2", 1), HasSubstr("/no/such/model.pt2"));
  EXPECT_THAT(RunInspect("", 2), HasSubstr("name a model"));
  EXPECT_THAT(RunInspect("x --print=poem", 2), HasSubstr("poem"));
  EXPECT_THAT(RunInspect("x --cost", 2), HasSubstr("unknown argument \"--cost\""));
  EXPECT_THAT(RunInspect("x y", 2), HasSubstr("unknown argument \"y\""));
  EXPECT_THAT(RunInspect(kData + "README.md", 1), HasSubstr("README.md"));
  const std::string model = kData + "forms/cond/model.pt2";
  EXPECT_THAT(RunInspect(model + " --model_name=other", 1), HasSubstr("the archive holds model"));
  EXPECT_THAT(RunInspect(model + " --dot=/no/such/folder/graph.dot", 1), HasSubstr("/no/such/folder/graph.dot"));
  const std::string cut = absl::StrCat(std::getenv("TEST_TMPDIR"), "/cut.pt2");
  ASSERT_TRUE(WriteFile(cut, ReadFile(model)->substr(0, 3000)).ok());
  EXPECT_THAT(RunInspect(cut, 1), HasSubstr("cut.pt2"));
}

}  // namespace
}  // namespace ddpopt
