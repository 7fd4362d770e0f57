// What fake tensors cost, beside what a real operator costs in the same run. See README.md and --help.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/grad_mode.h"
#include "ATen/core/stack.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/ones.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "benchmarks/measure.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "interpreter/mode_stack.h"
#include "nlohmann/json.hpp"
#include "testing/models/gpt2.h"
#include "torch/optim/adamw.h"

namespace ddpopt {
namespace {

using benchmarks::Median;
using benchmarks::NowNs;
using benchmarks::NsSince;
using benchmarks::Operator;
using benchmarks::ShowProgress;

constexpr char kHelp[] = R"(Measures fake tensors: medians over the repeats.

  fake [--json] [--repeat=9] [--help]

  --json    the last line of standard output is one JSON object
  --repeat  how often each figure is taken

real_add_ns    the scale: a boxed dispatcher add of 8 real floats
add_hit_ns     the same boxed add on fakes of a shape seen before, with the fake mode pushed;  mm, view: likewise
linear_hit_ns  aten::linear with a bias, which below autograd is a t and an addmm
add_miss_ns    the add on fakes of a shape that the process hasn't seen before

gpt2_large_step_ms       a training step (zero_grad, forward, loss, backward, AdamW's step) of a GPT-2 large (36 layers, 1280 wide,
                         20 heads, vocabulary 50257, 4 sequences of 1024 tokens, dropout 0.1), built under the fake mode and stepped before
gpt2_large_first_step_ms the first one
gpt2_large_step_ops      the operators that the fake mode sees in a step
gpt2_large_added_rss_mb  the highest resident memory from before the module is built until after the last step, less the one before
spread                   lowest and highest of each figure

Times are the thread's processor time.
)";

// Nanoseconds of one boxed call; `arguments` gives those of the i-th.
template <typename Arguments>
double CallNs(const c10::OperatorHandle& op, int calls, const Arguments& arguments) {
  torch::jit::Stack stack;
  const double start = NowNs();
  for (int i = 0; i < calls; ++i) {
    stack.clear();
    arguments(i, stack);
    op.callBoxed(stack);
  }
  return NsSince(start) / calls;
}

double AddNs(const at::Tensor& a, const at::Tensor& b) {
  static const c10::OperatorHandle add = Operator("aten::add", "Tensor");
  return CallNs(add, 20000, [&](int, torch::jit::Stack& stack) {
    stack.emplace_back(a);
    stack.emplace_back(b);
    stack.emplace_back(1);
  });
}

// The mode is pushed.
double AddMissNs() {
  static const c10::OperatorHandle add = Operator("aten::add", "Tensor");
  static int64_t fresh = 1000;
  constexpr int kCalls = 1000;
  std::vector<at::Tensor> pairs;
  for (int i = 0; i < kCalls; ++i) {
    ++fresh;
    pairs.push_back(at::empty({fresh}));
    pairs.push_back(at::empty({fresh}));
  }
  return CallNs(add, kCalls, [&](int i, torch::jit::Stack& stack) {
    stack.emplace_back(pairs[2 * i]);
    stack.emplace_back(pairs[2 * i + 1]);
    stack.emplace_back(1);
  });
}

// Kilobytes, of a line of /proc/self/status.
double StatusKb(const std::string& field) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.compare(0, field.size() + 1, field + ":") == 0) return std::stod(line.substr(field.size() + 1));
  }
  CHECK(false) << "/proc/self/status has no " << field;
}

class Counter : public Mode {
 public:
  Level level() const override { return Level::kPostAutograd; }
  absl::string_view name() const override { return "Counter"; }
  void Handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    ++count;
    op.callBoxed(stack);
  }
  int64_t count = 0;
};

// A GPT-2 large without data, and its optimizer.
class Gpt2Large {
 public:
  explicit Gpt2Large(const std::shared_ptr<FakeTensorMode>& mode) : mode_(mode), guard_(mode) {
    net_ = testing::Gpt2(testing::Gpt2Config::Large());
    int64_t parameters = 0;
    for (const at::Tensor& parameter : net_->parameters()) {
      CHECK(IsFake(parameter));
      parameters += parameter.numel();
    }
    CHECK_EQ(parameters, 774030080);
    optimizer_ = std::make_unique<torch::optim::AdamW>(net_->parameters(), torch::optim::AdamWOptions(1e-4));
    tokens_ = at::empty({4, 1024}, at::kLong);
    next_ = at::empty({4, 1024}, at::kLong);
  }

  double StepMs() {
    const double start = NowNs();
    Step();
    return NsSince(start) / 1e6;
  }

  int64_t StepOps() {
    const auto counter = std::make_shared<Counter>();
    ModeGuard guard(counter);
    Step();
    return counter->count;
  }

 private:
  void Step() {
    c10::AutoGradMode grad(true);
    optimizer_->zero_grad();
    const at::Tensor loss = net_->forward(tokens_, next_);
    loss.backward();
    optimizer_->step();
  }

  std::shared_ptr<FakeTensorMode> mode_;
  ModeGuard guard_;
  testing::Gpt2 net_{nullptr};
  std::unique_ptr<torch::optim::AdamW> optimizer_;
  at::Tensor tokens_, next_;
};

int Main(int argc, char** argv) {
  benchmarks::RunOptions options{.repeat = 9};
  if (const auto status = benchmarks::ParseRunOptions(argc, argv, kHelp, &options)) return *status;

  struct Figure {
    const char* name;
    std::function<double()> take;
    std::vector<double> values = {};
  };
  c10::NoGradGuard no_grad;
  const auto mode = FakeTensorMode::Create();
  const at::Tensor vector = mode->FromReal(at::ones({8}));
  const at::Tensor matrix = mode->FromReal(at::ones({8, 8}));
  const c10::OperatorHandle mm = Operator("aten::mm", ""), view = Operator("aten::view", ""), linear = Operator("aten::linear", "");
  const c10::IValue sizes(std::vector<int64_t>{2, 4});
  const auto pushed = [&](std::function<double()> take) -> std::function<double()> {
    return [&mode, take = std::move(take)] {
      ModeGuard guard(mode);
      return take();
    };
  };
  constexpr int kCalls = 20000;
  std::vector<Figure> figures;
  figures.push_back({"real_add_ns", &benchmarks::RealAddNs});
  figures.push_back({"add_hit_ns", pushed([&] { return AddNs(vector, vector); })});
  figures.push_back({"add_miss_ns", pushed(&AddMissNs)});
  figures.push_back({"mm_hit_ns", pushed([&] {
                       return CallNs(mm, kCalls, [&](int, torch::jit::Stack& stack) {
                         stack.emplace_back(matrix);
                         stack.emplace_back(matrix);
                       });
                     })});
  figures.push_back({"view_hit_ns", pushed([&] {
                       return CallNs(view, kCalls, [&](int, torch::jit::Stack& stack) {
                         stack.emplace_back(vector);
                         stack.emplace_back(sizes);
                       });
                     })});
  figures.push_back({"linear_hit_ns", pushed([&] {
                       return CallNs(linear, kCalls, [&](int, torch::jit::Stack& stack) {
                         stack.emplace_back(matrix);
                         stack.emplace_back(matrix);
                         stack.emplace_back(vector);
                       });
                     })});
  for (Figure& figure : figures) figure.take();
  // Alternating, so that a busy machine disturbs all figures alike.
  for (int i = 0; i < options.repeat; ++i) {
    ShowProgress(absl::StrCat("repeat ", i + 1, " of ", options.repeat));
    for (Figure& figure : figures) figure.values.push_back(figure.take());
  }

  ShowProgress("GPT-2 large");
  // "5" sets the highest resident memory to the present one, where the kernel lets us.
  std::ofstream("/proc/self/clear_refs") << "5" << std::flush;
  const double rss_before = StatusKb("VmRSS");
  double first_step = 0, added_rss = 0;
  int64_t step_ops = 0;
  Figure step{"gpt2_large_step_ms", nullptr};
  {
    Gpt2Large model(mode);
    first_step = model.StepMs();
    model.StepMs();
    for (int i = 0; i < options.repeat; ++i) step.values.push_back(model.StepMs());
    step_ops = model.StepOps();
    added_rss = (StatusKb("VmHWM") - rss_before) * 1024 / 1e6;
  }
  figures.push_back(step);
  ShowProgress("");

  const auto lowest = [](const Figure& figure) { return *std::min_element(figure.values.begin(), figure.values.end()); };
  const auto highest = [](const Figure& figure) { return *std::max_element(figure.values.begin(), figure.values.end()); };
  if (options.json) {
    nlohmann::ordered_json result;
    for (const Figure& figure : figures) result[figure.name] = Median(figure.values);
    result["gpt2_large_step_ops"] = step_ops;
    result["gpt2_large_added_rss_mb"] = added_rss;
    result["gpt2_large_first_step_ms"] = first_step;
    for (const Figure& figure : figures) result["spread"][figure.name] = {lowest(figure), highest(figure)};
    std::cout << result.dump() << "\n";
    return 0;
  }
  const double add = Median(figures[0].values);
  std::printf("%-26s%12s%12s%12s%12s\n", "", "median", "lowest", "highest", "of an add");
  for (const Figure& figure : figures) {
    const double median = Median(figure.values);
    std::printf("%-26s%12.1f%12.1f%12.1f", figure.name, median, lowest(figure), highest(figure));
    if (&figure != &figures.back()) std::printf("%12.2f", median / add);
    std::printf("\n");
  }
  std::printf("%-26s%12.1f\n", "gpt2_large_first_step_ms", first_step);
  std::printf("%-26s%12lld\n", "gpt2_large_step_ops", static_cast<long long>(step_ops));
  std::printf("%-26s%12.1f\n", "gpt2_large_added_rss_mb", added_rss);
  return 0;
}

}  // namespace
}  // namespace ddpopt

int main(int argc, char** argv) { return ddpopt::Main(argc, argv); }
