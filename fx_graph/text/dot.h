#ifndef DDPOPT_FX_GRAPH_TEXT_DOT_H_
#define DDPOPT_FX_GRAPH_TEXT_DOT_H_

// Drawings of graphs: Graphviz's DOT language, and SVG if Graphviz's `dot` program is installed.
//
//   std::string dot = fx::FormatDot(module);
//   absl::StatusOr<std::string> svg = fx::DotToSvg(dot);
//
// Each node is a record of its name, kind and target, constant arguments and the form of its value; submodules are clusters below. Names in
// the file are stable: a graph that did not change gives the same text. Thread-safe as long as nobody changes the module.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fx_graph/graph.h"
#include "fx_graph/graph_module.h"

namespace ddpopt::fx {

struct DotOptions {
  std::string name = "graph";
  bool nested = true;       // draw submodules' graphs
  bool parameters = true;   // draw get_attr nodes and placeholders that stand for parameters
};

std::string FormatDot(const GraphModule& module, const DotOptions& options = {});
std::string FormatDot(const Graph& graph, const DotOptions& options = {});

// Runs `dot -Tsvg`. Errors: NotFound, saying what to install, if there is no such program; Internal with its message if it fails.
absl::StatusOr<std::string> DotToSvg(absl::string_view dot);

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_TEXT_DOT_H_
