#ifndef DDPOPT_TESTING_PASS_TEST_H_
#define DDPOPT_TESTING_PASS_TEST_H_

// Runs a pass in a test and holds it to its word.
//
//   EXPECT_THAT(RunPass(DeadCodePass(), module), IsOkAndHolds(true));
//
// Adds a test failure when the pass says "unchanged" and the module's text (nested graphs included) differs, or says "changed" and it doesn't; when the
// module doesn't lint afterwards; and when a pass that changed something finds more to change in a second run, unless told otherwise.

#include <string>

#include "absl/status/statusor.h"
#include "fx_graph/graph_module.h"
#include "fx_graph/passes/pass.h"

namespace ddpopt::testing {

struct RunPassOptions {
  // Whether a second run must change nothing.
  bool idempotent = true;
};

// The pass's own result. The module must lint before.
absl::StatusOr<bool> RunPass(const fx::Pass& pass, fx::GraphModule& module, const RunPassOptions& options = {});

// The text of the module's graph and, under their paths, of the graphs nested in it.
std::string ModuleText(const fx::GraphModule& module);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_PASS_TEST_H_
