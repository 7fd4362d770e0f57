#include "ddpopt/optimizer/bucket_records.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status.h"
#include "c10/core/DeviceType.h"
#include "ddpopt/optimizer/bucket_assignment.h"
#include "fx_graph/split_module.h"
#include "nlohmann/json.hpp"

namespace ddpopt {
namespace {

using fx::Argument;
using fx::GraphModule;
using fx::Node;
using fx::Op;
using Json = nlohmann::json;

constexpr std::size_t kMaxShown = 300;

std::string Shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > kMaxShown) text = absl::StrCat(text.substr(0, kMaxShown), "... (", text.size(), " characters)");
  return text;
}

// The first line in which two texts differ.
std::string FirstDifference(const std::string& expected, const std::string& got) {
  const std::vector<std::string> a = absl::StrSplit(expected, '\n');
  const std::vector<std::string> b = absl::StrSplit(got, '\n');
  std::size_t line = 0;
  while (line < a.size() && line < b.size() && a[line] == b[line]) ++line;
  const auto at = [line](const std::vector<std::string>& lines) {
    return line < lines.size() ? lines[line] : std::string("(no such line)");
  };
  return absl::StrCat("line ", line + 1, ": expected \"", at(a), "\", got \"", at(b), "\"");
}

// Compares fields and writes down what differs.
class Comparison {
 public:
  explicit Comparison(std::vector<std::string>* differences) : differences_(differences) {}

  void Equal(const std::string& what, const Json& expected, const Json& got) {
    if (expected != got) differences_->push_back(absl::StrCat(what, ": expected ", Shown(expected), ", got ", Shown(got)));
  }
  // A field that the record may lack.
  void Field(const std::string& where, const Json& record, const char* key, const Json& got) {
    if (record.contains(key)) Equal(where.empty() ? key : absl::StrCat(where, ".", key), record.at(key), got);
  }
  void Text(const std::string& where, const Json& record, const std::string& got) {
    if (!record.contains("text") || record.at("text") == got) return;
    differences_->push_back(absl::StrCat(where, ".text, ", FirstDifference(record.at("text").get<std::string>(), got)));
  }

 private:
  std::vector<std::string>* differences_;
};

std::vector<std::string> Names(const std::vector<const Node*>& nodes) {
  std::vector<std::string> names;
  for (const Node* node : nodes) names.emplace_back(node->name());
  return names;
}

Json ConstantToJson(const c10::IValue& value) {
  if (value.isNone()) return nullptr;
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isString()) return value.toStringRef();
  if (value.isDevice()) return {{"device", value.toDevice().str()}};
  if (value.isDouble()) {
    const double number = value.toDouble();
    if (std::isfinite(number)) return number;
    return {{"f", std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf"}};
  }
  if (value.isList()) {
    Json list = Json::array();
    for (const c10::IValue& element : value.toListRef()) list.push_back(ConstantToJson(element));
    return list;
  }
  return {{"repr", Argument(value).ToString()}};
}

// As the records write arguments.
Json ToJson(const Argument& argument) {
  Json elements = Json::array();
  for (const Argument& element : argument.elements()) elements.push_back(ToJson(element));
  switch (argument.kind()) {
    case Argument::Kind::kNone:
      return nullptr;
    case Argument::Kind::kNode:
      return {{"n", std::string(argument.node()->name())}};
    case Argument::Kind::kConstant:
      return ConstantToJson(argument.constant());
    case Argument::Kind::kList:
      return elements;
    case Argument::Kind::kTuple:
      return {{"tuple", elements}};
    case Argument::Kind::kSlice:
      return {{"slice", elements}};
    case Argument::Kind::kDict: {
      Json pairs = Json::array();
      for (std::size_t i = 0; i + 1 < elements.size(); i += 2) pairs.push_back({elements[i], elements[i + 1]});
      return {{"dict", pairs}};
    }
  }
  return nullptr;
}

// Symbols in the text of a value ("2*s77", "torch.float32[8, 4] strides [s77, 1]"), sorted: identifiers that are neither called nor types.
std::set<std::string> SymbolsIn(absl::string_view text) {
  std::set<std::string> symbols;
  const auto is_part = [](char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; };
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = begin;
    while (end < text.size() && is_part(text[end])) ++end;
    if (end == begin) {
      ++begin;
      continue;
    }
    const absl::string_view word = text.substr(begin, end - begin);
    const bool is_number = absl::ascii_isdigit(static_cast<unsigned char>(word[0]));
    const bool is_called = end < text.size() && text[end] == '(';
    if (!is_number && !is_called && word != "strides" && !absl::StrContains(word, ".")) symbols.emplace(word);
    begin = end;
  }
  return symbols;
}

// The loader keeps a symbolic value's text ("s77", "torch.float32[s77, 64]"); SplitModule wants its symbols by name.
void NameSymbols(GraphModule& module) {
  for (Node* node : module.graph().nodes()) {
    const auto found = node->meta().custom.find("symbolic");
    if (found == node->meta().custom.end()) continue;
    const std::string text = found->second.toStringRef();
    c10::List<std::string> list;
    for (const std::string& symbol : SymbolsIn(text)) {
      list.push_back(symbol);
      if (symbol == text) node->meta().custom[fx::kSymbol] = c10::IValue(symbol);
    }
    node->meta().custom[fx::kFreeSymbols] = list;
  }
}

BucketOptions OptionsOf(const Json& record, const testing::OracleGraph& graph) {
  BucketOptions options;
  options.rule = BucketRule::kReference;
  options.bucket_cap_bytes = record.at("cap").get<int64_t>();
  if (record.contains("first") && !record.at("first").is_null()) options.first_bucket_cap_bytes = record.at("first").get<int64_t>();
  for (const auto& [name, parameter] : graph.parameters) {
    if (parameter.ignored) options.ignored_parameters.insert(parameter.name);
  }
  for (const auto& [target, module] : graph.modules) {
    for (const testing::OracleParameter& parameter : module.parameters) {
      if (parameter.ignored) options.ignored_parameters.insert(absl::StrCat(target, ".", parameter.name));
    }
  }
  return options;
}

void CompareBuckets(const Json& record, const BucketAssignment& assignment, Comparison& compare) {
  const Json& expected = record.at("buckets");
  compare.Field("", record, "n_buckets", assignment.buckets.size());
  compare.Field("", record, "path", assignment.Path());
  if (expected.size() != assignment.buckets.size()) {
    compare.Equal("number of buckets", expected.size(), assignment.buckets.size());
    return;
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Bucket& bucket = assignment.buckets[i];
    const std::string where = absl::StrCat("buckets[", i, "]");
    compare.Field(where, expected[i], "size", bucket.bytes);
    compare.Field(where, expected[i], "params", bucket.parameters);
    compare.Field(where, expected[i], "nodes", Names(bucket.nodes));
    compare.Field(where, expected[i], "ext_ops", bucket.extended_by_nodes);
    compare.Field(where, expected[i], "size_before_ext", bucket.bytes_before_extension);
  }
}

void CompareSubmodule(const std::string& where, const Json& expected, const Node& call, const GraphModule& part, bool text,
                      Comparison& compare) {
  std::vector<std::string> args, placeholders, nodes, targets, outputs, attributes;
  bool tuple_output = false;
  for (const Argument& argument : call.args()) args.push_back(argument.ToString().substr(1));
  for (const Node* node : part.graph().nodes()) {
    if (node->op() == Op::kPlaceholder) {
      placeholders.emplace_back(node->name());
    } else if (node->op() == Op::kOutput) {
      tuple_output = node->args()[0].kind() == Argument::Kind::kTuple;
      node->args()[0].ForEachNode([&](const Node* output) { outputs.emplace_back(output->name()); });
    } else {
      nodes.emplace_back(node->name());
      targets.push_back(testing::OracleTarget(*node));
      if (node->op() == Op::kGetAttr) attributes.emplace_back(node->path());
    }
  }
  compare.Field(where, expected, "name", std::string(call.path()));
  compare.Field(where, expected, "args", args);
  compare.Field(where, expected, "placeholders", placeholders);
  compare.Field(where, expected, "nodes", nodes);
  compare.Field(where, expected, "targets", targets);
  compare.Field(where, expected, "outputs", outputs);
  compare.Field(where, expected, "tuple_output", tuple_output);
  compare.Field(where, expected, "get_attr", attributes);
  if (text) compare.Text(where, expected, part.graph().ToString());
}

void CompareSplit(const Json& expected, const GraphModule& outer, bool text, Comparison& compare) {
  Json parent = Json::array();
  std::vector<std::string> placeholders;
  std::vector<const Node*> calls;
  std::set<std::string> partition_names;
  for (const Node* node : outer.graph().nodes()) {
    if (node->op() == Op::kPlaceholder) {
      placeholders.emplace_back(node->name());
      continue;
    }
    if (node->op() == Op::kCallModule) {
      calls.push_back(node);
      partition_names.emplace(node->path());
    }
    Json args = Json::array();
    for (const Argument& argument : node->args()) args.push_back(ToJson(argument));
    const std::string target = testing::OracleTarget(*node);
    parent.push_back(
        {{"n", std::string(node->name())}, {"op", fx::OpName(node->op())}, {"t", target.substr(target.find(':') + 1)}, {"a", args}});
  }
  const Json& submodules = expected.at("submods");
  if (submodules.size() != calls.size()) compare.Equal("split: number of submodules", submodules.size(), calls.size());
  for (std::size_t i = 0; i < std::min(submodules.size(), calls.size()); ++i) {
    const absl::StatusOr<GraphModule::Submodule> part = outer.GetSubmodule(calls[i]->path());
    CompareSubmodule(absl::StrCat("split.submods[", i, "]"), submodules[i], *calls[i], *part->graph_module, text, compare);
  }
  if (expected.contains("parent") && expected.at("parent").size() == parent.size()) {
    for (std::size_t i = 0; i < parent.size(); ++i) {
      for (const auto& [key, value] : expected.at("parent")[i].items()) {
        compare.Equal(absl::StrCat("split.parent[", i, "].", key), value, parent[i].value(key, Json()));
      }
    }
  } else {
    compare.Field("split", expected, "parent", parent);
  }
  compare.Field("split", expected, "parent_placeholders", placeholders);
  if (expected.contains("partition_names")) {  // a set in Python
    const std::set<std::string> recorded = expected.at("partition_names").get<std::set<std::string>>();
    compare.Equal("split.partition_names", recorded, partition_names);
  }
  if (text) compare.Text("split", expected, outer.graph().ToString());
}

absl::Status CompareRecord(const Json& record, const testing::OracleGraph& graph, bool text, Comparison& compare) {
  const BucketOptions options = OptionsOf(record, graph);
  DDPOPT_ASSIGN_OR_RETURN(const BucketAssignment assignment, AssignBuckets(*graph.module, options));
  CompareBuckets(record, assignment, compare);
  // What failed in Python after the buckets has no split; what didn't and has none was one bucket.
  if (!record.contains("split")) {
    if (!record.contains("error")) compare.Equal("number of buckets without a split", 1, assignment.buckets.size());
    return absl::OkStatus();
  }
  const auto bucket_of = [&](const Node* node) { return assignment.bucket_of.at(node); };
  DDPOPT_ASSIGN_OR_RETURN(const std::shared_ptr<GraphModule> outer, fx::SplitModule(*graph.module, bucket_of));
  DDPOPT_RETURN_IF_ERROR(Annotate(outer->Lint(), "the split module"));
  compare.Field("", record, "n_submods", outer->meta().at(fx::kPartitionNames).toListRef().size());
  CompareSplit(record.at("split"), *outer, text, compare);
  return absl::OkStatus();
}

std::string CapText(const Json& record, const char* key) {
  return record.contains(key) && !record.at(key).is_null() ? record.at(key).dump() : "default";
}

}  // namespace

absl::StatusOr<const testing::OracleGraph*> BucketRecords::Graph(const std::string& path) {
  std::unique_ptr<testing::OracleGraph>& graph = graphs_[path];
  if (graph == nullptr) {
    DDPOPT_ASSIGN_OR_RETURN(testing::OracleGraph loaded, testing::LoadOracleGraph(path));
    NameSymbols(*loaded.module);
    graph = std::make_unique<testing::OracleGraph>(std::move(loaded));
  }
  return graph.get();
}

RecordOutcome BucketRecords::Check(absl::string_view line, const std::string& graphs_folder) {
  RecordOutcome outcome;
  const auto fail = [&outcome](std::string why) {
    outcome.verdict = RecordOutcome::Verdict::kFailed;
    outcome.differences.push_back(std::move(why));
  };
  try {
    const Json record = Json::parse(line.begin(), line.end());
    const std::string model = record.at("model").get<std::string>();
    const std::string form = record.at("form").get<std::string>();
    const std::string index = record.contains("graph") ? record.at("graph").dump() : "0";
    outcome.id =
        absl::StrCat(model, " ", form, " ", index, ", cap ", CapText(record, "cap"), ", first cap ", CapText(record, "first"));
    if (form == "none" || !record.contains("buckets") || record.at("buckets").is_null()) {
      outcome.verdict = RecordOutcome::Verdict::kSkipped;
      outcome.skip_reason = form == "none" ? "form none: only the outcome of the run was recorded" : "no buckets were recorded";
      if (record.contains("error") && record.at("error").is_string()) {
        absl::StrAppend(&outcome.skip_reason, " (", record.at("error").get<std::string>(), ")");
      }
      return outcome;
    }
    const absl::StatusOr<const testing::OracleGraph*> graph =
        Graph(absl::StrCat(graphs_folder, "/", model, ".", form, ".", index, ".json.gz"));
    if (!graph.ok()) {
      fail(absl::StrCat("the graph: ", graph.status().message()));
      return outcome;
    }
    Comparison compare(&outcome.differences);
    if (const absl::Status status = CompareRecord(record, **graph, options_.text, compare); !status.ok())
      fail(std::string(status.message()));
  } catch (const Json::exception& error) {
    fail(absl::StrCat("the record is damaged: ", error.what()));
  }
  if (!outcome.differences.empty()) outcome.verdict = RecordOutcome::Verdict::kFailed;
  return outcome;
}

absl::Status BucketRecords::CheckFile(const std::string& path, absl::FunctionRef<void(const RecordOutcome&)> report) {
  DDPOPT_ASSIGN_OR_RETURN(const std::string content, ReadFile(path));
  const std::filesystem::path file(path);
  const std::string graphs = (file.parent_path() / "graphs").string();
  graphs_.clear();
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(content, '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    RecordOutcome outcome = Check(line, graphs);
    outcome.id = absl::StrCat(file.filename().string(), ":", number, outcome.id.empty() ? "" : " ", outcome.id);
    report(outcome);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> RecordFiles(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    if (!std::filesystem::exists(path, error)) return absl::NotFoundError(absl::StrCat("\"", path, "\" does not exist"));
    return std::vector<std::string>{path};
  }
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    const std::string name = entry.path().filename().string();
    if (absl::EndsWith(name, ".jsonl.gz") || absl::EndsWith(name, ".jsonl")) files.push_back(entry.path().string());
  }
  if (error) return absl::UnavailableError(absl::StrCat("\"", path, "\": ", error.message()));
  if (files.empty()) return absl::NotFoundError(absl::StrCat("the folder \"", path, "\" holds no .jsonl.gz file"));
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace ddpopt
