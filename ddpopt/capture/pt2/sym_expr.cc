#include "ddpopt/capture/pt2/sym_expr.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace ddpopt::pt2 {
namespace {

constexpr int kMaxDepth = 200;

__int128 FloorDivide(__int128 a, __int128 b) {
  const __int128 quotient = a / b;
  return quotient - (a % b != 0 && ((a < 0) != (b < 0)));
}

// SymPy's relations, by the names that srepr gives them.
const char* Relation(absl::string_view name) {
  if (name == "Equality" || name == "Eq") return "==";
  if (name == "Unequality" || name == "Ne") return "!=";
  if (name == "GreaterThan" || name == "Ge") return ">=";
  if (name == "LessThan" || name == "Le") return "<=";
  if (name == "StrictGreaterThan" || name == "Gt") return ">";
  if (name == "StrictLessThan" || name == "Lt") return "<";
  return nullptr;
}

}  // namespace

const std::string SymExpr::kNoName;

class SymExpr::Parser {
 public:
  explicit Parser(absl::string_view text) : text_(text) {}

  absl::StatusOr<SymExpr> ParseAll() {
    DDPOPT_ASSIGN_OR_RETURN(SymExpr expr, ParseExpr(0));
    Skip();
    if (position_ != text_.size()) return Error("the end");
    return expr;
  }

 private:
  absl::Status Error(absl::string_view expected) const {
    return absl::InvalidArgumentError(
        absl::StrCat("symbolic expression \"", text_.substr(0, 200), "\", character ", position_, ": expected ", expected));
  }
  void Skip() {
    while (position_ < text_.size() && absl::ascii_isspace(text_[position_])) ++position_;
  }
  bool Take(char c) {
    Skip();
    if (position_ >= text_.size() || text_[position_] != c) return false;
    ++position_;
    return true;
  }
  std::string Word() {
    Skip();
    const std::size_t begin = position_;
    while (position_ < text_.size() && (absl::ascii_isalnum(text_[position_]) || text_[position_] == '_' || text_[position_] == '.'))
      ++position_;
    return std::string(text_.substr(begin, position_ - begin));
  }
  absl::StatusOr<std::string> Quoted() {
    Skip();
    if (position_ >= text_.size() || (text_[position_] != '\'' && text_[position_] != '"')) return Error("a quoted name");
    const char quote = text_[position_++];
    const std::size_t end = text_.find(quote, position_);
    if (end == absl::string_view::npos || end == position_) return Error("a quoted name");
    std::string result(text_.substr(position_, end - position_));
    position_ = end + 1;
    return result;
  }
  absl::StatusOr<int64_t> Int() {
    Skip();
    const std::size_t begin = position_;
    if (position_ < text_.size() && text_[position_] == '-') ++position_;
    while (position_ < text_.size() && absl::ascii_isdigit(text_[position_])) ++position_;
    int64_t value;
    if (!absl::SimpleAtoi(text_.substr(begin, position_ - begin), &value)) {
      position_ = begin;
      return Error("an integer of 64 bits");
    }
    return value;
  }

  absl::StatusOr<SymExpr> ParseExpr(int depth) {
    if (depth > kMaxDepth) return Error(absl::StrCat("at most ", kMaxDepth, " nested functions"));
    Skip();
    SymExpr expr;
    if (position_ < text_.size() && (text_[position_] == '-' || absl::ascii_isdigit(text_[position_]))) {
      DDPOPT_ASSIGN_OR_RETURN(expr.number_.numerator, Int());
      return expr;
    }
    const std::string name = Word();
    if (name.empty()) return Error("a function of SymPy");
    if (!Take('(')) {
      if (name == "true" || name == "false") return SymExpr::Integer(name == "true");
      expr.kind_ = Kind::kSymbol;
      expr.text_ = name;
      return expr;
    }
    if (name == "Symbol") {
      expr.kind_ = Kind::kSymbol;
      DDPOPT_ASSIGN_OR_RETURN(expr.text_, Quoted());
      while (Take(',')) {  // assumptions: positive=True
        if (Word().empty() || !Take('=') || Word().empty()) return Error("an assumption");
      }
      if (!Take(')')) return Error("\")\"");
      return expr;
    }
    if (name == "Integer") {
      DDPOPT_ASSIGN_OR_RETURN(expr.number_.numerator, Int());
      if (!Take(')')) return Error("\")\"");
      return expr;
    }
    if (name == "Rational") {
      DDPOPT_ASSIGN_OR_RETURN(expr.number_.numerator, Int());
      if (!Take(',')) return Error("\",\"");
      DDPOPT_ASSIGN_OR_RETURN(expr.number_.denominator, Int());
      if (expr.number_.denominator <= 0) return Error("a positive denominator");
      if (!Take(')')) return Error("\")\"");
      return expr;
    }
    expr.kind_ = Kind::kCall;
    expr.text_ = name;
    if (Take(')')) return expr;
    do {
      DDPOPT_ASSIGN_OR_RETURN(SymExpr argument, ParseExpr(depth + 1));
      expr.args_.push_back(std::move(argument));
    } while (Take(','));
    if (!Take(')')) return Error("\",\" or \")\"");
    return expr;
  }

  const absl::string_view text_;
  std::size_t position_ = 0;
};

absl::StatusOr<SymExpr> SymExpr::Parse(absl::string_view srepr) { return Parser(srepr).ParseAll(); }

SymExpr SymExpr::Integer(int64_t value) {
  SymExpr expr;
  expr.number_.numerator = value;
  return expr;
}

void SymExpr::CollectSymbols(std::set<std::string>* symbols) const {
  if (kind_ == Kind::kSymbol) symbols->insert(text_);
  for (const SymExpr& argument : args_) argument.CollectSymbols(symbols);
}

std::set<std::string> SymExpr::Symbols() const {
  std::set<std::string> symbols;
  CollectSymbols(&symbols);
  return symbols;
}

bool SymExpr::IsPolynomial() const {
  if (kind_ == Kind::kCall && text_ != "Add" && text_ != "Mul") return false;
  return std::all_of(args_.begin(), args_.end(), [](const SymExpr& argument) { return argument.IsPolynomial(); });
}

absl::StatusOr<SymExpr::Fraction> SymExpr::Make(__int128 numerator, __int128 denominator) {
  if (denominator == 0) return absl::OutOfRangeError("division by zero");
  if (denominator < 0) {
    numerator = -numerator;
    denominator = -denominator;
  }
  __int128 a = numerator < 0 ? -numerator : numerator, b = denominator;
  while (b != 0) std::swap(a %= b, b);
  if (a > 1) {
    numerator /= a;
    denominator /= a;
  }
  constexpr __int128 kMax = std::numeric_limits<int64_t>::max();
  if (numerator > kMax || numerator < -kMax || denominator > kMax) return absl::OutOfRangeError("a value passes 2^63");
  return Fraction{static_cast<int64_t>(numerator), static_cast<int64_t>(denominator)};
}

__int128 SymExpr::Floor(Fraction value) { return FloorDivide(value.numerator, value.denominator); }

absl::StatusOr<SymExpr::Fraction> SymExpr::Evaluate(const SymbolValues& values) const {
  if (kind_ == Kind::kNumber) return number_;
  if (kind_ == Kind::kSymbol) {
    const auto it = values.find(text_);
    if (it == values.end()) return absl::NotFoundError(absl::StrCat("the symbol ", text_, " has no value"));
    return Fraction{it->second, 1};
  }
  std::vector<Fraction> args;
  for (const SymExpr& argument : args_) {
    DDPOPT_ASSIGN_OR_RETURN(const Fraction value, argument.Evaluate(values));
    args.push_back(value);
  }
  const auto needs = [&](std::size_t count) {
    return args.size() == count ? absl::OkStatus()
                                : absl::InvalidArgumentError(absl::StrCat(text_, " takes ", count, " arguments, not ", args.size()));
  };
  const auto compare = [](Fraction a, Fraction b) -> int {
    const __int128 left = static_cast<__int128>(a.numerator) * b.denominator, right = static_cast<__int128>(b.numerator) * a.denominator;
    return left < right ? -1 : left > right;
  };
  const auto divide = [](Fraction a, Fraction b) {
    return Make(static_cast<__int128>(a.numerator) * b.denominator, static_cast<__int128>(a.denominator) * b.numerator);
  };
  if (text_ == "Add" || text_ == "Mul") {
    Fraction result{text_ == "Add" ? 0 : 1, 1};
    for (const Fraction& value : args) {
      const __int128 denominator = static_cast<__int128>(result.denominator) * value.denominator;
      const __int128 numerator = text_ == "Mul" ? static_cast<__int128>(result.numerator) * value.numerator
                                                : static_cast<__int128>(result.numerator) * value.denominator +
                                                      static_cast<__int128>(value.numerator) * result.denominator;
      DDPOPT_ASSIGN_OR_RETURN(result, Make(numerator, denominator));
    }
    return result;
  }
  if (text_ == "Max" || text_ == "Min") {
    if (args.empty()) return absl::InvalidArgumentError(absl::StrCat(text_, " of nothing"));
    Fraction result = args[0];
    for (const Fraction& value : args) {
      if (compare(value, result) == (text_ == "Max" ? 1 : -1)) result = value;
    }
    return result;
  }
  if (text_ == "And" || text_ == "Or") {
    bool result = text_ == "And";
    for (const Fraction& value : args) result = text_ == "And" ? result && value.numerator != 0 : result || value.numerator != 0;
    return Fraction{result, 1};
  }
  if (text_ == "Not") {
    DDPOPT_RETURN_IF_ERROR(needs(1));
    return Fraction{args[0].numerator == 0, 1};
  }
  if (const char* relation = Relation(text_)) {
    DDPOPT_RETURN_IF_ERROR(needs(2));
    const int order = compare(args[0], args[1]);
    const absl::string_view sign(relation);
    const bool holds = sign == "=="   ? order == 0
                       : sign == "!=" ? order != 0
                       : sign == ">=" ? order >= 0
                       : sign == "<=" ? order <= 0
                       : sign == ">"  ? order > 0
                                      : order < 0;
    return Fraction{holds, 1};
  }
  if (text_ == "Pow" || text_ == "PowByNatural") {
    DDPOPT_RETURN_IF_ERROR(needs(2));
    if (args[1].denominator != 1 || std::abs(args[1].numerator) > 64)
      return absl::UnimplementedError(absl::StrCat("the power ", ToString()));
    Fraction result{1, 1};
    for (int64_t i = 0; i < std::abs(args[1].numerator); ++i) {
      DDPOPT_ASSIGN_OR_RETURN(result, Make(static_cast<__int128>(result.numerator) * args[0].numerator,
                                           static_cast<__int128>(result.denominator) * args[0].denominator));
    }
    return args[1].numerator < 0 ? divide(Fraction{1, 1}, result) : absl::StatusOr<Fraction>(result);
  }
  if (text_ == "FloorDiv" || text_ == "CleanDiv" || text_ == "CeilDiv") {
    DDPOPT_RETURN_IF_ERROR(needs(2));
    DDPOPT_ASSIGN_OR_RETURN(const Fraction quotient, divide(args[0], args[1]));
    const bool up = text_ == "CeilDiv" && quotient.denominator != 1;
    return Make(Floor(quotient) + up, 1);
  }
  if (text_ == "Mod" || text_ == "PythonMod") {
    DDPOPT_RETURN_IF_ERROR(needs(2));
    DDPOPT_ASSIGN_OR_RETURN(const Fraction quotient, divide(args[0], args[1]));
    DDPOPT_ASSIGN_OR_RETURN(const Fraction whole, Make(Floor(quotient) * args[1].numerator, args[1].denominator));
    return Make(static_cast<__int128>(args[0].numerator) * whole.denominator - static_cast<__int128>(whole.numerator) * args[0].denominator,
                static_cast<__int128>(args[0].denominator) * whole.denominator);
  }
  if (text_ == "ModularIndexing") {
    DDPOPT_RETURN_IF_ERROR(needs(3));
    DDPOPT_ASSIGN_OR_RETURN(const Fraction quotient, divide(args[0], args[1]));
    if (args[2].denominator != 1 || args[2].numerator == 0) return absl::OutOfRangeError("division by zero");
    const __int128 floor = Floor(quotient);
    return Make(floor - FloorDivide(floor, args[2].numerator) * args[2].numerator, 1);
  }
  if (text_ == "IntTrueDiv") {
    DDPOPT_RETURN_IF_ERROR(needs(2));
    return divide(args[0], args[1]);
  }
  if (text_ == "FloorToInt" || text_ == "floor" || text_ == "CeilToInt" || text_ == "ceiling" || text_ == "TruncToInt" ||
      text_ == "ToFloat" || text_ == "Identity" || text_ == "Abs") {
    DDPOPT_RETURN_IF_ERROR(needs(1));
    const Fraction value = args[0];
    if (text_ == "ToFloat" || text_ == "Identity") return value;
    if (text_ == "Abs") return Fraction{std::abs(value.numerator), value.denominator};
    const bool up = text_ == "CeilToInt" || text_ == "ceiling" || (text_ == "TruncToInt" && value.numerator < 0);
    return Make(Floor(value) + (up && value.denominator != 1), 1);
  }
  return absl::UnimplementedError(absl::StrCat("the function ", text_, " of a symbolic expression is not supported"));
}

absl::StatusOr<int64_t> SymExpr::EvaluateInt(const SymbolValues& values) const {
  DDPOPT_ASSIGN_OR_RETURN(const Fraction value, Evaluate(values));
  if (value.denominator != 1) return absl::OutOfRangeError(absl::StrCat(value.numerator, "/", value.denominator, " is no integer"));
  return value.numerator;
}

std::string SymExpr::ToString() const { return Text(0); }

// precedence: 0 anything, 1 within a comparison, 2 within a sum, 3 within a product, 4 within a power.
std::string SymExpr::Text(int precedence) const {
  const auto wrap = [&](int own, std::string text) { return own < precedence ? absl::StrCat("(", text, ")") : text; };
  const auto join = [&](absl::string_view sign, int inner) {
    std::string text;
    for (const SymExpr& argument : args_) absl::StrAppend(&text, text.empty() ? "" : sign, argument.Text(inner));
    return text;
  };
  switch (kind_) {
    case Kind::kNumber:
      if (number_.denominator != 1) return wrap(3, absl::StrCat(number_.numerator, "/", number_.denominator));
      return wrap(number_.numerator < 0 ? 2 : 5, absl::StrCat(number_.numerator));
    case Kind::kSymbol:
      return text_;
    case Kind::kCall:
      break;
  }
  if (text_ == "Add" && !args_.empty()) return wrap(2, join(" + ", 2));
  if (text_ == "Mul" && !args_.empty()) return wrap(3, join("*", 3));
  if (text_ == "Pow" && args_.size() == 2) return wrap(4, join("**", 5));
  if (text_ == "FloorDiv" && args_.size() == 2) return wrap(3, join("//", 4));
  if ((text_ == "Mod" || text_ == "PythonMod") && args_.size() == 2) return wrap(3, join("%", 4));
  if (Relation(text_) != nullptr && args_.size() == 2) return wrap(1, join(absl::StrCat(" ", Relation(text_), " "), 2));
  return absl::StrCat(text_, "(", join(", ", 0), ")");
}

}  // namespace ddpopt::pt2
