// What a wrapper says when its group goes wrong: each rank is a process of its own, which the test stops, kills or misleads.

#include <signal.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "ATen/Functions.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ddpopt/ddp/distributed_data_parallel.h"
#include "ddpopt/distributed/process_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"
#include "testing/forked_ranks.h"
#include "torch/nn/modules/linear.h"

namespace ddpopt {
namespace {

using testing::ErrorOf;
using testing::ForkedRanks;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second->forward(at::relu(first->forward(x))); }
  torch::nn::Linear first{4, 6}, second{6, 2};
};
TORCH_MODULE(Net);

at::Tensor Batch() { return at::sin(at::arange(12, at::kFloat).reshape({3, 4})); }

struct Wrapped {
  explicit Wrapped(std::chrono::milliseconds stall_timeout, std::chrono::milliseconds timeout = std::chrono::seconds(30),
                   std::unique_ptr<CommHook> hook = nullptr) {
    InitOptions init;
    init.timeout = timeout;
    init.stall_timeout = stall_timeout;
    group = InitProcessGroup(init);
    if (!group.ok()) throw std::runtime_error(std::string(group.status().message()));
    DdpOptions options;
    options.bucket_cap_mb = 20.0 / (1 << 20);
    auto created = DistributedDataParallel<Net>::Create(net, *group, options);
    if (!created.ok()) throw std::runtime_error(std::string(created.status().message()));
    ddp = *std::move(created);
    if (hook != nullptr && !ddp->RegisterCommHook(std::move(hook)).ok()) throw std::runtime_error("the hook was refused");
    ddp->forward(Batch()).sum().backward();
  }
  Net net;
  absl::StatusOr<ProcessGroup> group;
  std::unique_ptr<DistributedDataParallel<Net>> ddp;
};

TEST(Faults, AStallNamesTheRankAndTheBuckets) {
  ForkedRanks ranks(3, [](int rank) -> std::string {
    Wrapped wrapped(std::chrono::milliseconds(1000));
    const at::Tensor loss = wrapped.ddp->forward(Batch()).sum();
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(7));
    const std::string error = ErrorOf([&] { loss.backward(); });
    return absl::StrCat(error, " | ", ErrorOf([&] { wrapped.ddp->forward(Batch()); }));
  });
  for (const int rank : {0, 2}) {
    EXPECT_THAT(ranks.Result(rank), AllOf(HasSubstr("(allreduce of 14 Float, bucket 0 (second.bias, second.weight))"),
                                          HasSubstr("has not ended within 1 s"), HasSubstr("rank 1 has not come"),
                                          HasSubstr("| DistributedDataParallel on rank"), HasSubstr("not synchronised")));
  }
}

// Its futures never complete, if so told, though its all-reduces end.
class StuckHook : public CommHook {
 public:
  explicit StuckHook(const bool* stuck) : stuck_(stuck) {}
  std::string Name() const override { return "stuck"; }
  CommFuture Run(const GradBucket& bucket) override {
    const CommFuture sum = bucket.AllReduceSum(bucket.buffer());
    return *stuck_ ? c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get()) : sum;
  }

 private:
  const bool* const stuck_;
};

TEST(Faults, AHookThatNeverEndsHasADeadline) {
  ForkedRanks ranks(2, [](int rank) -> std::string {
    bool stuck = false;
    Wrapped wrapped(std::chrono::milliseconds(0), std::chrono::seconds(5), std::make_unique<StuckHook>(&stuck));
    auto join = wrapped.ddp->join();
    if (!join.ok()) return std::string(join.status().message());
    wrapped.ddp->forward(Batch()).sum().backward();
    stuck = true;
    // One in a backward, the other without inputs.
    const std::string error =
        rank == 0 ? ErrorOf([&] { wrapped.ddp->forward(Batch()).sum().backward(); }) : ErrorOf([&] { (*join)->Finish(); });
    return absl::StrCat(error, " | ", ErrorOf([&] { wrapped.ddp->forward(Batch()); }));
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(ranks.Result(rank),
                AllOf(HasSubstr(absl::StrCat("DistributedDataParallel on rank ", rank)),
                      HasSubstr("communication hook \"stuck\" on bucket 0 (second.bias, second.weight) has not completed its future within "
                                "5 s without an all-reduce of its running"),
                      HasSubstr("| DistributedDataParallel on rank"), HasSubstr("not synchronised")));
  }
}

// A bucket's all-reduce is on its way, and the other rank does not come, when everything is taken down.
TEST(Faults, TakenDownWhileABucketIsReduced) {
  for (const bool group_first : {false, true}) {
    ForkedRanks ranks(2, [group_first](int rank) -> std::string {
      auto wrapped = std::make_unique<Wrapped>(std::chrono::milliseconds(10'000));
      at::Tensor loss = wrapped->ddp->forward(Batch()).sum();
      ForkedRanks::Ready();
      if (rank == 1) {
        raise(SIGSTOP);
        return ErrorOf([&] { loss.backward(); });
      }
      wrapped->net->first->weight.register_hook([](const at::Tensor&) -> at::Tensor { TORCH_CHECK(false, "midway"); });
      const std::string error = ErrorOf([&] { loss.backward(); });
      const auto begin = std::chrono::steady_clock::now();
      if (group_first) {
        wrapped->group->Shutdown();
        wrapped->group = absl::CancelledError("gone");
      }
      wrapped->ddp.reset();
      wrapped.reset();
      loss = at::Tensor();
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      return absl::StrCat(error, seconds > 8 ? " TAKING DOWN WAITED" : "");
    });
    EXPECT_THAT(ranks.Result(0), AllOf(HasSubstr("midway"), Not(HasSubstr("WAITED"))));
    ranks.Signal(1, SIGCONT);
    EXPECT_THAT(ranks.Result(1), HasSubstr("rank 0"));
  }
}

TEST(Faults, AKilledRankIsNamedInBackward) {
  ForkedRanks ranks(2, [](int rank) -> std::string {
    Wrapped wrapped(std::chrono::milliseconds(20'000));
    const at::Tensor loss = wrapped.ddp->forward(Batch()).sum();
    ForkedRanks::Ready();
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(20));
    const std::string error = ErrorOf([&] { loss.backward(); });
    // Taking down waits for nobody.
    const auto begin = std::chrono::steady_clock::now();
    wrapped.ddp.reset();
    wrapped.group = absl::CancelledError("gone");
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return absl::StrCat(error, seconds > 6 ? " TAKING DOWN TOOK LONG" : "");
  });
  ranks.AwaitReady();
  ranks.Signal(1, SIGKILL);
  EXPECT_THAT(ranks.Result(0), AllOf(HasSubstr("rank 1 doesn't answer"), HasSubstr("bucket 0 (second."), Not(HasSubstr("LONG"))));
}

TEST(Faults, ForwardAfterTheGroupsShutdown) {
  ForkedRanks ranks(2, [](int) -> std::string {
    Wrapped wrapped(std::chrono::milliseconds(5000));
    // A handle that goes takes nothing with it.
    const ProcessGroup last = *wrapped.group;
    wrapped.group = absl::CancelledError("gone");
    wrapped.ddp->forward(Batch()).sum().backward();
    const at::Tensor loss = wrapped.ddp->forward(Batch()).sum();
    if (!last.Barrier().ok()) return "no barrier";
    last.Shutdown();
    std::string text = absl::StrCat(ErrorOf([&] { wrapped.ddp->forward(Batch()); }), " | ", ErrorOf([&] { loss.backward(); }), " | ",
                                    wrapped.ddp->core().CheckParametersEqual().message());
    const at::NoGradGuard no_grad;
    if (!at::equal(wrapped.ddp->forward(Batch()), wrapped.net->forward(Batch()))) return "no forward without gradients";
    return text;
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(ranks.Result(rank),
                AllOf(HasSubstr("forward after the process group was shut down"), HasSubstr("allreduce on rank"),
                      HasSubstr("the process group has been shut down (in communication hook \"all-reduce\" on bucket 0"),
                      HasSubstr("| comparing"), HasSubstr("of 2: the process group has been shut down")));
  }
}

}  // namespace
}  // namespace ddpopt
