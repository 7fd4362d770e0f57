// Runs failing_cases on two ranks and looks at exit status, output and XML.

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/run_program.h"

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int status = -1;
  std::string output;
  std::string xml;
};

Outcome RunCases(const std::string& filter, const std::string& more = "") {
  Outcome outcome;
  const std::string xml = absl::StrCat(::testing::TempDir(), "/merged.xml");
  std::remove(xml.c_str());
  const ddpopt::testing::ProgramResult result = ddpopt::testing::RunProgram(
      absl::StrCat("env -u TESTBRIDGE_TEST_ONLY -u TEST_TOTAL_SHARDS XML_OUTPUT_FILE=", xml,
                   " testing/failing_cases --world_size=2 --gtest_filter='", filter, "' ", more));
  outcome.status = result.status;
  outcome.output = result.out + result.err;
  std::ifstream file(xml);
  outcome.xml.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  return outcome;
}

TEST(DistributedTestMain, AllRanksPass) {
  const Outcome outcome = RunCases("Cases.*Pass");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_THAT(outcome.xml, HasSubstr("<testsuites tests=\"2\" failures=\"0\""));
  EXPECT_THAT(outcome.output, HasSubstr("on 2 ranks: 2 passed, 0 failed, 0 skipped"));
}

TEST(DistributedTestMain, OneRankFailsACase) {
  const Outcome outcome = RunCases("Cases.*");
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.xml, HasSubstr("<testsuites tests=\"6\" failures=\"1\" disabled=\"1\" skipped=\"1\""));
  EXPECT_THAT(outcome.xml, HasSubstr("<failure message=\"rank 1: "));
  EXPECT_THAT(outcome.xml, HasSubstr("this is &lt;rank 1&gt;"));
  EXPECT_THAT(outcome.xml, Not(HasSubstr("<failure message=\"rank 0: ")));
}

TEST(DistributedTestMain, ARankDies) {
  const Outcome outcome = RunCases("Cases.Pass:Death.KilledOnRank1:Death.LaterCase");
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.xml, HasSubstr("<testsuites tests=\"3\" failures=\"2\""));
  EXPECT_THAT(outcome.xml, HasSubstr("rank 1: did not finish this case; its process was killed by signal 9"));
  EXPECT_THAT(outcome.xml, HasSubstr("rank 1: did not come to this case"));
}

TEST(DistributedTestMain, ARankExitsInACase) {
  const Outcome outcome = RunCases("Death.ExitsOnRank1");
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.xml, HasSubstr("rank 1: did not finish this case; its process exited with status 0"));
}

TEST(DistributedTestMain, ARankHangs) {
  const Outcome outcome = RunCases("Death.HangsOnRank1", "--test_timeout=0.3");
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.xml, HasSubstr("rank 1: did not finish this case; its process was killed by signal 6"));
  EXPECT_THAT(outcome.output, HasSubstr("[rank 1] Death.HangsOnRank1 has run for more than 0.3 s"));
}

TEST(DistributedTestMain, ARankStops) {
  const Outcome outcome = RunCases("Death.StopsOnRank1");
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.xml, HasSubstr("rank 1: did not finish this case; its process was stopped by signal 19"));
}

TEST(DistributedTestMain, ARankFailsOutsideOfCases) {
  const Outcome outcome = RunCases("Exit.*");
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.xml, HasSubstr("name=\"RankSucceeds\""));
  EXPECT_THAT(outcome.xml, HasSubstr("rank 1: no case failed, but its process exited with status 5"));
}

TEST(DistributedTestMain, BadFlagsAreRefused) {
  EXPECT_EQ(RunCases("Cases.Pass", "--world_size=0").status, 2);
  EXPECT_EQ(RunCases("Cases.Pass", "--test_timeout=x").status, 2);
}

}  // namespace
