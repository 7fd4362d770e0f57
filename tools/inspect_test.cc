#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

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
  EXPECT_THAT(text, AllOf(HasSubstr("exported by PyTorch 2.15.0"), HasSubstr("inputs ((*,), {})"), HasSubstr("writes the buffers n.num_batches_tracked, n.running_mean"),
                          HasSubstr("6 parameters"), HasSubstr("float32[6, 3, 3, 3]"), HasSubstr("aten._native_batch_norm_legit_functional.default")));
  EXPECT_THAT(RunInspect(kData + "forms/dynamic_batch/model.pt2"), AllOf(HasSubstr("float32[s77, 12]"), HasSubstr("s77: 2 to 64")));
  EXPECT_THAT(RunInspect(kData + "forms/values_in/model.pt2"), HasSubstr("always 0.5"));
}

TEST(InspectTest, CostsOfNodes) {
  // 4 rows of 12 into 20: 2 * 4 * 20 * 12 operations; 4 * (48 + 240 + 20 + 80) bytes.
  const std::string text = RunInspect(kData + "forms/dynamic_batch/model.pt2 --costs");
  const std::string line = text.substr(text.find("\nlinear ") + 1, text.find('\n', text.find("\nlinear ") + 1) - text.find("\nlinear ") - 1);
  EXPECT_THAT(line, AllOf(HasSubstr("float32[4, 20]"), HasSubstr(" 1552 "), HasSubstr(" 1920")));
  const std::string view = text.substr(text.find("\nview ") + 1, text.find('\n', text.find("\nview ") + 1) - text.find("\nview ") - 1);
  EXPECT_THAT(view, HasSubstr(" 0 "));
  // ResNet-50, a batch of 32 images of 224 by 224: 4.09 GMAC an image.
  EXPECT_THAT(RunInspect(kData + "graphs/resnet50.model.json.gz --costs"), HasSubstr("2.617e+11 FLOPs"));
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

TEST(InspectTest, Errors) {
  EXPECT_THAT(RunInspect("/no/such/model.pt2", 1), HasSubstr("/no/such/model.pt2"));
  EXPECT_THAT(RunInspect("", 2), HasSubstr("name a model"));
  EXPECT_THAT(RunInspect("x --print=poem", 2), HasSubstr("poem"));
}

}  // namespace
}  // namespace ddpopt
