// The long fuzz campaign over the readers of graph files. Inputs are mutations of a corpus; an input that is accepted joins the corpus, so
// that the campaign gets past the first checks. Ends at the first complaint, writing the input, or when the time is over.
//
//   ./bazelw run //fx_graph/text:fuzz_campaign -- --target=text --seconds=600 --seed=1 [--crash_input=FILE] CORPUS_FILE...
//
// The input at hand is kept in --crash_input (default /tmp/graph_fuzz_input), so that a crash leaves it behind; a run with --replay checks
// the files given and nothing else.

#include <chrono>
#include <cstdio>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "fx_graph/text/fuzz.h"

namespace ddpopt::fx {
namespace {

int Main(int argc, char** argv) {
  FuzzTarget target = FuzzTarget::kText;
  int64_t seconds = 60;
  uint64_t seed = 1;
  bool replay = false;
  std::string crash_input = "/tmp/graph_fuzz_input";
  std::vector<std::string> corpus;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--target=")) {
      bool known = false;
      for (const FuzzTarget candidate : {FuzzTarget::kText, FuzzTarget::kJson, FuzzTarget::kOracle}) {
        if (argument != FuzzTargetName(candidate)) continue;
        target = candidate;
        known = true;
      }
      if (!known) {
        std::cerr << "--target must be text, json or oracle, not \"" << argument << "\"\n";
        return 2;
      }
    } else if (absl::ConsumePrefix(&argument, "--seconds=")) {
      if (!absl::SimpleAtoi(argument, &seconds)) return std::cerr << "--seconds must be a number\n", 2;
    } else if (absl::ConsumePrefix(&argument, "--seed=")) {
      if (!absl::SimpleAtoi(argument, &seed)) return std::cerr << "--seed must be a number\n", 2;
    } else if (absl::ConsumePrefix(&argument, "--crash_input=")) {
      crash_input = UserPath(std::string(argument));
    } else if (argument == "--replay") {
      replay = true;
    } else if (absl::StartsWith(argument, "-")) {
      std::cerr << "unknown flag " << argument << "; flags are --target, --seconds, --seed, --crash_input, --replay\n";
      return 2;
    } else {
      const auto content = ReadFile(UserPath(std::string(argument)));
      if (!content.ok()) return std::cerr << content.status().message() << "\n", 2;
      corpus.push_back(*content);
    }
  }
  if (corpus.empty()) return std::cerr << "no corpus file is given\n", 2;
  for (const std::string& input : corpus) {
    const std::string complaint = CheckInput(target, input);
    if (!complaint.empty()) return std::cerr << complaint << "\n", 1;
  }
  if (replay) return 0;

  std::printf("target %s, seed %llu, %lld s\n", FuzzTargetName(target), static_cast<unsigned long long>(seed),
              static_cast<long long>(seconds));
  std::mt19937_64 random(seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  const std::size_t original = corpus.size();
  constexpr std::size_t kMost = 2000;  // inputs in the corpus
  int64_t runs = 0;
  for (; std::chrono::steady_clock::now() < end; ++runs) {
    std::string input = Mutate(corpus, random);
    if (const absl::Status written = WriteFile(crash_input, input); !written.ok()) return std::cerr << written.message() << "\n", 2;
    bool accepted = false;
    const std::string complaint = CheckInput(target, input, &accepted);
    if (!complaint.empty()) {
      std::cerr << "run " << runs << ": " << complaint << "\nthe input is in " << crash_input << "\n";
      return 1;
    }
    if (!accepted || input.size() > 20000) continue;
    if (corpus.size() < kMost) {
      corpus.push_back(std::move(input));
    } else {
      corpus[original + random() % (kMost - original)] = std::move(input);
    }
  }
  std::printf("%lld runs, %zu inputs accepted into the corpus, no complaint\n", static_cast<long long>(runs), corpus.size() - original);
  return 0;
}

}  // namespace
}  // namespace ddpopt::fx

int main(int argc, char** argv) { return ddpopt::fx::Main(argc, argv); }
