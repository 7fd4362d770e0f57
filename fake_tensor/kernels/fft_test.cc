// Fourier transforms, distances, histograms and segments on fakes.

#include <vector>

#include "ATen/ops/full.h"
#include "fake_tensor/sweep.h"

namespace ddpopt {
namespace {

at::Tensor C(at::IntArrayRef sizes) { return NoGrad(sizes, at::kComplexFloat); }
at::Tensor Lengths(at::IntArrayRef sizes) { return at::full(sizes, 2, at::kLong); }
c10::IValue Doubles(std::vector<double> values) { return c10::IValue(std::move(values)); }
c10::IValue Number(int64_t n) { return c10::IValue(n); }

std::vector<SweepCase> Transforms() {
  return {
      OpCase("c2c_first", "aten::_fft_c2c", {C({3, 4, 5}), Ints({0}), 0, true}),
      OpCase("c2c_middle_transposed", "aten::_fft_c2c", {T(C({3, 5, 4})), Ints({1}), 0, true}),
      OpCase("c2c_several", "aten::_fft_c2c", {C({2, 3, 4, 5}), Ints({3, 1}), 2, false}),
      OpCase("c2c_expanded", "aten::_fft_c2c", {X(C({4, 5}), 3), Ints({2, 0}), 0, true}),
      OpCase("c2c_none", "aten::_fft_c2c", {T(C({3, 4})), Ints({}), 0, true}),
      OpCase("c2c_empty", "aten::_fft_c2c", {C({2, 0, 4}), Ints({1}), 0, true}),
      Rejected(OpCase("c2c_real", "aten::_fft_c2c", {NoGrad({3}), Ints({0}), 0, true})),
      OpCase("c2c_out", "aten::_fft_c2c.out", {C({3, 4}), Ints({0}), 0, true}, {{"out", NoGrad({2}, at::kComplexDouble)}}),
      OpCase("r2c", "aten::_fft_r2c", {F({3, 4, 5}), Ints({0, 1}), 0, true}),
      OpCase("r2c_transposed", "aten::_fft_r2c", {T(F({3, 5, 4})), Ints({1, 2}), 0, true}),
      OpCase("r2c_whole", "aten::_fft_r2c", {F({3, 4, 5}), Ints({2, 0}), 1, false}),
      OpCase("r2c_empty_batch", "aten::_fft_r2c", {NoGrad({0, 4}), Ints({1}), 0, true}),
      Rejected(OpCase("r2c_empty_signal", "aten::_fft_r2c", {NoGrad({2, 0, 4}), Ints({1}), 0, true})),
      Rejected(OpCase("r2c_half", "aten::_fft_r2c", {NoGrad({4}, at::kHalf), Ints({0}), 0, true})),
      Rejected(OpCase("r2c_whole_into_real", "aten::_fft_r2c.out", {NoGrad({4}), Ints({0}), 0, false}, {{"out", NoGrad({4})}})),
      OpCase("c2r", "aten::_fft_c2r", {C({3, 4, 5}), Ints({0, 2}), 0, 8}),
      OpCase("c2r_odd", "aten::_fft_c2r", {T(C({3, 5, 4})), Ints({1}), 0, 7}),
      OpCase("c2r_out", "aten::_fft_c2r.out", {C({3, 5}), Ints({1}), 0, 8}, {{"out", T(NoGrad({8, 3}))}}),
      Rejected(OpCase("c2r_longer", "aten::_fft_c2r", {C({3, 5}), Ints({1}), 0, 20})),
      OpCase("fft_rfft2", "aten::fft_rfft2", {F({3, 4, 5})}),
      OpCase("fft_irfft", "aten::fft_irfft", {C({3, 5}), 6}),
      OpCase("fft_fftn", "aten::fft_fftn", {F({3, 4, 5}), c10::IValue(), Ints({0, 2})}),
  };
}

std::vector<SweepCase> Distances() {
  return {
      OpCase("cdist", "aten::_cdist_forward", {F({2, 3, 4}), F({1, 5, 4}), 1.0, c10::IValue()}),
      OpCase("cdist_product", "aten::_cdist_forward", {F({2, 30, 4}), F({5, 4}), 2.0, c10::IValue()}),
      OpCase("cdist_one_matrix", "aten::_cdist_forward", {T(NoGrad({4, 30})), NoGrad({5, 4}), 2.0, 1}),
      OpCase("cdist_no_columns", "aten::_cdist_forward", {NoGrad({3, 0}), NoGrad({5, 0}), 2.0, c10::IValue()}),
      Rejected(OpCase("cdist_mixed", "aten::_cdist_forward", {NoGrad({3, 4}), As(at::kDouble, NoGrad({5, 4})), 2.0, 1})),
      Rejected(OpCase("cdist_negative", "aten::_cdist_forward", {NoGrad({3, 4}), NoGrad({5, 4}), -1.0, c10::IValue()})),
      OpCase("cdist_backward", "aten::_cdist_backward", {NoGrad({2, 3, 5}), T(NoGrad({4, 3})), NoGrad({2, 5, 4}), 2.0, NoGrad({2, 3, 5})}),
      OpCase("pdist", "aten::_pdist_forward", {F({4, 3}), 2.0}),
      OpCase("pdist_one_row", "aten::_pdist_forward", {F({1, 3}), 2.0}),
      Rejected(OpCase("pdist_transposed", "aten::_pdist_forward", {T(NoGrad({3, 4})), 2.0})),
      Rejected(OpCase("pdist_backward_strided", "aten::_pdist_backward", {NoGrad({6}), T(NoGrad({3, 4})), 2.0, NoGrad({6})})),
  };
}

std::vector<SweepCase> Histograms() {
  const at::Tensor points = NoGrad({4, 2});
  return {
      OpCase("histogram_count", "aten::histogram.bin_ct", {NoGrad({4, 3}), Number(5)}, {{"weight", NoGrad({12})}}),
      OpCase("histogram_edges", "aten::histogram.bins_tensor", {NoGrad({4}), NoGrad({6})}),
      OpCase("histogram_out", "aten::histogram.bin_ct_out", {NoGrad({4}), Number(5)}, {{"hist", NoGrad({2})}, {"bin_edges", NoGrad({0})}}),
      Rejected(OpCase("histogram_weight", "aten::histogram.bin_ct", {NoGrad({4}), Number(5)}, {{"weight", NoGrad({3})}})),
      Rejected(OpCase("histogram_one_edge", "aten::histogram.bins_tensor", {NoGrad({4}), NoGrad({1})})),
      Rejected(OpCase("histogram_integers", "aten::histogram.bin_ct", {Long({4}), Number(5)})),
      Rejected(OpCase("histogram_half_without_range", "aten::histogram.bin_ct", {NoGrad({4}, at::kHalf), Number(5)})),
      OpCase("histogram_half", "aten::histogram.bin_ct", {NoGrad({4}, at::kHalf), Number(5)}, {{"range", Doubles({0, 1})}}),
      Rejected(OpCase("histogram_backwards", "aten::histogram.bin_ct", {NoGrad({4}), Number(5)}, {{"range", Doubles({1, 0})}})),
      OpCase("histogramdd_edges", "aten::_histogramdd_bin_edges", {points, Ints({2, 0})}),
      OpCase("histogramdd_counts", "aten::_histogramdd_from_bin_cts", {points, Ints({2, 3})}),
      Rejected(OpCase("histogramdd_no_bins", "aten::_histogramdd_from_bin_cts", {points, Ints({2, 0})})),
      OpCase("histc", "aten::histc", {NoGrad({4, 3}, at::kBFloat16), Number(7)}),
      Rejected(OpCase("histc_backwards", "aten::histc", {NoGrad({4}), Number(7), 2, 1})),
      OpCase("segment_lengths", "aten::segment_reduce", {F({6, 2}), "sum"}, {{"lengths", Lengths({3})}}),
      OpCase("segment_offsets", "aten::segment_reduce", {NoGrad({2, 4, 4}), "max"},
             {{"offsets", at::full({2, 3}, 0, at::kLong)}, {"axis", 1}}),
      Rejected(OpCase("segment_axis", "aten::segment_reduce", {NoGrad({6, 2}), "sum"}, {{"lengths", Lengths({3})}, {"axis", 1}})),
      Rejected(OpCase("segment_unknown", "aten::segment_reduce", {NoGrad({6}), "median"}, {{"lengths", Lengths({3})}})),
  };
}

INSTANTIATE_TEST_SUITE_P(Transforms, SweepTest, ::testing::ValuesIn(Transforms()), SweepName);
INSTANTIATE_TEST_SUITE_P(Distances, SweepTest, ::testing::ValuesIn(Distances()), SweepName);
INSTANTIATE_TEST_SUITE_P(Histograms, SweepTest, ::testing::ValuesIn(Histograms()), SweepName);

}  // namespace
}  // namespace ddpopt
