// The text forms of nodes, arguments and graphs, as Python's torch.fx prints them.

#include <charconv>
#include <cmath>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "c10/core/Layout.h"
#include "c10/core/MemoryFormat.h"
#include "c10/core/ScalarType.h"
#include "fx_graph/graph.h"
#include "fx_graph/node.h"

namespace ddpopt::fx {
namespace {

// In a tuple or list that Python prints with repr(), nodes are bare and strings quoted; format_node prints "%x" and bare strings.
enum class Style { kFormatNode, kRepr };

// As Python's repr(float).
std::string FormatDouble(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double magnitude = std::fabs(value);
  const bool fixed = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string FormatString(const std::string& text, Style style) {
  if (style == Style::kFormatNode) return text;
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}, {"\n", "\\n"}}), "'");
}

std::string DtypeName(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return "torch.float32";
    case c10::ScalarType::Double:
      return "torch.float64";
    case c10::ScalarType::Half:
      return "torch.float16";
    case c10::ScalarType::BFloat16:
      return "torch.bfloat16";
    case c10::ScalarType::Byte:
      return "torch.uint8";
    case c10::ScalarType::Char:
      return "torch.int8";
    case c10::ScalarType::Short:
      return "torch.int16";
    case c10::ScalarType::Int:
      return "torch.int32";
    case c10::ScalarType::Long:
      return "torch.int64";
    case c10::ScalarType::Bool:
      return "torch.bool";
    case c10::ScalarType::ComplexFloat:
      return "torch.complex64";
    case c10::ScalarType::ComplexDouble:
      return "torch.complex128";
    default:
      return absl::StrCat("torch.", c10::toString(type));
  }
}

template <typename Range, typename Fn>
std::string Bracketed(const char* open, const Range& range, const char* close, Fn&& format) {
  std::string text = open;
  const char* separator = "";
  for (const auto& element : range) {
    absl::StrAppend(&text, separator, format(element));
    separator = ", ";
  }
  return absl::StrCat(text, close);
}

std::string FormatConstant(const c10::IValue& value, Style style) {
  const auto format = [style](const c10::IValue& element) { return FormatConstant(element, style); };
  if (value.isNone()) return "None";
  if (value.isBool()) return value.toBool() ? "True" : "False";
  if (value.isInt()) return absl::StrCat(value.toInt());
  if (value.isDouble()) return FormatDouble(value.toDouble());
  if (value.isString()) return FormatString(value.toStringRef(), style);
  if (value.isComplexDouble()) {
    const c10::complex<double> number = value.toComplexDouble();
    const std::string imaginary = FormatDouble(number.imag());
    return absl::StrCat("(", FormatDouble(number.real()), imaginary[0] == '-' ? "" : "+", imaginary, "j)");
  }
  if (value.isDevice()) return value.toDevice().str();
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return "None";
    std::ostringstream sizes;
    sizes << tensor.sizes();
    return absl::StrCat("tensor(shape=", sizes.str(), ", dtype=", DtypeName(tensor.scalar_type()), ")");
  }
  if (value.isList()) return Bracketed("[", value.toListRef(), "]", format);
  if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    return Bracketed("(", elements, elements.size() == 1 ? ",)" : ")", format);
  }
  return absl::StrCat("<", value.tagKind(), ">");
}

std::string FormatArgument(const Argument& argument, Style style) {
  const auto format = [style](const Argument& element) { return FormatArgument(element, style); };
  const std::vector<Argument>& elements = argument.elements();
  switch (argument.kind()) {
    case Argument::Kind::kNone:
      return "None";
    case Argument::Kind::kNode:
      return absl::StrCat(style == Style::kFormatNode ? "%" : "", argument.node()->name());
    case Argument::Kind::kConstant:
      return FormatConstant(argument.constant(), style);
    case Argument::Kind::kList:
      return Bracketed("[", elements, "]", format);
    case Argument::Kind::kTuple:
      return Bracketed("(", elements, elements.size() == 1 ? ",)" : ")", format);
    case Argument::Kind::kDict: {
      std::string text = "{";
      for (std::size_t i = 0; i + 1 < elements.size(); i += 2) {
        absl::StrAppend(&text, i == 0 ? "" : ", ", format(elements[i]), ": ", format(elements[i + 1]));
      }
      return text + "}";
    }
    case Argument::Kind::kSlice:
      return Bracketed("slice(", elements, ")", format);
  }
  return "?";
}

// Integers that stand for dtypes, layouts and memory formats, told apart by the schema.
std::string FormatTyped(const Argument& argument, const c10::Argument* schema) {
  if (schema != nullptr && argument.kind() == Argument::Kind::kConstant && argument.constant().isInt()) {
    c10::TypePtr type = schema->real_type();
    if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    const int64_t value = argument.constant().toInt();
    std::ostringstream text;
    switch (type->kind()) {
      case c10::TypeKind::ScalarTypeType:
        return DtypeName(static_cast<c10::ScalarType>(value));
      case c10::TypeKind::LayoutType:
        if (value == static_cast<int64_t>(c10::Layout::Strided)) return "torch.strided";
        break;
      case c10::TypeKind::MemoryFormatType:
        if (value == static_cast<int64_t>(c10::MemoryFormat::Contiguous)) return "torch.contiguous_format";
        if (value == static_cast<int64_t>(c10::MemoryFormat::Preserve)) return "torch.preserve_format";
        if (value == static_cast<int64_t>(c10::MemoryFormat::ChannelsLast)) return "torch.channels_last";
        if (value == static_cast<int64_t>(c10::MemoryFormat::ChannelsLast3d)) return "torch.channels_last_3d";
        break;
      default:
        break;
    }
  }
  return FormatArgument(argument, Style::kFormatNode);
}

// The arguments of a call, as in str(graph).
std::string FormatCall(const Node& node) {
  const auto* target = std::get_if<OperatorTarget>(&node.target());
  const std::vector<c10::Argument>* schema = target != nullptr && target->op.hasSchema() ? &target->op.schema().arguments() : nullptr;
  const std::vector<Argument>& args = node.args();
  const Kwargs& kwargs = node.kwargs();
  std::string text = "(args = (";
  for (std::size_t i = 0; i < args.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", FormatTyped(args[i], schema != nullptr && i < schema->size() ? &(*schema)[i] : nullptr));
  }
  absl::StrAppend(&text, args.size() == 1 ? ",)" : ")", ", kwargs = {");
  for (std::size_t i = 0; i < kwargs.size(); ++i) {
    const auto& [name, argument] = kwargs[i];
    const c10::Argument* declared = nullptr;
    if (schema != nullptr) {
      for (const c10::Argument& candidate : *schema) {
        if (candidate.name() == name) declared = &candidate;
      }
    }
    absl::StrAppend(&text, i == 0 ? "" : ", ", name, ": ", FormatTyped(argument, declared));
  }
  return text + "})";
}

}  // namespace

std::string TargetToString(const Target& target) {
  struct Visitor {
    std::string operator()(const OperatorTarget& t) const {
      const c10::OperatorName& name = t.op.operator_name();
      return absl::StrCat(absl::StrReplaceAll(name.name, {{"::", "."}}), ".", name.overload_name.empty() ? "default" : name.overload_name);
    }
    std::string operator()(const HigherOrderTarget& t) const { return t.name; }
    std::string operator()(const MethodTarget& t) const { return t.name; }
    std::string operator()(const PathTarget& t) const { return t.path; }
    std::string operator()(const OpaqueTarget& t) const { return t.text; }
  };
  return std::visit(Visitor(), target);
}

std::string Argument::ToString() const { return FormatArgument(*this, Style::kFormatNode); }

std::string Node::ToString() const {
  if (op_ == Op::kOutput) return absl::StrCat("return ", args_.empty() ? "None" : FormatArgument(args_[0], Style::kRepr));
  std::string text = absl::StrCat("%", name_, " : [num_users=", users_.size(), "] = ", OpName(op_), "[target=", TargetToString(target_), "]");
  if (op_ == Op::kPlaceholder) {
    if (!args_.empty()) absl::StrAppend(&text, "(default=", FormatArgument(args_[0], Style::kRepr), ")");
  } else if (op_ != Op::kGetAttr) {
    absl::StrAppend(&text, FormatCall(*this));
  }
  return text;
}

std::string Graph::ToString() const {
  std::string text = "graph():";
  for (const Node* node : nodes()) absl::StrAppend(&text, "\n    ", node->ToString());
  return text;
}

}  // namespace ddpopt::fx
