// Measures this machine for //tools:plan; `--help` tells the rest.

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>

#include "ATen/Parallel.h"
#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/add.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/rand.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/flags.h"
#include "ddpopt/optimizer/device_profile.h"

namespace ddpopt {
namespace {

constexpr char kHelp[] = R"(profile_device [--name=NAME] [--threads=N] [--size=N] [--repeat=N] [--out=FILE] [--json]

Measures how fast this machine's CPU computes, as a device profile for //tools:plan: products per dtype, memory, and what each operator costs beside.

  --name=NAME    of the profile; default "measured".
  --threads=N    that kernels share work among; default 1, as ranks have that share a machine.
  --size=N       rows and columns of the products; default 1024, from 64 to 8192.
  --repeat=N     how often each figure is taken; the best one counts, since a busy machine only slows. Default 7.
  --out=FILE     writes the profile there.
  --json         the profile in one line, the last of standard output. Without it, it is printed for people.
  --help         this text.
)";

double Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Of one call, the best of several times.
double Seconds(int64_t repeat, int calls, const std::function<void()>& work) {
  work();
  double best = 1e30;
  for (int64_t i = 0; i < repeat; ++i) {
    const double start = Now();
    for (int call = 0; call < calls; ++call) work();
    best = std::min(best, (Now() - start) / calls);
  }
  return best;
}

DeviceProfile Measure(const std::string& name, int64_t size, int64_t repeat) {
  DeviceProfile profile;
  profile.name = name;
  for (const auto& [dtype, type] :
       {std::pair<const char*, at::ScalarType>("float32", at::kFloat), {"float64", at::kDouble}, {"bfloat16", at::kBFloat16}}) {
    const at::Tensor a = at::rand({size, size}).to(type), b = at::rand({size, size}).to(type);
    const double seconds = Seconds(repeat, 2, [&] { at::mm(a, b); });
    profile.matmul_flops_per_second[dtype] = 2.0 * static_cast<double>(size * size * size) / seconds;
  }
  // Larger than the caches: two are read, one is written.
  const int64_t elements = int64_t{1} << 24;
  const at::Tensor a = at::ones({elements}), b = at::ones({elements});
  at::Tensor sum = at::ones({elements});
  profile.memory_bytes_per_second = 3.0 * 4 * static_cast<double>(elements) / Seconds(repeat, 1, [&] { at::add_out(sum, a, b); });
  const at::Tensor small = at::ones({8});
  profile.operator_overhead_seconds = Seconds(repeat, 20000, [&] { at::add(small, small); });
  profile.view_overhead_seconds = Seconds(repeat, 20000, [&] { small.view({2, 4}); });
  const std::string source = absl::StrCat("measured by //tools:profile_device with ", at::get_num_threads(),
                                          at::get_num_threads() == 1 ? " thread" : " threads", ": ");
  profile.sources["matmul_flops_per_second"] = absl::StrCat(source, "mm of ", size, " by ", size);
  profile.sources["matmul_efficiency"] = "the figures are measured ones";
  profile.sources["memory_bytes_per_second"] = source + "add of 64 MiB";
  profile.sources["operator_overhead_seconds"] = source + "add of 8 floats, without gradients";
  profile.sources["view_overhead_seconds"] = source + "view of 8 floats, without gradients";
  return profile;
}

int Main(int argc, char** argv) {
  std::string name = "measured", out;
  int64_t threads = 1, size = 1024, repeat = 7;
  bool json = false, help = false;
  Flags flags;
  flags.Text("name", &name, "a name");
  flags.Text("out", &out, "a path");
  flags.Integer("threads", &threads, 1, 1024, "a whole number from 1 to 1024");
  flags.Integer("size", &size, 64, 8192, "a whole number from 64 to 8192");
  flags.Integer("repeat", &repeat, 1, 1000000, "a whole number above 0");
  flags.Switch("json", &json);
  flags.Switch("help", &help);
  if (const absl::Status status = flags.Parse({argv + 1, argv + argc}); !status.ok()) {
    std::fprintf(stderr, "profile_device: %s\nTry --help.\n", std::string(status.message()).c_str());
    return 2;
  }
  if (help) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (!out.empty()) out = UserPath(out);
  at::set_num_threads(static_cast<int>(threads));
  const at::NoGradGuard no_grad;
  const DeviceProfile profile = Measure(name, size, repeat);
  std::string text = profile.ToJson();
  if (!out.empty()) {
    if (const absl::Status status = WriteFile(out, text + "\n"); !status.ok()) {
      std::fprintf(stderr, "profile_device: %s\n", std::string(status.message()).c_str());
      return 1;
    }
  }
  if (json) {
    // One line; its strings hold no newlines.
    std::string line;
    for (const char c : text) {
      if (c != '\n') line += c;
    }
    text = std::move(line);
  }
  std::printf("%s\n", text.c_str());
  return 0;
}

}  // namespace
}  // namespace ddpopt

int main(int argc, char** argv) { return ddpopt::Main(argc, argv); }
