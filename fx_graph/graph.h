#ifndef DDPOPT_FX_GRAPH_GRAPH_H_
#define DDPOPT_FX_GRAPH_GRAPH_H_

// An ordered list of nodes: a straight-line program, as torch.fx's Graph.
//
//   fx::Graph g;
//   fx::Node* x = g.Placeholder("x");
//   fx::Node* y = g.CallFunction(add, {x, c10::IValue(1)});
//   g.Output(y);
//   for (fx::Node* n : g.nodes()) std::cout << n->ToString() << "\n";
//
// A Graph owns its nodes; addresses are stable, and an erased node's is not used again before the graph dies, so that a stale pointer
// is told from a live one. Not copyable (see CopyFrom), not thread-safe.

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "fx_graph/block_pool.h"
#include "fx_graph/name_table.h"
#include "fx_graph/node.h"

namespace ddpopt::fx {

namespace internal {
[[noreturn]] void NodeOfAnotherGraph(const Node& node);
}  // namespace internal

template <typename T>
class NodeTable;
// Nodes of one graph to nodes of another.
using NodeMap = NodeTable<Node*>;

class Graph {
 public:
  Graph();
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Iteration in execution order. Any edit is allowed meanwhile: an iterator whose node is erased goes on with what followed it.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Node*;
    using difference_type = std::ptrdiff_t;
    using pointer = Node* const*;
    using reference = Node*;
    explicit Iterator(const NodeLink* link) : link_(link) {}
    Node* operator*() const { return NodeLinkPage::NodeOf(link_); }
    Iterator& operator++() {
      link_ = link_->Next();
      return *this;
    }
    bool operator==(const Iterator& o) const { return link_ == o.link_; }

   private:
    const NodeLink* link_;
  };
  struct Range {
    const NodeLink* first;
    Iterator begin() const { return Iterator(first); }
    Iterator end() const { return Iterator(nullptr); }
  };
  Range nodes() const { return Range{first_}; }
  std::size_t size() const { return size_; }
  Node* front() const { return first_ == nullptr ? nullptr : NodeLinkPage::NodeOf(first_); }
  Node* back() const { return last_ == nullptr ? nullptr : NodeLinkPage::NodeOf(last_); }
  // The output node, or null if there is none yet.
  Node* output_node() const;
  // Above the id of every node, erased ones included.
  std::uint32_t id_limit() const { return num_made_; }

  // The live nodes of that kind (and target), in the order in which they were made, or with `sort`, the default, in graph order. Costs
  // as much as there are nodes found, whatever the graph's size.
  std::vector<Node*> FindNodes(Op op, bool sort = true) const;
  std::vector<Node*> FindNodes(Op op, const Target& target, bool sort = true) const;

  // Makes a node at the insertion point (the end, unless set). `name_hint` empty: named from the target, as torch.fx does
  // ("add_tensor" for aten.add.Tensor, "getitem", "blocks_0_weight"). The name is made a unique identifier, as torch.fx does:
  // "add", "add_1"; "sum_1" since "sum" is Python's.
  // Precondition (CHECK): every node in args and kwargs is a live node of this graph.
  Node* CreateNode(Op op, Target target, absl::Span<const Argument> args = {}, Kwargs kwargs = {}, absl::string_view name_hint = "");
  Node* Placeholder(absl::string_view name);
  Node* GetAttr(absl::string_view path);
  Node* CallFunction(const c10::OperatorHandle& op, absl::Span<const Argument> args, Kwargs kwargs = {}, absl::string_view name_hint = "");
  Node* CallModule(absl::string_view path, absl::Span<const Argument> args, Kwargs kwargs = {});
  Node* CallMethod(absl::string_view method, absl::Span<const Argument> args, Kwargs kwargs = {});
  Node* Output(Argument result);

  // Where new nodes go: before `node`; null means the end. Returns the old point (of InsertingAfter: the node after it).
  Node* SetInsertBefore(Node* node);
  // The same until the scope ends, as torch.fx's context managers:
  //
  //   { auto scope = g.InsertingAfter(x);  y = g.CallFunction(relu, {x}); }
  //
  // Nodes go directly before or after `node`, which must be a live node of this graph (CHECK); so several made after it come out in
  // reverse. Null stands for the whole graph: before its first node, or after its last. If `node` is erased meanwhile, its neighbour
  // takes its place.
  class InsertScope;
  [[nodiscard]] InsertScope InsertingBefore(Node* node);
  [[nodiscard]] InsertScope InsertingAfter(Node* node);

  // Errors (nothing is changed then): a null, foreign or already erased node; a node that still has users.
  absl::Status EraseNode(Node* node);
  // Erases all of them, users before what they use, in whatever order they are given. Errors (nothing is changed then): as EraseNode;
  // a node given twice; a node with a user that is not among them.
  absl::Status EraseNodes(absl::Span<Node* const> nodes);

  // Makes a copy of `node` (of any graph) at the insertion point, its inputs mapped by `map`: kind, target, arguments and metadata
  // (see NodeMeta); its name is the hint for the copy's. Users and place are not copied.
  Node* CopyNode(const Node& node, absl::FunctionRef<Argument(Node*)> map);

  // Copies nodes one by one.
  class Copier;

  // Copies every node of `other`, which may be this graph, in order; returns old -> new. Precondition (CHECK): definitions before uses.
  NodeMap CopyFrom(const Graph& other);
  // Copies `other` without its output node, to use its value here: nodes that `values` holds already (its placeholders, say) are not
  // copied, but replaced by these; the copies are added. Returns the output's value, None if there is no output. Errors: a use before
  // its definition; what was copied until then stays.
  absl::StatusOr<Argument> GraphCopy(const Graph& other, NodeMap& values);

  // Checks list links and order, unique names, that every argument is an earlier node of this graph, that user lists are exact, the
  // tables behind FindNodes, that targets fit kinds, and that there is at most one output and that it comes last. The error names the
  // node.
  absl::Status Lint() const;

  // Counts edits: it changes whenever a node is made, erased or moved, or gets other arguments or another target. Metadata doesn't count.
  std::uint64_t version() const { return version_; }
  // One thing computed from the graph and kept until the next edit: the Interpreter's plan. Null if there is none. These two may be
  // called by several threads at once that otherwise only read the graph.
  std::shared_ptr<const void> derived() const;
  void set_derived(std::shared_ptr<const void> derived) const;

  // As Python's str(graph): "graph():\n    %x : ...".
  std::string ToString() const;

 private:
  friend class Node;
  friend struct GraphTestPeer;
  using TargetEntry = Node::TargetEntry;

  struct InsertPoint {
    Node* node = nullptr;
    bool after = false;  // of null: false is the end, true the beginning
  };
  struct TargetKey {
    Op op;
    const Target& target;
  };
  struct TargetHash {
    using is_transparent = void;
    std::size_t operator()(const TargetKey& key) const;
    std::size_t operator()(const TargetEntry* entry) const { return (*this)(TargetKey{entry->op, entry->target}); }
  };
  struct TargetEqual {
    using is_transparent = void;
    bool operator()(const TargetKey& a, const TargetEntry* b) const { return a.op == b->op && a.target == b->target; }
    bool operator()(const TargetEntry* a, const TargetKey& b) const { return (*this)(b, a); }
    bool operator()(const TargetEntry* a, const TargetEntry* b) const { return a == b; }
  };

  bool Owns(const Node* node) const { return node != nullptr && node->graph() == this && !node->erased_; }
  absl::Status CheckErasable(const Node* node) const;
  Node* CreateNode(TargetEntry* target, absl::Span<const Argument> args, Kwargs kwargs, absl::string_view name_hint);
  Node* NewNode(Op op, TargetEntry* target);
  Node* Finish(Node* node, absl::Span<const Argument> args, Kwargs* kwargs);
  // Null base: named after its target.
  Node* CopyNode(const Node& node, TargetEntry* target, NameTable::Base* base, absl::FunctionRef<Argument(Node*)> map);
  void NameAfterTarget(Node* node);
  void Unlist(Node* node);
  void NewChunk();
  void LinkAt(NodeLink* link, NodeLink* prev, NodeLink* next);
  void Unlink(NodeLink* link);
  void Order(Node* node);
  void Reorder(Node* around);
  absl::Status Move(Node* node, Node* anchor, bool after);
  TargetEntry* Intern(Op op, Target target);
  TargetEntry* Intern(Op op, const c10::OperatorHandle& handle);
  const TargetEntry* FindTarget(Op op, const Target& target) const;
  void AddToTarget(Node* node);
  void RemoveFromTarget(Node* node);

  // Nodes are made in order in the last chunk: pages of links, and as many nodes in one array.
  struct Chunk {
    NodeLinkPage* pages;
    Node* nodes;
    std::uint32_t capacity;
    std::uint32_t size;
  };
  std::vector<Chunk> chunks_;
  BlockPool blocks_;
  NameTable names_;
  std::deque<TargetEntry> targets_;
  std::vector<TargetEntry*> targets_of_[6];  // by kind
  absl::flat_hash_set<TargetEntry*, TargetHash, TargetEqual> target_index_;
  TargetEntry* last_target_ = nullptr;
  NodeLink* first_ = nullptr;
  NodeLink* last_ = nullptr;
  InsertPoint insert_;
  std::size_t size_ = 0;
  std::uint32_t num_made_ = 0;
  std::uint64_t version_ = 0;
  mutable std::mutex derived_mutex_;
  mutable std::shared_ptr<const void> derived_;
  mutable std::uint64_t derived_version_ = 0;
};

class Graph::InsertScope {
 public:
  InsertScope(const InsertScope&) = delete;
  InsertScope& operator=(const InsertScope&) = delete;
  ~InsertScope() {
    graph_.insert_ = old_.node == nullptr || !old_.node->erased() ? old_ : InsertPoint{old_.node->next(), false};
  }

 private:
  friend class Graph;
  InsertScope(Graph& graph, InsertPoint point) : graph_(graph), old_(graph.insert_) { graph.insert_ = point; }
  Graph& graph_;
  InsertPoint old_;
};

// Copies nodes of one graph into others, one after another. Their targets and the bases of their names are found once in each graph, not
// once a node.
//
//   Graph::Copier copier(from);
//   copier.SetTarget(&piece, 10);
//   Node* copy = copier.Copy(*node, [&](Node* input) { return Argument(copies[input]); }, /*keep_name=*/true);
class Graph::Copier {
 public:
  // `from` must outlive this, and keep its nodes meanwhile.
  explicit Copier(const Graph& from) : from_(from) {}
  // Where the copies go, until it is called again: to the insertion point of `to`, which isn't the graph that is copied. `names`: about how
  // many different targets it will have.
  void SetTarget(Graph* to, std::size_t names);
  // As CopyNode; without keep_name the copy is named as a new node. Precondition: a node of `from`.
  Node* Copy(const Node& node, absl::FunctionRef<Argument(Node*)> map, bool keep_name);

 private:
  // What is known of the graph that is copied to, valid if it is of that time.
  template <typename T>
  struct Known {
    T* found = nullptr;
    std::uint32_t time = 0;
  };

  const Graph& from_;
  Graph* to_ = nullptr;
  std::uint32_t time_ = 0;
  std::vector<Known<TargetEntry>> targets_;  // by TargetEntry::index of `from`
  std::vector<Known<NameTable::Base>> bases_;
};

// A value for each node of one graph, found by the node's id: an array, where a hash map would do a search per node. Values are T()
// until set. Nodes made after the table are fine, but a new node's entry moves the others: references to them end.
//
//   fx::NodeTable<int> depth(graph);
//   depth[node] = 1;
template <typename T>
class NodeTable {
 public:
  explicit NodeTable(const Graph& graph) : graph_(&graph), values_(graph.id_limit()) {}

  // Precondition (CHECK): a node of the table's graph.
  T& operator[](const Node* node) {
    CheckOwner(node);
    if (node->id() >= values_.size()) values_.resize(graph_->id_limit());
    return values_[node->id()];
  }
  // T() for a node that was never set.
  const T& at(const Node* node) const {
    CheckOwner(node);
    static const T* none = new T();
    return node->id() < values_.size() ? values_[node->id()] : *none;
  }

 private:
  void CheckOwner(const Node* node) const {
    if (node->graph() != graph_) internal::NodeOfAnotherGraph(*node);
  }

  const Graph* graph_;
  std::vector<T> values_;
};

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_GRAPH_H_
