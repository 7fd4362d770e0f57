#ifndef DDPOPT_FAKE_TENSOR_FAKE_TENSOR_MODE_H_
#define DDPOPT_FAKE_TENSOR_FAKE_TENSOR_MODE_H_

// Fake tensors: tensors with shape, strides, dtype and device but no data, as PyTorch's FakeTensorMode. Operators on fakes give fakes.
//
//   auto mode = FakeTensorMode::Create();
//   at::Tensor fx = mode->FromReal(x);             // same metadata, no data
//   { ModeGuard on(mode);                          // needed only for tensors born without a fake input (ones(), scalars)
//     at::Tensor y = at::mm(fx, fx.t()) + at::ones({2}); }
//
// An operator without a rule is an error that names it; a real tensor among an operator's inputs is an error that names the
// operator and the tensor, unless it is a wrapped number. Reading data (item(), data_ptr, printing) is an error.
// One mode may be used by one thread at a time.

#include <memory>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "interpreter/mode_stack.h"

namespace ddpopt {

class FakeTensorMode : public Mode, public std::enable_shared_from_this<FakeTensorMode> {
 public:
  static std::shared_ptr<FakeTensorMode> Create();
  ~FakeTensorMode() override;

  // The fake of a real tensor; the same real tensor gives the same fake (tied parameters stay tied), views of one storage share one fake
  // storage. requires_grad and leafness are kept. A fake of this mode is returned as it is. Throws c10::Error for a fake of another mode,
  // and for layouts that have no strides.
  at::Tensor FromReal(const at::Tensor& real);
  // Applies FromReal to every tensor inside (lists, tuples, dicts).
  c10::IValue FromReal(const c10::IValue& value);

  // Mode:
  Level level() const override { return Level::kPostAutograd; }
  absl::string_view name() const override { return "FakeTensorMode"; }
  void Handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) override;

 private:
  FakeTensorMode();
  struct Memo;
  std::unique_ptr<Memo> memo_;
};

// Whether the tensor is a FakeTensorImpl (undefined: false), and of which mode (null if real).
bool IsFake(const at::Tensor& tensor);
FakeTensorMode* ModeOf(const at::Tensor& tensor);

}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_FAKE_TENSOR_MODE_H_
