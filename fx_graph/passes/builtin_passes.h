#ifndef DDPOPT_FX_GRAPH_PASSES_BUILTIN_PASSES_H_
#define DDPOPT_FX_GRAPH_PASSES_BUILTIN_PASSES_H_

// Every pass of this package, by name: what tools make pipelines from.
//
//   auto passes = fx::BuiltinPasses().CreatePipeline("dead_code,common_subexpression");

#include "fx_graph/passes/pass.h"

namespace ddpopt::fx {

// Made once; safe to use from any thread. To add passes of your own, copy it.
const PassRegistry& BuiltinPasses();

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_PASSES_BUILTIN_PASSES_H_
