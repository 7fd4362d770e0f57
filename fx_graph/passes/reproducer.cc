#include "fx_graph/passes/reproducer.h"

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace ddpopt::fx {
namespace {

constexpr absl::string_view kTitle = "# ddpopt graph reproducer\n";

// Takes the first line, without its end.
absl::string_view TakeLine(absl::string_view& text) {
  const std::size_t end = text.find('\n');
  const absl::string_view line = text.substr(0, end);
  text.remove_prefix(end == absl::string_view::npos ? text.size() : end + 1);
  return line;
}

}  // namespace

std::string FormatReproducer(const Reproducer& reproducer) {
  return absl::StrCat(kTitle, "# pipeline: ", reproducer.pipeline, "\n# error: ", absl::StrReplaceAll(reproducer.error, {{"\n", "\n#   "}}),
                      "\n# run again: bazel run //tools:graph_opt -- --reproducer=PATH\n", reproducer.graph,
                      absl::EndsWith(reproducer.graph, "\n") ? "" : "\n");
}

bool IsReproducer(absl::string_view text) { return absl::StartsWith(text, kTitle); }

absl::StatusOr<Reproducer> ParseReproducer(absl::string_view text) {
  if (!absl::ConsumePrefix(&text, kTitle)) return absl::InvalidArgumentError("this is no reproducer: its first line is another");
  Reproducer reproducer;
  bool has_pipeline = false;
  bool in_error = false;
  while (absl::StartsWith(text, "#")) {
    absl::string_view line = TakeLine(text);
    if (absl::ConsumePrefix(&line, "# pipeline: ") || line == "# pipeline:") {
      reproducer.pipeline = line == "# pipeline:" ? "" : std::string(line);
      has_pipeline = true;
      in_error = false;
    } else if (absl::ConsumePrefix(&line, "# error: ")) {
      reproducer.error = std::string(line);
      in_error = true;
    } else if (in_error && absl::ConsumePrefix(&line, "#   ")) {
      absl::StrAppend(&reproducer.error, "\n", line);
    } else {
      in_error = false;
    }
  }
  if (!has_pipeline) return absl::InvalidArgumentError("the reproducer names no pipeline");
  reproducer.graph = std::string(text);
  return reproducer;
}

}  // namespace ddpopt::fx
