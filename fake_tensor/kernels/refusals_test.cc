// What the CPU's kernels refuse, or take, for reasons that shapes don't tell: numbers that don't fit a dtype, dtypes where there are
// elements, out= tensors whose elements share memory. Strides where operands are converted first.

#include <vector>

#include "fake_tensor/sweep.h"

namespace ddpopt {
namespace {

c10::IValue Number(double n) { return c10::IValue(n); }
c10::IValue Number(int64_t n) { return c10::IValue(n); }
c10::IValue Imaginary() { return c10::IValue(c10::complex<double>(1, 0.5)); }
at::Tensor Bool(at::IntArrayRef sizes) { return NoGrad(sizes, at::kBool); }
at::Tensor Byte(at::IntArrayRef sizes) { return NoGrad(sizes, at::kByte); }

std::vector<SweepCase> Casts() {
  return {
      OpCase("add_out_of_expanded", "aten::add.out", {X(NoGrad({3, 2}), 2), As(at::kDouble, T(NoGrad({2, 2, 3})))},
             {{"out", NoGrad({0}, at::kDouble)}}),
      OpCase("eq_out_of_expanded", "aten::eq.Tensor_out", {X(Byte({3, 2}), 2), As(at::kLong, T(NoGrad({2, 2, 3})))}, {{"out", Bool({0})}}),
      OpCase("foreach_copy_of_complex", "aten::_foreach_copy_",
             {c10::List<at::Tensor>({NoGrad({2}, at::kBFloat16)}), c10::List<at::Tensor>({NoGrad({}, at::kComplexDouble)})}),
      OpCase("foreach_div_of_expanded", "aten::_foreach_div.List",
             {c10::List<at::Tensor>({X(Byte({3, 2}), 2)}), c10::List<at::Tensor>({As(at::kShort, T(NoGrad({2, 2, 3})))})}),
      OpCase("leaky_relu_backward_of_expanded", "aten::leaky_relu_backward",
             {As(at::kHalf, T(NoGrad({2, 2, 3}))), X(Byte({3, 2}), 2), Number(0.01), false}),
  };
}

std::vector<SweepCase> Numbers() {
  return {
      Rejected(OpCase("addmm_byte", "aten::addmm", {Byte({2, 2}), Byte({2, 3}), Byte({3, 2})}, {{"beta", Number(-0.5)}})),
      OpCase("addmm_no_elements", "aten::addmm", {NoGrad({0, 2}), NoGrad({0, 3}), NoGrad({3, 2})}, {{"alpha", Imaginary()}}),
      OpCase("addmm_no_columns", "aten::addmm", {NoGrad({2, 2}), NoGrad({2, 0}), NoGrad({0, 2})}, {{"alpha", Imaginary()}}),
      Rejected(OpCase("addmm_scaled", "aten::addmm", {NoGrad({2, 2}), NoGrad({2, 0}), NoGrad({0, 2})}, {{"beta", Imaginary()}})),
      Rejected(OpCase("baddbmm_byte", "aten::baddbmm", {Byte({2, 2}), Byte({1, 2, 3}), Byte({1, 3, 2})}, {{"alpha", Number(-0.5)}})),
      Rejected(OpCase("addcmul_byte", "aten::addcmul", {Byte({2}), Byte({2}), Byte({2})}, {{"value", Number(-0.5)}})),
      Rejected(OpCase("foreach_addcdiv", "aten::_foreach_addcdiv.ScalarList",
                      {c10::List<at::Tensor>({NoGrad({2})}), c10::List<at::Tensor>({NoGrad({2})}), c10::List<at::Tensor>({NoGrad({2})}),
                       c10::List<at::Scalar>({c10::complex<double>(1, 0.5)})})),
      Rejected(OpCase("scatter_byte", "aten::scatter.value", {Byte({3}), Number(int64_t{0}), Long({1}), Number(-0.5)})),
      OpCase("scatter_nothing", "aten::scatter.value", {Byte({3}), Number(int64_t{0}), Long({0}), Number(-0.5)}),
      Rejected(OpCase("add_bfloat16_complex", "aten::add.Scalar", {NoGrad({2}, at::kBFloat16), Imaginary()})),
      Rejected(OpCase("add_out_fraction", "aten::add.out", {Byte({2}), Byte({2})}, {{"alpha", Number(2.0)}, {"out", NoGrad({0})}})),
      OpCase("add_out_boolean", "aten::add.out", {Bool({2}), Bool({2})}, {{"alpha", true}, {"out", NoGrad({2}, at::kInt)}}),
      Rejected(OpCase("add_out_boolean_of_integers", "aten::add.out", {Byte({2}), Byte({2})}, {{"alpha", true}, {"out", Byte({2})}})),
      Rejected(OpCase("foreach_pow_complex_half", "aten::_foreach_pow.List",
                      {c10::List<at::Tensor>({NoGrad({}, at::kComplexHalf)}), c10::List<at::Tensor>({NoGrad({}, at::kHalf)})})),
      OpCase("pow_of_one_out", "aten::pow.Scalar_out", {Number(1.0), NoGrad({2})}, {{"out", Byte({2})}}),
      Rejected(OpCase("pow_of_two_out", "aten::pow.Scalar_out", {Number(2.0), NoGrad({2})}, {{"out", Byte({2})}})),
      Rejected(OpCase("min_of_nothing_out", "aten::min.unary_out", {NoGrad({0}, at::kShort)}, {{"out", NoGrad({0}, at::kChar)}})),
      Rejected(OpCase("hash_mode", "aten::hash_tensor", {NoGrad({2})}, {{"mode", Number(int64_t{3})}})),
  };
}

std::vector<SweepCase> DtypesWithElements() {
  return {
      Rejected(OpCase("mm_bool", "aten::mm", {Bool({2, 2}), Bool({2, 2})})),
      OpCase("mm_bool_empty", "aten::mm", {Bool({2, 2}), Bool({2, 0})}),
      Rejected(OpCase("bmm_bool", "aten::bmm", {Bool({1, 2, 2}), Bool({1, 2, 2})})),
      OpCase("bmm_bool_empty", "aten::bmm", {Bool({1, 2, 2}), Bool({1, 2, 0})}),
      Rejected(OpCase("linear_out_bool", "aten::linear.out", {Bool({2, 2}), Bool({3, 2})}, {{"out", Bool({0})}})),
      Rejected(OpCase("convolution_bool", "aten::convolution",
                      {Bool({1, 1, 4, 4}), Bool({1, 1, 2, 2}), None(), Ints({1, 1}), Ints({0, 0}), Ints({1, 1}), false, Ints({0, 0}),
                       Number(int64_t{1})})),
      Rejected(OpCase("cumsum_bool", "aten::cumsum", {NoGrad({2, 2}), Number(int64_t{0})}, {{"dtype", c10::ScalarType::Bool}})),
      OpCase("cumsum_bool_empty", "aten::cumsum_", {Bool({0, 2}), Number(int64_t{0})}),
      Rejected(OpCase("clamp_bool", "aten::clamp.Tensor", {Bool({2}), Bool({2}), Bool({2})})),
      Rejected(OpCase("scatter_reduce_complex", "aten::scatter_reduce.two",
                      {NoGrad({3}, at::kComplexFloat), Number(int64_t{0}), Long({1}), NoGrad({1}, at::kComplexFloat), "amax"})),
      Rejected(OpCase("norm_dtype", "aten::norm.ScalarOpt_dtype", {NoGrad({3}), Number(2.0)}, {{"dtype", c10::ScalarType::ComplexFloat}})),
      Rejected(OpCase("norm_out", "aten::norm.out", {NoGrad({3}, at::kComplexFloat), Number(2.0), Ints({0})},
                      {{"out", NoGrad({}, at::kComplexFloat)}})),
      Rejected(OpCase("renorm_dim", "aten::renorm_", {NoGrad({2, 2}), Number(2.0), Number(int64_t{2}), Number(1.0)})),
      Rejected(OpCase("mean_out_integers", "aten::mean.out", {NoGrad({2, 2}), Ints({0})}, {{"out", Long({0})}})),
      Rejected(OpCase("index_put_scalar_mask", "aten::index_put",
                      {NoGrad({1}), c10::List<std::optional<at::Tensor>>({Bool({})}), NoGrad({}), true})),
  };
}

std::vector<SweepCase> SharedMemory() {
  return {
      OpCase("sum_out", "aten::sum.IntList_out", {NoGrad({4, 2, 3}), Ints({0})}, {{"out", X(NoGrad({3}), 2)}}),
      OpCase("any_out", "aten::any.out", {NoGrad({4, 2, 3}), Number(int64_t{0})}, {{"out", X(Bool({3}), 2)}}),
      OpCase("argmax_out", "aten::argmax.out", {NoGrad({4, 2, 3}), Number(int64_t{0})}, {{"out", X(Long({3}), 2)}}),
      OpCase("softmax_out", "aten::_softmax.out", {NoGrad({2, 3}), Number(int64_t{1}), false}, {{"out", X(NoGrad({3}), 2)}}),
      OpCase("mv_out", "aten::mv.out", {NoGrad({2, 3}), NoGrad({3})}, {{"out", X(NoGrad({}), 2)}}),
      OpCase("triu_in_place", "aten::triu_", {X(NoGrad({3}), 3)}),
      // Without columns BLAS isn't called.
      OpCase("mm_out_no_columns", "aten::mm.out", {NoGrad({2, 0}), NoGrad({0, 3})}, {{"out", X(NoGrad({3}), 2)}}),
      Rejected(OpCase("mm_out_shared", "aten::mm.out", {NoGrad({2, 1}), NoGrad({1, 3})}, {{"out", X(NoGrad({3}), 2)}})),
      OpCase("linear_out_no_columns", "aten::linear.out", {NoGrad({2, 0}), NoGrad({3, 0})}, {{"out", X(NoGrad({3}), 2)}}),
      OpCase("addmm_no_columns_in_place", "aten::addmm_", {X(NoGrad({3}), 2), NoGrad({2, 0}), NoGrad({0, 3})}, {{"beta", Number(0.0)}}),
      Rejected(OpCase("addmm_scaled_in_place", "aten::addmm_", {X(NoGrad({3}), 2), NoGrad({2, 0}), NoGrad({0, 3})})),
      OpCase("addbmm_no_columns", "aten::addbmm_", {X(NoGrad({3}), 2), NoGrad({1, 2, 0}), NoGrad({1, 0, 3})}, {{"beta", Number(0.0)}}),
      Rejected(OpCase("addbmm_no_columns_twice", "aten::addbmm_", {X(NoGrad({3}), 2), NoGrad({2, 2, 0}), NoGrad({2, 0, 3})},
                      {{"beta", Number(0.0)}})),
      Rejected(OpCase("mean_out", "aten::mean.out", {NoGrad({4, 2, 3}), Ints({0})}, {{"out", X(NoGrad({3}), 2)}})),
      Rejected(OpCase("norm_out_shared", "aten::norm.out", {NoGrad({2, 1, 3}), Number(2.0), Ints({1})}, {{"out", X(NoGrad({3}), 2)}})),
      Rejected(OpCase("as_strided_copy", "aten::as_strided_copy", {NoGrad({3}), Ints({2, 2}), Ints({2, 1})})),
      Rejected(OpCase("empty_strided", "aten::new_empty_strided", {NoGrad({3}), Ints({2, 2}), Ints({2, -4})})),
  };
}

INSTANTIATE_TEST_SUITE_P(Casts, SweepTest, ::testing::ValuesIn(Casts()), SweepName);
INSTANTIATE_TEST_SUITE_P(Numbers, SweepTest, ::testing::ValuesIn(Numbers()), SweepName);
INSTANTIATE_TEST_SUITE_P(DtypesWithElements, SweepTest, ::testing::ValuesIn(DtypesWithElements()), SweepName);
INSTANTIATE_TEST_SUITE_P(SharedMemory, SweepTest, ::testing::ValuesIn(SharedMemory()), SweepName);

}  // namespace
}  // namespace ddpopt
