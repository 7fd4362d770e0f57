#include "ddpopt/optimizer/planner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "ddpopt/optimizer/parameter_uses.h"

namespace ddpopt {
namespace {

constexpr double kMebi = 1 << 20;
// What a difference of predictions is worth acting on.
constexpr double kWorth = 0.01;

class Planner {
 public:
  Planner(const fx::GraphModule& module, const PlanOptions& options) : module_(module), options_(options) {}

  absl::StatusOr<Plan> Make(const std::vector<c10::IValue>& inputs) {
    DDPOPT_ASSIGN_OR_RETURN(plan_.all_reduce, AllReduceOf(options_.algorithm, options_.cluster));
    DDPOPT_RETURN_IF_ERROR(CheckBucketOptions(options_.buckets));
    DDPOPT_ASSIGN_OR_RETURN(plan_.costs, EstimateGraphCosts(module_, inputs, options_.device));
    DDPOPT_ASSIGN_OR_RETURN(plan_.step, MakeGraphStep(module_, options_.buckets, plan_.costs));
    FindMemory();
    DDPOPT_RETURN_IF_ERROR(AddPolicies());
    DDPOPT_RETURN_IF_ERROR(DescribeBuckets());
    plan_.memory.peak = plan_.chosen().timeline.peak_bytes;
    DDPOPT_RETURN_IF_ERROR(Scale());
    Recommend();
    return std::move(plan_);
  }

 private:
  void FindMemory() {
    StepModel& model = plan_.step.model;
    MemoryNeeds& memory = plan_.memory;
    const int64_t trainable = model.parameter_bytes();
    memory.gradients = trainable;
    memory.buckets = options_.gradient_as_bucket_view ? 0 : trainable;
    memory.optimizer = static_cast<int64_t>(options_.optimizer_state_per_parameter * static_cast<double>(trainable));
    memory.activations = model.forward_peak_bytes;
    const int64_t held = model.fixed_bytes - 2 * trainable;
    for (const Parameter& parameter : NamedParameters(module_)) memory.parameters += OwnBytes(parameter.tensor);
    memory.parameters = std::max(memory.parameters, trainable);
    memory.buffers = std::max<int64_t>(held - memory.parameters, 0);
    model.fixed_bytes = held + memory.gradients + memory.buckets + memory.optimizer;
  }

  BucketOptions Bare() const {
    BucketOptions bare;
    bare.ignored_parameters = options_.buckets.ignored_parameters;
    return bare;
  }

  absl::Status AddAssigned(std::string name, double cap_mib, const BucketOptions& buckets) {
    DDPOPT_ASSIGN_OR_RETURN(const BucketAssignment assignment, AssignBuckets(module_, buckets));
    Policy policy;
    policy.name = std::move(name);
    policy.cap_mib = cap_mib;
    policy.borders = plan_.step.BordersOf(assignment);
    policy.timeline = PredictTimeline(plan_.step.model, plan_.all_reduce, policy.borders, options_.overlap);
    plan_.policies.push_back(std::move(policy));
    return absl::OkStatus();
  }

  AutoBordersOptions AutoOptions() const {
    AutoBordersOptions options;
    options.overlap = options_.overlap;
    options.memory_limit_bytes = options_.memory_limit_bytes;
    options.tolerance = 1e-3;
    return options;
  }

  absl::Status AddPolicies() {
    for (const double cap : options_.caps_mib) {
      BucketOptions buckets = Bare();
      buckets.bucket_cap_bytes = static_cast<int64_t>(cap * kMebi);
      DDPOPT_RETURN_IF_ERROR(AddAssigned(absl::StrFormat("cap %g MiB", cap), cap, buckets));
    }
    default_index_ = plan_.policies.size();
    DDPOPT_RETURN_IF_ERROR(AddAssigned("default", 0, Bare()));
    DDPOPT_ASSIGN_OR_RETURN(AutoBorders best, FindBorders(plan_.step.model, plan_.all_reduce, AutoOptions()));
    auto_index_ = plan_.policies.size();
    plan_.policies.push_back({"auto", 0, std::move(best.borders), std::move(best.timeline)});
    const BucketOptions& asked = options_.buckets;
    plan_.chosen_index = auto_index_;
    if (asked.bucket_cap_bytes.has_value() || asked.first_bucket_cap_bytes.has_value() || !asked.bucket_cap_bytes_list.empty() ||
        !asked.bucket_ends.empty()) {
      plan_.chosen_index = plan_.policies.size();
      DDPOPT_RETURN_IF_ERROR(AddAssigned("chosen", 0, asked));
    }
    return absl::OkStatus();
  }

  absl::Status DescribeBuckets() {
    BucketOptions buckets = Bare();
    const Policy& chosen = plan_.chosen();
    if (chosen.borders.empty()) {
      buckets.bucket_cap_bytes = std::max<int64_t>(plan_.step.model.parameter_bytes() + 1, 1);
    } else {
      buckets.bucket_ends = plan_.step.BucketEnds(chosen.borders);
    }
    DDPOPT_ASSIGN_OR_RETURN(const BucketAssignment assignment, AssignBuckets(module_, buckets));
    if (plan_.chosen_index != auto_index_) plan_.warnings = assignment.warnings;
    if (assignment.buckets.size() != chosen.timeline.buckets.size()) {
      return absl::InternalError(absl::StrCat("the plan has ", chosen.timeline.buckets.size(), " buckets, but bucket assignment makes ",
                                              assignment.buckets.size(), " of its borders"));
    }
    for (std::size_t i = 0; i < chosen.timeline.buckets.size(); ++i) {
      const Bucket& bucket = assignment.buckets[assignment.buckets.size() - 1 - i];
      PlannedBucket planned;
      planned.time = chosen.timeline.buckets[i];
      planned.parameters = static_cast<int>(bucket.parameters.size());
      if (!bucket.parameters.empty()) {
        planned.first = bucket.parameters.front();
        planned.last = bucket.parameters.back();
      }
      plan_.buckets.push_back(std::move(planned));
    }
    return absl::OkStatus();
  }

  absl::Status Scale() {
    const int64_t per_node = std::max<int64_t>(options_.cluster.ranks_per_node, 1);
    std::vector<int64_t> sizes;
    for (int64_t size = 1; size <= options_.largest_world_size; size *= 2) {
      if (size < per_node || size % per_node == 0) sizes.push_back(size);
    }
    for (int64_t size = per_node; size <= options_.largest_world_size; size *= 2) sizes.push_back(size);
    sizes.push_back(options_.cluster.world_size);
    std::sort(sizes.begin(), sizes.end());
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    for (const int64_t size : sizes) {
      Cluster cluster = options_.cluster;
      cluster.world_size = size;
      for (const AllReduceAlgorithm algorithm : {AllReduceAlgorithm::kRing, AllReduceAlgorithm::kTree, AllReduceAlgorithm::kHierarchical}) {
        DDPOPT_ASSIGN_OR_RETURN(const AllReduceModel all_reduce, AllReduceOf(algorithm, cluster));
        DDPOPT_ASSIGN_OR_RETURN(const AutoBorders best, FindBorders(plan_.step.model, all_reduce, AutoOptions()));
        const Timeline caps = PredictTimeline(plan_.step.model, all_reduce, plan_.policies[default_index_].borders, options_.overlap);
        ScalingRow row;
        row.world_size = size;
        row.algorithm = algorithm;
        row.communication = best.timeline.communication;
        row.exposed_default = caps.exposed;
        row.exposed_auto = best.timeline.exposed;
        const double alone = best.timeline.forward + best.timeline.backward;
        row.efficiency = best.timeline.step > 0 ? alone / best.timeline.step : 1;
        plan_.scaling.push_back(row);
      }
    }
    return absl::OkStatus();
  }

  void Recommend() {
    const Policy& best = plan_.policies[auto_index_];
    const Policy* cap = nullptr;
    for (const Policy& policy : plan_.policies) {
      if (policy.cap_mib > 0 && (cap == nullptr || policy.timeline.step < cap->timeline.step)) cap = &policy;
    }
    const Timeline& timeline = best.timeline;
    std::string& text = plan_.recommendation;
    const auto ms = [](double seconds) { return absl::StrFormat("%.3g ms", 1e3 * seconds); };
    const double alone = timeline.forward + timeline.backward;
    if (options_.cluster.world_size == 1) {
      text = "One rank has nothing to communicate: buckets make no difference.";
    } else if (timeline.buckets.size() == 1) {
      text = absl::StrCat("One bucket: cutting gains nothing; ", ms(timeline.exposed), " of communication stay exposed.");
    } else if (cap != nullptr && cap->timeline.step <= timeline.step * (1 + kWorth)) {
      text = absl::StrCat("bucket_cap_mb = ", cap->cap_mib, " is as good as the best borders (", ms(cap->timeline.exposed),
                          " exposed against ", ms(timeline.exposed), ").");
    } else {
      text = absl::StrCat("bucket_policy = auto: ", timeline.buckets.size(), " buckets, ", ms(timeline.exposed), " exposed; the best cap (",
                          cap == nullptr ? 0 : cap->cap_mib, " MiB) leaves ", ms(cap == nullptr ? 0 : cap->timeline.exposed), ".");
    }
    if (options_.cluster.world_size > 1) {
      if (timeline.communication > timeline.backward) {
        absl::StrAppendFormat(
            &text,
            " Communication (%s) takes longer than backward (%s): no borders hide it; the link, more work a step, or fewer bytes "
            "(bf16 compression) would.",
            ms(timeline.communication), ms(timeline.backward));
      }
      const ScalingRow* fastest = nullptr;
      for (const ScalingRow& row : plan_.scaling) {
        if (row.world_size == options_.cluster.world_size && (fastest == nullptr || row.exposed_auto < fastest->exposed_auto * (1 - 1e-9)))
          fastest = &row;
      }
      if (fastest != nullptr && fastest->algorithm != options_.algorithm && timeline.exposed - fastest->exposed_auto > kWorth * alone) {
        absl::StrAppend(&text, " With ", AllReduceAlgorithmName(fastest->algorithm), " all-reduces ", ms(fastest->exposed_auto),
                        " would be exposed.");
      }
      absl::StrAppendFormat(&text, " Of the step %.1f %% is computing.", timeline.step > 0 ? 100 * alone / timeline.step : 100.0);
    }
    const double has = options_.memory_limit_bytes > 0 ? static_cast<double>(options_.memory_limit_bytes) : options_.device.memory_bytes;
    if (has > 0 && static_cast<double>(plan_.memory.peak) > has) {
      plan_.warnings.push_back(
          absl::StrFormat("a rank needs %.1f GB of memory, but has %.1f GB", static_cast<double>(plan_.memory.peak) / 1e9, has / 1e9));
    }
  }

  const fx::GraphModule& module_;
  const PlanOptions& options_;
  Plan plan_;
  std::size_t default_index_ = 0, auto_index_ = 0;
};

}  // namespace

absl::StatusOr<Plan> MakePlan(const fx::GraphModule& module, const std::vector<c10::IValue>& inputs, const PlanOptions& options) {
  return Planner(module, options).Make(inputs);
}

}  // namespace ddpopt
