#include "testing/test_records.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ddpopt::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kPlan[] = R"({"plan": {"suite": "S", "name": "A", "file": "a.cc", "line": 3, "disabled": false}})"
                         "\n";
constexpr char kStart[] = R"({"start": "S.A"})"
                          "\n";
constexpr char kPassed[] = R"({"end": "S.A", "result": "passed", "messages": [], "seconds": 0.5})"
                           "\n";
constexpr char kFailed[] = R"({"end": "S.A", "result": "failed", "messages": ["x != y", "z"], "seconds": 1.5})"
                           "\n";

std::string Lines(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += line;
  return all;
}

TEST(MergeRecords, PassesWhenAllPass) {
  const std::string lines = Lines({kPlan, kStart, kPassed});
  const auto cases = MergeRecords({{lines, true, "exited with status 0"}, {lines, true, "exited with status 0"}});
  ASSERT_THAT(cases, SizeIs(1));
  EXPECT_THAT(cases[0].failures, IsEmpty());
  EXPECT_EQ(cases[0].line, 3);
}

TEST(MergeRecords, FailsWhenOneFails) {
  const auto cases = MergeRecords(
      {{Lines({kPlan, kStart, kPassed}), true, "exited with status 0"}, {Lines({kPlan, kStart, kFailed}), false, "exited with status 1"}});
  ASSERT_THAT(cases, SizeIs(1));
  EXPECT_THAT(cases[0].failures, ElementsAre("rank 1: x != y\nz"));
  EXPECT_EQ(cases[0].seconds, 1.5);
}

TEST(MergeRecords, FailsWhenOneDoesNotFinish) {
  const auto cases = MergeRecords({{Lines({kPlan, kStart, kPassed}), true, "exited with status 0"},
                                   {Lines({kPlan, kStart, "{\"end\": \"S."}), false, "was killed by signal 11"},
                                   {"", false, "exited with status 127"}});
  ASSERT_THAT(cases, SizeIs(1));
  EXPECT_THAT(cases[0].failures, ElementsAre("rank 1: did not finish this case; its process was killed by signal 11",
                                             "rank 2: never knew of this case; its process exited with status 127"));
}

TEST(MergeRecords, ARankMayFailWithoutAnyCase) {
  const auto cases = MergeRecords({{"", false, "exited with status 3"}});
  ASSERT_THAT(cases, SizeIs(1));
  EXPECT_EQ(cases[0].name, "RankSucceeds");
}

TEST(ToXml, EscapesAndCounts) {
  MergedCase failed;
  failed.suite = "S<int>";
  failed.name = "A";
  failed.failures = {"rank 0: \"a\" < b & c\x01"};
  MergedCase skipped;
  skipped.suite = "T";
  skipped.name = "B";
  skipped.skipped = true;
  const std::string xml = ToXml({failed, skipped});
  EXPECT_THAT(xml, HasSubstr("<testsuites tests=\"2\" failures=\"1\" disabled=\"0\" skipped=\"1\""));
  EXPECT_THAT(xml, HasSubstr("<testsuite name=\"S&lt;int&gt;\" tests=\"1\" failures=\"1\""));
  EXPECT_THAT(xml, HasSubstr("message=\"rank 0: &quot;a&quot; &lt; b &amp; c\""));
  EXPECT_THAT(xml, HasSubstr("<skipped/>"));
}

}  // namespace
}  // namespace ddpopt::testing
