// Element by element: the iterator that the CPU kernels use finds shape, dtype and strides.

#include "ATen/TensorIterator.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/clamp.h"
#include "ATen/ops/clamp_min.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/result_type.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Scalar;
using at::Tensor;

Tensor Binary(const Tensor& a, const Tensor& b) {
  Tensor out;
  return at::TensorIterator::binary_op(out, a, b).output();
}

Tensor Relu(const Tensor& self) { return at::clamp_min(self, 0); }
Tensor& ReluInPlace(Tensor& self) { return at::clamp_min_(self, 0); }
Tensor Hardtanh(const Tensor& self, const Scalar& min, const Scalar& max) { return at::clamp(self, min, max); }
Tensor& HardtanhInPlace(Tensor& self, const Scalar& min, const Scalar& max) { return at::clamp_(self, min, max); }
Tensor HardtanhBackward(const Tensor& grad, const Tensor& self, const Scalar& /*min*/, const Scalar& /*max*/) { return Binary(grad, self); }

Tensor& AbsOut(const Tensor& self, Tensor& out) {
  TORCH_CHECK_NOT_IMPLEMENTED(!self.is_complex(), "aten::abs has no fake rule for complex tensors");
  at::TensorIterator::unary_op(out, self);
  return out;
}

Tensor& LogicalBinaryOut(const Tensor& self, const Tensor& other, Tensor& out) {
  at::TensorIteratorConfig().check_all_same_dtype(false).add_output(out).add_const_input(self).add_const_input(other).build();
  return out;
}
Tensor& LogicalNotOut(const Tensor& self, Tensor& out) {
  at::TensorIteratorConfig().check_all_same_dtype(false).add_output(out).add_const_input(self).build();
  return out;
}

Tensor Where(const Tensor& condition, const Tensor& self, const Tensor& other) {
  TORCH_CHECK(condition.scalar_type() == at::kBool || condition.scalar_type() == at::kByte, "where: the condition must be bool, not ",
              condition.scalar_type());
  Tensor out;
  at::TensorIterator iter = at::TensorIteratorConfig()
                                .check_all_same_dtype(false)
                                .declare_static_dtype(at::result_type(self, other))
                                .add_output(out)
                                .add_const_input(condition)
                                .add_const_input(self)
                                .add_const_input(other)
                                .build();
  return iter.output();
}
Tensor& WhereOut(const Tensor& condition, const Tensor& self, const Tensor& other, Tensor& out) {
  at::TensorIteratorConfig()
      .check_all_same_dtype(false)
      .add_output(out)
      .add_const_input(condition)
      .add_const_input(self)
      .add_const_input(other)
      .build();
  return out;
}

std::tuple<Tensor, Tensor> LogSigmoidForward(const Tensor& self) { return {at::empty_like(self), EmptyContiguousLike(self)}; }
Tensor LogSigmoidBackward(const Tensor& grad, const Tensor& self, const Tensor& /*buffer*/) { return Binary(grad, self); }

DDPOPT_FAKE_KERNELS(m) {
  m.impl("relu", Relu);
  m.impl("relu_", ReluInPlace);
  m.impl("hardtanh", Hardtanh);
  m.impl("hardtanh_", HardtanhInPlace);
  m.impl("hardtanh_backward", HardtanhBackward);
  m.impl("abs.out", AbsOut);
  m.impl("logical_and.out", LogicalBinaryOut);
  m.impl("logical_or.out", LogicalBinaryOut);
  m.impl("logical_xor.out", LogicalBinaryOut);
  m.impl("logical_not.out", LogicalNotOut);
  m.impl("where.self", Where);
  m.impl("where.self_out", WhereOut);
  m.impl("log_sigmoid_forward", LogSigmoidForward);
  m.impl("log_sigmoid_backward", LogSigmoidBackward);
}

}  // namespace
}  // namespace ddpopt::kernels
