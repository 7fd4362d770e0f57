// What reducing the gradients of many small parameters costs, in buckets and one by one. `--help` tells the rest.

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/cat.h"
#include "ATen/ops/ones.h"
#include "absl/strings/str_cat.h"
#include "base/flags.h"
#include "ddpopt/ddp/distributed_data_parallel.h"
#include "ddpopt/distributed/device_streams.h"
#include "ddpopt/distributed/launcher.h"
#include "ddpopt/distributed/process_group.h"
#include "nlohmann/json.hpp"

namespace ddpopt {
namespace {

constexpr char kHelp[] = R"(reduction_benchmark [--parameters=1000] [--elements=64] [--ranks=2] [--steps=30] [--json]

Trains a module of small parameters on several ranks, in turns as it is, with an all-reduce of each gradient alone after the backward, and
with DistributedDataParallel. What the last two take beyond the first is the reduction's time; the ratio is that of medians.
)";

struct ManyImpl : torch::nn::Module {
  ManyImpl(int64_t parameters, int64_t elements) {
    for (int64_t i = 0; i < parameters; ++i) weights.push_back(register_parameter(absl::StrCat("p", i), at::ones({elements})));
  }
  at::Tensor forward(const at::Tensor& x) { return at::cat(weights).mul(x).sum(); }
  std::vector<at::Tensor> weights;
};
TORCH_MODULE(Many);

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "reduction_benchmark: %s\n", std::string(status.message()).c_str());
  return 1;
}

int Run(int64_t parameters, int64_t elements, int64_t steps, bool json) {
  const absl::StatusOr<ProcessGroup> group = InitProcessGroup();
  if (!group.ok()) return Fail(group.status());
  Many net(parameters, elements), plain(parameters, elements);
  const auto ddp = DistributedDataParallel<Many>::Create(net, *group);
  if (!ddp.ok()) return Fail(ddp.status());
  const at::Tensor x = at::ones({1});
  absl::Status status;
  const auto seconds = [&](const auto& step) {
    if (status.ok()) status = group->Barrier();
    const double begin = SteadySeconds();
    step();
    return SteadySeconds() - begin;
  };
  std::vector<double> alone, each, bucketed;
  for (int64_t i = 0; i < steps + 3; ++i) {
    alone.push_back(seconds([&] { plain->forward(x).backward(); }));
    each.push_back(seconds([&] {
      plain->forward(x).backward();
      for (const at::Tensor& weight : plain->weights) {
        at::Tensor gradient = weight.grad();
        if (status.ok()) status = group->AllReduceSum(gradient);
        gradient.div_(group->world_size());
      }
    }));
    bucketed.push_back(seconds([&] { (*ddp)->forward(x).backward(); }));
    // Warm-up.
    if (i < 3) alone.clear(), each.clear(), bucketed.clear();
  }
  if (!status.ok()) return Fail(status);
  if (group->rank() != 0) return 0;
  const double base = Median(alone);
  const double each_s = Median(each) - base;
  // No less than the resolution of such a difference.
  const double bucketed_s = std::max(Median(bucketed) - base, 1e-5);
  std::printf("%lld parameters of %lld elements on %d ranks, %zu buckets, medians of %lld steps\n", static_cast<long long>(parameters),
              static_cast<long long>(elements), group->world_size(), (*ddp)->core().reducer_buckets().size(),
              static_cast<long long>(steps));
  std::printf("  step without reduction     %10.3f ms\n  reduction one by one       %10.3f ms\n", 1e3 * base, 1e3 * each_s);
  std::printf("  reduction in buckets       %10.3f ms\n  ratio                      %10.1f\n", 1e3 * bucketed_s, each_s / bucketed_s);
  if (json) {
    const nlohmann::json result = {{"parameters", parameters},     {"elements", elements},           {"ranks", group->world_size()},
                                   {"step_s", base},               {"one_by_one_s", each_s},         {"bucketed_s", bucketed_s},
                                   {"ratio", each_s / bucketed_s}};
    std::printf("%s\n", result.dump().c_str());
  }
  return 0;
}

int Main(int argc, char** argv) {
  int64_t parameters = 1000, elements = 64, ranks = 2, steps = 30;
  bool json = false, help = false;
  Flags flags;
  for (const auto& [name, value] : {std::pair("parameters", &parameters), {"elements", &elements}, {"ranks", &ranks}, {"steps", &steps}}) {
    flags.Integer(name, value, 1, 1'000'000'000, "a whole number above 0");
  }
  flags.Switch("json", &json);
  flags.Switch("help", &help);
  if (const absl::Status status = flags.Parse({argv + 1, argv + argc}); !status.ok()) {
    std::fprintf(stderr, "reduction_benchmark: %s\nTry --help.\n", std::string(status.message()).c_str());
    return 2;
  }
  if (help) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (const absl::optional<int> status = MaybeLaunchSelf(argc, argv, static_cast<int>(ranks))) return *status;
  return Run(parameters, elements, steps, json);
}

}  // namespace
}  // namespace ddpopt

int main(int argc, char** argv) { return ddpopt::Main(argc, argv); }
