// Training runs in which something goes wrong at a random moment: see kUsage.

#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/flags.h"
#include "ddpopt/checkpoint/checkpoint.h"
#include "nlohmann/json.hpp"
#include "testing/fault_kinds.h"
#include "testing/fault_processes.h"

namespace ddpopt {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using testing::FaultKind;
using testing::FaultRun;
using testing::MarkedProgram;

constexpr char kUsage[] = R"(usage: fault_campaign [--runs=N] [--seed=N] [--kinds=NAME,...] [--jobs=N] [--json]

Trains a small model on 2 or 3 ranks again and again; in each run something goes wrong, on a random rank at a random moment, also in the
midst of set-up, forward, backward, a collective or a checkpoint, and the launcher starts the ranks again. Counts what must not happen:

  hangs            a run that its time limit had to end
  orphans          processes that were left
  wrong_results    final parameters that are not, to the bit, those of an undisturbed run, or none; a restart that was due and did not come,
                   did not go on from the last checkpoint, or was not due
  unnamed_causes   runs whose output doesn't say what went wrong, on which rank, with the values, file, port or address that are wrong

  --runs=N         number of runs; default 20. The kinds take turns, in random order
  --seed=N         of all that is random; default 1
  --kinds=NAMES    only these; without it, kinds that this machine can't do (for lack of root, or of network namespaces) are named and left
                   out
  --jobs=N         runs at a time; default 2
  --json           the last line is {"runs", "faults": {kind: n}, "hangs", "orphans", "wrong_results", "unnamed_causes"}
  --help           this text

Exit status: 0 if all four counts are 0, 1 if not, 2 for a wrong command line or a kind that this machine can't do. What a run that failed
wrote stays in the folder that is named.
)";

constexpr int kSteps = 12;
constexpr int kLimit = 120;  // seconds

// Looks again and again, for as long as a run may take.
template <typename Condition>
bool Await(const Condition& condition, std::chrono::seconds limit = std::chrono::seconds(60)) {
  for (const Clock::time_point end = Clock::now() + limit; Clock::now() < end;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

std::string TextOf(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  return text.ok() ? *text : "";
}

int CountOf(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

struct Counts {
  int hangs = 0, orphans = 0, wrong_results = 0, unnamed_causes = 0;
  bool clean() const { return hangs == 0 && orphans == 0 && wrong_results == 0 && unnamed_causes == 0; }
};

class Campaign {
 public:
  Campaign(std::string tools, std::string folder) : tools_(std::move(tools)), folder_(std::move(folder)) {}

  Counts Run(const FaultKind& kind, int number, uint64_t seed) {
    const std::unique_ptr<One> one = Draw(kind, number, seed);
    fs::create_directories(one->checkpoints);
    const bool disk = one->name == "full_disk" && mount("tmpfs", one->checkpoints.c_str(), "tmpfs", 0, "size=1m") == 0;
    if (one->name == "port_taken") {
      TakePort(*one);
    } else if (one->name == "interrupt") {
      Interrupt(*one);
    } else if (one->name == "link_down") {
      CutLink(*one);
    } else {
      MarkedProgram program(Harness(*one, {"--max_restarts=1"}, one->fault.world), one->output, one->marker);
      Wait(*one, program);
    }
    one->counts.orphans = testing::EndMarked(one->marker);
    Judge(kind, *one);
    if (disk) umount(one->checkpoints.c_str());
    std::lock_guard<std::mutex> lock(mutex_);
    std::fprintf(stderr, "%s: %s\n", one->what.c_str(),
                 one->complaint.empty() ? "ok" : absl::StrCat(one->complaint, " (see ", one->output, ")").c_str());
    if (one->complaint.empty()) fs::remove_all(one->folder);
    return one->counts;
  }

  // The final parameters of a run in which nothing happens.
  std::string Undisturbed(int world) {
    std::lock_guard<std::mutex> lock(undisturbed_mutex_);
    std::string& parameters = undisturbed_[world];
    if (!parameters.empty()) return parameters;
    const std::string folder = absl::StrCat(folder_, "/undisturbed", world);
    fs::create_directories(folder);
    MarkedProgram program({tools_ + "/harness", absl::StrCat("--nproc_per_node=", world), tools_ + "/fault_program",
                           "--folder=" + folder + "/checkpoints", "--out=" + folder + "/parameters", absl::StrCat("--steps=", kSteps)},
                          folder + "/output", absl::StrCat(getpid(), "-undisturbed", world));
    int status = 1;
    const bool ended = program.Wait(Clock::now() + std::chrono::seconds(kLimit), &status);
    const absl::StatusOr<std::string> read = ReadFile(folder + "/parameters");
    const std::vector<std::string> times = absl::StrSplit(TextOf(folder + "/parameters.times"), ' ');
    if (!ended || status != 0 || !read.ok() || times.size() != 2 || !absl::SimpleAtoi(times[0], &setup_us_) ||
        !absl::SimpleAtoi(times[1], &step_us_)) {
      std::fprintf(stderr, "fault_campaign: the undisturbed run on %d ranks failed; see %s/output\n", world, folder.c_str());
      std::_Exit(1);
    }
    return parameters = *read;
  }

 private:
  // A run under way.
  struct One {
    std::string name, what, folder, checkpoints, output, result, marker;
    FaultRun fault;
    int hold = 0;                    // steps on which the ranks go until they wait for what comes from outside
    std::mt19937_64 random;
    Clock::time_point deadline = Clock::now() + std::chrono::seconds(kLimit + 10);
    int status = 0;
    bool restart_due = false;        // though the kind has none by itself
    Counts counts;
    std::string complaint;

    int Draw(int below) { return static_cast<int>(random() % static_cast<uint64_t>(std::max(below, 1))); }
    void Complain(const std::string& more) { absl::StrAppend(&complaint, complaint.empty() ? "" : "; ", more); }
    // Each of the counts counts runs.
    void Wrong(const std::string& more) {
      counts.wrong_results = 1;
      Complain(more);
    }
    void Unnamed(const std::string& more) {
      counts.unnamed_causes = 1;
      Complain(more);
    }
  };

  std::unique_ptr<One> Draw(const FaultKind& kind, int number, uint64_t seed) {
    auto one = std::make_unique<One>();
    one->random.seed(seed * 1'000'003 + static_cast<uint64_t>(number));
    one->name = kind.name;
    FaultRun& fault = one->fault;
    fault.world = one->name == "link_down" ? 2 : 2 + one->Draw(2);
    fault.rank = kind.fixed_rank >= 0 ? kind.fixed_rank : one->Draw(fault.world);
    fault.step = kind.first_step + one->Draw(kSteps - (kind.middle ? 1 : 0) - kind.first_step);
    fault.point = kind.points[static_cast<std::size_t>(one->Draw(static_cast<int>(kind.points.size())))];
    if (fault.point == testing::kAtStart) fault.step = 0;
    // Half of what a timer can do it does: a fifth of that in set-up, the rest within a step or so.
    if (kind.timer && one->Draw(2) == 0) {
      const bool at_start = one->Draw(5) == 0;
      if (at_start) {
        fault.point = testing::kAtStart;
        fault.step = 0;
      }
      fault.after_us = one->Draw(at_start ? setup_us_ + setup_us_ / 5 : step_us_ + step_us_ / 5);
      one->hold = std::min(1 + one->Draw(3), kSteps - 1 - fault.step);
    }
    one->what = absl::StrCat("run ", number, ": ", one->name, ", rank ", fault.rank, " of ", fault.world, ", step ", fault.step, ", point ",
                             static_cast<int>(fault.point));
    if (fault.after_us >= 0) absl::StrAppend(&one->what, " and ", fault.after_us, " us");
    one->folder = absl::StrCat(folder_, "/", number);
    one->checkpoints = one->folder + "/checkpoints";
    one->output = one->folder + "/output";
    one->result = one->folder + "/parameters";
    one->marker = absl::StrCat(getpid(), "-", number);
    return one;
  }

  std::vector<std::string> Harness(const One& one, std::vector<std::string> flags, int ranks) const {
    std::vector<std::string> argv = {tools_ + "/harness", absl::StrCat("--nproc_per_node=", ranks), absl::StrCat("--timeout=", kLimit)};
    argv.insert(argv.end(), flags.begin(), flags.end());
    const FaultRun& fault = one.fault;
    argv.insert(argv.end(), {tools_ + "/fault_program", "--folder=" + one.checkpoints, "--out=" + one.result,
                             absl::StrCat("--steps=", kSteps), "--fault=" + one.name, absl::StrCat("--fault_rank=", fault.rank),
                             absl::StrCat("--fault_step=", fault.step), absl::StrCat("--fault_point=", static_cast<int>(fault.point)),
                             absl::StrCat("--fault_after=", fault.after_us), absl::StrCat("--fault_hold=", one.hold)});
    return argv;
  }

  static void Wait(One& one, MarkedProgram& program) {
    if (!program.Wait(one.deadline, &one.status)) {
      one.status = 124;
    }
    if (one.status == 124) one.counts.hangs = 1;
  }

  void TakePort(One& one) const {
    int fd = -1;
    one.fault.master_port = testing::ListenSomewhere(&fd);
    const std::string flag = absl::StrCat("--master_port=", one.fault.master_port);
    {
      MarkedProgram refused(Harness(one, {flag}, one.fault.world), one.output, one.marker);
      Wait(one, refused);
      if (one.status == 0) one.Wrong("a port in use was taken");
    }
    close(fd);
    MarkedProgram program(Harness(one, {flag}, one.fault.world), one.output, one.marker);
    Wait(one, program);
  }

  // Until the run is where what comes from outside is to come.
  static void AwaitMoment(const One& one) {
    const FaultRun& fault = one.fault;
    Await([&] {
      if (fault.point == testing::kAtStart) return fs::exists(one.result + ".started");
      const absl::StatusOr<std::vector<std::string>> paths = ListCheckpoints(one.checkpoints);
      return paths.ok() && !paths->empty() && paths->front() >= absl::StrFormat("%s/checkpoint-%012d.ckpt", one.checkpoints, fault.step);
    });
    if (fault.after_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(fault.after_us));
  }

  void Interrupt(One& one) const {
    {
      MarkedProgram program(Harness(one, {}, one.fault.world), one.output, one.marker);
      AwaitMoment(one);
      program.Signal(SIGINT);
      Wait(one, program);
      if (one.status != 128 + SIGINT) one.Wrong(absl::StrCat("an interrupted run ended with status ", one.status));
    }
    static_cast<void>(WriteFile(one.result + ".come", ""));
    MarkedProgram again(Harness(one, {}, one.fault.world), one.output, one.marker);
    Wait(one, again);
  }

  void CutLink(One& one) const {
    const testing::TwoMachines machines(one.marker);
    std::vector<std::unique_ptr<MarkedProgram>> programs;
    for (int node = 0; node < 2; ++node) {
      std::vector<std::string> argv = {"ip", "netns", "exec", machines.name(node)};
      const auto rest = Harness(one, {"--nnodes=2", absl::StrCat("--node_rank=", node), "--master_addr=10.77.0.1", "--master_port=29400",
                                      "--max_restarts=3"}, 1);
      argv.insert(argv.end(), rest.begin(), rest.end());
      programs.push_back(std::make_unique<MarkedProgram>(argv, one.output, one.marker));
    }
    AwaitMoment(one);
    machines.SetLink(false);
    static_cast<void>(WriteFile(one.result + ".come", ""));
    // Either until a rank has failed, which it then must, or for a while that it may outlast. Set-up tries again for longer.
    one.restart_due = one.fault.point != testing::kAtStart && one.Draw(2) == 0;
    if (one.restart_due) {
      Await([&] { return absl::StrContains(TextOf(one.output), "starting all ranks again"); });
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1000 + one.Draw(5000)));
    }
    machines.SetLink(true);
    int worst = 0;
    for (const auto& program : programs) {
      Wait(one, *program);
      worst = std::max(worst, one.status);
    }
    one.status = worst;
  }

  void Judge(const FaultKind& kind, One& one) {
    if (one.counts.hangs > 0) one.Complain("hang");
    if (one.counts.orphans > 0) one.Complain(absl::StrCat(one.counts.orphans, " processes are left"));
    const absl::StatusOr<std::string> parameters = ReadFile(one.result);
    if (one.status != 0) {
      one.Wrong(absl::StrCat("it ended with status ", one.status));
    } else if (!parameters.ok() || *parameters != Undisturbed(one.fault.world)) {
      one.Wrong("the final parameters are not those of an undisturbed run");
    }
    const std::string text = TextOf(one.output);
    for (const std::string& cause : kind.causes(one.fault)) {
      if (!std::regex_search(text, std::regex(cause))) one.Unnamed(absl::StrCat("nothing matches /", cause, "/"));
    }
    const int restarts = CountOf(text, "starting all ranks again");
    const bool due = kind.restarts || one.restart_due;
    if (due && restarts == 0) one.Wrong("the ranks were not started again");
    if (one.name != "link_down" && restarts != (due ? 1 : 0)) one.Wrong(absl::StrCat(restarts, " restarts"));
    // A checkpoint is whole on all ranks when these go on, and the one before it is when they come to the next.
    const int saved = testing::NewestCheckpoint(one.fault) - 1;
    if (kind.restarts && saved > 0 && !absl::StrContains(text, "resumed at step ")) one.Wrong("it began at the beginning");
    if (one.name == "link_down") JudgeWords(one, text);
  }

  // Each rank that failed says so, and names the other or the store.
  static void JudgeWords(One& one, const std::string& text) {
    std::map<int, int> ended, spoken;
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
      for (const int rank : {0, 1}) {
        if (absl::StartsWith(line, absl::StrCat("launcher: rank ", rank, " (pid ")) && !absl::StrContains(line, "signal 15")) ++ended[rank];
        if (!absl::StartsWith(line, absl::StrCat("[rank ", rank, "] fault_program: "))) continue;
        ++spoken[rank];
        const std::string words = line.substr(line.find("fault_program: "));
        const std::string other = absl::StrCat("rank ", 1 - rank);
        if (!absl::StrContains(words, other) || !absl::StrContains(words, absl::StrCat("rank ", rank)))
          one.Unnamed(absl::StrCat("rank ", rank, " names no other: \"", words, "\""));
      }
    }
    for (const auto& [rank, count] : ended) {
      if (spoken[rank] < count) one.Unnamed(absl::StrCat("rank ", rank, " failed ", count, " times and spoke ", spoken[rank], " times"));
    }
  }

  const std::string tools_, folder_;
  std::mutex mutex_, undisturbed_mutex_;
  std::map<int, std::string> undisturbed_;
  int setup_us_ = 0, step_us_ = 0;
};

int Main(int argc, char** argv) {
  const auto refuse = [](const std::string& message) {
    std::fprintf(stderr, "fault_campaign: %s\nTry --help.\n", message.c_str());
    return 2;
  };
  int64_t runs = 20, jobs = 2, seed = 1;
  bool json = false, help = false;
  std::string kind_names;
  Flags flags;
  flags.Integer("runs", &runs, 1, 1'000'000, "a number of runs");
  flags.Integer("jobs", &jobs, 1, 64, "a number of runs from 1 to 64");
  flags.Integer("seed", &seed, 0, std::numeric_limits<int64_t>::max(), "a whole number, 0 or above");
  flags.Text("kinds", &kind_names, "names of kinds, separated by commas");
  flags.Switch("json", &json);
  flags.Switch("help", &help);
  if (const absl::Status status = flags.Parse({argv + 1, argv + argc}); !status.ok()) return refuse(std::string(status.message()));
  if (help) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  const std::vector<std::string> wanted = absl::StrSplit(kind_names, ',', absl::SkipEmpty());
  std::vector<FaultKind> kinds;
  std::vector<std::string> known;
  for (const FaultKind& kind : testing::FaultKinds()) {
    known.emplace_back(kind.name);
    const bool named = std::find(wanted.begin(), wanted.end(), kind.name) != wanted.end();
    if (!wanted.empty() && !named) continue;
    if (const std::string why = kind.refused ? kind.refused() : ""; !why.empty()) {
      std::fprintf(stderr, "%s is left out: it %s\n", kind.name, why.c_str());
      if (named) return 2;
      continue;
    }
    kinds.push_back(kind);
  }
  for (const std::string& name : wanted) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      return refuse(absl::StrCat("--kinds: there is no ", name, "; there are ", absl::StrJoin(known, ", ")));
  }

  std::array<char, 4096> self = {};
  if (readlink("/proc/self/exe", self.data(), self.size() - 1) <= 0) return refuse("can't read /proc/self/exe");
  std::string folder = absl::StrCat(fs::temp_directory_path().string(), "/fault_campaign.XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) return refuse(absl::StrCat("can't make a folder: ", std::strerror(errno)));
  Campaign campaign(fs::path(self.data()).parent_path().string(), folder);
  for (const int world : {2, 3}) campaign.Undisturbed(world);

  std::mt19937_64 random(static_cast<uint64_t>(seed));
  std::vector<const FaultKind*> order;
  while (static_cast<int64_t>(order.size()) < runs) {
    std::vector<const FaultKind*> round;
    for (const FaultKind& kind : kinds) round.push_back(&kind);
    for (std::size_t i = round.size(); i > 1; --i) std::swap(round[i - 1], round[random() % i]);
    order.insert(order.end(), round.begin(), round.end());
  }
  order.resize(static_cast<std::size_t>(runs));

  std::mutex mutex;
  std::size_t next = 0;
  Counts total;
  std::map<std::string, int> faults;
  std::vector<std::thread> threads;
  for (int64_t job = 0; job < jobs; ++job) {
    threads.emplace_back([&] {
      while (true) {
        std::size_t number = 0;
        {
          std::lock_guard<std::mutex> lock(mutex);
          if (next >= order.size()) return;
          number = next++;
        }
        const Counts counts = campaign.Run(*order[number], static_cast<int>(number), static_cast<uint64_t>(seed));
        std::lock_guard<std::mutex> lock(mutex);
        ++faults[order[number]->name];
        total.hangs += counts.hangs;
        total.orphans += counts.orphans;
        total.wrong_results += counts.wrong_results;
        total.unnamed_causes += counts.unnamed_causes;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (total.clean()) fs::remove_all(folder);
  if (json) {
    const nlohmann::ordered_json result = {{"runs", runs},
                                           {"faults", faults},
                                           {"hangs", total.hangs},
                                           {"orphans", total.orphans},
                                           {"wrong_results", total.wrong_results},
                                           {"unnamed_causes", total.unnamed_causes}};
    std::printf("%s\n", result.dump().c_str());
  } else {
    std::printf("%lld runs: %d hangs, %d orphans, %d wrong results, %d unnamed causes\n", static_cast<long long>(runs), total.hangs,
                total.orphans, total.wrong_results, total.unnamed_causes);
  }
  return total.clean() ? 0 : 1;
}

}  // namespace
}  // namespace ddpopt

int main(int argc, char** argv) { return ddpopt::Main(argc, argv); }
