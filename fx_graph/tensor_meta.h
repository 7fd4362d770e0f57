#ifndef DDPOPT_FX_GRAPH_TENSOR_META_H_
#define DDPOPT_FX_GRAPH_TENSOR_META_H_

// A tensor's description, and tensors that are nothing more: what graph files hold of values, parameters and buffers.
//
//   fx::TensorMeta meta = fx::DescribeTensor(weight);
//   DDPOPT_ASSIGN_OR_RETURN(at::Tensor twin, fx::HollowTensor(meta));    // same shape, strides, dtype, device, storage size; no data
//
// A hollow tensor answers every question about its form, on any device, present or not, and throws c10::Error when something asks for its
// data. Thread-safe.

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "c10/core/ScalarType.h"

namespace ddpopt::fx {

struct TensorMeta {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t storage_offset = 0;  // elements
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  bool requires_grad = false;
  int64_t storage_nbytes = 0;  // of the whole storage, which may be larger than the tensor

  friend bool operator==(const TensorMeta&, const TensorMeta&) = default;
};

// The bytes that a storage needs for these elements; 0 if there are none. Error: it passes 2^63.
absl::StatusOr<int64_t> MinimumStorageBytes(const TensorMeta& meta);

// Errors: Unimplemented for an undefined tensor and for what has no strided storage (sparse, nested, mkldnn, symbolic sizes).
absl::StatusOr<TensorMeta> DescribeTensor(const at::Tensor& tensor);

// Errors: InvalidArgument, naming the value, for a description that no tensor can have: negative or overflowing sizes, as many strides as
// there aren't sizes, a storage that is too small, requires_grad of integers.
absl::StatusOr<at::Tensor> HollowTensor(const TensorMeta& meta);
// A tensor over an existing storage, hollow or not, so that tensors alias; meta.storage_nbytes and meta.device must be that storage's.
absl::StatusOr<at::Tensor> TensorOver(const TensorMeta& meta, const c10::Storage& storage);
bool IsHollow(const at::Tensor& tensor);

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_TENSOR_META_H_
