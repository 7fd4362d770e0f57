#include "ddpopt/distributed/collective_history.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ddpopt {
namespace {

using ::testing::HasSubstr;

const CollectiveInfo kUsual{"allreduce", 4, c10::kFloat};

// `count` all-reduces, of which the one at `odd` (0: none) has five elements; numbers are 100 more than positions.
CollectiveHistory Sums(uint64_t count, uint64_t odd = 0) {
  CollectiveHistory history;
  for (uint64_t i = 1; i <= count; ++i) history.Add(100 + i, i == odd ? CollectiveInfo{"allreduce", 5, c10::kFloat} : kUsual);
  return history;
}

TEST(CollectiveHistory, FindsTheFirstDifferenceWhereverItIs) {
  for (const uint64_t odd : {1, 2, 15, 16, 17, 255, 256, 257, 4096, 12'345, 28'671, 28'672, 28'673, 29'989}) {
    const CollectiveHistory mine = Sums(30'000), theirs = Sums(29'990, odd);  // told at different moments
    for (const uint64_t agreed : {uint64_t{0}, odd / 2, odd - 1}) {
      const HistoryComparison found = CompareHistories(mine.Summary(), theirs.Summary(), agreed);
      ASSERT_GE(found.differs_at, odd) << odd;
      EXPECT_LT(found.same_until, odd);
      EXPECT_GE(found.same_until, agreed);
      const auto place = theirs.FirstDifference(mine.Hashes(found.same_until, found.differs_at));
      ASSERT_TRUE(place.has_value()) << odd << " " << agreed;
      EXPECT_EQ(place->position, odd);
      EXPECT_EQ(place->text, absl::StrCat("#", 100 + odd, " allreduce of 5 Float"));
      EXPECT_EQ(mine.TextAt(odd), absl::StrCat("#", 100 + odd, " allreduce of 4 Float"));
    }
  }
}

TEST(CollectiveHistory, SummariesNameTheNewestAndAreShort) {
  const CollectiveHistory mine = Sums(100'000), theirs = Sums(99'995, 99'990);
  const HistoryComparison found = CompareHistories(mine.Summary(), theirs.Summary(), 0);
  EXPECT_EQ(found.same_until, 99'989u);
  EXPECT_EQ(found.differs_at, 99'990u);
  EXPECT_EQ(found.first_text, "#100090 allreduce of 4 Float");
  EXPECT_EQ(found.second_text, "#100090 allreduce of 5 Float");
  EXPECT_LT(mine.Summary().size(), 3000u);
}

TEST(CollectiveHistory, EqualOnesDoNotDiffer) {
  const CollectiveHistory mine = Sums(5000), theirs = Sums(4000);
  const HistoryComparison found = CompareHistories(mine.Summary(), theirs.Summary(), 0);
  EXPECT_EQ(found.differs_at, 0u);
  EXPECT_GE(found.same_until, 3840u);
  EXPECT_FALSE(theirs.FirstDifference(mine.Hashes(1, 5000)).has_value());
  EXPECT_EQ(CompareHistories(CollectiveHistory().Summary(), theirs.Summary(), 0).differs_at, 0u);
  EXPECT_FALSE(CollectiveHistory().FirstDifference(mine.Hashes(1, 5000)).has_value());
  EXPECT_FALSE(mine.FirstDifference("").has_value());
}

TEST(CollectiveHistory, WhatIsNoLongerKnownIsNotNamed) {
  const uint64_t count = CollectiveHistory::kKept + 1000;
  const CollectiveHistory mine = Sums(count), theirs = Sums(count, 500);
  const HistoryComparison found = CompareHistories(mine.Summary(), theirs.Summary(), 0);
  EXPECT_GT(found.differs_at, 500u);
  EXPECT_FALSE(theirs.FirstDifference(mine.Hashes(0, count)).has_value());
  EXPECT_EQ(mine.TextAt(500), "");
  EXPECT_NE(mine.TextAt(1001), "");
  EXPECT_EQ(mine.TextAt(count + 1), "");
  // One position further back than is kept is known to be the same: then the oldest that is kept is known too.
  EXPECT_TRUE(Sums(count, 2000).FirstDifference(mine.Hashes(0, count)).has_value());
}

TEST(CollectiveHistory, ComparesWhatAllRanksMustDoAlike) {
  const auto differ = [](const CollectiveInfo& a, const CollectiveInfo& b) {
    CollectiveHistory one, other;
    one.Add(1, a);
    other.Add(1, b);
    return CompareHistories(one.Summary(), other.Summary(), 0).differs_at != 0;
  };
  EXPECT_FALSE(differ(kUsual, kUsual));
  EXPECT_TRUE(differ(kUsual, {"allreduce", 4, c10::kInt}));
  EXPECT_TRUE(differ(kUsual, {"broadcast", 4, c10::kFloat}));
  EXPECT_TRUE(differ({"broadcast", 4, c10::kFloat}, {"broadcast", 5, c10::kFloat}));
  EXPECT_FALSE(differ({"allgather", 4, c10::kFloat}, {"allgather", 5, c10::kFloat}));
  EXPECT_FALSE(differ({"exchange of plans"}, {"exchange of names"}));
  CollectiveHistory history;
  history.Add(1, {"exchange of plans"});
  history.Add(2, {"barrier"});
  EXPECT_EQ(history.TextAt(1), "#2 barrier");
  EXPECT_THAT(history.Summary(), HasSubstr("#2 barrier"));
}

}  // namespace
}  // namespace ddpopt
