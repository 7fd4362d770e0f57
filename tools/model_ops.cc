// Lists the operators that models reach below autograd, forward and backward, without data. `--help` tells the rest.

#include <cstdio>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "ddpopt/capture/pt2/exported_program.h"
#include "tools/fake_run.h"

namespace ddpopt {
namespace {

constexpr char kHelp[] = R"(model_ops [--per_model] PATH...

Runs exported programs forward and backward on fake tensors and prints the operators that autograd calls, sorted, one a line.

  PATH          a .pt2 archive, a graph (.model.json, gzipped or not), or a folder that is searched for such files.
  --per_model   a line for each model and operator: MODEL, a tab, OPERATOR.
  --help        this text.

Models that fail are named on standard error, with the last operator and the reason. The exit status is 0 only if none failed.
)";

bool IsModel(const std::string& name) {
  return absl::EndsWith(name, ".pt2") || absl::EndsWith(name, ".model.json") || absl::EndsWith(name, ".model.json.gz");
}

int Main(int argc, char** argv) {
  bool per_model = false;
  std::vector<std::string> paths;
  for (int i = 1; i < argc; ++i) {
    const absl::string_view argument(argv[i]);
    if (argument == "--help" || argument == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (argument == "--per_model") {
      per_model = true;
    } else if (absl::StartsWith(argument, "--")) {
      std::fprintf(stderr, "model_ops: unknown argument \"%s\"\nTry --help.\n", argv[i]);
      return 2;
    } else {
      paths.push_back(UserPath(std::string(argument)));
    }
  }
  if (paths.empty()) {
    std::fputs("model_ops: name at least one model\nTry --help.\n", stderr);
    return 2;
  }
  std::set<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      files.insert(path);
      continue;
    }
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(path, std::filesystem::directory_options::skip_permission_denied, error)) {
      if (entry.is_regular_file(error) && IsModel(entry.path().string())) files.insert(entry.path().string());
    }
  }
  std::set<std::string> operators;
  int failed = 0;
  for (const std::string& file : files) {
    LoadOptions options;
    options.load_weights = false;
    const auto program = LoadExportedProgram(file, options);
    FakeRun run;
    const absl::Status status = program.ok() ? RunOnFakes(**program, {}, &run) : program.status();
    if (!status.ok()) {
      ++failed;
      std::fprintf(stderr, "FAILED %s (last operator: %s): %s\n", file.c_str(), run.last_operator.c_str(),
                   std::string(status.message()).c_str());
    }
    for (const std::string& op : run.operators) {
      if (per_model) std::printf("%s\t%s\n", file.c_str(), op.c_str());
    }
    operators.insert(run.operators.begin(), run.operators.end());
  }
  if (!per_model) {
    for (const std::string& op : operators) std::printf("%s\n", op.c_str());
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ddpopt

int main(int argc, char** argv) { return ddpopt::Main(argc, argv); }
