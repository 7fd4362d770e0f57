// What fake tensors are, beside single operators: conversion, memory, autograd, modes that meet, what stays untouched.

#include <cmath>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/DLConvertor.h"
#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/grad_mode.h"
#include "c10/core/InferenceMode.h"
#include "fake_tensor/fake_errors.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fake_tensor/test_helpers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/library.h"
#include "torch/nn/cloneable.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/linear.h"
#include "torch/optim/adam.h"
#include "torch/optim/sgd.h"
#include "torch/serialize.h"

namespace ddpopt {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class FakeSemanticsTest : public ::testing::Test {
 protected:
  static std::shared_ptr<FakeTensorMode> With(void (*set)(FakeTensorModeOptions&)) {
    FakeTensorModeOptions options;
    set(options);
    return FakeTensorMode::Create(options);
  }
  const std::shared_ptr<FakeTensorMode> mode_ = FakeTensorMode::Create();
};

// Conversion.

TEST_F(FakeSemanticsTest, AViewsStorageIsFakedWhole) {
  const Tensor base = at::ones({100});
  const Tensor fake = mode_->FromReal(base.slice(0, 10, 20));
  EXPECT_EQ(fake.storage().nbytes(), 400);
  EXPECT_EQ(fake.storage_offset(), 10);
  EXPECT_EQ(StorageOf(fake), StorageOf(mode_->FromReal(base)));
}

TEST_F(FakeSemanticsTest, AViewStaysBoundToItsBase) {
  const Tensor base = at::ones({4, 5}).requires_grad_();
  const Tensor view = base.select(0, 1);
  const Tensor fake_base = mode_->FromReal(base);
  const Tensor fake_view = mode_->FromReal(view);
  EXPECT_TRUE(fake_view.is_view());
  EXPECT_TRUE(fake_view._base().is_same(fake_base));
  ModeGuard guard(mode_);
  EXPECT_EQ(torch::autograd::grad({fake_view.sum()}, {fake_base})[0].sizes(), base.sizes());
  const Tensor fake_plain = mode_->FromReal([&] {
    DisableModesGuard off(Mode::Level::kPostAutograd);
    return at::ones({4, 5}).t();
  }());
  EXPECT_EQ(fake_plain.strides(), at::IntArrayRef({1, 5}));
  const auto version = fake_plain._version();
  Tensor(fake_plain._base()).add_(1);
  EXPECT_EQ(fake_plain._version(), version + 1);
}

TEST_F(FakeSemanticsTest, GradsAreConvertedToo) {
  const Tensor p = at::ones({3}).requires_grad_();
  p.mutable_grad() = at::ones({3});
  const Tensor fake = mode_->FromReal(p);
  ASSERT_TRUE(fake.grad().defined());
  EXPECT_TRUE(IsFake(fake.grad()));
  EXPECT_TRUE(fake.grad().is_same(mode_->FromReal(p.grad())));
  EXPECT_FALSE(IsFake(p.grad()));
}

TEST_F(FakeSemanticsTest, ChangesOfAFakeDoNotReachTheMemo) {
  const Tensor real = at::ones({2, 3});
  const Tensor fake = mode_->FromReal(real);
  fake.t_();
  EXPECT_EQ(mode_->FromReal(real).sizes(), real.sizes());
  const Tensor resized = mode_->FromReal(real);
  resized.resize_({100});
  EXPECT_EQ(mode_->FromReal(real).sizes(), real.sizes());
  EXPECT_EQ(mode_->FromReal(real).storage().nbytes(), real.storage().nbytes());
  const Tensor other = at::ones({7});
  mode_->FromReal(other).set_data(mode_->FromReal(real));
  EXPECT_EQ(mode_->FromReal(other).sizes(), other.sizes());
}

TEST_F(FakeSemanticsTest, ViewsOfPartsOfComplexNumbersAreBoundToThem) {
  const Tensor complex = at::ones({2, 3}, at::kComplexFloat);
  const Tensor pairs = at::ones({3, 2});
  struct Case {
    Tensor base, view;
  };
  for (const Case& c :
       {Case{complex, at::view_as_real(complex)}, Case{complex, at::imag(complex.conj()).t()},
        Case{complex, at::real(complex).select(0, 1)}, Case{complex, complex.conj().slice(1, 1)}, Case{pairs, at::view_as_complex(pairs)},
        Case{pairs, at::view_as_complex(pairs).conj().slice(0, 1)}, Case{pairs, at::_neg_view(pairs).t()}}) {
    const Tensor base = mode_->FromReal(c.base), view = mode_->FromReal(c.view);
    ASSERT_TRUE(view.is_view());
    EXPECT_TRUE(view._base().is_same(base));
    EXPECT_EQ(StorageOf(view), StorageOf(base));
    EXPECT_EQ(c10::str(view.dtype(), view.sizes(), view.strides(), view.storage_offset(), view.is_conj(), view.is_neg()),
              c10::str(c.view.dtype(), c.view.sizes(), c.view.strides(), c.view.storage_offset(), c.view.is_conj(), c.view.is_neg()));
    const auto version = base._version();
    view.add_(1);
    EXPECT_EQ(base._version(), version + 1);
  }
}

// A fake refuses the writes that the real view refuses because of how it was made.
TEST_F(FakeSemanticsTest, HowAViewWasMadeIsKept) {
  const Tensor leaf = at::ones({2, 3}).requires_grad_();
  const auto views = [&]() -> std::vector<Tensor> {
    const Tensor inner = leaf * 2;
    const Tensor one = inner.unbind()[1], chunk = at::split(inner, 1)[0], plain = inner.select(0, 0);
    const at::NoGradGuard no_grad;
    const Tensor without = inner.select(0, 0);
    const c10::InferenceMode inference;
    return {one, chunk, plain, without, inner.select(0, 1)};
  };
  const std::vector<Tensor> reals = views();
  std::vector<Tensor> fakes;
  for (const Tensor& real : reals) fakes.push_back(mode_->FromReal(real));
  for (std::size_t i = 0; i < reals.size(); ++i) {
    EXPECT_EQ(ErrorOf([&] { fakes[i].add_(1); }) == "no error", ErrorOf([&] { reals[i].add_(1); }) == "no error") << i;
  }
}

TEST_F(FakeSemanticsTest, StoragesThatCannotGrowCannotAsFakes) {
  std::vector<float> data(4);
  const Tensor real = at::from_blob(data.data(), {4});
  const Tensor fake = mode_->FromReal(real);
  for (const Tensor& x : {real, fake}) {
    Tensor out = x;
    EXPECT_THAT(ErrorOf([&] { x.resize_({5}); }), HasSubstr("not resizable"));
    EXPECT_THAT(ErrorOf([&] { at::cat_out(out, {x, x}); }), Not(HasSubstr("no error")));
    EXPECT_THAT(ErrorOf([&] { x.resize_({2}); }), HasSubstr("no error"));
  }
}

// The same sizes say nothing of whose memory it is.
TEST_F(FakeSemanticsTest, AnotherStorageOfTheSameSizeIsNoHit) {
  const Tensor a = at::ones({3}), b = at::ones({3});
  const Tensor fake_a = mode_->FromReal(a), fake_b = mode_->FromReal(b);
  fake_a.set_data(fake_b);
  EXPECT_NE(StorageOf(mode_->FromReal(a)), StorageOf(fake_b)) << "of a fake that took another's data";
  const Tensor again = mode_->FromReal(a);
  again.set_(fake_b);
  EXPECT_NE(StorageOf(mode_->FromReal(a)), StorageOf(fake_b)) << "of a fake that was set to another's storage";
  const Tensor kept = mode_->FromReal(a);
  a.set_data(b);
  EXPECT_EQ(StorageOf(mode_->FromReal(a)), StorageOf(mode_->FromReal(b))) << "of real tensors that share memory since";
  EXPECT_NE(StorageOf(kept), StorageOf(fake_b));
}

TEST_F(FakeSemanticsTest, AModeEndsWithItsLastFake) {
  std::weak_ptr<FakeTensorMode> mode;
  const Tensor real = at::ones({2});
  Tensor last;
  {
    const auto strong = FakeTensorMode::Create();
    mode = strong;
    strong->FromReal(real);
    strong->FromReal(at::ones({3})) + 1;
    last = strong->FromReal(real);
  }
  EXPECT_FALSE(mode.expired()) << "a fake keeps its mode";
  last.reset();
  EXPECT_TRUE(mode.expired()) << "fakes that are gone keep it too, and with it the cache and what stands for real tensors";
}

TEST_F(FakeSemanticsTest, LayoutsDtypesAndBitsAreKept) {
  const std::vector<Tensor> reals = {
      at::ones({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast),
      at::ones({2, 3}, at::kBFloat16).t(),
      at::ones({2, 3}, at::kHalf).expand({5, 2, 3}),
      at::ones({0, 3}),
      at::empty_strided({2, 3}, {10, 2}),
      at::conj(at::ones({2}, at::kComplexFloat)),
      at::imag(at::conj(at::ones({2}, at::kComplexFloat))),
      at::ones({2}, at::kComplexFloat).view(at::kFloat),
      at::scalar_tensor(3),
  };
  for (const Tensor& real : reals) {
    for (const Tensor& fake : {mode_->FromReal(real), mode_->FromReal(real) + mode_->FromReal(real), mode_->FromReal(real).clone()}) {
      EXPECT_EQ(fake.scalar_type(), real.scalar_type());
      EXPECT_EQ(fake.sizes(), real.sizes());
    }
    const Tensor fake = mode_->FromReal(real);
    EXPECT_EQ(fake.strides(), real.strides());
    EXPECT_EQ(fake.is_conj(), real.is_conj());
    EXPECT_EQ(fake.is_neg(), real.is_neg());
    EXPECT_EQ((fake + fake).strides(), (real + real).strides());
    EXPECT_EQ((fake + fake).is_conj(), (real + real).is_conj());
    EXPECT_EQ(at::resolve_neg(at::resolve_conj(fake)).is_neg(), false);
    EXPECT_EQ(at::resolve_conj(fake).strides(), at::resolve_conj(real).strides());
  }
}

TEST_F(FakeSemanticsTest, SizeOneStridesAreTheRealOnes) {
  const auto run = [](const Tensor& x) { return x.unsqueeze(0).expand({2, 1, 3}); };
  const Tensor real = at::zeros({1, 3});
  EXPECT_EQ(run(mode_->FromReal(real)).strides(), run(real).strides());
  const Tensor expanded = at::zeros({1, 3}).expand({4, 3});
  EXPECT_EQ(at::view_copy(mode_->FromReal(expanded), at::IntArrayRef{2, 2, 3}).strides(),
            at::view_copy(expanded, at::IntArrayRef{2, 2, 3}).strides());
}

// Memory.

TEST_F(FakeSemanticsTest, ResizeGrowsTheStorageOnce) {
  const Tensor x = mode_->FromReal(at::ones({4}));
  const Tensor view = x.slice(0, 1);
  x.resize_({10});
  EXPECT_EQ(view.storage().nbytes(), 40);
  x.resize_({2});
  EXPECT_EQ(x.storage().nbytes(), 40);
  EXPECT_THAT(ErrorOf([&] { x.as_strided({100}, {1}); }), HasSubstr("out of bounds"));
}

TEST_F(FakeSemanticsTest, SetTakesStorages) {
  const Tensor x = mode_->FromReal(at::ones({4}));
  const Tensor y = mode_->FromReal(at::ones({6}));
  x.set_(y.storage());
  EXPECT_EQ(x.sizes(), at::IntArrayRef({6}));
  EXPECT_EQ(StorageOf(x), StorageOf(y));
  const Tensor z = mode_->FromReal(at::ones({1}));
  z.set_(y.storage(), 2, {2, 2}, {2, 1});
  EXPECT_EQ(z.storage_offset(), 2);
  EXPECT_EQ(StorageOf(z), StorageOf(y));
  z.set_();
  EXPECT_EQ(z.numel(), 0);
  const Tensor real = at::ones({4});
  EXPECT_THAT(ErrorOf([&] { x.set_(real.storage()); }), HasSubstr("storage"));
  EXPECT_THAT(ErrorOf([&] { real.set_(y.storage()); }), Not(HasSubstr("no error")));
}

// Of other storages LibTorch asks for the data.
TEST_F(FakeSemanticsTest, AliasesAreTold) {
  const Tensor x = mode_->FromReal(at::ones({4}));
  EXPECT_THAT(ErrorOf([&] { static_cast<void>(x.is_alias_of(mode_->FromReal(at::ones({4})))); }), HasSubstr("fake tensor"));
  EXPECT_TRUE(x.is_alias_of(x.slice(0, 1)));
  EXPECT_TRUE(x.is_alias_of(x.detach()));
}

// Any use of a fake's data is an error.
TEST_F(FakeSemanticsTest, DataAreNowhere) {
  const Tensor x = mode_->FromReal(at::ones({2, 2}));
  ModeGuard guard(mode_);
  const auto no_data = HasSubstr("fake tensor");
  const at::Device cuda(at::kCUDA, 0);
  for (const Tensor& fake : {x.sum(), at::zeros({}, cuda), at::zeros({0}), at::zeros({2, 0}, cuda), at::zeros({3}, cuda)}) {
    EXPECT_THAT(ErrorOf([&] { fake.data_ptr(); }), no_data);
    EXPECT_THAT(ErrorOf([&] { fake.const_data_ptr<float>(); }), no_data);
    EXPECT_THAT(ErrorOf([&] {
                  std::ostringstream out;
                  torch::save(fake, out);
                }),
                no_data);
    EXPECT_THAT(ErrorOf([&] { torch::pickle_save(fake); }), no_data);
    std::ostringstream out;
    EXPECT_THAT(ErrorOf([&] { out << fake; }), fake.numel() == 0 ? ::testing::Matcher<std::string>("no error") : no_data);
    EXPECT_THAT(ErrorOf([&] { fake.item(); }), HasSubstr(fake.numel() == 1 ? "data-dependent" : "cannot be converted to Scalar"));
    EXPECT_TRUE(at::equal(fake, fake));
    if (fake.dim() > 0) {
      EXPECT_EQ(static_cast<int64_t>(fake.unbind().size()), fake.size(0));
    }
    EXPECT_EQ(fake.to(at::kCPU).device(), at::Device(at::kCPU));
    EXPECT_EQ(fake.to(cuda).device(), cuda);
  }
  for (const Tensor& fake : {x, x.t(), x + 1, at::zeros({2, 2})}) {
    EXPECT_THAT(ErrorOf([&] { fake.data_ptr(); }), no_data);
    EXPECT_THAT(ErrorOf([&] { fake.data_ptr<float>(); }), no_data);
    EXPECT_THAT(ErrorOf([&] { fake.const_data_ptr(); }), no_data);
    EXPECT_THAT(ErrorOf([&] { fake.accessor<float, 2>(); }), no_data);
    EXPECT_THAT(ErrorOf([&] { fake.storage().mutable_data(); }), no_data);
    EXPECT_THAT(ErrorOf([&] {
                  std::ostringstream out;
                  out << fake;
                }),
                no_data);
    EXPECT_THAT(ErrorOf([&] {
                  std::ostringstream out;
                  torch::save(fake, out);
                }),
                no_data);
    EXPECT_THAT(ErrorOf([&] { torch::pickle_save(fake); }), no_data);
    EXPECT_THAT(ErrorOf([&] { torch::pickle_save(c10::IValue(std::vector<Tensor>{fake})); }), no_data);
    EXPECT_THAT(ErrorOf([&] {
                  torch::serialize::OutputArchive archive;
                  archive.write("fake", fake);
                  std::ostringstream out;
                  archive.save_to(out);
                }),
                no_data);
    EXPECT_THAT(ErrorOf([&] { at::toDLPack(fake); }), no_data);
    EXPECT_THAT(ErrorOf([&] { fake.print(); }), Not(HasSubstr("Segmentation")));
    EXPECT_THAT(ErrorOf([&] { fake.item(); }), Not(HasSubstr("no error")));
    EXPECT_THAT(ErrorOf([&] { static_cast<void>(c10::str(c10::IValue(fake))); }), no_data);
    EXPECT_THAT(ErrorOf([&] { fake.packed_accessor64<float, 2>(); }), no_data);
    EXPECT_THAT(ErrorOf([&] { fake.mutable_data_ptr<float>(); }), no_data);
    EXPECT_THAT(ErrorOf([&] { fake.storage().data(); }), no_data);
    EXPECT_THAT(ErrorOf([&] { fake.storage().unsafeGetStorageImpl()->data_ptr(); }), no_data);
    EXPECT_EQ(c10::str(fake.sizes(), fake.strides(), fake.options()), c10::str(fake.sizes(), fake.strides(), fake.options()));
    EXPECT_EQ(fake.toString(), "CPUFloatType");
  }
}

TEST_F(FakeSemanticsTest, ModulesOfFakesCannotBeSaved) {
  ModeGuard guard(mode_);
  torch::nn::Sequential net(torch::nn::Linear(4, 3), torch::nn::BatchNorm1d(3));
  std::ostringstream out;
  EXPECT_THAT(ErrorOf([&] { torch::save(net, out); }), HasSubstr("fake tensor"));
  EXPECT_THAT(c10::str(*net), HasSubstr("Linear(in_features=4")) << "what has no data in it can be printed";
}

// Identity answers, and known data; nothing else.
TEST_F(FakeSemanticsTest, EqualityWithoutData) {
  const Tensor x = mode_->FromReal(at::ones({2, 3}));
  EXPECT_TRUE(at::equal(x, x));
  EXPECT_THROW(at::equal(x, mode_->FromReal(at::ones({2, 3}))), DataDependentOutput);
  EXPECT_THROW(at::equal(x, x.t()), DataDependentOutput);
  const Tensor nan = mode_->FromConstant(at::full({2}, std::nan("")));
  EXPECT_FALSE(at::equal(nan, nan)) << "known data are compared";
  EXPECT_TRUE(at::equal(mode_->FromConstant(at::ones({2})), mode_->FromConstant(at::ones({2}, at::kLong))));
}

TEST_F(FakeSemanticsTest, IndexingByTensorIndex) {
  ModeGuard guard(mode_);
  Tensor x = at::zeros({3, 4});
  const Tensor rows = at::ones({2}, at::kLong);
  EXPECT_EQ(x.index({rows, at::indexing::Slice(1, 3)}).sizes(), at::IntArrayRef({2, 2}));
  x.index_put_({at::indexing::Slice(), 1}, at::ones({3}));
  x.index_put_({rows}, at::ones({2, 4}));
  EXPECT_EQ(x._version(), 2);
  x.index_put_({rows}, 2.0);
  x.index({rows}).fill_(1);
  // LibTorch reads such a value's data itself.
  const Tensor number = at::scalar_tensor(2.0);
  EXPECT_THAT(ErrorOf([&] { x.index_put_({at::indexing::Slice(), 1}, number); }), HasSubstr("fake tensor"));
  EXPECT_TRUE(at::index_put_(x, {rows}, number).is_same(x));
  EXPECT_EQ(x._version(), 4);
}

// Modes that meet, and real tensors.

TEST_F(FakeSemanticsTest, TwoModesAreNamed) {
  const auto a = With([](FakeTensorModeOptions& o) { o.label = "first"; });
  const auto b = With([](FakeTensorModeOptions& o) { o.label = "second"; });
  const Tensor x = a->FromReal(at::ones({3}));
  const Tensor y = b->FromReal(at::ones({3}));
  const auto both = AllOf(HasSubstr(a->Description()), HasSubstr(b->Description()), HasSubstr("'first'"), HasSubstr("'second'"));
  EXPECT_THAT(a->Description(), ::testing::MatchesRegex("FakeTensorMode [0-9]+ \\('first', made at .*fake_semantics_test.cc:[0-9]+\\)"));
  EXPECT_THAT(FakeTensorMode::Create()->Description(), HasSubstr(c10::str("fake_semantics_test.cc:", __LINE__)));
  EXPECT_THAT(ErrorOf([&] { at::add(x, y); }), both);
  EXPECT_THAT(ErrorOf([&] { at::cat({x, y}); }), both);
  EXPECT_THAT(ErrorOf([&] { b->FromReal(x); }), both);
  // A fake that somebody has left on a real tensor. One of the mode's own is taken as it is.
  Tensor marked = at::ones({3}).requires_grad_();
  marked.mutable_grad() = x;
  for (int i = 0; i < 2; ++i) EXPECT_THAT(ErrorOf([&] { b->FromReal(marked); }), both);
  EXPECT_TRUE(a->FromReal(marked).grad().is_same(x));
  EXPECT_THROW(at::add(x, y), NotOurFake);
  EXPECT_THAT(ErrorOf([&] { x.set_data(y); }), both);
  EXPECT_THAT(ErrorOf([&] { a->FromReal(at::ones({3})).set_(y); }), both);
  EXPECT_THAT(ErrorOf([&] { y.set_data(x); }), both);
  EXPECT_THAT(ErrorOf([&] { x.copy_(y); }), both);
  EXPECT_THAT(ErrorOf([&] { at::_foreach_add_({x}, {y}); }), both);
  EXPECT_THAT(ErrorOf([&] { x.set_(y.storage()); }), AllOf(HasSubstr("storage"), HasSubstr("another"), HasSubstr(a->Description())));
  EXPECT_THAT(ErrorOf([&] { x.set_(y.storage(), 0, {1}, {1}); }), HasSubstr("storage"));
  EXPECT_EQ(x.numel(), 3);
  EXPECT_THAT(ErrorOf([&] {
                Tensor out = y;
                at::add_out(out, x, x);
              }),
              both);
  // Known values, views of them and compositions don't cross modes either.
  const auto known_in = [](const std::shared_ptr<FakeTensorMode>& mode) {
    const ModeGuard guard(mode);
    return torch::tensor({1, 2});
  };
  const Tensor known_a = known_in(a);
  const Tensor known_b = known_in(b);
  EXPECT_THAT(ErrorOf([&] { at::equal(known_a, known_b); }), both);
  // Nothing looks when a gradient is assigned, but the first one that uses it does.
  const Tensor p = a->FromReal(at::ones({3}).requires_grad_());
  const Tensor twice = (p * 2).sum();
  p.mutable_grad() = y;
  EXPECT_THAT(ErrorOf([&] {
                ModeGuard guard(a);
                twice.backward();
              }),
              both);
  EXPECT_THAT(ErrorOf([&] {
                ModeGuard guard(a);
                at::NoGradGuard no_grad;
                p.add_(p.grad(), -1);
              }),
              both);
  const Tensor of_second = (b->FromReal(at::ones({3}).requires_grad_()) * 2).sum();
  EXPECT_THAT(ErrorOf([&] {
                ModeGuard guard(a);
                of_second.backward();
              }),
              both);
  EXPECT_THAT(ErrorOf([&] { at::masked_select(known_a, known_b > 0); }), both);
  ModeGuard guard(b);
  EXPECT_THAT(ErrorOf([&] { x + 1; }), both);
  EXPECT_THAT(ErrorOf([&] { at::nonzero(known_a); }), both);
  EXPECT_THAT(ErrorOf([&] { at::_local_scalar_dense(known_a.select(0, 0)); }), both);
}

TEST_F(FakeSemanticsTest, RealTensorsAreConvertedIfAllowed) {
  const auto mode = With([](FakeTensorModeOptions& o) { o.allow_non_fake_inputs = true; });
  const Tensor x = mode->FromReal(at::ones({3, 4}));
  const Tensor real = at::ones({4, 5});
  EXPECT_EQ(at::mm(x, real).sizes(), at::IntArrayRef({3, 5}));
  EXPECT_TRUE(IsFake(at::cat({x, at::ones({1, 4})})));
  EXPECT_FALSE(IsFake(real));
  EXPECT_THROW(at::mm(mode_->FromReal(at::ones({3, 4})), real), NotOurFake);
}

TEST_F(FakeSemanticsTest, NothingFakeIsLeftOnRealTensors) {
  const auto mode = With([](FakeTensorModeOptions& o) { o.allow_non_fake_inputs = true; });
  const Tensor x = mode->FromReal(at::ones({3, 4}));
  const Tensor w = at::ones({4, 4}).requires_grad_();
  const Tensor buffer = at::ones({3, 4});
  EXPECT_THAT(ErrorOf([&] { at::mm(x, w); }), HasSubstr("fake gradient"));
  const auto version = buffer._version();
  EXPECT_THAT(ErrorOf([&] { buffer.add_(x); }), HasSubstr("written to"));
  EXPECT_EQ(buffer._version(), version);
  const Tensor mean = at::zeros({4});
  const Tensor var = at::ones({4});
  EXPECT_THAT(ErrorOf([&] { at::batch_norm(x, {}, {}, mean, var, true, 0.1, 1e-5, false); }), HasSubstr("written to"));
  {
    at::NoGradGuard no_grad;
    EXPECT_EQ(at::mm(x, w).sizes(), at::IntArrayRef({3, 4}));
    at::autocast::set_autocast_enabled(at::kCPU, true);
    ModeGuard guard(mode);
    // Autocast would keep the fake copy of the real weight.
    EXPECT_THAT(ErrorOf([&] { at::mm(x, w); }), AllOf(HasSubstr("autocast"), HasSubstr("aten::_to_copy"), HasSubstr("real tensor")));
    at::autocast::set_autocast_cache_enabled(false);
    EXPECT_EQ(at::mm(x, w).scalar_type(), at::kBFloat16);
    at::autocast::set_autocast_cache_enabled(true);
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  at::autocast::clear_cache();
  EXPECT_FALSE(w.grad().defined());
  EXPECT_FALSE(IsFake(at::mm(w, w)));
}

// To autograd a view that an operator made of a real tensor is one of that tensor: what is written to it would count as a write to the real
// one, and give it a history.
TEST_F(FakeSemanticsTest, ViewsOfRealTensorsAreNotWrittenTo) {
  const auto mode = With([](FakeTensorModeOptions& o) { o.allow_non_fake_inputs = true; });
  const Tensor x = mode->FromReal(at::ones({4}).requires_grad_());
  const Tensor buffer = at::ones({3, 4}), weight = at::ones({3, 4}).requires_grad_();
  const std::vector<std::pair<const char*, std::function<void(const Tensor&)>>> writes = {
      {"select", [](const Tensor& t) { t.select(0, 0).add_(1); }},
      {"history", [&](const Tensor& t) { t.select(0, 0).copy_(x * 2); }},
      {"detach", [](const Tensor& t) { t.detach().mul_(2); }},
      {"view of a view",
       [](const Tensor& t) {
         t.t().slice(0, 1).view({3, 3, 1}).zero_();
       }},
      {"one of several", [](const Tensor& t) { t.unbind()[1].fill_(3); }},
      {"copy of a view", [](const Tensor& t) { t.view(-1).variable_data().add_(1); }},
      {"list", [](const Tensor& t) { at::_foreach_add_({t.t()}, 1); }},
      {"out",
       [](const Tensor& t) {
         Tensor out = t.t();
         at::ones_out(out, {4, 3});
       }},
      {"statistics",
       [](const Tensor& t) {
         at::native_batch_norm(at::ones({2, 4, 3}), {}, {}, t.select(0, 0), t.select(0, 1), true, 0.1, 1e-5);
       }},
      {"metadata", [](const Tensor& t) { t.select(0, 0).unsqueeze_(0); }},
  };
  for (const Tensor& real : {buffer, weight}) {
    const auto version = real._version();
    for (const auto& [name, write] : writes) {
      for (int pass = 0; pass < 2; ++pass) {
        const at::AutoGradMode grad(!real.requires_grad());
        const ModeGuard guard(mode);
        EXPECT_THAT(ErrorOf([&] { write(real); }), AllOf(HasSubstr("view of a real tensor"), HasSubstr("written to"))) << name;
        EXPECT_EQ(real._version(), version) << name;
      }
    }
    EXPECT_TRUE(real.is_leaf());
  }
  EXPECT_FALSE(buffer.requires_grad());
  // Reading them is what is allowed, and a fake that was asked for is the caller's.
  const ModeGuard guard(mode);
  EXPECT_EQ(at::mm(at::ones({2, 4}), buffer.t()).sizes(), at::IntArrayRef({2, 3}));
  buffer.t().clone().add_(1);
  mode->FromReal(buffer).select(0, 0).add_(1);
}

// A real graph given a fake gradient, and one mode's graph given another's.
TEST_F(FakeSemanticsTest, BackwardLeavesNoFakeGradientOnRealLeaves) {
  const auto allowing = With([](FakeTensorModeOptions& o) { o.allow_non_fake_inputs = true; });
  const auto leaves = AllOf(HasSubstr("fake gradient"), HasSubstr("real tensor"), HasSubstr("[3]"));
  for (const auto& mode : {mode_, allowing}) {
    const Tensor gradient = mode->FromReal(at::ones({3})), expanded = mode->FromReal(at::ones({1})).expand({3});
    for (const bool pushed : {false, true}) {
      for (const bool has_grad : {false, true}) {
        for (const Tensor& g : {gradient, expanded}) {
          const Tensor w = at::ones({3}).requires_grad_();
          if (has_grad) w.mutable_grad() = at::ones({3});
          const auto version = has_grad ? w.grad()._version() : 0;
          const Tensor y = w.view({3}), z = w.view({3});
          {
            std::optional<ModeGuard> guard;
            if (pushed) guard.emplace(mode);
            EXPECT_THAT(ErrorOf([&] { y.backward(g); }), HasSubstr("real tensor"));
            EXPECT_THAT(ErrorOf([&] { z.backward(g, false, /*create_graph=*/true); }), HasSubstr("real tensor"));
          }
          ASSERT_EQ(w.grad().defined(), has_grad);
          EXPECT_FALSE(IsFake(w.grad()));
          EXPECT_EQ(has_grad ? w.grad()._version() : 0, version);
        }
      }
    }
    const Tensor w = at::ones({3}).requires_grad_();
    EXPECT_THAT(ErrorOf([&] { w.view({3}).backward(gradient); }), leaves);
    EXPECT_TRUE(IsFake(torch::autograd::grad({w.view({3})}, {w}, {gradient})[0])) << "the caller's own";
  }
  {
    const Tensor w = at::ones({3}).requires_grad_();
    const Tensor loss = w.sum();
    const at::NoGradGuard no_grad;
    const ModeGuard guard(allowing);
    EXPECT_THAT(ErrorOf([&] { loss.backward(); }), leaves);
    EXPECT_FALSE(w.grad().defined());
  }
  const Tensor of_mine = mode_->FromReal(at::ones({3}).requires_grad_());
  EXPECT_THAT(ErrorOf([&] { of_mine.view({3}).backward(allowing->FromReal(at::ones({3}))); }),
              AllOf(HasSubstr(mode_->Description()), HasSubstr(allowing->Description())));
  EXPECT_FALSE(of_mine.grad().defined());
}

// A training step of a module's twin over fakes of its parameters and buffers, under autocast, whole and broken off at every stage.
TEST_F(FakeSemanticsTest, WhatBreaksOffLeavesRealObjectsAlone) {
  torch::nn::Sequential net(torch::nn::Linear(4, 3), torch::nn::BatchNorm1d(3), torch::nn::Linear(3, 2));
  torch::optim::Adam optimizer(net->parameters());
  const auto step = [](torch::nn::Sequential& module, torch::optim::Adam& steps, const Tensor& x, int stop) {
    const auto stop_at = [&](int stage) {
      if (stop == stage) at::mm(x, x);  // shapes that don't go together
    };
    const bool cache = at::autocast::is_autocast_cache_enabled();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
    const std::string error = ErrorOf([&] {
      const Tensor hidden = module[0]->as<torch::nn::LinearImpl>()->forward(x);
      stop_at(0);
      const Tensor normal = module[1]->as<torch::nn::BatchNorm1dImpl>()->forward(hidden);
      stop_at(1);
      const Tensor loss = module[2]->as<torch::nn::LinearImpl>()->forward(normal).to(at::kFloat).sum();
      stop_at(2);
      loss.backward();
      stop_at(3);
      steps.step();
    });
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(at::autocast::is_autocast_cache_enabled(), cache);
    return error;
  };
  ASSERT_EQ(step(net, optimizer, at::ones({5, 4}), -1), "no error");

  // What a program can see of the real objects.
  std::vector<Tensor> watched = net->parameters();
  for (const Tensor& buffer : net->buffers()) watched.push_back(buffer);
  for (const Tensor& p : net->parameters()) {
    watched.push_back(p.grad());
    const auto& state = static_cast<const torch::optim::AdamParamState&>(*optimizer.state().at(p.unsafeGetTensorImpl()));
    watched.push_back(state.exp_avg());
    watched.push_back(state.exp_avg_sq());
  }
  std::vector<Tensor> values;
  std::vector<int64_t> versions;
  for (const Tensor& t : watched) {
    values.push_back(t.detach().clone());
    versions.push_back(t._version());
  }
  const auto expect_unchanged = [&](const std::string& after) {
    for (std::size_t i = 0; i < watched.size(); ++i) {
      ASSERT_FALSE(IsFake(watched[i])) << after;
      EXPECT_EQ(watched[i]._version(), versions[i]) << after << ", tensor " << i;
      EXPECT_TRUE(at::equal(watched[i], values[i])) << after << ", tensor " << i;
    }
    for (const Tensor& p : net->parameters()) EXPECT_FALSE(IsFake(p.grad())) << after;
  };

  for (int stop = -1; stop < 4; ++stop) {
    {
      const ModeGuard guard(mode_);
      torch::nn::Sequential twin(torch::nn::Linear(4, 3), torch::nn::BatchNorm1d(3), torch::nn::Linear(3, 2));
      for (std::size_t i = 0; i < twin->parameters().size(); ++i) {
        twin->parameters()[i].set_data(mode_->FromReal(net->parameters()[i]));
      }
      for (std::size_t i = 0; i < twin->buffers().size(); ++i) twin->buffers()[i].set_data(mode_->FromReal(net->buffers()[i]));
      torch::optim::Adam twin_optimizer(twin->parameters());
      const std::string error = step(twin, twin_optimizer, at::ones({5, 4}), stop);
      EXPECT_THAT(error, HasSubstr(stop < 0 ? "no error" : "mat1 and mat2")) << stop;
      if (stop < 0) {
        for (const Tensor& p : twin->parameters()) EXPECT_EQ(ModeOf(p.grad()), mode_.get());
      }
    }
    expect_unchanged(c10::str("stopped at ", stop));
  }

  // The real module itself, with the mode on: refused before anything is written.
  for (const bool allow : {false, true}) {
    FakeTensorModeOptions options;
    options.allow_non_fake_inputs = allow;
    const auto mode = FakeTensorMode::Create(options);
    {
      const ModeGuard guard(mode);
      EXPECT_THAT(step(net, optimizer, at::ones({5, 4}), -1), HasSubstr("real tensor"));
      EXPECT_THROW(optimizer.step(), NotOurFake);
    }
    expect_unchanged(allow ? "conversion allowed" : "conversion refused");
  }
  EXPECT_EQ(step(net, optimizer, at::ones({5, 4}), -1), "no error");
}

TEST_F(FakeSemanticsTest, RandomOperatorsDrawNothing) {
  const auto generator = at::detail::getDefaultCPUGenerator();
  const auto own = at::make_generator<at::CPUGeneratorImpl>(7);
  const Tensor state = generator.get_state();
  const Tensor own_state = own.get_state();
  {
    ModeGuard guard(mode_);
    at::randn({3});
    at::randint(5, {3});
    at::rand({2}, own);
    at::zeros({4}).normal_(0, 1, own);
    at::multinomial(at::ones({4}), 2, true, own);
    at::dropout(at::ones({4}), 0.5, true);
    at::bernoulli(at::ones({4}));
  }
  EXPECT_TRUE(at::equal(generator.get_state(), state));
  EXPECT_TRUE(at::equal(own.get_state(), own_state));
}

// Modules.

TEST_F(FakeSemanticsTest, ModulesMadeUnderTheMode) {
  ModeGuard guard(mode_);
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8), torch::nn::Linear(8, 2));
  for (const Tensor& p : net->parameters()) {
    EXPECT_TRUE(IsFake(p));
    EXPECT_TRUE(p.requires_grad() && p.is_leaf());
  }
  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ(ModeOf(copy->parameters()[0]), mode_.get()) << "copies stay in the mode";
  EXPECT_NE(StorageOf(copy->parameters()[0]), StorageOf(net->parameters()[0]));
  copy->to(at::kDouble);
  EXPECT_EQ(copy->parameters()[0].scalar_type(), at::kDouble);
  EXPECT_TRUE(copy->parameters()[0].requires_grad());
  const Tensor y = copy->forward(at::ones({3, 4}, at::kDouble));
  y.sum().backward();
  EXPECT_EQ(copy->parameters()[0].grad().scalar_type(), at::kDouble);
  EXPECT_FALSE(net->parameters()[0].grad().defined());
  net->zero_grad();
}

// LibTorch's clone() makes new parameters and gives them the copies' data: under the mode they are fakes, ties come apart as on real ones;
// outside of it they are real, which every use of them tells.
TEST_F(FakeSemanticsTest, CopiesOfModulesStayInTheirMode) {
  struct TiedImpl : torch::nn::Cloneable<TiedImpl> {
    TiedImpl() { reset(); }
    void reset() override {
      first = register_parameter("first", at::randn({4, 4}));
      second = register_parameter("second", first);
      count = register_buffer("count", at::zeros({}));
    }
    Tensor forward(const Tensor& x) { return at::linear(at::linear(x, first), second) + count; }
    Tensor first, second, count;
  };
  std::shared_ptr<TiedImpl> net;
  {
    const ModeGuard guard(mode_);
    net = std::make_shared<TiedImpl>();
    net->named_parameters()["first"].mutable_grad() = at::ones({4, 4});
  }
  const Tensor x = mode_->FromReal(at::ones({2, 4}));
  {
    const ModeGuard guard(mode_);
    const auto copy = std::dynamic_pointer_cast<TiedImpl>(net->clone());
    EXPECT_EQ(ModeOf(copy->first), mode_.get());
    EXPECT_TRUE(net->first.is_same(net->second));
    EXPECT_TRUE(copy->first.is_same(copy->second)) << "reset() ties them";
    EXPECT_FALSE(copy->first.grad().defined());
    copy->to(at::kDouble);
    EXPECT_EQ(copy->second.scalar_type(), at::kDouble);
    EXPECT_EQ(net->first.scalar_type(), at::kFloat);
    const Tensor y = copy->forward(x.to(at::kDouble)).sum() + net->forward(x).sum();
    y.backward();
    EXPECT_EQ(copy->first.grad().scalar_type(), at::kDouble);
    EXPECT_EQ(net->first.grad().scalar_type(), at::kFloat);
    EXPECT_NE(StorageOf(copy->first), StorageOf(net->first));
  }
  // Without the mode on the stack.
  const Tensor y = net->forward(x);
  EXPECT_EQ(ModeOf(y), mode_.get());
  const auto broken = std::dynamic_pointer_cast<TiedImpl>(net->clone());
  EXPECT_FALSE(IsFake(broken->first));
  EXPECT_THAT(ErrorOf([&] { broken->forward(x); }), HasSubstr("set_data"));
  EXPECT_THAT(ErrorOf([&] { broken->forward(at::ones({2, 4})); }), HasSubstr("set_data"));
}

// `to` of a module with a gradient and an optimizer at hand: what eager does, on fakes.
TEST_F(FakeSemanticsTest, ConvertedModulesKeepTheirParameters) {
  const auto run = [](std::vector<std::string>* seen) {
    torch::nn::Linear net(4, 3);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const Tensor weight = net->weight;
    const auto step = [&](at::ScalarType type) {
      net->forward(at::ones({2, 4}, type)).sum().backward();
      optimizer.step();
    };
    const auto note = [&] {
      const Tensor grad = net->weight.grad();
      seen->push_back(c10::str(net->weight.is_same(weight), net->weight.scalar_type(), net->weight.requires_grad(), net->weight.is_leaf(),
                               grad.defined() ? c10::str(grad.scalar_type()) : "none"));
    };
    step(at::kFloat);
    note();
    net->to(at::kDouble);
    note();
    optimizer.zero_grad();
    note();
    try {
      step(at::kDouble);
      note();
    } catch (const c10::Error& error) {
      seen->push_back(std::string(error.what_without_backtrace()).substr(0, 40));
    }
  };
  std::vector<std::string> real, fake;
  run(&real);
  const ModeGuard guard(mode_);
  run(&fake);
  EXPECT_EQ(fake, real);
}

// Threads: each with a mode of its own, at once; and a fake that another thread uses after this one.
TEST_F(FakeSemanticsTest, ThreadsWithModesOfTheirOwn) {
  std::vector<std::string> errors(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < errors.size(); ++i) {
    threads.emplace_back([&, i] {
      errors[i] = ErrorOf([&] {
        const auto mode = FakeTensorMode::Create();
        const ModeGuard guard(mode);
        for (int step = 0; step < 40; ++step) {
          const int64_t n = 2 + static_cast<int64_t>(i) + step % 3;
          torch::nn::Sequential net(torch::nn::Linear(n, 5), torch::nn::BatchNorm1d(5), torch::nn::Linear(5, 1));
          const Tensor loss = net->forward(at::randn({3, n})).sum();
          loss.backward();
          for (const Tensor& p : net->parameters()) {
            TORCH_CHECK(ModeOf(p) == mode.get() && ModeOf(p.grad()) == mode.get() && p.grad().sizes() == p.sizes());
          }
        }
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors, std::vector<std::string>(4, "no error"));

  const Tensor x = mode_->FromReal(at::ones({2, 3}));
  Tensor y;
  std::thread([&] { y = at::mm(x, x.t()); }).join();
  EXPECT_EQ(ModeOf(y), mode_.get());
  EXPECT_EQ(at::mm(x, x.t()).sizes(), y.sizes());
}

// A backward pass inside a backward pass.
struct Reentrant : torch::autograd::Function<Reentrant> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list grads) {
    const at::AutoGradMode with_grad(true);
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const Tensor inner = torch::autograd::grad({at::gelu(x).select(0, 1).sum()}, {x})[0];
    return {grads[0] + inner + at::zeros(x.sizes(), x.options())};
  }
};

TEST_F(FakeSemanticsTest, BackwardInsideBackward) {
  for (const bool pushed : {false, true}) {
    std::optional<ModeGuard> guard;
    const Tensor x = mode_->FromReal(at::ones({3, 2})).requires_grad_();
    if (pushed) guard.emplace(mode_);
    const auto run = [&] { (Reentrant::apply(x) * 3).sum().backward(); };
    // at::zeros() in the formula is real where the mode isn't on the stack.
    if (!pushed) {
      EXPECT_THROW(run(), NotOurFake);
      continue;
    }
    run();
    EXPECT_EQ(ModeOf(x.grad()), mode_.get());
    EXPECT_EQ(x.grad().sizes(), x.sizes());
  }
}

// prod()'s formula asks where the zeros are: fakes answer where there can be one answer, else say by name that it needs data.
TEST_F(FakeSemanticsTest, BackwardOfProducts) {
  struct Case {
    const char* name;
    Tensor (*run)(const Tensor&);
  };
  const Case cases[] = {
      {"all", [](const Tensor& x) { return x.prod(); }},
      {"dim", [](const Tensor& x) { return x.dim() == 0 ? x.prod(0) : x.prod(-1).sum(); }},
      {"keepdim", [](const Tensor& x) { return x.prod(0, true).sum(); }},
      {"double", [](const Tensor& x) { return x.prod(0, false, at::kDouble).sum(); }},
      {"cumprod", [](const Tensor& x) { return x.cumprod(0).sum(); }},
      {"all_converted", [](const Tensor& x) { return x.prod(at::kDouble); }},
  };
  const std::vector<std::vector<int64_t>> shapes = {{}, {1}, {3}, {2, 3}, {0}, {2, 0}, {1, 1}};
  int answered = 0, refused = 0;
  for (const Case& c : cases) {
    for (const std::vector<int64_t>& sizes : shapes) {
      const Tensor real = at::full(sizes, 0.5).requires_grad_();
      const Tensor fake = mode_->FromReal(real);
      const std::vector<Tensor> want = torch::autograd::grad({c.run(real)}, {real});
      for (int pass = 0; pass < 2; ++pass) {
        const ModeGuard guard(mode_);
        try {
          const std::vector<Tensor> got = torch::autograd::grad({c.run(fake)}, {fake});
          EXPECT_EQ(got[0].sizes(), want[0].sizes()) << c.name << " of " << at::IntArrayRef(sizes);
          EXPECT_EQ(got[0].scalar_type(), want[0].scalar_type()) << c.name;
          ++answered;
        } catch (const DataDependentOutput& error) {
          EXPECT_THAT(ExceptionMessage(error), HasSubstr("aten::")) << c.name;
          ++refused;
        } catch (const DynamicOutputShape& error) {
          EXPECT_THAT(ExceptionMessage(error), HasSubstr("aten::nonzero")) << c.name;
          ++refused;
        }
      }
    }
  }
  EXPECT_GE(answered, 20);
  EXPECT_GT(refused, 5);
}

// Autograd, inference mode.

TEST_F(FakeSemanticsTest, SecondDerivatives) {
  ModeGuard guard(mode_);
  const Tensor x = at::ones({3}).requires_grad_();
  const Tensor first = torch::autograd::grad({x.pow(3).sum()}, {x}, {}, true, true)[0];
  EXPECT_TRUE(first.requires_grad());
  EXPECT_EQ(torch::autograd::grad({first.sum()}, {x})[0].sizes(), x.sizes()) << "twice";
}

TEST_F(FakeSemanticsTest, CompositesUnderInferenceMode) {
  c10::InferenceMode inference;
  ModeGuard guard(mode_);
  const Tensor x = at::ones({2, 3, 4});
  EXPECT_EQ(at::linear(x, at::ones({5, 4}), at::ones({5})).sizes(), at::IntArrayRef({2, 3, 5}));
  EXPECT_EQ(at::matmul(x, x.transpose(1, 2)).sizes(), at::IntArrayRef({2, 3, 3}));
  EXPECT_EQ(at::scaled_dot_product_attention(at::ones({1, 2, 3, 4}), at::ones({1, 2, 3, 4}), at::ones({1, 2, 3, 4})).sizes(),
            at::IntArrayRef({1, 2, 3, 4}));
  EXPECT_TRUE(IsFake(at::cross_entropy_loss(at::ones({2, 3}), at::ones({2}, at::kLong))));
  EXPECT_TRUE((x + 1).is_inference());
}

TEST_F(FakeSemanticsTest, CompositesWithoutTheModePushed) {
  const Tensor x = mode_->FromReal(at::ones({2, 3, 4}));
  const Tensor w = mode_->FromReal(at::ones({5, 4}));
  c10::InferenceMode inference;
  EXPECT_EQ(at::linear(x, w).sizes(), at::IntArrayRef({2, 3, 5}));
}

// Operators without a rule.

TORCH_LIBRARY(fake_semantics_test, m) {
  m.def("ruleless(Tensor self) -> Tensor");
  m.def("viewing(Tensor(a) self) -> Tensor(a)");
  m.def("drawing(Tensor self, Generator? generator=None) -> Tensor", {at::Tag::nondeterministic_seeded});
  m.def("drawing_untagged(Tensor self, Generator? generator=None) -> Tensor");
  m.def("composed(Tensor self) -> Tensor", [](const Tensor& self) { return self + at::ones({3}); });
}
int real_calls = 0;
TORCH_LIBRARY_IMPL(fake_semantics_test, CPU, m) {
  m.impl("ruleless", [](const Tensor& self) {
    ++real_calls;
    return at::cat({self, self}).t().contiguous().t();
  });
  m.impl("viewing", [](const Tensor& self) { return self.t(); });
  m.impl("drawing_untagged", [](const Tensor& self, const std::optional<at::Generator>& generator) {
    return at::rand(self.sizes(), generator) + at::rand(self.sizes());
  });
  m.impl("drawing", [](const Tensor& self, const std::optional<at::Generator>& generator) { return at::rand(self.sizes(), generator); });
}
Tensor Call(const char* name, const Tensor& x) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string("fake_semantics_test::") + name).c_str(), "")
      .typed<Tensor(const Tensor&)>()
      .call(x);
}

TEST_F(FakeSemanticsTest, AnOperatorWithoutARuleIsRefusedWithAdvice) {
  const Tensor x = mode_->FromReal(at::ones({2, 3}));
  EXPECT_THROW(Call("ruleless", x), UnsupportedOperator);
  EXPECT_THAT(ErrorOf([&] { Call("ruleless", x); }), AllOf(HasSubstr("fake_semantics_test::ruleless"), HasSubstr("(Tensor self) -> Tensor"),
                                                           HasSubstr("RegisterFakeKernel"), HasSubstr("allow_fallback_kernels")));
  EXPECT_EQ(real_calls, 0);
}

TEST_F(FakeSemanticsTest, TheFallbackRunsTheRealKernelOnZeros) {
  const auto mode = With([](FakeTensorModeOptions& o) { o.allow_fallback_kernels = true; });
  const Tensor x = mode->FromReal(at::ones({2, 3}));
  const Tensor y = Call("ruleless", x);
  EXPECT_TRUE(IsFake(y));
  EXPECT_EQ(y.sizes(), at::IntArrayRef({4, 3}));
  EXPECT_EQ(y.strides(), at::IntArrayRef({1, 4}));
  EXPECT_EQ(real_calls, 1);
  Call("ruleless", x);
  EXPECT_EQ(real_calls, 1) << "cached";
  const Tensor view = Call("viewing", x);
  EXPECT_EQ(StorageOf(view), StorageOf(x));
  EXPECT_EQ(view.sizes(), at::IntArrayRef({3, 2}));

  const auto generator = at::detail::getDefaultCPUGenerator();
  const auto own = at::make_generator<at::CPUGeneratorImpl>(7);
  const Tensor state = generator.get_state();
  const Tensor own_state = own.get_state();
  const auto drawing = c10::Dispatcher::singleton()
                           .findSchemaOrThrow("fake_semantics_test::drawing", "")
                           .typed<Tensor(const Tensor&, const std::optional<at::Generator>&)>();
  EXPECT_TRUE(IsFake(drawing.call(x, std::nullopt)));
  EXPECT_TRUE(IsFake(drawing.call(mode->FromReal(at::ones({5})), own)));
  const auto untagged = c10::Dispatcher::singleton()
                            .findSchemaOrThrow("fake_semantics_test::drawing_untagged", "")
                            .typed<Tensor(const Tensor&, const std::optional<at::Generator>&)>();
  EXPECT_TRUE(IsFake(untagged.call(x, own)));
  EXPECT_TRUE(at::equal(generator.get_state(), state));
  EXPECT_TRUE(at::equal(own.get_state(), own_state));
}

TEST_F(FakeSemanticsTest, CompositionsAreRunOnFakes) {
  const Tensor x = mode_->FromReal(at::ones({2, 3}));
  c10::InferenceMode inference;
  EXPECT_EQ(Call("composed", x).sizes(), x.sizes());
}

}  // namespace
}  // namespace ddpopt
