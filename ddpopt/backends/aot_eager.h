#ifndef DDPOPT_BACKENDS_AOT_EAGER_H_
#define DDPOPT_BACKENDS_AOT_EAGER_H_

// The backend that compiles forward and backward ahead of time and runs both with ATen's kernels, as torch.compile's "aot_eager".
//
//   options.backend = ddpopt::AotEagerBackend();      // DdpOptions
//
// A piece is one node to autograd, so its parameters' gradients come out together when its backward ends. What AotFunction can't compile is
// refused (Unimplemented), and then runs eagerly: see ddpopt/aot/joint_graph.h. No second derivatives: create_graph throws.

#include "ddpopt/aot/aot_options.h"
#include "ddpopt/backends/backend.h"

namespace ddpopt {

// Pieces may be called by several threads at once, unless they write buffers. `options`: whether backward computes cheap values again, and
// with how much memory (ddpopt/aot/partition_options.h).
CompileFn AotEagerBackend(AotOptions options = {});

}  // namespace ddpopt

#endif  // DDPOPT_BACKENDS_AOT_EAGER_H_
