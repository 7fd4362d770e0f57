#ifndef DDPOPT_FAKE_TENSOR_CONVERTER_H_
#define DDPOPT_FAKE_TENSOR_CONVERTER_H_

// Fakes of real tensors, and the memory of which real tensor has which. Private to this package.
//
// Nothing is kept alive: entries hold weak pointers, which also keep an address from being used again while it is a key.

#include <cstddef>

#include "ATen/core/Tensor.h"
#include "absl/container/flat_hash_map.h"
#include "c10/core/Storage.h"
#include "c10/core/StorageImpl.h"
#include "c10/core/TensorImpl.h"
#include "c10/util/intrusive_ptr.h"

namespace ddpopt {

class FakeTensorMode;

class Converter {
 public:
  // See FakeTensorMode::FromReal. `mode` owns the fakes.
  at::Tensor FromReal(FakeTensorMode& mode, const at::Tensor& real);
  // A fake of its own with the real tensor's geometry, that nothing remembers.
  static at::Tensor Fresh(FakeTensorMode& mode, const at::Tensor& real);

 private:
  struct TensorEntry {
    c10::weak_intrusive_ptr<c10::TensorImpl> real;
    c10::weak_intrusive_ptr<c10::TensorImpl> fake;
  };
  struct StorageEntry {
    c10::weak_intrusive_ptr<c10::StorageImpl> real;
    c10::weak_intrusive_ptr<c10::StorageImpl> fake;
  };

  void Sweep();
  c10::Storage StorageOf(const at::Tensor& real);
  // Whether the fake lies in the storage that stands for the real one's.
  bool StoragesAgree(const at::Tensor& fake, const at::Tensor& real) const;
  at::Tensor Make(FakeTensorMode& mode, const at::Tensor& real);

  absl::flat_hash_map<const c10::TensorImpl*, TensorEntry> tensors_;
  absl::flat_hash_map<const c10::StorageImpl*, StorageEntry> storages_;
  std::size_t sweep_at_ = 256;
};

}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_CONVERTER_H_
