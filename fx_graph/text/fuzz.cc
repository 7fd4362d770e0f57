#include "fx_graph/text/fuzz.h"

#include <algorithm>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "fx_graph/format.h"
#include "fx_graph/graph.h"
#include "fx_graph/graph_module.h"
#include "fx_graph/text/dot.h"
#include "fx_graph/text/json.h"
#include "fx_graph/text/parse.h"
#include "fx_graph/text/print.h"
#include "testing/oracle_graph.h"

namespace ddpopt::fx {
namespace {

// "line 3, column 4: ..." or "nodes[3].args: ..." or "the document: ...".
std::string CheckError(const absl::Status& status, bool json) {
  const std::string message(status.message());
  if (status.code() != absl::StatusCode::kInvalidArgument) return absl::StrCat("an error that is not InvalidArgument: ", status.ToString());
  if (absl::StartsWith(message, "line ") && absl::StrContains(message, ", column ")) return "";
  if (json && (absl::StrContains(message, ": ") || absl::StrContains(message, "levels deep"))) return "";
  return absl::StrCat("an error without a place: ", message);
}

std::string CheckText(absl::string_view input, bool* accepted) {
  const auto graph = ParseGraph(input);
  if (!graph.ok()) return CheckError(graph.status(), false);
  *accepted = true;
  if (const absl::Status lint = (*graph)->Lint(); !lint.ok()) return absl::StrCat("accepted, but: ", lint.ToString());
  const std::string exact = FormatGraph(**graph, {.exact = true});
  const auto again = ParseGraph(exact);
  if (!again.ok()) return absl::StrCat("its exact form is refused: ", again.status().ToString(), "\n", exact);
  const std::string twice = FormatGraph(**again, {.exact = true});
  if (twice != exact) return absl::StrCat("reads back differently:\n", exact, "\nand then\n", twice);
  if ((*again)->ToString() != (*graph)->ToString()) return absl::StrCat("prints differently:\n", (*graph)->ToString(), "\nand then\n", (*again)->ToString());
  return "";
}

// All other forms must at least be made, and JSON must read back.
std::string CheckModule(const GraphModule& module) {
  if (const absl::Status lint = module.Lint(); !lint.ok()) return absl::StrCat("accepted, but: ", lint.ToString());
  if (FormatTabular(module.graph()).empty() || FormatReadable(module, {.device = true}).empty() || FormatDot(module).empty()) return "prints nothing";
  const auto json = ToJson(module, {.drop_large_data = true});
  if (!json.ok()) return absl::StrCat("its JSON can't be written: ", json.status().ToString());
  const auto again = ModuleFromJson(*json);
  if (!again.ok()) return absl::StrCat("its own JSON is refused: ", again.status().ToString(), "\n", *json);
  const auto twice = ToJson(**again, {.drop_large_data = true});
  if (!twice.ok() || *twice != *json) return absl::StrCat("reads back differently:\n", *json, "\nand then\n", twice.ok() ? *twice : twice.status().ToString());
  return "";
}

std::string CheckJson(absl::string_view input, bool* accepted) {
  const auto graph = GraphFromJson(input);
  const auto module = ModuleFromJson(input);
  if (!module.ok()) return CheckError(module.status(), true);
  *accepted = true;
  if (!graph.ok()) return absl::StrCat("a module is read whose graph is not: ", graph.status().ToString());
  return CheckModule(**module);
}

std::string CheckOracle(absl::string_view input, bool* accepted) {
  const auto oracle = testing::ParseOracleGraph(input);
  if (!oracle.ok()) return CheckError(oracle.status(), true);
  *accepted = true;
  return CheckModule(*oracle->module);
}

// Words of all formats: bytes alone seldom make one.
constexpr const char* kWords[] = {
    "%x", "graph():", "return ", "None", "True", "-1", "9223372036854775807", "9223372036854775808", "1e999", "-0.0", "nan", "inf", "1j", "(1+2j)", "[", "]", "(", ")", "{", "}", ",", ", ",
    ": ", "'", "\"", "\\", "\\u12", "\\x", "slice(", "device(type='cuda', index=1)", "opaque('a', 'b')", "tensor(", "torch.float32", "torch.ops.aten.add.Tensor", "torch.ops.higher_order.cond",
    "[num_users=1]", "[num_users=", "placeholder[target=", "](args = (", ",), kwargs = {", "\n", "\n    ", "#", "->", "null", "true", "{}", "[]", "\"node\"", "\"tuple\"", "\"slice\"", "\"dict\"",
    "\"tensor\"", "\"constant_list\"", "\"constant_dict\"", "\"float\"", "\"bytes\"", "\"n\"", "\"repr\"", "\"ellipsis\"", "1e5", "-1e-5", "\xff", "\xc3\xa9", "\xe2\x80\xa8"};

std::size_t Below(std::size_t limit, std::mt19937_64& random) { return limit == 0 ? 0 : static_cast<std::size_t>(random() % limit); }

}  // namespace

const char* FuzzTargetName(FuzzTarget target) {
  switch (target) {
    case FuzzTarget::kText:
      return "text";
    case FuzzTarget::kJson:
      return "json";
    case FuzzTarget::kOracle:
      return "oracle";
  }
  return "unknown";
}

std::string CheckInput(FuzzTarget target, absl::string_view input, bool* accepted) {
  bool unused = false;
  if (accepted == nullptr) accepted = &unused;
  *accepted = false;
  switch (target) {
    case FuzzTarget::kText:
      return CheckText(input, accepted);
    case FuzzTarget::kJson:
      return CheckJson(input, accepted);
    case FuzzTarget::kOracle:
      return CheckOracle(input, accepted);
  }
  return "no such target";
}

std::string Mutate(const std::vector<std::string>& corpus, std::mt19937_64& random) {
  std::string input = corpus[Below(corpus.size(), random)];
  const std::size_t edits = 1 + Below(4, random);
  for (std::size_t edit = 0; edit < edits; ++edit) {
    const std::size_t at = Below(input.size() + 1, random);
    const std::size_t length = Below(std::min<std::size_t>(input.size() - at, 1 + Below(64, random)) + 1, random);
    switch (Below(8, random)) {
      case 0:  // a byte
        if (at < input.size()) input[at] = static_cast<char>(random());
        break;
      case 1:  // a bit
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << Below(8, random)));
        break;
      case 2:
        input.erase(at, length);
        break;
      case 3:  // a piece twice
        input.insert(at, input.substr(at, length));
        break;
      case 4: {  // a piece of another
        const std::string& other = corpus[Below(corpus.size(), random)];
        const std::size_t from = Below(other.size() + 1, random);
        input.replace(at, length, other.substr(from, Below(64, random)));
        break;
      }
      case 5:
      case 6:
        input.replace(at, Below(2, random) == 0 ? 0 : length, kWords[Below(std::size(kWords), random)]);
        break;
      case 7: {  // a line out, or into another place
        std::vector<std::string> lines = absl::StrSplit(input, '\n');
        const std::size_t from = Below(lines.size(), random);
        std::string line = lines[from];
        lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(from));
        if (Below(2, random) == 0) lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(Below(lines.size() + 1, random)), std::move(line));
        input = absl::StrJoin(lines, "\n");
        break;
      }
    }
    if (Below(64, random) == 0) input.resize(Below(input.size() + 1, random));
  }
  return input;
}

}  // namespace ddpopt::fx
