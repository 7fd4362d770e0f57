#ifndef DDPOPT_TOOLS_CHECK_MODELS_RUN_H_
#define DDPOPT_TOOLS_CHECK_MODELS_RUN_H_

// Compares exported programs with what PyTorch computed on them. The cases of tools/check_models.cc.

#include <functional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ddpopt {

struct ModelCase {
  std::string id;          // "models/mlp/grads"
  std::string difference;  // empty: passed
};

struct CheckModelsOptions {
  std::string dir;    // holds any of models/, graphs/, forms/, forms_2_11/
  std::string only;   // cases whose id contains it; empty: all
  // How to start this program on the ranks of a training: its path. Empty: cases of two ranks fail.
  std::string program;
  std::string backend = "eager";  // of the pieces on the ranks: eager or aot_eager
  bool skip_ranks = false;  // leaves the cases of two ranks out
};

// Calls `report` for each case as it ends. Error: there is nothing to check in the folder.
absl::Status CheckModels(const CheckModelsOptions& options, const std::function<void(const ModelCase&)>& report);

// What a rank does for the cases of two ranks of the model in that folder; writes its differences to "RESULT.RANK". Returns the exit status
// for main.
int RunModelRank(const std::string& model_dir, const std::string& result, const std::string& backend);

// Empty if the tensors agree: shape and dtype, and each value within a fraction of the expected one's largest: 1e-4 for float32, 1e-9 for float64, 2e-2 for bfloat16 and
// float16; integers and bools exactly. A difference of `floor` is always allowed.
std::string TensorDifference(const at::Tensor& actual, const at::Tensor& expected, double floor = 0);

}  // namespace ddpopt

#endif  // DDPOPT_TOOLS_CHECK_MODELS_RUN_H_
