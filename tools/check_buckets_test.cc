#include <sys/wait.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace {

using ::testing::HasSubstr;

struct Outcome {
  int status = -1;
  std::string output;
  std::vector<std::string> lines() const { return absl::StrSplit(absl::StripSuffix(output, "\n"), '\n'); }
};

Outcome Call(const std::string& arguments) {
  Outcome outcome;
  std::FILE* pipe = popen(absl::StrCat("tools/check_buckets ", arguments, " 2>&1").c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) outcome.output.append(buffer, n);
  outcome.status = WEXITSTATUS(pclose(pipe));
  return outcome;
}

TEST(CheckBuckets, PassesOnTheRecordsOfThisRepository) {
  const Outcome outcome = Call("--cases=testing/testdata/ddp_buckets --text");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(outcome.lines().back(), "152 passed, 0 failed, 3 skipped");
  EXPECT_THAT(outcome.output, HasSubstr("S_ctor"));
}

TEST(CheckBuckets, NamesWhatCannotBeReadAndFails) {
  const Outcome outcome = Call("--cases=no/such.jsonl.gz --json");
  EXPECT_EQ(outcome.status, 1);
  ASSERT_GE(outcome.lines().size(), 2u);
  EXPECT_EQ(*(outcome.lines().end() - 2), "0 passed, 1 failed, 0 skipped");
  const auto json = nlohmann::json::parse(outcome.lines().back());
  EXPECT_EQ(json["failed"], 1);
  EXPECT_THAT(json["failures"][0]["differences"][0].get<std::string>(), HasSubstr("no/such.jsonl.gz"));
}

TEST(CheckBuckets, RefusesBadFlags) {
  EXPECT_EQ(Call("").status, 2);
  EXPECT_THAT(Call("--case=x").output, HasSubstr("--case=x"));
  EXPECT_THAT(Call("--help").output, HasSubstr("--cases=PATH"));
}

}  // namespace
