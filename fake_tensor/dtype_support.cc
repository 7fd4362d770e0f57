#include "fake_tensor/dtype_support.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "ATen/core/Tensor.h"
#include "ATen/core/function_schema.h"
#include "ATen/native/TypeProperties.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/for_each_tensor.h"
#include "c10/util/Exception.h"
#include "fake_tensor/functional_form.h"

namespace ddpopt {
namespace {

using c10::IValue;
using c10::ScalarType;
using Unless = DtypeRule::Unless;

// A line: what the kernel is chosen by; dtypes that are refused; operators (all their overloads, or one). A mark before the dtypes says
// that a call is taken nevertheless: ? if any tensor is empty, 1 if the first one is, 0 if the first one is or has no dimensions, r
// if rounding_mode is None. An empty list is for overloads that refuse nothing beside others of their name.
constexpr char kTable[] = R"(
A; 1halves; _linalg_det _linalg_solve_ex _linalg_svd linalg_polar
A; 1halves ints bool; _linalg_eigh linalg_lu linalg_lu_factor_ex
A; halves; linalg_qr
LD; 1halves; linalg_ldl_solve
LU; ?halves; linalg_lu_solve
count; halves; binomial
data; ints complex bool; segment_reduce
glu; halves ints complex bool; glu_jvp
grad; halves ints complex bool; _ctc_loss_backward
grad; ints complex bool; _embedding_bag_per_sample_weights_backward _segment_reduce_backward
grad_out; ints complex bool; _scaled_dot_product_flash_attention_for_cpu_backward batch_norm_backward native_batch_norm_backward
grad_output; 1ints bool; reflection_pad1d_backward reflection_pad3d_backward replication_pad1d_backward replication_pad2d_backward
grad_output; 1ints bool; replication_pad3d_backward
grad_output; 1ints complex bool; _log_softmax_backward_data _softmax_backward_data grid_sampler_2d_backward
grad_output; ?halves ints complex bool; _cdist_backward multi_margin_loss_backward multilabel_margin_loss_backward
grad_output; complex; glu_backward
grad_output; complex u8 i8 i16 i32 bool; avg_pool2d_backward
grad_output; halves complex u8 i8 i16 i32 bool; avg_pool3d_backward
grad_output; halves ints complex bool; _pdist_backward _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa_backward
grad_output; halves ints complex bool; _upsample_lanczos2d_aa_backward
grad_output; ints bool; reflection_pad2d_backward
grad_output; ints complex bool; _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward _masked_softmax_backward
grad_output; ints complex bool; adaptive_avg_pool3d_backward.grad_input
grad_output; ints complex bool; _prelu_kernel_backward _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward
grad_output; ints complex bool; _upsample_nearest_exact3d_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward
grad_output; ints complex bool; binary_cross_entropy_backward fractional_max_pool2d_backward fractional_max_pool3d_backward
grad_output; ints complex bool; grid_sampler_3d_backward max_pool2d_with_indices_backward max_pool3d_with_indices_backward
grad_output; ints complex bool; nll_loss2d_backward nll_loss_backward upsample_bilinear2d_backward
grad_output; ints complex bool; upsample_linear1d_backward
grad_output; ints complex bool; upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
grad_output; ints complex bool; upsample_trilinear3d_backward
grad_w; 1ints complex bool; _weight_norm_interface_backward
input; ?ints complex bool; grid_sampler_2d
input; halves ints bool; linalg_householder_product
input; complex i8 i16 i32 i64 bool; upsample_bilinear2d.vec_out upsample_nearest2d.vec_out
input; ints complex bool; _batch_norm_no_update _batch_norm_with_update_functional _native_batch_norm_legit
input; ints complex bool; _native_batch_norm_legit_functional _native_batch_norm_legit_no_training batch_norm_update_stats grid_sampler_3d
input; ints complex bool; native_batch_norm native_layer_norm
log_probs; halves ints complex bool; _ctc_loss
mean; ; normal.Tensor_Tensor_out normal.Tensor_float_out
mean; 1ints bool; normal.Tensor_Tensor normal.Tensor_float
p; ?ints complex bool; bernoulli.Tensor
query; ints complex bool; _native_multi_head_attention
self; ; _foreach_add.List _foreach_add.Scalar _foreach_add.ScalarList _foreach_add.Tensor _foreach_clamp_max.Scalar
self; ; _foreach_clamp_min.Scalar _foreach_div.Scalar _foreach_maximum.Scalar
self; ; _foreach_minimum.Scalar _foreach_mul.List _foreach_mul.Scalar _foreach_mul.ScalarList _foreach_mul.Tensor _foreach_pow.Scalar
self; ; _foreach_pow.ScalarAndTensor _foreach_sub.List _foreach_sub.Scalar _foreach_sub.ScalarList clamp max.dim
self; ; min.dim random.from random.to
self; 0complex; cummax cummin mode
self; 1bool; _neg_view_copy conv_tbc
self; 1complex; amax amin bernoulli.p bernoulli_.float hash_tensor random
self; 1complex bool; geometric median nanmedian
self; 1halves; linalg_cholesky_ex linalg_ldl_factor_ex
self; 1halves ints complex bool; multi_margin_loss multilabel_margin_loss_forward
self; 1ints bool; normal_ normal_functional
self; 1ints complex bool; _log_softmax _softmax bernoulli log_normal
self; ints complex bool; adaptive_avg_pool3d.out
self; bool; abs ceil dot floor linalg_cross reflection_pad1d reflection_pad2d reflection_pad3d
self; bool; replication_pad1d replication_pad2d replication_pad3d trace trunc vdot
self; complex; _unique _unique2 digamma erf erfc erfinv i0 lgamma logit max min mvlgamma polygamma special_entr special_i0e special_i1
self; complex; special_i1e unique_consecutive unique_dim unique_dim_consecutive
self; complex bool; _slow_conv2d_forward max_pool2d_with_indices max_pool3d_with_indices median.dim nanmedian.dim round
self; complex bool; slow_conv3d_forward threshold
self; complex i8 i16 i32 i64 bool; _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_bicubic2d
self; complex i8 i16 i32 i64 bool; upsample_bilinear2d upsample_nearest1d upsample_nearest2d upsample_nearest3d
self; complex u8 i8 i16 i32 bool; avg_pool1d.out avg_pool2d slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d
self; complex u8 i8 i16 i32 bool; slow_conv_transpose3d
self; halves; _linalg_eigvals linalg_eig
self; halves complex; special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_erfcx special_log_ndtr
self; halves complex; special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1
self; halves complex; special_ndtri
self; halves complex f32 f64; bitwise_not
self; halves complex f32 f64 bool; bincount
self; halves complex u8 i8 i16 i32 bool; avg_pool3d
self; halves ints bool; _cholesky_solve_helper cholesky_inverse cholesky_solve geqrf linalg_solve_triangular ormqr triangular_solve
self; halves ints complex bool; _sample_dirichlet _standard_gamma _standard_gamma_grad
self; ints; col2im im2col
self; ints bool; _foreach_lerp.Scalar _foreach_lerp.ScalarList _logcumsumexp lerp logcumsumexp silu uniform
self; ints complex bool; _adaptive_avg_pool3d _amp_foreach_non_finite_check_and_unscale _fake_quantize_learnable_per_channel_affine
self; ints complex bool; _fake_quantize_learnable_per_tensor_affine _fake_quantize_per_tensor_affine_cachemask_tensor_qparams
self; ints complex bool; _fused_adagrad _fused_adam _fused_adamw _fused_sgd.tensor_lr _masked_softmax _prelu_kernel adaptive_max_pool2d
self; ints complex bool; adaptive_max_pool3d binary_cross_entropy binary_cross_entropy_with_logits celu elu
self; ints complex bool; fake_quantize_per_channel_affine_cachemask fake_quantize_per_tensor_affine_cachemask frac gelu glu hardshrink
self; ints complex bool; hardsigmoid hardswish histc histogram.bins_tensor leaky_relu log_sigmoid_forward mish nll_loss2d_forward
self; ints complex bool; nll_loss_forward poisson round.decimals softplus softshrink upsample_linear1d upsample_trilinear3d
src; ints complex bool; _transformer_encoder_layer_fwd
std; ; normal.float_Tensor_out
std; 1ints bool; normal.float_Tensor
v; 1ints complex bool; _weight_norm_interface
x; halves complex; special_airy_ai special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_spherical_bessel_j0
x; halves ints complex bool; _dirichlet_grad
(common and numbers); bool; clamp_max clamp_min
(common and numbers); c32; pow.Tensor_Scalar
(common and numbers); c32 bool; pow.Scalar
(common and numbers); complex; _add_relu.Scalar copysign.Scalar ge.Scalar gt.Scalar le.Scalar lt.Scalar special_xlog1py.other_scalar
(common and numbers); complex; special_xlog1py.self_scalar xlogy.Scalar_Other xlogy.Scalar_Self
(common and numbers); complex bool; bucketize.Scalar floor_divide.Scalar fmod.Scalar remainder.Scalar remainder.Scalar_Tensor
(common and numbers); complex bool; searchsorted.Scalar
(common and numbers); halves complex; special_chebyshev_polynomial_t.n_scalar special_chebyshev_polynomial_t.x_scalar
(common and numbers); halves complex; special_chebyshev_polynomial_u.n_scalar special_chebyshev_polynomial_u.x_scalar
(common and numbers); halves complex; special_chebyshev_polynomial_v.n_scalar special_chebyshev_polynomial_v.x_scalar
(common and numbers); halves complex; special_chebyshev_polynomial_w.n_scalar special_chebyshev_polynomial_w.x_scalar
(common and numbers); halves complex; special_hermite_polynomial_h.n_scalar special_hermite_polynomial_h.x_scalar
(common and numbers); halves complex; special_hermite_polynomial_he.n_scalar special_hermite_polynomial_he.x_scalar
(common and numbers); halves complex; special_laguerre_polynomial_l.n_scalar special_laguerre_polynomial_l.x_scalar
(common and numbers); halves complex; special_legendre_polynomial_p.n_scalar special_legendre_polynomial_p.x_scalar
(common and numbers); halves complex; special_shifted_chebyshev_polynomial_t.n_scalar special_shifted_chebyshev_polynomial_t.x_scalar
(common and numbers); halves complex; special_shifted_chebyshev_polynomial_u.n_scalar special_shifted_chebyshev_polynomial_u.x_scalar
(common and numbers); halves complex; special_shifted_chebyshev_polynomial_v.n_scalar special_shifted_chebyshev_polynomial_v.x_scalar
(common and numbers); halves complex; special_shifted_chebyshev_polynomial_w.n_scalar special_shifted_chebyshev_polynomial_w.x_scalar
(common and numbers); halves complex; special_zeta.other_scalar special_zeta.self_scalar
(common and numbers); halves complex f32 f64; bitwise_and.Scalar bitwise_and.Scalar_Tensor bitwise_or.Scalar bitwise_or.Scalar_Tensor
(common and numbers); halves complex f32 f64; bitwise_xor.Scalar bitwise_xor.Scalar_Tensor
(common and numbers); halves complex f32 f64 bool; bitwise_left_shift.Scalar_Tensor bitwise_left_shift.Tensor_Scalar
(common and numbers); halves complex f32 f64 bool; bitwise_right_shift.Scalar_Tensor bitwise_right_shift.Tensor_Scalar
(common and numbers); c32; div.Scalar
(common and numbers); rcomplex bool; div.Scalar_mode
(common); ?complex bool; bucketize.Tensor searchsorted.Tensor
(common); c32 bool; pow.Tensor_Tensor
(common); complex; atan2 clamp_max.Tensor clamp_min.Tensor copysign.Tensor ge.Tensor gt.Tensor le.Tensor lt.Tensor special_xlog1py
(common); complex; xlogy.Tensor
(common); complex bf16; _add_relu.Tensor
(common); complex bool; floor_divide fmod.Tensor mse_loss_backward remainder.Tensor smooth_l1_loss_backward threshold_backward
(common); halves complex; special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
(common); halves complex; special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he
(common); halves complex; special_laguerre_polynomial_l special_legendre_polynomial_p special_shifted_chebyshev_polynomial_t
(common); halves complex; special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v
(common); halves complex; special_shifted_chebyshev_polynomial_w special_zeta
(common); halves complex f32 f64; bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor
(common); halves complex f32 f64 bool; bitwise_left_shift.Tensor bitwise_right_shift.Tensor gcd lcm
(common); c32; logical_and logical_or logical_xor
(common); c32 ints bool; logaddexp
(common); ints bool; silu_backward.grad_input sigmoid_backward tanh_backward
(common); ints complex bool; elu_backward gelu_backward hardshrink_backward hardsigmoid_backward hardswish_backward hardtanh_backward
(common); ints complex bool; huber_loss huber_loss_backward hypot igamma igammac leaky_relu_backward log_sigmoid_backward logaddexp2
(common); ints complex bool; logit_backward mse_loss nextafter smooth_l1_loss softplus_backward softshrink_backward
(common); c32; div.Tensor
(common); rcomplex bool; div.Tensor_mode
(dtype); 1ints bool; randn_like
(dtype); 1ints complex bool; _safe_softmax log_softmax.int_out softmax.int_out
(dtype); ?ints bool; normal.float_float rand randn
(dtype); complex; fft_fftfreq fft_rfftfreq
(dtype); complex bool; arange randperm range
(dtype); halves complex f32 f64 u8 i8 i16 bool; tril_indices triu_indices
(dtype); ints bool; rand_like
(each); bool; _foreach_abs _foreach_ceil _foreach_clamp_max.ScalarList _foreach_clamp_min.ScalarList _foreach_floor
(each); bool; _foreach_maximum.ScalarList _foreach_minimum.ScalarList _foreach_trunc
(each); c32 bool; _foreach_pow.List
(each); c32; _foreach_div.List _foreach_div.ScalarList _foreach_div.Tensor _foreach_pow.ScalarList
(each); complex; _foreach_clamp_max.List _foreach_clamp_min.List _foreach_erf _foreach_erfc _foreach_lgamma _foreach_max
(each); complex; _foreach_maximum.List _foreach_minimum.List
(each); complex bool; _foreach_round
(each); ints bool; _foreach_lerp.List
(each); ints complex bool; _foreach_frac _fused_sgd _histogramdd_from_bin_tensors
)";

constexpr std::pair<const char*, ScalarType> kNames[] = {
    {"f16", ScalarType::Half},     {"bf16", ScalarType::BFloat16}, {"f32", ScalarType::Float},         {"f64", ScalarType::Double},
    {"u8", ScalarType::Byte},      {"i8", ScalarType::Char},       {"i16", ScalarType::Short},         {"i32", ScalarType::Int},
    {"i64", ScalarType::Long},     {"bool", ScalarType::Bool},     {"c64", ScalarType::ComplexFloat},  {"c128", ScalarType::ComplexDouble},
    {"c32", ScalarType::ComplexHalf},
};

using Table = absl::flat_hash_map<std::string, DtypeRule>;

Table ParseTable() {
  Table table;
  for (absl::string_view line : absl::StrSplit(kTable, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits("; ", 2));
    TORCH_CHECK(fields.size() == 3, "dtype_support: can't read the line: ", line);
    DtypeRule rule;
    rule.selector = DtypeSelector::Parse(fields[0]);
    absl::string_view dtypes = fields[1];
    if (absl::ConsumePrefix(&dtypes, "?")) rule.unless = Unless::kAnyEmpty;
    if (absl::ConsumePrefix(&dtypes, "1")) rule.unless = Unless::kFirstEmpty;
    if (absl::ConsumePrefix(&dtypes, "r")) rule.unless = Unless::kNoRounding;
    if (absl::ConsumePrefix(&dtypes, "0")) rule.unless = Unless::kFirstEmptyOrScalar;
    for (const absl::string_view name : absl::StrSplit(dtypes, ' ', absl::SkipEmpty())) {
      const auto* found = std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& entry) { return name == entry.first; });
      if (name == "ints") {
        for (const ScalarType type : {ScalarType::Byte, ScalarType::Char, ScalarType::Short, ScalarType::Int, ScalarType::Long}) {
          rule.refused.push_back(type);
        }
      } else if (name == "complex") {
        rule.refused.push_back(ScalarType::ComplexFloat);
        rule.refused.push_back(ScalarType::ComplexDouble);
        rule.refused.push_back(ScalarType::ComplexHalf);
      } else if (name == "halves") {
        rule.refused.push_back(ScalarType::Half);
        rule.refused.push_back(ScalarType::BFloat16);
      } else {
        TORCH_CHECK(found != std::end(kNames), "dtype_support: no dtype '", std::string(name), "' in the line: ", line);
        rule.refused.push_back(found->second);
      }
    }
    for (const absl::string_view name : absl::StrSplit(fields[2], ' ', absl::SkipEmpty())) {
      TORCH_CHECK(table.emplace(std::string(name), rule).second, "dtype_support: ", std::string(name), " has two lines");
    }
  }
  return table;
}

const Table& TheTable() {
  static const Table& table = *new Table(ParseTable());
  return table;
}

// position ≥ 0: of a list, only that one.
template <typename Fn>
void ForEachTensorAt(const IValue& value, int position, const Fn& fn) {
  if (position < 0 || !value.isList()) return ForEachTensor(value, fn);
  const c10::ArrayRef<IValue> list = value.toListRef();
  if (static_cast<std::size_t>(position) < list.size()) ForEachTensor(list[position], fn);
}

void Add(const c10::FunctionSchema& schema, c10::ArrayRef<IValue> arguments, bool numbers, int position, std::vector<ScalarType>* dtypes) {
  at::native::ResultTypeState state;
  bool any = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (IsOut(argument)) continue;
    ForEachTensorAt(arguments[i], position, [&](const at::Tensor& tensor) {
      state = at::native::update_result_type_state(tensor, state);
      any = true;
    });
    if (!numbers || argument.name() == "alpha" || argument.name() == "beta") continue;
    if (argument.type()->kind() == c10::TypeKind::NumberType && arguments[i].isScalar()) {
      state = at::native::update_result_type_state(arguments[i].toScalar(), state);
    } else if (position >= 0 && arguments[i].isList() && !arguments[i].isTensorList() &&
               argument.type()->kind() == c10::TypeKind::ListType &&
               argument.type()->containedType(0)->kind() == c10::TypeKind::NumberType) {
      const c10::ArrayRef<IValue> list = arguments[i].toListRef();
      if (static_cast<std::size_t>(position) < list.size()) {
        state = at::native::update_result_type_state(list[position].toScalar(), state);
      }
    }
  }
  if (any) dtypes->push_back(at::native::result_type(state));
}

}  // namespace

DtypeSelector DtypeSelector::Parse(const std::string& text) {
  if (text == "(common)") return {Kind::kCommon, ""};
  if (text == "(common and numbers)") return {Kind::kCommonScalars, ""};
  if (text == "(dtype)") return {Kind::kDtypeArgument, ""};
  if (text == "(each)") return {Kind::kEach, ""};
  return {Kind::kArgument, text};
}

std::string DtypeSelector::ToString() const {
  switch (kind) {
    case Kind::kCommon: return "(common)";
    case Kind::kCommonScalars: return "(common and numbers)";
    case Kind::kDtypeArgument: return "(dtype)";
    case Kind::kEach: return "(each)";
    case Kind::kArgument: break;
  }
  return argument;
}

std::vector<ScalarType> DtypeSelector::Select(const c10::FunctionSchema& schema, c10::ArrayRef<IValue> arguments) const {
  std::vector<ScalarType> dtypes;
  const auto first_of = [&](const IValue& value) {
    ForEachTensor(value, [&](const at::Tensor& tensor) {
      if (dtypes.empty()) dtypes.push_back(tensor.scalar_type());
    });
  };
  switch (kind) {
    case Kind::kArgument:
      for (std::size_t i = 0; i < arguments.size(); ++i) {
        if (schema.arguments()[i].name() == argument) first_of(arguments[i]);
      }
      break;
    case Kind::kCommon: Add(schema, arguments, false, -1, &dtypes); break;
    case Kind::kCommonScalars: Add(schema, arguments, true, -1, &dtypes); break;
    case Kind::kDtypeArgument: {
      bool has_dtype = false;
      for (std::size_t i = 0; i < arguments.size(); ++i) {
        if (schema.arguments()[i].name() != "dtype") continue;
        if (arguments[i].isInt()) return {static_cast<ScalarType>(arguments[i].toInt())};
        has_dtype = true;
      }
      // Without one, what is filled says it.
      for (std::size_t i = 0; i < arguments.size() && !has_dtype && dtypes.empty(); ++i) {
        if (IsOut(schema.arguments()[i])) first_of(arguments[i]);
      }
      for (std::size_t i = 0; i < arguments.size() && dtypes.empty(); ++i) first_of(arguments[i]);
      break;
    }
    case Kind::kEach: {
      std::size_t count = 0;
      for (const IValue& value : arguments) {
        if (value.isTensorList()) count = std::max(count, value.toListRef().size());
      }
      for (std::size_t i = 0; i < count; ++i) Add(schema, arguments, true, static_cast<int>(i), &dtypes);
      break;
    }
  }
  return dtypes;
}

bool IsTakenAnyway(const c10::FunctionSchema& schema, c10::ArrayRef<IValue> arguments, Unless unless) {
  bool empty = false, first = true;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (unless == Unless::kNoRounding) {
      if (schema.arguments()[i].name() == "rounding_mode") return arguments[i].isNone();
      continue;
    }
    if (IsOut(schema.arguments()[i])) continue;
    ForEachTensor(arguments[i], [&](const at::Tensor& tensor) {
      if (first || unless == Unless::kAnyEmpty) empty |= tensor.numel() == 0;
      if (first && unless == Unless::kFirstEmptyOrScalar) empty |= tensor.dim() == 0;
      first = false;
    });
    // Of factories the size tells.
    if (first && schema.arguments()[i].name() == "size" && arguments[i].isIntList()) {
      for (const int64_t size : arguments[i].toIntVector()) empty |= size == 0;
    }
  }
  return empty;
}

const DtypeRule* DtypeRuleOf(const c10::OperatorHandle& op) {
  absl::string_view name = op.schema().name();
  if (!absl::ConsumePrefix(&name, "aten::")) return nullptr;
  const Table& table = TheTable();
  const auto find = [&](absl::string_view base, absl::string_view overload) -> const DtypeRule* {
    auto found = overload.empty() ? table.end() : table.find(absl::StrCat(base, ".", overload));
    if (found == table.end()) found = table.find(std::string(base));
    return found == table.end() ? nullptr : &found->second;
  };
  // What the table says of this very overload, or in-place name, goes first.
  const auto exact = table.find(absl::StrCat(name, ".", op.schema().overload_name()));
  const DtypeRule* rule = exact == table.end() ? nullptr : &exact->second;
  const bool in_place = absl::EndsWith(name, "_");
  if (rule == nullptr && in_place) rule = find(name, "");
  if (rule == nullptr) {
    absl::ConsumeSuffix(&name, "_");
    const std::optional<c10::OperatorHandle> functional = op.schema().is_mutable() ? FunctionalForm(op.schema(), name) : std::nullopt;
    rule = find(name, functional.value_or(op).schema().overload_name());
  }
  return rule == nullptr || rule->refused.empty() ? nullptr : rule;
}

void CheckDtypes(const c10::OperatorHandle& op, const DtypeRule& rule, c10::ArrayRef<IValue> arguments) {
  for (ScalarType dtype : rule.selector.Select(op.schema(), arguments)) {
    // What bf16 and a complex number promote to in LibTorch 2.15; earlier versions haven't got it.
    if (absl::string_view(c10::toString(dtype)) == "BComplex32") dtype = ScalarType::ComplexHalf;
    if (std::find(rule.refused.begin(), rule.refused.end(), dtype) == rule.refused.end()) continue;
    if (rule.unless != Unless::kNever && IsTakenAnyway(op.schema(), arguments, rule.unless)) return;
    TORCH_CHECK(false, c10::toString(op.operator_name()), " isn't implemented for ", c10::toString(dtype), " on the CPU");
  }
}

std::vector<std::string> OperatorsWithDtypeRules() {
  std::vector<std::string> names;
  for (const auto& [name, rule] : TheTable()) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace ddpopt
