// On two ranks: what DistributedDataParallel offers beside plain steps, and what it refuses. Every rank runs every case.

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/autocast_mode.h"
#include "absl/strings/str_cat.h"
#include "ddpopt/ddp/distributed_data_parallel.h"
#include "ddpopt/distributed/process_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "testing/calls.h"
#include "testing/distributed_test.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/conv.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/sgd.h"

namespace ddpopt {
namespace {

using testing::ErrorOf;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

const ProcessGroup& Group() { return testing::TestProcessGroup(); }
int Rank() { return Group().rank(); }

template <typename N>
std::unique_ptr<DistributedDataParallel<N>> Wrap(N net, DdpOptions options = {}) {
  auto ddp = DistributedDataParallel<N>::Create(net, Group(), std::move(options));
  if (!ddp.ok()) ADD_FAILURE() << ddp.status();
  return ddp.ok() ? *std::move(ddp) : nullptr;
}
template <typename N>
std::string Refused(N net, DdpOptions options = {}) {
  const auto ddp = DistributedDataParallel<N>::Create(net, Group(), std::move(options));
  return std::string(ddp.status().message());
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

// This rank's.
at::Tensor Batch() { return at::sin(at::add(at::arange(12, at::kFloat).reshape({3, 4}), Rank())); }

// The mean over ranks of what each rank computes alone.
at::Tensor MeanOverRanks(at::Tensor tensor) {
  tensor = tensor.clone();
  EXPECT_EQ(Group().AllReduceSum(tensor), absl::OkStatus());
  return tensor.div_(Group().world_size());
}

at::Tensor OwnGradient(Net net, const at::Tensor& x) {
  net->zero_grad();
  net->forward(x).sum().backward();
  at::Tensor gradient = net->first->weight.grad().clone();
  net->zero_grad();
  return gradient;
}

TEST(NoSync, IsSampledInForwardAndWarnedOfIfBackwardIsElsewhere) {
  Net net;
  auto ddp = Wrap(net);
  const at::Tensor own = OwnGradient(net, Batch());
  ::testing::internal::CaptureStderr();
  at::Tensor loss;
  {
    const NoSyncScope scope = ddp->no_sync();
    const NoSyncScope inner = ddp->no_sync();
    loss = ddp->forward(Batch()).sum();
  }
  loss.backward();
  EXPECT_TRUE(at::equal(net->first->weight.grad(), own));
  EXPECT_FALSE(ddp->core().last_step().synchronised);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("ran within no_sync, its backward runs outside"));
  net->zero_grad();

  auto other = std::make_shared<NetImpl>();
  auto ddp2 = Wrap(other);
  ::testing::internal::CaptureStderr();
  loss = ddp2->forward(Batch()).sum();
  {
    const NoSyncScope scope = ddp2->no_sync();
    loss.backward();
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("ran outside of no_sync, its backward runs within"));
  EXPECT_EQ(ddp2->core().CheckGradientsEqual(), absl::OkStatus());

  ::testing::internal::CaptureStderr();
  auto scope = std::make_unique<NoSyncScope>(ddp2->no_sync());
  std::thread([&] { scope.reset(); }).join();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("another thread"));
  ddp2->forward(Batch()).sum().backward();
  EXPECT_TRUE(ddp2->core().last_step().synchronised);
}

TEST(NoSync, TheScopeMayOutliveTheWrapper) {
  Net net;
  auto ddp = Wrap(net);
  const at::Tensor loss = ddp->forward(Batch()).sum();
  const NoSyncScope scope = ddp->no_sync();
  ddp.reset();
  EXPECT_THAT(ErrorOf([&] { loss.backward(); }), HasSubstr("destroyed"));
}

TEST(NoSync, InterleavedWithForwardsThatWait) {
  Net net;
  auto ddp = Wrap(net);
  const at::Tensor own = OwnGradient(net, Batch());
  const at::Tensor waiting = ddp->forward(Batch()).sum();
  {
    const NoSyncScope scope = ddp->no_sync();
    ddp->forward(Batch()).sum().backward();
  }
  EXPECT_TRUE(at::equal(net->first->weight.grad(), own));
  waiting.backward();
  EXPECT_TRUE(at::allclose(net->first->weight.grad(), at::mul(MeanOverRanks(own), 2)));
}

struct BuffersImpl : NetImpl {
  BuffersImpl() {
    const double r = Rank() + 1;
    flag = register_buffer("flag", at::full({3}, Rank() == 0, at::kBool));
    bytes = register_buffer("bytes", at::full({3}, r, at::kChar));
    wide = register_buffer("wide", at::full({}, r, at::kLong));
    complex = register_buffer("complex", at::full({2}, c10::complex<float>(1, static_cast<float>(r)), at::kComplexFloat));
    permuted = register_buffer("permuted", at::arange(6, at::kFloat).mul(r).reshape({2, 3}).t());
    sliced = register_buffer("sliced", at::arange(8, at::kDouble).mul(r).slice(0, 1, 8, 3));
    none = register_buffer("none", at::zeros({0, 3}));
    large = register_buffer("large", at::full({2}, r, at::kLong).to(at::kUInt64));
    conjugate = register_buffer("conjugate", at::full({2}, c10::complex<float>(static_cast<float>(r), 1), at::kComplexFloat).conj());
  }
  at::Tensor flag, bytes, wide, complex, permuted, sliced, none, large, conjugate;
};

TEST(Buffers, AreRank0sByEitherNameOfTheOption) {
  for (const bool synced : {true, false}) {
    for (const bool older : {true, false}) {
      auto net = std::make_shared<BuffersImpl>();
      DdpOptions options;
      (older ? options.broadcast_buffers : options.forward_sync_buffers) = synced;
      auto ddp = Wrap(net, options);
      net->wide.fill_(Rank());
      ddp->forward(Batch()).sum().backward();
      EXPECT_EQ(net->wide.item().toLong(), synced ? 0 : Rank());
    }
  }
}

// Messages are made for the buffers' sizes, and graphs for their places.
TEST(Buffers, ThatChangedAreNamed) {
  const auto error = [](const std::function<void(BuffersImpl&)>& change) {
    auto net = std::make_shared<BuffersImpl>();
    auto ddp = Wrap(net);
    ddp->forward(Batch()).sum().backward();
    change(*net);
    return ErrorOf([&] { ddp->forward(Batch()); });
  };
  EXPECT_THAT(error([](BuffersImpl& net) { net.wide.set_data(at::zeros({2}, at::kLong)); }),
              HasSubstr("buffer \"wide\" was wrapped as Long [] on cpu, but is Long [2] on cpu now"));
  EXPECT_THAT(error([](BuffersImpl& net) { net.bytes.set_data(at::zeros({3}, at::kInt)); }),
              HasSubstr("buffer \"bytes\" was wrapped as Char [3] on cpu, but is Int [3] on cpu now"));
  EXPECT_THAT(error([](BuffersImpl& net) { net.permuted.set_data(net.permuted.contiguous()); }),
              HasSubstr("buffer \"permuted\" was wrapped with strides [1, 3], but has [2, 1] now"));
  EXPECT_THAT(error([](BuffersImpl& net) { net.sliced.resize_({2}); }), HasSubstr("buffer \"sliced\" was wrapped as Double [3]"));
  // What it holds may change, and where that lies.
  EXPECT_EQ(error([](BuffersImpl& net) { net.wide.set_data(at::full({}, 9, at::kLong)); }), "");
}

TEST(Buffers, ReplacedOnesAreNamed) {
  struct OnlyBuffersImpl : torch::nn::Module {
    explicit OnlyBuffersImpl(bool more) {
      register_buffer("count", at::zeros({1}));
      if (more) register_buffer("mask", at::zeros({1}));
    }
  };
  auto net = std::make_shared<NetImpl>();
  net->register_module("counts", std::make_shared<OnlyBuffersImpl>(true));
  auto ddp = Wrap(net);
  ddp->forward(Batch()).sum().backward();
  net->replace_module("counts", std::make_shared<OnlyBuffersImpl>(true));
  EXPECT_THAT(ErrorOf([&] { ddp->forward(Batch()); }), HasSubstr("buffer \"counts.count\" has been replaced"));
  net->replace_module("counts", std::make_shared<OnlyBuffersImpl>(false));
  EXPECT_THAT(ErrorOf([&] { ddp->forward(Batch()); }), HasSubstr("buffer \"counts."));
}

TEST(Buffers, AreRank0sBeforeEachForward) {
  auto net = std::make_shared<BuffersImpl>();
  auto ddp = Wrap(net);
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(net->wide.item().toLong(), 1 + step);
    EXPECT_EQ(net->bytes[2].item().toLong(), 1 + step);
    EXPECT_TRUE(net->flag.all().item().toBool());
    EXPECT_TRUE(at::equal(net->permuted, at::arange(6, at::kFloat).reshape({2, 3}).t()));
    EXPECT_TRUE(at::equal(net->sliced, at::arange(8, at::kDouble).slice(0, 1, 8, 3)));
    EXPECT_EQ(net->complex[1].item().toComplexFloat(), c10::complex<float>(1, 1));
    EXPECT_EQ(net->conjugate[1].item().toComplexFloat(), c10::complex<float>(1, -1));
    EXPECT_EQ(net->large.to(at::kLong)[1].item().toLong(), 1);
    if (Rank() != 0) net->permuted.add_(1), net->flag.zero_();
    net->wide.add_(1 + Rank());
    net->bytes.add_(1 + Rank());
    ddp->forward(Batch()).sum().backward();
  }
  {
    const NoSyncScope scope = ddp->no_sync();
    net->wide.fill_(Rank());
    ddp->forward(Batch()).sum().backward();
    EXPECT_EQ(net->wide.item().toLong(), Rank());
  }
  DdpOptions own;
  own.broadcast_buffers = false;
  ddp.reset();
  ddp = Wrap(net, own);
  net->wide.fill_(Rank());
  ddp->forward(Batch()).sum().backward();
  EXPECT_EQ(net->wide.item().toLong(), Rank());
}

// A batch norm in evaluation mode saves its running statistics for the backward.
struct NormImpl : torch::nn::Module {
  NormImpl() {
    register_module("norm", norm);
    norm->eval();
  }
  at::Tensor forward(const at::Tensor& x) { return norm->forward(x); }
  torch::nn::BatchNorm1d norm{4};
};

TEST(Buffers, BroadcastsLeaveSavedOnesUsable) {
  auto net = std::make_shared<NormImpl>();
  auto ddp = Wrap(net);
  const at::Tensor first = ddp->forward(Batch()).sum();
  const at::Tensor second = ddp->forward(Batch()).sum();
  first.backward();
  second.backward();
  EXPECT_EQ(ddp->core().CheckGradientsEqual(), absl::OkStatus());
}

TEST(Create, RefusesWhatCannotBeSynchronisedOnAllRanks) {
  Net net;
  net->register_buffer("expanded", at::ones({1}).expand({4}));
  EXPECT_THAT(Refused(net), AllOf(HasSubstr("\"expanded\""), HasSubstr("several elements in one place")));

  Net tiny;
  tiny->register_parameter("tiny", at::ones({4}).to(at::kFloat8_e4m3fn).requires_grad_());
  EXPECT_THAT(Refused(tiny), AllOf(HasSubstr("\"tiny\""), HasSubstr("Float8_e4m3fn can't be summed over ranks")));

  Net overlapping;
  const at::Tensor memory = at::ones({6});
  overlapping->register_parameter("a", memory.narrow(0, 0, 4).detach());
  overlapping->register_parameter("b", memory.narrow(0, 2, 4).detach());
  EXPECT_THAT(Refused(overlapping), AllOf(HasSubstr("\"a\" and \"b\""), HasSubstr("overlaps")));

  Net layout;
  if (Rank() == 1) layout->first->weight.set_data(layout->first->weight.detach().t().contiguous().t());
  EXPECT_THAT(Refused(layout),
              AllOf(HasSubstr("rank 1"), HasSubstr("first.weight"), HasSubstr("strides [4, 1]"), HasSubstr("strides [1, 6]")));
}

TEST(Parameters, OfAnyLayoutAreTrained) {
  struct LayoutsImpl : torch::nn::Module {
    LayoutsImpl() {
      register_module("conv", conv);
      conv->weight.set_data(conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
      const at::Tensor memory = at::arange(20, at::kFloat).div(20);
      transposed = register_parameter("transposed", at::ones({2, 3}).t().detach());
      slice = register_parameter("slice", memory.slice(0, 0, 20, 5).detach());
      part = register_parameter("part", memory.narrow(0, 6, 4).detach());
      half = register_parameter("half", at::ones({3}, at::kHalf), /*requires_grad=*/false);
      table = register_parameter("table", at::ones({3}, at::kLong), /*requires_grad=*/false);
    }
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor y = conv->forward(x).sum({2, 3});
      return at::mm(at::mm(y, transposed.t()), transposed).sum() * (slice * part).sum();
    }
    torch::nn::Conv2d conv{torch::nn::Conv2dOptions(3, 2, 2)};
    at::Tensor transposed, slice, part, half, table;
  };
  auto net = std::make_shared<LayoutsImpl>();
  for (const bool view : {false, true}) {
    DdpOptions options;
    options.gradient_as_bucket_view = view;
    auto ddp = Wrap(net, options);
    const at::Tensor x = at::add(at::arange(54, at::kFloat).reshape({2, 3, 3, 3}).div(54), Rank());
    net->zero_grad();
    net->forward(x).backward();
    std::vector<at::Tensor> expected;
    for (const at::Tensor& parameter : net->parameters()) {
      if (parameter.requires_grad()) expected.push_back(MeanOverRanks(parameter.grad()));
    }
    net->zero_grad();
    ddp->forward(x).backward();
    std::size_t i = 0;
    for (const at::Tensor& parameter : net->parameters()) {
      if (!parameter.requires_grad()) continue;
      EXPECT_TRUE(at::allclose(parameter.grad(), expected[i])) << i;
      ++i;
    }
  }
}

TEST(Parameters, ReplacedAddedOrUnfrozenOnesAreRefused) {
  auto net = std::make_shared<NetImpl>();
  net->first->bias.set_requires_grad(false);
  auto ddp = Wrap(net);
  net->first->bias.set_requires_grad(true);
  EXPECT_THAT(ErrorOf([&] { ddp->forward(Batch()); }), AllOf(HasSubstr("\"first.bias\""), HasSubstr("requires_grad")));
  net->first->bias.set_requires_grad(false);
  ddp->forward(Batch()).sum().backward();
  const torch::nn::Linear old = net->second;
  net->second = net->replace_module("second", torch::nn::Linear(6, 2));
  EXPECT_THAT(ErrorOf([&] { ddp->forward(Batch()); }), AllOf(HasSubstr("\"second.weight\""), HasSubstr("replaced")));
  net->second = net->replace_module("second", old);
  ddp->forward(Batch()).sum().backward();
  net->first->register_buffer("mask", at::ones({1}));
  EXPECT_THAT(ErrorOf([&] { ddp->forward(Batch()); }), AllOf(HasSubstr("\"first.mask\""), HasSubstr("added")));
}

TEST(SparseGradients, AreRefusedByName) {
  struct LookupImpl : torch::nn::Module {
    LookupImpl() { table = register_parameter("table", at::ones({4, 2})); }
    at::Tensor forward(const at::Tensor& index) { return at::embedding(table, index, -1, false, /*sparse=*/true); }
    at::Tensor table;
  };
  for (const ExecutionMode mode : {ExecutionMode::kCompiled, ExecutionMode::kEager}) {
    DdpOptions options;
    options.mode = mode;
    auto ddp = Wrap(std::make_shared<LookupImpl>(), options);
    const at::Tensor loss = ddp->forward(at::arange(2)).sum();
    EXPECT_THAT(ErrorOf([&] { loss.backward(); }), AllOf(HasSubstr("\"table\""), HasSubstr("sparse gradient")));
  }
}

// The parts that a rank uses are its caller's to say.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    for (const char* name : {"a", "b", "c"}) register_parameter(name, at::ones({4, 2}));
  }
  at::Tensor forward(const at::Tensor& x, const std::string& used) {
    at::Tensor result = x.sum(1, true);
    for (const char letter : used) result = at::add(result, at::mm(x, named_parameters()[std::string(1, letter)]));
    return result;
  }
};

TEST(FindUnused, ARankThatUsesNothingContributesZeros) {
  DdpOptions options;
  options.find_unused_parameters = true;
  auto net = std::make_shared<BranchesImpl>();
  auto ddp = Wrap(net, options);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    ddp->forward(at::ones({1, 4}), std::string(Rank() == 0 ? "" : "ab")).sum().backward();
    const auto parameters = net->named_parameters();
    for (const char* used : {"a", "b"}) {
      ASSERT_TRUE(parameters[used].grad().defined());
      EXPECT_TRUE(at::equal(parameters[used].grad(), at::full({4, 2}, 0.5)));
    }
    EXPECT_FALSE(parameters["c"].grad().defined());
    optimizer.step();
  }
  EXPECT_TRUE(at::equal(net->named_parameters()["c"], at::ones({4, 2})));
}

TEST(FindUnused, OutputsThatTheLossLeavesOut) {
  struct TwoOutputsImpl : NetImpl {
    std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x) { return {first->forward(x), second->forward(at::ones({1, 6}))}; }
  };
  for (const bool is_static : {false, true}) {
    DdpOptions options;
    options.find_unused_parameters = !is_static;
    options.static_graph = is_static;
    auto net = std::make_shared<TwoOutputsImpl>();
    auto ddp = Wrap(net, options);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      ddp->forward(Batch()).first.sum().backward();
      EXPECT_TRUE(net->first->weight.grad().defined());
      EXPECT_FALSE(net->second->weight.grad().defined());
    }
  }
}

// One tensor under two names, which no forward uses.
struct UnusedTiedImpl : NetImpl {
  UnusedTiedImpl() {
    tied = register_parameter("tied", at::ones({6}));
    first->register_parameter("again", tied);
  }
  at::Tensor tied;
};

TEST(FindUnused, ATiedParameterThatIsNeverUsed) {
  for (const ExecutionMode mode : {ExecutionMode::kCompiled, ExecutionMode::kEager}) {
    for (const bool is_static : {false, true}) {
      for (const bool skip : {false, true}) {
        DdpOptions options;
        options.mode = mode;
        options.find_unused_parameters = !is_static;
        options.static_graph = is_static;
        options.skip_all_reduce_unused_params = skip;
        options.bucket_cap_mb = 20.0 / (1 << 20);
        auto net = std::make_shared<UnusedTiedImpl>();
        auto ddp = Wrap(net, options);
        torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          ddp->forward(Batch()).sum().backward();
          EXPECT_FALSE(net->tied.grad().defined());
          EXPECT_EQ(ddp->core().CheckGradientsEqual(), absl::OkStatus());
          optimizer.step();
        }
        EXPECT_TRUE(at::equal(net->tied, at::ones({6})));
        int times = 0;
        for (const auto& bucket : ddp->core().reducer_buckets()) {
          for (const std::string& name : bucket.parameters) times += name == "tied" || name == "first.again";
        }
        EXPECT_EQ(times, 1);
      }
    }
  }
}

TEST(Ignored, ParametersAndBuffersStayEachRanksOwn) {
  for (const ExecutionMode mode : {ExecutionMode::kCompiled, ExecutionMode::kEager}) {
    auto net = std::make_shared<NetImpl>();
    net->register_buffer("own", at::full({1}, Rank()));
    net->register_buffer("shared", at::full({1}, Rank()));
    net->first->bias.set_data(at::full({6}, 1.0 + Rank()));
    DdpOptions options;
    options.mode = mode;
    options.parameters_to_ignore = {"first.bias", "own"};
    auto ddp = Wrap(net, options);
    EXPECT_TRUE(at::equal(net->first->bias, at::full({6}, 1.0 + Rank())));
    EXPECT_EQ(net->named_buffers()["own"].item().toDouble(), Rank());
    EXPECT_EQ(net->named_buffers()["shared"].item().toDouble(), 0);
    net->zero_grad();
    net->forward(Batch()).sum().backward();
    const at::Tensor own = net->first->bias.grad().clone();
    const at::Tensor mean = MeanOverRanks(net->first->weight.grad());
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      net->named_buffers()["own"].fill_(3 + Rank());
      ddp->forward(Batch()).sum().backward();
      EXPECT_TRUE(at::allclose(net->first->bias.grad(), own));
      EXPECT_TRUE(at::allclose(net->first->weight.grad(), mean));
      EXPECT_EQ(net->named_buffers()["own"].item().toDouble(), 3 + Rank());
    }
    for (const auto& bucket : ddp->core().reducer_buckets()) EXPECT_THAT(bucket.parameters, Not(Contains("first.bias")));
    // Its own on each rank, so not compared.
    EXPECT_EQ(ddp->core().CheckParametersEqual(), absl::OkStatus());
  }
}

TEST(InitSync, FalseLeavesEachRankItsValues) {
  for (const bool sync : {false, true}) {
    auto net = std::make_shared<NetImpl>();
    net->first->bias.set_data(at::full({6}, 1.0 + Rank()));
    net->register_buffer("count", at::full({1}, 1.0 + Rank()));
    DdpOptions options;
    options.init_sync = sync;
    auto ddp = Wrap(net, options);
    EXPECT_TRUE(at::equal(net->first->bias, at::full({6}, sync ? 1.0 : 1.0 + Rank())));
    EXPECT_EQ(net->named_buffers()["count"].item().toDouble(), sync ? 1.0 : 1.0 + Rank());
    // Gradients are averaged all the same, and buffers synchronised in forward.
    ddp->forward(Batch()).sum().backward();
    EXPECT_EQ(ddp->core().CheckGradientsEqual(), absl::OkStatus());
    EXPECT_EQ(net->named_buffers()["count"].item().toDouble(), 1.0);
    // Shapes are compared without it too.
    auto other = std::make_shared<NetImpl>();
    if (Rank() == 1) other->register_parameter("more", at::ones({2}));
    EXPECT_THAT(Refused(other, options), HasSubstr("more"));
  }
}

TEST(StaticGraph, AChangeIsNamed) {
  DdpOptions options;
  options.static_graph = true;
  {
    auto ddp = Wrap(std::make_shared<BranchesImpl>(), options);
    ddp->forward(at::ones({1, 4}), std::string("a")).sum().backward();
    const at::Tensor more = ddp->forward(at::ones({1, 4}), std::string("ab")).sum();
    EXPECT_THAT(ErrorOf([&] { more.backward(); }), AllOf(HasSubstr("\"b\""), HasSubstr("static_graph")));
  }
  {
    auto ddp = Wrap(std::make_shared<BranchesImpl>(), options);
    ddp->forward(at::ones({1, 4}), std::string("ab")).sum().backward();
    const at::Tensor less = ddp->forward(at::ones({1, 4}), std::string("a")).sum();
    EXPECT_THAT(ErrorOf([&] { less.backward(); }), AllOf(HasSubstr("\"b\""), HasSubstr("not static")));
    EXPECT_THAT(ErrorOf([&] { ddp->forward(at::ones({1, 4}), std::string("ab")); }), HasSubstr("earlier backward failed"));
  }
}

TEST(StaticGraph, TwoForwardsAndThenTheirBackwards) {
  for (const bool one_backward : {false, true}) {
    DdpOptions options;
    options.static_graph = true;
    auto net = std::make_shared<BranchesImpl>();
    auto ddp = Wrap(net, options);
    const at::Tensor x = at::full({1, 4}, 1.0 + Rank());
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      const at::Tensor first = ddp->forward(x, std::string("ab")).sum();
      const at::Tensor second = ddp->forward(x * 3, std::string("ab")).sum();
      if (one_backward) {
        (first + second).backward();
      } else {
        first.backward();
        second.backward();
      }
      const auto parameters = net->named_parameters();
      for (const char* used : {"a", "b"}) EXPECT_TRUE(at::equal(parameters[used].grad(), at::full({4, 2}, 1.5 * 4))) << used << " " << step;
      EXPECT_FALSE(parameters["c"].grad().defined());
    }
  }
}

TEST(Backward, SeveralThroughOneForwardAreAllSynchronised) {
  for (const bool view : {false, true}) {
    DdpOptions options;
    options.gradient_as_bucket_view = view;
    Net net;
    auto ddp = Wrap(net, options);
    const at::Tensor expected = MeanOverRanks(OwnGradient(net, Batch()));
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      const at::Tensor loss = ddp->forward(Batch()).sum();
      for (int times = 1; times <= 3; ++times) {
        loss.backward({}, /*retain_graph=*/times < 3);
        EXPECT_TRUE(at::allclose(net->first->weight.grad(), at::mul(expected, times))) << times;
        EXPECT_EQ(ddp->core().CheckGradientsEqual(), absl::OkStatus());
      }
    }
  }
}

TEST(SkipUnused, ParametersUsedOnSomeRanksAreNamedAndOthersCostNothing) {
  DdpOptions options;
  options.find_unused_parameters = true;
  options.skip_all_reduce_unused_params = true;
  options.bucket_cap_mb = 0;
  {
    auto ddp = Wrap(std::make_shared<BranchesImpl>(), options);
    const at::Tensor loss = ddp->forward(at::ones({1, 4}), std::string(Rank() == 0 ? "ab" : "a")).sum();
    EXPECT_THAT(ErrorOf([&] { loss.backward(); }), AllOf(HasSubstr("\"b\""), HasSubstr("1 of 2 ranks")));
  }
  auto ddp = Wrap(std::make_shared<BranchesImpl>(), options);
  ddp->forward(at::ones({1, 4}), std::string("a")).sum().backward();
  const int64_t all = ddp->core().last_step().bytes;
  ddp->forward(at::ones({1, 4}), std::string("a")).sum().backward();
  EXPECT_EQ(all, 3 * 32);
  EXPECT_EQ(ddp->core().last_step().bytes, all - static_cast<int64_t>(32 * (ddp->core().reducer_buckets().size() - 1)));
}

TEST(BucketView, ZeroGradWorksBothWays) {
  Net net;
  DdpOptions options;
  options.gradient_as_bucket_view = true;
  auto ddp = Wrap(net, options);
  const at::Tensor expected = MeanOverRanks(OwnGradient(net, Batch()));
  torch::optim::SGD optimizer(net->parameters(), 0.0);
  for (const bool set_to_none : {false, true, false, true}) {
    ddp->forward(Batch()).sum().backward();
    EXPECT_TRUE(at::allclose(net->first->weight.grad(), expected));
    // One piece of memory for the gradients of a bucket.
    EXPECT_TRUE(net->first->weight.grad().is_alias_of(net->first->bias.grad()));
    optimizer.zero_grad(set_to_none);
  }
}

struct ScaleImpl : torch::nn::Module {
  explicit ScaleImpl(at::ScalarType dtype) { weight = register_parameter("weight", at::ones({2}, dtype)); }
  at::Tensor forward(const at::Tensor& x) { return at::mul(weight, x); }
  at::Tensor weight;
};

TEST(Precision, SumsOfLowPrecisionGradientsStayInRange) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    auto net = std::make_shared<ScaleImpl>(dtype);
    auto ddp = Wrap(net);
    ddp->forward(at::full({2}, 40000, dtype)).sum().backward();
    EXPECT_TRUE(at::allclose(net->weight.grad().to(at::kFloat), at::full({2}, 40000.0), 1e-2)) << net->weight.grad();
  }
}

TEST(Checks, NotFiniteGradientsNameTheRankAndTheParameter) {
  DdpOptions options;
  options.check_gradients_finite = true;
  auto ddp = Wrap(std::make_shared<ScaleImpl>(at::kFloat), options);
  ddp->forward(at::ones({2})).sum().backward();
  const at::Tensor loss = ddp->forward(at::full({2}, Rank() == 1 ? std::nan("") : 1.0)).sum();
  EXPECT_THAT(ErrorOf([&] { loss.backward(); }), AllOf(HasSubstr("\"weight\""), HasSubstr("rank 1 gave")));
  auto fp16 = Wrap(std::make_shared<ScaleImpl>(at::kFloat), options);
  ASSERT_EQ(fp16->RegisterCommHook(Fp16CompressHook()), absl::OkStatus());
  const at::Tensor big = fp16->forward(at::full({2}, 1e6)).sum();
  EXPECT_THAT(ErrorOf([&] { big.backward(); }), HasSubstr("precision"));
}

// Leaves each rank its own gradients, and says that it does not.
class LyingHook : public CommHook {
 public:
  std::string Name() const override { return "lying"; }
  CommFuture Run(const GradBucket& bucket) override { return CompletedFuture(bucket.buffer()); }
};

TEST(Checks, DifferentGradientsNameTheRankAndTheParameter) {
  DdpOptions options;
  options.check_gradients_equal_every = 2;
  auto ddp = Wrap(std::make_shared<ScaleImpl>(at::kFloat), options);
  ASSERT_EQ(ddp->RegisterCommHook(std::make_unique<LyingHook>()), absl::OkStatus());
  const at::Tensor x = at::full({2}, 1.0 + Rank());
  ddp->forward(x).sum().backward();
  EXPECT_THAT(std::string(ddp->core().CheckGradientsEqual().message()), AllOf(HasSubstr("gradient of weight"), HasSubstr("rank 1")));
  const at::Tensor loss = ddp->forward(x).sum();
  EXPECT_THAT(ErrorOf([&] { loss.backward(); }), AllOf(HasSubstr("gradient of weight"), HasSubstr("rank 1")));
}

TEST(SeveralModules, InOneProcess) {
  Net a, b;
  auto first = Wrap(a);
  auto second = Wrap(b);
  const at::Tensor own_a = MeanOverRanks(OwnGradient(a, Batch()));
  const at::Tensor own_b = MeanOverRanks(OwnGradient(b, at::add(Batch(), 1)));
  for (int step = 0; step < 2; ++step) {
    a->zero_grad();
    b->zero_grad();
    if (step == 0) {
      (first->forward(Batch()).sum() + second->forward(at::add(Batch(), 1)).sum()).backward();
    } else {
      const at::Tensor loss = first->forward(Batch()).sum();
      second->forward(at::add(Batch(), 1)).sum().backward();
      loss.backward();
    }
    EXPECT_TRUE(at::allclose(a->first->weight.grad(), own_a));
    EXPECT_TRUE(at::allclose(b->first->weight.grad(), own_b));
  }
  // Whose buckets fill in which order, ranks could not agree on.
  DdpOptions options;
  options.find_unused_parameters = true;
  auto third = Wrap(std::make_shared<BranchesImpl>(), options);
  const at::Tensor both = first->forward(Batch()).sum() + third->forward(at::ones({1, 4}), std::string("a")).sum();
  EXPECT_THAT(ErrorOf([&] { both.backward(); }), HasSubstr("another DistributedDataParallel"));
}

TEST(Autocast, AcrossPieces) {
  Net net;
  DdpOptions options;
  options.bucket_cap_mb = 9.0 / (1 << 20);
  auto ddp = Wrap(net, options);
  const auto with_autocast = [](const auto& call) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const at::Tensor result = call();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    return result;
  };
  const at::Tensor expected = with_autocast([&] { return net->forward(Batch()); });
  expected.sum().backward();
  const at::Tensor gradient = MeanOverRanks(net->first->weight.grad());
  net->zero_grad();
  for (int step = 0; step < 2; ++step) {
    net->zero_grad();
    const at::Tensor output = with_autocast([&] { return ddp->forward(Batch()); });
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(output, expected));
    output.sum().backward();
    EXPECT_TRUE(at::allclose(net->first->weight.grad(), gradient, 1e-2, 1e-3));
  }
  EXPECT_FALSE(ddp->core().runs_eagerly());
  EXPECT_GT(ddp->core().reducer_buckets().size(), 1u);
}

struct CallsItselfImpl : NetImpl {
  at::Tensor forward(const at::Tensor& x) { return wrapper != nullptr ? wrapper->forward(x) : NetImpl::forward(x); }
  DistributedDataParallel<std::shared_ptr<CallsItselfImpl>>* wrapper = nullptr;
};

TEST(Threads, OneForwardAtATime) {
  auto net = std::make_shared<CallsItselfImpl>();
  DdpOptions options;
  options.mode = ExecutionMode::kEager;
  auto ddp = Wrap(net, options);
  ddp->forward(Batch()).sum().backward();
  net->wrapper = ddp.get();
  EXPECT_THAT(ErrorOf([&] { ddp->forward(Batch()); }), HasSubstr("from within itself"));
  net->wrapper = nullptr;
  // Another thread may go on.
  std::thread([&] { ddp->forward(Batch()).sum().backward(); }).join();
  EXPECT_TRUE(ddp->core().last_step().synchronised);
}

// Waits within forward until it is let go.
struct WaitsImpl : NetImpl {
  at::Tensor forward(const at::Tensor& x) {
    if (waits) {
      entered.set_value();
      go.get_future().wait();
    }
    return NetImpl::forward(x);
  }
  bool waits = false;
  std::promise<void> entered, go;
};

TEST(Threads, ASecondOneMeanwhileIsRefused) {
  auto net = std::make_shared<WaitsImpl>();
  DdpOptions options;
  options.mode = ExecutionMode::kEager;
  auto ddp = Wrap(net, options);
  ddp->forward(Batch()).sum().backward();
  net->waits = true;
  std::thread thread([&] { ddp->forward(Batch()).sum().backward(); });
  net->entered.get_future().wait();
  EXPECT_THAT(ErrorOf([&] { ddp->forward(Batch()); }), HasSubstr("on a second thread while it runs on another"));
  net->go.set_value();
  thread.join();
  net->waits = false;
  ddp->forward(Batch()).sum().backward();
  EXPECT_TRUE(ddp->core().last_step().synchronised);
}

TEST(Statistics, SummaryAndLog) {
  DdpOptions options;
  options.step_log = absl::StrCat(std::getenv("TEST_TMPDIR"), "/steps.", getppid());
  const std::string path = absl::StrCat(options.step_log, ".rank", Rank(), ".jsonl");
  std::remove(path.c_str());
  auto ddp = Wrap(Net(), options);
  for (int step = 0; step < 3; ++step) ddp->forward(Batch()).sum().backward();
  const StepTiming& step = ddp->core().last_step();
  EXPECT_GT(step.forward_seconds(), 0);
  EXPECT_GE(step.backward_seconds(), step.exposed_seconds());
  EXPECT_GT(step.communication_seconds(), 0);
  EXPECT_EQ(ddp->core().summary().steps, 3);
  const auto table = ddp->core().SummarizeSteps();
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(*table, AllOf(HasSubstr("exposed ms"), HasSubstr("   0        3"), HasSubstr("   1        3")));
  std::ifstream file(path);
  std::string line;
  int lines = 0;
  while (std::getline(file, line)) {
    ++lines;
    const nlohmann::json entry = nlohmann::json::parse(line);
    EXPECT_EQ(entry.at("step"), lines);
    EXPECT_EQ(entry.at("rank"), Rank());
    EXPECT_EQ(entry.at("synchronised"), true);
    EXPECT_EQ(entry.at("bytes"), 176);
    EXPECT_EQ(entry.at("buckets"), ddp->core().reducer_buckets().size());
    for (const char* time : {"forward_s", "backward_s", "communication_s", "exposed_s"}) EXPECT_GE(entry.at(time).get<double>(), 0) << time;
    EXPECT_GE(entry.at("backward_s").get<double>(), entry.at("exposed_s").get<double>());
    EXPECT_EQ(entry.size(), 9u);
  }
  EXPECT_EQ(lines, 3);
  options.step_log = "/nowhere/at/all";
  EXPECT_THAT(Refused(Net(), options), HasSubstr("/nowhere/at/all"));
}

TEST(Statistics, ALogThatCannotBeWrittenEndsWithAWarning) {
  DdpOptions options;
  options.step_log = absl::StrCat(std::getenv("TEST_TMPDIR"), "/full.", getppid());
  const std::string path = absl::StrCat(options.step_log, ".rank", Rank(), ".jsonl");
  ASSERT_EQ(symlink("/dev/full", path.c_str()), 0);
  auto ddp = Wrap(Net(), options);
  ::testing::internal::CaptureStderr();
  for (int step = 0; step < 2; ++step) ddp->forward(Batch()).sum().backward();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr(absl::StrCat("\"", path, "\" can't be written: No space left on device; it ends with step 0")));
  EXPECT_EQ(said.find("can't be written"), said.rfind("can't be written"));  // once
  EXPECT_EQ(ddp->core().summary().steps, 2);
}

}  // namespace
}  // namespace ddpopt
