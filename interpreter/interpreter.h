#ifndef DDPOPT_INTERPRETER_INTERPRETER_H_
#define DDPOPT_INTERPRETER_INTERPRETER_H_

// Runs a GraphModule node by node, as torch.fx's Interpreter. Override a hook to change what a kind of node does.
//
//   Interpreter interpreter(gm);
//   c10::IValue y = interpreter.Run({x});
//
//   class Doubler : public Interpreter {
//     using Interpreter::Interpreter;
//     c10::IValue RunCallFunction(const fx::Node& node, Arguments& arguments) override {
//       return Interpreter::RunCallFunction(node, arguments).toTensor() * 2;
//     }
//   };
//
// What is executed: operators; get_attr; call_module of graphs and callables; operator.getitem; torch's functions for grad mode, autocast and inference
// mode, whose effect ends with the run at the latest, even if it throws; higher-order operators that call nested graphs (cond; while_loop, map, scan and
// associative_scan, step by step; wrap, wrap_with_set_grad_enabled, wrap_with_autocast; checkpoints, as plain calls: nothing is recomputed;
// invoke_subgraph, strict_mode, hints_wrapper). Other opaque targets and methods are refused by name.
//
// Throws c10::Error whose message keeps the original one and adds "While executing %node ..." for each graph on the way, with the module path and the stack
// trace that the node knows of. One object runs on one thread at a time; several may share a GraphModule. What is worked out about a graph
// (last uses, bound arguments) stays with it until it is edited, so making an Interpreter of the same graph again costs nothing.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/ivalue.h"
#include "ATen/core/stack.h"
#include "absl/container/flat_hash_map.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

struct Plan;
class ModeScopes;

struct InterpreterOptions {
  // Whether a value is freed after its last use. False keeps all until the next run, to be looked at by ValueOf.
  bool garbage_collect_values = true;
};

class Interpreter {
 public:
  using Values = std::vector<c10::IValue>;
  using NamedValues = std::vector<std::pair<std::string, c10::IValue>>;
  using Environment = absl::flat_hash_map<const fx::Node*, c10::IValue>;

  // Keeps a reference: `module` must outlive the interpreter. Its graph may be edited between runs.
  explicit Interpreter(const fx::GraphModule& module, InterpreterOptions options = {});
  virtual ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // One value per placeholder, in order; a placeholder with a default may be left out at the end. A value is freed after its last use, inputs
  // included unless the caller holds them too.
  c10::IValue Run(Values inputs);
  // As Run, for partial evaluation: nodes with a value in `initial` are not run. Placeholders among them take no input.
  c10::IValue Run(Values inputs, const Environment& initial);
  // As Run with exactly one value per placeholder, which it takes out of `inputs`: empty afterwards, so that nobody else holds them.
  c10::IValue RunBoxed(Values& inputs);

  // The value of a node already run and not yet freed. What a node uses for the last time is freed before it is called: then the
  // arguments alone hold it. Throws c10::Error if it isn't there.
  const c10::IValue& ValueOf(const fx::Node* node) const;

 protected:
  // The arguments of the node at hand, put together when first asked for.
  class Arguments {
   public:
    // With nodes replaced by their values; lists become generic lists, to be typed by the operator's schema. The hook may change and take them.
    Values& args();
    NamedValues& kwargs();

   private:
    friend class Interpreter;
    Arguments(Interpreter& interpreter, const fx::Node& node) : interpreter_(interpreter), node_(node) {}
    void Gather();
    Interpreter& interpreter_;
    const fx::Node& node_;
    bool gathered_ = false;
    Values args_;
    NamedValues kwargs_;
  };

  // Runs one node by calling the hook of its kind.
  virtual c10::IValue RunNode(const fx::Node& node);

  virtual c10::IValue RunPlaceholder(const fx::Node& node);
  // A submodule's value is a capsule (SubmoduleOf takes it out again).
  virtual c10::IValue RunGetAttr(const fx::Node& node);
  virtual c10::IValue RunCallFunction(const fx::Node& node, Arguments& arguments);
  virtual c10::IValue RunCallMethod(const fx::Node& node, Arguments& arguments);
  virtual c10::IValue RunCallModule(const fx::Node& node, Arguments& arguments);
  virtual c10::IValue RunOutput(const fx::Node& node, c10::IValue value);
  // Calls the nested graph of a higher-order operator.
  virtual c10::IValue RunSubgraph(const fx::GraphModule::Submodule& submodule, Values args);
  // torch.cond: a bool, a number or a tensor of one element chooses. Each branch has been taken from its capsule.
  virtual c10::IValue RunCond(const c10::IValue& predicate, const fx::GraphModule::Submodule& on_true,
                              const fx::GraphModule::Submodule& on_false, Values operands);

  const fx::GraphModule& module() const { return module_; }
  // An argument with its nodes replaced by their values.
  c10::IValue Evaluate(const fx::Argument& argument) const;
  static fx::GraphModule::Submodule SubmoduleOf(const c10::IValue& value);

 private:
  friend class Arguments;
  void UsePlan();
  c10::IValue RunAll();
  c10::IValue RunOperator(const fx::Node& node);
  Values BindKeywords(const fx::Node& node, const fx::Graph& callee, Arguments& arguments) const;
  c10::IValue RunHigherOrder(const std::string& name, Arguments& arguments);
  // Of the node, which is usually the one at hand.
  std::uint32_t SlotOf(const fx::Node& node) const;
  void FreeLastUses(std::uint32_t slot);
  void Clear();

  const fx::GraphModule& module_;
  const InterpreterOptions options_;
  std::shared_ptr<const Plan> plan_;
  std::uint64_t plan_version_ = 0;
  std::uint32_t current_ = 0;          // slot of the node at hand
  Values values_;                      // by slot
  std::vector<std::uint8_t> present_;  // by slot: whether there is a value
  torch::jit::Stack stack_;            // of the operator at hand
  Values inputs_;
  std::size_t next_input_ = 0;
  std::unique_ptr<ModeScopes> scopes_;
};

// Whether an Interpreter runs nodes of this kind and target, or refuses them by name. Of nested graphs see their nodes.
bool CanExecute(const fx::Node& node);

// Runs graphs with ATen's own kernels; a GraphModule as a Callable.
c10::IValue CallGraphModule(const fx::GraphModule& module, std::vector<c10::IValue> args);
// A submodule: its callable if it has one, else its graph.
c10::IValue CallSubmodule(const fx::GraphModule::Submodule& submodule, std::vector<c10::IValue> args);

}  // namespace ddpopt

#endif  // DDPOPT_INTERPRETER_INTERPRETER_H_
