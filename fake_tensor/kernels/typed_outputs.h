#ifndef DDPOPT_FAKE_TENSOR_KERNELS_TYPED_OUTPUTS_H_
#define DDPOPT_FAKE_TENSOR_KERNELS_TYPED_OUTPUTS_H_

// The out= forms of rules whose real kernels don't run on TensorIterator: out= must have the result's dtype, and is laid out as the kernel
// wants it.
//
//   m.impl("replication_pad2d.out", OutOf<ReplicationPad2d>::Restrided);

#include "ATen/core/Tensor.h"

namespace ddpopt::kernels {

inline void CheckOutDtype(const at::Tensor& result, const at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == result.scalar_type(), "out= must be ", result.scalar_type(), ", not ", out.scalar_type());
}

// Some kernels don't look at out='s dtype where there are no elements.
enum class OutDtype { kAlways, kOfElements };
inline void CheckOutDtype(const at::Tensor& result, const at::Tensor& out, OutDtype check) {
  if (check == OutDtype::kAlways || result.numel() != 0) CheckOutDtype(result, out);
}

// Takes the result's memory format even where the shape is right already.
inline void RestrideOut(const at::Tensor& result, at::Tensor& out, OutDtype check = OutDtype::kAlways) {
  CheckOutDtype(result, out, check);
  out.resize_(result.sizes(), result.suggest_memory_format());
}

// The same for batches, of `dims` dimensions; other tensors keep their strides where the shape is right already.
inline void RestrideBatchedOut(const at::Tensor& result, at::Tensor& out, int64_t dims) {
  if (result.dim() == dims) return RestrideOut(result, out);
  CheckOutDtype(result, out);
  out.resize_(result.sizes());
}

// Keeps the strides where the shape is right already, and must be contiguous then.
inline void ResizeContiguousOut(const at::Tensor& result, at::Tensor& out, OutDtype check = OutDtype::kAlways) {
  CheckOutDtype(result, out, check);
  out.resize_(result.sizes());
  TORCH_CHECK(out.is_contiguous(), "out= must be contiguous");
}

template <auto kRule, OutDtype kCheck = OutDtype::kAlways>
struct OutOf;

template <typename... Args, at::Tensor (*kRule)(Args...), OutDtype kCheck>
struct OutOf<kRule, kCheck> {
  static at::Tensor& Restrided(Args... args, at::Tensor& out) {
    RestrideOut(kRule(args...), out, kCheck);
    return out;
  }
  static at::Tensor& RestridedIfBatched(Args... args, at::Tensor& out) {  // two spatial dimensions
    RestrideBatchedOut(kRule(args...), out, 4);
    return out;
  }
  static at::Tensor& Contiguous(Args... args, at::Tensor& out) {
    ResizeContiguousOut(kRule(args...), out, kCheck);
    return out;
  }
  static at::Tensor& Resized(Args... args, at::Tensor& out) {
    const at::Tensor result = kRule(args...);
    CheckOutDtype(result, out, kCheck);
    out.resize_(result.sizes());
    return out;
  }
};

}  // namespace ddpopt::kernels

#endif  // DDPOPT_FAKE_TENSOR_KERNELS_TYPED_OUTPUTS_H_
