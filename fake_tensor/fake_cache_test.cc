#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
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

std::string Facts(const Tensor& t) {
  if (!t.defined()) return "undefined";
  return c10::str(t.dtype(), " ", t.sizes(), " by ", t.strides(), " at ", t.storage_offset(), " of ", t.storage().nbytes(),
                  t.is_conj() ? " conj" : "", t.is_neg() ? " neg" : "", t.is_inference() ? " inference" : "",
                  t.requires_grad() ? " requires grad" : "", t.unsafeGetTensorImpl()->is_wrapped_number() ? " number" : "");
}

// Calls that differ in one thing only: none gets another's answer.
TEST_F(FakeCacheTest, CallsThatDifferInOneThing) {
  const Tensor longs = at::ones({2, 3}, at::kLong);
  const Tensor floats = at::ones({4, 3}).slice(0, 0, 3);
  const Tensor complex = at::ones({2, 2}, at::kComplexFloat);
  using Call = std::function<Tensor(const Tensor&)>;
  struct Family {
    Tensor input;
    std::vector<Call> calls;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<Family> families = {
      {longs,
       {[](const Tensor& x) { return x * 2; }, [](const Tensor& x) { return x * 2.0; }, [](const Tensor& x) { return x * true; },
        [](const Tensor& x) { return x * c10::complex<double>(2, 0); }, [](const Tensor& x) { return x * 0.0; },
        [](const Tensor& x) { return x * -0.0; }, [nan](const Tensor& x) { return x * nan; },
        [](const Tensor& x) { return x * at::scalar_tensor(2.0F, at::kHalf); }}},
      {longs,
       {[](const Tensor&) { return at::full({2}, int64_t{1} << 60, at::TensorOptions()); },
        [](const Tensor&) { return at::full({2}, std::pow(2.0, 60), at::TensorOptions()); },
        [](const Tensor&) { return at::full({2}, true, at::TensorOptions()); },
        [nan](const Tensor&) { return at::full({2}, nan, at::TensorOptions()); },
        [](const Tensor&) { return at::full({1}, 1, at::TensorOptions()); },
        [](const Tensor&) { return at::full({2}, 1.0, at::TensorOptions().dtype(at::kHalf)); }}},
      {longs,
       {[](const Tensor& x) { return at::div(x, x); }, [](const Tensor& x) { return at::div(x, x, "floor"); },
        [](const Tensor& x) { return at::div(x, x, "trunc"); }, [](const Tensor& x) { return at::div(x, x.clone()); },
        [](const Tensor& x) { return at::div(x, x.t().clone().t()); }}},
      {floats,
       {[](const Tensor& x) { return at::argmax(x); }, [](const Tensor& x) { return at::argmax(x, 0); },
        [](const Tensor& x) { return at::argmax(x, 1); }, [](const Tensor& x) { return at::argmax(x, 0, true); },
        [](const Tensor& x) { return at::argmax(x, std::nullopt, true); }}},
      {floats,
       {[](const Tensor& x) { return at::sum(x, at::OptionalIntArrayRef(std::nullopt)); },
        [](const Tensor& x) { return at::sum(x, at::IntArrayRef{}, true); }, [](const Tensor& x) { return at::sum(x, at::IntArrayRef{0}); },
        [](const Tensor& x) { return at::sum(x, at::IntArrayRef{0, 1}); },
        [](const Tensor& x) { return at::sum(x, at::IntArrayRef{0, 1}, true); },
        [](const Tensor& x) { return at::sum(x, at::IntArrayRef{0}, false, at::kDouble); }}},
      {floats,
       {[](const Tensor& x) { return x.clone(); }, [](const Tensor& x) { return x.t().clone(); },
        [](const Tensor& x) { return x.t().clone(at::MemoryFormat::Contiguous); },
        [](const Tensor& x) { return at::empty_like(x.t(), at::TensorOptions().dtype(at::kHalf)); }}},
      {floats,
       {[](const Tensor& x) { return x.as_strided({2}, {1}); }, [](const Tensor& x) { return x.slice(0, 1).as_strided({2}, {1}); },
        [](const Tensor& x) { return x.as_strided({2}, {1}, 0); }, [](const Tensor& x) { return x.slice(0, 1).view({6}); },
        [](const Tensor& x) { return x.t().slice(0, 1).view({6}); }, [](const Tensor& x) { return x.view(at::kInt); },
        [](const Tensor& x) { return at::_neg_view(x).view(at::kInt); }}},
      {floats,
       {[](const Tensor& x) { return at::cat({x, x}); }, [](const Tensor& x) { return at::cat({x, x, x}); },
        [](const Tensor& x) { return at::cat({x, x}, 1); }, [](const Tensor& x) { return at::cat({x, x.to(at::kDouble)}); }}},
      {floats,
       {[](const Tensor& x) { return at::relu(x); },
        [](const Tensor& x) { return at::relu(x.detach().requires_grad_()); },
        [](const Tensor& x) {
          c10::InferenceMode inference;
          return at::relu(x);
        },
        [](const Tensor& x) {
          at::NoGradGuard no_grad;
          return at::relu(x.detach().requires_grad_());
        }}},
      // Operands that share memory.
      {floats,
       {[](const Tensor& x) {
          Tensor out = x.slice(0, 1);
          return at::add_out(out, x.slice(0, 0, 2), x.slice(0, 0, 2));
        },
        [](const Tensor& x) {
          Tensor out = x.slice(0, 1);
          return at::add_out(out, x.slice(0, 1), x.slice(0, 1));
        },
        [](const Tensor& x) {
          Tensor out = x.slice(0, 1);
          return at::add_out(out, x.clone().slice(0, 0, 2), x.clone().slice(0, 0, 2));
        },
        [](const Tensor& x) { return x.slice(0, 1).add_(x.slice(0, 0, 2)); },
        [](const Tensor& x) { return x.slice(0, 1).add_(x.slice(0, 1)); }}},
      {complex,
       {[](const Tensor& x) { return at::view_as_real(x); }, [](const Tensor& x) { return at::view_as_real(at::conj(x)); },
        [](const Tensor& x) { return at::imag(x); }, [](const Tensor& x) { return at::imag(at::conj(x)); },
        [](const Tensor& x) { return x.t(); }, [](const Tensor& x) { return at::conj(x).t(); }}},
  };
  FakeTensorModeOptions without, checked;
  without.cache = false;
  checked.cross_check_cache = true;
  const auto run = [](FakeTensorMode& mode, const Tensor& real, const Call& call) {
    std::string facts;
    const std::string error = ErrorOf([&] {
      const ModeGuard guard(mode.shared_from_this());
      facts = Facts(call(mode.FromReal(real)));
    });
    return facts.empty() ? "refused" : facts;
  };
  const auto plain_mode = FakeTensorMode::Create(without), checked_mode = FakeTensorMode::Create(checked);
  for (std::size_t f = 0; f < families.size(); ++f) {
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t i = 0; i < families[f].calls.size(); ++i) {
        const std::string want = run(*plain_mode, families[f].input, families[f].calls[i]);
        EXPECT_EQ(run(*mode_, families[f].input, families[f].calls[i]), want) << "family " << f << ", call " << i << ", pass " << pass;
        EXPECT_EQ(run(*checked_mode, families[f].input, families[f].calls[i]), want) << "family " << f << ", call " << i;
      }
    }
  }
  EXPECT_GT(Hits(), 40);
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

// Every call is a hit, a miss or has one reason.
TEST_F(FakeCacheTest, StatisticsAreExact) {
  const Tensor x = Fake(at::ones({2, 3}));
  const Tensor y = Fake(at::ones({2, 3}));
  Tensor number = at::scalar_tensor(2.0);
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  const ModeGuard guard(mode_);
  const std::vector<std::pair<std::string, std::function<void()>>> calls = {
      {"miss", [&] { at::exp(x); }},
      {"hit", [&] { at::exp(y); }},
      {"miss", [&] { x.select(0, 1); }},
      {"in-place change of metadata", [&] { y.t_(); }},
      {"in-place change of metadata", [&] { y.set_(x.storage()); }},
      {"lift", [&] { at::lift_fresh(x); }},
      {"data-dependent output", [&] { at::equal(x, x); }},
      {"dynamic output shape", [&] { at::nonzero(x); }},
      {"dynamic output shape", [&] { at::index(x, {at::_ops::gt_Scalar::call(x, 0)}); }},
      {"no tensors result", [&] { at::_fused_sdp_choice(x, x, x); }},
      {"view of a number", [&] { at::alias(number); }},
      {"miss", [&] { at::mm(x, x); }},  // refused
      {"miss", [&] { at::mm(x, x); }},
  };
  const auto count = [&](const std::string& what) -> int64_t {
    const FakeCacheInfo info = mode_->CacheInfo();
    if (what == "hit") return info.hits;
    if (what == "miss") return info.misses;
    const auto found = info.bypasses.find(what);
    return found == info.bypasses.end() ? 0 : found->second;
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const int64_t before = count(calls[i].first);
    const int64_t others = count("hit") + count("miss");
    ErrorOf(calls[i].second);
    EXPECT_EQ(count(calls[i].first), before + 1) << i << ", " << calls[i].first;
    const bool asks = calls[i].first == "hit" || calls[i].first == "miss" || i == 8;
    EXPECT_EQ(count("hit") + count("miss"), others + (asks ? 1 : 0)) << i;
  }
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
