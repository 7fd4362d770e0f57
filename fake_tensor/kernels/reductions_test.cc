// Reductions, order statistics, cumulative operators and searching on fakes.

#include <vector>

#include "fake_tensor/sweep.h"

namespace ddpopt {
namespace {

at::Tensor C(at::IntArrayRef sizes) { return NoGrad(sizes, at::kComplexFloat); }
c10::IValue Kind(at::ScalarType type) { return c10::IValue(type); }

std::vector<SweepCase> Reductions() {
  return {
      OpCase("var", "aten::var.correction", {T(F({4, 3})), Ints({0})}),
      OpCase("std_all", "aten::std.correction", {F({4, 3})}),
      OpCase("std_none_left", "aten::std.correction", {NoGrad({0, 3}), Ints({0})}, {{"keepdim", true}}),
      OpCase("var_complex", "aten::var.correction", {C({4, 3}), Ints({1})}),
      OpCase("std_complex_out", "aten::std.correction_out", {C({4, 3}), Ints({1})}, {{"out", NoGrad({2})}}),
      OpCase("var_mean_complex", "aten::var_mean.correction", {C({4, 3}), Ints({0})}, {{"keepdim", true}}),
      OpCase("std_mean", "aten::std_mean.correction", {F({4, 3}), Ints({-1})}),
      Rejected(OpCase("var_int", "aten::var.correction", {Long({3})})),
      Rejected(OpCase("var_dim", "aten::var.correction", {NoGrad({3}), Ints({1})})),
      Rejected(OpCase("std_half_into_float", "aten::std.correction_out", {NoGrad({3}, at::kHalf)}, {{"out", NoGrad({})}})),
      OpCase("prod", "aten::prod", {T(NoGrad({4, 3}))}),
      OpCase("prod_int", "aten::prod", {NoGrad({3}, at::kInt)}),
      OpCase("prod_dtype", "aten::prod", {NoGrad({3})}, {{"dtype", Kind(at::kDouble)}}),
      OpCase("nansum", "aten::nansum", {T(F({4, 3})), Ints({0})}),
      OpCase("nansum_int", "aten::nansum", {Long({4, 3}), Ints({1}), true}),
      Rejected(OpCase("nansum_complex", "aten::nansum", {C({3})})),
      OpCase("count_nonzero", "aten::count_nonzero", {NoGrad({4, 3})}),
      OpCase("count_nonzero_dims", "aten::count_nonzero.dim_IntList", {NoGrad({4, 3, 2}), Ints({0, 2})}),
      OpCase("trace", "aten::trace", {F({4, 3})}),
      OpCase("trace_int", "aten::trace", {NoGrad({3, 3}, at::kInt)}),
      Rejected(OpCase("trace_3d", "aten::trace", {NoGrad({2, 3, 3})})),
      OpCase("max_all", "aten::max", {T(NoGrad({4, 3}))}),
      OpCase("min_out", "aten::min.unary_out", {NoGrad({4, 3})}, {{"out", NoGrad({2}, at::kDouble)}}),
      Rejected(OpCase("max_of_nothing", "aten::max", {NoGrad({0, 3})})),
      Rejected(OpCase("max_complex", "aten::max", {C({3})})),
      OpCase("aminmax_dim", "aten::_aminmax.dim", {NoGrad({4, 3}), 1, true}),
      OpCase("aminmax_all", "aten::_aminmax", {NoGrad({4, 3})}),
  };
}

std::vector<SweepCase> OrderStatistics() {
  return {
      OpCase("median", "aten::median", {NoGrad({4, 3})}),
      OpCase("median_of_nothing", "aten::median", {NoGrad({0})}),
      OpCase("median_dim", "aten::median.dim", {T(F({4, 3})), 0}),
      OpCase("nanmedian_keepdim", "aten::nanmedian.dim", {F({4, 3}), 1, true}),
      OpCase("nanmedian_out", "aten::nanmedian.dim_values", {NoGrad({4, 3}), 1}, {{"values", NoGrad({0})}, {"indices", Long({0})}}),
      Rejected(OpCase("median_empty_dim", "aten::median.dim", {NoGrad({4, 0}), 1})),
      Rejected(OpCase("median_bool", "aten::median", {NoGrad({3}, at::kBool)})),
      Rejected(OpCase("median_indices", "aten::median.dim_values", {NoGrad({3}), 0}, {{"values", NoGrad({0})}, {"indices", NoGrad({0})}})),
      OpCase("kthvalue", "aten::kthvalue", {T(F({4, 3})), 2, 1}),
      OpCase("kthvalue_keepdim", "aten::kthvalue", {F({4, 3}), 2, 0, true}),
      OpCase("kthvalue_scalar", "aten::kthvalue", {F({}), 1}),
      OpCase("kthvalue_complex_scalar", "aten::kthvalue", {C({}), 1}),
      Rejected(OpCase("kthvalue_complex", "aten::kthvalue", {C({3}), 1})),
      Rejected(OpCase("kthvalue_complex_empty", "aten::kthvalue", {C({0, 2}), 1})),
      Rejected(OpCase("kthvalue_range", "aten::kthvalue", {NoGrad({3}), 4})),
      OpCase("mode", "aten::mode", {T(F({4, 3}))}),
      OpCase("mode_keepdim", "aten::mode", {F({4, 3}), 0, true}),
      OpCase("mode_no_rows", "aten::mode", {NoGrad({0, 3})}),
      OpCase("mode_out", "aten::mode.values", {NoGrad({4, 3}), 1}, {{"values", NoGrad({0})}, {"indices", Long({0})}}),
      OpCase("mode_scalar", "aten::mode", {NoGrad({})}),
      Rejected(OpCase("mode_empty_dim", "aten::mode", {NoGrad({3, 0}), 1})),
      OpCase("cummax", "aten::cummax", {T(F({4, 3})), 1}),
      OpCase("min_of_nothing_into_half", "aten::min.unary_out", {NoGrad({0}, at::kInt)}, {{"out", NoGrad({}, at::kHalf)}}),
      OpCase("max_of_nothing_into_half", "aten::max.unary_out", {NoGrad({0}, at::kLong)}, {{"out", NoGrad({}, at::kHalf)}}),
      OpCase("cummin_out", "aten::cummin.out", {NoGrad({4, 3}), 0}, {{"values", NoGrad({0})}, {"indices", Long({0})}}),
      Rejected(OpCase("cummax_dim", "aten::cummax", {NoGrad({3}), 1})),
      Rejected(OpCase("cummin_complex", "aten::cummin", {C({3}), 0})),
      OpCase("logcumsumexp", "aten::logcumsumexp", {T(F({4, 3})), 1}),
      OpCase("logcumsumexp_out", "aten::logcumsumexp.out", {NoGrad({4, 3}), 0}, {{"out", NoGrad({0})}}),
      Rejected(OpCase("logcumsumexp_int", "aten::logcumsumexp", {Long({3}), 0})),
  };
}

std::vector<SweepCase> Searching() {
  return {
      OpCase("searchsorted", "aten::searchsorted.Tensor", {NoGrad({5}), T(NoGrad({4, 3}))}),
      OpCase("searchsorted_rows", "aten::searchsorted.Tensor", {NoGrad({3, 5}), NoGrad({3, 2})}, {{"out_int32", true}}),
      OpCase("searchsorted_number", "aten::searchsorted.Scalar", {Long({5}), 2.5}),
      OpCase("searchsorted_sorter", "aten::searchsorted.Tensor", {NoGrad({5}), NoGrad({2})}, {{"sorter", Long({5})}}),
      OpCase("searchsorted_out", "aten::searchsorted.Tensor_out", {NoGrad({5}), NoGrad({2, 2})}, {{"out", Long({0})}}),
      Rejected(OpCase("searchsorted_side", "aten::searchsorted.Tensor", {NoGrad({5}), NoGrad({2})}, {{"right", true}, {"side", "left"}})),
      Rejected(OpCase("searchsorted_batch", "aten::searchsorted.Tensor", {NoGrad({3, 5}), NoGrad({2, 2})})),
      Rejected(OpCase("searchsorted_out_dtype", "aten::searchsorted.Tensor_out", {NoGrad({5}), NoGrad({2})}, {{"out", NoGrad({2})}})),
      Rejected(OpCase("searchsorted_sorter_shape", "aten::searchsorted.Tensor", {NoGrad({5}), NoGrad({2})}, {{"sorter", Long({4})}})),
      OpCase("bucketize", "aten::bucketize.Tensor", {T(NoGrad({4, 3})), NoGrad({5})}),
      OpCase("bucketize_number", "aten::bucketize.Scalar", {1, NoGrad({5})}, {{"out_int32", true}}),
      Rejected(OpCase("bucketize_2d", "aten::bucketize.Tensor", {NoGrad({4}), NoGrad({5, 1})})),
  };
}

INSTANTIATE_TEST_SUITE_P(Reductions, SweepTest, ::testing::ValuesIn(Reductions()), SweepName);
INSTANTIATE_TEST_SUITE_P(OrderStatistics, SweepTest, ::testing::ValuesIn(OrderStatistics()), SweepName);
INSTANTIATE_TEST_SUITE_P(Searching, SweepTest, ::testing::ValuesIn(Searching()), SweepName);

}  // namespace
}  // namespace ddpopt
