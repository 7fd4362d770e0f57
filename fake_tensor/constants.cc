#include "fake_tensor/constants.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ATen/core/List.h"
#include "ATen/ops/fill.h"
#include "c10/core/Allocator.h"
#include "c10/core/CPUAllocator.h"

namespace ddpopt {
namespace {

using c10::IValue;

c10::Storage RealStorage(std::size_t nbytes) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), c10::SymInt(static_cast<int64_t>(nbytes)),
                                                            c10::GetCPUAllocator(), /*resizable=*/false));
}

bool IsWhole(const KnownData& known, const FakeTensorImpl& fake) {
  return known.begin == 0 && known.real.nbytes() == fake.fake_storage_impl()->nbytes();
}

// Views of constants may be of any size; operators are run on so many elements of one at most.
constexpr int64_t kMostElements = int64_t{1} << 16;

// The values of the fakes in `value`; nothing if something isn't known. `any`: whether there is a fake. `whole`: as
// ReplaceByKnown's.
std::optional<IValue> Known(const IValue& value, bool whole, bool* any) {
  const auto known = [&](const at::Tensor& tensor) -> std::optional<at::Tensor> {
    if (!tensor.defined()) return tensor;
    const FakeTensorImpl* fake = FakeTensorImpl::Of(tensor);
    if (fake == nullptr) {
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
      return std::nullopt;
    }
    if (!IsKnown(*fake) || fake->numel() > kMostElements || (whole && !IsWhole(*fake->fake_storage_impl()->known(), *fake)))
      return std::nullopt;
    *any = true;
    return KnownValue(*fake);
  };
  if (value.isTensor()) {
    auto tensor = known(value.toTensor());
    return tensor.has_value() ? std::optional<IValue>(std::move(*tensor)) : std::nullopt;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& element : value.toTensorVector()) {
      auto tensor = known(element);
      if (!tensor.has_value()) return std::nullopt;
      list.push_back(std::move(*tensor));
    }
    return IValue(std::move(list));
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& element : value.toOptionalTensorVector()) {
      if (!element.has_value()) {
        list.push_back(std::nullopt);
        continue;
      }
      auto tensor = known(*element);
      if (!tensor.has_value()) return std::nullopt;
      list.push_back(std::move(tensor));
    }
    return IValue(std::move(list));
  }
  return value;
}

}  // namespace

bool Covers(const KnownData& known, const FakeTensorImpl& fake) {
  if (IsWhole(known, fake) || fake.numel() == 0) return true;
  int64_t last = fake.storage_offset();
  for (int64_t i = 0; i < fake.dim(); ++i) last += (fake.size(i) - 1) * fake.stride(i);
  return static_cast<std::size_t>(fake.storage_offset()) * fake.itemsize() >= known.begin &&
         static_cast<std::size_t>(last + 1) * fake.itemsize() <= known.begin + known.real.nbytes();
}

at::Tensor KnownValue(const FakeTensorImpl& fake) {
  const KnownData& known = *fake.fake_storage_impl()->known();
  at::Tensor value = fake.Alias(known.real, c10::DispatchKey::CPU);
  // (Without elements it may lie before what is known.)
  const int64_t offset = fake.storage_offset() - static_cast<int64_t>(known.begin / fake.itemsize());
  value.unsafeGetTensorImpl()->set_storage_offset(std::max<int64_t>(offset, 0));
  return value;
}

void SetKnown(FakeTensorImpl& fake, const c10::Storage& real, std::size_t begin) {
  fake.fake_storage_impl()->set_known(std::make_unique<KnownData>(KnownData{real, begin, {}}));
}

void StartFilling(FakeTensorImpl& fake) {
  const std::size_t nbytes = fake.fake_storage_impl()->nbytes();
  fake.fake_storage_impl()->set_known(std::make_unique<KnownData>(KnownData{RealStorage(nbytes), 0, std::vector<bool>(nbytes, false)}));
}

bool Fill(FakeTensorImpl& fake, const c10::Scalar& value) {
  FakeStorageImpl* storage = fake.fake_storage_impl();
  KnownData* known = storage->mutable_known();
  if (known == nullptr) return false;
  const std::size_t item = fake.itemsize();
  const std::size_t begin = static_cast<std::size_t>(fake.storage_offset()) * item;
  const bool is_step = !known->complete() && fake.numel() == 1 && begin + item <= known->filled.size() && !known->filled[begin];
  if (!is_step) {
    storage->Forget();
    return false;
  }
  const at::Tensor real = fake.Alias(known->real, c10::DispatchKey::CPU);
  real.fill_(value);
  std::fill_n(known->filled.begin() + static_cast<std::ptrdiff_t>(begin), item, true);
  if (std::find(known->filled.begin(), known->filled.end(), false) == known->filled.end()) known->filled.clear();
  return true;
}

bool ReplaceByKnown(torch::jit::Stack* stack, std::size_t first, std::size_t num_args, bool whole) {
  bool any = false;
  std::vector<IValue> values;
  values.reserve(num_args);
  for (std::size_t i = first; i < first + num_args; ++i) {
    std::optional<IValue> value = Known((*stack)[i], whole, &any);
    if (!value.has_value()) return false;
    values.push_back(std::move(*value));
  }
  if (!any) return false;
  std::move(values.begin(), values.end(), stack->begin() + static_cast<std::ptrdiff_t>(first));
  return true;
}

}  // namespace ddpopt
