#include "fake_tensor/fake_tensor_impl.h"

#include <optional>

#include "base/dispatch_keys.h"
#include "c10/core/Allocator.h"
#include "c10/core/StorageImpl.h"
#include "c10/core/TensorOptions.h"
#include "c10/util/Exception.h"

namespace ddpopt {
namespace {

static_assert(kPostAutogradKey == c10::DispatchKey::Fake);

constexpr char kNoData[] = "this is a fake tensor (ddpopt::FakeTensorMode): it has a shape but no data to read, write, print or save";

c10::DispatchKeySet KeysFor(c10::Device device) {
  return c10::DispatchKeySet({c10::computeDispatchKey(std::nullopt, c10::kStrided, device), kPostAutogradKey});
}

}  // namespace

FakeStorage FakeStorage::Over(c10::Storage meta, c10::Device device) {
  auto claimed =
      c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), c10::SymInt(static_cast<int64_t>(meta.nbytes())),
                                            at::DataPtr(nullptr, device), c10::GetAllocator(c10::kMeta), /*resizable=*/true);
  claimed->release_data_and_set_meta_custom_data_ptr_error_msg_(kNoData);
  return {c10::Storage(std::move(claimed)), std::move(meta)};
}

FakeStorage FakeStorage::OfSize(std::size_t nbytes, c10::Device device) {
  auto meta = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), c10::SymInt(static_cast<int64_t>(nbytes)),
                                                    at::DataPtr(nullptr, c10::Device(c10::kMeta)), c10::GetAllocator(c10::kMeta),
                                                    /*resizable=*/true);
  return Over(c10::Storage(std::move(meta)), device);
}

FakeTensorImpl::FakeTensorImpl(FakeStorage storage, c10::Device device, caffe2::TypeMeta dtype, std::shared_ptr<FakeTensorMode> mode)
    : c10::TensorImpl(std::move(storage.claimed), KeysFor(device), dtype), meta_storage_(std::move(storage.meta)), mode_(std::move(mode)) {
  device_opt_ = device;
}

FakeTensorImpl::FakeTensorImpl(FakeStorage storage, c10::DispatchKeySet base_keys, caffe2::TypeMeta dtype,
                               std::shared_ptr<FakeTensorMode> mode)
    : c10::TensorImpl(c10::TensorImpl::VIEW, std::move(storage.claimed), base_keys, dtype),
      meta_storage_(std::move(storage.meta)),
      mode_(std::move(mode)) {}

at::Tensor FakeTensorImpl::MetaAlias() const {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::Meta);
  auto alias = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(meta_storage_), keys, dtype());
  alias->set_sizes_and_strides(sizes(), strides(), storage_offset());
  if (is_wrapped_number()) alias->set_wrapped_number(true);
  if (is_conj()) alias->_set_conj(true);
  if (is_neg()) alias->_set_neg(true);
  return at::Tensor(std::move(alias));
}

void FakeTensorImpl::CopyBack(const at::Tensor& meta, FakeStorage storage) {
  if (storage_.unsafeGetStorageImpl() != storage.claimed.unsafeGetStorageImpl() || meta.dtype() != dtype()) {
    const c10::Device claimed_device = *device_opt_;
    meta_storage_ = std::move(storage.meta);
    set_storage_and_dtype(std::move(storage.claimed), meta.dtype());
    device_opt_ = claimed_device;
  }
  if (sizes() != meta.sizes() || strides() != meta.strides() || storage_offset() != meta.storage_offset()) {
    set_sizes_and_strides(meta.sizes(), meta.strides(), meta.storage_offset());
  }
}

void FakeTensorImpl::CopyGeometry(const c10::TensorImpl& from) {
  set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
  if (from.is_wrapped_number()) set_wrapped_number(true);
  _set_conj(from.is_conj());
  _set_neg(from.is_neg());
}

c10::intrusive_ptr<c10::TensorImpl> FakeTensorImpl::shallow_copy_and_detach(const c10::VariableVersion& version_counter,
                                                                            bool allow_tensor_metadata_change) const {
  auto copy = c10::make_intrusive<FakeTensorImpl>(fake_storage(), key_set(), dtype(), mode_);
  copy_tensor_metadata(this, copy.get(), version_counter, allow_tensor_metadata_change);
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> FakeTensorImpl::shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                                            bool allow_tensor_metadata_change) const {
  auto copy = c10::make_intrusive<FakeTensorImpl>(fake_storage(), key_set(), dtype(), mode_);
  copy_tensor_metadata(this, copy.get(), std::move(version_counter), allow_tensor_metadata_change);
  return copy;
}

void FakeTensorImpl::shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) {
  const auto* fake = dynamic_cast<const FakeTensorImpl*>(impl.get());
  TORCH_CHECK(fake != nullptr, "set_data: a fake tensor can't take a real tensor's data; convert it with FakeTensorMode::FromReal first");
  copy_tensor_metadata(fake, this, version_counter(), allow_tensor_metadata_change());
  meta_storage_ = fake->meta_storage_;
  mode_ = fake->mode_;
}

}  // namespace ddpopt
