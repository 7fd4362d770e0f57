// Trains a model that was exported from Python, on several ranks of this machine; `--help` tells the rest.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Context.h"
#include "ATen/ops/tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/flags.h"
#include "base/status.h"
#include "ddpopt/capture/pt2/exported_program.h"
#include "ddpopt/capture/pt2/safetensors.h"
#include "ddpopt/ddp/program_data_parallel.h"
#include "ddpopt/ddpopt.h"
#include "examples/batches.h"
#include "examples/program.h"
#include "fx_graph/graph.h"
#include "nlohmann/json.hpp"
#include "torch/optim/adam.h"
#include "torch/optim/adamw.h"
#include "torch/optim/sgd.h"

namespace ddpopt::examples {
namespace {

constexpr char kHelp[] = R"(Trains a model that was exported from Python with torch.export, data-parallel on this machine.

  train_pt2 MODEL.pt2 [flags]

  --data=FILE         batches, in a safetensors file: tensors "<batch><number>.<input>" (batch0.x, batch0.y, batch1.x, ...), <input> being an
                      input's name or arg0, arg1, ... Rank r takes batch r, then r + ranks, and so on, round and round. Default: made-up
                      batches in the sizes of the export's example; integers are within what they index.
  --loss=NAME         the output that is trained: its name or number. Default: the first one. It must be one floating-point number.
  --weights=FILE      weights to begin with, in a safetensors file. Default: those of the archive.
  --out=FILE          writes the trained weights there (safetensors).

  --nproc=N           ranks (processes), 1 to 256; default 2. Also --nproc_per_node. Started by a launcher that sets RANK, WORLD_SIZE,
                      MASTER_ADDR and MASTER_PORT (as torchrun does), the program is one of that launcher's ranks, without this flag.
  --steps=N           the step at which training ends, counted from the run's beginning, also if it is resumed; default 20.
  --optimizer=NAME    sgd (default), adam or adamw.
  --lr=X              learning rate; default 0.01.
  --momentum=X        of sgd; default 0.
  --weight_decay=X    default 0.
  --seed=N            for made-up batches and for what the model draws (dropout); default 1.
  --bucket_policy=NAME  caps (default: gradient buckets of 1 and then 25 MiB), or auto: buckets that a model of the step chooses, from
                      all-reduces and a backward that are measured first; what it expects and what came of it is told.
  --find_unused_parameters  for models of which not every parameter gets a gradient in every step.

  --save=FOLDER       saves checkpoints there, at the end and every --save_every steps; the newest two stay. A folder that has checkpoints
                      needs --resume. Started again by a launcher's --max_restarts, the program goes on from the newest there by itself.
  --save_every=N      default 0: at the end alone.
  --resume            goes on from the newest whole checkpoint in --save's folder, if there is one. With as many ranks as saved, bit for bit
                      as if the run had not been interrupted.
  --resume=FOLDER     goes on from the newest whole checkpoint in that folder, which must have one.

  --timeout=SECONDS   how long ranks wait for each other; default 300.
  --stall_timeout=SECONDS  a rank that the others have waited for that long is named, and the run ends; default 0: --timeout alone.
  --json              makes the last line of standard output a JSON object: first_step, steps, world_size, initial_loss, final_loss (means over
                      the ranks of the first and the last step of this run; null if there was none), seconds, steps_per_s, parameters,
                      buckets (bytes, in the order of reduction), resumed_from (a file, or null), saved (a file, or null), params_equal;
                      with --bucket_policy=auto also auto: took_caps, expected_communication_ms, expected_exposed_ms,
                      expected_exposed_of_caps_ms, communication_ms and exposed_ms (means of a step).
  --help              this text.

Paths are relative to where you are. Progress goes to standard error. Exit status: 0 success, 1 the training failed, 2 bad flags, model or data.
)";

constexpr int kFailed = 1;
constexpr int kBadUsage = 2;

struct Options {
  std::string model, data, loss, weights, out, optimizer = "sgd", save, resume_folder, bucket_policy = "caps";
  int64_t nproc = 2, steps = 20, seed = 1, save_every = 0;
  double lr = 0.01, momentum = 0, weight_decay = 0, timeout = 300, stall_timeout = 0;
  bool find_unused_parameters = false, resume = false, json = false, help = false;
};

absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& arguments) {
  constexpr int64_t kMany = std::numeric_limits<int64_t>::max();
  Options options;
  Flags flags;
  flags.Text("data", &options.data, "the path of a safetensors file");
  flags.Text("loss", &options.loss, "an output's name or number");
  flags.Text("weights", &options.weights, "the path of a safetensors file");
  flags.Text("out", &options.out, "a path");
  flags.Integer("nproc", &options.nproc, 1, 256, "a number of ranks from 1 to 256");
  flags.Integer("nproc_per_node", &options.nproc, 1, 256, "a number of ranks from 1 to 256");
  flags.Integer("steps", &options.steps, 1, kMany, "a whole number above 0");
  flags.Choice("optimizer", &options.optimizer, {"sgd", "adam", "adamw"});
  flags.Number("lr", &options.lr, 0, "a number above 0");
  flags.NumberFrom("momentum", &options.momentum, 0, "a number, 0 or above");
  flags.NumberFrom("weight_decay", &options.weight_decay, 0, "a number, 0 or above");
  flags.Integer("seed", &options.seed, 0, kMany, "a whole number, 0 or above");
  AddBucketPolicy(&flags, &options.bucket_policy);
  flags.Switch("find_unused_parameters", &options.find_unused_parameters);
  flags.Text("save", &options.save, "a folder's path");
  flags.Integer("save_every", &options.save_every, 0, kMany, "a whole number, 0 or above");
  flags.OptionalText("resume", &options.resume, &options.resume_folder, "a folder's path");
  flags.Number("timeout", &options.timeout, 0, "a number of seconds above 0");
  flags.NumberFrom("stall_timeout", &options.stall_timeout, 0, "a number of seconds, 0 or above");
  flags.Switch("json", &options.json);
  flags.Switch("help", &options.help);
  std::vector<std::string> rest;
  DDPOPT_RETURN_IF_ERROR(flags.Parse(arguments, &rest));
  if (options.help) return options;
  if (rest.empty()) return absl::InvalidArgumentError("MODEL.pt2 is missing");
  if (rest.size() > 1) return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", rest[1], "'"));
  options.model = rest[0];
  if (options.resume && options.resume_folder.empty() && options.save.empty()) {
    return absl::InvalidArgumentError("--resume needs --save=FOLDER, or a folder of its own: --resume=FOLDER");
  }
  if (options.save_every > 0 && options.save.empty()) return absl::InvalidArgumentError("--save_every needs --save=FOLDER");
  if (options.momentum > 0 && options.optimizer != "sgd") {
    return absl::InvalidArgumentError(absl::StrCat("--momentum is of --optimizer=sgd, not ", options.optimizer));
  }
  for (std::string* path : {&options.model, &options.data, &options.weights, &options.out, &options.save, &options.resume_folder})
    *path = UserPath(*path);
  return options;
}

std::string Describe(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return std::string(value.isNone() ? "None" : value.tagKind());
  return absl::StrCat(c10::toString(value.toTensor().scalar_type()), " [", absl::StrJoin(value.toTensor().sizes().vec(), ", "), "]");
}

// Which of the program's flat outputs is trained.
absl::StatusOr<std::size_t> FindLoss(const ExportedProgram& program, const std::string& wanted) {
  const fx::Node* output = program.module()->graph().output_node();
  std::vector<const fx::Node*> nodes;
  if (output != nullptr && !output->args().empty()) {
    const fx::Argument& result = output->args()[0];
    if (result.kind() == fx::Argument::Kind::kList || result.kind() == fx::Argument::Kind::kTuple) {
      for (const fx::Argument& element : result.elements()) nodes.push_back(element.node());
    } else {
      nodes.push_back(result.node());
    }
  }
  std::vector<std::string> texts;
  std::size_t chosen = wanted.empty() ? 0 : nodes.size();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::string name = nodes[i] == nullptr ? "a constant" : std::string(nodes[i]->name());
    if (!wanted.empty() && (wanted == name || wanted == absl::StrCat(i))) chosen = i;
    texts.push_back(absl::StrCat(i, ": ", name, nodes[i] == nullptr ? std::string() : absl::StrCat(" ", Describe(nodes[i]->meta().val))));
  }
  const std::string outputs = absl::StrCat("; the program's outputs are ", absl::StrJoin(texts, ", "));
  if (nodes.empty()) return absl::InvalidArgumentError("the program has no outputs, so nothing to train");
  if (chosen == nodes.size()) return absl::InvalidArgumentError(absl::StrCat("--loss=", wanted, " is no output", outputs));
  const c10::IValue value = nodes[chosen] == nullptr ? c10::IValue() : nodes[chosen]->meta().val;
  if (!value.isTensor() || value.toTensor().numel() != 1 || !c10::isFloatingType(value.toTensor().scalar_type())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "output ", texts[chosen], " is no single floating-point number that could be a loss; --loss=NAME chooses another", outputs));
  }
  return chosen;
}

// The launcher has started all ranks again after one failed.
bool IsRestart() {
  const char* count = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return count != nullptr && std::atoi(count) > 0;
}

// The folders to go on from, best first.
std::vector<std::string> FoldersToResume(const Options& options) {
  std::vector<std::string> folders;
  if (!options.save.empty() && (IsRestart() || (options.resume && options.resume_folder.empty()))) folders.push_back(options.save);
  if (!options.resume_folder.empty()) folders.push_back(options.resume_folder);
  return folders;
}

// Another run's checkpoints would be mistaken for this one's.
absl::Status CheckSaveFolder(const Options& options) {
  if (options.save.empty() || IsRestart()) return absl::OkStatus();
  const std::vector<std::string> resumed = FoldersToResume(options);
  if (std::find(resumed.begin(), resumed.end(), options.save) != resumed.end()) return absl::OkStatus();
  const absl::StatusOr<std::vector<std::string>> found = ListCheckpoints(options.save);
  if (absl::IsNotFound(found.status())) return absl::OkStatus();
  DDPOPT_RETURN_IF_ERROR(found.status());
  if (found->empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--save has checkpoints of another run, the newest \"", found->front(),
                                                 "\": --resume goes on from it, or save elsewhere"));
}

struct Job {
  std::shared_ptr<ExportedProgram> program;
  std::size_t loss = 0;
  std::unique_ptr<Batches> batches;
};

// Everything that can be wrong with the files.
absl::StatusOr<Job> Prepare(const Options& options) {
  Job job;
  DDPOPT_ASSIGN_OR_RETURN(job.program, LoadExportedProgram(options.model));
  DDPOPT_RETURN_IF_ERROR(Annotate(job.program->CheckExecutable(), options.model));
  if (!options.weights.empty()) DDPOPT_RETURN_IF_ERROR(LoadWeights(job.program.get(), options.weights));
  DDPOPT_RETURN_IF_ERROR(Annotate(job.program->CheckData(), options.model));
  const auto named = [&](absl::Status status) { return Annotate(status, absl::StrCat("\"", options.model, "\"")); };
  absl::StatusOr<std::size_t> loss = FindLoss(*job.program, options.loss);
  if (!loss.ok()) return named(loss.status());
  job.loss = *loss;
  absl::StatusOr<Batches> batches =
      options.data.empty() ? Batches::MakeUp(job.program, options.seed) : Batches::Open(job.program, options.data);
  if (!batches.ok()) return named(batches.status());
  job.batches = std::make_unique<Batches>(*std::move(batches));
  return job;
}

std::unique_ptr<torch::optim::Optimizer> MakeOptimizer(const Options& options, std::vector<at::Tensor> parameters) {
  if (options.optimizer == "adam") {
    return std::make_unique<torch::optim::Adam>(std::move(parameters),
                                                torch::optim::AdamOptions(options.lr).weight_decay(options.weight_decay));
  }
  if (options.optimizer == "adamw") {
    return std::make_unique<torch::optim::AdamW>(std::move(parameters),
                                                 torch::optim::AdamWOptions(options.lr).weight_decay(options.weight_decay));
  }
  return std::make_unique<torch::optim::SGD>(
      std::move(parameters), torch::optim::SGDOptions(options.lr).momentum(options.momentum).weight_decay(options.weight_decay));
}

// OK if all ranks have the same parameters, to the bit. Buffers are each rank's own between steps.
absl::Status CheckEqual(const ProcessGroup& group, const ExportedProgram& program) {
  std::string hashes;
  for (const auto& parameter : program.parameters()) {
    const at::Tensor data = parameter.tensor.detach().contiguous();
    const std::string_view bytes(static_cast<const char*>(data.const_data_ptr()), data.nbytes());
    absl::StrAppend(&hashes, absl::Hex(std::hash<std::string_view>()(bytes), absl::kZeroPad16));
  }
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<std::string> all, group.AllGatherText("hashes of the parameters", hashes));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    for (std::size_t i = 0; i < program.parameters().size(); ++i) {
      if (all[rank].compare(16 * i, 16, all[0], 16 * i, 16) == 0) continue;
      return absl::InternalError(absl::StrCat("rank ", rank, " ended with another \"", program.parameters()[i].name, "\" than rank 0"));
    }
  }
  return absl::OkStatus();
}

absl::Status Train(const Options& options, const Job& job) {
  InitOptions init;
  init.timeout = Milliseconds(options.timeout);
  init.stall_timeout = Milliseconds(options.stall_timeout);
  DDPOPT_ASSIGN_OR_RETURN(const ProcessGroup group, InitProcessGroup(init));
  const bool first_rank = group.rank() == 0;

  DdpOptions ddp_options;
  ddp_options.find_unused_parameters = options.find_unused_parameters;
  ddp_options.bucket_policy = BucketPolicyOf(options.bucket_policy);
  DDPOPT_ASSIGN_OR_RETURN(const auto ddp, ProgramDataParallel::Create(job.program, group, ddp_options));
  std::vector<at::Tensor> parameters;
  int64_t elements = 0;
  for (const auto& parameter : job.program->parameters()) {
    elements += parameter.tensor.numel();
    if (parameter.tensor.requires_grad()) parameters.push_back(parameter.tensor);
  }
  const auto optimizer = MakeOptimizer(options, parameters);
  at::manual_seed(static_cast<uint64_t>(options.seed) * 1000 + static_cast<uint64_t>(group.rank()));

  CheckpointState state;
  for (const auto& parameter : job.program->parameters()) state.AddTensor(parameter.name, parameter.tensor);
  for (const auto& buffer : job.program->buffers()) state.AddTensor(buffer.name, buffer.tensor);
  state.AddOptimizer("optimizer", *optimizer);
  state.AddGenerator("cpu", at::detail::getDefaultCPUGenerator());
  state.numbers["batch"] = 0;  // of all ranks together
  const CheckpointRanks ranks = {group.rank(), group.world_size(),
                                 [&](const std::string& what, const std::string& mine) { return group.AllGatherText(what, mine); }};
  nlohmann::ordered_json resumed_from, saved;
  for (const std::string& folder : FoldersToResume(options)) {
    const absl::StatusOr<LoadedCheckpoint> loaded = LoadCheckpoint(folder, &state, ranks);
    // A run's own folder is empty at its first start.
    if (absl::IsNotFound(loaded.status()) && folder != options.resume_folder) continue;
    DDPOPT_RETURN_IF_ERROR(loaded.status());
    resumed_from = loaded->path;
    if (first_rank) {
      for (const std::string& damaged : loaded->passed_over) std::fprintf(stderr, "passed over: %s\n", damaged.c_str());
      std::fprintf(
          stderr, "resumed from %s, step %lld%s\n", loaded->path.c_str(), static_cast<long long>(loaded->step),
          loaded->random_state_restored ? "" : absl::StrCat(", saved by ", loaded->world_size, " ranks: random states are new").c_str());
    }
    break;
  }
  const auto save = [&]() -> absl::Status {
    DDPOPT_ASSIGN_OR_RETURN(const std::string path, SaveCheckpoint(options.save, state, {}, ranks));
    saved = path;
    return absl::OkStatus();
  };

  const int64_t first_step = state.step;
  nlohmann::ordered_json initial_loss, final_loss;
  Progress progress(first_rank, options.steps, "steps");
  const auto begin = std::chrono::steady_clock::now();
  while (state.step < options.steps) {
    DDPOPT_ASSIGN_OR_RETURN(std::vector<c10::IValue> inputs, job.batches->Get(state.numbers["batch"] + group.rank()));
    optimizer->zero_grad();
    const at::Tensor loss = ddp->RunFlat(std::move(inputs)).at(job.loss).toTensor();
    const double own = loss.detach().item<double>();
    at::Tensor sum = at::tensor({own}, at::kDouble);
    DDPOPT_RETURN_IF_ERROR(group.AllReduceSum(sum));
    if (!std::isfinite(own)) {
      return absl::InternalError(absl::StrFormat("the loss became %f at step %d on rank %d", own, state.step + 1, group.rank()));
    }
    const double mean = sum.item<double>() / group.world_size();
    if (!std::isfinite(mean)) {
      return absl::InternalError(
          absl::StrFormat("the loss of another rank became %f at step %d (seen on rank %d)", mean, state.step + 1, group.rank()));
    }
    loss.reshape({}).backward();
    optimizer->step();
    if (initial_loss.is_null()) initial_loss = mean;
    final_loss = mean;
    ++state.step;
    state.numbers["batch"] += group.world_size();
    if (first_rank && state.step == first_step + 1) {
      std::printf("%s\n", ddp->core().bucket_table().c_str());
      std::fflush(stdout);
    }
    progress.Step(state.step, mean, 1);
    if (options.save_every > 0 && state.step % options.save_every == 0 && state.step < options.steps) DDPOPT_RETURN_IF_ERROR(save());
  }
  const double seconds = SecondsSince(begin);
  if (!options.save.empty() && state.step > first_step) DDPOPT_RETURN_IF_ERROR(save());
  const absl::Status equal = CheckEqual(group, *job.program);
  DDPOPT_ASSIGN_OR_RETURN(const std::string costs, ddp->core().SummarizeSteps());
  absl::Status written;
  if (first_rank && !options.out.empty()) written = SaveWeights(*job.program, options.out);
  if (first_rank) {
    const auto done = static_cast<double>(state.step - first_step);
    if (done == 0) {
      std::printf("nothing to do: the checkpoint is of step %d, --steps=%d\n", static_cast<int>(first_step),
                  static_cast<int>(options.steps));
    } else {
      std::printf("loss %.4f at step %d, %.4f at step %d; %.2f s, %.2f steps/s\n", initial_loss.get<double>(),
                  static_cast<int>(first_step + 1), final_loss.get<double>(), static_cast<int>(state.step), seconds, done / seconds);
    }
    if (done > 0) std::printf("\nWhat a step cost on each rank\n%s\n", costs.c_str());
    std::printf("%s", AutoText(ddp->core()).c_str());
    if (options.json) {
      nlohmann::ordered_json buckets = nlohmann::ordered_json::array();
      for (const auto& bucket : ddp->core().reducer_buckets()) buckets.push_back(bucket.bytes);
      nlohmann::ordered_json result = {{"first_step", first_step},      {"steps", state.step},      {"world_size", group.world_size()},
                                       {"initial_loss", initial_loss},  {"final_loss", final_loss}, {"seconds", seconds},
                                       {"steps_per_s", done / seconds}, {"parameters", elements},   {"buckets", buckets},
                                       {"resumed_from", resumed_from},  {"saved", saved},           {"params_equal", equal.ok()}};
      if (ddp->core().auto_report().active) result["auto"] = AutoJson(ddp->core());
      std::printf("%s\n", result.dump().c_str());
    }
    std::fflush(stdout);
  }
  DDPOPT_RETURN_IF_ERROR(written);
  return equal;
}

int Main(int argc, char** argv) {
  const auto fail = [](const absl::Status& status, int exit_status) {
    std::fprintf(stderr, "train_pt2: %s\n", std::string(status.message()).c_str());
    return exit_status;
  };
  const absl::StatusOr<Options> options = ParseOptions(std::vector<std::string>(argv + 1, argv + argc));
  if (!options.ok()) {
    fail(options.status(), kBadUsage);
    std::fprintf(stderr, "Try --help.\n");
    return kBadUsage;
  }
  if (options->help) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  // What can be wrong with the files is found before any rank starts, and so is said once.
  if (const absl::Status folder = CheckSaveFolder(*options); !folder.ok()) return fail(folder, kBadUsage);
  absl::StatusOr<Job> job = CatchAsStatus(options->model, [&] { return Prepare(*options); });
  if (!job.ok()) return fail(job.status(), kBadUsage);
  if (std::getenv("RANK") == nullptr) {
    job = absl::CancelledError("the ranks load their own");
    ShareProcessors(options->nproc);
  }
  if (const absl::optional<int> status = MaybeLaunchSelf(argc, argv, static_cast<int>(options->nproc))) return *status;
  const absl::Status trained = CatchAsStatus("training", [&] { return Train(*options, *job); });
  return trained.ok() ? 0 : fail(trained, kFailed);
}

}  // namespace
}  // namespace ddpopt::examples

int main(int argc, char** argv) { return ddpopt::examples::Main(argc, argv); }
