#ifndef DDPOPT_FX_GRAPH_PASSES_REPRODUCER_H_
#define DDPOPT_FX_GRAPH_PASSES_REPRODUCER_H_

// A failure of a pass as a file: the graph that the pass was given, and the pipeline to run on it.
//
//   # ddpopt graph reproducer
//   # pipeline: dead_code
//   # error: INTERNAL: ...
//   # run again: bazel run //tools:graph_opt -- --reproducer=PATH
//   graph():
//       %x : [num_users=1] = placeholder[target=x]
//
// What follows the head is a graph in one of the forms that tools:graph_opt reads.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ddpopt::fx {

struct Reproducer {
  std::string pipeline;  // for PassRegistry::CreatePipeline
  std::string error;     // what went wrong; for the reader
  std::string graph;
};

std::string FormatReproducer(const Reproducer& reproducer);
// Whether the text starts like a reproducer.
bool IsReproducer(absl::string_view text);
// Errors: InvalidArgument if it is none, or names no pipeline.
absl::StatusOr<Reproducer> ParseReproducer(absl::string_view text);

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_PASSES_REPRODUCER_H_
