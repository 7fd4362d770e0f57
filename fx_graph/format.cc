#include "fx_graph/format.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "c10/core/Layout.h"
#include "c10/core/MemoryFormat.h"
#include "c10/core/ScalarType.h"
#include "fx_graph/constants.h"
#include "fx_graph/words.h"

namespace ddpopt::fx {
namespace {

void AppendInt(int64_t value, std::string* out) {
  char buffer[24];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value);
  out->append(buffer, end.ptr);
}

// repr(float) without the ".0" of whole numbers, which complex numbers lack.
void AppendShortest(double value, std::string* out) {
  if (std::isnan(value)) return out->append("nan"), void();
  if (std::isinf(value)) return out->append(value > 0 ? "inf" : "-inf"), void();
  const double magnitude = std::fabs(value);
  const bool fixed = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, fixed ? std::chars_format::fixed : std::chars_format::scientific);
  out->append(buffer, end.ptr);
}

void AppendComplex(c10::complex<double> value, std::string* out) {
  const bool imaginary_only = value.real() == 0 && !std::signbit(value.real());
  if (!imaginary_only) {
    out->push_back('(');
    AppendShortest(value.real(), out);
    if (!std::signbit(value.imag()) || std::isnan(value.imag())) out->push_back('+');
  }
  AppendShortest(value.imag(), out);
  out->append(imaginary_only ? "j" : "j)");
}

void AppendDevice(const c10::Device& device, FormatStyle style, std::string* out) {
  if (style == FormatStyle::kFormatNode) return out->append(device.str()), void();
  absl::StrAppend(out, "device(type='", c10::DeviceTypeName(device.type(), /*lower_case=*/true), "'");
  if (device.has_index()) absl::StrAppend(out, ", index=", static_cast<int>(device.index()));
  out->push_back(')');
}

void AppendString(absl::string_view text, FormatStyle style, const FormatOptions& options, std::string* out) {
  if (style == FormatStyle::kFormatNode && (!options.exact || IsPlainString(text))) {
    out->append(text.data(), text.size());
  } else {
    AppendPythonString(text, out);
  }
}

void AppendTyped(const TypedConstant& constant, const FormatOptions& options, std::string* out) {
  switch (constant.kind) {
    case TypedConstant::Kind::kDtype:
      absl::StrAppend(out, DtypeName(static_cast<c10::ScalarType>(constant.value)));
      return;
    case TypedConstant::Kind::kLayout:
      absl::StrAppend(out, LayoutName(static_cast<c10::Layout>(constant.value)));
      return;
    case TypedConstant::Kind::kMemoryFormat:
      absl::StrAppend(out, MemoryFormatName(static_cast<c10::MemoryFormat>(constant.value)));
      return;
    case TypedConstant::Kind::kEllipsis:
      out->append("Ellipsis");
      return;
    case TypedConstant::Kind::kOpaque:
      if (!options.exact) return out->append(constant.text), void();
      out->append("opaque(");
      AppendPythonString(constant.text, out);
      out->append(", ");
      AppendPythonString(constant.type_name, out);
      out->push_back(')');
      return;
  }
}

template <typename Range, typename Fn>
void AppendBracketed(const char* open, const Range& range, const char* close, std::string* out, Fn&& append) {
  out->append(open);
  bool first = true;
  for (const auto& element : range) {
    if (!first) out->append(", ");
    first = false;
    append(element);
  }
  out->append(close);
}

// Python's isprintable(), by the general categories that are not: controls, formats, separators, surrogates, private use.
bool IsPrintable(uint32_t c) {
  struct Range {
    uint32_t first, last;
  };
  static constexpr Range kUnprintable[] = {
      {0x0, 0x1f},         {0x7f, 0xa0},        {0xad, 0xad},        {0x600, 0x605},      {0x61c, 0x61c},     {0x6dd, 0x6dd},
      {0x70f, 0x70f},      {0x890, 0x891},      {0x8e2, 0x8e2},      {0x1680, 0x1680},    {0x180e, 0x180e},   {0x2000, 0x200f},
      {0x2028, 0x202f},    {0x205f, 0x206f},    {0x3000, 0x3000},    {0xd800, 0xf8ff},    {0xfeff, 0xfeff},   {0xfff0, 0xfffb},
      {0xfffe, 0xffff},    {0x110bd, 0x110bd},  {0x110cd, 0x110cd},  {0x13430, 0x13438},  {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a},
      {0xe0000, 0xe00ff},  {0xe01f0, 0x10ffff}};
  for (const Range& range : kUnprintable) {
    if (c >= range.first && c <= range.last) return false;
  }
  return true;
}

// The code point at text[at] and its length in UTF-8, 0 if the bytes are no UTF-8.
std::size_t DecodeUtf8(absl::string_view text, std::size_t at, uint32_t* code_point) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  const std::size_t length = first < 0x80                    ? 1
                             : first >= 0xc2 && first < 0xe0 ? 2
                             : first >= 0xe0 && first < 0xf0 ? 3
                             : first >= 0xf0 && first < 0xf5 ? 4
                                                             : 0;
  if (length == 0 || at + length > text.size()) return 0;
  static constexpr uint32_t kMask[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
  static constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  uint32_t c = first & kMask[length];
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return 0;
    c = (c << 6) | (byte(at + i) & 0x3f);
  }
  if (c < kLeast[length] || c > 0x10ffff) return 0;
  *code_point = c;
  return length;
}

}  // namespace

void AppendPythonFloat(double value, std::string* out) {
  const std::size_t start = out->size();
  AppendShortest(value, out);
  if (std::isfinite(value) && out->find_first_of(".e", start) == std::string::npos) out->append(".0");
}

void AppendPythonString(absl::string_view text, std::string* out) {
  const char quote = text.find('\'') != absl::string_view::npos && text.find('"') == absl::string_view::npos ? '"' : '\'';
  out->push_back(quote);
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == quote || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
      ++i;
    } else if (c >= 0x20 && c < 0x7f) {
      out->push_back(c);
      ++i;
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out->append(c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
      ++i;
    } else {
      uint32_t code_point = 0;
      const std::size_t length = DecodeUtf8(text, i, &code_point);
      char buffer[16];
      if (length == 0) {  // no text: as Python shows a byte it could not decode
        std::snprintf(buffer, sizeof(buffer), "\\udc%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
        out->append(buffer);
        ++i;
        continue;
      }
      if (IsPrintable(code_point)) {
        out->append(text.data() + i, length);
      } else {
        std::snprintf(buffer, sizeof(buffer), code_point < 0x100 ? "\\x%02x" : code_point < 0x10000 ? "\\u%04x" : "\\U%08x", code_point);
        out->append(buffer);
      }
      i += length;
    }
  }
  out->push_back(quote);
}

void AppendConstant(const c10::IValue& value, FormatStyle style, const FormatOptions& options, std::string* out) {
  const auto append = [&](const c10::IValue& element) { AppendConstant(element, style, options, out); };
  if (value.isInt()) return AppendInt(value.toInt(), out);
  if (value.isNone()) return out->append("None"), void();
  if (value.isBool()) return out->append(value.toBool() ? "True" : "False"), void();
  if (value.isDouble()) return AppendPythonFloat(value.toDouble(), out);
  if (value.isString()) return AppendString(value.toStringRef(), style, options, out);
  if (value.isList()) return AppendBracketed("[", value.toListRef(), "]", out, append);
  if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    return AppendBracketed("(", elements, elements.size() == 1 ? ",)" : ")", out, append);
  }
  if (value.isComplexDouble()) return AppendComplex(value.toComplexDouble(), out);
  if (value.isDevice()) return AppendDevice(value.toDevice(), style, out);
  if (const TypedConstant* constant = AsTypedConstant(value)) return AppendTyped(*constant, options, out);
  if (value.isGenericDict()) {
    return AppendBracketed("{", value.toGenericDict(), "}", out, [&](const auto& entry) {
      append(entry.key());
      out->append(": ");
      append(entry.value());
    });
  }
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return out->append("None"), void();
    std::ostringstream sizes;
    sizes << tensor.sizes();
    absl::StrAppend(out, "tensor(shape=", sizes.str(), ", dtype=", DtypeName(tensor.scalar_type()), ")");
    return;
  }
  absl::StrAppend(out, "<", value.tagKind(), ">");
}

void AppendArgument(const Argument& argument, FormatStyle style, const FormatOptions& options, std::string* out) {
  const auto append = [&](const Argument& element) { AppendArgument(element, style, options, out); };
  switch (argument.kind()) {
    case Argument::Kind::kNone:
      out->append("None");
      return;
    case Argument::Kind::kNode: {
      if (style == FormatStyle::kFormatNode) out->push_back('%');
      const absl::string_view name = argument.node()->name();
      out->append(name.data(), name.size());
      return;
    }
    case Argument::Kind::kConstant:
      AppendConstant(argument.constant(), style, options, out);
      return;
    case Argument::Kind::kList:
      AppendBracketed("[", argument.elements(), "]", out, append);
      return;
    case Argument::Kind::kTuple:
      AppendBracketed("(", argument.elements(), argument.elements().size() == 1 ? ",)" : ")", out, append);
      return;
    case Argument::Kind::kDict: {
      const auto& elements = argument.elements();
      out->push_back('{');
      for (std::size_t i = 0; i + 1 < elements.size(); i += 2) {
        if (i != 0) out->append(", ");
        append(elements[i]);
        out->append(": ");
        append(elements[i + 1]);
      }
      out->push_back('}');
      return;
    }
    case Argument::Kind::kSlice:  // Python's own repr prints the bounds
      AppendBracketed("slice(", argument.elements(), ")", out,
                      [&](const Argument& element) { AppendArgument(element, FormatStyle::kRepr, options, out); });
      return;
  }
}

void AppendDeclared(const Argument& argument, const c10::Argument* declared, FormatStyle style, const FormatOptions& options,
                    std::string* out) {
  if (declared != nullptr && argument.kind() == Argument::Kind::kConstant && argument.constant().isInt()) {
    const int64_t value = argument.constant().toInt();
    absl::string_view name;
    switch (DeclaredKind(*declared)) {
      case c10::TypeKind::ScalarTypeType:
        name = DtypeName(static_cast<c10::ScalarType>(value));
        break;
      case c10::TypeKind::LayoutType:
        name = LayoutName(static_cast<c10::Layout>(value));
        break;
      case c10::TypeKind::MemoryFormatType:
        name = MemoryFormatName(static_cast<c10::MemoryFormat>(value));
        break;
      default:
        break;
    }
    if (!name.empty()) return out->append(name.data(), name.size()), void();
  }
  AppendArgument(argument, style, options, out);
}

// Python's str() of a value, which differs from repr() in a string or a device that is the whole value.
static void AppendStr(const Argument& argument, const FormatOptions& options, std::string* out) {
  const bool bare =
      !options.exact && argument.kind() == Argument::Kind::kConstant && (argument.constant().isString() || argument.constant().isDevice());
  AppendArgument(argument, bare ? FormatStyle::kFormatNode : FormatStyle::kRepr, options, out);
}

void AppendQualifiedTarget(const Target& target, std::string* out) {
  if (const auto* op = std::get_if<OperatorTarget>(&target)) {
    const c10::OperatorName& name = op->op.operator_name();
    out->append("torch.ops.");
    const std::size_t colons = name.name.find("::");
    if (colons == std::string::npos) {
      out->append(name.name);
    } else {
      out->append(name.name, 0, colons);
      out->push_back('.');
      out->append(name.name, colons + 2);
    }
    out->push_back('.');
    out->append(name.overload_name.empty() ? "default" : name.overload_name);
  } else if (const auto* higher_order = std::get_if<HigherOrderTarget>(&target)) {
    absl::StrAppend(out, "torch.ops.higher_order.", higher_order->name);
  } else if (const auto* method = std::get_if<MethodTarget>(&target)) {
    out->append(method->name);
  } else if (const auto* path = std::get_if<PathTarget>(&target)) {
    out->append(path->path);
  } else {
    out->append(std::get<OpaqueTarget>(target).text);
  }
}

void AppendNode(const Node& node, const FormatOptions& options, std::string* out) {
  const auto& args = node.args();
  if (node.op() == Op::kOutput) {
    out->append("return ");
    if (args.empty()) return out->append("None"), void();
    return AppendStr(args[0], options, out);
  }
  const absl::string_view name = node.name();
  absl::StrAppend(out, "%", name, " : ");
  if (!node.meta().type_expr.empty()) absl::StrAppend(out, node.meta().type_expr, " ");
  absl::StrAppend(out, "[num_users=", node.users().size(), "] = ", OpName(node.op()), "[target=");
  AppendQualifiedTarget(node.target(), out);
  out->push_back(']');
  if (node.op() == Op::kGetAttr) return;
  if (node.op() == Op::kPlaceholder) {
    if (args.empty()) return;
    out->append("(default=");
    AppendStr(args[0], options, out);
    out->push_back(')');
    return;
  }
  const auto* op = std::get_if<OperatorTarget>(&node.target());
  const c10::FunctionSchema* schema = op != nullptr && op->op.hasSchema() ? &op->op.schema() : nullptr;
  out->append("(args = (");
  std::size_t position = 0;
  for (const Argument& argument : args) {
    if (position != 0) out->append(", ");
    AppendDeclared(argument, schema == nullptr ? nullptr : DeclaredArgument(*schema, position), FormatStyle::kFormatNode, options, out);
    ++position;
  }
  out->append(position == 1 ? ",), kwargs = {" : "), kwargs = {");
  bool first = true;
  for (const auto& entry : node.kwargs()) {
    if (!first) out->append(", ");
    first = false;
    const absl::string_view key(entry.first);
    out->append(key.data(), key.size());
    out->append(": ");
    AppendDeclared(entry.second, schema == nullptr ? nullptr : DeclaredArgument(*schema, key), FormatStyle::kFormatNode, options, out);
  }
  out->append("})");
}

std::string FormatGraph(const Graph& graph, const FormatOptions& options) {
  std::string text = "graph()";
  text.reserve(128 * graph.size() + 16);
  const Node* output = graph.output_node();
  if (output != nullptr && !output->meta().type_expr.empty()) absl::StrAppend(&text, " -> ", output->meta().type_expr);
  text.push_back(':');
  for (const Node* node : graph.nodes()) {
    text.append("\n    ");
    AppendNode(*node, options, &text);
  }
  return text;
}

std::string TargetToString(const Target& target) {
  if (const auto* higher_order = std::get_if<HigherOrderTarget>(&target)) return higher_order->name;
  std::string text;
  AppendQualifiedTarget(target, &text);
  if (std::holds_alternative<OperatorTarget>(target)) text.erase(0, sizeof("torch.ops.") - 1);
  return text;
}

std::string Argument::ToString() const {
  std::string text;
  AppendArgument(*this, FormatStyle::kFormatNode, {}, &text);
  return text;
}

std::string Node::ToString() const {
  std::string text;
  AppendNode(*this, {}, &text);
  return text;
}

std::string Graph::ToString() const { return FormatGraph(*this); }

}  // namespace ddpopt::fx
