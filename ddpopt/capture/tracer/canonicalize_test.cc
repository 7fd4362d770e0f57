#include "ddpopt/capture/tracer/canonicalize.h"

#include <string>
#include <vector>

#include "ddpopt/capture/tracer/trace.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "interpreter/interpreter.h"
#include "testing/matchers.h"
#include "testing/pass_test.h"
#include "torch/nn/modules/linear.h"
#include "torch/utils.h"

namespace ddpopt {
namespace {

using testing::AllClose;
using testing::IsOk;
using testing::IsOkAndHolds;
using testing::RunPass;
using testing::TensorEq;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct NetImpl : torch::nn::Module {
  using Fn = at::Tensor (*)(NetImpl&, at::Tensor);
  explicit NetImpl(Fn fn, bool bias = true) : fn(fn) {
    layer = register_module("layer", torch::nn::Linear(torch::nn::LinearOptions(4, 3).bias(bias)));
  }
  at::Tensor forward(at::Tensor x) { return fn(*this, x); }
  Fn fn;
  torch::nn::Linear layer{nullptr};
};
TORCH_MODULE(Net);

// The operators called, in order.
std::vector<std::string> Operators(const fx::GraphModule& module) {
  std::vector<std::string> result;
  for (const fx::Node* node : module.graph().nodes()) {
    if (node->is_operator()) result.push_back(c10::toString(node->operator_handle().operator_name()));
  }
  return result;
}

struct Canonical {
  std::vector<std::string> operators;
  bool changed;
  at::Tensor value;     // of the canonical graph
  at::Tensor expected;  // of forward
};

Canonical Trace(Net& net, const at::Tensor& x) {
  auto traced = TraceModule(*net, {x}, FakeTensorMode::Create(), [&](const std::vector<at::Tensor>& in) { return net->forward(in[0]); },
                            {.canonicalize = false});
  TORCH_CHECK(traced.ok(), traced.status().ToString());
  const auto changed = RunPass(CanonicalizePass(), *traced->module);
  TORCH_CHECK(changed.ok(), changed.status().ToString());
  return {Operators(*traced->module), *changed, CallGraphModule(*traced->module, {x.clone()}).toTensor(), net->forward(x.clone())};
}

Canonical Trace(NetImpl::Fn fn, const at::Tensor& x, bool bias = true) {
  torch::manual_seed(3);
  Net net(fn, bias);
  return Trace(net, x);
}

at::Tensor Layer(NetImpl& net, at::Tensor x) { return net.layer(x); }

TEST(CanonicalizeTest, LinearOfAMatrix) {
  const Canonical result = Trace(Layer, torch::randn({5, 4}));
  EXPECT_THAT(result.operators, ElementsAre("aten::linear"));
  EXPECT_THAT(result.value, TensorEq(result.expected));
}

TEST(CanonicalizeTest, LinearOfMoreDimensions) {
  const Canonical three = Trace(Layer, torch::randn({2, 5, 4}));
  EXPECT_THAT(three.operators, ElementsAre("aten::linear"));
  EXPECT_THAT(three.value, AllClose(three.expected, 1e-6, 1e-6));
  for (const at::Tensor& x : {torch::randn({4}), torch::randn({2, 2, 3, 4})}) {
    const Canonical result = Trace(Layer, x);
    EXPECT_THAT(result.operators, ElementsAre("aten::linear"));
    EXPECT_THAT(result.value, AllClose(result.expected, 1e-6, 1e-6));
  }
}

TEST(CanonicalizeTest, LinearWithoutBiasIsTheSameToTheBit) {
  for (const at::Tensor& x : {torch::randn({5, 4}), torch::randn({2, 5, 4}), torch::randn({4})}) {
    const Canonical result = Trace(Layer, x, /*bias=*/false);
    EXPECT_THAT(result.operators, ElementsAre("aten::linear"));
    EXPECT_THAT(result.value, TensorEq(result.expected));
  }
}

TEST(CanonicalizeTest, GradientsOfLinearAreTheSame) {
  torch::manual_seed(3);
  Net net(Layer);
  const at::Tensor x = torch::randn({5, 4});
  auto traced = TraceModule(*net, {x}, FakeTensorMode::Create(), [&](const std::vector<at::Tensor>& in) { return net->forward(in[0]); });
  ASSERT_THAT(traced, IsOk());
  EXPECT_THAT(Operators(*traced->module), ElementsAre("aten::linear"));
  CallGraphModule(*traced->module, {x}).toTensor().pow(2).sum().backward();
  const at::Tensor weight = net->layer->weight.grad().clone(), bias = net->layer->bias.grad().clone();
  net->zero_grad();
  net->forward(x).pow(2).sum().backward();
  EXPECT_THAT(weight, TensorEq(net->layer->weight.grad()));
  EXPECT_THAT(bias, TensorEq(net->layer->bias.grad()));
}

TEST(CanonicalizeTest, ATransposeOfManyUsersStaysForTheOthers) {
  const Canonical result = Trace(
      [](NetImpl& net, at::Tensor x) {
        const at::Tensor t = net.layer->weight.t();
        const at::Tensor first = torch::matmul(x, t);
        const at::Tensor twice = x * 2;
        const at::Tensor sum = first + torch::matmul(twice, t);
        return sum + t.sum();
      },
      torch::randn({5, 4}));
  EXPECT_THAT(result.operators, ElementsAre("aten::t", "aten::linear", "aten::mul.Tensor", "aten::linear", "aten::add.Tensor", "aten::sum",
                                            "aten::add.Tensor"));
  EXPECT_THAT(result.value, TensorEq(result.expected));
}

TEST(CanonicalizeTest, AProductThatSomeoneElseSeesStays) {
  const Canonical result = Trace(
      [](NetImpl& net, at::Tensor x) {
        at::Tensor product = torch::matmul(x, net.layer->weight.t());
        const at::Tensor view = product.view({-1});
        product.add_(net.layer->bias);
        return view;
      },
      torch::randn({5, 4}));
  EXPECT_THAT(result.operators, ElementsAre("aten::linear", "aten::view", "aten::add_.Tensor"));
  EXPECT_THAT(result.value, TensorEq(result.expected));
}

TEST(CanonicalizeTest, NothingMovesAcrossAnEffect) {
  const Canonical written = Trace(
      [](NetImpl& net, at::Tensor x) {
        at::Tensor y = x.clone();
        at::Tensor product = torch::matmul(y, net.layer->weight.t());
        y.add_(1);
        return product.add_(net.layer->bias);
      },
      torch::randn({5, 4}));
  EXPECT_THAT(written.operators, ElementsAre("aten::clone", "aten::linear", "aten::add_.Tensor", "aten::add_.Tensor"));
  EXPECT_THAT(written.value, TensorEq(written.expected));
  const Canonical subtracted = Trace(
      [](NetImpl&, at::Tensor x) {
        at::Tensor y = x.clone();
        at::Tensor ones = torch::empty_like(y, at::MemoryFormat::Preserve).fill_(1);
        y.mul_(2);
        return ones.sub_(y);
      },
      torch::randn({5, 4}));
  EXPECT_THAT(subtracted.operators,
              ElementsAre("aten::clone", "aten::empty_like", "aten::fill_.Scalar", "aten::mul_.Tensor", "aten::sub_.Tensor"));
}

TEST(CanonicalizeTest, OtherSumsOfProductsStay) {
  const auto unchanged = [](NetImpl::Fn fn, const at::Tensor& x) {
    const Canonical result = Trace(fn, x);
    EXPECT_FALSE(result.changed) << ::testing::PrintToString(result.operators);
    EXPECT_THAT(result.value, TensorEq(result.expected));
  };
  // Not one bias for each output; another factor.
  unchanged([](NetImpl& net, at::Tensor x) { return torch::addmm(torch::ones({5, 3}), x, net.layer->weight.t()); }, torch::randn({5, 4}));
  unchanged([](NetImpl& net, at::Tensor x) { return torch::addmm(net.layer->bias, x, net.layer->weight.t(), 2); }, torch::randn({5, 4}));
  unchanged([](NetImpl& net, at::Tensor x) { return torch::addmm(net.layer->bias, x, net.layer->weight.transpose(0, 1)); },
            torch::randn({5, 4}));
  unchanged([](NetImpl&, at::Tensor x) { return torch::matmul(x, x.t()); }, torch::randn({4}));
}

TEST(CanonicalizeTest, NumbersAreTensorsAsInPython) {
  const Canonical result = Trace(
      [](NetImpl&, at::Tensor x) {
        at::Tensor y = (x + 1) * 2 - 3.5;
        y /= 2;
        y += 1;
        return torch::sub(torch::add(y, 2, 3), 1, 2).div(3, "floor");
      },
      torch::randn({5, 4}));
  EXPECT_THAT(result.operators,
              ElementsAre("aten::add.Tensor", "aten::mul.Tensor", "aten::sub.Tensor", "aten::div_.Tensor", "aten::add_.Tensor",
                                            "aten::add.Tensor", "aten::sub.Tensor", "aten::div.Tensor_mode"));
  EXPECT_THAT(result.value, TensorEq(result.expected));
  const Canonical integers = Trace([](NetImpl&, at::Tensor x) { return (x + 1) / 2 * 1.5; }, torch::arange(4));
  EXPECT_THAT(integers.value, TensorEq(integers.expected));
}

TEST(CanonicalizeTest, ANumberMinusATensor) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong}) {
    const Canonical result = Trace([](NetImpl&, at::Tensor x) { return 1 - x; }, torch::randn({5, 4}).mul(4).to(dtype).t());
    EXPECT_THAT(result.operators, ElementsAre("aten::rsub.Scalar"));
    EXPECT_THAT(result.value, TensorEq(result.expected));
  }
  // What the dtype can't hold is rounded by C++'s way alone.
  for (const at::ScalarType dtype : {at::kBFloat16, at::kLong}) {
    const Canonical result = Trace([](NetImpl&, at::Tensor x) { return 0.3 - x; }, torch::randn({5, 4}).mul(4).to(dtype));
    EXPECT_THAT(result.operators, ElementsAre("aten::empty_like", "aten::fill_.Scalar", "aten::sub_.Tensor"));
    EXPECT_THAT(result.value, TensorEq(result.expected));
  }
}

TEST(CanonicalizeTest, ReadsItsOptions) {
  fx::PassRegistry registry;
  ASSERT_THAT(CanonicalizePass::Register(registry), IsOk());
  EXPECT_THAT(registry.Create("canonicalize"), IsOk());
  EXPECT_FALSE(registry.Create("canonicalize", {{"fast", "true"}}).ok());
}

}  // namespace
}  // namespace ddpopt
