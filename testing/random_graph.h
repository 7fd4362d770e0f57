#ifndef DDPOPT_TESTING_RANDOM_GRAPH_H_
#define DDPOPT_TESTING_RANDOM_GRAPH_H_

// Random graphs with what they compute, found by calling ATen directly while the graph is made.
//
//   RandomGraph random = MakeRandomGraph(seed, 50);
//   std::vector<c10::IValue> inputs = random.CloneInputs();
//   EXPECT_TRUE(SameValues(CallGraphModule(*random.module, inputs), random.expected));
//   EXPECT_TRUE(SameValues(inputs, random.expected_inputs));          // some of them are written
//
// The graphs hold parameters, nested graphs, views, writes through them, operators with several results, nested and keyword arguments, constants of
// many types, duplicates and dead code.

#include <cstdint>
#include <memory>
#include <vector>

#include "ATen/core/ivalue.h"
#include "fx_graph/graph_module.h"

namespace ddpopt::testing {

struct RandomGraph {
  std::shared_ptr<fx::GraphModule> module;
  std::vector<c10::IValue> inputs;           // as before any run
  c10::IValue expected;                      // of a run on these
  std::vector<c10::IValue> expected_inputs;  // what such a run leaves in them

  std::vector<c10::IValue> CloneInputs() const;
};

// The same for the same arguments. `steps` counts operations, of which each makes one to five nodes.
RandomGraph MakeRandomGraph(std::uint64_t seed, int steps);

// Bit for bit, tensors within tuples and lists included.
bool SameValues(const c10::IValue& a, const c10::IValue& b);
bool SameValues(const std::vector<c10::IValue>& a, const std::vector<c10::IValue>& b);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_RANDOM_GRAPH_H_
