// Pointwise operators and activations on fakes.

#include <vector>

#include "ATen/ops/complex.h"
#include "ATen/ops/full.h"
#include "fake_tensor/sweep.h"

namespace ddpopt {
namespace {

at::Tensor C(at::IntArrayRef sizes) { return NoGrad(sizes, at::kComplexFloat); }
at::Tensor Bool(at::IntArrayRef sizes) { return NoGrad(sizes, at::kBool); }
// Zeros and twos: a condition that isn't bool.
at::Tensor Bytes(at::IntArrayRef sizes) { return at::full(sizes, 2, at::kByte); }

std::vector<SweepCase> Pointwise() {
  return {
      OpCase("abs_complex", "aten::abs", {T(C({3, 4}))}),
      // What the CPU converts to a common dtype is dense when strides are chosen.
      OpCase("converted_expanded", "aten::maximum", {X(Long({3}), 3), T(NoGrad({3, 3}))}),
      OpCase("converted_compared", "aten::eq.Tensor", {X(Long({3}), 3), T(NoGrad({3, 3}))}),
      OpCase("converted_to_floats", "aten::atan2", {X(Long({3}), 3), T(Long({3, 3}))}),
      OpCase("abs_complex_out", "aten::abs.out", {C({3, 4})}, {{"out", NoGrad({2})}}),
      OpCase("abs_into_complex", "aten::abs.out", {C({3, 4})}, {{"out", C({0})}}),
      Rejected(OpCase("abs_complex_in_place", "aten::abs_", {C({3})})),
      Rejected(OpCase("abs_complex_into_int", "aten::abs.out", {C({3})}, {{"out", Long({3})}})),
      OpCase("angle", "aten::angle", {T(F({4, 3}))}),
      OpCase("angle_int", "aten::angle", {Long({3})}),
      OpCase("angle_complex", "aten::angle", {T(C({4, 3}))}),
      OpCase("conj_physical", "aten::_conj_physical", {T(C({4, 3}))}),
      OpCase("conj_physical_out", "aten::conj_physical.out", {C({4, 3})}, {{"out", C({2})}}),
      OpCase("complex", "aten::complex", {F({4, 1}), F({3})}),
      OpCase("polar_out", "aten::polar.out", {NoGrad({4}), NoGrad({4})}, {{"out", C({0})}}),
      Rejected(OpCase("complex_of_two_dtypes", "aten::complex", {NoGrad({4}), NoGrad({4}, at::kDouble)})),
      Rejected(OpCase("complex_of_integers", "aten::complex.out", {Long({4}), Long({4})}, {{"out", C({4})}})),
      OpCase("nan_to_num", "aten::nan_to_num", {T(F({4, 3}))}),
      OpCase("nan_to_num_int_out", "aten::nan_to_num.out", {Long({3})}, {{"out", Long({0})}}),
      Rejected(OpCase("nan_to_num_into_another_dtype", "aten::nan_to_num.out", {NoGrad({3})}, {{"out", NoGrad({3}, at::kDouble)}})),
      OpCase("isnan", "aten::isnan", {X(NoGrad({3}), 4)}),
      OpCase("frexp", "aten::frexp.Tensor", {T(NoGrad({4, 3}))}),
      Rejected(OpCase("frexp_int", "aten::frexp.Tensor", {Long({3})})),
      OpCase("floor_divide", "aten::floor_divide", {NoGrad({4, 1}), Long({3})}),
      OpCase("floor_divide_in_place", "aten::floor_divide_.Tensor", {NoGrad({4, 3}), NoGrad({3})}),
      Rejected(OpCase("floor_divide_grows", "aten::floor_divide_.Tensor", {NoGrad({3}), NoGrad({4, 3})})),
      Rejected(OpCase("floor_divide_bool", "aten::floor_divide", {Bool({3}), Bool({3})})),
      OpCase("remainder_of_number", "aten::remainder.Scalar_Tensor", {7, T(NoGrad({4, 3}))}),
      OpCase("rsub", "aten::rsub.Tensor", {F({4, 1}), F({3})}, {{"alpha", 2}}),
      Rejected(OpCase("rsub_bool", "aten::rsub.Tensor", {Bool({3}), Bool({3})})),
      OpCase("shift", "aten::__lshift__.Tensor", {Long({4, 1}), Long({3})}),
      OpCase("shift_by_number", "aten::__rshift__.Scalar", {NoGrad({3}, at::kInt), 2}),
      OpCase("shift_in_place", "aten::__ilshift__.Scalar", {Long({3}), 1}),
      Rejected(OpCase("shift_float", "aten::__lshift__.Tensor", {NoGrad({3}), NoGrad({3})})),
      Rejected(OpCase("shift_grows", "aten::__irshift__.Tensor", {Long({3}), Long({4, 3})})),
      OpCase("add_relu", "aten::_add_relu.Tensor", {NoGrad({4, 3}), NoGrad({3})}),
      Rejected(OpCase("add_relu_half", "aten::_add_relu.Tensor", {NoGrad({3}, at::kHalf), NoGrad({3}, at::kHalf)})),
      OpCase("logical_and", "aten::logical_and", {NoGrad({4, 1}), Long({3})}),
      OpCase("logical_xor_into_float", "aten::logical_xor.out", {Bool({3}), Long({3})}, {{"out", NoGrad({0})}}),
      OpCase("logical_not_in_place", "aten::logical_not_", {NoGrad({3})}),
      OpCase("where_broadcast", "aten::where.self", {Bool({4, 1}), F({3}), F({})}),
      OpCase("where_promotes", "aten::where.self", {T(Bool({3, 4})), T(NoGrad({3, 4})), Long({4, 3})}),
      OpCase("where_bytes", "aten::where.self", {Bytes({3}), NoGrad({3}), NoGrad({3})}),
      Rejected(OpCase("where_int", "aten::where.self", {Long({3}), NoGrad({3}), NoGrad({3})})),
      Rejected(OpCase("where_into_another_dtype", "aten::where.self_out", {Bool({3}), NoGrad({3}), NoGrad({3})}, {{"out", Long({3})}})),
      Rejected(OpCase("fill_too_large", "aten::fill_.Scalar", {NoGrad({3}, at::kByte), 300})),
      Rejected(OpCase("fill_by_vector", "aten::fill_.Tensor", {NoGrad({3}), NoGrad({3})})),
      Rejected(OpCase("fill_complex", "aten::full_like", {NoGrad({3}), c10::complex<double>(1, 1)})),
  };
}

std::vector<SweepCase> Activations() {
  return {
      OpCase("relu", "aten::relu", {T(F({4, 3}))}),
      Rejected(OpCase("relu_bool", "aten::relu", {Bool({3})})),
      Rejected(OpCase("relu_bool_in_place", "aten::relu_", {Bool({3})})),
      Rejected(OpCase("relu_out_dtype", "aten::relu.out", {NoGrad({3})}, {{"out", NoGrad({3}, at::kHalf)}})),
      OpCase("hardtanh", "aten::hardtanh", {ChannelsLast({2, 3, 4, 4}), -1, 1}),
      OpCase("hardtanh_one_row", "aten::hardtanh", {NoGrad({2, 1, 3}).transpose(0, 1), -1, 1}),
      OpCase("hardtanh_int", "aten::hardtanh", {Long({3}), -0.5, 1.5}),
      OpCase("hardtanh_out", "aten::hardtanh.out", {T(NoGrad({4, 3})), -1, 1}, {{"out", NoGrad({0})}}),
      Rejected(OpCase("hardtanh_complex_limit", "aten::hardtanh", {NoGrad({3}), -1, c10::complex<double>(1, 1)})),
      OpCase("hardswish", "aten::hardswish", {T(F({4, 3}))}),
      OpCase("hardswish_in_place", "aten::hardswish_", {NoGrad({3})}),
      Rejected(OpCase("hardswish_int", "aten::hardswish", {Long({3})})),
      OpCase("logit", "aten::logit", {T(F({4, 3})), 0.1}),
      OpCase("logit_int", "aten::logit", {Long({3}), 0.1}),
      Rejected(OpCase("logit_int_in_place", "aten::logit_", {Long({3}), 0.1})),
      OpCase("prelu", "aten::prelu", {T(F({4, 3})), F({4})}),
      OpCase("prelu_one", "aten::prelu", {F({2, 4, 3}), F({1})}),
      Rejected(OpCase("prelu_mixed", "aten::_prelu_kernel", {NoGrad({4, 3}), NoGrad({1}, at::kDouble)})),
      OpCase("rrelu", "aten::rrelu_with_noise", {T(NoGrad({4, 3})), NoGrad({3, 4}), 0.1, 0.3, true}),
      OpCase("rrelu_eval", "aten::rrelu_with_noise", {T(NoGrad({4, 3})), NoGrad({3, 4}), 0.1, 0.3, false}),
      OpCase("rrelu_in_place", "aten::rrelu_with_noise_", {NoGrad({4, 3}), NoGrad({4, 3}), 0.1, 0.3, true}),
      Rejected(OpCase("rrelu_noise", "aten::rrelu_with_noise", {NoGrad({4, 3}), NoGrad({3}), 0.1, 0.3, true})),
      OpCase("log_sigmoid", "aten::log_sigmoid", {ChannelsLast({2, 3, 4, 4})}),
      OpCase("log_sigmoid_parts", "aten::log_sigmoid_forward", {T(NoGrad({4, 3}))}),
      OpCase("log_sigmoid_out", "aten::log_sigmoid_forward.output", {T(NoGrad({4, 3}))},
             {{"output", NoGrad({0})}, {"buffer", NoGrad({2})}}),
      Rejected(OpCase("log_sigmoid_int", "aten::log_sigmoid_forward", {Long({3})})),
      OpCase("hardtanh_backward", "aten::hardtanh_backward.grad_input", {NoGrad({4, 3}), T(NoGrad({3, 4})), -1, 1},
             {{"grad_input", NoGrad({0})}}),
  };
}

INSTANTIATE_TEST_SUITE_P(Pointwise, SweepTest, ::testing::ValuesIn(Pointwise()), SweepName);
INSTANTIATE_TEST_SUITE_P(Activations, SweepTest, ::testing::ValuesIn(Activations()), SweepName);

}  // namespace
}  // namespace ddpopt
