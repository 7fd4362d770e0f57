// Training runs in which something goes wrong at a random moment: see kUsage.

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
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
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/flags.h"
#include "ddpopt/checkpoint/checkpoint.h"
#include "nlohmann/json.hpp"

extern char** environ;

namespace ddpopt {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr char kUsage[] = R"(usage: fault_campaign [--runs=N] [--seed=N] [--kinds=NAME,...] [--jobs=N] [--json]

Trains a small model on 2 or 3 ranks again and again; in each run something goes wrong, on a random rank at a random moment, and the
launcher starts the ranks again. Counts what must not happen:

  hangs            a run that its time limit had to end
  orphans          processes that were left
  wrong_results    final parameters that are not, to the bit, those of an undisturbed run, or none
  unnamed_causes   runs whose output doesn't say what went wrong, and where

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

struct Kind {
  const char* name;
  // What the output must match, R standing for the rank. Empty: nothing goes wrong that anyone has to be told of.
  const char* cause;
  bool restarts = true;                            // a rank fails, and the run goes on after a restart
  int fixed_rank = -1;                             // -1: any
  int first_step = 0;                              // from which on it can happen
  bool middle = false;                             // not in the last step
  std::function<std::string()> refused = nullptr;  // why this machine can't do it; empty: it can
};

std::string Shell(const std::string& command, int* status) {
  std::string output;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer;
  for (std::size_t got; (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) output.append(buffer.data(), got);
  *status = pclose(pipe);
  return std::string(absl::StripTrailingAsciiWhitespace(output));
}

std::string NamespacesRefused() {
  static const std::string& reason = *new std::string([] {
    int status = 0;
    const std::string name = absl::StrCat("ddpopt-try-", getpid());
    const std::string output = Shell(absl::StrCat("ip netns add ", name, " && ip -n ", name,
                                                  " link add try type veth peer name try2; s=$?; ip netns del ", name, "; exit $s"),
                                     &status);
    return status == 0 ? std::string() : absl::StrCat("needs root and network namespaces (ip netns, veth): ", output);
  }());
  return reason;
}

std::string MountRefused() {
  static const std::string& reason = *new std::string([] {
    std::string folder = absl::StrCat(fs::temp_directory_path().string(), "/ddpopt-mount.XXXXXX");
    if (mkdtemp(folder.data()) == nullptr) return absl::StrCat("can't make a folder: ", std::strerror(errno));
    const bool mounted = mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=64k") == 0;
    const std::string why = mounted ? "" : absl::StrCat("needs root, to mount a small disk: ", std::strerror(errno));
    if (mounted) umount(folder.c_str());
    rmdir(folder.c_str());
    return why;
  }());
  return reason;
}

std::vector<Kind> Kinds() {
  return {
      {"kill", "launcher: rank R \\(pid \\d+\\) was killed by signal 9"},
      {"stop", "launcher: rank R \\(pid \\d+\\) was stopped by signal 19"},
      {"slow", "", false},
      {"exception", "\\[rank R\\] fault_program: training: an exception of the user's"},
      {"corrupt_checkpoint", "passed over: \"[^\"]*checkpoint-\\d+\\.ckpt\": .*(altered|cut short|end mark|expected a checkpoint)", true,
       -1, 2},
      {"full_disk", "saving a checkpoint: \"[^\"]*checkpoint-\\d+\\.ckpt\": No space left on device", true, 0, 0, false, MountRefused},
      {"file_size_limit", "saving a checkpoint: \"[^\"]*checkpoint-\\d+\\.ckpt\": File too large", true, 0},
      {"port_taken", "master_port \\d+ is in use on this machine"},
      {"wrong_world_size", "WORLD_SIZE=7"},
      {"mismatching_models", "first\\.weight"},
      {"out_of_order",
       "Detected mismatch between collectives on ranks|collectives differ between ranks: .*rank R|rank R (has not come|runs another collective|is further)|waited [0-9.]+ s for rank "
       "R, which has not come",
       true, -1, 0, true},
      {"recompiles_alone", "", false, -1, 1},
      {"falls_back_alone", "", false},
      {"interrupt", "launcher: the launcher got signal 2", true, -1, 1},
      {"link_down",
       "rank 1 doesn't answer|rank 0's store at [0-9.]+:\\d+ doesn't answer|rank [01] failed in #|Connection closed by peer|can't reach "
       "rank 0's store",
       true, -1, 2, true, NamespacesRefused},
  };
}

// A program and what it writes.
class Child {
 public:
  Child(const std::vector<std::string>& argv, const std::string& output, const std::string& marker) {
    std::vector<char*> arguments;
    for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
    const std::string mark = absl::StrCat("DDPOPT_FAULT_RUN=", marker);
    std::vector<char*> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
    environment.push_back(const_cast<char*>(mark.c_str()));
    environment.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    if (posix_spawnp(&pid_, arguments[0], &actions, nullptr, arguments.data(), environment.data()) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Child() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void Signal(int signal) const {
    if (pid_ > 0) kill(pid_, signal);
  }
  // False if it has not ended by then.
  bool Wait(Clock::time_point deadline, int* status) {
    if (pid_ < 0) {
      *status = 127;
      return true;
    }
    while (true) {
      int raw = 0;
      if (waitpid(pid_, &raw, WNOHANG) == pid_) {
        pid_ = 0;
        *status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
        return true;
      }
      if (Clock::now() >= deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

 private:
  pid_t pid_ = 0;
};

// Processes that have this mark in their environment; they are ended.
int CountOrphans(const std::string& marker) {
  const std::string mark = absl::StrCat("DDPOPT_FAULT_RUN=", marker);
  const auto find = [&] {
    std::vector<pid_t> found;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      int pid = 0;
      if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
      const absl::StatusOr<std::string> environment = ReadFile(entry.path().string() + "/environ");
      if (!environment.ok()) continue;
      const std::vector<std::string> variables = absl::StrSplit(*environment, '\0');
      if (std::find(variables.begin(), variables.end(), mark) != variables.end()) found.push_back(pid);
    }
    return found;
  };
  std::vector<pid_t> left = find();
  for (int i = 0; i < 20 && !left.empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    left = find();
  }
  for (const pid_t pid : left) kill(pid, SIGKILL);
  return static_cast<int>(left.size());
}

int Listen(int* fd) {
  *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof(address);
  if (bind(*fd, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(*fd, 1) != 0 ||
      getsockname(*fd, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return -1;
  return ntohs(address.sin_port);
}

// Two namespaces with a link between them.
class TwoMachines {
 public:
  explicit TwoMachines(const std::string& id) : a_(absl::StrCat("ddpopt-a-", id)), b_(absl::StrCat("ddpopt-b-", id)) {
    ip(absl::StrCat("netns add ", a_));
    ip(absl::StrCat("netns add ", b_));
    ip(absl::StrCat("-n ", a_, " link add link0 type veth peer name link0 netns ", b_));
    for (const auto& [name, address] : {std::pair(a_, "10.77.0.1/24"), std::pair(b_, "10.77.0.2/24")}) {
      ip(absl::StrCat("-n ", name, " addr add ", address, " dev link0"));
      ip(absl::StrCat("-n ", name, " link set lo up"));
      ip(absl::StrCat("-n ", name, " link set link0 up"));
    }
  }
  ~TwoMachines() {
    ip(absl::StrCat("netns del ", a_));
    ip(absl::StrCat("netns del ", b_));
  }
  void SetLink(bool up) const { ip(absl::StrCat("-n ", b_, " link set link0 ", up ? "up" : "down")); }
  const std::string& name(int node) const { return node == 0 ? a_ : b_; }

 private:
  static void ip(const std::string& arguments) {
    int status = 0;
    const std::string output = Shell("ip " + arguments, &status);
    if (status != 0) std::fprintf(stderr, "ip %s: %s\n", arguments.c_str(), output.c_str());
  }
  std::string a_, b_;
};

// Until the run has come so far.
void AwaitCheckpoint(const std::string& folder, int step) {
  for (int i = 0; i < 12'000; ++i) {
    const absl::StatusOr<std::vector<std::string>> paths = ListCheckpoints(folder);
    if (paths.ok() && !paths->empty() && paths->front() >= absl::StrFormat("%s/checkpoint-%012d.ckpt", folder, step)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

struct Counts {
  int hangs = 0, orphans = 0, wrong_results = 0, unnamed_causes = 0;
  bool clean() const { return hangs == 0 && orphans == 0 && wrong_results == 0 && unnamed_causes == 0; }
};

class Campaign {
 public:
  Campaign(std::string tools, std::string folder) : tools_(std::move(tools)), folder_(std::move(folder)) {}

  Counts Run(const Kind& kind, int number, uint64_t seed) {
    std::mt19937_64 random(seed * 1'000'003 + static_cast<uint64_t>(number));
    const auto draw = [&](int below) { return static_cast<int>(random() % static_cast<uint64_t>(below)); };
    const std::string name = kind.name;
    const int world = name == "link_down" ? 2 : 2 + draw(2);
    const int rank = kind.fixed_rank >= 0 ? kind.fixed_rank : draw(world);
    const int step = kind.first_step + draw(kSteps - (kind.middle ? 1 : 0) - kind.first_step);
    const int point = draw(4);
    const std::string what = absl::StrCat("run ", number, ": ", name, ", rank ", rank, " of ", world, ", step ", step, ", point ", point);
    const std::string folder = absl::StrCat(folder_, "/", number);
    fs::create_directories(folder + "/checkpoints");
    const std::string output = folder + "/output", result = folder + "/parameters";
    const std::string marker = absl::StrCat(getpid(), "-", number);
    const bool disk = name == "full_disk" && mount("tmpfs", (folder + "/checkpoints").c_str(), "tmpfs", 0, "size=1m") == 0;

    const std::vector<std::string> program = {tools_ + "/fault_program",
                                              "--folder=" + folder + "/checkpoints",
                                              "--out=" + result,
                                              absl::StrCat("--steps=", kSteps),
                                              "--fault=" + name,
                                              absl::StrCat("--fault_rank=", rank),
                                              absl::StrCat("--fault_step=", step),
                                              absl::StrCat("--fault_point=", point)};
    const auto harness = [&](std::vector<std::string> flags, int ranks) {
      std::vector<std::string> argv = {tools_ + "/harness", absl::StrCat("--nproc_per_node=", ranks), absl::StrCat("--timeout=", kLimit)};
      argv.insert(argv.end(), flags.begin(), flags.end());
      argv.insert(argv.end(), program.begin(), program.end());
      return argv;
    };
    const Clock::time_point deadline = Clock::now() + std::chrono::seconds(kLimit + 10);
    Counts counts;
    int status = 0;
    const auto wait = [&](Child& child) {
      if (!child.Wait(deadline, &status)) {
        ++counts.hangs;
        return false;
      }
      if (status == 124) ++counts.hangs;
      return true;
    };

    if (name == "port_taken") {
      int fd = -1;
      const std::string flag = absl::StrCat("--master_port=", Listen(&fd));
      {
        Child refused(harness({flag}, world), output, marker);
        if (wait(refused) && status == 0) ++counts.wrong_results;
      }
      close(fd);
      Child child(harness({flag}, world), output, marker);
      wait(child);
    } else if (name == "interrupt") {
      {
        Child child(harness({}, world), output, marker);
        // Somewhere between the start and the end.
        AwaitCheckpoint(folder + "/checkpoints", step);
        child.Signal(SIGINT);
        wait(child);
      }
      static_cast<void>(WriteFile(result + ".come", ""));
      Child again(harness({}, world), output, marker);
      wait(again);
    } else if (name == "link_down") {
      const TwoMachines machines(marker);
      std::vector<std::unique_ptr<Child>> children;
      for (int node = 0; node < 2; ++node) {
        std::vector<std::string> argv = {"ip", "netns", "exec", machines.name(node)};
        const auto rest = harness(
            {"--nnodes=2", absl::StrCat("--node_rank=", node), "--master_addr=10.77.0.1", "--master_port=29400", "--max_restarts=3"}, 1);
        argv.insert(argv.end(), rest.begin(), rest.end());
        children.push_back(std::make_unique<Child>(argv, output, marker));
      }
      AwaitCheckpoint(folder + "/checkpoints", step);
      machines.SetLink(false);
      static_cast<void>(WriteFile(result + ".come", ""));
      std::this_thread::sleep_for(std::chrono::milliseconds(3000 + draw(3000)));
      machines.SetLink(true);
      for (const auto& child : children) wait(*child);
    } else {
      Child child(harness({"--max_restarts=1"}, world), output, marker);
      wait(child);
    }
    counts.orphans = CountOrphans(marker);

    const absl::StatusOr<std::string> text = ReadFile(output);
    const absl::StatusOr<std::string> parameters = ReadFile(result);
    std::string complaint;
    const auto complain = [&](const std::string& more) { absl::StrAppend(&complaint, complaint.empty() ? "" : "; ", more); };
    if (counts.hangs > 0) complain("hang");
    if (counts.orphans > 0) complain(absl::StrCat(counts.orphans, " processes are left"));
    if (status != 0 || !parameters.ok() || *parameters != Undisturbed(world)) {
      ++counts.wrong_results;
      complain(status != 0 ? absl::StrCat("it ended with status ", status) : "the final parameters are not those of an undisturbed run");
    }
    const bool restarted = text.ok() && text->find("starting all ranks again") != std::string::npos;
    if (text.ok() && *kind.cause != '\0') {
      std::string cause = kind.cause;
      for (std::size_t at; (at = cause.find("rank R")) != std::string::npos;) cause.replace(at + 5, 1, std::to_string(rank));
      if (!std::regex_search(*text, std::regex(cause))) {
        ++counts.unnamed_causes;
        complain(absl::StrCat("nothing matches /", cause, "/"));
      }
    } else if (restarted) {
      ++counts.wrong_results;
      complain("ranks failed that should not have");
    }
    if (disk) umount((folder + "/checkpoints").c_str());
    std::lock_guard<std::mutex> lock(mutex_);
    std::fprintf(stderr, "%s: %s\n", what.c_str(), complaint.empty() ? "ok" : absl::StrCat(complaint, " (see ", output, ")").c_str());
    if (complaint.empty()) fs::remove_all(folder);
    return counts;
  }

  // The final parameters of a run in which nothing happens.
  std::string Undisturbed(int world) {
    std::lock_guard<std::mutex> lock(undisturbed_mutex_);
    std::string& parameters = undisturbed_[world];
    if (!parameters.empty()) return parameters;
    const std::string folder = absl::StrCat(folder_, "/undisturbed", world);
    fs::create_directories(folder);
    Child child({tools_ + "/harness", absl::StrCat("--nproc_per_node=", world), tools_ + "/fault_program",
                 "--folder=" + folder + "/checkpoints", "--out=" + folder + "/parameters", absl::StrCat("--steps=", kSteps)},
                folder + "/output", absl::StrCat(getpid(), "-undisturbed", world));
    int status = 1;
    const bool ended = child.Wait(Clock::now() + std::chrono::seconds(kLimit), &status);
    const absl::StatusOr<std::string> read = ReadFile(folder + "/parameters");
    if (!ended || status != 0 || !read.ok()) {
      std::fprintf(stderr, "fault_campaign: the undisturbed run on %d ranks failed; see %s/output\n", world, folder.c_str());
      std::_Exit(1);
    }
    return parameters = *read;
  }

 private:
  const std::string tools_, folder_;
  std::mutex mutex_, undisturbed_mutex_;
  std::map<int, std::string> undisturbed_;
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
  std::vector<Kind> kinds;
  std::vector<std::string> known;
  for (const Kind& kind : Kinds()) {
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
  std::vector<const Kind*> order;
  while (static_cast<int64_t>(order.size()) < runs) {
    std::vector<const Kind*> round;
    for (const Kind& kind : kinds) round.push_back(&kind);
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
    std::printf("%lld runs: %d hangs, %d orphans, %d wrong results, %d unnamed causes\n", static_cast<long long>(runs), total.hangs, total.orphans,
                total.wrong_results, total.unnamed_causes);
  }
  return total.clean() ? 0 : 1;
}

}  // namespace
}  // namespace ddpopt

int main(int argc, char** argv) { return ddpopt::Main(argc, argv); }
