#ifndef DDPOPT_CAPTURE_PT2_FUZZ_H_
#define DDPOPT_CAPTURE_PT2_FUZZ_H_

// What the readers of models and weights must stand: any bytes. Used by fuzz_test (a short run) and by the long campaign
// (fuzz_campaign.cc).
//
//   std::mt19937_64 random(seed);
//   std::string input = Mutate(FuzzTarget::kArchive, corpus, random);
//   std::string complaint = CheckInput(FuzzTarget::kArchive, input, "/tmp/scratch");      // empty: fine

#include <random>
#include <string>
#include <vector>

namespace ddpopt::pt2 {

enum class FuzzTarget {
  kArchive,      // a .pt2
  kGraph,        // its graph alone, as JSON
  kSafetensors,  // weights
};

// "archive", "graph", "safetensors".
const char* FuzzTargetName(FuzzTarget target);

// Reads the input, which is written to the file `scratch` where the reader wants one. Refused, the error must say something, name the file,
// and be no exception that nobody expected; accepted, the graph must lint and everything that can be asked without running it must answer.
// Memory may grow by a quarter of a GiB. Returns what is wrong, or "". *accepted, if given, tells whether the input was accepted.
std::string CheckInput(FuzzTarget target, const std::string& input, const std::string& scratch, bool* accepted = nullptr);

// What a file of the corpus is to a target: for graphs, an archive stands for the graph in it.
std::string CorpusInput(FuzzTarget target, std::string file);

// One of the inputs with some edits: bytes changed, the end cut off; of documents (also those in an archive) parts replaced, dropped,
// doubled and moved in from other places. The same generator state gives the same result. Precondition: the corpus is not empty.
std::string Mutate(FuzzTarget target, const std::vector<std::string>& corpus, std::mt19937_64& random);

}  // namespace ddpopt::pt2

#endif  // DDPOPT_CAPTURE_PT2_FUZZ_H_
