#include "ddpopt/ddp/ddp_core.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/record_function.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "base/logging.h"
#include "base/progress.h"
#include "base/status.h"
#include "c10/core/DeviceGuard.h"
#include "c10/core/InferenceMode.h"
#include "c10/util/Exception.h"
#include "ddpopt/backends/registry.h"
#include "ddpopt/capture/tracer/values.h"
#include "ddpopt/ddp/anchor_outputs.h"
#include "ddpopt/ddp/auto_buckets.h"
#include "ddpopt/ddp/backward_sync.h"
#include "ddpopt/ddp/bucket_names.h"
#include "ddpopt/ddp/bucket_plan.h"
#include "ddpopt/ddp/bucket_targets.h"
#include "ddpopt/ddp/captured_forward.h"
#include "ddpopt/ddp/frozen_reducer.h"
#include "ddpopt/ddp/gradient_checks.h"
#include "ddpopt/ddp/module_sync.h"
#include "ddpopt/ddp/module_tensors.h"
#include "ddpopt/ddp/option_checks.h"
#include "ddpopt/ddp/rank_compare.h"
#include "ddpopt/ddp/uneven_inputs.h"
#include "ddpopt/distributed/device_streams.h"
#include "ddpopt/distributed/process_group_c10d.h"

namespace ddpopt {
namespace {

// device_ids is for modules whose parameters are on that one CUDA device.
absl::Status CheckDeviceIds(const std::vector<int>& device_ids, at::Device device) {
  if (device_ids.empty()) return absl::OkStatus();
  if (device_ids.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("device_ids names ", device_ids.size(), " devices (", absl::StrJoin(device_ids, ", "),
                                                   "); a rank drives one"));
  }
  if (!device.is_cuda() || device.index() != device_ids[0]) {
    return absl::InvalidArgumentError(absl::StrCat("device_ids names cuda:", device_ids[0], ", but the module's parameters are on ",
                                                   device.str(), device.is_cuda() ? "" : "; device_ids is for modules on a CUDA device"));
  }
  return absl::OkStatus();
}

std::vector<at::Tensor> DifferentiableOutputs(const c10::IValue& result, const Call& call) {
  std::vector<at::Tensor> outputs, differentiable;
  FlattenValue(result, &outputs);
  for (const at::Tensor& output : outputs) {
    const bool input = std::any_of(call.tensors.begin(), call.tensors.end(),
                                   [&](const at::Tensor& tensor) { return tensor.is_same(output); });
    if (output.defined() && output.requires_grad() && !output.is_leaf() && !input) differentiable.push_back(output);
  }
  return differentiable;
}

struct Leave {
  std::atomic<std::thread::id>* running_on;
  ~Leave() { *running_on = std::thread::id(); }
};

}  // namespace

struct DdpCore::State {
  State(std::shared_ptr<torch::nn::Module> module, ProcessGroup group, DdpOptions options)
      : module(std::move(module)), group(std::move(group)), options(std::move(options)),
        who(absl::StrCat("DistributedDataParallel on rank ", this->group.rank())) {}
  ~State() {
    if (sync != nullptr) sync->Close();
    if (uneven_inputs != nullptr) uneven_inputs->Close();
  }

  const std::shared_ptr<torch::nn::Module> module;
  const ProcessGroup group;
  DdpOptions options;  // as they are once Collect has run
  const std::string who;  // begins messages

  BucketOptions bucket_options;
  bool sync_buffers = true;
  std::unique_ptr<ModuleTensors> tensors;
  std::shared_ptr<BackwardSync> sync;  // autograd hooks hold it weakly
  std::shared_ptr<UnevenInputs> uneven_inputs;
  std::shared_ptr<CommHook> hook;      // until SetUp, null for the default
  bool hook_registered = false;
  // Since the first forward with gradients.
  std::unique_ptr<CapturedForward> captured;
  std::unique_ptr<BucketNames> bucket_names;
  AutoReport auto_report;
  int64_t reductions = 0;
  std::atomic<std::thread::id> running_on{std::thread::id()};

  absl::Status Collect();
  absl::Status TakeRung();
  absl::Status OpenLog();
  absl::Status ChooseBuckets(const c10::IValue& arguments, const EagerForward& eager);
  void SetUp(const c10::IValue& arguments, const EagerForward& eager);
  void CheckInputs(const Call& call) const;
  c10::IValue ForwardOnDevice(const c10::IValue& arguments, const EagerForward& eager) {
    return at::GradMode::is_enabled() ? ForwardWithGradients(arguments, eager) : eager(arguments);
  }
  c10::IValue ForwardWithGradients(const c10::IValue& arguments, const EagerForward& eager);
  absl::Status CheckGradientsEqual() const;
  std::string AfterReduction();
  FrozenReducer* reducer() const { return sync == nullptr ? nullptr : sync->reducer(); }
};

// Checks what can be checked on this rank alone.
absl::Status DdpCore::State::Collect() {
  if (module == nullptr) return absl::InvalidArgumentError("the module is null");
  DDPOPT_ASSIGN_OR_RETURN(bucket_options, CheckOptions(options));
  sync_buffers = SyncsBuffers(options);
  DDPOPT_RETURN_IF_ERROR(TakeRung());
  DDPOPT_ASSIGN_OR_RETURN(tensors, ModuleTensors::Collect(module, group, bucket_options.ignored_parameters));
  DDPOPT_RETURN_IF_ERROR(CheckDeviceIds(options.device_ids, tensors->device()));
  sync = std::make_shared<BackwardSync>(who, tensors->device(), [this] { return AfterReduction(); });
  uneven_inputs = std::make_shared<UnevenInputs>(group, tensors.get(), sync, sync_buffers);
  return OpenLog();
}

// DDPOPT_BACKEND. It takes machinery away or puts other in its place; a module that is to run eagerly stays so.
absl::Status DdpCore::State::TakeRung() {
  DDPOPT_ASSIGN_OR_RETURN(absl::optional<BackendChoice> rung, BackendFromEnvironment());
  if (!rung.has_value() || options.mode == ExecutionMode::kEager) return absl::OkStatus();
  if (group.rank() == 0) LOG(INFO) << "DistributedDataParallel: " << kBackendVariable << " is \"" << rung->name << "\"";
  if (!rung->capture) options.mode = ExecutionMode::kEager;
  options.backend = std::move(rung->backend);
  return absl::OkStatus();
}

absl::Status DdpCore::State::OpenLog() {
  if (options.step_log.empty()) return absl::OkStatus();
  const std::string path = absl::StrCat(options.step_log, ".rank", group.rank(), ".jsonl");
  if (sync->statistics().OpenLog(path, group.rank())) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("step_log: \"", path, "\" can't be opened: ", std::strerror(errno)));
}

absl::StatusOr<std::unique_ptr<DdpCore>> DdpCore::Create(std::shared_ptr<torch::nn::Module> module, ProcessGroup group,
                                                         DdpOptions options) {
  if (group.impl() == nullptr) return absl::InvalidArgumentError("DistributedDataParallel: the process group is null");
  auto state = std::make_unique<State>(std::move(module), std::move(group), std::move(options));
  const ProgressScope progress(state->group.rank() == 0, "comparing and broadcasting the model");
  const absl::Status local = CatchAsStatus("", [&] { return state->Collect(); });
  std::vector<std::string> lines;
  if (local.ok()) {
    lines = state->tensors->Describe();
    for (std::string& line : DescribeOptions(state->options)) lines.push_back(std::move(line));
  }
  absl::Status status = CompareBetweenRanks(state->group, "the models given to DistributedDataParallel", local, lines);
  if (status.ok() && state->options.init_sync) {
    status = BroadcastTensors(state->group, state->tensors->parameters(), 0);
    if (status.ok()) status = BroadcastTensors(state->group, state->tensors->buffers(), 0);
  }
  if (!status.ok()) return Annotate(status, "DistributedDataParallel");
  return std::unique_ptr<DdpCore>(new DdpCore(std::move(state)));
}

DdpCore::DdpCore(std::unique_ptr<State> state) : state_(std::move(state)) {}
DdpCore::~DdpCore() = default;

void DdpCore::State::CheckInputs(const Call& call) const {
  TORCH_CHECK(!c10::InferenceMode::is_enabled(),
              "DistributedDataParallel: forward with gradients was called under InferenceMode, where none can be computed");
  for (std::size_t i = 0; i < call.tensors.size(); ++i) {
    TORCH_CHECK(call.tensors[i].layout() == at::kStrided, "DistributedDataParallel: input ", i, " is not dense, which is not supported");
    for (const NamedTensor& parameter : tensors->parameters()) {
      TORCH_CHECK(!call.tensors[i].is_same(parameter.tensor), "DistributedDataParallel: input ", i, " is the module's own parameter \"",
                  parameter.name, "\"");
    }
  }
}

// bucket_policy kAuto. Collective; an error of the exchanges themselves is thrown, since ranks can't go on together after one. Returns why this rank
// has no graph, or why nothing could be chosen.
absl::Status DdpCore::State::ChooseBuckets(const c10::IValue& arguments, const EagerForward& eager) {
  const absl::Status traced = captured->TraceFirst(arguments, eager);
  int64_t bytes = 0;
  for (const NamedTensor& parameter : tensors->trainable()) bytes += static_cast<int64_t>(parameter.tensor.nbytes());
  const absl::StatusOr<AllReduceFigures> figures = MeasureAllReduce(group, tensors->device(), bytes);
  TORCH_CHECK(figures.ok(), who, ", measuring all-reduces: ", std::string(figures.status().message()));
  // All ranks run the graph, as in training, when they share a machine.
  absl::StatusOr<AutoChoice> mine = absl::UnknownError("not traced");
  if (!traced.ok()) {
    mine = traced;
  } else {
    const Call call(arguments);
    mine = ddpopt::ChooseBuckets(*captured->first_trace().module, std::vector<c10::IValue>(call.tensors.begin(), call.tensors.end()), *figures,
                                 bucket_options, static_cast<int64_t>(options.bucket_memory_limit_mb * (1 << 20)));
  }
  absl::StatusOr<AutoChoice> choice = AgreeOnChoice(group, mine, bucket_options);
  TORCH_CHECK(choice.ok() || choice.status().code() != absl::StatusCode::kResourceExhausted, who, ", bucket_policy kAuto: ",
              std::string(choice.status().message()));
  if (!traced.ok()) return traced;
  DDPOPT_RETURN_IF_ERROR(Annotate(choice.status(), "bucket_policy kAuto"));
  auto_report = choice->report;
  captured->ChooseBuckets(std::move(choice->buckets));
  return absl::OkStatus();
}

void DdpCore::State::SetUp(const c10::IValue& arguments, const EagerForward& eager) {
  CompileFn backend = options.backend ? options.backend : EagerBackend();
  const auto targets = std::make_shared<BucketTargets>();
  if (options.gradient_as_bucket_view) {
    backend = GivingTargets(std::move(backend), targets);
    targets->set_sync(sync);
  }
  captured = std::make_unique<CapturedForward>(
      module, CapturedForwardOptions{std::move(backend), bucket_options, options.retrace_every,
                                     tensors->device(), absl::StrCat(who, ": "), group.rank() == 0});
  ReducerBuckets buckets;
  absl::Status local;
  if (options.bucket_policy == BucketPolicy::kAuto) local = ChooseBuckets(arguments, eager);
  if (local.ok()) local = CatchAsStatus("", [&]() -> absl::Status {
    DDPOPT_RETURN_IF_ERROR(captured->CaptureFirst(arguments, eager));
    DDPOPT_ASSIGN_OR_RETURN(buckets, BucketsOfGraph(captured->assignment(), *tensors));
    return absl::OkStatus();
  });
  const bool wants_eager = options.mode == ExecutionMode::kEager;
  if (options.eager_fallback) {
    // One rank without a graph is all without: they must have the same buckets.
    const absl::Status everywhere = CompareBetweenRanks(group, "the captured graphs", local, {});
    if (!everywhere.ok()) {
      if (!wants_eager) captured->GiveUp(absl::StrCat("it can't be captured: ", std::string(everywhere.message())));
      buckets = BucketsByCaps(bucket_options, *tensors);
      local = absl::OkStatus();
    }
  }
  if (wants_eager) captured->RunEagerly("mode is kEager");
  if (options.find_unused_parameters || options.static_graph) {
    // With the fallback, all ranks know by now that each has buckets.
    const absl::Status so_far = options.eager_fallback ? local : CompareBetweenRanks(group, "the captured graphs", local, {});
    if (so_far.ok()) {
      absl::StatusOr<ReducerBuckets> rank0 = BucketsOfRank0(group, buckets, *tensors);
      local = rank0.status();
      if (rank0.ok()) buckets = *std::move(rank0);
    } else {
      local = so_far;
    }
  }
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    std::vector<std::string> names;
    for (const std::size_t index : buckets[i]) names.push_back(tensors->trainable()[index].name);
    lines.push_back(absl::StrCat("bucket ", i, ": ", absl::StrJoin(names, ", ")));
  }
  if (hook == nullptr) hook = AllReduceHook();
  lines.push_back(absl::StrCat("communication hook: ", hook->Name()));
  const absl::Status status = CompareBetweenRanks(group, "the bucket tables", local, lines);
  TORCH_CHECK(status.ok(), who, ", first forward with gradients: ", std::string(status.message()));

  if (group.rank() == 0) {
    for (const std::string& warning : captured->assignment().warnings) LOG(WARNING) << "DistributedDataParallel: " << warning;
  }
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;
  for (const NamedTensor& parameter : tensors->trainable()) {
    parameters.push_back(parameter.tensor);
    names.push_back(parameter.name);
  }
  FrozenReducerOptions reducer_options;
  reducer_options.find_unused_parameters = options.find_unused_parameters;
  reducer_options.static_graph = options.static_graph;
  reducer_options.skip_all_reduce_unused_params = options.skip_all_reduce_unused_params;
  reducer_options.gradient_as_bucket_view = options.gradient_as_bucket_view;
  reducer_options.hook_timeout = group.options().timeout;
  auto made = std::make_unique<FrozenReducer>(std::move(parameters), std::move(names), std::move(buckets), group.impl()->group,
                                              reducer_options, hook);
  made->set_check_finite(options.check_gradients_finite);
  std::vector<NamedBucket> named;
  for (const FrozenReducer::BucketContent& bucket : made->Buckets()) {
    const at::ScalarType dtype = tensors->trainable()[bucket.indices.front()].tensor.scalar_type();
    named.push_back({bucket.bytes / static_cast<int64_t>(c10::elementSize(dtype)), dtype,
                     absl::StrCat("bucket ", named.size(), " (", absl::StrJoin(bucket.names, ", "), ")")});
  }
  bucket_names = std::make_unique<BucketNames>(group, std::move(named));
  sync->set_reducer(std::move(made));
}

c10::IValue DdpCore::State::ForwardWithGradients(const c10::IValue& arguments, const EagerForward& eager) {
  TORCH_CHECK(!group.is_shut_down(), who, ": forward after the process group was shut down; gradients can't be synchronised any more");
  sync->CheckReady();
  const Call call(arguments);
  CheckInputs(call);
  tensors->CheckUnchanged();
  const int source = uneven_inputs->active() ? uneven_inputs->Announce() : 0;
  if (reducer() == nullptr) SetUp(arguments, eager);
  if (sync_buffers && sync->synchronises()) {
    const absl::Status status = BroadcastTensors(group, tensors->buffers(), source);
    TORCH_CHECK(status.ok(), who, ": ", std::string(status.message()));
  }
  ForwardStamps stamps;
  stamps.begin = StreamStamp::Record(tensors->device());
  c10::IValue result = captured->Run(arguments, eager);
  stamps.end = StreamStamp::Record(tensors->device());
  reducer()->CountForward();
  std::vector<at::Tensor> differentiable = DifferentiableOutputs(result, call);
  if (differentiable.empty() && reducer()->MayLeaveOut()) {
    result = AnchorOutputs(result);
    differentiable = DifferentiableOutputs(result, call);
  }
  TORCH_CHECK(!differentiable.empty(),
              "DistributedDataParallel: forward's output does not depend on any trainable parameter, so there is "
              "no backward to synchronise");
  sync->Watch(differentiable, stamps);
  return result;
}

absl::Status DdpCore::State::CheckGradientsEqual() const {
  return CheckEqualOnAllRanks(group, "the gradients", {{"gradient of", &tensors->trainable(), /*gradients=*/true}});
}

std::string DdpCore::State::AfterReduction() {
  ++reductions;
  if (options.check_gradients_finite) {
    // What was reduced is the same on all ranks, so all ranks go in here or none.
    const std::vector<std::string> reduced = reducer()->NotFinite();
    if (!reduced.empty()) return DescribeNotFinite(group, reduced, reducer()->NotFiniteHere());
  }
  if (options.check_gradients_equal_every > 0 && reductions % options.check_gradients_equal_every == 0) {
    const absl::Status status = CheckGradientsEqual();
    if (!status.ok()) return std::string(status.message());
  }
  return "";
}

c10::IValue DdpCore::Forward(const c10::IValue& arguments, const EagerForward& eager) {
  const std::thread::id self = std::this_thread::get_id();
  std::thread::id nobody;
  const bool recursive = !state_->running_on.compare_exchange_strong(nobody, self);
  TORCH_CHECK(!recursive, state_->who, ": forward was called ",
              nobody == self ? "from within itself" : "on a second thread while it runs on another; a wrapper is for one thread at a time");
  const Leave leave{&state_->running_on};
  RECORD_USER_SCOPE("DistributedDataParallel.forward");
  const at::Device device = state_->tensors->device();
  const c10::OptionalDeviceGuard on_device(device);
  if (state_->options.device_ids.empty()) return state_->ForwardOnDevice(arguments, eager);
  const auto move = [&](const at::Tensor& input) -> c10::IValue { return CopyBesideCurrentStream(input, device); };
  return state_->ForwardOnDevice(MapTensors(arguments, move), eager);
}

NoSyncScope DdpCore::no_sync() { return NoSyncScope(state_->sync); }

absl::StatusOr<std::unique_ptr<JoinScope>> DdpCore::join(const JoinOptions& options) {
  if (state_->options.check_gradients_finite || state_->options.check_gradients_equal_every > 0) {
    return absl::InvalidArgumentError(
        "join can't be used with check_gradients_equal_every or check_gradients_finite: ranks without inputs have no gradients to check");
  }
  DDPOPT_RETURN_IF_ERROR(state_->uneven_inputs->Begin(options));
  return std::make_unique<JoinScope>(state_->uneven_inputs);
}

absl::Status DdpCore::RegisterCommHook(std::unique_ptr<CommHook> hook) {
  if (hook == nullptr) return absl::InvalidArgumentError("the communication hook is null");
  if (state_->reducer() != nullptr) {
    return absl::FailedPreconditionError("a communication hook is registered before the first forward with gradients, not after it");
  }
  if (state_->hook_registered) {
    return absl::FailedPreconditionError(absl::StrCat("communication hook \"", state_->hook->Name(), "\" is registered already"));
  }
  // Both checks compare what ranks find, and all of them must find the same.
  const char* check = state_->options.check_gradients_equal_every > 0 ? "check_gradients_equal_every"
                      : state_->options.check_gradients_finite        ? "check_gradients_finite"
                                                                      : nullptr;
  if (!hook->Synchronises() && check != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("communication hook \"", hook->Name(), "\" leaves each rank its own gradients, but ", check, " is set"));
  }
  state_->hook = std::move(hook);
  state_->hook_registered = true;
  return absl::OkStatus();
}

std::vector<DdpCore::ReducerBucket> DdpCore::reducer_buckets() const {
  std::vector<ReducerBucket> result;
  if (state_->reducer() == nullptr) return result;
  for (const FrozenReducer::BucketContent& bucket : state_->reducer()->Buckets()) {
    result.push_back({bucket.bytes, bucket.names});
  }
  return result;
}

std::vector<DdpCore::ReducerBucket> DdpCore::optimizer_buckets() const {
  std::vector<ReducerBucket> result;
  if (state_->reducer() == nullptr) return result;
  const std::vector<Bucket>& buckets = state_->captured->assignment().buckets;
  for (std::size_t i = buckets.size(); i-- > 0;) result.push_back({buckets[i].bytes, buckets[i].parameters});
  return result;
}

std::string DdpCore::bucket_table() const {
  if (state_->reducer() == nullptr || state_->captured->assignment().buckets.empty()) return "";
  return state_->captured->assignment().ToTable();
}

std::string DdpCore::explain() const {
  if (state_->captured == nullptr) return "no forward with gradients yet: nothing is captured\n";
  std::string text = state_->captured->Explain();
  if (!state_->auto_report.active) return text;
  absl::StrAppend(&text, state_->auto_report.ToString());
  if (const StepSummary sum = summary(); sum.steps > 0) {
    absl::StrAppendFormat(&text, "Got in the mean of %d steps: %.1f ms of communication, %.1f ms of it exposed\n", sum.steps,
                          1e3 * sum.communication_seconds / static_cast<double>(sum.steps), 1e3 * sum.exposed_seconds / static_cast<double>(sum.steps));
  }
  return text;
}

const AutoReport& DdpCore::auto_report() const { return state_->auto_report; }

int64_t DdpCore::num_recompiles() const { return state_->captured == nullptr ? 0 : state_->captured->recompiles(); }

bool DdpCore::runs_eagerly() const { return state_->captured != nullptr && state_->captured->eager(); }

int64_t DdpCore::num_prepared_forwards() const { return state_->reducer() == nullptr ? 0 : state_->reducer()->NumForwards(); }

int64_t DdpCore::reducer_rebuild_list_size() const {
  return state_->reducer() == nullptr ? 0 : static_cast<int64_t>(state_->reducer()->RebuildListSize());
}

absl::StatusOr<std::unique_ptr<StepTrace>> DdpCore::Trace(const std::string& path) {
  return StepTrace::Begin(path, state_->sync, state_->group.rank(), state_->group.world_size());
}

const StepTiming& DdpCore::last_step() const { return state_->sync->statistics().last(); }

StepSummary DdpCore::summary() const { return state_->sync->statistics().Summary(); }

absl::StatusOr<std::string> DdpCore::SummarizeSteps() const {
  const StepSummary own = summary();
  const std::string mine = absl::StrFormat("%d %.17g %.17g %.17g %.17g %d", own.steps, own.forward_seconds, own.backward_seconds,
                                           own.communication_seconds, own.exposed_seconds, own.bytes);
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<std::string> texts, state_->group.AllGatherText("step summaries", mine));
  std::vector<StepSummary> ranks;
  for (const std::string& text : texts) {
    const std::vector<std::string> fields = absl::StrSplit(text, ' ');
    StepSummary rank;
    if (fields.size() != 6 || !absl::SimpleAtoi(fields[0], &rank.steps) || !absl::SimpleAtod(fields[1], &rank.forward_seconds) ||
        !absl::SimpleAtod(fields[2], &rank.backward_seconds) || !absl::SimpleAtod(fields[3], &rank.communication_seconds) ||
        !absl::SimpleAtod(fields[4], &rank.exposed_seconds) || !absl::SimpleAtoi(fields[5], &rank.bytes)) {
      return absl::InternalError(absl::StrCat("a step summary can't be read: \"", text, "\""));
    }
    ranks.push_back(rank);
  }
  return SummaryTable(ranks);
}

absl::Status DdpCore::CheckGradientsEqual() const { return state_->CheckGradientsEqual(); }

absl::Status DdpCore::CheckParametersEqual() const {
  return CheckEqualOnAllRanks(state_->group, "the values of parameters and buffers",
                              {{"parameter", &state_->tensors->parameters()}, {"buffer", &state_->tensors->buffers()}});
}

}  // namespace ddpopt
