// Variance and inner products.

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

Tensor Dot(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(self.dim() == 1 && other.dim() == 1 && self.numel() == other.numel(), "dot: two vectors of one length are wanted, not ",
              self.sizes(), " and ", other.sizes());
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "dot: both vectors must have one dtype, not ", self.scalar_type(), " and ",
              other.scalar_type());
  return Empty({}, self.options());
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("var.correction", Variance);
  m.impl("std.correction", Variance);
  m.impl("var_mean.correction", VarianceAndMean);
  m.impl("std_mean.correction", VarianceAndMean);
  m.impl("dot", Dot);
}

}  // namespace
}  // namespace ddpopt::kernels
