#ifndef DDPOPT_INTERPRETER_TRANSFORMER_H_
#define DDPOPT_INTERPRETER_TRANSFORMER_H_

// Rebuilds a GraphModule node by node, as torch.fx's Transformer. Override a hook to put something else in the place of a kind of node.
//
//   class ReluToGelu : public Transformer {
//     using Transformer::Transformer;
//     fx::Argument TransformCallFunction(const fx::Node& node, std::vector<fx::Argument> args, fx::Kwargs kwargs) override {
//       if (node.is_operator() && node.operator_handle() == relu) return graph().CallFunction(gelu, std::move(args));
//       return Transformer::TransformCallFunction(node, std::move(args), std::move(kwargs));
//     }
//   };
//   auto transformed = ReluToGelu(gm).Transform();      // StatusOr<std::shared_ptr<fx::GraphModule>>
//
// Nothing is executed. One object transforms once, on one thread.

#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

class Transformer {
 public:
  // Keeps a reference: `module` must outlive the transformer.
  explicit Transformer(const fx::GraphModule& module);
  virtual ~Transformer() = default;
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  // A new module with a graph of its own; attributes, submodules and module metadata are shared with the old one, which is left as it is. Nodes
  // keep their names where these are free. What a hook makes takes over the provenance of the node it stands for, but not meta().val, which
  // may no longer be true; inputs and attributes keep all of it. Errors: Internal with a hook's exception and the node; Lint's.
  absl::StatusOr<std::shared_ptr<fx::GraphModule>> Transform();

 protected:
  // What stands for the node in the new graph: a node of it, a constant, or a container of these. `args` and `kwargs` are the old node's, with nodes replaced
  // by what stands for them. The defaults make a node of the same kind and target.
  virtual fx::Argument TransformPlaceholder(const fx::Node& node, std::vector<fx::Argument> args);
  virtual fx::Argument TransformGetAttr(const fx::Node& node);
  virtual fx::Argument TransformCallFunction(const fx::Node& node, std::vector<fx::Argument> args, fx::Kwargs kwargs);
  virtual fx::Argument TransformCallMethod(const fx::Node& node, std::vector<fx::Argument> args, fx::Kwargs kwargs);
  virtual fx::Argument TransformCallModule(const fx::Node& node, std::vector<fx::Argument> args, fx::Kwargs kwargs);
  // Gives what the new output returns.
  virtual fx::Argument TransformOutput(const fx::Node& node, fx::Argument result);

  const fx::GraphModule& module() const { return module_; }
  // The new ones. Hooks make nodes in graph(), and may add attributes and submodules to new_module().
  fx::Graph& graph() { return new_module_->graph(); }
  fx::GraphModule& new_module() { return *new_module_; }

 private:
  fx::Argument TransformNode(const fx::Node& node);
  fx::Node* Emit(const fx::Node& node, std::vector<fx::Argument> args, fx::Kwargs kwargs);

  const fx::GraphModule& module_;
  std::shared_ptr<fx::GraphModule> new_module_;
  std::unordered_map<const fx::Node*, fx::Argument> values_;
};

}  // namespace ddpopt

#endif  // DDPOPT_INTERPRETER_TRANSFORMER_H_
