#include "interpreter/mode_stack.h"

#include <atomic>
#include <utility>

#include "base/dispatch_keys.h"
#include "base/logging.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "c10/util/Exception.h"
#include "torch/library.h"

namespace ddpopt {
namespace {

using Modes = std::vector<std::shared_ptr<Mode>>;

constexpr c10::DispatchKey KeyOf(Mode::Level level) { return level == Mode::Level::kPreAutograd ? kPreAutogradKey : kPostAutogradKey; }

// The modes in force, outermost first. A mode whose Handle runs is not among them.
Modes& ModesOf(Mode::Level level) {
  thread_local Modes modes[2];
  return modes[level == Mode::Level::kPreAutograd ? 0 : 1];
}

// The level's key is included in this thread's dispatch exactly while modes are in force.
void SyncKey(Mode::Level level) { c10::impl::tls_set_dispatch_key_included(KeyOf(level), !ModesOf(level).empty()); }

std::atomic<FallbackHandler>& HandlerOf(Mode::Level level) {
  static std::atomic<FallbackHandler> handlers[2] = {nullptr, nullptr};
  return handlers[level == Mode::Level::kPreAutograd ? 0 : 1];
}

// Takes the innermost mode off the stack and puts it back.
class PopGuard {
 public:
  PopGuard(Mode::Level level, Modes* modes) : level_(level), modes_(modes), mode_(std::move(modes->back())) {
    modes_->pop_back();
    depth_ = modes_->size();
    if (depth_ == 0) SyncKey(level_);
  }
  ~PopGuard() {
    CHECK_EQ(modes_->size(), depth_) << "mode '" << std::string(mode_->name()) << "' left the mode stack unbalanced";
    modes_->push_back(std::move(mode_));
    if (depth_ == 0) SyncKey(level_);
  }
  Mode& mode() { return *mode_; }

 private:
  Mode::Level level_;
  Modes* modes_;
  std::shared_ptr<Mode> mode_;
  std::size_t depth_;
};

template <Mode::Level level>
void Fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Modes& modes = ModesOf(level);
  if (!modes.empty()) {
    PopGuard popped(level, &modes);
    popped.mode().Handle(op, stack);
    return;
  }
  c10::impl::ExcludeDispatchKeyGuard exclude(KeyOf(level));
  if (const FallbackHandler handler = HandlerOf(level).load(std::memory_order_acquire)) {
    handler(op, stack);
  } else {
    op.callBoxed(stack);
  }
}

// TORCH_LIBRARY_IMPL wants the keys spelled out; the class behind it takes base's constants. A LibTorch that has a fallback of its own on
// one of the keys makes this fail at start-up, with both places named.
template <Mode::Level level>
torch::Library RegisterFallback() {
  torch::Library library(torch::Library::IMPL, "_", KeyOf(level), __FILE__, __LINE__);
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&Fallback<level>>());
  return library;
}

const torch::Library pre_autograd_library = RegisterFallback<Mode::Level::kPreAutograd>();
const torch::Library post_autograd_library = RegisterFallback<Mode::Level::kPostAutograd>();

}  // namespace

ModeGuard::ModeGuard(std::shared_ptr<Mode> mode) {
  TORCH_CHECK(mode != nullptr, "ModeGuard: the mode is null");
  level_ = mode->level();
  mode_ = mode.get();
  Modes& modes = ModesOf(level_);
  modes.push_back(std::move(mode));
  depth_ = modes.size();
  if (depth_ == 1) SyncKey(level_);
}

ModeGuard::~ModeGuard() {
  Modes& modes = ModesOf(level_);
  CHECK(modes.size() == depth_ && modes.back().get() == mode_)
      << "mode guards must be destroyed in reverse order, on the thread that made them";
  modes.pop_back();
  if (depth_ == 1) SyncKey(level_);
}

DisableModesGuard::DisableModesGuard(Mode::Level level) : level_(level) {
  Modes& modes = ModesOf(level);
  if (modes.empty()) return;
  saved_ = std::exchange(modes, {});
  SyncKey(level);
}

DisableModesGuard::~DisableModesGuard() {
  Modes& modes = ModesOf(level_);
  CHECK(modes.empty()) << "mode '" << std::string(modes.back()->name()) << "' outlives a DisableModesGuard";
  if (saved_.empty()) return;
  modes = std::move(saved_);
  SyncKey(level_);
}

Mode* CurrentMode(Mode::Level level) {
  const Modes& modes = ModesOf(level);
  return modes.empty() ? nullptr : modes.back().get();
}

void SetFallbackHandler(Mode::Level level, FallbackHandler handler) {
  const FallbackHandler previous = HandlerOf(level).exchange(handler, std::memory_order_acq_rel);
  CHECK(previous == nullptr || previous == handler) << "two fallback handlers for one level of the mode stack";
}

}  // namespace ddpopt
