#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "ATen/ops/arange.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/full.h"
#include "ATen/ops/zeros.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ddpopt/distributed/fake_nccl.h"
#include "ddpopt/distributed/process_group_c10d.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/distributed_test.h"
#include "testing/environment.h"
#include "testing/matchers.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"

namespace ddpopt {
namespace {

using ::ddpopt::testing::IsOkAndHolds;
using ::ddpopt::testing::StatusIs;
using ::ddpopt::testing::TensorEq;
using ::ddpopt::testing::TestProcessGroup;
using ::testing::AllOf;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

TEST(ProcessGroup, KnowsItsRank) {
  const ProcessGroup& group = TestProcessGroup();
  EXPECT_EQ(absl::StrCat(group.rank()), std::getenv("RANK"));
  EXPECT_EQ(absl::StrCat(group.world_size()), std::getenv("WORLD_SIZE"));
  EXPECT_EQ(absl::StrCat(group.local_rank()), std::getenv("LOCAL_RANK"));
}

// Sets MASTER_PORT to a free port, the same on all ranks, while it lives.
class AnotherPort {
 public:
  AnotherPort() : old_(std::getenv("MASTER_PORT")) {
    std::string port;
    if (TestProcessGroup().rank() == 0) {
      port = absl::StrCat(testing::FreePort());
    }
    const auto ports = TestProcessGroup().AllGatherText("a port", port);
    DDPOPT_EXPECT_OK(ports);
    setenv("MASTER_PORT", ports->front().c_str(), 1);
  }
  ~AnotherPort() { setenv("MASTER_PORT", old_.c_str(), 1); }

 private:
  std::string old_;
};

TEST(InitProcessGroup, ARankWithoutNcclIsToldToAll) {
  const AnotherPort port;
  const int rank = TestProcessGroup().rank();
  testing::UseFakeNccl(rank == 1 ? "-" : "8");
  InitOptions options;
  options.backend = "nccl";
  options.timeout = std::chrono::seconds(20);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(InitProcessGroup(options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("process group backend 'nccl': no CUDA device can be used"), HasSubstr(absl::StrCat("rank ", rank, " of")),
                             HasSubstr(rank == 1 ? "rank 1 of" : "another rank can't take part: rank 1 of"))));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
}

TEST(InitProcessGroup, RanksWithDifferentBackendsAreNamed) {
  const AnotherPort port;
  const int rank = TestProcessGroup().rank();
  InitOptions options;
  options.backend = rank == 1 ? "cpu:gloo" : "gloo";
  options.timeout = std::chrono::seconds(20);
  EXPECT_THAT(InitProcessGroup(options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr(rank == 1 ? "rank 0 has backend gloo, rank 1 has backend cpu:gloo" : "rank 1 has backend cpu:gloo")));
}

TEST(ProcessGroup, BroadcastFromEveryRoot) {
  const ProcessGroup& group = TestProcessGroup();
  for (int root = 0; root < group.world_size(); ++root) {
    at::Tensor t = at::full({2, 3}, group.rank());
    DDPOPT_ASSERT_OK(group.Broadcast(t, root));
    EXPECT_THAT(t, TensorEq(at::full({2, 3}, root)));
  }
}

TEST(ProcessGroup, AllReduceSums) {
  const ProcessGroup& group = TestProcessGroup();
  const int n = group.world_size();
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kLong}) {
    at::Tensor t = at::full({5}, group.rank() + 1, at::TensorOptions().dtype(dtype));
    DDPOPT_ASSERT_OK(group.AllReduceSum(t));
    EXPECT_THAT(t, TensorEq(at::full({5}, n * (n + 1) / 2, at::TensorOptions().dtype(dtype))));
  }
}

TEST(ProcessGroup, DtypesAreMovedSummedOrRefusedByName) {
  const ProcessGroup& group = TestProcessGroup();
  const int n = group.world_size();
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar, at::kByte, at::kShort, at::kInt, at::kLong,
                                     at::kBool, at::kUInt16, at::kUInt32, at::kUInt64, at::kComplexFloat, at::kComplexDouble,
                                     at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    const std::string name = c10::toString(dtype);
    // Some dtypes know no more than copies.
    at::Tensor t = at::full({5}, group.rank() == 0 ? 1.0 : 0.0).to(dtype);
    DDPOPT_ASSERT_OK(group.Broadcast(t, 0)) << name;
    EXPECT_THAT(t.to(at::kFloat), TensorEq(at::full({5}, 1.0))) << name;
    t = at::full({5}, group.rank() + 1.0).to(dtype);
    const absl::Status summed = group.AllReduceSum(t);
    if (ProcessGroup::CheckSummable("", dtype).ok()) {
      DDPOPT_ASSERT_OK(summed) << name;
      EXPECT_THAT(t.to(at::kFloat), TensorEq(at::full({5}, n * (n + 1) / 2.0))) << name;
      continue;
    }
    EXPECT_THAT(summed, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("AllReduceSum on rank " + std::to_string(group.rank()) +
                                                                              ": tensors of " + name + " can't be summed")));
    if (dtype == at::kBool) continue;
    // What goes to c10d directly, as hooks do, is refused too, before anything starts.
    std::vector<at::Tensor> tensors = {t};
    try {
      group.impl()->group->allreduce(tensors)->wait();
      ADD_FAILURE() << name;
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("tensors of " + name + " are not supported"));
    }
  }
  // The refusals have left the ranks in step.
  at::Tensor conjugate = at::full({2}, c10::complex<float>(1, 2), at::TensorOptions(at::kComplexFloat)).conj();
  if (group.rank() != 0) conjugate = at::zeros({2}, at::TensorOptions(at::kComplexFloat));
  DDPOPT_ASSERT_OK(group.Broadcast(conjugate, 0));
  EXPECT_EQ(conjugate.resolve_conj()[1].item<c10::complex<float>>(), c10::complex<float>(1, -2));
}

TEST(ProcessGroup, WhatLiesBesideATensorIsLeftAlone) {
  const ProcessGroup& group = TestProcessGroup();
  const int n = group.world_size();
  const at::Tensor memory = at::full({3, 4}, group.rank() + 1.0);
  at::Tensor row = memory[1];
  DDPOPT_ASSERT_OK(group.AllReduceSum(row));
  at::Tensor columns = memory.t();  // the other way round
  EXPECT_THAT(memory[0], TensorEq(at::full({4}, group.rank() + 1.0)));
  EXPECT_THAT(memory[1], TensorEq(at::full({4}, n * (n + 1) / 2.0)));
  EXPECT_THAT(memory[2], TensorEq(at::full({4}, group.rank() + 1.0)));
  DDPOPT_ASSERT_OK(group.Broadcast(columns, n - 1));
  EXPECT_THAT(memory[2], TensorEq(at::full({4}, static_cast<double>(n))));
  // The root's own is what it was.
  at::Tensor sent = at::full({4}, 7.0 + group.rank());
  DDPOPT_ASSERT_OK(group.Broadcast(sent, 0));
  EXPECT_THAT(sent, TensorEq(at::full({4}, 7.0)));
}

TEST(ProcessGroup, CollectivesWorkOnParameters) {
  const ProcessGroup& group = TestProcessGroup();
  at::Tensor t = at::full({4}, group.rank() + 1.0).set_requires_grad(true);
  DDPOPT_ASSERT_OK(group.Broadcast(t, 0));
  EXPECT_THAT(t.detach(), TensorEq(at::full({4}, 1.0)));
}

TEST(ProcessGroup, BadTensorsAreRefused) {
  const ProcessGroup& group = TestProcessGroup();
  at::Tensor undefined;
  EXPECT_THAT(group.AllReduceSum(undefined), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("undefined")));
  at::Tensor meta = at::empty({2}, at::TensorOptions().device(at::kMeta));
  EXPECT_THAT(group.AllReduceSum(meta),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("AllReduceSum on rank"), HasSubstr("the tensor is on meta, but the process group's backend is gloo"))));
  at::Tensor strided = at::full({4, 4}, 1.0).select(1, 0);
  EXPECT_THAT(group.Broadcast(strided, 0), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dense")));
  at::Tensor t = at::full({4}, 1.0);
  EXPECT_THAT(group.Broadcast(t, group.world_size()), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is no rank of a group")));
}

TEST(ProcessGroup, AllGatherTextOfAnyLength) {
  const ProcessGroup& group = TestProcessGroup();
  for (const size_t length : {size_t{0}, size_t{1}, size_t{5000}, size_t{9} << 20}) {
    std::vector<std::string> expected;
    for (int r = 0; r < group.world_size(); ++r) expected.push_back(std::string(r * length, static_cast<char>('a' + r)));
    const auto texts = group.AllGatherText("texts", expected[group.rank()]);
    DDPOPT_ASSERT_OK(texts);
    EXPECT_TRUE(*texts == expected) << "length " << length;
  }
  std::vector<std::string> binary(group.world_size(), std::string("\0\n 1\xff", 5));
  EXPECT_THAT(group.AllGatherText("bytes", binary[0]), IsOkAndHolds(ElementsAreArray(binary)));
}

TEST(ProcessGroup, ManyExchangesLeaveNothingInTheStore) {
  const ProcessGroup& group = TestProcessGroup();
  DDPOPT_ASSERT_OK(group.Barrier());
  const int64_t before = group.rank() == 0 ? group.impl()->store->getNumKeys() : 0;
  for (int i = 0; i < 20; ++i) DDPOPT_ASSERT_OK(group.AllGatherText("many", absl::StrCat(i)));
  if (group.rank() == 0) {
    EXPECT_LE(group.impl()->store->getNumKeys(), before);  // the store counts a key of its own, for a while
  }
  DDPOPT_ASSERT_OK(group.Barrier());
}

TEST(ProcessGroup, TheC10dGroupIsUsable) {
  const ProcessGroup& group = TestProcessGroup();
  c10d::ProcessGroup& c10d_group = *group.impl()->group;
  EXPECT_EQ(c10d_group.getRank(), group.rank());
  EXPECT_EQ(c10d_group.getSize(), group.world_size());
  EXPECT_EQ(c10d_group.getBackendName(), "gloo");
  std::vector<at::Tensor> tensors = {at::full({3}, 1.0)};
  c10d_group.allreduce(tensors)->wait();
  EXPECT_THAT(tensors[0], TensorEq(at::full({3}, static_cast<double>(group.world_size()))));
}

// A group of its own, since this one breaks: nobody but rank 0 takes part.
TEST(ProcessGroup, AnAbsentRankIsNamedInTime) {
  const ProcessGroup& group = TestProcessGroup();
  if (group.rank() == 0) {
    auto impl = std::make_shared<ProcessGroup::Impl>();
    impl->options.timeout = std::chrono::milliseconds(300);
    impl->rank = group.rank();
    impl->world_size = group.world_size();
    impl->texts = std::make_shared<TextExchange>(c10::make_intrusive<c10d::PrefixStore>("absent", group.impl()->store), group.rank(),
                                                 group.world_size(), "master");
    EXPECT_THAT(ProcessGroup(impl).AllGatherText("hashes", "1"),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("exchanging hashes on rank 0 of ")));
    EXPECT_THAT(ProcessGroup(impl).AllGatherText("hashes", "1"),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("for rank 1, which has not come")));
  }
  DDPOPT_ASSERT_OK(group.Barrier());
}

TEST(ProcessGroup, ExchangesOutOfStepAreNamed) {
  const ProcessGroup& group = TestProcessGroup();
  auto impl = std::make_shared<ProcessGroup::Impl>();
  impl->options.timeout = std::chrono::milliseconds(5000);
  impl->rank = group.rank();
  impl->world_size = group.world_size();
  impl->texts = std::make_shared<TextExchange>(c10::make_intrusive<c10d::PrefixStore>("out_of_step", group.impl()->store), group.rank(),
                                               group.world_size(), "master");
  const bool first = group.rank() == 0;
  EXPECT_THAT(ProcessGroup(impl).AllGatherText(first ? "hashes" : "parameters", "1"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr(first ? "rank 1 is exchanging parameters" : "rank 0 is exchanging hashes")));
  DDPOPT_ASSERT_OK(group.Barrier());
}

}  // namespace
}  // namespace ddpopt
