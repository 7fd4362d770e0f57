// Compares exported programs with what PyTorch computed on them. `--help` tells the rest.

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "nlohmann/json.hpp"
#include "tools/check_models_run.h"

namespace ddpopt {
namespace {

constexpr char kHelp[] = R"(check_models --dir=DIR [--only=TEXT] [--backend=NAME] [--json]

Compares exported programs with what PyTorch computed on them.

  --dir=DIR        holds any of models/, graphs/, forms/ and forms_2_11/. Relative to where you call this.
  --only=TEXT      the cases whose name contains TEXT, alone.
  --backend=NAME   eager: programs run as they are. aot_eager: they are compiled ahead of time, whole, and in pieces where they train on
                   two ranks; what it refuses is named, and runs as it is.
  --json           the last line of the output is one JSON object: passed, failed, skipped, failures.
  --help           this text.

Cases are, for each model: load, loss, grads, trajectory (SGD for as many steps as were recorded), ddp_grads and ddp_trajectory (two ranks,
which this program starts); for each graph: load, lint, fake (every node's shape, dtype, device and strides without data); for each form: a
case for each call (outputs, strides, requires_grad, gradients, what it wrote), and refused_size. Tensors may differ by a fraction of their
largest value: 1e-4 for float32, 1e-9 for float64, 2e-2 for bfloat16; losses by 1e-4. One thread computes, with the kernels of Intel's CPUs
where this one can run them, as in the recordings; what another CPU rounds otherwise, and training amplifies, may differ by as much as
trainings do that begin from weights moved in their last place. The last line is `N passed, N failed, N skipped`; the exit status is 0
only if none failed.
)";

int Usage(const std::string& message) {
  std::fprintf(stderr, "check_models: %s\nTry --help.\n", message.c_str());
  return 2;
}

int Main(int argc, char** argv) {
  CheckModelsOptions options;
  bool json = false;
  std::string rank_model, rank_result;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument(argv[i]);
    if (argument == "--help" || argument == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (argument == "--json") {
      json = true;
    } else if (absl::ConsumePrefix(&argument, "--dir=")) {
      options.dir = UserPath(std::string(argument));
    } else if (absl::ConsumePrefix(&argument, "--only=")) {
      options.only = std::string(argument);
    } else if (absl::ConsumePrefix(&argument, "--backend=")) {
      if (argument != "eager" && argument != "aot_eager") {
        return Usage(absl::StrCat("there is no backend \"", argument, "\" here; there are eager and aot_eager"));
      }
      options.backend = std::string(argument);
    } else if (absl::ConsumePrefix(&argument, "--rank_model=")) {
      rank_model = std::string(argument);
    } else if (absl::ConsumePrefix(&argument, "--rank_result=")) {
      rank_result = std::string(argument);
    } else {
      return Usage(absl::StrCat("unknown argument \"", argument, "\""));
    }
  }
  if (!rank_model.empty()) return RunModelRank(rank_model, rank_result, options.backend);
  if (options.dir.empty()) return Usage("--dir=DIR is missing");
  options.program = "/proc/self/exe";

  int passed = 0, failed = 0;
  nlohmann::json failures = nlohmann::json::array();
  options.on_refused = [](const std::string& name, const std::string& why) {
    const std::string first_line = why.substr(0, why.find('\n'));
    std::printf("%s is refused by the backend and runs as it is: %s\n", name.c_str(), first_line.c_str());
  };
  const absl::Status status = CheckModels(options, [&](const ModelCase& result) {
    if (result.difference.empty()) {
      ++passed;
      return;
    }
    ++failed;
    const std::vector<std::string> lines = absl::StrSplit(result.difference, '\n');
    failures.push_back({{"case", result.id}, {"differences", lines}});
    std::printf("FAILED %s\n", result.id.c_str());
    for (const std::string& line : lines) std::printf("    %s\n", line.c_str());
    std::fflush(stdout);
  });
  if (!status.ok()) {
    ++failed;
    failures.push_back({{"case", options.dir}, {"differences", {std::string(status.message())}}});
    std::printf("FAILED %s\n", std::string(status.message()).c_str());
  }
  std::printf("%d passed, %d failed, 0 skipped\n", passed, failed);
  if (json) {
    const nlohmann::json result = {{"passed", passed}, {"failed", failed}, {"skipped", 0}, {"failures", failures}};
    std::printf("%s\n", result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ddpopt

int main(int argc, char** argv) { return ddpopt::Main(argc, argv); }
