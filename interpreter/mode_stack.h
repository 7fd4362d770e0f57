#ifndef DDPOPT_INTERPRETER_MODE_STACK_H_
#define DDPOPT_INTERPRETER_MODE_STACK_H_

// A thread's stack of dispatch modes: objects that see every ATen operator called while they are pushed, as Python's
// TorchDispatchMode. There are two levels: a pre-autograd mode sees composite operators whole (aten::linear); a
// post-autograd mode sees what autograd has left (aten::addmm).
//
//   class Counter : public Mode {
//     Level level() const override { return Level::kPostAutograd; }
//     absl::string_view name() const override { return "Counter"; }
//     void Handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) override { ++n; op.callBoxed(stack); }
//   };
//   ModeGuard guard(std::make_shared<Counter>());          // until the end of the scope, exceptions included
//
// While a mode's Handle runs, that mode is off the stack (its level's lower modes are on): calling the operator again reaches
// the next mode of that level, then the kernel. Per thread; never shared between threads. A new thread starts with no modes.

#include <cstddef>
#include <memory>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/stack.h"
#include "absl/strings/string_view.h"

namespace ddpopt {

class Mode {
 public:
  enum class Level { kPreAutograd, kPostAutograd };
  virtual ~Mode() = default;
  virtual Level level() const = 0;
  virtual absl::string_view name() const = 0;
  // Replaces the arguments on the stack by the results. Throws c10::Error.
  virtual void Handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) = 0;
};

// Pushes a mode for the lifetime of the guard. Guards nest; destroyed in reverse order (CHECK), on the thread that made them.
class ModeGuard {
 public:
  explicit ModeGuard(std::shared_ptr<Mode> mode);
  ~ModeGuard();
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;

 private:
  Mode::Level level_;
  std::size_t depth_;
  const Mode* mode_;
};

// Takes all modes of one level off the stack for the lifetime of the guard. Modes pushed meanwhile must be gone by its end (CHECK).
class DisableModesGuard {
 public:
  explicit DisableModesGuard(Mode::Level level);
  ~DisableModesGuard();
  DisableModesGuard(const DisableModesGuard&) = delete;
  DisableModesGuard& operator=(const DisableModesGuard&) = delete;

 private:
  Mode::Level level_;
  std::vector<std::shared_ptr<Mode>> saved_;
};

// The innermost mode in force at the level, or null. Inside a Handle: the mode below the one that runs.
Mode* CurrentMode(Mode::Level level);

// Tensors may carry a level's dispatch key themselves, and so reach the level while no mode is on its stack. The handler registered here
// then takes the call, with the level's key excluded; without one the kernel below is called. One handler per level and process (CHECK).
using FallbackHandler = void (*)(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void SetFallbackHandler(Mode::Level level, FallbackHandler handler);

}  // namespace ddpopt

#endif  // DDPOPT_INTERPRETER_MODE_STACK_H_
