#ifndef DDPOPT_FX_GRAPH_GRAPH_MODULE_H_
#define DDPOPT_FX_GRAPH_GRAPH_MODULE_H_

// A graph with the things its get_attr and call_module nodes name: parameters, buffers, constants, submodules.
// Everything is shared by identity: a parameter in two GraphModules, or under two paths in one, is the same tensor.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fx_graph/graph.h"

namespace ddpopt::fx {

// What a call_module node calls: a GraphModule, or a compiled piece. Runs on positional values; throws c10::Error.
class Callable {
 public:
  virtual ~Callable() = default;
  // Values for each of the callee's inputs, in order. The vector is consumed, so that inputs can be freed as they are used.
  virtual c10::IValue Call(std::vector<c10::IValue> args) const = 0;
};

class GraphModule {
 public:
  enum class AttrKind { kParameter, kBuffer, kConstant };
  struct Attr {
    c10::IValue value;
    AttrKind kind;
    int64_t order = 0;  // set by AddAttr: attributes count up as they are added, the order of PyTorch's named_parameters()
  };
  // A submodule is a graph, a compiled callable, or both (the graph it was compiled from is dropped when replaced).
  struct Submodule {
    std::shared_ptr<GraphModule> graph_module;
    std::shared_ptr<const Callable> callable;
    int64_t order = 0;  // set by AddSubmodule, as Attr's
  };

  // By path; found by any kind of string.
  using Attrs = std::map<std::string, Attr, std::less<>>;
  using Submodules = std::map<std::string, Submodule, std::less<>>;

  GraphModule() : graph_(std::make_unique<Graph>()) {}

  Graph& graph() { return *graph_; }
  const Graph& graph() const { return *graph_; }

  // Paths are dotted. "blocks.0.weight" may be one key here, or name "0.weight" in the submodule "blocks": lookups try the key first,
  // then the submodules whose path it begins with. Adding makes a key of this module. Errors: InvalidArgument (an empty path or part),
  // AlreadyExists, NotFound.
  absl::Status AddAttr(absl::string_view path, c10::IValue value, AttrKind kind);
  // Room for so many attributes.
  void ReserveAttrs(std::size_t attrs) { attr_index_.reserve(attrs); }
  absl::StatusOr<Attr> GetAttr(absl::string_view path) const;
  // The attribute, valid until it is deleted, or null.
  const Attr* FindAttr(absl::string_view path) const;
  // Replaces the value under an existing path (of a submodule, for all who share that).
  absl::Status SetAttr(absl::string_view path, c10::IValue value);
  // Of this module's own keys.
  absl::Status DeleteAttr(absl::string_view path);
  const Attrs& attrs() const { return attrs_; }

  // Every attribute of the module and of the graphs nested in it, with its full path: the module's own in the order of adding, then
  // the submodules'. Something shared appears under each of its paths.
  std::vector<std::pair<std::string, const Attr*>> NamedAttrs() const;
  // The paths among NamedAttrs at which the very same object lies as at `path` (a tied parameter), `path` itself left out. Numbers and
  // other values without identity have none.
  std::vector<std::string> AliasesOf(absl::string_view path) const;

  absl::Status AddSubmodule(absl::string_view path, Submodule submodule);
  absl::StatusOr<Submodule> GetSubmodule(absl::string_view path) const;
  // The submodule, valid until it is deleted, or null.
  const Submodule* FindSubmodule(absl::string_view path) const;
  // Of this module's own keys.
  absl::Status DeleteSubmodule(absl::string_view path);
  // Deletes the submodules that no get_attr or call_module node of this graph names, nor anything inside them; a called module keeps
  // all that it has. Returns the paths of those deleted. Submodules' own submodules are theirs to delete.
  std::vector<std::string> DeleteAllUnusedSubmodules();
  const Submodules& submodules() const { return submodules_; }

  // Graph metadata that belongs to the module, as torch.fx's gm.meta.
  std::map<std::string, c10::IValue>& meta() { return meta_; }
  const std::map<std::string, c10::IValue>& meta() const { return meta_; }

  // An independent module: graphs, metadata (see NodeMeta) and nested graph modules are copied, a nested one that lies under several
  // paths once. Tensors and other attribute values and compiled callables are shared.
  std::shared_ptr<GraphModule> Clone() const;

  // Graph::Lint, and that every get_attr and call_module target exists; the same for nested graph modules.
  absl::Status Lint() const;

 private:
  using Clones = absl::flat_hash_map<const GraphModule*, std::shared_ptr<GraphModule>>;
  std::shared_ptr<GraphModule> Clone(Clones& clones) const;
  absl::Status Lint(absl::flat_hash_set<const GraphModule*>& seen) const;
  void CollectAttrs(const std::string& prefix, std::vector<const GraphModule*>& within,
                    std::vector<std::pair<std::string, const Attr*>>& found) const;

  std::unique_ptr<Graph> graph_;
  Attrs attrs_;
  // Of attrs_: paths are long and much alike, so that a tree compares much.
  absl::flat_hash_map<absl::string_view, const Attr*> attr_index_;
  Submodules submodules_;
  std::map<std::string, c10::IValue> meta_;
  int64_t next_order_ = 0;
};

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_GRAPH_MODULE_H_
