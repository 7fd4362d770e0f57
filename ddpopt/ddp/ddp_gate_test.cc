// On one to four ranks: every combination of what changes how gradients are synchronised. After each step the gradients must be the same on
// all ranks, and those of one process on the whole batch.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "absl/strings/str_cat.h"
#include "ddpopt/backends/aot_eager.h"
#include "ddpopt/ddp/distributed_data_parallel.h"
#include "ddpopt/distributed/process_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/distributed_test.h"
#include "torch/nn/modules/linear.h"

namespace ddpopt {
namespace {

using ::testing::HasSubstr;

const ProcessGroup& Group() { return testing::TestProcessGroup(); }

// Parts may be left out, one is used twice under two names, one is never used.
struct GateNetImpl : torch::nn::Module {
  GateNetImpl() {
    register_module("first", first);
    tied = register_parameter("tied", at::randn({6, 6}).mul(0.3));
    register_module("b", b);
    register_module("c", c);
    register_module("never", never);
    again = register_parameter("again", tied);
    register_module("last", last);
  }
  at::Tensor forward(const at::Tensor& x, bool use_b, bool use_c) {
    at::Tensor h = at::tanh(at::mm(first->forward(x), tied));
    if (use_b) h = at::tanh(b->forward(h));
    if (use_c) h = at::tanh(c->forward(h));
    return last->forward(at::mm(h, again));
  }
  torch::nn::Linear first{4, 6}, b{6, 6}, c{6, 6}, never{6, 6}, last{6, 2};
  at::Tensor tied, again;
};
TORCH_MODULE(GateNet);

// x, then clamped, averaged by hand.
class OwnHook : public CommHook {
 public:
  std::string Name() const override { return "own"; }
  CommFuture Run(const GradBucket& bucket) override {
    const double divisor = static_cast<double>(bucket.divisor());
    at::Tensor sent = bucket.buffer().clone();
    return ThenCompute(bucket.AllReduceSum(sent), [divisor](const at::Tensor& sum) { return sum.div(divisor); });
  }
};

enum class Hook { kDefault, kFp16, kBf16, kOwn };

struct Combination {
  bool static_graph, find_unused, skip_unused, bucket_view;
  int no_sync;     // accumulating backwards before the synchronised one
  int accumulate;  // such rounds before gradients are cleared
  Hook hook;
  ExecutionMode mode;
  bool ahead_of_time = false;  // the backend that compiles forward and backward of each piece

  std::string ToString() const {
    return absl::StrCat("static_graph ", static_graph, ", find_unused ", find_unused, ", skip_unused ", skip_unused, ", bucket_view ",
                        bucket_view, ", no_sync ", no_sync, ", accumulate ", accumulate, ", hook ", static_cast<int>(hook), ", mode ",
                        static_cast<int>(mode), ", ahead_of_time ", ahead_of_time);
  }
  bool MayLeaveOut() const { return static_graph || find_unused; }
  // What rank `rank` leaves out in backward number `n`.
  std::pair<bool, bool> Uses(int64_t rank, int64_t n) const {
    if (!MayLeaveOut()) return {true, true};
    if (skip_unused) return {true, false};
    if (static_graph) return {rank % 2 == 0, false};
    return {(rank + n) % 2 == 0, n % 3 == 1};
  }
};

at::Tensor Input(int64_t rank, int64_t n) {
  const at::Tensor ramp = at::arange(12, at::kFloat).reshape({3, 4});
  return at::sin(at::add(ramp.mul(1.3), static_cast<double>(7 * rank + 3 * n)));
}

at::Tensor LossOf(const at::Tensor& output, int64_t n) { return at::pow(at::sub(output, 0.1 * static_cast<double>(n)), 2).mean(); }

void RunCombination(const Combination& combination) {
  const int64_t rank = Group().rank();
  const int64_t world = Group().world_size();
  at::manual_seed(11 + static_cast<uint64_t>(rank));  // creation takes rank 0's values
  GateNet net;
  at::manual_seed(11);
  GateNet alone;
  if (!combination.MayLeaveOut()) {
    for (GateNet& module : {std::ref(net), std::ref(alone)}) {
      for (at::Tensor& parameter : module->never->parameters()) parameter.set_requires_grad(false);
    }
  }
  DdpOptions options;
  options.bucket_cap_mb = 100.0 / (1 << 20);
  options.static_graph = combination.static_graph;
  options.find_unused_parameters = combination.find_unused;
  options.skip_all_reduce_unused_params = combination.skip_unused;
  options.gradient_as_bucket_view = combination.bucket_view;
  options.mode = combination.mode;
  if (combination.ahead_of_time) options.backend = AotEagerBackend();
  auto created = DistributedDataParallel<GateNet>::Create(net, Group(), options);
  ASSERT_TRUE(created.ok()) << created.status();
  auto& ddp = *created;
  if (combination.hook != Hook::kDefault) {
    ASSERT_EQ(ddp->RegisterCommHook(combination.hook == Hook::kFp16   ? Fp16CompressHook()
                                    : combination.hook == Hook::kBf16 ? Bf16CompressHook()
                                                                      : std::make_unique<OwnHook>()),
              absl::OkStatus());
  }
  const double tolerance = combination.hook == Hook::kFp16 ? 2e-3 : combination.hook == Hook::kBf16 ? 2e-2 : 1e-5;

  int64_t n = 0;
  const int steps = world <= 2 ? 3 : 2;  // more ranks than processors take long
  for (int step = 0; step < steps; ++step) {
    for (GateNet& module : {std::ref(net), std::ref(alone)}) module->zero_grad(/*set_to_none=*/step != 1);
    for (int round = 0; round < combination.accumulate; ++round) {
      for (int micro = 0; micro <= combination.no_sync; ++micro, ++n) {
        const auto one = [&] {
          const auto [use_b, use_c] = combination.Uses(rank, n);
          return LossOf(ddp->forward(Input(rank, n), use_b, use_c), n);
        };
        if (micro < combination.no_sync) {
          const NoSyncScope scope = ddp->no_sync();
          one().backward();
        } else {
          one().backward();
        }
        for (int64_t other = 0; other < world; ++other) {
          const auto [use_b, use_c] = combination.Uses(other, n);
          LossOf(alone->forward(Input(other, n), use_b, use_c), n).div(static_cast<double>(world)).backward();
        }
      }
    }
    const auto ours = net->named_parameters();
    // Parts cancel: what compression rounds is in proportion to the largest gradients.
    double largest = 0;
    for (const at::Tensor& parameter : alone->parameters()) {
      if (parameter.grad().defined()) largest = std::max(largest, parameter.grad().abs().max().item().toDouble());
    }
    std::vector<at::Tensor> flat;
    for (const auto& item : alone->named_parameters()) {
      const at::Tensor& expected = item.value().grad();
      const at::Tensor& actual = ours[item.key()].grad();
      ASSERT_EQ(actual.defined(), expected.defined()) << item.key() << " in step " << step;
      if (!expected.defined()) continue;
      EXPECT_LE(at::sub(actual, expected).abs().max().item().toDouble(), tolerance * largest) << item.key() << " in step " << step;
      flat.push_back(actual.reshape({-1}));
    }
    const at::Tensor own = at::cat(flat);
    at::Tensor rank0 = own.clone();
    ASSERT_EQ(Group().Broadcast(rank0, 0), absl::OkStatus());
    EXPECT_TRUE(at::equal(own, rank0)) << "step " << step;
    // Both models go on from the same parameters.
    const at::NoGradGuard no_grad;
    for (const auto& item : alone->named_parameters()) {
      if (!item.value().grad().defined()) continue;
      item.value().sub_(item.value().grad(), 0.05);
      ours[item.key()].copy_(item.value());
    }
  }
}

// How many combinations have run.
int total = 0;

void Count(int more) {
  total += more;
  if (Group().rank() == 0) std::printf("%d combinations on %d ranks so far\n", total, Group().world_size());
}

class Gate : public ::testing::TestWithParam<std::tuple<ExecutionMode, bool>> {};

TEST_P(Gate, AllCombinations) {
  int count = 0;
  const auto [mode, bucket_view] = GetParam();
  for (const bool static_graph : {false, true}) {
    for (const bool find_unused : {false, true}) {
      for (const bool skip_unused : {false, true}) {
        if (skip_unused && !static_graph && !find_unused) continue;  // forbidden, see below
        for (const int no_sync : {0, 2}) {
          for (const int accumulate : {1, 2}) {
            for (const Hook hook : {Hook::kDefault, Hook::kFp16, Hook::kBf16, Hook::kOwn}) {
              const Combination combination{static_graph, find_unused, skip_unused, bucket_view, no_sync, accumulate, hook, mode};
              SCOPED_TRACE(combination.ToString());
              RunCombination(combination);
              ++count;
              ASSERT_FALSE(::testing::Test::HasFailure());
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(count, 112);
  Count(count);
}
INSTANTIATE_TEST_SUITE_P(Modes, Gate,
                         ::testing::Combine(::testing::Values(ExecutionMode::kCompiled, ExecutionMode::kEager), ::testing::Bool()));

// Hooks see buckets, whatever ran: one for each combination of the others.
TEST(GateAheadOfTime, Combinations) {
  int count = 0;
  for (const bool static_graph : {false, true}) {
    for (const bool find_unused : {false, true}) {
      for (const bool skip_unused : {false, true}) {
        if (skip_unused && !static_graph && !find_unused) continue;
        for (const bool bucket_view : {false, true}) {
          for (const int no_sync : {0, 2}) {
            const Hook hook = static_cast<Hook>(count % 4);
            const Combination combination{static_graph, find_unused,         skip_unused, bucket_view,
                                          no_sync,      1 + (count / 4) % 2, hook,        ExecutionMode::kCompiled,
                                          /*ahead_of_time=*/true};
            SCOPED_TRACE(combination.ToString());
            RunCombination(combination);
            ++count;
            ASSERT_FALSE(::testing::Test::HasFailure());
          }
        }
      }
    }
  }
  EXPECT_EQ(count, 28);
  Count(count);
}

// Each with its reason, at creation or registration, on every rank.
TEST(GateRefuses, ForbiddenCombinations) {
  const auto refused = [](const DdpOptions& options) {
    GateNet net;
    const auto ddp = DistributedDataParallel<GateNet>::Create(net, Group(), options);
    return std::string(ddp.status().message());
  };
  int count = 0;
  DdpOptions options;
  options.skip_all_reduce_unused_params = true;
  EXPECT_THAT(refused(options), HasSubstr("needs find_unused_parameters or static_graph"));
  ++count;
  options = DdpOptions();
  options.mode = ExecutionMode::kEager;
  options.backend = EagerBackend();
  EXPECT_THAT(refused(options), HasSubstr("a backend compiles graphs"));
  ++count;
  options = DdpOptions();
  options.bucket_cap_mb = 1;
  options.bucket_cap_mb_list = {1, 2};
  EXPECT_THAT(refused(options), HasSubstr("bucket_cap_bytes_list"));
  ++count;
  options = DdpOptions();
  options.check_gradients_equal_every = 1;
  GateNet net;
  auto ddp = DistributedDataParallel<GateNet>::Create(net, Group(), options);
  ASSERT_TRUE(ddp.ok()) << ddp.status();
  EXPECT_THAT(std::string((*ddp)->RegisterCommHook(NoopHook()).message()), HasSubstr("leaves each rank its own gradients"));
  ++count;
  options = DdpOptions();
  options.check_gradients_finite = true;
  GateNet finite;
  auto checked = DistributedDataParallel<GateNet>::Create(finite, Group(), options);
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_THAT(std::string((*checked)->RegisterCommHook(NoopHook()).message()), HasSubstr("check_gradients_finite"));
  ++count;
  EXPECT_THAT(std::string((*ddp)->RegisterCommHook(nullptr).message()), HasSubstr("null"));
  EXPECT_EQ((*ddp)->RegisterCommHook(AllReduceHook()), absl::OkStatus());
  EXPECT_THAT(std::string((*ddp)->RegisterCommHook(AllReduceHook()).message()), HasSubstr("registered already"));
  ++count;
  if (Group().rank() == 0) std::printf("%d forbidden combinations\n", count);
}

}  // namespace
}  // namespace ddpopt
