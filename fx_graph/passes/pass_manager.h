#ifndef DDPOPT_FX_GRAPH_PASSES_PASS_MANAGER_H_
#define DDPOPT_FX_GRAPH_PASSES_PASS_MANAGER_H_

// Runs passes one after another, checks each, and shows what they do.
//
//   fx::PassManagerOptions options;
//   options.print_after_change = {"*"};
//   options.reproducer_path = "/tmp/failed_pass.txt";
//   fx::PassManager manager(options);
//   DDPOPT_RETURN_IF_ERROR(manager.AddPipeline(fx::BuiltinPasses(), "common_subexpression,dead_code"));
//   DDPOPT_ASSIGN_OR_RETURN(const bool changed, manager.Run(module));
//   std::cerr << manager.TimingReport();
//
// One object runs on one thread at a time.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fx_graph/graph_module.h"
#include "fx_graph/passes/pass.h"

namespace ddpopt::fx {

struct PassManagerOptions {
  // Lints before the first pass and after each.
  bool verify_each = true;
  // Holds each pass to its claim by comparing the text before and after: an error if it lies. Costs two prints a pass.
  bool verify_claims = false;
  // Names of passes around which the graph is printed; "*" stands for all.
  std::vector<std::string> print_before;
  std::vector<std::string> print_after;
  std::vector<std::string> print_after_change;
  // Takes what is printed; standard error if not set.
  std::function<void(absl::string_view text)> print = nullptr;
  // Where a Reproducer is written when a pass fails, does not lint or lies; nowhere if empty. Costs a copy of the graph a pass.
  std::string reproducer_path;
  // The graph of a reproducer; the text form if not set.
  std::function<absl::StatusOr<std::string>(const GraphModule& module)> serialize = nullptr;
};

struct PassTiming {
  std::string pass;  // Pass::ToString
  std::int64_t nanoseconds = 0;
  bool changed = false;
  std::size_t nodes_before = 0;  // of the outer graph
  std::size_t nodes_after = 0;
};

class PassManager {
 public:
  explicit PassManager(PassManagerOptions options = {}) : options_(std::move(options)) {}

  void Add(std::unique_ptr<Pass> pass) { passes_.push_back(std::move(pass)); }
  // Errors: CreatePipeline's; nothing is added then.
  absl::Status AddPipeline(const PassRegistry& registry, absl::string_view text);
  // "common_subexpression,dead_code".
  std::string Pipeline() const;

  // Returns whether a pass changed anything. Errors name the pass, keep its code, and say where the reproducer is: a pass's own; Internal
  // for a graph that does not lint after a pass, for a false claim and for an exception. The passes after it are not run.
  absl::StatusOr<bool> Run(GraphModule& module);

  // Of the last Run, in order, up to the pass that failed.
  const std::vector<PassTiming>& timings() const { return timings_; }
  // A table: milliseconds, share, nodes before and after, whether it changed anything.
  std::string TimingReport() const;

 private:
  absl::StatusOr<bool> RunPass(const Pass& pass, GraphModule& module);
  void Print(absl::string_view when, const Pass& pass, const GraphModule& module) const;
  absl::Status Fail(const Pass& pass, const GraphModule* before, absl::Status status) const;

  PassManagerOptions options_;
  std::vector<std::unique_ptr<Pass>> passes_;
  std::vector<PassTiming> timings_;
};

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_PASSES_PASS_MANAGER_H_
