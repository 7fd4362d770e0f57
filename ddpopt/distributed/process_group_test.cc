// What goes wrong before there is a group, and groups of one.

#include "ddpopt/distributed/process_group.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <tuple>
#include <utility>

#include "ATen/ops/empty.h"
#include "ATen/ops/full.h"
#include "absl/status/status.h"
#include "ddpopt/distributed/fake_nccl.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/environment.h"
#include "testing/matchers.h"

namespace ddpopt {
namespace {

using ::ddpopt::testing::FreePort;
using ::ddpopt::testing::IsOkAndHolds;
using ::ddpopt::testing::StatusIs;
using ::ddpopt::testing::TensorEq;
using ::ddpopt::testing::UseFakeNccl;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ProcessGroupEnvironment : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::SetEnvironmentOfOneRank();
    unsetenv("GLOO_SOCKET_IFNAME");
  }
  static void Set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }
  static InitOptions Backend(const std::string& backend) {
    InitOptions options = Timeout(5000);
    options.backend = backend;
    return options;
  }
  static InitOptions Timeout(int milliseconds) {
    InitOptions options;
    options.timeout = std::chrono::milliseconds(milliseconds);
    return options;
  }
};

TEST_F(ProcessGroupEnvironment, MissingVariablesAreNamed) {
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"}) {
    SetUp();
    unsetenv(name);
    EXPECT_THAT(InitProcessGroup(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(std::string("variable ") + name + " is not set")));
    Set(name, "");
    EXPECT_THAT(InitProcessGroup(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(std::string("variable ") + name + " is empty")));
  }
}

TEST_F(ProcessGroupEnvironment, BadValuesAreNamed) {
  for (const auto& [name, value, message] :
       {std::tuple<const char*, const char*, const char*>{"MASTER_PORT", "http", "MASTER_PORT='http' is not an integer"},
        {"MASTER_PORT", "70000", "MASTER_PORT=70000 is outside [1, 65535]"},
        {"RANK", "1x", "RANK='1x' is not an integer"},
        {"RANK", "-1", "RANK=-1 is outside"},
        {"RANK", "1", "RANK=1 is not below WORLD_SIZE=1"},
        {"WORLD_SIZE", "0", "WORLD_SIZE=0 is outside"},
        {"LOCAL_RANK", "2", "LOCAL_RANK=2 is above RANK=0"},
        {"DDPOPT_STALL_TIMEOUT", "soon", "DDPOPT_STALL_TIMEOUT='soon' is not a number of seconds, 0 or more"},
        {"DDPOPT_STALL_TIMEOUT", "-1", "DDPOPT_STALL_TIMEOUT='-1' is not"},
        {"DDPOPT_STALL_TIMEOUT", "inf", "DDPOPT_STALL_TIMEOUT='inf' is not"},
        {"TORCH_DISTRIBUTED_DEBUG", "LOUD", "TORCH_DISTRIBUTED_DEBUG='LOUD' is none of OFF, INFO and DETAIL"}}) {
    SetUp();
    Set(name, value);
    EXPECT_THAT(InitProcessGroup(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
    unsetenv(name);
  }
}

TEST_F(ProcessGroupEnvironment, UnknownBackendsAreRefused) {
  for (const auto& [backend, message] : {std::pair<const char*, const char*>{
                                             "mpi", "process group backend 'mpi' is not supported; there are 'gloo' (takes cpu tensors) and 'nccl'"},
                                         {"", "process group backend '' is not supported"},
                                         {"Gloo", "backend 'Gloo' is not supported"},
                                         {"cpu:gloo,cuda:ucc", "backend 'cpu:gloo,cuda:ucc': 'ucc' is not supported"},
                                         {"cuda:gloo", "gloo takes cpu tensors, so it can serve 'cpu' alone, not 'cuda'"},
                                         {"cpu:nccl", "nccl takes cuda tensors, so it can serve 'cuda' alone, not 'cpu'"},
                                         {"x:cpu:gloo", "gloo takes cpu tensors"},
                                         {"cpu:gloo,gloo", "names two backends for cpu: gloo and gloo"},
                                         {"cpu:gloo,", "'' is not supported"}}) {
    EXPECT_THAT(InitProcessGroup(Backend(backend)), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message))) << backend;
  }
  EXPECT_THAT(InitProcessGroup(Timeout(0)), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("timeout must be positive")));
}

TEST_F(ProcessGroupEnvironment, NcclSaysWhatIsMissing) {
  Set("DDPOPT_NCCL_LIBRARY", "/nonexistent/libddpopt_nccl.so");
  EXPECT_THAT(InitProcessGroup(Backend("nccl")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("rank 0 of 1: process group backend 'nccl': "
                                                              "DDPOPT_NCCL_LIBRARY=/nonexistent/libddpopt_nccl.so: no such file")));
  UseFakeNccl("-");
  EXPECT_THAT(InitProcessGroup(Backend("cpu:gloo,cuda:nccl")),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("backend 'cpu:gloo,cuda:nccl': no CUDA device can be used")));
}

TEST_F(ProcessGroupEnvironment, WhatIsGloosAloneIsRefusedWithNccl) {
  UseFakeNccl("1");
  for (const char* backend : {"nccl", "cpu:gloo,cuda:nccl"}) {
    const std::string begin = std::string("process group backend '") + backend + "': ";
    InitOptions options = Backend(backend);
    options.stall_timeout = std::chrono::seconds(1);
    EXPECT_THAT(InitProcessGroup(options), StatusIs(absl::StatusCode::kInvalidArgument,
                                                    begin + "stall_timeout is not supported with NCCL, whose collectives end by `timeout` alone"));
    options = Backend(backend);
    options.debug = true;
    EXPECT_THAT(InitProcessGroup(options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(begin + "debug is not supported with NCCL")));
    for (const auto& [name, value, text] :
         {std::tuple("DDPOPT_STALL_TIMEOUT", "2", "stall_timeout (DDPOPT_STALL_TIMEOUT in the environment) is not supported"),
          std::tuple("TORCH_DISTRIBUTED_DEBUG", "DETAIL", "debug (TORCH_DISTRIBUTED_DEBUG in the environment) is not supported")}) {
      Set(name, value);
      EXPECT_THAT(InitProcessGroup(Backend(backend)), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(begin + text)));
      unsetenv(name);
    }
  }
}

TEST_F(ProcessGroupEnvironment, NcclIsBoundToTheRanksDevice) {
  UseFakeNccl("1");
  absl::StatusOr<ProcessGroup> group = InitProcessGroup(Backend("nccl"));
  DDPOPT_ASSERT_OK(group);
  EXPECT_EQ(group->device(), at::Device(at::kCUDA, 0));
  DDPOPT_EXPECT_OK(group->CheckDevice("it", at::Device(at::kCUDA, 0)));
  DDPOPT_EXPECT_OK(group->CheckDevice("it", at::kCUDA));
  EXPECT_THAT(group->CheckDevice("it", at::Device(at::kCUDA, 1)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "it is on cuda:1, but the process group's backend is nccl, which takes cuda:0 tensors (LOCAL_RANK chooses)"));
  at::Tensor t = at::full({3}, 2.0);
  EXPECT_THAT(group->AllReduceSum(t), StatusIs(absl::StatusCode::kInvalidArgument,
                                               "AllReduceSum on rank 0: the tensor is on cpu, but the process group's backend is nccl, which "
                                               "takes cuda:0 tensors (LOCAL_RANK chooses)"));
  SetUp();
  UseFakeNccl("1");
  Set("FAKE_NCCL_FAILS", "unhandled system error");
  EXPECT_THAT(InitProcessGroup(Backend("nccl")),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("rank 0 of 1: connecting the ranks by NCCL from cuda:0: NCCL error: unhandled system error")));
  unsetenv("FAKE_NCCL_FAILS");
}

TEST_F(ProcessGroupEnvironment, ABackendForEachKindOfDevice) {
  UseFakeNccl("1");
  absl::StatusOr<ProcessGroup> group = InitProcessGroup(Backend("cpu:gloo,cuda:nccl"));
  DDPOPT_ASSERT_OK(group);
  EXPECT_EQ(group->device(), at::Device(at::kCUDA, 0));
  DDPOPT_EXPECT_OK(group->CheckDevice("it", at::Device(at::kCUDA, 0)));
  DDPOPT_EXPECT_OK(group->CheckDevice("it", at::kCPU));
  EXPECT_THAT(group->CheckDevice("it", at::kMPS),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("it is on mps, but the process group's backend is gloo, which takes cpu tensors and nccl, which takes cuda:0")));
  at::Tensor t = at::full({3}, 2.0);
  DDPOPT_EXPECT_OK(group->AllReduceSum(t));
  EXPECT_THAT(t, TensorEq(at::full({3}, 2.0)));
}

TEST_F(ProcessGroupEnvironment, GlooTakesCpuTensors) {
  const absl::StatusOr<ProcessGroup> group = InitProcessGroup(Timeout(5000));
  DDPOPT_ASSERT_OK(group);
  EXPECT_EQ(group->device(), at::Device(at::kCPU));
  for (const at::Device device : {at::Device(at::kCUDA, 0), at::Device(at::kMPS), at::Device(at::kMeta)}) {
    EXPECT_THAT(group->CheckDevice("parameter \"w\"", device),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "parameter \"w\" is on " + device.str() + ", but the process group's backend is gloo, which takes cpu tensors"));
  }
  at::Tensor meta = at::empty({2}, at::TensorOptions().device(at::kMeta));
  EXPECT_THAT(group->Broadcast(meta, 0), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("Broadcast on rank 0: the tensor is on meta")));
}

TEST_F(ProcessGroupEnvironment, UnreachableMasterIsAnErrorInTime) {
  Set("WORLD_SIZE", "2");
  Set("RANK", "1");
  const auto begin = std::chrono::steady_clock::now();
  const absl::Status status = InitProcessGroup(Timeout(1500)).status();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_THAT(status, ::testing::AnyOf(StatusIs(absl::StatusCode::kDeadlineExceeded), StatusIs(absl::StatusCode::kUnavailable)));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 1 of 2: can't reach rank 0's store at 127.0.0.1:"), HasSubstr(std::getenv("MASTER_PORT"))));
}

TEST_F(ProcessGroupEnvironment, AMissingRankIsNamed) {
  Set("WORLD_SIZE", "3");
  EXPECT_THAT(InitProcessGroup(Timeout(700)), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("for rank 1, which has not come")));
}

TEST_F(ProcessGroupEnvironment, TakenPortIsAnError) {
  int fd = -1;
  const int port = FreePort(&fd);
  Set("MASTER_PORT", std::to_string(port));
  EXPECT_THAT(InitProcessGroup(Timeout(2000)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("can't serve the store at 127.0.0.1:" + std::to_string(port))));
  close(fd);
}

TEST_F(ProcessGroupEnvironment, UnknownInterfaceIsNamed) {
  Set("GLOO_SOCKET_IFNAME", "nosuchif0");
  const absl::Status status = InitProcessGroup(Timeout(2000)).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("GLOO_SOCKET_IFNAME=nosuchif0"));
  unsetenv("GLOO_SOCKET_IFNAME");
}

TEST_F(ProcessGroupEnvironment, AGroupOfOne) {
  const absl::StatusOr<ProcessGroup> group = InitProcessGroup(Timeout(5000));
  DDPOPT_ASSERT_OK(group);
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->world_size(), 1);
  at::Tensor t = at::full({3}, 2.0);
  DDPOPT_EXPECT_OK(group->AllReduceSum(t));
  DDPOPT_EXPECT_OK(group->Broadcast(t, 0));
  DDPOPT_EXPECT_OK(group->Barrier());
  EXPECT_THAT(t, TensorEq(at::full({3}, 2.0)));
  EXPECT_THAT(group->AllGatherText("x", "mine"), IsOkAndHolds(ElementsAre("mine")));
}

}  // namespace
}  // namespace ddpopt
