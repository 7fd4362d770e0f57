#ifndef DDPOPT_INTERPRETER_TRACING_H_
#define DDPOPT_INTERPRETER_TRACING_H_

// What whoever writes operators down as they are called needs besides a mode.
//
//   const AutocastCacheOff cache_off;                         // while fakes stand for weights
//   graph.CallFunction(op, args, kwargs, PacketName(op));     // aten::add.Tensor is named "add"
//
// Thread-safe as far as it goes: autocast's state is the thread's.

#include "ATen/autocast_mode.h"
#include "ATen/core/Tensor.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "absl/strings/string_view.h"

namespace ddpopt {

// Autocast keeps no casts of weights while this lives: a cast of a fake would be there for the next real call.
class AutocastCacheOff {
 public:
  AutocastCacheOff() : before_(at::autocast::is_autocast_cache_enabled()) { at::autocast::set_autocast_cache_enabled(false); }
  ~AutocastCacheOff() { at::autocast::set_autocast_cache_enabled(before_); }
  AutocastCacheOff(const AutocastCacheOff&) = delete;
  AutocastCacheOff& operator=(const AutocastCacheOff&) = delete;

 private:
  const bool before_;
};

// The same memory and metadata (of a fake: a fake), as a leaf with a version of its own; it requires no grad.
inline at::Tensor WithoutHistory(const at::Tensor& tensor) {
  const c10::VariableVersion version =
      tensor.is_inference() ? c10::VariableVersion(c10::VariableVersion::DISABLED) : c10::VariableVersion(0);
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(version, /*allow_tensor_metadata_change=*/true));
}

// The operator's name without namespace and overload, as PyTorch's own tracers name nodes. Lives as long as the operator.
inline absl::string_view PacketName(const c10::OperatorHandle& op) {
  const absl::string_view name = op.operator_name().name;
  return name.substr(name.rfind(':') + 1);
}

}  // namespace ddpopt

#endif  // DDPOPT_INTERPRETER_TRACING_H_
