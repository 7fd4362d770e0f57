// Variance.

#include <tuple>

#include "ATen/core/Tensor.h"
#include "ATen/ops/sum.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;

// The shape and strides of any reduction over `dim`.
Tensor Reduce(const Tensor& self, at::OptionalIntArrayRef dim, bool keepdim) {
  TORCH_CHECK_NOT_IMPLEMENTED(!self.is_complex(), "aten::var and aten::std have no fake rule for complex tensors");
  TORCH_CHECK(self.is_floating_point(), "var and std: floating-point tensors are wanted, not ", self.scalar_type());
  return at::sum(self, dim, keepdim);
}

Tensor Variance(const Tensor& self, at::OptionalIntArrayRef dim, const std::optional<at::Scalar>& /*correction*/, bool keepdim) {
  return Reduce(self, dim, keepdim);
}
std::tuple<Tensor, Tensor> VarianceAndMean(const Tensor& self, at::OptionalIntArrayRef dim, const std::optional<at::Scalar>& /*correction*/,
                                           bool keepdim) {
  return {Reduce(self, dim, keepdim), Reduce(self, dim, keepdim)};
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("var.correction", Variance);
  m.impl("std.correction", Variance);
  m.impl("var_mean.correction", VarianceAndMean);
  m.impl("std_mean.correction", VarianceAndMean);
}

}  // namespace
}  // namespace ddpopt::kernels
