// Every collective of the c10d backend behind a group, against its definition, with and without checks of collectives; see
// process_group_c10d.h for who calls it.

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/full.h"
#include "ATen/ops/sparse_coo_tensor.h"
#include "absl/strings/str_cat.h"
#include "ddpopt/distributed/process_group_c10d.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"
#include "testing/distributed_test.h"
#include "testing/environment.h"
#include "testing/matchers.h"

namespace ddpopt {
namespace {

using ::ddpopt::testing::ErrorOf;
using ::ddpopt::testing::TensorEq;
using ::ddpopt::testing::TestProcessGroup;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;

// A second group, with checks, lives as long as the process.
const ProcessGroup& CheckedGroup() {
  static const ProcessGroup& group = *new ProcessGroup([] {
    const std::string old = std::getenv("MASTER_PORT");
    const std::string mine = TestProcessGroup().rank() == 0 ? absl::StrCat(testing::FreePort()) : "";
    const auto ports = TestProcessGroup().AllGatherText("a port", mine);
    DDPOPT_EXPECT_OK(ports);
    setenv("MASTER_PORT", ports->front().c_str(), 1);
    InitOptions options;
    options.timeout = std::chrono::seconds(20);
    options.debug = true;
    const auto made = InitProcessGroup(options);
    DDPOPT_EXPECT_OK(made);
    setenv("MASTER_PORT", old.c_str(), 1);
    return made.value();
  }());
  return group;
}

class Collectives : public ::testing::TestWithParam<bool> {
 protected:
  Collectives() : group_(GetParam() ? CheckedGroup() : TestProcessGroup()), rank_(group_.rank()), n_(group_.world_size()) {}

  c10d::Backend& backend() { return *group_.impl()->group->getBackend(at::kCPU); }
  static at::Tensor Full(std::vector<int64_t> shape, double value, at::ScalarType dtype = at::kFloat) {
    return at::full(shape, value, at::TensorOptions(dtype));
  }
  // What rank r gives: different everywhere.
  static at::Tensor Of(int r, int64_t size = 3, at::ScalarType dtype = at::kFloat) {
    return (at::arange(size) + 100 * (r + 1)).to(dtype);
  }
  at::Tensor Sum(int64_t size = 3) const {
    at::Tensor sum = Of(0, size).clone();
    for (int r = 1; r < n_; ++r) sum += Of(r, size);
    return sum;
  }
  at::Tensor All(at::ScalarType dtype = at::kFloat) const {
    Tensors all;
    for (int r = 0; r < n_; ++r) all.push_back(Of(r, 3, dtype));
    return at::cat(all);
  }

  const ProcessGroup& group_;
  const int rank_, n_;
};

TEST_P(Collectives, AllGather) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kBool}) {
    TensorLists outputs(1);
    for (int r = 0; r < n_; ++r) outputs[0].push_back(Full({3}, 0, dtype));
    Tensors inputs = {Of(rank_, 3, dtype)};
    backend().allgather(outputs, inputs)->wait();
    for (int r = 0; r < n_; ++r) EXPECT_THAT(outputs[0][r], TensorEq(Of(r, 3, dtype)));
    EXPECT_THAT(inputs[0], TensorEq(Of(rank_, 3, dtype)));
  }
}

// Along the first dimension chunks are dense, along the second they are not.
TEST_P(Collectives, AllGatherIntoChunksOfOneTensor) {
  for (const int64_t dim : {0, 1}) {
    const at::Tensor whole = Full({n_ * 2, n_ * 3}, -1);
    TensorLists outputs = {whole.chunk(n_, dim)};
    const auto given = [&](int r) { return Of(r, outputs[0][0].numel()).reshape(outputs[0][0].sizes()); };
    Tensors inputs = {given(rank_)};
    backend().allgather(outputs, inputs)->wait();
    Tensors expected;
    for (int r = 0; r < n_; ++r) expected.push_back(given(r));
    EXPECT_THAT(whole, TensorEq(at::cat(expected, dim)));
  }
}

TEST_P(Collectives, AllGatherIntoOneTensor) {
  at::Tensor output = Full({n_ * 3}, -1), input = Of(rank_);
  backend()._allgather_base(output, input)->wait();
  EXPECT_THAT(output, TensorEq(All()));
  Tensors outputs = {Full({n_ * 3}, -1), Full({n_ * 3}, -1)}, inputs = {Of(rank_), Of(rank_) * 2};
  backend().allgather_into_tensor_coalesced(outputs, inputs)->wait();
  EXPECT_THAT(outputs[0], TensorEq(All()));
  EXPECT_THAT(outputs[1], TensorEq(All() * 2));
}

TEST_P(Collectives, CoalescedAllGather) {
  TensorLists outputs;
  for (int r = 0; r < n_; ++r) outputs.push_back({Full({3}, -1), Full({2}, -1)});
  Tensors inputs = {Of(rank_), Of(rank_, 2)};
  backend().allgather_coalesced(outputs, inputs)->wait();
  for (int r = 0; r < n_; ++r) {
    EXPECT_THAT(outputs[r][0], TensorEq(Of(r)));
    EXPECT_THAT(outputs[r][1], TensorEq(Of(r, 2)));
  }
}

TEST_P(Collectives, BroadcastFromEveryRootIntoAChunk) {
  for (int root = 0; root < n_; ++root) {
    const at::Tensor whole = Full({3, 3}, -1);
    Tensors tensors = {whole.chunk(3)[1]};
    tensors[0].copy_(Of(rank_));
    c10d::BroadcastOptions options;
    options.rootRank = root;
    backend().broadcast(tensors, options)->wait();
    EXPECT_THAT(whole, TensorEq(at::cat({Full({1, 3}, -1), Of(root).reshape({1, 3}), Full({1, 3}, -1)})));
  }
}

// Their memory has gaps, which belong to others.
TEST_P(Collectives, WhatIsNotDenseIsRefusedOrRight) {
  const at::Tensor whole = Full({3, 3}, -1);
  const Tensors columns = whole.chunk(3, 1);
  const auto run = [&](const char* name, auto&& call) {
    SCOPED_TRACE(name);
    whole.fill_(-1);
    columns[1].fill_(rank_ + 1.0);
    const std::string error = ErrorOf([&] { call()->wait(); });
    if (error.empty()) {
      ADD_FAILURE() << name << " took it";
    } else {
      EXPECT_THAT(error, HasSubstr("dense"));
      EXPECT_THAT(columns[1], TensorEq(Full({3, 1}, rank_ + 1.0)));
    }
    EXPECT_THAT(columns[0], TensorEq(Full({3, 1}, -1)));
    EXPECT_THAT(columns[2], TensorEq(Full({3, 1}, -1)));
  };
  Tensors column = {columns[1]};
  run("broadcast", [&] { return backend().broadcast(column, {}); });
  run("allreduce", [&] { return backend().allreduce(column, {}); });
  run("reduce", [&] { return backend().reduce(column, {}); });
  run("send", [&] { return backend().send(column, (rank_ + 1) % n_, 0); });
  run("recv", [&] { return backend().recv(column, (rank_ + 1) % n_, 0); });
}

TEST_P(Collectives, AllReduceWithEveryOperation) {
  for (const auto& [operation, expected] : {std::pair(c10d::ReduceOp::SUM, Sum()), std::pair(c10d::ReduceOp::MAX, Of(n_ - 1)),
                                            std::pair(c10d::ReduceOp::MIN, Of(0))}) {
    Tensors tensors = {Of(rank_)};
    c10d::AllreduceOptions options;
    options.reduceOp = operation;
    backend().allreduce(tensors, options)->wait();
    EXPECT_THAT(tensors[0], TensorEq(expected));
  }
  Tensors two = {Of(rank_), Of(rank_, 2)};
  backend().allreduce_coalesced(two, {})->wait();
  EXPECT_THAT(two[0], TensorEq(Sum()));
  EXPECT_THAT(two[1], TensorEq(Sum(2)));
}

TEST_P(Collectives, SparseAllReduce) {
  // Rank r has row r, and all have the last one.
  const at::Tensor indices = at::cat({at::full({1, 1}, rank_, at::kLong), at::full({1, 1}, n_, at::kLong)}, 1);
  Tensors tensors = {at::sparse_coo_tensor(indices, Full({2, 2}, rank_ + 1.0), {n_ + 1, 2})};
  const c10::intrusive_ptr<c10d::Work> work = backend().allreduce_sparse(tensors, {});
  work->wait();
  const at::Tensor sum = work->result().at(0).to_dense();
  at::Tensor expected = Full({n_ + 1, 2}, n_ * (n_ + 1) / 2.0);
  for (int r = 0; r < n_; ++r) expected[r].fill_(r + 1.0);
  EXPECT_THAT(sum, TensorEq(expected));
}

TEST_P(Collectives, ReduceLeavesTheOtherRanksTensorsAlone) {
  for (int root = 0; root < n_; ++root) {
    const at::Tensor whole = Full({9}, -1);
    Tensors tensors = {whole.narrow(0, 3, 3).copy_(Of(rank_))};
    c10d::ReduceOptions options;
    options.rootRank = root;
    backend().reduce(tensors, options)->wait();
    EXPECT_THAT(whole, TensorEq(at::cat({Full({3}, -1), rank_ == root ? Sum() : Of(rank_), Full({3}, -1)}))) << "root " << root;
  }
}

TEST_P(Collectives, GatherAndScatter) {
  for (int root = 0; root < n_; ++root) {
    const at::Tensor whole = Full({n_ * 3}, -1);
    TensorLists gathered;
    if (rank_ == root) gathered.push_back(whole.chunk(n_));
    Tensors inputs = {Of(rank_)};
    c10d::GatherOptions gather;
    gather.rootRank = root;
    backend().gather(gathered, inputs, gather)->wait();
    EXPECT_THAT(whole, TensorEq(rank_ == root ? All() : Full({n_ * 3}, -1)));

    TensorLists given;
    if (rank_ == root) given.push_back((All() + root).chunk(n_));
    Tensors outputs = {Full({3}, -1)};
    c10d::ScatterOptions scatter;
    scatter.rootRank = root;
    backend().scatter(outputs, given, scatter)->wait();
    EXPECT_THAT(outputs[0], TensorEq(Of(rank_) + root));
  }
}

TEST_P(Collectives, ReduceScatter) {
  // Rank r gets the r-th part of the sum.
  const at::Tensor mine = All() * (rank_ + 1), sum = All() * (n_ * (n_ + 1) / 2);
  Tensors outputs = {Full({3}, -1)};
  TensorLists inputs = {mine.chunk(n_)};
  backend().reduce_scatter(outputs, inputs)->wait();
  EXPECT_THAT(outputs[0], TensorEq(sum.chunk(n_)[rank_]));
  at::Tensor output = Full({3}, -1), input = mine.clone();
  backend()._reduce_scatter_base(output, input)->wait();
  EXPECT_THAT(output, TensorEq(sum.chunk(n_)[rank_]));
  EXPECT_THAT(input, TensorEq(mine));
  outputs = {Full({3}, -1), Full({3}, -1)};
  Tensors two = {mine.clone(), mine * 2};
  backend().reduce_scatter_tensor_coalesced(outputs, two)->wait();
  EXPECT_THAT(outputs[0], TensorEq(sum.chunk(n_)[rank_]));
  EXPECT_THAT(outputs[1], TensorEq(sum.chunk(n_)[rank_] * 2));
}

TEST_P(Collectives, AllToAll) {
  // Rank r sends Of(r) + 10 * s to rank s.
  Tensors inputs, outputs, expected;
  for (int other = 0; other < n_; ++other) {
    inputs.push_back(Of(rank_) + 10 * other);
    outputs.push_back(Full({3}, -1));
    expected.push_back(Of(other) + 10 * rank_);
  }
  backend().alltoall(outputs, inputs)->wait();
  for (int other = 0; other < n_; ++other) EXPECT_THAT(outputs[other], TensorEq(expected[other]));
  at::Tensor output = Full({n_ * 3}, -1), input = at::cat(inputs);
  std::vector<int64_t> none;
  backend().alltoall_base(output, input, none, none)->wait();
  EXPECT_THAT(output, TensorEq(at::cat(expected)));
}

TEST_P(Collectives, AllToAllOfUnequalParts) {
  // Rank r sends s + 1 elements to rank s.
  Tensors parts, expected;
  std::vector<int64_t> input_splits, output_splits;
  for (int other = 0; other < n_; ++other) {
    parts.push_back(Of(rank_, other + 1));
    input_splits.push_back(other + 1);
    output_splits.push_back(rank_ + 1);
    expected.push_back(Of(other, rank_ + 1));
  }
  at::Tensor input = at::cat(parts), output = Full({n_ * (rank_ + 1)}, -1);
  backend().alltoall_base(output, input, output_splits, input_splits)->wait();
  EXPECT_THAT(output, TensorEq(at::cat(expected)));
}

TEST_P(Collectives, SendAndReceive) {
  const int next = (rank_ + 1) % n_, last = (rank_ + n_ - 1) % n_;
  // Tags keep apart what comes in another order.
  Tensors one = {Of(rank_)}, two = {Of(rank_) * 2}, from_one = {Full({3}, -1)}, from_two = {Full({3}, -1)};
  const auto sent_one = backend().send(one, next, 1), sent_two = backend().send(two, next, 2);
  backend().recv(from_two, last, 2)->wait();
  backend().recv(from_one, last, 1)->wait();
  sent_one->wait();
  sent_two->wait();
  EXPECT_THAT(from_one[0], TensorEq(Of(last)));
  EXPECT_THAT(from_two[0], TensorEq(Of(last) * 2));
  // From whomever it comes.
  if (rank_ == 0) {
    double sum = 0;
    for (int r = 1; r < n_; ++r) {
      Tensors any = {Full({1}, -1)};
      const auto work = backend().recvAnysource(any, 3);
      work->wait();
      EXPECT_EQ(any[0].item<double>(), work->sourceRank());
      sum += any[0].item<double>();
    }
    EXPECT_EQ(sum, n_ * (n_ - 1) / 2);
  } else {
    Tensors mine = {Full({1}, rank_)};
    backend().send(mine, 0, 3)->wait();
  }
}

TEST_P(Collectives, Barriers) {
  backend().barrier()->wait();
  backend().monitoredBarrier({}, true);
  backend().barrier()->wait();
}

TEST_P(Collectives, WhatGlooCannotIsRefusedByName) {
  Tensors tensors = {Of(rank_)};
  c10d::AllreduceOptions bits;
  bits.reduceOp = c10d::ReduceOp::BAND;
  EXPECT_THAT(ErrorOf([&] { backend().allreduce(tensors, bits)->wait(); }),
              AllOf(HasSubstr(absl::StrCat("(allreduce of 3 Float) on rank ", rank_)), HasSubstr("BAND")));
  // The ranks are still in step.
  backend().allreduce(tensors, {})->wait();
}

INSTANTIATE_TEST_SUITE_P(Backend, Collectives, ::testing::Bool(), [](const auto& info) { return info.param ? "Checked" : "Plain"; });

}  // namespace
}  // namespace ddpopt
