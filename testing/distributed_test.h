#ifndef DDPOPT_TESTING_DISTRIBUTED_TEST_H_
#define DDPOPT_TESTING_DISTRIBUTED_TEST_H_

// For the sources of a ddpopt_distributed_test (bazel/distributed_test.bzl). Every rank runs the same cases in the same order:
//
//   TEST(AllReduce, Sums) {
//     const ddpopt::ProcessGroup& group = ddpopt::testing::TestProcessGroup();
//     ...
//   }

#include "ddpopt/distributed/process_group.h"

namespace ddpopt::testing {

// One group for the whole process, made by the first call, which all ranks have to make. Its timeout is 20 s. Throws std::runtime_error
// (which fails the case) if it can't be made.
const ProcessGroup& TestProcessGroup();

// Called by the test's main at its end.
void ReleaseTestProcessGroup();

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_DISTRIBUTED_TEST_H_
