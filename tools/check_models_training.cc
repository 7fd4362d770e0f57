#include "tools/check_models_training.h"

#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/equal.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status.h"
#include "ddpopt/capture/pt2/safetensors.h"
#include "ddpopt/ddp/program_data_parallel.h"
#include "ddpopt/distributed/launcher.h"
#include "nlohmann/json.hpp"
#include "tools/program_runner.h"
#include "torch/csrc/autograd/autograd.h"

namespace ddpopt {
namespace {

using c10::IValue;
using fx::JsonView;

absl::StatusOr<std::vector<IValue>> ReadBatch(const SafetensorsFile& file, const std::string& prefix) {
  std::vector<IValue> batch;
  for (int i = 0; file.Has(absl::StrCat(prefix, ".arg", i)); ++i) {
    DDPOPT_ASSIGN_OR_RETURN(at::Tensor tensor, file.Read(absl::StrCat(prefix, ".arg", i)));
    batch.emplace_back(std::move(tensor));
  }
  if (batch.empty()) return absl::NotFoundError(absl::StrCat("there is no batch \"", prefix, ".arg0\""));
  return batch;
}

absl::Status OfField(absl::string_view what, const absl::Status& status) { return status.ok() ? status : Annotate(status, what); }

// What statistics may differ by if each element may by `floor`, at random.
Statistics OfRounding(double floor, int64_t numel) {
  const double root = std::sqrt(static_cast<double>(numel));
  Statistics allowed;
  allowed.l2 = allowed.sum = floor * root;
  allowed.abssum = floor * static_cast<double>(numel);
  allowed.first = floor;
  return allowed;
}

// By how much the statistics of moved weights differ, with a margin, but no more than `most`.
Statistics AtMost(const Statistics& moves, const Statistics& most) {
  Statistics result;
  result.l2 = std::min(kRoundingMargin * moves.l2, most.l2);
  result.sum = std::min(kRoundingMargin * moves.sum, most.sum);
  result.abssum = std::min(kRoundingMargin * moves.abssum, most.abssum);
  result.first = std::min(kRoundingMargin * moves.first, most.first);
  return result;
}

}  // namespace

// SGD as PyTorch's, with momentum, of the recorded rate.
class ModelChecker::Sgd {
 public:
  static absl::StatusOr<Sgd> Read(const JsonView& manifest) {
    DDPOPT_ASSIGN_OR_RETURN(const JsonView train, manifest.Object("train"));
    DDPOPT_ASSIGN_OR_RETURN(const std::string optimizer, train.String("optimizer"));
    if (optimizer != "SGD") return train.Error("the optimizer ", optimizer, " is not known here");
    Sgd sgd;
    DDPOPT_ASSIGN_OR_RETURN(const JsonView lr, train.At("lr"));
    DDPOPT_ASSIGN_OR_RETURN(sgd.rate_, FloatOf(lr));
    if (train.Has("momentum")) {
      DDPOPT_ASSIGN_OR_RETURN(const JsonView momentum, train.At("momentum"));
      DDPOPT_ASSIGN_OR_RETURN(sgd.momentum_, FloatOf(momentum));
    }
    return sgd;
  }
  double rate() const { return rate_; }
  double momentum() const { return momentum_; }
  // How far one gradient, the same in every step, moves a parameter at most.
  double Reach(std::size_t steps) const { return rate_ * static_cast<double>(steps) / (1 - std::min(momentum_, 0.99)); }
  void Step(const ExportedProgram& program) {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : program.parameters()) {
      const at::Tensor gradient = parameter.tensor.grad();
      if (!gradient.defined()) continue;
      at::Tensor& velocity = velocities_[parameter.name];
      if (velocity.defined()) {
        velocity.mul_(momentum_).add_(gradient);
      } else {
        velocity = gradient.clone();
      }
      parameter.tensor.add_(velocity, -rate_);
    }
  }

 private:
  double rate_ = 0, momentum_ = 0;
  std::map<std::string, at::Tensor> velocities_;
};

absl::StatusOr<std::shared_ptr<ExportedProgram>> ModelChecker::LoadProgram() const {
  return LoadExportedProgram((dir_ / "model.pt2").string());
}

absl::StatusOr<std::vector<IValue>> ModelChecker::Batch(int rank) const {
  DDPOPT_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open((dir_ / "batches.safetensors").string()));
  return ReadBatch(file, absl::StrCat("rank", rank));
}

absl::Status ModelChecker::Load(Differences* differences) const {
  DDPOPT_ASSIGN_OR_RETURN(const auto manifest, Manifest::Read((dir_ / "manifest.json").string()));
  DDPOPT_ASSIGN_OR_RETURN(const auto program, LoadProgram());
  DDPOPT_RETURN_IF_ERROR(program->module()->Lint());
  DDPOPT_RETURN_IF_ERROR(program->CheckExecutable());
  DDPOPT_RETURN_IF_ERROR(program->CheckData());
  DDPOPT_RETURN_IF_ERROR(CompareDescription(*program, manifest->root(), /*ordered=*/true, differences));
  DDPOPT_ASSIGN_OR_RETURN(const SafetensorsFile weights, SafetensorsFile::Open((dir_ / "weights.safetensors").string()));
  for (const auto& [name, entry] : weights.entries()) {
    const absl::optional<at::Tensor> tensor = program->FindTensor(name);
    if (!tensor.has_value()) {
      differences->Add("there is no parameter or buffer \"", name, "\"");
      continue;
    }
    DDPOPT_ASSIGN_OR_RETURN(const at::Tensor expected, weights.Read(name));
    if (tensor->sizes() != expected.sizes() || tensor->scalar_type() != expected.scalar_type() || !at::equal(tensor->detach(), expected)) {
      differences->Add("the weight \"", name, "\" differs from weights.safetensors");
    }
  }
  return absl::OkStatus();
}

absl::Status ModelChecker::Loss(Differences* differences) {
  DDPOPT_ASSIGN_OR_RETURN(const auto manifest, Manifest::Read((dir_ / "manifest.json").string()));
  const JsonView root = manifest->root();
  DDPOPT_ASSIGN_OR_RETURN(const auto program, LoadProgram());
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<IValue> batch, Batch(0));
  DDPOPT_ASSIGN_OR_RETURN(const JsonView loss_view, root.At("loss0"));
  DDPOPT_ASSIGN_OR_RETURN(const double expected, FloatOf(loss_view));
  if (!loss_.has_value()) {
    DDPOPT_RETURN_IF_ERROR(CatchAsStatus("forward", [&] {
      ProgramRunner runner(program, backend_);
      loss_ = runner.RunFlat(batch).at(0).toTensor().item().toDouble();
      refusal_ = runner.refusal();
    }));
  }
  differences->AddNumber("loss0", *loss_, expected, 1e-4 * std::abs(expected));
  return absl::OkStatus();
}

absl::Status ModelChecker::Grads(Differences* differences) {
  DDPOPT_ASSIGN_OR_RETURN(const auto manifest, Manifest::Read((dir_ / "manifest.json").string()));
  const JsonView root = manifest->root();
  DDPOPT_ASSIGN_OR_RETURN(const Training training, Train(root, 1, 0));
  DDPOPT_ASSIGN_OR_RETURN(const SafetensorsFile grads, SafetensorsFile::Open((dir_ / "grads.safetensors").string()));
  DDPOPT_ASSIGN_OR_RETURN(const JsonView stats, root.Object("grad_stats"));
  DDPOPT_ASSIGN_OR_RETURN(const JsonView none, root.Array("no_grad_params"));
  const auto find = [&](const std::string& name) -> absl::optional<at::Tensor> {
    const auto tensor = training.program->FindTensor(name);
    return tensor.has_value() ? absl::optional<at::Tensor>(tensor->grad()) : absl::nullopt;
  };
  const auto compare = [&](const std::map<std::string, double>& floors, const Allowance& allowance, Differences* found) -> absl::Status {
    DDPOPT_RETURN_IF_ERROR(CompareGradients(*training.program, training.first, grads, "", floors, found));
    return CompareStatistics(stats, find, allowance, found);
  };
  Differences strict;
  DDPOPT_RETURN_IF_ERROR(compare({}, nullptr, &strict));
  if (strict.SameArithmetic()) {
    differences->Append(strict);
  } else if (!strict.empty()) {
    std::vector<Gradients> moved;
    std::map<std::string, Statistics> moves;
    for (const uint64_t seed : {1, 2, 3, 4}) {
      DDPOPT_ASSIGN_OR_RETURN(const Training other, Train(root, 1, seed));
      moved.push_back(other.first);
      for (const auto& [name, gradient] : training.first) {
        moves[name].Widen(Statistics::Of(gradient), Statistics::Of(other.first.at(name)));
      }
    }
    const std::map<std::string, double> floors = RoundingOf(training.first, moved);
    const auto allowance = [&](const std::string& name, const Statistics& own) {
      const auto floor = floors.find(name);
      return floor == floors.end() ? Statistics() : AtMost(moves[name], OfRounding(floor->second, own.numel));
    };
    DDPOPT_RETURN_IF_ERROR(compare(floors, allowance, differences));
  }
  for (std::size_t i = 0; i < none.size(); ++i) {
    DDPOPT_ASSIGN_OR_RETURN(const std::string name, none[i].AsString());
    const auto tensor = training.program->FindTensor(name);
    if (!tensor.has_value() || tensor->grad().defined()) differences->Add("\"", name, "\" must be there and have no gradient");
  }
  return absl::OkStatus();
}

void ModelChecker::Sensitivity::Widen(const Training& base, const Training& moved) {
  losses.resize(base.losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i) losses[i] = std::max(losses[i], std::abs(moved.losses[i] - base.losses[i]));
  for (const auto& [name, attr] : base.program->module()->attrs()) {
    if (!attr.value.isTensor() || !c10::isFloatingType(attr.value.toTensor().scalar_type())) continue;
    tensors[name].Widen(Statistics::Of(attr.value.toTensor()), Statistics::Of(*moved.program->FindTensor(name)));
  }
}

// Some trainings amplify a rounding error a thousandfold and more in ten steps. Where many figures differ, that has happened, and each may
// differ by as much as trainings from moved weights do. Where few differ, it hasn't: then only what was never more than rounding may.
absl::Status ModelChecker::Judge(const Training& training, const std::vector<Training>& moved, const Compare& compare,
                                 Differences* differences) {
  Differences apart;
  DDPOPT_RETURN_IF_ERROR(compare(
      {}, [](const std::string&, const Statistics&) { return Statistics(); }, &apart));
  const bool amplified = 20 * apart.lines().size() > static_cast<std::size_t>(apart.compared());
  Sensitivity sensitivity;
  std::vector<Gradients> gradients;
  for (const Training& other : moved) {
    sensitivity.Widen(training, other);
    gradients.push_back(other.first);
  }
  const std::map<std::string, double> floors = RoundingOf(training.first, gradients);
  std::vector<double> losses;
  for (const double loss : sensitivity.losses) losses.push_back(amplified ? kRoundingMargin * loss : 0);
  const auto allowance = [&](const std::string& name, const Statistics& own) {
    const auto it = sensitivity.tensors.find(name);
    if (it == sensitivity.tensors.end()) return Statistics();
    constexpr double kAll = std::numeric_limits<double>::infinity();
    const auto floor = floors.find(name);
    const double moves = training.reach * (floor == floors.end() ? kRounding * training.largest : floor->second);
    return AtMost(it->second, amplified ? Statistics{kAll, kAll, kAll, kAll} : OfRounding(moves, own.numel));
  };
  return compare(losses, allowance, differences);
}

absl::StatusOr<ModelChecker::Training> ModelChecker::Train(const JsonView& root, std::size_t steps, uint64_t seed,
                                                           const ProcessGroup* group) {
  DDPOPT_ASSIGN_OR_RETURN(const Sgd sgd, Sgd::Read(root));
  const auto key = std::make_tuple(steps, seed, sgd.rate(), sgd.momentum(), group != nullptr);
  auto it = trainings_.find(key);
  if (it == trainings_.end()) {
    DDPOPT_ASSIGN_OR_RETURN(Training training, group == nullptr ? TrainAlone(root, steps, seed) : TrainAsRank(root, *group, steps, seed));
    it = trainings_.emplace(key, std::move(training)).first;
  }
  return it->second;
}

absl::StatusOr<ModelChecker::Training> ModelChecker::TrainAlone(const JsonView& root, std::size_t steps, uint64_t seed) {
  Training training;
  DDPOPT_ASSIGN_OR_RETURN(training.program, LoadProgram());
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<IValue> batch, Batch(0));
  DDPOPT_ASSIGN_OR_RETURN(Sgd sgd, Sgd::Read(root));
  DDPOPT_RETURN_IF_ERROR(CatchAsStatus("training", [&] {
    MoveWeights(*training.program, seed);
    ProgramRunner runner(training.program, backend_);
    for (std::size_t step = 0; step < steps; ++step) {
      ClearGradients(*training.program);
      const std::vector<IValue> outputs = runner.RunFlat(batch);
      training.losses.push_back(outputs.at(0).toTensor().item().toDouble());
      Backward(outputs);
      Gradients gradients = GradientsOf(*training.program);
      training.largest = std::max(training.largest, LargestOf(gradients));
      if (step == 0) training.first = std::move(gradients);
      // One step alone is for its gradients.
      if (steps > 1) sgd.Step(*training.program);
    }
    refusal_ = runner.refusal();
    training.reach = sgd.Reach(steps);
  }));
  return training;
}

absl::Status ModelChecker::Trajectory(Differences* differences) {
  DDPOPT_ASSIGN_OR_RETURN(const auto manifest, Manifest::Read((dir_ / "manifest.json").string()));
  const JsonView root = manifest->root();
  DDPOPT_ASSIGN_OR_RETURN(const JsonView single_view, root.Array("losses_single"));
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<double> expected, ReadFloats(single_view));
  DDPOPT_ASSIGN_OR_RETURN(const JsonView params, root.Object("final_param_stats_single"));
  DDPOPT_ASSIGN_OR_RETURN(const JsonView buffers, root.Object("final_buffer_stats_single"));
  DDPOPT_ASSIGN_OR_RETURN(const Training training, Train(root, expected.size(), 0));
  const auto compare = [&](const std::vector<double>& losses, const Allowance& allowance, Differences* found) -> absl::Status {
    CompareLosses("losses_single", training.losses, expected, losses, found);
    if (root.Has("losses_exported_module")) {
      DDPOPT_ASSIGN_OR_RETURN(const JsonView exported_view, root.Array("losses_exported_module"));
      DDPOPT_ASSIGN_OR_RETURN(const std::vector<double> exported, ReadFloats(exported_view));
      CompareLosses("losses_exported_module", training.losses, exported, losses, found);
    }
    const auto find = [&](const std::string& name) { return training.program->FindTensor(name); };
    DDPOPT_RETURN_IF_ERROR(OfField("final_param_stats_single", CompareStatistics(params, find, allowance, found)));
    return OfField("final_buffer_stats_single", CompareStatistics(buffers, find, allowance, found));
  };
  Differences strict;
  DDPOPT_RETURN_IF_ERROR(compare({}, nullptr, &strict));
  if (strict.SameArithmetic()) {
    differences->Append(strict);
    return absl::OkStatus();
  }
  if (strict.empty()) return absl::OkStatus();
  std::vector<Training> moved;
  for (const uint64_t seed : {1, 2, 3, 4}) {
    DDPOPT_ASSIGN_OR_RETURN(Training other, Train(root, expected.size(), seed));
    moved.push_back(std::move(other));
  }
  return Judge(training, moved, compare, differences);
}

absl::StatusOr<ModelChecker::Training> ModelChecker::TrainAsRank(const JsonView& root, const ProcessGroup& group, std::size_t steps,
                                                                 uint64_t seed) const {
  DDPOPT_ASSIGN_OR_RETURN(const JsonView ddp, root.Object("ddp"));
  DdpOptions options;
  if (backend_ != nullptr) {
    options.backend = backend_;
    options.eager_fallback = false;
  }
  DDPOPT_ASSIGN_OR_RETURN(const JsonView cap, ddp.At("bucket_cap_mb"));
  DDPOPT_ASSIGN_OR_RETURN(options.bucket_cap_mb, FloatOf(cap));
  DDPOPT_ASSIGN_OR_RETURN(options.find_unused_parameters, ddp.BoolOr("find_unused_parameters", false));
  DDPOPT_ASSIGN_OR_RETURN(options.broadcast_buffers, ddp.BoolOr("broadcast_buffers", true));
  Training training;
  DDPOPT_ASSIGN_OR_RETURN(training.program, LoadProgram());
  MoveWeights(*training.program, seed);
  DDPOPT_ASSIGN_OR_RETURN(const auto wrapped, ProgramDataParallel::Create(training.program, group, options));
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<IValue> batch, Batch(group.rank()));
  std::vector<at::Tensor> tensors;
  for (const IValue& value : batch) tensors.push_back(value.toTensor());
  DDPOPT_ASSIGN_OR_RETURN(Sgd sgd, Sgd::Read(root));
  for (std::size_t step = 0; step < steps; ++step) {
    DDPOPT_RETURN_IF_ERROR(CatchAsStatus(absl::StrCat("step ", step), [&] {
      ClearGradients(*training.program);
      const at::Tensor loss = wrapped->Forward(tensors);
      training.losses.push_back(loss.item().toDouble());
      torch::autograd::backward({loss});
      Gradients gradients = GradientsOf(*training.program);
      training.largest = std::max(training.largest, LargestOf(gradients));
      if (step == 0) training.first = std::move(gradients);
      sgd.Step(*training.program);
    }));
  }
  training.reach = sgd.Reach(steps);
  return training;
}

absl::Status ModelChecker::TrainOnRanks(const ProcessGroup& group, Differences* grads, Differences* trajectory) {
  DDPOPT_ASSIGN_OR_RETURN(const auto manifest, Manifest::Read((dir_ / "manifest.json").string()));
  const JsonView root = manifest->root();
  DDPOPT_ASSIGN_OR_RETURN(const JsonView ddp, root.Object("ddp"));
  DDPOPT_ASSIGN_OR_RETURN(const int64_t world_size, ddp.Int("world_size"));
  if (world_size != group.world_size()) {
    return ddp.Error("the training of ", world_size, " ranks can't be repeated on ", group.world_size());
  }
  const std::string rank = absl::StrCat("rank", group.rank());
  DDPOPT_ASSIGN_OR_RETURN(const JsonView all_losses, ddp.Object("losses"));
  DDPOPT_ASSIGN_OR_RETURN(const JsonView losses_view, all_losses.Array(rank));
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<double> expected, ReadFloats(losses_view));
  DDPOPT_ASSIGN_OR_RETURN(const JsonView params, ddp.Object("final_param_stats"));
  DDPOPT_ASSIGN_OR_RETURN(const JsonView all_buffers, ddp.Object("final_buffer_stats"));
  DDPOPT_ASSIGN_OR_RETURN(const JsonView buffers, all_buffers.Object(rank));
  DDPOPT_ASSIGN_OR_RETURN(const SafetensorsFile gradients, SafetensorsFile::Open((dir_ / "ddp_grads.safetensors").string()));
  DDPOPT_ASSIGN_OR_RETURN(const Training training, Train(root, expected.size(), 0, &group));
  const auto compare = [&](const std::vector<double>& losses, const Allowance& allowance, Differences* found) -> absl::Status {
    CompareLosses(absl::StrCat("ddp.losses.", rank), training.losses, expected, losses, found);
    const auto find = [&](const std::string& name) { return training.program->FindTensor(name); };
    DDPOPT_RETURN_IF_ERROR(OfField("ddp.final_param_stats", CompareStatistics(params, find, allowance, found)));
    return OfField(absl::StrCat("ddp.final_buffer_stats.", rank), CompareStatistics(buffers, find, allowance, found));
  };
  Differences strict_grads, strict;
  DDPOPT_RETURN_IF_ERROR(CompareGradients(*training.program, training.first, gradients, "", {}, &strict_grads));
  DDPOPT_RETURN_IF_ERROR(compare({}, nullptr, &strict));
  if (strict_grads.SameArithmetic()) grads->Append(strict_grads);
  if (strict.SameArithmetic()) trajectory->Append(strict);
  const bool judge_grads = !strict_grads.empty() && !strict_grads.SameArithmetic();
  const bool judge = !strict.empty() && !strict.SameArithmetic();
  // Whether the training is repeated is for all ranks to decide: repeating it is collective.
  DDPOPT_ASSIGN_OR_RETURN(const auto verdicts, group.AllGatherText("verdicts", judge || judge_grads ? "differs" : ""));
  if (absl::StrJoin(verdicts, "").empty()) return absl::OkStatus();
  std::vector<Training> moved;
  std::vector<Gradients> moved_gradients;
  for (const uint64_t seed : {1, 2, 3, 4}) {
    DDPOPT_ASSIGN_OR_RETURN(Training other, Train(root, expected.size(), seed, &group));
    moved_gradients.push_back(other.first);
    moved.push_back(std::move(other));
  }
  if (judge_grads) {
    DDPOPT_RETURN_IF_ERROR(
        CompareGradients(*training.program, training.first, gradients, "", RoundingOf(training.first, moved_gradients), grads));
  }
  return judge ? Judge(training, moved, compare, trajectory) : absl::OkStatus();
}

absl::Status ModelChecker::RunRanks(const std::string& program, const std::string& backend) {
  if (ranks_ran_) return ranks_status_;
  ranks_ran_ = true;
  ranks_status_ = [&]() -> absl::Status {
    if (program.empty()) return absl::FailedPreconditionError("there is no program to start on the ranks");
    std::string folder = (std::filesystem::temp_directory_path() / "check_models.XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) {
      return absl::UnavailableError(absl::StrCat("no temporary folder can be made: \"", folder, "\""));
    }
    struct Remove {
      std::string folder;
      ~Remove() {
        std::error_code error;
        std::filesystem::remove_all(folder, error);
      }
    } remove{folder};
    LaunchOptions options;
    options.nproc_per_node = 2;
    options.timeout_seconds = 300;
    options.stdout_fd = 2;
    const std::string result = absl::StrCat(folder, "/result");
    const std::vector<std::string> command = {program, absl::StrCat("--rank_model=", dir_.string()), absl::StrCat("--rank_result=", result),
                                              absl::StrCat("--backend=", backend)};
    DDPOPT_ASSIGN_OR_RETURN(const LaunchResult launched, Launch(command, options));
    for (int rank = 0; rank < options.nproc_per_node; ++rank) {
      const absl::StatusOr<std::string> text = ReadFile(absl::StrCat(result, ".", rank));
      if (!text.ok()) return absl::InternalError(absl::StrCat("rank ", rank, " left no result: ", launched.reason));
      const nlohmann::json json = nlohmann::json::parse(*text);
      const auto add = [&](const char* name, Differences* differences) {
        for (const auto& line : json.at(name)) differences->Add("rank ", rank, ": ", line.get<std::string>());
      };
      add("grads", &rank_grads_);
      add("trajectory", &rank_trajectory_);
    }
    return absl::OkStatus();
  }();
  return ranks_status_;
}

}  // namespace ddpopt
