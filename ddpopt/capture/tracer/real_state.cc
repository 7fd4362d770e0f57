#include "ddpopt/capture/tracer/real_state.h"

#include <cstring>
#include <memory>
#include <mutex>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "ddpopt/capture/tracer/trace.h"
#include "interpreter/mode_stack.h"
#include "interpreter/tracing.h"
#include "torch/csrc/autograd/cpp_hook.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/nn/module.h"

namespace ddpopt {
namespace {

at::Tensor GeneratorState() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

// Null if the tensor never had any.
std::shared_ptr<torch::autograd::hooks_list> HooksOf(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta == nullptr ? nullptr : meta->cpp_hooks_list_;
}

}  // namespace

RealState::RealState(const torch::nn::Module* module, const std::vector<at::Tensor>& inputs)
    : module_(module), generator_(GeneratorState()) {
  for (const auto& [name, tensor] : Attributes()) tensors_.push_back(Look(name, tensor));
  num_attributes_ = tensors_.size();
  for (std::size_t i = 0; i < inputs.size(); ++i) tensors_.push_back(Look(absl::StrCat("input ", i), inputs[i]));
}

RealState::~RealState() {
  for (const State& before : tensors_) {
    try {
      Restore(before);
    } catch (const c10::Error& error) {
      LOG(WARNING) << "a capture that failed has left " << before.name << " changed: " << error.what_without_backtrace();
    }
  }
}

std::vector<std::pair<std::string, at::Tensor>> RealState::Attributes() const {
  std::vector<std::pair<std::string, at::Tensor>> result;
  if (module_ == nullptr) return result;
  for (const auto& item : module_->named_parameters()) {
    if (item.value().defined()) result.emplace_back(absl::StrCat("parameter \"", item.key(), "\""), item.value());
  }
  for (const auto& item : module_->named_buffers()) {
    if (item.value().defined()) result.emplace_back(absl::StrCat("buffer \"", item.key(), "\""), item.value());
  }
  return result;
}

RealState::State RealState::Look(std::string name, const at::Tensor& tensor) {
  const auto hooks = HooksOf(tensor);
  return {std::move(name),
          tensor,
          tensor.has_storage() ? WithoutHistory(tensor) : at::Tensor(),
          tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr,
          tensor.sizes().vec(),
          tensor.is_inference() ? std::nullopt : std::optional<std::uint32_t>(static_cast<std::uint32_t>(tensor._version())),
          tensor.requires_grad(),
          hooks == nullptr ? 0 : hooks->size()};
}

void RealState::Restore(const State& before) {
  const DisableModesGuard above(Mode::Level::kPreAutograd), below(Mode::Level::kPostAutograd);
  const State now = Look(before.name, before.tensor);
  if (before.data.defined() && (now.storage != before.storage || now.sizes != before.sizes)) before.tensor.set_data(before.data);
  if (now.requires_grad != before.requires_grad && before.tensor.is_leaf()) before.tensor.set_requires_grad(before.requires_grad);
  if (now.hooks > before.hooks) HooksOf(before.tensor)->resize(before.hooks);
}

std::string RealState::Difference() const {
  const auto attributes = Attributes();
  if (attributes.size() != num_attributes_) {
    return absl::StrCat("forward registers or removes parameters or buffers: ", kKeepsTensors,
                        " there, which has no data; do that before training");
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const State& before = tensors_[i];
    if (i < num_attributes_ && !attributes[i].second.is_same(before.tensor)) {
      return absl::StrCat("forward replaces ", before.name, " by another tensor: ", kKeepsTensors, " there, which has no data");
    }
    const State now = Look(before.name, before.tensor);
    if (now.storage != before.storage || now.sizes != before.sizes) {
      return absl::StrCat("forward changes the data or the shape of ", before.name, " (set_data)");
    }
    if (now.version != before.version) {
      return absl::StrCat("forward writes to ", before.name, " by something that the tracer doesn't see, such as another thread");
    }
    if (now.requires_grad != before.requires_grad) return absl::StrCat("forward changes requires_grad of ", before.name);
    if (now.hooks != before.hooks) return absl::StrCat("forward registers a hook on ", before.name, ", which the graph can't express");
  }
  const at::Tensor generator = GeneratorState();
  if (std::memcmp(generator.const_data_ptr(), generator_.const_data_ptr(), generator.nbytes()) != 0) {
    return "forward seeds the default random generator, or draws from it past ATen's operators; the graph can't express that";
  }
  return "";
}

}  // namespace ddpopt
