#include "ddpopt/distributed/launcher_main.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "ddpopt/distributed/launcher.h"
#include "nlohmann/json.hpp"

namespace ddpopt {
namespace {

constexpr char kUsage[] =
    R"(usage: %s --nproc_per_node=N [OPTIONS] PROGRAM [ARGS...]

Runs PROGRAM on N ranks of this machine, each in a process group of its own, with the environment that torchrun gives: MASTER_ADDR,
MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, TORCHELASTIC_RESTART_COUNT,
TORCHELASTIC_MAX_RESTARTS, and OMP_NUM_THREADS=1 unless set. Each line of a rank's output is prefixed by "[rank k] ".

  --nproc_per_node=N   number of ranks on this machine, 1 to 1024 (required)
  --nnodes=N           number of machines, default 1. Each runs this launcher with the same options but --node_rank
  --node_rank=N        which of them this one is, from 0; default 0. Number 0 is the master
  --master_addr=ADDR   the master's address or name; default 127.0.0.1, required with several machines
  --master_port=PORT   a port that is free there; default: any, required with several machines
  --max_restarts=N     starts all ranks again after a failure, up to N times; default 0. A program that saves checkpoints goes on from the last
                       (TORCHELASTIC_RESTART_COUNT tells it which start it is)
  --stall_timeout=SECONDS  a collective that has not ended within this time fails, and names the ranks that have not come, in every program that
                       doesn't choose another itself; the ranks find it in DDPOPT_STALL_TIMEOUT (default: what the program says)
  --timeout=SECONDS    ends all ranks after this time, with status 124 (default 0: no limit)
  --json               the last line of standard output is one JSON object: nproc_per_node, nnodes, node_rank, exit_status, failed_rank (-1:
                       none), reason, seconds, restarts, ranks [{exit_status, signal, stopped, ended_by_launcher, text}] of this machine
  --help               this text

As in torchrun, flags may be written with dashes (--nproc-per-node). The ranks say which network interface they use; GLOO_SOCKET_IFNAME
chooses another. Rendezvous back ends (--rdzv_...), elastic sizes (--nnodes=1:4) and Python modules (-m) aren't supported.

PROGRAM is searched in PATH, or, if it has a slash, is relative to where the launcher was called (under `bazel run` too). Options after
PROGRAM are PROGRAM's own; `--` ends the launcher's.

The first rank that exits with a status other than 0, dies of a signal or is stopped ends all others, and is named on standard error.
Exit status: 0 if all ranks succeeded; else that of the first failure, 128 + signal for a signal; 2 for a wrong command line; 127 if PROGRAM
can't be run.
)";

struct Flag {
  const char* needs;                                                                  // "a number of ranks"
  std::function<std::string(const std::string& flag, const std::string& value)> set;  // what is wrong with the value; empty: nothing
};

}  // namespace

int LauncherMain(const char* name, int argc, char** argv) {
  const auto refuse = [&](const std::string& message) {
    std::fprintf(stderr, "%s: %s\nTry --help.\n", name, message.c_str());
    return 2;
  };
  LaunchOptions options;
  options.nproc_per_node = 0;
  bool json = false;
  const auto integer = [](int* to, int low, int high) {
    return [=](const std::string& flag, const std::string& value) -> std::string {
      if (!absl::SimpleAtoi(value, to)) return absl::StrCat("--", flag, "=", value, " is not an integer");
      if (*to < low || *to > high) return absl::StrCat("--", flag, "=", value, " is outside [", low, ", ", high, "]");
      return "";
    };
  };
  const auto seconds = [](double* to) {
    return [=](const std::string& flag, const std::string& value) -> std::string {
      const bool good = absl::SimpleAtod(value, to) && std::isfinite(*to) && *to >= 0;
      return good ? "" : absl::StrCat("--", flag, "=", value, " is not a number of seconds, 0 or more");
    };
  };
  const std::map<std::string, Flag> flags = {
      {"nproc_per_node", {"a number of ranks", integer(&options.nproc_per_node, 1, 1024)}},
      {"nnodes",
       {"a number of machines",
        [&](const std::string& flag, const std::string& value) {
          return absl::StrContains(value, ':') ? absl::StrCat("--nnodes=", value, ": a range of machines isn't supported, only a number")
                                               : integer(&options.nnodes, 1, 1024)(flag, value);
        }}},
      {"node_rank", {"a machine's number", integer(&options.node_rank, 0, 1023)}},
      {"master_port", {"a port", integer(&options.master_port, 1, 65535)}},
      {"max_restarts", {"a number of restarts", integer(&options.max_restarts, 0, 1'000'000)}},
      {"master_addr",
       {"an address",
        [&](const std::string&, const std::string& value) {
          options.master_addr = value;
          return std::string();
        }}},
      {"timeout", {"a number of seconds", seconds(&options.timeout_seconds)}},
      {"stall_timeout",
       {"a number of seconds",
        [&](const std::string& flag, const std::string& value) {
          double stall_timeout = 0;
          std::string wrong = seconds(&stall_timeout)(flag, value);
          if (wrong.empty()) options.environment.emplace_back("DDPOPT_STALL_TIMEOUT", value);
          return wrong;
        }}},
  };
  int i = 1;
  for (; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--help" || argument == "-h") {
      std::printf(kUsage, name);
      return 0;
    }
    if (argument == "--") {
      ++i;
      break;
    }
    if (argument.empty() || argument[0] != '-') break;
    const std::size_t equals = argument.find('=');
    const std::string flag = absl::StrReplaceAll(argument.substr(0, equals), {{"-", "_"}});
    if (flag == "__json" || flag == "__standalone" || flag == "__no_python") {
      if (equals != std::string::npos) return refuse(absl::StrCat("--", flag.substr(2), " takes no value"));
      json = json || flag == "__json";
      continue;
    }
    const auto it = absl::StartsWith(argument, "--") ? flags.find(flag.substr(2)) : flags.end();
    if (it == flags.end()) return refuse(absl::StrCat("unknown option ", argument, " before PROGRAM"));
    std::string value;
    if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (i + 1 < argc) {
      value = argv[++i];
    }
    if (value.empty()) return refuse(absl::StrCat("--", it->first, " needs ", it->second.needs));
    if (const std::string wrong = it->second.set(it->first, value); !wrong.empty()) return refuse(wrong);
  }
  if (options.nproc_per_node == 0) return refuse("--nproc_per_node=N is missing");
  if (options.node_rank >= options.nnodes)
    return refuse(absl::StrCat("--node_rank=", options.node_rank, " is not below --nnodes=", options.nnodes));
  if (options.nnodes > 1 && options.master_addr.empty()) return refuse("--master_addr=ADDR is missing, which several machines need");
  if (options.nnodes > 1 && options.master_port == 0) return refuse("--master_port=PORT is missing, which several machines need");
  if (i >= argc) return refuse("PROGRAM is missing");
  if (*argv[i] == '\0') return refuse("PROGRAM is empty");

  // `bazel run` starts programs in a folder of its own; the caller's is in this variable.
  if (const char* caller = std::getenv("BUILD_WORKING_DIRECTORY"); caller != nullptr && *caller != '\0' && chdir(caller) != 0) {
    return refuse(absl::StrCat("can't enter BUILD_WORKING_DIRECTORY=", caller, ": ", std::strerror(errno)));
  }
  const absl::StatusOr<LaunchResult> result = Launch(std::vector<std::string>(argv + i, argv + argc), options);
  if (!result.ok()) {
    std::fprintf(stderr, "%s: %s\n", name, std::string(result.status().message()).c_str());
  }
  const int status = result.ok() ? result->exit_status : 127;
  if (json) {
    nlohmann::ordered_json object = {{"nproc_per_node", options.nproc_per_node},
                                     {"nnodes", options.nnodes},
                                     {"node_rank", options.node_rank},
                                     {"exit_status", status},
                                     {"failed_rank", result.ok() ? result->failed_rank : -1},
                                     {"reason", result.ok() ? result->reason : std::string(result.status().message())},
                                     {"seconds", result.ok() ? result->seconds : 0},
                                     {"restarts", result.ok() ? result->restarts : 0},
                                     {"ranks", nlohmann::ordered_json::array()}};
    if (result.ok()) {
      for (const RankOutcome& rank : result->ranks) {
        object["ranks"].push_back({{"exit_status", rank.exit_status},
                                   {"signal", rank.signal},
                                   {"stopped", rank.stopped},
                                   {"ended_by_launcher", rank.ended_by_launcher},
                                   {"text", rank.text}});
      }
    }
    std::printf("%s\n", object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  }
  return status;
}

}  // namespace ddpopt
