#ifndef DDPOPT_FX_GRAPH_CHECKPOINT_REGION_H_
#define DDPOPT_FX_GRAPH_CHECKPOINT_REGION_H_

// The mark of nodes whose values a backward shall compute again rather than keep: meta().custom[kCheckpointRegion] is the number of their
// region. Whoever compiles a backward may heed it; it changes no value.

namespace ddpopt::fx {

inline constexpr char kCheckpointRegion[] = "checkpoint_region";

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_CHECKPOINT_REGION_H_
