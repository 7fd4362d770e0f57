// Matrix factorizations and functions of matrices by LAPACK, whose results are column-major. Those that are structured (LU, QR, Cholesky,
// SVD, symmetric eigenvalues) have their Meta kernels in LibTorch.

#include <algorithm>
#include <tuple>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/exp.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/linalg_shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;

std::vector<int64_t> ReflectorSizes(const Tensor& input) {
  return Joined(BatchSizes(input), {std::min(input.size(-2), input.size(-1))});
}

std::tuple<Tensor, Tensor> Geqrf(const Tensor& input) {
  CheckMatrices(input, "geqrf");
  CheckLapackDtype(input, "geqrf");
  return {ColumnMajor(input.sizes(), input.options()), Empty(ReflectorSizes(input), input.options())};
}
std::tuple<Tensor&, Tensor&> GeqrfOut(const Tensor& input, Tensor& a, Tensor& tau) {
  CheckMatrices(input, "geqrf");
  CheckLapackDtype(input, "geqrf");
  FillLinalgOuts({{a, input.sizes().vec(), input.scalar_type(), true}, {tau, ReflectorSizes(input), input.scalar_type()}}, "geqrf");
  return {a, tau};
}

void CheckReflectors(const Tensor& input, const Tensor& tau, const char* op) {
  TORCH_CHECK(input.size(-1) >= tau.size(-1), op, ": ", tau.size(-1), " reflectors (tau) for ", input.size(-1), " columns");
  TORCH_CHECK(input.dim() - tau.dim() == 1 && BatchSizes(input) == tau.sizes().slice(0, tau.dim() - 1).vec(), op,
              ": tau must have the batch dimensions of input, not ", tau.sizes(), " for ", input.sizes());
  CheckSameDtype(input, tau, op);
}

void CheckHouseholder(const Tensor& input, const Tensor& tau) {
  constexpr char kOp[] = "linalg_householder_product";
  CheckMatrices(input, kOp);
  TORCH_CHECK(input.size(-2) >= input.size(-1), kOp, ": matrices must not have more columns than rows: ", input.sizes());
  CheckReflectors(input, tau, kOp);
  if (input.numel() != 0) CheckLapackDtype(input, kOp);
}
Tensor HouseholderProduct(const Tensor& input, const Tensor& tau) {
  CheckHouseholder(input, tau);
  return ColumnMajor(input.sizes(), input.options());
}
Tensor& HouseholderProductOut(const Tensor& input, const Tensor& tau, Tensor& out) {
  CheckHouseholder(input, tau);
  FillLinalgOuts({{out, input.sizes().vec(), input.scalar_type(), true}}, "linalg_householder_product");
  return out;
}

void CheckOrmqr(const Tensor& input, const Tensor& tau, const Tensor& other, bool left) {
  CheckMatrices(input, "ormqr");
  CheckMatrices(other, "ormqr");
  const int64_t length = other.size(left ? -2 : -1);
  TORCH_CHECK(length >= tau.size(-1) && length == input.size(-2) && tau.size(-1) == std::min(length, input.size(-1)), "ormqr: ",
              other.sizes(), " can't be multiplied by the Q of ", input.sizes(), " and ", tau.size(-1), " reflectors (tau) from the ",
              (left ? "left" : "right"));
  CheckReflectors(input, tau, "ormqr");
  TORCH_CHECK(input.dim() == other.dim() && BatchSizes(input) == BatchSizes(other), "ormqr: input and other differ in batch dimensions: ",
              input.sizes(), " and ", other.sizes());
  CheckSameDtype(input, other, "ormqr");
  CheckLapackDtype(input, "ormqr");
}
Tensor Ormqr(const Tensor& input, const Tensor& tau, const Tensor& other, bool left, bool /*transpose*/) {
  CheckOrmqr(input, tau, other, left);
  return ColumnMajor(other.sizes(), input.options());
}
Tensor& OrmqrOut(const Tensor& input, const Tensor& tau, const Tensor& other, bool left, bool /*transpose*/, Tensor& out) {
  CheckOrmqr(input, tau, other, left);
  CheckSameDtype(input, out, "ormqr");
  FillLinalgOuts({{out, other.sizes().vec(), input.scalar_type(), true}}, "ormqr");
  return out;
}

void CheckCholeskyInverse(const Tensor& input) {
  CheckSquare(input, "cholesky_inverse");
  if (input.numel() != 0) CheckLapackDtype(input, "cholesky_inverse");
}
Tensor CholeskyInverse(const Tensor& input, bool /*upper*/) {
  CheckCholeskyInverse(input);
  return ColumnMajor(input.sizes(), input.options());
}
Tensor& CholeskyInverseOut(const Tensor& input, bool /*upper*/, Tensor& out) {
  CheckCholeskyInverse(input);
  FillLinalgOuts({{out, input.sizes().vec(), input.scalar_type(), true}}, "cholesky_inverse");
  return out;
}

Tensor CholeskySolveHelper(const Tensor& self, const Tensor& a, bool /*upper*/) {
  CheckSameDtype(self, a, "cholesky_solve");
  CheckLapackDtype(self, "cholesky_solve");
  return ColumnMajor(self.sizes(), self.options());
}

// Eigenvalues are complex, whatever the input is.
struct Eigen {
  c10::ScalarType dtype;
  std::vector<int64_t> values, vectors;
};
Eigen EigenOf(const Tensor& input, const char* op) {
  CheckSquare(input, op);
  CheckLapackDtype(input, op);
  return {c10::toComplexType(input.scalar_type()), Joined(BatchSizes(input), {input.size(-1)}), input.sizes().vec()};
}
std::tuple<Tensor, Tensor> Eig(const Tensor& input) {
  const Eigen eigen = EigenOf(input, "linalg_eig");
  const at::TensorOptions options = input.options().dtype(eigen.dtype);
  return {Empty(eigen.values, options), ColumnMajor(eigen.vectors, options)};
}
std::tuple<Tensor&, Tensor&> EigOut(const Tensor& input, Tensor& values, Tensor& vectors) {
  const Eigen eigen = EigenOf(input, "linalg_eig");
  // Each is copied or written directly for itself.
  FillLinalgOuts({{values, eigen.values, eigen.dtype}}, "linalg_eig");
  FillLinalgOuts({{vectors, eigen.vectors, eigen.dtype, true}}, "linalg_eig");
  return {values, vectors};
}
Tensor Eigvals(const Tensor& input) {
  const Eigen eigen = EigenOf(input, "linalg_eigvals");
  return Empty(eigen.values, input.options().dtype(eigen.dtype));
}
Tensor& EigvalsOut(const Tensor& input, Tensor& out) {
  const Eigen eigen = EigenOf(input, "linalg_eigvals");
  FillLinalgOuts({{out, eigen.values, eigen.dtype}}, "linalg_eigvals");
  return out;
}

Tensor MatrixExp(const Tensor& self) {
  CheckSquare(self, "linalg_matrix_exp");
  CheckFloatingOrComplex(self, "linalg_matrix_exp");
  const int64_t n = self.size(-1);
  if (n == 0) return at::empty_like(self);
  if (n == 1) return at::exp(self);
  if (self.dim() > 2) self.view({-1, n, n});  // a batch that can't be seen as one of one dimension is refused
  return EmptyContiguousLike(self);
}

Tensor MatrixSqrth(const Tensor& self) {
  CheckSquare(self, "linalg_matrix_sqrth");
  CheckFloatingOrComplex(self, "linalg_matrix_sqrth");
  CheckLapackDtype(self, "linalg_matrix_sqrth");
  return EmptyContiguousLike(self);
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("geqrf", Geqrf);
  m.impl("geqrf.a", GeqrfOut);
  m.impl("linalg_householder_product", HouseholderProduct);
  m.impl("linalg_householder_product.out", HouseholderProductOut);
  m.impl("ormqr", Ormqr);
  m.impl("ormqr.out", OrmqrOut);
  m.impl("cholesky_inverse", CholeskyInverse);
  m.impl("cholesky_inverse.out", CholeskyInverseOut);
  m.impl("_cholesky_solve_helper", CholeskySolveHelper);
  m.impl("linalg_eig", Eig);
  m.impl("linalg_eig.out", EigOut);
  m.impl("_linalg_eigvals", Eigvals);
  m.impl("linalg_eigvals.out", EigvalsOut);
  m.impl("linalg_matrix_exp", MatrixExp);
  m.impl_if_present("linalg_matrix_sqrth", MatrixSqrth);
}

}  // namespace
}  // namespace ddpopt::kernels
