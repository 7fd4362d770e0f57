// Convolution, normalisation, pooling, padding and sampling on fakes, in the layouts that decide the results' strides.

#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "fake_tensor/sweep.h"
#include "gtest/gtest.h"

namespace ddpopt {
namespace {

using at::Tensor;

Tensor Zeros(at::IntArrayRef sizes) { return at::zeros(sizes, at::kLong); }
Tensor AsDouble(const Tensor& t) { return As(at::kDouble, t); }
Tensor AsBFloat16(const Tensor& t) { return As(at::kBFloat16, t); }
// Channels-last of one spatial dimension.
Tensor ChannelsLast1d(at::IntArrayRef sizes) { return T(T(F(sizes)).detach().contiguous().requires_grad_()); }

std::vector<SweepCase> Convolutions() {
  std::vector<SweepCase> cases;
  struct Layout {
    const char* name;
    Tensor input, weight;
  };
  // 3 → 4 channels, or 4 → 4 in two groups.
  const Layout layouts[] = {
      {"plain", F({2, 4, 6, 5}), F({4, 2, 3, 3})},
      {"input_last", ChannelsLast({2, 4, 6, 5}), F({4, 2, 3, 3})},
      {"weight_last", F({2, 4, 6, 5}), ChannelsLast({4, 2, 3, 3})},
      {"one_image", ChannelsLast({1, 4, 6, 5}), F({4, 2, 3, 3})},
      {"double", AsDouble(F({2, 4, 6, 5})), AsDouble(F({4, 2, 3, 3}))},
      {"double_last", AsDouble(ChannelsLast({2, 4, 6, 5})), AsDouble(F({4, 2, 3, 3}))},
      {"bfloat16_last", AsBFloat16(ChannelsLast({2, 4, 6, 5})), AsBFloat16(F({4, 2, 3, 3}))},
      {"no_images", F({0, 4, 6, 5}), ChannelsLast({4, 2, 3, 3})},
      {"volumes", F({2, 4, 4, 6, 5}), F({4, 2, 2, 3, 3})},
      {"volumes_last", ChannelsLast({2, 4, 4, 6, 5}), F({4, 2, 2, 3, 3})},
      {"one_volume_last", ChannelsLast({1, 4, 4, 6, 5}), F({4, 2, 2, 3, 3})},
      {"volumes_double", AsDouble(ChannelsLast({2, 4, 4, 6, 5})), AsDouble(F({4, 2, 2, 3, 3}))},
      {"lines", F({2, 4, 7}), F({4, 2, 3})},
      {"lines_last", ChannelsLast1d({2, 4, 7}), F({4, 2, 3})},
      {"lines_weight_last", F({2, 4, 7}), ChannelsLast1d({4, 2, 3})},
      {"line_double_weight_last", AsDouble(F({1, 4, 7})), AsDouble(ChannelsLast1d({4, 2, 3}))},
  };
  const auto add = [&](const std::string& name, const Layout& layout, int64_t stride, int64_t padding, int64_t dilation, bool transposed,
                       int64_t output_padding) {
    cases.push_back(OpCase(
        absl::StrCat("convolution_", layout.name, name), "aten::convolution",
        {layout.input, layout.weight, None(), Ints({stride}), Ints({padding}), Ints({dilation}), transposed, Ints({output_padding}), 2}));
  };
  for (const Layout& layout : layouts) {
    add("", layout, 1, 0, 1, false, 0);
    add("_strided", layout, 2, 1, 1, false, 0);
    add("_dilated", layout, 1, 2, 2, false, 0);
    add("_transposed", layout, 1, 0, 1, true, 0);
    if (layout.input.size(0) != 0) add("_transposed_padded", layout, 2, 1, 1, true, 1);
  }
  const Tensor input = F({2, 4, 6, 5});
  const Tensor weight = F({4, 4, 3, 3});
  const auto call = [&](const char* name, std::vector<c10::IValue> first, int64_t stride, int64_t padding, int64_t groups) {
    first.insert(first.end(), {Ints({stride}), Ints({padding}), Ints({1}), false, Ints({0}), groups});
    return OpCase(absl::StrCat("convolution_", name), "aten::convolution", std::move(first));
  };
  cases.push_back(call("bias", {input, weight, F({4})}, 1, 0, 1));
  cases.push_back(Rejected(call("short_bias", {input, weight, F({3})}, 1, 0, 1)));
  cases.push_back(Rejected(call("other_dtype", {input, AsDouble(weight), None()}, 1, 0, 1)));
  cases.push_back(Rejected(call("large_kernel", {input, F({4, 4, 7, 3}), None()}, 1, 0, 1)));
  cases.push_back(Rejected(call("no_stride", {input, weight, None()}, 0, 0, 1)));
  cases.push_back(Rejected(call("negative_padding", {input, weight, None()}, 1, -1, 1)));
  cases.push_back(Rejected(call("no_groups", {input, weight, None()}, 1, 0, 0)));
  cases.push_back(Rejected(call("odd_groups", {input, weight, None()}, 1, 0, 3)));
  cases.push_back(Rejected(call("other_rank", {F({4, 6, 5}), weight, None()}, 1, 0, 1)));

  // Dilations of 0.
  const auto undilated = [&](const char* name, Tensor x, Tensor kernel, bool transposed) {
    return OpCase(absl::StrCat("convolution_undilated", name), "aten::convolution",
                  {x, kernel, None(), Ints({1}), Ints({0}), Ints({0}), transposed, Ints({0}), 1});
  };
  cases.push_back(undilated("", NoGrad({2, 4, 6, 5}), NoGrad({4, 4, 1, 1}), true));
  cases.push_back(Rejected(undilated("_forward", NoGrad({2, 4, 6, 5}), NoGrad({4, 4, 1, 1}), false)));
  cases.push_back(Rejected(undilated("_volumes", NoGrad({2, 4, 4, 6, 5}), NoGrad({4, 4, 1, 1, 1}), true)));
  const auto backward = [&](const char* name, Tensor grad, Tensor x, Tensor kernel, int64_t stride, int64_t dilation, bool transposed) {
    return OpCase(absl::StrCat("convolution_backward", name), "aten::convolution_backward",
                  {grad, x, kernel, None(), Ints({stride}), Ints({0}), Ints({dilation}), transposed, Ints({0}), 1,
                   Bools({true, true, false})});
  };
  cases.push_back(backward("_undilated", NoGrad({2, 4, 4, 3}), NoGrad({2, 4, 6, 5}), NoGrad({4, 4, 3, 3}), 1, 0, false));
  cases.push_back(
      Rejected(backward("_undilated_shape", NoGrad({2, 4, 6, 5}), NoGrad({2, 4, 6, 5}), NoGrad({4, 4, 3, 3}), 1, 0, false)));
  cases.push_back(
      Rejected(backward("_undilated_volumes", NoGrad({2, 4, 2, 4, 3}), NoGrad({2, 4, 4, 6, 5}), NoGrad({4, 4, 3, 3, 3}), 1, 0, false)));
  // From 14 or 13 by 12 or 11 follow 6 by 5.
  cases.push_back(backward("_transposed_larger", NoGrad({2, 4, 14, 12}), NoGrad({2, 4, 6, 5}), NoGrad({4, 4, 3, 3}), 2, 1, true));
  cases.push_back(
      Rejected(backward("_transposed_large", NoGrad({2, 4, 15, 12}), NoGrad({2, 4, 6, 5}), NoGrad({4, 4, 3, 3}), 2, 1, true)));

  // The kernels below it.
  const Tensor plain = NoGrad({2, 4, 6, 5});
  const Tensor kernel = NoGrad({4, 4, 3, 3});
  const Tensor volume = NoGrad({2, 4, 4, 6, 5});
  const Tensor cube = NoGrad({4, 4, 2, 3, 3});
  const Tensor last = ChannelsLast({2, 4, 6, 5}).detach();
  cases.push_back(OpCase("slow_conv2d", "aten::_slow_conv2d_forward", {last, kernel, Ints({3, 3}), None(), Ints({1, 1}), Ints({0, 0})}));
  cases.push_back(OpCase("slow_conv2d_out", "aten::_slow_conv2d_forward.output",
                         {plain, kernel, Ints({3, 3}), None(), Ints({1, 1}), Ints({0, 0})}, {{"output", NoGrad({0})}}));
  cases.push_back(OpCase("slow_conv2d_backward", "aten::_slow_conv2d_backward.output_mask",
                         {NoGrad({2, 4, 4, 3}), plain, kernel, Ints({3, 3}), Ints({1, 1}), Ints({0, 0}), Bools({true, true, true})}));
  cases.push_back(
      Rejected(OpCase("slow_conv2d_backward_layout", "aten::_slow_conv2d_backward.output_mask",
                      {NoGrad({2, 4, 4, 3}), last, kernel, Ints({3, 3}), Ints({1, 1}), Ints({0, 0}), Bools({true, true, true})})));
  cases.push_back(OpCase("slow_conv2d_backward_out", "aten::_slow_conv2d_backward.grad_input",
                         {NoGrad({2, 4, 4, 3}), plain, kernel, Ints({3, 3}), Ints({1, 1}), Ints({0, 0})},
                         {{"grad_input", NoGrad({0})}, {"grad_weight", NoGrad({0})}, {"grad_bias", NoGrad({0})}}));
  cases.push_back(
      OpCase("slow_conv3d", "aten::slow_conv3d_forward", {volume, cube, Ints({2, 3, 3}), None(), Ints({1, 1, 1}), Ints({0, 0, 0})}));
  cases.push_back(OpCase("slow_conv_dilated2d", "aten::slow_conv_dilated2d", {last, kernel, Ints({3, 3})}));
  cases.push_back(OpCase("slow_conv_dilated2d_unbatched", "aten::slow_conv_dilated2d", {NoGrad({4, 6, 5}), kernel, Ints({3, 3})}));
  cases.push_back(OpCase("slow_conv_dilated3d", "aten::slow_conv_dilated3d", {volume, cube, Ints({2, 3, 3})}));
  // May give nothing, but not less.
  cases.push_back(OpCase("slow_conv_dilated2d_nothing", "aten::slow_conv_dilated2d", {NoGrad({2, 4, 2, 5}), kernel, Ints({3, 3})}));
  cases.push_back(
      Rejected(OpCase("slow_conv_dilated2d_less", "aten::slow_conv_dilated2d", {NoGrad({2, 4, 1, 5}), kernel, Ints({3, 3})})));
  cases.push_back(OpCase("slow_conv_transpose2d", "aten::slow_conv_transpose2d", {last, kernel, Ints({3, 3})}));
  cases.push_back(OpCase("slow_conv_transpose2d_unbatched", "aten::slow_conv_transpose2d",
                         {T(NoGrad({4, 5, 6})), NoGrad({4, 2, 3, 3}), Ints({3, 3})}));
  // Its storage keeps the size of the input.
  cases.push_back(OpCase("slow_conv_transpose3d", "aten::slow_conv_transpose3d", {volume, NoGrad({4, 1, 1, 1, 1}), Ints({1, 1, 1})}));
  cases.push_back(
      OpCase("mkldnn_convolution", "aten::mkldnn_convolution", {last, kernel, None(), Ints({0, 0}), Ints({1, 1}), Ints({1, 1}), 1}));
  return cases;
}

std::vector<SweepCase> Norms() {
  std::vector<SweepCase> cases;
  const auto batch = [&](const char* name, const char* op, Tensor input, at::ScalarType dtype, std::vector<c10::IValue> rest) {
    const int64_t c = input.size(1);
    std::vector<c10::IValue> args = {input, As(dtype, F({c})), As(dtype, F({c})), NoGrad({c}, dtype), NoGrad({c}, dtype)};
    args.insert(args.end(), rest.begin(), rest.end());
    return OpCase(name, op, std::move(args));
  };
  cases.push_back(batch("batch_norm", "aten::native_batch_norm", ChannelsLast({2, 4, 3, 3}), at::kFloat, {true, 0.1, 1e-5}));
  cases.push_back(batch("batch_norm_eval", "aten::native_batch_norm", T(F({2, 4, 3, 3})), at::kFloat, {false, 0.1, 1e-5}));
  // A transposed input gives a contiguous result.
  cases.push_back(batch("batch_norm_transposed", "aten::native_batch_norm", T(F({2, 3, 4})), at::kFloat, {true, 0.1, 1e-5}));
  // Sizes of 1, which leave the memory format open.
  cases.push_back(batch("batch_norm_open_format", "aten::native_batch_norm", ChannelsLast({2, 1, 1, 2}), at::kFloat, {true, 0.1, 1e-5}));
  cases.push_back(batch("batch_norm_open_format_eval", "aten::native_batch_norm", ChannelsLast({1, 3, 1, 1}), at::kFloat, {false, 0.1, 1e-5}));
  cases.push_back(batch("batch_norm_mixed", "aten::native_batch_norm", AsBFloat16(F({2, 4, 3})), at::kFloat, {true, 0.1, 1e-5}));
  cases.push_back(Rejected(batch("batch_norm_double", "aten::native_batch_norm", F({2, 4, 3}), at::kDouble, {true, 0.1, 1e-5})));
  cases.push_back(Rejected(batch("batch_norm_empty", "aten::native_batch_norm", F({0, 4, 3}), at::kFloat, {true, 0.1, 1e-5})));
  cases.push_back(batch("batch_norm_legit", "aten::_native_batch_norm_legit", ChannelsLast({2, 4, 3, 3}), at::kFloat, {true, 0.1, 1e-5}));
  cases.push_back(
      OpCase("batch_norm_no_stats", "aten::_native_batch_norm_legit.no_stats", {F({2, 4, 3}), F({4}), F({4}), true, 0.1, 1e-5}));
  cases.push_back(batch("batch_norm_with_update", "aten::_batch_norm_with_update", ChannelsLast({2, 4, 3, 3}), at::kFloat, {0.1, 1e-5}));
  const Tensor x = NoGrad({2, 4, 3});
  const Tensor c = NoGrad({4});
  // Parameters that aren't contiguous are broadcast.
  const auto no_stats = [&](const char* name, Tensor input, Tensor weight) {
    return OpCase(absl::StrCat("batch_norm_", name), "aten::_native_batch_norm_legit.no_stats",
                  {input, weight, X(NoGrad({}), 4), true, 0.1, 1e-5});
  };
  cases.push_back(no_stats("one_channel", NoGrad({2, 1, 3, 3}), NoGrad({4})));
  cases.push_back(no_stats("one_channel_transposed", T(NoGrad({2, 1, 3, 2})), c));
  cases.push_back(Rejected(no_stats("broadcast", NoGrad({2, 3, 3}), NoGrad({4}))));
  cases.push_back(OpCase("batch_norm_out", "aten::native_batch_norm.out",
                         {ChannelsLast({2, 4, 3, 3}).detach(), c, c, c, c, true, 0.1, 1e-5},
                         {{"out", NoGrad({0})}, {"save_mean", NoGrad({0})}, {"save_invstd", NoGrad({0})}}));
  cases.push_back(OpCase("batch_norm_update_stats", "aten::batch_norm_update_stats", {x, c, c, 0.1}));
  cases.push_back(OpCase("batch_norm_backward", "aten::batch_norm_backward",
                         {x, x, c, c, c, c, c, true, 1e-5, Bools({true, false, true}), NoGrad({0}, at::kByte)}));

  cases.push_back(OpCase("layer_norm_mixed", "aten::native_layer_norm", {AsBFloat16(F({2, 3, 4})), Ints({4}), F({4}), F({4}), 1e-5}));
  cases.push_back(Rejected(OpCase("layer_norm_shape", "aten::native_layer_norm", {F({2, 3, 4}), Ints({3}), None(), None(), 1e-5})));
  cases.push_back(OpCase("group_norm", "aten::native_group_norm", {ChannelsLast({2, 4, 3, 3}), F({4}), F({4}), 2, 4, 9, 2, 1e-5}));
  cases.push_back(OpCase("group_norm_mixed", "aten::native_group_norm", {AsBFloat16(F({2, 4, 3, 3})), F({4}), F({4}), 2, 4, 9, 2, 1e-5}));
  cases.push_back(OpCase("group_norm_no_images", "aten::native_group_norm", {Long({0, 4, 3}), None(), None(), 0, 4, 3, 2, 1e-5}));
  cases.push_back(OpCase("group_norm_none_of_them", "aten::native_group_norm", {Long({2, 4, 3}), None(), None(), 0, 4, 3, 2, 1e-5}));
  cases.push_back(Rejected(OpCase("group_norm_integers", "aten::native_group_norm", {Long({2, 4, 3}), None(), None(), 2, 4, 3, 2, 1e-5})));
  cases.push_back(Rejected(OpCase("group_norm_size", "aten::native_group_norm", {F({2, 4, 3, 3}), F({4}), F({4}), 2, 4, 8, 2, 1e-5})));
  cases.push_back(OpCase("weight_norm_first", "aten::_weight_norm_interface", {T(NoGrad({4, 3, 5})), NoGrad({4, 1, 1}), 0}));
  cases.push_back(OpCase("weight_norm_last", "aten::_weight_norm_interface", {F({4, 3, 5}), F({1, 1, 5}), 2}));
  cases.push_back(OpCase("weight_norm_bfloat16", "aten::_weight_norm_interface", {AsBFloat16(F({4, 3})), AsBFloat16(F({4, 1})), 0}));
  cases.push_back(Rejected(OpCase("weight_norm_middle", "aten::_weight_norm_interface", {F({4, 3, 5}), F({1, 3, 1}), 1})));
  return cases;
}

std::vector<SweepCase> Windows() {
  std::vector<SweepCase> cases;
  const Tensor images[] = {F({2, 4, 6, 6}), ChannelsLast({2, 4, 6, 6}), T(F({4, 6, 6}))};
  const Tensor volumes[] = {F({2, 4, 4, 6, 6}), ChannelsLast({2, 4, 4, 6, 6}), T(F({4, 4, 6, 6}))};
  const char* const layouts[] = {"", "_last", "_unbatched"};
  const auto add = [&](const char* name, int i, const char* op, std::vector<c10::IValue> args) {
    cases.push_back(OpCase(absl::StrCat(name, layouts[i]), op, std::move(args)));
  };
  for (int i = 0; i < 3; ++i) {
    add("adaptive_avg_pool2d", i, "aten::_adaptive_avg_pool2d", {images[i], Ints({2, 3})});
    add("adaptive_avg_pool3d", i, "aten::_adaptive_avg_pool3d", {volumes[i], Ints({2, 3, 1})});
    add("max_pool3d", i, "aten::max_pool3d_with_indices", {volumes[i], Ints({2}), Ints({2, 1, 2}), Ints({1}), Ints({1}), true});
    add("reflection_pad2d", i, "aten::reflection_pad2d", {images[i], Ints({1, 2, -1, 3})});
    add("reflection_pad3d", i, "aten::reflection_pad3d", {volumes[i], Ints({1, 2, -1, 3, 0, 1})});
    add("replication_pad2d", i, "aten::replication_pad2d", {images[i], Ints({1, 2, -1, 3})});
    add("replication_pad3d", i, "aten::replication_pad3d", {volumes[i], Ints({1, 2, -1, 3, 0, 1})});
    add("im2col", i, "aten::im2col", {images[i], Ints({2, 3}), Ints({1, 2}), Ints({0, 1}), Ints({2, 1})});
    const Tensor image_indices = Zeros(images[i].sizes());
    add("max_unpool2d", i, "aten::max_unpool2d", {images[i].detach(), image_indices, Ints({8, 9})});
    add("max_unpool3d", i, "aten::max_unpool3d",
        {volumes[i].detach(), Zeros(volumes[i].sizes()), Ints({8, 9, 9}), Ints({2, 2, 2}), Ints({0, 0, 0})});
  }
  cases.push_back(
      OpCase("adaptive_avg_pool2d_out", "aten::adaptive_avg_pool2d.out", {images[1].detach(), Ints({2, 3})}, {{"out", NoGrad({0})}}));
  cases.push_back(
      OpCase("adaptive_avg_pool3d_out", "aten::adaptive_avg_pool3d.out", {volumes[1].detach(), Ints({2, 3, 1})}, {{"out", NoGrad({0})}}));
  cases.push_back(OpCase("max_pool3d_out", "aten::max_pool3d_with_indices.out", {volumes[1].detach(), Ints({2})},
                         {{"out", NoGrad({0})}, {"indices", Long({0})}}));
  // Without a batch.
  const Tensor channels_last = NoGrad({4, 6, 6, 4}).permute({3, 0, 1, 2});
  cases.push_back(OpCase("max_pool3d_unbatched_last", "aten::max_pool3d_with_indices", {channels_last, Ints({2})}));
  cases.push_back(OpCase("max_pool3d_unbatched_last_out", "aten::max_pool3d_with_indices.out", {channels_last, Ints({2})},
                         {{"out", NoGrad({4, 2, 3, 3})}, {"indices", Long({0})}}));
  // Dtypes where there are no elements.
  cases.push_back(OpCase("max_unpool2d_nothing", "aten::max_unpool2d", {Long({2, 5, 3}), Zeros({2, 5, 3}), Ints({0, 5})}));
  cases.push_back(OpCase("max_unpool3d_nothing", "aten::max_unpool3d",
                         {Long({3, 2, 2, 2}), Zeros({3, 2, 2, 2}), Ints({0, 4, 4}), Ints({2, 2, 2}), Ints({0, 0, 0})}));
  cases.push_back(OpCase("fractional_max_pool2d_nothing", "aten::fractional_max_pool2d",
                         {Long({2, 4, 6, 6}), Ints({2, 2}), Ints({0, 1}), Zeros({2, 4, 2})}));
  cases.push_back(OpCase("fractional_max_pool3d_nothing", "aten::fractional_max_pool3d",
                         {Long({2, 4, 6, 6, 6}), Ints({2, 2, 2}), Ints({1, 0, 1}), Zeros({2, 4, 3})}));
  cases.push_back(Rejected(OpCase("fractional_max_pool2d_integers", "aten::fractional_max_pool2d",
                                  {Long({2, 4, 6, 6}), Ints({2, 2}), Ints({1, 1}), Zeros({2, 4, 2})})));
  cases.push_back(Rejected(OpCase("max_unpool2d_integers", "aten::max_unpool2d", {Long({2, 5, 3}), Zeros({2, 5, 3}), Ints({5, 5})})));
  cases.push_back(OpCase("max_unpool3d_out_nothing", "aten::max_unpool3d.out",
                         {NoGrad({0, 2, 2, 2, 2}), Zeros({0, 2, 2, 2, 2}), Ints({4, 4, 4}), Ints({2, 2, 2}), Ints({0, 0, 0})},
                         {{"out", Long({0, 2, 4, 4, 4})}}));
  cases.push_back(OpCase("im2col_out_nothing", "aten::im2col.out",
                         {NoGrad({0, 4, 6, 6}), Ints({2, 2}), Ints({1, 1}), Ints({0, 0}), Ints({2, 2})}, {{"out", Long({0, 16, 9})}}));
  cases.push_back(OpCase("col2im_out_nothing", "aten::col2im.out",
                         {NoGrad({0, 16, 9}), Ints({6, 6}), Ints({2, 2}), Ints({1, 1}), Ints({0, 0}), Ints({2, 2})},
                         {{"out", Long({0, 4, 6, 6})}}));
  cases.push_back(Rejected(OpCase("adaptive_avg_pool2d_empty", "aten::_adaptive_avg_pool2d", {F({2, 4, 0, 6}), Ints({2, 3})})));
  cases.push_back(Rejected(OpCase("max_pool3d_padding", "aten::max_pool3d_with_indices", {volumes[0], Ints({2}), Ints({2}), Ints({2})})));
  cases.push_back(Rejected(OpCase("max_pool3d_rank", "aten::max_pool3d_with_indices", {F({6, 6}), Ints({2})})));
  cases.push_back(Rejected(OpCase("reflection_pad2d_large", "aten::reflection_pad2d", {images[0], Ints({6, 0, 0, 0})})));
  cases.push_back(Rejected(OpCase("replication_pad2d_backward_shape", "aten::replication_pad2d_backward",
                                  {NoGrad({2, 4, 7, 8}), NoGrad({2, 4, 6, 6}), Ints({1, 0, 0, 0})})));
  cases.push_back(OpCase("fractional_max_pool3d_backward", "aten::fractional_max_pool3d_backward",
                         {NoGrad({2, 4, 2, 2, 2}), volumes[1].detach(), Ints({2, 2, 2}), Ints({2, 2, 2}), Zeros({2, 4, 2, 2, 2})}));
  cases.push_back(OpCase("grid_sampler_2d", "aten::grid_sampler_2d", {images[1], F({2, 3, 5, 2}), 0, 0, false}));
  cases.push_back(OpCase("grid_sampler_2d_input_only", "aten::grid_sampler_2d_backward",
                         {NoGrad({2, 4, 3, 5}), images[0].detach(), NoGrad({2, 3, 5, 2}), 0, 0, false, Bools({true, false})}));
  cases.push_back(OpCase("grid_sampler_3d", "aten::grid_sampler_3d", {volumes[1], F({2, 3, 5, 2, 3}), 0, 0, false}));
  cases.push_back(Rejected(OpCase("grid_sampler_2d_batch", "aten::grid_sampler_2d", {images[0], F({1, 3, 5, 2}), 0, 0, false})));
  cases.push_back(OpCase("im2col_unbatched_out", "aten::im2col.out",
                         {NoGrad({4, 6, 6}), Ints({2, 2}), Ints({1, 1}), Ints({0, 0}), Ints({2, 1})}, {{"out", T(NoGrad({15, 16}))}}));
  cases.push_back(OpCase("replication_pad2d_out", "aten::replication_pad2d.out", {images[1].detach(), Ints({1, 2, 0, 0})},
                         {{"out", NoGrad({2, 4, 6, 9})}}));
  cases.push_back(OpCase("reflection_pad2d_unbatched_out", "aten::reflection_pad2d.out", {images[2].detach(), Ints({1, 2, 0, 0})},
                         {{"out", T(NoGrad({4, 9, 6}))}}));
  cases.push_back(Rejected(OpCase("max_unpool3d_out_layout", "aten::max_unpool3d.out",
                                  {NoGrad({1, 2, 2, 2}), Zeros({1, 2, 2, 2}), Ints({4, 4, 4}), Ints({2, 2, 2}), Ints({0, 0, 0})},
                                  {{"out", T(NoGrad({1, 4, 4, 4}))}})));
  cases.push_back(Rejected(
      OpCase("fractional_max_pool2d_samples", "aten::fractional_max_pool2d", {images[0], Ints({2, 2}), Ints({2, 2}), NoGrad({2, 4, 1})})));
  cases.push_back(Rejected(
      OpCase("avg_pool2d_backward_dtype", "aten::avg_pool2d_backward",
             {NoGrad({2, 4, 3, 3}, at::kDouble), NoGrad({2, 4, 6, 6}), Ints({2, 2}), Ints({2, 2}), Ints({0, 0}), false, true, None()})));
  cases.push_back(OpCase("pixel_shuffle_last", "aten::pixel_shuffle", {images[1], 2}));
  cases.push_back(OpCase("pixel_unshuffle_last", "aten::pixel_unshuffle", {images[1], 3}));
  cases.push_back(Rejected(OpCase("pixel_unshuffle_odd", "aten::pixel_unshuffle", {images[1], 4})));
  // Its storage keeps the size of the columns.
  const auto col2im = [](const char* name, int64_t columns) {
    return OpCase(name, "aten::col2im", {F({2, 12, columns}), Ints({6, 6}), Ints({2, 2}), Ints({1, 1}), Ints({0, 0}), Ints({1, 1})});
  };
  cases.push_back(col2im("col2im", 25));
  cases.push_back(Rejected(col2im("col2im_short", 24)));
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Convolutions, SweepTest, ::testing::ValuesIn(Convolutions()), SweepName);
INSTANTIATE_TEST_SUITE_P(Norms, SweepTest, ::testing::ValuesIn(Norms()), SweepName);
INSTANTIATE_TEST_SUITE_P(Windows, SweepTest, ::testing::ValuesIn(Windows()), SweepName);

}  // namespace
}  // namespace ddpopt
