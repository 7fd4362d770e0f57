#include "ddpopt/ddp/call_guards.h"

#include "ATen/autocast_mode.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/InferenceMode.h"
#include "ddpopt/capture/tracer/values.h"
#include "torch/nn/module.h"

namespace ddpopt {
namespace {

std::string ShapeText(at::IntArrayRef sizes) { return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]"); }
const char* BoolText(bool value) { return value ? "true" : "false"; }
const char* ModeText(bool training) { return training ? "training" : "evaluation"; }
const void* StorageOf(const at::Tensor& tensor) { return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr; }

std::string AutocastText(at::DeviceType device) {
  return at::autocast::is_autocast_enabled(device) ? absl::StrCat("to ", c10::toString(at::autocast::get_autocast_dtype(device))) : "off";
}

}  // namespace

Call::Call(const c10::IValue& arguments) : arguments(FlattenValue(arguments, &tensors)) {}

CallGuards::CallGuards(const Call& call, const torch::nn::Module& module, at::Device device) : device_(device), arguments_(call.arguments) {
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined() && tensor.has_storage()) attributes_.emplace(StorageOf(tensor), name);
  };
  for (const auto& item : module.named_parameters()) add(absl::StrCat("parameter \"", item.key(), "\""), item.value());
  for (const auto& item : module.named_buffers()) add(absl::StrCat("buffer \"", item.key(), "\""), item.value());
  for (std::size_t i = 0; i < call.tensors.size(); ++i) {
    const at::Tensor& tensor = call.tensors[i];
    inputs_.push_back({tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type(), tensor.device(), tensor.requires_grad(),
                       SharedWith(call, i)});
  }
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    training_.push_back({absl::StrCat("submodule \"", item.key(), "\""), item.value(), item.value()->is_training()});
  }
  // The module itself is not held by a pointer of its own: whoever calls holds it.
  own_training_ = module.is_training();
  module_ = &module;
  modes_ = Modes();
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

std::string CallGuards::Modes() const {
  std::string text = absl::StrCat("grad mode ", at::GradMode::is_enabled() ? "on" : "off", ", inference mode ",
                                  c10::InferenceMode::is_enabled() ? "on" : "off", ", autocast ", AutocastText(at::kCPU));
  if (device_.type() != at::kCPU) {
    absl::StrAppend(&text, " (", c10::DeviceTypeName(device_.type(), /*lower_case=*/true), ": ", AutocastText(device_.type()), ")");
  }
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
  if (std::string modes = Modes(); modes != modes_) {
    return absl::StrCat("forward was captured with ", modes_, ", and is called with ", modes);
  }
  return "";
}

std::string CallGuards::ToString() const {
  std::string text = absl::StrCat("  arguments ", arguments_, "\n");
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const Input& input = inputs_[i];
    absl::StrAppend(&text, "  input ", i, ": ", c10::toString(input.dtype), " ", ShapeText(input.sizes), ", strides ",
                    ShapeText(input.strides), ", on ",
                    input.device.str(), ", requires_grad ", BoolText(input.requires_grad), ", ", input.shares, "\n");
  }
  std::vector<std::string> evaluating;
  for (const Mode& mode : training_) {
    if (mode.training != own_training_) evaluating.push_back(mode.name);
  }
  const std::string except = evaluating.empty() ? "" : absl::StrCat(", except ", absl::StrJoin(evaluating, ", "));
  absl::StrAppend(&text, "  the module and its submodules in ", ModeText(own_training_), " mode", except, "\n  ", modes_, "\n");
  return text;
}

}  // namespace ddpopt
