#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "base/status.h"
#include "c10/core/InferenceMode.h"
#include "fake_tensor/fake_errors.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/api/include/torch/detail/TensorDataContainer.h"

namespace ddpopt {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

// What torch::tensor() does with a braced list.
Tensor Make(torch::detail::TensorDataContainer data, at::TensorOptions options = {}) { return data.convert_to_tensor(options); }

class FakeConstantsTest : public ::testing::Test {
 protected:
  const std::shared_ptr<FakeTensorMode> mode_ = FakeTensorMode::Create();
  ModeGuard guard_{mode_};
};

bool Unknown(const Tensor& t) { return !FakeTensorMode::KnownValue(t).has_value(); }

TEST_F(FakeConstantsTest, TensorsMadeFromNumbersAreKnown) {
  const Tensor x = Make({1.5, 2.5});
  ASSERT_TRUE(IsFake(x));
  EXPECT_EQ(x[1].item<float>(), 2.5F);
  EXPECT_EQ(Make({{1, 2, 3}, {4, 5, 6}})[1][2].item<int64_t>(), 6);
  EXPECT_EQ(Make(7).item<int64_t>(), 7);
  EXPECT_TRUE(Make(true).is_nonzero());
  EXPECT_EQ(at::scalar_tensor(2.5).item<double>(), 2.5);
}

TEST_F(FakeConstantsTest, LiftMakesConstants) {
  const Tensor real = [] {
    DisableModesGuard off(Mode::Level::kPostAutograd);
    return at::arange(3);
  }();
  const Tensor x = at::lift_fresh(real);
  EXPECT_EQ(x[2].item<int64_t>(), 2);
  EXPECT_EQ(at::lift_fresh_copy(real)[1].item<int64_t>(), 1);
  {
    DisableModesGuard off(Mode::Level::kPostAutograd);
    real.fill_(9);
  }
  EXPECT_EQ(x[2].item<int64_t>(), 2) << "a copy";
  EXPECT_TRUE(at::lift_fresh(x).is_same(x));
}

// The metadata are the real tensor's, lazy conjugation, offset and the storage's size included, and so are the values.
TEST_F(FakeConstantsTest, ConstantsOfEveryLayout) {
  std::vector<Tensor> reals;
  {
    DisableModesGuard off(Mode::Level::kPostAutograd);
    const Tensor complex = at::complex(at::arange(24, at::kFloat), at::arange(24, at::kFloat) + 100);
    reals = {at::conj(complex.slice(0, 3, 9, 2)),
             at::imag(at::conj(complex)).slice(0, 17, 20),
             at::_neg_view(at::arange(40).slice(0, 33, 37)),
             at::arange(6).view({2, 3}).t(),
             at::ones({1}).expand({3}),
             at::arange(3).slice(0, 3, 3),
             at::arange(40).select(0, 33),
             at::arange(40, at::kByte).slice(0, 33, 36)};
  }
  for (const Tensor& real : reals) {
    // (What isn't a view, LibTorch resolves before the mode sees it.)
    const bool lazy = real.is_conj() || real.is_neg();
    for (const Tensor& fake : {mode_->FromConstant(real), at::lift_fresh(real), at::lift(mode_->FromConstant(real))}) {
      ASSERT_TRUE(IsFake(fake));
      const bool resolved = lazy && !fake.is_conj() && !fake.is_neg();
      const std::optional<Tensor> known = FakeTensorMode::KnownValue(fake);
      DisableModesGuard off(Mode::Level::kPostAutograd);
      const Tensor want = resolved ? at::lift(real) : real;
      EXPECT_EQ(fake.sizes(), want.sizes());
      EXPECT_EQ(fake.strides(), want.strides());
      EXPECT_EQ(fake.storage_offset(), want.storage_offset());
      EXPECT_EQ(fake.storage().nbytes(), want.storage().nbytes());
      EXPECT_EQ(fake.is_conj(), want.is_conj());
      EXPECT_EQ(fake.is_neg(), want.is_neg());
      ASSERT_TRUE(known.has_value());
      EXPECT_TRUE(at::equal(*known, real)) << real;
    }
    if (lazy) continue;
    const Tensor copy = at::lift_fresh_copy(real);
    const Tensor copy_of_fake = at::lift_fresh_copy(mode_->FromConstant(real));
    DisableModesGuard off(Mode::Level::kPostAutograd);
    const Tensor want = at::lift_fresh_copy(real);
    EXPECT_EQ(copy.strides(), want.strides());
    EXPECT_EQ(copy_of_fake.strides(), want.strides());
    EXPECT_EQ(copy.storage().nbytes(), want.storage().nbytes());
  }
}

// Of a large storage only what the constant sees is known.
TEST_F(FakeConstantsTest, WhatLiesBesideAConstantIsUnknown) {
  const Tensor x = mode_->FromConstant([] {
    DisableModesGuard off(Mode::Level::kPostAutograd);
    return at::arange(64).slice(0, 32, 34);
  }());
  EXPECT_EQ(x[1].item<int64_t>(), 33);
  EXPECT_EQ(x.as_strided({1}, {1}, 33).item<int64_t>(), 33);
  for (const int64_t offset : {0, 31, 33, 34, 63}) {
    EXPECT_TRUE(Unknown(x.as_strided({2}, {1}, std::min<int64_t>(offset, 62)))) << offset;
  }
  EXPECT_TRUE(Unknown(x.as_strided({2}, {1}, 33) + 1));
  EXPECT_TRUE(Unknown(at::as_strided_copy(x, {2}, {1}, 0))) << "what the operator reads isn't what the operand sees";
  x.as_strided({1}, {1}, 0).fill_(1);
  EXPECT_TRUE(Unknown(x)) << "a write anywhere in the storage";
}

// Views of constants may be large; nothing is computed on those.
TEST_F(FakeConstantsTest, LargeViewsAreNotComputedWith) {
  const Tensor x = Make({1.0, 2.0});
  const Tensor large = x.expand({int64_t{1} << 17, 2});
  EXPECT_EQ(large[99][1].item<float>(), 2.0F);
  ASSERT_TRUE(Unknown(large.sum()));
  EXPECT_THROW(at::nonzero(large), DynamicOutputShape);
  EXPECT_THROW(at::equal(large, large.alias()), DataDependentOutput);
  EXPECT_EQ(x.expand({3, 2}).sum().item<float>(), 9.0F);
  // More than any memory or patience.
  const Tensor endless = x.select(0, 0).expand({int64_t{1} << 50});
  EXPECT_TRUE(Unknown(endless.sum()));
  EXPECT_TRUE(Unknown(at::dot(endless, endless)));
  EXPECT_THROW(at::nonzero(endless), DynamicOutputShape);
  EXPECT_EQ(endless[int64_t{1} << 40].item<float>(), 1.0F);
}

TEST_F(FakeConstantsTest, LargeOnesAreNotKept) {
  EXPECT_FALSE(Unknown(Make({1, 2, 3, 4, 5, 6, 7, 8})));
  EXPECT_TRUE(Unknown(Make({1, 2, 3, 4, 5, 6, 7, 8, 9})));
  FakeTensorModeOptions options;
  options.constant_limit = 1;
  const auto small = FakeTensorMode::Create(options);
  ModeGuard guard(small);
  EXPECT_TRUE(Unknown(Make({1, 2})));
  EXPECT_FALSE(Unknown(Make(1)));
}

TEST_F(FakeConstantsTest, OthersAreNotConstants) {
  EXPECT_TRUE(Unknown(at::zeros({2})));
  EXPECT_TRUE(Unknown(at::empty({2})));
  EXPECT_TRUE(Unknown(at::randn({})));
  EXPECT_TRUE(Unknown(mode_->FromReal([] {
    DisableModesGuard off(Mode::Level::kPostAutograd);
    return at::ones({2});
  }())));
}

TEST_F(FakeConstantsTest, OperatorsOnConstantsAloneKeepThem) {
  const Tensor x = Make({1, 2, 3});
  EXPECT_EQ((x + 1)[2].item<int64_t>(), 4);
  EXPECT_EQ((x * x).sum().item<int64_t>(), 14);
  EXPECT_EQ(x.to(at::kFloat).mean().item<float>(), 2.0F);
  EXPECT_EQ(at::cat({x, x})[5].item<int64_t>(), 3);
  EXPECT_EQ(at::stack({x, x}).t()[0][1].item<int64_t>(), 1);
  EXPECT_EQ(x.flip(0)[0].item<int64_t>(), 3);
  EXPECT_EQ(std::get<0>(x.max(0)).item<int64_t>(), 3);
  // The second time from the cache.
  EXPECT_EQ((x + 1)[2].item<int64_t>(), 4);
  EXPECT_EQ((Make({5, 5, 5}) + 1)[2].item<int64_t>(), 6);
  EXPECT_TRUE(Unknown(x + at::zeros({3}))) << "not all operands are known";
  EXPECT_TRUE(Unknown(x.expand({20, 3}).contiguous())) << "too large";
  EXPECT_TRUE(Unknown(at::rand_like(x.to(at::kFloat)))) << "random";
  EXPECT_TRUE(Unknown(at::empty_like(x)));
  EXPECT_TRUE(Unknown(x.new_empty({2})));
  EXPECT_TRUE(Unknown(at::bernoulli(Make({1.0, 1.0})))) << "random";
}

TEST_F(FakeConstantsTest, ViewsAndDetachKeepThem) {
  const Tensor x = Make({{1, 2}, {3, 4}});
  EXPECT_EQ(x.t()[0][1].item<int64_t>(), 3);
  EXPECT_EQ(x.view({4}).slice(0, 1, 3)[1].item<int64_t>(), 3);
  EXPECT_EQ(x.detach()[1][1].item<int64_t>(), 4);
  EXPECT_EQ(at::alias(x)[1][0].item<int64_t>(), 3);
  EXPECT_EQ(x.expand({100, 2, 2})[99][0][1].item<int64_t>(), 2);
  const Tensor y = Make({1, 2});
  y.detach_();
  EXPECT_EQ(y[0].item<int64_t>(), 1);
  const Tensor z = Make({{1, 2}, {3, 4}});
  z.t_();
  EXPECT_EQ(z[0][1].item<int64_t>(), 3);
  c10::InferenceMode inference;
  const Tensor w = Make({1, 2});
  w.detach_();
  EXPECT_EQ(w.detach()[1].item<int64_t>(), 2);
}

TEST_F(FakeConstantsTest, AWriteThroughAnyAliasEndsThem) {
  const std::vector<void (*)(const Tensor&)> writes = {
      [](const Tensor& x) { x.add_(1); },
      [](const Tensor& x) { x.t().zero_(); },
      [](const Tensor& x) { x.select(0, 1).fill_(3); },
      [](const Tensor& x) { x.detach().copy_(at::scalar_tensor(1)); },
      [](const Tensor& x) { x.view(-1).index_put_({at::scalar_tensor(0, at::kLong)}, at::scalar_tensor(2)); },
      [](const Tensor& x) {
        Tensor out = x.alias();
        at::add_out(out, x, x);
      },
      [](const Tensor& x) { at::_foreach_add_({x}, 1); },
      [](const Tensor& x) {
        x.masked_fill_(at::ones({2, 2}, at::kBool), 1);
      },
      [](const Tensor& x) {
        x.resize_({3, 3});
      },
      [](const Tensor& x) { x.random_(); },
      // Other aliases, by other ways.
      [](const Tensor& x) { x.variable_data().zero_(); },
      [](const Tensor& x) { x.view(at::kInt).select(1, 0).fill_(1); },
      [](const Tensor& x) { at::_neg_view(x).add_(1); },
      [](const Tensor& x) { at::_foreach_mul_({at::zeros({2}), x.select(1, 1)}, 2); },
      [](const Tensor& x) {
        Tensor row = x.select(0, 1);
        at::index_put_(row, {at::zeros({1}, at::kLong)}, at::ones({1}));
      },
      [](const Tensor& x) {
        Tensor out = x.select(0, 1);
        at::sum_out(out, at::zeros({2, 2}), at::IntArrayRef{0});
      },
      [](const Tensor& x) { x.detach().resize_({1}).zero_(); },
      [](const Tensor& x) { at::empty({0}).set_(x).zero_(); },
      [](const Tensor& x) {
        Tensor other = at::zeros({2, 2});
        other.set_data(x);
        other.zero_();
      },
      [](const Tensor& x) { x.unbind()[1].unsqueeze(0).swapaxes(0, 1).clamp_(0, 1); },
  };
  for (std::size_t i = 0; i < writes.size(); ++i) {
    for (int again = 0; again < 2; ++again) {
      const Tensor x = Make({{1.0, 2.0}, {3.0, 4.0}});
      const Tensor alias = x.t();
      ASSERT_FALSE(Unknown(alias));
      writes[i](x);
      EXPECT_TRUE(Unknown(alias)) << i << ", pass " << again;
      EXPECT_THROW(alias[0][0].item(), DataDependentOutput);
    }
  }
}

// A tensor that gets other memory isn't known for what it held; its aliases still are.
TEST_F(FakeConstantsTest, OtherMemoryIsNoWrite) {
  const Tensor x = Make({1.0, 2.0});
  const Tensor alias = x.slice(0, 1);
  x.set_data(at::zeros({2}));
  EXPECT_TRUE(Unknown(x));
  EXPECT_EQ(alias.item<float>(), 2.0F);
  const Tensor y = Make({3.0, 4.0});
  const Tensor y_alias = y.slice(0, 1);
  y.set_(at::zeros({2}));
  EXPECT_TRUE(Unknown(y));
  EXPECT_EQ(y_alias.item<float>(), 4.0F);
  y.set_data(y_alias);
  EXPECT_EQ(y.item<float>(), 4.0F);
}

TEST_F(FakeConstantsTest, ReadsDoNotEndThem) {
  const Tensor x = Make({1.0, 2.0});
  const Tensor y = at::zeros({2});
  y.add_(x);
  y.copy_(x);
  at::mul(x, y);
  EXPECT_FALSE(Unknown(x));
  EXPECT_TRUE(Unknown(y));
}

TEST_F(FakeConstantsTest, HalfFilledTensorsAreUnknown) {
  const Tensor x = at::empty({2});
  x[0].fill_(1);
  EXPECT_THROW(x[0].item(), DataDependentOutput);
  EXPECT_THROW(at::scalar_tensor(1.0).add_(at::zeros({})).item(), DataDependentOutput);
}

TEST_F(FakeConstantsTest, DataDependentResultsOfConstants) {
  const Tensor x = Make({0, 3, 0, 4});
  const Tensor indices = at::nonzero(x);
  EXPECT_EQ(indices.sizes(), at::IntArrayRef({2, 1}));
  EXPECT_EQ(indices[1][0].item<int64_t>(), 3);
  EXPECT_EQ(at::masked_select(x, x > 0).sizes(), at::IntArrayRef({2}));
  EXPECT_EQ(x.index({x > 3}).sizes(), at::IntArrayRef({1}));
  EXPECT_EQ(std::get<0>(at::_unique(x)).size(0), 3);
  EXPECT_TRUE(at::equal(x, Make({0, 3, 0, 4})));
  EXPECT_FALSE(at::equal(x, Make({0, 3, 0, 5})));
}

TEST_F(FakeConstantsTest, ErrorsNameTheCall) {
  const Tensor x = at::zeros({3});
  try {
    x.sum().item();
    FAIL();
  } catch (const DataDependentOutput& error) {
    EXPECT_THAT(ExceptionMessage(error), AllOf(HasSubstr("aten::_local_scalar_dense"), HasSubstr("item()"), HasSubstr("shape []")));
  }
  try {
    at::nonzero(x);
    FAIL();
  } catch (const DynamicOutputShape& error) {
    EXPECT_THAT(ExceptionMessage(error), AllOf(HasSubstr("aten::nonzero"), HasSubstr("self (shape [3]")));
  }
  EXPECT_THROW(x.index({x > 0}), DynamicOutputShape);
  EXPECT_THROW(x.is_nonzero(), c10::Error);
  EXPECT_THROW(at::equal(x, at::zeros({3})), DataDependentOutput);
  EXPECT_THROW(at::masked_select(x, x > 0), DynamicOutputShape);
}

TEST_F(FakeConstantsTest, AMoveToAnotherDeviceDropsThem) {
  const Tensor x = Make({1, 2});
  const Tensor moved = at::_to_copy(x, at::TensorOptions().device(at::Device(at::kCUDA, 0)));
  EXPECT_EQ(moved.device(), at::Device(at::kCUDA, 0));
  EXPECT_TRUE(Unknown(moved));
  EXPECT_FALSE(Unknown(x));
}

TEST_F(FakeConstantsTest, VectorsAreRefusedClearly) {
  try {
    Make(std::vector<float>{1, 2});
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_THAT(ExceptionMessage(error), HasSubstr("fake tensor"));
  }
  DisableModesGuard off(Mode::Level::kPostAutograd);
  const Tensor real = Make(std::vector<float>{1, 2});
  EXPECT_EQ(mode_->FromConstant(real)[1].item<float>(), 2);
}

}  // namespace
}  // namespace ddpopt
