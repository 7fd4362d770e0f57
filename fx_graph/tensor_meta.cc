#include "fx_graph/tensor_meta.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "c10/core/DispatchKeySet.h"
#include "c10/core/Storage.h"
#include "c10/core/TensorImpl.h"
#include "c10/core/impl/LocalDispatchKeySet.h"

namespace ddpopt::fx {
namespace {

// Marks our storages: the context of their empty data pointer.
char hollow_mark;

void KeepMark(void*) {}

absl::Status Check(const TensorMeta& meta) {
  if (meta.sizes.size() != meta.strides.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tensor of ", meta.sizes.size(), " sizes can't have ", meta.strides.size(), " strides"));
  }
  for (const int64_t size : meta.sizes) {
    if (size < 0) return absl::InvalidArgumentError(absl::StrCat("a tensor can't have the size ", size));
  }
  for (const int64_t stride : meta.strides) {
    if (stride < 0) return absl::InvalidArgumentError(absl::StrCat("a tensor can't have the stride ", stride));
  }
  if (meta.storage_offset < 0)
    return absl::InvalidArgumentError(absl::StrCat("a tensor can't have the storage offset ", meta.storage_offset));
  if (meta.dtype == c10::ScalarType::Undefined || meta.dtype >= c10::ScalarType::NumOptions) {
    return absl::InvalidArgumentError(absl::StrCat("a tensor can't have the dtype ", static_cast<int>(meta.dtype)));
  }
  int64_t numel = 1;
  for (const int64_t size : meta.sizes) {
    if (__builtin_mul_overflow(numel, size == 0 ? 1 : size, &numel)) {
      return absl::InvalidArgumentError(absl::StrCat("the sizes [", absl::StrJoin(meta.sizes, ", "), "] pass 2^63 elements"));
    }
  }
  DDPOPT_ASSIGN_OR_RETURN(const int64_t needed, MinimumStorageBytes(meta));
  if (meta.storage_nbytes < needed) {
    return absl::InvalidArgumentError(absl::StrCat("a storage of ", meta.storage_nbytes, " bytes is too small for sizes [",
                                                   absl::StrJoin(meta.sizes, ", "), "], strides [", absl::StrJoin(meta.strides, ", "),
                                                   "], offset ", meta.storage_offset, ", which need ", needed));
  }
  if (meta.requires_grad && !c10::isFloatingType(meta.dtype) && !c10::isComplexType(meta.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("a tensor of dtype ", c10::toString(meta.dtype), " can't require a gradient"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> MinimumStorageBytes(const TensorMeta& meta) {
  int64_t last = meta.storage_offset;  // the index of the last element
  for (std::size_t i = 0; i < meta.sizes.size(); ++i) {
    if (meta.sizes[i] == 0) return 0;
    int64_t reach;
    if (__builtin_mul_overflow(meta.sizes[i] - 1, meta.strides[i], &reach) || __builtin_add_overflow(last, reach, &last)) {
      return absl::InvalidArgumentError(absl::StrCat("sizes [", absl::StrJoin(meta.sizes, ", "), "] with strides [",
                                                     absl::StrJoin(meta.strides, ", "), "] reach past 2^63 elements"));
    }
  }
  int64_t bytes;
  if (__builtin_add_overflow(last, 1, &bytes) ||
      __builtin_mul_overflow(bytes, static_cast<int64_t>(c10::elementSize(meta.dtype)), &bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("a storage for ", last, " elements passes 2^63 bytes"));
  }
  return bytes;
}

absl::StatusOr<TensorMeta> DescribeTensor(const at::Tensor& tensor) {
  if (!tensor.defined()) return absl::UnimplementedError("an undefined tensor has no description");
  if (tensor.layout() != c10::Layout::Strided || !tensor.has_storage() || tensor.is_nested()) {
    return absl::UnimplementedError(absl::StrCat("a tensor without strided storage (", tensor.toString(), ") has no description"));
  }
  return CatchAsStatus("describing a tensor", [&] {
    TensorMeta meta;
    meta.dtype = tensor.scalar_type();
    meta.sizes = tensor.sizes().vec();
    meta.strides = tensor.strides().vec();
    meta.storage_offset = tensor.storage_offset();
    meta.device = tensor.device();
    meta.requires_grad = tensor.requires_grad();
    meta.storage_nbytes = static_cast<int64_t>(tensor.storage().nbytes());
    return meta;
  });
}

absl::StatusOr<at::Tensor> HollowTensor(const TensorMeta& meta) {
  DDPOPT_RETURN_IF_ERROR(Check(meta));
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), c10::SymInt(meta.storage_nbytes),
                                                       c10::DataPtr(nullptr, &hollow_mark, &KeepMark, meta.device),
                                                       /*allocator=*/nullptr, /*resizable=*/false);
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "this tensor was read from a file that describes it without its data (a hollow tensor); only its form is known");
  return TensorOver(meta, c10::Storage(std::move(storage)));
}

absl::StatusOr<at::Tensor> TensorOver(const TensorMeta& meta, const c10::Storage& storage) {
  DDPOPT_RETURN_IF_ERROR(Check(meta));
  if (static_cast<int64_t>(storage.nbytes()) != meta.storage_nbytes || storage.device() != meta.device) {
    return absl::InvalidArgumentError(absl::StrCat("a tensor of a storage of ", meta.storage_nbytes, " bytes on ", meta.device.str(),
                                                   " can't share one of ", storage.nbytes(), " bytes on ", storage.device().str()));
  }
  return CatchAsStatus("making a tensor from its description", [&] {
    at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(storage), c10::DispatchKeySet(c10::computeDispatchKey(meta.dtype, c10::Layout::Strided, meta.device)),
        c10::scalarTypeToTypeMeta(meta.dtype));
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes, meta.strides, meta.storage_offset);
    if (meta.requires_grad) tensor.set_requires_grad(true);
    return tensor;
  });
}

bool IsHollow(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  return storage->_mutable_data_ptr_no_checks().get_context() == &hollow_mark;
}

}  // namespace ddpopt::fx
