#include "base/flags.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ddpopt {
namespace {

using ::testing::ElementsAre;

struct Values {
  int64_t steps = 7;
  double rate = 0.5, decay = 0;
  std::string data, kind = "sgd", folder;
  bool json = false, resume = false;
  std::vector<std::string> rest;

  // What is wrong, else empty.
  std::string Parse(const std::vector<std::string>& arguments, bool takes_rest = false) {
    Flags flags;
    flags.Integer("steps", &steps, 1, 100, "a whole number from 1 to 100");
    flags.Number("rate", &rate, 0, "a number above 0");
    flags.NumberFrom("decay", &decay, 0, "a number, 0 or above");
    flags.Text("data", &data, "a path");
    flags.Choice("kind", &kind, {"sgd", "adam"});
    flags.Switch("json", &json);
    flags.OptionalText("resume", &resume, &folder, "a folder's path");
    return std::string(flags.Parse(arguments, takes_rest ? &rest : nullptr).message());
  }
};

TEST(Flags, TakeValuesInBothForms) {
  Values values;
  EXPECT_EQ(values.Parse({"--steps=3", "--rate", "1e-3", "--decay=0", "--data", "a=b", "--kind=adam", "--json", "--resume"}), "");
  EXPECT_EQ(values.steps, 3);
  EXPECT_EQ(values.rate, 1e-3);
  EXPECT_EQ(values.data, "a=b");
  EXPECT_EQ(values.kind, "adam");
  EXPECT_TRUE(values.json);
  EXPECT_TRUE(values.resume);
  EXPECT_EQ(values.folder, "");
  EXPECT_EQ(values.Parse({"--resume=here"}), "");
  EXPECT_EQ(values.folder, "here");
}

TEST(Flags, SayWhatIsWrong) {
  for (const auto& [argument, message] : std::vector<std::pair<std::string, std::string>>{
           {"--steps=0", "--steps=0: must be a whole number from 1 to 100"},
           {"--steps=101", "--steps=101: must be a whole number from 1 to 100"},
           {"--steps=3x", "--steps=3x: must be a whole number from 1 to 100"},
           {"--steps", "--steps needs a value"},
           {"--rate=0", "--rate=0: must be a number above 0"},
           {"--rate=inf", "--rate=inf: must be a number above 0"},
           {"--decay=-1", "--decay=-1: must be a number, 0 or above"},
           {"--data=", "--data=: must be a path"},
           {"--kind=sgdd", "--kind=sgdd: must be one of sgd, adam"},
           {"--json=yes", "--json takes no value"},
           {"--resume=", "--resume=: must be a folder's path"},
           {"--step=3", "unknown flag '--step'"},
           {"3", "unexpected argument '3'"},
           {"-x", "unexpected argument '-x'"}}) {
    EXPECT_EQ(Values().Parse({argument}), message);
  }
}

TEST(Flags, HandOnWhatIsNoFlag) {
  Values values;
  EXPECT_EQ(values.Parse({"a", "--steps=2", "b"}, /*takes_rest=*/true), "");
  EXPECT_THAT(values.rest, ElementsAre("a", "b"));
  EXPECT_EQ(values.Parse({"-x"}, /*takes_rest=*/true), "unexpected argument '-x'");
}

}  // namespace
}  // namespace ddpopt
