#ifndef DDPOPT_FAKE_TENSOR_CROSS_REF_WORDS_H_
#define DDPOPT_FAKE_TENSOR_CROSS_REF_WORDS_H_

// What recipes and printed calls are made of: words for dtypes, kinds of arguments. Private to cross_ref.
//
//   DtypeWord(c10::kFloat);      // "f32"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/function_schema.h"
#include "absl/strings/string_view.h"
#include "c10/core/ScalarType.h"
#include "fake_tensor/cross_ref/generator.h"

namespace ddpopt::cross_ref {

inline constexpr c10::ScalarType kDtypes[] = {c10::ScalarType::Float,    c10::ScalarType::Double,       c10::ScalarType::Half,
                                              c10::ScalarType::BFloat16, c10::ScalarType::Long,         c10::ScalarType::Int,
                                              c10::ScalarType::Short,    c10::ScalarType::Char,         c10::ScalarType::Byte,
                                              c10::ScalarType::Bool,     c10::ScalarType::ComplexFloat, c10::ScalarType::ComplexDouble};

const char* DtypeWord(c10::ScalarType type);
std::optional<c10::ScalarType> DtypeNamed(absl::string_view name);
// Of a recipe's class of dtypes ("float", "fc"), now and then of any.
c10::ScalarType RandomDtype(Random& random, const std::string& dtype_class);

int64_t Product(const std::vector<int64_t>& sizes);
// Splits where the separator stands outside of brackets and quotes.
std::vector<std::string> SplitOutside(absl::string_view text, char separator);

enum class ArgumentKind {
  kTensor,
  kTensors,
  kOptionalTensors,
  kInt,
  kInts,
  kFloat,
  kFloats,
  kBool,
  kBools,
  kScalar,
  kScalars,
  kString,
  kDtype,
  kLayout,
  kMemoryFormat,
  kDevice,
  kGenerator,
  kUnknown
};
ArgumentKind KindOf(const c10::Argument& argument);
bool IsOut(const c10::Argument& argument);

}  // namespace ddpopt::cross_ref

#endif  // DDPOPT_FAKE_TENSOR_CROSS_REF_WORDS_H_
