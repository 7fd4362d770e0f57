// One rank: what needs no second process. Run by the distributed macro with a world of one.

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "absl/strings/str_join.h"
#include "ddpopt/backends/backend.h"
#include "ddpopt/backends/registry.h"
#include "ddpopt/ddp/distributed_data_parallel.h"
#include "ddpopt/ddp/frozen_reducer.h"
#include "ddpopt/distributed/process_group.h"
#include "ddpopt/distributed/process_group_c10d.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"
#include "testing/distributed_test.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/linear.h"

namespace ddpopt {
namespace {

using testing::ErrorOf;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

const ProcessGroup& Group() { return testing::TestProcessGroup(); }

constexpr double kByte = 1.0 / (1024 * 1024);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second->forward(at::relu(first->forward(x))); }
  torch::nn::Linear first{4, 6};
  torch::nn::Linear second{6, 2};
};
TORCH_MODULE(Net);

template <typename N>
std::unique_ptr<DistributedDataParallel<N>> Wrap(N net, DdpOptions options = {}) {
  auto ddp = DistributedDataParallel<N>::Create(net, Group(), std::move(options));
  if (!ddp.ok()) ADD_FAILURE() << ddp.status();
  return ddp.ok() ? *std::move(ddp) : nullptr;
}

template <typename N>
std::string Refused(N net, DdpOptions options = {}) {
  const auto ddp = DistributedDataParallel<N>::Create(net, Group(), std::move(options));
  if (ddp.ok()) return "";
  EXPECT_EQ(ddp.status().code(), absl::StatusCode::kInvalidArgument) << ddp.status();
  return std::string(ddp.status().message());
}

at::Tensor Batch() { return at::arange(12, at::kFloat).reshape({3, 4}).div(10); }

TEST(Create, RefusesANullModule) {
  EXPECT_THAT(Refused(Net(nullptr)), HasSubstr("the module is null"));
  EXPECT_THAT(Refused(std::shared_ptr<NetImpl>()), HasSubstr("the module is null"));
}

struct FreeImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return at::matmul(x, weight); }
  at::Tensor weight;
};

TEST(Create, RefusesNothingToTrain) {
  EXPECT_THAT(Refused(std::make_shared<FreeImpl>()), HasSubstr("has no parameters"));
  Net net;
  for (at::Tensor& parameter : net->parameters()) parameter.set_requires_grad(false);
  EXPECT_THAT(Refused(net), HasSubstr("no trainable parameters"));
}

TEST(Create, TakesFrozenIntegerParametersAndRefusesComplexOnesByName) {
  Net net;
  net->register_parameter("table", at::ones({4, 2}, at::kLong), /*requires_grad=*/false);
  auto ddp = Wrap(net);
  ddp->forward(Batch()).sum().backward();
  Net other;
  other->register_parameter("phase", at::ones({2}, at::kComplexFloat));
  EXPECT_THAT(Refused(other), AllOf(HasSubstr("\"phase\""), HasSubstr("complex")));
}

TEST(Create, RefusesMetaParametersByName) {
  auto net = std::make_shared<FreeImpl>();
  net->weight = net->register_parameter("weight", at::empty({4, 2}, at::TensorOptions().device(at::kMeta)));
  EXPECT_THAT(Refused(net), AllOf(HasSubstr("\"weight\""), HasSubstr("has no data")));
}

TEST(Create, RefusesSparseEmbeddingGradients) {
  torch::nn::Embedding net(torch::nn::EmbeddingOptions(4, 2).sparse(true));
  EXPECT_THAT(Refused(net), HasSubstr("sparse"));
}

TEST(Create, RefusesWrappingTwiceUntilTheFirstIsGone) {
  Net net;
  auto ddp = Wrap(net);
  EXPECT_THAT(Refused(net), HasSubstr("wrapped in a DistributedDataParallel already"));
  EXPECT_THAT(Refused(net->first), AllOf(HasSubstr("\"weight\""), HasSubstr("another module")));
  ddp.reset();
  EXPECT_NE(Wrap(net), nullptr);
}

TEST(Create, RefusesBadCapsAndUnknownNames) {
  DdpOptions options;
  options.bucket_cap_mb = -1;
  EXPECT_THAT(Refused(Net(), options), HasSubstr("bucket_cap_mb"));
  options.bucket_cap_mb = 1;
  options.first_bucket_cap_mb = 2;
  EXPECT_THAT(Refused(Net(), options), HasSubstr("above"));
  options.bucket_cap_mb.reset();
  options.first_bucket_cap_mb = 26;
  EXPECT_THAT(Refused(Net(), options), HasSubstr("above"));
  DdpOptions ignoring;
  ignoring.parameters_to_ignore = {"third.weight"};
  EXPECT_THAT(Refused(Net(), ignoring), HasSubstr("\"third.weight\""));
}

TEST(Forward, EqualsEagerAndItsGradients) {
  Net net;
  const at::Tensor x = Batch();
  const at::Tensor expected = net->forward(x);
  expected.sum().backward();
  std::vector<at::Tensor> grads;
  for (at::Tensor& parameter : net->parameters()) {
    grads.push_back(parameter.grad().clone());
    parameter.mutable_grad() = at::Tensor();
  }
  auto ddp = Wrap(net);
  const at::Tensor output = ddp->forward(x);
  EXPECT_TRUE(at::allclose(output, expected));
  output.sum().backward();
  for (std::size_t i = 0; i < grads.size(); ++i) EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), grads[i])) << i;
  EXPECT_THAT(ddp->core().bucket_table(), HasSubstr("first.weight"));
}

TEST(Forward, WithoutGradientsIsEagerAndUncounted) {
  Net net;
  auto ddp = Wrap(net);
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(ddp->forward(Batch()), net->forward(Batch())));
    EXPECT_TRUE(at::equal(ddp->forward(at::ones({1, 4})), net->forward(at::ones({1, 4}))));
  }
  EXPECT_EQ(ddp->core().num_prepared_forwards(), 0);
  EXPECT_THAT(ddp->core().reducer_buckets(), IsEmpty());
  ddp->forward(Batch()).sum().backward();
  {
    const at::NoGradGuard no_grad;
    ddp->forward(at::ones({2, 4}));
  }
  ddp->forward(Batch()).sum().backward();
  EXPECT_EQ(ddp->core().num_prepared_forwards(), 2);
}

TEST(Guards, OtherCallsAreCapturedToo) {
  Net net;
  auto ddp = Wrap(net);
  const auto same = [&](const at::Tensor& x) {
    net->zero_grad();
    const at::Tensor loss = ddp->forward(x).sum();
    loss.backward();
    const at::Tensor grad = net->first->weight.grad().clone();
    net->zero_grad();
    const at::Tensor expected = net->forward(x).sum();
    expected.backward();
    EXPECT_TRUE(at::equal(loss, expected));
    EXPECT_TRUE(at::equal(grad, net->first->weight.grad()));
  };
  same(Batch());
  same(at::ones({5, 4}));
  same(at::ones({4, 3}).t());
  same(Batch().requires_grad_());
  EXPECT_EQ(ddp->core().num_recompiles(), 3);
  same(Batch());
  EXPECT_EQ(ddp->core().num_recompiles(), 3);
  EXPECT_THAT(ddp->core().explain(), AllOf(HasSubstr("shape [5, 4]"), HasSubstr("strides [1, 3]"), HasSubstr("requires_grad true")));
  // What eager refuses, the wrapper refuses.
  EXPECT_NE(ErrorOf([&] { ddp->forward(Batch().to(at::kDouble)); }), "");
  same(Batch());
  EXPECT_FALSE(ddp->core().runs_eagerly());
}

TEST(Guards, ATrainingModeThatChangedNamesTheSubmodule) {
  Net net;
  auto ddp = Wrap(net);
  ddp->forward(Batch()).sum().backward();
  net->second->eval();
  ddp->forward(Batch()).sum().backward();
  EXPECT_THAT(ddp->core().explain(), AllOf(HasSubstr("submodule \"second\""), HasSubstr("training mode"), HasSubstr("evaluation mode")));
  net->second->train();
  ddp->forward(Batch()).sum().backward();
  EXPECT_EQ(ddp->core().num_recompiles(), 1);
}

struct NestedImpl : NetImpl {
  std::pair<at::Tensor, std::vector<at::Tensor>> forward(const std::vector<at::Tensor>& in, double scale) {
    const at::Tensor hidden = first->forward(in[0]) * scale;
    return {second->forward(hidden), {hidden.exp(), in[0]}};
  }
};

TEST(Forward, TakesAndReturnsNestedValues) {
  auto net = std::make_shared<NestedImpl>();
  auto ddp = Wrap(net);
  for (const double scale : {0.5, 0.25, 0.5}) {
    net->zero_grad();
    const auto [y, rest] = ddp->forward(std::vector<at::Tensor>{Batch()}, scale);
    (y.sum() + rest[0].sum()).backward();
    const at::Tensor grad = net->first->weight.grad().clone();
    net->zero_grad();
    const auto [expected, expected_rest] = net->forward({Batch()}, scale);
    (expected.sum() + expected_rest[0].sum()).backward();
    EXPECT_TRUE(at::equal(y, expected));
    EXPECT_TRUE(at::equal(rest[1], Batch()));
    EXPECT_TRUE(at::equal(grad, net->first->weight.grad()));
  }
  EXPECT_EQ(ddp->core().num_recompiles(), 1);
}

struct CounterImpl : NetImpl {
  at::Tensor forward(const at::Tensor& x) { return NetImpl::forward(x) * scale; }
  double scale = 1;
};

TEST(HostState, IsFoundWhenItHasChanged) {
  auto net = std::make_shared<CounterImpl>();
  DdpOptions options;
  options.retrace_every = 1;
  auto ddp = Wrap(net, options);
  ddp->forward(Batch()).sum().backward();
  net->scale = 3;
  const at::Tensor y = ddp->forward(Batch());
  y.sum().backward();
  EXPECT_TRUE(at::equal(y, net->forward(Batch())));
  EXPECT_THAT(ddp->core().explain(), HasSubstr("%mul"));
  EXPECT_FALSE(ddp->core().runs_eagerly());
  net->scale = 4;
  const at::Tensor z = ddp->forward(Batch());
  z.sum().backward();
  EXPECT_TRUE(at::equal(z, net->forward(Batch())));
  EXPECT_TRUE(ddp->core().runs_eagerly());
}

TEST(Guards, RefuseAParameterThatWasFrozen) {
  Net net;
  auto ddp = Wrap(net);
  ddp->forward(Batch()).sum().backward();
  net->first->bias.set_requires_grad(false);
  EXPECT_THAT(ErrorOf([&] { ddp->forward(Batch()); }), AllOf(HasSubstr("\"first.bias\""), HasSubstr("requires_grad")));
}

at::Tensor TakeGradient(at::Tensor& parameter) {
  at::Tensor gradient = parameter.grad().clone();
  parameter.mutable_grad() = at::Tensor();
  return gradient;
}

TEST(Backward, OfSeveralForwardsOrNone) {
  Net net;
  auto ddp = Wrap(net);
  net->forward(Batch()).sum().backward();
  const at::Tensor one = TakeGradient(net->first->weight);
  net->zero_grad();
  const at::Tensor dropped = ddp->forward(Batch());
  (ddp->forward(Batch()).sum() + ddp->forward(Batch()).sum()).backward();
  EXPECT_TRUE(at::allclose(TakeGradient(net->first->weight), at::mul(one, 2)));
  net->zero_grad();
  // Once more through the same forward, and through the one that waited.
  const at::Tensor loss = ddp->forward(Batch()).sum();
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  dropped.sum().backward();
  EXPECT_TRUE(at::allclose(TakeGradient(net->first->weight), at::mul(one, 3)));
  EXPECT_EQ(ddp->core().num_prepared_forwards(), 4);
}

TEST(Backward, ForItsCallerAloneIsLeftToHim) {
  Net net;
  auto ddp = Wrap(net);
  const at::Tensor x = Batch().requires_grad_();
  const at::Tensor loss = ddp->forward(x).sum();
  const at::Tensor gradient = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true)[0];
  EXPECT_TRUE(gradient.defined());
  EXPECT_FALSE(net->first->weight.grad().defined());
  EXPECT_EQ(ddp->core().summary().steps, 0);
  loss.backward();
  EXPECT_TRUE(ddp->core().last_step().synchronised);
}

TEST(Backward, WithCreateGraphIsRefusedWhereItSynchronises) {
  for (const ExecutionMode mode : {ExecutionMode::kCompiled, ExecutionMode::kEager}) {
    Net net;
    DdpOptions options;
    options.mode = mode;
    auto ddp = Wrap(net, options);
    const auto backward = [&] { ddp->forward(Batch()).pow(2).sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true); };
    EXPECT_THAT(ErrorOf(backward), HasSubstr("create_graph")) << static_cast<int>(mode);
  }
}

TEST(Backward, OfADestroyedWrapperIsAnError) {
  Net net;
  auto ddp = Wrap(net);
  const at::Tensor loss = ddp->forward(Batch()).sum();
  ddp.reset();
  EXPECT_THAT(ErrorOf([&] { loss.backward(); }), HasSubstr("destroyed"));
}

TEST(Backward, ByAnotherPathInBetweenIsSynchronisedToo) {
  Net net;
  auto ddp = Wrap(net);
  const at::Tensor loss = ddp->forward(Batch()).sum();
  net->forward(Batch()).sum().backward();
  const at::Tensor one = net->first->weight.grad().clone();
  EXPECT_TRUE(ddp->core().last_step().synchronised);
  loss.backward();
  EXPECT_TRUE(at::allclose(net->first->weight.grad(), at::mul(one, 2)));
}

struct SideLossImpl : NetImpl {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = NetImpl::forward(x);
    loss = y.sum();
    return y;
  }
  at::Tensor loss;
};

TEST(Backward, OfALossThatForwardKeeps) {
  auto net = std::make_shared<SideLossImpl>();
  DdpOptions options;
  options.mode = ExecutionMode::kEager;
  auto ddp = Wrap(net, options);
  for (int step = 0; step < 2; ++step) {
    ddp->forward(Batch());
    net->loss.backward();
    EXPECT_TRUE(ddp->core().last_step().synchronised);
  }
}

struct UnusedImpl : NetImpl {
  UnusedImpl() { spare = register_parameter("spare", at::ones({3})); }
  at::Tensor spare;
};

TEST(Backward, WithoutAParametersGradientIsAnErrorNamingIt) {
  auto net = std::make_shared<UnusedImpl>();
  auto ddp = Wrap(net);
  const at::Tensor loss = ddp->forward(Batch()).sum();
  EXPECT_THAT(ErrorOf([&] { loss.backward(); }), HasSubstr("parameter \"spare\" got no gradient in this backward"));
  EXPECT_THAT(ErrorOf([&] { ddp->forward(Batch()); }), AllOf(HasSubstr("an earlier backward failed"), HasSubstr("\"spare\"")));
}

TEST(Backward, LeavesIgnoredParametersAlone) {
  auto net = std::make_shared<UnusedImpl>();
  DdpOptions options;
  options.parameters_to_ignore = {"spare", "first.bias"};
  auto ddp = Wrap(net, options);
  ddp->forward(Batch()).sum().backward();
  EXPECT_TRUE(net->first->bias.grad().defined());  // The engine's own.
  for (const DdpCore::ReducerBucket& bucket : ddp->core().reducer_buckets()) {
    EXPECT_THAT(bucket.parameters, ::testing::Not(::testing::Contains("first.bias")));
  }
}

struct TwoWeightsImpl : torch::nn::Module {
  TwoWeightsImpl() {
    a = register_parameter("a", at::ones({4, 4}).div(8));
    b = register_parameter("b", at::ones({4, 4}).div(4));
  }
  at::Tensor forward(const at::Tensor& x) { return at::mm(at::relu(at::mm(x, a)), b); }
  at::Tensor a, b;
};

// DDPOPT_BACKEND for as long as it lives.
class Rung {
 public:
  explicit Rung(const char* name) { setenv(kBackendVariable, name, /*overwrite=*/1); }
  ~Rung() { unsetenv(kBackendVariable); }
};

TEST(Ladder, TheEnvironmentChoosesTheBackend) {
  static int compiled = 0;
  ASSERT_TRUE(RegisterBackend("counting",
                              [] {
                                return [](std::shared_ptr<const fx::GraphModule> piece, const std::vector<c10::IValue>& inputs,
                                          const CompileContext& context) {
                                  ++compiled;
                                  return EagerBackend()(std::move(piece), inputs, context);
                                };
                              })
                  .ok());
  const Rung rung("counting");
  Net net;
  auto ddp = Wrap(net);
  ddp->forward(Batch()).sum().backward();
  EXPECT_GT(compiled, 0);
  EXPECT_FALSE(ddp->core().runs_eagerly());
  compiled = 0;
  DdpOptions eager;
  eager.mode = ExecutionMode::kEager;
  auto stays = Wrap(Net(), eager);
  stays->forward(Batch()).sum().backward();
  EXPECT_EQ(compiled, 0);
  EXPECT_TRUE(stays->core().runs_eagerly());
}

TEST(Ladder, OffRunsTheModulesOwnForwardWhateverTheBackend) {
  const Rung rung("off");
  DdpOptions options;
  options.backend = [](std::shared_ptr<const fx::GraphModule>, const std::vector<c10::IValue>&,
                       const CompileContext&) -> absl::StatusOr<std::shared_ptr<const CompiledPiece>> {
    return absl::InternalError("not to be called");
  };
  Net net;
  auto ddp = Wrap(net, options);
  ddp->forward(Batch()).sum().backward();
  EXPECT_TRUE(ddp->core().runs_eagerly());
  EXPECT_TRUE(net->first->weight.grad().defined());
}

TEST(Ladder, AnUnknownRungIsAnErrorThatNamesTheKnownOnes) {
  const Rung rung("inductor");
  const auto ddp = DistributedDataParallel<Net>::Create(Net(), Group());
  ASSERT_EQ(ddp.status().code(), absl::StatusCode::kNotFound) << ddp.status();
  EXPECT_THAT(std::string(ddp.status().message()),
              AllOf(HasSubstr("DDPOPT_BACKEND"), HasSubstr("inductor"), HasSubstr("aot_eager"), HasSubstr("off")));
}

TEST(Buckets, AreCutAtTheCap) {
  constexpr int64_t kWeightBytes = 64;
  for (const int64_t cap : {kWeightBytes - 1, kWeightBytes, kWeightBytes + 1}) {
    auto net = std::make_shared<TwoWeightsImpl>();
    DdpOptions options;
    options.bucket_cap_mb = static_cast<double>(cap) * kByte;
    auto ddp = Wrap(net, options);
    ddp->forward(Batch()).sum().backward();
    const auto buckets = ddp->core().reducer_buckets();
    if (cap <= kWeightBytes) {
      ASSERT_EQ(buckets.size(), 2u) << cap;
      EXPECT_THAT(buckets[0].parameters, ElementsAre("b"));
      EXPECT_THAT(buckets[1].parameters, ElementsAre("a"));
      EXPECT_EQ(buckets[0].bytes, kWeightBytes);
    } else {
      ASSERT_EQ(buckets.size(), 1u) << cap;
      EXPECT_THAT(buckets[0].parameters, ElementsAre("b", "a"));
    }
  }
}

// x a, relu, x b, relu, ... of 64 bytes each.
struct FourImpl : torch::nn::Module {
  FourImpl() {
    for (int i = 0; i < 4; ++i) w.push_back(register_parameter(std::string(1, static_cast<char>('a' + i)), at::ones({4, 4}).div(8)));
  }
  at::Tensor forward(at::Tensor x) {
    for (const at::Tensor& weight : w) x = at::relu(at::mm(x, weight));
    return x;
  }
  std::vector<at::Tensor> w;
};

TEST(Buckets, FirstCapHoldsForTheFirstReducedBucketOnly) {
  DdpOptions options;
  options.bucket_cap_mb = 65 * kByte;
  options.first_bucket_cap_mb = 64 * kByte;
  auto ddp = Wrap(std::make_shared<FourImpl>(), options);
  ddp->forward(Batch()).sum().backward();
  const auto buckets = ddp->core().reducer_buckets();
  ASSERT_EQ(buckets.size(), 3u) << ddp->core().bucket_table();
  EXPECT_THAT(buckets[0].parameters, ElementsAre("d"));
  EXPECT_THAT(buckets[1].parameters, ElementsAre("c", "b"));
  EXPECT_THAT(buckets[2].parameters, ElementsAre("a"));
}

TEST(Buckets, HaveCapsOfTheirOwnOrEndWhereTheUserSays) {
  const auto parameters = [](const DdpOptions& options) {
    auto ddp = Wrap(std::make_shared<FourImpl>(), options);
    ddp->forward(Batch()).sum().backward();
    std::vector<std::string> result;
    for (const auto& bucket : ddp->core().reducer_buckets()) result.push_back(absl::StrJoin(bucket.parameters, " "));
    return result;
  };
  DdpOptions list;
  list.bucket_cap_mb_list = {65 * kByte, 64 * kByte};
  EXPECT_THAT(parameters(list), ElementsAre("d c", "b", "a"));
  DdpOptions ends;
  ends.bucket_ends = {"a", "parameter:c"};
  EXPECT_THAT(parameters(ends), ElementsAre("d", "c b", "a"));

  list.bucket_cap_mb = 1;
  EXPECT_THAT(Refused(Net(), list), HasSubstr("bucket_cap_bytes_list"));
  list.bucket_cap_mb.reset();
  list.bucket_cap_mb_list = {1, -2};
  EXPECT_THAT(Refused(Net(), list), AllOf(HasSubstr("bucket_cap_mb_list[1]"), HasSubstr("-2")));
}

TEST(Buckets, OfMixedDtypesAreSplitForTheReducer) {
  struct MixedImpl : torch::nn::Module {
    MixedImpl() {
      a = register_parameter("a", at::ones({4, 4}));
      b = register_parameter("b", at::ones({4, 4}, at::kDouble));
    }
    at::Tensor forward(const at::Tensor& x, const at::Tensor& y) { return at::add(at::mm(x, a), at::mm(y, b)); }
    at::Tensor a, b;
  };
  auto net = std::make_shared<MixedImpl>();
  auto ddp = Wrap(net);
  ddp->forward(Batch(), Batch().to(at::kDouble)).sum().backward();
  const auto buckets = ddp->core().reducer_buckets();
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[0].bytes + buckets[1].bytes, 64 + 128);
  EXPECT_TRUE(net->a.grad().defined());
  EXPECT_TRUE(net->b.grad().defined());
}

TEST(Buckets, CountATiedParameterOnce) {
  struct TiedImpl : torch::nn::Module {
    TiedImpl() {
      a = register_parameter("a", at::ones({4, 4}).div(4));
      b = register_parameter("b", a);
    }
    at::Tensor forward(const at::Tensor& x) { return at::mm(at::relu(at::mm(x, a)), b); }
    at::Tensor a, b;
  };
  auto net = std::make_shared<TiedImpl>();
  auto ddp = Wrap(net);
  ddp->forward(Batch()).sum().backward();
  const auto buckets = ddp->core().reducer_buckets();
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].bytes, 64);
}

TEST(Capture, RefusesAnOperatorWithoutAFakeRuleByName) {
  struct StrangeImpl : TwoWeightsImpl {
    at::Tensor forward(const at::Tensor& x) { return at::add(at::mm(x, a), at::nonzero(at::mm(x, b)).sum()); }
  };
  DdpOptions options;
  options.eager_fallback = false;
  auto ddp = Wrap(std::make_shared<StrangeImpl>(), options);
  EXPECT_THAT(ErrorOf([&] { ddp->forward(Batch()); }), HasSubstr("nonzero"));
}

TEST(Capture, RefusesToReadData) {
  struct ReaderImpl : TwoWeightsImpl {
    at::Tensor forward(const at::Tensor& x) { return at::mul(at::mm(at::mm(x, a), b), at::mm(x, b).sum().item().toDouble()); }
  };
  DdpOptions options;
  options.eager_fallback = false;
  auto refusing = Wrap(std::make_shared<ReaderImpl>(), options);
  EXPECT_NE(ErrorOf([&] { refusing->forward(Batch()); }), "");
  // By default it trains as it is.
  auto net = std::make_shared<ReaderImpl>();
  auto ddp = Wrap(net);
  for (int step = 0; step < 2; ++step) {
    net->zero_grad();
    ddp->forward(Batch()).sum().backward();
    const at::Tensor a = net->a.grad().clone();
    net->a.mutable_grad() = at::Tensor();
    net->forward(Batch()).sum().backward();
    EXPECT_TRUE(at::equal(a, net->a.grad()));
  }
}

// What a wrapper does around a backward, for the Reducer alone.
void RunBackward(FrozenReducer& reducer, const at::Tensor& loss) {
  loss.register_hook([&](const at::Tensor&) {
    reducer.EnterBackward();
    reducer.Synchronise();
    EXPECT_FALSE(reducer.Finished());
    torch::autograd::Engine::get_default_engine().queue_callback([&reducer] { reducer.EndOfGraph(); });
  });
  loss.backward();
}

TEST(FrozenReducer, KeepsItsBucketsAndNamesWhatIsMissing) {
  const at::Tensor a = at::ones({2}).requires_grad_();
  const at::Tensor b = at::ones({3}).requires_grad_();
  FrozenReducer reducer({a, b}, {"a", "b"}, {{1}, {0}}, Group().impl()->group, {}, AllReduceHook());
  for (int step = 0; step < 5; ++step) {
    reducer.CountForward();
    RunBackward(reducer, at::add(a.sum(), b.sum()));
    EXPECT_TRUE(reducer.Finished());
    EXPECT_EQ(reducer.EndBackward(), "");
    EXPECT_THAT(reducer.MissingParameters(), IsEmpty());
    EXPECT_EQ(reducer.RebuildListSize(), 0u);
    EXPECT_FALSE(reducer.rebuild_buckets());
    ASSERT_EQ(reducer.Buckets().size(), 2u);
    EXPECT_THAT(reducer.Buckets()[0].indices, ElementsAre(1u));
    EXPECT_EQ(reducer.Buckets()[0].bytes, 12);
    EXPECT_EQ(reducer.BytesSent(), 20);
    for (const FrozenReducer::Times& times : reducer.BucketTimes()) {
      EXPECT_LE(times.launched.Seconds(times.launched), times.finished.Seconds(times.launched));
    }
  }
  EXPECT_EQ(reducer.NumForwards(), 5);
  RunBackward(reducer, b.sum());
  EXPECT_FALSE(reducer.Finished());
  EXPECT_THAT(reducer.MissingParameters(), ElementsAre("a"));
}

}  // namespace
}  // namespace ddpopt
