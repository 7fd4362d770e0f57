#include <string>
#include <vector>

#include "ATen/Context.h"
#include "ATen/Functions.h"
#include "ATen/Parallel.h"
#include "ATen/TensorOperators.h"
#include "ATen/core/grad_mode.h"
#include "c10/core/DefaultDtype.h"
#include "c10/core/InferenceMode.h"
#include "fake_tensor/fake_kernel.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fake_tensor/test_helpers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/library.h"

namespace ddpopt {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;

class FakeCacheTest : public ::testing::Test {
 protected:
  Tensor Fake(const Tensor& real) { return mode_->FromReal(real); }
  int64_t Hits() const { return mode_->CacheInfo().hits; }
  // Whether the call is answered from the cache, after others.
  template <typename Fn>
  bool Hit(Fn&& fn) {
    const int64_t before = Hits();
    fn();
    return Hits() > before;
  }
  const std::shared_ptr<FakeTensorMode> mode_ = FakeTensorMode::Create();
};

TEST_F(FakeCacheTest, HitsMissesAndSize) {
  const Tensor x = Fake(at::ones({2, 3}));
  const Tensor y = Fake(at::ones({3}));
  for (int i = 0; i < 3; ++i) {
    const Tensor z = at::add(x, y);
    EXPECT_EQ(z.sizes(), at::IntArrayRef({2, 3}));
    EXPECT_FALSE(StorageOf(z) == StorageOf(x));
  }
  const FakeCacheInfo info = mode_->CacheInfo();
  EXPECT_EQ(info.misses, 1);
  EXPECT_EQ(info.hits, 2);
  EXPECT_EQ(info.size, 1);
  mode_->ClearCache();
  EXPECT_EQ(mode_->CacheInfo().size, 0);
  EXPECT_EQ(mode_->CacheInfo().hits, 0);
}

TEST_F(FakeCacheTest, EveryPartOfAnOperandCounts) {
  const Tensor y = Fake(at::ones({4, 4}));
  const auto add = [&](const Tensor& x) { at::add(x, y); };
  const Tensor base = at::ones({4, 4});
  add(Fake(base));
  EXPECT_TRUE(Hit([&] { add(Fake(at::ones({4, 4}))); }));
  EXPECT_FALSE(Hit([&] { add(Fake(at::ones({1, 4}))); })) << "sizes";
  EXPECT_FALSE(Hit([&] { add(Fake(at::ones({4, 4}).t())); })) << "strides";
  EXPECT_FALSE(Hit([&] { add(Fake(at::ones({4, 4}, at::kDouble))); })) << "dtype";
  EXPECT_FALSE(Hit([&] { add(Fake(at::ones({5, 4})).slice(0, 1)); })) << "offset";
  EXPECT_FALSE(Hit([&] { add(Fake(at::ones({5, 4})).slice(0, 0, 4)); })) << "the storage's size";
  EXPECT_FALSE(Hit([&] { add(y); })) << "the same tensor twice";
  EXPECT_FALSE(Hit([&] { add(y.view({4, 4})); })) << "shared memory (and view's own first call)";
}

TEST_F(FakeCacheTest, OtherArgumentsCount) {
  const Tensor x = Fake(at::ones({2, 6}));
  x.sum(at::IntArrayRef{0});
  EXPECT_TRUE(Hit([&] { x.sum(at::IntArrayRef{0}); }));
  EXPECT_FALSE(Hit([&] { x.sum(at::IntArrayRef{1}); }));
  EXPECT_FALSE(Hit([&] { x.sum(at::IntArrayRef{0}, true); }));
  EXPECT_FALSE(Hit([&] { x.sum(at::IntArrayRef{0}, false, at::kDouble); }));
  at::gelu(x, "none");
  EXPECT_FALSE(Hit([&] { at::gelu(x, "tanh"); }));
  EXPECT_EQ(x.view({3, 4}).sizes(), at::IntArrayRef({3, 4}));
  EXPECT_EQ(x.view({4, 3}).sizes(), at::IntArrayRef({4, 3}));
}

TEST_F(FakeCacheTest, OptimizersScalarsDoNotCount) {
  const Tensor x = Fake(at::ones({2, 6}));
  at::add(x, x, 0.001);
  EXPECT_TRUE(Hit([&] { at::add(x, x, 0.0009); }));
  EXPECT_FALSE(Hit([&] { at::add(x, x, 2); })) << "another kind of number";
  at::full_like(x, 1.5);
  EXPECT_FALSE(Hit([&] { at::full_like(x, 2.5); })) << "no arithmetic";
}

TEST_F(FakeCacheTest, TheThreadsStateCounts) {
  const Tensor x = Fake(at::ones({2}, at::kLong));
  const Tensor y = Fake(at::ones({2}, at::kLong));
  EXPECT_EQ(at::div(x, y).scalar_type(), at::kFloat);
  {
    const auto before = c10::get_default_dtype();
    c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
    EXPECT_EQ(at::div(x, y).scalar_type(), at::kDouble);
    c10::set_default_dtype(before);
  }
  EXPECT_EQ(at::div(x, y).scalar_type(), at::kFloat);
  c10::InferenceMode inference;
  EXPECT_TRUE(at::div(x, y).is_inference());
}

TEST_F(FakeCacheTest, ViewsAreOfThisInput) {
  std::vector<Tensor> views;
  std::vector<Tensor> bases;
  for (int i = 0; i < 3; ++i) {
    bases.push_back(Fake(at::ones({2, 3})));
    views.push_back(bases.back().t());
    EXPECT_EQ(StorageOf(views.back()), StorageOf(bases.back()));
    EXPECT_TRUE(views.back().is_view());
    bases.back().add_(1);
    EXPECT_EQ(views.back()._version(), 1);
  }
  EXPECT_GE(Hits(), 2);
  const std::vector<Tensor> parts = at::split(bases[0], 1);
  const std::vector<Tensor> again = at::split(bases[1], 1);
  EXPECT_EQ(StorageOf(again[1]), StorageOf(bases[1]));
  EXPECT_EQ(again[1].storage_offset(), 3);
}

TEST_F(FakeCacheTest, InPlaceKeepsIdentity) {
  for (int i = 0; i < 2; ++i) {
    const Tensor x = Fake(at::ones({2, 3}));
    EXPECT_TRUE(x.mul_(2).is_same(x));
    EXPECT_EQ(x._version(), 1);
    Tensor out = Fake(at::ones({2, 3}));
    EXPECT_TRUE(at::add_out(out, x, x).is_same(out));
  }
  EXPECT_EQ(Hits(), 2);
}

TEST_F(FakeCacheTest, ForeachOperatorsCountChangesOnce) {
  for (int i = 0; i < 3; ++i) {
    const std::vector<Tensor> xs = {Fake(at::ones({2})), Fake(at::ones({3}))};
    at::_foreach_add_(xs, 1);
    EXPECT_EQ(xs[1]._version(), 1);
  }
  EXPECT_EQ(Hits(), 2);
}

TEST_F(FakeCacheTest, BypassesByReason) {
  const Tensor x = Fake(at::ones({2, 3}));
  x.t_();
  x.t_();
  for (int i = 0; i < 2; ++i) {
    Tensor out = Fake(at::empty({0}));
    at::add_out(out, x, x);
    EXPECT_EQ(out.sizes(), at::IntArrayRef({2, 3}));
  }
  EXPECT_THROW(x.sum().item(), c10::Error);
  const FakeCacheInfo info = mode_->CacheInfo();
  EXPECT_THAT(info.bypasses, AllOf(Contains(Key("in-place change of metadata")), Contains(Key("data-dependent output"))));
  EXPECT_EQ(info.bypasses.at("in-place change of metadata"), 4);
}

TEST_F(FakeCacheTest, ANewSizeOfTheStorageIsAChange) {
  for (int i = 0; i < 2; ++i) {
    Tensor out = Fake(at::empty({}));
    at::mse_loss_out(out, Fake(at::ones({4, 4})), Fake(at::ones({4, 4})));
    EXPECT_EQ(out.dim(), 0);
    EXPECT_EQ(out.storage().nbytes(), 64) << "the kernel resizes it to the unreduced loss first";
  }
}

TEST_F(FakeCacheTest, ItIsBounded) {
  FakeTensorModeOptions options;
  options.cache_limit = 10;
  const auto mode = FakeTensorMode::Create(options);
  for (int64_t i = 1; i < 100; ++i) {
    const Tensor x = mode->FromReal(at::ones({i}));
    EXPECT_EQ(at::exp(x).size(0), i);
    EXPECT_LE(mode->CacheInfo().size, 10);
  }
}

TEST_F(FakeCacheTest, ItCanBeOff) {
  FakeTensorModeOptions options;
  options.cache = false;
  const auto mode = FakeTensorMode::Create(options);
  const Tensor x = mode->FromReal(at::ones({3}));
  at::exp(x);
  at::exp(x);
  EXPECT_EQ(mode->CacheInfo().size, 0);
  EXPECT_EQ(mode->CacheInfo().hits + mode->CacheInfo().misses, 0);
}

int wrong_answer = 2;
TORCH_LIBRARY(fake_cache_test, m) { m.def("fickle(Tensor self) -> Tensor"); }

TEST_F(FakeCacheTest, CrossCheckFindsADifference) {
  RegisterFakeKernel("fake_cache_test::fickle", [](const Tensor& self) { return at::empty({wrong_answer}, self.options()); });
  FakeTensorModeOptions options;
  options.cross_check_cache = true;
  const auto mode = FakeTensorMode::Create(options);
  const Tensor x = mode->FromReal(at::ones({3}));
  const auto call = [&] {
    return c10::Dispatcher::singleton().findSchemaOrThrow("fake_cache_test::fickle", "").typed<Tensor(const Tensor&)>().call(x);
  };
  call();
  EXPECT_EQ(call().size(0), 2);
  EXPECT_EQ(mode->CacheInfo().hits, 1);
  wrong_answer = 3;
  EXPECT_THAT(ErrorOf(call), AllOf(HasSubstr("fake_cache_test::fickle"), HasSubstr("[2]"), HasSubstr("[3]")));
}

TEST_F(FakeCacheTest, RefusalsComeAgain) {
  const Tensor x = Fake(at::ones({2, 3}));
  for (int i = 0; i < 2; ++i) EXPECT_THAT(ErrorOf([&] { at::mm(x, x); }), HasSubstr("mat1 and mat2"));
}

TEST_F(FakeCacheTest, ManyOperandsWork) {
  std::vector<Tensor> many;
  for (int i = 0; i < 100; ++i) many.push_back(Fake(at::ones({2})));
  EXPECT_EQ(at::cat(many).size(0), 200);
  EXPECT_EQ(at::cat(many).size(0), 200);
  at::_foreach_add_(many, 1);
  EXPECT_EQ(many[99]._version(), 1);
  EXPECT_THAT(mode_->CacheInfo().bypasses, Contains(Key("many operands")));
}

// A convolution's memory format depends on which library runs it, and that on the number of threads and on what the user turned off.
TEST_F(FakeCacheTest, ThreadsAndOneDnnCount) {
  const Tensor real_input = at::ones({2, 4, 3, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast3d);
  const Tensor real_weight = at::ones({4, 4, 1, 1, 1});
  const Tensor input = Fake(real_input);
  const Tensor weight = Fake(real_weight);
  const auto strides = [](const Tensor& x, const Tensor& w) { return at::conv3d(x, w).strides().vec(); };
  const int threads = at::get_num_threads();
  for (const int count : {1, 4, 1}) {
    at::set_num_threads(count);
    EXPECT_EQ(strides(input, weight), strides(real_input, real_weight)) << count << " threads";
  }
  at::globalContext().setUserEnabledMkldnn(false);
  for (const int count : {4, 1}) {
    at::set_num_threads(count);
    EXPECT_EQ(strides(input, weight), strides(real_input, real_weight)) << count << " threads, without oneDNN";
  }
  at::globalContext().setUserEnabledMkldnn(true);
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace ddpopt
