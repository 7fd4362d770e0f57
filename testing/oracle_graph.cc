#include "testing/oracle_graph.h"

#include <algorithm>
#include <utility>

#include "ATen/core/dispatch/Dispatcher.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/status.h"
#include "c10/core/Device.h"
#include "fx_graph/constants.h"
#include "fx_graph/tensor_meta.h"
#include "fx_graph/text/json_constants.h"
#include "fx_graph/text/json_view.h"
#include "fx_graph/words.h"

namespace ddpopt::testing {
namespace {

using fx::Argument;
using fx::JsonView;
using fx::Node;

absl::StatusOr<c10::ScalarType> Dtype(const JsonView& view) {
  DDPOPT_ASSIGN_OR_RETURN(const std::string name, view.AsString());
  c10::ScalarType dtype;
  if (fx::DtypeFromShortName(name, &dtype)) return dtype;
  return view.Expected("a dtype");
}

// Namespaces of the dispatcher's operators: they tell "aten.relu.default" from "torch._C._set_grad_enabled".
bool IsOperatorNamespace(absl::string_view name) {
  static const auto* namespaces = [] {
    auto* result = new absl::flat_hash_set<std::string>{"prims", "higher_order"};
    for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) result->insert(op.name.substr(0, op.name.find("::")));
    return result;
  }();
  return namespaces->contains(name);
}

fx::Target FunctionTarget(const std::string& text) {
  if (absl::StartsWith(text, "_operator.")) return fx::OpaqueTarget{text.substr(1)};
  const std::vector<std::string> parts = absl::StrSplit(text, '.');
  if (parts.size() == 1) return fx::HigherOrderTarget{text};
  if (parts.size() == 3 && IsOperatorNamespace(parts[0])) {
    const std::string overload = parts[2] == "default" ? "" : parts[2];
    const auto op = c10::Dispatcher::singleton().findSchema({absl::StrCat(parts[0], "::", parts[1]), overload});
    if (op.has_value()) return fx::OperatorTarget{*op};
    return fx::OpaqueTarget{absl::StrCat("torch.ops.", text)};  // one that only Python registers
  }
  return fx::OpaqueTarget{text};
}

// A graph of nodes, and what they name, into a GraphModule.
class Reader {
 public:
  // `parameters` and `modules` may be null: nested graphs don't list theirs.
  Reader(bool dynamo_types, OracleGraph* oracle) : dynamo_types_(dynamo_types), oracle_(oracle) {}

  absl::StatusOr<std::shared_ptr<fx::GraphModule>> Read(const JsonView& nodes) {
    module_ = std::make_shared<fx::GraphModule>();
    for (std::size_t i = 0; i < nodes.size(); ++i) DDPOPT_RETURN_IF_ERROR(ReadNode(nodes[i]));
    return module_;
  }

 private:
  absl::Status ReadNode(const JsonView& view) {
    DDPOPT_ASSIGN_OR_RETURN(const std::string name, view.String("n"));
    DDPOPT_ASSIGN_OR_RETURN(const std::string op_name, view.String("op"));
    DDPOPT_ASSIGN_OR_RETURN(const std::string text, view.String("t"));
    if (by_name_.contains(name)) return view.Error("the name \"", name, "\" is taken by an earlier node");
    if (has_output_) return view.Error("the node \"", name, "\" comes after the output");

    fx::Op op;
    fx::Target target = fx::PathTarget{text};
    if (op_name == "placeholder") {
      op = fx::Op::kPlaceholder;
    } else if (op_name == "get_attr") {
      op = fx::Op::kGetAttr;
    } else if (op_name == "call_module") {
      op = fx::Op::kCallModule;
    } else if (op_name == "call_method") {
      op = fx::Op::kCallMethod;
      target = fx::MethodTarget{text};
    } else if (op_name == "call_function") {
      op = fx::Op::kCallFunction;
      target = FunctionTarget(text);
    } else if (op_name == "output") {
      op = fx::Op::kOutput;
      has_output_ = true;
    } else {
      return view.Error("\"", op_name, "\" is no kind of node");
    }

    std::vector<Argument> args;
    if (view.Has("a")) {
      DDPOPT_ASSIGN_OR_RETURN(const JsonView a, view.Array("a"));
      for (std::size_t i = 0; i < a.size(); ++i) {
        DDPOPT_ASSIGN_OR_RETURN(Argument argument, ReadArgument(a[i]));
        args.push_back(std::move(argument));
      }
    }
    fx::Kwargs kwargs;
    if (view.Has("k")) {
      DDPOPT_ASSIGN_OR_RETURN(const JsonView k, view.Object("k"));
      for (std::size_t i = 0; i < k.size(); ++i) {
        DDPOPT_ASSIGN_OR_RETURN(Argument argument, ReadArgument(k[i]));
        kwargs.emplace_back(k.KeyAt(i), std::move(argument));
      }
    }
    if (op == fx::Op::kOutput && args.size() != 1) return view.Error("the output must have one argument, not ", args.size());
    fx::FitToSchema(target, &args, &kwargs);
    Node* node = module_->graph().CreateNode(op, std::move(target), std::move(args), std::move(kwargs), name);
    if (absl::string_view(node->name()) != name) return view.Error("a node can't be named \"", name, "\"");
    by_name_[name] = node;

    if (view.Has("m")) {
      DDPOPT_ASSIGN_OR_RETURN(const JsonView m, view.At("m"));
      DDPOPT_RETURN_IF_ERROR(ReadValue(m, node));
    }
    DDPOPT_RETURN_IF_ERROR(ReadParameter(view, text, node));
    if (view.Has("subgraph")) DDPOPT_RETURN_IF_ERROR(ReadSubgraph(view, text, op));
    if (op == fx::Op::kCallModule) DDPOPT_RETURN_IF_ERROR(ReadModule(view, text));
    if (op == fx::Op::kGetAttr && !view.Has("subgraph") && !module_->attrs().contains(text)) {
      if (module_->submodules().contains(text)) return absl::OkStatus();  // an earlier node brought its graph
      const auto kind = node->meta().is_parameter ? fx::GraphModule::AttrKind::kParameter : fx::GraphModule::AttrKind::kBuffer;
      node->meta().is_buffer = !node->meta().is_parameter;
      DDPOPT_RETURN_IF_ERROR(module_->AddAttr(text, node->meta().val, kind));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Argument> ReadArgument(const JsonView& view) {
    if (view.is_array()) {
      DDPOPT_ASSIGN_OR_RETURN(std::vector<Argument> elements, ReadArguments(view));
      return Argument::List(std::move(elements));
    }
    if (!view.is_object()) {
      DDPOPT_ASSIGN_OR_RETURN(c10::IValue scalar, fx::JsonScalar(view));
      return Argument(std::move(scalar));
    }
    if (view.size() != 1) return view.Expected("an object with one key");
    const std::string& key = view.KeyAt(0);
    const JsonView value = view[0];
    if (key == "n") {
      DDPOPT_ASSIGN_OR_RETURN(const std::string name, value.AsString());
      const auto it = by_name_.find(name);
      if (it == by_name_.end()) return value.Error("no earlier node is named \"", name, "\"");
      return Argument(it->second);
    }
    if (key == "tuple") {
      DDPOPT_RETURN_IF_ERROR(value.ExpectArray());
      DDPOPT_ASSIGN_OR_RETURN(std::vector<Argument> elements, ReadArguments(value));
      return Argument::Tuple(std::move(elements));
    }
    if (key == "slice") {
      DDPOPT_RETURN_IF_ERROR(value.ExpectArray());
      if (value.size() != 3) return value.Expected("start, stop and step");
      DDPOPT_ASSIGN_OR_RETURN(std::vector<Argument> bounds, ReadArguments(value));
      return Argument::Slice(std::move(bounds[0]), std::move(bounds[1]), std::move(bounds[2]));
    }
    if (key == "dict") {
      DDPOPT_RETURN_IF_ERROR(value.ExpectArray());
      std::vector<Argument> elements;
      for (std::size_t i = 0; i < value.size(); ++i) {
        const JsonView pair = value[i];
        if (!pair.is_array() || pair.size() != 2) return pair.Expected("a key and a value");
        DDPOPT_ASSIGN_OR_RETURN(std::vector<Argument> key_and_value, ReadArguments(pair));
        for (Argument& argument : key_and_value) elements.push_back(std::move(argument));
      }
      return Argument::Dict(std::move(elements));
    }
    if (key == "f") {
      DDPOPT_ASSIGN_OR_RETURN(const double number, fx::JsonFloat(view, "f"));
      return Argument(c10::IValue(number));
    }
    if (key == "c") {
      DDPOPT_ASSIGN_OR_RETURN(const c10::complex<double> number, fx::JsonComplex(value, "f"));
      return Argument(c10::IValue(number));
    }
    if (key == "device") {
      DDPOPT_ASSIGN_OR_RETURN(const c10::Device device, fx::JsonDevice(value));
      return Argument(c10::IValue(device));
    }
    if (key == "ellipsis") return Argument(fx::EllipsisConstant());
    if (key == "dtype") {
      DDPOPT_ASSIGN_OR_RETURN(const c10::ScalarType dtype, Dtype(value));
      return Argument(fx::DtypeConstant(dtype));
    }
    if (key == "repr") {  // type and text, or the text alone
      if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
        return Argument(fx::OpaqueConstant(value[1].value().text, value[0].value().text));
      }
      DDPOPT_ASSIGN_OR_RETURN(std::string text, value.AsString());
      return Argument(fx::OpaqueConstant(std::move(text)));
    }
    DDPOPT_ASSIGN_OR_RETURN(const std::string text, value.AsString());
    if (key == "mf") {
      c10::MemoryFormat format;
      if (!fx::MemoryFormatFromName(absl::StrCat("torch.", absl::StripPrefix(text, "torch.")), &format)) return value.Expected("a memory format");
      return Argument(fx::MemoryFormatConstant(format));
    }
    if (key == "layout") {
      c10::Layout layout;
      if (!fx::LayoutFromName(absl::StrCat("torch.", absl::StripPrefix(text, "torch.")), &layout)) return value.Expected("a layout");
      return Argument(fx::LayoutConstant(layout));
    }
    return view.Error("\"", key, "\" is no kind of value");
  }

  absl::StatusOr<std::vector<Argument>> ReadArguments(const JsonView& view) {
    std::vector<Argument> arguments;
    arguments.reserve(view.size());
    for (std::size_t i = 0; i < view.size(); ++i) {
      DDPOPT_ASSIGN_OR_RETURN(Argument argument, ReadArgument(view[i]));
      arguments.push_back(std::move(argument));
    }
    return arguments;
  }

  // A node's value: {d, s, st, nb}, a list of such, or what a symbolic integer looked like.
  absl::Status ReadValue(const JsonView& view, Node* node) {
    std::string symbolic;
    DDPOPT_ASSIGN_OR_RETURN(c10::IValue value, ReadValue(view, &symbolic));
    if (symbolic.empty()) {
      node->meta().val = std::move(value);
    } else {
      node->meta().custom["symbolic"] = c10::IValue(symbolic);
    }
    if (dynamo_types_ && node->op() == fx::Op::kPlaceholder) {
      node->meta().type_expr = view.is_object() && view.Has("d") ? "torch.Tensor" : "torch.SymInt";
    }
    return absl::OkStatus();
  }

  absl::StatusOr<c10::IValue> ReadValue(const JsonView& view, std::string* symbolic) {
    if (view.is_array()) {
      std::vector<c10::IValue> elements;
      for (std::size_t i = 0; i < view.size(); ++i) {
        std::string symbolic_element;
        DDPOPT_ASSIGN_OR_RETURN(c10::IValue element, ReadValue(view[i], &symbolic_element));
        if (!symbolic_element.empty()) absl::StrAppend(symbolic, symbolic->empty() ? "" : "; ", symbolic_element);
        elements.push_back(std::move(element));
      }
      return c10::IValue(c10::ivalue::Tuple::create(std::move(elements)));
    }
    if (view.is_object() && view.Has("d")) return ReadTensor(view, symbolic);
    if (view.is_object() && view.Has("repr")) {
      DDPOPT_ASSIGN_OR_RETURN(*symbolic, view.String("repr"));
      return c10::IValue();
    }
    DDPOPT_ASSIGN_OR_RETURN(const Argument constant, ReadArgument(view));
    if (constant.kind() == Argument::Kind::kNone) return c10::IValue();
    if (constant.kind() != Argument::Kind::kConstant) return view.Expected("the form of a value");
    return constant.constant();
  }

  absl::StatusOr<c10::IValue> ReadTensor(const JsonView& view, std::string* symbolic) {
    fx::TensorMeta meta;
    DDPOPT_ASSIGN_OR_RETURN(const JsonView dtype, view.At("d"));
    DDPOPT_ASSIGN_OR_RETURN(meta.dtype, Dtype(dtype));
    DDPOPT_ASSIGN_OR_RETURN(const JsonView sizes, view.Array("s"));
    DDPOPT_ASSIGN_OR_RETURN(const JsonView strides, view.Array("st"));
    bool is_symbolic = false;
    const auto read = [&](const JsonView& list, std::vector<int64_t>* values) -> absl::Status {
      for (std::size_t i = 0; i < list.size(); ++i) {
        // Next to symbols, integers are text: "64".
        const JsonView element = list[i];
        c10::IValue number(element.value().integer);
        if (element.is_string()) {
          is_symbolic |= fx::ClassifyWord(element.value().text, &number) != fx::WordKind::kInt;
        } else {
          DDPOPT_RETURN_IF_ERROR(element.AsInt().status());
        }
        values->push_back(number.isInt() ? number.toInt() : 0);
      }
      return absl::OkStatus();
    };
    DDPOPT_RETURN_IF_ERROR(read(sizes, &meta.sizes));
    const bool symbolic_sizes = std::exchange(is_symbolic, false);
    DDPOPT_RETURN_IF_ERROR(read(strides, &meta.strides));
    const bool symbolic_strides = is_symbolic;
    is_symbolic |= symbolic_sizes;
    if (view.Has("nb")) {
      DDPOPT_ASSIGN_OR_RETURN(const JsonView bytes, view.At("nb"));
      if (bytes.is_string()) {
        is_symbolic = true;
      } else {
        DDPOPT_ASSIGN_OR_RETURN(meta.storage_nbytes, bytes.AsInt());
      }
    } else {
      DDPOPT_ASSIGN_OR_RETURN(meta.storage_nbytes, fx::MinimumStorageBytes(meta));
    }
    if (is_symbolic) {
      const auto text = [](const JsonView& list) {
        std::vector<std::string> texts;
        for (std::size_t i = 0; i < list.size(); ++i) texts.push_back(list[i].is_string() ? list[i].value().text : list[i].Excerpt());
        return absl::StrJoin(texts, ", ");
      };
      *symbolic = absl::StrCat(fx::DtypeName(meta.dtype), "[", text(sizes), "]");
      if (symbolic_strides) absl::StrAppend(symbolic, " strides [", text(strides), "]");
      return c10::IValue();
    }
    absl::StatusOr<at::Tensor> tensor = fx::HollowTensor(meta);
    if (!tensor.ok()) return view.Error(tensor.status().message());
    return c10::IValue(*std::move(tensor));
  }

  absl::StatusOr<OracleParameter> ReadParameterFields(const JsonView& view, const std::string& name) {
    OracleParameter parameter;
    parameter.name = name;
    DDPOPT_ASSIGN_OR_RETURN(parameter.storage_bytes, view.Int("nb"));
    DDPOPT_ASSIGN_OR_RETURN(parameter.requires_grad, view.BoolOr("rg", false));
    DDPOPT_ASSIGN_OR_RETURN(parameter.ignored, view.BoolOr("ign", false));
    if (parameter.storage_bytes < 0) return view.Error("a parameter can't have ", parameter.storage_bytes, " bytes");
    return parameter;
  }

  absl::Status ReadParameter(const JsonView& view, const std::string& target, Node* node) {
    DDPOPT_ASSIGN_OR_RETURN(const bool is_parameter, view.BoolOr("param", false));
    if (!is_parameter) return absl::OkStatus();
    DDPOPT_ASSIGN_OR_RETURN(const OracleParameter parameter, ReadParameterFields(view, target));
    node->meta().is_parameter = true;
    if (dynamo_types_ && node->op() == fx::Op::kPlaceholder) node->meta().type_expr = "torch.nn.parameter.Parameter";
    if (!node->meta().val.isTensor()) {
      DDPOPT_ASSIGN_OR_RETURN(node->meta().val, ParameterOfBytes(parameter));
    } else if (parameter.requires_grad) {
      DDPOPT_RETURN_IF_ERROR(CatchAsStatus(view.Path(), [&] { node->meta().val.toTensor().set_requires_grad(true); }));
    }
    if (oracle_ != nullptr) oracle_->parameters.emplace(std::string(node->name()), parameter);
    return absl::OkStatus();
  }

  // A parameter of which only the size is recorded.
  static absl::StatusOr<c10::IValue> ParameterOfBytes(const OracleParameter& parameter) {
    fx::TensorMeta meta;
    meta.dtype = parameter.storage_bytes % 4 == 0   ? c10::ScalarType::Float
                 : parameter.storage_bytes % 2 == 0 ? c10::ScalarType::BFloat16
                                                    : c10::ScalarType::Float8_e5m2;
    meta.sizes = {parameter.storage_bytes / static_cast<int64_t>(c10::elementSize(meta.dtype))};
    meta.strides = {1};
    meta.requires_grad = parameter.requires_grad;
    meta.storage_nbytes = parameter.storage_bytes;
    DDPOPT_ASSIGN_OR_RETURN(at::Tensor tensor, fx::HollowTensor(meta));
    return c10::IValue(std::move(tensor));
  }

  absl::Status ReadSubgraph(const JsonView& view, const std::string& target, fx::Op op) {
    if (op != fx::Op::kGetAttr) return view.Error("only a get_attr node can have a subgraph");
    DDPOPT_ASSIGN_OR_RETURN(const JsonView nodes, view.Array("subgraph"));
    DDPOPT_ASSIGN_OR_RETURN(std::shared_ptr<fx::GraphModule> nested, Reader(/*dynamo_types=*/false, nullptr).Read(nodes));
    if (module_->submodules().contains(target)) return absl::OkStatus();  // the same graph, named twice
    absl::Status added = module_->AddSubmodule(target, {std::move(nested), nullptr});
    return added.ok() ? added : view.Error(added.message());
  }

  absl::Status ReadModule(const JsonView& view, const std::string& target) {
    OracleModule recorded;
    if (view.Has("mod")) {
      DDPOPT_ASSIGN_OR_RETURN(const JsonView mod, view.Object("mod"));
      DDPOPT_ASSIGN_OR_RETURN(recorded.class_name, mod.String("cls"));
      DDPOPT_ASSIGN_OR_RETURN(const JsonView parameters, mod.Array("params"));
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const JsonView fields = parameters[i];
        if (!fields.is_array() || fields.size() != 4) return fields.Expected("name, bytes, requires_grad, ignored");
        OracleParameter parameter;
        DDPOPT_ASSIGN_OR_RETURN(parameter.name, fields[0].AsString());
        DDPOPT_ASSIGN_OR_RETURN(parameter.storage_bytes, fields[1].AsInt());
        DDPOPT_ASSIGN_OR_RETURN(parameter.requires_grad, fields[2].AsBool());
        DDPOPT_ASSIGN_OR_RETURN(parameter.ignored, fields[3].AsBool());
        if (parameter.storage_bytes < 0) return fields.Error("a parameter can't have ", parameter.storage_bytes, " bytes");
        recorded.parameters.push_back(std::move(parameter));
      }
    }
    if (!module_->submodules().contains(target)) {
      auto submodule = std::make_shared<fx::GraphModule>();
      fx::Graph& graph = submodule->graph();
      std::vector<Argument> args = {graph.Placeholder("input")};
      for (const OracleParameter& parameter : recorded.parameters) {
        DDPOPT_ASSIGN_OR_RETURN(c10::IValue value, ParameterOfBytes(parameter));
        absl::Status added = submodule->AddAttr(parameter.name, value, fx::GraphModule::AttrKind::kParameter);
        if (!added.ok()) return view.Error(added.message());
        Node* node = graph.GetAttr(parameter.name);
        node->meta().val = std::move(value);
        node->meta().is_parameter = true;
        args.push_back(node);
      }
      const std::string class_name = recorded.class_name.empty() ? "module" : recorded.class_name;
      graph.Output(graph.CreateNode(fx::Op::kCallFunction, fx::OpaqueTarget{absl::StrCat(class_name, ".forward")}, std::move(args), {}));
      absl::Status added = module_->AddSubmodule(target, {std::move(submodule), nullptr});
      if (!added.ok()) return view.Error(added.message());
    }
    if (oracle_ != nullptr) oracle_->modules.emplace(target, std::move(recorded));
    return absl::OkStatus();
  }

  const bool dynamo_types_;
  OracleGraph* const oracle_;
  std::shared_ptr<fx::GraphModule> module_;
  absl::flat_hash_map<std::string, Node*> by_name_;
  bool has_output_ = false;
};

}  // namespace

absl::StatusOr<OracleGraph> ParseOracleGraph(absl::string_view json) {
  DDPOPT_ASSIGN_OR_RETURN(const fx::JsonValue document, fx::ParseJson(json));
  const JsonView root(document);
  OracleGraph oracle;
  DDPOPT_ASSIGN_OR_RETURN(oracle.model, root.String("model"));
  DDPOPT_ASSIGN_OR_RETURN(oracle.form, root.String("form"));
  DDPOPT_ASSIGN_OR_RETURN(oracle.index, root.Int("graph"));
  DDPOPT_ASSIGN_OR_RETURN(const JsonView nodes, root.Array("nodes"));
  DDPOPT_ASSIGN_OR_RETURN(oracle.module, Reader(/*dynamo_types=*/oracle.form == "dynamo", &oracle).Read(nodes));
  return oracle;
}

absl::StatusOr<OracleGraph> LoadOracleGraph(const std::string& path) {
  DDPOPT_ASSIGN_OR_RETURN(const std::string content, ReadFile(path));
  absl::StatusOr<OracleGraph> oracle = ParseOracleGraph(content);
  if (!oracle.ok()) return Annotate(oracle.status(), absl::StrCat("\"", path, "\""));
  return oracle;
}

std::string OracleTarget(const fx::Node& node) {
  std::string text = fx::TargetToString(node.target());
  switch (node.op()) {
    case fx::Op::kCallFunction:
      if (absl::StartsWith(text, "operator.")) return absl::StrCat("function:_", text);
      // An operator that only Python registers; "torch.ops.aten.numpy_T", all overloads of an operator, keeps its prefix.
      if (std::holds_alternative<fx::OpaqueTarget>(node.target()) && absl::StartsWith(text, "torch.ops.") &&
          std::count(text.begin(), text.end(), '.') == 4) {
        text.erase(0, sizeof("torch.ops.") - 1);
      }
      return absl::StrCat("function:", text);
    case fx::Op::kCallMethod:
      return absl::StrCat("method:", text);
    case fx::Op::kCallModule:
      return absl::StrCat("module:", text);
    case fx::Op::kPlaceholder:
    case fx::Op::kGetAttr:
    case fx::Op::kOutput:
      break;
  }
  return absl::StrCat(fx::OpName(node.op()), ":", text);
}

}  // namespace ddpopt::testing
