#ifndef DDPOPT_BENCHMARKS_OVERLAP_WORKER_H_
#define DDPOPT_BENCHMARKS_OVERLAP_WORKER_H_

// One rank of //benchmarks:overlap: trains a model under several bucket policies in alternating steps, and tells what they cost.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace ddpopt::benchmarks {

struct WorkerOptions {
  std::string model;   // char_gpt, resnet18, bert_small
  std::string graphs;  // the folder of its .model.json.gz
  std::vector<std::string> policies = {"default", "cap", "auto"};
  std::vector<double> caps_mib;  // compared with their predictions
  int steps = 11;
};

// Joins the group of torchrun's environment. {"results": [...], "caps": [...]}, of this rank.
absl::StatusOr<nlohmann::ordered_json> RunWorker(const WorkerOptions& options);

}  // namespace ddpopt::benchmarks

#endif  // DDPOPT_BENCHMARKS_OVERLAP_WORKER_H_
