// Random operator calls, real and fake, compared. See --help.

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "fake_tensor/cross_ref/cross_ref.h"
#include "nlohmann/json.hpp"

namespace ddpopt {
namespace {

using cross_ref::Comparison;
using cross_ref::CrossRef;
using cross_ref::Progress;

constexpr char kHelp[] = R"(Calls ATen operators at random, on real CPU tensors and on fakes of them, and compares everything but data.

  cross_ref [--seed=N] [--cases=N] [--ops=TEXT,…] [--unfinished] [--all] [--show=N] [--case=N] [--list] [--refused] [--json]

  --seed=N      which calls (default 0); a call is a function of seed, operators and its number
  --cases=N     how many (default 20000)
  --ops=TEXT,…  only operators whose names contain one of the texts ("aten::add.", "_foreach"); "add.out$" must end the name
  --unfinished  also the operators of fake_tensor/cross_ref/unfinished.cc, whose fakes are known to differ for some calls
  --all         these, and out= tensors that are an operand or a view of one, and damaged calls of tensors without elements
  --show=N      prints up to N disagreements of each operator and kind (default 3), most frequent first
  --case=N      only call number N, with both outcomes
  --list        prints the operators, and ends
  --refused     prints the operators none of whose calls the real kernel took, with its words: their recipes need work
  --json        the last line is {"cases","operators","left_out","rejected_by_real","disagreements","crashes"}; left_out: operators of
                unfinished.cc that weren't called

Calls are made in child processes, each for a few hundred calls, so that a real kernel that dies on an argument ends nothing else; such
calls are counted as "crashes" and compared with nothing. Exit status: 0 if there is no disagreement.
)";

struct Flags {
  uint64_t seed = 0, cases = 20000;
  int64_t only = -1;
  int show = 3;
  std::vector<std::string> ops;
  bool unfinished = false, all = false, list = false, refused = false, json = false;
};

void WriteAll(int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n <= 0) ::_exit(3);
    done += static_cast<std::size_t>(n);
  }
}

nlohmann::json ToJson(const Comparison& c) {
  return {{"i", c.index}, {"op", c.op}, {"r", c.rejected_by_real}, {"e", c.real_error}, {"k", c.kind}, {"d", c.difference}, {"c", c.call}};
}

std::string Dump(const nlohmann::json& value) { return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); }

struct Tally {
  uint64_t cases = 0, rejected = 0, disagreements = 0, crashes = 0;
  std::set<std::string> operators, accepted;
  std::map<std::string, std::string> refusals;  // the last one of each operator
  // operator, kind → examples
  std::map<std::pair<std::string, std::string>, std::pair<int, std::vector<std::string>>> groups;

  void Add(const Comparison& c, int show) {
    ++cases;
    rejected += c.rejected_by_real;
    operators.insert(c.op);
    if (!c.rejected_by_real) {
      accepted.insert(c.op);
    } else if (c.call.find("  # ") == std::string::npos) {
      refusals[c.op] = absl::StrCat(c.call, "\n      ", c.real_error.substr(0, 300));
    }
    if (c.agrees()) return;
    ++disagreements;
    auto& [count, examples] = groups[{c.op, c.kind}];
    ++count;
    if (static_cast<int>(examples.size()) < show) {
      examples.push_back(absl::StrCat("#", c.index, " ", c.call, "\n      ", c.difference.substr(0, 600)));
    }
  }
};

// Calls `begin` to `end` in a child; returns where to go on.
uint64_t RunChild(const Flags& flags, Progress* shared, uint64_t begin, uint64_t end, Tally* tally) {
  int fds[2];
  if (::pipe(fds) != 0) return end;
  shared->index = begin;
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(fds[0]);
    CrossRef cross_ref({flags.seed, flags.ops, flags.unfinished, flags.all, shared});
    for (uint64_t i = begin; i < end; ++i) {
      ::alarm(30);
      Comparison comparison;
      try {
        comparison = cross_ref.Compare(i);
      } catch (const std::exception& error) {
        comparison.index = i;
        comparison.op = c10::toString(cross_ref.OperatorAt(i).operator_name());
        comparison.kind = "generator";
        comparison.difference = error.what();
        comparison.difference.resize(std::min<std::size_t>(comparison.difference.size(), 400));
      }
      WriteAll(fds[1], Dump(ToJson(comparison)) + "\n");
    }
    ::_exit(0);
  }
  ::close(fds[1]);
  if (child < 0) {
    std::perror("fork");
    ::close(fds[0]);
    return end;
  }
  std::string text;
  char buffer[1 << 16];
  for (ssize_t n; (n = ::read(fds[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(n));
  ::close(fds[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const nlohmann::json value = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
    if (value.is_discarded()) continue;  // cut short by the child's end
    Comparison c;
    c.index = value["i"];
    c.op = value["op"];
    c.rejected_by_real = value["r"];
    c.real_error = value["e"];
    c.kind = value["k"];
    c.difference = value["d"];
    c.call = value["c"];
    tally->Add(c, flags.show);
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return end;

  const CrossRef cross_ref({flags.seed, flags.ops, flags.unfinished, flags.all, nullptr});
  const std::string op = c10::toString(cross_ref.OperatorAt(shared->index).operator_name());
  const char* phases[] = {"before the call", "in the real kernel", "in the fake call", "after the call"};
  const std::string how = WIFSIGNALED(status) ? ::strsignal(WTERMSIG(status)) : "exit";
  std::printf("crash: #%llu %s, %s (%s) %s\n", static_cast<unsigned long long>(shared->index), op.c_str(), phases[shared->phase],
              how.c_str(), shared->call);
  if (shared->phase == Progress::kFake || shared->phase == Progress::kDone) {
    Comparison c;
    c.index = shared->index;
    c.op = op;
    c.kind = "crash";
    c.difference = how;
    tally->Add(c, flags.show);
  } else {
    ++tally->crashes;
  }
  return shared->index + 1;
}

int Run(const Flags& flags) {
  at::set_num_threads(1);
  if (flags.list) {
    for (const c10::OperatorHandle& op : cross_ref::Operators(flags.ops, flags.unfinished)) {
      std::printf("%s\n", c10::toString(op.operator_name()).c_str());
    }
    return 0;
  }
  if (flags.only >= 0) {
    CrossRef cross_ref({flags.seed, flags.ops, flags.unfinished, flags.all, nullptr});
    const Comparison c = cross_ref.Compare(static_cast<uint64_t>(flags.only));
    std::printf("%s\n  real: %s\n  %s: %s\n", c.call.c_str(), c.rejected_by_real ? c.real_error.c_str() : "a result",
                c.agrees() ? "agrees" : c.kind.c_str(), c.difference.c_str());
    return c.agrees() ? 0 : 1;
  }
  auto* shared = static_cast<Progress*>(::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (shared == MAP_FAILED) {
    std::perror("mmap");
    return 2;
  }
  Tally tally;
  constexpr uint64_t kCallsPerChild = 400;
  for (uint64_t at = 0; at < flags.cases;) at = RunChild(flags, shared, at, std::min(at + kCallsPerChild, flags.cases), &tally);

  std::vector<std::pair<int, std::pair<std::string, std::string>>> order;
  for (const auto& [key, group] : tally.groups) order.push_back({-group.first, key});
  std::sort(order.begin(), order.end());
  for (const auto& [count, key] : order) {
    std::printf("%d  %s  %s\n", -count, key.first.c_str(), key.second.c_str());
    for (const std::string& example : tally.groups[key].second) std::printf("    %s\n", example.c_str());
  }
  if (flags.refused) {
    for (const auto& [op, text] : tally.refusals) {
      if (tally.accepted.count(op) == 0) std::printf("never taken: %s\n    %s\n", op.c_str(), text.c_str());
    }
  }
  std::printf("%llu calls of %zu operators, %llu refused by the real kernel; %llu disagreements, %llu crashes of real kernels\n",
              static_cast<unsigned long long>(tally.cases), tally.operators.size(), static_cast<unsigned long long>(tally.rejected),
              static_cast<unsigned long long>(tally.disagreements), static_cast<unsigned long long>(tally.crashes));
  if (flags.json) {
    std::printf("%s\n", Dump({{"cases", tally.cases + tally.crashes},
                              {"operators", tally.operators.size()},
                              {"left_out", cross_ref::Operators(flags.ops, true).size() - cross_ref::Operators(flags.ops, flags.unfinished).size()},
                              {"rejected_by_real", tally.rejected},
                              {"disagreements", tally.disagreements},
                              {"crashes", tally.crashes}})
                            .c_str());
  }
  return tally.disagreements == 0 ? 0 : 1;
}

int Usage(const std::string& error) {
  std::fprintf(stderr, "cross_ref: %s\n%s", error.c_str(), kHelp);
  return 2;
}

int Main(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    absl::string_view value = argument;
    bool ok = true;
    if (argument == "--help" || argument == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (argument == "--json") {
      flags.json = true;
    } else if (argument == "--unfinished") {
      flags.unfinished = true;
    } else if (argument == "--all") {
      flags.unfinished = flags.all = true;
    } else if (argument == "--refused") {
      flags.refused = true;
    } else if (argument == "--list") {
      flags.list = true;
    } else if (absl::ConsumePrefix(&value, "--seed=")) {
      ok = absl::SimpleAtoi(value, &flags.seed);
    } else if (absl::ConsumePrefix(&value, "--cases=")) {
      ok = absl::SimpleAtoi(value, &flags.cases);
    } else if (absl::ConsumePrefix(&value, "--case=")) {
      ok = absl::SimpleAtoi(value, &flags.only) && flags.only >= 0;
    } else if (absl::ConsumePrefix(&value, "--show=")) {
      ok = absl::SimpleAtoi(value, &flags.show) && flags.show >= 0;
    } else if (absl::ConsumePrefix(&value, "--ops=")) {
      flags.ops = absl::StrSplit(value, ',', absl::SkipEmpty());
    } else {
      return Usage(absl::StrCat("unknown argument \"", argument, "\""));
    }
    if (!ok) return Usage(absl::StrCat("can't read \"", argument, "\""));
  }
  return Run(flags);
}

}  // namespace
}  // namespace ddpopt

int main(int argc, char** argv) { return ddpopt::Main(argc, argv); }
