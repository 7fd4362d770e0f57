#include "fx_graph/text/json.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "ATen/core/List.h"
#include "ATen/core/Dict.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/jit_type.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "c10/core/CPUAllocator.h"
#include "c10/core/Storage.h"
#include "fx_graph/constants.h"
#include "fx_graph/format.h"
#include "fx_graph/tensor_meta.h"
#include "fx_graph/text/json_constants.h"
#include "fx_graph/text/json_view.h"
#include "nlohmann/json.hpp"

namespace ddpopt::fx {
namespace {

using Json = nlohmann::ordered_json;  // keeps the order of fields
using AttrKind = GraphModule::AttrKind;

constexpr char kFormat[] = "ddpopt.fx";
constexpr int kMaxDepth = 200;  // of nested values and types

const char* AttrKindName(AttrKind kind) {
  switch (kind) {
    case AttrKind::kParameter:
      return "parameter";
    case AttrKind::kBuffer:
      return "buffer";
    case AttrKind::kConstant:
      return "constant";
  }
  return "unknown";
}

// The paths of a map of attributes or submodules in the order in which they were added.
template <typename Map>
std::vector<typename Map::const_iterator> InOrder(const Map& map) {
  std::vector<typename Map::const_iterator> entries;
  for (auto it = map.begin(); it != map.end(); ++it) entries.push_back(it);
  std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a->second.order < b->second.order; });
  return entries;
}

// --- Element types of constant lists and dicts: "int", "Optional[Tensor]", "List[int]" ---

struct NamedType {
  const char* name;
  c10::TypePtr type;
};

const std::vector<NamedType>& NamedTypes() {
  static const auto* types = new std::vector<NamedType>{
      {"int", c10::IntType::get()},         {"float", c10::FloatType::get()},   {"bool", c10::BoolType::get()},
      {"complex", c10::ComplexType::get()}, {"str", c10::StringType::get()},    {"Tensor", c10::TensorType::get()},
      {"Device", c10::DeviceObjType::get()}, {"Any", c10::AnyType::get()},      {"Scalar", c10::NumberType::get()}};
  return *types;
}

absl::StatusOr<std::string> TypeName(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::OptionalType || type->kind() == c10::TypeKind::ListType) {
    DDPOPT_ASSIGN_OR_RETURN(const std::string element, TypeName(type->containedTypes()[0]));
    return absl::StrCat(type->kind() == c10::TypeKind::OptionalType ? "Optional[" : "List[", element, "]");
  }
  for (const NamedType& named : NamedTypes()) {
    if (named.type->kind() == type->kind()) return std::string(named.name);
  }
  return absl::UnimplementedError(absl::StrCat("a list or dict of ", type->str(), " has no JSON form"));
}

c10::TypePtr TypeFromName(absl::string_view name, int depth = 0) {
  for (const NamedType& named : NamedTypes()) {
    if (name == named.name) return named.type;
  }
  if (depth > kMaxDepth || !absl::ConsumeSuffix(&name, "]")) return nullptr;
  const bool optional = absl::ConsumePrefix(&name, "Optional[");
  if (!optional && !absl::ConsumePrefix(&name, "List[")) return nullptr;
  const c10::TypePtr element = TypeFromName(name, depth + 1);
  if (element == nullptr) return nullptr;
  return optional ? c10::TypePtr(c10::OptionalType::create(element)) : c10::TypePtr(c10::ListType::create(element));
}

bool IsOfType(const c10::IValue& value, const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::IntType:
      return value.isInt();
    case c10::TypeKind::FloatType:
      return value.isDouble();
    case c10::TypeKind::BoolType:
      return value.isBool();
    case c10::TypeKind::ComplexType:
      return value.isComplexDouble();
    case c10::TypeKind::StringType:
      return value.isString();
    case c10::TypeKind::TensorType:
      return value.isTensor();
    case c10::TypeKind::DeviceObjType:
      return value.isDevice();
    case c10::TypeKind::NumberType:
      return value.isScalar();
    case c10::TypeKind::AnyType:
      return true;
    case c10::TypeKind::OptionalType:
      return value.isNone() || IsOfType(value, *type.containedTypes()[0]);
    case c10::TypeKind::ListType:
      return value.isList() && *value.toList().elementType() == *type.containedTypes()[0];
    default:
      return false;
  }
}

// --- Writing ---

class Writer {
 public:
  explicit Writer(const ToJsonOptions& options) : options_(options) {}

  absl::StatusOr<std::string> Write(const GraphModule& module) {
    absl::StrAppend(&out_, Head("module"), "\"modules\": [");
    DDPOPT_RETURN_IF_ERROR(WriteModule(module).status());
    out_.append("\n],\n");
    return Finish();
  }

  absl::StatusOr<std::string> Write(const Graph& graph) {
    absl::StrAppend(&out_, Head("graph"), "\"nodes\": [");
    DDPOPT_RETURN_IF_ERROR(WriteNodes(graph));
    out_.append("],\n");
    return Finish();
  }

 private:
  static std::string Head(const char* kind) {
    return absl::StrCat("{\"format\": \"", kFormat, "\", \"version\": ", kJsonVersion, ", \"kind\": \"", kind, "\",\n");
  }

  std::string Finish() {
    const auto append = [this](const char* key, const std::vector<Json>& entries) {
      absl::StrAppend(&out_, "\"", key, "\": [");
      for (std::size_t i = 0; i < entries.size(); ++i) absl::StrAppend(&out_, i == 0 ? "\n" : ",\n", entries[i].dump());
      out_.append("]");
    };
    append("tensors", tensors_);
    out_.append(",\n");
    append("storages", storages_);
    out_.append("}\n");
    return std::move(out_);
  }

  // Children first; the module's index.
  absl::StatusOr<std::size_t> WriteModule(const GraphModule& module) {
    const auto known = modules_.find(&module);
    if (known != modules_.end()) {
      if (known->second == kUnfinished) return absl::UnimplementedError("a module that contains itself has no JSON form");
      return known->second;
    }
    modules_[&module] = kUnfinished;
    Json submodules = Json::array();
    for (const auto& entry : InOrder(module.submodules())) {
      const auto& [path, submodule] = *entry;
      if (submodule.graph_module == nullptr || submodule.callable != nullptr) {
        return absl::UnimplementedError(absl::StrCat("submodule \"", path, "\" is a compiled callable, which JSON can't hold"));
      }
      absl::StatusOr<std::size_t> index = WriteModule(*submodule.graph_module);
      if (!index.ok()) return Annotate(index.status(), absl::StrCat("in submodule \"", path, "\""));
      submodules.push_back(Json{{"path", path}, {"module", *index}});
    }
    absl::StrAppend(&out_, modules_written_ == 0 ? "\n" : ",\n", "{\"nodes\": [");
    DDPOPT_RETURN_IF_ERROR(WriteNodes(module.graph()));
    Json attributes = Json::array();
    for (const auto& entry : InOrder(module.attrs())) {
      const auto& [path, attr] = *entry;
      absl::StatusOr<Json> value = Constant(attr.value, 0);
      if (!value.ok()) return Annotate(value.status(), absl::StrCat("attribute \"", path, "\""));
      attributes.push_back(Json{{"path", path}, {"kind", AttrKindName(attr.kind)}, {"value", *std::move(value)}});
    }
    DDPOPT_ASSIGN_OR_RETURN(const Json meta, Entries(module.meta(), "the module's meta"));
    absl::StrAppend(&out_, "],\n\"attributes\": ", attributes.dump(), ",\n\"submodules\": ", submodules.dump(),
                    ",\n\"meta\": ", meta.dump(), "}");
    return modules_[&module] = modules_written_++;
  }

  absl::Status WriteNodes(const Graph& graph) {
    const char* separator = "\n";
    for (const Node* node : graph.nodes()) {
      absl::StatusOr<Json> json = NodeJson(*node);
      if (!json.ok()) return Annotate(json.status(), absl::StrCat("node %", absl::string_view(node->name())));
      absl::StrAppend(&out_, separator, json->dump());
      separator = ",\n";
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Json> NodeJson(const Node& node) {
    Json json = {{"name", std::string(node.name())}, {"op", OpName(node.op())}};
    if (node.op() == Op::kCallFunction) {
      if (const auto* op = std::get_if<OperatorTarget>(&node.target())) {
        const c10::OperatorName& name = op->op.operator_name();
        json["target"] = Json{{"operator", name.overload_name.empty() ? name.name : absl::StrCat(name.name, ".", name.overload_name)}};
      } else if (const auto* higher_order = std::get_if<HigherOrderTarget>(&node.target())) {
        json["target"] = Json{{"higher_order", higher_order->name}};
      } else if (const auto* opaque = std::get_if<OpaqueTarget>(&node.target())) {
        json["target"] = Json{{"opaque", opaque->text}};
      } else {
        return absl::InvalidArgumentError("a call_function node needs a function as its target");
      }
    } else {
      json["target"] = TargetToString(node.target());
    }
    if (!node.args().empty()) {
      Json args = Json::array();
      for (const Argument& argument : node.args()) {
        DDPOPT_ASSIGN_OR_RETURN(Json value, Value(argument, 0));
        args.push_back(std::move(value));
      }
      json["args"] = std::move(args);
    }
    if (!node.kwargs().empty()) {
      Json kwargs = Json::array();
      for (const auto& entry : node.kwargs()) {
        DDPOPT_ASSIGN_OR_RETURN(Json value, Value(entry.second, 0));
        kwargs.push_back(Json::array({std::string(entry.first), std::move(value)}));
      }
      json["kwargs"] = std::move(kwargs);
    }
    const NodeMeta& meta = node.meta();
    if (!meta.type_expr.empty()) json["type"] = meta.type_expr;
    Json fields = Json::object();
    if (!meta.val.isNone()) {
      absl::StatusOr<Json> value = Constant(meta.val, 0);
      if (!value.ok()) return Annotate(value.status(), "meta val");
      fields["val"] = *std::move(value);
    }
    if (!meta.nn_module.empty()) fields["nn_module"] = meta.nn_module;
    if (meta.is_parameter) fields["is_parameter"] = true;
    if (meta.is_buffer) fields["is_buffer"] = true;
    if (!meta.stack_trace.empty()) {
      DDPOPT_ASSIGN_OR_RETURN(fields["stack_trace"], String(meta.stack_trace));
    }
    for (const auto& [path, class_name] : meta.nn_module_stack) fields["nn_module_stack"].push_back(Json::array({path, class_name}));
    for (const NodeSource& source : meta.from_node) {
      fields["from_node"].push_back(Json{{"name", source.name}, {"target", source.target}, {"pass", source.pass_name}});
    }
    if (!meta.custom.empty()) {
      DDPOPT_ASSIGN_OR_RETURN(fields["custom"], Entries(meta.custom, "meta custom"));
    }
    if (!fields.empty()) json["meta"] = std::move(fields);
    return json;
  }

  template <typename Map>
  absl::StatusOr<Json> Entries(const Map& map, absl::string_view what) {
    Json entries = Json::array();
    for (const auto& [key, value] : map) {
      absl::StatusOr<Json> json = Constant(value, 0);
      if (!json.ok()) return Annotate(json.status(), absl::StrCat(what, " \"", key, "\""));
      entries.push_back(Json::array({key, *std::move(json)}));
    }
    return entries;
  }

  absl::StatusOr<Json> Value(const Argument& argument, int depth) {
    if (depth > kMaxDepth) return TooDeep();
    Json elements = Json::array();
    switch (argument.kind()) {
      case Argument::Kind::kNone:
        return Json();
      case Argument::Kind::kNode:
        return Json{{"node", std::string(argument.node()->name())}};
      case Argument::Kind::kConstant:
        return Constant(argument.constant(), depth);
      case Argument::Kind::kDict:
        for (std::size_t i = 0; i + 1 < argument.elements().size(); i += 2) {
          DDPOPT_ASSIGN_OR_RETURN(Json key, Value(argument.elements()[i], depth + 1));
          DDPOPT_ASSIGN_OR_RETURN(Json value, Value(argument.elements()[i + 1], depth + 1));
          elements.push_back(Json::array({std::move(key), std::move(value)}));
        }
        return Json{{"dict", std::move(elements)}};
      case Argument::Kind::kList:
      case Argument::Kind::kTuple:
      case Argument::Kind::kSlice:
        break;
    }
    for (const Argument& element : argument.elements()) {
      DDPOPT_ASSIGN_OR_RETURN(Json value, Value(element, depth + 1));
      elements.push_back(std::move(value));
    }
    if (argument.kind() == Argument::Kind::kList) return elements;
    return Json{{argument.kind() == Argument::Kind::kTuple ? "tuple" : "slice", std::move(elements)}};
  }

  static absl::Status TooDeep() {
    return absl::UnimplementedError(absl::StrCat("values nested more than ", kMaxDepth, " levels deep have no JSON form"));
  }

  static Json Float(double value) {
    if (std::isfinite(value)) return Json(value);
    std::string text;
    AppendPythonFloat(value, &text);
    return Json{{"float", text}};
  }

  // A constant; null for None.
  absl::StatusOr<Json> Constant(const c10::IValue& value, int depth) {
    if (depth > kMaxDepth) return TooDeep();
    if (value.isNone()) return Json();
    if (value.isBool()) return Json(value.toBool());
    if (value.isInt()) return Json(value.toInt());
    if (value.isDouble()) return Float(value.toDouble());
    if (value.isComplexDouble()) {
      const c10::complex<double> number = value.toComplexDouble();
      return Json{{"complex", Json::array({Float(number.real()), Float(number.imag())})}};
    }
    if (value.isString()) return String(value.toStringRef());
    if (value.isDevice()) return Json{{"device", value.toDevice().str()}};
    if (value.isTensor()) return Tensor(value.toTensor());
    if (value.isList()) {
      const c10::impl::GenericList list = value.toList();
      DDPOPT_ASSIGN_OR_RETURN(const std::string type, TypeName(list.elementType()));
      Json elements = Json::array();
      for (const c10::IValue& element : value.toListRef()) {
        DDPOPT_ASSIGN_OR_RETURN(Json json, Constant(element, depth + 1));
        elements.push_back(std::move(json));
      }
      return Json{{"constant_list", Json::array({type, std::move(elements)})}};
    }
    if (value.isTuple()) {
      Json elements = Json::array();
      for (const c10::IValue& element : value.toTupleRef().elements()) {
        DDPOPT_ASSIGN_OR_RETURN(Json json, Constant(element, depth + 1));
        elements.push_back(std::move(json));
      }
      return Json{{"constant_tuple", std::move(elements)}};
    }
    if (value.isGenericDict()) {
      const c10::impl::GenericDict dict = value.toGenericDict();
      DDPOPT_ASSIGN_OR_RETURN(const std::string key_type, TypeName(dict.keyType()));
      DDPOPT_ASSIGN_OR_RETURN(const std::string value_type, TypeName(dict.valueType()));
      Json elements = Json::array();
      for (const auto& entry : dict) {
        DDPOPT_ASSIGN_OR_RETURN(Json key, Constant(entry.key(), depth + 1));
        DDPOPT_ASSIGN_OR_RETURN(Json json, Constant(entry.value(), depth + 1));
        elements.push_back(Json::array({std::move(key), std::move(json)}));
      }
      return Json{{"constant_dict", Json::array({key_type, value_type, std::move(elements)})}};
    }
    if (const TypedConstant* constant = AsTypedConstant(value)) {
      switch (constant->kind) {
        case TypedConstant::Kind::kDtype:
          return Json{{"dtype", std::string(DtypeName(static_cast<c10::ScalarType>(constant->value)))}};
        case TypedConstant::Kind::kLayout:
          return Json{{"layout", std::string(LayoutName(static_cast<c10::Layout>(constant->value)))}};
        case TypedConstant::Kind::kMemoryFormat:
          return Json{{"memory_format", std::string(MemoryFormatName(static_cast<c10::MemoryFormat>(constant->value)))}};
        case TypedConstant::Kind::kEllipsis:
          return Json{{"ellipsis", true}};
        case TypedConstant::Kind::kOpaque: {
          DDPOPT_ASSIGN_OR_RETURN(Json text, String(constant->text));
          DDPOPT_ASSIGN_OR_RETURN(Json type_name, String(constant->type_name));
          return Json{{"opaque", Json::array({std::move(text), std::move(type_name)})}};
        }
      }
    }
    return absl::UnimplementedError(absl::StrCat("a constant of kind ", value.tagKind(), " has no JSON form"));
  }

  // Bytes that are no UTF-8 can't be JSON text.
  static absl::StatusOr<Json> String(const std::string& text) {
    try {
      Json json(text);
      (void)json.dump();
      return json;
    } catch (const Json::exception&) {
      return Json{{"bytes", absl::Base64Escape(text)}};
    }
  }

  absl::StatusOr<Json> Tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) return Json{{"undefined_tensor", true}};
    const auto known = tensor_index_.find(tensor.unsafeGetTensorImpl());
    if (known != tensor_index_.end()) return Json{{"tensor", known->second}};
    if (tensor.is_conj() || tensor.is_neg())
      return absl::UnimplementedError("a tensor with a lazy conjugation or negation has no JSON form");
    DDPOPT_ASSIGN_OR_RETURN(const TensorMeta meta, DescribeTensor(tensor));
    DDPOPT_ASSIGN_OR_RETURN(const std::size_t storage, Storage(tensor.storage(), meta));
    Json json = {{"dtype", std::string(DtypeName(meta.dtype))}, {"sizes", meta.sizes}, {"strides", meta.strides}, {"storage", storage}};
    if (meta.storage_offset != 0) json["offset"] = meta.storage_offset;
    if (meta.requires_grad) json["requires_grad"] = true;
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) json["wrapped_number"] = true;
    const std::size_t index = tensors_.size();
    tensors_.push_back(std::move(json));
    tensor_index_[tensor.unsafeGetTensorImpl()] = index;
    return Json{{"tensor", index}};
  }

  absl::StatusOr<std::size_t> Storage(const c10::Storage& storage, const TensorMeta& meta) {
    const auto known = storage_index_.find(storage.unsafeGetStorageImpl());
    if (known != storage_index_.end()) return known->second;
    Json json = {{"device", meta.device.str()}, {"nbytes", meta.storage_nbytes}};
    const void* data = DataOf(storage);
    if (data != nullptr && meta.storage_nbytes > 0) {
      if (meta.device.is_cpu() && meta.storage_nbytes <= options_.max_data_bytes) {
        json["data"] = absl::Base64Escape(absl::string_view(static_cast<const char*>(data), static_cast<std::size_t>(meta.storage_nbytes)));
      } else if (!options_.drop_large_data) {
        return absl::FailedPreconditionError(absl::StrCat(
            "its storage of ", meta.storage_nbytes, " bytes on ", meta.device.str(), " can't be kept (up to ", options_.max_data_bytes,
            " bytes on the CPU are); drop_large_data keeps the form alone"));
      }
    }
    const std::size_t index = storages_.size();
    storages_.push_back(std::move(json));
    storage_index_[storage.unsafeGetStorageImpl()] = index;
    return index;
  }

  // Null for storages without data: of meta and hollow tensors, of fakes.
  static const void* DataOf(const c10::Storage& storage) {
    if (storage.device().is_meta()) return nullptr;
    try {
      return storage.data();
    } catch (const std::exception&) {
      return nullptr;
    }
  }

  static constexpr std::size_t kUnfinished = ~std::size_t{0};

  const ToJsonOptions options_;
  std::string out_;
  absl::flat_hash_map<const GraphModule*, std::size_t> modules_;
  std::size_t modules_written_ = 0;
  std::vector<Json> tensors_, storages_;
  absl::flat_hash_map<const c10::TensorImpl*, std::size_t> tensor_index_;
  absl::flat_hash_map<const c10::StorageImpl*, std::size_t> storage_index_;
};

// --- Reading ---

class Reader {
 public:
  explicit Reader(const JsonValue& document) : root_(document) {}

  absl::StatusOr<std::shared_ptr<GraphModule>> ReadModule() {
    DDPOPT_RETURN_IF_ERROR(ReadHead());
    if (kind_ != "module") return root_.Error("holds a graph, not a module");
    DDPOPT_RETURN_IF_ERROR(root_.ExpectKeys({"format", "version", "kind", "modules", "tensors", "storages"}));
    DDPOPT_RETURN_IF_ERROR(ReadTensors());
    DDPOPT_ASSIGN_OR_RETURN(const JsonView modules, root_.Array("modules"));
    if (modules.size() == 0) return modules.Error("holds no module");
    for (std::size_t i = 0; i < modules.size(); ++i) {
      DDPOPT_ASSIGN_OR_RETURN(std::shared_ptr<GraphModule> module, ReadModule(modules[i]));
      modules_.push_back(std::move(module));
    }
    if (absl::Status lint = modules_.back()->Lint(); !lint.ok()) return modules[modules.size() - 1].Error(lint.message());
    return modules_.back();
  }

  absl::StatusOr<std::unique_ptr<Graph>> ReadGraph() {
    DDPOPT_RETURN_IF_ERROR(ReadHead());
    DDPOPT_RETURN_IF_ERROR(ReadTensors());
    auto graph = std::make_unique<Graph>();
    if (kind_ == "graph") {
      DDPOPT_RETURN_IF_ERROR(root_.ExpectKeys({"format", "version", "kind", "nodes", "tensors", "storages"}));
      DDPOPT_ASSIGN_OR_RETURN(const JsonView nodes, root_.Array("nodes"));
      DDPOPT_RETURN_IF_ERROR(ReadNodes(nodes, graph.get()));
    } else {
      DDPOPT_ASSIGN_OR_RETURN(const JsonView modules, root_.Array("modules"));
      if (modules.size() == 0) return modules.Error("holds no module");
      const JsonView outer = modules[modules.size() - 1];
      DDPOPT_ASSIGN_OR_RETURN(const JsonView nodes, outer.Array("nodes"));
      DDPOPT_RETURN_IF_ERROR(ReadNodes(nodes, graph.get()));
    }
    if (absl::Status lint = graph->Lint(); !lint.ok()) return root_.Error(lint.message());
    return graph;
  }

 private:
  absl::Status ReadHead() {
    DDPOPT_ASSIGN_OR_RETURN(const std::string format, root_.String("format"));
    if (format != kFormat) return root_.Error("has the format \"", absl::CHexEscape(format), "\", not \"", kFormat, "\"");
    DDPOPT_ASSIGN_OR_RETURN(const int64_t version, root_.Int("version"));
    if (version != kJsonVersion) {
      return root_.Error("has version ", version, " of the format ", kFormat, ", which this build does not know; it reads version ",
                         kJsonVersion);
    }
    DDPOPT_ASSIGN_OR_RETURN(kind_, root_.String("kind"));
    if (kind_ != "module" && kind_ != "graph")
      return root_.Error("the kind must be \"module\" or \"graph\", not \"", absl::CHexEscape(kind_), "\"");
    return absl::OkStatus();
  }

  absl::Status ReadTensors() {
    DDPOPT_ASSIGN_OR_RETURN(const JsonView storages, root_.Array("storages"));
    struct StorageEntry {
      c10::Device device = c10::Device(c10::DeviceType::CPU);
      int64_t nbytes = 0;
      c10::Storage storage;  // unset until a tensor without data makes one
      bool has_data = false;
    };
    std::vector<StorageEntry> entries(storages.size());
    for (std::size_t i = 0; i < storages.size(); ++i) {
      const JsonView view = storages[i];
      DDPOPT_RETURN_IF_ERROR(view.ExpectKeys({"device", "nbytes", "data"}));
      DDPOPT_ASSIGN_OR_RETURN(const JsonView device, view.At("device"));
      DDPOPT_ASSIGN_OR_RETURN(entries[i].device, JsonDevice(device));
      DDPOPT_ASSIGN_OR_RETURN(entries[i].nbytes, view.Int("nbytes"));
      if (entries[i].nbytes < 0) return view.Error("a storage can't have ", entries[i].nbytes, " bytes");
      if (!view.Has("data")) continue;
      DDPOPT_ASSIGN_OR_RETURN(const JsonView data, view.At("data"));
      DDPOPT_ASSIGN_OR_RETURN(const std::string bytes, Base64(data));
      if (static_cast<int64_t>(bytes.size()) != entries[i].nbytes)
        return data.Error("holds ", bytes.size(), " bytes, not ", entries[i].nbytes);
      if (!entries[i].device.is_cpu())
        return data.Error("only storages on the CPU can have data here, not one on ", entries[i].device.str());
      DDPOPT_RETURN_IF_ERROR(CatchAsStatus(data.Path(), [&] {
        entries[i].storage = c10::Storage(c10::Storage::use_byte_size_t(), bytes.size(), c10::GetCPUAllocator(), /*resizable=*/true);
        std::memcpy(entries[i].storage.mutable_data(), bytes.data(), bytes.size());
      }));
      entries[i].has_data = true;
    }

    DDPOPT_ASSIGN_OR_RETURN(const JsonView tensors, root_.Array("tensors"));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const JsonView view = tensors[i];
      DDPOPT_RETURN_IF_ERROR(view.ExpectKeys({"dtype", "sizes", "strides", "storage", "offset", "requires_grad", "wrapped_number"}));
      TensorMeta meta;
      DDPOPT_ASSIGN_OR_RETURN(const std::string dtype, view.String("dtype"));
      if (!DtypeFromName(dtype, &meta.dtype)) return view.Error("there is no dtype \"", absl::CHexEscape(dtype), "\"");
      DDPOPT_ASSIGN_OR_RETURN(const JsonView sizes, view.At("sizes"));
      DDPOPT_ASSIGN_OR_RETURN(meta.sizes, sizes.AsInts());
      DDPOPT_ASSIGN_OR_RETURN(const JsonView strides, view.At("strides"));
      DDPOPT_ASSIGN_OR_RETURN(meta.strides, strides.AsInts());
      DDPOPT_ASSIGN_OR_RETURN(meta.storage_offset, view.IntOr("offset", 0));
      DDPOPT_ASSIGN_OR_RETURN(meta.requires_grad, view.BoolOr("requires_grad", false));
      DDPOPT_ASSIGN_OR_RETURN(const int64_t storage, view.Int("storage"));
      if (storage < 0 || static_cast<std::size_t>(storage) >= entries.size()) {
        return view.Error("there is no storage ", storage, " among the ", entries.size());
      }
      StorageEntry& entry = entries[static_cast<std::size_t>(storage)];
      meta.device = entry.device;
      meta.storage_nbytes = entry.nbytes;
      absl::StatusOr<at::Tensor> tensor = entry.storage ? TensorOver(meta, entry.storage) : HollowTensor(meta);
      if (!tensor.ok()) return view.Error(tensor.status().message());
      if (!entry.storage) entry.storage = tensor->storage();
      DDPOPT_ASSIGN_OR_RETURN(const bool wrapped_number, view.BoolOr("wrapped_number", false));
      if (wrapped_number) {
        if (!meta.sizes.empty()) return view.Error("only a tensor without dimensions can be a wrapped number");
        tensor->unsafeGetTensorImpl()->set_wrapped_number(true);
      }
      tensors_.push_back(*std::move(tensor));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<GraphModule>> ReadModule(const JsonView& view) {
    DDPOPT_RETURN_IF_ERROR(view.ExpectKeys({"nodes", "attributes", "submodules", "meta"}));
    auto module = std::make_shared<GraphModule>();
    DDPOPT_ASSIGN_OR_RETURN(const JsonView nodes, view.Array("nodes"));
    DDPOPT_RETURN_IF_ERROR(ReadNodes(nodes, &module->graph()));
    DDPOPT_ASSIGN_OR_RETURN(const JsonView attributes, view.Array("attributes"));
    for (std::size_t i = 0; i < attributes.size(); ++i) {
      const JsonView attribute = attributes[i];
      DDPOPT_RETURN_IF_ERROR(attribute.ExpectKeys({"path", "kind", "value"}));
      DDPOPT_ASSIGN_OR_RETURN(const std::string path, attribute.String("path"));
      DDPOPT_ASSIGN_OR_RETURN(const std::string kind_name, attribute.String("kind"));
      const AttrKind kinds[] = {AttrKind::kParameter, AttrKind::kBuffer, AttrKind::kConstant};
      const auto kind = std::find_if(std::begin(kinds), std::end(kinds), [&](AttrKind k) { return kind_name == AttrKindName(k); });
      if (kind == std::end(kinds)) return attribute.Error("there is no kind of attribute \"", absl::CHexEscape(kind_name), "\"");
      DDPOPT_ASSIGN_OR_RETURN(const JsonView value, attribute.At("value"));
      DDPOPT_ASSIGN_OR_RETURN(c10::IValue constant, Constant(value));
      if (absl::Status added = module->AddAttr(path, std::move(constant), *kind); !added.ok()) return attribute.Error(added.message());
    }
    DDPOPT_ASSIGN_OR_RETURN(const JsonView submodules, view.Array("submodules"));
    for (std::size_t i = 0; i < submodules.size(); ++i) {
      const JsonView submodule = submodules[i];
      DDPOPT_RETURN_IF_ERROR(submodule.ExpectKeys({"path", "module"}));
      DDPOPT_ASSIGN_OR_RETURN(const std::string path, submodule.String("path"));
      DDPOPT_ASSIGN_OR_RETURN(const int64_t index, submodule.Int("module"));
      if (index < 0 || static_cast<std::size_t>(index) >= modules_.size()) {
        return submodule.Error("module ", index, " is not among the ", modules_.size(), " before this one");
      }
      GraphModule::Submodule entry;
      entry.graph_module = modules_[static_cast<std::size_t>(index)];
      if (absl::Status added = module->AddSubmodule(path, std::move(entry)); !added.ok()) return submodule.Error(added.message());
    }
    DDPOPT_ASSIGN_OR_RETURN(const JsonView meta, view.At("meta"));
    DDPOPT_RETURN_IF_ERROR(ReadEntries(meta, &module->meta()));
    return module;
  }

  absl::Status ReadNodes(const JsonView& nodes, Graph* graph) {
    by_name_.clear();
    by_name_.reserve(nodes.size());
    bool has_output = false;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const JsonView view = nodes[i];
      if (has_output) return view.Error("comes after the output");
      DDPOPT_ASSIGN_OR_RETURN(const Node* node, ReadNode(view, graph));
      has_output = node->op() == Op::kOutput;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<const Node*> ReadNode(const JsonView& view, Graph* graph) {
    DDPOPT_RETURN_IF_ERROR(view.ExpectKeys({"name", "op", "target", "args", "kwargs", "type", "meta"}));
    DDPOPT_ASSIGN_OR_RETURN(const std::string name, view.String("name"));
    DDPOPT_ASSIGN_OR_RETURN(const std::string op_name, view.String("op"));
    const Op ops[] = {Op::kPlaceholder, Op::kGetAttr, Op::kCallFunction, Op::kCallMethod, Op::kCallModule, Op::kOutput};
    const Op* op = std::find_if(std::begin(ops), std::end(ops), [&](Op o) { return op_name == OpName(o); });
    if (op == std::end(ops)) return view.Error("\"", absl::CHexEscape(op_name), "\" is no kind of node");
    DDPOPT_ASSIGN_OR_RETURN(const JsonView target_view, view.At("target"));
    DDPOPT_ASSIGN_OR_RETURN(Target target, ReadTarget(target_view, *op));
    std::vector<Argument> args;
    if (view.Has("args")) {
      DDPOPT_ASSIGN_OR_RETURN(const JsonView values, view.Array("args"));
      DDPOPT_ASSIGN_OR_RETURN(args, Values(values));
    }
    Kwargs kwargs;
    if (view.Has("kwargs")) {
      DDPOPT_ASSIGN_OR_RETURN(const JsonView pairs, view.Array("kwargs"));
      for (std::size_t i = 0; i < pairs.size(); ++i) {
        const JsonView pair = pairs[i];
        if (!pair.is_array() || pair.size() != 2) return pair.Expected("a name and a value");
        DDPOPT_ASSIGN_OR_RETURN(std::string key, pair[0].AsString());
        const auto is_key = [&](const auto& entry) { return absl::string_view(entry.first) == key; };
        if (std::any_of(kwargs.begin(), kwargs.end(), is_key))
          return pair.Error("the argument \"", absl::CHexEscape(key), "\" is repeated");
        DDPOPT_ASSIGN_OR_RETURN(Argument value, Value(pair[1]));
        kwargs.emplace_back(std::move(key), std::move(value));
      }
    }
    if (*op == Op::kOutput && (args.size() != 1 || !kwargs.empty())) return view.Error("an output has exactly one argument");
    if (by_name_.contains(name)) return view.Error("the name \"", name, "\" is taken by an earlier node");
    Node* node = graph->CreateNode(*op, std::move(target), std::move(args), std::move(kwargs), name);
    if (absl::string_view(node->name()) != name) {
      return view.Error("a node can't be named \"", absl::CHexEscape(name), "\"; \"", absl::string_view(node->name()), "\" would do");
    }
    by_name_[name] = node;
    if (view.Has("type")) {
      DDPOPT_ASSIGN_OR_RETURN(node->meta().type_expr, view.String("type"));
    }
    if (view.Has("meta")) {
      DDPOPT_ASSIGN_OR_RETURN(const JsonView meta, view.At("meta"));
      DDPOPT_RETURN_IF_ERROR(ReadMeta(meta, &node->meta()));
    }
    return node;
  }

  absl::Status ReadMeta(const JsonView& view, NodeMeta* meta) {
    DDPOPT_RETURN_IF_ERROR(
        view.ExpectKeys({"val", "nn_module", "is_parameter", "is_buffer", "stack_trace", "nn_module_stack", "from_node", "custom"}));
    if (view.Has("val")) {
      DDPOPT_ASSIGN_OR_RETURN(const JsonView val, view.At("val"));
      DDPOPT_ASSIGN_OR_RETURN(meta->val, Constant(val));
    }
    DDPOPT_ASSIGN_OR_RETURN(meta->nn_module, view.StringOr("nn_module", ""));
    DDPOPT_ASSIGN_OR_RETURN(meta->is_parameter, view.BoolOr("is_parameter", false));
    DDPOPT_ASSIGN_OR_RETURN(meta->is_buffer, view.BoolOr("is_buffer", false));
    if (view.Has("stack_trace")) {
      DDPOPT_ASSIGN_OR_RETURN(const JsonView stack_trace, view.At("stack_trace"));
      DDPOPT_ASSIGN_OR_RETURN(const c10::IValue text, Constant(stack_trace));
      if (!text.isString()) return stack_trace.Expected("a text");
      meta->stack_trace = text.toStringRef();
    }
    if (view.Has("nn_module_stack")) {
      DDPOPT_ASSIGN_OR_RETURN(const JsonView stack, view.Array("nn_module_stack"));
      for (std::size_t i = 0; i < stack.size(); ++i) {
        const JsonView pair = stack[i];
        if (!pair.is_array() || pair.size() != 2) return pair.Expected("a path and a class");
        DDPOPT_ASSIGN_OR_RETURN(std::string path, pair[0].AsString());
        DDPOPT_ASSIGN_OR_RETURN(std::string class_name, pair[1].AsString());
        meta->nn_module_stack.emplace_back(std::move(path), std::move(class_name));
      }
    }
    if (view.Has("from_node")) {
      DDPOPT_ASSIGN_OR_RETURN(const JsonView sources, view.Array("from_node"));
      for (std::size_t i = 0; i < sources.size(); ++i) {
        const JsonView fields = sources[i];
        DDPOPT_RETURN_IF_ERROR(fields.ExpectKeys({"name", "target", "pass"}));
        NodeSource source;
        DDPOPT_ASSIGN_OR_RETURN(source.name, fields.String("name"));
        DDPOPT_ASSIGN_OR_RETURN(source.target, fields.String("target"));
        DDPOPT_ASSIGN_OR_RETURN(source.pass_name, fields.String("pass"));
        meta->from_node.push_back(std::move(source));
      }
    }
    if (view.Has("custom")) {
      DDPOPT_ASSIGN_OR_RETURN(const JsonView custom, view.At("custom"));
      DDPOPT_RETURN_IF_ERROR(ReadEntries(custom, &meta->custom));
    }
    return absl::OkStatus();
  }

  template <typename Map>
  absl::Status ReadEntries(const JsonView& view, Map* map) {
    DDPOPT_RETURN_IF_ERROR(view.ExpectArray());
    for (std::size_t i = 0; i < view.size(); ++i) {
      const JsonView pair = view[i];
      if (!pair.is_array() || pair.size() != 2) return pair.Expected("a key and a value");
      DDPOPT_ASSIGN_OR_RETURN(std::string key, pair[0].AsString());
      DDPOPT_ASSIGN_OR_RETURN(c10::IValue value, Constant(pair[1]));
      if (!map->emplace(std::move(key), std::move(value)).second) return pair.Error("the key is repeated");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Target> ReadTarget(const JsonView& view, Op op) {
    if (op != Op::kCallFunction) {
      DDPOPT_ASSIGN_OR_RETURN(std::string text, view.AsString());
      if (op == Op::kCallMethod) return Target(MethodTarget{std::move(text)});
      return Target(PathTarget{std::move(text)});
    }
    if (!view.is_object() || view.size() != 1 || !view[0].is_string())
      return view.Expected("an operator, a higher-order or an opaque target");
    const std::string& kind = view.KeyAt(0);
    const std::string& text = view[0].value().text;
    if (kind == "higher_order") return Target(HigherOrderTarget{text});
    if (kind == "opaque") return Target(OpaqueTarget{text});
    if (kind != "operator") return view.Expected("an operator, a higher-order or an opaque target");
    const auto cached = operators_.find(text);
    if (cached != operators_.end()) return Target(OperatorTarget{cached->second});
    const std::size_t dot = text.find('.');
    const auto op_handle =
        c10::Dispatcher::singleton().findSchema({text.substr(0, dot), dot == std::string::npos ? "" : text.substr(dot + 1)});
    if (!op_handle.has_value()) return view.Error("this LibTorch has no operator ", absl::CHexEscape(text));
    operators_.emplace(text, *op_handle);
    return Target(OperatorTarget{*op_handle});
  }

  absl::StatusOr<std::vector<Argument>> Values(const JsonView& view) {
    DDPOPT_RETURN_IF_ERROR(view.ExpectArray());
    std::vector<Argument> values;
    values.reserve(view.size());
    for (std::size_t i = 0; i < view.size(); ++i) {
      DDPOPT_ASSIGN_OR_RETURN(Argument value, Value(view[i]));
      values.push_back(std::move(value));
    }
    return values;
  }

  absl::StatusOr<Argument> Value(const JsonView& view) {
    if (view.is_array()) {
      DDPOPT_ASSIGN_OR_RETURN(std::vector<Argument> elements, Values(view));
      return Argument::List(std::move(elements));
    }
    if (view.is_object() && view.size() == 1) {
      const std::string& key = view.KeyAt(0);
      const JsonView value = view[0];
      if (key == "node") {
        DDPOPT_ASSIGN_OR_RETURN(const std::string name, value.AsString());
        const auto it = by_name_.find(name);
        if (it == by_name_.end()) return value.Error("no earlier node is named \"", absl::CHexEscape(name), "\"");
        return Argument(it->second);
      }
      if (key == "tuple") {
        DDPOPT_ASSIGN_OR_RETURN(std::vector<Argument> elements, Values(value));
        return Argument::Tuple(std::move(elements));
      }
      if (key == "slice") {
        DDPOPT_ASSIGN_OR_RETURN(std::vector<Argument> bounds, Values(value));
        if (bounds.size() != 3) return value.Expected("start, stop and step");
        return Argument::Slice(std::move(bounds[0]), std::move(bounds[1]), std::move(bounds[2]));
      }
      if (key == "dict") {
        DDPOPT_RETURN_IF_ERROR(value.ExpectArray());
        std::vector<Argument> elements;
        for (std::size_t i = 0; i < value.size(); ++i) {
          const JsonView pair = value[i];
          if (!pair.is_array() || pair.size() != 2) return pair.Expected("a key and a value");
          DDPOPT_ASSIGN_OR_RETURN(Argument key_argument, Value(pair[0]));
          DDPOPT_ASSIGN_OR_RETURN(Argument value_argument, Value(pair[1]));
          elements.push_back(std::move(key_argument));
          elements.push_back(std::move(value_argument));
        }
        return Argument::Dict(std::move(elements));
      }
    }
    DDPOPT_ASSIGN_OR_RETURN(c10::IValue constant, Constant(view));
    return Argument(std::move(constant));
  }

  absl::StatusOr<std::vector<c10::IValue>> Constants(const JsonView& view) {
    DDPOPT_RETURN_IF_ERROR(view.ExpectArray());
    std::vector<c10::IValue> values;
    values.reserve(view.size());
    for (std::size_t i = 0; i < view.size(); ++i) {
      DDPOPT_ASSIGN_OR_RETURN(c10::IValue value, Constant(view[i]));
      values.push_back(std::move(value));
    }
    return values;
  }

  absl::StatusOr<c10::IValue> Constant(const JsonView& view) {
    if (!view.is_object()) return JsonScalar(view);
    if (view.size() != 1) return view.Expected("an object with one key");
    const std::string& key = view.KeyAt(0);
    const JsonView value = view[0];
    if (key == "float") {
      DDPOPT_ASSIGN_OR_RETURN(const double number, JsonFloat(view, "float"));
      return c10::IValue(number);
    }
    if (key == "complex") {
      DDPOPT_ASSIGN_OR_RETURN(const c10::complex<double> number, JsonComplex(value, "float"));
      return c10::IValue(number);
    }
    if (key == "bytes") {
      DDPOPT_ASSIGN_OR_RETURN(std::string bytes, Base64(value));
      return c10::IValue(std::move(bytes));
    }
    if (key == "device") {
      DDPOPT_ASSIGN_OR_RETURN(const c10::Device device, JsonDevice(value));
      return c10::IValue(device);
    }
    if (key == "tensor") {
      DDPOPT_ASSIGN_OR_RETURN(const int64_t index, value.AsInt());
      if (index < 0 || static_cast<std::size_t>(index) >= tensors_.size()) {
        return value.Error("there is no tensor ", index, " among the ", tensors_.size());
      }
      return c10::IValue(tensors_[static_cast<std::size_t>(index)]);
    }
    if (key == "undefined_tensor") return c10::IValue(at::Tensor());
    if (key == "ellipsis") return EllipsisConstant();
    if (key == "constant_tuple") {
      DDPOPT_ASSIGN_OR_RETURN(std::vector<c10::IValue> elements, Constants(value));
      return c10::IValue(c10::ivalue::Tuple::create(std::move(elements)));
    }
    if (key == "constant_list") {
      if (!value.is_array() || value.size() != 2) return value.Expected("an element type and elements");
      DDPOPT_ASSIGN_OR_RETURN(const c10::TypePtr type, Type(value[0]));
      DDPOPT_ASSIGN_OR_RETURN(std::vector<c10::IValue> elements, Constants(value[1]));
      c10::impl::GenericList list(type);
      list.reserve(elements.size());
      const JsonView element_views = value[1];
      for (std::size_t i = 0; i < elements.size(); ++i) {
        if (!IsOfType(elements[i], *type)) return element_views[i].Error("is no ", type->str());
        list.push_back(std::move(elements[i]));
      }
      return c10::IValue(std::move(list));
    }
    if (key == "constant_dict") {
      if (!value.is_array() || value.size() != 3) return value.Expected("a key type, a value type and entries");
      DDPOPT_ASSIGN_OR_RETURN(const c10::TypePtr key_type, Type(value[0]));
      DDPOPT_ASSIGN_OR_RETURN(const c10::TypePtr value_type, Type(value[1]));
      const JsonView entries = value[2];
      DDPOPT_RETURN_IF_ERROR(entries.ExpectArray());
      c10::impl::GenericDict dict(key_type, value_type);
      for (std::size_t i = 0; i < entries.size(); ++i) {
        const JsonView pair = entries[i];
        DDPOPT_ASSIGN_OR_RETURN(std::vector<c10::IValue> key_and_value, Constants(pair));
        if (key_and_value.size() != 2) return pair.Expected("a key and a value");
        if (!IsOfType(key_and_value[0], *key_type) || !IsOfType(key_and_value[1], *value_type)) {
          return pair.Error("is no ", key_type->str(), " and ", value_type->str());
        }
        // Those that c10 can hash.
        const c10::IValue& k = key_and_value[0];
        if (!k.isInt() && !k.isBool() && !k.isDouble() && !k.isComplexDouble() && !k.isString() && !k.isDevice()) {
          return pair.Error("a ", k.tagKind(), " can't be a key");
        }
        if (!dict.insert(key_and_value[0], key_and_value[1]).second) return pair.Error("the key is repeated");
      }
      return c10::IValue(std::move(dict));
    }
    if (key == "opaque") {
      DDPOPT_ASSIGN_OR_RETURN(const std::vector<c10::IValue> texts, Constants(value));
      if (texts.size() != 2 || !texts[0].isString() || !texts[1].isString()) return value.Expected("a text and a type");
      return OpaqueConstant(texts[0].toStringRef(), texts[1].toStringRef());
    }
    if (key == "dtype" || key == "layout" || key == "memory_format") {
      DDPOPT_ASSIGN_OR_RETURN(const std::string name, value.AsString());
      c10::ScalarType dtype;
      c10::Layout layout;
      c10::MemoryFormat format;
      if (key == "dtype" && DtypeFromName(name, &dtype)) return DtypeConstant(dtype);
      if (key == "layout" && LayoutFromName(name, &layout)) return LayoutConstant(layout);
      if (key == "memory_format" && MemoryFormatFromName(name, &format)) return MemoryFormatConstant(format);
      return value.Expected(absl::StrCat("a ", key));
    }
    return view.Error("\"", absl::CHexEscape(key), "\" is no kind of value");
  }

  static absl::StatusOr<std::string> Base64(const JsonView& view) {
    DDPOPT_ASSIGN_OR_RETURN(const std::string text, view.AsString());
    std::string bytes;
    if (!absl::Base64Unescape(text, &bytes)) return view.Expected("base64");
    return bytes;
  }

  static absl::StatusOr<c10::TypePtr> Type(const JsonView& view) {
    DDPOPT_ASSIGN_OR_RETURN(const std::string name, view.AsString());
    c10::TypePtr type = TypeFromName(name);
    if (type == nullptr) return view.Expected("an element type");
    return type;
  }

  const JsonView root_;
  std::string kind_;
  std::vector<at::Tensor> tensors_;
  std::vector<std::shared_ptr<GraphModule>> modules_;
  absl::flat_hash_map<std::string, Node*> by_name_;
  absl::flat_hash_map<std::string, c10::OperatorHandle> operators_;
};

}  // namespace

absl::StatusOr<std::string> ToJson(const GraphModule& module, const ToJsonOptions& options) {
  return CatchAsStatus("writing a module as JSON", [&] { return Writer(options).Write(module); });
}

absl::StatusOr<std::string> ToJson(const Graph& graph, const ToJsonOptions& options) {
  return CatchAsStatus("writing a graph as JSON", [&] { return Writer(options).Write(graph); });
}

absl::StatusOr<std::shared_ptr<GraphModule>> ModuleFromJson(absl::string_view json) {
  DDPOPT_ASSIGN_OR_RETURN(const JsonValue document, ParseJson(json));
  return CatchAsStatus("reading a module from JSON", [&] { return Reader(document).ReadModule(); });
}

absl::StatusOr<std::unique_ptr<Graph>> GraphFromJson(absl::string_view json) {
  DDPOPT_ASSIGN_OR_RETURN(const JsonValue document, ParseJson(json));
  return CatchAsStatus("reading a graph from JSON", [&] { return Reader(document).ReadGraph(); });
}

}  // namespace ddpopt::fx
