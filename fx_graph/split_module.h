#ifndef DDPOPT_FX_GRAPH_SPLIT_MODULE_H_
#define DDPOPT_FX_GRAPH_SPLIT_MODULE_H_

// Cuts a GraphModule into submodules "submod_<number>" that an outer graph calls one after another, as torch.fx's split_module.
//
//   auto split = fx::SplitModule(module, [&](const fx::Node* node) { return stage_of.at(node); });
//   // (*split)->graph():  x -> submod_0 -> submod_1 -> output
//
// What the outer graph and the submodules look like:
//   - Every node but placeholders, get_attr and output goes to the partition whose number the callback gives for it. Numbers may have
//     gaps; a partition without nodes doesn't exist, and a graph without operators is copied.
//   - A value that crosses a border, of whatever type, becomes an output of its partition and a placeholder, named after it, of those
//     that use it. One output is returned bare (unless `tuple_return`), several as a tuple that the outer graph takes apart by getitem
//     nodes ("operator.getitem"), none as an empty tuple: a partition that only mutates is called all the same.
//   - Partitions are called in an order that their dependencies allow, the one torch.fx finds; see `keep_original_order`.
//   - Nodes are named afresh, after their targets, unless `keep_original_node_names`. Metadata is copied.
//   - Regions of autocast, inference mode or a grad mode that span several partitions are entered again in each (and, save grad modes,
//     left at the end of each), in front of everything else. With such regions, no node may lie in a partition that begins before that
//     of an earlier node.
//   - Symbolic sizes: a partition that takes a value whose metadata says that it depends on a symbol also takes the node that stands
//     for the symbol (see kSymbol).
//   - Parameters, buffers, constants, modules and nested graphs are shared by identity with the input, never copied, their metadata
//     included. Only the submodules made here get the input's module metadata, with indices of static inputs renumbered to their own
//     placeholders.
//
// The input module is left unchanged. Thread-safe as long as nobody edits it.

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "fx_graph/graph_module.h"

namespace ddpopt::fx {

// Keys of NodeMeta::custom that tell of symbolic sizes: kSymbol, the name of the symbol that the node's value is (a string);
// kFreeSymbols, those that its value, or the sizes of it, depend on (a list of strings, sorted). The first node that is a symbol
// stands for it.
inline constexpr char kSymbol[] = "symbol";
inline constexpr char kFreeSymbols[] = "free_symbols";

// Keys of GraphModule::meta(): the names of the submodules that SplitModule made, in the order they are called (a list of strings, set
// in the outer module); the inputs that are the same tensors at each call, as indices into the placeholders (lists of ints).
inline constexpr char kPartitionNames[] = "partition_names";
inline constexpr const char* kStaticInputIndices[] = {"dynamo_static_input_indices", "static_input_indices"};

struct SplitOptions {
  // Call the partitions in the order in which their first nodes come, and read each attribute just before the first call that needs
  // it. An order that their dependencies don't allow is then an error.
  bool keep_original_order = false;
  bool keep_original_node_names = false;
  // Otherwise placeholders of submodules are called arg_0, arg_1, ...
  bool keep_original_input_names = true;
  // "pp" makes submod_pp_0, submod_pp_1, ...
  std::string partition_affix;
  // Return a tuple even for one value.
  bool tuple_return = false;

  // Tensors read by get_attr: kPass reads them in the outer graph and passes them in, as torch.fx does; kCopy puts the get_attr into
  // every partition that uses it, so that a piece has its parameters and none crosses a border. Modules and nested graphs are always
  // kCopy.
  enum class Attributes { kPass, kCopy };
  Attributes attributes = Attributes::kPass;

  // If set, gets an entry for each module called and each attribute or nested graph read inside a submodule: its path from the outer
  // module ("submod_0.blocks_1_linear") and the path in the input ("blocks.1.linear"). Entries are added to those it has.
  std::map<std::string, std::string>* qualname_map = nullptr;
};

// `partition` is called once for each node that needs a number, in graph order.
// Errors: InvalidArgument for a negative number; NotFound for a get_attr or call_module whose path the module doesn't have;
// FailedPrecondition for partitions that depend on each other in a cycle, for an order that can't be kept, for regions that don't
// allow the partition, and for autocast that is left without being entered or the other way round. They name the nodes and partitions.
absl::StatusOr<std::shared_ptr<GraphModule>> SplitModule(const GraphModule& module, absl::FunctionRef<int(const Node*)> partition,
                                                         const SplitOptions& options = {});

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_SPLIT_MODULE_H_
