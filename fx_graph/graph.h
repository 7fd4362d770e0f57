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
// A Graph owns its nodes; addresses are stable until erased. Not copyable (see CopyFrom), not thread-safe.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "fx_graph/node.h"

namespace ddpopt::fx {

class Graph {
 public:
  Graph();
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Iteration in execution order. Erasing the node at hand invalidates only the iterator that stands on it.
  class Iterator {
   public:
    explicit Iterator(Node* node) : node_(node) {}
    Node* operator*() const { return node_; }
    Iterator& operator++() {
      node_ = node_->next();
      return *this;
    }
    bool operator!=(const Iterator& o) const { return node_ != o.node_; }
    bool operator==(const Iterator& o) const { return node_ == o.node_; }

   private:
    Node* node_;
  };
  struct Range {
    Node* first;
    Iterator begin() const { return Iterator(first); }
    Iterator end() const { return Iterator(nullptr); }
  };
  Range nodes() const { return Range{first_}; }
  std::size_t size() const { return size_; }
  Node* front() const { return first_; }
  Node* back() const { return last_; }
  // The output node, or null if there is none yet.
  Node* output_node() const;

  // Makes a node at the insertion point (the end, unless set). `name_hint` empty: named from the target, as torch.fx does
  // ("add_tensor" for aten.add.Tensor, "getitem", "blocks_0_weight"). The name is made a unique identifier, as torch.fx does:
  // "add", "add_1"; "sum_1" since "sum" is Python's.
  // Precondition (CHECK): every node in args and kwargs belongs to this graph.
  Node* CreateNode(Op op, Target target, std::vector<Argument> args = {}, Kwargs kwargs = {}, absl::string_view name_hint = "");
  Node* Placeholder(absl::string_view name);
  Node* GetAttr(absl::string_view path);
  Node* CallFunction(c10::OperatorHandle op, std::vector<Argument> args, Kwargs kwargs = {}, absl::string_view name_hint = "");
  Node* CallModule(absl::string_view path, std::vector<Argument> args, Kwargs kwargs = {});
  Node* CallMethod(absl::string_view method, std::vector<Argument> args, Kwargs kwargs = {});
  Node* Output(Argument result);

  // Where new nodes go: before `node`; null means the end. Returns the old point.
  Node* SetInsertBefore(Node* node);

  // Errors (nothing is changed then): a foreign or already erased node; a node that still has users.
  absl::Status EraseNode(Node* node);

  // Appends a copy of `node` (of any graph), its inputs mapped by `map`; metadata is copied.
  Node* CopyNode(const Node& node, absl::FunctionRef<Argument(Node*)> map);

  // Copies every node of `other` in order; returns old -> new.
  absl::flat_hash_map<const Node*, Node*> CopyFrom(const Graph& other);

  // Checks list links, unique names, that every argument is an earlier node of this graph, that user lists are exact, that
  // there is at most one output and that it comes last. The error names the node.
  absl::Status Lint() const;

  // Counts edits: it changes whenever a node is made, erased or moved, or gets other arguments or another target. Metadata doesn't count.
  std::uint64_t version() const { return version_; }
  // One thing computed from the graph and kept until the next edit: the Interpreter's plan. Null if there is none. These two may be called by
  // several threads at once that otherwise only read the graph.
  std::shared_ptr<const void> derived() const;
  void set_derived(std::shared_ptr<const void> derived) const;

  // As Python's str(graph): "graph():\n    %x : ...".
  std::string ToString() const;

 private:
  friend class Node;
  std::string UniqueName(absl::string_view hint);
  bool Owns(const Node* node) const;

  std::vector<std::unique_ptr<Node>> storage_;
  Node* first_ = nullptr;
  Node* last_ = nullptr;
  Node* insert_before_ = nullptr;
  std::size_t size_ = 0;
  absl::flat_hash_set<std::string> names_;
  absl::flat_hash_map<std::string, int> next_suffix_;
  std::uint64_t version_ = 0;
  mutable std::mutex derived_mutex_;
  mutable std::shared_ptr<const void> derived_;
  mutable std::uint64_t derived_version_ = 0;
};

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_GRAPH_H_
