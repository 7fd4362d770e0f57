#include "ddpopt/capture/pt2/read_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ATen/core/dispatch/Dispatcher.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "c10/core/Device.h"
#include "ddpopt/capture/pt2/schema.h"
#include "fx_graph/constants.h"

namespace ddpopt::pt2 {
namespace {

using c10::IValue;
using fx::Argument;
using fx::JsonView;
using fx::Node;

// An operator of the dispatcher, a higher-order operator, or what is only a name here.
fx::Target ReadTarget(const std::string& text) {
  if (absl::StartsWith(text, "torch.ops.higher_order.")) return fx::HigherOrderTarget{text.substr(sizeof("torch.ops.higher_order.") - 1)};
  if (absl::StartsWith(text, "torch.ops.")) {
    const std::vector<std::string> parts = absl::StrSplit(text, '.');
    if (parts.size() == 5) {
      const std::string overload = parts[4] == "default" ? "" : parts[4];
      const auto op = c10::Dispatcher::singleton().findSchema({absl::StrCat(parts[2], "::", parts[3]), overload});
      if (op.has_value()) return fx::OperatorTarget{*op};
    }
    return fx::OpaqueTarget{text};
  }
  if (absl::StartsWith(text, "_operator.")) return fx::OpaqueTarget{text.substr(1)};
  return fx::OpaqueTarget{text};
}

absl::StatusOr<c10::Device> ReadDevice(const JsonView& view) {
  DDPOPT_ASSIGN_OR_RETURN(const std::string type, view.String("type"));
  std::string text = type;
  if (HasValue(view, "index")) {
    DDPOPT_ASSIGN_OR_RETURN(const int64_t index, view.Int("index"));
    if (index < 0 || index > std::numeric_limits<c10::DeviceIndex>::max()) return view.Expected("a device");
    absl::StrAppend(&text, ":", index);
  }
  const absl::StatusOr<c10::Device> device = CatchAsStatus("", [&] { return c10::Device(text); });
  if (!device.ok()) return view.Expected("a device");
  return *device;
}

// An open size: its text, and its value in the export's example if there is one.
struct OpenSize {
  std::string text;
  bool open = false;
  bool known = true;
  int64_t example = 0;
};

absl::StatusOr<OpenSize> ReadOpenSize(const JsonView& view) {
  OpenSize size;
  DDPOPT_ASSIGN_OR_RETURN(const std::string kind, UnionKind(view));
  if (kind == "as_int") {
    DDPOPT_ASSIGN_OR_RETURN(size.example, view.Int("as_int"));
    size.text = absl::StrCat(size.example);
    return size;
  }
  if (kind != "as_expr") return view.Expected("as_int or as_expr");
  size.open = true;
  DDPOPT_ASSIGN_OR_RETURN(const JsonView expr, view.Object("as_expr"));
  DDPOPT_ASSIGN_OR_RETURN(const std::string text, expr.String("expr_str"));
  const absl::StatusOr<SymExpr> parsed = SymExpr::Parse(text);
  size.text = parsed.ok() ? parsed->ToString() : text;
  size.known = false;
  if (HasValue(expr, "hint")) {
    DDPOPT_ASSIGN_OR_RETURN(const JsonView hint, expr.Object("hint"));
    if (HasValue(hint, "as_int")) {
      DDPOPT_ASSIGN_OR_RETURN(size.example, hint.Int("as_int"));
      size.known = true;
    }
  }
  return size;
}

// PyTorch's "key,path,class" entries, separated by ";".
std::vector<std::pair<std::string, std::string>> ReadModuleStack(absl::string_view text) {
  std::vector<std::pair<std::string, std::string>> stack;
  for (const absl::string_view entry : absl::StrSplit(text, ';')) {
    const std::size_t first = entry.find(','), last = entry.rfind(',');
    if (first == absl::string_view::npos || first == last) continue;
    const absl::string_view path = entry.substr(first + 1, last - first - 1);
    if (absl::StartsWith(path, "_empty_nn_module_stack")) continue;
    stack.emplace_back(path, entry.substr(last + 1));
  }
  return stack;
}

}  // namespace

bool HasValue(const JsonView& view, absl::string_view key) {
  if (!view.is_object()) return false;
  const absl::StatusOr<JsonView> value = view.Has(key) ? view.At(key) : absl::StatusOr<JsonView>(absl::NotFoundError(""));
  return value.ok() && !value->is_null();
}

absl::StatusOr<std::string> UnionKind(const JsonView& view) {
  if (!view.is_object() || view.size() != 1) return view.Expected("an object with one key");
  return view.KeyAt(0);
}

absl::StatusOr<double> ReadFloat(const JsonView& view) {
  if (view.kind() == JsonView::Kind::kFloat) return view.value().number;
  if (view.kind() == JsonView::Kind::kInt) return static_cast<double>(view.value().integer);
  if (view.is_string()) {
    const std::string& text = view.value().text;
    if (text == "Infinity") return std::numeric_limits<double>::infinity();
    if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
    if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  }
  return view.Expected("a number");
}

absl::StatusOr<IValue> ReadConstant(const JsonView& view) {
  DDPOPT_ASSIGN_OR_RETURN(const std::string kind, UnionKind(view));
  const JsonView value = view[0];
  if (kind == "as_none") return IValue();
  if (kind == "as_int") {
    DDPOPT_ASSIGN_OR_RETURN(const int64_t number, value.AsInt());
    return IValue(number);
  }
  if (kind == "as_float") {
    DDPOPT_ASSIGN_OR_RETURN(const double number, ReadFloat(value));
    return IValue(number);
  }
  if (kind == "as_string") {
    DDPOPT_ASSIGN_OR_RETURN(std::string text, value.AsString());
    return IValue(std::move(text));
  }
  if (kind == "as_bool") {
    DDPOPT_ASSIGN_OR_RETURN(const bool truth, value.AsBool());
    return IValue(truth);
  }
  return view.Expected("as_none, as_int, as_float, as_string or as_bool");
}

absl::StatusOr<SymExpr> ReadSymInt(const JsonView& view) {
  DDPOPT_ASSIGN_OR_RETURN(const std::string kind, UnionKind(view));
  if (kind == "as_int") {
    DDPOPT_ASSIGN_OR_RETURN(const int64_t value, view.Int("as_int"));
    return SymExpr::Integer(value);
  }
  if (kind != "as_expr") return view.Expected("as_int or as_expr");
  DDPOPT_ASSIGN_OR_RETURN(const JsonView expr, view.Object("as_expr"));
  DDPOPT_ASSIGN_OR_RETURN(const std::string text, expr.String("expr_str"));
  absl::StatusOr<SymExpr> parsed = SymExpr::Parse(text);
  if (!parsed.ok()) return expr.Error(parsed.status().message());
  return parsed;
}

absl::StatusOr<RecordedMeta> ReadTensorMeta(const JsonView& view) {
  RecordedMeta recorded;
  DDPOPT_ASSIGN_OR_RETURN(const JsonView dtype, view.At("dtype"));
  DDPOPT_ASSIGN_OR_RETURN(const int64_t dtype_number, dtype.AsInt());
  if (!DtypeFromSchema(dtype_number, &recorded.meta.dtype)) return dtype.Expected("the number of a dtype");
  DDPOPT_ASSIGN_OR_RETURN(const JsonView layout, view.At("layout"));
  DDPOPT_ASSIGN_OR_RETURN(const int64_t layout_number, layout.AsInt());
  c10::Layout known_layout;
  if (!LayoutFromSchema(layout_number, &known_layout)) return layout.Expected("the number of a layout");
  recorded.strided = known_layout == c10::Layout::Strided;
  DDPOPT_ASSIGN_OR_RETURN(recorded.meta.requires_grad, view.BoolOr("requires_grad", false));
  DDPOPT_ASSIGN_OR_RETURN(const JsonView device, view.Object("device"));
  DDPOPT_ASSIGN_OR_RETURN(recorded.meta.device, ReadDevice(device));

  bool open_sizes = false, open_strides = false;
  const auto read = [&](const JsonView& list, std::vector<int64_t>* values, std::vector<std::string>* texts, bool* open) -> absl::Status {
    for (std::size_t i = 0; i < list.size(); ++i) {
      DDPOPT_ASSIGN_OR_RETURN(OpenSize size, ReadOpenSize(list[i]));
      *open |= size.open;
      recorded.known &= size.known;
      values->push_back(size.example);
      texts->push_back(std::move(size.text));
    }
    return absl::OkStatus();
  };
  std::vector<std::string> size_texts, stride_texts;
  DDPOPT_ASSIGN_OR_RETURN(const JsonView sizes, view.Array("sizes"));
  DDPOPT_RETURN_IF_ERROR(read(sizes, &recorded.meta.sizes, &size_texts, &open_sizes));
  DDPOPT_ASSIGN_OR_RETURN(const JsonView strides, view.Array("strides"));
  DDPOPT_RETURN_IF_ERROR(read(strides, &recorded.meta.strides, &stride_texts, &open_strides));
  if (recorded.strided && sizes.size() != strides.size()) return strides.Expected(absl::StrCat(sizes.size(), " strides"));
  if (HasValue(view, "storage_offset")) {
    DDPOPT_ASSIGN_OR_RETURN(const JsonView offset, view.At("storage_offset"));
    DDPOPT_ASSIGN_OR_RETURN(const OpenSize size, ReadOpenSize(offset));
    recorded.known &= size.known;
    recorded.meta.storage_offset = size.example;
  }
  if (open_sizes || open_strides) {
    recorded.symbolic =
        absl::StrCat(absl::StripPrefix(fx::DtypeName(recorded.meta.dtype), "torch."), "[", absl::StrJoin(size_texts, ", "), "]");
    if (open_strides) absl::StrAppend(&recorded.symbolic, " strides [", absl::StrJoin(stride_texts, ", "), "]");
  }
  if (recorded.strided && recorded.known) {
    const absl::StatusOr<int64_t> bytes = fx::MinimumStorageBytes(recorded.meta);
    if (!bytes.ok()) return view.Error(bytes.status().message());
    recorded.meta.storage_nbytes = *bytes;
  }
  return recorded;
}

absl::Status GraphReader::Begin(const JsonView& graph) {
  graph_ = std::make_unique<JsonView>(graph);
  DDPOPT_ASSIGN_OR_RETURN(const JsonView tensors, graph_->Object("tensor_values"));
  tensor_values_ = std::make_unique<JsonView>(tensors);
  for (std::size_t i = 0; i < tensors.size(); ++i) tensor_index_.emplace(tensors.KeyAt(i), i);
  const char* const kinds[] = {"sym_int_values", "sym_bool_values", "sym_float_values"};
  for (int kind = 0; kind < 3; ++kind) {
    if (!HasValue(*graph_, kinds[kind])) continue;
    DDPOPT_ASSIGN_OR_RETURN(const JsonView values, graph_->Object(kinds[kind]));
    sym_values_[kind] = std::make_unique<JsonView>(values);
    for (std::size_t i = 0; i < values.size(); ++i) sym_index_[kind].emplace(values.KeyAt(i), i);
  }
  return absl::OkStatus();
}

absl::StatusOr<JsonView> GraphReader::TensorValue(const std::string& name) const {
  const auto it = tensor_index_.find(name);
  if (it == tensor_index_.end()) return absl::NotFoundError(absl::StrCat("tensor_values: there is no \"", name, "\""));
  return (*tensor_values_)[it->second];
}

absl::StatusOr<JsonView> GraphReader::SymValue(const std::string& name) const {
  for (int kind = 0; kind < 3; ++kind) {
    const auto it = sym_index_[kind].find(name);
    if (it != sym_index_[kind].end()) return (*sym_values_[kind])[it->second];
  }
  return absl::NotFoundError(absl::StrCat("sym_int_values: there is no \"", name, "\""));
}

// Values that aren't described have no val.
absl::Status GraphReader::SetValue(const std::string& name, Node* node) {
  if (const absl::StatusOr<JsonView> view = TensorValue(name); view.ok()) {
    DDPOPT_ASSIGN_OR_RETURN(const RecordedMeta recorded, ReadTensorMeta(*view));
    if (!recorded.symbolic.empty()) node->meta().custom["symbolic"] = IValue(recorded.symbolic);
    if (!recorded.strided || !recorded.known) return absl::OkStatus();
    fx::TensorMeta meta = recorded.meta;
    meta.requires_grad &= node->op() == fx::Op::kGetAttr;
    absl::StatusOr<at::Tensor> tensor = fx::HollowTensor(meta);
    if (!tensor.ok()) return view->Error(tensor.status().message());
    node->meta().val = IValue(*std::move(tensor));
    return absl::OkStatus();
  }
  const absl::StatusOr<JsonView> view = SymValue(name);
  if (!view.ok()) return absl::OkStatus();
  if (!view->is_object() || view->size() != 1) return view->Expected("an object with one key");
  if (view->KeyAt(0) != "as_expr") {
    DDPOPT_ASSIGN_OR_RETURN(node->meta().val, ReadConstant(*view));
    return absl::OkStatus();
  }
  DDPOPT_ASSIGN_OR_RETURN(const JsonView expr, view->Object("as_expr"));
  DDPOPT_ASSIGN_OR_RETURN(const std::string text, expr.String("expr_str"));
  const absl::StatusOr<SymExpr> parsed = SymExpr::Parse(text);
  node->meta().custom["symbolic"] = IValue(parsed.ok() ? parsed->ToString() : text);
  if (HasValue(expr, "hint")) {
    DDPOPT_ASSIGN_OR_RETURN(const JsonView hint, expr.At("hint"));
    DDPOPT_ASSIGN_OR_RETURN(node->meta().val, ReadConstant(hint));
  }
  return absl::OkStatus();
}

absl::Status GraphReader::Define(const JsonView& place, const std::string& name, Node* node) {
  if (attributes_ != nullptr && attributes_->contains(name)) return place.Error("the name \"", name, "\" is taken by an input");
  if (!by_name_.emplace(name, node).second) return place.Error("the name \"", name, "\" is taken by an earlier value");
  return SetValue(name, node);
}

absl::Status GraphReader::AddPlaceholder(const std::string& name) { return Define(*graph_, name, module_->graph().Placeholder(name)); }

absl::StatusOr<Node*> GraphReader::FindNode(const JsonView& place, const std::string& name) {
  if (const auto it = by_name_.find(name); it != by_name_.end()) return it->second;
  if (attributes_ != nullptr) {
    if (const auto it = attributes_->find(name); it != attributes_->end()) {
      Node* node = module_->graph().CreateNode(fx::Op::kGetAttr, fx::PathTarget{it->second.path}, {}, {}, name);
      node->meta().is_parameter = it->second.kind == fx::GraphModule::AttrKind::kParameter;
      node->meta().is_buffer = it->second.kind == fx::GraphModule::AttrKind::kBuffer;
      by_name_.emplace(name, node);
      DDPOPT_RETURN_IF_ERROR(SetValue(name, node));
      return node;
    }
  }
  return place.Error("no earlier value is named \"", name, "\"");
}

absl::StatusOr<Argument> GraphReader::ReadArgument(const JsonView& view) {
  DDPOPT_ASSIGN_OR_RETURN(const std::string kind, UnionKind(view));
  const JsonView value = view[0];
  const auto named = [&](const JsonView& holder, const char* key) -> absl::StatusOr<Argument> {
    DDPOPT_ASSIGN_OR_RETURN(const std::string name, holder.String(key));
    DDPOPT_ASSIGN_OR_RETURN(Node * node, FindNode(holder, name));
    return Argument(node);
  };
  // {"as_name": ...} or a constant.
  const auto symbol = [&](const JsonView& holder) -> absl::StatusOr<Argument> {
    if (holder.is_object() && holder.Has("as_name")) return named(holder, "as_name");
    DDPOPT_ASSIGN_OR_RETURN(IValue constant, ReadConstant(holder));
    return Argument(std::move(constant));
  };
  const auto list = [&](const JsonView& holder, auto&& read) -> absl::StatusOr<Argument> {
    DDPOPT_RETURN_IF_ERROR(holder.ExpectArray());
    std::vector<Argument> elements;
    elements.reserve(holder.size());
    for (std::size_t i = 0; i < holder.size(); ++i) {
      const JsonView element = holder[i];
      absl::StatusOr<Argument> argument = read(element);
      if (!argument.ok()) return argument.status();
      elements.push_back(*std::move(argument));
    }
    return Argument::List(std::move(elements));
  };
  const auto tensor = [&](const JsonView& element) { return named(element, "name"); };
  const auto optional_tensor = [&](const JsonView& element) -> absl::StatusOr<Argument> {
    DDPOPT_ASSIGN_OR_RETURN(const std::string inner, UnionKind(element));
    if (inner == "as_none") return Argument();
    if (inner != "as_tensor") return element.Expected("as_tensor or as_none");
    const JsonView content = element[0];
    return named(content, "name");
  };
  const auto integer = [](const JsonView& element) -> absl::StatusOr<Argument> {
    DDPOPT_ASSIGN_OR_RETURN(const int64_t number, element.AsInt());
    return Argument(IValue(number));
  };
  const auto real = [](const JsonView& element) -> absl::StatusOr<Argument> {
    DDPOPT_ASSIGN_OR_RETURN(const double number, ReadFloat(element));
    return Argument(IValue(number));
  };
  const auto truth = [](const JsonView& element) -> absl::StatusOr<Argument> {
    DDPOPT_ASSIGN_OR_RETURN(const bool boolean, element.AsBool());
    return Argument(IValue(boolean));
  };
  const auto text = [](const JsonView& element) -> absl::StatusOr<Argument> {
    DDPOPT_ASSIGN_OR_RETURN(std::string string, element.AsString());
    return Argument(IValue(std::move(string)));
  };

  if (kind == "as_tensor") return tensor(value);
  if (kind == "as_tensors") return list(value, tensor);
  if (kind == "as_optional_tensor") return optional_tensor(value);
  if (kind == "as_optional_tensors") return list(value, optional_tensor);
  if (kind == "as_nested_tensors") return list(value, [&](const JsonView& inner) { return list(inner, tensor); });
  if (kind == "as_none" || kind == "as_int" || kind == "as_float" || kind == "as_string" || kind == "as_bool") {
    DDPOPT_ASSIGN_OR_RETURN(IValue constant, ReadConstant(view));
    return Argument(std::move(constant));
  }
  if (kind == "as_ints") return list(value, integer);
  if (kind == "as_int_lists") return list(value, [&](const JsonView& inner) { return list(inner, integer); });
  if (kind == "as_floats") return list(value, real);
  if (kind == "as_float_lists") return list(value, [&](const JsonView& inner) { return list(inner, real); });
  if (kind == "as_strings") return list(value, text);
  if (kind == "as_bools") return list(value, truth);
  if (kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool") return symbol(value);
  if (kind == "as_sym_ints" || kind == "as_sym_floats" || kind == "as_sym_bools") return list(value, symbol);
  if (kind == "as_scalar_type") {
    DDPOPT_ASSIGN_OR_RETURN(const int64_t number, value.AsInt());
    c10::ScalarType dtype;
    if (!DtypeFromSchema(number, &dtype)) return value.Expected("the number of a dtype");
    return Argument(fx::DtypeConstant(dtype));
  }
  if (kind == "as_memory_format") {
    DDPOPT_ASSIGN_OR_RETURN(const int64_t number, value.AsInt());
    c10::MemoryFormat format;
    if (!MemoryFormatFromSchema(number, &format)) return value.Expected("the number of a memory format");
    return Argument(fx::MemoryFormatConstant(format));
  }
  if (kind == "as_layout") {
    DDPOPT_ASSIGN_OR_RETURN(const int64_t number, value.AsInt());
    c10::Layout layout;
    if (!LayoutFromSchema(number, &layout)) return value.Expected("the number of a layout");
    return Argument(fx::LayoutConstant(layout));
  }
  if (kind == "as_device") {
    DDPOPT_ASSIGN_OR_RETURN(const c10::Device device, ReadDevice(value));
    return Argument(IValue(device));
  }
  if (kind == "as_complex") {
    DDPOPT_ASSIGN_OR_RETURN(const JsonView real_part, value.At("real"));
    DDPOPT_ASSIGN_OR_RETURN(const JsonView imaginary_part, value.At("imag"));
    DDPOPT_ASSIGN_OR_RETURN(const double re, ReadFloat(real_part));
    DDPOPT_ASSIGN_OR_RETURN(const double im, ReadFloat(imaginary_part));
    return Argument(IValue(c10::complex<double>(re, im)));
  }
  if (kind == "as_graph") {
    DDPOPT_ASSIGN_OR_RETURN(Node * node, NestedGraph(value));
    return Argument(node);
  }
  if (kind == "as_string_to_argument") {
    DDPOPT_RETURN_IF_ERROR(value.ExpectObject());
    std::vector<Argument> elements;
    for (std::size_t i = 0; i < value.size(); ++i) {
      elements.emplace_back(IValue(value.KeyAt(i)));
      DDPOPT_ASSIGN_OR_RETURN(Argument argument, ReadArgument(value[i]));
      elements.push_back(std::move(argument));
    }
    return Argument::Dict(std::move(elements));
  }
  if (kind == "as_operator") {
    DDPOPT_ASSIGN_OR_RETURN(std::string name, value.AsString());
    return Argument(fx::OpaqueConstant(std::move(name), "OpOverload"));
  }
  if (kind == "as_custom_obj") {
    DDPOPT_ASSIGN_OR_RETURN(std::string name, value.String("name"));
    return Argument(fx::OpaqueConstant(std::move(name), "ScriptObject"));
  }
  return view.Error("\"", kind, "\" is no kind of argument of schema ", kSchemaMajor, ".", kSchemaMinor);
}

absl::StatusOr<Node*> GraphReader::NestedGraph(const JsonView& view) {
  DDPOPT_ASSIGN_OR_RETURN(const std::string name, view.String("name"));
  DDPOPT_ASSIGN_OR_RETURN(const JsonView graph, view.Object("graph"));
  DDPOPT_ASSIGN_OR_RETURN(std::shared_ptr<fx::GraphModule> nested, ReadNestedGraph(graph));
  // One name may stand for different graphs in different calls.
  std::string path = name;
  for (int i = 1; module_->submodules().contains(path) || module_->attrs().contains(path); ++i) path = absl::StrCat(name, "_", i);
  const absl::Status added = module_->AddSubmodule(path, {std::move(nested), nullptr});
  if (!added.ok()) return view.Error(added.message());
  return module_->graph().GetAttr(path);
}

absl::Status GraphReader::ReadNodes(const JsonView& nodes) {
  for (std::size_t i = 0; i < nodes.size(); ++i) DDPOPT_RETURN_IF_ERROR(ReadNode(nodes[i]));
  return absl::OkStatus();
}

absl::Status GraphReader::ReadNode(const JsonView& view) {
  DDPOPT_RETURN_IF_ERROR(view.ExpectKeys({"target", "inputs", "outputs", "metadata", "is_hop_single_tensor_return", "name"}));
  DDPOPT_ASSIGN_OR_RETURN(const std::string target_text, view.String("target"));
  DDPOPT_ASSIGN_OR_RETURN(const JsonView inputs, view.Array("inputs"));
  DDPOPT_ASSIGN_OR_RETURN(const JsonView outputs, view.Array("outputs"));
  fx::Target target = ReadTarget(target_text);
  const auto* op = std::get_if<fx::OperatorTarget>(&target);

  std::vector<Argument> args;
  fx::Kwargs kwargs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const JsonView input = inputs[i];
    DDPOPT_ASSIGN_OR_RETURN(const JsonView arg, input.At("arg"));
    DDPOPT_ASSIGN_OR_RETURN(const std::string name, input.String("name"));
    const JsonView kind_holder = input;
    int64_t kind = 0;
    if (HasValue(kind_holder, "kind")) {
      DDPOPT_ASSIGN_OR_RETURN(kind, input.Int("kind"));
      if (kind < 0 || kind > 2) return input.Error("kind: expected 1 (by position) or 2 (by keyword), got ", kind);
    }
    DDPOPT_ASSIGN_OR_RETURN(Argument argument, ReadArgument(arg));
    bool positional = kind != 2 && kwargs.empty();
    if (op != nullptr && positional) {
      // What defaults left out makes the ones behind it keywords.
      const c10::Argument* declared = fx::DeclaredArgument(op->op.schema(), args.size());
      positional = declared != nullptr && declared->name() == name && !declared->kwarg_only();
    } else if (op == nullptr && kind != 2) {
      if (!kwargs.empty()) return input.Error("an argument by position comes after one by keyword");
      positional = true;
    }
    if (positional) {
      args.push_back(std::move(argument));
    } else {
      if (name.empty()) return input.Error("an argument by keyword has no name");
      kwargs.emplace_back(name, std::move(argument));
    }
  }
  // An operator of another version: known by name, and refused when it is to be run.
  const auto declared = [&](const auto& keyword) {
    return fx::DeclaredArgument(op->op.schema(), absl::string_view(keyword.first)) != nullptr;
  };
  if (op != nullptr && !std::all_of(kwargs.begin(), kwargs.end(), declared)) target = fx::OpaqueTarget{target_text};
  fx::FitToSchema(target, &args, &kwargs);

  std::string name;
  if (HasValue(view, "name")) {
    DDPOPT_ASSIGN_OR_RETURN(name, view.String("name"));
  }
  Node* node = module_->graph().CreateNode(fx::Op::kCallFunction, std::move(target), args, std::move(kwargs), name);
  if (HasValue(view, "metadata")) {
    DDPOPT_ASSIGN_OR_RETURN(const JsonView metadata, view.Object("metadata"));
    DDPOPT_RETURN_IF_ERROR(ReadMetadata(metadata, node));
  }
  return ReadOutputs(view, outputs, name, node);
}

absl::Status GraphReader::ReadOutputs(const JsonView& view, const JsonView& outputs, const std::string& name, Node* node) {
  if (outputs.size() == 0) return absl::OkStatus();
  DDPOPT_ASSIGN_OR_RETURN(const std::string kind, UnionKind(outputs[0]));
  const bool symbolic = kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool";
  if (outputs.size() == 1) {
    bool bare = true;
    if (std::holds_alternative<fx::HigherOrderTarget>(node->target()) && HasValue(view, "is_hop_single_tensor_return")) {
      DDPOPT_ASSIGN_OR_RETURN(bare, view.BoolOr("is_hop_single_tensor_return", true));
    }
    const JsonView output = outputs[0];
    const JsonView content = output[0];
    if (kind == "as_none") return absl::OkStatus();
    if (bare && kind == "as_tensor") {
      DDPOPT_ASSIGN_OR_RETURN(const std::string value, content.String("name"));
      if (name.empty()) node->Rename(value);
      return Define(content, value, node);
    }
    if (bare && symbolic) {
      if (!content.Has("as_name")) return absl::OkStatus();  // a constant, which nobody takes by name
      DDPOPT_ASSIGN_OR_RETURN(const std::string value, content.String("as_name"));
      if (name.empty()) node->Rename(value);
      return Define(content, value, node);
    }
    // A list of tensors.
    if (kind == "as_tensors" || kind == "as_optional_tensors") return AddItems(content, name, node);
  }
  return AddItems(outputs, name, node);
}

// An operator.getitem for each element, and the description of all as the node's value.
absl::Status GraphReader::AddItems(const JsonView& outputs, const std::string& name, Node* node) {
  std::vector<IValue> values(outputs.size());
  std::vector<std::string> symbolic(outputs.size());
  bool any_symbolic = false;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    JsonView element = outputs[i];
    if (!element.is_object()) return element.Expected("an output");
    if (!element.Has("name")) {  // an argument, not a bare tensor of a list
      DDPOPT_ASSIGN_OR_RETURN(const std::string kind, UnionKind(element));
      const JsonView content = element[0];
      if (kind == "as_none") continue;
      const auto item = [&](Node* of) {
        std::vector<Argument> args = {of, Argument(IValue(static_cast<int64_t>(i)))};
        return module_->graph().CreateNode(fx::Op::kCallFunction, fx::OpaqueTarget{"operator.getitem"}, args);
      };
      if (kind == "as_tensors" || kind == "as_optional_tensors") {
        DDPOPT_RETURN_IF_ERROR(content.ExpectArray());
        Node* inner = item(node);
        DDPOPT_RETURN_IF_ERROR(AddItems(content, "", inner));
        values[i] = inner->meta().val;
        continue;
      }
      if (kind == "as_optional_tensor") {
        DDPOPT_ASSIGN_OR_RETURN(const std::string inner_kind, UnionKind(content));
        if (inner_kind == "as_none") continue;
      } else if (kind != "as_tensor" && kind != "as_sym_int" && kind != "as_sym_float" && kind != "as_sym_bool") {
        return element.Error("\"", kind, "\" can't be one of several outputs");
      }
    }
    // The name is in the element, in its content, or one level deeper.
    std::string value;
    const JsonView* holder = &element;
    std::vector<std::unique_ptr<JsonView>> levels;
    while (holder->is_object() && !holder->Has("name") && !holder->Has("as_name") && holder->size() == 1 && (*holder)[0].is_object()) {
      levels.push_back(std::make_unique<JsonView>((*holder)[0]));
      holder = levels.back().get();
    }
    if (!holder->Has("name") && !holder->Has("as_name")) {
      if (element.Has("as_none")) continue;
      return element.Expected("an output with a name");
    }
    DDPOPT_ASSIGN_OR_RETURN(value, holder->String(holder->Has("name") ? "name" : "as_name"));
    if (!name.empty() && value == absl::StrCat(name, "_unused_", i)) {
      // Nobody takes it: its description alone is kept.
      if (const absl::StatusOr<JsonView> described = TensorValue(value); described.ok()) {
        DDPOPT_ASSIGN_OR_RETURN(const RecordedMeta recorded, ReadTensorMeta(*described));
        if (recorded.strided && recorded.known) {
          fx::TensorMeta meta = recorded.meta;
          meta.requires_grad = false;
          absl::StatusOr<at::Tensor> tensor = fx::HollowTensor(meta);
          if (!tensor.ok()) return described->Error(tensor.status().message());
          values[i] = IValue(*std::move(tensor));
        }
      }
      continue;
    }
    std::vector<Argument> args = {node, Argument(IValue(static_cast<int64_t>(i)))};
    Node* item = module_->graph().CreateNode(fx::Op::kCallFunction, fx::OpaqueTarget{"operator.getitem"}, args, {}, value);
    item->meta().nn_module = node->meta().nn_module;
    item->meta().stack_trace = node->meta().stack_trace;
    item->meta().nn_module_stack = node->meta().nn_module_stack;
    DDPOPT_RETURN_IF_ERROR(Define(element, value, item));
    values[i] = item->meta().val;
    if (const auto it = item->meta().custom.find("symbolic"); it != item->meta().custom.end()) {
      symbolic[i] = it->second.toStringRef();
      any_symbolic = true;
    }
  }
  node->meta().val = IValue(c10::ivalue::Tuple::create(std::move(values)));
  if (any_symbolic) node->meta().custom["symbolic"] = IValue(absl::StrJoin(symbolic, "; "));
  return absl::OkStatus();
}

absl::Status GraphReader::ReadMetadata(const JsonView& view, Node* node) {
  for (std::size_t i = 0; i < view.size(); ++i) {
    const std::string& key = view.KeyAt(i);
    const JsonView value = view[i];
    if (value.is_null()) continue;
    if (key == "stack_trace") {
      DDPOPT_ASSIGN_OR_RETURN(node->meta().stack_trace, value.AsString());
    } else if (key == "nn_module_stack") {
      DDPOPT_ASSIGN_OR_RETURN(const std::string text, value.AsString());
      node->meta().nn_module_stack = ReadModuleStack(text);
      if (!node->meta().nn_module_stack.empty()) node->meta().nn_module = node->meta().nn_module_stack.back().first;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<fx::GraphModule>> ReadNestedGraph(const JsonView& graph) {
  auto module = std::make_shared<fx::GraphModule>();
  GraphReader reader(module.get(), nullptr);
  DDPOPT_RETURN_IF_ERROR(reader.Begin(graph));
  DDPOPT_ASSIGN_OR_RETURN(const JsonView inputs, graph.Array("inputs"));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const JsonView input = inputs[i];
    DDPOPT_ASSIGN_OR_RETURN(const std::string kind, UnionKind(input));
    const JsonView content = input[0];
    if (kind == "as_tensor") {
      DDPOPT_ASSIGN_OR_RETURN(const std::string name, content.String("name"));
      DDPOPT_RETURN_IF_ERROR(reader.AddPlaceholder(name));
    } else if (absl::StartsWith(kind, "as_sym_") && content.is_object() && content.Has("as_name")) {
      DDPOPT_ASSIGN_OR_RETURN(const std::string name, content.String("as_name"));
      DDPOPT_RETURN_IF_ERROR(reader.AddPlaceholder(name));
    } else {  // a value that the graph holds as a constant
      module->graph().Placeholder(absl::StrCat("arg_", i));
    }
  }
  DDPOPT_ASSIGN_OR_RETURN(const JsonView nodes, graph.Array("nodes"));
  DDPOPT_RETURN_IF_ERROR(reader.ReadNodes(nodes));
  DDPOPT_ASSIGN_OR_RETURN(const JsonView outputs, graph.Array("outputs"));
  std::vector<Argument> results;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    DDPOPT_ASSIGN_OR_RETURN(Argument result, reader.ReadArgument(outputs[i]));
    results.push_back(std::move(result));
  }
  DDPOPT_ASSIGN_OR_RETURN(const bool single, graph.BoolOr("is_single_tensor_return", false));
  if (single && results.size() != 1) return outputs.Expected("one output, as is_single_tensor_return says");
  module->graph().Output(single ? results[0] : Argument::Tuple(std::move(results)));
  return module;
}

}  // namespace ddpopt::pt2
