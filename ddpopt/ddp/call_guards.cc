#include "ddpopt/ddp/call_guards.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "ATen/Context.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/DefaultDtype.h"
#include "c10/core/InferenceMode.h"
#include "c10/core/ScalarTypeToTypeMeta.h"
#include "c10/util/SmallVector.h"
#include "ddpopt/capture/tracer/values.h"
#include "torch/nn/module.h"

namespace ddpopt {
namespace {

constexpr std::uint8_t kNoAutocast = 255;

std::string ShapeText(at::IntArrayRef sizes) { return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]"); }
const char* BoolText(bool value) { return value ? "true" : "false"; }
const char* ModeText(bool training) { return training ? "training" : "evaluation"; }
const void* StorageOf(const at::Tensor& tensor) { return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr; }

// Whether Compare can take values like this apart: everything but dictionaries, whose entries have an order of their own.
bool IsComparable(const c10::IValue& value) {
  if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    return std::all_of(elements.begin(), elements.end(), IsComparable);
  }
  if (value.isList()) {
    const auto elements = value.toListRef();
    return std::all_of(elements.begin(), elements.end(), IsComparable);
  }
  return value.isTensor() || value.isNone() || value.isBool() || value.isInt() || value.isDouble() || value.isComplexDouble() ||
         value.isString() || value.isDevice();
}

bool SameBits(double a, double b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

// Whether the value is the pattern with tensors in the place of undefined ones, which it collects.
bool Compare(const c10::IValue& pattern, const c10::IValue& value, std::vector<at::Tensor>* tensors) {
  if (value.isTensor() && value.toTensor().defined()) {
    if (!pattern.isTensor()) return false;
    tensors->push_back(value.toTensor());
    return true;
  }
  if (value.isTensor() || value.isNone()) return pattern.isNone();
  if (value.isInt()) return pattern.isInt() && pattern.toInt() == value.toInt();
  if (value.isBool()) return pattern.isBool() && pattern.toBool() == value.toBool();
  if (value.isDouble()) return pattern.isDouble() && SameBits(pattern.toDouble(), value.toDouble());
  if (value.isTuple() || value.isList()) {
    if (value.isTuple() ? !pattern.isTuple() : !pattern.isList()) return false;
    const auto elements = [](const c10::IValue& of) {
      return of.isTuple() ? c10::ArrayRef<c10::IValue>(of.toTupleRef().elements().begin(), of.toTupleRef().elements().end()) : of.toListRef();
    };
    const c10::ArrayRef<c10::IValue> wanted = elements(pattern), given = elements(value);
    if (wanted.size() != given.size()) return false;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (!Compare(wanted[i], given[i], tensors)) return false;
    }
    return true;
  }
  if (value.isString()) return pattern.isString() && pattern.toStringRef() == value.toStringRef();
  if (value.isDevice()) return pattern.isDevice() && pattern.toDevice() == value.toDevice();
  if (value.isComplexDouble()) {
    return pattern.isComplexDouble() && SameBits(pattern.toComplexDouble().real(), value.toComplexDouble().real()) &&
           SameBits(pattern.toComplexDouble().imag(), value.toComplexDouble().imag());
  }
  return false;
}

// Switches of the process by which operators choose their kernels.
struct Switch {
  const char* name;
  bool (at::Context::*get)() const;
};
constexpr Switch kSwitches[] = {
    {"deterministic algorithms", &at::Context::deterministicAlgorithms},
    {"warnings alone for algorithms that aren't deterministic", &at::Context::deterministicAlgorithmsWarnOnly},
    {"oneDNN", &at::Context::userEnabledMkldnn},
    {"flash attention", &at::Context::userEnabledFlashSDP},
    {"memory-efficient attention", &at::Context::userEnabledMemEfficientSDP},
    {"plain attention", &at::Context::userEnabledMathSDP},
};

enum Trait : std::uint8_t { kLeaf = 1, kInference = 2, kConjugate = 4, kNegative = 8 };

std::uint8_t TraitsOf(const at::Tensor& tensor) {
  return static_cast<std::uint8_t>((tensor.is_leaf() ? kLeaf : 0) | (tensor.is_inference() ? kInference : 0) |
                                   (tensor.is_conj() ? kConjugate : 0) | (tensor.is_neg() ? kNegative : 0));
}

std::string TraitsText(std::uint8_t traits) {
  return absl::StrCat(traits & kLeaf ? "a leaf" : "the result of an operator", traits & kInference ? ", made in inference mode" : "",
                      traits & kConjugate ? ", lazily conjugate" : "", traits & kNegative ? ", lazily negative" : "");
}

}  // namespace

Call::Call(const c10::IValue& arguments) : arguments(FlattenValue(arguments, &tensors)), value(arguments) {}

CallGuards::CallGuards(const Call& call, const torch::nn::Module& module, at::Device device)
    : device_(device), arguments_(call.arguments) {
  if (IsComparable(call.value)) pattern_ = MapTensors(call.value, [](const at::Tensor&) { return c10::IValue(at::Tensor()); });
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined() && tensor.has_storage()) attributes_.emplace(StorageOf(tensor), name);
  };
  for (const auto& item : module.named_parameters()) add(absl::StrCat("parameter \"", item.key(), "\""), item.value());
  for (const auto& item : module.named_buffers()) add(absl::StrCat("buffer \"", item.key(), "\""), item.value());
  for (std::size_t i = 0; i < call.tensors.size(); ++i) {
    const at::Tensor& tensor = call.tensors[i];
    inputs_.push_back({tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type(), tensor.device(), tensor.requires_grad(),
                       TraitsOf(tensor), SharedWith(call, i)});
    FindSharing(call, i, &inputs_.back());
  }
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    training_.push_back({absl::StrCat("submodule \"", item.key(), "\""), item.value(), item.value()->is_training()});
  }
  // The module itself is not held by a pointer of its own: whoever calls holds it.
  own_training_ = module.is_training();
  module_ = &module;
  modes_ = CurrentModes();
}

bool CallGuards::Input::StridesMatch(const at::Tensor& tensor) const {
  if (tensor.numel() == 0) return true;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1 && strides[d] != tensor.stride(static_cast<int64_t>(d))) return false;
  }
  return true;
}

std::string CallGuards::SharedWith(const Call& call, std::size_t i) const {
  const at::Tensor& tensor = call.tensors[i];
  for (std::size_t j = 0; j < i; ++j) {
    if (call.tensors[j].is_same(tensor)) return absl::StrCat("the same tensor as input ", j);
    if (tensor.has_storage() && StorageOf(call.tensors[j]) == StorageOf(tensor)) return absl::StrCat("memory shared with input ", j);
  }
  if (const auto it = attributes_.find(StorageOf(tensor)); it != attributes_.end()) return absl::StrCat("memory shared with ", it->second);
  return "memory of its own";
}

void CallGuards::FindSharing(const Call& call, std::size_t i, Input* input) const {
  const at::Tensor& tensor = call.tensors[i];
  for (std::size_t j = 0; j < i && input->shared < 0; ++j) {
    if (call.tensors[j].is_same(tensor)) {
      input->same = input->shared = static_cast<int>(j);
    } else if (tensor.has_storage() && StorageOf(call.tensors[j]) == StorageOf(tensor)) {
      input->shared = static_cast<int>(j);
    }
  }
  if (const auto it = attributes_.find(StorageOf(tensor)); it != attributes_.end()) input->attribute = it->first;
}

bool CallGuards::Input::Matches(const at::Tensor& tensor) const {
  return tensor.scalar_type() == dtype && tensor.sizes() == at::IntArrayRef(sizes) && tensor.device() == device &&
         tensor.requires_grad() == requires_grad && TraitsOf(tensor) == traits && (tensor.strides() == at::IntArrayRef(strides) || StridesMatch(tensor));
}

bool CallGuards::Holds(const c10::IValue& arguments, std::vector<at::Tensor>* tensors) const {
  tensors->clear();
  if (pattern_.isNone()) {
    const Call call(arguments);
    *tensors = call.tensors;
    return Mismatch(call).empty();
  }
  tensors->reserve(inputs_.size());
  if (!Compare(pattern_, arguments, tensors) || tensors->size() != inputs_.size()) return false;
  c10::SmallVector<const void*, 16> memory;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const Input& guard = inputs_[i];
    const at::Tensor& tensor = (*tensors)[i];
    if (!guard.Matches(tensor)) return false;
    const void* const mine = StorageOf(tensor);
    int shared = -1;
    for (std::size_t j = 0; j < i && shared < 0; ++j) {
      if ((mine != nullptr && memory[j] == mine) || (*tensors)[j].is_same(tensor)) shared = static_cast<int>(j);
    }
    memory.push_back(mine);
    if (shared != guard.shared || (shared >= 0 && (*tensors)[shared].is_same(tensor) != (guard.same >= 0))) return false;
    // What it shares with earlier inputs says all of them.
    if (shared < 0 && (attributes_.contains(mine) ? mine : nullptr) != guard.attribute) return false;
  }
  if (module_->is_training() != own_training_) return false;
  for (const Mode& mode : training_) {
    if (mode.module->is_training() != mode.training) return false;
  }
  return CurrentModes() == modes_;
}

CallGuards::Modes CallGuards::CurrentModes() const {
  Modes modes{at::GradMode::is_enabled(), c10::InferenceMode::is_enabled(), {}, c10::typeMetaToScalarType(c10::get_default_dtype()), 0};
  const auto add = [&](at::DeviceType device) {
    const bool enabled = at::autocast::is_autocast_enabled(device);
    modes.autocast.push_back(enabled ? static_cast<std::uint8_t>(at::autocast::get_autocast_dtype(device)) : kNoAutocast);
  };
  add(at::kCPU);
  if (device_.type() != at::kCPU) add(device_.type());
  const at::Context& context = at::globalContext();
  unsigned bit = 1;
  for (const Switch& each : kSwitches) {
    if ((context.*each.get)()) modes.switches |= bit;
    bit <<= 1;
  }
  return modes;
}

std::string CallGuards::TextOf(const Modes& modes) const {
  const auto autocast = [](std::uint8_t dtype) {
    return dtype == kNoAutocast ? std::string("off") : absl::StrCat("to ", c10::toString(static_cast<at::ScalarType>(dtype)));
  };
  std::string text = absl::StrCat("grad mode ", modes.grad ? "on" : "off", ", inference mode ", modes.inference ? "on" : "off",
                                  ", autocast ", autocast(modes.autocast[0]));
  if (modes.autocast.size() > 1) {
    absl::StrAppend(&text, " (", c10::DeviceTypeName(device_.type(), /*lower_case=*/true), ": ", autocast(modes.autocast[1]), ")");
  }
  std::vector<std::string> on;
  for (std::size_t i = 0; i < std::size(kSwitches); ++i) {
    if ((modes.switches >> i & 1u) != 0) on.emplace_back(kSwitches[i].name);
  }
  absl::StrAppend(&text, ", default dtype ", c10::toString(modes.default_dtype), ", with ",
                  on.empty() ? "nothing" : absl::StrJoin(on, ", "), " on");
  return text;
}

std::string CallGuards::Mismatch(const Call& call) const {
  if (call.tensors.size() != inputs_.size()) {
    return absl::StrCat("forward was captured with ", inputs_.size(), " tensors, and is called with ", call.tensors.size());
  }
  if (call.arguments != arguments_) {
    return absl::StrCat("forward was captured with the arguments ", arguments_, ", and is called with ", call.arguments);
  }
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const Input& guard = inputs_[i];
    const at::Tensor& tensor = call.tensors[i];
    const auto differs = [&](const char* what, const std::string& captured, const std::string& given) {
      return absl::StrCat("input ", i, " was captured with ", what, " ", captured, ", and has ", what, " ", given);
    };
    if (tensor.sizes() != at::IntArrayRef(guard.sizes)) return differs("shape", ShapeText(guard.sizes), ShapeText(tensor.sizes()));
    if (tensor.scalar_type() != guard.dtype) return differs("dtype", c10::toString(guard.dtype), c10::toString(tensor.scalar_type()));
    if (tensor.device() != guard.device) return differs("device", guard.device.str(), tensor.device().str());
    if (tensor.requires_grad() != guard.requires_grad) {
      return differs("requires_grad", BoolText(guard.requires_grad), BoolText(tensor.requires_grad()));
    }
    if (TraitsOf(tensor) != guard.traits) {
      return absl::StrCat("input ", i, " was captured as ", TraitsText(guard.traits), ", and is ", TraitsText(TraitsOf(tensor)));
    }
    if (!guard.StridesMatch(tensor)) return differs("strides", ShapeText(guard.strides), ShapeText(tensor.strides()));
    if (std::string shares = SharedWith(call, i); shares != guard.shares) return differs("as its memory", guard.shares, shares);
  }
  const auto mode_differs = [](const std::string& name, bool captured, bool now) {
    return absl::StrCat(name, " was captured in ", ModeText(captured), " mode, and is in ", ModeText(now), " mode");
  };
  if (module_->is_training() != own_training_) return mode_differs("the module", own_training_, module_->is_training());
  for (const Mode& mode : training_) {
    if (mode.module->is_training() != mode.training) return mode_differs(mode.name, mode.training, mode.module->is_training());
  }
  if (const Modes modes = CurrentModes(); modes != modes_) {
    return absl::StrCat("forward was captured with ", TextOf(modes_), ", and is called with ", TextOf(modes));
  }
  return "";
}

std::string CallGuards::ToString() const {
  std::string text = absl::StrCat("  arguments ", arguments_, "\n");
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const Input& input = inputs_[i];
    absl::StrAppend(&text, "  input ", i, ": ", c10::toString(input.dtype), " ", ShapeText(input.sizes), ", strides ",
                    ShapeText(input.strides), ", on ", input.device.str(), ", requires_grad ", BoolText(input.requires_grad), ", ",
                    TraitsText(input.traits), ", ", input.shares, "\n");
  }
  std::vector<std::string> evaluating;
  for (const Mode& mode : training_) {
    if (mode.training != own_training_) evaluating.push_back(mode.name);
  }
  const std::string except = evaluating.empty() ? "" : absl::StrCat(", except ", absl::StrJoin(evaluating, ", "));
  absl::StrAppend(&text, "  the module and its submodules in ", ModeText(own_training_), " mode", except, "\n  ", TextOf(modes_), "\n");
  return text;
}

}  // namespace ddpopt
