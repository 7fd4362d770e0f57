// On two ranks: ranks that run forward in different ways, collectives within forward, backwards within backwards.

#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "ddpopt/ddp/distributed_data_parallel.h"
#include "ddpopt/distributed/process_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"
#include "testing/distributed_test.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/utils/clip_grad.h"

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

DdpOptions OneBucketEach() {
  DdpOptions options;
  options.bucket_cap_mb = 64.0 / (1 << 20);
  return options;
}

// Three weights of 64 bytes, in the order in which its caller says.
struct ChainImpl : torch::nn::Module {
  ChainImpl() {
    at::manual_seed(5);
    for (const char* name : {"a", "b", "c"}) register_parameter(name, at::rand({4, 4}));
  }
  at::Tensor forward(at::Tensor x, const std::string& order) {
    const auto weights = named_parameters();
    for (const char letter : order) x = at::tanh(at::mm(x, weights[std::string(1, letter)]));
    return x;
  }
};

at::Tensor Batch() { return at::sin(at::add(at::arange(12, at::kFloat).reshape({3, 4}), Rank())); }

std::vector<at::Tensor> MeanGradients(const std::shared_ptr<ChainImpl>& net, const std::string& order) {
  net->zero_grad();
  net->forward(Batch(), order).sum().backward();
  std::vector<at::Tensor> means;
  for (const at::Tensor& parameter : net->parameters()) {
    means.push_back(parameter.grad().clone());
    EXPECT_EQ(Group().AllReduceSum(means.back()), absl::OkStatus());
    means.back().div_(Group().world_size());
  }
  net->zero_grad();
  return means;
}

TEST(Order, GradientsThatComeInAnotherOrderOnEachRank) {
  for (const ExecutionMode mode : {ExecutionMode::kCompiled, ExecutionMode::kEager}) {
    DdpOptions options = OneBucketEach();
    options.mode = mode;
    auto net = std::make_shared<ChainImpl>();
    auto ddp = Wrap(net, options);
    ddp->forward(Batch(), std::string("abc")).sum().backward();
    ASSERT_EQ(ddp->core().reducer_buckets().size(), 3u);
    const std::string order = Rank() == 0 ? "abc" : "cab";
    const std::vector<at::Tensor> expected = MeanGradients(net, order);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      if (step == Rank()) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      ddp->forward(Batch(), order).sum().backward();
      for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), expected[i])) << i;
    }
    EXPECT_EQ(ddp->core().CheckGradientsEqual(), absl::OkStatus());
  }
}

TEST(Order, NormsAreThoseOfOneProcess) {
  auto net = std::make_shared<ChainImpl>();
  auto ddp = Wrap(net, OneBucketEach());
  double squares = 0;
  for (const at::Tensor& gradient : MeanGradients(net, "abc")) squares += at::pow(gradient.to(at::kDouble), 2).sum().item().toDouble();
  ddp->forward(Batch(), std::string("abc")).sum().backward();
  EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(net->parameters(), 0.01), std::sqrt(squares), 1e-5);
  EXPECT_EQ(ddp->core().CheckGradientsEqual(), absl::OkStatus());
}

TEST(Forward, ThatThrowsIsNotCounted) {
  auto ddp = Wrap(std::make_shared<ChainImpl>());
  ddp->forward(Batch(), std::string("abc")).sum().backward();
  EXPECT_NE(ErrorOf([&] { ddp->forward(at::ones({3, 5}), std::string("abc")); }), "");
  EXPECT_EQ(ddp->core().num_prepared_forwards(), 1);
  ddp->forward(Batch(), std::string("abc")).sum().backward();
  EXPECT_EQ(ddp->core().num_prepared_forwards(), 2);
}

TEST(Forward, IsCountedOnceHoweverOftenItIsTraced) {
  DdpOptions options = OneBucketEach();
  options.retrace_every = 1;
  auto ddp = Wrap(std::make_shared<ChainImpl>(), options);
  int64_t forwards = 0;
  // On each rank other kinds of calls, so that ranks capture at different times.
  for (const int64_t rows : {3, 3, 1, 2, 3}) {
    for (const std::string order : {"abc", "cab"}) {
      ddp->forward(at::ones({rows + Rank(), 4}), order).sum().backward();
      EXPECT_EQ(ddp->core().num_prepared_forwards(), ++forwards);
    }
  }
  EXPECT_GT(ddp->core().num_recompiles(), 2);
  // More kinds than are captured: eager from then on.
  for (int64_t rows = 10; !ddp->core().runs_eagerly() && rows < 40; ++rows) {
    ddp->forward(at::ones({rows, 4}), std::string("abc")).sum().backward();
    EXPECT_EQ(ddp->core().num_prepared_forwards(), ++forwards);
  }
  EXPECT_TRUE(ddp->core().runs_eagerly());
  EXPECT_EQ(ddp->core().CheckGradientsEqual(), absl::OkStatus());
}

// A mean over all ranks, as a synchronised batch norm takes it.
struct GlobalMeanImpl : torch::nn::Module {
  GlobalMeanImpl() { weight = register_parameter("weight", at::ones({4})); }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor mean = x.mean(0).detach();
    const absl::Status status = Group().AllReduceSum(mean);
    TORCH_CHECK(status.ok(), std::string(status.message()));
    return (x - mean / 2) * weight;
  }
  at::Tensor weight;
};

TEST(Forward, WithACollectiveOfItsOwnRunsEagerly) {
  auto net = std::make_shared<GlobalMeanImpl>();
  auto ddp = Wrap(net);
  for (int step = 0; step < 2; ++step) {
    const at::Tensor output = ddp->forward(Batch());
    EXPECT_TRUE(at::equal(output, net->forward(Batch())));
    output.sum().backward();
  }
  EXPECT_TRUE(ddp->core().runs_eagerly());
  EXPECT_EQ(ddp->core().CheckGradientsEqual(), absl::OkStatus());
}

// Runs another backward in its own, as checkpoints do.
struct Nested : torch::autograd::Function<Nested> {
  static inline std::function<void()> inner;
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, const torch::autograd::variable_list& gradients) {
    inner();
    return gradients;
  }
};

TEST(Backward, WithinAnotherIsRefused) {
  auto net = std::make_shared<ChainImpl>();
  auto ddp = Wrap(net);
  const at::Tensor other = ddp->forward(Batch(), std::string("abc")).sum();
  const at::Tensor weight = at::ones({1}).requires_grad_();
  const at::Tensor loss = ddp->forward(Batch() * Nested::apply(weight), std::string("abc")).sum();
  Nested::inner = [&] { other.backward(); };
  EXPECT_THAT(ErrorOf([&] { loss.backward(); }), HasSubstr("while that of forward number 2 was running"));
  EXPECT_THAT(ErrorOf([&] { ddp->forward(Batch(), std::string("abc")); }), HasSubstr("has not ended, or failed"));
}

TEST(Backward, OfTwoLossesInOneCall) {
  auto net = std::make_shared<ChainImpl>();
  auto ddp = Wrap(net, OneBucketEach());
  const std::vector<at::Tensor> expected = MeanGradients(net, "abc");
  for (int step = 0; step < 2; ++step) {
    net->zero_grad();
    const at::Tensor first = ddp->forward(Batch(), std::string("abc")).sum();
    const at::Tensor second = ddp->forward(Batch(), std::string("abc")).sum();
    torch::autograd::backward({first, second}, {at::ones({}), at::full({}, 2.0)});
    // A gradient of the sum is near zero where those of the rows cancel: there it has the rounding of these.
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), expected[i] * 3, 1e-5, 1e-6)) << i;
    }
  }
}

// Its loss does not come from what it returns.
struct KeepsItsLossImpl : ChainImpl {
  at::Tensor forward(const at::Tensor& x) {
    kept = ChainImpl::forward(x, "abc").sum();
    return kept * 0;
  }
  at::Tensor kept;
};

TEST(Backward, OfALossThatAnEagerForwardKeeps) {
  auto net = std::make_shared<KeepsItsLossImpl>();
  DdpOptions options = OneBucketEach();
  options.mode = ExecutionMode::kEager;
  auto ddp = Wrap(net, options);
  const std::vector<at::Tensor> expected = MeanGradients(net, "abc");
  for (int step = 0; step < 3; ++step) {
    net->zero_grad();
    ddp->forward(Batch());
    net->kept.backward();
    EXPECT_TRUE(ddp->core().last_step().synchronised);
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), expected[i])) << i;
  }
}

TEST(Backward, TwiceThroughOneGraphWithSecondDerivatives) {
  auto net = std::make_shared<ChainImpl>();
  auto ddp = Wrap(net, OneBucketEach());
  const auto penalised = [&](const at::Tensor& output, const at::Tensor& x) {
    const at::Tensor gradient = torch::autograd::grad({output.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    return output.sum() + at::pow(gradient, 2).sum();
  };
  const at::Tensor x = Batch().requires_grad_();
  penalised(net->forward(x, "abc"), x).backward();
  std::vector<at::Tensor> expected;
  for (const at::Tensor& parameter : net->parameters()) {
    expected.push_back(parameter.grad().clone());
    ASSERT_EQ(Group().AllReduceSum(expected.back()), absl::OkStatus());
    expected.back().div_(2);
  }
  net->zero_grad();
  penalised(ddp->forward(x, std::string("abc")), x).backward();
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), expected[i], 1e-4)) << i;
}

// Computes `body` again within backward, with gradients, and calls backward there, as re-entrant checkpoints do.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  using Body = std::function<at::Tensor(const at::Tensor&)>;
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const Body* body) {
    context->save_for_backward({x});
    context->saved_data["body"] = reinterpret_cast<int64_t>(body);
    return (*body)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto* body = reinterpret_cast<const Body*>(context->saved_data["body"].toInt());
    const at::AutoGradMode with_gradients(true);
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    torch::autograd::backward({(*body)(x)}, gradients);
    return {x.grad(), at::Tensor()};
  }
};

// a, then b as often as its caller says, then c; d is never used. b within checkpoints.
struct CheckpointedImpl : ChainImpl {
  CheckpointedImpl() { d = register_parameter("d", at::ones({2})); }
  at::Tensor forward(const at::Tensor& x, int64_t times) {
    at::Tensor h = ChainImpl::forward(x, "a");
    for (int64_t i = 0; i < times; ++i) h = Checkpoint::apply(h, &body);
    return ChainImpl::forward(h, "c");
  }
  const Checkpoint::Body body = [this](const at::Tensor& h) { return ChainImpl::forward(h, "b"); };
  at::Tensor d;
};

std::string Times(int64_t times) { return "a" + std::string(static_cast<std::size_t>(times), 'b') + "c"; }

TEST(Reentrant, CheckpointsAreSynchronisedOrNamed) {
  for (const ExecutionMode mode : {ExecutionMode::kCompiled, ExecutionMode::kEager}) {
    for (const bool bucket_view : {false, true}) {
      for (const int64_t times : {1, 2}) {
        auto chain = std::make_shared<ChainImpl>();
        const std::vector<at::Tensor> expected = MeanGradients(chain, Times(times));
        const auto wrap = [&](const auto& set) {
          auto net = std::make_shared<CheckpointedImpl>();
          DdpOptions options = OneBucketEach();
          options.mode = mode;
          options.gradient_as_bucket_view = bucket_view;
          set(options, *net);
          return std::make_pair(net, Wrap(net, options));
        };
        const auto trains = [&](const auto& pair) {
          const auto& [net, ddp] = pair;
          for (int step = 0; step < 3; ++step) {
            net->zero_grad();
            ddp->forward(Batch(), times).sum().backward();
            EXPECT_TRUE(ddp->core().last_step().synchronised);
            for (std::size_t i = 0; i < expected.size(); ++i) {
              const at::Tensor actual = net->named_parameters()[std::string(1, "abc"[i])].grad();
              EXPECT_TRUE(actual.defined() && at::allclose(actual, expected[i])) << "abc"[i] << " in step " << step;
            }
            EXPECT_FALSE(net->d.grad().defined());
          }
          EXPECT_EQ(ddp->core().reducer_buckets().size(), 3u);
          EXPECT_EQ(ddp->core().CheckGradientsEqual(), absl::OkStatus());
        };
        const auto names = [&](const auto& pair, const char* what) {
          const auto& [net, ddp] = pair;
          const at::Tensor loss = ddp->forward(Batch(), times).sum();
          EXPECT_THAT(ErrorOf([&] { loss.backward(); }), AllOf(HasSubstr("\"b\""), HasSubstr(what), HasSubstr("Set static_graph")));
          EXPECT_THAT(ErrorOf([&] { ddp->forward(Batch(), times); }), HasSubstr("not synchronised"));
        };
        SCOPED_TRACE(absl::StrCat("mode ", static_cast<int>(mode), ", bucket_view ", bucket_view, ", times ", times));
        trains(wrap([](DdpOptions& options, CheckpointedImpl&) { options.static_graph = true; }));
        trains(wrap([](DdpOptions& options, CheckpointedImpl&) { options.static_graph = options.skip_all_reduce_unused_params = true; }));
        const auto plain = [](DdpOptions&, CheckpointedImpl& net) { net.d.set_requires_grad(false); };
        if (times == 1) {
          trains(wrap(plain));
        } else {
          names(wrap(plain), "got another gradient after its bucket had been given one");
        }
        names(wrap([](DdpOptions& options, CheckpointedImpl&) { options.find_unused_parameters = true; }),
              "got a gradient after it had been taken for unused");
      }
    }
  }
}

TEST(Reentrant, OneCheckpointLessIsSynchronisedLaterAndOneMoreIsNotStatic) {
  DdpOptions options = OneBucketEach();
  options.static_graph = true;
  options.mode = ExecutionMode::kEager;
  const std::vector<at::Tensor> expected = MeanGradients(std::make_shared<ChainImpl>(), Times(1));
  auto net = std::make_shared<CheckpointedImpl>();
  auto ddp = Wrap(net, options);
  ddp->forward(Batch(), int64_t{2}).sum().backward();
  net->zero_grad();
  ddp->forward(Batch(), int64_t{1}).sum().backward();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::allclose(net->named_parameters()[std::string(1, "abc"[i])].grad(), expected[i])) << i;
  }
  const at::Tensor loss = ddp->forward(Batch(), int64_t{3}).sum();
  EXPECT_THAT(ErrorOf([&] { loss.backward(); }),
              AllOf(HasSubstr("\"b\""), HasSubstr("got more gradients in this backward than in the first synchronised one")));
}

// The whole wrapped forward within a checkpoint: it runs twice, once without gradients.
TEST(Reentrant, AroundTheWrapper) {
  auto net = std::make_shared<ChainImpl>();
  auto ddp = Wrap(net, OneBucketEach());
  const std::vector<at::Tensor> expected = MeanGradients(net, "abc");
  const Checkpoint::Body body = [&](const at::Tensor& x) { return ddp->forward(x, std::string("abc")); };
  for (int step = 0; step < 3; ++step) {
    net->zero_grad();
    Checkpoint::apply(Batch().requires_grad_(), &body).sum().backward();
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), expected[i])) << i;
  }
}

}  // namespace
}  // namespace ddpopt
