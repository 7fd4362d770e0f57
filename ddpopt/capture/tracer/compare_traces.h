#ifndef DDPOPT_CAPTURE_TRACER_COMPARE_TRACES_H_
#define DDPOPT_CAPTURE_TRACER_COMPARE_TRACES_H_

// Whether two traces of one forward are the same. What forward reads of the host (a member double, a counter that decides a branch) is part
// of a trace, so tracing again tells whether it has changed.
//
//   if (auto difference = CompareTraces(before, now)) LOG(WARNING) << difference->what;

#include <optional>
#include <string>

#include "ddpopt/capture/tracer/trace.h"

namespace ddpopt {

struct TraceDifference {
  std::string node;  // the first that differs, as the first trace names it; of the second trace where the first has ended
  std::string what;  // a sentence with the node and both values
};

// Compares nodes, targets, constants to the bit, shapes, strides and dtypes of all values, and attributes: parameters, buffers and
// constants that the module shares by identity, the graphs' own constants by their bits. Names of nodes don't count. Linear in the number
// of nodes and the bytes of own constants. Thread-safe.
std::optional<TraceDifference> CompareTraces(const TracedModule& a, const TracedModule& b);

}  // namespace ddpopt

#endif  // DDPOPT_CAPTURE_TRACER_COMPARE_TRACES_H_
