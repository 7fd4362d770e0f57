#include "examples/corpus.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

#include "ATen/ops/equal.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ddpopt::examples {
namespace {

using ::testing::HasSubstr;

std::string Numbered(int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i) text += "line " + std::to_string(i) + "\n";
  return text;
}

TEST(DefaultText, IsLongEnough) { EXPECT_GE(DefaultText().size(), 50'000u); }

TEST(ReadText, NamesWhatIsWrong) {
  const auto missing = ReadText("/nonexistent/text");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("'/nonexistent/text': No such file"));
  EXPECT_THAT(ReadText("/").status().message(), HasSubstr("it is a folder"));
  const std::string path = ::testing::TempDir() + "/ddpopt_corpus_test_empty";
  std::ofstream(path).close();
  EXPECT_THAT(ReadText(path).status().message(), HasSubstr("is empty"));
  std::remove(path.c_str());
}

TEST(ReadText, ReadsAllBytes) {
  const std::string path = ::testing::TempDir() + "/ddpopt_corpus_test_bytes";
  const std::string text("a\0\r\n\xff z", 7);
  std::ofstream(path, std::ios::binary) << text;
  const auto read = ReadText(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, text);
  std::remove(path.c_str());
}

TEST(SplitText, RefusesTooShort) {
  const std::string text(20 * 2 * 65 - 1, 'x');
  const auto split = SplitText(text, 64, 0, 2);
  EXPECT_EQ(split.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(split.status().message(), HasSubstr("2599 characters, and 2 ranks need at least 2600"));
  EXPECT_TRUE(SplitText(text + "x", 64, 0, 2).ok());
}

TEST(SplitText, PartsAreDisjointAndWhole) {
  const std::string text = Numbered(20'000);
  std::multiset<char> parts;
  std::string held_out;
  for (int rank = 0; rank < 3; ++rank) {
    const auto split = SplitText(text, 64, rank, 3);
    ASSERT_TRUE(split.ok()) << split.status();
    parts.insert(split->train.begin(), split->train.end());
    if (rank == 0) held_out = split->held_out;
    EXPECT_EQ(split->held_out, held_out);
    EXPECT_GE(split->train.size(), text.size() / 4);
  }
  EXPECT_NEAR(static_cast<double>(held_out.size()), static_cast<double>(text.size()) / 10, 4096);
  parts.insert(held_out.begin(), held_out.end());
  EXPECT_EQ(parts, std::multiset<char>(text.begin(), text.end()));
}

TEST(SplitText, HeldOutIsNotTrained) {
  const std::string text = Numbered(20'000);
  const auto split = SplitText(text, 64, 0, 1);
  ASSERT_TRUE(split.ok());
  // Every line of this text is unique.
  EXPECT_EQ(split->train.find(split->held_out.substr(100, 40)), std::string::npos);
}

TEST(Vocabulary, IsSortedAndInverts) {
  const Vocabulary vocabulary("hello\xff world");
  EXPECT_EQ(vocabulary.size(), 9);
  EXPECT_EQ(vocabulary.Index(' '), 0);
  EXPECT_EQ(vocabulary.Index('\xff'), 8);
  for (const char c : std::string("helo\xff wrd")) EXPECT_EQ(vocabulary.Character(vocabulary.Index(c)), c);
}

TEST(Encode, PairsAndTriplesNameWhatTheyStandFor) {
  const std::string text = "abcabcbbc";
  const Vocabulary vocabulary(text);
  const Encoded encoded = Encode(text, vocabulary, 9216);
  ASSERT_EQ(encoded.characters.numel(), 9);
  const int64_t* pairs = encoded.pairs.const_data_ptr<int64_t>();
  const int64_t* triples = encoded.triples.const_data_ptr<int64_t>();
  EXPECT_EQ(encoded.characters.const_data_ptr<int64_t>()[2], 2);
  EXPECT_EQ(pairs[1], pairs[4]);      // ab
  EXPECT_EQ(pairs[2], pairs[8]);      // bc
  EXPECT_NE(pairs[0], pairs[3]);      // a at the start, ca
  EXPECT_EQ(triples[2], triples[5]);  // abc
  EXPECT_NE(triples[2], triples[8]);  // abc, bbc
  const Encoded small = Encode(text, vocabulary, 3);
  for (int i = 0; i < 9; ++i) {
    EXPECT_LT(small.pairs.const_data_ptr<int64_t>()[i], 3);
    EXPECT_LT(small.triples.const_data_ptr<int64_t>()[i], 3);
  }
}

}  // namespace
}  // namespace ddpopt::examples
