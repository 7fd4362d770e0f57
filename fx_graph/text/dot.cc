#include "fx_graph/text/dot.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "fx_graph/constants.h"
#include "fx_graph/format.h"
#include "fx_graph/text/print.h"

extern char** environ;

namespace ddpopt::fx {
namespace {

// Text within a double-quoted DOT string.
std::string Quoted(absl::string_view text) {
  std::string quoted;
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted.push_back('\\');
    if (c == '\n') {
      quoted.append("\\n");
    } else if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      quoted.push_back('?');
    } else {
      quoted.push_back(c);
    }
  }
  return quoted;
}

// Text within a field of a record label: braces, bars, angles and spaces would structure it.
std::string Field(absl::string_view text) {
  constexpr std::size_t kLongest = 120;
  const std::string cut = text.size() > kLongest ? absl::StrCat(text.substr(0, kLongest), "...") : std::string(text);
  std::string field;
  for (const char c : cut) {
    if (c == '{' || c == '}' || c == '|' || c == '<' || c == '>' || c == '"' || c == '\\') field.push_back('\\');
    if (c == '\n') {
      field.append("\\n");
    } else {
      field.push_back(absl::ascii_iscntrl(static_cast<unsigned char>(c)) ? '?' : c);
    }
  }
  return field;
}

const char* Color(const Node& node) {
  switch (node.op()) {
    case Op::kPlaceholder:
      return node.meta().is_parameter ? "#fff2cc" : "#d9ead3";
    case Op::kGetAttr:
      return "#fff2cc";
    case Op::kCallFunction:
      return "#cfe2f3";
    case Op::kCallMethod:
      return "#d0e0e3";
    case Op::kCallModule:
      return "#d9d2e9";
    case Op::kOutput:
      return "#f4cccc";
  }
  return "white";
}

class Drawer {
 public:
  explicit Drawer(const DotOptions& options) : options_(options) {
    absl::StrAppend(&text_, "digraph \"", Quoted(options.name),
                    "\" {\n  node [shape=record, style=\"filled,rounded\", fontname=\"monospace\", fontsize=10];\n");
  }

  void Draw(const Graph& graph, const GraphModule* module, const std::string& prefix, const std::string& margin) {
    for (const Node* node : graph.nodes()) {
      if (!Drawn(*node)) continue;
      absl::StrAppend(&text_, margin, Id(prefix, *node), " [label=\"", Label(*node), "\", fillcolor=\"", Color(*node), "\"];\n");
    }
    for (const Node* node : graph.nodes()) {
      if (!Drawn(*node)) continue;
      for (const Node* input : node->all_input_nodes()) {
        if (Drawn(*input)) absl::StrAppend(&text_, margin, Id(prefix, *input), " -> ", Id(prefix, *node), ";\n");
      }
    }
    if (module == nullptr || !options_.nested) return;
    for (const auto& [path, submodule] : module->submodules()) {
      if (submodule.graph_module == nullptr) continue;
      const std::string nested = absl::StrCat(prefix, path, "/");
      absl::StrAppend(&text_, margin, "subgraph \"cluster_", Quoted(nested), "\" {\n", margin, "  label=\"", Quoted(path), "\";\n");
      Draw(submodule.graph_module->graph(), submodule.graph_module.get(), nested, margin + "  ");
      absl::StrAppend(&text_, margin, "}\n");
    }
  }

  std::string Finish() { return std::move(text_.append("}\n")); }

 private:
  bool Drawn(const Node& node) const {
    if (options_.parameters) return true;
    return node.op() != Op::kGetAttr && !(node.op() == Op::kPlaceholder && node.meta().is_parameter);
  }

  static std::string Id(const std::string& prefix, const Node& node) {
    return absl::StrCat("\"", Quoted(prefix), absl::string_view(node.name()), "\"");
  }

  static std::string Label(const Node& node) {
    std::string target;
    AppendQualifiedTarget(node.target(), &target);
    std::string label = absl::StrCat("{%", absl::string_view(node.name()), "|", OpName(node.op()));
    if (node.op() != Op::kOutput) absl::StrAppend(&label, "|", Field(target));
    // Inputs are edges; what an edge can't show is written down.
    std::string constants;
    const auto* op = std::get_if<OperatorTarget>(&node.target());
    const c10::FunctionSchema* schema = op != nullptr && op->op.hasSchema() ? &op->op.schema() : nullptr;
    std::size_t position = 0;
    const auto add = [&](absl::string_view name, const Argument& argument, const c10::Argument* declared) {
      if (argument.is_node()) return;
      absl::StrAppend(&constants, constants.empty() ? "" : ", ", name, "=");
      AppendDeclared(argument, declared, FormatStyle::kFormatNode, {}, &constants);
    };
    if (node.op() != Op::kOutput) {
      for (const Argument& argument : node.args()) {
        const c10::Argument* declared = schema == nullptr ? nullptr : DeclaredArgument(*schema, position);
        add(declared == nullptr ? absl::StrCat(position) : declared->name(), argument, declared);
        ++position;
      }
      for (const auto& entry : node.kwargs()) {
        const absl::string_view key(entry.first);
        add(key, entry.second, schema == nullptr ? nullptr : DeclaredArgument(*schema, key));
      }
    }
    if (!constants.empty()) absl::StrAppend(&label, "|", Field(constants));
    const std::string form = FormatValueForm(node.meta().val, {.strides = true, .device = false, .nested = false});
    if (!form.empty()) absl::StrAppend(&label, "|", Field(form));
    return label + "}";
  }

  const DotOptions options_;
  std::string text_;
};

struct FileActions {
  posix_spawn_file_actions_t actions;
  FileActions() { posix_spawn_file_actions_init(&actions); }
  ~FileActions() { posix_spawn_file_actions_destroy(&actions); }
};

}  // namespace

std::string FormatDot(const GraphModule& module, const DotOptions& options) {
  Drawer drawer(options);
  drawer.Draw(module.graph(), &module, "", "  ");
  return drawer.Finish();
}

std::string FormatDot(const Graph& graph, const DotOptions& options) {
  Drawer drawer(options);
  drawer.Draw(graph, nullptr, "", "  ");
  return drawer.Finish();
}

absl::StatusOr<std::string> DotToSvg(absl::string_view dot) {
  // The text goes in through a file without a name, so that only one pipe has to be watched.
  std::FILE* input = std::tmpfile();
  std::FILE* errors = std::tmpfile();
  int output[2] = {-1, -1};
  const auto clean = [&] {
    if (input != nullptr) std::fclose(input);
    if (errors != nullptr) std::fclose(errors);
    for (const int fd : output) {
      if (fd >= 0) close(fd);
    }
  };
  if (input == nullptr || errors == nullptr || std::fwrite(dot.data(), 1, dot.size(), input) != dot.size() || std::fflush(input) != 0 ||
      pipe2(output, O_CLOEXEC) != 0) {
    const std::string message = absl::StrCat("a temporary file or pipe for dot: ", std::strerror(errno));
    clean();
    return absl::InternalError(message);
  }
  std::rewind(input);
  FileActions files;
  posix_spawn_file_actions_adddup2(&files.actions, fileno(input), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files.actions, output[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files.actions, fileno(errors), STDERR_FILENO);
  char program[] = "dot", format[] = "-Tsvg";
  char* arguments[] = {program, format, nullptr};
  pid_t child = 0;
  const int spawned = posix_spawnp(&child, program, &files.actions, nullptr, arguments, environ);
  close(output[1]);
  output[1] = -1;
  if (spawned != 0) {
    clean();
    return absl::NotFoundError(absl::StrCat("can't run Graphviz's program dot (", std::strerror(spawned),
                                            "); install it (apt-get install graphviz), or draw DOT instead of SVG"));
  }
  std::string svg;
  char buffer[1 << 16];
  while (true) {
    const ssize_t count = read(output[0], buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    svg.append(buffer, static_cast<std::size_t>(count));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  std::rewind(errors);
  const std::size_t count = std::fread(buffer, 1, sizeof(buffer) - 1, errors);
  const std::string message(absl::StripAsciiWhitespace(absl::string_view(buffer, count)));
  clean();
  // Some versions of posix_spawn report a missing program through the child's status.
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127) {
    return absl::NotFoundError("can't run Graphviz's program dot; install it (apt-get install graphviz), or draw DOT instead of SVG");
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return absl::InternalError(absl::StrCat("dot failed: ", message));
  return svg;
}

}  // namespace ddpopt::fx
