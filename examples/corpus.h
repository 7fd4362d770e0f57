#ifndef DDPOPT_EXAMPLES_CORPUS_H_
#define DDPOPT_EXAMPLES_CORPUS_H_

// Text for the character-level examples: reading it, its vocabulary, and which part of it each rank trains on. A character is a byte.

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ddpopt::examples {

// The text that train_gpt trains on by default: files of this repository in a fixed order, built into the program.
absl::string_view DefaultText();

// Errors: NotFound, PermissionDenied or InvalidArgument (a folder, an empty file), naming the path.
absl::StatusOr<std::string> ReadText(const std::string& path);

struct Split {
  std::string train;     // of one rank
  std::string held_out;  // the same for all
};

// Cuts the text into equal segments; every tenth is held out, the others are dealt to the ranks in turn.
// Errors: InvalidArgument saying how long the text must be.
absl::StatusOr<Split> SplitText(absl::string_view text, int64_t context, int rank, int world_size);

// The distinct characters of a text, in byte order.
class Vocabulary {
 public:
  explicit Vocabulary(absl::string_view text);

  int64_t size() const { return static_cast<int64_t>(characters_.size()); }
  // The index of a character of the text.
  int64_t Index(char character) const { return index_[static_cast<unsigned char>(character)]; }
  char Character(int64_t index) const { return characters_[static_cast<size_t>(index)]; }

 private:
  std::string characters_;
  std::vector<int64_t> index_;
};

// int64 [characters], each. `pairs` and `triples`: for each position, a number below `table` for the two or three characters that end there
// (pairs are exact while (vocabulary + 1)^2 <= table; triples are hashed).
struct Encoded {
  at::Tensor characters, pairs, triples;
};
Encoded Encode(absl::string_view text, const Vocabulary& vocabulary, int64_t table);

}  // namespace ddpopt::examples

#endif  // DDPOPT_EXAMPLES_CORPUS_H_
