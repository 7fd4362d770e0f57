// Triangular systems and least squares.

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "ATen/ExpandUtils.h"
#include "ATen/core/Tensor.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/linalg_shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;

std::vector<int64_t> TriangularSizes(const Tensor& a, const Tensor& b, bool left) {
  constexpr char kOp[] = "linalg_solve_triangular";
  CheckSquare(a, kOp);
  CheckMatrices(b, kOp);
  TORCH_CHECK(a.size(-2) == b.size(left ? -2 : -1), kOp, ": shapes don't match: ", a.sizes(), " and ", b.sizes());
  CheckLapackDtype(a, kOp);  // B may be of any dtype: it is copied
  return Joined(at::infer_size(BatchSizes(a), BatchSizes(b)), {b.size(-2), b.size(-1)});
}
// The solution stands where B was copied to, column-major; row-major only if A, lazily conjugated, can then be used as it is.
bool RowMajorSolution(const Tensor& a, const std::vector<int64_t>& sizes) {
  if (!a.is_conj()) return false;
  const Tensor expanded = a.expand(Joined(at::IntArrayRef(sizes).slice(0, sizes.size() - 2), {a.size(-2), a.size(-1)}));
  return expanded.transpose(-2, -1).is_contiguous();
}
Tensor SolveTriangular(const Tensor& a, const Tensor& b, bool /*upper*/, bool left, bool /*unitriangular*/) {
  const std::vector<int64_t> sizes = TriangularSizes(a, b, left);
  return RowMajorSolution(a, sizes) ? Empty(sizes, a.options()) : ColumnMajor(sizes, a.options());
}
Tensor& SolveTriangularOut(const Tensor& a, const Tensor& b, bool /*upper*/, bool left, bool /*unitriangular*/, Tensor& out) {
  const std::vector<int64_t> sizes = TriangularSizes(a, b, left);
  CheckSameDtype(a, out, "linalg_solve_triangular");
  if (out.sizes() == at::IntArrayRef(sizes)) {
    at::assert_no_internal_overlap(out);
    // Where LAPACK can't write directly, B's copy isn't of out='s dtype.
    if (!out.is_contiguous() && !out.mT().is_contiguous()) CheckSameDtype(a, b, "linalg_solve_triangular");
  } else if (RowMajorSolution(a, sizes)) {
    out.resize_(sizes);
  } else {
    FillLinalgOuts({{out.resize_({0}), sizes, a.scalar_type(), true}}, "linalg_solve_triangular");
  }
  return out;
}

// Residuals are given where all matrices have full rank, which fakes can't know.
void CheckLeastSquares(const Tensor& input, const Tensor& other, std::optional<c10::string_view> driver_name) {
  constexpr char kOp[] = "linalg_lstsq";
  CheckMatrices(input, kOp);
  TORCH_CHECK(other.dim() >= 1, kOp, ": other must have at least 1 dimension");
  const int64_t difference = input.dim() - other.dim();
  TORCH_CHECK(difference == 0 || difference == 1, kOp, ": other of shape ", other.sizes(), " for an input of shape ", input.sizes());
  CheckSameDtype(input, other, kOp);
  const int64_t m = input.size(-2);
  const bool vector = difference == 1 && other.sizes() == input.sizes().slice(0, input.dim() - 1);
  TORCH_CHECK(vector || other.dim() >= 2, kOp, ": other of shape ", other.sizes(), " for an input of shape ", input.sizes());
  const Tensor columns = vector ? other.unsqueeze(-1) : other;
  TORCH_CHECK(columns.size(-2) == m, kOp, ": input has ", m, " rows, other ", columns.size(-2));
  const std::string driver(driver_name.value_or("gelsy"));
  TORCH_CHECK(driver == "gels" || driver == "gelsy" || driver == "gelsd" || driver == "gelss", kOp, ": unknown driver ", driver);
  CheckLapackDtype(input, kOp);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> Lstsq(const Tensor& self, const Tensor& b, std::optional<double> /*rcond*/,
                                                 std::optional<c10::string_view> driver) {
  CheckLeastSquares(self, b, driver);
  TORCH_CHECK(false, "aten::linalg_lstsq: the shape of its results depends on data, which a fake tensor doesn't have");
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("linalg_solve_triangular", SolveTriangular);
  m.impl("linalg_solve_triangular.out", SolveTriangularOut);
  m.impl("linalg_lstsq", Lstsq);
}

}  // namespace
}  // namespace ddpopt::kernels
