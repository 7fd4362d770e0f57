#include "fake_tensor/fake_tensor_impl.h"

#include <optional>

#include "base/dispatch_keys.h"
#include "c10/core/Allocator.h"
#include "c10/core/InferenceMode.h"
#include "c10/core/TensorOptions.h"
#include "c10/util/Exception.h"
#include "fake_tensor/fake_errors.h"
#include "fake_tensor/fake_tensor_mode.h"

namespace ddpopt {
namespace {

static_assert(kPostAutogradKey == c10::DispatchKey::Fake);

constexpr char kNoData[] = "this is a fake tensor (ddpopt::FakeTensorMode): it has a shape but no data to read, write, print or save";

c10::DispatchKeySet KeysFor(c10::Device device) {
  return c10::DispatchKeySet({c10::computeDispatchKey(std::nullopt, c10::kStrided, device), kPostAutogradKey});
}

// Fakes grow by operators, which change the meta twin. Where LibTorch resizes a tensor itself, it asks here first.
class NoAllocator final : public c10::Allocator {
 public:
  at::DataPtr allocate(std::size_t bytes) override {
    TORCH_CHECK(bytes == 0,
                "a fake tensor can't be resized but by an operator: an out= tensor with lazy conjugation or negation must have "
                "the result's shape, or be resolved before (resolve_conj(), resolve_neg())");
    return {nullptr, c10::Device(c10::kMeta)};
  }
  void copy_data(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) const override {}
};

c10::Allocator* TheAllocator() {
  static NoAllocator& allocator = *new NoAllocator();
  return &allocator;
}

c10::SymInt Bytes(std::size_t nbytes) { return c10::SymInt(static_cast<int64_t>(nbytes)); }

}  // namespace

FakeStorageImpl::FakeStorageImpl(std::size_t nbytes, c10::Device device)
    : c10::StorageImpl(use_byte_size_t(), Bytes(nbytes), at::DataPtr(nullptr, device), TheAllocator(), /*resizable=*/true) {
  release_data_and_set_meta_custom_data_ptr_error_msg_(kNoData);
}

c10::Storage FakeStorageImpl::OfSize(std::size_t nbytes, c10::Device device) {
  return c10::Storage(c10::make_intrusive<FakeStorageImpl>(nbytes, device));
}

c10::Storage FakeStorageImpl::Over(c10::Storage meta, c10::Device device) {
  auto impl = c10::make_intrusive<FakeStorageImpl>(meta.nbytes(), device);
  impl->meta_ = std::move(meta);
  return c10::Storage(std::move(impl));
}

c10::Storage FakeStorageImpl::MetaOfSize(std::size_t nbytes) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(use_byte_size_t(), Bytes(nbytes), at::DataPtr(nullptr, c10::Device(c10::kMeta)),
                                                            c10::GetAllocator(c10::kMeta), /*resizable=*/true));
}

const c10::Storage& FakeStorageImpl::meta() {
  if (!meta_) {
    meta_ = MetaOfSize(nbytes());
    if (!resizable()) meta_.unsafeGetStorageImpl()->set_resizable(false);
  }
  return meta_;
}

bool FakeStorageImpl::TakeSizeOfMeta() {
  if (!meta_ || meta_.nbytes() == nbytes()) return false;
  set_nbytes(meta_.nbytes());
  Forget();
  return true;
}

FakeTensorImpl::FakeTensorImpl(c10::Storage storage, c10::Device device, caffe2::TypeMeta dtype, std::shared_ptr<FakeTensorMode> mode)
    : c10::TensorImpl(std::move(storage), KeysFor(device), dtype), mode_(std::move(mode)) {
  device_opt_ = device;
  if (mode_ != nullptr) fake_storage_impl()->set_mode(mode_.get());  // (null: a copy of one that became real)
}

FakeTensorImpl::FakeTensorImpl(c10::Storage storage, c10::Device device, c10::DispatchKeySet base_keys, caffe2::TypeMeta dtype,
                               std::shared_ptr<FakeTensorMode> mode)
    : c10::TensorImpl(c10::TensorImpl::VIEW, std::move(storage), base_keys, dtype), mode_(std::move(mode)) {
  device_opt_ = device;
  if (mode_ != nullptr) fake_storage_impl()->set_mode(mode_.get());  // (null: a copy of one that became real)
}

FakeTensorImpl::ViewKind FakeTensorImpl::KindOfView(FakeTensorImpl& base, c10::TensorImpl& view) {
  if (base.is_inference() != view.is_inference()) return ViewKind::kAsNew;
  return base.is_inference() && view.version_counter().enabled() ? ViewKind::kCounting : ViewKind::kAsBase;
}

c10::intrusive_ptr<FakeTensorImpl> FakeTensorImpl::View(ViewKind kind, caffe2::TypeMeta dtype) const {
  auto view = kind == ViewKind::kAsBase ? c10::make_intrusive<FakeTensorImpl>(storage_, *device_opt_, key_set(), dtype, mode_)
                                        : c10::make_intrusive<FakeTensorImpl>(storage_, *device_opt_, dtype, mode_);
  if (kind == ViewKind::kCounting) view->key_set_ = key_set();
  view->views_real_ = views_real_;
  return view;
}

at::Tensor FakeTensorImpl::Alias(const c10::Storage& storage, c10::DispatchKey key) const {
  auto alias = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(storage), c10::DispatchKeySet(key), dtype());
  alias->set_sizes_and_strides(sizes(), strides(), storage_offset());
  if (is_wrapped_number()) alias->set_wrapped_number(true);
  if (is_conj()) alias->_set_conj(true);
  if (is_neg()) alias->_set_neg(true);
  return at::Tensor(std::move(alias));
}

bool FakeTensorImpl::CopyBack(const at::Tensor& meta, const c10::Storage& fake_storage) {
  bool changed = false;
  if (storage_.unsafeGetStorageImpl() != fake_storage.unsafeGetStorageImpl() || meta.dtype() != dtype()) {
    const c10::Device claimed_device = *device_opt_;
    set_storage_and_dtype(fake_storage, meta.dtype());
    device_opt_ = claimed_device;
    changed = true;
  }
  if (is_conj() != meta.is_conj() || is_neg() != meta.is_neg()) {
    _set_conj(meta.is_conj());
    _set_neg(meta.is_neg());
    changed = true;
  }
  if (sizes() != meta.sizes() || strides() != meta.strides() || storage_offset() != meta.storage_offset()) {
    set_sizes_and_strides(meta.sizes(), meta.strides(), meta.storage_offset());
    changed = true;
  }
  return changed;
}

void FakeTensorImpl::CountWrite() {
  if (!is_inference() || !c10::InferenceMode::is_enabled()) bump_version();
}

void FakeTensorImpl::CopyGeometry(const c10::TensorImpl& from) {
  set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
  if (from.is_wrapped_number()) set_wrapped_number(true);
  _set_conj(from.is_conj());
  _set_neg(from.is_neg());
}

c10::intrusive_ptr<c10::TensorImpl> FakeTensorImpl::shallow_copy_and_detach(const c10::VariableVersion& version_counter,
                                                                            bool allow_tensor_metadata_change) const {
  auto copy = c10::make_intrusive<FakeTensorImpl>(storage_, *device_opt_, dtype(), mode_);
  copy_tensor_metadata(this, copy.get(), version_counter, allow_tensor_metadata_change);
  copy->views_real_ = views_real_;
  return copy;
}

c10::intrusive_ptr<c10::TensorImpl> FakeTensorImpl::shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                                            bool allow_tensor_metadata_change) const {
  auto copy = c10::make_intrusive<FakeTensorImpl>(storage_, *device_opt_, dtype(), mode_);
  copy_tensor_metadata(this, copy.get(), std::move(version_counter), allow_tensor_metadata_change);
  copy->views_real_ = views_real_;
  return copy;
}

void FakeTensorImpl::BecomeReal(const c10::Storage& real) {
  storage_ = real;
  key_set_ = key_set_.remove(kPostAutogradKey);
  mode_.reset();
}

void FakeTensorImpl::release_resources() {
  c10::TensorImpl::release_resources();
  mode_.reset();
}

void FakeTensorImpl::shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) {
  if (!key_set().has(kPostAutogradKey) && !impl->key_set().has(kPostAutogradKey)) {
    copy_tensor_metadata(impl.get(), this, version_counter(), allow_tensor_metadata_change());
    return;
  }
  const auto* fake = impl->key_set().has(kPostAutogradKey) ? dynamic_cast<const FakeTensorImpl*>(impl.get()) : nullptr;
  TORCH_CHECK(fake != nullptr, "set_data: a fake tensor can't take a real tensor's data; convert it with FakeTensorMode::FromReal first");
  if (mode_ != nullptr && fake->mode_ != mode_) {
    fake_errors_internal::Throw<NotOurFake>("set_data: a fake tensor of ", mode_->Description(),
                                            " can't take the data of one of another mode, ", fake->mode_->Description());
  }
  copy_tensor_metadata(fake, this, version_counter(), allow_tensor_metadata_change());
  mode_ = fake->mode_;
  views_real_ = fake->views_real_;
}

}  // namespace ddpopt
