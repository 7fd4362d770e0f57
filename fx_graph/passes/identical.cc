#include "fx_graph/passes/identical.h"

#include <algorithm>
#include <cstring>

#include "ATen/core/Dict.h"

namespace ddpopt::fx {

using c10::IValue;

std::uint64_t FloatBits(double value) {
  std::uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

bool Identical(const IValue& a, const IValue& b) {
  if (a.isInt()) return b.isInt() && a.toInt() == b.toInt();
  if (a.isBool()) return b.isBool() && a.toBool() == b.toBool();
  if (a.isDouble()) return b.isDouble() && FloatBits(a.toDouble()) == FloatBits(b.toDouble());
  if (a.isComplexDouble()) {
    if (!b.isComplexDouble()) return false;
    const c10::complex<double> x = a.toComplexDouble(), y = b.toComplexDouble();
    return FloatBits(x.real()) == FloatBits(y.real()) && FloatBits(x.imag()) == FloatBits(y.imag());
  }
  if (a.isString()) return b.isString() && a.toStringRef() == b.toStringRef();
  if (a.isNone()) return b.isNone();
  if (a.isDevice()) return b.isDevice() && a.toDevice() == b.toDevice();
  const auto all = [](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), [](const IValue& v, const IValue& w) { return Identical(v, w); });
  };
  if (a.isTuple()) return b.isTuple() && all(a.toTupleRef().elements(), b.toTupleRef().elements());
  if (a.isList()) return b.isList() && *a.toList().elementType() == *b.toList().elementType() && all(a.toListRef(), b.toListRef());
  return a.is(b);
}

}  // namespace ddpopt::fx
