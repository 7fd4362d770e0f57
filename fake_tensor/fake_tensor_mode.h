#ifndef DDPOPT_FAKE_TENSOR_FAKE_TENSOR_MODE_H_
#define DDPOPT_FAKE_TENSOR_FAKE_TENSOR_MODE_H_

// Fake tensors: tensors with shape, strides, dtype and device but no data, as PyTorch's FakeTensorMode. Operators on fakes give fakes.
//
//   auto mode = FakeTensorMode::Create();
//   at::Tensor fx = mode->FromReal(x);             // same metadata, no data
//   { ModeGuard on(mode);                          // needed only for tensors born without a fake input (ones(), scalars)
//     at::Tensor y = at::mm(fx, fx.t()) + at::ones({2}); }
//
// An operator goes this way, each step only if the ones before don't have an answer:
//   1. its operands become the mode's own: real tensors are refused, or made fake if allowed, and other modes' fakes are refused;
//   2. constants: an operator that needs data (item(), nonzero()) on tensors whose data are known is run for real;
//   3. the cache: what the operator returned for operands of the same metadata; all others must have devices that go together;
//   4. the rule given to it (fake_kernel.h);
//   5. LibTorch's Meta kernel;
//   6. its composition of other operators (CompositeImplicitAutograd), which come back here;
//   7. the real kernel on zeros, if allow_fallback_kernels;
//   8. an error that names the operator, its schema, and how to add a rule.
// Errors are those of fake_errors.h, or what the real operator would throw.
//
// Constants. A tensor of at most `constant_limit` elements on the CPU that is made from numbers under the mode (torch::tensor({1, 2}),
// scalars, aten::lift, FromConstant) keeps its values, through views, detach() and operators on such tensors alone; random operators and
// those on views of more than 65,536 elements lose them. A write through any alias ends them. torch::tensor() of a std::vector writes to
// memory that a fake doesn't have, and throws: make it outside and use FromConstant.
//
// equal() of a tensor with itself is true, as if it held no NaN, unless its elements are known.
//
// Random operators draw nothing: no generator, default or given, advances. Reading data (data_ptr, printing, saving) is an error.
// A real tensor's fake takes over requires_grad, leafness and grad; nothing fake is left on a real tensor: one that would get a gradient or
// be written to, itself or through a view, is refused even if allow_non_fake_inputs. (What retain_grad() keeps isn't looked at.)
//
// A mode may be used by one thread at a time, and by the threads on which autograd runs a backward pass for it.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "interpreter/mode_stack.h"

namespace ddpopt {

class CallRecorder;

struct FakeTensorModeOptions {
  // Real tensors among an operator's operands are made fake instead of refused.
  bool allow_non_fake_inputs = false;
  // Operators without a rule run for real on zeros. The CPU only; storages of at most 256 MiB.
  bool allow_fallback_kernels = false;
  bool cache = true;
  // Every answer from the cache is computed again and compared; a difference throws c10::Error. Slow; for tests.
  bool cross_check_cache = false;
  // Entries; a full cache is emptied.
  std::size_t cache_limit = std::size_t{1} << 14;
  // Elements of tensors whose data are kept.
  int64_t constant_limit = 8;
  // Names the mode in errors, beside its number.
  std::string label;
};

// Counts since the mode was made or the cache cleared.
struct FakeCacheInfo {
  int64_t hits = 0;
  int64_t misses = 0;
  std::map<std::string, int64_t> bypasses;  // calls that the cache isn't for, by reason
  std::size_t size = 0;                     // entries now
};

class FakeTensorMode : public Mode, public std::enable_shared_from_this<FakeTensorMode> {
 public:
  // Errors in which modes meet tell where each was made.
  static std::shared_ptr<FakeTensorMode> Create(FakeTensorModeOptions options = {},
                                                std::source_location made_at = std::source_location::current());
  ~FakeTensorMode() override;

  // The fake of a real tensor; the same real tensor gives the same fake (tied parameters stay tied) while both have the same metadata; views
  // of one storage share one fake storage of the whole size. requires_grad, leafness and the bond of a view to its base are kept, and grad
  // as it is when the fake is made. A fake of this mode is returned as it is. Throws NotOurFake for a fake of another mode, and c10::Error for
  // layouts that have no strides.
  at::Tensor FromReal(const at::Tensor& real);
  // Applies FromReal to every tensor inside (lists, tuples, dicts).
  c10::IValue FromReal(const c10::IValue& value);
  // A new fake of the real tensor's metadata that knows its elements, if it is on the CPU and has at most `constant_limit` of them. The data
  // are copied. requires_grad isn't kept.
  at::Tensor FromConstant(const at::Tensor& real);
  // A copy of the fake's elements where they are known. Null for others, and for real tensors.
  static std::optional<at::Tensor> KnownValue(const at::Tensor& fake);

  FakeCacheInfo CacheInfo() const;
  void ClearCache();

  const FakeTensorModeOptions& options() const { return options_; }
  // "FakeTensorMode 3 ('label', made at net/plan.cc:12)".
  std::string Description() const;

  // Mode:
  Level level() const override { return Level::kPostAutograd; }
  absl::string_view name() const override { return "FakeTensorMode"; }
  void Handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) override;

 private:
  friend class DeferredInit;
  FakeTensorMode(FakeTensorModeOptions options, std::source_location made_at);
  // Shows it every operator from now on, as long as it lives.
  void RecordCalls(std::weak_ptr<CallRecorder> recorder);
  struct State;
  class Call;

  FakeTensorModeOptions options_;
  std::source_location made_at_;
  int64_t number_;
  std::unique_ptr<State> state_;
};

// Whether the tensor is a FakeTensorImpl (undefined: false), and of which mode (null if real).
bool IsFake(const at::Tensor& tensor);
FakeTensorMode* ModeOf(const at::Tensor& tensor);

}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_FAKE_TENSOR_MODE_H_
