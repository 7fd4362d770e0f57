#ifndef DDPOPT_FX_GRAPH_PASSES_MEMORY_H_
#define DDPOPT_FX_GRAPH_PASSES_MEMORY_H_

// Which values of a graph may share memory. For passes that merge or move nodes.
//
//   fx::Effects effects(module);
//   fx::Memory memory(module, effects);
//   memory.ClassOf(*view) == memory.ClassOf(*base);
//
// Values in different classes never share memory. Attributes share as their tensors do, inputs as their metadata's (meta().val) do; an
// input whose value isn't known may share with every other input and attribute. Inputs with a known value are taken not to be attributes.

#include <cstdint>
#include <vector>

#include "fx_graph/graph_module.h"
#include "fx_graph/passes/effects.h"

namespace ddpopt::fx {

class Memory {
 public:
  // Linear in the size of the graph. Later edits are not seen.
  Memory(const GraphModule& module, Effects& effects);

  // Dense: 0 … size() - 1. Precondition: the node was in the graph when this was made.
  std::uint32_t ClassOf(const Node& node) const { return classes_[IndexOf(node)]; }
  // In the order of the graph, from 0.
  std::uint32_t IndexOf(const Node& node) const { return index_.at(&node); }
  std::uint32_t size() const { return size_; }
  // Whether code that nothing is known of may reach the class: it holds inputs or attributes, or was given to such code.
  bool IsExposed(std::uint32_t memory_class) const { return exposed_[memory_class]; }

 private:
  NodeTable<std::uint32_t> index_;
  std::vector<std::uint32_t> classes_;  // by index
  std::vector<bool> exposed_;           // by class
  std::uint32_t size_ = 0;
};

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_PASSES_MEMORY_H_
