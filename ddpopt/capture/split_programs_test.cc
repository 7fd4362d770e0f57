// Exported programs of every form, cut into as many pieces as they have parameters: values, gradients and buffers are those of the uncut
// program, to the bit.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/core/ivalue.h"
#include "absl/strings/str_cat.h"
#include "ddpopt/backends/backend.h"
#include "ddpopt/capture/pt2/exported_program.h"
#include "ddpopt/optimizer/ddp_optimizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "interpreter/interpreter.h"
#include "testing/matchers.h"
#include "testing/tensors.h"

namespace ddpopt {
namespace {

using c10::IValue;
using testing::IsOk;
using testing::Ramp;
using testing::TensorEq;

std::shared_ptr<ExportedProgram> Load(const std::string& form) {
  auto program = LoadExportedProgram(absl::StrCat("testing/testdata/exported/forms/", form, "/model.pt2"));
  EXPECT_THAT(program.status(), IsOk());
  return program.ok() ? *program : nullptr;
}

// Of the example's sizes, or with `rows` for a size that is open.
std::vector<IValue> Inputs(const ExportedProgram& program, int64_t rows) {
  std::vector<IValue> inputs;
  const std::vector<fx::Node*> placeholders = program.module()->graph().FindNodes(fx::Op::kPlaceholder);
  for (std::size_t i = 0; i < placeholders.size(); ++i) {
    const IValue& meta = placeholders[i]->meta().val;
    if (!meta.isTensor()) {
      inputs.push_back(meta);
      continue;
    }
    std::vector<int64_t> sizes = meta.toTensor().sizes().vec();
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      if (!program.inputs()[i].sizes[d].symbol().empty()) sizes[d] = rows;
    }
    inputs.emplace_back(Ramp(sizes).to(meta.toTensor().scalar_type()));
  }
  return inputs;
}

std::vector<IValue> Flat(const IValue& value) { return value.isTuple() ? value.toTupleRef().elements().vec() : std::vector<IValue>{value}; }

void Backward(const std::vector<IValue>& outputs) {
  at::Tensor loss;
  for (const IValue& output : outputs) {
    if (!output.isTensor() || !output.toTensor().requires_grad()) continue;
    const at::Tensor sum = output.toTensor().to(at::kFloat).pow(2).sum();
    loss = loss.defined() ? loss + sum : sum;
  }
  if (loss.defined()) loss.backward();
}

class SplitProgramsTest : public ::testing::TestWithParam<const char*> {};

TEST_P(SplitProgramsTest, RunAsTheUncutProgram) {
  for (const int64_t rows : {4, 3}) {
    const auto whole = Load(GetParam()), program = Load(GetParam());
    ASSERT_NE(program, nullptr);
    BucketOptions options;
    options.bucket_cap_bytes = 1;
    const std::vector<IValue> inputs = Inputs(*program, rows);
    const auto split = OptimizeDdp(program->module(), inputs, FakeTensorMode::Create(), EagerBackend(), options);
    ASSERT_THAT(split.status(), IsOk());
    for (int step = 0; step < 2; ++step) {
      const std::vector<IValue> expected = whole->RunFlat(Inputs(*whole, rows)),
                                outputs = Flat(CallGraphModule(*split->module, Inputs(*program, rows)));
      ASSERT_EQ(outputs.size(), expected.size());
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        ASSERT_EQ(outputs[i].isTensor(), expected[i].isTensor());
        if (!outputs[i].isTensor()) continue;
        EXPECT_THAT(outputs[i].toTensor(), TensorEq(expected[i].toTensor()));
        EXPECT_EQ(outputs[i].toTensor().requires_grad(), expected[i].toTensor().requires_grad());
      }
      Backward(outputs);
      Backward(expected);
    }
    for (std::size_t i = 0; i < program->parameters().size(); ++i) {
      const at::Tensor grad = program->parameters()[i].tensor.grad(), expected = whole->parameters()[i].tensor.grad();
      ASSERT_EQ(grad.defined(), expected.defined()) << program->parameters()[i].name;
      if (!grad.defined()) continue;
      EXPECT_THAT(grad, TensorEq(expected)) << program->parameters()[i].name;
    }
    for (std::size_t i = 0; i < program->buffers().size(); ++i) {
      EXPECT_THAT(program->buffers()[i].tensor, TensorEq(whole->buffers()[i].tensor)) << program->buffers()[i].name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, SplitProgramsTest,
                         ::testing::Values("autocast_region", "batchnorm_decomposed", "batchnorm_training_ir", "bf16", "cond", "constants",
                                           "dynamic_batch", "eval_mode", "float64", "mutated_buffers", "mutated_input",
                                           "nested_inputs_outputs", "no_grad_region", "values_in"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace ddpopt
