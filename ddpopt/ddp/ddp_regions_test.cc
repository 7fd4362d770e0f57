// Regions of modes (no_grad, enable_grad within it, inference mode, autocast) that bucket borders cut in their middle, on two ranks and
// with batches of several sizes: what forward returns, whether it requires gradients, and the averaged gradients are eager LibTorch's.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/grad_mode.h"
#include "c10/core/InferenceMode.h"
#include "ddpopt/ddp/distributed_data_parallel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/autocast.h"
#include "testing/distributed_test.h"
#include "testing/matchers.h"
#include "torch/nn/module.h"

namespace ddpopt {
namespace {

using testing::AllClose;
using testing::Autocast;
using testing::IsOk;
using testing::TensorEq;

struct NetImpl : torch::nn::Module {
  using Forward = std::function<std::vector<at::Tensor>(NetImpl&, const at::Tensor&)>;
  explicit NetImpl(Forward fn) : fn(std::move(fn)) {
    float scale = 0.5;
    for (const char* name : {"a", "b", "c", "d"}) {
      weights.push_back(register_parameter(name, at::arange(16, at::kFloat).reshape({4, 4}).sin() * (scale += 0.25f)));
    }
  }
  std::vector<at::Tensor> forward(const at::Tensor& x) { return fn(*this, x); }
  at::Tensor Layer(const at::Tensor& x, int i) const { return at::linear(x, weights[static_cast<std::size_t>(i)]); }
  Forward fn;
  std::vector<at::Tensor> weights;
};
TORCH_MODULE(Net);

at::Tensor Batch(int rank, int64_t rows) { return at::arange(rows * 4, at::kFloat).reshape({rows, 4}).cos() + rank; }

// The first result is the loss. `tolerance` of gradients: 0 for the same bits.
void ExpectEqualsEager(const NetImpl::Forward& fn, double tolerance = 0, bool unused = false) {
  const ProcessGroup& group = testing::TestProcessGroup();
  Net net(fn), twin(fn);
  DdpOptions options;
  options.bucket_cap_mb = 1.0 / (1024 * 1024);
  options.eager_fallback = false;
  options.find_unused_parameters = unused;
  auto ddp = DistributedDataParallel<Net>::Create(net, group, std::move(options));
  ASSERT_THAT(ddp.status(), IsOk());
  for (const int64_t rows : {3, 3, 5, 1, 3}) {
    SCOPED_TRACE(rows);
    net->zero_grad();
    twin->zero_grad();
    const std::vector<at::Tensor> results = (*ddp)->forward(Batch(group.rank(), rows));
    EXPECT_TRUE(at::GradMode::is_enabled());
    EXPECT_FALSE(c10::InferenceMode::is_enabled());
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    results[0].sum().backward();
    for (int rank = 0; rank < group.world_size(); ++rank) {
      const std::vector<at::Tensor> expected = twin->forward(Batch(rank, rows));
      expected[0].sum().div(group.world_size()).backward();
      if (rank != group.rank()) continue;
      ASSERT_EQ(results.size(), expected.size());
      for (std::size_t i = 0; i < results.size(); ++i) {
        SCOPED_TRACE(i);
        EXPECT_THAT(results[i].detach(), TensorEq(expected[i].detach()));
        EXPECT_EQ(results[i].requires_grad(), expected[i].requires_grad());
        EXPECT_EQ(results[i].is_inference(), expected[i].is_inference());
      }
    }
    for (const auto& item : twin->named_parameters()) {
      SCOPED_TRACE(item.key());
      const at::Tensor expected = item.value().grad();
      const at::Tensor gradient = net->named_parameters()[item.key()].grad();
      if (!expected.defined()) {
        EXPECT_TRUE(!gradient.defined() || gradient.eq(0).all().item<bool>());
        continue;
      }
      ASSERT_TRUE(gradient.defined());
      EXPECT_THAT(gradient, AllClose(expected, tolerance == 0 ? 1e-6 : tolerance, tolerance == 0 ? 1e-6 : tolerance));
    }
  }
  EXPECT_GE((*ddp)->core().reducer_buckets().size(), 3u) << (*ddp)->core().bucket_table();
  EXPECT_FALSE((*ddp)->core().runs_eagerly());
}

TEST(Regions, NoGrad) {
  ExpectEqualsEager([](NetImpl& net, const at::Tensor& x) -> std::vector<at::Tensor> {
    const at::Tensor first = net.Layer(x, 0).tanh();
    at::Tensor seen;
    {
      const at::NoGradGuard no_grad;
      seen = net.Layer(net.Layer(first, 1).tanh(), 2);  // the first uses of b and c
    }
    const at::Tensor y = net.Layer(net.Layer(net.Layer(first, 1), 2) + seen, 3);
    return {y, seen, seen + first};
  });
}

TEST(Regions, EnableGradWithinNoGrad) {
  ExpectEqualsEager([](NetImpl& net, const at::Tensor& x) -> std::vector<at::Tensor> {
    at::Tensor inner, outer;
    {
      const at::NoGradGuard no_grad;
      outer = net.Layer(x, 0);
      {
        const at::AutoGradMode grad(true);
        inner = net.Layer(net.Layer(outer, 1).sin(), 2);
      }
      outer = net.Layer(outer, 3);
    }
    return {net.Layer(inner + net.Layer(x, 0), 3) + outer, inner, outer};
  });
}

TEST(Regions, ParametersThatOnlyARegionWithoutGradUses) {
  ExpectEqualsEager(
      [](NetImpl& net, const at::Tensor& x) -> std::vector<at::Tensor> {
        at::Tensor seen;
        {
          const at::NoGradGuard no_grad;
          seen = net.Layer(net.Layer(x, 0).relu(), 1);
        }
        return {net.Layer(net.Layer(seen, 2).sin(), 3), seen};
      },
      0, /*unused=*/true);
}

TEST(Regions, InferenceMode) {
  ExpectEqualsEager([](NetImpl& net, const at::Tensor& x) -> std::vector<at::Tensor> {
    at::Tensor seen;
    {
      const c10::InferenceMode inference;
      seen = net.Layer(net.Layer(x, 0).relu(), 1);
    }
    const at::Tensor y = net.Layer(net.Layer(x, 0).relu(), 1) + seen.clone();
    return {net.Layer(net.Layer(y, 2).cos(), 3)};
  });
}

TEST(Regions, Autocast) {
  ExpectEqualsEager([](NetImpl& net, const at::Tensor& x) -> std::vector<at::Tensor> {
    at::Tensor low;
    {
      const Autocast autocast;
      low = net.Layer(net.Layer(net.Layer(x, 0), 1).tanh(), 2);
    }
    return {net.Layer(low.to(at::kFloat), 3), low};
  });
}

// Autocast keeps the cast of a weight until the region ends; the pieces of a region each make their own, so the two parts of the gradient
// are added up in float32 rather than bfloat16.
TEST(Regions, AWeightThatTwoPiecesOfARegionUse) {
  ExpectEqualsEager(
      [](NetImpl& net, const at::Tensor& x) -> std::vector<at::Tensor> {
        at::Tensor low;
        {
          const Autocast autocast;
          low = net.Layer(net.Layer(net.Layer(net.Layer(x, 0), 1).tanh(), 2), 0);
          const at::NoGradGuard no_grad;
          low = low + net.Layer(low.sin(), 1);
        }
        at::Tensor again;
        {
          const Autocast autocast;
          again = net.Layer(net.Layer(net.Layer(x, 0).tanh(), 1).tanh(), 2);
          again = net.Layer(again, 0);
        }
        return {net.Layer((low + again).to(at::kFloat), 3), low};
      },
      2e-2);
}

TEST(Regions, AutocastAndNoGradNest) {
  ExpectEqualsEager([](NetImpl& net, const at::Tensor& x) -> std::vector<at::Tensor> {
    at::Tensor seen;
    {
      const at::NoGradGuard no_grad;
      const Autocast autocast;
      seen = net.Layer(net.Layer(x, 0), 1);
    }
    at::Tensor low;
    {
      const Autocast autocast;
      {
        const at::NoGradGuard no_grad;
        seen = seen + net.Layer(x, 2);
      }
      low = net.Layer(net.Layer(x, 0), 1);
    }
    return {net.Layer(net.Layer(low.to(at::kFloat) + seen.to(at::kFloat), 2), 3), seen, low};
  });
}

}  // namespace
}  // namespace ddpopt
