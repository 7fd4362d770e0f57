#include "ddpopt/ddp/module_tensors.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "ATen/MemoryOverlap.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "c10/util/Exception.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/embedding.h"

namespace ddpopt {
namespace {

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

std::string DescribeTensor(const char* kind, const NamedTensor& entry) {
  return absl::StrCat(kind, " ", entry.name, ": ", DtypeText(entry.tensor.scalar_type()), " ", ShapeText(entry.tensor.sizes()), " on ",
                      c10::DeviceTypeName(entry.tensor.device().type(), /*lower_case=*/true), ", requires_grad=",
                      BoolText(entry.tensor.requires_grad()));
}

// As gradients and their places in buckets are laid out: where elements lie side by side, like the parameter. Strides of dimensions that
// hold no step don't count.
std::vector<int64_t> GradientStrides(const at::Tensor& parameter) {
  std::vector<int64_t> strides;
  if (!parameter.is_non_overlapping_and_dense()) return strides;
  for (int64_t d = 0; d < parameter.dim(); ++d) strides.push_back(parameter.size(d) > 1 ? parameter.stride(d) : 0);
  return strides;
}

// The bytes from a tensor's first element to its last.
std::pair<const char*, const char*> Extent(const at::Tensor& tensor) {
  const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return {begin, begin + (last + 1) * static_cast<int64_t>(tensor.element_size())};
}

absl::Status CheckTensor(const ProcessGroup& group, const char* kind, const NamedTensor& entry) {
  const at::Tensor& tensor = entry.tensor;
  const std::string who = absl::StrCat(kind, " \"", entry.name, "\"");
  if (tensor.is_meta() || IsFake(tensor)) {
    return absl::InvalidArgumentError(absl::StrCat(who, " has no data (a meta or fake tensor); give it a device first"));
  }
  if (tensor.layout() != at::kStrided) return absl::InvalidArgumentError(absl::StrCat(who, " is not dense, which is not supported"));
  if (tensor.is_inference()) {
    return absl::InvalidArgumentError(absl::StrCat(who, " was made in inference mode: it can be neither trained nor synchronised"));
  }
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    return absl::InvalidArgumentError(absl::StrCat(who, " (strides [", absl::StrJoin(tensor.strides(), ", "),
                                                   "]) has several elements in one place, as expand makes them; clone it"));
  }
  return group.CheckDevice(who, tensor.device());
}

// Parameters whose memory overlaps would be trained as one, with the gradients of several.
absl::Status CheckNoOverlap(const std::vector<NamedTensor>& parameters) {
  std::map<const char*, const NamedTensor*> by_begin;
  for (const NamedTensor& parameter : parameters) {
    // Others may interleave.
    if (parameter.tensor.numel() > 0 && parameter.tensor.has_storage() && parameter.tensor.is_non_overlapping_and_dense()) {
      const auto [it, is_new] = by_begin.emplace(Extent(parameter.tensor).first, &parameter);
      if (!is_new) {
        return absl::InvalidArgumentError(absl::StrCat("parameters \"", it->second->name, "\" and \"", parameter.name,
                                                       "\" are different tensors in the same memory"));
      }
    }
  }
  const NamedTensor* previous = nullptr;
  for (const auto& [begin, parameter] : by_begin) {
    if (previous != nullptr && Extent(previous->tensor).second > begin) {
      return absl::InvalidArgumentError(absl::StrCat("parameters \"", previous->name, "\" and \"", parameter->name,
                                                     "\" are different tensors in memory that overlaps"));
    }
    previous = parameter;
  }
  return absl::OkStatus();
}

absl::Status CheckParameter(const ProcessGroup& group, const NamedTensor& entry) {
  DDPOPT_RETURN_IF_ERROR(CheckTensor(group, "parameter", entry));
  if (!entry.tensor.requires_grad()) return absl::OkStatus();
  if (entry.tensor.is_complex()) {
    return absl::InvalidArgumentError(absl::StrCat("parameter \"", entry.name, "\" is complex, which is not supported"));
  }
  DDPOPT_RETURN_IF_ERROR(
      ProcessGroup::CheckSummable(absl::StrCat("parameter \"", entry.name, "\" has gradients of its dtype"), entry.tensor.scalar_type()));
  if (!entry.tensor.is_leaf()) {
    return absl::InvalidArgumentError(absl::StrCat("parameter \"", entry.name, "\" is the result of an operation, not a leaf"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModuleTensors>> ModuleTensors::Collect(std::shared_ptr<torch::nn::Module> module, const ProcessGroup& group,
                                                                      const absl::flat_hash_set<std::string>& ignored_names) {
  if (module == nullptr) return absl::InvalidArgumentError("the module is null");
  std::unique_ptr<ModuleTensors> tensors(new ModuleTensors(std::move(module)));
  DDPOPT_RETURN_IF_ERROR(tensors->Fill(group, ignored_names));
  return tensors;
}

ModuleTensors::~ModuleTensors() {
  if (registered_) WrappedRegistry::Get().Remove(module_.get(), trainable_);
}

absl::Status ModuleTensors::Fill(const ProcessGroup& group, const absl::flat_hash_set<std::string>& ignored_names) {
  ignored_names_ = ignored_names;
  std::unordered_set<std::string> unknown(ignored_names.begin(), ignored_names.end());
  std::unordered_map<const c10::TensorImpl*, std::size_t> seen;  // index in `trainable_`, or npos
  constexpr std::size_t kNotTrainable = static_cast<std::size_t>(-1);
  std::unordered_set<const c10::TensorImpl*> ignored;
  for (const auto& item : module_->named_parameters()) {
    unknown.erase(item.key());
    if (ignored_names.contains(item.key())) ignored.insert(item.value().unsafeGetTensorImpl());
  }
  for (const auto& item : module_->named_parameters()) {
    const NamedTensor entry{item.key(), item.value()};
    const c10::TensorImpl* impl = entry.tensor.unsafeGetTensorImpl();
    if (ignored.count(impl) != 0) continue;  // Under one name, so under all.
    DDPOPT_RETURN_IF_ERROR(CheckParameter(group, entry));
    if (const auto [it, is_new] = seen.emplace(impl, kNotTrainable); !is_new) {
      if (it->second != kNotTrainable) index_of_.emplace(entry.name, it->second);
      continue;
    }
    parameters_.push_back(entry);
    if (entry.tensor.requires_grad()) {
      seen[impl] = trainable_.size();
      index_of_.emplace(entry.name, trainable_.size());
      trainable_.push_back(entry);
    }
  }
  for (const auto& item : module_->named_buffers()) {
    unknown.erase(item.key());
    if (ignored_names.contains(item.key())) continue;
    const NamedTensor entry{item.key(), item.value()};
    DDPOPT_RETURN_IF_ERROR(CheckTensor(group, "buffer", entry));
    buffers_.push_back(entry);
  }
  if (!unknown.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("parameters_to_ignore names \"", *std::min_element(unknown.begin(), unknown.end()),
                                                   "\", but the module has no such parameter or buffer"));
  }
  if (trainable_.empty()) {
    return absl::InvalidArgumentError(parameters_.empty() && ignored.empty()
                                          ? "the module has no parameters; there is nothing to train"
                                          : "the module has no trainable parameters: all are frozen (requires_grad is false) or ignored");
  }
  for (const auto& item : module_->named_modules()) {
    const auto* embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(item.value().get());
    if (embedding != nullptr && embedding->options.sparse()) {
      return absl::InvalidArgumentError(
          absl::StrCat("submodule \"", item.key(), "\" is an Embedding with sparse gradients, which are not supported"));
    }
  }
  device_ = parameters_.front().tensor.device();
  for (const NamedTensor& parameter : parameters_) {
    if (parameter.tensor.device() != device_) {
      return absl::InvalidArgumentError(absl::StrCat("parameter \"", parameters_.front().name, "\" is on ", device_.str(),
                                                     ", but parameter \"",
                                                     parameter.name, "\" is on ", parameter.tensor.device().str(),
                                                     "; all parameters of a rank must be on one device"));
    }
  }
  DDPOPT_RETURN_IF_ERROR(CheckNoOverlap(trainable_));
  DDPOPT_RETURN_IF_ERROR(WrappedRegistry::Get().Add(module_.get(), trainable_));
  registered_ = true;
  AddGuards("parameter", parameters_);
  AddGuards("buffer", buffers_);
  members_ = Members();
  return absl::OkStatus();
}

void ModuleTensors::AddGuards(const char* kind, const std::vector<NamedTensor>& entries) {
  for (const NamedTensor& entry : entries) {
    const at::Tensor& tensor = entry.tensor;
    guards_.push_back({kind, entry, tensor.sizes().vec(), GradientStrides(tensor), tensor.scalar_type(), tensor.device(),
                       tensor.requires_grad()});
  }
}

const std::size_t* ModuleTensors::FindTrainable(const std::string& name) const {
  const auto it = index_of_.find(name);
  return it == index_of_.end() ? nullptr : &it->second;
}

std::vector<std::string> ModuleTensors::Describe() const {
  std::vector<std::string> lines;
  for (const NamedTensor& parameter : parameters_) {
    lines.push_back(absl::StrCat(DescribeTensor("parameter", parameter), ", strides [",
                                 absl::StrJoin(GradientStrides(parameter.tensor), ", "), "]"));
  }
  for (const NamedTensor& buffer : buffers_) lines.push_back(DescribeTensor("buffer", buffer));
  return lines;
}

std::vector<ModuleTensors::Member> ModuleTensors::Members() const {
  std::vector<Member> members;
  for (const auto& module : module_->modules(/*include_self=*/true)) {
    members.push_back({module.get(), module->parameters(/*recurse=*/false)});
    for (at::Tensor& buffer : module->buffers(/*recurse=*/false)) members.back().tensors.push_back(std::move(buffer));
  }
  return members;
}

std::string ModuleTensors::WhatWasReplaced() const {
  const auto compare = [&](const char* kind, const auto& now, const std::vector<NamedTensor>& then) -> std::string {
    std::unordered_set<const c10::TensorImpl*> known;
    for (const NamedTensor& entry : then) {
      known.insert(entry.tensor.unsafeGetTensorImpl());
      const at::Tensor* current = now.find(entry.name);
      if (current == nullptr) return absl::StrCat(kind, " \"", entry.name, "\" has been removed since the module was wrapped");
      if (!current->is_same(entry.tensor)) {
        return absl::StrCat(kind, " \"", entry.name, "\" has been replaced by another tensor since the module was wrapped");
      }
    }
    for (const auto& item : now) {
      if (known.count(item.value().unsafeGetTensorImpl()) != 0 || ignored_names_.contains(item.key())) continue;
      return absl::StrCat(kind, " \"", item.key(), "\" has been added since the module was wrapped");
    }
    return "";
  };
  const std::string parameter = compare("parameter", module_->named_parameters(), parameters_);
  return !parameter.empty() ? parameter : compare("buffer", module_->named_buffers(), buffers_);
}

void ModuleTensors::CheckUnchanged() const {
  constexpr char kNewOne[] =
      ". Gradient buckets, broadcasts and graphs are made for the module's tensors as they were; make a new DistributedDataParallel";
  const std::vector<Member> now = Members();
  const bool same = std::equal(now.begin(), now.end(), members_.begin(), members_.end(), [](const Member& a, const Member& b) {
    return a.module == b.module && std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                                              [](const at::Tensor& x, const at::Tensor& y) { return x.is_same(y); });
  });
  if (!same) {
    const std::string what = WhatWasReplaced();
    TORCH_CHECK(what.empty(), "DistributedDataParallel: ", what, kNewOne);
  }
  for (const Guard& guard : guards_) {
    const at::Tensor& tensor = guard.entry.tensor;
    const auto check = [&](bool holds, const char* how, const auto& then, const auto& is) {
      TORCH_CHECK(holds, "DistributedDataParallel: ", guard.kind, " \"", guard.entry.name, "\" was wrapped ", how, then(), ", but ", is(),
                  " now", kNewOne);
    };
    check(
        tensor.requires_grad() == guard.requires_grad, "with requires_grad ", [&] { return BoolText(guard.requires_grad); },
        [&] { return absl::StrCat("has requires_grad ", BoolText(tensor.requires_grad())); });
    check(
        tensor.scalar_type() == guard.dtype && tensor.sizes() == at::IntArrayRef(guard.sizes) && tensor.device() == guard.device, "as ",
        [&] { return absl::StrCat(DtypeText(guard.dtype), " ", ShapeText(guard.sizes), " on ", guard.device.str()); },
        [&] {
          return absl::StrCat("is ", DtypeText(tensor.scalar_type()), " ", ShapeText(tensor.sizes()), " on ", tensor.device().str());
        });
    check(
        GradientStrides(tensor) == guard.strides, "with strides ", [&] { return ShapeText(guard.strides); },
        [&] { return absl::StrCat("has ", ShapeText(tensor.strides())); });
  }
}

}  // namespace ddpopt
