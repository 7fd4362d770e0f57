#include "tools/minimize_run.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "ATen/Context.h"
#include "ATen/ops/empty_strided.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/flags.h"
#include "base/status.h"
#include "ddpopt/backends/minimizer.h"
#include "ddpopt/backends/registry.h"
#include "ddpopt/capture/pt2/exported_program.h"
#include "nlohmann/json.hpp"

namespace ddpopt {
namespace {

using c10::IValue;

constexpr char kUsage[] =
    R"(usage: minimize --run=FILE [--backend=NAME]
       minimize --model=MODEL.pt2 [--backend=NAME] [--output=FILE]
       minimize --shrink=FILE [--backend=NAME] [--output=FILE]

Finds out whether a backend computes what eager LibTorch does, and shrinks a graph for which it doesn't to a file.

  --run=FILE       runs a reproducer: prints its graph, and what is wrong with the backend for it
  --model=FILE     an exported model, compiled whole, on random inputs of the recorded shapes (their batch, where sizes are open)
  --shrink=FILE    a reproducer, to be made smaller
  --backend=NAME   default: the reproducer's, else aot_eager
  --output=FILE    where the reproducer goes; default reproducer.json
  --max_tries=N    compilations to spend on shrinking; default 3000
  --seed=N         of the inputs and of random operators; default 1
  --rtol=X, --atol=X   what counts as equal; default 1e-4 and 1e-5
  --json           the last line of standard output is one JSON object: backend, failure, nodes, output (null: none was written)
  --help           this text

Relative paths start where the program was called (under `bazel run` too). Exit status: 0 if the backend is right; 1 if it is wrong; 2 for a
wrong command line or a file that can't be read.
)";

struct Options {
  std::string run, model, shrink, backend, output = "reproducer.json";
  int64_t max_tries = 3000;
  int64_t seed = -1;
  double rtol = -1, atol = -1;
  bool json = false, help = false;
};

absl::StatusOr<Options> Parse(const std::vector<std::string>& arguments) {
  Options options;
  Flags flags;
  for (const auto& [name, file] : {std::pair("run", &options.run), std::pair("model", &options.model), std::pair("shrink", &options.shrink),
                                   std::pair("output", &options.output)}) {
    flags.Text(name, file, "a file");
  }
  flags.Text("backend", &options.backend, "a backend's name");
  flags.Integer("max_tries", &options.max_tries, 1, 1000000000, "a whole number above 0");
  flags.Integer("seed", &options.seed, 0, int64_t{1} << 62, "a whole number");
  flags.NumberFrom("rtol", &options.rtol, 0, "a number from 0");
  flags.NumberFrom("atol", &options.atol, 0, "a number from 0");
  flags.Switch("json", &options.json);
  flags.Switch("help", &options.help);
  DDPOPT_RETURN_IF_ERROR(flags.Parse(arguments));
  const int given = !options.run.empty() + !options.model.empty() + !options.shrink.empty();
  if (!options.help && given != 1) return absl::InvalidArgumentError("one of --run, --model and --shrink is wanted");
  return options;
}

// As the export's example: numbers between -1 and 1, small whole numbers.
absl::StatusOr<std::vector<IValue>> RandomInputs(const fx::GraphModule& module) {
  std::vector<IValue> inputs;
  for (const fx::Node* node : module.graph().FindNodes(fx::Op::kPlaceholder)) {
    if (!node->has_meta()) return absl::InvalidArgumentError(absl::StrCat("input ", std::string(node->name()), " has no recorded form"));
    const IValue& form = node->meta().val;
    if (!form.isTensor()) {
      inputs.push_back(form);
      continue;
    }
    const at::Tensor& tensor = form.toTensor();
    at::Tensor input = at::empty_strided(tensor.sizes(), tensor.strides(), at::device(at::kCPU).dtype(tensor.scalar_type()));
    if (at::isFloatingType(tensor.scalar_type()) || at::isComplexType(tensor.scalar_type())) {
      input.normal_();
    } else if (tensor.scalar_type() == at::kBool) {
      input.fill_(true);
    } else {
      input.random_(0, 2);
    }
    inputs.emplace_back(input);
  }
  return inputs;
}

absl::StatusOr<Reproducer> Load(const Options& flags) {
  Reproducer reproducer;
  if (flags.model.empty()) {
    DDPOPT_ASSIGN_OR_RETURN(reproducer, ReadReproducer(UserPath(flags.run.empty() ? flags.shrink : flags.run)));
  } else {
    DDPOPT_ASSIGN_OR_RETURN(const std::shared_ptr<ExportedProgram> program, LoadExportedProgram(UserPath(flags.model)));
    at::manual_seed(static_cast<std::uint64_t>(flags.seed < 0 ? 1 : flags.seed));
    DDPOPT_ASSIGN_OR_RETURN(std::vector<IValue> inputs, RandomInputs(*program->module()));
    DDPOPT_ASSIGN_OR_RETURN(reproducer, LiftAttributes(*program->module(), inputs));
    reproducer.backend = "aot_eager";
  }
  if (!flags.backend.empty()) reproducer.backend = flags.backend;
  if (flags.seed >= 0) reproducer.compare.seed = static_cast<std::uint64_t>(flags.seed);
  if (flags.rtol >= 0) reproducer.compare.rtol = flags.rtol;
  if (flags.atol >= 0) reproducer.compare.atol = flags.atol;
  return reproducer;
}

absl::StatusOr<int> Run(const Options& flags, std::ostream& out, std::ostream& err) {
  DDPOPT_ASSIGN_OR_RETURN(Reproducer reproducer, Load(flags));
  DDPOPT_ASSIGN_OR_RETURN(const CompileFn backend, FindBackend(reproducer.backend));
  reproducer.failure = FailureOf(backend, *reproducer.module, reproducer.inputs, reproducer.compare);
  bool written = false;
  if (!reproducer.failure.empty() && flags.run.empty()) {
    err << "minimize: " << reproducer.failure << "; shrinking a graph of " << reproducer.module->graph().size() << " nodes\n";
    MinimizeOptions options;
    options.max_tries = static_cast<int>(flags.max_tries);
    DDPOPT_ASSIGN_OR_RETURN(reproducer, Minimize(reproducer, backend, options));
    DDPOPT_RETURN_IF_ERROR(WriteReproducer(reproducer, UserPath(flags.output)));
    written = true;
  }
  if (!reproducer.failure.empty() || !flags.run.empty()) out << reproducer.module->graph().ToString() << "\n";
  if (reproducer.failure.empty()) {
    out << "the backend " << reproducer.backend << " computes what eager does, or refuses the graph\n";
  } else {
    out << "the backend " << reproducer.backend << " is wrong: " << reproducer.failure << "\n";
  }
  if (written) out << "run it again: bazel run //tools:minimize -- --run=" << flags.output << "\n";
  if (flags.json) {
    nlohmann::json report = {{"backend", reproducer.backend}, {"failure", reproducer.failure}, {"nodes", reproducer.module->graph().size()}};
    report["output"] = written ? nlohmann::json(flags.output) : nlohmann::json(nullptr);
    out << report.dump() << "\n";
  }
  return reproducer.failure.empty() ? 0 : 1;
}

}  // namespace

int RunMinimize(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Options> flags = Parse(arguments);
  if (!flags.ok()) {
    err << "minimize: " << flags.status().message() << " (--help tells what there is)\n";
    return 2;
  }
  if (flags->help) {
    out << kUsage;
    return 0;
  }
  const absl::StatusOr<int> result = Run(*flags, out, err);
  if (result.ok()) return *result;
  err << "minimize: " << result.status().ToString() << "\n";
  return 2;
}

}  // namespace ddpopt
