// Every operator here runs on real tensors and on their fakes; results, changed inputs and gradients must agree in everything but data.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "ATen/core/List.h"
#include "ATen/core/Tensor.h"
#include "absl/strings/str_cat.h"
#include "fake_tensor/sweep.h"
#include "gtest/gtest.h"

namespace ddpopt {
namespace {

using at::Tensor;

Tensors Unpack(std::tuple<Tensor, Tensor> t) { return {std::get<0>(t), std::get<1>(t)}; }
Tensors Unpack(std::tuple<Tensor, Tensor, Tensor> t) { return {std::get<0>(t), std::get<1>(t), std::get<2>(t)}; }

#define UNARY(expr)                 \
  [](const Tensors& i) -> Tensors { \
    const Tensor& x = i[0];         \
    return {(expr)};                \
  }
#define BINARY(expr)                \
  [](const Tensors& i) -> Tensors { \
    const Tensor& x = i[0];         \
    const Tensor& y = i[1];         \
    return {(expr)};                \
  }
#define TERNARY(expr)               \
  [](const Tensors& i) -> Tensors { \
    const Tensor& x = i[0];         \
    const Tensor& y = i[1];         \
    const Tensor& z = i[2];         \
    return {(expr)};                \
  }
#define MANY(expr)                  \
  [](const Tensors& i) -> Tensors { \
    const Tensor& x = i[0];         \
    static_cast<void>(x);           \
    return (expr);                  \
  }

std::vector<SweepCase> Cases() {
  std::vector<SweepCase> cases;
  const auto add = [&](std::string name, Tensors inputs, std::function<Tensors(const Tensors&)> run) {
    cases.push_back({std::move(name), std::move(inputs), std::move(run)});
  };

  // Pointwise, on plain, transposed and expanded inputs.
  struct Unary {
    const char* name;
    std::function<Tensors(const Tensors&)> run;
  };
  const Unary unaries[] = {
      {"relu", UNARY(at::relu(x))},
      {"gelu", UNARY(at::gelu(x))},
      {"gelu_tanh", UNARY(at::gelu(x, "tanh"))},
      {"sigmoid", UNARY(at::sigmoid(x))},
      {"tanh", UNARY(at::tanh(x))},
      {"exp", UNARY(at::exp(x))},
      {"log", UNARY(at::log(x))},
      {"sqrt", UNARY(at::sqrt(x))},
      {"rsqrt", UNARY(at::rsqrt(x))},
      {"neg", UNARY(at::neg(x))},
      {"abs", UNARY(at::abs(x))},
      {"silu", UNARY(at::silu(x))},
      {"leaky_relu", UNARY(at::leaky_relu(x))},
      {"elu", UNARY(at::elu(x))},
      {"softplus", UNARY(at::softplus(x))},
      {"hardtanh", UNARY(at::hardtanh(x))},
      {"pow_2", UNARY(at::pow(x, 2))},
      {"clamp", UNARY(at::clamp(x, 0.1, 0.9))},
      {"clamp_min", UNARY(at::clamp_min(x, 0.1))},
      {"add_scalar", UNARY(x + 1.5)},
      {"mul_scalar", UNARY(x * 2)},
      {"rsub", UNARY(1 - x)},
      {"div_scalar", UNARY(x / 3)},
      {"reciprocal", UNARY(1 / x)},
      {"square", UNARY(at::square(x))},
      {"sin", UNARY(at::sin(x))},
      {"cos", UNARY(at::cos(x))},
      {"erf", UNARY(at::erf(x))},
      {"softmax_last", UNARY(at::softmax(x, -1))},
      {"softmax_first", UNARY(at::softmax(x, 0))},
      {"log_softmax", UNARY(at::log_softmax(x, -1))},
      {"softmax_double", UNARY(at::softmax(x, -1, at::kDouble))},
      {"sum", UNARY(at::sum(x))},
      {"sum_dim", UNARY(at::sum(x, {-1}, true))},
      {"mean", UNARY(at::mean(x))},
      {"mean_dim", UNARY(at::mean(x, {-1}))},
      {"var", UNARY(at::var(x, at::OptionalIntArrayRef({-1}), at::Scalar(1)))},
      {"std", UNARY(at::std(x, at::OptionalIntArrayRef({-1}), at::Scalar(1)))},
      {"norm", UNARY(at::norm(x))},
      {"amax", UNARY(at::amax(x, {-1}))},
      {"logsumexp", UNARY(at::logsumexp(x, {-1}))},
      {"cumsum", UNARY(at::cumsum(x, 1))},
      {"argmax", UNARY(at::argmax(x, -1))},
      {"lt_scalar", UNARY(x < 0.5)},
      {"where_scalars", UNARY(x + at::where(x < 0.5, 0.3, 0.6))},
      {"where_scalar", UNARY(at::where(x < 0.5, x, 0.6))},
      {"masked_fill", UNARY(x.masked_fill(x < 0.7, -1.0))},
      {"clone", UNARY(at::clone(x))},
      {"contiguous", UNARY(x.contiguous())},
      {"detach", UNARY(x.detach())},
      {"to_double", UNARY(x.to(at::kDouble))},
      {"to_same", UNARY(x.to(at::kFloat))},
      {"to_long", UNARY(x.to(at::kLong))},
      {"reshape", UNARY(x.reshape({-1}))},
      {"flatten", UNARY(at::flatten(x))},
      {"transpose", UNARY(x.transpose(0, 1))},
      {"permute", UNARY(x.permute({1, 0}))},
      {"t", UNARY(x.t())},
      {"unsqueeze", UNARY(x.unsqueeze(1))},
      {"squeeze", UNARY(x.unsqueeze(1).squeeze(1))},
      {"select", UNARY(x.select(1, 1))},
      {"slice", UNARY(x.slice(1, 1, 3))},
      {"narrow", UNARY(x.narrow(1, 1, 2))},
      {"diagonal", UNARY(x.diagonal())},
      {"alias_twice", UNARY(x.t().t())},
      {"tril", UNARY(at::tril(x))},
      {"triu", UNARY(at::triu(x, 1))},
      {"flip", UNARY(at::flip(x, {0}))},
      {"roll", UNARY(at::roll(x, 1, 0))},
      {"repeat", UNARY(x.repeat({2, 1}))},
      {"constant_pad", UNARY(at::constant_pad_nd(x, {1, 2}))},
      {"zeros_like", UNARY(at::zeros_like(x))},
      {"ones_like", UNARY(at::ones_like(x))},
      {"full_like", UNARY(at::full_like(x, 3))},
      {"empty_like", UNARY(at::empty_like(x))},
      {"rand_like", UNARY(at::rand_like(x))},
      {"randn_like", UNARY(at::randn_like(x))},
      {"new_zeros", UNARY(x.new_zeros({3}))},
      {"dropout_train", UNARY(at::dropout(x, 0.5, true))},
      {"dropout_eval", UNARY(at::dropout(x, 0.5, false))},
      {"bernoulli_inplace", UNARY(at::empty_like(x).bernoulli_(0.5))},
      {"view_then_add_", UNARY(x.clone().t().add_(1))},
      {"relu_", UNARY(x.clone().relu_())},
      {"mul_", UNARY(x.clone().mul_(x))},
      {"select_copy_", UNARY([&] {
         Tensor y = x.clone();
         y.select(0, 0).copy_(x.select(0, 1));
         return y;
       }())},
      {"index_list", UNARY(x.index({at::ones({3}, at::kLong)}))},
      {"index_put_", UNARY([&] {
         Tensor y = x.clone();
         return at::index_put_(y, c10::List<std::optional<Tensor>>({at::ones({1}, at::kLong)}), at::ones({}));
       }())},
      {"topk", MANY(Unpack(at::topk(x, 2)))},
      {"max_dim", MANY(Unpack(at::max(x, 1)))},
      {"sort", MANY(Unpack(at::sort(x)))},
      {"split", MANY(at::split(x, 2, 1))},
      {"chunk", MANY(at::chunk(x, 2, 0))},
      {"unbind", MANY(at::unbind(x, 0))},
      {"cat_self", MANY(Tensors{at::cat({x, x}, 0)})},
      {"stack_self", MANY(Tensors{at::stack({x, x}, 1)})},
  };
  for (const Unary& unary : unaries) {
    add(absl::StrCat(unary.name, "_plain"), {F({4, 5})}, unary.run);
    add(absl::StrCat(unary.name, "_transposed"), {T(F({5, 4}))}, unary.run);
    add(absl::StrCat(unary.name, "_expanded"), {X(F({5}), 4)}, unary.run);
  }

  struct Binary {
    const char* name;
    std::function<Tensors(const Tensors&)> run;
  };
  const Binary binaries[] = {
      {"add", BINARY(x + y)},
      {"sub", BINARY(x - y)},
      {"mul", BINARY(x * y)},
      {"div", BINARY(x / y)},
      {"pow", BINARY(at::pow(x, y))},
      {"maximum", BINARY(at::maximum(x, y))},
      {"where", BINARY(at::where(x < y, x, y))},
      {"mse_loss", BINARY(at::mse_loss(x, y))},
      {"l1_loss", BINARY(at::l1_loss(x, y))},
      {"smooth_l1", BINARY(at::smooth_l1_loss(x, y))},
      {"eq", BINARY(x == y)},
      {"lerp", BINARY(at::lerp(x, y, 0.3))},
      {"addcmul", BINARY(at::addcmul(x, x, y))},
      {"addcdiv", BINARY(at::addcdiv(x, x, y))},
  };
  for (const Binary& binary : binaries) {
    add(absl::StrCat(binary.name, "_plain"), {F({4, 5}), F({4, 5})}, binary.run);
    add(absl::StrCat(binary.name, "_broadcast"), {F({4, 5}), F({5})}, binary.run);
    add(absl::StrCat(binary.name, "_transposed"), {T(F({5, 4})), T(F({5, 4}))}, binary.run);
    add(absl::StrCat(binary.name, "_mixed"), {F({4, 5}), X(F({5}), 4)}, binary.run);
  }
  add("add_promotes", {F({4, 5}), Long({4, 5})}, BINARY(x + y));
  add("add_scalar_tensor", {F({4, 5}), NoGrad({})}, BINARY(x + y));
  add("bce_logits", {F({4, 5}), NoGrad({4, 5})}, BINARY(at::binary_cross_entropy_with_logits(x, y)));
  add("bce", {F({4, 5}), NoGrad({4, 5})}, BINARY(at::binary_cross_entropy(x, y)));

  // Matrices.
  add("mm", {F({3, 4}), F({4, 5})}, BINARY(at::mm(x, y)));
  add("mm_transposed", {T(F({4, 3})), T(F({5, 4}))}, BINARY(at::mm(x, y)));
  add("mm_expanded", {X(F({4}), 3), F({4, 5})}, BINARY(at::mm(x, y)));
  add("bmm", {F({2, 3, 4}), F({2, 4, 5})}, BINARY(at::bmm(x, y)));
  add("bmm_transposed", {T(F({2, 4, 3})), T(F({2, 5, 4}))}, BINARY(at::bmm(x, y)));
  add("matmul_3d", {F({2, 3, 4}), F({4, 5})}, BINARY(at::matmul(x, y)));
  add("matmul_4d", {F({2, 2, 3, 4}), T(F({2, 2, 5, 4}))}, BINARY(at::matmul(x, y)));
  add("matmul_vector", {F({3, 4}), F({4})}, BINARY(at::matmul(x, y)));
  add("dot", {F({4}), F({4})}, BINARY(at::dot(x, y)));
  add("addmm", {F({5}), F({3, 4}), F({4, 5})}, TERNARY(at::addmm(x, y, z)));
  add("addmm_t", {F({5}), F({3, 4}), F({5, 4})}, TERNARY(at::addmm(x, y, z.t())));
  add("linear_2d", {F({3, 4}), F({5, 4}), F({5})}, TERNARY(at::linear(x, y, z)));
  add("linear_3d", {F({2, 3, 4}), F({5, 4}), F({5})}, TERNARY(at::linear(x, y, z)));
  add("linear_3d_nobias", {F({2, 3, 4}), F({5, 4})}, BINARY(at::linear(x, y)));
  add("linear_transposed", {T(F({4, 3})), F({5, 4}), F({5})}, TERNARY(at::linear(x, y, z)));
  add("baddbmm", {F({2, 3, 5}), F({2, 3, 4}), F({2, 4, 5})}, TERNARY(at::baddbmm(x, y, z)));
  add("einsum", {F({2, 3, 4}), F({2, 4, 5})}, BINARY(at::einsum("bij,bjk->bik", {x, y})));

  // Embedding, losses.
  add("embedding", {F({7, 4}), Long({2, 3})}, BINARY(at::embedding(x, y)));
  add("embedding_padding", {F({7, 4}), Long({2, 3})}, BINARY(at::embedding(x, y, 0)));
  add("embedding_1d", {F({7, 4}), Long({3})}, BINARY(at::embedding(x, y)));
  add("index_select", {F({7, 4}), Long({3})}, BINARY(at::index_select(x, 1, y)));
  add("index_select_transposed", {T(F({4, 7})), Long({3})}, BINARY(at::index_select(x, 0, y)));
  add("gather", {F({7, 4}), Long({7, 1})}, BINARY(at::gather(x, 1, y)));
  add("cross_entropy", {F({6, 5}), Long({6})}, BINARY(at::cross_entropy_loss(x, y)));
  add("cross_entropy_none", {F({6, 5}), Long({6})}, BINARY(at::cross_entropy_loss(x, y, {}, at::Reduction::None)));
  add("cross_entropy_smooth", {F({6, 5}), Long({6})}, BINARY(at::cross_entropy_loss(x, y, {}, at::Reduction::Mean, -100, 0.1)));
  add("cross_entropy_weights", {F({6, 5}), Long({6}), NoGrad({5})}, TERNARY(at::cross_entropy_loss(x, y, z)));
  add("cross_entropy_2d", {F({2, 5, 3, 3}), Long({2, 3, 3})}, BINARY(at::cross_entropy_loss(x, y)));
  add("nll_loss", {F({6, 5}), Long({6})}, BINARY(at::nll_loss(x, y)));
  add("one_hot_scatter", {NoGrad({6, 5}), Long({6, 1})}, BINARY(at::zeros_like(x).scatter_(1, y, 1.0)));

  // Normalisation.
  add("layer_norm", {F({2, 3, 8}), F({8}), F({8})}, TERNARY(at::layer_norm(x, {8}, y, z)));
  add("layer_norm_plain", {F({2, 3, 8})}, UNARY(at::layer_norm(x, {8})));
  add("layer_norm_transposed", {T(F({2, 8, 3})), F({8}), F({8})}, TERNARY(at::layer_norm(x, {8}, y, z)));
  add("layer_norm_two_dims", {F({2, 3, 8}), F({3, 8}), F({3, 8})}, TERNARY(at::layer_norm(x, {3, 8}, y, z)));
  add("layer_norm_outputs", {F({2, 3, 8}), F({8}), F({8})}, MANY(Unpack(at::native_layer_norm(i[0], {8}, i[1], i[2], 1e-5))));
  add("group_norm", {F({2, 6, 3, 3}), F({6}), F({6})}, TERNARY(at::group_norm(x, 3, y, z)));
  const auto batch_norm = [](bool train) {
    return [train](const Tensors& i) -> Tensors { return {at::batch_norm(i[0], i[1], i[2], i[3], i[4], train, 0.1, 1e-5, false)}; };
  };
  for (const bool train : {true, false}) {
    const char* suffix = train ? "_train" : "_eval";
    add(absl::StrCat("batch_norm_2d", suffix), {F({4, 6}), F({6}), F({6}), NoGrad({6}), NoGrad({6})}, batch_norm(train));
    add(absl::StrCat("batch_norm_4d", suffix), {F({2, 6, 3, 3}), F({6}), F({6}), NoGrad({6}), NoGrad({6})}, batch_norm(train));
    add(absl::StrCat("batch_norm_channels_last", suffix), {ChannelsLast({2, 6, 3, 3}), F({6}), F({6}), NoGrad({6}), NoGrad({6})},
        batch_norm(train));
  }
  add("batch_norm_no_affine", {F({4, 6}), Tensor(), Tensor(), NoGrad({6}), NoGrad({6})}, batch_norm(true));
  add("batch_norm_no_stats", {F({4, 6}), F({6}), F({6}), Tensor(), Tensor()}, batch_norm(true));
  add("native_batch_norm", {F({2, 6, 3, 3}), F({6}), F({6}), NoGrad({6}), NoGrad({6})},
      MANY(Unpack(at::native_batch_norm(i[0], i[1], i[2], i[3], i[4], true, 0.1, 1e-5))));

  // Convolution, pooling.
  add("conv2d", {F({2, 3, 8, 8}), F({4, 3, 3, 3}), F({4})}, TERNARY(at::conv2d(x, y, z)));
  add("conv2d_padded", {F({2, 3, 8, 8}), F({4, 3, 3, 3}), F({4})}, TERNARY(at::conv2d(x, y, z, 1, 1)));
  add("conv2d_strided", {F({2, 3, 9, 8}), F({4, 3, 3, 3})}, BINARY(at::conv2d(x, y, {}, 2, 1)));
  add("conv2d_dilated", {F({2, 3, 9, 8}), F({4, 3, 3, 3})}, BINARY(at::conv2d(x, y, {}, 1, 1, 2)));
  add("conv2d_groups", {F({2, 4, 8, 8}), F({8, 1, 3, 3}), F({8})}, TERNARY(at::conv2d(x, y, z, 1, 1, 1, 4)));
  add("conv2d_channels_last", {ChannelsLast({2, 3, 8, 8}), F({4, 3, 3, 3}), F({4})}, TERNARY(at::conv2d(x, y, z)));
  add("conv2d_transposed_input", {T(F({2, 3, 8, 8})), F({4, 3, 3, 3}), F({4})}, TERNARY(at::conv2d(x, y, z)));
  add("conv2d_unbatched", {F({3, 8, 8}), F({4, 3, 3, 3}), F({4})}, TERNARY(at::conv2d(x, y, z)));
  add("conv1d", {F({2, 3, 8}), F({4, 3, 3}), F({4})}, TERNARY(at::conv1d(x, y, z)));
  add("conv3d", {F({2, 3, 5, 5, 5}), F({4, 3, 3, 3, 3}), F({4})}, TERNARY(at::conv3d(x, y, z)));
  add("conv_transpose2d", {F({2, 3, 8, 8}), F({3, 4, 3, 3}), F({4})}, TERNARY(at::conv_transpose2d(x, y, z, 2, 1, 1)));
  add("conv2d_double",
      {F({2, 3, 8, 8}).detach().to(at::kDouble).requires_grad_(), F({4, 3, 3, 3}).detach().to(at::kDouble).requires_grad_()},
      BINARY(at::conv2d(x, y)));
  add("max_pool2d", {F({2, 3, 8, 8})}, UNARY(at::max_pool2d(x, 2)));
  add("max_pool2d_strided", {F({2, 3, 9, 9})}, UNARY(at::max_pool2d(x, 3, 2, 1)));
  add("max_pool2d_ceil", {F({2, 3, 9, 9})}, UNARY(at::max_pool2d(x, 2, 2, 0, 1, true)));
  add("max_pool2d_channels_last", {ChannelsLast({2, 3, 8, 8})}, UNARY(at::max_pool2d(x, 2)));
  add("max_pool2d_indices", {F({2, 3, 8, 8})}, MANY(Unpack(at::max_pool2d_with_indices(x, 2))));
  add("avg_pool2d", {F({2, 3, 8, 8})}, UNARY(at::avg_pool2d(x, 2)));
  add("adaptive_avg_pool2d", {F({2, 3, 8, 8})}, UNARY(at::adaptive_avg_pool2d(x, {2, 2})));
  add("adaptive_avg_pool2d_one", {F({2, 3, 8, 8})}, UNARY(at::adaptive_avg_pool2d(x, {1, 1})));
  add("adaptive_avg_pool2d_channels_last", {ChannelsLast({2, 3, 8, 8})}, UNARY(at::adaptive_avg_pool2d(x, {2, 2})));
  add("upsample_nearest2d", {F({2, 3, 4, 4})}, UNARY(at::upsample_nearest2d(x, {8, 8})));

  // Attention.
  const auto sdpa = [](bool causal, double dropout) {
    return [causal, dropout](const Tensors& i) -> Tensors {
      return {at::scaled_dot_product_attention(i[0], i[1], i[2], {}, dropout, causal)};
    };
  };
  const auto heads = [] { return F({2, 4, 3, 8}).detach().transpose(1, 2).requires_grad_(); };
  add("sdpa", {F({2, 3, 4, 8}), F({2, 3, 4, 8}), F({2, 3, 4, 8})}, sdpa(false, 0));
  add("sdpa_causal", {F({2, 3, 4, 8}), F({2, 3, 4, 8}), F({2, 3, 4, 8})}, sdpa(true, 0));
  add("sdpa_causal_transposed", {heads(), heads(), heads()}, sdpa(true, 0));
  add("sdpa_cross", {F({2, 3, 4, 8}), F({2, 3, 6, 8}), F({2, 3, 6, 8})}, sdpa(false, 0));
  add("sdpa_dropout", {F({2, 3, 4, 8}), F({2, 3, 4, 8}), F({2, 3, 4, 8})}, sdpa(true, 0.1));
  add("sdpa_3d", {F({3, 4, 8}), F({3, 4, 8}), F({3, 4, 8})}, sdpa(true, 0));
  add("sdpa_no_grad", {NoGrad({2, 3, 4, 8}), NoGrad({2, 3, 4, 8}), NoGrad({2, 3, 4, 8})}, sdpa(true, 0));
  add("sdpa_mask", {F({2, 3, 4, 8}), F({2, 3, 4, 8}), F({2, 3, 4, 8}), NoGrad({4, 4})},
      MANY(Tensors{at::scaled_dot_product_attention(i[0], i[1], i[2], i[3])}));
  add("sdpa_bool_mask", {F({2, 3, 4, 8}), F({2, 3, 4, 8}), F({2, 3, 4, 8}), at::ones({4, 4}, at::kBool)},
      MANY(Tensors{at::scaled_dot_product_attention(i[0], i[1], i[2], i[3])}));

  // No tensor in.
  add("arange", {NoGrad({1})}, MANY(Tensors{at::arange(5)}));
  add("arange_step", {NoGrad({1})}, MANY(Tensors{at::arange(1, 7, 2, at::kFloat)}));
  add("linspace", {NoGrad({1})}, MANY(Tensors{at::linspace(0, 1, 5)}));
  add("zeros", {NoGrad({1})}, MANY(Tensors{at::zeros({2, 3}, at::kDouble)}));
  add("full", {NoGrad({1})}, MANY(Tensors{at::full({2, 3}, 7)}));
  add("randn", {NoGrad({1})}, MANY(Tensors{at::randn({2, 3})}));
  add("randint", {NoGrad({1})}, MANY(Tensors{at::randint(5, {2, 3})}));
  add("eye", {NoGrad({1})}, MANY(Tensors{at::eye(3)}));
  add("causal_mask", {NoGrad({1})}, MANY(Tensors{at::ones({4, 4}, at::kBool).tril()}));
  add("resize_", {NoGrad({4})}, MANY(Tensors{at::empty({2}).resize_({3, 4})}));
  add("t_", {NoGrad({4, 5})}, MANY(Tensors{i[0].clone().t_()}));
  add("input_t_", {NoGrad({4, 5})}, MANY(Tensors{i[0].t_()}));
  add("input_add_", {NoGrad({4, 5})}, MANY(Tensors{i[0].add_(1)}));
  add("set_", {NoGrad({4, 5}), NoGrad({3})}, MANY((i[0].set_(i[1]), Tensors{i[0]})));
  add("out_variant", {NoGrad({4, 5}), NoGrad({4, 5})}, MANY((at::add_out(const_cast<Tensor&>(i[0]), i[1], i[1]), Tensors{i[0]})));
  add("foreach_add_", {NoGrad({4, 5}), NoGrad({3})}, MANY((at::_foreach_add_(i, 1), i)));
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Operators, SweepTest, ::testing::ValuesIn(Cases()), SweepName);

}  // namespace
}  // namespace ddpopt
