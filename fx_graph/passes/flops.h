#ifndef DDPOPT_FX_GRAPH_PASSES_FLOPS_H_
#define DDPOPT_FX_GRAPH_PASSES_FLOPS_H_

// How many floating-point operations an operator takes: two for each multiplication and addition of matrix products, convolutions,
// attention and LSTMs, forward and backward; Fourier transforms and dense linear algebra by their order of growth. Other arithmetic isn't
// counted: what it costs is the memory it reads and writes.
//
//   fx::Flops(*mm);      // 2 * m * k * n
//
// Only shapes are looked at, so fakes serve. 0 for an operator that isn't counted, or whose operands aren't known. Composite operators that
// hold one counted operator (linear, conv2d) are counted as this. Thread-safe.

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/ivalue.h"
#include "c10/util/ArrayRef.h"
#include "fx_graph/node.h"

namespace ddpopt::fx {

// `arguments`: the operator's, in the order of its schema; those at the end may be left out. `results`: what it returned.
double Flops(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<c10::IValue> results);

// Of a call_function node, by its and its arguments' meta().val.
double Flops(const Node& node);

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_PASSES_FLOPS_H_
