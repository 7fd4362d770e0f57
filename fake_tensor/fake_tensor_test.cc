#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "ATen/core/Generator.h"
#include "ATen/core/grad_mode.h"
#include "base/dispatch_keys.h"
#include "c10/core/InferenceMode.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fake_tensor/test_helpers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"

namespace ddpopt {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class FakeTensorTest : public ::testing::Test {
 protected:
  const std::shared_ptr<FakeTensorMode> mode_ = FakeTensorMode::Create();
};

TEST_F(FakeTensorTest, HasEverythingButData) {
  const Tensor real = at::ones({3, 4}, at::kDouble).t();
  const Tensor fake = mode_->FromReal(real);
  EXPECT_TRUE(IsFake(fake));
  EXPECT_FALSE(IsFake(real));
  EXPECT_FALSE(IsFake(Tensor()));
  EXPECT_EQ(ModeOf(fake), mode_.get());
  EXPECT_EQ(ModeOf(real), nullptr);
  EXPECT_EQ(fake.sizes(), real.sizes());
  EXPECT_EQ(fake.strides(), real.strides());
  EXPECT_EQ(fake.dtype(), real.dtype());
  EXPECT_EQ(fake.device(), real.device());
  EXPECT_TRUE(fake.is_cpu());
}

TEST_F(FakeTensorTest, DataIsRefused) {
  const Tensor fake = mode_->FromReal(at::ones({2}));
  EXPECT_THAT(ErrorOf([&] { fake.const_data_ptr<float>(); }), HasSubstr("fake tensor"));
  EXPECT_THAT(ErrorOf([&] { fake.mutable_data_ptr<float>(); }), HasSubstr("fake tensor"));
  EXPECT_THAT(ErrorOf([&] { fake.storage().data(); }), HasSubstr("fake tensor"));
}

TEST_F(FakeTensorTest, MemoKeepsIdentityAndAliasing) {
  const Tensor base = at::ones({4, 5});
  const Tensor view = base.select(0, 1);
  const Tensor other = at::ones({4, 5});
  const Tensor fake = mode_->FromReal(base);
  const Tensor fake_view = mode_->FromReal(view);
  const Tensor fake_other = mode_->FromReal(other);
  EXPECT_TRUE(mode_->FromReal(base).is_same(fake));
  EXPECT_TRUE(mode_->FromReal(fake).is_same(fake));
  EXPECT_EQ(StorageOf(fake), StorageOf(fake_view));
  EXPECT_EQ(fake_view.storage_offset(), 5);
  EXPECT_NE(StorageOf(fake), StorageOf(fake_other));
}

TEST_F(FakeTensorTest, ReusedAddressesDoNotMeetOldFakes) {
  std::vector<Tensor> fakes;
  for (int64_t i = 1; i <= 600; ++i) {
    const Tensor real = at::ones({i});
    fakes.push_back(mode_->FromReal(real));
    ASSERT_EQ(fakes.back().size(0), i);
  }
  for (std::size_t i = 0; i < fakes.size(); ++i) {
    ASSERT_FALSE(i > 0 && StorageOf(fakes[i]) == StorageOf(fakes[i - 1]));
  }
}

TEST_F(FakeTensorTest, AChangedRealTensorGetsANewFake) {
  const Tensor real = at::ones({4});
  const Tensor before = mode_->FromReal(real);
  real.resize_({2, 2});
  EXPECT_EQ(mode_->FromReal(real).dim(), 2);
  EXPECT_EQ(before.dim(), 1);
}

TEST_F(FakeTensorTest, RequiresGradAndLeafness) {
  const Tensor leaf = at::ones({2}).requires_grad_();
  const Tensor inner = leaf * 2;
  const Tensor fake_leaf = mode_->FromReal(leaf);
  const Tensor fake_inner = mode_->FromReal(inner);
  EXPECT_TRUE(fake_leaf.requires_grad() && fake_leaf.is_leaf());
  EXPECT_TRUE(fake_inner.requires_grad());
  EXPECT_FALSE(fake_inner.is_leaf());
  EXPECT_FALSE(mode_->FromReal(at::ones({2})).requires_grad());
}

TEST_F(FakeTensorTest, FromRealReachesInsideContainers) {
  c10::List<Tensor> list({at::ones({2}), at::ones({3})});
  const c10::IValue value = c10::ivalue::Tuple::create({c10::IValue(list), c10::IValue(7), c10::IValue(at::ones({4}))});
  const c10::IValue fake = mode_->FromReal(value);
  const auto& elements = fake.toTupleRef().elements();
  EXPECT_TRUE(IsFake(elements[0].toTensorVector()[1]));
  EXPECT_EQ(elements[1].toInt(), 7);
  EXPECT_TRUE(IsFake(elements[2].toTensor()));
}

TEST_F(FakeTensorTest, LayoutsWithoutStridesAreRefused) {
  const Tensor sparse = at::sparse_coo_tensor({2, 2}, at::TensorOptions().layout(at::kSparse));
  EXPECT_THAT(ErrorOf([&] { mode_->FromReal(sparse); }), HasSubstr("only dense tensors"));
}

TEST_F(FakeTensorTest, OperatorsWorkWithoutAPush) {
  const Tensor x = mode_->FromReal(at::ones({3, 4}));
  const Tensor y = at::mm(x, x.t()) + 1;
  EXPECT_TRUE(IsFake(y));
  EXPECT_EQ(y.sizes(), at::IntArrayRef({3, 3}));
}

TEST_F(FakeTensorTest, FactoriesAreFakeWhilePushedOnly) {
  {
    ModeGuard guard(mode_);
    EXPECT_TRUE(IsFake(at::ones({2})));
    EXPECT_TRUE(IsFake(at::scalar_tensor(2.5)));
    EXPECT_TRUE(IsFake(at::arange(3)));
  }
  EXPECT_FALSE(IsFake(at::ones({2})));
}

TEST_F(FakeTensorTest, TheModeOutlivesItsOwner) {
  Tensor fake;
  {
    const auto mode = FakeTensorMode::Create();
    fake = mode->FromReal(at::ones({2}));
  }
  EXPECT_TRUE(IsFake(fake + fake));
}

TEST_F(FakeTensorTest, InPlaceKeepsIdentityAndChangesMetadata) {
  const Tensor x = mode_->FromReal(at::ones({2, 3}));
  const Tensor same = x.add_(x);
  EXPECT_TRUE(same.is_same(x));
  EXPECT_EQ(x._version(), 1);
  x.t_();
  EXPECT_EQ(x.sizes(), at::IntArrayRef({3, 2}));
  EXPECT_EQ(x.strides(), at::IntArrayRef({1, 3}));
  x.resize_({5, 5});
  EXPECT_EQ(x.storage().nbytes(), 100);
}

TEST_F(FakeTensorTest, ViewsShareStorageAndVersion) {
  const Tensor x = mode_->FromReal(at::ones({2, 3}));
  const Tensor view = x.t();
  view.mul_(2);
  EXPECT_EQ(StorageOf(view), StorageOf(x));
  EXPECT_EQ(x._version(), 1);
  EXPECT_TRUE(view.is_view());
}

TEST_F(FakeTensorTest, ViewsUnderInferenceMode) {
  const Tensor normal = mode_->FromReal(at::ones({2, 3}));
  c10::InferenceMode inference;
  EXPECT_FALSE(normal.t().is_inference());
  EXPECT_TRUE((normal + 1).is_inference());
  EXPECT_TRUE(IsFake((normal + 1).t().add_(1)));
}

TEST_F(FakeTensorTest, DetachAndSetData) {
  const Tensor x = mode_->FromReal(at::ones({2, 3}).requires_grad_());
  EXPECT_TRUE(IsFake(x.detach()));
  EXPECT_FALSE(x.detach().requires_grad());
  x.set_data(mode_->FromReal(at::ones({4})));
  EXPECT_EQ(x.dim(), 1);
  EXPECT_TRUE(IsFake(x + 1));
  EXPECT_THAT(ErrorOf([&] { x.set_data(at::ones({4})); }), HasSubstr("real tensor's data"));
  const Tensor real = at::ones({4});
  real.set_data(x.detach());
  EXPECT_THAT(ErrorOf([&] { at::add(real, real); }), HasSubstr("set_data"));
}

TEST_F(FakeTensorTest, VersionErrorsComeAsOnReal) {
  const Tensor x = mode_->FromReal(at::ones({3}).requires_grad_());
  ModeGuard guard(mode_);
  const Tensor y = x.sigmoid();
  const Tensor z = y.sum();
  y.detach().add_(1);
  EXPECT_THAT(ErrorOf([&] { torch::autograd::grad({z * y.sum()}, {x}); }), HasSubstr("modified by an inplace operation"));
}

TEST_F(FakeTensorTest, ARealTensorAmongFakesIsRefused) {
  const Tensor x = mode_->FromReal(at::ones({3, 4}));
  const Tensor real = at::ones({4, 5});
  for (const bool push : {false, true}) {
    std::optional<ModeGuard> guard;
    if (push) guard.emplace(mode_);
    EXPECT_THAT(ErrorOf([&] { at::mm(x, real); }),
                AllOf(HasSubstr("aten::mm"), HasSubstr("argument 1"), HasSubstr("mat2"), HasSubstr("real tensor"), HasSubstr("[4, 5]")));
    EXPECT_THAT(ErrorOf([&] { at::cat({x, real}); }), AllOf(HasSubstr("aten::cat"), HasSubstr("real tensor")));
  }
}

TEST_F(FakeTensorTest, NumbersAreNotRealTensors) {
  const Tensor x = mode_->FromReal(at::ones({3}, at::kHalf));
  EXPECT_EQ((x * 2.5).scalar_type(), at::kHalf);
  EXPECT_EQ((2 - x).scalar_type(), at::kHalf);
}

TEST_F(FakeTensorTest, AFakeOfAnotherModeIsRefused) {
  const auto other = FakeTensorMode::Create();
  const Tensor x = mode_->FromReal(at::ones({3}));
  const Tensor y = other->FromReal(at::ones({3}));
  EXPECT_THAT(ErrorOf([&] { at::add(x, y); }), AllOf(HasSubstr("aten::add"), HasSubstr("another FakeTensorMode")));
  EXPECT_THAT(ErrorOf([&] { other->FromReal(x); }), HasSubstr("another mode"));
}

TEST_F(FakeTensorTest, DataDependenceIsRefusedByName) {
  const Tensor x = mode_->FromReal(at::ones({3}));
  EXPECT_THAT(ErrorOf([&] { x.sum().item(); }), AllOf(HasSubstr("aten::_local_scalar_dense"), HasSubstr("item()")));
  EXPECT_THAT(ErrorOf([&] { at::nonzero(x); }), AllOf(HasSubstr("aten::nonzero"), HasSubstr("depends on data")));
  EXPECT_THAT(ErrorOf([&] { at::masked_select(x, x < 1); }), AllOf(HasSubstr("aten::masked_select"), HasSubstr("depends on data")));
  EXPECT_THAT(ErrorOf([&] { x.index({x < 1}); }), AllOf(HasSubstr("aten::index"), HasSubstr("depends on data")));
  EXPECT_THAT(ErrorOf([&] { at::equal(x, x + 1); }), HasSubstr("aten::equal"));
  EXPECT_TRUE(at::equal(x, x));
}

TEST_F(FakeTensorTest, OperatorsWithoutARuleAreRefusedByName) {
  const Tensor x = mode_->FromReal(at::ones({2, 3, 4}));
  EXPECT_THAT(ErrorOf([&] { at::_test_optional_intlist(x, {}); }),
              AllOf(HasSubstr("aten::_test_optional_intlist"), HasSubstr("no fake rule"), HasSubstr("schema")));
}

TEST_F(FakeTensorTest, ShapeErrorsAreTheKernels) {
  const Tensor x = mode_->FromReal(at::ones({3, 4}));
  EXPECT_THAT(ErrorOf([&] { at::mm(x, x); }), HasSubstr("mat1 and mat2"));
}

TEST_F(FakeTensorTest, ErrorsLeaveTheDispatcherAsItWas) {
  const Tensor x = mode_->FromReal(at::ones({3, 4}));
  {
    ModeGuard guard(mode_);
    EXPECT_THROW(at::mm(x, x), c10::Error);
    EXPECT_EQ(CurrentMode(Mode::Level::kPostAutograd), mode_.get());
    EXPECT_TRUE(IsFake(at::ones({2})));
  }
  EXPECT_FALSE(c10::impl::tls_is_dispatch_key_included(kPostAutogradKey));
  EXPECT_FALSE(c10::impl::tls_is_dispatch_key_excluded(kPostAutogradKey));
  EXPECT_EQ(at::ones({2}).sum().item<float>(), 2.0F);
}

// Sees what passes and hands it on.
class Observer : public Mode {
 public:
  Level level() const override { return Level::kPostAutograd; }
  absl::string_view name() const override { return "Observer"; }
  void Handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    names.push_back(op.schema().name());
    op.callBoxed(stack);
  }
  std::vector<std::string> names;
};

TEST_F(FakeTensorTest, OtherModesAboveAndBelow) {
  const Tensor x = mode_->FromReal(at::ones({3, 4}));
  const auto observer = std::make_shared<Observer>();
  {
    ModeGuard on(mode_);
    ModeGuard above(observer);
    EXPECT_TRUE(IsFake(at::ones({2}) + 1));
    EXPECT_TRUE(IsFake(at::mm(x, x.t())));
  }
  EXPECT_THAT(observer->names, ::testing::Contains("aten::mm"));
  observer->names.clear();
  {
    ModeGuard alone(observer);
    EXPECT_TRUE(IsFake(at::mm(x, x.t())));
    EXPECT_FALSE(IsFake(at::ones({2})));
  }
  EXPECT_THAT(observer->names, ::testing::Contains("aten::mm"));
  observer->names.clear();
  {
    ModeGuard below(observer);
    ModeGuard on(mode_);
    EXPECT_TRUE(IsFake(at::mm(x, x.t())));
  }
  EXPECT_THAT(observer->names, ::testing::IsEmpty()) << "the fake mode's kernels are its own affair";
}

// Writes down the tensors that other modes shouldn't see.
class OnlyFakes : public Mode {
 public:
  explicit OnlyFakes(Level level) : level_(level) {}
  Level level() const override { return level_; }
  absl::string_view name() const override { return "OnlyFakes"; }
  void Handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    ++calls;
    const auto look = [&](std::size_t count) {
      for (const c10::IValue& value : torch::jit::last(*stack, count)) {
        if (!value.isTensor() && !value.isTensorList()) continue;
        for (const Tensor& t : value.isTensor() ? std::vector<Tensor>{value.toTensor()} : value.toTensorVector()) {
          if (!t.defined() || t.unsafeGetTensorImpl()->is_wrapped_number()) continue;
          if (!IsFake(t) || t.is_meta()) others.push_back(op.schema().name());
        }
      }
    };
    look(op.schema().arguments().size());
    op.callBoxed(stack);
    look(op.schema().returns().size());
  }
  int calls = 0;
  std::vector<std::string> others;

 private:
  Level level_;
};

// Kernels that call others: what they make on the way is nobody's affair, on a miss and on a hit, forward and backward.
TEST_F(FakeTensorTest, NestedCallsAreNotSeen) {
  const auto x = [](at::IntArrayRef sizes) { return at::ones(sizes).requires_grad_(); };
  const auto ids = [] { return at::ones({2, 3}, at::kLong); };
  const std::vector<std::pair<const char*, std::function<Tensor()>>> calls = {
      {"embedding", [&] { return at::embedding(x({5, 4}), ids()); }},
      {"embedding_bag", [&] { return std::get<0>(at::embedding_bag(x({5, 4}), ids().view(-1), at::zeros({2}, at::kLong))); }},
      {"where", [&] { return at::where(x({2, 3}) > 0, x({2, 3}), x({1})); }},
      {"where_numbers", [&] { return at::where(x({2, 3}) > 0, 0.3, 0.6) * x({3}); }},
      {"index", [&] { return x({4, 3}).index({ids()}); }},
      {"index_select", [&] { return at::index_select(x({4, 3}), 0, at::ones({2}, at::kLong)); }},
      {"convolution", [&] { return at::conv2d(x({1, 2, 5, 5}), x({3, 2, 3, 3}), x({3}), 1, 1); }},
      {"batch_norm", [&] { return at::batch_norm(x({2, 3, 4}), x({3}), x({3}), at::zeros({3}), at::ones({3}), true, 0.1, 1e-5, false); }},
      {"group_norm", [&] { return at::group_norm(x({2, 4, 3}), 2, x({4}), x({4})); }},
      {"attention", [&] { return at::scaled_dot_product_attention(x({1, 2, 3, 4}), x({1, 2, 3, 4}), x({1, 2, 3, 4})); }},
      {"cross_entropy", [&] { return at::cross_entropy_loss(x({3, 4}), at::ones({3}, at::kLong)); }},
      {"lstm_cell", [&] { return std::get<0>(at::lstm_cell(x({2, 3}), {x({2, 4}), x({2, 4})}, x({16, 3}), x({16, 4}))); }},
      {"einsum", [&] { return at::einsum("ij,kj->ik", {x({2, 3}), x({4, 3})}); }},
      {"interpolate", [&] { return at::upsample_bilinear2d(x({1, 2, 3, 3}), at::IntArrayRef{6, 6}, false); }},
      {"sort", [&] { return std::get<0>(at::sort(x({4, 3}))); }},
      {"foreach", [&] { return at::_foreach_add({x({2}), x({3})}, 1)[1]; }},
  };
  for (const auto& [name, call] : calls) {
    for (int pass = 0; pass < 2; ++pass) {
      const auto below = std::make_shared<Observer>();
      const auto above = std::make_shared<OnlyFakes>(Mode::Level::kPostAutograd);
      const auto before = std::make_shared<OnlyFakes>(Mode::Level::kPreAutograd);
      const ModeGuard below_guard(below), guard(mode_), above_guard(above), before_guard(before);
      const Tensor y = call();
      EXPECT_TRUE(IsFake(y)) << name;
      y.sum().backward();
      EXPECT_THAT(above->others, ::testing::IsEmpty()) << name;
      EXPECT_THAT(before->others, ::testing::IsEmpty()) << name;
      EXPECT_THAT(below->names, ::testing::IsEmpty()) << name;
      EXPECT_GT(above->calls, 1) << name;
      EXPECT_GT(before->calls, 1) << name;
    }
  }
}

TEST_F(FakeTensorTest, NothingRealChanges) {
  const Tensor mean = at::zeros({3});
  const Tensor var = at::ones({3});
  const auto generator = at::detail::getDefaultCPUGenerator();
  const Tensor state = generator.get_state();
  const auto version = mean._version();
  {
    ModeGuard guard(mode_);
    const Tensor x = at::randn({4, 3});
    at::batch_norm(at::dropout(x, 0.5, true), {}, {}, mode_->FromReal(mean), mode_->FromReal(var), true, 0.1, 1e-5, false);
    at::empty({2}).bernoulli_(0.5, generator);
  }
  EXPECT_TRUE(at::equal(mean, at::zeros({3})));
  EXPECT_EQ(mean._version(), version);
  EXPECT_TRUE(at::equal(generator.get_state(), state));
}

TEST_F(FakeTensorTest, BackwardOfAnMlp) {
  const Tensor w1 = at::ones({8, 4}).requires_grad_();
  const Tensor b1 = at::ones({8}).requires_grad_();
  const Tensor w2 = at::ones({3, 8}).requires_grad_();
  const Tensor x = mode_->FromReal(at::ones({5, 4}));
  const std::vector<Tensor> params = {mode_->FromReal(w1), mode_->FromReal(b1), mode_->FromReal(w2)};
  ModeGuard guard(mode_);
  const Tensor loss =
      at::cross_entropy_loss(at::linear(at::gelu(at::linear(x, params[0], params[1])), params[2]), at::ones({5}, at::kLong));
  loss.backward();
  for (const Tensor& p : params) {
    ASSERT_TRUE(IsFake(p.grad()));
    EXPECT_EQ(p.grad().sizes(), p.sizes());
    EXPECT_EQ(p.grad().device(), p.device());
  }
  EXPECT_FALSE(w1.grad().defined());
  // Accumulates and steps.
  {
    at::NoGradGuard no_grad;
    for (const Tensor& p : params) p.add_(p.grad(), -0.1);
  }
  EXPECT_EQ(params[0]._version(), 1);
}

TEST_F(FakeTensorTest, BackwardOfAConvolutionalNet) {
  const Tensor x = mode_->FromReal(at::ones({2, 3, 8, 8}));
  const std::vector<Tensor> params = {mode_->FromReal(at::ones({4, 3, 3, 3}).requires_grad_()),
                                      mode_->FromReal(at::ones({4}).requires_grad_()), mode_->FromReal(at::ones({4}).requires_grad_()),
                                      mode_->FromReal(at::ones({2, 64}).requires_grad_())};
  const Tensor mean = mode_->FromReal(at::zeros({4}));
  const Tensor var = mode_->FromReal(at::ones({4}));
  ModeGuard guard(mode_);
  Tensor h = at::conv2d(x, params[0], {}, 1, 1);
  h = at::batch_norm(h, params[1], params[2], mean, var, true, 0.1, 1e-5, false);
  h = at::max_pool2d(at::relu(h), 2);
  const Tensor out = at::linear(h.flatten(1), params[3]);
  const auto grads = torch::autograd::grad({out.pow(2).mean()}, params);
  for (std::size_t i = 0; i < params.size(); ++i) {
    ASSERT_TRUE(IsFake(grads[i]));
    EXPECT_EQ(grads[i].sizes(), params[i].sizes());
  }
}

// The seed of the project: where() with two numbers makes real scalar tensors, unless the mode is there to make them fake.
class SeedCase : public FakeTensorTest {
 protected:
  Tensor Run() {
    const Tensor x = mode_->FromReal(at::ones({2, 4}));
    const Tensor w = mode_->FromReal(at::ones({3, 4}).requires_grad_());
    const Tensor tmp = at::mm(x, w.t());
    return tmp + at::where(tmp < 0.5, 0.3, 0.6);
  }
};

TEST_F(SeedCase, WorksWithTheModePushed) {
  ModeGuard guard(mode_);
  const Tensor out = Run();
  EXPECT_TRUE(IsFake(out));
  EXPECT_EQ(out.sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(out.scalar_type(), at::kFloat);
  EXPECT_TRUE(out.requires_grad());
}

TEST_F(SeedCase, IsRefusedWithThePushLeftOut) {
  EXPECT_THAT(ErrorOf([&] { Run(); }), AllOf(HasSubstr("aten::where.self"), HasSubstr("real tensor, the scalar 0.3"), HasSubstr("shape []"),
                                             HasSubstr("mode stack")));
}

}  // namespace
}  // namespace ddpopt
