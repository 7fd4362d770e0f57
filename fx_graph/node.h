#ifndef DDPOPT_FX_GRAPH_NODE_H_
#define DDPOPT_FX_GRAPH_NODE_H_

// The unit of the graph IR: one Node is one step of a traced program, in the six kinds of torch.fx.
//
//   fx::Node* x = graph.Placeholder("x");
//   fx::Node* y = graph.CallFunction(relu_handle, {x});
//   y->users();                        // {} until another node takes y as an argument
//
// Nodes are made and owned by a Graph, have stable addresses, and are not thread-safe.

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/ivalue.h"
#include "absl/functional/function_ref.h"
#include "absl/types/optional.h"

namespace ddpopt::fx {

class Graph;
class Node;

enum class Op { kPlaceholder, kGetAttr, kCallFunction, kCallMethod, kCallModule, kOutput };

// torch.fx's name of the kind: "placeholder", "get_attr", ...
const char* OpName(Op op);

// What a node refers to. Opaque and method targets print, split and bucket, but are refused by name when executed.
struct OperatorTarget {
  c10::OperatorHandle op;  // an operator overload, such as aten::add.Tensor
};
struct HigherOrderTarget {
  std::string name;  // its nested graphs are get_attr arguments
};
struct MethodTarget {
  std::string name;
};
struct PathTarget {
  std::string path;  // of a placeholder, an attribute or a submodule: "blocks.0.weight"
};
struct OpaqueTarget {
  std::string text;
};
using Target = std::variant<OperatorTarget, HigherOrderTarget, MethodTarget, PathTarget, OpaqueTarget>;

// As Python's str() of the target: "aten.add.Tensor" for operators, else the text itself. Graphs print its qualified name (format.h).
std::string TargetToString(const Target& target);

// One argument of a node: None, another node's value, a constant, or a container of arguments.
// A constant IValue never holds what a container of Nodes would: lists without nodes may be either form.
// Dtypes, layouts and other values that an IValue has no tag for: constants.h.
class Argument {
 public:
  enum class Kind { kNone, kNode, kConstant, kList, kTuple, kDict, kSlice };

  Argument() = default;
  Argument(Node* node) : kind_(Kind::kNode), node_(node) {}  // NOLINT: implicit by design
  Argument(c10::IValue constant);                              // NOLINT: implicit by design; None gives kNone
  static Argument List(std::vector<Argument> elements);
  static Argument Tuple(std::vector<Argument> elements);
  // Alternating keys and values.
  static Argument Dict(std::vector<Argument> keys_and_values);
  // Exactly {start, stop, step}.
  static Argument Slice(Argument start, Argument stop, Argument step);

  Kind kind() const { return kind_; }
  bool is_node() const { return kind_ == Kind::kNode; }
  // Precondition: kind() is the one named.
  Node* node() const { return node_; }
  const c10::IValue& constant() const { return constant_; }
  const std::vector<Argument>& elements() const { return elements_; }

  // Calls fn on every node inside, depth first, left to right; a node used twice is visited twice.
  void ForEachNode(absl::FunctionRef<void(Node*)> fn) const;
  // A copy in which every node n is replaced by fn(n).
  Argument Map(absl::FunctionRef<Argument(Node*)> fn) const;

  std::string ToString() const;

 private:
  Kind kind_ = Kind::kNone;
  Node* node_ = nullptr;
  c10::IValue constant_;
  std::vector<Argument> elements_;
};

using Kwargs = std::vector<std::pair<std::string, Argument>>;

// One step of where a node came from, as torch.fx's NodeSource.
struct NodeSource {
  std::string name;       // of the node it was made from
  std::string target;     // as TargetToString
  std::string pass_name;  // that made it
};

// What is known of a node's value. Copied with the node; `val` is shared (its tensors are handles).
struct NodeMeta {
  c10::IValue val;                 // fake value(s) of the node; None when unknown
  std::string nn_module;           // dotted path of the module whose forward made the node
  std::string type_expr;           // torch.fx's Node.type as it prints it ("torch.Tensor"); empty: none
  bool is_parameter = false;       // placeholder or get_attr that stands for a trainable or frozen parameter
  bool is_buffer = false;
  std::string stack_trace;         // of the program that was traced, innermost frame last
  std::vector<std::pair<std::string, std::string>> nn_module_stack;  // outermost first: path and class of the module
  std::vector<NodeSource> from_node;  // the oldest first
  std::map<std::string, c10::IValue> custom;
};

class Node {
 public:
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  Op op() const { return op_; }
  const std::string& name() const { return name_; }
  const Target& target() const { return target_; }
  // Precondition: the target is a path (placeholder, get_attr, call_module).
  const std::string& path() const { return std::get<PathTarget>(target_).path; }
  bool is_operator() const { return std::holds_alternative<OperatorTarget>(target_); }
  // Precondition: is_operator().
  const c10::OperatorHandle& operator_handle() const { return std::get<OperatorTarget>(target_).op; }

  const std::vector<Argument>& args() const { return args_; }
  const Kwargs& kwargs() const { return kwargs_; }
  void set_args(std::vector<Argument> args);
  void set_kwargs(Kwargs kwargs);
  void set_target(Target target);

  // The distinct nodes that take this one as an argument, in the order in which they first did.
  const std::vector<Node*>& users() const { return users_; }
  // The distinct nodes that this one takes, in order of first appearance.
  const std::vector<Node*>& all_input_nodes() const { return inputs_; }
  // Rewrites every use of this node to `other`; returns the changed users. `other` itself is left alone if it uses this.
  std::vector<Node*> ReplaceAllUsesWith(Node* other);
  // Rewrites the uses of `from` in this node's arguments.
  void ReplaceInputWith(Node* from, Node* to);

  NodeMeta& meta() { return meta_; }
  const NodeMeta& meta() const { return meta_; }

  Graph* graph() const { return graph_; }
  Node* next() const { return next_; }
  Node* prev() const { return prev_; }

  // One line, as torch.fx's format_node: "%add : [num_users=1] = call_function[target=aten.add.Tensor](args = (%x, 1), kwargs = {})".
  std::string ToString() const;

 private:
  friend class Graph;
  Node(Graph* graph, Op op, std::string name, Target target)
      : graph_(graph), op_(op), name_(std::move(name)), target_(std::move(target)) {}
  // Takes the arguments and keeps inputs_ and the inputs' users_ exact.
  void Update(std::vector<Argument> args, Kwargs kwargs);

  Graph* graph_;
  Op op_;
  std::string name_;
  Target target_;
  std::vector<Argument> args_;
  Kwargs kwargs_;
  std::vector<Node*> inputs_;
  std::vector<Node*> users_;
  NodeMeta meta_;
  Node* next_ = nullptr;
  Node* prev_ = nullptr;
  bool erased_ = false;
};

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_NODE_H_
