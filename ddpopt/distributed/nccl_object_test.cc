// The real NCCL object, which --config=cuda builds: what happens when it is asked for on the machine at hand. On one with a GPU that is
// //ddpopt/ddp:cuda_test's to tell.

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "ddpopt/distributed/process_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/environment.h"
#include "testing/matchers.h"

namespace ddpopt {
namespace {

using ::ddpopt::testing::StatusIs;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(NcclObject, OnAMachineWithoutADriverTheErrorNamesWhatIsMissing) {
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr) GTEST_SKIP() << "this machine has an NVIDIA driver";
  testing::SetEnvironmentOfOneRank();
  unsetenv("DDPOPT_NCCL_LIBRARY");
  InitOptions options;
  options.backend = "nccl";
  const absl::Status status = InitProcessGroup(options).status();
  // Either LibTorch has no CUDA part, or that part lacks a library, or it is complete and finds no driver.
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               AnyOf(AllOf(HasSubstr("can't load "), HasSubstr(".so"), HasSubstr("cannot open shared object file")),
                                     HasSubstr("no CUDA device can be used: "))));
  EXPECT_THAT(std::string(status.message()), HasSubstr("this machine has no NVIDIA driver (libcuda.so.1 is not found)"));
}

}  // namespace
}  // namespace ddpopt
