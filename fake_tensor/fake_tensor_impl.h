#ifndef DDPOPT_FAKE_TENSOR_FAKE_TENSOR_IMPL_H_
#define DDPOPT_FAKE_TENSOR_FAKE_TENSOR_IMPL_H_

// The TensorImpl behind a fake tensor. Private to this package.
//
// A fake has two storages. The one that others see claims the fake's device and refuses to give out data, so that printing, saving or
// indexing a fake is an error instead of a crash. The other one is a meta storage; kernels work on meta tensors made over it. Fakes that
// share memory share both, which makes aliasing and in-place operators come out as on real tensors.

#include <memory>
#include <utility>

#include "ATen/core/Tensor.h"
#include "c10/core/DispatchKeySet.h"
#include "c10/core/Storage.h"
#include "c10/core/TensorImpl.h"
#include "c10/util/intrusive_ptr.h"

namespace ddpopt {

class FakeTensorMode;

struct FakeStorage {
  c10::Storage claimed;  // the fake's own: right device and size, no data
  c10::Storage meta;     // the kernels'

  // The claimed twin of a meta storage.
  static FakeStorage Over(c10::Storage meta, c10::Device device);
  static FakeStorage OfSize(std::size_t nbytes, c10::Device device);
};

class FakeTensorImpl final : public c10::TensorImpl {
 public:
  // A tensor of its own.
  FakeTensorImpl(FakeStorage storage, c10::Device device, caffe2::TypeMeta dtype, std::shared_ptr<FakeTensorMode> mode);
  // A view: takes its base's keys, which under inference mode are not those of a new tensor.
  FakeTensorImpl(FakeStorage storage, c10::DispatchKeySet base_keys, caffe2::TypeMeta dtype, std::shared_ptr<FakeTensorMode> mode);

  // Null unless the tensor is a fake. The Fake key alone doesn't tell: set_data gives it to real tensors too.
  static FakeTensorImpl* Of(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Fake)) return nullptr;
    return dynamic_cast<FakeTensorImpl*>(tensor.unsafeGetTensorImpl());
  }

  const std::shared_ptr<FakeTensorMode>& mode() const { return mode_; }
  const c10::Storage& meta_storage() const { return meta_storage_; }
  FakeStorage fake_storage() const { return {storage_, meta_storage_}; }
  // A meta tensor over the meta storage, seen as this tensor sees it.
  at::Tensor MetaAlias() const;
  // Takes sizes, strides, offset, dtype and storage from what a kernel made of MetaAlias().
  void CopyBack(const at::Tensor& meta, FakeStorage storage);
  // Sizes, strides, offset and number-likeness of another tensor.
  void CopyGeometry(const c10::TensorImpl& from);

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version_counter,
                                                              bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                              bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) override;

 private:
  const char* tensorimpl_type_name() const override { return "ddpopt::FakeTensorImpl"; }

  c10::Storage meta_storage_;
  std::shared_ptr<FakeTensorMode> mode_;
};

}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_FAKE_TENSOR_IMPL_H_
