#ifndef DDPOPT_OPTIMIZER_DDP_OPTIMIZER_H_
#define DDPOPT_OPTIMIZER_DDP_OPTIMIZER_H_

// Cuts a graph at bucket borders and compiles each piece, as PyTorch's DDPOptimizer.

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "ddpopt/backends/backend.h"
#include "ddpopt/optimizer/bucket_assignment.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

struct OptimizedModule {
  std::shared_ptr<fx::GraphModule> module;  // the outer graph; its call_module targets are compiled_submod_<k>
  BucketAssignment assignment;              // nodes refer to the graph given to OptimizeDdp, which must outlive it
};

// `example_inputs`: one per placeholder, real or fakes of `mode`. One bucket: the whole graph is one piece, named submod_0.
// Changes nothing real: no buffer, no .grad, no generator state.
absl::StatusOr<OptimizedModule> OptimizeDdp(std::shared_ptr<const fx::GraphModule> module, const std::vector<c10::IValue>& example_inputs,
                                            const std::shared_ptr<FakeTensorMode>& mode, const CompileFn& compile,
                                            const BucketOptions& options);

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_DDP_OPTIMIZER_H_
