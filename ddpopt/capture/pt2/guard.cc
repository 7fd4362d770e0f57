#include "ddpopt/capture/pt2/guard.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "interpreter/scalar_functions.h"

namespace ddpopt::pt2 {
namespace {

using c10::IValue;

constexpr int kMaxDepth = 200;

bool Truth(const IValue& value) { return value.isBool() ? value.toBool() : value.isInt() ? value.toInt() != 0 : value.toDouble() != 0; }

// What a function's name in a guard stands for; empty if it is none that is known.
std::string FunctionName(absl::string_view name) {
  static const std::pair<absl::string_view, const char*> kNames[] = {
      {"max", "builtins.max"},
      {"min", "builtins.min"},
      {"abs", "builtins.abs"},
      {"round", "builtins.round"},
      {"int", "builtins.int"},
      {"float", "builtins.float"},
      {"bool", "builtins.bool"},
      {"Max", "builtins.max"},
      {"Min", "builtins.min"},
      {"Abs", "builtins.abs"},
      {"Eq", "operator.eq"},
      {"Ne", "operator.ne"},
      {"Mod", "operator.mod"},
      {"PythonMod", "operator.mod"},
      {"FloorDiv", "operator.floordiv"},
      {"CleanDiv", "operator.floordiv"},
      {"floor", "math.floor"},
      {"ceiling", "math.ceil"},
      {"trunc", "math.trunc"},
      {"FloorToInt", "math.floor"},
      {"CeilToInt", "math.ceil"},
      {"TruncToInt", "math.trunc"},
      {"IntTrueDiv", "operator.truediv"},
      {"FloatTrueDiv", "operator.truediv"},
      {"ToFloat", "builtins.float"},
      {"PowByNatural", "operator.pow"},
      {"Not", "operator.not_"},
      {"RoundToInt", "builtins.round"},
  };
  for (const auto& [known, target] : kNames) {
    if (known == name) return target;
  }
  return absl::StartsWith(name, "math.") || absl::StartsWith(name, "torch.") || absl::StartsWith(name, "operator.") ? std::string(name)
                                                                                                                    : "";
}

}  // namespace

// By Python's precedence, one function a level.
class Guard::Parser {
 public:
  explicit Parser(absl::string_view text) : text_(text) {}

  absl::StatusOr<Expr> ParseAll() {
    DDPOPT_ASSIGN_OR_RETURN(Expr expr, Conditional());
    Skip();
    if (position_ != text_.size()) return Error("the end");
    return expr;
  }

 private:
  absl::Status Error(absl::string_view expected) const {
    return absl::InvalidArgumentError(absl::StrCat("guard \"", text_.substr(0, 500), "\", character ", position_, ": expected ", expected));
  }
  absl::Status NotUnderstood(absl::string_view what) const {
    return absl::UnimplementedError(absl::StrCat("guard \"", text_.substr(0, 500), "\": ", what, " is not understood"));
  }
  void Skip() {
    while (position_ < text_.size() && absl::ascii_isspace(text_[position_])) ++position_;
  }
  bool Take(absl::string_view sign) {
    Skip();
    if (!absl::StartsWith(text_.substr(position_), sign)) return false;
    position_ += sign.size();
    return true;
  }
  // A sign that is not the beginning of a longer one.
  bool TakeOnly(absl::string_view sign, absl::string_view not_before) {
    Skip();
    if (!absl::StartsWith(text_.substr(position_), sign)) return false;
    const std::size_t end = position_ + sign.size();
    if (end < text_.size() && absl::StrContains(not_before, text_[end])) return false;
    position_ = end;
    return true;
  }
  static bool IsNameCharacter(char c) { return absl::ascii_isalnum(c) || c == '_'; }
  bool TakeWord(absl::string_view word) {
    Skip();
    if (!absl::StartsWith(text_.substr(position_), word)) return false;
    const std::size_t end = position_ + word.size();
    if (end < text_.size() && IsNameCharacter(text_[end])) return false;
    position_ = end;
    return true;
  }
  std::string Name() {
    Skip();
    const std::size_t begin = position_;
    while (position_ < text_.size() && IsNameCharacter(text_[position_])) ++position_;
    return std::string(text_.substr(begin, position_ - begin));
  }

  absl::StatusOr<Expr> Call(absl::string_view target, std::vector<Expr> args) {
    Expr expr;
    expr.kind = Expr::Kind::kCall;
    expr.function = FindScalarFunction(target);
    if (expr.function == nullptr) return NotUnderstood(target);
    expr.args = std::move(args);
    return expr;
  }
  static Expr Logic(Expr::Kind kind, std::vector<Expr> args) {
    Expr expr;
    expr.kind = kind;
    expr.args = std::move(args);
    return expr;
  }

  absl::StatusOr<Expr> Conditional() {
    if (++depth_ > kMaxDepth) return Error(absl::StrCat("at most ", kMaxDepth, " nested expressions"));
    DDPOPT_ASSIGN_OR_RETURN(Expr expr, Or());
    if (TakeWord("if")) {
      DDPOPT_ASSIGN_OR_RETURN(Expr condition, Or());
      if (!TakeWord("else")) return Error("\"else\"");
      DDPOPT_ASSIGN_OR_RETURN(Expr otherwise, Conditional());
      expr = Logic(Expr::Kind::kIf, {std::move(condition), std::move(expr), std::move(otherwise)});
    }
    --depth_;
    return expr;
  }
  absl::StatusOr<Expr> Or() {
    DDPOPT_ASSIGN_OR_RETURN(Expr expr, And());
    while (TakeWord("or")) {
      DDPOPT_ASSIGN_OR_RETURN(Expr right, And());
      expr = Logic(Expr::Kind::kOr, {std::move(expr), std::move(right)});
    }
    return expr;
  }
  absl::StatusOr<Expr> And() {
    DDPOPT_ASSIGN_OR_RETURN(Expr expr, Not());
    while (TakeWord("and")) {
      DDPOPT_ASSIGN_OR_RETURN(Expr right, Not());
      expr = Logic(Expr::Kind::kAnd, {std::move(expr), std::move(right)});
    }
    return expr;
  }
  absl::StatusOr<Expr> Not() {
    bool negated = false;
    while (TakeWord("not")) negated = !negated;
    DDPOPT_ASSIGN_OR_RETURN(Expr expr, Comparison());
    if (!negated) return expr;
    return Logic(Expr::Kind::kNot, {std::move(expr)});
  }
  absl::StatusOr<Expr> Comparison() {
    DDPOPT_ASSIGN_OR_RETURN(Expr left, Sum());
    std::vector<Expr> all;
    while (true) {
      const char* target = nullptr;
      if (Take("=="))
        target = "operator.eq";
      else if (Take("!="))
        target = "operator.ne";
      else if (Take("<="))
        target = "operator.le";
      else if (Take(">="))
        target = "operator.ge";
      else if (TakeOnly("<", "<"))
        target = "operator.lt";
      else if (TakeOnly(">", ">"))
        target = "operator.gt";
      if (target == nullptr) break;
      DDPOPT_ASSIGN_OR_RETURN(Expr right, Sum());
      DDPOPT_ASSIGN_OR_RETURN(Expr compared, Call(target, {left, right}));
      all.push_back(std::move(compared));
      left = std::move(right);
    }
    if (all.empty()) return left;
    return all.size() == 1 ? std::move(all[0]) : Logic(Expr::Kind::kAnd, std::move(all));
  }
  absl::StatusOr<Expr> Sum() {
    DDPOPT_ASSIGN_OR_RETURN(Expr expr, Product());
    while (true) {
      const char* target = Take("+") ? "operator.add" : Take("-") ? "operator.sub" : nullptr;
      if (target == nullptr) return expr;
      DDPOPT_ASSIGN_OR_RETURN(Expr right, Product());
      DDPOPT_ASSIGN_OR_RETURN(expr, Call(target, {std::move(expr), std::move(right)}));
    }
  }
  absl::StatusOr<Expr> Product() {
    DDPOPT_ASSIGN_OR_RETURN(Expr expr, Unary());
    while (true) {
      const char* target = Take("//")           ? "operator.floordiv"
                           : TakeOnly("*", "*") ? "operator.mul"
                           : Take("/")          ? "operator.truediv"
                           : Take("%")          ? "operator.mod"
                                                : nullptr;
      if (target == nullptr) return expr;
      DDPOPT_ASSIGN_OR_RETURN(Expr right, Unary());
      DDPOPT_ASSIGN_OR_RETURN(expr, Call(target, {std::move(expr), std::move(right)}));
    }
  }
  absl::StatusOr<Expr> Unary() {
    if (++depth_ > kMaxDepth) return Error(absl::StrCat("at most ", kMaxDepth, " nested expressions"));
    const char* target = Take("-") ? "operator.neg" : Take("+") ? "operator.pos" : nullptr;
    absl::StatusOr<Expr> expr = target == nullptr ? Power() : Unary();
    --depth_;
    if (target == nullptr || !expr.ok()) return expr;
    return Call(target, {*std::move(expr)});
  }
  absl::StatusOr<Expr> Power() {
    DDPOPT_ASSIGN_OR_RETURN(Expr base, Primary());
    if (!Take("**")) return base;
    DDPOPT_ASSIGN_OR_RETURN(Expr exponent, Unary());
    return Call("operator.pow", {std::move(base), std::move(exponent)});
  }

  absl::StatusOr<Expr> Primary() {
    Skip();
    if (position_ >= text_.size()) return Error("an expression");
    if (Take("(")) {
      DDPOPT_ASSIGN_OR_RETURN(Expr expr, Conditional());
      if (!Take(")")) return Error("\")\"");
      return expr;
    }
    if (absl::ascii_isdigit(text_[position_]) || text_[position_] == '.') return Number();
    std::string name = Name();
    if (name.empty()) return Error("an expression");
    if (name == "True" || name == "False") {
      Expr expr;
      expr.number = IValue(name == "True");
      return expr;
    }
    if (name == "L") return Input();
    while (Take(".")) absl::StrAppend(&name, ".", Name());
    if (!Take("(")) {
      if (name != "math.inf") return NotUnderstood(absl::StrCat("\"", name, "\""));
      Expr expr;
      expr.number = IValue(std::numeric_limits<double>::infinity());
      return expr;
    }
    DDPOPT_ASSIGN_OR_RETURN(std::vector<Expr> args, Arguments());
    if (name == "And" || name == "Or") return Logic(name == "And" ? Expr::Kind::kAnd : Expr::Kind::kOr, std::move(args));
    const std::string target = FunctionName(name);
    if (target.empty()) return NotUnderstood(absl::StrCat("\"", name, "\""));
    return Call(target, std::move(args));
  }
  // The "(" is behind.
  absl::StatusOr<std::vector<Expr>> Arguments() {
    std::vector<Expr> args;
    if (Take(")")) return args;
    do {
      DDPOPT_ASSIGN_OR_RETURN(Expr argument, Conditional());
      args.push_back(std::move(argument));
    } while (Take(","));
    if (!Take(")")) return Error("\",\" or \")\"");
    return args;
  }
  absl::StatusOr<Expr> Number() {
    const std::size_t begin = position_;
    bool whole = true;
    while (position_ < text_.size()) {
      const char c = text_[position_];
      const bool sign = (c == '+' || c == '-') && position_ > begin && (text_[position_ - 1] == 'e' || text_[position_ - 1] == 'E');
      if (!absl::ascii_isdigit(c) && c != '.' && c != 'e' && c != 'E' && !sign) break;
      whole &= absl::ascii_isdigit(c);
      ++position_;
    }
    const absl::string_view text = text_.substr(begin, position_ - begin);
    Expr expr;
    int64_t integer;
    double real;
    if (whole && absl::SimpleAtoi(text, &integer)) {
      expr.number = IValue(integer);
    } else if (!whole && absl::SimpleAtod(text, &real)) {
      expr.number = IValue(real);
    } else {
      position_ = begin;
      return Error("a number of 64 bits");
    }
    return expr;
  }
  absl::StatusOr<int64_t> Index() {
    Skip();
    const std::size_t begin = position_;
    if (position_ < text_.size() && text_[position_] == '-') ++position_;
    while (position_ < text_.size() && absl::ascii_isdigit(text_[position_])) ++position_;
    int64_t index;
    if (!absl::SimpleAtoi(text_.substr(begin, position_ - begin), &index) || !Take("]")) return Error("an index");
    return index;
  }
  // ['x'] or [0]. The "L" is behind.
  absl::StatusOr<Expr> Input() {
    Expr expr;
    expr.kind = Expr::Kind::kPlace;
    Place& place = expr.place;
    while (true) {
      if (Take("[")) {
        Skip();
        const char quote = position_ < text_.size() ? text_[position_] : '\0';
        if (quote == '\'' || quote == '"') {
          const std::size_t end = text_.find(quote, position_ + 1);
          if (end == absl::string_view::npos) return Error("a quoted key");
          absl::StrAppend(&place.input, "['", text_.substr(position_ + 1, end - position_ - 1), "']");
          position_ = end + 1;
          if (!Take("]")) return Error("\"]\"");
        } else {
          DDPOPT_ASSIGN_OR_RETURN(const int64_t index, Index());
          absl::StrAppend(&place.input, "[", index, "]");
        }
        continue;
      }
      if (!Take(".")) return expr;
      const std::string name = Name();
      const bool called = Take("(") && Take(")");
      if (called && (name == "dim" || name == "numel" || name == "storage_offset")) {
        place.what = name == "dim" ? Place::What::kDim : name == "numel" ? Place::What::kNumel : Place::What::kStorageOffset;
        return expr;
      }
      if (!called && name == "ndim") {
        place.what = Place::What::kDim;
        return expr;
      }
      if ((called && (name == "size" || name == "stride")) || (!called && name == "shape")) {
        place.what = name == "stride" ? Place::What::kStride : Place::What::kSize;
        if (!Take("[")) return NotUnderstood(absl::StrCat(".", name, " as a whole"));
        DDPOPT_ASSIGN_OR_RETURN(place.index, Index());
        return expr;
      }
      if (called) return NotUnderstood(absl::StrCat(".", name, "()"));
      absl::StrAppend(&place.input, ".", name);
    }
  }

  const absl::string_view text_;
  std::size_t position_ = 0;
  int depth_ = 0;
};

absl::StatusOr<Guard> Guard::Parse(absl::string_view text) {
  Guard guard;
  DDPOPT_ASSIGN_OR_RETURN(guard.expr_, Parser(text).ParseAll());
  guard.text_ = std::string(text);
  return guard;
}

void Guard::CollectPlaces(const Expr& expr, std::vector<Place>* places) {
  if (expr.kind == Expr::Kind::kPlace) places->push_back(expr.place);
  for (const Expr& argument : expr.args) CollectPlaces(argument, places);
}

std::vector<Guard::Place> Guard::Places() const {
  std::vector<Place> places;
  CollectPlaces(expr_, &places);
  return places;
}

absl::StatusOr<IValue> Guard::Evaluate(const Expr& expr, const ValueAt& value_at) {
  switch (expr.kind) {
    case Expr::Kind::kNumber:
      return expr.number;
    case Expr::Kind::kPlace:
      return value_at(expr.place);
    case Expr::Kind::kCall: {
      std::vector<IValue> args;
      for (const Expr& argument : expr.args) {
        DDPOPT_ASSIGN_OR_RETURN(IValue value, Evaluate(argument, value_at));
        args.push_back(std::move(value));
      }
      absl::StatusOr<IValue> result = CatchAsStatus("", [&] { return CallScalarFunction(*expr.function, args); });
      if (!result.ok()) return absl::OutOfRangeError(result.status().message());
      return result;
    }
    case Expr::Kind::kAnd:
    case Expr::Kind::kOr:
      for (const Expr& argument : expr.args) {
        DDPOPT_ASSIGN_OR_RETURN(const IValue value, Evaluate(argument, value_at));
        if (Truth(value) == (expr.kind == Expr::Kind::kOr)) return IValue(expr.kind == Expr::Kind::kOr);
      }
      return IValue(expr.kind == Expr::Kind::kAnd);
    case Expr::Kind::kNot: {
      DDPOPT_ASSIGN_OR_RETURN(const IValue value, Evaluate(expr.args[0], value_at));
      return IValue(!Truth(value));
    }
    case Expr::Kind::kIf: {
      DDPOPT_ASSIGN_OR_RETURN(const IValue condition, Evaluate(expr.args[0], value_at));
      return Evaluate(expr.args[Truth(condition) ? 1 : 2], value_at);
    }
  }
  return IValue();
}

absl::StatusOr<bool> Guard::Holds(const ValueAt& value_at) const {
  DDPOPT_ASSIGN_OR_RETURN(const IValue value, Evaluate(expr_, value_at));
  return Truth(value);
}

}  // namespace ddpopt::pt2
