#include "examples/corpus.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "ATen/ops/empty.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ddpopt::examples {

// Defined by the file that the build makes of the corpus.
extern const unsigned char kDefaultText[];
extern const unsigned long kDefaultTextSize;  // NOLINT(runtime/int)

namespace {

constexpr int64_t kHoldOutEvery = 10;
constexpr int64_t kMaxSegment = 4096;
// Segments per rank: enough that every rank gets some, and the held-out part two for each rank.
constexpr int64_t kSegmentsPerRank = 2 * kHoldOutEvery;

}  // namespace

absl::string_view DefaultText() { return absl::string_view(reinterpret_cast<const char*>(kDefaultText), kDefaultTextSize); }

absl::StatusOr<std::string> ReadText(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    const int error = errno;
    const std::string message = absl::StrCat("cannot read '", path, "': ", std::strerror(error));
    return error == EACCES ? absl::PermissionDeniedError(message) : absl::NotFoundError(message);
  }
  if (S_ISDIR(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat("cannot read '", path, "': it is a folder"));
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const int error = errno;
    return absl::PermissionDeniedError(
        absl::StrCat("cannot read '", path, "'", error != 0 ? ": " : "", error != 0 ? std::strerror(error) : ""));
  }
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) return absl::DataLossError(absl::StrCat("cannot read '", path, "' to its end"));
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat("'", path, "' is empty"));
  return text;
}

absl::StatusOr<Split> SplitText(absl::string_view text, int64_t context, int rank, int world_size) {
  const int64_t size = static_cast<int64_t>(text.size());
  const int64_t least = kSegmentsPerRank * world_size * (context + 1);
  if (size < least) {
    return absl::InvalidArgumentError(absl::StrCat("the text is too short: ", size, " characters, and ", world_size, " rank",
                                                   world_size == 1 ? "" : "s", " need at least ", least));
  }
  const int64_t segment = std::min(kMaxSegment, size / (kSegmentsPerRank * world_size));
  Split split;
  int64_t dealt = 0;
  for (int64_t i = 0; i * segment < size; ++i) {
    const absl::string_view piece = text.substr(static_cast<size_t>(i * segment), static_cast<size_t>(segment));
    if (i % kHoldOutEvery == kHoldOutEvery - 1) {
      split.held_out.append(piece.data(), piece.size());
    } else if (dealt++ % world_size == rank) {
      split.train.append(piece.data(), piece.size());
    }
  }
  return split;
}

Vocabulary::Vocabulary(absl::string_view text) : index_(256, -1) {
  std::vector<bool> seen(256, false);
  for (const char c : text) seen[static_cast<unsigned char>(c)] = true;
  for (int c = 0; c < 256; ++c) {
    if (!seen[static_cast<size_t>(c)]) continue;
    index_[static_cast<size_t>(c)] = size();
    characters_.push_back(static_cast<char>(c));
  }
}

Encoded Encode(absl::string_view text, const Vocabulary& vocabulary, int64_t table) {
  const auto make = [&] { return at::empty({static_cast<int64_t>(text.size())}, at::kLong); };
  Encoded encoded{make(), make(), make()};
  int64_t* characters = encoded.characters.mutable_data_ptr<int64_t>();
  int64_t* pairs = encoded.pairs.mutable_data_ptr<int64_t>();
  int64_t* triples = encoded.triples.mutable_data_ptr<int64_t>();
  const uint64_t base = static_cast<uint64_t>(vocabulary.size()) + 1, rows = static_cast<uint64_t>(table);
  uint64_t last = 0, before_last = 0;  // index + 1; 0 before the text
  for (size_t i = 0; i < text.size(); ++i) {
    characters[i] = vocabulary.Index(text[i]);
    const uint64_t now = static_cast<uint64_t>(characters[i]) + 1;
    const uint64_t triple = (before_last * base + last) * base + now;
    pairs[i] = static_cast<int64_t>((last * base + now) % rows);
    triples[i] = static_cast<int64_t>(((triple * 0x9E3779B97F4A7C15u) >> 32) % rows);
    before_last = last;
    last = now;
  }
  return encoded;
}

}  // namespace ddpopt::examples
