#ifndef DDPOPT_FX_GRAPH_TEXT_FUZZ_H_
#define DDPOPT_FX_GRAPH_TEXT_FUZZ_H_

// What the readers of files must stand: any bytes. Used by fuzz_test (a short run over the corpus) and by the long campaign
// (fuzz_campaign.cc).
//
//   std::mt19937_64 random(seed);
//   std::string complaint = CheckInput(FuzzTarget::kText, Mutate(corpus, random));    // empty: fine
//
// Thread-safe.

#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace ddpopt::fx {

enum class FuzzTarget { kText, kJson, kOracle };

// "text", "json", "oracle".
const char* FuzzTargetName(FuzzTarget target);

// Reads the input. Refused, the error must be InvalidArgument and give a place; accepted, the graph must lint, print, and read back as what
// prints the same. Returns what is wrong, or "". *accepted, if given, tells whether the input was accepted.
std::string CheckInput(FuzzTarget target, absl::string_view input, bool* accepted = nullptr);

// One of the inputs with up to a few edits: bytes changed, pieces removed, repeated, moved in from other inputs, numbers and keywords
// put in. The same generator state gives the same result. Precondition: the corpus is not empty.
std::string Mutate(const std::vector<std::string>& corpus, std::mt19937_64& random);

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_TEXT_FUZZ_H_
