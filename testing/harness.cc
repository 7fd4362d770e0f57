// Runs a program on several ranks of this machine: see kUsage.

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/strings/string_view.h"
#include "ddpopt/distributed/launcher.h"
#include "nlohmann/json.hpp"

namespace {

constexpr char kUsage[] =
    R"(usage: harness --nproc_per_node=N [--timeout=SECONDS] [--json] PROGRAM [ARGS...]

Runs PROGRAM on N ranks of this machine, each in a process group of its own, with MASTER_ADDR, MASTER_PORT (a free port), RANK, WORLD_SIZE,
LOCAL_RANK, LOCAL_WORLD_SIZE, and OMP_NUM_THREADS=1 unless set. Each line of a rank's output is prefixed by "[rank k] ".

  --nproc_per_node=N   number of ranks, 1 to 1024 (required)
  --timeout=SECONDS    ends all ranks after this time, with status 124 (default 0: no limit)
  --json               the last line of standard output is one JSON object: nproc_per_node, exit_status, failed_rank (-1: none), reason,
                       seconds, ranks [{exit_status, signal, stopped, ended_by_launcher, text}]
  --help               this text

PROGRAM is searched in PATH, or, if it has a slash, is relative to where the harness was called (under `bazel run` too). Options after
PROGRAM are PROGRAM's own; `--` ends the harness's.

The first rank that exits with a status other than 0, dies of a signal or is stopped ends all others, and is named on standard error.
Exit status: 0 if all ranks succeeded; else that of the first failure, 128 + signal for a signal; 2 for a wrong command line; 127 if PROGRAM
can't be run.
)";

int Refuse(const std::string& message) {
  std::fprintf(stderr, "harness: %s\nTry --help.\n", message.c_str());
  return 2;
}

// True if `argument` is --name=VALUE, or --name with VALUE following.
bool TakeValue(absl::string_view name, int argc, char** argv, int& i, absl::string_view& value, bool& missing) {
  absl::string_view argument = argv[i];
  if (!absl::ConsumePrefix(&argument, "--") || !absl::ConsumePrefix(&argument, name)) return false;
  if (absl::ConsumePrefix(&argument, "=")) {
    value = argument;
    missing = argument.empty();
    return true;
  }
  if (!argument.empty()) return false;
  missing = i + 1 >= argc;
  if (!missing) value = argv[++i];
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  ddpopt::LaunchOptions options;
  options.nproc_per_node = 0;
  bool given = false;
  bool json = false;
  int i = 1;
  for (; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    absl::string_view value;
    bool missing = false;
    if (argument == "--help" || argument == "-h") {
      std::fputs(kUsage, stdout);
      return 0;
    }
    if (argument == "--") {
      ++i;
      break;
    }
    if (argument.empty() || argument[0] != '-') break;
    if (argument == "--json") {
      json = true;
    } else if (TakeValue("nproc_per_node", argc, argv, i, value, missing)) {
      if (missing) return Refuse("--nproc_per_node needs a number of ranks");
      if (!absl::SimpleAtoi(value, &options.nproc_per_node)) {
        return Refuse(absl::StrCat("--nproc_per_node=", value, " is not an integer"));
      }
      if (options.nproc_per_node < 1 || options.nproc_per_node > 1024) {
        return Refuse(absl::StrCat("--nproc_per_node=", value, " is outside [1, 1024]"));
      }
      given = true;
    } else if (TakeValue("timeout", argc, argv, i, value, missing)) {
      if (missing) return Refuse("--timeout needs a number of seconds");
      if (!absl::SimpleAtod(value, &options.timeout_seconds) || !std::isfinite(options.timeout_seconds) || options.timeout_seconds < 0) {
        return Refuse(absl::StrCat("--timeout=", value, " is not a number of seconds, 0 or more"));
      }
    } else {
      return Refuse(absl::StrCat("unknown option ", argument, " before PROGRAM"));
    }
  }
  if (!given) return Refuse("--nproc_per_node=N is missing");
  if (i >= argc) return Refuse("PROGRAM is missing");
  if (*argv[i] == '\0') return Refuse("PROGRAM is empty");

  // `bazel run` starts programs in a folder of its own; the caller's is in this variable.
  if (const char* caller = std::getenv("BUILD_WORKING_DIRECTORY"); caller != nullptr && *caller != '\0' && chdir(caller) != 0) {
    return Refuse(absl::StrCat("can't enter BUILD_WORKING_DIRECTORY=", caller, ": ", std::strerror(errno)));
  }
  const absl::StatusOr<ddpopt::LaunchResult> result = ddpopt::Launch(std::vector<std::string>(argv + i, argv + argc), options);
  if (!result.ok()) {
    std::fprintf(stderr, "harness: %s\n", std::string(result.status().message()).c_str());
  }
  const int status = result.ok() ? result->exit_status : 127;
  if (json) {
    nlohmann::ordered_json object = {{"nproc_per_node", options.nproc_per_node},
                                     {"exit_status", status},
                                     {"failed_rank", result.ok() ? result->failed_rank : -1},
                                     {"reason", result.ok() ? result->reason : std::string(result.status().message())},
                                     {"seconds", result.ok() ? result->seconds : 0},
                                     {"ranks", nlohmann::ordered_json::array()}};
    if (result.ok()) {
      for (const ddpopt::RankOutcome& rank : result->ranks) {
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
