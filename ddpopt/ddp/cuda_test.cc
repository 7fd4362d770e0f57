// NCCL and streams on a real GPU; a group of one rank suffices. Passed over without one: docs/cuda.md says how to run it.

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "absl/types/optional.h"
#include "c10/core/StreamGuard.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "ddpopt/ddp/distributed_data_parallel.h"
#include "ddpopt/distributed/device_streams.h"
#include "ddpopt/distributed/process_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/environment.h"
#include "testing/matchers.h"
#include "torch/nn/modules/linear.h"

namespace ddpopt {
namespace {

using ::ddpopt::testing::AllClose;
using ::ddpopt::testing::HasDevice;
using ::ddpopt::testing::StatusIs;
using ::ddpopt::testing::TensorEq;
using ::testing::HasSubstr;

absl::optional<ProcessGroup>& CachedGroup() {
  static auto& group = *new absl::optional<ProcessGroup>();
  return group;
}

class Cuda : public ::testing::Test {
 protected:
  // The group is made once: NCCL takes seconds to come up.
  void SetUp() override {
    const std::string reason = testing::NoCudaReason();
    if (!reason.empty()) GTEST_SKIP() << reason;
    if (CachedGroup().has_value()) return;
    testing::SetEnvironmentOfOneRank();
    InitOptions options;
    options.backend = "cpu:gloo,cuda:nccl";
    options.timeout = std::chrono::seconds(60);
    auto group = InitProcessGroup(options);
    DDPOPT_ASSERT_OK(group);
    CachedGroup() = *std::move(group);
  }
  // While CUDA is still there.
  static void TearDownTestSuite() { CachedGroup().reset(); }

  static const ProcessGroup& Group() { return *CachedGroup(); }
  static at::TensorOptions OnDevice() { return at::TensorOptions().device(Group().device()); }
  // Milliseconds of work for any GPU.
  static void KeepBusy(const at::Device& device) {
    at::Tensor a = at::full({4096, 4096}, 1e-4, at::TensorOptions().device(device));
    for (int i = 0; i < 50; ++i) a = at::matmul(a, a).clamp(0, 1e-4);
  }
};

TEST_F(Cuda, TheGroupIsOnTheRanksDevice) { EXPECT_EQ(Group().device(), at::Device(at::kCUDA, 0)); }

TEST_F(Cuda, CollectivesOfAGroupOfOne) {
  at::Tensor t = at::full({3}, 2.0, OnDevice());
  DDPOPT_EXPECT_OK(Group().AllReduceSum(t));
  DDPOPT_EXPECT_OK(Group().Broadcast(t, 0));
  DDPOPT_EXPECT_OK(Group().Barrier());
  EXPECT_THAT(t.cpu(), TensorEq(at::full({3}, 2.0)));
  at::Tensor host = at::full({3}, 3.0);
  DDPOPT_EXPECT_OK(Group().AllReduceSum(host));
  EXPECT_THAT(host, TensorEq(at::full({3}, 3.0)));
}

TEST_F(Cuda, CollectivesWaitForTheWorkBeforeThem) {
  KeepBusy(Group().device());
  at::Tensor t = at::full({1 << 20}, 1.0, OnDevice()).add(1);
  DDPOPT_EXPECT_OK(Group().AllReduceSum(t));
  EXPECT_THAT(t.cpu(), TensorEq(at::full({1 << 20}, 2.0)));
}

TEST_F(Cuda, StampsTellTheDevicesTime) {
  const at::Device device = Group().device();
  at::zeros({1}, OnDevice()).cpu();
  const double host_begin = SteadySeconds();
  const StreamStamp begin = StreamStamp::Record(device);
  KeepBusy(device);
  const StreamStamp end = StreamStamp::Record(device);
  const double enqueued = SteadySeconds() - host_begin;
  EXPECT_TRUE(end.Wait(std::chrono::seconds(60)));
  EXPECT_TRUE(end.Reached());
  const double took = end.Seconds(begin) - begin.Seconds(begin);
  EXPECT_GT(took, 0);
  EXPECT_LE(took, SteadySeconds() - host_begin + 1e-3);
  RecordProperty("enqueued_us", static_cast<int>(enqueued * 1e6));
  RecordProperty("device_us", static_cast<int>(took * 1e6));
}

TEST_F(Cuda, CopiesOnASideStreamAreComplete) {
  const at::Device device = Group().device();
  for (int round = 0; round < 20; ++round) {
    KeepBusy(device);
    const at::Tensor source = at::full({1 << 20}, static_cast<double>(round));
    const at::Tensor copy = CopyBesideCurrentStream(source, device);
    EXPECT_THAT(copy, HasDevice(device));
    EXPECT_THAT(copy.add(1).cpu(), TensorEq(source.add(1)));
  }
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("first", first);
    register_module("second", second);
    register_module("third", third);
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    return at::mse_loss(third->forward(at::relu(second->forward(at::relu(first->forward(x))))), y);
  }
  torch::nn::Linear first{16, 64};
  torch::nn::Linear second{64, 64};
  torch::nn::Linear third{64, 4};
};
TORCH_MODULE(Net);

// The same values in every call.
Net MakeNet(at::Device device) {
  Net net;
  const at::NoGradGuard no_grad;
  double phase = 0;
  for (at::Tensor& parameter : net->parameters()) {
    parameter.copy_(at::arange(parameter.numel(), at::kFloat).add(phase).sin().mul(0.2).reshape(parameter.sizes()));
    phase += 1;
  }
  net->to(device);
  return net;
}

std::pair<at::Tensor, at::Tensor> Batch(int step, at::Device device) {
  const at::Tensor x = at::arange(8 * 16, at::kFloat).add(step).cos().reshape({8, 16});
  const at::Tensor y = at::arange(8 * 4, at::kFloat).sub(step).sin().reshape({8, 4});
  return {x.to(device), y.to(device)};
}

template <typename Fn>
std::vector<double> Train(Net& net, at::Device batches_on, Fn&& forward) {
  std::vector<double> losses;
  for (int step = 0; step < 5; ++step) {
    for (at::Tensor& parameter : net->parameters()) parameter.mutable_grad() = at::Tensor();
    const auto [x, y] = Batch(step, batches_on);
    const at::Tensor loss = forward(x, y);
    loss.backward();
    losses.push_back(loss.item<double>());
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) parameter.sub_(parameter.grad(), 0.1);
  }
  return losses;
}

TEST_F(Cuda, TrainsAsTheModuleAloneInSeveralBuckets) {
  const at::Device device = Group().device();
  Net plain = MakeNet(device);
  const std::vector<double> expected = Train(plain, device, [&](const at::Tensor& x, const at::Tensor& y) { return plain->forward(x, y); });

  Net net = MakeNet(device);
  DdpOptions options;
  options.bucket_cap_mb = 1.0 / 1024;
  auto ddp = DistributedDataParallel<Net>::Create(net, Group(), options);
  DDPOPT_ASSERT_OK(ddp);
  const std::vector<double> losses = Train(net, device, [&](const at::Tensor& x, const at::Tensor& y) { return (*ddp)->forward(x, y); });
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-6) << "step " << i;
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    EXPECT_THAT(net->parameters()[i].detach().cpu(), AllClose(plain->parameters()[i].detach().cpu(), 1e-5, 1e-6)) << "parameter " << i;
  }
  EXPECT_GE((*ddp)->core().reducer_buckets().size(), 2u);
  DDPOPT_EXPECT_OK((*ddp)->core().CheckParametersEqual());

  const StepTiming& step = (*ddp)->core().last_step();
  EXPECT_LT(step.backward_begin, step.backward_end);
  EXPECT_LE(step.compute_end, step.backward_end);
  ASSERT_EQ(step.buckets.size(), (*ddp)->core().reducer_buckets().size());
  for (const BucketTiming& bucket : step.buckets) {
    EXPECT_LE(step.backward_begin, bucket.launched);
    EXPECT_LT(bucket.launched, bucket.finished);
    EXPECT_LE(bucket.finished, step.backward_end + 1e-3);
  }
}

TEST_F(Cuda, MovesInputsToTheDeviceNamedByDeviceIds) {
  Net net = MakeNet(Group().device());
  DdpOptions options;
  options.device_ids = {0};
  auto ddp = DistributedDataParallel<Net>::Create(net, Group(), options);
  DDPOPT_ASSERT_OK(ddp);
  Net plain = MakeNet(Group().device());
  const std::vector<double> expected =
      Train(plain, Group().device(), [&](const at::Tensor& x, const at::Tensor& y) { return plain->forward(x, y); });
  const std::vector<double> losses = Train(net, at::kCPU, [&](const at::Tensor& x, const at::Tensor& y) { return (*ddp)->forward(x, y); });
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-6) << "step " << i;
}

TEST_F(Cuda, TrainsOnACallersStream) {
  const at::Device device = Group().device();
  Net plain = MakeNet(device);
  const std::vector<double> expected = Train(plain, device, [&](const at::Tensor& x, const at::Tensor& y) { return plain->forward(x, y); });
  const c10::StreamGuard guard(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
  Net net = MakeNet(device);
  auto ddp = DistributedDataParallel<Net>::Create(net, Group());
  DDPOPT_ASSERT_OK(ddp);
  const std::vector<double> losses = Train(net, device, [&](const at::Tensor& x, const at::Tensor& y) { return (*ddp)->forward(x, y); });
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-6) << "step " << i;
}

TEST_F(Cuda, ARankBeyondTheDevicesIsRefused) {
  setenv("LOCAL_RANK", "999", 1);
  setenv("RANK", "999", 1);
  setenv("WORLD_SIZE", "1000", 1);
  setenv("MASTER_PORT", "1", 1);  // nobody is there: the rank's own error is what comes back
  InitOptions options;
  options.backend = "nccl";
  options.timeout = std::chrono::seconds(2);
  EXPECT_THAT(InitProcessGroup(options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("LOCAL_RANK=999, but there")));
  testing::SetEnvironmentOfOneRank();
}

}  // namespace
}  // namespace ddpopt
