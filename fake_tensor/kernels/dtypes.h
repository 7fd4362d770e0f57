#ifndef DDPOPT_FAKE_TENSOR_KERNELS_DTYPES_H_
#define DDPOPT_FAKE_TENSOR_KERNELS_DTYPES_H_

// The dtypes that CPU kernels are compiled for.
//
//   RequireDtype("median", self.scalar_type(), kRealDtypes);

#include <cstdint>
#include <initializer_list>

#include "c10/core/ScalarType.h"

namespace ddpopt::kernels {

class Dtypes {
 public:
  constexpr Dtypes(std::initializer_list<c10::ScalarType> types) {
    for (const c10::ScalarType type : types) bits_ |= Bit(type);
  }
  constexpr bool Has(c10::ScalarType type) const { return (bits_ & Bit(type)) != 0; }
  constexpr Dtypes operator|(Dtypes other) const {
    other.bits_ |= bits_;
    return other;
  }

 private:
  static constexpr uint64_t Bit(c10::ScalarType type) { return uint64_t{1} << static_cast<int>(type); }
  uint64_t bits_ = 0;
};

inline constexpr Dtypes kIntegerDtypes = {c10::ScalarType::Byte, c10::ScalarType::Char, c10::ScalarType::Short, c10::ScalarType::Int,
                                          c10::ScalarType::Long};
inline constexpr Dtypes kFloatOrDouble = {c10::ScalarType::Float, c10::ScalarType::Double};
inline constexpr Dtypes kFloatDtypes = kFloatOrDouble | Dtypes{c10::ScalarType::Half, c10::ScalarType::BFloat16};
inline constexpr Dtypes kRealDtypes = kIntegerDtypes | kFloatDtypes;
inline constexpr Dtypes kComplexDtypes = {c10::ScalarType::ComplexFloat, c10::ScalarType::ComplexDouble};
inline constexpr Dtypes kBoolDtype = {c10::ScalarType::Bool};

// Throws unless the set has the dtype.
void RequireDtype(const char* op, c10::ScalarType dtype, Dtypes supported);

}  // namespace ddpopt::kernels

#endif  // DDPOPT_FAKE_TENSOR_KERNELS_DTYPES_H_
