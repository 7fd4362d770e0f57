#include "benchmarks/measure.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <utility>

#include "ATen/core/Tensor.h"
#include "ATen/core/stack.h"
#include "ATen/ops/ones.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ddpopt::benchmarks {

double NowNs() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

double NsSince(double start) { return NowNs() - start; }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

c10::OperatorHandle Operator(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

double RealAddNs() {
  const c10::OperatorHandle add = Operator("aten::add", "Tensor");
  const at::Tensor a = at::ones({8});
  const at::Tensor b = at::ones({8});
  constexpr int kCalls = 20000;
  torch::jit::Stack stack;
  const double start = NowNs();
  for (int i = 0; i < kCalls; ++i) {
    stack.clear();
    stack.emplace_back(a);
    stack.emplace_back(b);
    stack.emplace_back(1);
    add.callBoxed(stack);
  }
  return NsSince(start) / kCalls;
}

absl::optional<int> ParseRunOptions(int argc, char** argv, const char* help, RunOptions* options, Flags flags) {
  for (int i = 1; i < argc; ++i) {
    if (absl::string_view(argv[i]) != "--help") continue;
    std::cout << help;
    return 0;
  }
  flags.Switch("json", &options->json);
  flags.Integer("repeat", &options->repeat, 1, 1000000, "a whole number above 0");
  const absl::Status status = flags.Parse({argv + 1, argv + argc});
  if (status.ok()) return absl::nullopt;
  std::cerr << status.message() << "\n\n" << help;
  return 2;
}

void ShowProgress(const std::string& text) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::cerr << "\r" << std::string(60, ' ') << "\r" << text << std::flush;
}

}  // namespace ddpopt::benchmarks
