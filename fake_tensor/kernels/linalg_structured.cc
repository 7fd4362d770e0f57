// What the CPU's kernels of structured operators of linear algebra refuse, and their Meta kernels don't know.

#include <string>
#include <tuple>
#include <vector>

#include "ATen/MemoryOverlap.h"
#include "ATen/WrapDimUtils.h"
#include "ATen/core/Tensor.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/stack.h"
#include "ATen/ops/_linalg_solve_ex.h"
#include "ATen/ops/_linalg_svd.h"
#include "ATen/ops/linalg_cross.h"
#include "ATen/ops/linalg_lu.h"
#include "ATen/ops/linalg_lu_factor_ex.h"
#include "ATen/ops/linalg_lu_solve.h"
#include "ATen/ops/renorm.h"
#include "c10/util/Exception.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/linalg_shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;

void CheckPivots(const Tensor& a, bool pivot, const char* op) {
  TORCH_CHECK(pivot || a.numel() == 0 || !ClaimedDevice().is_cpu(), op, ": LU without pivoting is not implemented on the CPU");
}
std::tuple<Tensor, Tensor, Tensor> Lu(const Tensor& a, bool pivot) {
  auto result = at::linalg_lu(a, pivot);
  CheckPivots(a, pivot, "linalg_lu");
  return result;
}
std::tuple<Tensor, Tensor, Tensor> LuFactor(const Tensor& a, bool pivot, bool check_errors) {
  auto result = at::linalg_lu_factor_ex(a, pivot, check_errors);
  CheckPivots(a, pivot, "linalg_lu_factor_ex");
  return result;
}

std::tuple<Tensor, Tensor, Tensor> Svd(const Tensor& a, bool full_matrices, bool compute_uv, std::optional<c10::string_view> driver) {
  TORCH_CHECK(!driver.has_value() || a.numel() == 0 || !ClaimedDevice().is_cpu(),
              "linalg_svd: there are no drivers to choose from on the CPU");
  return at::_linalg_svd(a, full_matrices, compute_uv, driver);
}

Tensor Cross(const Tensor& self, const Tensor& other, int64_t dim) {
  Tensor result = at::linalg_cross(self, other, dim);
  CheckSameDtype(self, other, "linalg_cross");
  return result;
}

// The result must not share memory with the operands, whole or in part.
Tensor& CrossOut(const Tensor& self, const Tensor& other, int64_t dim, Tensor& out) {
  at::linalg_cross_out(out, self, other, dim);
  CheckSameDtype(self, other, "linalg_cross");
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, other);
  return out;
}

// What is solved from the right is solved conjugated and transposed; the result's conjugation stays to be done.
void ConjugateFromRight(const Tensor& result, bool left) {
  if (!left && result.is_complex() && result.numel() != 0) result._set_conj(!result.is_conj());
}
Tensor LuSolve(const Tensor& lu, const Tensor& pivots, const Tensor& b, bool left, bool adjoint) {
  Tensor result = at::linalg_lu_solve(lu, pivots, b, left, adjoint);
  ConjugateFromRight(result, left);
  return result;
}
Tensor& LuSolveOut(const Tensor& lu, const Tensor& pivots, const Tensor& b, bool left, bool adjoint, Tensor& out) {
  at::linalg_lu_solve_out(out, lu, pivots, b, left, adjoint);
  at::assert_no_internal_overlap(out);
  ConjugateFromRight(out, left);
  return out;
}
std::tuple<Tensor, Tensor, Tensor, Tensor> SolveEx(const Tensor& a, const Tensor& b, bool left, bool check_errors) {
  auto result = at::_linalg_solve_ex(a, b, left, check_errors);
  ConjugateFromRight(std::get<0>(result), left);
  return result;
}
std::tuple<Tensor&, Tensor&, Tensor&, Tensor&> SolveExOut(const Tensor& a, const Tensor& b, bool left, bool check_errors, Tensor& result,
                                                          Tensor& lu, Tensor& pivots, Tensor& info) {
  at::_linalg_solve_ex_out(result, lu, pivots, info, a, b, left, check_errors);
  for (const Tensor* out : {&result, &lu, &pivots, &info}) at::assert_no_internal_overlap(*out);
  ConjugateFromRight(result, left);
  return {result, lu, pivots, info};
}

Tensor Renorm(const Tensor& self, const at::Scalar& p, int64_t dim, const at::Scalar& maxnorm) {
  Tensor result = at::renorm(self, p, dim, maxnorm);
  at::maybe_wrap_dim(dim, self.dim());
  CheckFloatingOrComplex(self, "renorm");
  return result;
}

// out= tensors of linear algebra are filled by copies, which refuse memory that elements share.
void CheckedOuts(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::size_t num_args = op.schema().arguments().size();
  std::vector<Tensor> outs;
  for (std::size_t i = 0; i < num_args; ++i) {
    const c10::Argument& argument = op.schema().arguments()[i];
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) {
      outs.push_back((*stack)[stack->size() - num_args + i].toTensor());
    }
  }
  op.callBoxed(stack);
  for (const Tensor& out : outs) at::assert_no_internal_overlap(out);
}

constexpr FakeKernelOptions kStructured = {.out_dtype = FakeKernelOptions::OutDtype::kEqual};
DDPOPT_FAKE_KERNELS(m) {
  m.impl("linalg_lu", Lu, kStructured);
  m.impl("linalg_lu_factor_ex", LuFactor, kStructured);
  m.impl("_linalg_svd", Svd, kStructured);
  m.impl("linalg_cross", Cross, kStructured);
  m.impl("linalg_cross.out", CrossOut);
  m.impl("linalg_lu_solve", LuSolve);
  m.impl("linalg_lu_solve.out", LuSolveOut);
  m.impl("_linalg_solve_ex", SolveEx);
  m.impl("_linalg_solve_ex.result", SolveExOut);
  m.impl("renorm", Renorm, kStructured);
  for (const char* name : {"linalg_inv_ex.inverse", "linalg_cholesky_ex.L", "_linalg_det.result", "_linalg_slogdet.sign",
                           "_linalg_eigh.eigenvalues", "linalg_qr.out", "linalg_ldl_factor_ex.out", "linalg_ldl_solve.out"}) {
    m.impl(name, CheckedOuts);
  }
}

}  // namespace
}  // namespace ddpopt::kernels
