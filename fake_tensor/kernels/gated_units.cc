// The gradients of glu.

#include "ATen/TensorIterator.h"
#include "ATen/TensorOperators.h"
#include "ATen/WrapDimUtils.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/narrow.h"
#include "ATen/ops/resize.h"
#include "ATen/ops/sigmoid.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;

Tensor& GluBackwardOut(const Tensor& grad_output, const Tensor& self, int64_t dim, Tensor& grad_input) {
  TORCH_CHECK(self.dim() > 0, "glu: 0-dimensional tensors are not supported");
  dim = at::maybe_wrap_dim(dim, self.dim());
  const int64_t size = self.size(dim);
  TORCH_CHECK(size % 2 == 0, "glu: dimension ", dim, " must be even, not ", size);
  grad_input.resize_(self.sizes());
  Tensor half = grad_input.narrow(dim, 0, size / 2);
  const Tensor input = self.narrow(dim, 0, size / 2);
  at::sigmoid_out(half, self.narrow(dim, size / 2, size / 2));
  at::TensorIteratorConfig()
      .add_output(half)
      .add_owned_const_input(half)
      .add_const_input(input)
      .add_const_input(grad_output)
      .set_check_mem_overlap(false)
      .build();
  return grad_input;
}
Tensor GluBackward(const Tensor& grad_output, const Tensor& self, int64_t dim) {
  Tensor grad_input = Empty({0}, self.options());
  return GluBackwardOut(grad_output, self, dim, grad_input);
}

Tensor GluJvp(const Tensor& glu, const Tensor& x, const Tensor& dx, int64_t dim) {
  dim = at::maybe_wrap_dim(dim, x.dim());
  const int64_t half = glu.size(dim);
  const Tensor gate = x.narrow(dim, half, half);
  const Tensor dgate = dx.narrow(dim, half, half);
  const Tensor da = dx.narrow(dim, 0, half);
  Tensor result = at::empty_like(glu);
  at::TensorIteratorConfig()
      .add_output(result)
      .add_const_input(glu)
      .add_const_input(gate)
      .add_const_input(da)
      .add_const_input(dgate)
      .build();
  return result;
}

// (Of the unit's gradient only the size has a part in it.)
Tensor GluBackwardJvp(const Tensor& grad_x, const Tensor& grad_glu, const Tensor& x, const Tensor& dgrad_glu, const Tensor& dx,
                      int64_t dim) {
  TORCH_CHECK(x.scalar_type() != at::kBool, "glu_backward_jvp: bool tensors are not supported");
  dim = at::maybe_wrap_dim(dim, x.dim());
  const int64_t half = grad_glu.size(dim);
  const Tensor a = x.narrow(dim, 0, half);
  const Tensor gate = at::sigmoid(x.narrow(dim, half, half));
  const Tensor da = dx.narrow(dim, 0, half);
  const Tensor db = dx.narrow(dim, half, half);
  const Tensor slope = db - db * gate;
  const Tensor first = dgrad_glu * gate + grad_x.narrow(dim, 0, half) * slope;
  const Tensor second = first * a + grad_x.narrow(dim, half, half) * slope + da;
  return at::cat({first, second}, dim);
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("glu_backward", GluBackward);
  m.impl("glu_backward.grad_input", GluBackwardOut);
  m.impl("glu_jvp", GluJvp);
  m.impl("glu_backward_jvp", GluBackwardJvp);
}

}  // namespace
}  // namespace ddpopt::kernels
