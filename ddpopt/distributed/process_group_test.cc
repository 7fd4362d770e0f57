// What goes wrong before there is a group, and groups of one.

#include "ddpopt/distributed/process_group.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <tuple>

#include "ATen/ops/full.h"
#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/matchers.h"

namespace ddpopt {
namespace {

using ::ddpopt::testing::IsOkAndHolds;
using ::ddpopt::testing::StatusIs;
using ::ddpopt::testing::TensorEq;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A port that nobody listens on. Bound in turn by the socket returned, if asked for.
int FreePort(int* keep = nullptr) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  if (keep != nullptr) {
    listen(fd, 1);
    *keep = fd;
  } else {
    close(fd);
  }
  return ntohs(address.sin_port);
}

class ProcessGroupEnvironment : public ::testing::Test {
 protected:
  void SetUp() override {
    Set("MASTER_ADDR", "127.0.0.1");
    Set("MASTER_PORT", std::to_string(FreePort()));
    Set("RANK", "0");
    Set("WORLD_SIZE", "1");
    Set("LOCAL_RANK", "0");
    unsetenv("GLOO_SOCKET_IFNAME");
  }
  static void Set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }
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
        {"LOCAL_RANK", "2", "LOCAL_RANK=2 is above RANK=0"}}) {
    SetUp();
    Set(name, value);
    EXPECT_THAT(InitProcessGroup(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  }
}

TEST_F(ProcessGroupEnvironment, UnknownBackendIsRefused) {
  InitOptions options;
  options.backend = "nccl";
  EXPECT_THAT(InitProcessGroup(options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("backend 'nccl' is not supported")));
  EXPECT_THAT(InitProcessGroup(Timeout(0)), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("timeout must be positive")));
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
