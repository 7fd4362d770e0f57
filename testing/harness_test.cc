// The harness as its users call it.

#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "testing/run_program.h"

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

using Outcome = ddpopt::testing::ProgramResult;

Outcome Harness(const std::string& arguments, const std::string& environment = "") {
  return ddpopt::testing::RunProgram(absl::StrCat(environment, " testing/harness ", arguments));
}

TEST(Harness, Help) {
  const Outcome outcome = Harness("--help");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, StartsWith("usage: harness --nproc_per_node=N"));
}

TEST(Harness, BadCommandLinesAreRefused) {
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "--nproc_per_node=N is missing"},
           {"true", "--nproc_per_node=N is missing"},
           {"--nproc_per_node=0 true", "--nproc_per_node=0 is outside [1, 1024]"},
           {"--nproc_per_node=-1 true", "--nproc_per_node=-1 is outside"},
           {"--nproc_per_node=2000 true", "--nproc_per_node=2000 is outside"},
           {"--nproc_per_node=two true", "--nproc_per_node=two is not an integer"},
           {"--nproc_per_node= true", "--nproc_per_node needs a number of ranks"},
           {"--nproc_per_node=2", "PROGRAM is missing"},
           {"--nproc_per_node=2 ''", "PROGRAM is empty"},
           {"--nproc_per_node=2 --timeout=soon true", "--timeout=soon is not a number of seconds"},
           {"--nproc_per_node=2 --timeout=-1 true", "--timeout=-1 is not a number of seconds"},
           {"--nproc_per_node=2 --timeout=nan true", "--timeout=nan is not a number of seconds"},
           {"--nproc_per_node=2 --stall_timeout=-2 true", "--stall_timeout=-2 is not a number of seconds, 0 or more"},
           {"--nproc_per_node=2 --stall-timeout", "--stall_timeout needs a number of seconds"},
           {"--nproc_per_node=2 --nnodes=0 true", "--nnodes=0 is outside [1, 1024]"},
           {"--nproc_per_node=2 --nnodes=1:4 true", "--nnodes=1:4: a range of machines isn't supported"},
           {"--nproc_per_node=2 --nnodes=2 true", "--master_addr=ADDR is missing, which several machines need"},
           {"--nproc-per-node=2 --nnodes 2 --master-addr=a true", "--master_port=PORT is missing, which several machines need"},
           {"--nproc_per_node=2 --nnodes=2 --node_rank=2 true", "--node_rank=2 is not below --nnodes=2"},
           {"--nproc_per_node=2 --master_port=0 true", "--master_port=0 is outside [1, 65535]"},
           {"--nproc_per_node=2 --max_restarts=-1 true", "--max_restarts=-1 is outside"},
           {"--nproc_per_node=2 --rdzv_backend=c10d true", "unknown option --rdzv_backend=c10d"},
           {"--nproc_per_node=2 --json=1 true", "--json takes no value"},
           {"--nproc=2 true", "unknown option --nproc=2"}}) {
    const Outcome outcome = Harness(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_THAT(outcome.err, HasSubstr(message)) << arguments;
    EXPECT_THAT(outcome.out, IsEmpty()) << arguments;
  }
}

TEST(Harness, ProgramsThatCannotRun) {
  Outcome outcome = Harness("--nproc_per_node=1 no_such_program_anywhere");
  EXPECT_EQ(outcome.status, 127);
  EXPECT_THAT(outcome.err, HasSubstr("program 'no_such_program_anywhere' is not in PATH"));
  outcome = Harness("--nproc_per_node=1 ./no_such_program");
  EXPECT_EQ(outcome.status, 127);
  EXPECT_THAT(outcome.err, HasSubstr("program './no_such_program' does not exist"));
  outcome = Harness("--nproc_per_node=1 /dev/null");
  EXPECT_EQ(outcome.status, 127);
  EXPECT_THAT(outcome.err, HasSubstr("program '/dev/null' is no file that can be executed"));
}

TEST(Harness, PrefixesOutputByRankAndPassesArguments) {
  const Outcome outcome = Harness("--nproc_per_node=2 sh -c 'echo $RANK of $WORLD_SIZE $0 $1' --timeout=x 'a b'");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.lines(), UnorderedElementsAre("[rank 0] 0 of 2 --timeout=x a b", "[rank 1] 1 of 2 --timeout=x a b"));
}

TEST(Harness, RanksFindTheStallTimeout) {
  const Outcome outcome = Harness("--nproc_per_node=1 --stall_timeout=2.5 sh -c 'echo $DDPOPT_STALL_TIMEOUT'");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.lines(), UnorderedElementsAre("[rank 0] 2.5"));
  EXPECT_THAT(Harness("--help").out, HasSubstr("--stall_timeout=SECONDS"));
}

TEST(Harness, StatusOfTheFirstFailure) {
  const Outcome outcome = Harness("--nproc_per_node 3 -- sh -c 'test $RANK = 1 && exit 7; exec sleep 60'");
  EXPECT_EQ(outcome.status, 7);
  EXPECT_THAT(outcome.err, HasSubstr("rank 1"));
  EXPECT_THAT(outcome.err, HasSubstr("exited with status 7"));
}

TEST(Harness, Timeout) {
  const Outcome outcome = Harness("--nproc_per_node=2 --timeout=0.3 sleep 60");
  EXPECT_EQ(outcome.status, 124);
  EXPECT_THAT(outcome.err, HasSubstr("the time limit of 0.3 s is over; still running: rank 0, 1"));
}

TEST(Harness, JsonIsTheLastLine) {
  const Outcome outcome = Harness("--nproc_per_node=2 --json sh -c 'echo hello; exit $RANK'");
  EXPECT_EQ(outcome.status, 1);
  const auto object = nlohmann::json::parse(outcome.lines().back());
  EXPECT_EQ(object["exit_status"], 1);
  EXPECT_EQ(object["failed_rank"], 1);
  EXPECT_EQ(object["reason"], "rank 1 exited with status 1");
  ASSERT_EQ(object["ranks"].size(), 2);
  EXPECT_EQ(object["ranks"][1]["exit_status"], 1);  // rank 0 may or may not have left by itself before it was ended
}

TEST(Harness, Restarts) {
  const Outcome outcome = Harness("--nproc_per_node=2 --max_restarts=2 --json sh -c 'test $TORCHELASTIC_RESTART_COUNT = 1'");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.lines().back())["restarts"], 1);
}

TEST(Harness, JsonOfASuccess) {
  const Outcome outcome = Harness("--nproc_per_node=2 --json true");
  EXPECT_EQ(outcome.status, 0);
  const auto object = nlohmann::json::parse(outcome.lines().back());
  EXPECT_EQ(object["exit_status"], 0);
  ASSERT_EQ(object["ranks"].size(), 2);
  for (const auto& rank : object["ranks"]) EXPECT_EQ(rank["exit_status"], 0);
}

TEST(Harness, PathsAreRelativeToTheCaller) {
  const std::string folder = absl::StrCat(::testing::TempDir(), "/caller");
  mkdir(folder.c_str(), 0755);
  const std::string program = absl::StrCat(folder, "/program.sh");
  std::ofstream(program) << "#!/bin/sh\npwd -P\n";
  chmod(program.c_str(), 0755);
  char resolved[4096];
  ASSERT_NE(realpath(folder.c_str(), resolved), nullptr);
  const Outcome outcome = Harness("--nproc_per_node=1 ./program.sh", absl::StrCat("BUILD_WORKING_DIRECTORY='", folder, "'"));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.lines(), ElementsAre(absl::StrCat("[rank 0] ", resolved)));
}

}  // namespace
