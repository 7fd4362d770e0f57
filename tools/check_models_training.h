#ifndef DDPOPT_TOOLS_CHECK_MODELS_TRAINING_H_
#define DDPOPT_TOOLS_CHECK_MODELS_TRAINING_H_

// The cases of check_models about a folder of models/: a program's loss, gradients and training, in one process and on two ranks.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "ddpopt/backends/backend.h"
#include "ddpopt/capture/pt2/exported_program.h"
#include "ddpopt/distributed/process_group.h"
#include "fx_graph/text/json_view.h"
#include "tools/check_models_compare.h"
#include "tools/check_models_rounding.h"

namespace ddpopt {

// Trainings are kept: to compare again with other recordings of the same model is cheap.
class ModelChecker {
 public:
  // A null backend: programs run as they are.
  ModelChecker(std::filesystem::path dir, CompileFn backend) : dir_(std::move(dir)), backend_(std::move(backend)) {}

  // Each gives its case's differences; errors are differences too.
  absl::Status Load(Differences* differences) const;
  absl::Status Loss(Differences* differences);
  absl::Status Grads(Differences* differences);
  absl::Status Trajectory(Differences* differences);

  // On one of the ranks of a training: its gradients of the first step, and its losses, parameters and buffers after the last. Collective.
  absl::Status TrainOnRanks(const ProcessGroup& group, Differences* grads, Differences* trajectory);
  // Starts `program` on the ranks, once, to do that for the backend of that name; what they found, for both cases.
  absl::Status RunRanks(const std::string& program, const std::string& backend);
  const Differences& rank_grads() const { return rank_grads_; }
  const Differences& rank_trajectory() const { return rank_trajectory_; }

  // Why the backend refused the program; empty if it didn't.
  const std::string& refusal() const { return refusal_; }

 private:
  struct Training {
    std::shared_ptr<ExportedProgram> program;
    std::vector<double> losses;
    Gradients first;     // of the first step
    double reach = 0;    // how far one gradient, the same in every step, moves a parameter
    double largest = 0;  // of the gradients' elements
  };
  // By how much trainings that begin from moved weights differ.
  struct Sensitivity {
    std::vector<double> losses;
    std::map<std::string, Statistics> tensors;
    void Widen(const Training& base, const Training& moved);
  };
  class Sgd;

  absl::StatusOr<std::shared_ptr<ExportedProgram>> LoadProgram() const;
  absl::StatusOr<std::vector<c10::IValue>> Batch(int rank) const;
  // `seed` 0: from the recorded weights; others: from moved ones. The group: of the ranks, or null for one process.
  absl::StatusOr<Training> Train(const fx::JsonView& root, std::size_t steps, uint64_t seed, const ProcessGroup* group = nullptr);
  absl::StatusOr<Training> TrainAlone(const fx::JsonView& root, std::size_t steps, uint64_t seed);
  absl::StatusOr<Training> TrainAsRank(const fx::JsonView& root, const ProcessGroup& group, std::size_t steps, uint64_t seed) const;
  // Compares a training by `compare`; what differs in the last bits alone, or in what training amplifies them to, is passed over. `moved`
  // gives trainings from moved weights.
  using Compare = std::function<absl::Status(const std::vector<double>& loss_allowance, const Allowance& allowance, Differences*)>;
  static absl::Status Judge(const Training& training, const std::vector<Training>& moved, const Compare& compare, Differences* differences);

  const std::filesystem::path dir_;
  const CompileFn backend_;
  std::string refusal_;
  absl::optional<double> loss_;
  std::map<std::tuple<std::size_t, uint64_t, double, double, bool>, Training> trainings_;  // steps, seed, rate, momentum, on ranks
  bool ranks_ran_ = false;
  absl::Status ranks_status_;
  Differences rank_grads_, rank_trajectory_;
};

}  // namespace ddpopt

#endif  // DDPOPT_TOOLS_CHECK_MODELS_TRAINING_H_
