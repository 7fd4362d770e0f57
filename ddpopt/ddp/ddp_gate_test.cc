// On one to four ranks: every combination of what changes how gradients are synchronised. After each step the gradients must be the same on
// all ranks, and those of one process on the whole batch.

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
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
#include "torch/csrc/autograd/autograd.h"
#include "torch/nn/modules/linear.h"

namespace ddpopt {
namespace {

using ::testing::AllOf;
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

// A copy is summed, and averaged by hand.
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

// One rounding's part of a value: of float, with what is computed in it, or of what the hook sends.
double Rounding(Hook hook) { return hook == Hook::kFp16 ? 0x1p-11 : hook == Hook::kBf16 ? 0x1p-8 : 5e-6; }

// Of each parameter, how large the gradients are that are summed.
using Largest = std::map<const c10::TensorImpl*, double>;

// Adds the loss's gradients to the parameters'. A parameter under two names counts once.
void Accumulate(const at::Tensor& loss, const std::vector<at::Tensor>& parameters, Largest* largest) {
  std::vector<at::Tensor> wanted;
  for (const at::Tensor& parameter : parameters) {
    const bool known = std::any_of(wanted.begin(), wanted.end(), [&](const at::Tensor& other) { return other.is_same(parameter); });
    if (parameter.requires_grad() && !known) wanted.push_back(parameter);
  }
  const auto gradients = torch::autograd::grad({loss}, wanted, {}, std::nullopt, /*create_graph=*/false, /*allow_unused=*/true);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!gradients[i].defined()) continue;
    (*largest)[wanted[i].unsafeGetTensorImpl()] += gradients[i].abs().max().item().toDouble();
    at::Tensor& sum = wanted[i].mutable_grad();
    sum = sum.defined() ? at::add(sum, gradients[i]) : gradients[i];
  }
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
  options.eager_fallback = false;
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
  int64_t n = 0;
  const int steps = world <= 2 ? 3 : 2;  // more ranks than processors take long
  for (int step = 0; step < steps; ++step) {
    for (GateNet& module : {std::ref(net), std::ref(alone)}) module->zero_grad(/*set_to_none=*/step != 1);
    Largest largest;
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
          const at::Tensor loss = LossOf(alone->forward(Input(other, n), use_b, use_c), n);
          Accumulate(loss.div(static_cast<double>(world)), alone->parameters(), &largest);
        }
      }
    }
    const auto ours = net->named_parameters();
    // Each rank's part is rounded, and so is each sum, in every reduction; what was reduced before is in the next one. Parts may cancel, so
    // this is in proportion to theirs.
    const double tolerance = combination.accumulate * (static_cast<double>(world) + 1) * Rounding(combination.hook);
    std::vector<at::Tensor> flat;
    const auto theirs = alone->named_parameters();
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      const std::string& name = theirs[i].key();
      const at::Tensor& expected = theirs[i].value().grad();
      const at::Tensor& actual = ours[name].grad();
      ASSERT_EQ(actual.defined(), expected.defined()) << name << " in step " << step;
      if (!expected.defined()) continue;
      const double scale = largest[theirs[i].value().unsafeGetTensorImpl()];
      EXPECT_LE(at::sub(actual, expected).abs().max().item().toDouble(), tolerance * scale + 1e-7) << name << " in step " << step;
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
  // What ran is what was asked for.
  EXPECT_EQ(ddp->core().runs_eagerly(), combination.mode == ExecutionMode::kEager) << ddp->core().explain();
  EXPECT_GT(ddp->core().reducer_buckets().size(), 1u);
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

// Each with its reason, at creation, at registration or where a scope is opened, on every rank.
TEST(GateRefuses, ForbiddenCombinations) {
  int count = 0;
  const auto at_creation = [&](const char* reason, const std::function<void(DdpOptions&)>& set) {
    DdpOptions options;
    set(options);
    const auto ddp = DistributedDataParallel<GateNet>::Create(GateNet(), Group(), options);
    EXPECT_THAT(std::string(ddp.status().message()), HasSubstr(reason));
    ++count;
  };
  // Two options that exclude each other.
  at_creation("needs find_unused_parameters or static_graph", [](DdpOptions& o) { o.skip_all_reduce_unused_params = true; });
  at_creation("a backend compiles graphs", [](DdpOptions& o) { o.mode = ExecutionMode::kEager, o.backend = EagerBackend(); });
  at_creation("an older name of the same", [](DdpOptions& o) { o.forward_sync_buffers = true, o.broadcast_buffers = false; });
  const std::map<std::string, std::function<void(DdpOptions&)>> ends = {
      {"bucket_cap_bytes (", [](DdpOptions& o) { o.bucket_cap_mb = 3; }},
      {"first_bucket_cap_bytes (", [](DdpOptions& o) { o.first_bucket_cap_mb = 1; }},
      {"bucket_cap_bytes_list (", [](DdpOptions& o) { o.bucket_cap_mb_list = {1, 2}; }},
      {"bucket_ends (", [](DdpOptions& o) { o.bucket_ends = {"parameter:tied"}; }},
  };
  for (const auto& [name, set] : ends) {
    at_creation("bucket_policy is kAuto", [&](DdpOptions& o) { o.bucket_policy = BucketPolicy::kAuto, set(o); });
    for (const auto& [other, set_other] : ends) {
      if (name >= other || (name == "bucket_cap_bytes (" && other == "first_bucket_cap_bytes (")) continue;
      const auto both = [&](DdpOptions& o) { set(o), set_other(o); };
      at_creation("are both set", both);
      at_creation(name.c_str(), both);
      at_creation(other.c_str(), both);
      count -= 2;
    }
  }
  at_creation("first_bucket_cap_mb (2) is above bucket_cap_mb (1)", [](DdpOptions& o) { o.bucket_cap_mb = 1, o.first_bucket_cap_mb = 2; });
  at_creation("is for bucket_policy kAuto", [](DdpOptions& o) { o.bucket_memory_limit_mb = 5; });
  // Values that nothing allows.
  at_creation("bucket_cap_mb must be", [](DdpOptions& o) { o.bucket_cap_mb = -1; });
  at_creation("first_bucket_cap_mb must be", [](DdpOptions& o) { o.first_bucket_cap_mb = -1; });
  at_creation("bucket_cap_mb_list[1] must be", [](DdpOptions& o) { o.bucket_cap_mb_list = {1, -1}; });
  at_creation("bucket_memory_limit_mb must be",
              [](DdpOptions& o) { o.bucket_policy = BucketPolicy::kAuto, o.bucket_memory_limit_mb = -1; });
  at_creation("retrace_every must be", [](DdpOptions& o) { o.retrace_every = -1; });
  at_creation("check_gradients_equal_every must be", [](DdpOptions& o) { o.check_gradients_equal_every = -1; });
  at_creation("no such parameter or buffer", [](DdpOptions& o) { o.parameters_to_ignore = {"tide"}; });
  at_creation("device_ids is for modules on a CUDA device", [](DdpOptions& o) { o.device_ids = {0}; });
  at_creation("a rank drives one", [](DdpOptions& o) { o.device_ids = {0, 1}; });
  at_creation("can't be opened", [](DdpOptions& o) { o.step_log = "/nowhere/at/all"; });

  // Of checks that ranks make together, with what makes ranks different.
  const std::map<std::string, std::function<void(DdpOptions&)>> checks = {
      {"check_gradients_equal_every", [](DdpOptions& o) { o.check_gradients_equal_every = 1; }},
      {"check_gradients_finite", [](DdpOptions& o) { o.check_gradients_finite = true; }},
  };
  for (const auto& [name, set] : checks) {
    DdpOptions options;
    set(options);
    auto ddp = DistributedDataParallel<GateNet>::Create(GateNet(), Group(), options);
    ASSERT_TRUE(ddp.ok()) << ddp.status();
    EXPECT_THAT(std::string((*ddp)->RegisterCommHook(NoopHook()).message()),
                AllOf(HasSubstr("leaves each rank its own gradients"), HasSubstr(name)));
    ++count;
    EXPECT_THAT(std::string((*ddp)->join().status().message()), AllOf(HasSubstr("join can't be used with"), HasSubstr(name)));
    ++count;
  }
  DdpOptions options;
  options.find_unused_parameters = true;
  auto ddp = DistributedDataParallel<GateNet>::Create(GateNet(), Group(), options);
  ASSERT_TRUE(ddp.ok()) << ddp.status();
  const auto hook = [&](std::unique_ptr<CommHook> of) { return ++count, std::string((*ddp)->RegisterCommHook(std::move(of)).message()); };
  EXPECT_THAT(hook(nullptr), HasSubstr("null"));
  EXPECT_EQ((*ddp)->RegisterCommHook(AllReduceHook()), absl::OkStatus());
  EXPECT_THAT(hook(AllReduceHook()), HasSubstr("registered already"));
  (*ddp)->forward(Input(0, 0), true, true).sum().backward();
  EXPECT_THAT(hook(AllReduceHook()), HasSubstr("before the first forward"));
  {
    const auto scope = (*ddp)->join();
    ASSERT_TRUE(scope.ok()) << scope.status();
    EXPECT_THAT(std::string((*ddp)->join().status().message()), HasSubstr("a join scope is open already"));
    ++count;
    (*scope)->Finish();
  }
  const auto trace = (*ddp)->Trace("");
  EXPECT_THAT(std::string(trace.status().message()), HasSubstr("path is empty"));
  ++count;
  EXPECT_EQ(count, 33);
  if (Group().rank() == 0) std::printf("%d forbidden combinations\n", count);
}

}  // namespace
}  // namespace ddpopt
