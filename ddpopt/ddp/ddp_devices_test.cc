// Which modules a group takes, by device. Parameters "on CUDA" here have a device and no data, and NCCL is a fake: nothing is computed.

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/ones.h"
#include "ddpopt/ddp/ddp_core.h"
#include "ddpopt/distributed/fake_nccl.h"
#include "ddpopt/distributed/process_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/environment.h"
#include "testing/matchers.h"
#include "torch/nn/module.h"

namespace ddpopt {
namespace {

using ::ddpopt::testing::StatusIs;
using ::testing::HasSubstr;

at::Tensor OnDevice(at::Device device) {
  if (device.is_cpu()) return at::ones({2});
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(c10::DispatchKeySet(c10::DispatchKey::CUDA), caffe2::TypeMeta::Make<float>(), device);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({2});
  return tensor;
}

struct Net : torch::nn::Module {
  void Add(const std::string& name, at::Device device) { register_parameter(name, OnDevice(device)); }
  void AddBuffer(const std::string& name, at::Device device) { register_buffer(name, OnDevice(device)); }
};

ProcessGroup Group(const std::string& backend) {
  testing::SetEnvironmentOfOneRank();
  testing::UseFakeNccl("2");
  InitOptions options;
  options.backend = backend;
  auto group = InitProcessGroup(options);
  if (!group.ok()) throw std::runtime_error(group.status().ToString());
  return *std::move(group);
}

absl::Status Wrap(const std::shared_ptr<Net>& net, const std::string& backend, std::vector<int> device_ids = {}) {
  DdpOptions options;
  options.device_ids = std::move(device_ids);
  return DdpCore::Create(net, Group(backend), std::move(options)).status();
}

TEST(Devices, GlooRefusesAModuleOnCuda) {
  auto net = std::make_shared<Net>();
  net->Add("weight", at::Device(at::kCUDA, 0));
  EXPECT_THAT(Wrap(net, "gloo"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("parameter \"weight\" is on cuda:0, but the process group's backend is gloo, which takes cpu tensors")));
}

TEST(Devices, NcclRefusesAModuleOnTheCpuOrOnAnotherDevice) {
  auto net = std::make_shared<Net>();
  net->Add("weight", at::kCPU);
  EXPECT_THAT(Wrap(net, "nccl"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("parameter \"weight\" is on cpu, but the process group's backend is nccl, which takes cuda:0 tensors")));
  auto other = std::make_shared<Net>();
  other->Add("weight", at::Device(at::kCUDA, 1));
  EXPECT_THAT(Wrap(other, "nccl"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("parameter \"weight\" is on cuda:1, but the process group's backend is "
                                                                     "nccl, which takes cuda:0 tensors")));
}

TEST(Devices, AModuleOnTheRanksDeviceIsTaken) {
  auto net = std::make_shared<Net>();
  net->Add("weight", at::Device(at::kCUDA, 0));
  DDPOPT_EXPECT_OK(Wrap(net, "nccl"));
  DDPOPT_EXPECT_OK(Wrap(net, "nccl", {0}));
  net->AddBuffer("steps", at::kCPU);
  EXPECT_THAT(Wrap(net, "nccl"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("buffer \"steps\" is on cpu")));
  DDPOPT_EXPECT_OK(Wrap(net, "cpu:gloo,cuda:nccl"));
}

TEST(Devices, ParametersOnSeveralDevicesAreNamed) {
  auto net = std::make_shared<Net>();
  net->Add("first", at::kCPU);
  net->Add("second", at::Device(at::kCUDA, 0));
  EXPECT_THAT(Wrap(net, "cpu:gloo,cuda:nccl"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("parameter \"first\" is on cpu, but parameter \"second\" is on cuda:0; all "
                                                                     "parameters of a rank must be on one device")));
}

TEST(Devices, DeviceIdsMustBeTheModulesDevice) {
  auto cpu = std::make_shared<Net>();
  cpu->Add("weight", at::kCPU);
  EXPECT_THAT(Wrap(cpu, "gloo", {0}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("device_ids names cuda:0, but the module's parameters are on cpu; device_ids is for modules on a CUDA")));
  auto cuda = std::make_shared<Net>();
  cuda->Add("weight", at::Device(at::kCUDA, 0));
  EXPECT_THAT(Wrap(cuda, "nccl", {1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("device_ids names cuda:1, but the module's parameters are on cuda:0")));
  EXPECT_THAT(Wrap(cuda, "nccl", {0, 1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("device_ids names 2 devices (0, 1); a rank drives one")));
}

}  // namespace
}  // namespace ddpopt
