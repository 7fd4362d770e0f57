#include "interpreter/mode_scopes.h"

#include <string>
#include <utility>

#include "ATen/autocast_mode.h"
#include "absl/strings/match.h"
#include "c10/core/GradMode.h"
#include "c10/util/Exception.h"

namespace ddpopt {

using c10::IValue;

// What was in force before.
struct ModeScopes::Scope {
  Function entered = Function::kSetGradEnabled;
  int64_t handle = 0;
  bool enabled = false;
  // Of autocast.
  c10::DeviceType device = c10::DeviceType::CPU;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  bool cache_enabled = false;
  std::unique_ptr<c10::InferenceMode> inference_mode;

  void Restore() {
    switch (entered) {
      case Function::kSetGradEnabled:
        c10::GradMode::set_enabled(enabled);
        break;
      case Function::kEnterAutocast:
        if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
        at::autocast::set_autocast_enabled(device, enabled);
        at::autocast::set_autocast_dtype(device, dtype);
        at::autocast::set_autocast_cache_enabled(cache_enabled);
        break;
      default:
        inference_mode.reset();
    }
  }
};

namespace {

bool BoolArgument(const char* function, const char* name, const IValue& value) {
  TORCH_CHECK(value.isBool(), function, ": argument '", name, "' must be a bool, not ", value.tagKind());
  return value.toBool();
}

}  // namespace

std::optional<ModeScopes::Function> ModeScopes::Find(absl::string_view target) {
  if (!absl::StartsWith(target, "torch.")) return std::nullopt;
  const absl::string_view name = target.substr(target.rfind('.') + 1);
  if (name == "_set_grad_enabled") return Function::kSetGradEnabled;
  if (name == "_enter_autocast") return Function::kEnterAutocast;
  if (name == "_exit_autocast") return Function::kExitAutocast;
  if (name == "_enter_inference_mode") return Function::kEnterInferenceMode;
  if (name == "_exit_inference_mode") return Function::kExitInferenceMode;
  return std::nullopt;
}

ModeScopes::ModeScopes() = default;
ModeScopes::~ModeScopes() { RestoreAll(); }

IValue ModeScopes::Push(Scope scope) {
  scope.handle = next_handle_++;
  const int64_t handle = scope.handle;
  scopes_.push_back(std::make_unique<Scope>(std::move(scope)));
  return handle;
}

void ModeScopes::Leave(Function entered, const IValue& handle) {
  TORCH_CHECK(handle.isInt(), "a region is left by what entering it returned, not by ", handle.tagKind());
  for (auto scope = scopes_.begin(); scope != scopes_.end(); ++scope) {
    if ((*scope)->handle != handle.toInt() || (*scope)->entered != entered) continue;
    // An inference mode restores everything that was in force when it began.
    for (auto inner = scope + 1; inner != scopes_.end(); ++inner) {
      TORCH_CHECK((*scope)->inference_mode == nullptr && (*inner)->inference_mode == nullptr, "regions of inference mode must nest");
    }
    (*scope)->Restore();
    scopes_.erase(scope);
    return;
  }
  TORCH_CHECK(false, "leaves a region that is not open");
}

IValue ModeScopes::Run(Function function, const std::vector<IValue>& args) {
  const auto expect = [&](const char* name, std::size_t count) {
    TORCH_CHECK(args.size() == count, name, ": takes ", count, " positional arguments, not ", args.size());
  };
  switch (function) {
    case Function::kSetGradEnabled: {
      expect("_set_grad_enabled", 1);
      const bool enabled = BoolArgument("_set_grad_enabled", "enabled", args[0]);
      // One record is enough for a run of changes.
      if (scopes_.empty() || scopes_.back()->entered != Function::kSetGradEnabled) {
        Scope scope;
        scope.enabled = c10::GradMode::is_enabled();
        Push(std::move(scope));
      }
      c10::GradMode::set_enabled(enabled);
      return IValue();
    }
    case Function::kEnterAutocast: {
      expect("_enter_autocast", 4);
      TORCH_CHECK(args[0].isString(), "_enter_autocast: argument 'device_type' must be a str, not ", args[0].tagKind());
      Scope scope;
      scope.entered = function;
      scope.device = c10::Device(args[0].toStringRef()).type();
      scope.enabled = at::autocast::is_autocast_enabled(scope.device);
      scope.dtype = at::autocast::get_autocast_dtype(scope.device);
      scope.cache_enabled = at::autocast::is_autocast_cache_enabled();
      TORCH_CHECK(args[1].isNone() || args[1].isInt(), "_enter_autocast: argument 'dtype' must be a dtype, not ", args[1].tagKind());
      const auto dtype = args[1].isNone() ? scope.dtype : static_cast<c10::ScalarType>(args[1].toInt());
      bool enabled = BoolArgument("_enter_autocast", "enabled", args[2]);
      const bool cache_enabled = args[3].isNone() ? scope.cache_enabled : BoolArgument("_enter_autocast", "cache_enabled", args[3]);
      if (enabled && dtype != c10::ScalarType::BFloat16 && dtype != c10::ScalarType::Half) {
        TORCH_WARN("autocast to ", dtype, " is not supported; autocast is off in this region, as in PyTorch");
        enabled = false;
      }
      const c10::DeviceType device = scope.device;
      IValue handle = Push(std::move(scope));
      at::autocast::set_autocast_enabled(device, enabled);
      at::autocast::set_autocast_dtype(device, dtype);
      at::autocast::increment_nesting();
      at::autocast::set_autocast_cache_enabled(cache_enabled);
      return handle;
    }
    case Function::kEnterInferenceMode: {
      expect("_enter_inference_mode", 1);
      Scope scope;
      scope.entered = function;
      scope.inference_mode = std::make_unique<c10::InferenceMode>(BoolArgument("_enter_inference_mode", "mode", args[0]));
      return Push(std::move(scope));
    }
    case Function::kExitAutocast:
      expect("_exit_autocast", 1);
      Leave(Function::kEnterAutocast, args[0]);
      return IValue();
    case Function::kExitInferenceMode:
      expect("_exit_inference_mode", 1);
      Leave(Function::kEnterInferenceMode, args[0]);
      return IValue();
  }
  return IValue();
}

void ModeScopes::RestoreAll() {
  while (!scopes_.empty()) {
    scopes_.back()->Restore();
    scopes_.pop_back();
  }
}

}  // namespace ddpopt
