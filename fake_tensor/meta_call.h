#ifndef DDPOPT_FAKE_TENSOR_META_CALL_H_
#define DDPOPT_FAKE_TENSOR_META_CALL_H_

// One operator call on fakes, not from the cache: fakes become meta tensors, the rule runs, its results become fakes.
// Private to this package.

#include <cstddef>
#include <memory>
#include <utility>

#include "ATen/core/Tensor.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/ivalue.h"
#include "ATen/core/stack.h"
#include "absl/container/flat_hash_map.h"
#include "c10/util/SmallVector.h"
#include "fake_tensor/fake_tensor_impl.h"
#include "fake_tensor/op_info.h"
#include "fake_tensor/operand_devices.h"

namespace ddpopt {

class MetaCall {
 public:
  // Arguments are fakes of `mode`, or wrapped numbers.
  MetaCall(std::shared_ptr<FakeTensorMode> mode, const c10::OperatorHandle& op, const OpInfo& info)
      : mode_(std::move(mode)), op_(op), info_(info), devices_(op, info) {}

  // Replaces the arguments on the stack by the results, through the rule or LibTorch's Meta kernel. Throws what these throw, and
  // UnsupportedOperator where LibTorch's has a gap.
  void Run(torch::jit::Stack* stack);
  // Likewise through the real kernel, on zeros. Only for fakes on the CPU.
  void RunOnZeros(torch::jit::Stack* stack);

  // Whether an operand's sizes, strides or storage changed.
  bool changed_metadata() const { return changed_metadata_; }

 private:
  struct Input {
    at::Tensor fake;
    FakeTensorImpl* impl;  // null: a number
    at::Tensor inner;      // what the kernel sees
    bool written;
    std::size_t index;     // of the argument
    bool is_out;
  };
  struct KnownStorage {
    c10::Storage fake;
    const c10::StorageImpl* inner;
  };

  // The arguments as the kernel wants them. `zeros`: real tensors instead of meta ones.
  void Convert(c10::IValue* args, std::size_t num_args, bool zeros);
  void CheckGenerator(const at::Generator& generator) const;
  at::Tensor ToInner(const at::Tensor& tensor, std::size_t index, bool zeros);
  c10::Storage InnerStorage(const FakeTensorImpl& impl, bool zeros);
  // The rule or LibTorch's Meta kernel.
  void Call(torch::jit::Stack* stack);
  bool HasSparseOperands() const;
  void LayOutOperands(torch::jit::Stack* stack, std::size_t num_args);
  void CheckComputable(const c10::IValue* args, std::size_t num_args) const;
  bool LayOutCasts(const c10::IValue& results, torch::jit::Stack* arguments) const;
  void Finish(torch::jit::Stack* stack);
  void WrapResult(c10::IValue* result);
  at::Tensor ToFake(const at::Tensor& inner);
  // The fake storage over the kernel's: an input's, an earlier result's or a new one.
  c10::Storage FakeStorageOver(const c10::Storage& inner);

  std::shared_ptr<FakeTensorMode> mode_;
  const c10::OperatorHandle& op_;
  const OpInfo& info_;
  OperandDevices devices_;
  bool zeros_ = false;
  bool changed_metadata_ = false;
  c10::SmallVector<Input, 4> inputs_;
  c10::SmallVector<KnownStorage, 4> storages_;
  c10::SmallVector<std::pair<at::Tensor, at::Tensor>, 2> results_;
  absl::flat_hash_map<const void*, std::size_t> by_address_;  // inputs and storages by address, once there are many
};

// Throws UnsupportedOperator: names the operator and its schema, and tells how to add a rule.
[[noreturn]] void ThrowNoRule(const c10::OperatorHandle& op, const std::string& why);

}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_META_CALL_H_
