// What the CPU's kernels refuse, or take, for reasons that shapes don't tell: numbers that don't fit a dtype, dtypes where there are
// elements, out= tensors whose elements share memory. Strides where operands are converted first.

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Version.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/stack.h"
#include "ATen/ops/_neg_view.h"
#include "ATen/ops/ones.h"
#include "absl/strings/match.h"
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
      OpCase("rsub_of_expanded", "aten::rsub.Tensor", {As(at::kHalf, T(NoGrad({2, 5}))), X(Long({2}), 5)}),
      OpCase("add_relu_of_expanded", "aten::_add_relu.Tensor", {X(NoGrad({2}, at::kInt), 5), As(at::kLong, T(NoGrad({2, 5})))}),
      OpCase("rrelu_backward_of_expanded", "aten::rrelu_with_noise_backward",
             {As(at::kBFloat16, T(NoGrad({2, 5}))), NoGrad({5, 2}), X(Bool({2}), 5), Number(0.125), Number(0.25), true, false}),
      OpCase("rrelu_backward_of_short", "aten::rrelu_with_noise_backward",
             {T(NoGrad({2, 5})), X(NoGrad({2}, at::kShort), 5), NoGrad({5, 2}), Number(0.125), Number(0.25), false, false}),
      OpCase("gelu_backward_of_expanded", "aten::gelu_backward", {NoGrad({3, 2}, at::kDouble), X(NoGrad({2}), 3)}),
      OpCase("gelu_backward_of_bytes", "aten::gelu_backward", {Byte({3, 2}), NoGrad({3, 2}, at::kBFloat16)}),
      Rejected(OpCase("gelu_backward_of_dense", "aten::gelu_backward", {NoGrad({3, 2}, at::kDouble), NoGrad({3, 2})})),
      OpCase("fake_quantize_backward_broadcast", "aten::_fake_quantize_learnable_per_tensor_affine_backward",
             {NoGrad({4, 3, 1}).transpose(0, 1), NoGrad({1, 4, 3}), NoGrad({1}), NoGrad({1}), Number(int64_t{0}), Number(int64_t{255}),
              Number(1.0)}),
  };
}

std::vector<SweepCase> Numbers() {
  const at::Tensor imaginary = NoGrad({}, at::kComplexDouble);
  imaginary.unsafeGetTensorImpl()->set_wrapped_number(true);
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
      Rejected(OpCase("rsub_bfloat16_complex", "aten::rsub.Tensor", {NoGrad({2}, at::kBFloat16), NoGrad({}, at::kComplexDouble)})),
      Rejected(OpCase("dist_out_bfloat16_complex", "aten::dist.out", {NoGrad({2}, at::kBFloat16), NoGrad({}, at::kComplexDouble)},
                      {{"out", NoGrad({0}, at::kBFloat16)}})),
      Rejected(OpCase("ldexp_half_complex", "aten::ldexp.Tensor", {NoGrad({2}, at::kHalf), imaginary})),
      Rejected(OpCase("rrelu_backward_bfloat16_complex", "aten::rrelu_with_noise_backward",
                      {NoGrad({2}, at::kBFloat16), NoGrad({2}, at::kBFloat16), NoGrad({}, at::kComplexDouble), Number(0.125), Number(0.25),
                       true, false})),
      Rejected(OpCase("add_relu_range", "aten::_add_relu.Tensor", {NoGrad({}, at::kDouble), NoGrad({2})})),
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

// Dtypes that are looked at in calls without elements, or only in those with some.
std::vector<SweepCase> DtypesWithoutElements() {
  const at::Tensor complex = NoGrad({2, 2, 4, 4}, at::kComplexFloat);
  const auto slow_conv2d_backward = [&](const at::Tensor& input) {
    return OpCase(
        "slow_conv2d_backward_complex", "aten::_slow_conv2d_backward.output_mask",
        {input, input, NoGrad({2, 2, 1, 1}, at::kComplexFloat), Ints({1, 1}), Ints({1, 1}), Ints({0, 0}), Bools({false, true, false})});
  };
  const auto slow_conv_dilated2d = [](const char* name, int64_t batch) {
    return OpCase(name, "aten::slow_conv_dilated2d", {NoGrad({batch, 1, 4, 4}), NoGrad({1, 1, 2, 2}, at::kDouble), Ints({2, 2})});
  };
  return {
      Rejected(slow_conv2d_backward(complex)),
      OpCase("adaptive_avg_pool2d_out", "aten::adaptive_avg_pool2d.out", {Long({2, 3, 5}), Ints({0, 4})}, {{"out", Long({0})}}),
      Rejected(OpCase("adaptive_avg_pool3d_out", "aten::adaptive_avg_pool3d.out", {Long({0, 1, 3, 2, 4}), Ints({3, 2, 3})},
                      {{"out", Long({0})}})),
      OpCase("adaptive_avg_pool3d_out_negative", "aten::adaptive_avg_pool3d.out", {NoGrad({1, 3, 3, 3}), Ints({0, -1, 2})},
             {{"out", NoGrad({0})}}),
      Rejected(OpCase("adaptive_avg_pool3d_backward_out", "aten::adaptive_avg_pool3d_backward.grad_input",
                      {Long({0, 1, 1, 3, 1}), Long({0, 1, 1, 4, 4})}, {{"grad_input", Long({0})}})),
      slow_conv_dilated2d("slow_conv_dilated2d_no_images", 0),
      Rejected(slow_conv_dilated2d("slow_conv_dilated2d_two_dtypes", 1)),
      OpCase("replication_pad2d_backward_out", "aten::replication_pad2d_backward.grad_input",
             {NoGrad({0, 1, 9, 7}), NoGrad({0, 1, 5, 3}), Ints({2, 2, 2, 2})}, {{"grad_input", NoGrad({0}, at::kDouble)}}),
      OpCase("multi_margin_loss_backward_no_samples", "aten::multi_margin_loss_backward",
             {NoGrad({0}), NoGrad({0, 4}), Long({0}), Number(1.0), Number(1.0), NoGrad({4}, at::kDouble), Number(int64_t{0})}),
      OpCase("multilabel_margin_loss_backward_no_samples", "aten::multilabel_margin_loss_backward.grad_input",
             {NoGrad({0}), NoGrad({0, 5}), NoGrad({0, 5}), Number(int64_t{0}), NoGrad({0, 5})}, {{"grad_input", NoGrad({0})}}),
      OpCase("index_reduce_mean_of_nothing", "aten::index_reduce", {Bool({3, 2}), Number(int64_t{0}), Long({0}), Bool({0, 2}), "mean"}),
      Rejected(OpCase("fft_r2c_out_no_signal", "aten::_fft_r2c.out", {NoGrad({3, 0, 2}), Ints({1}), Number(int64_t{0}), false},
                      {{"out", NoGrad({0}, at::kComplexFloat)}})),
      Rejected(
          OpCase("sdp_choice_mask", "aten::_fused_sdp_choice", {Long({3, 5, 3, 2}), Long({3, 5, 3, 2}), Long({3, 5, 3, 2}), NoGrad({3})})),
  };
}

// Sizes that the kernels compare otherwise than shapes suggest.
std::vector<SweepCase> Sizes() {
  return {
      OpCase("slow_conv3d_groups", "aten::slow_conv3d_forward",
             {NoGrad({2, 2, 4, 4, 4}), NoGrad({4, 1, 1, 1, 1}), Ints({1, 1, 1}), None(), Ints({1, 1, 1}), Ints({0, 0, 0})}),
      Rejected(OpCase("slow_conv3d_no_groups", "aten::slow_conv3d_forward",
                      {NoGrad({2, 3, 4, 4, 4}), NoGrad({4, 2, 1, 1, 1}), Ints({1, 1, 1}), None(), Ints({1, 1, 1}), Ints({0, 0, 0})})),
      OpCase("slow_conv_transpose3d_out_unbatched", "aten::slow_conv_transpose3d.out",
             {NoGrad({1, 1, 4, 4}), NoGrad({1, 2, 1, 1, 1}), Ints({1, 1, 1}), None(), Ints({2, 1, 1})}, {{"out", T(NoGrad({2, 1, 4, 4}))}}),
      Rejected(OpCase("max_pool3d_padding", "aten::max_pool3d_with_indices",
                      {NoGrad({3, 5, 6, 6}), Ints({3, 3, 3}), Ints({}), Ints({2, 2, 2}), Ints({2, 2, 2})})),
      Rejected(OpCase("max_pool3d_unbatched_bytes", "aten::max_pool3d_with_indices",
                      {Byte({6, 6, 6, 2}).permute({3, 0, 1, 2}), Ints({2, 2, 2})})),
      OpCase("max_pool3d_unbatched_few_bytes", "aten::max_pool3d_with_indices",
             {Byte({5, 5, 5, 2}).permute({3, 0, 1, 2}), Ints({2, 2, 2})}),
      OpCase("set_larger_dtype", "aten::set.source_Tensor", {NoGrad({4}), NoGrad({2, 3}, at::kByte)}),
      OpCase("set_out_larger_dtype", "aten::set.source_Tensor_out", {NoGrad({4}), NoGrad({2, 3}, at::kByte)}, {{"out", NoGrad({4})}}),
      OpCase("batch_norm_backward_of_two_formats", "aten::batch_norm_backward",
             {ChannelsLast({3, 4, 1, 2}).detach(), NoGrad({3, 2, 1, 4}).permute({0, 3, 2, 1}), NoGrad({4}), NoGrad({4}), NoGrad({4}),
              NoGrad({4}), NoGrad({4}), false, Number(1e-5), Bools({true, true, true}), Byte({0})}),
      Rejected(OpCase("set_same_geometry", "aten::set.source_Tensor", {NoGrad({2}), NoGrad({2}, at::kByte)})),
      Rejected(OpCase(
          "group_norm_backward_rank", "aten::native_group_norm_backward",
          {NoGrad({1, 2, 3}), NoGrad({1, 2, 1, 3}).contiguous(at::MemoryFormat::ChannelsLast), NoGrad({1, 1}), NoGrad({1, 1}), None(),
           Number(int64_t{1}), Number(int64_t{2}), Number(int64_t{3}), Number(int64_t{1}), c10::List<bool>({true, true, true})})),
      OpCase("upsample_bytes_width", "aten::upsample_bilinear2d", {Byte({1, 3, 1, 3}), Ints({1, 1}), false}),
  };
}

SweepCase SdpChoice(const char* name, int64_t heads, int64_t keys, int64_t values, bool enable_gqa) {
  return OpCase(name, "aten::_fused_sdp_choice",
                {NoGrad({2, heads, 3, 4}), NoGrad({2, keys, 5, 4}), NoGrad({2, values, 5, 4}), None(), Number(0.0), false},
                {{"enable_gqa", enable_gqa}});
}
std::vector<SweepCase> Heads() {
  return {SdpChoice("sdp_choice_one_key", 2, 1, 1, false), SdpChoice("sdp_choice_two_keys", 4, 2, 2, false),
          SdpChoice("sdp_choice_grouped", 4, 2, 2, true), SdpChoice("sdp_choice_fewer_values", 4, 2, 1, true)};
}

SweepCase ConvolutionBackward(const char* name, const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight,
                              int64_t dilation, bool transposed, std::initializer_list<bool> mask) {
  return OpCase(name, "aten::convolution_backward",
                {grad_output, input, weight, Ints({weight.size(transposed ? 1 : 0)}), Ints({1, 1}), Ints({0, 0}),
                 Ints({dilation, dilation}), transposed, Ints({0, 0}), Number(int64_t{1}), Bools(mask)});
}
// Channels last, of one channel.
at::Tensor LastWithOneChannel() { return at::ones({1, 5, 5, 1}, at::kDouble).permute({0, 3, 1, 2}); }

std::vector<SweepCase> Images() {
  const auto doubles = [](at::IntArrayRef sizes) { return NoGrad(sizes, at::kDouble); };
  return {
      Rejected(ConvolutionBackward("convolution_backward_dilated_images", doubles({1, 2, 3, 3}), doubles({2, 1, 5, 5}),
                                   doubles({2, 1, 2, 2}), 2, false, {false, false, true})),
      Rejected(ConvolutionBackward("convolution_backward_transposed_images", doubles({1, 2, 6, 6}), doubles({2, 1, 5, 5}),
                                   doubles({1, 2, 2, 2}), 1, true, {true, false, false})),
      ConvolutionBackward("convolution_backward_transposed_more_images", doubles({3, 2, 6, 6}), doubles({2, 1, 5, 5}),
                          doubles({1, 2, 2, 2}), 1, true, {true, true, true}),
      Rejected(ConvolutionBackward("convolution_backward_dilated_bools", Bool({1, 2, 3, 3}), doubles({1, 1, 5, 5}), doubles({2, 1, 2, 2}),
                                   2, false, {false, false, true})),
      Rejected(ConvolutionBackward("convolution_backward_transposed_layout", doubles({1, 2, 6, 6}), LastWithOneChannel(),
                                   doubles({2, 2, 2, 1}).permute({3, 2, 0, 1}), 1, true, {false, true, false})),
  };
}

// The dtypes that oneDNN multiplies, of which the processor may have all.
bool HasHalves() {
  torch::jit::Stack stack;
  c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_is_mkldnn_fp16_supported", "").callBoxed(&stack);
  return stack.back().toBool();
}
std::vector<SweepCase> OneDnnDtypes() {
  if (!absl::StartsWith(at::get_cpu_capability(), "AVX512")) return {};
  const auto with_halves = [](SweepCase c) { return HasHalves() ? c : Rejected(std::move(c)); };
  const auto backward = [](const char* name, at::ScalarType grad, at::ScalarType weight, bool transposed, bool of_input) {
    return ConvolutionBackward(name, NoGrad(transposed ? at::IntArrayRef({2, 2, 6, 6}) : at::IntArrayRef({2, 2, 4, 4}), grad),
                               NoGrad({2, 2, 5, 5}, at::kBFloat16), NoGrad({2, 2, 2, 2}, weight), 1, transposed,
                               {of_input, !of_input, false});
  };
  return {
      backward("convolution_backward_weight_half", at::kBFloat16, at::kHalf, false, false),
      backward("convolution_backward_weight_complex", at::kBFloat16, at::kComplexFloat, true, false),
      Rejected(backward("convolution_backward_weight_grad", at::kFloat, at::kBFloat16, false, false)),
      backward("convolution_backward_input_half", at::kFloat, at::kHalf, false, true),
      backward("convolution_backward_input_byte", at::kBFloat16, at::kByte, false, true),
      backward("convolution_backward_input_char", at::kChar, at::kChar, false, true),
      with_halves(backward("convolution_backward_input_bfloat16_half", at::kBFloat16, at::kHalf, false, true)),
      with_halves(backward("convolution_backward_input_of_half", at::kHalf, at::kHalf, false, true)),
      // oneDNN's kernel for the bias makes the weight's gradient too.
      ConvolutionBackward("convolution_backward_halves", NoGrad({2, 2, 4, 4}, at::kHalf), NoGrad({2, 2, 5, 5}, at::kHalf),
                          NoGrad({2, 2, 2, 2}, at::kHalf), 1, false, {false, false, true}),
      with_halves(OpCase("gelu_backward_bfloat16_half", "aten::gelu_backward", {NoGrad({3, 2}, at::kHalf), NoGrad({3, 2}, at::kBFloat16)})),
      backward("convolution_backward_transposed_float", at::kFloat, at::kFloat, true, true),
      Rejected(backward("convolution_backward_transposed_mixed", at::kBFloat16, at::kFloat, true, true)),
  };
}

// Of bytes, with vector instructions.
std::vector<SweepCase> Vectorized() {
  if (at::get_cpu_capability() == "DEFAULT") return {};
  return {
      Rejected(OpCase("upsample_bytes_height", "aten::upsample_bilinear2d", {Byte({1, 3, 2, 3}), Ints({1, 1}), false})),
      Rejected(OpCase("upsample_bytes_antialias", "aten::_upsample_bicubic2d_aa", {Byte({2, 3, 3, 1}), Ints({1, 1}), false})),
  };
}

// Kernels that give an operand another shape.
std::vector<SweepCase> Grown() {
  const auto complex = [](at::IntArrayRef sizes) { return NoGrad(sizes, at::kComplexFloat); };
  const auto transposed = [](const char* name, const at::Tensor& input, std::vector<std::pair<std::string, c10::IValue>> out = {}) {
    const char* op = out.empty() ? "aten::slow_conv_transpose2d" : "aten::slow_conv_transpose2d.out";
    return OpCase(name, op, {input, NoGrad({2, 1, 1, 1}), Ints({1, 1}), None(), Ints({1, 2}), Ints({0, 0}), Ints({0, 0}), Ints({1, 1})},
                  std::move(out));
  };
  return {
      OpCase("addbmm_of_conjugate", "aten::addbmm_", {complex({2, 1}).conj(), complex({2, 2, 3}), complex({2, 3, 3}).conj()}),
      OpCase("addbmm_of_negative", "aten::addbmm_", {at::_neg_view(complex({1}).conj()), complex({2, 2, 3}), complex({2, 3, 3})}),
      Rejected(OpCase("addbmm_of_conjugate_shape", "aten::addbmm_", {complex({2, 4}).conj(), complex({2, 2, 3}), complex({2, 3, 3})})),
      OpCase("resize_as_of_conjugate", "aten::resize_as_", {complex({3}).conj(), complex({5, 4})}),
      OpCase("resize_as_of_negative", "aten::resize_as_", {at::_neg_view(NoGrad({2, 2})), NoGrad({3, 1, 3})}),
      OpCase("resize_as_of_conjugate_smaller", "aten::resize_as_", {complex({3, 2}).conj(), complex({2}).conj()}),
      transposed("slow_conv_transpose2d_unbatched", NoGrad({2, 6, 4})),
      transposed("slow_conv_transpose2d_unbatched_copied", T(NoGrad({2, 4, 6}))),
      transposed("slow_conv_transpose2d_unbatched_view", NoGrad({4, 6, 4}).slice(0, 2)),
      transposed("slow_conv_transpose2d_out", NoGrad({2, 6, 4}), {{"out", NoGrad({0})}}),
      transposed("slow_conv_transpose2d_out_copied", T(NoGrad({2, 4, 6})), {{"out", NoGrad({1, 6, 14}).slice(2, 0, 14, 2)}}),
      transposed("slow_conv_transpose2d_out_batched", NoGrad({1, 2, 6, 4}), {{"out", NoGrad({1, 1, 6, 14}).slice(3, 0, 14, 2)}}),
  };
}

std::vector<SweepCase> SharedMemory() {
  const at::Tensor nothing = NoGrad({0, 2});
  return {
      OpCase("sum_out", "aten::sum.IntList_out", {NoGrad({4, 2, 3}), Ints({0})}, {{"out", X(NoGrad({3}), 2)}}),
      // In short floating-point numbers the sums are copied, unless one loop adds up each.
      Rejected(OpCase("sum_out_bfloat16", "aten::sum.IntList_out", {NoGrad({2, 3, 3}, at::kBFloat16), Ints({2})},
                      {{"out", X(NoGrad({3}, at::kBFloat16), 2)}})),
      OpCase("sum_out_half_one_loop", "aten::sum.IntList_out", {NoGrad({2, 3, 3}, at::kHalf), Ints({2})},
             {{"out", T(X(NoGrad({2}, at::kHalf), 3))}}),
      Rejected(OpCase("nansum_out_bytes", "aten::nansum.out", {Byte({2, 3, 3}), Ints({2})}, {{"out", X(NoGrad({3}, at::kHalf), 2)}})),
      Rejected(OpCase("index_add_out_source", "aten::index_add.out", {NoGrad({3, 2}), Number(int64_t{0}), Long({0}), nothing},
                      {{"out", nothing}})),
      Rejected(OpCase("index_reduce_out_source", "aten::index_reduce.out", {NoGrad({3, 2}), Number(int64_t{0}), Long({0}), nothing, "amax"},
                      {{"out", nothing}})),
      OpCase("index_add_out_nothing", "aten::index_add.out", {NoGrad({3, 2}), Number(int64_t{0}), Long({0}), NoGrad({0, 2})},
             {{"out", NoGrad({3, 2})}}),
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
      Rejected(OpCase(
          "baddbmm_conjugate_in_place", "aten::baddbmm_",
          {X(NoGrad({2, 2}, at::kComplexFloat), 3).conj(), NoGrad({3, 2, 4}, at::kComplexFloat), NoGrad({3, 4, 2}, at::kComplexFloat)})),
      Rejected(OpCase("multinomial_out", "aten::multinomial.out", {NoGrad({4}), Number(int64_t{2}), false}, {{"out", X(Long({}), 2)}})),
      OpCase("multinomial_out_of_one", "aten::multinomial.out", {NoGrad({2, 4}), Number(int64_t{1}), false}, {{"out", X(Long({1}), 2)}}),
      Rejected(OpCase("empty_strided", "aten::new_empty_strided", {NoGrad({3}), Ints({2, 2}), Ints({2, -4})})),
  };
}

INSTANTIATE_TEST_SUITE_P(Casts, SweepTest, ::testing::ValuesIn(Casts()), SweepName);
INSTANTIATE_TEST_SUITE_P(Numbers, SweepTest, ::testing::ValuesIn(Numbers()), SweepName);
INSTANTIATE_TEST_SUITE_P(DtypesWithElements, SweepTest, ::testing::ValuesIn(DtypesWithElements()), SweepName);
INSTANTIATE_TEST_SUITE_P(DtypesWithoutElements, SweepTest, ::testing::ValuesIn(DtypesWithoutElements()), SweepName);
INSTANTIATE_TEST_SUITE_P(Sizes, SweepTest, ::testing::ValuesIn(Sizes()), SweepName);
INSTANTIATE_TEST_SUITE_P(Heads, SweepTest, ::testing::ValuesIn(Heads()), SweepName);
INSTANTIATE_TEST_SUITE_P(Images, SweepTest, ::testing::ValuesIn(Images()), SweepName);
INSTANTIATE_TEST_SUITE_P(OneDnnDtypes, SweepTest, ::testing::ValuesIn(OneDnnDtypes()), SweepName);
INSTANTIATE_TEST_SUITE_P(Vectorized, SweepTest, ::testing::ValuesIn(Vectorized()), SweepName);
INSTANTIATE_TEST_SUITE_P(Grown, SweepTest, ::testing::ValuesIn(Grown()), SweepName);
INSTANTIATE_TEST_SUITE_P(SharedMemory, SweepTest, ::testing::ValuesIn(SharedMemory()), SweepName);

}  // namespace
}  // namespace ddpopt
