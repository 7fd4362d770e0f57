#ifndef DDPOPT_FAKE_TENSOR_FAKE_TENSOR_IMPL_H_
#define DDPOPT_FAKE_TENSOR_FAKE_TENSOR_IMPL_H_

// The TensorImpl and StorageImpl behind a fake tensor. Private to this package.
//
// A fake's storage claims the fake's device and gives out no data, so that printing, saving or indexing a fake is an error instead of a
// crash. Kernels work on meta tensors made over its meta twin, which is made when first wanted. Fakes that share memory share the storage,
// and with it the twin and what is known of the data; so aliasing and in-place operators come out as on real tensors.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "c10/core/DispatchKeySet.h"
#include "c10/core/Storage.h"
#include "c10/core/StorageImpl.h"
#include "c10/core/TensorImpl.h"
#include "c10/util/intrusive_ptr.h"

namespace ddpopt {

class FakeTensorMode;

// The data of a storage, as far as they are known (constants.h).
struct KnownData {
  c10::Storage real;
  std::size_t begin = 0;  // the byte of the fake's storage that `real` begins with
  // Which bytes hold something, while a tensor is being filled; empty once all do.
  std::vector<bool> filled;
  bool complete() const { return filled.empty(); }
};

class FakeStorageImpl final : public c10::StorageImpl {
 public:
  FakeStorageImpl(std::size_t nbytes, c10::Device device);

  static c10::Storage OfSize(std::size_t nbytes, c10::Device device);
  // A kernels' storage.
  static c10::Storage MetaOfSize(std::size_t nbytes);
  // The storage that claims to be where `meta` is the kernels'.
  static c10::Storage Over(c10::Storage meta, c10::Device device);
  // Null for others' storages.
  static FakeStorageImpl* Of(const c10::Storage& storage) { return dynamic_cast<FakeStorageImpl*>(storage.unsafeGetStorageImpl()); }

  const c10::Storage& meta();
  bool has_meta() const { return static_cast<bool>(meta_); }
  // Of which mode's tensors it is. Only to be compared: a storage may outlive them all, and their mode.
  const FakeTensorMode* mode() const { return mode_; }
  void set_mode(const FakeTensorMode* mode) { mode_ = mode; }
  // After kernels may have resized the twin; whether they did.
  bool TakeSizeOfMeta();

  const KnownData* known() const { return known_.get(); }
  KnownData* mutable_known() { return known_.get(); }
  void set_known(std::unique_ptr<KnownData> known) { known_ = std::move(known); }
  void Forget() { known_.reset(); }

 private:
  c10::Storage meta_;
  const FakeTensorMode* mode_ = nullptr;
  std::unique_ptr<KnownData> known_;
};

class FakeTensorImpl final : public c10::TensorImpl {
 public:
  // A tensor of its own, over a FakeStorageImpl.
  FakeTensorImpl(c10::Storage storage, c10::Device device, caffe2::TypeMeta dtype, std::shared_ptr<FakeTensorMode> mode);
  // A view: takes its base's keys, which under inference mode are not those of a new tensor.
  FakeTensorImpl(c10::Storage storage, c10::Device device, c10::DispatchKeySet base_keys, caffe2::TypeMeta dtype,
                 std::shared_ptr<FakeTensorMode> mode);

  // What a tensor over another's memory is: an inference tensor if that one is; whatever tensors are that are made now (view(dtype));
  // an inference tensor that counts writes, which are allowed therefore (detach() of one outside of inference mode).
  enum class ViewKind : uint8_t { kAsBase, kAsNew, kCounting };
  static ViewKind KindOfView(FakeTensorImpl& base, c10::TensorImpl& view);
  // A tensor over this one's memory, whose geometry is still to be set.
  c10::intrusive_ptr<FakeTensorImpl> View(ViewKind kind, caffe2::TypeMeta dtype) const;

  // Null unless the tensor is a fake. The Fake key alone doesn't tell: set_data gives it to real tensors too.
  static FakeTensorImpl* Of(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Fake)) return nullptr;
    return dynamic_cast<FakeTensorImpl*>(tensor.unsafeGetTensorImpl());
  }

  const std::shared_ptr<FakeTensorMode>& mode() const { return mode_; }
  // Whether an operator made it as a view of a real tensor, which was converted for it. To autograd the real tensor is its base: a write
  // would change that one's version and history. Views and copies of it are the same.
  bool views_real() const { return views_real_; }
  void set_views_real() { views_real_ = true; }
  const c10::Storage& fake_storage() const { return storage_; }
  FakeStorageImpl* fake_storage_impl() const { return static_cast<FakeStorageImpl*>(storage_.unsafeGetStorageImpl()); }
  // A meta tensor over the meta storage, seen as this tensor sees it.
  at::Tensor MetaAlias() const { return Alias(fake_storage_impl()->meta(), c10::DispatchKey::Meta); }
  // A tensor over `storage`, seen as this tensor sees its own.
  at::Tensor Alias(const c10::Storage& storage, c10::DispatchKey key) const;
  // Takes sizes, strides, offset, dtype and storage from what a kernel made of MetaAlias(); whether anything changed.
  bool CopyBack(const at::Tensor& meta, const c10::Storage& fake_storage);
  // Takes a real storage of the same size and device: from then on this is an ordinary tensor, the same object, and Of() gives null.
  void BecomeReal(const c10::Storage& real);
  // Counts a change as an operator in place does: not of an inference tensor in inference mode.
  void CountWrite();
  // Sizes, strides, offset, number-likeness, lazy conjugation and negation of another tensor.
  void CopyGeometry(const c10::TensorImpl& from);

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version_counter,
                                                              bool allow_tensor_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                              bool allow_tensor_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) override;
  // The mode's memo points here weakly, which keeps the object from being destroyed: the mode must be let go before.
  void release_resources() override;

 private:
  const char* tensorimpl_type_name() const override { return "ddpopt::FakeTensorImpl"; }

  std::shared_ptr<FakeTensorMode> mode_;
  bool views_real_ = false;
};

}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_FAKE_TENSOR_IMPL_H_
