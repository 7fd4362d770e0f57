#ifndef DDPOPT_INTERPRETER_PLAN_H_
#define DDPOPT_INTERPRETER_PLAN_H_

// What an Interpreter works out about a graph once, before it runs it: where each operator's arguments come from, already bound and converted by the
// schema where they are constants, and what is used for the last time where. Private to this package.
//
// Kept with the graph (Graph::derived) until it is edited, so that the next interpreter of the same graph finds it made. Immutable, and so shared
// between threads.

#include <cstdint>
#include <memory>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/ivalue.h"
#include "fx_graph/graph.h"

namespace ddpopt {

struct Plan {
  // Values live in an array with one slot a node, in the order of the graph.
  using Slot = std::uint32_t;

  // One argument of an operator's call.
  struct Source {
    enum class Kind : std::uint8_t {
      kConstant,  // constants[index]
      kCopy,      // the value in slot `index`
      kMove,      // the same, for the last time
      kNested,    // arguments[index], evaluated
    };
    Kind kind;
    // What may go on the stack as it is. Anything else is converted by the schema.
    bool takes_tensor;
    bool takes_none;
    std::uint32_t index;
  };

  enum class Code : std::uint8_t {
    kPlaceholder,
    kGetAttr,
    kOperator,  // bound: sources
    kGetItem,   // operator.getitem: slot `container`, constants[key]
    kCall,      // anything else that is called: the general way, which also finds the words for what is wrong
    kOutput,
  };

  struct Step {
    const fx::Node* node;
    Code code;
    bool is_used;
    // Ranges of `sources` and `frees`.
    std::uint32_t first_source;
    std::uint32_t source_count;
    std::uint32_t first_free;
    std::uint32_t free_count;
    // Of kGetItem.
    Slot container;
    std::uint32_t key;
  };

  std::vector<Step> steps;  // steps[slot]
  std::vector<Source> sources;
  std::vector<Slot> frees;  // values whose last use the step is
  std::vector<c10::IValue> constants;
  std::vector<const fx::Argument*> arguments;
  std::size_t placeholders = 0;
  // By node id.
  std::vector<Slot> slots;

  static constexpr Slot kNoSlot = static_cast<Slot>(-1);
  // kNoSlot for a node that isn't in the graph.
  Slot SlotOf(const fx::Node* node) const {
    const std::uint32_t id = node->id();
    return id < slots.size() && slots[id] != kNoSlot && steps[slots[id]].node == node ? slots[id] : kNoSlot;
  }
};

// A constant as operators take it: a dtype as the dispatcher's integer. Throws c10::Error for values that only Python has.
c10::IValue ConstantValue(const c10::IValue& constant);

// The plan of the graph as it is now. It points into the graph.
std::shared_ptr<const Plan> PlanOf(const fx::Graph& graph);

}  // namespace ddpopt

#endif  // DDPOPT_INTERPRETER_PLAN_H_
