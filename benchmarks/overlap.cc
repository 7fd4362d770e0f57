// Trains on a slowed link and separates compute, communication, and what of the latter is exposed. See README.md and --help.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/flags.h"
#include "base/status.h"
#include "benchmarks/overlap_worker.h"
#include "benchmarks/slow_link.h"
#include "nlohmann/json.hpp"

extern char** environ;

namespace ddpopt {
namespace {

namespace fs = std::filesystem;
using benchmarks::SlowLink;
using nlohmann::ordered_json;

constexpr char kHelp[] =
    R"(Trains models on two ranks with a slowed link between them, in alternating steps: as they are, with all communication after backward, and
with none.

  overlap [--json] [--models=NAME,...] [--links=MBIT,...] [--policies=NAME,...] [--caps=MIB,...] [--steps=11] [--graphs=FOLDER]
          [--timeout=SECONDS] [--help]

  --models    char_gpt, resnet18, bert_small; default: all
  --links     Mbit/s, each way; default 1000,3000
  --policies  bucket policies: default (1 and 25 MiB), cap (the largest cap with at least four buckets), auto; default: all
  --caps      MiB; compares the steps of these caps with their predictions on the first link; default 1,2,4,8,12,16,25,50; or none
  --steps     that count, of each kind
  --graphs    where NAME.model.json.gz are; default: those of the repository
  --timeout   of the training of one model on one link; default 1800
  --json      the last line of standard output is one JSON object:
              {"results": [{"model", "link_mbit", "ranks", "policy", "buckets", "comm_ms", "predicted_comm_ms", "backward_ms", "last_bucket_ms",
                            "ideal_exposed_ms", "exposed_ms", "step_ms", "step_spread_ms", "no_overlap_step_ms", "no_comm_step_ms",
                            "predicted_exposed_ms", "bound_step_ms"}, ...],
               "caps": [{"model", "link_mbit", "cap_mib", "buckets", "step_ms", "step_spread_ms", "predicted_step_ms", "predicted_exposed_ms",
                         "comm_ms", "predicted_comm_ms"}, ...],
               "orders": [{"model", "link_mbit", "kendall_tau", "pairs", "left_out"}, ...]}

  step                 zero_grad, forward, backward and SGD's step, of rank 0; medians, spreads half the distance between the quartiles
  comm, last_bucket    all-reduces of the buckets alone, one after another
  exposed              step less the step without communication
  ideal_exposed        of the timeline in which each bucket starts at the later of the time at which it was ready (in steps without
                       communication) and the end of the one before it
  bound_step           the step without communication and the larger of the last possible bucket's all-reduce and what communication
                       exceeds backward by
  predicted_...        by the cost model (docs/planner.md), from all-reduces and node times that were measured before training
  orders               of pairs of caps whose steps differ by more than their spreads: how many are in the predicted order

Each rank has a network namespace of its own; they are joined by veth, slowed by tc's tbf. That needs root: without, it is refused, with the
reason. Ranks, namespaces and files are removed at the end, also after Ctrl-C. Exit status: 0 success, 1 a failure or a refusal (what was
measured before is told), 2 bad flags.
)";

volatile sig_atomic_t g_signal = 0;
void OnSignal(int signal) { g_signal = signal; }

struct Options {
  std::vector<std::string> models = {"char_gpt", "resnet18", "bert_small"};
  std::vector<double> links = {1000, 3000};
  std::vector<std::string> policies = {"default", "cap", "auto"};
  std::vector<double> caps = {1, 2, 4, 8, 12, 16, 25, 50};
  int64_t steps = 11;
  double timeout = 1800;
  std::string graphs;
  bool json = false, help = false;
  // Of a rank that this program starts.
  bool worker = false;
  std::string out;
};

// "1,2.5", or "none".
absl::Status ParseNumbers(const std::string& flag, const std::string& text, std::vector<double>* numbers) {
  numbers->clear();
  if (text == "none") return absl::OkStatus();
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    double number = 0;
    if (!absl::SimpleAtod(part, &number) || !std::isfinite(number) || number <= 0) {
      return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", text, ": \"", part, "\" is no number above 0"));
    }
    numbers->push_back(number);
  }
  return absl::OkStatus();
}

absl::Status ParseNames(const std::string& flag, const std::string& text, std::vector<std::string>* names) {
  const std::vector<std::string> known = *names;
  *names = absl::StrSplit(text, ',', absl::SkipEmpty());
  for (const std::string& name : *names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", text, ": \"", name, "\" is none of ", absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

absl::StatusOr<Options> Parse(int argc, char** argv) {
  Options options;
  std::string models = absl::StrJoin(options.models, ","), policies = absl::StrJoin(options.policies, ",");
  std::string links = absl::StrJoin(options.links, ","), caps = absl::StrJoin(options.caps, ",");
  Flags flags;
  flags.Text("models", &models, "models' names");
  flags.Text("links", &links, "numbers of Mbit/s");
  flags.Text("policies", &policies, "bucket policies' names");
  flags.Text("caps", &caps, "numbers of MiB, or none");
  flags.Integer("steps", &options.steps, 1, 1'000'000, "a whole number above 0");
  flags.Number("timeout", &options.timeout, 0, "a number of seconds above 0");
  flags.Text("graphs", &options.graphs, "a folder");
  flags.Switch("json", &options.json);
  flags.Switch("help", &options.help);
  flags.Switch("worker", &options.worker);
  flags.Text("out", &options.out, "a file");
  DDPOPT_RETURN_IF_ERROR(flags.Parse({argv + 1, argv + argc}));
  DDPOPT_RETURN_IF_ERROR(ParseNames("models", models, &options.models));
  DDPOPT_RETURN_IF_ERROR(ParseNames("policies", policies, &options.policies));
  DDPOPT_RETURN_IF_ERROR(ParseNumbers("links", links, &options.links));
  DDPOPT_RETURN_IF_ERROR(ParseNumbers("caps", caps, &options.caps));
  if (options.models.empty() || options.links.empty()) return absl::InvalidArgumentError("--models and --links must name at least one each");
  options.graphs = options.graphs.empty() ? fs::absolute("testing/testdata/model_graphs").string() : UserPath(options.graphs);
  return options;
}

// A rank in its namespace; ended when this is.
class Rank {
 public:
  Rank(const std::vector<std::string>& argv, const std::vector<std::string>& variables) {
    std::vector<char*> arguments, environment;
    for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
    for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
    for (const std::string& variable : variables) environment.push_back(const_cast<char*>(variable.c_str()));
    environment.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, 2, 1);  // standard output is for this program's own last line
    if (posix_spawnp(&pid_, arguments[0], &actions, nullptr, arguments.data(), environment.data()) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Rank() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Whether it has ended, and how.
  bool Ended(int* status) {
    if (pid_ < 0) {
      *status = 127;
      return true;
    }
    int raw = 0;
    if (pid_ == 0 || waitpid(pid_, &raw, WNOHANG) != pid_) return false;
    pid_ = 0;
    *status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
    return true;
  }

 private:
  pid_t pid_ = 0;
};

absl::StatusOr<ordered_json> Train(const Options& options, const std::string& model, const std::vector<double>& caps, const SlowLink& link,
                                   const std::string& folder) {
  const std::string self = fs::read_symlink("/proc/self/exe").string(), out = folder + "/rank0.json";
  std::error_code ignored;
  fs::remove(out, ignored);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<std::string> argv = {"ip",
                                           "netns",
                                           "exec",
                                           link.name(rank),
                                           self,
                                           "--worker",
                                           "--models=" + model,
                                           "--policies=" + absl::StrJoin(options.policies, ","),
                                           "--caps=" + (caps.empty() ? "none" : absl::StrJoin(caps, ",")),
                                           absl::StrCat("--steps=", options.steps),
                                           "--graphs=" + options.graphs,
                                           "--out=" + (rank == 0 ? out : std::string("-"))};
    ranks.push_back(std::make_unique<Rank>(
        argv, std::vector<std::string>{absl::StrCat("RANK=", rank), "WORLD_SIZE=2", "LOCAL_RANK=0", "MASTER_ADDR=" + SlowLink::Address(0),
                                       "MASTER_PORT=29417", "OMP_NUM_THREADS=1"}));
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(options.timeout);
  std::size_t left = ranks.size();
  while (left > 0) {
    if (g_signal != 0) return absl::CancelledError(absl::StrCat("got signal ", static_cast<int>(g_signal)));
    if (std::chrono::steady_clock::now() > deadline)
      return absl::DeadlineExceededError(absl::StrCat(model, " took longer than ", options.timeout, " s"));
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      int status = 0;
      if (!ranks[rank]->Ended(&status)) continue;
      if (status != 0) return absl::InternalError(absl::StrCat(model, ": rank ", rank, " ended with status ", status));
      --left;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  DDPOPT_ASSIGN_OR_RETURN(const std::string text, ReadFile(out));
  ordered_json result = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!result.is_object()) return absl::InternalError(absl::StrCat(model, ": rank 0's figures can't be read"));
  return result;
}

// Kendall's τ of the predicted and the measured order of one model's caps.
ordered_json Order(const std::string& model, double mbit, const ordered_json& caps) {
  int agree = 0, disagree = 0, left_out = 0;
  for (std::size_t i = 0; i < caps.size(); ++i) {
    for (std::size_t k = i + 1; k < caps.size(); ++k) {
      const double measured = caps[i]["step_ms"].get<double>() - caps[k]["step_ms"].get<double>();
      const double predicted = caps[i]["predicted_step_ms"].get<double>() - caps[k]["predicted_step_ms"].get<double>();
      const double spread = std::max(caps[i]["step_spread_ms"].get<double>(), caps[k]["step_spread_ms"].get<double>());
      if (std::abs(measured) <= spread) {
        ++left_out;
      } else if (measured * predicted > 0) {
        ++agree;
      } else {
        ++disagree;
      }
    }
  }
  ordered_json order = {
      {"model", model}, {"link_mbit", mbit}, {"kendall_tau", nullptr}, {"pairs", agree + disagree}, {"left_out", left_out}};
  if (agree + disagree > 0) order["kendall_tau"] = static_cast<double>(agree - disagree) / (agree + disagree);
  return order;
}

// Adds to `result` what is measured, as long as that goes well.
absl::Status Measure(const Options& options, const std::string& folder, ordered_json* result) {
  ordered_json& all = *result;
  for (const char* list : {"results", "caps", "orders"}) all[list] = ordered_json::array();
  for (std::size_t i = 0; i < options.links.size(); ++i) {
    const double mbit = options.links[i];
    DDPOPT_ASSIGN_OR_RETURN(const std::unique_ptr<SlowLink> link, SlowLink::Create(mbit));
    for (const std::string& model : options.models) {
      std::cerr << model << " at " << mbit << " Mbit/s\n";
      DDPOPT_ASSIGN_OR_RETURN(const ordered_json figures,
                              Train(options, model, i == 0 ? options.caps : std::vector<double>(), *link, folder));
      for (const char* list : {"results", "caps"}) {
        for (const ordered_json& figure : figures[list]) {
          ordered_json row;
          for (const auto& [key, value] : figure.items()) {
            row[key] = value;
            if (key == "model") row["link_mbit"] = mbit;
          }
          all[list].push_back(std::move(row));
        }
      }
      if (!figures["caps"].empty()) all["orders"].push_back(Order(model, mbit, figures["caps"]));
    }
  }
  return absl::OkStatus();
}

void Print(const ordered_json& all) {
  std::printf("%-11s%6s %-8s%8s%10s%10s%10s%10s%10s%11s%12s%10s%10s\n", "", "Mbit", "policy", "buckets", "comm", "backward", "ideal",
              "exposed", "predicted", "step ms", "no overlap", "no comm", "bound");
  for (const ordered_json& row : all["results"]) {
    const auto figure = [&](const char* key) { return row[key].get<double>(); };
    std::printf("%-11s%6.0f %-8s%8d%10.1f%10.1f%10.1f%10.1f%10.1f%11.1f%12.1f%10.1f%10.1f\n", row["model"].get<std::string>().c_str(),
                figure("link_mbit"), row["policy"].get<std::string>().c_str(), row["buckets"].get<int>(), figure("comm_ms"),
                figure("backward_ms"), figure("ideal_exposed_ms"), figure("exposed_ms"), figure("predicted_exposed_ms"), figure("step_ms"),
                figure("no_overlap_step_ms"), figure("no_comm_step_ms"), figure("bound_step_ms"));
  }
  if (!all["caps"].empty())
    std::printf("\n%-11s%6s%10s%9s%11s%11s%12s%10s%12s\n", "", "Mbit", "cap MiB", "buckets", "step ms", "spread", "predicted", "comm",
                "predicted");
  for (const ordered_json& row : all["caps"]) {
    const auto figure = [&](const char* key) { return row[key].get<double>(); };
    std::printf("%-11s%6.0f%10g%9d%11.1f%11.1f%12.1f%10.1f%12.1f\n", row["model"].get<std::string>().c_str(), figure("link_mbit"),
                figure("cap_mib"), row["buckets"].get<int>(), figure("step_ms"), figure("step_spread_ms"), figure("predicted_step_ms"),
                figure("comm_ms"), figure("predicted_comm_ms"));
  }
  for (const ordered_json& row : all["orders"]) {
    std::printf("%s at %g Mbit/s: Kendall's tau %s of %d pairs, %d left out\n", row["model"].get<std::string>().c_str(),
                row["link_mbit"].get<double>(), row["kendall_tau"].dump().c_str(), row["pairs"].get<int>(), row["left_out"].get<int>());
  }
}

int WorkerMain(const Options& options) {
  // The program that started this one may be killed.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  benchmarks::WorkerOptions worker;
  worker.model = options.models.front();
  worker.graphs = options.graphs;
  worker.policies = options.policies;
  worker.caps_mib = options.caps;
  worker.steps = static_cast<int>(options.steps);
  const absl::StatusOr<ordered_json> figures = benchmarks::RunWorker(worker);
  absl::Status status = figures.status();
  if (status.ok() && options.out != "-") status = WriteFile(options.out, figures->dump());
  if (!status.ok()) std::cerr << "overlap: " << worker.model << ": " << status.message() << "\n";
  return status.ok() ? 0 : 1;
}

int Main(int argc, char** argv) {
  const absl::StatusOr<Options> options = Parse(argc, argv);
  if (!options.ok()) {
    std::cerr << "overlap: " << options.status().message() << "\n\n" << kHelp;
    return 2;
  }
  if (options->help) {
    std::cout << kHelp;
    return 0;
  }
  if (options->worker) return WorkerMain(*options);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    struct sigaction action = {};
    action.sa_handler = OnSignal;
    sigaction(signal, &action, nullptr);
  }
  std::string folder = absl::StrCat(fs::temp_directory_path().string(), "/overlap.XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) {
    std::cerr << "overlap: can't make a folder in " << fs::temp_directory_path() << "\n";
    return 1;
  }
  ordered_json all;
  const absl::Status status = Measure(*options, folder, &all);
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  if (options->json) {
    std::cout << all.dump() << "\n";
  } else if (!all["results"].empty() || !all["caps"].empty()) {
    Print(all);
  }
  if (!status.ok()) std::cerr << "overlap: " << status.message() << "\n";
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace ddpopt

int main(int argc, char** argv) { return ddpopt::Main(argc, argv); }
