#include "fake_tensor/meta_call.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "ATen/MemoryOverlap.h"
#include "ATen/core/Generator.h"
#include "ATen/core/List.h"
#include "ATen/native/TypeProperties.h"
#include "ATen/ops/empty_like.h"
#include "absl/strings/str_cat.h"
#include "base/generator_guard.h"
#include "c10/core/CPUAllocator.h"
#include "c10/util/Exception.h"
#include "fake_tensor/dtype_support.h"
#include "fake_tensor/fake_errors.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fake_tensor/functional_form.h"

namespace ddpopt {
namespace {

using c10::IValue;

// Storages larger than this are not made real for a fallback.
constexpr std::size_t kMaxZeroBytes = std::size_t{1} << 28;

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

// (An undefined one can't be taken out.)
bool IsDefinedGenerator(const IValue& value) { return value.isGenerator() && value.isPtrType(); }

// A number that takes part in type promotion. (alpha, beta, value, weight don't.)
bool Counts(const std::string& name) {
  return name == "self" || name == "other" || name == "exponent" || name == "min" || name == "max" || name == "x" || name == "n";
}

}  // namespace

void ThrowNoRule(const c10::OperatorHandle& op, const std::string& why) {
  fake_errors_internal::Throw<UnsupportedOperator>(NameOf(op), " has no fake rule (schema ", c10::toString(op.schema()), ")",
                                                   why.empty() ? "" : ": ", why, ". Give it one with RegisterFakeKernel(\"", NameOf(op),
                                                   "\", function) of fake_tensor/fake_kernel.h; ",
                                                   "FakeTensorModeOptions::allow_fallback_kernels runs the real kernel on zeros instead");
}

void MetaCall::Run(torch::jit::Stack* stack) {
  const std::size_t num_args = op_.schema().arguments().size();
  Convert(stack->data() + (stack->size() - num_args), num_args, /*zeros=*/false);
  if (info_.dtypes != nullptr && devices_.Result().is_cpu()) CheckDtypes(op_, *info_.dtypes, torch::jit::last(*stack, num_args));
  if (info_.elementwise && devices_.Result().is_cpu()) {
    CheckComputable(stack->data() + (stack->size() - num_args), num_args);
    if (info_.casts_operands) LayOutOperands(stack, num_args);
  }
  Call(stack);
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

// No kernel of the CPU computes in what bfloat16 and complex numbers promote to since LibTorch 2.12, but for comparisons.
void MetaCall::CheckComputable(const IValue* args, std::size_t num_args) const {
  const std::string& op = op_.schema().name();
  if (op == "aten::eq" || op == "aten::ne" || op == "aten::eq_" || op == "aten::ne_") return;
  bool any = false;
  for (const Input& input : inputs_) any |= !input.is_out && input.inner.scalar_type() == c10::kBFloat16;
  if (!any) return;
  std::size_t positions = 1;
  for (std::size_t i = 0; i < num_args; ++i) {
    if (args[i].isTensorList()) positions = std::max(positions, args[i].toListRef().size());
  }
  for (std::size_t position = 0; position < positions; ++position) {
    at::native::ResultTypeState state;
    const auto add = [&](const IValue& value) {
      if (value.isTensor()) {
        if (value.toTensor().defined()) state = at::native::update_result_type_state(value.toTensor(), state);
      } else if (value.isScalar()) {
        state = at::native::update_result_type_state(value.toScalar(), state);
      }
    };
    for (std::size_t i = 0; i < num_args; ++i) {
      const c10::Argument& argument = op_.schema().arguments()[i];
      if (IsOut(argument)) continue;
      if ((args[i].isTensor() && argument.name() != "scalars") || (args[i].isScalar() && Counts(argument.name()))) {
        add(args[i]);
      } else if (args[i].isList() && (args[i].isTensorList() || argument.name() == "scalars")) {
        const c10::ArrayRef<IValue> list = args[i].toListRef();
        if (position < list.size()) add(list[position]);
      }
    }
    const c10::ScalarType type = at::native::result_type(state);
    TORCH_CHECK(!c10::isComplexType(type) || c10::elementSize(type) != 4 || type == c10::kComplexHalf, NameOf(op_),
                " isn't implemented for ", type, " on the CPU");
  }
}

// Whether an operand has gaps or repeats elements.
bool MetaCall::HasSparseOperands() const {
  for (const Input& input : inputs_) {
    if (!input.is_out && input.inner.dim() > 0 && !input.inner.unsafeGetTensorImpl()->is_non_overlapping_and_dense()) return true;
  }
  return false;
}

// The CPU's kernels convert operands of other dtypes before they look at strides, and what is converted is dense. On the meta device
// nothing is converted, so such operands are laid out here. The dtype that is computed in follows from the functional form's results.
void MetaCall::LayOutOperands(torch::jit::Stack* stack, std::size_t num_args) {
  if (!HasSparseOperands()) return;
  const c10::OperatorHandle& functional = info_.functional.has_value() ? *info_.functional : op_;
  const auto first = stack->end() - static_cast<std::ptrdiff_t>(num_args);
  torch::jit::Stack arguments(first, first + static_cast<std::ptrdiff_t>(functional.schema().arguments().size()));
  torch::jit::Stack results = arguments;
  try {
    const ClaimedDeviceGuard claimed(devices_.Result());
    functional.callBoxed(&results);
  } catch (const c10::Error&) {
    return;  // the call itself will say
  }
  if (results.empty() || !LayOutCasts(results.front(), &arguments)) return;
  std::move(arguments.begin(), arguments.end(), stack->end() - static_cast<std::ptrdiff_t>(num_args));
}

namespace {

// The tensors of one position: lists have one for each, other arguments one for all.
template <typename Fn>
void ForEachOperand(const c10::OperatorHandle& op, torch::jit::Stack& arguments, std::size_t position, Fn&& fn) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    IValue& value = arguments[i];
    if (ArgName(op, i) == "scalars") continue;  // a tensor of numbers
    if (value.isTensor() && value.toTensor().defined()) {
      at::Tensor tensor = value.toTensor();
      if (fn(tensor)) value = std::move(tensor);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list = value.toTensorList();
      if (position >= list.size()) continue;
      at::Tensor tensor = list.get(position);
      if (fn(tensor)) list.set(position, std::move(tensor));
    }
  }
}

}  // namespace

// Numbers may raise the operands' common dtype, and integers become floats, as the results tell. False if there is no operand to lay out.
bool MetaCall::LayOutCasts(const IValue& results, torch::jit::Stack* arguments) const {
  std::vector<at::Tensor> made;
  if (results.isTensor()) {
    made.push_back(results.toTensor());
  } else if (results.isTensorList()) {
    made = results.toTensorVector();
    // Lists are shared with the call's.
    for (IValue& value : *arguments) {
      if (value.isTensorList()) value = c10::List<at::Tensor>(value.toTensorVector());
    }
  }
  at::native::ResultTypeState numbers;
  for (std::size_t i = 0; i < arguments->size(); ++i) {
    if ((*arguments)[i].isScalar() && Counts(ArgName(op_, i))) {
      numbers = at::native::update_result_type_state((*arguments)[i].toScalar(), numbers);
    }
  }
  bool any = false;
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (!made[i].defined()) continue;
    at::native::ResultTypeState state = numbers;
    ForEachOperand(op_, *arguments, i, [&](const at::Tensor& operand) {
      state = at::native::update_result_type_state(operand, state);
      return false;
    });
    c10::ScalarType compute = at::native::result_type(state);
    if (c10::promoteTypes(compute, made[i].scalar_type()) == made[i].scalar_type()) compute = made[i].scalar_type();
    ForEachOperand(op_, *arguments, i, [&](at::Tensor& operand) {
      if (operand.dim() == 0 || operand.scalar_type() == compute || operand.unsafeGetTensorImpl()->is_non_overlapping_and_dense()) {
        return false;
      }
      operand = at::empty_like(operand, c10::MemoryFormat::Preserve);
      return any = true;
    });
  }
  return any;
}

void MetaCall::RunOnZeros(torch::jit::Stack* stack) {
  const std::size_t num_args = op_.schema().arguments().size();
  zeros_ = true;
  Convert(stack->data() + (stack->size() - num_args), num_args, /*zeros=*/true);
  if (!devices_.Result().is_cpu()) ThrowNoRule(op_, absl::StrCat("the fallback runs on the CPU, not on ", devices_.Result().str()));
  {
    // Whatever its tags say, it may draw.
    const GeneratorGuard keep;
    op_.callBoxed(stack);
  }
  Finish(stack);
}

void MetaCall::Finish(torch::jit::Stack* stack) {
  for (const Input& input : inputs_) {
    if (input.impl == nullptr) continue;
    if (!input.written) {
      // slow_conv_transpose2d gives its input a batch.
      if (input.inner.sizes() != input.impl->sizes()) {
        input.impl->set_sizes_and_strides(input.inner.sizes(), input.inner.strides(), input.inner.storage_offset());
        changed_metadata_ = true;
      }
      // Another tensor that took over its memory may have resized it.
      if (!zeros_) changed_metadata_ |= input.impl->fake_storage_impl()->TakeSizeOfMeta();
      continue;
    }
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
    if (info_.bumps_versions) input.impl->CountWrite();
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
      if (fake->mode() != mode_.get()) {
        fake_errors_internal::Throw<NotOurFake>(NameOf(op_), ": argument ", i, " ('", ArgName(op_, i),
                                                "') is the storage of a fake tensor of another FakeTensorMode, which meets ",
                                                mode_->Description());
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
  for (const std::size_t i : info_.dropped_args) {
    if (IsDefinedGenerator(args[i])) CheckGenerator(args[i].toGenerator());
  }
  if (!zeros) {
    for (const std::size_t i : info_.dropped_args) args[i] = IValue();
  } else {
    // Nobody's generator advances.
    for (std::size_t i = 0; i < num_args; ++i) {
      if (IsDefinedGenerator(args[i])) args[i] = at::Generator(args[i].toGenerator().clone());
    }
  }
}

// Kernels draw from generators of their own device. (Those of the meta device don't draw.)
void MetaCall::CheckGenerator(const at::Generator& generator) const {
  const c10::DeviceType device = devices_.Result().type();
  TORCH_CHECK(device == c10::kMeta || generator.device().type() == device, NameOf(op_), ": Expected a '", device,
              "' device type for generator but found '", generator.device().type(), "'");
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
  FakeTensorImpl* base = nullptr;
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
    // What kernels work on is always an inference tensor.
    const bool counts = base->is_inference() && inner.is_inference() && inner.unsafeGetTensorImpl()->version_counter().enabled();
    impl = base->View(info_.makes_new_views ? FakeTensorImpl::ViewKind::kAsNew
                      : counts              ? FakeTensorImpl::ViewKind::kCounting
                                            : FakeTensorImpl::ViewKind::kAsBase,
                      inner.dtype());
  } else {
    impl = c10::make_intrusive<FakeTensorImpl>(FakeStorageOver(inner.storage()), devices_.Result(), inner.dtype(), mode_);
  }
  impl->CopyGeometry(*inner.unsafeGetTensorImpl());
  at::Tensor fake(std::move(impl));
  results_.emplace_back(inner, fake);
  return fake;
}

}  // namespace ddpopt
