#ifndef DDPOPT_TOOLS_CHECK_MODELS_RUN_H_
#define DDPOPT_TOOLS_CHECK_MODELS_RUN_H_

// Compares exported programs with what PyTorch computed on them. The cases of tools/check_models.cc.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ddpopt {

struct ModelCase {
  std::string id;          // "models/mlp/grads"
  std::string difference;  // empty: passed
};

struct CheckModelsOptions {
  std::string dir;   // holds any of models/, graphs/, forms/, forms_2_11/
  std::string only;  // cases whose id contains it; empty: all
  // How to start this program on the ranks of a training: its path. Empty: cases of two ranks fail.
  std::string program;
  // eager: programs run as they are. aot_eager: compiled ahead of time, whole, and in pieces on the ranks.
  std::string backend = "eager";
  // Called with the name of each model or form that the backend refuses, which then runs as it is, and why.
  std::function<void(const std::string& name, const std::string& why)> on_refused;
  bool skip_ranks = false;  // leaves the cases of two ranks out
};

// Calls `report` for each case as it ends. Error: there is nothing to check in the folder.
absl::Status CheckModels(const CheckModelsOptions& options, const std::function<void(const ModelCase&)>& report);

// What a rank does for the cases of two ranks of the model in that folder; writes its differences to "RESULT.RANK". Returns the exit status
// for main.
int RunModelRank(const std::string& model_dir, const std::string& result, const std::string& backend);

}  // namespace ddpopt

#endif  // DDPOPT_TOOLS_CHECK_MODELS_RUN_H_
