#ifndef DDPOPT_TOOLS_CHECK_MODELS_GRAPH_H_
#define DDPOPT_TOOLS_CHECK_MODELS_GRAPH_H_

// The cases of check_models about a file of graphs/: a graph without weights, and its description beside it.

#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "tools/check_models_compare.h"

namespace ddpopt {

class GraphChecker {
 public:
  explicit GraphChecker(std::filesystem::path file) : file_(std::move(file)) {}

  // Each gives its case's differences; errors are differences too.
  absl::Status Load(Differences* differences) const;
  absl::Status Lint(Differences* differences) const;
  absl::Status Fake(Differences* differences) const;

 private:
  const std::filesystem::path file_;
};

}  // namespace ddpopt

#endif  // DDPOPT_TOOLS_CHECK_MODELS_GRAPH_H_
