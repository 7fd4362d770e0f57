#include "tools/fake_run.h"

#include <string>

#include "ddpopt/capture/pt2/exported_program.h"
#include "testing/matchers.h"

namespace ddpopt {
namespace {

using ::testing::Contains;
using ::testing::Not;

const std::string kData = "testing/testdata/exported/";

std::shared_ptr<ExportedProgram> Load(const std::string& path) {
  auto program = LoadExportedProgram(kData + path);
  DDPOPT_EXPECT_OK(program);
  return program.ok() ? *program : nullptr;
}

TEST(FakeRunTest, RecordsForwardAndBackwardBelowAutograd) {
  const auto program = Load("models/convnet_bn/model.pt2");
  FakeRun run;
  DDPOPT_ASSERT_OK(RunOnFakes(*program, {}, &run));
  for (const char* op : {"aten::convolution", "aten::convolution_backward", "aten::native_batch_norm", "aten::native_batch_norm_backward",
                         "aten::_log_softmax_backward_data"}) {
    EXPECT_THAT(run.operators, Contains(op));
  }
  EXPECT_THAT(run.operators, Not(Contains("aten::conv2d")));  // it is above
  FakeRun forward;
  FakeRunOptions options;
  options.backward = false;
  DDPOPT_ASSERT_OK(RunOnFakes(*program, options, &forward));
  EXPECT_THAT(forward.operators, Not(Contains("aten::convolution_backward")));
  for (const auto& parameter : program->parameters()) EXPECT_FALSE(parameter.tensor.grad().defined()) << parameter.name;
}

TEST(FakeRunTest, BothBranchesOfCond) {
  FakeRun run;
  DDPOPT_ASSERT_OK(RunOnFakes(*Load("forms/cond/model.pt2"), {}, &run));
  EXPECT_THAT(run.operators, Contains("aten::sin"));
  EXPECT_THAT(run.operators, Contains("aten::cos"));
}

TEST(FakeRunTest, GivesEachNodesValue) {
  std::map<std::string, std::vector<int64_t>> shapes;
  FakeRunOptions options;
  options.on_value = [&](const fx::Node& node, const c10::IValue& value) {
    if (value.isTensor()) shapes[std::string(node.name())] = value.toTensor().sizes().vec();
  };
  FakeRun run;
  DDPOPT_ASSERT_OK(RunOnFakes(*Load("forms/dynamic_batch/model.pt2"), options, &run));
  EXPECT_EQ(shapes["linear"], (std::vector<int64_t>{4, 20}));
  EXPECT_EQ(shapes["div"], (std::vector<int64_t>{4}));
}

TEST(FakeRunTest, GraphsWithoutWeights) {
  FakeRun run;
  DDPOPT_ASSERT_OK(RunOnFakes(*Load("graphs/resnet50.model.json.gz"), {}, &run));
  EXPECT_THAT(run.operators, Contains("aten::max_pool2d_with_indices_backward"));
}

}  // namespace
}  // namespace ddpopt
