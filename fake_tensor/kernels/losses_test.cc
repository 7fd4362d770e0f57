// Losses, attention, embeddings, gated units and LSTMs on fakes.

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

Tensor Zeros(at::IntArrayRef sizes, at::ScalarType dtype = at::kLong) { return at::zeros(sizes, dtype); }

std::vector<SweepCase> Losses() {
  std::vector<SweepCase> cases;
  const char* const reductions[] = {"_none", "_mean", "_sum"};
  for (int64_t reduction = 0; reduction < 3; ++reduction) {
    const auto add = [&](const char* name, const char* op, std::vector<c10::IValue> args) {
      cases.push_back(OpCase(absl::StrCat(name, reductions[reduction]), op, std::move(args)));
    };
    add("mse", "aten::mse_loss", {T(F({3, 4})), F({3}), reduction});
    add("smooth_l1", "aten::smooth_l1_loss", {T(F({3, 4})), F({3}), reduction, 1.0});
    add("huber", "aten::huber_loss", {T(F({3, 4})), F({3}), reduction, 1.0});
    add("huber_broadcast", "aten::huber_loss", {F({3}), F({4, 3}), reduction, 1.0});
    add("bce", "aten::binary_cross_entropy", {T(F({3, 4})), NoGrad({4, 3}), NoGrad({3}), reduction});
    add("multi_margin", "aten::multi_margin_loss", {T(F({3, 4})), Long({4}), 1, 1, NoGrad({3}), reduction});
    add("multi_margin_vector", "aten::multi_margin_loss", {F({3}), Long({1}), 2, 1, None(), reduction});
    add("multilabel_margin", "aten::multilabel_margin_loss", {T(F({3, 4})), Long({4, 3}), reduction});
    add("multilabel_margin_vector", "aten::multilabel_margin_loss", {F({3}), Long({3}), reduction});
    add("nll2d", "aten::nll_loss2d", {F({2, 3, 4, 5}), Long({2, 4, 5}), NoGrad({3}), reduction, -100});
  }
  const Tensor x = NoGrad({4, 3});
  const Tensor scalar = NoGrad({});
  cases.push_back(OpCase("mse_backward_out", "aten::mse_loss_backward.grad_input", {scalar, T(NoGrad({3, 4})), x, 1},
                         {{"grad_input", NoGrad({0}, at::kDouble)}}));
  cases.push_back(
      OpCase("huber_backward_out", "aten::huber_loss_backward.out", {NoGrad({5, 4, 3}), x, x, 1, 1.0}, {{"grad_input", NoGrad({0})}}));
  cases.push_back(Rejected(OpCase("huber_backward_dtype", "aten::huber_loss_backward.out", {scalar, x, As(at::kDouble, x), 1, 1.0},
                                  {{"grad_input", NoGrad({0})}})));
  cases.push_back(Rejected(OpCase("huber_delta", "aten::huber_loss", {x, x, 1, 0.0})));
  // The tensor keeps its shape, and its storage grows.
  cases.push_back(OpCase("bce_out", "aten::binary_cross_entropy.out", {x, x, None(), 0}, {{"out", NoGrad({0})}}));
  cases.push_back(Rejected(OpCase("bce_weight", "aten::binary_cross_entropy", {x, x, NoGrad({5, 4, 3}), 0})));
  cases.push_back(Rejected(OpCase("multi_margin_p", "aten::multi_margin_loss", {x, Long({4}), 3})));
  cases.push_back(Rejected(OpCase("multi_margin_target", "aten::multi_margin_loss", {x, Long({3})})));
  // Dtypes where there are no elements.
  cases.push_back(OpCase("multi_margin_out_nothing", "aten::multi_margin_loss.out", {NoGrad({0, 3}), Long({0}), 1, 1, None(), 0},
                         {{"out", Long({0})}}));
  const auto nll2d_out = [&](const char* name, int64_t reduction) {
    return OpCase(name, "aten::nll_loss2d_forward.output", {NoGrad({0, 3, 4, 5}), Long({0, 4, 5}), None(), reduction, -100},
                  {{"output", NoGrad({0}, at::kDouble)}, {"total_weight", NoGrad({})}});
  };
  cases.push_back(nll2d_out("nll2d_out_nothing", 2));
  cases.push_back(Rejected(nll2d_out("nll2d_out_nothing_unreduced", 0)));
  cases.push_back(Rejected(OpCase("nll2d_last", "aten::nll_loss2d_backward",
                                  {NoGrad({2, 4, 5}), ChannelsLast({2, 3, 4, 5}).detach(), Long({2, 4, 5}), None(), 0, -100, scalar})));
  cases.push_back(OpCase("glu", "aten::glu", {T(F({6, 4})), 1}));
  cases.push_back(OpCase("glu_backward_broadcast", "aten::glu_backward", {NoGrad({4, 1}), NoGrad({4, 6}), 1}));
  cases.push_back(OpCase("glu_backward_out", "aten::glu_backward.grad_input", {NoGrad({4, 3}), NoGrad({4, 6}), 1},
                         {{"grad_input", T(NoGrad({6, 4}))}}));
  cases.push_back(Rejected(OpCase("glu_backward_odd", "aten::glu_backward", {NoGrad({4, 2}), NoGrad({4, 5}), 1})));
  cases.push_back(OpCase("glu_jvp", "aten::glu_jvp", {T(NoGrad({3, 4})), NoGrad({4, 6}), NoGrad({4, 6}), 1}));
  cases.push_back(OpCase("glu_backward_jvp", "aten::glu_backward_jvp",
                         {NoGrad({4, 6}), NoGrad({4, 3}), NoGrad({4, 6}), NoGrad({4, 3}), NoGrad({4, 6}), 1}));
  cases.push_back(Rejected(OpCase("glu_backward_jvp_bool", "aten::glu_backward_jvp",
                                  {NoGrad({4, 6}), NoGrad({4, 3}), NoGrad({4, 6}, at::kBool), NoGrad({4, 3}), NoGrad({4, 6}), 1})));
  return cases;
}

std::vector<SweepCase> Attention() {
  std::vector<SweepCase> cases;
  constexpr const char* kFlash = "aten::_scaled_dot_product_flash_attention_for_cpu";
  const Tensor q = F({2, 4, 3, 8});
  const Tensor k = F({2, 2, 5, 8});
  cases.push_back(OpCase("flash", kFlash, {q, F({2, 4, 5, 8}), F({2, 4, 5, 8}), 0.0, true}));
  cases.push_back(OpCase("flash_last", kFlash, {ChannelsLast({2, 4, 3, 8}), F({2, 4, 5, 8}), T(F({2, 4, 8, 5}))}));
  cases.push_back(OpCase("flash_grouped", kFlash, {q, k, k}));
  cases.push_back(OpCase("flash_mask", kFlash, {q, q, q}, {{"attn_mask", NoGrad({1, 3})}}));
  cases.push_back(Rejected(OpCase("flash_mask_dtype", kFlash, {q, q, q}, {{"attn_mask", NoGrad({1, 3}, at::kBool)}})));
  cases.push_back(Rejected(OpCase("flash_head_size", kFlash, {q, F({2, 4, 3, 7}), F({2, 4, 3, 7})})));
  cases.push_back(Rejected(OpCase("flash_dropout", kFlash, {q, q, q, 0.1})));
  const Tensor scores = F({2, 4, 3, 3});
  cases.push_back(OpCase("masked_softmax", "aten::_masked_softmax", {T(scores), Zeros({2, 4, 3, 3}, at::kBool), 1}));
  cases.push_back(OpCase("masked_softmax_keys", "aten::_masked_softmax", {scores.detach(), Zeros({2, 3}, at::kBool), None(), 1}));
  cases.push_back(Rejected(OpCase("masked_softmax_type", "aten::_masked_softmax", {scores, Zeros({2, 3}, at::kBool), None(), None()})));
  cases.push_back(Rejected(OpCase("softmax_backward_dtype", "aten::_softmax_backward_data",
                                  {NoGrad({3, 3}), NoGrad({3, 3}, at::kDouble), 1, static_cast<int64_t>(at::kFloat)})));
  cases.push_back(OpCase("transform_bias_rescale_qkv", "aten::_transform_bias_rescale_qkv", {NoGrad({2, 4, 24}), NoGrad({24}), 2}));
  const Tensor x = NoGrad({2, 4, 8});
  for (const bool average : {true, false}) {
    cases.push_back(OpCase(absl::StrCat("multi_head", average ? "_average" : ""), "aten::_native_multi_head_attention",
                           {x, x, x, 8, 2, NoGrad({24, 8}), NoGrad({24}), NoGrad({8, 8}), NoGrad({8}), None(), true, average}));
  }
  const Tensor b = NoGrad({8});
  cases.push_back(OpCase("encoder_layer", "aten::_transformer_encoder_layer_fwd",
                         {x, 8, 2, NoGrad({24, 8}), NoGrad({24}), NoGrad({8, 8}), b, true, true, 1e-5, b, b, b, b, NoGrad({16, 8}),
                          NoGrad({16}), NoGrad({8, 16}), b}));
  return cases;
}

std::vector<SweepCase> Embeddings() {
  std::vector<SweepCase> cases;
  const Tensor offsets = Zeros({3});
  for (int64_t mode = 0; mode < 3; ++mode) {
    const auto add = [&](const char* name, const Tensor& weight, bool last, int64_t padding) {
      cases.push_back(OpCase(absl::StrCat("bag_", name, mode), "aten::_embedding_bag",
                             {weight, Long({6}), offsets, false, mode, false, None(), last, padding}));
    };
    add("", F({7, 4}), false, -1);
    add("transposed", T(F({4, 7})), false, -1);
    add("double", As(at::kDouble, F({7, 4})), false, -1);
    add("last", F({7, 4}), true, -1);
    add("padding", F({7, 4}), false, 1);
  }
  const Tensor weight = F({7, 4});
  const auto bag = [&](const char* name, std::vector<c10::IValue> args) { return OpCase(name, "aten::_embedding_bag", std::move(args)); };
  cases.push_back(bag("bag_weighted", {weight, Long({6}), offsets, false, 0, false, F({6})}));
  cases.push_back(bag("bag_int_indices", {weight, NoGrad({6}, at::kInt), offsets}));
  cases.push_back(bag("bag_ints", {weight, NoGrad({6}, at::kInt), Zeros({3}, at::kInt)}));
  cases.push_back(Rejected(bag("bag_weighted_mean", {weight, Long({6}), offsets, false, 1, false, F({6})})));
  cases.push_back(Rejected(bag("bag_float_indices", {weight, NoGrad({6}), offsets})));
  cases.push_back(Rejected(bag("bag_offsets_rank", {weight, Long({6}), Zeros({3, 1})})));
  cases.push_back(OpCase("embedding_renorm", "aten::embedding_renorm_", {NoGrad({7, 4}), Long({3}), 1.0, 2.0}));
  cases.push_back(Rejected(OpCase("embedding_renorm_rank", "aten::embedding_renorm_", {NoGrad({7}), Long({3}), 1.0, 2.0})));
  cases.push_back(OpCase("embedding_dense_backward", "aten::embedding_dense_backward", {NoGrad({6, 4}), Long({2, 3}), 7, -1, false}));
  cases.push_back(Rejected(
      OpCase("embedding_dense_backward_shape", "aten::embedding_dense_backward", {NoGrad({2, 3, 4}), Long({2, 4}), 7, -1, false})));
  return cases;
}

std::vector<SweepCase> Recurrent() {
  std::vector<SweepCase> cases;
  const auto layer = [](const char* name, int64_t steps, int64_t batch, int64_t inputs, int64_t hidden, at::ScalarType dtype,
                        int64_t mode) {
    const auto ones = [&](std::initializer_list<int64_t> sizes) { return NoGrad(sizes, dtype); };
    return OpCase(name, "aten::mkldnn_rnn_layer",
                  {ones({steps, batch, inputs}), ones({4 * hidden, inputs}), ones({4 * hidden, hidden}), ones({4 * hidden}),
                   ones({4 * hidden}), ones({batch, hidden}), ones({batch, hidden}), false, c10::IValue(std::vector<int64_t>()), mode,
                   hidden, 1, true, false, false, false});
  };
  // The workspace's size follows from these.
  cases.push_back(layer("lstm_small", 5, 2, 3, 4, at::kFloat, 2));
  cases.push_back(layer("lstm_long", 50, 20, 30, 40, at::kFloat, 2));
  cases.push_back(layer("lstm_wide_input", 20, 10, 160, 16, at::kFloat, 2));
  cases.push_back(layer("lstm_wide", 20, 10, 16, 64, at::kFloat, 2));
  cases.push_back(layer("lstm_wider", 20, 10, 16, 128, at::kFloat, 2));
  cases.push_back(layer("lstm_bfloat16", 20, 10, 16, 64, at::kBFloat16, 2));
  // Of halves there is no training, on any processor.
  cases.push_back(Rejected(layer("lstm_half", 5, 2, 3, 4, at::kHalf, 2)));
  cases.push_back(Rejected(layer("gru", 5, 2, 3, 4, at::kFloat, 3)));
  cases.push_back(Rejected(layer("lstm_double", 5, 2, 3, 4, at::kDouble, 2)));
  cases.push_back(OpCase("lstm", "aten::lstm.input",
                         {F({5, 2, 3}), std::vector<Tensor>{F({1, 2, 4}), F({1, 2, 4})},
                          std::vector<Tensor>{F({16, 3}), F({16, 4}), F({16}), F({16})}, true, 1, 0.0, true, false, false}));
  cases.push_back(OpCase(
      "gru_input", "aten::gru.input",
      {F({5, 2, 3}), F({1, 2, 4}), std::vector<Tensor>{F({12, 3}), F({12, 4}), F({12}), F({12})}, true, 1, 0.0, true, false, false}));
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Losses, SweepTest, ::testing::ValuesIn(Losses()), SweepName);
INSTANTIATE_TEST_SUITE_P(Attention, SweepTest, ::testing::ValuesIn(Attention()), SweepName);
INSTANTIATE_TEST_SUITE_P(Embeddings, SweepTest, ::testing::ValuesIn(Embeddings()), SweepName);
INSTANTIATE_TEST_SUITE_P(Recurrent, SweepTest, ::testing::ValuesIn(Recurrent()), SweepName);

}  // namespace
}  // namespace ddpopt
