// Compares fake tensors with recorded calls of real operators. `--help` tells the rest.

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "nlohmann/json.hpp"
#include "testing/fake_op_records.h"

namespace ddpopt {
namespace {

using testing::FakeOpVerdict;

constexpr char kHelp[] = R"(check_fake_ops --cases=FILE [--ops=NAME,…] [--show=N] [--verdicts] [--json]

Replays recorded calls of ATen operators on fake tensors and compares shape, dtype, strides, offset, storage size, device and aliasing of
the results, and the inputs as the call leaves them, with what the real kernels gave.

  --cases=FILE  the records (fake_ops.*.jsonl.gz, one call a line). Relative to where you call this.
  --ops=NAME,…  only operators whose name contains one of these: aten::add, _foreach_, native_batch_norm.default.
  --show=N      list N failed cases of each operator and kind of disagreement (default 1).
  --verdicts    print every case's verdict too, one a line: id, operator, passed | failed | skipped.
  --json        the last line of the output is one JSON object: passed, failed, skipped, kinds, operators.
  --help        this text.

No real kernel of a recorded operator is run. A call whose result depends on data passes if it is refused for that reason. The last line is
`N passed, N failed, N skipped`; the exit status is 0 only if none failed.
)";

struct Flags {
  std::string cases;
  std::vector<std::string> ops;
  int show = 1;
  bool verdicts = false;
  bool json = false;
};

int Usage(const std::string& message) {
  std::fprintf(stderr, "check_fake_ops: %s\nTry --help.\n", message.c_str());
  return 2;
}

int Run(const Flags& flags) {
  using Kind = FakeOpVerdict::Kind;
  int passed = 0;
  int failed = 0;
  int skipped = 0;
  std::map<std::string, int> kinds;
  std::map<std::string, std::pair<int, int>> operators;  // passed, failed
  std::map<std::pair<std::string, std::string>, std::vector<FakeOpVerdict>> disagreements;
  std::map<std::pair<std::string, std::string>, int> skips;  // by operator and reason
  const auto wanted = [&](absl::string_view op) {
    return flags.ops.empty() ||
           std::any_of(flags.ops.begin(), flags.ops.end(), [&](const std::string& part) { return absl::StrContains(op, part); });
  };
  const absl::Status status = testing::CheckFakeOpCases(UserPath(flags.cases), wanted, [&](const FakeOpVerdict& verdict) {
    const char* word = verdict.kind == Kind::kPassed ? "passed" : verdict.kind == Kind::kFailed ? "failed" : "skipped";
    if (flags.verdicts) std::printf("%s %s %s\n", verdict.id.c_str(), verdict.op.c_str(), word);
    if (verdict.kind == Kind::kPassed) {
      ++passed;
      ++operators[verdict.op].first;
    } else if (verdict.kind == Kind::kFailed) {
      ++failed;
      ++operators[verdict.op].second;
      ++kinds[verdict.category];
      disagreements[{verdict.op, verdict.category}].push_back(verdict);
    } else {
      ++skipped;
      ++skips[{verdict.op, verdict.detail}];
    }
  });
  if (!status.ok()) {
    std::fprintf(stderr, "check_fake_ops: %s\n", std::string(status.message()).c_str());
    ++failed;
  }
  for (const auto& [key, verdicts] : disagreements) {
    std::printf("%s: %s, %zu of %d cases\n", key.first.c_str(), key.second.c_str(), verdicts.size(),
                operators[key.first].first + operators[key.first].second);
    for (std::size_t i = 0; i < verdicts.size() && i < static_cast<std::size_t>(flags.show); ++i) {
      std::printf("    %s %s\n", verdicts[i].id.c_str(), verdicts[i].detail.c_str());
    }
  }
  for (const auto& [key, count] : skips) std::printf("%s: skipped, %d cases: %s\n", key.first.c_str(), count, key.second.c_str());
  for (const auto& [kind, count] : kinds) std::printf("%6d %s\n", count, kind.c_str());
  std::printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
  if (flags.json) {
    nlohmann::json by_operator = nlohmann::json::object();
    for (const auto& [op, counts] : operators) by_operator[op] = {{"passed", counts.first}, {"failed", counts.second}};
    const nlohmann::json result = {
        {"passed", passed}, {"failed", failed}, {"skipped", skipped}, {"kinds", kinds}, {"operators", by_operator}};
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
    if (argument == "--json") {
      flags.json = true;
    } else if (argument == "--verdicts") {
      flags.verdicts = true;
    } else if (absl::ConsumePrefix(&argument, "--cases=")) {
      flags.cases = std::string(argument);
    } else if (absl::ConsumePrefix(&argument, "--ops=")) {
      flags.ops = absl::StrSplit(argument, ',', absl::SkipEmpty());
      if (flags.ops.empty()) return Usage("--ops= names no operator");
    } else if (absl::ConsumePrefix(&argument, "--show=")) {
      if (!absl::SimpleAtoi(argument, &flags.show) || flags.show < 0) {
        return Usage(absl::StrCat("--show wants a number of cases, not \"", argument, "\""));
      }
    } else {
      return Usage(absl::StrCat("unknown argument \"", argument, "\""));
    }
  }
  if (flags.cases.empty()) return Usage("--cases=FILE is missing");
  return Run(flags);
}

}  // namespace
}  // namespace ddpopt

int main(int argc, char** argv) { return ddpopt::Main(argc, argv); }
