#include "tools/graph_opt_run.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/status.h"
#include "fx_graph/format.h"
#include "fx_graph/graph_module.h"
#include "fx_graph/passes/builtin_passes.h"
#include "fx_graph/passes/pass_manager.h"
#include "fx_graph/passes/reproducer.h"
#include "fx_graph/text/dot.h"
#include "fx_graph/text/json.h"
#include "fx_graph/text/json_view.h"
#include "fx_graph/text/parse.h"
#include "fx_graph/text/print.h"
#include "nlohmann/json.hpp"
#include "testing/oracle_graph.h"

namespace ddpopt {
namespace {

constexpr char kUsage[] =
    R"(usage: graph_opt [FLAGS] INPUT
       graph_opt [FLAGS] --reproducer=FILE

Reads a graph, runs passes, checks that the result is sound, and prints it on standard output. INPUT is a file, gzipped or not, or "-" for
standard input; relative paths start where the program was called (under `bazel run` too).

  --format=F           of the input: text (str(graph)), json (fx_graph/text/json.h), oracle (a recorded graph, testing/oracle_graph.h);
                       default auto: told from the content
  --passes=PIPELINE    passes to run: name,name{option=value,...}
  --list_passes        the passes there are, and nothing else
  --reproducer=FILE    reads a reproducer that a pass manager wrote on a failure, and runs its pipeline (instead of INPUT; --passes overrides)

  --print=P            text (default), exact (text that reads back as the same graph), tabular, readable (code with shapes), json, dot, none
  --device             readable also shows devices
  --drop_large_data    json drops the content of tensors that are too large to keep, instead of refusing
  --output=FILE        prints there instead
  --dot=FILE           draws the result in Graphviz's language
  --svg=FILE           draws the result through Graphviz's program dot

  --print_before=L, --print_after=L, --print_after_change=L
                       prints the graph on standard error around these passes (names with commas between, or "*")
  --verify_claims      also checks that passes tell the truth about having changed something
  --write_reproducer=FILE   what to write when a pass fails
  --timing             a table of the passes' times on standard error
  --json               the last line of standard output is one JSON object: input, format, nodes_before, nodes, changed,
                       passes [{pass, milliseconds, changed, nodes_before, nodes_after}], error (null: none)
  --help               this text

Exit status: 0 if all went well; 1 if the input can't be read, a pass fails, or the graph isn't sound; 2 for a wrong command line.
)";

constexpr const char* kFormats[] = {"auto", "text", "json", "oracle"};
constexpr const char* kPrints[] = {"text", "exact", "tabular", "readable", "json", "dot", "none"};

struct Flags {
  std::string input, format = "auto", print = "text", output, dot, svg, reproducer, write_reproducer;
  std::string passes;
  bool passes_given = false;
  std::vector<std::string> print_before, print_after, print_after_change;
  bool device = false, drop_large_data = false, verify_claims = false, timing = false, json = false, list_passes = false, help = false;
};

template <std::size_t N>
absl::Status CheckChoice(absl::string_view flag, const std::string& value, const char* const (&choices)[N]) {
  if (std::find(std::begin(choices), std::end(choices), value) != std::end(choices)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, " must be one of ", absl::StrJoin(choices, ", "), ", not \"", value, "\""));
}

absl::StatusOr<Flags> ParseFlags(const std::vector<std::string>& arguments) {
  Flags flags;
  const std::pair<const char*, std::string*> texts[] = {
      {"format", &flags.format}, {"print", &flags.print},           {"output", &flags.output},
      {"dot", &flags.dot},       {"svg", &flags.svg},               {"reproducer", &flags.reproducer},
      {"passes", &flags.passes}, {"write_reproducer", &flags.write_reproducer}};
  const std::pair<const char*, std::vector<std::string>*> lists[] = {
      {"print_before", &flags.print_before}, {"print_after", &flags.print_after}, {"print_after_change", &flags.print_after_change}};
  const std::pair<const char*, bool*> switches[] = {
      {"device", &flags.device}, {"drop_large_data", &flags.drop_large_data}, {"verify_claims", &flags.verify_claims}, {"timing", &flags.timing},
      {"json", &flags.json},     {"list_passes", &flags.list_passes},         {"help", &flags.help}};
  bool only_inputs = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view argument = arguments[i];
    if (argument == "--" && !only_inputs) {
      only_inputs = true;
      continue;
    }
    if (only_inputs || argument == "-" || !absl::StartsWith(argument, "-")) {
      if (!flags.input.empty()) return absl::InvalidArgumentError(absl::StrCat("there is one input, not \"", flags.input, "\" and \"", argument, "\""));
      if (argument.empty()) return absl::InvalidArgumentError("the input's name is empty");
      flags.input = std::string(argument);
      continue;
    }
    if (argument == "-h") argument = "--help";
    absl::ConsumePrefix(&argument, "--");
    const std::size_t equals = argument.find('=');
    const std::string name(argument.substr(0, equals));
    bool known = false;
    for (const auto& [candidate, flag] : switches) {
      if (name != candidate) continue;
      if (equals != absl::string_view::npos) return absl::InvalidArgumentError(absl::StrCat("--", name, " takes no value"));
      *flag = known = true;
    }
    std::string value;
    const auto take_value = [&]() -> absl::Status {
      known = true;
      if (equals != absl::string_view::npos) {
        value = std::string(argument.substr(equals + 1));
      } else if (i + 1 < arguments.size()) {
        value = arguments[++i];
      } else {
        return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value"));
      }
      return absl::OkStatus();
    };
    for (const auto& [candidate, flag] : texts) {
      if (name != candidate) continue;
      DDPOPT_RETURN_IF_ERROR(take_value());
      if (value.empty() && name != "passes") return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value"));
      if (name == "passes") flags.passes_given = true;
      *flag = value;
    }
    for (const auto& [candidate, flag] : lists) {
      if (name != candidate) continue;
      DDPOPT_RETURN_IF_ERROR(take_value());
      *flag = absl::StrSplit(value, ',', absl::SkipEmpty());
    }
    if (!known) return absl::InvalidArgumentError(absl::StrCat("there is no flag \"", arguments[i], "\""));
  }
  DDPOPT_RETURN_IF_ERROR(CheckChoice("--format", flags.format, kFormats));
  DDPOPT_RETURN_IF_ERROR(CheckChoice("--print", flags.print, kPrints));
  if (flags.help || flags.list_passes) return flags;
  if (flags.input.empty() == flags.reproducer.empty()) {
    return absl::InvalidArgumentError(flags.input.empty() ? "no input is given" : "either an input or --reproducer, not both");
  }
  return flags;
}

// "text", "json" or "oracle", told from the content.
absl::StatusOr<std::string> Sniff(absl::string_view content) {
  const absl::string_view start = absl::StripLeadingAsciiWhitespace(content);
  if (start.empty()) return absl::InvalidArgumentError("it is empty");
  if (start[0] != '{' && start[0] != '[') return std::string("text");
  DDPOPT_ASSIGN_OR_RETURN(const fx::JsonValue document, fx::ParseJson(content));
  const fx::JsonView root(document);
  if (root.Has("format")) return std::string("json");
  if (root.Has("model") && root.Has("nodes")) return std::string("oracle");
  return absl::InvalidArgumentError("the document: is JSON, but neither a graph (\"format\") nor a recorded one (\"model\", \"nodes\")");
}

absl::StatusOr<std::shared_ptr<fx::GraphModule>> Load(const std::string& content, std::string* format) {
  if (*format == "auto") {
    DDPOPT_ASSIGN_OR_RETURN(*format, Sniff(content));
  }
  if (*format == "text") return fx::ParseModule(content);
  if (*format == "oracle") {
    DDPOPT_ASSIGN_OR_RETURN(testing::OracleGraph oracle, testing::ParseOracleGraph(content));
    return oracle.module;
  }
  absl::StatusOr<std::shared_ptr<fx::GraphModule>> module = fx::ModuleFromJson(content);
  if (module.ok()) return module;
  // A graph without its module gets stand-ins for what it names, as text does.
  absl::StatusOr<std::unique_ptr<fx::Graph>> graph = fx::GraphFromJson(content);
  if (!graph.ok() || !absl::StrContains(module.status().message(), "holds a graph, not a module")) return module.status();
  return fx::ModuleOfGraph(**graph);
}

absl::StatusOr<std::string> Print(const fx::GraphModule& module, const Flags& flags) {
  if (flags.print == "text") return module.graph().ToString() + "\n";
  if (flags.print == "exact") return fx::FormatGraph(module.graph(), {.exact = true}) + "\n";
  if (flags.print == "tabular") return fx::FormatTabular(module.graph());
  if (flags.print == "readable") return fx::FormatReadable(module, {.device = flags.device});
  if (flags.print == "json") return fx::ToJson(module, {.drop_large_data = flags.drop_large_data});
  if (flags.print == "dot") return fx::FormatDot(module);
  return std::string();
}

struct Report {
  std::string format;
  std::size_t nodes_before = 0, nodes = 0;
  bool changed = false;
  std::vector<fx::PassTiming> timings;
};

absl::Status Run(const Flags& flags, Report* report, std::ostream& out, std::ostream& err) {
  const std::string path = flags.reproducer.empty() ? flags.input : flags.reproducer;
  DDPOPT_ASSIGN_OR_RETURN(std::string content, ReadFile(UserPath(path)));
  std::string pipeline = flags.passes;
  if (!flags.reproducer.empty() || (flags.format == "auto" && fx::IsReproducer(content))) {
    absl::StatusOr<fx::Reproducer> reproducer = fx::ParseReproducer(content);
    if (!reproducer.ok()) return Annotate(reproducer.status(), absl::StrCat("\"", path, "\""));
    if (!flags.passes_given) pipeline = reproducer->pipeline;
    content = std::move(reproducer->graph);
  }
  report->format = flags.format;
  absl::StatusOr<std::shared_ptr<fx::GraphModule>> loaded = Load(content, &report->format);
  if (!loaded.ok()) return Annotate(loaded.status(), absl::StrCat("\"", path, "\""));
  fx::GraphModule& module = **loaded;
  report->nodes_before = report->nodes = module.graph().size();

  fx::PassManagerOptions options;
  options.verify_claims = flags.verify_claims;
  options.print_before = flags.print_before;
  options.print_after = flags.print_after;
  options.print_after_change = flags.print_after_change;
  if (!flags.write_reproducer.empty()) options.reproducer_path = UserPath(flags.write_reproducer);
  options.serialize = [](const fx::GraphModule& failed) { return fx::ToJson(failed, {.drop_large_data = true}); };
  options.print = [&err](absl::string_view text) { err << text; };
  fx::PassManager manager(options);
  DDPOPT_RETURN_IF_ERROR(Annotate(manager.AddPipeline(fx::BuiltinPasses(), pipeline), "--passes"));
  DDPOPT_RETURN_IF_ERROR(module.Lint());
  const absl::StatusOr<bool> changed = manager.Run(module);
  report->timings = manager.timings();
  report->nodes = module.graph().size();
  if (flags.timing) err << manager.TimingReport();
  if (!changed.ok()) return changed.status();
  report->changed = *changed;

  DDPOPT_ASSIGN_OR_RETURN(const std::string text, Print(module, flags));
  if (flags.output.empty()) {
    out << text;
  } else {
    DDPOPT_RETURN_IF_ERROR(WriteFile(UserPath(flags.output), text));
  }
  if (flags.dot.empty() && flags.svg.empty()) return absl::OkStatus();
  const std::string dot = fx::FormatDot(module);
  if (!flags.dot.empty()) DDPOPT_RETURN_IF_ERROR(WriteFile(UserPath(flags.dot), dot));
  if (!flags.svg.empty()) {
    DDPOPT_ASSIGN_OR_RETURN(const std::string svg, fx::DotToSvg(dot));
    DDPOPT_RETURN_IF_ERROR(WriteFile(UserPath(flags.svg), svg));
  }
  return absl::OkStatus();
}

std::string ReportJson(const Flags& flags, const Report& report, const absl::Status& status) {
  nlohmann::ordered_json passes = nlohmann::ordered_json::array();
  for (const fx::PassTiming& timing : report.timings) {
    passes.push_back({{"pass", timing.pass},
                      {"milliseconds", static_cast<double>(timing.nanoseconds) / 1e6},
                      {"changed", timing.changed},
                      {"nodes_before", timing.nodes_before},
                      {"nodes_after", timing.nodes_after}});
  }
  nlohmann::ordered_json json = {{"input", flags.reproducer.empty() ? flags.input : flags.reproducer},
                                 {"format", report.format},
                                 {"nodes_before", report.nodes_before},
                                 {"nodes", report.nodes},
                                 {"changed", report.changed},
                                 {"passes", std::move(passes)},
                                 {"error", nullptr}};
  if (!status.ok()) json["error"] = std::string(status.message());
  return json.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

int RunGraphOpt(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Flags> flags = ParseFlags(arguments);
  if (!flags.ok()) {
    err << "graph_opt: " << flags.status().message() << "\nTry --help.\n";
    return 2;
  }
  if (flags->help) {
    out << kUsage;
    return 0;
  }
  if (flags->list_passes) {
    for (const std::string& name : fx::BuiltinPasses().names()) out << name << ": " << fx::BuiltinPasses().description(name) << "\n";
    return 0;
  }
  Report report;
  absl::Status status = CatchAsStatus("graph_opt", [&] { return Run(*flags, &report, out, err); });
  out.flush();
  if (status.ok() && !out) status = absl::UnknownError("standard output can't be written");
  if (!status.ok()) err << "graph_opt: " << status.message() << "\n";
  if (flags->json) out << ReportJson(*flags, report, status) << std::endl;
  return status.ok() ? 0 : 1;
}

}  // namespace ddpopt
