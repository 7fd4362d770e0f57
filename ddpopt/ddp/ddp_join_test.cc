// On two and three ranks: inputs of which ranks have different numbers.

#include <algorithm>
#include <functional>
#include <map>
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
#include "torch/csrc/autograd/autograd.h"
#include "torch/nn/modules/linear.h"

namespace ddpopt {
namespace {

using testing::ErrorOf;
using ::testing::HasSubstr;

const ProcessGroup& Group() { return testing::TestProcessGroup(); }
int Rank() { return Group().rank(); }
int World() { return Group().world_size(); }

template <typename N>
std::unique_ptr<DistributedDataParallel<N>> Wrap(N net, DdpOptions options = {}) {
  auto ddp = DistributedDataParallel<N>::Create(net, Group(), std::move(options));
  if (!ddp.ok()) ADD_FAILURE() << ddp.status();
  return ddp.ok() ? *std::move(ddp) : nullptr;
}

struct ScaleImpl : torch::nn::Module {
  explicit ScaleImpl(at::ScalarType dtype) { weight = register_parameter("weight", at::ones({2}, dtype)); }
  at::Tensor forward(const at::Tensor& x) { return at::mul(weight, x); }
  at::Tensor weight;
};

// Rank 0 has two inputs, the others four.
TEST(Join, RanksWithoutInputsTakePart) {
  if (World() != 2) GTEST_SKIP() << "counted for two ranks";
  for (const bool by_initial : {true, false}) {
    for (const bool find_unused : {false, true}) {
      auto net = std::make_shared<ScaleImpl>(at::kFloat);
      net->register_buffer("count", at::zeros({1}));
      DdpOptions options;
      options.find_unused_parameters = find_unused;
      auto ddp = Wrap(net, options);
      JoinOptions join_options;
      join_options.divide_by_initial_world_size = by_initial;
      auto join = ddp->join(join_options);
      ASSERT_TRUE(join.ok()) << join.status();
      EXPECT_EQ(ddp->join().status().code(), absl::StatusCode::kFailedPrecondition);
      for (int step = 0; step < (Rank() == 0 ? 2 : 4); ++step) {
        net->zero_grad();
        ddp->forward(at::full({2}, 1.0 + Rank())).sum().backward();
        const double expected = step < 2 ? 1.5 : by_initial ? 1.0 : 2.0;
        EXPECT_TRUE(at::equal(net->weight.grad(), at::full({2}, expected))) << step;
        const at::NoGradGuard no_grad;
        net->weight.sub_(net->weight.grad());
        if (step == 3) net->named_buffers()["count"].add_(7);
      }
      (*join)->Finish();
      EXPECT_TRUE(at::equal(net->weight, at::full({2}, by_initial ? -4.0 : -6.0)));
      EXPECT_EQ(net->named_buffers()["count"].item().toDouble(), 7);
      EXPECT_EQ(ddp->core().CheckParametersEqual(), absl::OkStatus());
      // Afterwards as before.
      net->zero_grad();
      ddp->forward(at::full({2}, 1.0 + Rank())).sum().backward();
      EXPECT_TRUE(at::equal(net->weight.grad(), at::full({2}, 1.5)));
    }
  }
}

TEST(Join, WhatItRefuses) {
  if (World() != 2) GTEST_SKIP() << "for two ranks";
  {
    auto ddp = Wrap(std::make_shared<ScaleImpl>(at::kFloat));
    JoinOptions options;
    options.throw_on_early_termination = true;
    auto join = ddp->join(options);
    ddp->forward(at::ones({2})).sum().backward();
    const std::string error = Rank() == 0 ? ErrorOf([&] { (*join)->Finish(); }) : ErrorOf([&] { ddp->forward(at::ones({2})); });
    EXPECT_THAT(error, HasSubstr("rank 0 has no more inputs"));
    // The scope is over, and the wrapper as it was.
    join->reset();
    ddp->forward(at::ones({2})).sum().backward();
    EXPECT_TRUE(ddp->core().last_step().synchronised);
  }
  {
    auto ddp = Wrap(std::make_shared<ScaleImpl>(at::kFloat));
    auto join = ddp->join();
    const std::string error = Rank() == 0 ? ErrorOf([&] { (*join)->Finish(); }) : ErrorOf([&] { ddp->forward(at::ones({2})); });
    EXPECT_THAT(error, HasSubstr("rank 0 had no input at all"));
  }
  {
    auto ddp = Wrap(std::make_shared<ScaleImpl>(at::kFloat));
    auto join = ddp->join();
    const at::Tensor loss = ddp->forward(at::ones({2})).sum();
    EXPECT_THAT(ErrorOf([&] { ddp->forward(at::ones({2})); }), HasSubstr("each forward has exactly one"));
    EXPECT_THAT(ErrorOf([&] { (*join)->Finish(); }), HasSubstr("each forward has exactly one"));
    loss.backward();
    (*join)->Finish();
    EXPECT_THAT(ErrorOf([&] { (*join)->Finish(); }), HasSubstr("the scope has ended already"));
    auto again = ddp->join();
    ASSERT_TRUE(again.ok()) << again.status();
    auto other = Wrap(std::make_shared<ScaleImpl>(at::kFloat));
    EXPECT_THAT(std::string(other->join().status().message()), HasSubstr("of another DistributedDataParallel of this process group is open"));
    ddp.reset();
    EXPECT_EQ(other->join().status(), absl::OkStatus());
    EXPECT_THAT(ErrorOf([&] { (*again)->Finish(); }), HasSubstr("the wrapper has been destroyed"));
  }
  DdpOptions checks;
  checks.check_gradients_finite = true;
  EXPECT_EQ(Wrap(std::make_shared<ScaleImpl>(at::kFloat), checks)->join().status().code(), absl::StatusCode::kInvalidArgument);
}

// A branch of its own, which some leave out, and a buffer that counts.
struct BranchesNetImpl : torch::nn::Module {
  BranchesNetImpl() {
    register_module("first", first);
    register_module("branch", branch);
    register_module("second", second);
    register_module("last", last);
    seen = register_buffer("seen", at::zeros({1}));
  }
  at::Tensor forward(const at::Tensor& x, bool use_branch) {
    seen.add_(1);
    at::Tensor h = at::tanh(first->forward(x));
    if (use_branch) h = at::tanh(branch->forward(h));
    return last->forward(at::tanh(second->forward(h)));
  }
  torch::nn::Linear first{4, 6}, branch{6, 6}, second{6, 6}, last{6, 2};
  at::Tensor seen;
};
TORCH_MODULE(BranchesNet);

at::Tensor Input(int rank, int n) {
  return at::sin(at::add(at::arange(12, at::kFloat).reshape({3, 4}).mul(1.3), 7 * rank + 3 * n));
}

// Sums first, then divides: what it is given must be what is to be summed.
class SumHook : public CommHook {
 public:
  std::string Name() const override { return "sum"; }
  CommFuture Run(const GradBucket& bucket) override {
    const double divisor = static_cast<double>(bucket.divisor());
    return ThenCompute(bucket.AllReduceSum(bucket.buffer().clone()), [divisor](const at::Tensor& sum) { return sum.div(divisor); });
  }
};

struct Case {
  ExecutionMode mode = ExecutionMode::kCompiled;
  bool by_initial = true;
  bool static_graph = false, find_unused = false, skip_unused = false, bucket_view = false;
  bool sync_buffers = true;
  bool clears = true;  // gradients before each synchronised step
  int no_sync = 0;     // forwards within no_sync before each that is not
  bool fp16 = false, own_hook = false;

  bool MayLeaveOut() const { return static_graph || find_unused; }
  bool UsesBranch(int rank, int n) const {
    if (!MayLeaveOut()) return true;
    if (skip_unused) return false;
    return static_graph ? rank == 0 : (rank + n) % 2 == 0;
  }
  std::string ToString() const {
    return absl::StrCat("mode ", static_cast<int>(mode), ", by_initial ", by_initial, ", static_graph ", static_graph, ", find_unused ",
                        find_unused, ", skip_unused ", skip_unused, ", bucket_view ", bucket_view, ", sync_buffers ", sync_buffers,
                        ", clears ", clears, ", no_sync ", no_sync, ", fp16 ", fp16, ", own_hook ", own_hook);
  }
};

// How many inputs a rank has. Where forwards are accumulated, rank 0's end within such a round.
int Inputs(int rank, const Case& c) { return c.no_sync == 0 ? 1 + 2 * rank : 3 + 3 * rank; }

// Against the definition: each synchronised step adds, to what gradients hold, the sum of what ranks have accumulated since the last one,
// divided by all ranks or by those that train.
void Train(const Case& c) {
  SCOPED_TRACE(c.ToString());
  at::manual_seed(3);
  BranchesNet net, alone;
  for (const auto& item : net->named_parameters()) {
    const at::NoGradGuard no_grad;
    alone->named_parameters()[item.key()].copy_(item.value());
  }
  DdpOptions options;
  options.bucket_cap_mb = 100.0 / (1 << 20);
  options.mode = c.mode;
  options.eager_fallback = false;
  options.static_graph = c.static_graph;
  options.find_unused_parameters = c.find_unused;
  options.skip_all_reduce_unused_params = c.skip_unused;
  options.gradient_as_bucket_view = c.bucket_view;
  options.forward_sync_buffers = c.sync_buffers;
  auto ddp = Wrap(net, options);
  if (c.fp16 || c.own_hook) {
    ASSERT_EQ(ddp->RegisterCommHook(c.fp16 ? Fp16CompressHook() : std::make_unique<SumHook>()), absl::OkStatus());
  }
  const double tolerance = c.fp16 ? 1e-2 : 1e-5;
  JoinOptions join_options;
  join_options.divide_by_initial_world_size = c.by_initial;
  auto join = ddp->join(join_options);
  ASSERT_TRUE(join.ok()) << join.status();

  const std::vector<at::Tensor> theirs = alone->parameters();
  std::vector<at::Tensor> pending(theirs.size());  // what is accumulated, of all ranks
  int most = 0;
  for (int rank = 0; rank < World(); ++rank) most = std::max(most, Inputs(rank, c));
  for (int n = 0; n < most; ++n) {
    const bool synchronised = n % (c.no_sync + 1) == c.no_sync;
    const bool mine = n < Inputs(Rank(), c);
    if (n % (c.no_sync + 1) == 0 && c.clears) {
      if (mine) net->zero_grad(/*set_to_none=*/n % 2 == 0);
      // The reference's are cleared as those of the ranks that train.
      alone->zero_grad();
    }
    if (mine) {
      std::unique_ptr<NoSyncScope> scope;
      if (!synchronised) scope = std::make_unique<NoSyncScope>(ddp->no_sync());
      at::pow(ddp->forward(Input(Rank(), n), c.UsesBranch(Rank(), n)), 2).sum().backward();
    }
    int active = 0;
    for (int rank = 0; rank < World(); ++rank) {
      if (n >= Inputs(rank, c)) continue;
      ++active;
      const auto gradients = torch::autograd::grad({at::pow(alone->forward(Input(rank, n), c.UsesBranch(rank, n)), 2).sum()}, theirs, {},
                                                   std::nullopt, false, /*allow_unused=*/true);
      for (std::size_t i = 0; i < theirs.size(); ++i) {
        if (gradients[i].defined()) pending[i] = pending[i].defined() ? at::add(pending[i], gradients[i]) : gradients[i];
      }
    }
    if (!synchronised) continue;
    const double divisor = c.by_initial ? World() : active;
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      const at::Tensor more = std::exchange(pending[i], at::Tensor());
      at::Tensor& sum = theirs[i].mutable_grad();
      if (more.defined()) sum = sum.defined() ? at::add(sum, more.div(divisor)) : more.div(divisor);
      const std::string name = alone->named_parameters()[i].key();
      if (mine) {
        const at::Tensor ours = net->named_parameters()[name].grad();
        ASSERT_EQ(ours.defined() && (ours != 0).any().item().toBool(), sum.defined()) << name << " of input " << n;
        if (sum.defined()) {
          EXPECT_TRUE(at::allclose(ours, sum, tolerance, tolerance)) << name << " of input " << n << ": " << ours << " for " << sum;
        }
      }
      if (!sum.defined()) continue;
      theirs[i].sub_(sum, 0.01);
      // Both go on from the same values.
      if (mine) net->named_parameters()[name].copy_(theirs[i]);
    }
  }
  (*join)->Finish();
  EXPECT_EQ(ddp->core().CheckParametersEqual(), absl::OkStatus());
  for (const auto& item : net->named_parameters()) {
    EXPECT_TRUE(at::equal(item.value(), alone->named_parameters()[item.key()])) << item.key();
  }
  EXPECT_GT(ddp->core().reducer_buckets().size(), 1u);
  EXPECT_EQ(ddp->core().runs_eagerly(), c.mode == ExecutionMode::kEager);
  // Afterwards as before.
  net->zero_grad();
  ddp->forward(Input(Rank(), 0), c.UsesBranch(Rank(), 0)).sum().backward();
  EXPECT_TRUE(ddp->core().last_step().synchronised);
  EXPECT_EQ(ddp->core().CheckGradientsEqual(), absl::OkStatus());
}

TEST(Join, EqualsItsDefinitionWithEveryOption) {
  const std::map<std::string, std::function<void(Case&)>> variants = {
      {"plain", [](Case&) {}},
      {"static_graph", [](Case& c) { c.static_graph = true; }},
      {"find_unused", [](Case& c) { c.find_unused = true; }},
      {"skip_unused", [](Case& c) { c.find_unused = c.skip_unused = true; }},
      {"bucket_view", [](Case& c) { c.bucket_view = true; }},
      {"own buffers", [](Case& c) { c.sync_buffers = false; }},
      {"fp16", [](Case& c) { c.fp16 = true; }},
      {"own hook", [](Case& c) { c.own_hook = true; }},
  };
  for (const auto& [name, set] : variants) {
    for (const ExecutionMode mode : {ExecutionMode::kCompiled, ExecutionMode::kEager}) {
      Case c;
      set(c);
      c.mode = mode;
      c.by_initial = mode == ExecutionMode::kCompiled;
      Train(c);
      // static_graph and skip_unused need a first backward that is synchronised.
      c.no_sync = 1;
      c.by_initial = !c.by_initial;
      if (!c.static_graph && !c.skip_unused) Train(c);
      c.no_sync = 0;
      c.clears = false;
      c.by_initial = true;
      Train(c);
      if (HasFailure()) return;
    }
  }
}

TEST(Join, AccumulatesWithoutClearing) {
  for (const bool bucket_view : {false, true}) {
    for (const bool find_unused : {false, true}) {
      Case c;
      c.no_sync = 1;
      c.clears = false;
      c.bucket_view = bucket_view;
      c.find_unused = find_unused;
      Train(c);
    }
  }
}

}  // namespace
}  // namespace ddpopt
