// On two ranks, pieces compiled ahead of time: when their buckets are reduced, and gradients that are computed in their buckets.

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "absl/strings/str_cat.h"
#include "c10/core/Allocator.h"
#include "c10/util/ThreadLocalDebugInfo.h"
#include "ddpopt/backends/aot_eager.h"
#include "ddpopt/ddp/distributed_data_parallel.h"
#include "ddpopt/distributed/process_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/distributed_test.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/nn/module.h"

namespace ddpopt {
namespace {

const ProcessGroup& Group() { return testing::TestProcessGroup(); }

template <typename N>
std::unique_ptr<DistributedDataParallel<N>> Wrap(N net, DdpOptions options) {
  auto ddp = DistributedDataParallel<N>::Create(net, Group(), std::move(options));
  if (!ddp.ok()) ADD_FAILURE() << ddp.status();
  return ddp.ok() ? *std::move(ddp) : nullptr;
}

// Layers of the same work. The weight of layer 0 may be the last one's too.
struct LayersImpl : torch::nn::Module {
  LayersImpl(int64_t layers, int64_t width, bool tied = false) : tied(tied) {
    at::manual_seed(3);
    for (int64_t i = 0; i < layers; ++i) register_parameter(absl::StrCat("w", i), at::rand({width, width}).sub(0.5).div(8));
  }
  at::Tensor forward(at::Tensor x) {
    for (const at::Tensor& weight : parameters()) x = at::tanh(at::mm(x, weight));
    return tied ? at::mm(x, parameters()[0]).sum() : x.sum();
  }
  const bool tied;
};

DdpOptions OneBucketForEach(int64_t weight_bytes) {
  DdpOptions options;
  options.bucket_cap_mb = static_cast<double>(weight_bytes) / (1 << 20);
  options.backend = AotEagerBackend();
  return options;
}

at::Tensor Batch(int64_t rows, int64_t width) {
  return at::sin(at::add(at::arange(rows * width, at::kFloat), Group().rank())).view({rows, width}).requires_grad_();
}

// With k pieces of the same work, the first bucket is on its way after about a k-th of backward, and so on.
TEST(CompiledPieces, BucketsAreReducedAsTheirPiecesEnd) {
  constexpr int kPieces = 4, kWidth = 256;
  auto net = std::make_shared<LayersImpl>(kPieces, kWidth);
  auto ddp = Wrap(net, OneBucketForEach(kWidth * kWidth * 4));
  std::vector<std::vector<double>> launched(kPieces);
  for (int step = 0; step < 11; ++step) {
    net->zero_grad();
    ddp->forward(Batch(1024, kWidth)).backward();
    const StepTiming& timing = ddp->core().last_step();
    ASSERT_EQ(timing.buckets.size(), static_cast<std::size_t>(kPieces));
    if (step < 2) continue;
    for (int piece = 0; piece < kPieces; ++piece) {
      launched[piece].push_back((timing.buckets[piece].launched - timing.backward_begin) / (timing.compute_end - timing.backward_begin));
    }
  }
  for (int piece = 0; piece < kPieces; ++piece) {
    std::vector<double>& shares = launched[piece];
    std::nth_element(shares.begin(), shares.begin() + shares.size() / 2, shares.end());
    const double median = shares[shares.size() / 2], ideal = static_cast<double>(piece + 1) / kPieces;
    EXPECT_GT(median, ideal - 0.2) << "bucket " << piece;
    EXPECT_LT(median, std::min(ideal + 0.25, 1.0)) << "bucket " << piece;
  }
}

at::Tensor MeanOverRanks(at::Tensor tensor) {
  tensor = tensor.clone();
  EXPECT_EQ(Group().AllReduceSum(tensor), absl::OkStatus());
  return tensor.div_(Group().world_size());
}

class Allocations {
 public:
  int64_t OfAtLeast(int64_t bytes) const {
    return std::count_if(counter_->sizes.begin(), counter_->sizes.end(), [&](int64_t size) { return size >= bytes; });
  }

 private:
  struct Counter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
      if (bytes > 0) sizes.push_back(bytes);
    }
    bool memoryProfilingEnabled() const override { return true; }
    std::vector<int64_t> sizes;
  };
  std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, counter_};
};

TEST(CompiledPieces, GradientsAreComputedInTheirBuckets) {
  constexpr int kWidth = 64, kBytes = kWidth * kWidth * 4;
  for (const bool view : {false, true}) {
    for (const bool tied : {false, true}) {
      SCOPED_TRACE(absl::StrCat("views ", view, ", tied ", tied));
      auto net = std::make_shared<LayersImpl>(3, kWidth, tied);
      DdpOptions options = OneBucketForEach(kBytes);
      options.gradient_as_bucket_view = view;
      auto ddp = Wrap(net, options);
      const at::Tensor x = Batch(4, kWidth), y = Batch(4, kWidth).detach().cos();
      net->forward(x).backward();
      std::vector<at::Tensor> want, want_both;
      for (const at::Tensor& parameter : net->parameters()) want.push_back(MeanOverRanks(parameter.grad()));
      net->forward(y).backward();
      for (const at::Tensor& parameter : net->parameters()) want_both.push_back(MeanOverRanks(parameter.grad()));
      for (int step = 0; step < 3; ++step) {
        net->zero_grad();
        const at::Tensor loss = ddp->forward(x);
        {
          const Allocations allocations;
          loss.backward();
          // Layer 0's gradient is a sum over two pieces where it is tied.
          if (step > 0) {
            EXPECT_EQ(allocations.OfAtLeast(kBytes) == 0, view && !tied);
          }
        }
        for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), want[i])) << i;
      }
      // Accumulated without synchronisation, then with.
      net->zero_grad();
      {
        const NoSyncScope scope = ddp->no_sync();
        ddp->forward(x).backward();
      }
      ddp->forward(y).backward();
      for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), want_both[i], 1e-4, 1e-6)) << i;
      EXPECT_EQ(ddp->core().CheckGradientsEqual(), absl::OkStatus());
    }
  }
}

// A gradient that no differentiation of the forward would give.
struct Scaled : torch::autograd::Function<Scaled> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, double factor) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["factor"] = factor;
    return at::mm(x, weight).tanh();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* ctx, torch::autograd::tensor_list grads) {
    const torch::autograd::tensor_list saved = ctx->get_saved_variables();
    const at::Tensor scaled = grads[0] * ctx->saved_data["factor"].toDouble();
    return {at::mm(scaled, saved[1].t()), at::mm(saved[0].cos().t(), scaled), at::Tensor()};
  }
};

struct ScaledLayersImpl : torch::nn::Module {
  explicit ScaledLayersImpl(int64_t width) {
    at::manual_seed(3);
    for (int64_t i = 0; i < 3; ++i) register_parameter(absl::StrCat("w", i), at::rand({width, width}).sub(0.5));
  }
  at::Tensor forward(at::Tensor x) {
    double factor = 0.5;
    for (const at::Tensor& weight : parameters()) x = Scaled::apply(x, weight, factor += 0.25);
    return x.sum();
  }
};

TEST(CompiledPieces, CustomFunctionsKeepTheirGradients) {
  constexpr int kWidth = 8;
  for (const bool view : {false, true}) {
    SCOPED_TRACE(absl::StrCat("views ", view));
    auto net = std::make_shared<ScaledLayersImpl>(kWidth);
    DdpOptions options = OneBucketForEach(kWidth * kWidth * 4);
    options.gradient_as_bucket_view = view;
    options.eager_fallback = false;
    auto ddp = Wrap(net, options);
    const at::Tensor x = Batch(4, kWidth);
    const at::Tensor want_loss = net->forward(x);
    want_loss.backward();
    std::vector<at::Tensor> want;
    for (const at::Tensor& parameter : net->parameters()) want.push_back(MeanOverRanks(parameter.grad()));
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      const at::Tensor loss = ddp->forward(x);
      EXPECT_TRUE(at::equal(loss.detach(), want_loss.detach()));
      loss.backward();
      EXPECT_EQ(ddp->core().last_step().buckets.size(), 3u);
      for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), want[i])) << i;
    }
    EXPECT_FALSE(ddp->core().runs_eagerly());
    EXPECT_EQ(ddp->core().CheckGradientsEqual(), absl::OkStatus());
  }
}

}  // namespace
}  // namespace ddpopt
