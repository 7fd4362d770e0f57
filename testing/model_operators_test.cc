// The operators that training steps of known models reach, held to all recorded calls of them.

#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "gtest/gtest.h"
#include "testing/fake_op_records.h"

namespace ddpopt::testing {
namespace {

constexpr char kOperators[] = "testing/testdata/fake_ops/model_operators.txt";
constexpr char kRecords[] = "testing/testdata/fake_ops/model_records.jsonl.gz";

// "aten::mm" of "aten::mm.default".
std::string Name(absl::string_view op) { return std::string(absl::StripSuffix(op, ".default")); }

std::set<std::string> Operators() {
  std::set<std::string> operators;
  const auto text = ReadFile(kOperators);
  EXPECT_TRUE(text.ok()) << text.status();
  if (!text.ok()) return operators;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && !absl::StartsWith(line, "#")) operators.insert(line);
  }
  return operators;
}

TEST(ModelOperators, EveryRecordedCallOfThemAgrees) {
  const std::set<std::string> operators = Operators();
  EXPECT_GT(operators.size(), 100U);
  std::map<std::string, int> calls;
  std::vector<std::string> failures;
  const absl::Status status = CheckFakeOpCases(
      kRecords, [&](absl::string_view op) { return operators.count(Name(op)) != 0; },
      [&](const FakeOpVerdict& verdict) {
        ++calls[Name(verdict.op)];
        if (verdict.kind != FakeOpVerdict::Kind::kPassed) failures.push_back(verdict.id + " " + verdict.op + ": " + verdict.detail);
      });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_GT(calls.size(), 90U);  // of the others no calls were recorded
  EXPECT_EQ(failures.size(), 0U) << absl::StrJoin(failures, "\n");
}

}  // namespace
}  // namespace ddpopt::testing
