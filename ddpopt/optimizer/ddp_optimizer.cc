#include "ddpopt/optimizer/ddp_optimizer.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ddpopt/optimizer/submod_compiler.h"
#include "fx_graph/split_module.h"

namespace ddpopt {

absl::StatusOr<OptimizedModule> OptimizeDdp(std::shared_ptr<const fx::GraphModule> module, const std::vector<c10::IValue>& example_inputs,
                                            const std::shared_ptr<FakeTensorMode>& mode, const CompileFn& compile,
                                            const BucketOptions& options) {
  DDPOPT_RETURN_IF_ERROR(module->Lint());
  std::size_t placeholders = 0;
  for (const fx::Node* node : module->graph().nodes()) placeholders += node->op() == fx::Op::kPlaceholder;
  if (placeholders != example_inputs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the graph takes ", placeholders, " inputs, but ", example_inputs.size(), " example inputs were given"));
  }

  OptimizedModule optimized;
  DDPOPT_ASSIGN_OR_RETURN(optimized.assignment, AssignBuckets(*module, options));
  const auto& bucket_of = optimized.assignment.bucket_of;
  // Pieces have their own parameters, and errors speak of nodes by the names that the user's graph has for them.
  fx::SplitOptions split;
  split.attributes = fx::SplitOptions::Attributes::kCopy;
  split.keep_original_node_names = true;
  DDPOPT_ASSIGN_OR_RETURN(optimized.module, fx::SplitModule(
                                                *module,
                                                [&](const fx::Node* node) {
                                                  const auto found = bucket_of.find(node);
                                                  return found == bucket_of.end() ? -1 : found->second;
                                                },
                                                split));
  SubmodCompiler compiler(optimized.module, mode, compile);
  DDPOPT_RETURN_IF_ERROR(compiler.Compile(example_inputs));
  return optimized;
}

}  // namespace ddpopt
