#include "ddpopt/distributed/fake_nccl.h"

#include <cstdlib>
#include <stdexcept>

#include "c10/core/impl/DeviceGuardImplInterface.h"
#include "c10/core/impl/FakeGuardImpl.h"

namespace ddpopt::testing {

std::string FakeNcclPath() {
  const char* runfiles = std::getenv("TEST_SRCDIR");
  if (runfiles == nullptr) throw std::runtime_error("TEST_SRCDIR is not set: this is to be run by bazel test");
  return std::string(runfiles) + "/ddpopt/ddpopt/distributed/libfake_nccl.so";
}

void UseFakeNccl(const std::string& devices) {
  static const c10::impl::FakeGuardImpl<c10::kCUDA> fake;
  auto& registered = c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::kCUDA)];
  if (registered.load() == nullptr) registered.store(&fake);
  setenv("DDPOPT_NCCL_LIBRARY", FakeNcclPath().c_str(), 1);
  setenv("FAKE_NCCL_DEVICES", devices.c_str(), 1);
}

}  // namespace ddpopt::testing
