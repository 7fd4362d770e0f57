// The long fuzz campaign over the readers of models and weights. Inputs are mutations of a corpus; a small one that is accepted joins it,
// so that the campaign gets past the first checks. Ends at the first complaint, leaving the input behind, or when the time is over.
// `--help` tells the rest.

#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/flags.h"
#include "ddpopt/capture/pt2/fuzz.h"

namespace ddpopt::pt2 {
namespace {

constexpr char kHelp[] =
    R"(fuzz_campaign --target=archive|graph|safetensors [--seconds=60] [--seed=1] [--input=FILE] [--replay] CORPUS_FILE...

  --target    what reads the files: the reader of .pt2 archives, of their graphs alone (.json), of safetensors
  --seconds   how long
  --seed      of the mutations
  --input     where the input at hand is kept, so that a crash leaves it behind (/tmp/model_fuzz_input)
  --replay    checks the files given, and nothing else

A corpus is testing/testdata/exported/forms/*/model.pt2, whose graphs are taken for --target=graph, or
testing/testdata/exported/models/*/grads.safetensors. Exit status 0 if there was no complaint.
)";

int Main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (absl::string_view(argv[i]) != "--help") continue;
    std::fputs(kHelp, stdout);
    return 0;
  }
  std::string name, scratch = "/tmp/model_fuzz_input";
  int64_t seconds = 60, seed = 1;
  bool replay = false;
  std::vector<std::string> files;
  Flags flags;
  flags.Choice("target", &name, {"archive", "graph", "safetensors"});
  flags.Integer("seconds", &seconds, 1, int64_t{1} << 31, "a number of seconds");
  flags.Integer("seed", &seed, 0, int64_t{1} << 62, "a number");
  flags.Text("input", &scratch, "a file");
  flags.Switch("replay", &replay);
  const absl::Status parsed = flags.Parse({argv + 1, argv + argc}, &files);
  if (!parsed.ok() || name.empty() || files.empty()) {
    std::fprintf(stderr, "%s\n%s", parsed.ok() ? "--target and a corpus are needed" : std::string(parsed.message()).c_str(), kHelp);
    return 2;
  }
  const FuzzTarget target = name == "archive" ? FuzzTarget::kArchive : name == "graph" ? FuzzTarget::kGraph : FuzzTarget::kSafetensors;
  scratch = UserPath(scratch);
  std::vector<std::string> corpus;
  for (const std::string& file : files) {
    const auto content = ReadFile(UserPath(file));
    if (!content.ok()) return std::fprintf(stderr, "%s\n", std::string(content.status().message()).c_str()), 2;
    corpus.push_back(CorpusInput(target, *content));
    const std::string complaint = CheckInput(target, corpus.back(), scratch);
    if (!complaint.empty()) return std::fprintf(stderr, "%s: %s\n", file.c_str(), complaint.c_str()), 1;
  }
  if (replay) return 0;

  std::printf("target %s, seed %lld, %lld s\n", name.c_str(), static_cast<long long>(seed), static_cast<long long>(seconds));
  std::mt19937_64 random(static_cast<std::uint64_t>(seed));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  const std::size_t original = corpus.size();
  constexpr std::size_t kMost = 500;  // inputs in the corpus
  int64_t runs = 0, accepted_runs = 0;
  for (; std::chrono::steady_clock::now() < end; ++runs) {
    std::string input = Mutate(target, corpus, random);
    if (const absl::Status written = WriteFile(scratch, input); !written.ok()) {
      return std::fprintf(stderr, "%s\n", std::string(written.message()).c_str()), 2;
    }
    bool accepted = false;
    const std::string complaint = CheckInput(target, input, scratch, &accepted);
    if (!complaint.empty()) {
      std::fprintf(stderr, "run %lld: %s\nthe input is in %s\n", static_cast<long long>(runs), complaint.c_str(), scratch.c_str());
      return 1;
    }
    if (accepted) ++accepted_runs;
    if (!accepted || input.size() > 50000) continue;
    if (corpus.size() < kMost) {
      corpus.push_back(std::move(input));
    } else {
      corpus[original + random() % (kMost - original)] = std::move(input);
    }
  }
  std::printf("%lld runs, %lld of them accepted, no complaint\n", static_cast<long long>(runs), static_cast<long long>(accepted_runs));
  return 0;
}

}  // namespace
}  // namespace ddpopt::pt2

int main(int argc, char** argv) { return ddpopt::pt2::Main(argc, argv); }
