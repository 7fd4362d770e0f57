// On two and four ranks; every rank runs every case.

#include <memory>
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
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/sgd.h"

namespace ddpopt {
namespace {

using testing::ErrorOf;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

const ProcessGroup& Group() { return testing::TestProcessGroup(); }

constexpr double kByte = 1.0 / (1024 * 1024);

template <typename N>
std::unique_ptr<DistributedDataParallel<N>> Wrap(N net, DdpOptions options = {}) {
  auto ddp = DistributedDataParallel<N>::Create(net, Group(), std::move(options));
  if (!ddp.ok()) ADD_FAILURE() << ddp.status();
  return ddp.ok() ? *std::move(ddp) : nullptr;
}

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(int64_t width = 16, int64_t depth = 3, int64_t outputs = 1) {
    for (int64_t i = 0; i < depth; ++i) {
      layers.push_back(register_module(absl::StrCat("layer", i), torch::nn::Linear(i == 0 ? 8 : width, i + 1 == depth ? outputs : width)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      x = layers[i]->forward(x);
      if (i + 1 < layers.size()) x = at::relu(x);
    }
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Mlp);

// A layer's bias alone does not fill a bucket of cap bias + 1 bytes, but with its weight it does: every layer is a bucket, whether the
// graph holds a linear layer as one node or as several.
DdpOptions LayerBuckets(int64_t width) {
  DdpOptions options;
  options.bucket_cap_mb = static_cast<double>(width * 4 + 1) * kByte;
  return options;
}

at::Tensor Loss(const at::Tensor& output, const at::Tensor& target) { return at::pow(at::sub(output, target), 2).mean(); }

TEST(Training, TwentyStepsEqualOneProcessOnTheWholeBatch) {
  const int64_t rank = Group().rank();
  const int64_t world = Group().world_size();
  at::manual_seed(7 + static_cast<uint64_t>(rank));  // Creation takes rank 0's values.
  Mlp net;
  at::manual_seed(7);
  Mlp alone;
  const at::Tensor x = at::randn({4 * world, 8});
  const at::Tensor y = at::sin(x.sum(1, /*keepdim=*/true));
  auto ddp = Wrap(net, LayerBuckets(16));
  ASSERT_NE(ddp, nullptr);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  torch::optim::SGD optimizer_alone(alone->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    Loss(ddp->forward(x.narrow(0, 4 * rank, 4)), y.narrow(0, 4 * rank, 4)).backward();
    optimizer.step();
    optimizer_alone.zero_grad();
    Loss(alone->forward(x), y).backward();
    optimizer_alone.step();
  }
  EXPECT_EQ(ddp->core().CheckParametersEqual(), absl::OkStatus());
  EXPECT_EQ(ddp->core().num_prepared_forwards(), 20);
  EXPECT_EQ(ddp->core().reducer_buckets().size(), 3u);
  const auto ours = net->named_parameters();
  for (const auto& item : alone->named_parameters()) {
    EXPECT_TRUE(at::allclose(ours[item.key()], item.value(), /*rtol=*/1e-5, /*atol=*/1e-6)) << item.key();
  }
}

void ExpectSameBuckets(const DdpCore& core, const char* when) {
  const auto reducer = core.reducer_buckets();
  const auto optimizer = core.optimizer_buckets();
  ASSERT_EQ(reducer.size(), optimizer.size()) << when;
  for (std::size_t i = 0; i < reducer.size(); ++i) {
    EXPECT_EQ(reducer[i].parameters, optimizer[i].parameters) << when << ", bucket " << i;
    EXPECT_EQ(reducer[i].bytes, optimizer[i].bytes) << when << ", bucket " << i;
  }
}

TEST(Training, BucketsStayTheOptimizersForAHundredSteps) {
  Mlp net(16, 5);
  auto ddp = Wrap(net, LayerBuckets(16));
  ASSERT_NE(ddp, nullptr);
  const at::Tensor x = at::ones({4, 8});
  for (int step = 0; step <= 100; ++step) {
    const at::Tensor output = ddp->forward(x);
    if (step == 0) {
      ASSERT_EQ(ddp->core().reducer_buckets().size(), 5u);
      EXPECT_THAT(ddp->core().reducer_buckets()[0].parameters, ::testing::UnorderedElementsAre("layer4.weight", "layer4.bias"));
      ExpectSameBuckets(ddp->core(), "before the first backward");
    }
    output.sum().backward();
    EXPECT_EQ(ddp->core().reducer_rebuild_list_size(), 0);
  }
  ExpectSameBuckets(ddp->core(), "after a hundred steps");
  EXPECT_EQ(ddp->core().num_prepared_forwards(), 101);
}

TEST(Training, GradientsAreTheMeanOverRanks) {
  Mlp net;
  auto ddp = Wrap(net, LayerBuckets(16));
  ASSERT_NE(ddp, nullptr);
  const at::Tensor x = at::ones({2, 8});
  at::mul(ddp->forward(x).sum(), Group().rank() + 1).backward();
  // The output layer's bias has gradient 2 * (rank + 1) on each rank.
  const double expected = Group().world_size() + 1.0;
  EXPECT_FLOAT_EQ(net->layers.back()->bias.grad().item().toFloat(), static_cast<float>(expected));
}

TEST(Training, AllReduceOfTheLastLayersStartsBeforeTheFirstLayersAreDone) {
  Mlp net(256, 6);
  auto ddp = Wrap(net, LayerBuckets(256));
  ASSERT_NE(ddp, nullptr);
  const at::Tensor x = at::ones({64, 8});
  for (int step = 0; step < 3; ++step) ddp->forward(x).sum().backward();
  const StepTiming& step = ddp->core().last_step();
  ASSERT_EQ(step.buckets.size(), 6u);
  EXPECT_LT(step.backward_begin, step.buckets.front().launched);
  EXPECT_LT(step.buckets.front().launched, step.buckets.back().launched);
  EXPECT_LE(step.buckets.back().launched, step.compute_end);
  EXPECT_LT(step.buckets.front().launched, step.compute_end);
  EXPECT_LE(step.compute_end, step.backward_end);
  for (std::size_t i = 0; i < step.buckets.size(); ++i) {
    EXPECT_LE(step.buckets[i].launched, step.buckets[i].finished) << i;
    EXPECT_LE(step.buckets[i].finished, step.backward_end) << i;
  }
}

// The project's seed: the real scalars of where() within a middle piece.
struct SeedNetImpl : torch::nn::Module {
  SeedNetImpl() {
    register_module("first", first);
    w = register_parameter("w", at::randn({8, 8}));
    register_module("last", last);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = at::relu(first->forward(x));
    const at::Tensor tmp = at::mm(hidden, w.t());
    return last->forward(at::add(tmp, at::where(at::lt(tmp, 0.5), 0.3, 0.6)));
  }
  torch::nn::Linear first{8, 8};
  at::Tensor w;
  torch::nn::Linear last{8, 8};
};
TORCH_MODULE(SeedNet);

TEST(SeedCase, InAMiddleBucketEqualsEager) {
  at::manual_seed(3);
  SeedNet net;
  const at::Tensor x = at::randn({4, 8});
  auto ddp = Wrap(net, LayerBuckets(8));
  ASSERT_NE(ddp, nullptr);
  const at::Tensor expected = net->forward(x);
  at::pow(expected, 2).sum().backward();
  std::vector<at::Tensor> grads;
  for (at::Tensor& parameter : net->parameters()) {
    grads.push_back(parameter.grad().clone());
    parameter.mutable_grad() = at::Tensor();
  }
  const at::Tensor output = ddp->forward(x);
  EXPECT_TRUE(at::allclose(output, expected));
  at::pow(output, 2).sum().backward();
  for (std::size_t i = 0; i < grads.size(); ++i) EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), grads[i])) << i;
  const auto buckets = ddp->core().reducer_buckets();
  ASSERT_EQ(buckets.size(), 3u) << ddp->core().bucket_table();
  EXPECT_THAT(buckets[1].parameters, ::testing::ElementsAre("w"));
}

struct NormNetImpl : torch::nn::Module {
  NormNetImpl() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("last", last);
  }
  at::Tensor forward(const at::Tensor& x) { return last->forward(norm->forward(first->forward(x))); }
  torch::nn::Linear first{8, 8};
  torch::nn::BatchNorm1d norm{8};
  torch::nn::Linear last{8, 2};
};
TORCH_MODULE(NormNet);

TEST(Capture, ChangesNothingReal) {
  at::manual_seed(5);
  NormNet net;
  at::manual_seed(5);
  NormNet eager;
  const at::Tensor x = at::randn({4, 8});
  auto ddp = Wrap(net, LayerBuckets(8));
  ASSERT_NE(ddp, nullptr);
  const auto generator = at::globalContext().defaultGenerator(at::kCPU);
  const at::Tensor random_before = generator.get_state();
  const at::Tensor output = ddp->forward(x);
  EXPECT_TRUE(at::equal(generator.get_state(), random_before));
  // One forward ran: the running statistics hold one update, not that of a trace as well.
  const at::Tensor expected = eager->forward(x);
  EXPECT_TRUE(at::allclose(output, expected));
  EXPECT_EQ(net->norm->num_batches_tracked.item().toLong(), 1);
  EXPECT_TRUE(at::allclose(net->norm->running_mean, eager->norm->running_mean));
  EXPECT_TRUE(at::allclose(net->norm->running_var, eager->norm->running_var));
  for (const at::Tensor& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
  EXPECT_EQ(ddp->core().num_prepared_forwards(), 1);
  output.sum().backward();
  ddp->forward(x).sum().backward();
  EXPECT_EQ(ddp->core().num_prepared_forwards(), 2);
  EXPECT_EQ(net->norm->num_batches_tracked.item().toLong(), 2);
}

struct SpareImpl : MlpImpl {
  SpareImpl() { spare = register_parameter("spare", at::ones({3})); }
  at::Tensor spare;
};

TEST(Refusals, AParameterWithoutGradientIsNamedOnEveryRank) {
  auto net = std::make_shared<SpareImpl>();
  auto ddp = Wrap(net, LayerBuckets(8));
  ASSERT_NE(ddp, nullptr);
  const at::Tensor loss = ddp->forward(at::ones({2, 8})).sum();
  EXPECT_THAT(ErrorOf([&] { loss.backward(); }),
              AllOf(HasSubstr(absl::StrCat("rank ", Group().rank())), HasSubstr("parameter \"spare\" got no gradient")));
  EXPECT_THAT(ErrorOf([&] { ddp->forward(at::ones({2, 8})); }), HasSubstr("\"spare\""));
}

TEST(Refusals, DifferentModelsNameTheRankAndTheFirstDifference) {
  const int last = Group().world_size() - 1;
  Mlp net(Group().rank() == last ? 24 : 16);
  const auto ddp = DistributedDataParallel<Mlp>::Create(net, Group());
  ASSERT_EQ(ddp.status().code(), absl::StatusCode::kFailedPrecondition) << ddp.status();
  EXPECT_THAT(std::string(ddp.status().message()),
              AllOf(HasSubstr(absl::StrCat("rank ", last)), HasSubstr("layer0.weight"), HasSubstr("[16, 8]"), HasSubstr("[24, 8]")));
  // Nothing is left behind: the same modules can be given again.
  EXPECT_EQ(DistributedDataParallel<Mlp>::Create(net, Group()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Refusals, DifferentCaps) {
  DdpOptions options;
  options.bucket_cap_mb = 1 + Group().rank();
  const auto ddp = DistributedDataParallel<Mlp>::Create(Mlp(), Group(), options);
  ASSERT_EQ(ddp.status().code(), absl::StatusCode::kFailedPrecondition) << ddp.status();
  EXPECT_THAT(std::string(ddp.status().message()), HasSubstr("bucket_cap_mb"));
}

TEST(Refusals, OneRanksErrorIsEveryRanksError) {
  const int last = Group().world_size() - 1;
  Mlp net;
  const auto ddp = DistributedDataParallel<Mlp>::Create(Group().rank() == last ? Mlp(nullptr) : net, Group());
  ASSERT_FALSE(ddp.ok());
  EXPECT_THAT(std::string(ddp.status().message()), Group().rank() == last
                                                       ? HasSubstr("the module is null")
                                                       : HasSubstr(absl::StrCat("rank ", last, " failed: the module is null")));
}

// The same parameters, used in another order on the last rank.
struct OrderImpl : torch::nn::Module {
  OrderImpl() {
    for (const char* name : {"a", "b", "c"}) weights.push_back(register_parameter(name, at::ones({8, 8}).div(8)));
  }
  at::Tensor forward(at::Tensor x) {
    for (std::size_t i = 0; i < weights.size(); ++i) {
      x = at::relu(at::mm(x, weights[backwards ? weights.size() - 1 - i : i]));
    }
    return x;
  }
  std::vector<at::Tensor> weights;
  bool backwards = false;
};

TEST(Refusals, DifferentBucketTables) {
  const int last = Group().world_size() - 1;
  auto net = std::make_shared<OrderImpl>();
  net->backwards = Group().rank() == last;
  auto ddp = Wrap(net, LayerBuckets(8));
  ASSERT_NE(ddp, nullptr);
  EXPECT_THAT(
      ErrorOf([&] {
        ddp->forward(at::ones({2, 8}));
      }),
      AllOf(HasSubstr("bucket tables differ"), HasSubstr(absl::StrCat("rank ", last)), HasSubstr("bucket 0: c"), HasSubstr("bucket 0: a")));
}

TEST(CheckParametersEqual, NamesTheRanksAndTheParameter) {
  Mlp net;
  auto ddp = Wrap(net);
  ASSERT_NE(ddp, nullptr);
  EXPECT_EQ(ddp->core().CheckParametersEqual(), absl::OkStatus());
  if (Group().rank() > 0) {
    const at::NoGradGuard no_grad;
    net->layers[1]->bias.add_(1e-3);
  }
  const absl::Status status = ddp->core().CheckParametersEqual();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("layer1.bias"), AnyOf(HasSubstr("rank 1"), HasSubstr("ranks 1, 2, 3"))));
}

}  // namespace
}  // namespace ddpopt
