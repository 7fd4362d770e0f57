// Training steps of whole models on fakes: every operator that autograd leaves gets the arguments and gives the results that it does in the
// real run, in everything but data.

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ATen/Context.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/Tensor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "c10/core/GradMode.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "gtest/gtest.h"
#include "testing/autocast.h"
#include "interpreter/mode_stack.h"
#include "testing/call_outcome.h"
#include "testing/models/models.h"
#include "torch/optim/adagrad.h"
#include "torch/optim/adam.h"
#include "torch/optim/adamw.h"
#include "torch/optim/rmsprop.h"
#include "torch/optim/sgd.h"

namespace ddpopt {
namespace {

using testing::AllModels;
using testing::Autocast;
using testing::Model;
using testing::TensorFacts;

// Writes down each call of an operator, in text. Storages are numbered in the order in which they appear, and kept, so that none gets the
// address of an earlier one.
class Recorder : public Mode {
 public:
  Level level() const override { return Level::kPostAutograd; }
  absl::string_view name() const override { return "Recorder"; }

  void Handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    const c10::FunctionSchema& schema = op.schema();
    const auto arguments = torch::jit::last(*stack, schema.arguments().size()).vec();
    std::vector<std::string> parts;
    for (const c10::IValue& argument : arguments) parts.push_back(Text(argument));
    op.callBoxed(stack);
    std::string line = absl::StrCat(c10::toString(op.operator_name()), "(", absl::StrJoin(parts, ", "), ") -> ");
    for (const c10::IValue& result : torch::jit::last(*stack, schema.returns().size())) {
      std::string same;
      for (std::size_t i = 0; i < arguments.size(); ++i) {
        if (!result.isTensor() || !arguments[i].isTensor() || !result.toTensor().defined()) continue;
        if (result.toTensor().is_same(arguments[i].toTensor())) {
          same = absl::StrCat(" is argument ", i);
          break;
        }
      }
      absl::StrAppend(&line, Text(result), same, "; ");
    }
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
      if (alias != nullptr && alias->isWrite()) absl::StrAppend(&line, "argument ", i, " becomes ", Text(arguments[i]), "; ");
    }
    lines.push_back(std::move(line));
  }

  std::string Text(const at::Tensor& tensor) {
    if (!tensor.defined()) return "undefined";
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    const auto [found, is_new] = numbers_.emplace(storage, numbers_.size());
    if (is_new) storages_.push_back(tensor.storage());
    return absl::StrCat("#", found->second, " ", TensorFacts::Of(tensor).ToString(), tensor.requires_grad() ? " grad" : "");
  }

  std::vector<std::string> lines;

 private:
  std::string Text(const c10::IValue& value) {
    if (value.isTensor()) return Text(value.toTensor());
    if (value.isList() || value.isTuple()) {
      std::vector<std::string> elements;
      if (value.isList()) {
        for (const c10::IValue& element : value.toListRef()) elements.push_back(Text(element));
      } else {
        for (const c10::IValue& element : value.toTupleRef().elements()) elements.push_back(Text(element));
      }
      return absl::StrCat("[", absl::StrJoin(elements, ", "), "]");
    }
    if (value.isGenerator()) return "generator";
    if (value.isNone()) return "None";
    std::ostringstream text;
    text << value;
    return text.str();
  }

  std::unordered_map<const c10::StorageImpl*, std::size_t> numbers_;
  std::vector<c10::Storage> storages_;
};

using Optimizer = std::unique_ptr<torch::optim::Optimizer>;

struct Setting {
  const char* name;
  Optimizer (*optimizer)(std::vector<at::Tensor> parameters);
  bool autocast = false;
};

// Construction, two training steps and what they leave, in text.
std::vector<std::string> Train(const Model& model, const Setting& setting) {
  at::manual_seed(11);
  const auto recorder = std::make_shared<Recorder>();
  ModeGuard guard(recorder);
  const auto module = model.make();
  const std::vector<at::Tensor> batch = model.batch();
  const Optimizer optimizer = setting.optimizer(module->parameters());
  // Counted from here: what a constructor's factories did to a tensor before they gave it out isn't told apart.
  std::unordered_map<const c10::TensorImpl*, int64_t> versions;
  for (const at::Tensor& tensor : module->parameters()) versions[tensor.unsafeGetTensorImpl()] = tensor._version();
  for (const at::Tensor& tensor : module->buffers()) versions[tensor.unsafeGetTensorImpl()] = tensor._version();
  for (int step = 0; step < 2; ++step) {
    recorder->lines.push_back(absl::StrCat("step ", step));
    optimizer->zero_grad();
    at::Tensor loss;
    {
      Autocast autocast(setting.autocast);
      loss = model.loss(*module, batch);
    }
    loss.backward();
    optimizer->step();
  }
  const auto left = [&](const std::string& name, const at::Tensor& tensor) {
    const auto before = versions.find(tensor.unsafeGetTensorImpl());
    recorder->lines.push_back(absl::StrCat(name, ": ", recorder->Text(tensor), ", changed ",
                                           tensor.defined() ? tensor._version() - (before == versions.end() ? 0 : before->second) : 0,
                                           " times"));
  };
  for (const auto& parameter : module->named_parameters()) {
    left(parameter.key(), parameter.value());
    left(parameter.key() + ".grad", parameter.value().grad());
  }
  for (const auto& buffer : module->named_buffers()) left(buffer.key(), buffer.value());
  return recorder->lines;
}

struct Case {
  const Model* model;
  const Setting* setting;
};

void PrintTo(const Case& c, std::ostream* os) { *os << c.model->name << " with " << c.setting->name; }

class TrainingStepTest : public ::testing::TestWithParam<Case> {};

TEST_P(TrainingStepTest, EveryOperatorAsInTheRealRun) {
  const auto& [model, setting] = GetParam();
  std::vector<std::string> fake, real;
  const absl::Status fake_status = CatchAsStatus("the run", [&] {
    ModeGuard guard(FakeTensorMode::Create());
    fake = Train(*model, *setting);
  });
  const absl::Status real_status = CatchAsStatus("the run", [&] { real = Train(*model, *setting); });
  EXPECT_EQ(real_status.ok(), model->bf16_autocast || !setting->autocast) << real_status.message();
  ASSERT_EQ(fake_status, real_status);
  if (!real_status.ok()) return;
  ASSERT_GT(real.size(), 100U);
  for (std::size_t i = 0; i < std::min(real.size(), fake.size()); ++i) {
    ASSERT_EQ(real[i], fake[i]) << "line " << i << ", after\n"
                                << absl::StrJoin(real.begin() + static_cast<std::ptrdiff_t>(i < 3 ? 0 : i - 3),
                                                 real.begin() + static_cast<std::ptrdiff_t>(i), "\n");
  }
  EXPECT_EQ(real.size(), fake.size());
}

template <typename Optim, typename Options>
Optimizer Make(std::vector<at::Tensor> parameters, const Options& options) {
  return std::make_unique<Optim>(std::move(parameters), options);
}

const Setting kSettings[] = {
    {"sgd",
     [](std::vector<at::Tensor> p) {
       return Make<torch::optim::SGD>(std::move(p), torch::optim::SGDOptions(0.01).momentum(0.9).nesterov(true).weight_decay(1e-4));
     }},
    {"adam",
     [](std::vector<at::Tensor> p) { return Make<torch::optim::Adam>(std::move(p), torch::optim::AdamOptions(0.01).amsgrad(true)); }},
    {"adamw", [](std::vector<at::Tensor> p) { return Make<torch::optim::AdamW>(std::move(p), torch::optim::AdamWOptions(0.01)); }},
    {"rmsprop",
     [](std::vector<at::Tensor> p) {
       return Make<torch::optim::RMSprop>(std::move(p), torch::optim::RMSpropOptions(0.01).centered(true).momentum(0.5));
     }},
    {"adagrad", [](std::vector<at::Tensor> p) { return Make<torch::optim::Adagrad>(std::move(p), torch::optim::AdagradOptions(0.01)); }},
    {"adamw_bf16_autocast",
     [](std::vector<at::Tensor> p) { return Make<torch::optim::AdamW>(std::move(p), torch::optim::AdamWOptions(0.01)); }, true},
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Model& model : AllModels()) {
    for (const Setting& setting : kSettings) cases.push_back({&model, &setting});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Models, TrainingStepTest, ::testing::ValuesIn(Cases()), [](const auto& info) {
  return absl::StrCat(info.param.model->name, "_", info.param.setting->name);
});

// What autocast keeps of weights must not outlive the fakes.
TEST(TrainingStep, ALaterRealStepMeetsNothingFake) {
  const Setting& setting = kSettings[5];
  const Model& model = AllModels()[0];
  {
    ModeGuard guard(FakeTensorMode::Create());
    Train(model, setting);
  }
  for (const std::string& line : Train(model, setting)) ASSERT_EQ(line.find("fake"), std::string::npos) << line;
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

}  // namespace
}  // namespace ddpopt
