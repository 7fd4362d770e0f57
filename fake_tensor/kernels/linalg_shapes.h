#ifndef DDPOPT_FAKE_TENSOR_KERNELS_LINALG_SHAPES_H_
#define DDPOPT_FAKE_TENSOR_KERNELS_LINALG_SHAPES_H_

// Shared by the rules of linear algebra: matrices in column-major order, LAPACK's dtypes, and out= tensors, which LAPACK writes directly
// where their layout allows it.

#include <initializer_list>
#include <vector>

#include "ATen/MemoryOverlap.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/empty.h"
#include "c10/core/ScalarType.h"
#include "c10/util/Exception.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {

// A batch of matrices, each column-major.
inline at::Tensor ColumnMajor(at::IntArrayRef sizes, const at::TensorOptions& options) {
  std::vector<int64_t> transposed = sizes.vec();
  std::swap(transposed[transposed.size() - 2], transposed[transposed.size() - 1]);
  return Empty(transposed, options).transpose(-2, -1);
}

inline std::vector<int64_t> BatchSizes(const at::Tensor& matrices) { return matrices.sizes().slice(0, matrices.dim() - 2).vec(); }

inline std::vector<int64_t> Joined(at::IntArrayRef batch, std::initializer_list<int64_t> rest) {
  std::vector<int64_t> sizes = batch.vec();
  sizes.insert(sizes.end(), rest);
  return sizes;
}

inline void CheckMatrices(const at::Tensor& tensor, const char* op) {
  TORCH_CHECK(tensor.dim() >= 2, op, ": at least 2 dimensions are wanted, not ", tensor.sizes());
}

inline void CheckSquare(const at::Tensor& tensor, const char* op) {
  CheckMatrices(tensor, op);
  TORCH_CHECK(tensor.size(-1) == tensor.size(-2), op, ": square matrices are wanted, not ", tensor.sizes());
}

inline void CheckFloatingOrComplex(const at::Tensor& tensor, const char* op) {
  TORCH_CHECK(tensor.is_floating_point() || tensor.is_complex(), op, ": floating-point or complex tensors are wanted, not ",
              tensor.scalar_type());
}

inline void CheckLapackDtype(const at::Tensor& tensor, const char* op) {
  const c10::ScalarType dtype = tensor.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kDouble || dtype == at::kComplexFloat || dtype == at::kComplexDouble, op,
              ": there is no kernel for ", dtype);
}

inline void CheckSameDtype(const at::Tensor& a, const at::Tensor& b, const char* op) {
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), op, ": tensors of one dtype are wanted, not ", a.scalar_type(), " and ", b.scalar_type());
}

// An out= tensor and what is to be in it.
struct LinalgOut {
  at::Tensor tensor;
  std::vector<int64_t> sizes;
  c10::ScalarType dtype;
  bool column_major = false;
};

// LAPACK writes into the given tensors if all are empty or of the wanted shape, dtype and order (empty ones then get this order). Otherwise
// results are copied into them, resized to contiguous ones where the shape is another.
void FillLinalgOuts(std::initializer_list<LinalgOut> outs, const char* op);

}  // namespace ddpopt::kernels

#endif  // DDPOPT_FAKE_TENSOR_KERNELS_LINALG_SHAPES_H_
