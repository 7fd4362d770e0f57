#ifndef DDPOPT_CAPTURE_PT2_SYM_EXPR_H_
#define DDPOPT_CAPTURE_PT2_SYM_EXPR_H_

// Sizes that an export left open, as torch.export writes them: SymPy's srepr, "Mul(Integer(2), Symbol('s77', positive=True, integer=True))".
//
//   DDPOPT_ASSIGN_OR_RETURN(const SymExpr expr, SymExpr::Parse(text));
//   expr.ToString();                                      // "2*s77"
//   absl::StatusOr<int64_t> size = expr.EvaluateInt({{"s77", 4}});   // 8
//
// There is no algebra here: expressions are evaluated for the sizes that come, exactly, as fractions. Thread-safe.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ddpopt::pt2 {

using SymbolValues = std::map<std::string, int64_t>;

class SymExpr {
 public:
  // Error: InvalidArgument with the position in the text.
  static absl::StatusOr<SymExpr> Parse(absl::string_view srepr);
  static SymExpr Integer(int64_t value);

  // The symbol's name if the expression is nothing else, else empty.
  const std::string& symbol() const { return kind_ == Kind::kSymbol ? text_ : kNoName; }
  std::set<std::string> Symbols() const;
  // Made of numbers, symbols, sums and products alone.
  bool IsPolynomial() const;

  // Relations and logic give 1 or 0. Errors: NotFound for a symbol without a value; OutOfRange for an overflow, a division by zero or a value that is no
  // integer; Unimplemented for a function that isn't known, by its name.
  absl::StatusOr<int64_t> EvaluateInt(const SymbolValues& values) const;

  // As Python's str(): "2*s77 + 1".
  std::string ToString() const;

 private:
  enum class Kind { kNumber, kSymbol, kCall };
  struct Fraction {
    int64_t numerator = 0;
    int64_t denominator = 1;  // positive
  };
  class Parser;
  static const std::string kNoName;

  absl::StatusOr<Fraction> Evaluate(const SymbolValues& values) const;
  static absl::StatusOr<Fraction> Make(__int128 numerator, __int128 denominator);
  static __int128 Floor(Fraction value);
  std::string Text(int precedence) const;
  void CollectSymbols(std::set<std::string>* symbols) const;

  Kind kind_ = Kind::kNumber;
  std::string text_;  // of a symbol: its name; of a call: the function's
  Fraction number_;
  std::vector<SymExpr> args_;
};

}  // namespace ddpopt::pt2

#endif  // DDPOPT_CAPTURE_PT2_SYM_EXPR_H_
