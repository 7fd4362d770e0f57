// A short run of what fuzz_campaign does for long, and the corpus itself.

#include "ddpopt/capture/pt2/fuzz.h"

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ddpopt::pt2 {
namespace {

namespace fs = std::filesystem;

const std::string kExported = "testing/testdata/exported/";

// The contents of the files under `dir` whose names end so.
std::vector<std::string> Corpus(FuzzTarget target, const std::string& dir, const std::string& ending) {
  std::set<std::string> paths;
  for (const auto& entry : fs::recursive_directory_iterator(dir)) {
    if (absl::EndsWith(entry.path().string(), ending)) paths.insert(entry.path().string());
  }
  std::vector<std::string> contents;
  for (const std::string& path : paths) contents.push_back(CorpusInput(target, *ReadFile(path)));
  return contents;
}

void Fuzz(FuzzTarget target, const std::string& dir, const std::string& ending, int runs) {
  const std::vector<std::string> corpus = Corpus(target, dir, ending);
  ASSERT_FALSE(corpus.empty());
  const std::string scratch = absl::StrCat(std::getenv("TEST_TMPDIR"), "/", FuzzTargetName(target));
  for (const std::string& input : corpus) {
    bool accepted = false;
    EXPECT_EQ(CheckInput(target, input, scratch, &accepted), "");
    EXPECT_TRUE(accepted);
  }
  constexpr std::uint64_t kSeed = 1;
  std::mt19937_64 random(kSeed);
  int taken = 0;
  for (int run = 0; run < runs; ++run) {
    SCOPED_TRACE(absl::StrCat("seed ", kSeed, ", run ", run));
    bool accepted = false;
    ASSERT_EQ(CheckInput(target, Mutate(target, corpus, random), scratch, &accepted), "");
    if (accepted) ++taken;
  }
  EXPECT_GT(taken, 0);
  EXPECT_LT(taken, runs);
}

TEST(FuzzTest, Archives) { Fuzz(FuzzTarget::kArchive, kExported + "forms", "model.pt2", 400); }
TEST(FuzzTest, Graphs) { Fuzz(FuzzTarget::kGraph, kExported + "forms", "model.pt2", 1500); }
TEST(FuzzTest, Safetensors) { Fuzz(FuzzTarget::kSafetensors, kExported + "models/unused_params", ".safetensors", 400); }

}  // namespace
}  // namespace ddpopt::pt2
