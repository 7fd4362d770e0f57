#ifndef DDPOPT_FX_GRAPH_PASSES_EFFECTS_H_
#define DDPOPT_FX_GRAPH_PASSES_EFFECTS_H_

// What a node does besides giving its value: which memory it writes, whether it draws random numbers, changes modes, may fail on purpose.
//
//   fx::Effects effects(module);
//   effects.Of(node).pure();                                                     // may be dropped when nobody uses it
//   effects.ForEachWritten(node, [](fx::Node* input) { ... });                   // add_(%x, %y): %x
//   effects.ForEachAliased(node, [](fx::Node* input) { ... });                   // view(%x, ...): %x
//
// Told from the operator's schema: its alias annotations, `(a!)` and `(a)`; no results at all; the tag nondeterministic_seeded. Where
// schemas keep silent, rules known here speak: running statistics of batch and instance norm, collectives and profiler marks, composite
// operators that may hand an input back. Nested graphs are judged by their nodes. Opaque functions and methods are judged by the aten
// operators of their name
// ("torch.relu", "relu_"), if they come from a module that is known to give aten's; what nothing is known about may do anything.

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "fx_graph/graph_module.h"

namespace ddpopt::fx {

struct NodeEffects {
  // Writes memory of its arguments, see ForEachWritten.
  bool writes = false;
  // Draws from a random generator.
  bool random = false;
  // Is there for something else than its value: an assertion, a collective, a profiler's mark.
  bool other = false;
  // Changes grad mode, autocast or inference mode, which operators after it follow. Implies `other`.
  bool modes = false;
  // Nothing is known of it. It may write its arguments, what it or another like it was given before, and the memory of parameters, buffers
  // and inputs. Implies `other` and `modes`.
  bool anything = false;

  bool pure() const { return !writes && !random && !other; }
};

// Keeps a reference to the module, and what it has found out about operators and nested graphs: make a new one when nested graphs have
// changed. Not thread-safe.
class Effects {
 public:
  explicit Effects(const GraphModule& module);
  ~Effects();
  Effects(const Effects&) = delete;
  Effects& operator=(const Effects&) = delete;

  // Of one node of the module's graph. Placeholders, get_attrs and outputs are pure here.
  NodeEffects Of(const Node& node);
  // Calls fn on the inputs whose memory the node may write (an input may come twice). Nodes for which `anything` holds may write more.
  void ForEachWritten(const Node& node, absl::FunctionRef<void(Node*)> fn);
  // Calls fn on the inputs whose memory the node's value may share.
  void ForEachAliased(const Node& node, absl::FunctionRef<void(Node*)> fn);

 private:
  struct OperatorEffects;
  const OperatorEffects& OfOperator(const c10::OperatorHandle& op);
  NodeEffects OfAtenName(absl::string_view name);
  NodeEffects OfOpaque(const Node& node, absl::string_view text);
  NodeEffects OfMethod(absl::string_view name);
  NodeEffects OfHigherOrder(const Node& node, absl::string_view name);
  NodeEffects OfSubmodule(const GraphModule::Submodule& submodule);

  const GraphModule& module_;
  std::unordered_map<const c10::FunctionSchema*, OperatorEffects> operators_;
  std::unordered_map<std::string, NodeEffects> aten_names_;
  std::unordered_map<const GraphModule*, NodeEffects> graphs_;
};

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_PASSES_EFFECTS_H_
