#ifndef DDPOPT_FX_GRAPH_NODE_H_
#define DDPOPT_FX_GRAPH_NODE_H_

// The unit of the graph IR: one Node is one step of a traced program, in the six kinds of torch.fx.
//
//   fx::Node* x = graph.Placeholder("x");
//   fx::Node* y = graph.CallFunction(relu_handle, {x});
//   y->users();                        // {} until another node takes y as an argument
//
// Nodes are made and owned by a Graph, have stable addresses, and are not thread-safe.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/ivalue.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "c10/util/intrusive_ptr.h"
#include "fx_graph/name_table.h"
#include "fx_graph/shared_value.h"

namespace ddpopt::fx {

class Graph;
class Node;

enum class Op : std::uint8_t { kPlaceholder, kGetAttr, kCallFunction, kCallMethod, kCallModule, kOutput };

// torch.fx's name of the kind: "placeholder", "get_attr", ...
const char* OpName(Op op);

// What a node refers to. Opaque and method targets print, split and bucket, but are refused by name when executed.
struct OperatorTarget {
  c10::OperatorHandle op;  // an operator overload, such as aten::add.Tensor
  bool operator==(const OperatorTarget& o) const { return op == o.op; }
};
struct HigherOrderTarget {
  std::string name;  // its nested graphs are get_attr arguments
  bool operator==(const HigherOrderTarget&) const = default;
};
struct MethodTarget {
  std::string name;
  bool operator==(const MethodTarget&) const = default;
};
struct PathTarget {
  std::string path;  // of a placeholder, an attribute or a submodule: "blocks.0.weight"
  bool operator==(const PathTarget&) const = default;
};
struct OpaqueTarget {
  std::string text;
  bool operator==(const OpaqueTarget&) const = default;
};
using Target = std::variant<OperatorTarget, HigherOrderTarget, MethodTarget, PathTarget, OpaqueTarget>;

// As Python's str() of the target: "aten.add.Tensor" for operators, else the text itself. Graphs print its qualified name (format.h).
std::string TargetToString(const Target& target);

// One argument of a node: None, another node's value, a constant, or a container of arguments.
// A constant IValue never holds what a container of Nodes would: lists without nodes may be either form.
// Dtypes, layouts and other values that an IValue has no tag for: constants.h.
class Argument {
 public:
  enum class Kind : std::uint8_t { kNone, kNode, kConstant, kList, kTuple, kDict, kSlice };

  Argument() : node_(nullptr) {}
  Argument(Node* node) : node_(node), kind_(Kind::kNode) {}  // NOLINT: implicit by design
  Argument(c10::IValue constant);                              // NOLINT: implicit by design; None gives kNone
  Argument(const Argument& other) { CopyFrom(other); }
  Argument(Argument&& other) noexcept { MoveFrom(other); }
  Argument& operator=(const Argument& other);
  Argument& operator=(Argument&& other) noexcept;
  ~Argument() { Destroy(); }

  static Argument List(std::vector<Argument> elements);
  static Argument Tuple(std::vector<Argument> elements);
  // Alternating keys and values.
  static Argument Dict(std::vector<Argument> keys_and_values);
  // Exactly {start, stop, step}.
  static Argument Slice(Argument start, Argument stop, Argument step);

  Kind kind() const { return kind_; }
  bool is_node() const { return kind_ == Kind::kNode; }
  // The node, or null if this is something else.
  Node* node() const { return kind_ == Kind::kNode ? node_ : nullptr; }
  // The constant, or None if this is something else.
  const c10::IValue& constant() const;
  // The elements of a container, or none. They never change: copies of an argument share them.
  const std::vector<Argument>& elements() const;

  // Calls fn on every node inside, depth first, left to right; a node used twice is visited twice.
  template <typename Fn>
  void ForEachNode(Fn&& fn) const {
    if (kind_ == Kind::kNode) {
      fn(node_);
    } else if (kind_ >= Kind::kList && nested_->has_nodes) {
      for (const Argument& element : nested_->elements) element.ForEachNode(fn);
    }
  }
  // A copy in which every node n is replaced by fn(n).
  Argument Map(absl::FunctionRef<Argument(Node*)> fn) const;

  std::string ToString() const;

 private:
  struct Nested : c10::intrusive_ptr_target {
    std::vector<Argument> elements;
    bool has_nodes = false;
  };
  static Argument Container(Kind kind, std::vector<Argument> elements);
  void CopyFrom(const Argument& other);
  void MoveFrom(Argument& other) noexcept;
  void Destroy();

  union {
    Node* node_;
    c10::IValue constant_;
    c10::intrusive_ptr<const Nested> nested_;
  };
  Kind kind_ = Kind::kNone;
};

using Kwargs = std::vector<std::pair<std::string, Argument>>;

// One step of where a node came from, as torch.fx's NodeSource.
struct NodeSource {
  std::string name;       // of the node it was made from
  std::string target;     // as TargetToString
  std::string pass_name;  // that made it
  bool operator==(const NodeSource&) const = default;
};

// What is known of a node. The copy rule: whatever copies a node (CopyNode, CopyFrom, Clone, ReplaceAllUsesWith with propagate_meta)
// copies all of this with CopyMeta: lists, tuples and dicts are copied to any depth, tensors and other objects in them are shared, as are
// the texts that only change as a whole.
struct NodeMeta {
  c10::IValue val;                 // fake value(s) of the node; None when unknown
  std::string nn_module;           // dotted path of the module whose forward made the node
  std::string type_expr;           // torch.fx's Node.type as it prints it ("torch.Tensor"); empty: none
  bool is_parameter = false;       // placeholder or get_attr that stands for a trainable or frozen parameter
  bool is_buffer = false;
  SharedValue<std::string> stack_trace;  // of the program that was traced, innermost frame last
  SharedValue<std::vector<std::pair<std::string, std::string>>> nn_module_stack;  // outermost first: path and class of the module
  SharedValue<std::vector<NodeSource>> from_node;  // the oldest first
  std::map<std::string, c10::IValue> custom;
};

NodeMeta CopyMeta(const NodeMeta& meta);
// A copy in which lists, tuples and dicts are new objects, to any depth, and everything else is shared.
c10::IValue CopyContainers(const c10::IValue& value);

// The part of a node that walks over a graph touch, kept apart from the rest and side by side, so that a walk over a million nodes reads
// 16 MB and not all of them.
struct NodeLink {
  NodeLink* next;
  NodeLink* prev;  // Erased() once the node is erased; `next` then stays, so that a walk that stands on it can go on
  static NodeLink* Erased() { return reinterpret_cast<NodeLink*>(std::uintptr_t{1}); }
  // The next live link.
  NodeLink* Next() const {
    NodeLink* link = next;
    while (link != nullptr && link->prev == Erased()) link = link->next;
    return link;
  }
};

// That a node takes another: an entry of the user's inputs, and of the list of the input's users.
struct NodeUse {
  Node* input;
  Node* user;
  NodeUse* prev;
  NodeUse* next;
};

// The distinct users of a node, in the order in which they became users. Valid until one of them changes.
class UserRange {
 public:
  class const_iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = Node*;
    using difference_type = std::ptrdiff_t;
    using pointer = Node* const*;
    using reference = Node* const&;
    const_iterator() = default;
    explicit const_iterator(const NodeUse* use) : use_(use) {}
    reference operator*() const { return use_->user; }
    const_iterator& operator++() {
      use_ = use_->next;
      return *this;
    }
    const_iterator operator++(int) {
      const const_iterator before = *this;
      use_ = use_->next;
      return before;
    }
    bool operator==(const const_iterator& o) const { return use_ == o.use_; }

   private:
    const NodeUse* use_ = nullptr;
  };
  using iterator = const_iterator;
  using value_type = Node*;
  using const_reference = Node* const&;
  using reference = const_reference;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;

  UserRange(const NodeUse* first, const NodeUse* last, std::size_t size) : first_(first), last_(last), size_(size) {}
  const_iterator begin() const { return const_iterator(first_); }
  const_iterator end() const { return const_iterator(); }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // Precondition: not empty.
  Node* front() const { return first_->user; }
  Node* back() const { return last_->user; }
  // Walks there: linear.
  Node* operator[](std::size_t index) const;

 private:
  const NodeUse* first_;
  const NodeUse* last_;
  std::size_t size_;
};

// The distinct inputs of a node, in order of first appearance. Valid until its arguments change.
class InputRange {
 public:
  class const_iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = Node*;
    using difference_type = std::ptrdiff_t;
    using pointer = Node* const*;
    using reference = Node* const&;
    const_iterator() = default;
    explicit const_iterator(const NodeUse* use) : use_(use) {}
    reference operator*() const { return use_->input; }
    const_iterator& operator++() {
      ++use_;
      return *this;
    }
    const_iterator operator++(int) {
      const const_iterator before = *this;
      ++use_;
      return before;
    }
    bool operator==(const const_iterator& o) const { return use_ == o.use_; }

   private:
    const NodeUse* use_ = nullptr;
  };
  using iterator = const_iterator;
  using value_type = Node*;
  using const_reference = Node* const&;
  using reference = const_reference;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;

  InputRange(const NodeUse* uses, std::size_t size) : uses_(uses), size_(size) {}
  const_iterator begin() const { return const_iterator(uses_); }
  const_iterator end() const { return const_iterator(uses_ + size_); }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Node* front() const { return uses_[0].input; }
  Node* back() const { return uses_[size_ - 1].input; }
  Node* operator[](std::size_t index) const { return uses_[index].input; }

 private:
  const NodeUse* uses_;
  std::size_t size_;
};

class Node {
 public:
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  Op op() const { return op_; }
  // Lives as long as the graph, also when the node is renamed or erased.
  absl::string_view name() const { return absl::string_view(name_, name_size_); }
  // Gives the node another name, made unique as CreateNode does; the old one is not used again.
  void Rename(absl::string_view candidate);
  const Target& target() const { return target_->target; }
  // Precondition: the target is a path (placeholder, get_attr, call_module).
  const std::string& path() const { return std::get<PathTarget>(target()).path; }
  bool is_operator() const { return std::holds_alternative<OperatorTarget>(target()); }
  // Precondition: is_operator().
  const c10::OperatorHandle& operator_handle() const { return std::get<OperatorTarget>(target()).op; }

  absl::Span<const Argument> args() const { return absl::Span<const Argument>(arg_array(), num_args_); }
  const Kwargs& kwargs() const;
  // These replace arguments and keep user lists exact; the node becomes the last user of each of its inputs, as in torch.fx. Precondition
  // (CHECK): this node and those in the arguments are live nodes of one graph.
  void set_args(absl::Span<const Argument> args);
  void set_kwargs(Kwargs kwargs);
  // Errors: OutOfRange if there is no such position (InsertArg takes one more, the end).
  absl::Status UpdateArg(std::size_t index, Argument argument);
  absl::Status InsertArg(std::size_t index, Argument argument);
  // Replaces the keyword argument, or adds it at the end.
  void UpdateKwarg(absl::string_view key, Argument argument);
  void set_target(Target target);

  // The distinct nodes that take this one as an argument, in the order in which they became users.
  UserRange users() const { return UserRange(first_use_, last_use_, num_users_); }
  // The distinct nodes that this one takes, in order of first appearance.
  InputRange all_input_nodes() const { return InputRange(uses_, num_inputs_); }
  // Rewrites the uses of this node to `other`, in the users that `replace_in` agrees to; returns the changed users. `other` itself is
  // left alone if it uses this. With propagate_meta, `other` gets a copy of this node's metadata. Preconditions (CHECK): `other` is a
  // live node of this graph, and has no metadata of its own if propagate_meta.
  std::vector<Node*> ReplaceAllUsesWith(Node* other);
  std::vector<Node*> ReplaceAllUsesWith(Node* other, absl::FunctionRef<bool(Node*)> replace_in, bool propagate_meta = false);
  // Rewrites the uses of `from` in this node's arguments.
  void ReplaceInputWith(Node* from, Node* to);

  // Moves `node`, of the same graph, to directly before or after this one; constant time. Whether uses still follow definitions is for
  // Lint to say. Nothing happens if `node` is this one. Errors: a null, erased or foreign node.
  absl::Status Prepend(Node* node);
  absl::Status Append(Node* node);

  NodeMeta& meta();
  const NodeMeta& meta() const;
  // Whether meta() was ever written to: of most nodes in graphs made by hand there is none.
  bool has_meta() const { return meta_ != nullptr; }

  Graph* graph() const;
  // Numbers the nodes of a graph in the order in which they were made: 0, 1, ... below Graph::id_limit(). Never used again. For tables
  // over nodes see NodeTable.
  std::uint32_t id() const { return id_; }
  bool erased() const { return erased_; }
  // Of an erased node: whatever follows it by now, and null.
  Node* next() const;
  Node* prev() const;
  // Whether this node comes earlier in their graph than `other`; constant time. Precondition: both are live nodes of one graph.
  bool IsBefore(const Node* other) const { return order_ < other->order_; }

  // One line, as torch.fx's format_node: "%add : [num_users=1] = call_function[target=torch.ops.aten.add.Tensor](args = (%x, 1),
  // kwargs = {})".
  std::string ToString() const;

 private:
  friend class Graph;
  friend struct GraphTestPeer;

  // What nodes of one kind and target share; they are linked, so that Graph::FindNodes need not search.
  struct TargetEntry {
    Op op;
    Target target;
    std::uint32_t index = 0;
    std::size_t size = 0;
    Node* first = nullptr;
    Node* last = nullptr;
    NameTable::Candidate candidate;  // what CreateNode names them after, once it was asked
  };

  Node(Op op, TargetEntry* target, NodeLink* link, std::uint32_t id) : link_(link), target_(target), id_(id), op_(op) {}
  ~Node();

  NodeLink* link() const { return link_; }
  const Argument* arg_array() const { return reinterpret_cast<const Argument*>(uses_ + num_inputs_); }
  Argument* arg_array() { return reinterpret_cast<Argument*>(uses_ + num_inputs_); }
  std::size_t block_size() const { return num_inputs_ * sizeof(NodeUse) + num_args_ * sizeof(Argument); }
  // Takes the arguments and keeps uses exact. `args` may be this node's own.
  void Update(absl::Span<const Argument> args, Kwargs* kwargs);
  void Unuse();
  void SetName(const NameTable::Name& name);

  NodeLink* link_;
  TargetEntry* target_;
  Node* next_same_target_ = nullptr;
  Node* prev_same_target_ = nullptr;
  NodeUse* uses_ = nullptr;  // one block: num_inputs_ uses, then num_args_ arguments
  Kwargs* kwargs_ = nullptr;  // null: none
  NodeUse* first_use_ = nullptr;
  NodeUse* last_use_ = nullptr;
  std::uint64_t order_ = 0;  // grows along the list; the numbers between are for nodes to come
  NodeMeta* meta_ = nullptr;
  const char* name_ = nullptr;
  NameTable::Base* name_base_ = nullptr;
  std::uint32_t name_size_ = 0;
  std::uint32_t num_args_ = 0;
  std::uint32_t num_inputs_ = 0;
  std::uint32_t num_users_ = 0;
  std::uint32_t id_;
  Op op_;
  bool erased_ = false;
};

// Links lie in pages whose addresses are multiples of their size, so that a link leads to its node, which lies in an array elsewhere.
struct NodeLinkPage {
  static constexpr std::size_t kSize = 4096;
  static constexpr std::size_t kLinks = (kSize - 2 * sizeof(void*)) / sizeof(NodeLink);
  static const NodeLinkPage* Of(const NodeLink* link) {
    return reinterpret_cast<const NodeLinkPage*>(reinterpret_cast<std::uintptr_t>(link) & ~(std::uintptr_t{kSize} - 1));
  }
  static Node* NodeOf(const NodeLink* link) {
    const NodeLinkPage* page = Of(link);
    return page->nodes + (link - page->links);
  }

  Graph* graph;
  Node* nodes;
  NodeLink links[kLinks];  // the first pages of a graph are cut off after fewer
};
static_assert(sizeof(NodeLinkPage) == NodeLinkPage::kSize);

inline Graph* Node::graph() const { return NodeLinkPage::Of(link_)->graph; }

inline Node* Node::next() const {
  const NodeLink* next = link_->Next();
  return next == nullptr ? nullptr : NodeLinkPage::NodeOf(next);
}

inline Node* Node::prev() const {
  const NodeLink* prev = link_->prev;
  return prev == nullptr || prev == NodeLink::Erased() ? nullptr : NodeLinkPage::NodeOf(prev);
}

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_NODE_H_
