// Shows what is in an exported model. `--help` tells the rest.

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/for_each_tensor.h"
#include "base/status.h"
#include "ddpopt/capture/pt2/exported_program.h"
#include "fx_graph/constants.h"
#include "fx_graph/passes/flops.h"
#include "fx_graph/text/dot.h"
#include "fx_graph/text/print.h"
#include "nlohmann/json.hpp"
#include "tools/fake_run.h"

namespace ddpopt {
namespace {

using c10::IValue;

constexpr char kHelp[] = R"(inspect MODEL [--print=FORM] [--parameters] [--costs] [--dot=FILE] [--svg=FILE] [--model_name=NAME] [--json]

Shows what is in an exported model: inputs and outputs, parameters and buffers, how often it calls which operator, its graph.

  MODEL             a .pt2 archive, or its graph alone (.model.json, gzipped or not). Relative to where you call this. No weights are read.
  --print=FORM      the graph: readable (as Python), tabular, graph (as torch.fx prints it), none (the default).
  --parameters      every parameter, buffer and constant, not only their sums.
  --costs           bytes and floating-point operations of every node, found without running it on data: the sizes of what it takes
                    and gives, and for products, convolutions, attention and LSTMs two operations a multiplication and addition; other
                    arithmetic counts none, views no bytes. Nested graphs' nodes have lines of their own, both branches of a cond
                    among them.
  --dot=FILE        draws the graph in Graphviz's language; --svg=FILE as SVG, if Graphviz's `dot` is installed.
  --model_name=NAME which model of an archive that holds several.
  --json            the last line of standard output is one JSON object that holds the same.
  --help            this text.
)";

int Usage(const std::string& message) {
  std::fprintf(stderr, "inspect: %s\nTry --help.\n", message.c_str());
  return 2;
}

std::string Bytes(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  for (; bytes >= 1024 && unit < 4; ++unit) bytes /= 1024;
  return unit == 0 ? absl::StrFormat("%.0f B", bytes) : absl::StrFormat("%.1f %s", bytes, units[unit]);
}

std::string Form(const at::Tensor& tensor) {
  return absl::StrCat(absl::StripPrefix(fx::DtypeName(tensor.scalar_type()), "torch."), "[", absl::StrJoin(tensor.sizes().vec(), ", "),
                      "]");
}

std::string ConstantText(const IValue& value) {
  if (value.isNone()) return "None";
  if (value.isString()) return absl::StrCat("\"", value.toStringRef(), "\"");
  if (value.isBool()) return value.toBool() ? "True" : "False";
  if (value.isInt()) return absl::StrCat(value.toInt());
  return absl::StrCat(value.toDouble());
}

std::string InputForm(const ProgramInput& input) {
  if (input.kind == ProgramInput::Kind::kConstant) return absl::StrCat("always ", ConstantText(input.constant));
  if (input.kind == ProgramInput::Kind::kSymbolic) {
    if (input.sizes.empty()) return input.dtype == at::kDouble ? "float" : "bool";
    return absl::StrCat("int ", input.sizes[0].ToString());
  }
  std::vector<std::string> sizes;
  for (const pt2::SymExpr& size : input.sizes) sizes.push_back(size.ToString());
  return absl::StrCat(absl::StripPrefix(fx::DtypeName(input.dtype), "torch."), "[", absl::StrJoin(sizes, ", "), "]");
}

void PrintInterface(const ExportedProgram& program) {
  std::printf("exported by PyTorch %s\n", program.torch_version().empty() ? "(unknown)" : program.torch_version().c_str());
  std::printf("inputs %s\n", program.in_tree().ToString().c_str());
  for (const ProgramInput& input : program.inputs()) {
    std::printf("  %-24s %s\n", input.name.c_str(), InputForm(input).c_str());
  }
  for (const auto& [symbol, range] : program.symbol_ranges()) {
    std::printf("  %s: %s to %s\n", symbol.c_str(), range.min.has_value() ? absl::StrCat(*range.min).c_str() : "-",
                range.max.has_value() ? absl::StrCat(*range.max).c_str() : "-");
  }
  for (const std::string& guard : program.guards()) std::printf("  needs %s\n", guard.c_str());
  std::printf("outputs %s\n", program.out_tree().ToString().c_str());
  const auto list = [](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) std::printf("%s %s\n", what, absl::StrJoin(names, ", ").c_str());
  };
  list("writes the buffers", program.mutated_buffers());
  list("writes the inputs", program.mutated_inputs());
}

void PrintTensors(const ExportedProgram& program, bool all) {
  const auto section = [&](const char* what, const auto& entries, const auto& remark) {
    double bytes = 0;
    int64_t elements = 0;
    for (const auto& entry : entries) {
      bytes += static_cast<double>(entry.tensor.numel()) * static_cast<double>(entry.tensor.element_size());
      elements += entry.tensor.numel();
    }
    std::printf("%zu %s, %lld elements, %s\n", entries.size(), what, static_cast<long long>(elements), Bytes(bytes).c_str());
    if (!all) return;
    for (const auto& entry : entries) {
      const double own = static_cast<double>(entry.tensor.numel()) * static_cast<double>(entry.tensor.element_size());
      std::printf("  %-48s %-28s %10s%s\n", entry.name.c_str(), Form(entry.tensor).c_str(), Bytes(own).c_str(), remark(entry).c_str());
    }
  };
  section("parameters", program.parameters(),
          [](const auto& entry) { return std::string(entry.tensor.requires_grad() ? "" : "  frozen"); });
  section("buffers", program.buffers(), [](const auto& entry) { return std::string(entry.persistent ? "" : "  not persistent"); });
  if (!program.constants().empty()) section("constants", program.constants(), [](const auto&) { return std::string(); });
  for (const auto& [alias, first] : program.tied()) std::printf("  %s is %s\n", alias.c_str(), first.c_str());
}

void CountOperators(const fx::GraphModule& module, std::map<std::string, int>* counts, std::size_t* nodes) {
  for (const fx::Node* node : module.graph().nodes()) {
    ++*nodes;
    if (node->op() == fx::Op::kCallFunction) ++(*counts)[fx::TargetToString(node->target())];
  }
  for (const auto& [path, submodule] : module.submodules()) {
    if (submodule.graph_module != nullptr) CountOperators(*submodule.graph_module, counts, nodes);
  }
}

void PrintOperators(const fx::GraphModule& module) {
  std::map<std::string, int> counts;
  std::size_t nodes = 0;
  CountOperators(module, &counts, &nodes);
  std::vector<std::pair<int, std::string>> sorted;
  for (const auto& [name, count] : counts) sorted.emplace_back(-count, name);
  std::sort(sorted.begin(), sorted.end());
  std::printf("%zu nodes, %zu operators\n", nodes, counts.size());
  for (const auto& [count, name] : sorted) std::printf("  %6d  %s\n", -count, name.c_str());
}

// What the nodes of a run on fakes read, write and compute.
struct Cost {
  std::string node, target, form;
  double bytes = 0;
  double flops = 0;
};

class Costs {
 public:
  void AddOperator(const c10::OperatorHandle& op, const std::vector<IValue>& arguments, const std::vector<IValue>& results) {
    flops_ += fx::Flops(op, arguments, results);
  }
  void Add(const fx::Node& node, const IValue& value) {
    values_[&node] = value;
    if (node.op() != fx::Op::kCallFunction) return;
    Cost cost;
    cost.node = std::string(node.name());
    cost.target = fx::TargetToString(node.target());
    cost.flops = std::exchange(flops_, 0);
    // What calls a nested graph costs what that graph's nodes do, which have lines of their own.
    if (!std::holds_alternative<fx::HigherOrderTarget>(node.target())) cost.bytes = BytesOf(node, value);
    if (value.isTensor()) cost.form = Form(value.toTensor());
    costs_.push_back(std::move(cost));
  }
  const std::vector<Cost>& costs() const { return costs_; }
  void Print() const {
    double bytes = 0, flops = 0;
    std::printf("%-32s %-36s %-28s %12s %14s\n", "node", "operator", "value", "bytes", "FLOPs");
    for (const Cost& cost : costs_) {
      std::printf("%-32s %-36s %-28s %12.0f %14.0f\n", cost.node.c_str(), cost.target.c_str(), cost.form.c_str(), cost.bytes, cost.flops);
      bytes += cost.bytes;
      flops += cost.flops;
    }
    std::printf("in all %s, %.4g FLOPs\n", Bytes(bytes).c_str(), flops);
  }

 private:
  // Each storage once; none for a view.
  double BytesOf(const fx::Node& node, const IValue& value) const {
    double bytes = 0;
    std::set<const void*> storages;
    const auto add = [&](const IValue& of) {
      ForEachTensor(of, [&](const at::Tensor& tensor) {
        if (!storages.insert(tensor.storage().unsafeGetStorageImpl()).second) return;
        bytes += static_cast<double>(tensor.numel()) * static_cast<double>(tensor.element_size());
      });
    };
    for (const fx::Node* input : node.all_input_nodes()) {
      if (const auto it = values_.find(input); it != values_.end()) add(it->second);
    }
    const std::size_t before = storages.size();
    add(value);
    const bool writes = node.is_operator() && node.operator_handle().schema().is_mutable();
    return storages.size() > before || writes ? bytes : 0;
  }

  std::map<const fx::Node*, IValue> values_;
  std::vector<Cost> costs_;
  double flops_ = 0;  // of the node at hand
};

absl::Status FindCosts(const ExportedProgram& program, Costs* costs) {
  FakeRunOptions options;
  options.backward = false;
  options.on_value = [&](const fx::Node& node, const IValue& value) { costs->Add(node, value); };
  options.on_operator = [&](const c10::OperatorHandle& op, const std::vector<IValue>& arguments, const std::vector<IValue>& results) {
    costs->AddOperator(op, arguments, results);
  };
  FakeRun run;
  return RunOnFakes(program, options, &run);
}

nlohmann::ordered_json Report(const ExportedProgram& program, const Costs* costs) {
  nlohmann::ordered_json report;
  report["torch_version"] = program.torch_version();
  report["inputs"] = nlohmann::ordered_json::array();
  for (const ProgramInput& input : program.inputs()) report["inputs"].push_back({{"name", input.name}, {"form", InputForm(input)}});
  for (const auto& [symbol, range] : program.symbol_ranges()) {
    nlohmann::ordered_json& bounds = report["ranges"][symbol] = {nullptr, nullptr};
    if (range.min.has_value()) bounds[0] = *range.min;
    if (range.max.has_value()) bounds[1] = *range.max;
  }
  report["guards"] = program.guards();
  const auto tensors = [&](const char* key, const auto& entries) {
    report[key] = nlohmann::ordered_json::array();
    for (const auto& entry : entries) {
      report[key].push_back({{"name", entry.name},
                             {"form", Form(entry.tensor)},
                             {"bytes", entry.tensor.numel() * static_cast<int64_t>(entry.tensor.element_size())}});
    }
  };
  tensors("parameters", program.parameters());
  tensors("buffers", program.buffers());
  tensors("constants", program.constants());
  report["mutated_buffers"] = program.mutated_buffers();
  report["mutated_inputs"] = program.mutated_inputs();
  std::map<std::string, int> counts;
  std::size_t nodes = 0;
  CountOperators(*program.module(), &counts, &nodes);
  report["nodes"] = nodes;
  report["operators"] = counts;
  if (costs != nullptr) {
    report["costs"] = nlohmann::ordered_json::array();
    for (const Cost& cost : costs->costs()) {
      report["costs"].push_back(
          {{"node", cost.node}, {"operator", cost.target}, {"form", cost.form}, {"bytes", cost.bytes}, {"flops", cost.flops}});
    }
  }
  return report;
}

absl::Status Inspect(const std::string& model, const LoadOptions& load, const std::string& print, bool parameters, bool find_costs,
                     const std::string& dot, const std::string& svg, bool json) {
  DDPOPT_ASSIGN_OR_RETURN(const std::shared_ptr<ExportedProgram> program, LoadExportedProgram(model, load));
  PrintInterface(*program);
  PrintTensors(*program, parameters);
  PrintOperators(*program->module());
  if (const absl::Status executable = program->CheckExecutable(); !executable.ok())
    std::printf("can't be run: %s\n", std::string(executable.message()).c_str());
  if (print == "readable") std::printf("\n%s\n", fx::FormatReadable(*program->module()).c_str());
  if (print == "tabular") std::printf("\n%s\n", fx::FormatTabular(program->module()->graph()).c_str());
  if (print == "graph") std::printf("\n%s\n", program->module()->graph().ToString().c_str());
  Costs costs;
  if (find_costs) {
    DDPOPT_RETURN_IF_ERROR(FindCosts(*program, &costs));
    std::printf("\n");
    costs.Print();
  }
  if (!dot.empty()) DDPOPT_RETURN_IF_ERROR(WriteFile(dot, fx::FormatDot(*program->module())));
  if (!svg.empty()) {
    DDPOPT_ASSIGN_OR_RETURN(const std::string drawing, fx::DotToSvg(fx::FormatDot(*program->module())));
    DDPOPT_RETURN_IF_ERROR(WriteFile(svg, drawing));
  }
  if (json) std::printf("%s\n", Report(*program, find_costs ? &costs : nullptr).dump().c_str());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  LoadOptions load;
  load.load_weights = false;
  std::string model, print = "none", dot, svg;
  bool parameters = false, costs = false, json = false;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument(argv[i]);
    if (argument == "--help" || argument == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (argument == "--json") {
      json = true;
    } else if (argument == "--parameters") {
      parameters = true;
    } else if (argument == "--costs") {
      costs = true;
    } else if (absl::ConsumePrefix(&argument, "--print=")) {
      print = std::string(argument);
      if (print != "readable" && print != "tabular" && print != "graph" && print != "none")
        return Usage(absl::StrCat("there is no form \"", print, "\""));
    } else if (absl::ConsumePrefix(&argument, "--dot=")) {
      dot = UserPath(std::string(argument));
    } else if (absl::ConsumePrefix(&argument, "--svg=")) {
      svg = UserPath(std::string(argument));
    } else if (absl::ConsumePrefix(&argument, "--model_name=")) {
      load.model_name = std::string(argument);
    } else if (absl::StartsWith(argument, "--") || !model.empty()) {
      return Usage(absl::StrCat("unknown argument \"", argument, "\""));
    } else {
      model = UserPath(std::string(argument));
    }
  }
  if (model.empty()) return Usage("name a model");
  const absl::Status status = Inspect(model, load, print, parameters, costs, dot, svg, json);
  if (status.ok()) return 0;
  std::fprintf(stderr, "inspect: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace ddpopt

int main(int argc, char** argv) { return ddpopt::Main(argc, argv); }
