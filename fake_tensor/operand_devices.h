#ifndef DDPOPT_FAKE_TENSOR_OPERAND_DEVICES_H_
#define DDPOPT_FAKE_TENSOR_OPERAND_DEVICES_H_

// The device of an operator's results, from its operands', and whether the operator takes them together. Private to this package.

#include <cstddef>
#include <optional>

#include "ATen/core/Tensor.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "c10/core/Device.h"
#include "fake_tensor/op_info.h"

namespace ddpopt {

// With the index that devices have when none is named.
c10::Device Indexed(c10::Device device);

class OperandDevices {
 public:
  OperandDevices(const c10::OperatorHandle& op, const OpInfo& info) : op_(op), info_(info) {}

  // Argument `index` of the schema is or holds this operand. Throws FakeDeviceMismatch.
  void Add(const at::Tensor& operand, std::size_t index);
  // The call names a device itself. Throws for one that fake CUDA doesn't have.
  void Set(c10::Device device);
  // After all operands: that what is written to is where the results are. Throws FakeDeviceMismatch.
  void CheckWritten(const at::Tensor& operand, std::size_t index) const;
  // The results'; the CPU if nothing says otherwise.
  c10::Device Result() const { return named_.has_value() ? *named_ : device_.value_or(c10::Device(c10::kCPU)); }

 private:
  [[noreturn]] void Refuse(const at::Tensor& operand, std::size_t index) const;

  const c10::OperatorHandle& op_;
  const OpInfo& info_;
  std::optional<c10::Device> named_;
  std::optional<c10::Device> device_;
  bool weak_ = false;  // only zero-dimensional tensors of the CPU so far
};

}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_OPERAND_DEVICES_H_
