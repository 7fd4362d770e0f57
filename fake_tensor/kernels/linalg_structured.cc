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
#include "ATen/ops/linalg_vector_norm.h"
#include "ATen/ops/norm_meta_dispatch.h"
#include "ATen/ops/renorm.h"
#include "c10/util/Exception.h"
#include "c10/util/strides.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/linalg_shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;
using MaybeDtype = std::optional<at::ScalarType>;
using MaybeScalar = std::optional<at::Scalar>;

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

// What is solved from the right is solved conjugated and transposed; the result's conjugation stays to be done, but where it is copied to an
// out= that isn't row-major.
void ConjugateFromRight(const Tensor& result, bool left) {
  if (left || !result.is_complex() || result.numel() == 0) return;
  if (result.strides() == at::IntArrayRef(c10::contiguous_strides(result.sizes()))) result._set_conj(!result.is_conj());
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

// The CPU's kernel divides by a norm, which looks at more than the Meta kernel does, and writes with an iterator of its own.
void CheckRenorm(const Tensor& self, int64_t dim) {
  at::maybe_wrap_dim(dim, self.dim());
  CheckFloatingOrComplex(self, "renorm");
}
Tensor Renorm(const Tensor& self, const at::Scalar& p, int64_t dim, const at::Scalar& maxnorm) {
  Tensor result = at::renorm(self, p, dim, maxnorm);
  CheckRenorm(self, dim);
  return result;
}
Tensor& RenormOut(const Tensor& self, const at::Scalar& p, int64_t dim, const at::Scalar& maxnorm, Tensor& out) {
  at::renorm_out(out, self, p, dim, maxnorm);
  CheckRenorm(self, dim);
  at::assert_no_internal_overlap(out);
  at::assert_no_partial_overlap(out, self);
  return out;
}
Tensor& RenormInPlace(Tensor& self, const at::Scalar& p, int64_t dim, const at::Scalar& maxnorm) {
  return RenormOut(self, p, dim, maxnorm, self);
}

// Where nothing is summed, elements are written one by one.
Tensor& CheckVectorNorm(const Tensor& self, Tensor& out) {
  if (out.numel() == self.numel()) at::assert_no_internal_overlap(out);
  return out;
}
Tensor& VectorNormOut(const Tensor& self, const at::Scalar& ord, at::OptionalIntArrayRef dim, bool keepdim, MaybeDtype dtype, Tensor& out) {
  at::linalg_vector_norm_out(out, self, ord, dim, keepdim, dtype);
  return CheckVectorNorm(self, out);
}

// The CPU's kernel of norm is the one of linalg_vector_norm, whose demands come on top.
Tensor& NormInto(const Tensor& self, const MaybeScalar& p, at::IntArrayRef dim, bool keepdim, MaybeDtype dtype, Tensor& out) {
  TORCH_CHECK(!p.has_value() || !p->isComplex(), "norm: the order is complex: ", *p);
  at::linalg_vector_norm_out(out, self, p.value_or(2), dim, keepdim, dtype);
  return CheckVectorNorm(self, out);
}
Tensor NormOfDims(const Tensor& self, const MaybeScalar& p, at::IntArrayRef dim, bool keepdim) {
  Tensor out = at::meta::norm(self, p, dim, keepdim);
  return NormInto(self, p, dim, keepdim, std::nullopt, out);
}
Tensor NormOfDimsAs(const Tensor& self, const MaybeScalar& p, at::IntArrayRef dim, bool keepdim, at::ScalarType dtype) {
  Tensor out = at::meta::norm(self, p, dim, keepdim, dtype);
  return NormInto(self, p, dim, keepdim, dtype, out);
}
Tensor& NormOfDimsOut(const Tensor& self, const MaybeScalar& p, at::IntArrayRef dim, bool keepdim, Tensor& out) {
  at::meta::norm_out(out, self, p, dim, keepdim);
  return NormInto(self, p, dim, keepdim, std::nullopt, out);
}
Tensor& NormOfDimsAsOut(const Tensor& self, const MaybeScalar& p, at::IntArrayRef dim, bool keepdim, at::ScalarType dtype, Tensor& out) {
  at::meta::norm_out(out, self, p, dim, keepdim, dtype);
  return NormInto(self, p, dim, keepdim, dtype, out);
}
Tensor Norm(const Tensor& self, const at::Scalar& p) { return NormOfDims(self, p, {}, false); }
Tensor NormAs(const Tensor& self, const MaybeScalar& p, at::ScalarType dtype) { return NormOfDimsAs(self, p, {}, false, dtype); }

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
  m.impl("renorm", Renorm, kThisForm);
  m.impl("renorm.out", RenormOut, kThisForm);
  m.impl("renorm_", RenormInPlace, kThisForm);
  m.impl("linalg_vector_norm.out", VectorNormOut, kThisForm);
  m.impl("norm.ScalarOpt_dim", NormOfDims, kNestedToo);
  m.impl("norm.ScalarOpt_dim_dtype", NormOfDimsAs, kNestedToo);
  m.impl("norm.out", NormOfDimsOut, kNestedToo);
  m.impl("norm.dtype_out", NormOfDimsAsOut, kNestedToo);
  m.impl("norm.Scalar", Norm);
  m.impl("norm.ScalarOpt_dtype", NormAs);
  for (const char* name : {"linalg_inv_ex.inverse", "linalg_cholesky_ex.L", "_linalg_det.result", "_linalg_slogdet.sign",
                           "_linalg_eigh.eigenvalues", "linalg_qr.out", "linalg_ldl_factor_ex.out", "linalg_ldl_solve.out"}) {
    m.impl(name, CheckedOuts);
  }
}

}  // namespace
}  // namespace ddpopt::kernels
