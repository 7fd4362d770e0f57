#ifndef DDPOPT_INTERPRETER_MODE_SCOPES_H_
#define DDPOPT_INTERPRETER_MODE_SCOPES_H_

// Grad mode and autocast as a graph sets them by nodes, and their restoration when the run ends, however it ends. Private to this package.
//
//   ModeScopes scopes;
//   scopes.Run(*ModeScopes::Find("torch._C._set_grad_enabled"), {false});
//   ...                                                   // grad mode is back at the end of the scope, exceptions included
//
// Of one thread; lives and dies on it, as the modes are the thread's.

#include <memory>
#include <optional>
#include <vector>

#include "ATen/core/ivalue.h"
#include "absl/strings/string_view.h"
#include "c10/core/Device.h"
#include "c10/core/InferenceMode.h"
#include "c10/core/ScalarType.h"

namespace ddpopt {

class ModeScopes {
 public:
  enum class Function { kSetGradEnabled, kEnterAutocast, kExitAutocast, kEnterInferenceMode, kExitInferenceMode };
  // The function that an opaque target names, as torch.fx writes it: "torch._C._set_grad_enabled", "torch.amp.autocast_mode._enter_autocast".
  static std::optional<Function> Find(absl::string_view target);

  ModeScopes();
  ~ModeScopes();
  ModeScopes(const ModeScopes&) = delete;
  ModeScopes& operator=(const ModeScopes&) = delete;

  // Python's arguments: (enabled); (device_type, dtype, enabled, cache_enabled), where dtype and cache_enabled may be None; (what enter returned).
  // Throws c10::Error for arguments that don't fit, and for leaving what isn't open.
  c10::IValue Run(Function function, const std::vector<c10::IValue>& args);
  // Undoes what is still in force, in reverse order.
  void RestoreAll();

 private:
  struct Scope;
  c10::IValue Push(Scope scope);
  void Leave(Function entered, const c10::IValue& handle);

  std::vector<std::unique_ptr<Scope>> scopes_;
  int64_t next_handle_ = 0;
};

}  // namespace ddpopt

#endif  // DDPOPT_INTERPRETER_MODE_SCOPES_H_
