#include "fx_graph/name_table.h"

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace ddpopt::fx {
namespace {

std::string Made(NameTable& names, absl::string_view wish) { return std::string(names.Create(wish).text); }

TEST(NameTableTest, CountsUp) {
  NameTable names;
  EXPECT_EQ(Made(names, "add"), "add");
  EXPECT_EQ(Made(names, "add"), "add_1");
  EXPECT_EQ(Made(names, "add_1"), "add_2");
  EXPECT_EQ(Made(names, "add"), "add_3");
}

// torch.fx goes on from the number that was last given, also when that was asked for.
TEST(NameTableTest, GoesOnFromTheLastNumber) {
  NameTable names;
  EXPECT_EQ(Made(names, "add_5"), "add_5");
  EXPECT_EQ(Made(names, "add"), "add");
  EXPECT_EQ(Made(names, "add"), "add_6");
  EXPECT_EQ(Made(names, "add_2"), "add_2");
  EXPECT_EQ(Made(names, "add"), "add_3");
  EXPECT_EQ(Made(names, "add_5"), "add_1");
  EXPECT_EQ(Made(names, "add"), "add_4");
}

TEST(NameTableTest, MakesIdentifiers) {
  NameTable names;
  EXPECT_EQ(Made(names, "a.b"), "a_b");
  EXPECT_EQ(Made(names, "c..d"), "c_d");  // a run is one underscore
  EXPECT_EQ(Made(names, "\xc3\xa9t\xc3\xa9"), "_t_");
  EXPECT_EQ(Made(names, "1st"), "_1st");
  EXPECT_EQ(Made(names, ""), "_unnamed");
  EXPECT_EQ(Made(names, "_1"), "_1");
  EXPECT_EQ(Made(names, "_1"), "_1_1");
  EXPECT_EQ(Made(names, "x_"), "x_");
  EXPECT_EQ(Made(names, "x_"), "x__1");
}

TEST(NameTableTest, AvoidsReservedNames) {
  NameTable names;
  EXPECT_EQ(Made(names, "sum"), "sum_1");
  EXPECT_EQ(Made(names, "sum"), "sum_2");
  EXPECT_EQ(Made(names, "lambda"), "lambda_1");
  EXPECT_EQ(Made(names, "torch"), "torch_1");
  EXPECT_EQ(Made(names, "exit"), "exit_1");  // not a builtin until Python's site module has run, which it has
  EXPECT_EQ(Made(names, "sum_2"), "sum_3");
}

TEST(NameTableTest, TellsLeadingZerosApart) {
  NameTable names;
  EXPECT_EQ(Made(names, "add_01"), "add_01");
  EXPECT_EQ(Made(names, "add_1"), "add_1");
  EXPECT_EQ(Made(names, "add_01"), "add_2");
  EXPECT_EQ(Made(names, "add_0"), "add_0");
  EXPECT_EQ(Made(names, "add_0"), "add_3");
}

TEST(NameTableTest, TakesNumbersOfAnyLength) {
  NameTable names;
  EXPECT_EQ(Made(names, "a_999999999999999999"), "a_999999999999999999");
  EXPECT_EQ(Made(names, "a"), "a");
  EXPECT_EQ(Made(names, "a"), "a_1000000000000000000");
  const std::string longer = "b_99999999999999999999999";
  EXPECT_EQ(Made(names, longer), longer);
  EXPECT_EQ(Made(names, longer), longer + "_1");
}

// The rule in its plain form, on sets and maps of strings.
class PlainTable {
 public:
  std::string Create(const std::string& wish) {
    std::string name = wish;  // of identifiers alone
    std::string base = name;
    bool numbered = false;
    std::uint64_t number = 0;
    const std::size_t underscore = name.rfind('_');
    if (underscore != std::string::npos && underscore > 0 && underscore + 1 < name.size() &&
        name.find_first_not_of("0123456789", underscore + 1) == std::string::npos) {
      base = name.substr(0, underscore);
      number = std::stoull(name.substr(underscore + 1));
      numbered = true;
    }
    if (!numbered || used_.contains(name)) {
      number = count_.contains(name) ? count_[name] : 0;
      if (IsReservedName(name)) name = absl::StrCat(base, "_", ++number);
    }
    while (used_.contains(name)) name = absl::StrCat(base, "_", ++number);
    used_.insert(name);
    count_[base] = number;
    return name;
  }

 private:
  std::set<std::string> used_;
  std::map<std::string, std::uint64_t> count_;
};

TEST(NameTableTest, AgreesWithThePlainRuleOnRandomWishes) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    const auto pick = [&](std::uint32_t n) { return static_cast<int>(random() % n); };
    NameTable names;
    PlainTable plain;
    const std::vector<std::string> bases = {"a", "sum", "a_1", "a_1_2", "_", "b", "a_0", "_1"};
    for (int i = 0; i < 500; ++i) {
      std::string wish = bases[pick(bases.size())];
      const int kind = pick(4);
      if (kind == 1) absl::StrAppend(&wish, "_", pick(6));
      if (kind == 2) absl::StrAppend(&wish, "_0", pick(3));
      if (kind == 3) absl::StrAppend(&wish, "_", pick(5000));
      ASSERT_EQ(Made(names, wish), plain.Create(wish)) << "wish " << i << ": " << wish;
    }
  }
}

TEST(NameTableTest, CreateLikeIsCreate) {
  NameTable from;
  NameTable a;
  NameTable b;
  for (const char* wish : {"add", "add", "add_01", "sum", "x_3", "add", "x_3"}) {
    const NameTable::Name name = from.Create(wish);
    for (int twice = 0; twice < 2; ++twice) {
      EXPECT_EQ(a.CreateLike(a.FindOrAddBase(NameTable::Text(name.base)), name.text).text, b.Create(name.text).text);
    }
  }
}

TEST(NameTableTest, TheCheckerFindsStrangersAndTwins) {
  using Verdict = NameTable::Checker::Verdict;
  NameTable names;
  const NameTable::Name add = names.Create("add");
  const NameTable::Name add_1 = names.Create("add");
  const NameTable::Name far = names.Create("add_123456");
  const NameTable::Name odd = names.Create("add_007");
  NameTable others;
  NameTable::Checker checker(names);
  for (const NameTable::Name& name : {add, add_1, far, odd}) EXPECT_EQ(checker.Check(name.text, name.base), Verdict::kGood) << name.text;
  for (const NameTable::Name& name : {add, add_1, far, odd}) EXPECT_EQ(checker.Check(name.text, name.base), Verdict::kTwice) << name.text;
  EXPECT_EQ(checker.Check("add_2", add.base), Verdict::kUnknown);
  EXPECT_EQ(checker.Check("mul", add.base), Verdict::kUnknown);
  EXPECT_EQ(checker.Check("add_x", add.base), Verdict::kUnknown);
  EXPECT_EQ(checker.Check("add", nullptr), Verdict::kUnknown);
  EXPECT_EQ(checker.Check("add", others.Create("add").base), Verdict::kUnknown);
}

}  // namespace
}  // namespace ddpopt::fx
