#ifndef DDPOPT_FX_GRAPH_FORMAT_H_
#define DDPOPT_FX_GRAPH_FORMAT_H_

// The text form of nodes, arguments and graphs: what Python's str(graph) prints for a torch.fx graph.
//
//   fx::FormatGraph(graph);                        // graph.ToString()
//   fx::FormatGraph(graph, {.exact = true});       // what ParseGraph reads back as the same graph
//
// torch.fx prints a string argument without quotes, so that None and "None", or cpu and "cpu", look alike. In the exact form a string
// that would be read as something else is quoted, and a value that only Python has is written opaque('text', 'type'); all else is the same.
//
// Functions append to `out`. Thread-safe as long as nobody changes the graph.

#include <string>

#include "ATen/core/ivalue.h"
#include "absl/strings/string_view.h"
#include "fx_graph/graph.h"
#include "fx_graph/node.h"

namespace ddpopt::fx {

struct FormatOptions {
  bool exact = false;
};

// How Python prints a value: format_node writes %x for a node and bare strings; str() and repr() of a container, which print the output's
// value, defaults and slices, write x and quoted strings.
enum class FormatStyle { kFormatNode, kRepr };

std::string FormatGraph(const Graph& graph, const FormatOptions& options = {});
// One line, without its end.
void AppendNode(const Node& node, const FormatOptions& options, std::string* out);
void AppendArgument(const Argument& argument, FormatStyle style, const FormatOptions& options, std::string* out);
void AppendConstant(const c10::IValue& value, FormatStyle style, const FormatOptions& options, std::string* out);
// An argument that an operator declares as `declared`, which may be null: integers that stand for dtypes, layouts and memory formats are
// printed as these.
void AppendDeclared(const Argument& argument, const c10::Argument* declared, FormatStyle style, const FormatOptions& options,
                    std::string* out);
// "torch.ops.aten.add.Tensor", "torch.ops.higher_order.cond", else the text itself.
void AppendQualifiedTarget(const Target& target, std::string* out);

// As Python's repr(): of a float ("1e-05", "2.0", "nan"), of a str ("'it''s'" with Python's choice of quotes and escapes).
void AppendPythonFloat(double value, std::string* out);
void AppendPythonString(absl::string_view text, std::string* out);

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_FORMAT_H_
