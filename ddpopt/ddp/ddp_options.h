#ifndef DDPOPT_DDP_DDP_OPTIONS_H_
#define DDPOPT_DDP_DDP_OPTIONS_H_

// What DistributedDataParallel is told at creation. Names and defaults as PyTorch's, where PyTorch has them.
//
//   ddpopt::DdpOptions options;
//   options.bucket_cap_mb = 10;
//   options.gradient_as_bucket_view = true;
//   auto ddp = ddpopt::DistributedDataParallel<Net>::Create(net, *pg, options);

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "ddpopt/backends/backend.h"

namespace ddpopt {

// How forward runs. Buckets, and all that is promised of gradients, are the same.
enum class ExecutionMode {
  kCompiled,  // as captured and compiled graphs, cut where buckets end
  kEager,     // as the module's own forward; a trace of the first one only tells where buckets end
};

// Where gradient buckets end.
enum class BucketPolicy {
  kCaps,  // by the caps, or the ends, below
  // Where the least communication is expected to stay exposed (docs/planner.md): at the first forward with gradients all-reduces are measured
  // on the group, and the graph on rank 0, which takes a second or two, or three steps; every rank takes rank 0's choice. The default caps where they are as
  // good. core().auto_report() and explain() tell what was chosen, what is expected and what came of it. Not together with caps or ends.
  kAuto,
};

struct DdpOptions {
  BucketPolicy bucket_policy = BucketPolicy::kCaps;
  // For kAuto: the memory of a rank, in MiB, that the step must keep within as far as it can be foreseen; 0: no limit. It is an error if nothing does.
  double bucket_memory_limit_mb = 0;
  // MiB; see BucketOptions for the defaults and the relation between the two.
  absl::optional<double> bucket_cap_mb;
  absl::optional<double> first_bucket_cap_mb;
  // MiB for each bucket, in the order of reduction, instead of the two above; the last one holds for all that follow.
  std::vector<double> bucket_cap_mb_list;
  // Instead of caps, where buckets end: see BucketOptions::bucket_ends.
  std::vector<std::string> bucket_ends;

  // Whether rank 0's buffers (BatchNorm's running statistics) go to all ranks before each forward with gradients, those within no_sync
  // excepted. Graphs that saved a buffer for a backward still to come are not disturbed. True if not set.
  absl::optional<bool> forward_sync_buffers;
  absl::optional<bool> broadcast_buffers;         // its name in older versions of PyTorch; if both are set, they must say the same
  bool init_sync = true;                          // broadcast parameters and buffers of rank 0 at creation
  std::vector<std::string> parameters_to_ignore;  // qualified names, of buffers too; never compared, broadcast or reduced

  // Whether parameters may be left without gradient in a backward, other ones on each rank. Costs one all-reduce of a number per parameter.
  // A parameter that no rank used keeps the gradient that it had; one that another rank used gets that one's share.
  bool find_unused_parameters = false;
  // The set of parameters that get a gradient never changes on a rank. It is learnt in the first synchronised backward, as with
  // find_unused_parameters, and held to in later ones, which need no all-reduce for it: a change is an error that names the parameter.
  bool static_graph = false;
  // The parameters without gradient are the same on all ranks, and never change: that is checked too, and buckets of such parameters alone
  // are not reduced. Needs find_unused_parameters or static_graph.
  bool skip_all_reduce_unused_params = false;
  // Gradients are views into the buckets, which saves a copy of each. They can be used as any gradient, Optimizer::zero_grad() with
  // set_to_none false included, which LibTorch refuses for its own Reducer's views. What keeps a gradient beyond the next backward clones
  // it.
  bool gradient_as_bucket_view = false;

  ExecutionMode mode = ExecutionMode::kCompiled;
  CompileFn backend;  // empty: EagerBackend(); for kCompiled
  // Every how many forwards with gradients the module is traced again, to see whether what forward reads of the host (a member, a counter,
  // a random number) has changed; so it is at the second one, and after train() or eval(). 0: never. For kCompiled.
  int64_t retrace_every = 100;
  // Whether a forward that can't be captured is called as it is, after a warning, and trained with the same buckets; false: an error.
  bool eager_fallback = true;

  // The one CUDA device of the module, if its inputs are to be moved there: by a side stream, beside the work of the current one. Empty:
  // they are given on the right device.
  std::vector<int> device_ids;

  // Debugging. Every how many synchronised backwards all ranks' gradients are compared to the bit; 0: never. A difference is an error that
  // names ranks and parameter.
  int64_t check_gradients_equal_every = 0;
  // Whether reduced gradients are looked through for NaN and infinity; an error names the ranks and parameters that they came from.
  bool check_gradients_finite = false;
  // Not empty: each rank appends a JSON object for each backward to "<step_log>.rank<RANK>.jsonl", see docs/ddp.md.
  std::string step_log;
};

}  // namespace ddpopt

#endif  // DDPOPT_DDP_DDP_OPTIONS_H_
