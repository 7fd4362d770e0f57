#include "fake_tensor/cross_ref/words.h"

#include <functional>
#include <numeric>

#include "ATen/core/jit_type.h"
#include "c10/util/Exception.h"

namespace ddpopt::cross_ref {
namespace {

using c10::ScalarType;

c10::TypePtr WithoutOptional(c10::TypePtr type) {
  while (type->kind() == c10::TypeKind::OptionalType) type = type->containedType(0);
  return type;
}

}  // namespace

const char* DtypeWord(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return "f32";
    case ScalarType::Double:
      return "f64";
    case ScalarType::Half:
      return "f16";
    case ScalarType::BFloat16:
      return "bf16";
    case ScalarType::Long:
      return "i64";
    case ScalarType::Int:
      return "i32";
    case ScalarType::Short:
      return "i16";
    case ScalarType::Char:
      return "i8";
    case ScalarType::Byte:
      return "u8";
    case ScalarType::Bool:
      return "bool";
    case ScalarType::ComplexFloat:
      return "c64";
    case ScalarType::ComplexDouble:
      return "c128";
    default:
      return c10::toString(type);
  }
}

std::optional<ScalarType> DtypeNamed(absl::string_view name) {
  for (const ScalarType type : kDtypes) {
    if (name == DtypeWord(type)) return type;
  }
  return std::nullopt;
}

ScalarType RandomDtype(Random& random, const std::string& dtype_class) {
  static constexpr ScalarType kAny[] = {ScalarType::Float,    ScalarType::Float, ScalarType::Float,        ScalarType::Double,
                                        ScalarType::BFloat16, ScalarType::Half,  ScalarType::Long,         ScalarType::Long,
                                        ScalarType::Int,      ScalarType::Byte,  ScalarType::Bool,         ScalarType::ComplexFloat,
                                        ScalarType::Short,    ScalarType::Char,  ScalarType::ComplexDouble};
  static constexpr ScalarType kFloats[] = {ScalarType::Float,  ScalarType::Float,    ScalarType::Float,
                                           ScalarType::Double, ScalarType::BFloat16, ScalarType::Half};
  static constexpr ScalarType kInts[] = {ScalarType::Long, ScalarType::Int, ScalarType::Short, ScalarType::Char, ScalarType::Byte};
  static constexpr ScalarType kComplex[] = {ScalarType::ComplexFloat, ScalarType::ComplexDouble};
  if (random.Chance(7)) return random.Of(kAny);
  if (dtype_class == "float") return random.Of(kFloats);
  if (dtype_class == "fc") return random.Chance(25) ? random.Of(kComplex) : random.Of(kFloats);
  if (dtype_class == "complex") return random.Of(kComplex);
  if (dtype_class == "real") return random.Chance(30) ? random.Of(kInts) : random.Of(kFloats);
  if (dtype_class == "int") return random.Of(kInts);
  if (dtype_class == "bits") return random.Chance(25) ? ScalarType::Bool : random.Of(kInts);
  if (dtype_class == "bool") return ScalarType::Bool;
  TORCH_CHECK(dtype_class == "any", "cross_ref recipes: no dtype class '", dtype_class, "'");
  return random.Of(kAny);
}

int64_t Product(const std::vector<int64_t>& sizes) { return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>()); }

std::vector<std::string> SplitOutside(absl::string_view text, char separator) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    if (c == '(' || c == '[') ++depth;
    if (c == ')' || c == ']') --depth;
    if (c == separator && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

ArgumentKind KindOf(const c10::Argument& argument) {
  using c10::TypeKind;
  const auto kind = [](const c10::TypePtr& type, const c10::TypePtr& real) {
    switch (real->kind()) {
      case TypeKind::ScalarTypeType:
        return ArgumentKind::kDtype;
      case TypeKind::LayoutType:
        return ArgumentKind::kLayout;
      case TypeKind::MemoryFormatType:
        return ArgumentKind::kMemoryFormat;
      default:
        break;
    }
    switch (type->kind()) {
      case TypeKind::TensorType:
        return ArgumentKind::kTensor;
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        return ArgumentKind::kInt;
      case TypeKind::FloatType:
        return ArgumentKind::kFloat;
      case TypeKind::BoolType:
        return ArgumentKind::kBool;
      case TypeKind::NumberType:
        return ArgumentKind::kScalar;
      case TypeKind::StringType:
        return ArgumentKind::kString;
      case TypeKind::DeviceObjType:
        return ArgumentKind::kDevice;
      case TypeKind::GeneratorType:
        return ArgumentKind::kGenerator;
      default:
        return ArgumentKind::kUnknown;
    }
  };
  const c10::TypePtr type = WithoutOptional(argument.type());
  if (type->kind() != TypeKind::ListType) return kind(type, WithoutOptional(argument.real_type()));
  const c10::TypePtr element = type->containedType(0);
  if (element->kind() == TypeKind::OptionalType) {
    return element->containedType(0)->kind() == TypeKind::TensorType ? ArgumentKind::kOptionalTensors : ArgumentKind::kUnknown;
  }
  switch (kind(element, element)) {
    case ArgumentKind::kTensor:
      return ArgumentKind::kTensors;
    case ArgumentKind::kInt:
      return ArgumentKind::kInts;
    case ArgumentKind::kFloat:
      return ArgumentKind::kFloats;
    case ArgumentKind::kBool:
      return ArgumentKind::kBools;
    case ArgumentKind::kScalar:
      return ArgumentKind::kScalars;
    default:
      return ArgumentKind::kUnknown;
  }
}

bool IsOut(const c10::Argument& argument) {
  return argument.kwarg_only() && argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

}  // namespace ddpopt::cross_ref
