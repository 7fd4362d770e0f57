#include "ddpopt/capture/pt2/guard.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/matchers.h"

namespace ddpopt::pt2 {
namespace {

using c10::IValue;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IsOkAndHolds;
using testing::StatusIs;

// x has sizes [6, 4] and strides [4, 1]; n is 3.
absl::StatusOr<bool> Holds(const std::string& text) {
  const absl::StatusOr<Guard> guard = Guard::Parse(text);
  if (!guard.ok()) return guard.status();
  return guard->Holds([](const Guard::Place& place) -> absl::StatusOr<IValue> {
    using What = Guard::Place::What;
    if (place.input == "['n']" && place.what == What::kValue) return IValue(3);
    if (place.input != "['x']" && place.input != "['d']['k'][0].field") return absl::NotFoundError(place.input);
    switch (place.what) {
      case What::kSize:
        return IValue(place.index == 0 || place.index == -2 ? 6 : 4);
      case What::kStride:
        return IValue(place.index == 0 ? 4 : 1);
      case What::kDim:
        return IValue(2);
      case What::kNumel:
        return IValue(24);
      case What::kStorageOffset:
        return IValue(0);
      case What::kValue:
        break;
    }
    return absl::NotFoundError("no value");
  });
}

TEST(GuardTest, WhatTorchExportWrites) {
  for (const char* text : {
           "L['x'].size()[0] % 2 == 0",
           "((L['x'].size()[0] % 2)) == 0",
           "2 <= L['x'].size()[0]",
           "2 <= L['x'].size()[0] <= 64",
           "L['x'].size()[0] <= 64 and L['x'].size()[1] == 4",
           "L['x'].size()[0] != L['x'].size()[1]",
           "L['x'].stride()[0] == L['x'].size()[1]",
           "L['x'].storage_offset() == 0",
           "L['x'].size()[0]*L['x'].size()[1] <= 4096",
           "-4 + L['x'].size()[0] >= 0",
           "L['n'] == 3",
           "L[\"n\"] == 3",
           "L['d']['k'][0].field.shape[-2] == 6",
           "max(L['n'], 5) == 5 and min(2, L['n'], 7) == 2",
           "math.ceil(L['n'] / 2) == 2",
           "torch.sym_max(L['n'], 4) == 4",
           "Eq(Mod(L['x'].size()[0], 3), 0)",
           "FloorDiv(L['x'].size()[0], 4) == 1",
           "L['x'].dim() == 2 and L['x'].ndim == 2 and L['x'].numel() == 24",
           "(L['n'] if L['x'].size()[0] > 5 else 7) == 3",
           "not L['n'] == 4 or False",
           "L['n'] < math.inf",
       }) {
    EXPECT_THAT(Holds(text), IsOkAndHolds(true)) << text;
  }
  for (const char* text : {"L['x'].size()[0] % 4 == 0", "7 <= L['x'].size()[0] <= 64", "L['x'].size()[0] == L['x'].size()[1]",
                           "Ne(L['n'], 3)", "not True", "L['x'].size()[0] < 6 or L['n'] > 3"}) {
    EXPECT_THAT(Holds(text), IsOkAndHolds(false)) << text;
  }
}

TEST(GuardTest, PythonsPrecedence) {
  for (const char* text : {"2 + 3 * 4 == 14", "(2 + 3) * 4 == 20", "-2 ** 2 == -4", "2 ** 3 ** 2 == 512", "7 // 2 * 2 == 6",
                           "-7 // 2 == -4", "-7 % 3 == 2", "10 - 3 - 2 == 5", "1 < 2 < 3", "True or True and False", "not False and True",
                           "7 / 2 == 3.5", "1e3 == 1000", "2 ** -1 == 0.5", "1 if False else 1", "1 - -1 == 2"}) {
    EXPECT_THAT(Holds(text), IsOkAndHolds(true)) << text;
  }
  EXPECT_THAT(Holds("1 < 3 < 2"), IsOkAndHolds(false));
}

TEST(GuardTest, WhatIsNotUnderstoodIsNamed) {
  EXPECT_THAT(Holds("L['x'].is_contiguous()"),
              StatusIs(absl::StatusCode::kUnimplemented, AllOf(HasSubstr("L['x'].is_contiguous()"), HasSubstr(".is_contiguous()"))));
  EXPECT_THAT(Holds("___check_type(L['x'])"), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("\"___check_type\" is not understood")));
  EXPECT_THAT(Holds("G['flag']"), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("\"G\"")));
  EXPECT_THAT(Holds("L['x'].size() == 3"), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("as a whole")));
  EXPECT_THAT(Holds("math.lgamma(2)"), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("math.lgamma")));
  for (const char* text : {"", "(", "1 +", "L['x", "L['x'].size()[", "1 2", "1 == == 2", "max(1", "x if", "99999999999999999999 == 1",
                           "L['x'] is None", "'a' == 'a'", "1 < 2 >"}) {
    EXPECT_FALSE(Holds(text).ok()) << text;
  }
  EXPECT_THAT(Holds(std::string(100000, '(')), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 200")));
  EXPECT_THAT(Holds(std::string(100000, '-')), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 200")));
  EXPECT_THAT(Holds("1 % 0 == 0"), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("division by zero")));
  EXPECT_THAT(Holds("L['y'].size()[0] == 1"), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace ddpopt::pt2
