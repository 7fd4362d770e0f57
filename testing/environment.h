#ifndef DDPOPT_TESTING_ENVIRONMENT_H_
#define DDPOPT_TESTING_ENVIRONMENT_H_

// The surroundings of a test that makes process groups by itself, without the harness.

#include <string>

namespace ddpopt::testing {

// A TCP port that nobody listens on. With `keep`, a socket that listens on it, to be closed by the caller, is stored there.
int FreePort(int* keep = nullptr);

// torchrun's variables for a group of one, on a free port.
void SetEnvironmentOfOneRank();

// Why this machine or this build can't run a test that needs a GPU, for GTEST_SKIP; empty if it can, or if DDPOPT_REQUIRE_CUDA=1 forbids to
// pass over such tests.
std::string NoCudaReason();

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_ENVIRONMENT_H_
