#ifndef DDPOPT_INTERPRETER_INTERPRETER_H_
#define DDPOPT_INTERPRETER_INTERPRETER_H_

// Runs a GraphModule node by node, as torch.fx's Interpreter. Override a hook to change what a kind of node does.
//
//   interpreter::Interpreter interp(gm);
//   c10::IValue y = interp.Run({x});
//
// Throws c10::Error, with "While executing %node ..." added. One object runs on one thread at a time.

#include <string>
#include <utility>
#include <vector>

#include "ATen/core/ivalue.h"
#include "absl/container/flat_hash_map.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

class Interpreter {
 public:
  using Values = std::vector<c10::IValue>;
  using NamedValues = std::vector<std::pair<std::string, c10::IValue>>;

  // Keeps a reference: `module` must outlive the interpreter.
  explicit Interpreter(const fx::GraphModule& module);
  virtual ~Interpreter() = default;

  // One value per placeholder, in order. A value is freed after its last use.
  c10::IValue Run(Values inputs);

 protected:
  // Evaluates one node: gathers its arguments and calls the hook of its kind.
  virtual c10::IValue RunNode(const fx::Node& node);

  virtual c10::IValue RunPlaceholder(const fx::Node& node);
  virtual c10::IValue RunGetAttr(const fx::Node& node);
  virtual c10::IValue RunCallFunction(const fx::Node& node, Values args, NamedValues kwargs);
  virtual c10::IValue RunCallMethod(const fx::Node& node, Values args, NamedValues kwargs);
  virtual c10::IValue RunCallModule(const fx::Node& node, Values args, NamedValues kwargs);
  virtual c10::IValue RunOutput(const fx::Node& node, c10::IValue value);

  const fx::GraphModule& module() const { return module_; }
  // The value of a node already run and not yet freed. What a node uses for the last time is freed before its hook is called: then the
  // arguments alone hold it.
  const c10::IValue& ValueOf(const fx::Node* node) const;
  // An argument with its nodes replaced by their values. Lists become generic lists, to be typed by the operator's schema.
  c10::IValue Evaluate(const fx::Argument& argument) const;

 private:
  const fx::GraphModule& module_;
  absl::flat_hash_map<const fx::Node*, std::vector<const fx::Node*>> last_uses_;
  absl::flat_hash_map<const fx::Node*, c10::IValue> env_;
  Values inputs_;
  std::size_t next_input_ = 0;
};

// Runs graphs with ATen's own kernels; a GraphModule as a Callable.
c10::IValue CallGraphModule(const fx::GraphModule& module, std::vector<c10::IValue> args);

}  // namespace ddpopt

#endif  // DDPOPT_INTERPRETER_INTERPRETER_H_
