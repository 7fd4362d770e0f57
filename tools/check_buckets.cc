// Compares the reference rule of bucket assignment, and the split at its buckets, with recorded runs of PyTorch's DDPOptimizer.
// `--help` tells the rest.

#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "ddpopt/optimizer/bucket_records.h"
#include "nlohmann/json.hpp"

namespace ddpopt {
namespace {

constexpr char kHelp[] = R"(check_buckets --cases=PATH [--text] [--json] [--all]

Compares bucket assignment (reference rule) and the split at its buckets with recorded runs of PyTorch's DDPOptimizer.

  --cases=PATH  a record file (.jsonl.gz, one run a line) with graphs/ beside it, or a folder of such files.
                Relative to where you call this.
  --text        compare printed graphs too, byte for byte.
  --all         list every difference of a failed case; otherwise the first 5.
  --json        the last line of the output is one JSON object: passed, failed, skipped, failures, skips.
  --help        this text.

Compared are: buckets (bytes, parameters in order, nodes, extensions), the path taken, and of the split the submodules with their arguments,
placeholders, nodes, targets and outputs, and the outer graph. A run that failed in Python is compared up to there. Skipped, with the reason:
runs of which no graph or no buckets were recorded. The last line is `N passed, N failed, N skipped`; the exit status is 0 only if none
failed.
)";

struct Flags {
  std::string cases;
  bool text = false;
  bool json = false;
  bool all = false;
};

int Usage(const std::string& message) {
  std::fprintf(stderr, "check_buckets: %s\nTry --help.\n", message.c_str());
  return 2;
}

int Run(const Flags& flags) {
  using Verdict = RecordOutcome::Verdict;
  int passed = 0;
  int failed = 0;
  int skipped = 0;
  nlohmann::json failures = nlohmann::json::array();
  nlohmann::json skips = nlohmann::json::array();
  const auto fail = [&](const std::string& id, const std::vector<std::string>& differences) {
    ++failed;
    failures.push_back({{"case", id}, {"differences", differences}});
    std::printf("FAILED %s\n", id.c_str());
    for (std::size_t i = 0; i < differences.size(); ++i) {
      if (i == 5 && !flags.all) {
        std::printf("    and %zu more differences (--all lists them)\n", differences.size() - i);
        break;
      }
      std::printf("    %s\n", differences[i].c_str());
    }
  };

  const auto files = RecordFiles(UserPath(flags.cases));
  BucketRecords records({flags.text});
  if (!files.ok()) {
    fail(flags.cases, {std::string(files.status().message())});
  } else {
    for (const std::string& file : *files) {
      const absl::Status status = records.CheckFile(file, [&](const RecordOutcome& outcome) {
        if (outcome.verdict == Verdict::kFailed) return fail(outcome.id, outcome.differences);
        if (outcome.verdict == Verdict::kPassed) {
          ++passed;
          return;
        }
        ++skipped;
        skips.push_back({{"case", outcome.id}, {"reason", outcome.skip_reason}});
        std::printf("skipped %s: %s\n", outcome.id.c_str(), outcome.skip_reason.c_str());
      });
      if (!status.ok()) fail(file, {std::string(status.message())});
    }
  }
  std::printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
  if (flags.json) {
    const nlohmann::json result = {
        {"passed", passed}, {"failed", failed}, {"skipped", skipped}, {"failures", failures}, {"skips", skips}};
    std::printf("%s\n", result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  }
  return failed == 0 ? 0 : 1;
}

int Main(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument(argv[i]);
    if (argument == "--help" || argument == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (argument == "--text") {
      flags.text = true;
    } else if (argument == "--json") {
      flags.json = true;
    } else if (argument == "--all") {
      flags.all = true;
    } else if (absl::ConsumePrefix(&argument, "--cases=")) {
      flags.cases = std::string(argument);
    } else {
      return Usage(absl::StrCat("unknown argument \"", argument, "\""));
    }
  }
  if (flags.cases.empty()) return Usage("--cases=PATH is missing");
  return Run(flags);
}

}  // namespace
}  // namespace ddpopt

int main(int argc, char** argv) { return ddpopt::Main(argc, argv); }
