#include "ddpopt/ddp/ddp_core.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/logging.h"
#include "base/status.h"
#include "c10/core/DeviceGuard.h"
#include "c10/core/InferenceMode.h"
#include "c10/util/Exception.h"
#include "ddpopt/capture/tracer/values.h"
#include "ddpopt/ddp/captured_forward.h"
#include "ddpopt/ddp/frozen_reducer.h"
#include "ddpopt/ddp/rank_compare.h"
#include "ddpopt/distributed/device_streams.h"
#include "ddpopt/distributed/process_group_c10d.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/graph_task.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/embedding.h"

namespace ddpopt {
namespace {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// The modules that are wrapped at present, and their trainable parameters: two reducers on one parameter would both average its gradient.
class WrappedRegistry {
 public:
  static WrappedRegistry& Get() {
    static WrappedRegistry* registry = new WrappedRegistry;  // Outlives wrappers in static storage.
    return *registry;
  }

  absl::Status Add(const torch::nn::Module* module, const std::vector<NamedTensor>& parameters) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (owned_.count(module) != 0) {
      return absl::InvalidArgumentError("the module is wrapped in a DistributedDataParallel already; destroy that one first");
    }
    for (const NamedTensor& parameter : parameters) {
      if (owned_.count(parameter.tensor.unsafeGetTensorImpl()) != 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "parameter \"", parameter.name, "\" belongs to another module that is wrapped in a DistributedDataParallel already"));
      }
    }
    owned_.insert(module);
    for (const NamedTensor& parameter : parameters) owned_.insert(parameter.tensor.unsafeGetTensorImpl());
    return absl::OkStatus();
  }

  void Remove(const torch::nn::Module* module, const std::vector<NamedTensor>& parameters) {
    std::lock_guard<std::mutex> lock(mutex_);
    owned_.erase(module);
    for (const NamedTensor& parameter : parameters) owned_.erase(parameter.tensor.unsafeGetTensorImpl());
  }

 private:
  std::mutex mutex_;
  std::unordered_set<const void*> owned_;
};

std::string ShapeText(const std::vector<int64_t>& sizes) { return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]"); }
std::string ShapeText(at::IntArrayRef sizes) { return ShapeText(sizes.vec()); }
std::string DtypeText(at::ScalarType dtype) { return c10::toString(dtype); }
const char* BoolText(bool value) { return value ? "true" : "false"; }

std::string Describe(const char* kind, const NamedTensor& entry) {
  return absl::StrCat(kind, " ", entry.name, ": ", DtypeText(entry.tensor.scalar_type()), " ", ShapeText(entry.tensor.sizes()), " on ",
                      c10::DeviceTypeName(entry.tensor.device().type(), /*lower_case=*/true), ", requires_grad=",
                      BoolText(entry.tensor.requires_grad()));
}

absl::Status CheckTensor(const ProcessGroup& group, const char* kind, const NamedTensor& entry) {
  const at::Tensor& tensor = entry.tensor;
  const std::string who = absl::StrCat(kind, " \"", entry.name, "\"");
  if (tensor.is_meta() || IsFake(tensor)) {
    return absl::InvalidArgumentError(absl::StrCat(who, " has no data (a meta or fake tensor); give it a device first"));
  }
  if (tensor.layout() != at::kStrided) return absl::InvalidArgumentError(absl::StrCat(who, " is not dense, which is not supported"));
  return group.CheckDevice(who, tensor.device());
}

absl::Status CheckParameter(const ProcessGroup& group, const NamedTensor& entry) {
  DDPOPT_RETURN_IF_ERROR(CheckTensor(group, "parameter", entry));
  const at::ScalarType dtype = entry.tensor.scalar_type();
  if (c10::isComplexType(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("parameter \"", entry.name, "\" is complex, which is not supported"));
  }
  if (!c10::isFloatingType(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("parameter \"", entry.name, "\" has dtype ", DtypeText(dtype),
                                                   ", which cannot have a gradient; register it as a buffer"));
  }
  if (!entry.tensor.is_leaf()) {
    return absl::InvalidArgumentError(absl::StrCat("parameter \"", entry.name, "\" is the result of an operation, not a leaf"));
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::optional<int64_t>> CapBytes(const char* name, absl::optional<double> mebibytes) {
  if (!mebibytes.has_value()) return absl::optional<int64_t>();
  constexpr double kMebi = 1024.0 * 1024.0;
  if (!(*mebibytes >= 0) || *mebibytes * kMebi > 9e18) {
    return absl::InvalidArgumentError(absl::StrCat(name, " must be a number >= 0, got ", *mebibytes));
  }
  return absl::optional<int64_t>(static_cast<int64_t>(*mebibytes * kMebi));
}

absl::StatusOr<BucketOptions> MakeBucketOptions(const DdpOptions& options) {
  BucketOptions result;
  DDPOPT_ASSIGN_OR_RETURN(result.bucket_cap_bytes, CapBytes("bucket_cap_mb", options.bucket_cap_mb));
  DDPOPT_ASSIGN_OR_RETURN(result.first_bucket_cap_bytes, CapBytes("first_bucket_cap_mb", options.first_bucket_cap_mb));
  const double cap = options.bucket_cap_mb.value_or(25.0);
  if (options.first_bucket_cap_mb.has_value() && *options.first_bucket_cap_mb > cap) {
    return absl::InvalidArgumentError(
        absl::StrCat("first_bucket_cap_mb (", *options.first_bucket_cap_mb, ") is above bucket_cap_mb (", cap, ")"));
  }
  for (std::size_t i = 0; i < options.bucket_cap_mb_list.size(); ++i) {
    const std::string name = absl::StrCat("bucket_cap_mb_list[", i, "]");
    DDPOPT_ASSIGN_OR_RETURN(const absl::optional<int64_t> cap, CapBytes(name.c_str(), options.bucket_cap_mb_list[i]));
    result.bucket_cap_bytes_list.push_back(*cap);
  }
  result.bucket_ends = options.bucket_ends;
  result.ignored_parameters.insert(options.parameters_to_ignore.begin(), options.parameters_to_ignore.end());
  DDPOPT_RETURN_IF_ERROR(CheckBucketOptions(result));
  return result;
}

struct ParameterGuard {
  NamedTensor parameter;
  std::vector<int64_t> sizes;
  at::ScalarType dtype;
  bool requires_grad;
};

// A StepTiming in the making: moments on the device, which may still be to come.
struct StepStamps {
  StreamStamp backward_begin;
  StreamStamp compute_end;
  StreamStamp backward_end;
  std::vector<FrozenReducer::Times> buckets;
};

enum class Phase { kIdle, kForwardDone, kInBackward, kFailed };

}  // namespace

struct DdpCore::State : std::enable_shared_from_this<DdpCore::State> {
  State(std::shared_ptr<torch::nn::Module> module, ProcessGroup group, DdpOptions options)
      : module(std::move(module)), group(std::move(group)), options(std::move(options)) {}
  ~State() {
    if (registered) WrappedRegistry::Get().Remove(module.get(), trainable);
  }

  std::shared_ptr<torch::nn::Module> module;
  ProcessGroup group;
  DdpOptions options;
  BucketOptions bucket_options;

  // Ignored ones excepted, each tensor once, under its first name.
  std::vector<NamedTensor> parameters;
  std::vector<NamedTensor> buffers;
  std::vector<NamedTensor> trainable;                     // what the Reducer reduces
  std::unordered_map<std::string, std::size_t> index_of;  // in `trainable`, by every name
  at::Device device = at::kCPU;                           // of all parameters
  bool registered = false;

  // Since the first forward with gradients.
  std::vector<ParameterGuard> parameter_guards;
  std::unique_ptr<CapturedForward> captured;
  std::unique_ptr<FrozenReducer> reducer;

  Phase phase = Phase::kIdle;
  int64_t forward_id = 0;
  int backward_task = -1;  // the engine's number of the backward that is running
  std::string failure;
  StepStamps current_step;
  StepStamps last_step;
  StepTiming last_timing;

  absl::Status Collect();
  absl::Status CheckOneDevice();
  absl::Status BroadcastFromRank0() const;
  absl::Status BroadcastBuffers() const;
  bool IsIgnored(const std::string& name) const { return bucket_options.ignored_parameters.contains(name); }

  std::vector<std::vector<std::size_t>> BucketsByCaps() const;
  absl::StatusOr<std::vector<std::vector<std::size_t>>> CapturedBuckets() const;
  void SetUp(const c10::IValue& arguments, const EagerForward& eager);

  void CheckPhase() const;
  void CheckInputs(const c10::IValue& arguments) const;
  void CheckParameters() const;
  c10::IValue ForwardOnDevice(const c10::IValue& arguments, const EagerForward& eager) {
    return at::GradMode::is_enabled() ? ForwardWithGradients(arguments, eager) : eager(arguments);
  }
  c10::IValue ForwardWithGradients(const c10::IValue& arguments, const EagerForward& eager);

  void OnBackwardBegin(int64_t id);
  void OnBackwardEnd(int64_t id);
  [[noreturn]] void Fail(const std::string& message);
};

// Fills the lists of tensors, and checks what can be checked on this rank alone.
absl::Status DdpCore::State::Collect() {
  if (module == nullptr) return absl::InvalidArgumentError("the module is null");
  DDPOPT_ASSIGN_OR_RETURN(bucket_options, MakeBucketOptions(options));

  std::unordered_set<std::string> unknown(options.parameters_to_ignore.begin(), options.parameters_to_ignore.end());
  std::unordered_map<const c10::TensorImpl*, std::size_t> seen;  // index in `trainable`, or npos
  constexpr std::size_t kNotTrainable = static_cast<std::size_t>(-1);
  std::unordered_set<const c10::TensorImpl*> ignored;
  for (const auto& item : module->named_parameters()) {
    unknown.erase(item.key());
    if (IsIgnored(item.key())) ignored.insert(item.value().unsafeGetTensorImpl());
  }
  for (const auto& item : module->named_parameters()) {
    const NamedTensor entry{item.key(), item.value()};
    const c10::TensorImpl* impl = entry.tensor.unsafeGetTensorImpl();
    if (ignored.count(impl) != 0) continue;  // Under one name, so under all.
    DDPOPT_RETURN_IF_ERROR(CheckParameter(group, entry));
    if (const auto [it, is_new] = seen.emplace(impl, kNotTrainable); !is_new) {
      if (it->second != kNotTrainable) index_of.emplace(entry.name, it->second);
      continue;
    }
    parameters.push_back(entry);
    if (entry.tensor.requires_grad()) {
      seen[impl] = trainable.size();
      index_of.emplace(entry.name, trainable.size());
      trainable.push_back(entry);
    }
  }
  for (const auto& item : module->named_buffers()) {
    unknown.erase(item.key());
    if (IsIgnored(item.key())) continue;
    const NamedTensor entry{item.key(), item.value()};
    DDPOPT_RETURN_IF_ERROR(CheckTensor(group, "buffer", entry));
    buffers.push_back(entry);
  }
  if (!unknown.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("parameters_to_ignore names \"", *std::min_element(unknown.begin(), unknown.end()),
                                                   "\", but the module has no such parameter or buffer"));
  }
  if (trainable.empty()) {
    return absl::InvalidArgumentError(parameters.empty() && ignored.empty()
                                          ? "the module has no parameters; there is nothing to train"
                                          : "the module has no trainable parameters: all are frozen (requires_grad is false) or ignored");
  }
  for (const auto& item : module->named_modules()) {
    const auto* embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(item.value().get());
    if (embedding != nullptr && embedding->options.sparse()) {
      return absl::InvalidArgumentError(
          absl::StrCat("submodule \"", item.key(), "\" is an Embedding with sparse gradients, which are not supported"));
    }
  }
  DDPOPT_RETURN_IF_ERROR(CheckOneDevice());
  DDPOPT_RETURN_IF_ERROR(WrappedRegistry::Get().Add(module.get(), trainable));
  registered = true;
  return absl::OkStatus();
}

// A rank drives one device, and its reduced gradients are there.
absl::Status DdpCore::State::CheckOneDevice() {
  device = parameters.front().tensor.device();
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.device() != device) {
      return absl::InvalidArgumentError(absl::StrCat("parameter \"", parameters.front().name, "\" is on ", device.str(),
                                                     ", but parameter \"",
                                                     parameter.name, "\" is on ", parameter.tensor.device().str(),
                                                     "; all parameters of a rank must be on one device"));
    }
  }
  if (options.device_ids.empty()) return absl::OkStatus();
  if (options.device_ids.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("device_ids names ", options.device_ids.size(), " devices (",
                                                   absl::StrJoin(options.device_ids, ", "), "); a rank drives one"));
  }
  if (!device.is_cuda() || device.index() != options.device_ids[0]) {
    return absl::InvalidArgumentError(absl::StrCat("device_ids names cuda:", options.device_ids[0], ", but the module's parameters are on ",
                                                   device.str(), device.is_cuda() ? "" : "; device_ids is for modules on a CUDA device"));
  }
  return absl::OkStatus();
}

absl::Status DdpCore::State::BroadcastFromRank0() const {
  if (group.world_size() == 1) return absl::OkStatus();
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  for (const std::vector<NamedTensor>* list : {&parameters, &buffers}) {
    for (const NamedTensor& entry : *list) {
      if (entry.tensor.numel() == 0) continue;
      const absl::Status status = CatchAsStatus("", [&]() -> absl::Status {
        const at::Tensor detached = entry.tensor.detach();
        const at::Tensor dense = detached.contiguous();
        at::Tensor bytes = dense.reshape({-1}).view(at::kByte);  // Every dtype travels alike.
        DDPOPT_RETURN_IF_ERROR(group.Broadcast(bytes, 0));
        if (!dense.is_same(detached) && group.rank() != 0) detached.copy_(dense);
        return absl::OkStatus();
      });
      if (!status.ok()) return Annotate(status, absl::StrCat("broadcasting \"", entry.name, "\" from rank 0"));
    }
  }
  return absl::OkStatus();
}

// All of them in one message. A graph that saved a buffer for its backward may still be alive: writing through variable_data() leaves the
// buffer's version counter, by which autograd would refuse that backward, alone.
absl::Status DdpCore::State::BroadcastBuffers() const {
  if (group.world_size() == 1 || buffers.empty()) return absl::OkStatus();
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  return CatchAsStatus("broadcasting buffers from rank 0", [&]() -> absl::Status {
    std::vector<at::Tensor> own;
    int64_t total = 0;
    for (const NamedTensor& buffer : buffers) {
      own.push_back(buffer.tensor.variable_data());
      total += static_cast<int64_t>(own.back().numel() * own.back().element_size());
    }
    if (total == 0) return absl::OkStatus();
    at::Tensor message = at::empty({total}, at::TensorOptions(at::kByte).device(buffers.front().tensor.device()));
    const auto for_each = [&](auto&& copy) {
      int64_t offset = 0;
      for (const at::Tensor& buffer : own) {
        const int64_t bytes = buffer.numel() * static_cast<int64_t>(buffer.element_size());
        if (bytes > 0) copy(buffer, message.narrow(0, offset, bytes));
        offset += bytes;
      }
    };
    if (group.rank() == 0) {
      for_each([](const at::Tensor& buffer, const at::Tensor& part) { part.copy_(buffer.contiguous().reshape({-1}).view(at::kByte)); });
    }
    DDPOPT_RETURN_IF_ERROR(group.Broadcast(message, 0));
    if (group.rank() == 0) return absl::OkStatus();
    for_each([](const at::Tensor& buffer, const at::Tensor& part) {
      at::Tensor dense = at::empty(buffer.sizes(), buffer.options());
      dense.reshape({-1}).view(at::kByte).copy_(part);
      buffer.copy_(dense);
    });
    return absl::OkStatus();
  });
}

absl::StatusOr<std::unique_ptr<DdpCore>> DdpCore::Create(std::shared_ptr<torch::nn::Module> module, ProcessGroup group,
                                                         DdpOptions options) {
  if (group.impl() == nullptr) return absl::InvalidArgumentError("DistributedDataParallel: the process group is null");
  auto state = std::make_shared<State>(std::move(module), std::move(group), std::move(options));
  const absl::Status local = CatchAsStatus("", [&] { return state->Collect(); });
  std::vector<std::string> lines;
  if (local.ok()) {
    for (const NamedTensor& parameter : state->parameters) lines.push_back(Describe("parameter", parameter));
    for (const NamedTensor& buffer : state->buffers) lines.push_back(Describe("buffer", buffer));
    const auto cap = [](absl::optional<double> mb) { return mb.has_value() ? absl::StrCat(*mb) : std::string("default"); };
    lines.push_back(absl::StrCat("options: bucket_cap_mb ", cap(state->options.bucket_cap_mb), ", first_bucket_cap_mb ",
                                 cap(state->options.first_bucket_cap_mb), ", bucket_cap_mb_list [",
                                 absl::StrJoin(state->options.bucket_cap_mb_list, ", "), "], bucket_ends [",
                                 absl::StrJoin(state->options.bucket_ends, ", "), "], init_sync ", BoolText(state->options.init_sync), ", broadcast_buffers ",
                                 BoolText(state->options.broadcast_buffers), ", find_unused_parameters ",
                                 BoolText(state->options.find_unused_parameters)));
  }
  absl::Status status = CompareBetweenRanks(state->group, "the models given to DistributedDataParallel", local, lines);
  if (status.ok() && state->options.init_sync) status = state->BroadcastFromRank0();
  if (!status.ok()) return Annotate(status, "DistributedDataParallel");
  return std::unique_ptr<DdpCore>(new DdpCore(std::move(state)));
}

DdpCore::DdpCore(std::shared_ptr<State> state) : state_(std::move(state)) {}
DdpCore::~DdpCore() = default;

// Marks the wrapper as failed, so that nothing trains on with unsynchronised gradients.
void DdpCore::State::Fail(const std::string& message) {
  phase = Phase::kFailed;
  failure = message;
  TORCH_CHECK(false, "DistributedDataParallel on rank ", group.rank(), ": ", message);
}

void DdpCore::State::CheckPhase() const {
  const int rank = group.rank();
  switch (phase) {
    case Phase::kIdle:
      return;
    case Phase::kForwardDone:
      TORCH_CHECK(false, "DistributedDataParallel on rank ", rank, ": forward number ", forward_id,
                  " was not followed by a backward: call backward() through its output once before the next forward, or run forwards that "
                  "need none under torch::NoGradGuard");
    case Phase::kInBackward:
      TORCH_CHECK(
          false, "DistributedDataParallel on rank ", rank, ": the backward of forward number ", forward_id,
          " has not ended, or failed with an error of its own; its gradients are not synchronised. Make a new DistributedDataParallel");
    case Phase::kFailed:
      TORCH_CHECK(false, "DistributedDataParallel on rank ", rank, ": an earlier backward failed: ", failure,
                  ". Its gradients are not synchronised; make a new DistributedDataParallel");
  }
}

void DdpCore::State::CheckInputs(const c10::IValue& arguments) const {
  TORCH_CHECK(!c10::InferenceMode::is_enabled(),
              "DistributedDataParallel: forward with gradients was called under InferenceMode, where none can be computed");
  const Call call(arguments);
  for (std::size_t i = 0; i < call.tensors.size(); ++i) {
    TORCH_CHECK(call.tensors[i].layout() == at::kStrided, "DistributedDataParallel: input ", i, " is not dense, which is not supported");
    for (const NamedTensor& parameter : parameters) {
      TORCH_CHECK(!call.tensors[i].is_same(parameter.tensor), "DistributedDataParallel: input ", i, " is the module's own parameter \"",
                  parameter.name, "\"");
    }
  }
}

// The Reducer was built for these.
void DdpCore::State::CheckParameters() const {
  for (const ParameterGuard& guard : parameter_guards) {
    const at::Tensor& tensor = guard.parameter.tensor;
    const std::string& name = guard.parameter.name;
    constexpr char kNewOne[] = ". Gradient buckets are made for the parameters as they were; make a new DistributedDataParallel";
    TORCH_CHECK(tensor.requires_grad() == guard.requires_grad, "DistributedDataParallel: parameter \"", name,
                "\" was captured with requires_grad ", BoolText(guard.requires_grad), ", but has requires_grad ",
                BoolText(tensor.requires_grad()), " now", kNewOne);
    TORCH_CHECK(tensor.scalar_type() == guard.dtype && tensor.sizes() == at::IntArrayRef(guard.sizes),
                "DistributedDataParallel: parameter \"", name, "\" was captured as ", DtypeText(guard.dtype), " ", ShapeText(guard.sizes),
                ", but is ", DtypeText(tensor.scalar_type()), " ", ShapeText(tensor.sizes()), " now", kNewOne);
  }
}

// The optimizer's buckets as indices into `trainable`, in backward order.
absl::StatusOr<std::vector<std::vector<std::size_t>>> DdpCore::State::CapturedBuckets() const {
  std::vector<std::vector<std::size_t>> result;
  std::vector<bool> placed(trainable.size(), false);
  // A Reducer bucket is one flat tensor: one dtype, one device.
  const auto add = [&](const std::vector<std::size_t>& members) {
    std::vector<std::vector<std::size_t>> groups;
    for (const std::size_t index : members) {
      const at::Tensor& tensor = trainable[index].tensor;
      const auto fits = [&](const std::vector<std::size_t>& other) {
        const at::Tensor& first = trainable[other.front()].tensor;
        return first.scalar_type() == tensor.scalar_type() && first.device() == tensor.device();
      };
      const auto it = std::find_if(groups.begin(), groups.end(), fits);
      if (it == groups.end()) {
        groups.push_back({index});
      } else {
        it->push_back(index);
      }
    }
    for (auto& members_of_one_dtype : groups) result.push_back(std::move(members_of_one_dtype));
  };

  const std::vector<Bucket>& buckets = captured->assignment().buckets;
  std::vector<std::size_t> members;
  for (std::size_t i = buckets.size(); i-- > 0;) {
    members.clear();
    for (const std::string& name : buckets[i].parameters) {
      const auto it = index_of.find(name);
      if (it == index_of.end()) {
        return absl::InternalError(absl::StrCat("bucket ", i, " holds \"", name, "\", which is no trainable parameter of the module"));
      }
      if (placed[it->second]) continue;  // Another name of the same tensor.
      placed[it->second] = true;
      members.push_back(it->second);
    }
    if (i > 0) add(members);
  }
  // What the graph does not use is reduced last, if ever: a backward without its gradient is refused.
  if (buckets.empty()) members.clear();
  for (std::size_t index = 0; index < trainable.size(); ++index) {
    if (!placed[index]) members.push_back(index);
  }
  add(members);
  return result;
}

// Without a graph: by caps, in the reverse of the order of registration, as DistributedDataParallel does in Python.
std::vector<std::vector<std::size_t>> DdpCore::State::BucketsByCaps() const {
  constexpr int64_t kMebi = 1 << 20;
  const int64_t cap = bucket_options.bucket_cap_bytes.value_or(25 * kMebi);
  const int64_t first_cap = bucket_options.first_bucket_cap_bytes.value_or(bucket_options.bucket_cap_bytes.has_value() ? cap : kMebi);
  const std::vector<int64_t>& list = bucket_options.bucket_cap_bytes_list;
  std::vector<std::vector<std::size_t>> result;
  int64_t bytes = 0, limit = 0;
  for (std::size_t index = trainable.size(); index-- > 0;) {
    const at::Tensor& tensor = trainable[index].tensor;
    const bool fits = !result.empty() && trainable[result.back().back()].tensor.scalar_type() == tensor.scalar_type();
    if (!fits || bytes >= limit) {
      const std::size_t number = result.size();
      limit = list.empty() ? (number == 0 ? first_cap : cap) : list[std::min(number, list.size() - 1)];
      result.emplace_back();
      bytes = 0;
    }
    result.back().push_back(index);
    bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return result;
}

void DdpCore::State::SetUp(const c10::IValue& arguments, const EagerForward& eager) {
  captured = std::make_unique<CapturedForward>(
      module, CapturedForwardOptions{options.backend ? options.backend : EagerBackend(), bucket_options, options.retrace_every, device,
                                     absl::StrCat("DistributedDataParallel on rank ", group.rank(), ": ")});
  std::vector<std::vector<std::size_t>> buckets;
  absl::Status local = CatchAsStatus("", [&]() -> absl::Status {
    DDPOPT_RETURN_IF_ERROR(captured->CaptureFirst(arguments, eager));
    DDPOPT_ASSIGN_OR_RETURN(buckets, CapturedBuckets());
    return absl::OkStatus();
  });
  if (options.eager_fallback) {
    // One rank without a graph is all without: they must have the same buckets.
    const absl::Status everywhere = CompareBetweenRanks(group, "the captured graphs", local, {});
    if (!everywhere.ok()) {
      captured->GiveUp(absl::StrCat("it can't be captured: ", std::string(everywhere.message())));
      buckets = BucketsByCaps();
      local = absl::OkStatus();
    }
  }
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    std::vector<std::string> names;
    for (const std::size_t index : buckets[i]) names.push_back(trainable[index].name);
    lines.push_back(absl::StrCat("bucket ", i, ": ", absl::StrJoin(names, ", ")));
  }
  const absl::Status status = CompareBetweenRanks(group, "the bucket tables", local, lines);
  TORCH_CHECK(status.ok(), "DistributedDataParallel on rank ", group.rank(),
              ", first forward with gradients: ", std::string(status.message()));

  if (group.rank() == 0) {
    for (const std::string& warning : captured->assignment().warnings) LOG(WARNING) << "DistributedDataParallel: " << warning;
  }

  parameter_guards.clear();
  for (const NamedTensor& parameter : parameters) {
    parameter_guards.push_back(
        {parameter, parameter.tensor.sizes().vec(), parameter.tensor.scalar_type(), parameter.tensor.requires_grad()});
  }

  std::vector<at::Tensor> tensors;
  std::vector<std::string> names;
  for (const NamedTensor& parameter : trainable) {
    tensors.push_back(parameter.tensor);
    names.push_back(parameter.name);
  }
  reducer = std::make_unique<FrozenReducer>(std::move(tensors), std::move(names), std::move(buckets), group.impl()->group,
                                            options.find_unused_parameters);
}

c10::IValue DdpCore::State::ForwardWithGradients(const c10::IValue& arguments, const EagerForward& eager) {
  CheckPhase();
  CheckInputs(arguments);
  if (reducer == nullptr) {
    for (const NamedTensor& parameter : trainable) {
      TORCH_CHECK(parameter.tensor.requires_grad(), "DistributedDataParallel: parameter \"", parameter.name,
                  "\" was trainable when the module was wrapped, but has requires_grad false now");
    }
    SetUp(arguments, eager);
  } else {
    CheckParameters();
  }

  if (options.broadcast_buffers) {
    const absl::Status status = BroadcastBuffers();
    TORCH_CHECK(status.ok(), "DistributedDataParallel on rank ", group.rank(), ": ", std::string(status.message()));
  }
  reducer->PrepareForward();
  c10::IValue result = captured->Run(arguments, eager);
  std::vector<at::Tensor> outputs;
  FlattenValue(result, &outputs);
  const Call call(arguments);
  std::vector<at::Tensor> differentiable;
  for (const at::Tensor& output : outputs) {
    const bool input = std::any_of(call.tensors.begin(), call.tensors.end(),
                                   [&](const at::Tensor& tensor) { return tensor.is_same(output); });
    if (output.requires_grad() && !output.is_leaf() && !input) differentiable.push_back(output);
  }
  TORCH_CHECK(!differentiable.empty(),
              "DistributedDataParallel: forward's output does not depend on any trainable parameter, so there is "
              "no backward to synchronise");
  reducer->PrepareBackward(differentiable);
  current_step = StepStamps();
  const int64_t id = ++forward_id;
  for (const at::Tensor& output : differentiable) {
    output.register_hook([weak = weak_from_this(), id](const at::Tensor&) {
      const std::shared_ptr<State> state = weak.lock();
      TORCH_CHECK(state != nullptr,
                  "DistributedDataParallel: backward through the output of a wrapper that has been destroyed; its gradients "
                  "could not be synchronised");
      state->OnBackwardBegin(id);
    });
  }
  phase = Phase::kForwardDone;
  return result;
}

// Runs when the gradient of forward's output is known, before that of any parameter within the graph.
void DdpCore::State::OnBackwardBegin(int64_t id) {
  const int rank = group.rank();
  TORCH_CHECK(phase != Phase::kFailed, "DistributedDataParallel on rank ", rank, ": an earlier backward failed: ", failure);
  const int task = torch::autograd::get_current_graph_task_id();
  if (id == forward_id && phase == Phase::kInBackward && task == backward_task) return;  // another output of the same forward
  TORCH_CHECK(id == forward_id && phase == Phase::kForwardDone, "DistributedDataParallel on rank ", rank,
              ": backward was called twice for forward number ", id,
              "; its gradients have been synchronised already. Add up losses and call backward() once");
  if (reducer->Finished()) {
    Fail(absl::StrCat("between forward number ", id,
                      " and its backward another backward computed gradients of all parameters; they were reduced then, and can't be "
                      "reduced again"));
  }
  phase = Phase::kInBackward;
  backward_task = task;
  current_step.backward_begin = StreamStamp::Record(device);
  auto& engine = torch::autograd::Engine::get_default_engine();
  engine.queue_callback([weak = weak_from_this(), id] {
    // Queueing may move this very closure: nothing captured is used afterwards.
    const std::weak_ptr<State> state_ref = weak;
    const int64_t forward = id;
    if (const auto state = state_ref.lock()) state->current_step.compute_end = StreamStamp::Record(state->device);
    // The Reducer's own callback, which waits for the all-reduces, was queued during backward; the next one comes after it.
    torch::autograd::Engine::get_default_engine().queue_callback([state_ref, forward] {
      if (const auto state = state_ref.lock()) state->OnBackwardEnd(forward);
    });
  });
}

void DdpCore::State::OnBackwardEnd(int64_t id) {
  if (id != forward_id || phase != Phase::kInBackward) return;
  if (!reducer->Finished()) {
    const std::vector<std::string> missing = reducer->UnreadyParameters();
    std::vector<std::string> quoted;
    for (const std::string& name : missing) quoted.push_back(absl::StrCat("\"", name, "\""));
    Fail(missing.size() == 1
             ? absl::StrCat("parameter ", quoted[0],
                            " got no gradient in this backward, so its bucket and those after it were not synchronised. "
                            "Every trainable parameter must take part in every backward; name exceptions in parameters_to_ignore, or set "
                            "find_unused_parameters")
             : absl::StrCat("parameters ", absl::StrJoin(quoted, ", "),
                            " got no gradient in this backward, so their buckets and those after "
                            "them were not synchronised. Every trainable parameter must take part in every backward; name exceptions in "
                            "parameters_to_ignore, or set find_unused_parameters"));
  }
  current_step.backward_end = StreamStamp::Record(device);
  current_step.buckets = reducer->BucketTimes();
  last_step = std::move(current_step);
  phase = Phase::kIdle;
}

c10::IValue DdpCore::Forward(const c10::IValue& arguments, const EagerForward& eager) {
  const c10::OptionalDeviceGuard guard(state_->device);
  if (state_->options.device_ids.empty()) return state_->ForwardOnDevice(arguments, eager);
  const auto move = [&](const at::Tensor& input) -> c10::IValue { return CopyBesideCurrentStream(input, state_->device); };
  return state_->ForwardOnDevice(MapTensors(arguments, move), eager);
}

std::vector<DdpCore::ReducerBucket> DdpCore::reducer_buckets() const {
  std::vector<ReducerBucket> result;
  if (state_->reducer == nullptr) return result;
  for (const FrozenReducer::BucketContent& bucket : state_->reducer->Buckets()) {
    ReducerBucket entry{bucket.bytes, {}};
    for (const std::size_t index : bucket.indices) entry.parameters.push_back(state_->trainable[index].name);
    result.push_back(std::move(entry));
  }
  return result;
}

std::vector<DdpCore::ReducerBucket> DdpCore::optimizer_buckets() const {
  std::vector<ReducerBucket> result;
  if (state_->reducer == nullptr) return result;
  const std::vector<Bucket>& buckets = state_->captured->assignment().buckets;
  for (std::size_t i = buckets.size(); i-- > 0;) result.push_back({buckets[i].bytes, buckets[i].parameters});
  return result;
}

std::string DdpCore::bucket_table() const {
  if (state_->reducer == nullptr || state_->captured->assignment().buckets.empty()) return "";
  return state_->captured->assignment().ToTable();
}

std::string DdpCore::explain() const {
  return state_->captured == nullptr ? "no forward with gradients yet: nothing is captured\n" : state_->captured->Explain();
}

int64_t DdpCore::num_recompiles() const { return state_->captured == nullptr ? 0 : state_->captured->recompiles(); }

bool DdpCore::runs_eagerly() const { return state_->captured != nullptr && state_->captured->eager(); }

int64_t DdpCore::num_prepared_forwards() const { return state_->reducer == nullptr ? 0 : state_->reducer->NumPreparedForwards(); }

int64_t DdpCore::reducer_rebuild_list_size() const {
  return state_->reducer == nullptr ? 0 : static_cast<int64_t>(state_->reducer->RebuildListSize());
}

const StepTiming& DdpCore::last_step() const {
  const StepStamps& step = state_->last_step;
  const StreamStamp& origin = step.backward_begin;
  StepTiming& timing = state_->last_timing;
  timing.backward_begin = origin.Seconds(origin);
  timing.compute_end = step.compute_end.Seconds(origin);
  timing.backward_end = step.backward_end.Seconds(origin);
  timing.buckets.clear();
  for (const FrozenReducer::Times& times : step.buckets) {
    timing.buckets.push_back({times.launched.Seconds(origin), times.finished.Seconds(origin)});
  }
  return timing;
}

absl::Status DdpCore::CheckParametersEqual() const {
  std::vector<std::string> lines;
  const absl::Status local = CatchAsStatus("", [&] {
    const at::NoGradGuard no_grad;
    const auto add = [&](const char* kind, const NamedTensor& entry) {
      const at::Tensor dense = entry.tensor.detach().cpu().contiguous();
      const absl::string_view bytes(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
      lines.push_back(absl::StrCat(kind, " ", entry.name, " with hash ", absl::Hex(StableHash(bytes), absl::kZeroPad16)));
    };
    for (const NamedTensor& parameter : state_->parameters) add("parameter", parameter);
    for (const NamedTensor& buffer : state_->buffers) add("buffer", buffer);
  });
  return CompareBetweenRanks(state_->group, "the values of parameters and buffers", local, lines);
}

}  // namespace ddpopt
