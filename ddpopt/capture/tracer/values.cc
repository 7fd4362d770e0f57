#include "ddpopt/capture/tracer/values.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace ddpopt {

using c10::IValue;

std::vector<IValue> ElementsOf(const IValue& value) {
  if (value.isTuple()) return value.toTupleRef().elements().vec();
  if (value.isList()) return value.toListRef().vec();
  std::vector<IValue> elements;
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) elements.emplace_back(tensor);
  } else if (value.isIntList()) {
    for (const int64_t element : value.toIntVector()) elements.emplace_back(element);
  } else if (value.isDoubleList()) {
    for (const double element : value.toDoubleVector()) elements.emplace_back(element);
  } else if (value.isBoolList()) {
    for (const bool element : value.toBoolList().vec()) elements.emplace_back(element);
  } else {
    TORCH_CHECK(false, "a ", value.tagKind(), " where a tuple or a list is wanted");
  }
  return elements;
}

std::string FlattenValue(const IValue& value, std::vector<at::Tensor>* tensors) {
  if (value.isTensor()) {
    if (!value.toTensor().defined()) return "None";
    tensors->push_back(value.toTensor());
    return "Tensor";
  }
  if (value.isNone()) return "None";
  if (value.isBool()) return value.toBool() ? "true" : "false";
  if (value.isInt()) return absl::StrCat(value.toInt());
  if (value.isDouble()) {
    // Readable, and with all its bits where that isn't enough.
    const std::string text = absl::StrFormat("%.17g", value.toDouble());
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  }
  if (value.isComplexDouble()) {
    return absl::StrFormat("complex(%.17g, %.17g)", value.toComplexDouble().real(), value.toComplexDouble().imag());
  }
  if (value.isString()) return absl::StrCat("\"", value.toStringRef(), "\"", value.toStringRef().size());
  if (value.isDevice()) return value.toDevice().str();
  if (value.isGenericDict()) {
    std::vector<std::string> entries;
    for (const auto& entry : value.toGenericDict()) {
      // Keys are values too, and never tensors.
      std::string key = FlattenValue(entry.key(), tensors);
      entries.push_back(absl::StrCat(key, ": ", FlattenValue(entry.value(), tensors)));
    }
    return absl::StrCat("{", absl::StrJoin(entries, ", "), "}");
  }
  TORCH_CHECK(value.isTuple() || value.isList(), "a ", value.tagKind(), " can't be an argument or result of a captured forward");
  std::vector<std::string> elements;
  for (const IValue& element : ElementsOf(value)) elements.push_back(FlattenValue(element, tensors));
  return value.isTuple() ? absl::StrCat("(", absl::StrJoin(elements, ", "), ")") : absl::StrCat("[", absl::StrJoin(elements, ", "), "]");
}

IValue MapTensors(const IValue& value, const std::function<IValue(const at::Tensor&)>& fn) {
  if (value.isTensor()) return value.toTensor().defined() ? fn(value.toTensor()) : IValue();
  if (value.isTuple()) {
    std::vector<IValue> elements;
    for (const IValue& element : value.toTupleRef().elements()) elements.push_back(MapTensors(element, fn));
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  if (value.isGenericDict()) {
    c10::impl::GenericDict dict(value.toGenericDict().keyType(), c10::AnyType::get());
    for (const auto& entry : value.toGenericDict()) dict.insert(entry.key(), MapTensors(entry.value(), fn));
    return dict;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(fn(tensor).toTensor());
    return list;
  }
  if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()) {
    c10::impl::GenericList list(c10::AnyType::get());
    for (const IValue& element : ElementsOf(value)) list.push_back(MapTensors(element, fn));
    return list;
  }
  return value;
}

}  // namespace ddpopt
