// On two ranks: communication hooks, the library's and users' own, and what goes wrong with them.

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "absl/strings/str_cat.h"
#include "ddpopt/ddp/distributed_data_parallel.h"
#include "ddpopt/distributed/process_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"
#include "testing/distributed_test.h"
#include "torch/nn/modules/linear.h"

namespace ddpopt {
namespace {

using testing::ErrorOf;
using ::testing::AllOf;
using ::testing::HasSubstr;

const ProcessGroup& Group() { return testing::TestProcessGroup(); }
int Rank() { return Group().rank(); }

template <typename N>
std::unique_ptr<DistributedDataParallel<N>> Wrap(N net, DdpOptions options = {}) {
  auto ddp = DistributedDataParallel<N>::Create(net, Group(), std::move(options));
  if (!ddp.ok()) ADD_FAILURE() << ddp.status();
  return ddp.ok() ? *std::move(ddp) : nullptr;
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second->forward(at::relu(first->forward(x))); }
  torch::nn::Linear first{4, 6}, second{6, 2};
};
TORCH_MODULE(Net);

at::Tensor Batch() { return at::sin(at::add(at::arange(12, at::kFloat).reshape({3, 4}), Rank())); }

class BadHook : public CommHook {
 public:
  std::string Name() const override { return "bad"; }
  CommFuture Run(const GradBucket& bucket) override { return CompletedFuture(bucket.buffer().narrow(0, 0, 1)); }
};

TEST(CommHook, BytesAndErrors) {
  const auto bytes = [](std::unique_ptr<CommHook> hook) {
    auto ddp = Wrap(Net());
    if (hook != nullptr) {
      EXPECT_EQ(ddp->RegisterCommHook(std::move(hook)), absl::OkStatus());
    }
    ddp->forward(Batch()).sum().backward();
    return ddp->core().last_step().bytes;
  };
  const int64_t full = bytes(nullptr);
  EXPECT_EQ(full, (4 * 6 + 6 + 6 * 2 + 2) * 4);
  EXPECT_EQ(bytes(Fp16CompressHook()), full / 2);
  EXPECT_EQ(bytes(Bf16CompressHook()), full / 2);
  EXPECT_EQ(bytes(NoopHook()), 0);
  {
    auto ddp = Wrap(Net());
    ASSERT_EQ(ddp->RegisterCommHook(std::make_unique<BadHook>()), absl::OkStatus());
    const at::Tensor loss = ddp->forward(Batch()).sum();
    EXPECT_THAT(ErrorOf([&] { loss.backward(); }),
                AllOf(HasSubstr("\"bad\" on bucket 0 (second.bias, second.weight, first.bias, first.weight) failed: "),
                      HasSubstr("it made 1 elements of Float on cpu of the bucket's 44 of Float")));
  }
  auto ddp = Wrap(Net());
  if (Rank() == 1) {
    ASSERT_EQ(ddp->RegisterCommHook(Fp16CompressHook()), absl::OkStatus());
  }
  EXPECT_THAT(ErrorOf([&] { ddp->forward(Batch()); }), AllOf(HasSubstr("communication hook: all-reduce"), HasSubstr("fp16 compression")));
  auto late = Wrap(Net());
  late->forward(Batch()).sum().backward();
  EXPECT_EQ(late->RegisterCommHook(NoopHook()).code(), absl::StatusCode::kFailedPrecondition);
}

// Does with a bucket what a case says.
class AnyHook : public CommHook {
 public:
  using Body = std::function<CommFuture(const GradBucket&)>;
  explicit AnyHook(Body body) : body_(std::move(body)) {}
  std::string Name() const override { return "any"; }
  CommFuture Run(const GradBucket& bucket) override { return body_(bucket); }

 private:
  const Body body_;
};

CommFuture FutureOf(c10::IValue value) {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::AnyType::get());
  future->markCompleted(std::move(value));
  return future;
}

TEST(CommHook, WhatGoesWrongNamesTheHookTheBucketAndTheRank) {
  const std::pair<AnyHook::Body, const char*> cases[] = {
      {[](const GradBucket& bucket) { return FutureOf(bucket.buffer().to(at::kDouble)); },
       "failed: it made 14 elements of Double on cpu of the bucket's 14 of Float"},
      {[](const GradBucket&) { return FutureOf({}); }, "failed: its future has no value"},
      {[](const GradBucket&) { return FutureOf(at::Tensor()); }, "failed: its future has no value"},
      {[](const GradBucket&) { return FutureOf(3); }, "failed: its future has a value that is not one tensor, but of kind Int"},
      {[](const GradBucket& bucket) {
         return FutureOf(c10::List<at::Tensor>({bucket.buffer(), bucket.buffer()}));
       },
       "not one tensor, but of kind GenericList"},
      {[](const GradBucket&) {
         auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
         future->setError(std::make_exception_ptr(std::runtime_error("out of luck")));
         return CommFuture(future);
       },
       "failed: out of luck"},
      {[](const GradBucket& bucket) {
         return ThenCompute(bucket.AllReduceSum(bucket.buffer()), [](const at::Tensor& sum) { return at::mm(sum, sum); });
       },
       "failed: mm: self must be a matrix"},
      {[](const GradBucket&) -> CommFuture { throw std::runtime_error("no such bucket"); }, "threw: no such bucket"},
      {[](const GradBucket&) -> CommFuture { TORCH_CHECK(false, "not today"); }, "not today (in communication hook"},
      {[](const GradBucket&) { return CommFuture(); }, "returned no future"},
  };
  for (const auto& [body, message] : cases) {
    SCOPED_TRACE(message);
    DdpOptions options;
    options.bucket_cap_mb = 20.0 / (1 << 20);
    auto ddp = Wrap(Net(), options);
    ASSERT_EQ(ddp->RegisterCommHook(std::make_unique<AnyHook>(body)), absl::OkStatus());
    const at::Tensor loss = ddp->forward(Batch()).sum();
    EXPECT_THAT(ErrorOf([&] { loss.backward(); }),
                AllOf(HasSubstr("communication hook \"any\" on bucket 0 (second.bias, second.weight)"), HasSubstr(message)));
    EXPECT_THAT(ErrorOf([&] { ddp->forward(Batch()); }),
                AllOf(HasSubstr(absl::StrCat("DistributedDataParallel on rank ", Rank())), HasSubstr("not synchronised")));
  }
}

// The Reducer makes views at offsets from the storage's beginning: of parts of larger tensors it would take others' values.
TEST(CommHook, ResultsOfAnyLayout) {
  const AnyHook::Body bodies[] = {
      [](const GradBucket& bucket) {
        const int64_t n = bucket.buffer().numel();
        const at::Tensor memory = at::full({n + 5}, 7.0);
        at::Tensor sent = memory.narrow(0, 5, n).copy_(bucket.buffer()).div_(bucket.divisor());
        return bucket.AllReduceSum(sent);
      },
      [](const GradBucket& bucket) {
        return ThenCompute(bucket.AllReduceSum(bucket.buffer().div(bucket.divisor())), [](const at::Tensor& sum) {
          return at::stack({sum, at::full_like(sum, 7.0)}, 1).select(1, 0);
        });
      },
      [](const GradBucket& bucket) {
        return ThenCompute(bucket.AllReduceSum(bucket.buffer().div(bucket.divisor())),
                           [](const at::Tensor& sum) { return sum.reshape({-1, 1}); });
      },
      [](const GradBucket& bucket) {
        return bucket.AllReduceSum(bucket.buffer().div(bucket.divisor()))
            ->then([](c10::ivalue::Future& done) -> c10::IValue { return c10::List<at::Tensor>({done.value().toTensor()}); },
                   c10::ListType::ofTensors());
      },
  };
  for (const bool bucket_view : {false, true}) {
    for (const AnyHook::Body& body : bodies) {
      Net net;
      DdpOptions options;
      options.bucket_cap_mb = 20.0 / (1 << 20);
      options.gradient_as_bucket_view = bucket_view;
      auto ddp = Wrap(net, options);
      ASSERT_EQ(ddp->RegisterCommHook(std::make_unique<AnyHook>(body)), absl::OkStatus());
      for (int step = 0; step < 2; ++step) {
        net->zero_grad();
        net->forward(Batch()).sum().backward();
        std::vector<at::Tensor> expected;
        for (const at::Tensor& parameter : net->parameters()) {
          expected.push_back(parameter.grad().clone());
          ASSERT_EQ(Group().AllReduceSum(expected.back()), absl::OkStatus());
          expected.back().div_(Group().world_size());
        }
        net->zero_grad();
        ddp->forward(Batch()).sum().backward();
        for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), expected[i])) << i;
      }
    }
  }
}

}  // namespace
}  // namespace ddpopt
