// The corpus, and a short run of mutations of it; fuzz_campaign is the long one.

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <dirent.h>
#include <unistd.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "fx_graph/text/fuzz.h"
#include "fx_graph/text/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/matchers.h"
#include "testing/oracle_graph.h"

namespace ddpopt::fx {
namespace {

constexpr uint64_t kSeed = 20260101;
constexpr int kRuns = 3000;

// A crash must tell what to repeat.
char progress[128];

void TellProgress(int signal) {
  (void)!write(STDERR_FILENO, progress, sizeof(progress));
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

std::vector<std::string> Corpus(const std::string& folder) {
  std::vector<std::string> corpus;
  std::vector<std::string> names;
  DIR* directory = opendir(folder.c_str());
  EXPECT_NE(directory, nullptr) << folder;
  if (directory == nullptr) return corpus;
  while (const dirent* entry = readdir(directory)) {
    if (entry->d_name[0] != '.') names.push_back(entry->d_name);
  }
  closedir(directory);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    auto content = ReadFile(absl::StrCat(folder, "/", name));
    EXPECT_THAT(content, ::ddpopt::testing::IsOk());
    corpus.push_back(*std::move(content));
  }
  return corpus;
}

void Check(FuzzTarget target, const std::vector<std::string>& corpus) {
  ASSERT_FALSE(corpus.empty());
  std::signal(SIGSEGV, TellProgress);
  std::signal(SIGABRT, TellProgress);
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  for (const std::string& input : corpus) EXPECT_EQ(CheckInput(target, input), "");
  std::mt19937_64 random(kSeed);
  for (int run = 0; run < kRuns; ++run) {
    std::snprintf(progress, sizeof(progress), "\ncrashed at target %s, seed %llu, run %d\n", FuzzTargetName(target),
                  static_cast<unsigned long long>(kSeed), run);
    const std::string input = Mutate(corpus, random);
    const std::string complaint = CheckInput(target, input);
    ASSERT_EQ(complaint, "") << "run " << run << ", input: \"" << absl::CHexEscape(input) << "\"";
  }
}

TEST(Fuzz, Text) { Check(FuzzTarget::kText, Corpus("fx_graph/text/testdata/corpus/text")); }

TEST(Fuzz, Json) {
  // A file of this version that must stay readable, and what is written of the recorded graphs today.
  std::vector<std::string> corpus = Corpus("fx_graph/text/testdata/corpus/json");
  for (const std::string& graph : Corpus("testing/testdata/ddp_buckets/graphs")) {
    const auto oracle = ::ddpopt::testing::ParseOracleGraph(graph);
    ASSERT_THAT(oracle, ::ddpopt::testing::IsOk());
    const auto json = ToJson(*oracle->module);
    ASSERT_THAT(json, ::ddpopt::testing::IsOk());
    if (json->size() < 20000) corpus.push_back(*json);
  }
  Check(FuzzTarget::kJson, corpus);
}

TEST(Fuzz, Oracle) { Check(FuzzTarget::kOracle, Corpus("testing/testdata/ddp_buckets/graphs")); }

TEST(Fuzz, MutationsAreRepeatable) {
  std::mt19937_64 first(1), second(1);
  const std::vector<std::string> corpus = {"graph():\n    return None", "graph():"};
  int changed = 0;
  for (int i = 0; i < 100; ++i) {
    const std::string input = Mutate(corpus, first);
    EXPECT_EQ(input, Mutate(corpus, second));
    changed += input != corpus[0] && input != corpus[1];
  }
  EXPECT_GT(changed, 50);
}

}  // namespace
}  // namespace ddpopt::fx
