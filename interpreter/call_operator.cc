#include "interpreter/call_operator.h"

#include <optional>
#include <utility>

#include "ATen/ScalarOps.h"
#include "ATen/core/List.h"
#include "ATen/core/function_schema.h"
#include "ATen/core/jit_type.h"
#include "ATen/core/stack.h"
#include "absl/strings/str_cat.h"

namespace ddpopt {
namespace {

using c10::IValue;
using c10::TypeKind;
using c10::TypePtr;

// Where a conversion takes place, for its error.
struct Place {
  const c10::OperatorHandle& op;
  const c10::Argument& argument;
};

[[noreturn]] void Refuse(const Place& place, const TypePtr& wanted, const IValue& got) {
  TORCH_CHECK(false, OperatorName(place.op), ": argument '", place.argument.name(), "' must be ", place.argument.type()->annotation_str(),
              place.argument.type() == wanted ? std::string() : absl::StrCat(" (", wanted->annotation_str(), " here)"), ", not ",
              got.tagKind());
}

bool IsNumber(const IValue& value) { return value.isInt() || value.isDouble() || value.isBool() || value.isComplexDouble(); }

IValue Convert(const Place& place, const TypePtr& type, std::optional<int32_t> fixed_size, IValue value);

IValue ConvertList(const Place& place, const TypePtr& type, std::optional<int32_t> fixed_size, IValue value) {
  const TypePtr& element_type = type->containedType(0);
  if (value.isList()) {
    // Typed lists usually fit as they are.
    c10::List<IValue> list = value.toList();
    if (*list.elementType() == *element_type) return value;
    c10::impl::GenericList converted(element_type);
    converted.reserve(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) converted.push_back(Convert(place, element_type, std::nullopt, list.get(i)));
    return converted;
  }
  if (value.isTuple()) {
    c10::impl::GenericList converted(element_type);
    for (const IValue& element : value.toTupleRef().elements()) converted.push_back(Convert(place, element_type, std::nullopt, element));
    return converted;
  }
  // One number where the schema says int[2], float[3] or bool[1].
  if (fixed_size.has_value() && IsNumber(value)) {
    const IValue element = Convert(place, element_type, std::nullopt, std::move(value));
    c10::impl::GenericList converted(element_type);
    for (int32_t i = 0; i < *fixed_size; ++i) converted.push_back(element);
    return converted;
  }
  Refuse(place, type, value);
}

IValue Convert(const Place& place, const TypePtr& type, std::optional<int32_t> fixed_size, IValue value) {
  switch (type->kind()) {
    case TypeKind::OptionalType:
      if (value.isNone()) return value;
      return Convert(place, type->containedType(0), fixed_size, std::move(value));
    case TypeKind::TensorType:
      if (value.isTensor()) return value;
      if (IsNumber(value)) return at::native::wrapped_scalar_tensor(value.toScalar());
      break;
    case TypeKind::ListType:
      return ConvertList(place, type, fixed_size, std::move(value));
    case TypeKind::NumberType:
      if (IsNumber(value) || value.isSymInt() || value.isSymFloat() || value.isSymBool()) return value;
      break;
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      if (value.isInt() || value.isSymInt()) return value;
      if (value.isBool()) return static_cast<int64_t>(value.toBool());
      break;
    case TypeKind::FloatType:
    case TypeKind::SymFloatType:
      if (value.isDouble() || value.isSymFloat()) return value;
      if (value.isInt()) return static_cast<double>(value.toInt());
      if (value.isBool()) return static_cast<double>(value.toBool());
      break;
    case TypeKind::BoolType:
    case TypeKind::SymBoolType:
      if (value.isBool() || value.isSymBool()) return value;
      break;
    case TypeKind::ComplexType:
      if (value.isComplexDouble()) return value;
      if (value.isDouble()) return c10::complex<double>(value.toDouble());
      if (value.isInt()) return c10::complex<double>(static_cast<double>(value.toInt()));
      break;
    case TypeKind::StringType:
      if (value.isString()) return value;
      break;
    case TypeKind::DeviceObjType:
      if (value.isDevice()) return value;
      if (value.isString()) return c10::Device(value.toStringRef());
      break;
    case TypeKind::GeneratorType:
      if (value.isGenerator()) return value;
      break;
    case TypeKind::AnyType:
      return value;
    default:
      if (value.type()->isSubtypeOf(*type)) return value;
      break;
  }
  Refuse(place, type, value);
}

}  // namespace

std::string OperatorName(const c10::OperatorHandle& op) { return c10::toString(op.operator_name()); }

IValue CallOperator(const c10::OperatorHandle& op, std::vector<IValue> args, std::vector<std::pair<std::string, IValue>> kwargs) {
  const c10::FunctionSchema& schema = op.schema();
  const std::vector<c10::Argument>& wanted = schema.arguments();
  TORCH_CHECK(!schema.is_vararg() && !schema.is_varret(), OperatorName(op),
              ": operators with a variable number of arguments are not supported");
  TORCH_CHECK(args.size() <= wanted.size(), OperatorName(op), ": takes ", wanted.size(), " arguments, but ", args.size(),
              " positional ones were given");

  torch::jit::Stack stack;
  stack.reserve(wanted.size());
  std::size_t used_kwargs = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const c10::Argument& argument = wanted[i];
    IValue* keyword = nullptr;
    for (auto& [name, value] : kwargs) {
      if (name != argument.name()) continue;
      TORCH_CHECK(keyword == nullptr, OperatorName(op), ": argument '", argument.name(), "' was given twice");
      keyword = &value;
    }
    if (keyword != nullptr) ++used_kwargs;
    if (i < args.size()) {
      TORCH_CHECK(!argument.kwarg_only(), OperatorName(op), ": argument '", argument.name(),
                  "' must be given by keyword, but positional argument ", i, " was given");
      TORCH_CHECK(keyword == nullptr, OperatorName(op), ": argument '", argument.name(), "' was given twice, by position and by keyword");
      stack.push_back(Convert({op, argument}, argument.type(), argument.N(), std::move(args[i])));
    } else if (keyword != nullptr) {
      stack.push_back(Convert({op, argument}, argument.type(), argument.N(), std::move(*keyword)));
    } else {
      TORCH_CHECK(argument.default_value().has_value(), OperatorName(op), ": argument '", argument.name(),
                  "' is missing and has no default");
      stack.push_back(*argument.default_value());
    }
  }
  if (used_kwargs != kwargs.size()) {
    for (const auto& [name, value] : kwargs) {
      TORCH_CHECK(schema.argumentIndexWithName(name).has_value(), OperatorName(op), ": has no argument '", name, "'");
    }
  }

  args.clear();
  kwargs.clear();
  op.callBoxed(stack);
  if (stack.empty()) return IValue();
  if (stack.size() == 1) return std::move(stack.front());
  return c10::ivalue::Tuple::create(std::move(stack));
}

}  // namespace ddpopt
