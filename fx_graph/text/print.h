#ifndef DDPOPT_FX_GRAPH_TEXT_PRINT_H_
#define DDPOPT_FX_GRAPH_TEXT_PRINT_H_

// Forms of a graph for people: a table, and code with shapes. What a program reads back is Graph::ToString (parse.h) or JSON (json.h).
//
//   std::cout << fx::FormatTabular(module.graph()) << fx::FormatReadable(module, {.device = true});
//
// Thread-safe as long as nobody changes the module.

#include <string>

#include "ATen/core/ivalue.h"
#include "fx_graph/graph.h"
#include "fx_graph/graph_module.h"

namespace ddpopt::fx {

// As torch.fx's print_tabular: a table of opcode, name, target, args, kwargs.
std::string FormatTabular(const Graph& graph);

struct ReadableOptions {
  bool strides = true;
  bool device = false;
  bool nested = true;  // submodules' graphs as well, indented below
};

// As torch.fx's print_readable: the graph as a Python-like class with the form of each value where meta val is known, and with
// "; x = None" where a value is used for the last time.
//
//   class GraphModule:
//       def forward(self, x: "f32[2, 3][3, 1]"):
//           relu: "f32[2, 3][3, 1]" = torch.ops.aten.relu.default(x);  x = None
//           return relu
std::string FormatReadable(const GraphModule& module, const ReadableOptions& options = {});
std::string FormatReadable(const Graph& graph, const ReadableOptions& options = {});

// "f32[2, 3][3, 1]cpu"; of tuples and lists "(f32[2][1], i64[][])"; empty if the value is no tensor, or None.
std::string FormatValueForm(const c10::IValue& value, const ReadableOptions& options);

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_TEXT_PRINT_H_
