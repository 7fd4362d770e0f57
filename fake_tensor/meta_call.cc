#include "fake_tensor/meta_call.h"

#include <cstring>
#include <optional>
#include <string>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/MemoryOverlap.h"
#include "ATen/core/Generator.h"
#include "ATen/core/List.h"
#include "ATen/native/TypeProperties.h"
#include "ATen/ops/empty_like.h"
#include "absl/strings/str_cat.h"
#include "c10/core/CPUAllocator.h"
#include "c10/util/Exception.h"
#include "fake_tensor/dtype_support.h"
#include "fake_tensor/fake_errors.h"

namespace ddpopt {
namespace {

using c10::IValue;

// Storages larger than this are not made real for a fallback.
constexpr std::size_t kMaxZeroBytes = std::size_t{1} << 28;

// Puts the default generator back as it was.
class KeepGenerator {
 public:
  KeepGenerator() : generator_(at::detail::getDefaultCPUGenerator()), state_(generator_.get_state()) {}
  ~KeepGenerator() { generator_.set_state(state_); }
  KeepGenerator(const KeepGenerator&) = delete;
  KeepGenerator& operator=(const KeepGenerator&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

// Meta kernels of views don't look at the storage's size; real ones do.
void CheckInBounds(const at::Tensor& view) {
  int64_t end = 1;
  for (int64_t i = 0; i < view.dim(); ++i) {
    if (view.size(i) == 0) return;
    end += (view.size(i) - 1) * view.stride(i);
  }
  const int64_t itemsize = static_cast<int64_t>(view.itemsize());
  const int64_t wanted = (view.storage_offset() + end) * itemsize;
  TORCH_CHECK(wanted <= static_cast<int64_t>(view.storage().nbytes()), "setStorage: sizes ", view.sizes(), ", strides ", view.strides(),
              ", storage offset ", view.storage_offset(), ", and itemsize ", itemsize, " requiring a storage size of ", wanted,
              " are out of bounds for storage of size ", view.storage().nbytes());
}

}  // namespace

void ThrowNoRule(const c10::OperatorHandle& op, const std::string& why) {
  fake_errors_internal::Throw<UnsupportedOperator>(
      NameOf(op), " has no fake rule (schema ", c10::toString(op.schema()), ")", why.empty() ? "" : ": ", why,
      ". Give it one with RegisterFakeKernel(\"", NameOf(op), "\", function) of fake_tensor/fake_kernel.h; ",
      "FakeTensorModeOptions::allow_fallback_kernels runs the real kernel on zeros instead");
}

void MetaCall::Run(torch::jit::Stack* stack) {
  const std::size_t num_args = op_.schema().arguments().size();
  Convert(stack->data() + (stack->size() - num_args), num_args, /*zeros=*/false);
  if (info_.dtypes != nullptr && devices_.Result().is_cpu()) CheckDtypes(op_, *info_.dtypes, torch::jit::last(*stack, num_args));
  torch::jit::Stack again;
  if (info_.casts_operands && devices_.Result().is_cpu() && HasSparseOperands()) {
    again.assign(stack->end() - static_cast<std::ptrdiff_t>(num_args), stack->end());
  }
  Call(stack);
  if (!again.empty() && stack->back().isTensor() && stack->back().toTensor().defined() &&
      LayOutCasts(stack->back().toTensor().scalar_type(), &again)) {
    torch::jit::drop(*stack, op_.schema().returns().size());
    stack->insert(stack->end(), again.begin(), again.end());
    Call(stack);
  }
  Finish(stack);
}

void MetaCall::Call(torch::jit::Stack* stack) {
  try {
    const ClaimedDeviceGuard claimed(devices_.Result());
    if (info_.own != nullptr) {
      info_.own->kernel.callBoxed(op_, c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
    } else {
      op_.callBoxed(stack);
    }
  } catch (const DataDependentOutput&) {
    throw;
  } catch (const DynamicOutputShape&) {
    throw;
  } catch (const UnsupportedOperator&) {
    throw;
  } catch (const c10::NotImplementedError& error) {
    std::string why = error.what_without_backtrace();
    for (const char* tail : {" with arguments from", " to run this operator with Meta tensors", ". You are likely"}) {
      why = why.substr(0, why.find(tail));
    }
    ThrowNoRule(op_, why);
  }
}

// Whether an operand has gaps or repeats elements.
bool MetaCall::HasSparseOperands() const {
  for (const Input& input : inputs_) {
    if (input.inner.dim() > 0 && !input.inner.unsafeGetTensorImpl()->is_non_overlapping_and_dense()) return true;
  }
  return false;
}

// The CPU's kernels convert operands of other dtypes before they look at strides, and what is converted is dense. On the meta device nothing
// is converted, so such operands are laid out here. `result` is the dtype that came out: numbers may raise the operands' common one, and
// integers become floats. False if there is no such operand.
bool MetaCall::LayOutCasts(c10::ScalarType result, torch::jit::Stack* arguments) const {
  at::native::ResultTypeState state;
  for (const IValue& value : *arguments) {
    if (value.isTensor() && value.toTensor().defined()) state = at::native::update_result_type_state(value.toTensor(), state);
  }
  c10::ScalarType compute = at::native::result_type(state);
  if (c10::promoteTypes(compute, result) == result) compute = result;
  bool any = false;
  for (IValue& value : *arguments) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor& operand = value.toTensor();
    if (operand.dim() == 0 || operand.scalar_type() == compute || operand.unsafeGetTensorImpl()->is_non_overlapping_and_dense()) continue;
    value = at::empty_like(operand, c10::MemoryFormat::Preserve);
    any = true;
  }
  return any;
}

void MetaCall::RunOnZeros(torch::jit::Stack* stack) {
  const std::size_t num_args = op_.schema().arguments().size();
  zeros_ = true;
  Convert(stack->data() + (stack->size() - num_args), num_args, /*zeros=*/true);
  if (!devices_.Result().is_cpu()) ThrowNoRule(op_, absl::StrCat("the fallback runs on the CPU, not on ", devices_.Result().str()));
  {
    std::optional<KeepGenerator> keep;
    if (info_.random) keep.emplace();
    op_.callBoxed(stack);
  }
  Finish(stack);
}

void MetaCall::Finish(torch::jit::Stack* stack) {
  for (const Input& input : inputs_) {
    if (!input.written || input.impl == nullptr) continue;
    if (info_.writes_metadata_only) CheckInBounds(input.inner);
    if (info_.refuses_overlapping_out && input.is_out) at::assert_no_internal_overlap(input.inner);
    changed_metadata_ |= input.impl->CopyBack(input.inner, FakeStorageOver(input.inner.storage()));
    if (zeros_) {
      FakeStorageImpl* storage = input.impl->fake_storage_impl();
      if (storage->nbytes() != input.inner.storage().nbytes()) {
        if (storage->has_meta()) storage->meta().unsafeGetStorageImpl()->set_nbytes(input.inner.storage().nbytes());
        storage->set_nbytes(input.inner.storage().nbytes());
        changed_metadata_ = true;
      }
    } else {
      changed_metadata_ |= input.impl->fake_storage_impl()->TakeSizeOfMeta();
    }
    if (info_.bumps_versions) input.impl->bump_version();
  }
  const std::size_t num_returns = op_.schema().returns().size();
  for (std::size_t i = stack->size() - num_returns; i < stack->size(); ++i) WrapResult(&(*stack)[i]);
}

void MetaCall::Convert(IValue* args, std::size_t num_args, bool zeros) {
  for (std::size_t i = 0; i < num_args; ++i) {
    IValue& value = args[i];
    if (value.isTensor()) {
      value = ToInner(value.toTensor(), i, zeros);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> inner;
      for (const at::Tensor& tensor : value.toTensorVector()) inner.push_back(ToInner(tensor, i, zeros));
      value = std::move(inner);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> inner;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        inner.push_back(tensor.has_value() ? std::optional<at::Tensor>(ToInner(*tensor, i, zeros)) : std::nullopt);
      }
      value = std::move(inner);
    } else if (value.isStorage()) {
      const c10::Storage storage = value.toStorage();
      FakeStorageImpl* fake = FakeStorageImpl::Of(storage);
      if (fake == nullptr || zeros) {
        ThrowNoRule(op_, absl::StrCat("argument ", i, " ('", ArgName(op_, i), "') is ", zeros ? "a storage" : "a real tensor's storage"));
      }
      storages_.push_back({storage, fake->meta().unsafeGetStorageImpl()});
      value = fake->meta();
    }
  }
  for (const Input& input : inputs_) {
    if (input.written && input.impl != nullptr) devices_.CheckWritten(input.fake, input.index);
  }
  for (const std::size_t i : info_.device_args) {
    if (args[i].isDevice()) {
      devices_.Set(args[i].toDevice());
      if (!zeros) args[i] = c10::Device(c10::kMeta);
    } else if (inputs_.empty() && !zeros) {
      args[i] = c10::Device(c10::kMeta);
    }
  }
  if (!zeros) {
    for (const std::size_t i : info_.dropped_args) args[i] = IValue();
  } else if (info_.random) {
    // Nobody's generator advances.
    for (const std::size_t i : info_.dropped_args) {
      if (args[i].isGenerator()) args[i] = at::Generator(args[i].toGenerator().clone());
    }
  }
}

at::Tensor MetaCall::ToInner(const at::Tensor& tensor, std::size_t index, bool zeros) {
  if (!tensor.defined()) return tensor;
  const bool written = info_.writes[index];
  constexpr std::size_t kFew = 16;
  if (inputs_.size() < kFew) {
    for (Input& input : inputs_) {
      if (input.fake.is_same(tensor)) {
        input.written |= written;
        return input.inner;
      }
    }
  } else {
    if (by_address_.empty()) {
      for (std::size_t i = 0; i < inputs_.size(); ++i) by_address_.emplace(inputs_[i].fake.unsafeGetTensorImpl(), i);
    }
    if (const auto found = by_address_.find(tensor.unsafeGetTensorImpl()); found != by_address_.end()) {
      inputs_[found->second].written |= written;
      return inputs_[found->second].inner;
    }
  }

  devices_.Add(tensor, index);
  FakeTensorImpl* impl = FakeTensorImpl::Of(tensor);
  at::Tensor inner;
  if (impl == nullptr) {
    // A number that was given as a tensor. Its meta twin takes part in type promotion as a number.
    if (zeros) {
      inner = tensor;
    } else {
      auto number = c10::make_intrusive<c10::TensorImpl>(FakeStorageImpl::MetaOfSize(tensor.storage().nbytes()),
                                                         c10::DispatchKeySet(c10::DispatchKey::Meta), tensor.dtype());
      number->set_sizes_and_strides(c10::IntArrayRef(), c10::IntArrayRef());
      number->set_wrapped_number(true);
      inner = at::Tensor(std::move(number));
    }
  } else {
    inner = impl->Alias(InnerStorage(*impl, zeros), zeros ? c10::DispatchKey::CPU : c10::DispatchKey::Meta);
  }
  if (!by_address_.empty()) by_address_.emplace(tensor.unsafeGetTensorImpl(), inputs_.size());
  inputs_.push_back({tensor, impl, inner, written, index, written && op_.schema().arguments()[index].kwarg_only()});
  return inner;
}

c10::Storage MetaCall::InnerStorage(const FakeTensorImpl& impl, bool zeros) {
  const c10::Storage& fake = impl.fake_storage();
  if (!zeros) {
    const c10::Storage& meta = impl.fake_storage_impl()->meta();
    storages_.push_back({fake, meta.unsafeGetStorageImpl()});
    return meta;
  }
  for (const Input& input : inputs_) {
    if (input.impl != nullptr && input.impl->fake_storage().unsafeGetStorageImpl() == fake.unsafeGetStorageImpl()) {
      return input.inner.storage();
    }
  }
  TORCH_CHECK_NOT_IMPLEMENTED(fake.nbytes() <= kMaxZeroBytes, NameOf(op_), ": the fallback on zeros would make a tensor of ", fake.nbytes(),
                              " bytes real");
  c10::Storage real(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                          c10::SymInt(static_cast<int64_t>(fake.nbytes())), c10::GetCPUAllocator(),
                                                          /*resizable=*/true));
  if (fake.nbytes() != 0) std::memset(real.mutable_data(), 0, fake.nbytes());
  storages_.push_back({fake, real.unsafeGetStorageImpl()});
  return real;
}

c10::Storage MetaCall::FakeStorageOver(const c10::Storage& inner) {
  for (const KnownStorage& known : storages_) {
    if (known.inner == inner.unsafeGetStorageImpl()) return known.fake;
  }
  c10::Storage fake = zeros_ ? FakeStorageImpl::OfSize(inner.nbytes(), devices_.Result()) : FakeStorageImpl::Over(inner, devices_.Result());
  storages_.push_back({fake, inner.unsafeGetStorageImpl()});
  return fake;
}

void MetaCall::WrapResult(IValue* result) {
  if (result->isTensor()) {
    *result = ToFake(result->toTensor());
  } else if (result->isTensorList()) {
    c10::List<at::Tensor> fakes;
    for (const at::Tensor& tensor : result->toTensorVector()) fakes.push_back(ToFake(tensor));
    *result = std::move(fakes);
  }
}

at::Tensor MetaCall::ToFake(const at::Tensor& inner) {
  if (!inner.defined()) return inner;
  const FakeTensorImpl* base = nullptr;
  const c10::StorageImpl* storage = inner.has_storage() ? inner.storage().unsafeGetStorageImpl() : nullptr;
  for (const Input& input : inputs_) {
    if (input.inner.is_same(inner)) return input.fake;
    if (base == nullptr && input.impl != nullptr && input.inner.storage().unsafeGetStorageImpl() == storage) base = input.impl;
  }
  for (const auto& [result, fake] : results_) {
    if (result.is_same(inner)) return fake;
  }
  if (!zeros_ && !inner.is_meta()) ThrowNoRule(op_, "its kernel made a real tensor");
  if (inner.layout() != c10::kStrided || storage == nullptr) {
    ThrowNoRule(op_, absl::StrCat("its result has layout ", c10::str(inner.layout()), ", and only tensors with strides can be fake"));
  }
  c10::intrusive_ptr<FakeTensorImpl> impl;
  if (base != nullptr) {
    CheckInBounds(inner);
    impl = c10::make_intrusive<FakeTensorImpl>(base->fake_storage(), base->device(), base->key_set(), inner.dtype(), mode_);
  } else {
    impl = c10::make_intrusive<FakeTensorImpl>(FakeStorageOver(inner.storage()), devices_.Result(), inner.dtype(), mode_);
  }
  impl->CopyGeometry(*inner.unsafeGetTensorImpl());
  at::Tensor fake(std::move(impl));
  results_.emplace_back(inner, fake);
  return fake;
}

}  // namespace ddpopt
