#ifndef DDPOPT_FX_GRAPH_PASSES_PASS_H_
#define DDPOPT_FX_GRAPH_PASSES_PASS_H_

// What rewrites a graph: a Pass has a name and a Run that tells whether it changed anything.
//
//   class MyPass : public fx::Pass {
//     absl::string_view name() const override { return "my_pass"; }
//     absl::StatusOr<bool> Run(fx::GraphModule& module) const override { ... }
//   };
//
//   fx::PassRegistry registry;
//   registry.Add("my_pass", "one line on what it does", [](const fx::PassOptions&) { return std::make_unique<MyPass>(); });
//   auto pass = registry.Create("my_pass");              // StatusOr<std::unique_ptr<Pass>>
//   auto pipeline = registry.CreatePipeline("dead_code{random_is_impure=false},topological_sort");
//
// The rules for a pass: no state is carried from one Run to the next; nothing outside of the module given is touched; what a graph
// computes, with its effects on tensors, generators and modes, stays the same; the graph lints afterwards. The tests check
// with testing/pass_test.h.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fx_graph/graph_module.h"

namespace ddpopt::fx {

class Pass {
 public:
  virtual ~Pass() = default;

  // As in pipelines: "dead_code".
  virtual absl::string_view name() const = 0;
  // The name and those options that are not the default: what CreatePipeline makes this pass from again.
  virtual std::string ToString() const { return std::string(name()); }
  // Rewrites the module's graph, and the graphs nested in it if the pass says so. Returns whether anything changed: false means that the
  // module prints as before. On an error the module may be left half rewritten, but lints.
  // Precondition: the module lints, unless the pass says otherwise.
  virtual absl::StatusOr<bool> Run(GraphModule& module) const = 0;
};

// The options of a pass in a pipeline, by name: {"random_is_impure", "false"}.
using PassOptions = std::map<std::string, std::string>;

// Passes by name. A plain value: fill it, then share it between threads as const.
class PassRegistry {
 public:
  // Errors (of Create, naming the pass): an option that the pass doesn't have, or a value that it can't read.
  using Factory = std::function<absl::StatusOr<std::unique_ptr<Pass>>(const PassOptions& options)>;

  // Errors: AlreadyExists; InvalidArgument for a name that is no identifier.
  absl::Status Add(absl::string_view name, absl::string_view description, Factory factory);
  // Errors: NotFound, listing the names that exist; the factory's.
  absl::StatusOr<std::unique_ptr<Pass>> Create(absl::string_view name, const PassOptions& options = {}) const;
  // "name,name{option=value,option=value}", blanks allowed. The empty text is the empty pipeline. Errors: InvalidArgument with the
  // position; Create's.
  absl::StatusOr<std::vector<std::unique_ptr<Pass>>> CreatePipeline(absl::string_view text) const;
  // In alphabetical order.
  std::vector<std::string> names() const;
  // Precondition (CHECK): the name exists.
  const std::string& description(absl::string_view name) const;

 private:
  struct Entry {
    std::string description;
    Factory factory;
  };
  std::map<std::string, Entry, std::less<>> entries_;
};

// Helpers for factories: an error for any option that is not in `known`; a bool option ("true" or "false").
absl::Status CheckPassOptions(const PassOptions& options, const std::vector<std::string>& known);
absl::StatusOr<bool> BoolPassOption(const PassOptions& options, const std::string& name, bool default_value);

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_PASSES_PASS_H_
