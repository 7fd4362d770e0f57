#include "interpreter/call_operator.h"

#include <iterator>
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

std::vector<int> BindArguments(const c10::OperatorHandle& op, std::size_t positional, const std::vector<std::string>& keywords) {
  const c10::FunctionSchema& schema = op.schema();
  const std::vector<c10::Argument>& wanted = schema.arguments();
  TORCH_CHECK(!schema.is_vararg() && !schema.is_varret(), OperatorName(op),
              ": operators with a variable number of arguments are not supported");
  TORCH_CHECK(positional <= wanted.size(), OperatorName(op), ": takes ", wanted.size(), " arguments, but ", positional,
              " positional ones were given");

  std::vector<int> sources;
  sources.reserve(wanted.size());
  std::size_t used_keywords = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const c10::Argument& argument = wanted[i];
    int keyword = -1;
    for (std::size_t k = 0; k < keywords.size(); ++k) {
      if (keywords[k] != argument.name()) continue;
      TORCH_CHECK(keyword < 0, OperatorName(op), ": argument '", argument.name(), "' was given twice");
      keyword = static_cast<int>(k);
    }
    if (keyword >= 0) ++used_keywords;
    if (i < positional) {
      TORCH_CHECK(!argument.kwarg_only(), OperatorName(op), ": argument '", argument.name(),
                  "' must be given by keyword, but positional argument ", i, " was given");
      TORCH_CHECK(keyword < 0, OperatorName(op), ": argument '", argument.name(), "' was given twice, by position and by keyword");
      sources.push_back(static_cast<int>(i));
    } else if (keyword >= 0) {
      sources.push_back(static_cast<int>(positional) + keyword);
    } else {
      TORCH_CHECK(argument.default_value().has_value(), OperatorName(op), ": argument '", argument.name(),
                  "' is missing and has no default");
      sources.push_back(kDefaultArgument);
    }
  }
  if (used_keywords != keywords.size()) {
    for (const std::string& name : keywords) {
      TORCH_CHECK(schema.argumentIndexWithName(name).has_value(), OperatorName(op), ": has no argument '", name, "'");
    }
  }
  return sources;
}

IValue ConvertArgument(const c10::OperatorHandle& op, std::size_t index, IValue value) {
  const c10::Argument& argument = op.schema().arguments()[index];
  return Convert({op, argument}, argument.type(), argument.N(), std::move(value));
}

IValue TakeResults(std::vector<IValue>& stack) {
  IValue result;
  if (stack.size() == 1) {
    result = std::move(stack.front());
  } else if (!stack.empty()) {
    result = c10::ivalue::Tuple::create(std::vector<IValue>(std::make_move_iterator(stack.begin()), std::make_move_iterator(stack.end())));
  }
  stack.clear();
  return result;
}

IValue CallOperator(const c10::OperatorHandle& op, std::vector<IValue> args, std::vector<std::pair<std::string, IValue>> kwargs) {
  std::vector<std::string> keywords;
  keywords.reserve(kwargs.size());
  for (const auto& [name, value] : kwargs) keywords.push_back(name);
  const std::vector<int> sources = BindArguments(op, args.size(), keywords);
  torch::jit::Stack stack;
  stack.reserve(sources.size());
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (sources[i] == kDefaultArgument) {
      stack.push_back(*op.schema().arguments()[i].default_value());
    } else {
      const std::size_t source = sources[i];
      stack.push_back(ConvertArgument(op, i, std::move(source < args.size() ? args[source] : kwargs[source - args.size()].second)));
    }
  }
  args.clear();
  kwargs.clear();
  op.callBoxed(stack);
  return TakeResults(stack);
}

}  // namespace ddpopt
