// What the CPU's kernels of structured operators of linear algebra refuse, and their Meta kernels don't know.

#include <string>
#include <tuple>

#include "ATen/core/Tensor.h"
#include "ATen/ops/_linalg_svd.h"
#include "ATen/ops/linalg_cross.h"
#include "ATen/ops/linalg_lu.h"
#include "ATen/ops/linalg_lu_factor_ex.h"
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

constexpr FakeKernelOptions kStructured = {.out_dtype = FakeKernelOptions::OutDtype::kEqual};

DDPOPT_FAKE_KERNELS(m) {
  m.impl("linalg_lu", Lu, kStructured);
  m.impl("linalg_lu_factor_ex", LuFactor, kStructured);
  m.impl("_linalg_svd", Svd, kStructured);
  m.impl("linalg_cross", Cross, kStructured);
}

}  // namespace
}  // namespace ddpopt::kernels
