// Runs the program: what it refuses, and a few steps on two ranks. argv[1]: the program.

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "testing/run_program.h"

namespace {

using ::testing::HasSubstr;

std::string program;

using Result = ddpopt::testing::ProgramResult;

std::string TempPath(const std::string& name) { return ::testing::TempDir() + "/train_gpt_test_" + std::to_string(getpid()) + "_" + name; }

// `arguments` goes through the shell.
Result RunProgram(const std::string& arguments, const std::string& prefix = "") {
  return ddpopt::testing::RunProgram(prefix + " '" + program + "' " + arguments);
}

void ExpectRefused(const std::string& arguments, const std::string& message) {
  const Result result = RunProgram(arguments);
  EXPECT_EQ(result.status, 2) << arguments;
  EXPECT_THAT(result.err, HasSubstr(message)) << arguments;
  EXPECT_EQ(result.out, "") << arguments;
}

nlohmann::json LastLine(const Result& result) {
  return nlohmann::json::parse(result.last_line(), nullptr, /*allow_exceptions=*/false);
}

std::string WriteFile(const std::string& name, const std::string& text) {
  const std::string path = TempPath(name);
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(TrainGpt, HelpNamesEveryFlag) {
  const Result result = RunProgram("--help");
  EXPECT_EQ(result.status, 0);
  for (const char* flag :
       {"--nproc_per_node", "--steps", "--data", "--seed", "--lr", "--bucket_policy", "--stall_timeout", "--trace", "--json", "--help"})
    EXPECT_THAT(result.out, HasSubstr(flag));
}

TEST(TrainGpt, RefusesBadFlags) {
  ExpectRefused("--nproc_per_node=0", "--nproc_per_node=0: must be a number of ranks from 1 to 256");
  ExpectRefused("--nproc_per_node=-1", "--nproc_per_node=-1");
  ExpectRefused("--nproc_per_node=two", "--nproc_per_node=two");
  ExpectRefused("--steps=0", "--steps=0: must be a whole number above 0");
  ExpectRefused("--steps=1.5", "--steps=1.5");
  ExpectRefused("--steps", "--steps needs a value");
  ExpectRefused("--seed=-3", "--seed=-3");
  ExpectRefused("--lr=nan", "--lr=nan");
  ExpectRefused("--data=", "--data=");
  ExpectRefused("--trace=", "--trace=: must be the beginning of files' paths");
  ExpectRefused("--bucket_policy=best", "--bucket_policy=best: must be one of caps, auto");
  ExpectRefused("--json=yes", "--json takes no value");
  ExpectRefused("--stepps=3", "unknown flag '--stepps'");
  ExpectRefused("3", "unexpected argument '3'");
}

TEST(TrainGpt, RefusesBadData) {
  ExpectRefused("--data=/nonexistent/text", "cannot read '/nonexistent/text'");
  ExpectRefused("--data=/", "it is a folder");
  const std::string empty = WriteFile("empty", "");
  ExpectRefused("--data='" + empty + "'", "is empty");
  const std::string brief = WriteFile("brief", std::string(2599, 'x'));
  ExpectRefused("--data='" + brief + "'", "2599 characters, and 2 ranks need at least 2600");
  std::remove(empty.c_str());
  std::remove(brief.c_str());
}

TEST(TrainGpt, TrainsOnTwoRanksAndReports) {
  const std::string trace = TempPath("trace");
  const Result result = RunProgram("--steps=3 --json --trace=" + trace);
  ASSERT_EQ(result.status, 0) << result.out << result.err;
  const nlohmann::json json = LastLine(result);
  ASSERT_TRUE(json.is_object()) << result.out;
  std::set<std::string> keys;
  for (const auto& item : json.items()) keys.insert(item.key());
  EXPECT_EQ(keys, (std::set<std::string>{"initial_loss", "final_loss", "val_loss", "vocab", "corpus_bytes", "steps", "world_size",
                                         "seconds", "tokens_per_s", "buckets", "params_equal"}));
  EXPECT_EQ(json["steps"], 3);
  EXPECT_EQ(json["world_size"], 2);
  EXPECT_EQ(json["params_equal"], true);
  EXPECT_GE(json["corpus_bytes"].get<int64_t>(), 50'000);
  EXPECT_GE(json["buckets"].size(), 3u);
  EXPECT_NEAR(json["initial_loss"].get<double>(), std::log(json["vocab"].get<double>()), 0.1);
  EXPECT_THAT(result.out, HasSubstr("parameters equal on 2 ranks"));
  EXPECT_THAT(result.err, HasSubstr("step 1/3: loss "));
  for (const char* rank : {"0", "1"}) {
    const std::string path = trace + ".rank" + rank + ".json";
    std::ifstream file(path);
    const nlohmann::json events = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false)["traceEvents"];
    const auto is = [](const std::string& begin) {
      return [=](const nlohmann::json& event) { return event.value("name", "").rfind(begin, 0) == 0; };
    };
    EXPECT_EQ(std::count_if(events.begin(), events.end(), is("bucket 0 (")), 1);
    EXPECT_EQ(std::count_if(events.begin(), events.end(), is("backward 3")), 1);
    std::remove(path.c_str());
  }
}

TEST(TrainGpt, DataIsRelativeToTheUsersFolder) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "abc ";
  const std::string path = WriteFile("relative", text);
  const size_t slash = path.rfind('/');
  const Result result = RunProgram("--steps=1 --json --nproc_per_node=1 --data='" + path.substr(slash + 1) + "'",
                                   "BUILD_WORKING_DIRECTORY='" + path.substr(0, slash) + "'");
  EXPECT_EQ(result.status, 0) << result.err;
  const nlohmann::json json = LastLine(result);
  ASSERT_TRUE(json.is_object()) << result.out;
  EXPECT_EQ(json["vocab"], 4);
  EXPECT_EQ(json["corpus_bytes"], 8000);
  EXPECT_EQ(json["world_size"], 1);
  std::remove(path.c_str());
}

TEST(TrainGpt, SaysWhereTheLossBecameNan) {
  const Result result = RunProgram("--steps=30 --lr=1e30 --json");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, ::testing::ContainsRegex("the loss became -?(nan|inf) at step [0-9]+ on rank [01]"));
  EXPECT_FALSE(LastLine(result).is_object());
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    std::fprintf(stderr, "usage: train_gpt_test PROGRAM\n");
    return 2;
  }
  program = argv[1];
  return RUN_ALL_TESTS();
}
