// An NCCL object as far as a program can see, for tests without CUDA. FAKE_NCCL_DEVICES is its number of devices; "-" stands for a machine
// without a driver, "old" for one device and headers of another NCCL.

#include <cstdlib>
#include <string>

#include "c10/util/Exception.h"
#include "ddpopt/distributed/nccl_object.h"

extern "C" __attribute__((used)) const char ddpopt_nccl_marker[] =
    DDPOPT_NCCL_MARKER_BEGIN "interface=" DDPOPT_NCCL_INTERFACE " libtorch=" TORCH_VERSION " nccl=9.9.9\n";

namespace ddpopt {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

class FakeNccl : public c10d::Backend {
 public:
  using c10d::Backend::Backend;
  const std::string getBackendName() const override { return "nccl"; }
  void eagerConnectSingleDevice(at::Device device) override {
    TORCH_CHECK(device == getBoundDeviceId(), "connected from ", device, ", but bound to another device");
    TORCH_CHECK(Variable("FAKE_NCCL_FAILS").empty(), "NCCL error: ", Variable("FAKE_NCCL_FAILS"));
  }
};

std::string Check() { return Variable("FAKE_NCCL_DEVICES") == "old" ? "it was compiled with the headers of another NCCL" : ""; }

int DeviceCount() {
  const std::string devices = Variable("FAKE_NCCL_DEVICES");
  TORCH_CHECK(devices != "-", "Found no NVIDIA driver on your system.\nMore lines.");
  return devices == "old" ? 1 : std::stoi(devices);
}

c10::intrusive_ptr<c10d::Backend> MakeBackend(const NcclBackendRequest& request) {
  return c10::make_intrusive<FakeNccl>(request.rank, request.world_size);
}

constexpr NcclObject kObject = {&DeviceCount, &Check, &MakeBackend};

}  // namespace
}  // namespace ddpopt

extern "C" const ddpopt::NcclObject* ddpopt_nccl_object() { return &ddpopt::kObject; }
