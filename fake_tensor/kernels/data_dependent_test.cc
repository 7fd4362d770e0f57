// Operators whose results' shapes or values depend on data, simulated quantization, packed weights and operators of no family.

#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/_add_relu.h"
#include "ATen/ops/add.h"
#include "ATen/ops/full.h"
#include "base/status.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fake_tensor/sweep.h"
#include "gmock/gmock.h"
#include "interpreter/call_operator.h"

namespace ddpopt {
namespace {

using ::testing::HasSubstr;

at::Tensor Scale() { return at::full({1}, 0.1); }
at::Tensor Zero(at::ScalarType dtype = at::kInt) { return at::full({1}, 0, dtype); }
at::Tensor Bytes(at::IntArrayRef sizes, at::ScalarType dtype) { return NoGrad(sizes, dtype); }
c10::IValue Number(int64_t n) { return c10::IValue(n); }

std::vector<SweepCase> Known() {
  return {
      OpCase("repeat_interleave_sized", "aten::repeat_interleave.Tensor", {at::full({3}, 2, at::kLong)}, {{"output_size", 6}}),
      Rejected(OpCase("repeat_interleave_matrix", "aten::repeat_interleave.Tensor", {Long({2, 2})}, {{"output_size", 4}})),
      OpCase("bincount_empty", "aten::bincount", {Long({0})}, {{"minlength", 5}}),
      Rejected(OpCase("bincount_floats", "aten::bincount", {NoGrad({3})})),
      Rejected(OpCase("bincount_weights", "aten::bincount", {Long({3}), NoGrad({2})})),
      Rejected(OpCase("masked_select_long", "aten::masked_select", {NoGrad({3}), Long({3})})),
      Rejected(OpCase("nonzero_out_floats", "aten::nonzero.out", {NoGrad({3})}, {{"out", NoGrad({0})}})),
      Rejected(OpCase("unique_dim_out_of_range", "aten::unique_dim", {NoGrad({3}), 1})),
      OpCase("isin_number", "aten::isin.Scalar_Tensor", {2, NoGrad({2, 3})}),
      OpCase("isin_number_out", "aten::isin.Scalar_Tensor_out", {2, NoGrad({2, 3})}, {{"out", NoGrad({0}, at::kBool)}}),
      Rejected(OpCase("isin_transposed", "aten::isin.Tensor_Tensor", {NoGrad({2}), T(NoGrad({3, 2}))})),
      Rejected(OpCase("isin_bools", "aten::isin.Tensor_Tensor", {NoGrad({2}), NoGrad({2}, at::kBool)})),
      OpCase("euclidean_dist", "aten::_euclidean_dist", {NoGrad({2, 3, 4}), NoGrad({5, 4})}),
      Rejected(OpCase("euclidean_dist_integers", "aten::_euclidean_dist", {Long({3, 4}), Long({5, 4})})),
      OpCase("lu_solve_right", "aten::linalg_lu_solve",
             {NoGrad({3, 3}, at::kComplexFloat), at::full({3}, 1, at::kInt), NoGrad({2, 3}, at::kComplexFloat)}, {{"left", false}}),
      Rejected(OpCase("renorm_integers", "aten::renorm", {Long({3, 3}), 2, 0, 1})),
  };
}

std::vector<SweepCase> Quantized() {
  const at::Tensor scales = at::full({2}, 0.1);
  const at::Tensor zeros = at::full({2}, 0, at::kInt);
  return {
      OpCase("fake_quantize", "aten::fake_quantize_per_tensor_affine_cachemask", {T(NoGrad({3, 2})), 0.1, 0, 0, 255}),
      Rejected(OpCase("fake_quantize_zero_point", "aten::fake_quantize_per_tensor_affine_cachemask", {NoGrad({2}), 0.1, 300, 0, 255})),
      OpCase("fake_quantize_tensors", "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
             {X(NoGrad({3}), 2), Scale(), Zero(), Long({1}), 0, 255}),
      OpCase("fake_quantize_channels", "aten::fake_quantize_per_channel_affine_cachemask", {NoGrad({2, 3}), scales, zeros, 0, 0, 255}),
      Rejected(OpCase("fake_quantize_channels_of_other_axis", "aten::fake_quantize_per_channel_affine_cachemask",
                      {NoGrad({2, 3}), scales, zeros, 1, 0, 255})),
      OpCase("fake_quantize_learnable", "aten::_fake_quantize_learnable_per_tensor_affine",
             {F({2, 3}), Scale(), Zero(at::kFloat), 0, 255, 1.0}),
      OpCase("fake_quantize_learnable_backward", "aten::_fake_quantize_learnable_per_tensor_affine_backward",
             {NoGrad({2, 3}), NoGrad({2, 3}, at::kBFloat16), Scale(), Zero(at::kFloat), 0, 255, 1.0}),
      OpCase("fake_quantize_learnable_channels_backward", "aten::_fake_quantize_learnable_per_channel_affine_backward",
             {NoGrad({2, 3}), T(NoGrad({3, 2})), scales, As(at::kFloat, zeros), 0, 0, 255, 1.0}),
      OpCase("fake_quantize_learnable_vector_backward", "aten::_fake_quantize_learnable_per_channel_affine_backward",
             {NoGrad({2}), NoGrad({2}), scales, As(at::kFloat, zeros), 0, 0, 255, 1.0}),
      OpCase("int8_product", "aten::_weight_int8pack_mm", {NoGrad({3, 32}), Bytes({16, 32}, at::kChar), NoGrad({16})}),
      Rejected(OpCase("int8_product_scales", "aten::_weight_int8pack_mm",
                      {NoGrad({3, 32}), Bytes({16, 32}, at::kChar), As(at::kHalf, NoGrad({16}))})),
      OpCase("int4_pack", "aten::_convert_weight_to_int4pack_for_cpu", {Bytes({16, 32}, at::kInt), 2}),
      OpCase("int4_product", "aten::_weight_int4pack_mm_for_cpu", {NoGrad({3, 32}), Bytes({16, 16}, at::kByte), 32, NoGrad({1, 16, 2})}),
      Rejected(OpCase("int4_product_group", "aten::_weight_int4pack_mm_for_cpu",
                      {NoGrad({3, 32}), Bytes({16, 16}, at::kByte), 64, NoGrad({1, 16, 2})})),
      OpCase("jagged_to_padded", "aten::_jagged_to_padded_dense_forward",
             {NoGrad({6, 2}), c10::IValue(std::vector<at::Tensor>{at::full({4}, 0, at::kLong)}), Ints({3}), 0.0}),
  };
}

INSTANTIATE_TEST_SUITE_P(Known, SweepTest, ::testing::ValuesIn(Known()), SweepName);
INSTANTIATE_TEST_SUITE_P(Quantized, SweepTest, ::testing::ValuesIn(Quantized()), SweepName);

// What the real operator accepts, and a fake can't answer.
std::string Refusal(const char* op, const char* overload, std::vector<c10::IValue> args, std::vector<int> fakes) {
  const auto mode = FakeTensorMode::Create();
  for (const int i : fakes) args[i] = mode->FromReal(args[i].toTensor());
  const ModeGuard guard(mode);
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(op, overload);
  const absl::Status status = CatchAsStatus("call", [&] { CallOperator(handle, std::move(args)); });
  return std::string(status.message());
}

TEST(DataDependentTest, ShapesThatDependOnDataAreRefused) {
  const at::Tensor x = NoGrad({3});
  const at::Tensor n = Long({3});
  for (const char* op : {"aten::nonzero", "aten::_unique2", "aten::unique_consecutive", "aten::argwhere"}) {
    EXPECT_THAT(Refusal(op, "", {x}, {0}), HasSubstr("depends on data")) << op;
  }
  EXPECT_THAT(Refusal("aten::unique_dim", "", {x, Number(0)}, {0}), HasSubstr("depends on data"));
  EXPECT_THAT(Refusal("aten::masked_select", "", {x, NoGrad({3}, at::kBool)}, {0, 1}), HasSubstr("depends on data"));
  EXPECT_THAT(Refusal("aten::bincount", "", {n}, {0}), HasSubstr("depends on data"));
  EXPECT_THAT(Refusal("aten::repeat_interleave", "Tensor", {n}, {0}), HasSubstr("depends on data"));
  EXPECT_THAT(Refusal("aten::linalg_lstsq", "", {NoGrad({4, 3}), NoGrad({4, 2})}, {0, 1}), HasSubstr("depends on data"));
  EXPECT_THAT(Refusal("aten::_pack_padded_sequence", "", {NoGrad({3, 2}), Long({2}), false}, {0, 1}), HasSubstr("depends on data"));
  EXPECT_THAT(Refusal("aten::equal", "", {x, NoGrad({3})}, {0, 1}), HasSubstr("data-dependent"));
}

TEST(DataDependentTest, ChecksComeFirst) {
  EXPECT_THAT(Refusal("aten::linalg_lstsq", "", {NoGrad({4, 3}), NoGrad({3, 2})}, {0, 1}), HasSubstr("rows"));
  EXPECT_THAT(Refusal("aten::masked_select", "", {NoGrad({3}), NoGrad({4}, at::kBool)}, {0, 1}), HasSubstr("must match"));
}

// What fakes refuse since LibTorch's layers above them would lose it.
std::string RefusalOf(void (*call)()) {
  const ModeGuard guard(FakeTensorMode::Create());
  return std::string(CatchAsStatus("call", call).message());
}

void AddReluInto(at::ScalarType dtype) {
  at::Tensor out = NoGrad({3}, dtype);
  at::_add_relu_out(out, NoGrad({3}, at::kInt), NoGrad({3}, at::kInt));
}

TEST(DataDependentTest, ResultsThatAreNotTheTensorToWriteToAreRefused) {
  EXPECT_THAT(RefusalOf([] { AddReluInto(at::kFloat); }), HasSubstr("returns another tensor"));
  EXPECT_EQ(RefusalOf([] { AddReluInto(at::kInt); }), "");
  EXPECT_THAT(RefusalOf([] {
                at::Tensor self = NoGrad({3}, at::kInt);
                at::_add_relu_(self, Long({3}));
              }),
              HasSubstr("returns another tensor"));
}

// LibTorch resizes those itself.
TEST(DataDependentTest, LazilyConjugatedOutMustHaveTheShape) {
  EXPECT_THAT(RefusalOf([] {
                at::Tensor out = NoGrad({1}, at::kComplexFloat).conj();
                at::add_out(out, NoGrad({3}, at::kComplexFloat), NoGrad({3}));
              }),
              HasSubstr("resolve_conj()"));
  EXPECT_EQ(RefusalOf([] {
              at::Tensor out = NoGrad({4}, at::kComplexFloat).conj();
              at::add_out(out, NoGrad({3}, at::kComplexFloat), NoGrad({3}));
            }),
            "");
}

}  // namespace
}  // namespace ddpopt
