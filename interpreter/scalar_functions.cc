#include "interpreter/scalar_functions.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/strip.h"
#include "c10/util/Exception.h"

namespace ddpopt {

using c10::IValue;

struct ScalarFunction {
  const char* name;
  std::size_t least, most;  // arguments
  IValue (*call)(const char* name, const std::vector<IValue>& args);
};

namespace {

bool IsIntegral(const IValue& value) { return value.isInt() || value.isBool(); }
int64_t Int(const IValue& value) { return value.isBool() ? value.toBool() : value.toInt(); }
double Float(const IValue& value) { return value.isDouble() ? value.toDouble() : static_cast<double>(Int(value)); }
bool Truth(const IValue& value) { return value.isDouble() ? value.toDouble() != 0 : Int(value) != 0; }
bool Integral(const std::vector<IValue>& args) { return IsIntegral(args[0]) && IsIntegral(args[1]); }

int64_t Fits(const char* name, __int128 value) {
  TORCH_CHECK(value <= std::numeric_limits<int64_t>::max() && value >= std::numeric_limits<int64_t>::min(), name,
              ": the result passes 64 bits");
  return static_cast<int64_t>(value);
}
int64_t FromFloat(const char* name, double value) {
  TORCH_CHECK(std::isfinite(value) && std::abs(value) < 9.2e18, name, ": the result passes 64 bits");
  return static_cast<int64_t>(value);
}

IValue Add(const char* name, const std::vector<IValue>& args) {
  if (Integral(args)) return Fits(name, static_cast<__int128>(Int(args[0])) + Int(args[1]));
  return Float(args[0]) + Float(args[1]);
}
IValue Sub(const char* name, const std::vector<IValue>& args) {
  if (Integral(args)) return Fits(name, static_cast<__int128>(Int(args[0])) - Int(args[1]));
  return Float(args[0]) - Float(args[1]);
}
IValue Mul(const char* name, const std::vector<IValue>& args) {
  if (Integral(args)) return Fits(name, static_cast<__int128>(Int(args[0])) * Int(args[1]));
  return Float(args[0]) * Float(args[1]);
}
IValue FloorDiv(const char* name, const std::vector<IValue>& args) {
  TORCH_CHECK(Float(args[1]) != 0, name, ": division by zero");
  if (!Integral(args)) return std::floor(Float(args[0]) / Float(args[1]));
  const __int128 a = Int(args[0]), b = Int(args[1]);
  return Fits(name, a / b - (a % b != 0 && ((a < 0) != (b < 0))));
}
IValue Mod(const char* name, const std::vector<IValue>& args) {
  TORCH_CHECK(Float(args[1]) != 0, name, ": division by zero");
  if (!Integral(args)) {
    const double b = Float(args[1]), rest = std::fmod(Float(args[0]), b);
    return rest != 0 && ((rest < 0) != (b < 0)) ? rest + b : rest;
  }
  const __int128 a = Int(args[0]), b = Int(args[1]), rest = a % b;
  return static_cast<int64_t>(rest != 0 && ((rest < 0) != (b < 0)) ? rest + b : rest);
}
IValue TrueDiv(const char* name, const std::vector<IValue>& args) {
  TORCH_CHECK(Float(args[1]) != 0, name, ": division by zero");
  return Float(args[0]) / Float(args[1]);
}
IValue Pow(const char* name, const std::vector<IValue>& args) {
  if (!Integral(args) || Int(args[1]) < 0) return std::pow(Float(args[0]), Float(args[1]));
  int64_t result = 1;
  const int64_t base = Int(args[0]);
  if (base == 0 || base == 1) return Int(args[1]) == 0 ? int64_t{1} : base;
  if (base == -1) return Int(args[1]) % 2 == 0 ? int64_t{1} : int64_t{-1};
  for (int64_t i = 0; i < Int(args[1]); ++i)
    result = Fits(name, static_cast<__int128>(result) * base);  // at most 64 rounds before it doesn't fit
  return result;
}
IValue Neg(const char* name, const std::vector<IValue>& args) {
  if (IsIntegral(args[0])) return Fits(name, -static_cast<__int128>(Int(args[0])));
  return -Float(args[0]);
}
IValue Pos(const char*, const std::vector<IValue>& args) { return args[0].isDouble() ? args[0] : IValue(Int(args[0])); }
IValue Abs(const char* name, const std::vector<IValue>& args) {
  if (!IsIntegral(args[0])) return std::abs(Float(args[0]));
  const __int128 value = Int(args[0]);
  return Fits(name, value < 0 ? -value : value);
}

// -1, 0, 1; 2 if a NaN is among them.
int Compare(const std::vector<IValue>& args) {
  if (Integral(args)) return Int(args[0]) < Int(args[1]) ? -1 : Int(args[0]) > Int(args[1]);
  const double a = Float(args[0]), b = Float(args[1]);
  return std::isnan(a) || std::isnan(b) ? 2 : a < b ? -1 : a > b;
}
IValue Eq(const char*, const std::vector<IValue>& args) { return Compare(args) == 0; }
IValue Ne(const char*, const std::vector<IValue>& args) { return Compare(args) != 0; }
IValue Lt(const char*, const std::vector<IValue>& args) { return Compare(args) == -1; }
IValue Le(const char*, const std::vector<IValue>& args) { return Compare(args) == -1 || Compare(args) == 0; }
IValue Gt(const char*, const std::vector<IValue>& args) { return Compare(args) == 1; }
IValue Ge(const char*, const std::vector<IValue>& args) { return Compare(args) == 1 || Compare(args) == 0; }

template <typename Fn>
IValue Bitwise(const char* name, const std::vector<IValue>& args, Fn fn) {
  TORCH_CHECK(Integral(args), name, ": takes ints and bools");
  const int64_t result = fn(Int(args[0]), Int(args[1]));
  if (args[0].isBool() && args[1].isBool()) return result != 0;
  return result;
}
IValue And(const char* name, const std::vector<IValue>& args) {
  return Bitwise(name, args, [](int64_t a, int64_t b) { return a & b; });
}
IValue Or(const char* name, const std::vector<IValue>& args) {
  return Bitwise(name, args, [](int64_t a, int64_t b) { return a | b; });
}
IValue Xor(const char* name, const std::vector<IValue>& args) {
  return Bitwise(name, args, [](int64_t a, int64_t b) { return a ^ b; });
}
IValue LeftShift(const char* name, const std::vector<IValue>& args) {
  TORCH_CHECK(Integral(args) && Int(args[1]) >= 0 && Int(args[1]) < 64, name, ": takes an int and a shift of 0 to 63");
  return Fits(name, static_cast<__int128>(Int(args[0])) * (static_cast<__int128>(1) << Int(args[1])));
}
IValue RightShift(const char* name, const std::vector<IValue>& args) {
  TORCH_CHECK(Integral(args) && Int(args[1]) >= 0, name, ": takes an int and a shift that isn't negative");
  return Int(args[0]) >> std::min<int64_t>(Int(args[1]), 63);
}
IValue Invert(const char* name, const std::vector<IValue>& args) {
  TORCH_CHECK(IsIntegral(args[0]), name, ": takes an int");
  return ~Int(args[0]);
}
IValue Not(const char*, const std::vector<IValue>& args) { return !Truth(args[0]); }
IValue ToBool(const char*, const std::vector<IValue>& args) { return Truth(args[0]); }
IValue ToFloat(const char*, const std::vector<IValue>& args) { return Float(args[0]); }
IValue Trunc(const char* name, const std::vector<IValue>& args) {
  return IsIntegral(args[0]) ? Int(args[0]) : FromFloat(name, std::trunc(Float(args[0])));
}
IValue Floor(const char* name, const std::vector<IValue>& args) {
  return IsIntegral(args[0]) ? Int(args[0]) : FromFloat(name, std::floor(Float(args[0])));
}
IValue Ceil(const char* name, const std::vector<IValue>& args) {
  return IsIntegral(args[0]) ? Int(args[0]) : FromFloat(name, std::ceil(Float(args[0])));
}
// To the nearest, halves to even; with a number of digits a float stays one.
IValue Round(const char* name, const std::vector<IValue>& args) {
  if (args.size() == 2) {
    TORCH_CHECK(IsIntegral(args[1]), name, ": the number of digits must be an int");
    if (IsIntegral(args[0]) && Int(args[1]) >= 0) return Int(args[0]);
    TORCH_CHECK(args[0].isDouble() && std::abs(Int(args[1])) <= 300, name, ": an int to fewer digits is not supported");
    const double scale = std::pow(10.0, static_cast<double>(Int(args[1])));
    return std::nearbyint(Float(args[0]) * scale) / scale;
  }
  return IsIntegral(args[0]) ? Int(args[0]) : FromFloat(name, std::nearbyint(Float(args[0])));
}
IValue Sqrt(const char* name, const std::vector<IValue>& args) {
  TORCH_CHECK(Float(args[0]) >= 0, name, ": of a negative number");
  return std::sqrt(Float(args[0]));
}
// torch._sym_cos and the like, of floats.
template <double (*fn)(double)>
IValue OfFloat(const char*, const std::vector<IValue>& args) {
  return fn(Float(args[0]));
}
IValue Max(const char*, const std::vector<IValue>& args) {
  const IValue* result = &args[0];
  for (const IValue& value : args) result = Compare({value, *result}) == 1 ? &value : result;
  return *result;
}
IValue Min(const char*, const std::vector<IValue>& args) {
  const IValue* result = &args[0];
  for (const IValue& value : args) result = Compare({value, *result}) == -1 ? &value : result;
  return *result;
}
IValue Sum(const char* name, const std::vector<IValue>& args) {
  IValue result = args[0];
  for (std::size_t i = 1; i < args.size(); ++i) result = Add(name, {result, args[i]});
  return result;
}
// The condition chooses.
IValue Choose(const char*, const std::vector<IValue>& args) { return Truth(args[0]) ? args[1] : args[2]; }

constexpr std::size_t kAny = 1000;
constexpr ScalarFunction kFunctions[] = {
    {"operator.add", 2, 2, Add},
    {"operator.sub", 2, 2, Sub},
    {"operator.mul", 2, 2, Mul},
    {"operator.floordiv", 2, 2, FloorDiv},
    {"operator.truediv", 2, 2, TrueDiv},
    {"operator.mod", 2, 2, Mod},
    {"operator.pow", 2, 2, Pow},
    {"operator.neg", 1, 1, Neg},
    {"operator.pos", 1, 1, Pos},
    {"operator.abs", 1, 1, Abs},
    {"operator.eq", 2, 2, Eq},
    {"operator.ne", 2, 2, Ne},
    {"operator.lt", 2, 2, Lt},
    {"operator.le", 2, 2, Le},
    {"operator.gt", 2, 2, Gt},
    {"operator.ge", 2, 2, Ge},
    {"operator.and_", 2, 2, And},
    {"operator.or_", 2, 2, Or},
    {"operator.xor", 2, 2, Xor},
    {"operator.lshift", 2, 2, LeftShift},
    {"operator.rshift", 2, 2, RightShift},
    {"operator.inv", 1, 1, Invert},
    {"operator.invert", 1, 1, Invert},
    {"operator.not_", 1, 1, Not},
    {"operator.truth", 1, 1, ToBool},
    {"math.floor", 1, 1, Floor},
    {"math.ceil", 1, 1, Ceil},
    {"math.trunc", 1, 1, Trunc},
    {"math.sqrt", 1, 1, Sqrt},
    {"math.pow", 2, 2, [](const char*, const std::vector<IValue>& a) -> IValue { return std::pow(Float(a[0]), Float(a[1])); }},
    {"torch.sym_int", 1, 1, Trunc},
    {"torch.sym_float", 1, 1, ToFloat},
    {"torch.sym_not", 1, 1, Not},
    {"torch.sym_max", 2, kAny, Max},
    {"torch.sym_min", 2, kAny, Min},
    {"torch.sym_sum", 1, kAny, Sum},
    {"torch.sym_ite", 3, 3, Choose},
    {"torch.sym_sqrt", 1, 1, Sqrt},
    {"torch._sym_sqrt", 1, 1, Sqrt},
    {"builtins.round", 1, 2, Round},
    {"builtins.max", 2, kAny, Max},
    {"builtins.min", 2, kAny, Min},
    {"torch._sym_cos", 1, 1, OfFloat<std::cos>},
    {"torch._sym_cosh", 1, 1, OfFloat<std::cosh>},
    {"torch._sym_acos", 1, 1, OfFloat<std::acos>},
    {"torch._sym_sin", 1, 1, OfFloat<std::sin>},
    {"torch._sym_sinh", 1, 1, OfFloat<std::sinh>},
    {"torch._sym_asin", 1, 1, OfFloat<std::asin>},
    {"torch._sym_tan", 1, 1, OfFloat<std::tan>},
    {"torch._sym_tanh", 1, 1, OfFloat<std::tanh>},
    {"torch._sym_atan", 1, 1, OfFloat<std::atan>},
    {"torch._sym_log2", 1, 1, OfFloat<std::log2>},
    {"builtins.abs", 1, 1, Abs},
    {"builtins.int", 1, 1, Trunc},
    {"builtins.float", 1, 1, ToFloat},
    {"builtins.bool", 1, 1, ToBool},
};

}  // namespace

const ScalarFunction* FindScalarFunction(absl::string_view target) {
  static const auto* functions = [] {
    auto* result = new absl::flat_hash_map<absl::string_view, const ScalarFunction*>;
    for (const ScalarFunction& function : kFunctions) (*result)[function.name] = &function;
    return result;
  }();
  if (!target.empty() && target.front() == '_') target.remove_prefix(1);  // _operator.add
  const auto found = functions->find(target);
  return found == functions->end() ? nullptr : found->second;
}

IValue CallScalarFunction(const ScalarFunction& function, const std::vector<IValue>& given) {
  std::vector<IValue> args = given;
  // torch.sym_sum takes its numbers as a list.
  if (args.size() == 1 && (args[0].isList() || args[0].isTuple()) && function.most == kAny) {
    args = args[0].isTuple() ? given[0].toTupleRef().elements().vec() : given[0].toListRef().vec();
  }
  TORCH_CHECK(args.size() >= function.least && args.size() <= function.most, function.name, ": takes ", function.least, " arguments, not ",
              args.size());
  for (const IValue& value : args) {
    TORCH_CHECK(value.isInt() || value.isBool() || value.isDouble(), "cannot execute the opaque target '", function.name, "' on ",
                value.tagKind(), ": it takes numbers here");
  }
  return function.call(function.name, args);
}

}  // namespace ddpopt
