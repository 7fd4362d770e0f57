// What it costs to cut a graph at bucket borders and compile the pieces. See README.md and --help.

#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "base/file.h"
#include "base/flags.h"
#include "base/status.h"
#include "benchmarks/measure.h"
#include "ddpopt/backends/backend.h"
#include "ddpopt/capture/pt2/exported_program.h"
#include "ddpopt/optimizer/bucket_assignment.h"
#include "ddpopt/optimizer/ddp_optimizer.h"
#include "ddpopt/optimizer/submod_compiler.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fx_graph/split_module.h"
#include "interpreter/interpreter.h"
#include "nlohmann/json.hpp"

namespace ddpopt {
namespace {

using benchmarks::Median;
using benchmarks::NowNs;
using benchmarks::NsSince;

constexpr char kHelp[] =
    R"(Measures the DDP optimizer on graphs of full-size models: buckets of 25 MiB, split, and a compilation by a backend that does nothing.

  optimizer [--json] [--models=NAME,...] [--graphs=FOLDER] [--repeat=9] [--help]

  --json     the last line of standard output is one JSON object: {"models": {NAME: {"total_ms", "split_ms", "fake_ms", "buckets", "nodes",
             "first_ms"}, ...}, "real_add_ns"}
  --models   only these; default: hf_GPT2, hf_GPT2_large, hf_T5_small, hf_T5_base, hf_T5_large, resnet50, timm_vit_small_patch16_224,
             timm_vit_base_patch16_224
  --graphs   where their NAME.model.json.gz are; default: those of the repository
  --repeat   how often each figure is taken

  total_ms   OptimizeDdp: buckets, split, and for each piece the backend and the run on fakes that tells the next one's inputs
  split_ms   buckets and split alone         fake_ms  compiling the split graph alone: the fakes, mainly
  first_ms   total_ms of the first time in this process, which also pays for what the process keeps

Each time is of a copy of the graph that nothing has run yet, with a fake mode whose cache is empty; medians of the thread's processor time.
Loading the graph isn't counted. PyTorch 2.15's DDPOptimizer.compile_fn took 3,470 ms for hf_GPT2_large, 7,060 ms for hf_T5_large and 276 ms
for resnet50 on one core of a 2-core machine of 2026. Scale, of the same run: real_add_ns, a boxed dispatcher add of 8 floats.
)";

// A piece that is the graph itself, as PyTorch's compile_fn gets from a compiler that returns what it is given.
CompileFn Nothing() {
  class Uncompiled : public CompiledPiece {
   public:
    explicit Uncompiled(std::shared_ptr<const fx::GraphModule> piece) : piece_(std::move(piece)) {}
    c10::IValue Call(std::vector<c10::IValue> args) const override { return CallGraphModule(*piece_, std::move(args)); }
    std::vector<absl::optional<OutputMeta>> output_meta() const override {
      const fx::Argument& result = piece_->graph().output_node()->args().front();
      const bool several = result.kind() == fx::Argument::Kind::kList || result.kind() == fx::Argument::Kind::kTuple;
      return std::vector<absl::optional<OutputMeta>>(several ? result.elements().size() : 1);
    }
    bool interprets_graph() const override { return true; }

   private:
    const std::shared_ptr<const fx::GraphModule> piece_;
  };
  return [](std::shared_ptr<const fx::GraphModule> piece, const std::vector<c10::IValue>& /*fake_inputs*/,
            const CompileContext& /*context*/) -> absl::StatusOr<std::shared_ptr<const CompiledPiece>> {
    return std::make_shared<const Uncompiled>(std::move(piece));
  };
}

struct Figures {
  std::vector<double> total, split, fake;
  double first = 0;
  std::size_t buckets = 0, nodes = 0;
};

struct Subject {
  std::string name;
  std::shared_ptr<const fx::GraphModule> module;
  std::vector<c10::IValue> inputs;
  Figures figures;
};

absl::StatusOr<Subject> LoadSubject(const std::string& folder, const std::string& name) {
  Subject subject;
  subject.name = name;
  const std::string path = absl::StrCat(folder, "/", name, ".model.json.gz");
  absl::StatusOr<std::shared_ptr<ExportedProgram>> program = LoadExportedProgram(path);
  if (!program.ok()) return program.status();
  subject.module = (*program)->module();
  for (const fx::Node* node : subject.module->graph().nodes()) {
    ++subject.figures.nodes;
    if (node->op() == fx::Op::kPlaceholder) subject.inputs.push_back(node->meta().val);
  }
  return subject;
}

absl::Status Measure(Subject* subject, bool counts) {
  Figures& figures = subject->figures;
  const CompileFn nothing = Nothing();
  {
    const std::shared_ptr<fx::GraphModule> module = subject->module->Clone();
    const std::shared_ptr<FakeTensorMode> mode = FakeTensorMode::Create();  // lives on in what uses the module
    const double start = NowNs();
    const absl::StatusOr<OptimizedModule> optimized = OptimizeDdp(module, subject->inputs, mode, nothing, {});
    const double total = NsSince(start);
    if (!optimized.ok()) return optimized.status();
    figures.buckets = optimized->assignment.buckets.size();
    if (!counts) figures.first = total;
    if (counts) figures.total.push_back(total);
  }
  const std::shared_ptr<fx::GraphModule> module = subject->module->Clone();
  double start = NowNs();
  DDPOPT_ASSIGN_OR_RETURN(const BucketAssignment assignment, AssignBuckets(*module, {}));
  fx::SplitOptions split;
  split.attributes = fx::SplitOptions::Attributes::kCopy;
  split.keep_original_node_names = true;
  const auto piece_of = [&](const fx::Node* node) {
    const auto found = assignment.bucket_of.find(node);
    return found == assignment.bucket_of.end() ? -1 : found->second;
  };
  DDPOPT_ASSIGN_OR_RETURN(const std::shared_ptr<fx::GraphModule> outer, fx::SplitModule(*module, piece_of, split));
  if (counts) figures.split.push_back(NsSince(start));
  start = NowNs();
  SubmodCompiler compiler(outer, FakeTensorMode::Create(), nothing);
  DDPOPT_RETURN_IF_ERROR(compiler.Compile(subject->inputs));
  if (counts) figures.fake.push_back(NsSince(start));
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  benchmarks::RunOptions options;
  options.repeat = 9;
  std::string folder;
  std::string models =
      "hf_GPT2,hf_GPT2_large,hf_T5_small,hf_T5_base,hf_T5_large,resnet50,timm_vit_small_patch16_224,timm_vit_base_patch16_224";
  Flags flags;
  flags.Text("models", &models, "names, separated by commas");
  flags.Text("graphs", &folder, "a folder");
  if (const absl::optional<int> status = benchmarks::ParseRunOptions(argc, argv, kHelp, &options, flags)) return *status;
  if (!folder.empty()) folder = UserPath(folder);
  // Fast bins keep what one repeat frees, and whoever next asks for a larger block tidies them all up, at its own cost.
  mallopt(M_MXFAST, 0);
  std::vector<Subject> subjects;
  const std::vector<std::string> names = absl::StrSplit(models, ',', absl::SkipEmpty());
  for (const std::string& name : names) {
    const std::string own = name == "resnet50" ? "testing/testdata/exported/graphs" : "testing/testdata/model_graphs";
    absl::StatusOr<Subject> subject = LoadSubject(folder.empty() ? own : folder, name);
    if (!subject.ok()) {
      std::cerr << "optimizer: " << name << ": " << subject.status().message() << "\n";
      return 1;
    }
    subjects.push_back(*std::move(subject));
  }
  // A model after the other, as PyTorch's figures were taken.
  std::vector<double> adds;
  for (Subject& subject : subjects) {
    for (int64_t i = -1; i < options.repeat; ++i) {  // the first is not counted
      benchmarks::ShowProgress(absl::StrCat(subject.name, ": repeat ", i + 1, " of ", options.repeat));
      if (i >= 0) adds.push_back(benchmarks::RealAddNs());
      const absl::Status status = Measure(&subject, i >= 0);
      if (status.ok()) continue;
      std::cerr << "optimizer: " << subject.name << ": " << status.message() << "\n";
      return 1;
    }
  }
  benchmarks::ShowProgress("");

  nlohmann::ordered_json result;
  if (!options.json) std::printf("%-28s%8s%9s%11s%11s%11s%11s\n", "", "nodes", "buckets", "total ms", "split ms", "fake ms", "first ms");
  for (const Subject& subject : subjects) {
    const Figures& figures = subject.figures;
    const double total = Median(figures.total) / 1e6, split = Median(figures.split) / 1e6, fake = Median(figures.fake) / 1e6;
    if (!options.json) {
      std::printf("%-28s%8zu%9zu%11.2f%11.2f%11.2f%11.2f\n", subject.name.c_str(), figures.nodes, figures.buckets, total, split, fake,
                  figures.first / 1e6);
    }
    result["models"][subject.name] = {{"total_ms", total},          {"split_ms", split},      {"fake_ms", fake},
                                      {"buckets", figures.buckets}, {"nodes", figures.nodes}, {"first_ms", figures.first / 1e6}};
  }
  const double add = Median(adds);
  result["real_add_ns"] = add;
  if (options.json) {
    std::cout << result.dump() << "\n";
  } else {
    std::printf("real_add_ns %.1f\n", add);
  }
  return 0;
}

}  // namespace
}  // namespace ddpopt

int main(int argc, char** argv) { return ddpopt::Main(argc, argv); }
