// Distances between rows, within one matrix or between two, and their gradients.

#include <algorithm>
#include <vector>

#include "ATen/ExpandUtils.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/zeros_like.h"
#include "c10/util/Exception.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/linalg_shapes.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;

int64_t Product(at::IntArrayRef sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

void CheckFloatOrDouble(const Tensor& tensor, const char* op) {
  TORCH_CHECK(tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble, op, ": there is no kernel for ",
              tensor.scalar_type());
}

Tensor EuclideanDist(const Tensor& x1, const Tensor& x2) {
  // One product of rows with their squares beside them.
  const Tensor squares1 = x1.pow(2).sum(-1, /*keepdim=*/true), squares2 = x2.pow(2).sum(-1, /*keepdim=*/true);
  const Tensor rows1 = at::cat({x1.mul(-2), squares1, EmptyContiguousLike(squares1)}, -1);
  const Tensor rows2 = at::cat({x2, EmptyContiguousLike(squares2), squares2}, -1);
  return rows1.matmul(rows2.mT()).clamp_min_(0).sqrt_();
}

Tensor CdistForward(const Tensor& x1, const Tensor& x2, double p, std::optional<int64_t> compute_mode) {
  CheckMatrices(x1, "cdist");
  CheckMatrices(x2, "cdist");
  TORCH_CHECK(x1.size(-1) == x2.size(-1), "cdist: both must have the same number of columns, not ", x1.size(-1), " and ", x2.size(-1));
  TORCH_CHECK(x1.is_floating_point() && x2.is_floating_point(), "cdist: floating-point tensors are wanted, not ", x1.scalar_type(), " and ",
              x2.scalar_type());
  TORCH_CHECK(p >= 0, "cdist: p must not be negative");
  const int64_t mode = compute_mode.value_or(0);
  TORCH_CHECK(mode >= 0 && mode <= 2, "cdist: compute_mode must be 0, 1 or 2, not ", mode);
  const int64_t rows1 = x1.size(-2);
  const int64_t rows2 = x2.size(-2);
  const std::vector<int64_t> batch = at::infer_size(BatchSizes(x1), BatchSizes(x2));
  const std::vector<int64_t> sizes = Joined(batch, {rows1, rows2});
  if (Product(sizes) == 0 || x1.size(-1) == 0) return Empty(sizes, x1.options());
  CheckSameDtype(x1, x2, "cdist");
  if (p == 2 && (mode == 1 || (mode == 0 && (rows1 > 25 || rows2 > 25)))) {
    return Empty(sizes, x1.options());  // by matrix multiplication, which has kernels for other dtypes too
  }
  CheckFloatOrDouble(x1, "cdist");
  return Empty(sizes, x1.options());
}

Tensor CdistBackward(const Tensor& grad, const Tensor& x1, const Tensor& x2, double /*p*/, const Tensor& cdist) {
  CheckMatrices(x1, "_cdist_backward");
  CheckMatrices(x2, "_cdist_backward");
  const std::vector<int64_t> batch = at::infer_size(BatchSizes(x1), BatchSizes(x2));
  if (x1.size(-2) == 0 || x2.size(-2) == 0 || x1.size(-1) == 0 || Product(batch) == 0) return at::zeros_like(x1);
  CheckFloatOrDouble(x1, "_cdist_backward");
  for (const Tensor* other : {&grad, &x2, &cdist}) CheckSameDtype(x1, *other, "_cdist_backward");
  return Empty(Joined(batch, {x1.size(-2), x1.size(-1)}), x1.options());
}

Tensor PdistForward(const Tensor& self, double /*p*/) {
  TORCH_CHECK(self.is_contiguous(), "_pdist_forward: a contiguous tensor is wanted");
  const int64_t rows = self.size(0);
  if (rows <= 1) return Empty({0}, self.options());
  if (self.size(1) != 0) CheckFloatOrDouble(self, "_pdist_forward");
  return Empty({rows * (rows - 1) / 2}, self.options());
}

Tensor PdistBackward(const Tensor& grad, const Tensor& self, double /*p*/, const Tensor& pdist) {
  TORCH_CHECK(self.is_contiguous() && pdist.is_contiguous(), "_pdist_backward: contiguous tensors are wanted");
  CheckFloatOrDouble(self, "_pdist_backward");
  CheckSameDtype(self, grad, "_pdist_backward");
  CheckSameDtype(self, pdist, "_pdist_backward");
  return EmptyContiguousLike(self);
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("_euclidean_dist", EuclideanDist);
  m.impl("_cdist_forward", CdistForward);
  m.impl("_cdist_backward", CdistBackward);
  m.impl("_pdist_forward", PdistForward);
  m.impl("_pdist_backward", PdistBackward);
}

}  // namespace
}  // namespace ddpopt::kernels
