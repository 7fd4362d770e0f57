// What compiled pieces cost, beside eager LibTorch in the same run. See README.md and --help.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/randint.h"
#include "ATen/ops/randn.h"
#include "absl/strings/str_cat.h"
#include "base/flags.h"
#include "base/logging.h"
#include "benchmarks/measure.h"
#include "c10/core/Allocator.h"
#include "c10/util/ThreadLocalDebugInfo.h"
#include "ddpopt/aot/aot_function.h"
#include "ddpopt/backends/aot_eager.h"
#include "ddpopt/backends/backend.h"
#include "ddpopt/capture/tracer/trace.h"
#include "ddpopt/ddp/call_guards.h"
#include "ddpopt/ddp/distributed_data_parallel.h"
#include "ddpopt/distributed/process_group.h"
#include "ddpopt/optimizer/ddp_optimizer.h"
#include "interpreter/interpreter.h"
#include "interpreter/mode_stack.h"
#include "nlohmann/json.hpp"
#include "testing/environment.h"
#include "testing/models/gpt2.h"
#include "torch/nn/module.h"

namespace ddpopt {
namespace {

using benchmarks::Keep;
using benchmarks::Median;
using benchmarks::NowNs;
using benchmarks::NsSince;
using benchmarks::ShowProgress;
using c10::IValue;

constexpr char kHelp[] = R"(Measures compiled pieces: medians over the repeats, what is compared taken alternately.

  aot [--json] [--repeat=7] [--layers=12] [--width=768] [--vocab=50257] [--tokens=128] [--help]

  --json    the last line of standard output is one JSON object
  --repeat  how often each figure is taken
  --layers, --width, --vocab, --tokens   of the GPT-2, which is trained on 2 sequences of so many tokens, dropout 0.1

real_add_ns      the scale: a boxed dispatcher add of 8 real floats
guard_ns         finding that a graph holds for a call with 10 tensors, of a module with 200 parameters in 100 submodules
piece_us         forward and backward of a piece that adds 50 parameters of 8 floats to its input, compiled by aot_eager
piece_eager_us   the same piece by the eager backend

gpt2_cold_compile_ms   capture, split into DDP's buckets of 25 MiB, joint graphs, partition and plans of the GPT-2, the first time in the process
gpt2_step_ms           forward and backward of the compiled pieces;  gpt2_eager_step_ms: of the module itself
allocs_per_step        what the compiled step asks of c10's CPU allocator after two steps, operators' insides and gradients included
ops_per_step           the operators below autograd of the eager step
gpt2_peak_mb_eager     the most that a step holds beyond parameters and inputs, as c10's CPU allocator sees it
gpt2_peak_mb_min_cut   the same of the model compiled in one piece by the min-cut partitioner, its workspace included
gpt2_peak_mb_predicted what AotFunction::PeakBytes says of that

gradient_targets_ratio  a step of the compiled GPT-2 by DistributedDataParallel with gradient_as_bucket_view, whose pieces write gradients
                        into the buckets, of the time of one whose pieces don't, so that they are copied there. One rank
gradient_targets_spread by how much the middle half of these ratios differ

Times are the thread's processor time, on one thread.
)";

struct Options {
  int64_t layers = 12;
  int64_t width = 768;
  int64_t vocab = 50257;
  int64_t tokens = 128;
};

testing::Gpt2Config ConfigOf(const Options& options) {
  testing::Gpt2Config config;
  config.layers = options.layers;
  config.width = options.width;
  config.heads = std::max<int64_t>(1, options.width / 64);
  config.vocab = options.vocab;
  config.context = std::max<int64_t>(1024, options.tokens);
  return config;
}

at::Tensor Tokens(const Options& options) { return at::randint(0, options.vocab, {2, options.tokens}); }

// What c10's CPU allocator gives and takes while this is alive on the thread, and on those that autograd runs for it.
class AllocationWatch {
 public:
  AllocationWatch() : counter_(std::make_shared<Counter>()), guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}

  // Begins to count anew. What is held stays held.
  void Reset() {
    counter_->allocations = 0;
    counter_->peak = counter_->held;
  }
  int64_t allocations() const { return counter_->allocations; }
  int64_t held() const { return counter_->held; }
  int64_t peak() const { return counter_->peak; }

 private:
  struct Counter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* /*ptr*/, int64_t bytes, size_t /*allocated*/, size_t /*reserved*/, c10::Device /*device*/) override {
      allocations += bytes > 0;
      held += bytes;
      peak = std::max(peak, held);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t allocations = 0, held = 0, peak = 0;
  };
  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard guard_;
};

double GuardNs() {
  struct Leaf : torch::nn::Module {
    Leaf() {
      register_parameter("weight", at::ones({4, 4}));
      register_parameter("bias", at::ones({4}));
    }
  };
  struct Net : torch::nn::Module {
    Net() {
      for (int i = 0; i < 100; ++i) register_module(absl::StrCat("leaf_", i), std::make_shared<Leaf>());
    }
  };
  static const auto net = std::make_shared<Net>();
  static const IValue arguments = [] {
    std::vector<IValue> inputs;
    for (int i = 0; i < 10; ++i) inputs.emplace_back(at::ones({8, 16 + i}));
    return IValue(c10::ivalue::Tuple::create(std::move(inputs)));
  }();
  static const CallGuards guards(Call(arguments), *net, at::kCPU);
  constexpr int kCalls = 5000;
  bool all = true;
  const double start = NowNs();
  for (int i = 0; i < kCalls; ++i) {
    std::vector<at::Tensor> tensors;
    all &= guards.Holds(arguments, &tensors);
    Keep(tensors);
  }
  const double ns = NsSince(start) / kCalls;
  CHECK(all);
  return ns;
}

// A piece that adds its parameters to its input.
class SumPiece {
 public:
  explicit SumPiece(const CompileFn& backend) : piece_(std::make_shared<fx::GraphModule>()) {
    fx::Graph& graph = piece_->graph();
    fx::Node* sum = graph.Placeholder("x");
    const c10::OperatorHandle add = benchmarks::Operator("aten::add", "Tensor");
    for (int i = 0; i < 50; ++i) {
      parameters_.push_back(at::ones({8}).requires_grad_());
      const std::string path = absl::StrCat("w", i);
      CHECK(piece_->AddAttr(path, parameters_.back(), fx::GraphModule::AttrKind::kParameter).ok());
      sum = graph.CallFunction(add, {sum, graph.GetAttr(path)});
    }
    graph.Output(sum);
    const auto mode = FakeTensorMode::Create();
    auto compiled = backend(piece_, {mode->FromReal(x_)}, CompileContext{"submod_0"});
    CHECK(compiled.ok()) << compiled.status();
    compiled_ = *std::move(compiled);
  }

  double StepUs() {
    constexpr int kSteps = 200;
    const at::Tensor gradient = at::ones({8});
    const double start = NowNs();
    for (int i = 0; i < kSteps; ++i) {
      compiled_->Call({x_}).toTensor().backward(gradient);
      x_.mutable_grad().reset();
      for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
    }
    return NsSince(start) / kSteps / 1e3;
  }

 private:
  std::shared_ptr<fx::GraphModule> piece_;
  std::vector<at::Tensor> parameters_;
  at::Tensor x_ = at::ones({8}).requires_grad_();
  std::shared_ptr<const CompiledPiece> compiled_;
};

class OperatorCount : public Mode {
 public:
  Level level() const override { return Level::kPostAutograd; }
  absl::string_view name() const override { return "OperatorCount"; }
  void Handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    ++count;
    op.callBoxed(stack);
  }
  int64_t count = 0;
};

class Gpt2Steps {
 public:
  explicit Gpt2Steps(const Options& options) : net_(ConfigOf(options)), tokens_(Tokens(options)), next_(Tokens(options)) {}

  TracedModule Trace() {
    auto traced = TraceModule(*net_, {tokens_, next_}, FakeTensorMode::Create(),
                              [this](const std::vector<at::Tensor>& in) { return net_->forward(in[0], in[1]); });
    CHECK(traced.ok()) << traced.status();
    return *std::move(traced);
  }

  double CompileMs() {
    const double start = NowNs();
    traced_ = Trace();
    BucketOptions buckets;
    buckets.bucket_cap_bytes = int64_t{25} << 20;
    FakeTensorMode* const mode = ModeOf(traced_.fake_inputs[0].toTensor());
    auto optimized = OptimizeDdp(traced_.module, traced_.fake_inputs, mode->shared_from_this(), AotEagerBackend(), buckets);
    CHECK(optimized.ok()) << optimized.status();
    pieces_ = *std::move(optimized);
    return NsSince(start) / 1e6;
  }

  void EagerStep() { Backward(net_->forward(tokens_, next_)); }
  void CompiledStep() { Backward(CallGraphModule(*pieces_.module, {tokens_, next_}).toTensor()); }
  void Step(const AotFunction& function) { Backward(function.Call({tokens_, next_}).toTensor()); }

  template <typename Fn>
  static double Ms(Fn fn) {
    const double start = NowNs();
    fn();
    return NsSince(start) / 1e6;
  }

  int64_t EagerOperators() {
    const auto counter = std::make_shared<OperatorCount>();
    const ModeGuard guard(counter);
    EagerStep();
    return counter->count;
  }

  void Forget() {
    pieces_ = OptimizedModule();
    traced_ = TracedModule();
  }

 private:
  void Backward(const at::Tensor& loss) {
    loss.backward();
    Keep(loss);
    for (at::Tensor& parameter : net_->parameters()) parameter.mutable_grad().reset();
  }

  testing::Gpt2 net_;
  at::Tensor tokens_, next_;
  TracedModule traced_;
  OptimizedModule pieces_;
};

// Steps by DistributedDataParallel, whose gradients are views into its buckets.
class DdpSteps {
 public:
  DdpSteps(const Options& options, const ProcessGroup& group, bool with_targets)
      : net_(ConfigOf(options)), tokens_(Tokens(options)), next_(Tokens(options)) {
    DdpOptions ddp;
    ddp.gradient_as_bucket_view = true;
    ddp.retrace_every = 0;
    ddp.eager_fallback = false;
    ddp.backend = [backend = AotEagerBackend(), with_targets](std::shared_ptr<const fx::GraphModule> piece,
                                                              const std::vector<IValue>& fake_inputs, const CompileContext& context) {
      CompileContext mine = context;
      if (!with_targets) mine.gradient_targets = nullptr;
      return backend(std::move(piece), fake_inputs, mine);
    };
    auto wrapped = DistributedDataParallel<testing::Gpt2>::Create(net_, group, std::move(ddp));
    CHECK(wrapped.ok()) << wrapped.status();
    ddp_ = *std::move(wrapped);
  }

  double StepMs() {
    const double start = NowNs();
    ddp_->forward(tokens_, next_).backward();
    const double ms = NsSince(start) / 1e6;
    for (at::Tensor& parameter : net_->parameters()) parameter.mutable_grad().reset();
    return ms;
  }

 private:
  testing::Gpt2 net_;
  at::Tensor tokens_, next_;
  std::unique_ptr<DistributedDataParallel<testing::Gpt2>> ddp_;
};

// Of the steps with targets, in those without, taken in turns.
std::vector<double> TargetsRatios(const Options& options, int64_t repeat) {
  testing::SetEnvironmentOfOneRank();
  const auto group = InitProcessGroup();
  CHECK(group.ok()) << group.status();
  DdpSteps with(options, *group, true), without(options, *group, false);
  std::vector<double> ratios;
  for (int64_t i = -2; i < repeat; ++i) {
    ShowProgress(absl::StrCat("gradient targets: repeat ", std::max<int64_t>(0, i + 1), " of ", repeat));
    const bool first = i % 2 == 0;
    double mine = first ? with.StepMs() : 0;
    const double other = without.StepMs();
    if (!first) mine = with.StepMs();
    if (i >= 0) ratios.push_back(mine / other);  // the first are slower: capture, buckets, memory
  }
  std::sort(ratios.begin(), ratios.end());
  return ratios;
}

int Main(int argc, char** argv) {
  Options options;
  benchmarks::RunOptions run{.json = false, .repeat = 7};
  Flags flags;
  const std::string want = "a whole number above 0";
  constexpr int64_t kMany = 1 << 20;
  flags.Integer("layers", &options.layers, 1, kMany, want);
  flags.Integer("width", &options.width, 1, kMany, want);
  flags.Integer("vocab", &options.vocab, 1, kMany, want);
  flags.Integer("tokens", &options.tokens, 1, kMany, want);
  if (const auto status = benchmarks::ParseRunOptions(argc, argv, kHelp, &run, std::move(flags)); status.has_value()) return *status;
  at::set_num_threads(1);

  nlohmann::ordered_json result;
  {
    // Before anything else is compiled.
    Gpt2Steps gpt2(options);
    ShowProgress("compiling");
    const double cold_compile_ms = gpt2.CompileMs();

    ShowProgress("small pieces");
    SumPiece compiled(AotEagerBackend()), eager(EagerBackend());
    std::vector<double> real_add, guard, piece, piece_eager;
    for (int64_t i = -1; i < run.repeat; ++i) {
      const double figures[] = {benchmarks::RealAddNs(), GuardNs(), compiled.StepUs(), eager.StepUs()};
      if (i < 0) continue;  // the first is slower
      real_add.push_back(figures[0]);
      guard.push_back(figures[1]);
      piece.push_back(figures[2]);
      piece_eager.push_back(figures[3]);
    }
    result["real_add_ns"] = Median(real_add);
    result["guard_ns"] = Median(guard);
    result["piece_us"] = Median(piece);
    result["piece_eager_us"] = Median(piece_eager);

    gpt2.EagerStep();
    gpt2.CompiledStep();
    gpt2.CompiledStep();
    {
      AllocationWatch watch;
      gpt2.CompiledStep();
      result["allocs_per_step"] = watch.allocations();
    }
    result["ops_per_step"] = gpt2.EagerOperators();
    std::vector<double> step, eager_step;
    for (int64_t i = 0; i < run.repeat; ++i) {
      ShowProgress(absl::StrCat("GPT-2: repeat ", i + 1, " of ", run.repeat));
      step.push_back(Gpt2Steps::Ms([&] { gpt2.CompiledStep(); }));
      eager_step.push_back(Gpt2Steps::Ms([&] { gpt2.EagerStep(); }));
    }
    result["gpt2_cold_compile_ms"] = cold_compile_ms;
    result["gpt2_step_ms"] = Median(step);
    result["gpt2_eager_step_ms"] = Median(eager_step);

    // Nothing of the pieces is left, so that all that the one piece keeps is seen.
    gpt2.Forget();
    ShowProgress("memory");
    AllocationWatch watch;
    gpt2.EagerStep();
    const auto megabytes = [](int64_t bytes) { return static_cast<double>(bytes) / 1e6; };
    const int64_t before = watch.held();
    watch.Reset();
    gpt2.EagerStep();
    result["gpt2_peak_mb_eager"] = megabytes(watch.peak() - before);
    const TracedModule traced = gpt2.Trace();
    AotOptions min_cut;
    min_cut.partition.kind = PartitionKind::kMinCut;
    auto function = AotFunction::Compile(*traced.module, traced.fake_inputs, min_cut);
    CHECK(function.ok()) << function.status();
    const int64_t before_function = watch.held();
    gpt2.Step(**function);
    watch.Reset();
    gpt2.Step(**function);
    result["gpt2_peak_mb_min_cut"] = megabytes(watch.peak() - before_function);
    result["gpt2_peak_mb_predicted"] = megabytes((*function)->PeakBytes());
  }
  const std::vector<double> ratios = TargetsRatios(options, run.repeat);
  result["gradient_targets_ratio"] = Median(ratios);
  result["gradient_targets_spread"] = ratios[ratios.size() * 3 / 4] - ratios[ratios.size() / 4];
  ShowProgress("");

  if (run.json) {
    std::cout << result.dump() << "\n";
    return 0;
  }
  for (const auto& [name, value] : result.items()) std::printf("%-26s%12.3f\n", name.c_str(), value.get<double>());
  const auto figure = [&](const char* name) { return result[name].get<double>(); };
  std::printf("\n%-50s%8.2f\n", "guards, in adds", figure("guard_ns") / figure("real_add_ns"));
  std::printf("%-50s%8.2f\n", "the compiled piece, of eager's time", figure("piece_us") / figure("piece_eager_us"));
  std::printf("%-50s%8.3f\n", "allocations per operator", figure("allocs_per_step") / figure("ops_per_step"));
  std::printf("%-50s%8.2f\n", "the compiled step, of eager's time", figure("gpt2_step_ms") / figure("gpt2_eager_step_ms"));
  std::printf("%-50s%8.2f\n", "its peak by min-cut, of eager's", figure("gpt2_peak_mb_min_cut") / figure("gpt2_peak_mb_eager"));
  std::printf("%-50s%8.3f\n", "predicted, of measured", figure("gpt2_peak_mb_predicted") / figure("gpt2_peak_mb_min_cut"));
  return 0;
}

}  // namespace
}  // namespace ddpopt

int main(int argc, char** argv) { return ddpopt::Main(argc, argv); }
