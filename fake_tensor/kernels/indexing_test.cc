// Selection, filling and copies on fakes.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/List.h"
#include "ATen/ops/full.h"
#include "ATen/ops/zeros.h"
#include "fake_tensor/sweep.h"

namespace ddpopt {
namespace {

at::Tensor Bool(at::IntArrayRef sizes) { return NoGrad(sizes, at::kBool); }
at::Tensor Indices(at::IntArrayRef sizes) { return at::zeros(sizes, at::kLong); }

c10::IValue Indexed(std::vector<at::Tensor> indices) {
  c10::List<std::optional<at::Tensor>> list;
  for (const at::Tensor& index : indices) list.push_back(index.defined() ? std::optional<at::Tensor>(index) : std::nullopt);
  return list;
}

std::vector<SweepCase> Indexing() {
  return {
      OpCase("index_select_out", "aten::index_select.out", {T(NoGrad({4, 3})), 0, Indices({2})}, {{"out", NoGrad({0})}}),
      OpCase("index_select_int32", "aten::index_select", {F({4, 3}), 1, at::zeros({2}, at::kInt)}),
      Rejected(OpCase("index_select_matrix", "aten::index_select", {NoGrad({4, 3}), 0, Indices({2, 1})})),
      Rejected(OpCase("index_select_float", "aten::index_select", {NoGrad({4, 3}), 0, NoGrad({2})})),
      Rejected(OpCase("index_select_empty", "aten::index_select", {NoGrad({0, 3}), 0, Indices({2})})),
      OpCase("take", "aten::take", {F({4, 3}), T(Indices({2, 5}))}),
      OpCase("take_out", "aten::take.out", {NoGrad({4, 3}), Indices({2})}, {{"out", NoGrad({0})}}),
      Rejected(OpCase("take_int32", "aten::take", {NoGrad({4}), at::zeros({2}, at::kInt)})),
      Rejected(OpCase("take_from_nothing", "aten::take", {NoGrad({0}), Indices({2})})),
      OpCase("put", "aten::put", {NoGrad({4, 3}), Indices({2}), NoGrad({2})}),
      Rejected(OpCase("put_count", "aten::put_", {NoGrad({4}), Indices({2}), NoGrad({3})})),
      Rejected(OpCase("put_dtype", "aten::put", {NoGrad({4}), Indices({2}), Long({2})})),
      OpCase("index_fill", "aten::index_fill.int_Scalar", {T(F({4, 3})), 1, Indices({2}), 2}),
      Rejected(OpCase("index_fill_int32", "aten::index_fill_.int_Scalar", {NoGrad({4}), 0, at::zeros({2}, at::kInt), 2})),
      Rejected(OpCase("index_fill_vector", "aten::index_fill.int_Tensor", {NoGrad({4}), 0, Indices({2}), NoGrad({1})})),
      Rejected(OpCase("index_fill_complex", "aten::index_fill.int_Scalar", {NoGrad({4}), 0, Indices({2}), c10::complex<double>(0, 1)})),
      OpCase("index_add", "aten::index_add", {T(NoGrad({4, 3})), 1, Indices({2}), NoGrad({3, 2})}, {{"alpha", 2}}),
      OpCase("index_add_nothing", "aten::index_add", {NoGrad({4, 3}), 1, Indices({0}), NoGrad({4, 0})}),
      // Of several dimensions, indices into one without elements aren't looked at.
      OpCase("index_add_into_nothing", "aten::index_add", {NoGrad({0, 3}), 0, Indices({2}), NoGrad({2, 3})}),
      OpCase("index_add_into_nothing_in_place", "aten::index_add_", {NoGrad({3, 0}), 1, Indices({2}), NoGrad({3, 2})}),
      OpCase("index_add_into_nothing_out", "aten::index_add.out", {NoGrad({0, 3}), 0, Indices({2}), NoGrad({2, 3})},
             {{"out", NoGrad({1})}}),
      Rejected(OpCase("index_add_into_nothing_count", "aten::index_add", {NoGrad({0, 3}), 0, Indices({2}), NoGrad({1, 3})})),
      Rejected(OpCase("index_add_into_nothing_vector", "aten::index_add", {NoGrad({0}), 0, Indices({2}), NoGrad({2})})),
      Rejected(OpCase("index_reduce_into_nothing", "aten::index_reduce", {NoGrad({0, 3}), 0, Indices({2}), NoGrad({2, 3}), "amax"})),
      Rejected(OpCase("index_add_dtype", "aten::index_add_", {NoGrad({4}), 0, Indices({2}), Long({2})})),
      OpCase("index_reduce_nothing", "aten::index_reduce", {NoGrad({4, 3}), 1, Indices({0}), NoGrad({4, 0}), "amax"}),
      Rejected(OpCase("index_reduce_complex", "aten::index_reduce_",
                      {NoGrad({4}, at::kComplexFloat), 0, Indices({2}), NoGrad({2}, at::kComplexFloat), "prod"})),
      OpCase("index_put_broadcast", "aten::index_put", {NoGrad({4, 3}), Indexed({Indices({2})}), NoGrad({3})}),
      OpCase("index_put_two", "aten::index_put", {NoGrad({4, 3}), Indexed({Indices({2}), Indices({2})}), NoGrad({2}), true}),
      Rejected(OpCase("index_put_shape", "aten::index_put", {NoGrad({4, 3}), Indexed({Indices({2})}), NoGrad({4})})),
      Rejected(OpCase("index_put_dtype", "aten::index_put_", {NoGrad({4, 3}), Indexed({Indices({2})}), Long({2, 3})})),
      Rejected(OpCase("index_put_mask_shape", "aten::index_put", {NoGrad({4, 3}), Indexed({Bool({3})}), NoGrad({})})),
      Rejected(OpCase("index_put_float_index", "aten::index_put", {NoGrad({4, 3}), Indexed({NoGrad({2})}), NoGrad({2, 3})})),
      Rejected(OpCase("unsafe_index_mask", "aten::_unsafe_index.Tensor", {NoGrad({4}), Indexed({Bool({4})})})),
      OpCase("masked_fill", "aten::masked_fill.Scalar", {T(F({4, 3})), Bool({4}), 2}),
      OpCase("masked_fill_tensor", "aten::masked_fill.Tensor", {F({4, 3}), Bool({4, 3}), NoGrad({})}),
      Rejected(OpCase("masked_fill_int", "aten::masked_fill_.Scalar", {NoGrad({3}), Long({3}), 2})),
      Rejected(OpCase("masked_fill_grows", "aten::masked_fill_.Scalar", {NoGrad({3}), Bool({4, 3}), 2})),
      Rejected(OpCase("masked_fill_vector", "aten::masked_fill.Tensor", {NoGrad({3}), Bool({3}), NoGrad({3})})),
      OpCase("masked_scatter", "aten::masked_scatter", {T(NoGrad({4, 3})), Bool({3, 4}), NoGrad({12})}),
      Rejected(OpCase("masked_scatter_dtype", "aten::masked_scatter_", {NoGrad({3}), Bool({3}), Long({3})})),
      OpCase("masked_scatter_backward", "aten::masked_scatter_backward", {NoGrad({3}), Bool({3}), Ints({3, 2})}),
      OpCase("nonzero_static", "aten::nonzero_static", {NoGrad({4, 3})}, {{"size", 5}}),
      Rejected(OpCase("nonzero_static_size", "aten::nonzero_static", {NoGrad({4})}, {{"size", -1}})),
      OpCase("repeat_interleave_sized", "aten::repeat_interleave.Tensor", {at::full({3}, 2, at::kLong)}, {{"output_size", 6}}),
      OpCase("unfold", "aten::unfold", {F({4, 5}), 1, 3, 2}),
      OpCase("unfold_backward", "aten::unfold_backward", {NoGrad({4, 2, 3}), Ints({4, 5}), 1, 3, 2}),
      Rejected(OpCase("unfold_backward_dim", "aten::unfold_backward", {NoGrad({4, 2, 3}), Ints({4, 5}), 2, 3, 2})),
  };
}

std::vector<SweepCase> Copies() {
  return {
      OpCase("flip", "aten::flip", {T(F({4, 3})), Ints({0, 1})}),
      Rejected(OpCase("flip_twice", "aten::flip", {NoGrad({4, 3}), Ints({1, -1})})),
      OpCase("roll", "aten::roll", {T(F({4, 3})), Ints({1}), Ints({0})}),
      OpCase("roll_flat", "aten::roll", {T(F({4, 3})), Ints({1}), Ints({})}),
      OpCase("roll_two", "aten::roll", {ChannelsLast({2, 3, 4, 4}), Ints({1, -2}), Ints({2, 3})}),
      Rejected(OpCase("roll_count", "aten::roll", {NoGrad({4, 3}), Ints({1, 2}), Ints({0})})),
      OpCase("channel_shuffle", "aten::channel_shuffle", {ChannelsLast({2, 4, 3, 3}), 2}),
      OpCase("native_channel_shuffle", "aten::native_channel_shuffle", {ChannelsLast({2, 4, 3, 3}).detach(), 2}),
      OpCase("channel_shuffle_empty", "aten::channel_shuffle", {NoGrad({0, 4, 3}), 2}),
      Rejected(OpCase("channel_shuffle_groups", "aten::channel_shuffle", {NoGrad({2, 4, 3, 3}), 3})),
      OpCase("pixel_shuffle", "aten::pixel_shuffle", {ChannelsLast({2, 8, 3, 3}), 2}),
      OpCase("pixel_unshuffle", "aten::pixel_unshuffle", {ChannelsLast({2, 2, 4, 6}), 2}),
      OpCase("pixel_unshuffle_3d", "aten::pixel_unshuffle", {F({2, 4, 6}), 2}),
      Rejected(OpCase("pixel_shuffle_channels", "aten::pixel_shuffle", {NoGrad({2, 6, 3, 3}), 2})),
      OpCase("narrow_copy", "aten::narrow_copy", {T(NoGrad({4, 3})), 0, 1, 2}),
      OpCase("narrow_copy_negative_start", "aten::narrow_copy", {NoGrad({4, 3}), -1, -2, 2}),
      Rejected(OpCase("narrow_copy_beyond", "aten::narrow_copy", {NoGrad({4, 3}), 0, 3, 2})),
      Rejected(OpCase("copy_into_expanded", "aten::copy_", {X(NoGrad({3}), 4), NoGrad({4, 3})})),
      Rejected(OpCase("copy_grows", "aten::copy_", {NoGrad({3}), NoGrad({4, 3})})),
  };
}

std::vector<SweepCase> Factories() {
  return {
      OpCase("linspace_tensors", "aten::linspace.Tensor_Tensor", {NoGrad({}), NoGrad({}), 5}),
      OpCase("linspace_complex", "aten::linspace.Tensor_Scalar", {NoGrad({}, at::kComplexFloat), 2, 5}),
      OpCase("logspace_out", "aten::logspace.Scalar_Tensor_out", {0, NoGrad({}), 4, 2.0}, {{"out", NoGrad({0}, at::kDouble)}}),
      Rejected(OpCase("linspace_vector", "aten::linspace.Tensor_Tensor", {NoGrad({1}), NoGrad({}), 5})),
      Rejected(OpCase("logspace_steps", "aten::logspace.Tensor_Tensor", {NoGrad({}), NoGrad({}), -1})),
      OpCase("randperm_out", "aten::randperm.out", {5}, {{"out", Long({0})}}),
      Rejected(OpCase("randperm_byte", "aten::randperm.out", {300}, {{"out", NoGrad({0}, at::kByte)}})),
      OpCase("tril_indices_out", "aten::tril_indices.out", {3, 4, 1}, {{"out", Long({0})}}),
      OpCase("triu_indices_out", "aten::triu_indices.out", {3, 4, -1}, {{"out", NoGrad({0}, at::kInt)}}),
      Rejected(OpCase("tril_indices_float", "aten::tril_indices.out", {3, 4, 1}, {{"out", NoGrad({0})}})),
  };
}

// Where the indexed dimensions go, and in which order of memory.
std::vector<SweepCase> IndexedLayouts() {
  const at::Tensor none;
  const std::vector<std::pair<const char*, at::Tensor>> layouts = {
      {"plain", NoGrad({2, 3, 4})},
      {"transposed", T(NoGrad({2, 4, 3}))},
      {"expanded", X(NoGrad({3, 4}), 2)},
      {"last", ChannelsLast({2, 3, 4, 5})},
      {"permuted", NoGrad({4, 2, 3}).permute({1, 2, 0})},
  };
  const std::vector<std::pair<const char*, c10::IValue>> indices = {
      {"first", Indexed({Indices({5})})},
      {"second", Indexed({none, Indices({2, 2})})},
      {"adjacent", Indexed({none, Indices({2}), Indices({2})})},
      {"gap", Indexed({Indices({2}), none, Indices({2})})},
      {"scalar", Indexed({Indices({})})},
      {"nothing", Indexed({none, Indices({0})})},
  };
  std::vector<SweepCase> cases;
  for (const auto& [layout, tensor] : layouts) {
    for (const auto& [kind, index] : indices) {
      cases.push_back(OpCase(std::string("index_") + layout + "_" + kind, "aten::index.Tensor", {tensor, index}));
      cases.push_back(OpCase(std::string("unsafe_index_") + layout + "_" + kind, "aten::_unsafe_index.Tensor", {tensor, index}));
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(IndexedLayouts, SweepTest, ::testing::ValuesIn(IndexedLayouts()), SweepName);
INSTANTIATE_TEST_SUITE_P(Indexing, SweepTest, ::testing::ValuesIn(Indexing()), SweepName);
INSTANTIATE_TEST_SUITE_P(Copies, SweepTest, ::testing::ValuesIn(Copies()), SweepName);
INSTANTIATE_TEST_SUITE_P(Factories, SweepTest, ::testing::ValuesIn(Factories()), SweepName);

}  // namespace
}  // namespace ddpopt
