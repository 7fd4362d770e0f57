// Linear algebra on fakes: factorizations, solvers, products of matrices and vectors.

#include <vector>

#include "ATen/ops/eye.h"
#include "ATen/ops/full.h"
#include "fake_tensor/sweep.h"

namespace ddpopt {
namespace {

// Symmetric and positive definite.
at::Tensor Eye(int64_t n, at::ScalarType dtype = at::kFloat) { return at::eye(n, dtype); }
at::Tensor Eyes(int64_t batch, int64_t n) { return at::eye(n).expand({batch, n, n}).contiguous().requires_grad_(); }
at::Tensor Strided(const at::Tensor& t) { return at::full({t.size(0), 2 * t.size(1)}, 0.5, t.options()).slice(1, 0, std::nullopt, 2); }
c10::IValue Number(int64_t n) { return c10::IValue(n); }

std::vector<SweepCase> Factorizations() {
  return {
      OpCase("geqrf", "aten::geqrf", {T(NoGrad({2, 4, 3}))}),
      OpCase("geqrf_wide_complex", "aten::geqrf", {NoGrad({3, 4}, at::kComplexFloat)}),
      OpCase("geqrf_out", "aten::geqrf.a", {NoGrad({3, 4})}, {{"a", NoGrad({0})}, {"tau", NoGrad({0})}}),
      OpCase("geqrf_out_copied", "aten::geqrf.a", {NoGrad({3, 4})}, {{"a", NoGrad({0})}, {"tau", NoGrad({7})}}),
      OpCase("geqrf_out_transposed", "aten::geqrf.a", {NoGrad({3, 4})}, {{"a", T(NoGrad({4, 3}))}, {"tau", NoGrad({3})}}),
      Rejected(OpCase("geqrf_vector", "aten::geqrf", {F({3})})),
      Rejected(OpCase("geqrf_out_integers", "aten::geqrf.a", {NoGrad({3, 4})}, {{"a", Long({0})}, {"tau", NoGrad({0})}})),
      OpCase("householder_product", "aten::linalg_householder_product", {F({2, 4, 3}), F({2, 3})}),
      OpCase("householder_product_out", "aten::linalg_householder_product.out", {NoGrad({4, 3}), NoGrad({2})},
             {{"out", As(at::kDouble, NoGrad({4, 3}))}}),
      Rejected(OpCase("householder_product_wide", "aten::linalg_householder_product", {F({3, 4}), F({3})})),
      Rejected(OpCase("householder_product_batch", "aten::linalg_householder_product", {F({2, 4, 3}), F({3})})),
      OpCase("ormqr", "aten::ormqr", {F({2, 4, 3}), F({2, 3}), T(F({2, 5, 4}))}),
      OpCase("ormqr_right", "aten::ormqr", {NoGrad({4, 3}), NoGrad({3}), NoGrad({2, 4}), false, true}),
      OpCase("ormqr_out", "aten::ormqr.out", {NoGrad({4, 3}), NoGrad({3}), NoGrad({4, 2})}, {{"out", NoGrad({0})}}),
      Rejected(OpCase("ormqr_few_reflectors", "aten::ormqr", {F({4, 3}), F({2}), F({4, 2})})),
      Rejected(OpCase("ormqr_out_double", "aten::ormqr.out", {NoGrad({4, 3}), NoGrad({3}), NoGrad({4, 2})},
                      {{"out", As(at::kDouble, NoGrad({4, 2}))}})),
      OpCase("cholesky_inverse", "aten::cholesky_inverse", {Eyes(2, 3)}),
      OpCase("cholesky_inverse_out", "aten::cholesky_inverse.out", {Eye(3)}, {{"out", Strided(NoGrad({3, 3}))}}),
      Rejected(OpCase("cholesky_inverse_rectangle", "aten::cholesky_inverse", {F({3, 4})})),
      OpCase("cholesky_solve", "aten::cholesky_solve", {F({3, 2}), Eyes(2, 3)}),
      OpCase("cholesky_solve_out", "aten::cholesky_solve.out", {NoGrad({3, 2}), Eye(3)}, {{"out", NoGrad({0})}}),
      Rejected(OpCase("cholesky_solve_mixed", "aten::cholesky_solve", {NoGrad({3, 2}), Eye(3, at::kDouble)})),
      OpCase("eig", "aten::linalg_eig", {T(NoGrad({2, 3, 3}))}),
      OpCase("eig_out", "aten::linalg_eig.out", {Eye(3)},
             {{"eigenvalues", NoGrad({2}, at::kComplexFloat)}, {"eigenvectors", NoGrad({0}, at::kComplexFloat)}}),
      Rejected(OpCase("eig_out_real", "aten::linalg_eig.out", {Eye(3)},
                      {{"eigenvalues", NoGrad({0})}, {"eigenvectors", NoGrad({0}, at::kComplexFloat)}})),
      OpCase("eigvals", "aten::linalg_eigvals", {Eye(3, at::kDouble)}),
      OpCase("eigvals_out", "aten::linalg_eigvals.out", {Eye(3)}, {{"out", NoGrad({3}, at::kComplexDouble)}}),
      OpCase("matrix_exp", "aten::linalg_matrix_exp", {T(F({2, 3, 3}))}),
      OpCase("matrix_exp_1x1", "aten::linalg_matrix_exp", {T(F({2, 1, 1}))}),
      Rejected(OpCase("matrix_exp_integers", "aten::linalg_matrix_exp", {Long({3, 3})})),
      OpCase("svd", "aten::_linalg_svd", {NoGrad({3, 4}), true, true}),
      Rejected(OpCase("svd_driver", "aten::_linalg_svd", {NoGrad({3, 4}), true, true}, {{"driver", "gesvd"}})),
      OpCase("lu", "aten::linalg_lu", {F({2, 4, 3})}),
      OpCase("lu_out", "aten::linalg_lu.out", {Eye(3)}, {{"P", NoGrad({0})}, {"L", NoGrad({3, 3})}, {"U", NoGrad({0})}}),
      Rejected(OpCase("lu_without_pivots", "aten::linalg_lu", {NoGrad({3, 3})}, {{"pivot", false}})),
      Rejected(OpCase("lu_factor_without_pivots", "aten::linalg_lu_factor_ex", {NoGrad({3, 3})}, {{"pivot", false}})),
  };
}

std::vector<SweepCase> Solvers() {
  const at::Tensor complex = Eye(3, at::kComplexFloat);
  return {
      OpCase("solve_triangular", "aten::linalg_solve_triangular", {Eyes(2, 3), F({3, 2})}, {{"upper", true}}),
      OpCase("solve_triangular_right", "aten::linalg_solve_triangular", {Eye(3), T(F({3, 2}))}, {{"upper", true}, {"left", false}}),
      OpCase("solve_triangular_conj", "aten::linalg_solve_triangular", {T(complex).conj(), NoGrad({3, 2}, at::kComplexFloat)},
             {{"upper", true}}),
      OpCase("solve_triangular_mixed", "aten::linalg_solve_triangular", {Eye(3), Long({3, 2})}, {{"upper", true}}),
      OpCase("solve_triangular_out", "aten::linalg_solve_triangular.out", {Eye(3), NoGrad({3, 2})},
             {{"upper", true}, {"out", NoGrad({2, 2})}}),
      Rejected(OpCase("solve_triangular_out_double", "aten::linalg_solve_triangular.out", {Eye(3), NoGrad({3, 2})},
                      {{"upper", true}, {"out", As(at::kDouble, NoGrad({0}))}})),
      // What LAPACK can't write is computed in a copy of B.
      Rejected(OpCase("solve_triangular_mixed_out", "aten::linalg_solve_triangular.out", {Eye(3), Long({3, 2})},
                      {{"upper", true}, {"out", T(NoGrad({4, 3})).slice(1, 0, 4, 2)}})),
      OpCase("euclidean_dist_vector", "aten::_euclidean_dist", {NoGrad({3}), NoGrad({2, 3})}),
      OpCase("euclidean_dist_batches", "aten::_euclidean_dist", {NoGrad({4, 3}), T(NoGrad({2, 3, 5}))}),
      Rejected(OpCase("euclidean_dist_vectors", "aten::_euclidean_dist", {NoGrad({3}), NoGrad({3})})),
      Rejected(OpCase("solve_triangular_shapes", "aten::linalg_solve_triangular", {Eye(3), NoGrad({2, 3})}, {{"upper", true}})),
  };
}

std::vector<SweepCase> Products() {
  const at::Tensor a = NoGrad({4}, at::kComplexFloat);
  const at::Tensor vector = NoGrad({3});
  return {
      Rejected(OpCase("mm_mixed", "aten::mm", {NoGrad({2, 3}), As(at::kDouble, NoGrad({3, 2}))})),
      OpCase("mm_out", "aten::mm.out", {NoGrad({2, 3}), NoGrad({3, 2})}, {{"out", NoGrad({5})}}),
      Rejected(OpCase("mm_out_expanded", "aten::mm.out", {NoGrad({2, 3}), NoGrad({3, 2})}, {{"out", X(NoGrad({2}), 2)}})),
      OpCase("addmm", "aten::addmm", {F({5}), F({3, 4}), T(F({5, 4}))}),
      Rejected(OpCase("addmm_complex_factor", "aten::addmm", {NoGrad({5}), NoGrad({3, 4}), NoGrad({4, 5})},
                      {{"alpha", c10::complex<double>(1, 1)}})),
      Rejected(OpCase("bmm_mixed", "aten::bmm", {NoGrad({2, 3, 4}), As(at::kDouble, NoGrad({2, 4, 5}))})),
      OpCase("bmm_mixed_empty", "aten::bmm", {NoGrad({2, 3, 0}), As(at::kDouble, NoGrad({2, 0, 5}))}),
      OpCase("baddbmm", "aten::baddbmm", {F({5}), F({2, 3, 4}), F({2, 4, 5})}),
      OpCase("baddbmm_in_place_expanded", "aten::baddbmm_", {X(NoGrad({3, 5}), 2), NoGrad({2, 3, 4}), NoGrad({2, 4, 5})}),
      Rejected(OpCase("baddbmm_mixed", "aten::baddbmm", {NoGrad({5}), NoGrad({2, 3, 4}), As(at::kDouble, NoGrad({2, 4, 5}))})),
      OpCase("addbmm", "aten::addbmm", {F({3, 1}), F({2, 3, 4}), F({2, 4, 5})}),
      OpCase("addbmm_in_place", "aten::addbmm_", {NoGrad({3, 5}), NoGrad({2, 3, 4}), NoGrad({2, 4, 5})}),
      OpCase("addbmm_out", "aten::addbmm.out", {NoGrad({5}), NoGrad({2, 3, 4}), NoGrad({2, 4, 5})}, {{"out", T(NoGrad({5, 3}))}}),
      Rejected(OpCase("addbmm_mixed", "aten::addbmm", {As(at::kDouble, NoGrad({5})), NoGrad({2, 3, 4}), NoGrad({2, 4, 5})})),
      OpCase("dot_conj", "aten::dot", {a.conj(), NoGrad({4}, at::kComplexFloat).conj()}),
      OpCase("vdot", "aten::vdot", {a, NoGrad({4}, at::kComplexFloat).conj()}),
      OpCase("vdot_out", "aten::vdot.out", {NoGrad({4}), NoGrad({4})}, {{"out", NoGrad({3})}}),
      Rejected(OpCase("dot_mixed", "aten::dot", {NoGrad({4}), Long({4})})),
      Rejected(OpCase("dot_matrix", "aten::dot", {NoGrad({2, 2}), NoGrad({2, 2})})),
      OpCase("addmv_in_place_expanded", "aten::addmv_", {X(NoGrad({}), 3), NoGrad({3, 4}), NoGrad({4})}),
      OpCase("addr", "aten::addr", {F({4}), F({3}), F({4})}),
      OpCase("addr_promoted", "aten::addr", {Long({3, 4}), NoGrad({3}), As(at::kDouble, NoGrad({4}))}),
      Rejected(OpCase("addr_float_factor", "aten::addr", {Long({4}), Long({3}), Long({4})}, {{"beta", 1.5}})),
      Rejected(OpCase("addr_in_place_broadcast", "aten::addr_", {NoGrad({4}), NoGrad({3}), NoGrad({4})})),
      Rejected(OpCase("addr_out_expanded", "aten::addr.out", {NoGrad({3, 4}), NoGrad({3}), NoGrad({4})}, {{"out", X(NoGrad({4}), 3)}})),
      OpCase("int_mm", "aten::_int_mm", {NoGrad({3, 4}, at::kChar), NoGrad({4, 5}, at::kChar)}),
      Rejected(OpCase("int_mm_out_empty", "aten::_int_mm.out", {NoGrad({3, 4}, at::kChar), NoGrad({4, 5}, at::kChar)},
                      {{"out", NoGrad({0}, at::kInt)}})),
      OpCase("linear_combination", "aten::_compute_linear_combination", {T(NoGrad({3, 2, 2})), NoGrad({2, 3})}),
      Rejected(OpCase("linear_combination_empty", "aten::_compute_linear_combination", {NoGrad({0, 2}), NoGrad({2, 0})})),
      OpCase("mvlgamma_in_place", "aten::mvlgamma_", {at::full({2, 3}, 5.0), Number(2)}),
      OpCase("mvlgamma_out", "aten::mvlgamma.out", {at::full({3}, 5.0), Number(2)}, {{"out", As(at::kDouble, NoGrad({2}))}}),
      OpCase("cross", "aten::linalg_cross", {F({2, 3}), F({1, 3})}),
      Rejected(OpCase("addmm_activation_complex", "aten::_addmm_activation",
                      {NoGrad({5}, at::kComplexFloat), NoGrad({3, 4}, at::kComplexFloat), NoGrad({4, 5}, at::kComplexFloat)})),
      OpCase("addmv_without_columns", "aten::addmv", {NoGrad({1}), NoGrad({2, 0}), NoGrad({0})}),
      OpCase("solve_out_right_transposed", "aten::_linalg_solve_ex.result", {Eye(3, at::kComplexFloat), NoGrad({4, 3}, at::kComplexFloat)},
             {{"left", false},
              {"result", T(NoGrad({3, 4}, at::kComplexFloat))},
              {"LU", NoGrad({0}, at::kComplexFloat)},
              {"pivots", NoGrad({0}, at::kInt)},
              {"info", NoGrad({0}, at::kInt)}}),
      OpCase("lu_solve_out_right", "aten::linalg_lu_solve.out",
             {NoGrad({3, 3}, at::kComplexFloat), at::full({3}, 1, at::kInt), NoGrad({2, 3}, at::kComplexFloat)},
             {{"left", false}, {"out", NoGrad({0}, at::kComplexFloat)}}),
      Rejected(OpCase("cross_into_operand", "aten::linalg_cross.out", {vector, NoGrad({3})}, {{"out", vector}})),
      Rejected(OpCase("cross_mixed", "aten::linalg_cross", {NoGrad({3}), Long({3})})),
  };
}

INSTANTIATE_TEST_SUITE_P(Factorizations, SweepTest, ::testing::ValuesIn(Factorizations()), SweepName);
INSTANTIATE_TEST_SUITE_P(Solvers, SweepTest, ::testing::ValuesIn(Solvers()), SweepName);
INSTANTIATE_TEST_SUITE_P(Products, SweepTest, ::testing::ValuesIn(Products()), SweepName);

}  // namespace
}  // namespace ddpopt
