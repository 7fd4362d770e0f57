#include "fake_tensor/fake_kernel.h"

#include <optional>
#include <string>
#include <tuple>

#include "ATen/Functions.h"
#include "ATen/core/Tensor.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fake_tensor/test_helpers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/library.h"

namespace ddpopt {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

TORCH_LIBRARY(fake_kernel_test, m) {
  for (const char* op : {"a", "b", "c", "d", "e", "h"}) m.def((std::string(op) + "(Tensor self, int n) -> Tensor").c_str());
  m.def("a_(Tensor(a!) self, int n) -> Tensor(a!)");
  m.def("a.out(Tensor self, int n, *, Tensor(a!) out) -> Tensor(a!)");
  m.def("b.out(Tensor self, int n, *, Tensor(a!) out) -> Tensor(a!)");
  m.def("c_(Tensor(a!) self, int n) -> Tensor(a!)");
  m.def("two(Tensor self) -> (Tensor, Tensor)");
  m.def("two.out(Tensor self, *, Tensor(a!) first, Tensor(b!) second) -> (Tensor(a!), Tensor(b!))");
  m.def("calls_h(Tensor self) -> Tensor");
  m.def("make(int n, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor");
  m.def("make.out(int n, *, Tensor(a!) out) -> Tensor(a!)");
}

template <typename Signature, typename... Args>
decltype(auto) Call(const char* name, const char* overload, Args&&... args) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string("fake_kernel_test::") + name).c_str(), overload)
      .typed<Signature>()
      .call(std::forward<Args>(args)...);
}
Tensor CallUnary(const char* name, const Tensor& self, int64_t n) { return Call<Tensor(const Tensor&, int64_t)>(name, "", self, n); }
Tensor& CallInPlace(const char* name, Tensor& self, int64_t n) { return Call<Tensor&(Tensor&, int64_t)>(name, "", self, n); }
Tensor& CallOut(const char* name, const Tensor& self, int64_t n, Tensor& out) {
  return Call<Tensor&(const Tensor&, int64_t, Tensor&)>(name, "out", self, n, out);
}

// Twice as many columns, transposed strides.
Tensor Wider(const Tensor& self, int64_t n) { return at::empty({self.size(1) * n, self.size(0)}, self.options()).t(); }

DDPOPT_FAKE_KERNELS(m) {
  m.impl("fake_kernel_test::a", Wider);
  FakeKernelOptions strict;
  strict.out_dtype = FakeKernelOptions::OutDtype::kEqual;
  strict.out_strides = FakeKernelOptions::OutStrides::kContiguous;
  m.impl("fake_kernel_test::b", Wider, strict);
  m.impl("fake_kernel_test::c", [](const Tensor& self, int64_t /*n*/) { return at::empty_like(self); });
  m.impl("fake_kernel_test::c_", [](Tensor& self, int64_t n) -> Tensor& {
    self.resize_({n});
    return self;
  });
  m.impl("fake_kernel_test::two", [](const Tensor& self) { return std::tuple(at::empty_like(self), at::empty({3}, self.options())); });
  m.impl("fake_kernel_test::h", Wider);
  m.impl("fake_kernel_test::make",
         [](int64_t n, std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
            std::optional<bool> /*pin_memory*/) { return at::empty({n}, at::TensorOptions().dtype(dtype).device(device)); });
  m.impl_if_present("fake_kernel_test::not_in_this_version", Wider);
}

class FakeKernelTest : public ::testing::Test {
 protected:
  Tensor Fake(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) { return mode_->FromReal(at::zeros(sizes, dtype)); }
  const std::shared_ptr<FakeTensorMode> mode_ = FakeTensorMode::Create();
};

TEST_F(FakeKernelTest, ARuleIsUsed) {
  const Tensor y = CallUnary("a", Fake({2, 3}), 2);
  EXPECT_TRUE(IsFake(y));
  EXPECT_EQ(y.sizes(), at::IntArrayRef({2, 6}));
  EXPECT_EQ(y.strides(), at::IntArrayRef({1, 2}));
}

TEST_F(FakeKernelTest, TheInPlaceFormIsDerived) {
  Tensor x = Fake({2, 3});
  EXPECT_TRUE(CallInPlace("a_", x, 1).is_same(x));
  EXPECT_EQ(x.strides(), at::IntArrayRef({3, 1}));
  EXPECT_THAT(ErrorOf([&] { CallInPlace("a_", x, 2); }), HasSubstr("doesn't match the broadcast shape [2, 6]"));
  Tensor expanded = Fake({1, 3}).expand({2, 3});
  EXPECT_THAT(ErrorOf([&] { CallInPlace("a_", expanded, 1); }), HasSubstr("single memory location"));
}

TEST_F(FakeKernelTest, TheOutFormIsDerived) {
  const Tensor x = Fake({2, 3});
  Tensor out = Fake({0});
  EXPECT_TRUE(CallOut("a", x, 2, out).is_same(out));
  EXPECT_EQ(out.sizes(), at::IntArrayRef({2, 6}));
  EXPECT_EQ(out.strides(), at::IntArrayRef({1, 2})) << "those of the rule's result";
  EXPECT_EQ(out.storage().nbytes(), 48);
  Tensor fits = Fake({2, 6});
  CallOut("a", x, 2, fits);
  EXPECT_EQ(fits.strides(), at::IntArrayRef({6, 1})) << "not resized";
  Tensor other_dtype = Fake({2, 6}, at::kDouble);
  CallOut("a", x, 2, other_dtype);
  EXPECT_EQ(other_dtype.scalar_type(), at::kDouble);
  Tensor integers = Fake({2, 6}, at::kLong);
  EXPECT_THAT(ErrorOf([&] { CallOut("a", x, 2, integers); }), HasSubstr("can't be cast"));
  Tensor part = Fake({9});
  const Tensor self = part.slice(0, 0, 6).view({2, 3});
  Tensor overlapping = part.slice(0, 3, 9).view({2, 3});
  EXPECT_THAT(ErrorOf([&] { CallOut("a", self, 1, overlapping); }), HasSubstr("refer to a single memory location"));
}

TEST_F(FakeKernelTest, OptionsOfTheOutForm) {
  const Tensor x = Fake({2, 3});
  Tensor out = Fake({0});
  CallOut("b", x, 2, out);
  EXPECT_EQ(out.strides(), at::IntArrayRef({6, 1}));
  Tensor wider = Fake({2, 6}, at::kDouble);
  EXPECT_THAT(ErrorOf([&] { CallOut("b", x, 2, wider); }), HasSubstr("Expected out tensor to have dtype"));
}

TEST_F(FakeKernelTest, AFormsOwnRuleGoesFirst) {
  Tensor x = Fake({2, 3});
  CallInPlace("c_", x, 7);
  EXPECT_EQ(x.sizes(), at::IntArrayRef({7}));
}

TEST_F(FakeKernelTest, SeveralOuts) {
  Tensor first = Fake({0});
  Tensor second = Fake({0});
  Call<std::tuple<Tensor&, Tensor&>(const Tensor&, Tensor&, Tensor&)>("two", "out", Fake({2, 3}), first, second);
  EXPECT_EQ(first.sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(second.sizes(), at::IntArrayRef({3}));
}

TEST_F(FakeKernelTest, FactoriesTakeTheirOptionsFromOut) {
  Tensor out = Fake({0}, at::kHalf);
  ModeGuard guard(mode_);
  Call<Tensor&(int64_t, Tensor&)>("make", "out", 5, out);
  EXPECT_EQ(out.sizes(), at::IntArrayRef({5}));
  EXPECT_EQ(out.scalar_type(), at::kHalf);
}

TEST_F(FakeKernelTest, NestedCallsFindTheRule) {
  RegisterFakeKernel("fake_kernel_test::calls_h", [](const Tensor& self) { return CallUnary("h", self, 3); });
  EXPECT_EQ(Call<Tensor(const Tensor&)>("calls_h", "", Fake({2, 3})).sizes(), at::IntArrayRef({2, 9}));
}

TEST_F(FakeKernelTest, ARuleGoesBeforeLibTorchsKernelWhichItCanCall) {
  const Tensor x = Fake({2, 3});
  EXPECT_EQ(at::special_i1(x).sizes(), at::IntArrayRef({2, 3}));
  RegisterFakeKernel("special_i1", [](const Tensor& self) { return at::special_i1(self).unsqueeze(0); });
  EXPECT_EQ(at::special_i1(x).sizes(), at::IntArrayRef({1, 2, 3})) << "also where LibTorch's kernel was used before";
}

void Boxed(const c10::OperatorHandle& /*op*/, torch::jit::Stack* stack) {
  const int64_t n = torch::jit::pop(*stack).toInt();
  const Tensor self = torch::jit::pop(*stack).toTensor();
  torch::jit::push(*stack, at::empty({n}, self.options()));
}

TEST_F(FakeKernelTest, BoxedRules) {
  RegisterFakeKernel("fake_kernel_test::d", &Boxed);
  EXPECT_EQ(CallUnary("d", Fake({2, 3}), 4).sizes(), at::IntArrayRef({4}));
}

TEST_F(FakeKernelTest, TheClaimedDeviceIsTheFakes) {
  static std::optional<c10::Device> seen;
  RegisterFakeKernel("fake_kernel_test::e", [](const Tensor& self, int64_t /*n*/) {
    seen = ClaimedDevice();
    return at::empty_like(self);
  });
  CallUnary("e", Fake({2, 3}), 1);
  EXPECT_EQ(seen, c10::Device(c10::kCPU));
}

TEST_F(FakeKernelTest, MistakesAreNamed) {
  EXPECT_THAT(
      ErrorOf([] { RegisterFakeKernel("fake_kernel_test::a", Wider); }),
      AllOf(HasSubstr("fake_kernel_test::a has two fake rules"), HasSubstr("fake_kernel_test.cc:"), HasSubstr("RegisterFakeKernel")));
  EXPECT_THAT(ErrorOf([] { RegisterFakeKernel("fake_kernel_test::nothing", Wider); }),
              AllOf(HasSubstr("fake_kernel_test::nothing"), HasSubstr("no operator")));
  EXPECT_THAT(ErrorOf([] { RegisterFakeKernel("digamma", [](const Tensor& self, int64_t) { return self; }); }),
              AllOf(HasSubstr("digamma"), HasSubstr("signature")));
  EXPECT_EQ(at::digamma(Fake({2})).dim(), 1) << "a rule that doesn't fit leaves things as they were";
}

}  // namespace
}  // namespace ddpopt
