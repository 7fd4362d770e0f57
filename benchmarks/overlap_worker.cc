#include "benchmarks/overlap_worker.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <utility>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Parallel.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/rand.h"
#include "ATen/ops/randint.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "ddpopt/capture/pt2/exported_program.h"
#include "ddpopt/ddp/auto_buckets.h"
#include "ddpopt/ddp/program_data_parallel.h"
#include "ddpopt/distributed/process_group.h"
#include "ddpopt/optimizer/bucket_assignment.h"
#include "ddpopt/optimizer/graph_costs.h"
#include "ddpopt/optimizer/step_model.h"
#include "torch/optim/sgd.h"

namespace ddpopt::benchmarks {
namespace {

double Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// Half the distance between the quartiles.
double SpreadOf(std::vector<double> values) {
  if (values.size() < 4) return 0;
  std::sort(values.begin(), values.end());
  return (values[values.size() * 3 / 4] - values[values.size() / 4]) / 2;
}

double Ms(double seconds) { return 1e3 * seconds; }

// Integers of a model's inputs are below this.
int64_t HighOf(const std::string& model) { return model == "char_gpt" ? 256 : model == "resnet18" ? 1000 : 30522; }

absl::Status FillIn(ExportedProgram* program) {
  for (const auto& [name, with] : program->LikelyTied()) DDPOPT_RETURN_IF_ERROR(program->Tie(name, with));
  for (std::size_t k = 0; k < program->parameters().size(); ++k) {
    const std::string name = program->parameters()[k].name;
    const at::Tensor form = program->parameters()[k].tensor;
    const std::vector<int64_t> sizes = form.sizes().vec();
    at::Tensor value;
    if (sizes.size() >= 2) {
      auto generator = at::make_generator<at::CPUGeneratorImpl>(1000 + k);
      const double bound = 1 / std::sqrt(static_cast<double>(form.numel()) / static_cast<double>(sizes[0]));
      value = (at::rand(sizes, generator) * 2 - 1) * bound;
    } else {
      value = absl::EndsWith(name, "weight") ? at::ones(sizes) : at::zeros(sizes);
    }
    DDPOPT_RETURN_IF_ERROR(program->SetTensor(name, value.to(form.scalar_type())));
  }
  for (std::size_t k = 0; k < program->buffers().size(); ++k) {
    const std::string name = program->buffers()[k].name;
    const at::Tensor& form = program->buffers()[k].tensor;
    const auto options = at::dtype(form.scalar_type());
    at::Tensor value = absl::EndsWith(name, "running_var") ? at::ones(form.sizes(), options) : at::zeros(form.sizes(), options);
    if (absl::EndsWith(name, "position_ids")) value = at::arange(form.numel(), options).view(form.sizes());
    DDPOPT_RETURN_IF_ERROR(program->SetTensor(name, std::move(value)));
  }
  return program->CheckData();
}

enum class Mode { kNormal, kNoCommunication, kAfterBackward };

// What the hook below does; changed between steps, by all ranks alike.
struct Switch {
  Mode mode = Mode::kNormal;
};

// The mean over the ranks; or nothing; or the mean, but started when the last bucket is full.
class SwitchedHook : public CommHook {
 public:
  explicit SwitchedHook(std::shared_ptr<const Switch> mode) : switch_(std::move(mode)) {}
  std::string Name() const override { return "switched"; }
  CommFuture Run(const GradBucket& bucket) override {
    if (switch_->mode == Mode::kNoCommunication) return CompletedFuture(bucket.buffer());
    bucket.buffer().div_(bucket.divisor());
    if (switch_->mode == Mode::kNormal) return bucket.AllReduceSum(bucket.buffer());
    auto promise = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    waiting_.emplace_back(bucket.buffer(), promise);
    if (bucket.is_last()) {
      for (auto& [buffer, waiting] : waiting_) {
        bucket.AllReduceSum(buffer)->addCallback([waiting = waiting](c10::ivalue::Future& done) {
          if (done.hasError()) {
            waiting->setError(done.exception_ptr());
          } else {
            waiting->markCompleted(done.value());
          }
        });
      }
      waiting_.clear();
    }
    return promise;
  }

 private:
  const std::shared_ptr<const Switch> switch_;
  std::vector<std::pair<at::Tensor, c10::intrusive_ptr<c10::ivalue::Future>>> waiting_;
};

// A model in training under one bucket policy.
class Trained {
 public:
  static absl::StatusOr<std::unique_ptr<Trained>> Create(std::shared_ptr<ExportedProgram> program, const ProcessGroup& group,
                                                         DdpOptions options) {
    auto trained = std::unique_ptr<Trained>(new Trained());
    trained->switch_ = std::make_shared<Switch>();
    std::vector<at::Tensor> parameters;
    for (const auto& parameter : program->parameters()) parameters.push_back(parameter.tensor);
    DDPOPT_ASSIGN_OR_RETURN(trained->ddp_, ProgramDataParallel::Create(std::move(program), group, std::move(options)));
    DDPOPT_RETURN_IF_ERROR(trained->ddp_->RegisterCommHook(std::make_unique<SwitchedHook>(trained->switch_)));
    trained->optimizer_ = std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.01).momentum(0.9));
    return trained;
  }

  struct Times {
    std::vector<double> step, backward;
    std::vector<std::vector<double>> ready;  // by bucket, since backward began
  };

  // One step; its times are kept if they count.
  absl::Status Step(const ProcessGroup& group, const std::vector<at::Tensor>& inputs, Mode mode, bool counts) {
    switch_->mode = mode;
    DDPOPT_RETURN_IF_ERROR(group.Barrier());
    return CatchAsStatus("a step", [&] {
      const double start = Now();
      optimizer_->zero_grad();
      ddp_->Forward(inputs).backward();
      optimizer_->step();
      const double seconds = Now() - start;
      if (!counts) return;
      Times& times = times_[static_cast<std::size_t>(mode)];
      times.step.push_back(seconds);
      const StepTiming& timing = core().last_step();
      times.backward.push_back(timing.compute_end - timing.backward_begin);
      times.ready.resize(timing.buckets.size());
      for (std::size_t i = 0; i < timing.buckets.size(); ++i) times.ready[i].push_back(timing.buckets[i].launched - timing.backward_begin);
    });
  }

  const Times& times(Mode mode) const { return times_[static_cast<std::size_t>(mode)]; }
  const DdpCore& core() const { return ddp_->core(); }

 private:
  Trained() = default;
  std::shared_ptr<Switch> switch_;
  std::unique_ptr<ProgramDataParallel> ddp_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
  Times times_[3];
};

class Worker {
 public:
  Worker(const WorkerOptions& options, ProcessGroup group) : options_(options), group_(std::move(group)) {}

  absl::StatusOr<nlohmann::ordered_json> Run() {
    DDPOPT_RETURN_IF_ERROR(Prepare());
    nlohmann::ordered_json result;
    DDPOPT_ASSIGN_OR_RETURN(result["results"], Policies());
    DDPOPT_ASSIGN_OR_RETURN(result["caps"], Caps());
    return result;
  }

 private:
  struct Training {
    std::string name;
    double cap_mib = 0;
    BucketOptions buckets;  // as the optimizer takes them, but for auto
    std::unique_ptr<Trained> trained;
  };

  absl::StatusOr<std::shared_ptr<ExportedProgram>> Load() const {
    DDPOPT_ASSIGN_OR_RETURN(std::shared_ptr<ExportedProgram> program,
                            LoadExportedProgram(absl::StrCat(options_.graphs, "/", options_.model, ".model.json.gz")));
    DDPOPT_RETURN_IF_ERROR(FillIn(program.get()));
    return program;
  }

  absl::Status Prepare() {
    DDPOPT_ASSIGN_OR_RETURN(program_, Load());
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(7000 + group_.rank()));
    for (const fx::Node* node : program_->module()->graph().nodes()) {
      if (node->op() != fx::Op::kPlaceholder) continue;
      if (!node->meta().val.isTensor()) return absl::UnimplementedError(absl::StrCat("input \"", node->path(), "\" is no tensor"));
      const at::Tensor& form = node->meta().val.toTensor();
      inputs_.push_back(form.is_floating_point()
                            ? at::randn(form.sizes(), generator)
                            : at::randint(HighOf(options_.model), form.sizes(), generator, at::dtype(form.scalar_type())));
    }
    for (const auto& parameter : program_->parameters()) bytes_ += static_cast<int64_t>(parameter.tensor.nbytes());
    DDPOPT_ASSIGN_OR_RETURN(figures_, MeasureAllReduce(group_, at::kCPU, bytes_));
    DDPOPT_RETURN_IF_ERROR(group_.Barrier());
    DDPOPT_ASSIGN_OR_RETURN(const GraphCosts costs,
                            MeasureGraphCosts(*program_->module(), std::vector<c10::IValue>(inputs_.begin(), inputs_.end())));
    DDPOPT_ASSIGN_OR_RETURN(step_, MakeGraphStep(*program_->module(), {}, costs));
    return absl::OkStatus();
  }

  BucketOptions Capped(double mib) const {
    BucketOptions buckets;
    buckets.bucket_cap_bytes = static_cast<int64_t>(mib * (1 << 20));
    return buckets;
  }

  // The largest cap with at least four buckets.
  absl::StatusOr<double> CapOfFour() const {
    for (const double cap : {64, 50, 32, 25, 16, 12, 8, 6, 4, 3, 2}) {
      DDPOPT_ASSIGN_OR_RETURN(const BucketAssignment assignment, AssignBuckets(*program_->module(), Capped(cap)));
      if (assignment.buckets.size() >= 4) return cap;
    }
    return 1.0;
  }

  absl::StatusOr<Training> Start(const std::string& policy, double cap_mib) const {
    Training run;
    run.name = policy;
    DdpOptions options;
    options.retrace_every = 0;
    if (policy == "auto") options.bucket_policy = BucketPolicy::kAuto;
    if (policy == "cap") {
      run.cap_mib = cap_mib;
      run.buckets = Capped(cap_mib);
      options.bucket_cap_mb = cap_mib;
    }
    DDPOPT_ASSIGN_OR_RETURN(std::shared_ptr<ExportedProgram> program, Load());
    DDPOPT_ASSIGN_OR_RETURN(run.trained, Trained::Create(std::move(program), group_, std::move(options)));
    return run;
  }

  // Steps of all runs in turn, in all modes.
  absl::Status Train(std::vector<Training>* runs, const std::vector<Mode>& modes) const {
    for (int step = -2; step < options_.steps; ++step) {
      for (Training& run : *runs) {
        for (const Mode mode : modes) {
          if (group_.rank() == 0) std::cerr << "\r" << options_.model << ": step " << step << ", " << run.name << "      " << std::flush;
          DDPOPT_RETURN_IF_ERROR(Annotate(run.trained->Step(group_, inputs_, mode, step >= 0), absl::StrCat("policy ", run.name)));
        }
      }
    }
    if (group_.rank() == 0) std::cerr << "\n";
    return absl::OkStatus();
  }

  // All-reduces of the buckets, one after another and nothing else: seconds of each.
  absl::StatusOr<std::vector<double>> Alone(const std::vector<DdpCore::ReducerBucket>& buckets) const {
    std::vector<std::vector<double>> seconds(buckets.size());
    for (int i = -1; i < 5; ++i) {
      DDPOPT_RETURN_IF_ERROR(group_.Barrier());
      for (std::size_t k = 0; k < buckets.size(); ++k) {
        at::Tensor tensor = at::zeros({buckets[k].bytes / 4});
        const double start = Now();
        DDPOPT_RETURN_IF_ERROR(group_.AllReduceSum(tensor));
        if (i >= 0) seconds[k].push_back(Now() - start);
      }
    }
    std::vector<double> result;
    for (std::vector<double>& of : seconds) result.push_back(MedianOf(std::move(of)));
    return result;
  }

  // By the timeline in which each bucket starts when it was ready without communication, or when the one before has ended.
  static double IdealExposed(const Trained::Times& without, const std::vector<double>& alone) {
    double end = 0;
    for (std::size_t i = 0; i < alone.size() && i < without.ready.size(); ++i) end = std::max(end, MedianOf(without.ready[i])) + alone[i];
    return std::max(end - MedianOf(without.backward), 0.0);
  }

  absl::StatusOr<Timeline> Predict(const Training& run) const {
    DDPOPT_ASSIGN_OR_RETURN(const BucketAssignment assignment, AssignBuckets(*program_->module(), run.buckets));
    OverlapModel overlap;
    overlap.slowdown = figures_.slowdown;
    return PredictTimeline(step_.model, figures_.model, step_.BordersOf(assignment), overlap);
  }

  absl::StatusOr<nlohmann::ordered_json> Policies() {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    if (options_.policies.empty()) return rows;
    DDPOPT_ASSIGN_OR_RETURN(const double cap, CapOfFour());
    std::vector<Training> runs;
    for (const std::string& policy : options_.policies) {
      DDPOPT_ASSIGN_OR_RETURN(Training run, Start(policy, cap));
      runs.push_back(std::move(run));
    }
    DDPOPT_RETURN_IF_ERROR(Train(&runs, {Mode::kNormal, Mode::kNoCommunication, Mode::kAfterBackward}));
    // The same for all policies.
    std::vector<double> without, backwards;
    for (const Training& run : runs) {
      const Trained::Times& times = run.trained->times(Mode::kNoCommunication);
      without.insert(without.end(), times.step.begin(), times.step.end());
      backwards.insert(backwards.end(), times.backward.begin(), times.backward.end());
    }
    const double no_comm = MedianOf(without), backward = MedianOf(backwards);
    int64_t last_legal = step_.model.unused_bytes;
    for (std::size_t i = step_.model.nodes.size(); i-- > 0;) {
      if (step_.model.nodes[i].parameter_groups == 0) continue;
      last_legal += step_.model.nodes[i].parameter_bytes;
      break;
    }
    const double bound = no_comm + std::max(figures_.model.Seconds(last_legal), figures_.model.Seconds(bytes_) - backward);
    for (const Training& run : runs) {
      const std::vector<DdpCore::ReducerBucket> buckets = run.trained->core().reducer_buckets();
      DDPOPT_ASSIGN_OR_RETURN(const std::vector<double> alone, Alone(buckets));
      double communication = 0;
      for (const double seconds : alone) communication += seconds;
      double predicted = 0, predicted_communication = 0;
      nlohmann::ordered_json row;
      if (run.name == "auto") {
        const AutoReport& report = run.trained->core().auto_report();
        predicted = report.exposed;
        predicted_communication = report.communication;
        row["took_caps"] = report.took_caps;
      } else {
        DDPOPT_ASSIGN_OR_RETURN(const Timeline timeline, Predict(run));
        predicted = timeline.exposed;
        predicted_communication = timeline.communication;
      }
      const Trained::Times& normal = run.trained->times(Mode::kNormal);
      const double step = MedianOf(normal.step);
      row["model"] = options_.model;
      row["ranks"] = group_.world_size();
      row["policy"] = run.name;
      if (run.cap_mib > 0) row["cap_mib"] = run.cap_mib;
      row["buckets"] = buckets.size();
      row["comm_ms"] = Ms(communication);
      row["predicted_comm_ms"] = Ms(predicted_communication);
      row["backward_ms"] = Ms(backward);
      row["last_bucket_ms"] = alone.empty() ? 0 : Ms(alone.back());
      row["ideal_exposed_ms"] = Ms(IdealExposed(run.trained->times(Mode::kNoCommunication), alone));
      row["exposed_ms"] = Ms(step - no_comm);
      row["step_ms"] = Ms(step);
      row["step_spread_ms"] = Ms(SpreadOf(normal.step));
      row["no_overlap_step_ms"] = Ms(MedianOf(run.trained->times(Mode::kAfterBackward).step));
      row["no_comm_step_ms"] = Ms(no_comm);
      row["predicted_exposed_ms"] = Ms(predicted);
      row["bound_step_ms"] = Ms(bound);
      row["overlap_slowdown"] = figures_.slowdown;
      rows.push_back(std::move(row));
    }
    return rows;
  }

  absl::StatusOr<nlohmann::ordered_json> Caps() {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    std::vector<Training> runs;
    for (const double cap : options_.caps_mib) {
      DDPOPT_ASSIGN_OR_RETURN(Training run, Start("cap", cap));
      runs.push_back(std::move(run));
    }
    DDPOPT_RETURN_IF_ERROR(Train(&runs, {Mode::kNormal}));
    for (const Training& run : runs) {
      const std::vector<DdpCore::ReducerBucket> buckets = run.trained->core().reducer_buckets();
      DDPOPT_ASSIGN_OR_RETURN(const std::vector<double> alone, Alone(buckets));
      double communication = 0;
      for (const double seconds : alone) communication += seconds;
      DDPOPT_ASSIGN_OR_RETURN(const Timeline timeline, Predict(run));
      const std::vector<double>& steps = run.trained->times(Mode::kNormal).step;
      rows.push_back({{"model", options_.model},
                      {"cap_mib", run.cap_mib},
                      {"buckets", buckets.size()},
                      {"step_ms", Ms(MedianOf(steps))},
                      {"step_spread_ms", Ms(SpreadOf(steps))},
                      {"predicted_step_ms", Ms(timeline.step)},
                      {"predicted_exposed_ms", Ms(timeline.exposed)},
                      {"comm_ms", Ms(communication)},
                      {"predicted_comm_ms", Ms(timeline.communication)}});
    }
    return rows;
  }

  const WorkerOptions& options_;
  const ProcessGroup group_;
  std::shared_ptr<ExportedProgram> program_;
  std::vector<at::Tensor> inputs_;
  int64_t bytes_ = 0;
  AllReduceFigures figures_;
  GraphStep step_;
};

}  // namespace

absl::StatusOr<nlohmann::ordered_json> RunWorker(const WorkerOptions& options) {
  at::set_num_threads(1);
  DDPOPT_ASSIGN_OR_RETURN(ProcessGroup group, InitProcessGroup());
  return Worker(options, std::move(group)).Run();
}

}  // namespace ddpopt::benchmarks
