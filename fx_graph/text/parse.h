#ifndef DDPOPT_FX_GRAPH_TEXT_PARSE_H_
#define DDPOPT_FX_GRAPH_TEXT_PARSE_H_

// Reads the text form of a graph, so that tests and reproducers can be text.
//
//   DDPOPT_ASSIGN_OR_RETURN(std::unique_ptr<fx::Graph> graph, fx::ParseGraph(R"(
//   graph():
//       %x : [num_users=1] = placeholder[target=x]
//       %relu : [num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%x,), kwargs = {})
//       return relu)"));
//
// Reads what Graph::ToString prints (FormatGraph without `exact` likewise) and what Python's str(graph) prints. By hand one may leave out
// "[num_users=N]", ", kwargs = {}", and indentation, and write comments from a '#' after a space, or at a line's start, to its end.
//
// - A target "torch.ops.ns.name.overload" that the dispatcher has is that operator, "torch.ops.higher_order.name" a higher-order one; any
//   other text is an OpaqueTarget.
// - Strings are printed without quotes, so a bare word is read as what it looks like: None, True, a number, a dtype, a layout, a memory
//   format, a device, else a string; an operator's parameter that is declared a string makes it one. Quotes always make a string. Text that
//   FormatGraph wrote with `exact` therefore reads back as the same graph; other text reads back as a graph that prints the same.
// - num_users, if given, must be right.
//
// Attributes, submodules and metadata other than types are not part of the text: see json.h. Thread-safe. Time is linear in the text.

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fx_graph/graph.h"
#include "fx_graph/graph_module.h"

namespace ddpopt::fx {

struct ParseOptions {
  // Whether a wrong [num_users=N] is an error, or ignored (text edited by hand).
  bool check_num_users = true;
};

// Error: InvalidArgument, "line 3, column 14: expected ..., got ...". The graph passes Graph::Lint.
absl::StatusOr<std::unique_ptr<Graph>> ParseGraph(absl::string_view text, const ParseOptions& options = {});

// A module of the graph: what its get_attr nodes name are opaque constants, and what its call_module nodes name are modules whose one call
// has an opaque target, so that the module lints, prints and can be worked on, and running it is refused by name.
absl::StatusOr<std::shared_ptr<GraphModule>> ParseModule(absl::string_view text, const ParseOptions& options = {});
// The same for a graph, which is copied. Error: the graph does not lint.
absl::StatusOr<std::shared_ptr<GraphModule>> ModuleOfGraph(const Graph& graph);

// The target that a call_function with this text has.
Target FunctionTargetFromText(absl::string_view text);

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_TEXT_PARSE_H_
