#include "ddpopt/capture/pt2/sym_expr.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "testing/matchers.h"

namespace ddpopt::pt2 {
namespace {

using ::testing::HasSubstr;
using testing::IsOkAndHolds;
using testing::StatusIs;
using ::testing::UnorderedElementsAre;

const SymbolValues kValues = {{"s0", 7}, {"s77", 4}};

absl::StatusOr<int64_t> Evaluate(const std::string& text) {
  const absl::StatusOr<SymExpr> expr = SymExpr::Parse(text);
  if (!expr.ok()) return expr.status();
  return expr->EvaluateInt(kValues);
}

std::string Text(const std::string& text) {
  const absl::StatusOr<SymExpr> expr = SymExpr::Parse(text);
  return expr.ok() ? expr->ToString() : std::string(expr.status().message());
}

constexpr char kS0[] = "Symbol('s0', positive=True, integer=True)";
constexpr char kS77[] = "Symbol('s77', integer=True)";

TEST(SymExprTest, Evaluates) {
  EXPECT_THAT(Evaluate("Integer(-3)"), IsOkAndHolds(-3));
  EXPECT_THAT(Evaluate(kS0), IsOkAndHolds(7));
  EXPECT_THAT(Evaluate(absl::StrCat("Add(Mul(Integer(2), ", kS77, "), Integer(1))")), IsOkAndHolds(9));
  EXPECT_THAT(Evaluate(absl::StrCat("Mul(Rational(1, 2), ", kS77, ", ", kS0, ")")), IsOkAndHolds(14));
  EXPECT_THAT(Evaluate(absl::StrCat("FloorDiv(", kS0, ", Integer(2))")), IsOkAndHolds(3));
  EXPECT_THAT(Evaluate(absl::StrCat("FloorDiv(Mul(Integer(-1), ", kS0, "), Integer(2))")), IsOkAndHolds(-4));
  EXPECT_THAT(Evaluate(absl::StrCat("Mod(", kS0, ", ", kS77, ")")), IsOkAndHolds(3));
  EXPECT_THAT(Evaluate(absl::StrCat("PythonMod(Mul(Integer(-1), ", kS0, "), ", kS77, ")")), IsOkAndHolds(1));
  EXPECT_THAT(Evaluate(absl::StrCat("ModularIndexing(", kS0, ", Integer(2), Integer(2))")), IsOkAndHolds(1));
  EXPECT_THAT(Evaluate(absl::StrCat("Pow(", kS77, ", Integer(3))")), IsOkAndHolds(64));
  EXPECT_THAT(Evaluate(absl::StrCat("Mul(", kS77, ", Pow(Integer(2), Integer(-1)))")), IsOkAndHolds(2));
  EXPECT_THAT(Evaluate(absl::StrCat("Max(", kS0, ", ", kS77, ", Integer(5))")), IsOkAndHolds(7));
  EXPECT_THAT(Evaluate(absl::StrCat("Min(", kS0, ", ", kS77, ", Integer(5))")), IsOkAndHolds(4));
  EXPECT_THAT(Evaluate(absl::StrCat("CeilToInt(IntTrueDiv(", kS0, ", Integer(2)))")), IsOkAndHolds(4));
  EXPECT_THAT(Evaluate(absl::StrCat("TruncToInt(IntTrueDiv(Mul(Integer(-1), ", kS0, "), Integer(2)))")), IsOkAndHolds(-3));
  EXPECT_THAT(Evaluate(absl::StrCat("And(GreaterThan(", kS0, ", Integer(7)), Not(Equality(", kS77, ", Integer(5))))")), IsOkAndHolds(1));
  EXPECT_THAT(Evaluate(absl::StrCat("StrictLessThan(", kS0, ", ", kS77, ")")), IsOkAndHolds(0));
}

TEST(SymExprTest, Refuses) {
  EXPECT_THAT(Evaluate("Symbol('u3')"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("u3")));
  EXPECT_THAT(Evaluate(absl::StrCat("Mul(Rational(1, 2), ", kS0, ")")), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("7/2")));
  EXPECT_THAT(Evaluate(absl::StrCat("FloorDiv(", kS0, ", Integer(0))")), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("zero")));
  EXPECT_THAT(Evaluate("Pow(Integer(10), Integer(64))"), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_THAT(Evaluate(absl::StrCat("Bessel(", kS0, ")")), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("Bessel")));
  EXPECT_THAT(Evaluate("FloorDiv(Integer(1))"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 arguments")));
  for (const char* text : {"", "Symbol(s0)", "Symbol('s0'", "Integer(1", "Integer(99999999999999999999)", "Rational(1, 0)",
                           "Add(Integer(1),)", "Integer(1) 2", "Symbol('s0', positive)"}) {
    EXPECT_THAT(SymExpr::Parse(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected"))) << text;
  }
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "Add(";
  EXPECT_THAT(SymExpr::Parse(deep), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nested")));
}

TEST(SymExprTest, PrintsAsPython) {
  EXPECT_EQ(Text(absl::StrCat("Mul(Add(", kS0, ", Integer(-1)), Integer(2))")), "(s0 + -1)*2");
  EXPECT_EQ(Text(absl::StrCat("FloorDiv(", kS0, ", Mul(Integer(2), ", kS77, "))")), "s0//(2*s77)");
  EXPECT_EQ(Text(absl::StrCat("GreaterThan(", kS0, ", Integer(3))")), "s0 >= 3");
}

TEST(SymExprTest, Symbols) {
  const absl::StatusOr<SymExpr> expr = SymExpr::Parse(absl::StrCat("Add(", kS0, ", ", kS77, ", ", kS0, ")"));
  ASSERT_TRUE(expr.ok());
  EXPECT_THAT(expr->Symbols(), UnorderedElementsAre("s0", "s77"));
  EXPECT_EQ(expr->symbol(), "");
  EXPECT_EQ(SymExpr::Parse(kS0)->symbol(), "s0");
}

}  // namespace
}  // namespace ddpopt::pt2
