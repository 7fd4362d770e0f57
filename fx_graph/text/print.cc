#include "fx_graph/text/print.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fx_graph/constants.h"
#include "fx_graph/format.h"

namespace ddpopt::fx {
namespace {

const c10::FunctionSchema* SchemaOf(const Node& node) {
  const auto* op = std::get_if<OperatorTarget>(&node.target());
  return op != nullptr && op->op.hasSchema() ? &op->op.schema() : nullptr;
}

// The arguments as Python's repr() shows the tuple and the dict.
std::string ArgsRepr(const Node& node) {
  const c10::FunctionSchema* schema = SchemaOf(node);
  std::string text = "(";
  std::size_t position = 0;
  for (const Argument& argument : node.args()) {
    if (position != 0) text.append(", ");
    AppendDeclared(argument, schema == nullptr ? nullptr : DeclaredArgument(*schema, position), FormatStyle::kRepr, {}, &text);
    ++position;
  }
  text.append(position == 1 ? ",)" : ")");
  return text;
}

std::string KwargsRepr(const Node& node) {
  const c10::FunctionSchema* schema = SchemaOf(node);
  std::string text = "{";
  for (const auto& entry : node.kwargs()) {
    const absl::string_view key(entry.first);
    if (text.size() > 1) text.append(", ");
    AppendPythonString(key, &text);
    text.append(": ");
    AppendDeclared(entry.second, schema == nullptr ? nullptr : DeclaredArgument(*schema, key), FormatStyle::kRepr, {}, &text);
  }
  return text + "}";
}

// The arguments of a call in code: "x, 1, alpha = 2"; `first` is left out of positional ones.
std::string CallArguments(const Node& node, std::size_t first) {
  const c10::FunctionSchema* schema = SchemaOf(node);
  std::string text;
  std::size_t position = 0;
  for (const Argument& argument : node.args()) {
    if (position >= first) {
      if (position > first) text.append(", ");
      AppendDeclared(argument, schema == nullptr ? nullptr : DeclaredArgument(*schema, position), FormatStyle::kRepr, {}, &text);
    }
    ++position;
  }
  for (const auto& entry : node.kwargs()) {
    const absl::string_view key(entry.first);
    absl::StrAppend(&text, text.empty() ? "" : ", ", key, " = ");
    AppendDeclared(entry.second, schema == nullptr ? nullptr : DeclaredArgument(*schema, key), FormatStyle::kRepr, {}, &text);
  }
  return text;
}

// "self.layer.weight"; a path that is no Python expression becomes getattr.
std::string SelfPath(absl::string_view path) {
  std::string text = "self";
  std::size_t start = 0;
  while (start <= path.size()) {
    const std::size_t dot = std::min(path.find('.', start), path.size());
    const absl::string_view part = path.substr(start, dot - start);
    const bool identifier = !part.empty() && !absl::ascii_isdigit(part[0]) &&
                            std::all_of(part.begin(), part.end(), [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
    if (identifier) {
      absl::StrAppend(&text, ".", part);
    } else {
      text = absl::StrCat("getattr(", text, ", \"", absl::CEscape(part), "\")");
    }
    start = dot + 1;
  }
  return text;
}

std::string Annotated(const Node& node, const ReadableOptions& options) {
  const std::string form = FormatValueForm(node.meta().val, options);
  const absl::string_view name(node.name());
  return form.empty() ? std::string(name) : absl::StrCat(name, ": \"", form, "\"");
}

class ReadableWriter {
 public:
  explicit ReadableWriter(const ReadableOptions& options) : options_(options) {}

  void Write(absl::string_view name, const Graph& graph, const GraphModule* module, std::size_t indent) {
    const std::string margin(indent, ' ');
    std::vector<std::string> parameters = {"self"};
    absl::flat_hash_map<const Node*, std::vector<const Node*>> last_uses;
    LastUses(graph, &last_uses);
    for (const Node* node : graph.nodes()) {
      if (node->op() != Op::kPlaceholder) continue;
      std::string parameter = Annotated(*node, options_);
      if (!node->args().empty()) {
        parameter.append(" = ");
        AppendArgument(node->args()[0], FormatStyle::kRepr, {}, &parameter);
      }
      parameters.push_back(std::move(parameter));
    }
    absl::StrAppend(&text_, margin, "class ", name, ":\n", margin, "    def forward(", absl::StrJoin(parameters, ", "), "):\n");
    const std::string code_margin = margin + "        ";
    std::string nn_module;
    bool any = false;
    for (const Node* node : graph.nodes()) {
      if (node->op() == Op::kPlaceholder) continue;
      any = true;
      if (node->op() != Op::kOutput && node->meta().nn_module != nn_module) {
        nn_module = node->meta().nn_module;
        absl::StrAppend(&text_, code_margin, nn_module.empty() ? "#" : "# ", nn_module, "\n");
      }
      absl::StrAppend(&text_, code_margin, Code(*node));
      const auto dead = last_uses.find(node);
      if (dead != last_uses.end() && node->op() != Op::kOutput) {
        text_.append(";  ");
        for (const Node* value : dead->second) absl::StrAppend(&text_, absl::string_view(value->name()), " = ");
        text_.append("None");
      }
      text_.append("\n");
    }
    if (!any) absl::StrAppend(&text_, code_margin, "pass\n");
    if (module == nullptr || !options_.nested) return;
    for (const auto& [path, submodule] : module->submodules()) {
      if (submodule.graph_module == nullptr) continue;
      text_.append("\n");
      Write(path, submodule.graph_module->graph(), submodule.graph_module.get(), indent + 4);
    }
  }

  std::string Take() { return std::move(text_); }

 private:
  // Of each node, the values that no later node uses.
  static void LastUses(const Graph& graph, absl::flat_hash_map<const Node*, std::vector<const Node*>>* last_uses) {
    absl::flat_hash_map<const Node*, const Node*> last;
    std::vector<const Node*> order;
    for (const Node* node : graph.nodes()) {
      for (const Node* input : node->all_input_nodes()) {
        if (last.insert_or_assign(input, node).second) order.push_back(input);
      }
      if (node->users().empty() && node->op() != Op::kOutput && node->op() != Op::kPlaceholder) {
        last[node] = node;
        order.push_back(node);
      }
    }
    for (const Node* value : order) (*last_uses)[last[value]].push_back(value);
  }

  std::string Code(const Node& node) const {
    std::string text;
    if (node.op() == Op::kOutput) {
      text = "return ";
      if (node.args().empty()) return text + "None";
      AppendArgument(node.args()[0], FormatStyle::kRepr, {}, &text);
      return text;
    }
    text = absl::StrCat(Annotated(node, options_), " = ");
    switch (node.op()) {
      case Op::kGetAttr:
        return text + SelfPath(TargetToString(node.target()));
      case Op::kCallModule:
        return absl::StrCat(text, SelfPath(TargetToString(node.target())), "(", CallArguments(node, 0), ")");
      case Op::kCallMethod: {
        if (node.args().empty()) break;
        const Argument& self = node.args()[0];
        AppendArgument(self, FormatStyle::kRepr, {}, &text);
        return absl::StrCat(text, ".", TargetToString(node.target()), "(", CallArguments(node, 1), ")");
      }
      default:
        break;
    }
    AppendQualifiedTarget(node.target(), &text);
    return absl::StrCat(text, "(", CallArguments(node, 0), ")");
  }

  const ReadableOptions options_;
  std::string text_;
};

}  // namespace

std::string FormatTabular(const Graph& graph) {
  constexpr std::size_t kColumns = 5;
  using Row = std::array<std::string, kColumns>;
  std::vector<Row> rows = {{"opcode", "name", "target", "args", "kwargs"}, {}};
  for (const Node* node : graph.nodes()) {
    rows.push_back({OpName(node->op()), std::string(node->name()), TargetToString(node->target()), ArgsRepr(*node), KwargsRepr(*node)});
  }
  std::array<std::size_t, kColumns> widths;
  for (std::size_t c = 0; c < kColumns; ++c) {
    widths[c] = rows[0][c].size() + 2;
    for (const Row& row : rows) widths[c] = std::max(widths[c], row[c].size());
    rows[1][c] = std::string(widths[c], '-');
  }
  std::string text;
  for (const Row& row : rows) {
    const std::size_t start = text.size();
    for (std::size_t c = 0; c < kColumns; ++c) {
      if (c != 0) text.append("  ");
      text.append(row[c]);
      text.append(widths[c] - row[c].size(), ' ');
    }
    while (text.size() > start && text.back() == ' ') text.pop_back();
    text.push_back('\n');
  }
  return text;
}

std::string FormatValueForm(const c10::IValue& value, const ReadableOptions& options) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return "";
    std::string text = absl::StrCat(ShortDtypeName(tensor.scalar_type()), "[", absl::StrJoin(tensor.sizes(), ", "), "]");
    if (options.strides && tensor.layout() == c10::Layout::Strided) absl::StrAppend(&text, "[", absl::StrJoin(tensor.strides(), ", "), "]");
    if (options.device) absl::StrAppend(&text, tensor.device().str());
    return text;
  }
  if (!value.isTuple() && !value.isList()) return "";
  std::vector<std::string> forms;
  bool any = false;
  const auto add = [&](const c10::IValue& element) {
    forms.push_back(FormatValueForm(element, options));
    any |= !forms.back().empty();
    if (forms.back().empty()) AppendConstant(element, FormatStyle::kRepr, {}, &forms.back());
  };
  if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) add(element);
  } else {
    for (const c10::IValue& element : value.toListRef()) add(element);
  }
  if (!any) return "";
  return absl::StrCat(value.isTuple() ? "(" : "[", absl::StrJoin(forms, ", "), value.isTuple() ? ")" : "]");
}

std::string FormatReadable(const GraphModule& module, const ReadableOptions& options) {
  ReadableWriter writer(options);
  writer.Write("GraphModule", module.graph(), &module, 0);
  return writer.Take();
}

std::string FormatReadable(const Graph& graph, const ReadableOptions& options) {
  ReadableWriter writer(options);
  writer.Write("Graph", graph, nullptr, 0);
  return writer.Take();
}

}  // namespace ddpopt::fx
