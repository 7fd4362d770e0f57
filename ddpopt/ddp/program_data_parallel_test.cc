// On two ranks: exported programs under DistributedDataParallel. What PyTorch computed on them is compared by tools:check_models.

#include "ddpopt/ddp/program_data_parallel.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"
#include "testing/distributed_test.h"

namespace ddpopt {
namespace {

using testing::ErrorOf;
using ::testing::HasSubstr;

const ProcessGroup& Group() { return testing::TestProcessGroup(); }

std::shared_ptr<ExportedProgram> Load(const std::string& name) {
  auto program = LoadExportedProgram("testing/testdata/exported/" + name);
  if (!program.ok()) ADD_FAILURE() << program.status();
  return program.ok() ? *std::move(program) : nullptr;
}

std::unique_ptr<ProgramDataParallel> Wrap(const std::shared_ptr<ExportedProgram>& program, DdpOptions options = {}) {
  auto ddp = ProgramDataParallel::Create(program, Group(), std::move(options));
  if (!ddp.ok()) ADD_FAILURE() << ddp.status();
  return ddp.ok() ? *std::move(ddp) : nullptr;
}

// forward(x) of a model with a dynamic batch: other sizes in its range are captured when they come, those outside are refused.
TEST(Program, TakesTheSizesThatTheExportAllows) {
  const auto program = Load("forms/dynamic_batch/model.pt2");
  ASSERT_NE(program, nullptr);
  const auto ddp = Wrap(program);
  ASSERT_NE(ddp, nullptr);
  const ProgramInput& input = program->inputs().at(0);
  ASSERT_EQ(input.sizes.size(), 2u);
  const int64_t width = *input.sizes[1].EvaluateInt({});
  for (const int64_t batch : {4, 6}) {
    at::manual_seed(static_cast<uint64_t>(batch + Group().rank()));
    const at::Tensor x = at::randn({batch, width});
    const std::vector<c10::IValue> outputs = ddp->RunFlat({x});
    EXPECT_TRUE(at::equal(outputs.at(0).toTensor(), program->RunFlat({x}).at(0).toTensor()));
    for (const auto& parameter : program->parameters()) parameter.tensor.mutable_grad().reset();
    outputs[0].toTensor().sum().backward();
    at::Tensor total = program->parameters()[0].tensor.grad().clone();
    ASSERT_EQ(Group().AllReduceSum(total), absl::OkStatus());
    EXPECT_TRUE(at::allclose(total.div(2), program->parameters()[0].tensor.grad()));
  }
  EXPECT_EQ(ddp->core().num_recompiles(), 1);
  EXPECT_FALSE(ddp->core().runs_eagerly());
  EXPECT_NE(ErrorOf([&] { ddp->forward(at::ones({4, width + 1})); }), "");
}

TEST(Program, ParametersKeepTheirNamesAndAreTheProgramsOwn) {
  const auto program = Load("models/convnet_bn/model.pt2");
  ASSERT_NE(program, nullptr);
  const auto module = ModuleOf(*program);
  const auto parameters = module->named_parameters();
  ASSERT_EQ(parameters.size(), program->parameters().size());
  for (const auto& parameter : program->parameters()) EXPECT_TRUE(parameters[parameter.name].is_same(parameter.tensor)) << parameter.name;
  EXPECT_EQ(module->named_buffers().size(), program->buffers().size());
  const auto ddp = Wrap(program);
  ASSERT_NE(ddp, nullptr);
  EXPECT_THAT(std::string(ProgramDataParallel::Create(program, Group()).status().message()), HasSubstr("already"));
  EXPECT_THAT(ErrorOf([&] { ddp->forward(); }), HasSubstr("takes 2 tensors"));
}

TEST(Program, WithoutWeightsIsRefused) {
  LoadOptions options;
  options.load_weights = false;
  const auto program = LoadExportedProgram("testing/testdata/exported/models/convnet_bn/model.pt2", options);
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(ProgramDataParallel::Create(*program, Group()).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ProgramDataParallel::Create(nullptr, Group()).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ddpopt
