#include "ddpopt/capture/tracer/trace.h"

#include <string>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "interpreter/interpreter.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/linear.h"
#include "torch/utils.h"

namespace ddpopt {
namespace {

using ::testing::HasSubstr;
using Forward = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    first = register_module("first", torch::nn::Linear(4, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    second = register_module("second", torch::nn::Linear(8, 3));
  }
  at::Tensor forward(at::Tensor x) {
    at::Tensor hidden = norm(torch::relu(first(x)));
    at::Tensor out = second(hidden);
    return out + torch::where(out < 0.5, 0.3, 0.6);
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Mlp);

template <typename Module>
absl::StatusOr<TracedModule> Trace(Module& net, const at::Tensor& x) {
  return TraceModule(*net, {x}, FakeTensorMode::Create(), [&](const std::vector<at::Tensor>& in) { return net->forward(in[0]); });
}

TEST(TraceTest, GraphEqualsEagerInValuesGradientsAndBuffers) {
  torch::manual_seed(1);
  Mlp net;
  Mlp twin;
  {
    torch::NoGradGuard no_grad;
    for (const auto& p : net->named_parameters()) twin->named_parameters()[p.key()].copy_(p.value());
  }
  const at::Tensor x = torch::randn({5, 4});
  auto traced = Trace(net, x);
  ASSERT_TRUE(traced.ok()) << traced.status();
  const at::Tensor y = CallGraphModule(*traced->module, {x}).toTensor();
  const at::Tensor expected = twin->forward(x);
  EXPECT_TRUE(torch::equal(y, expected));
  y.sum().backward();
  expected.sum().backward();
  for (const auto& p : net->named_parameters()) EXPECT_TRUE(torch::equal(p.value().grad(), twin->named_parameters()[p.key()].grad())) << p.key();
  for (const auto& b : net->named_buffers()) EXPECT_TRUE(torch::equal(b.value(), twin->named_buffers()[b.key()])) << b.key();
}

TEST(TraceTest, ChangesNothingReal) {
  Mlp net;
  const at::Tensor mean = net->norm->running_mean.clone();
  const auto version = net->norm->num_batches_tracked._version();
  const at::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  auto traced = Trace(net, torch::randn({5, 4}).fill_(1));
  ASSERT_TRUE(traced.ok()) << traced.status();
  EXPECT_TRUE(torch::equal(net->norm->running_mean, mean));
  EXPECT_EQ(net->norm->num_batches_tracked._version(), version);
  EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), 0);
  for (const auto& p : net->named_parameters()) EXPECT_FALSE(p.value().grad().defined()) << p.key();
}

TEST(TraceTest, NamesParametersAndKeepsTheirIdentity) {
  Mlp net;
  auto traced = Trace(net, torch::randn({5, 4}));
  ASSERT_TRUE(traced.ok()) << traced.status();
  auto attr = traced->module->GetAttr("first.weight");
  ASSERT_TRUE(attr.ok());
  EXPECT_TRUE(attr->value.toTensor().is_same(net->first->weight));
  EXPECT_EQ(attr->kind, fx::GraphModule::AttrKind::kParameter);
  EXPECT_EQ(traced->module->GetAttr("norm.running_mean")->kind, fx::GraphModule::AttrKind::kBuffer);
  for (const fx::Node* node : traced->module->graph().nodes()) {
    if (node->op() != fx::Op::kCallFunction) continue;
    EXPECT_FALSE(node->meta().val.isNone()) << node->name();
  }
}

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    a = register_module("a", torch::nn::Linear(4, 4));
    b = register_module("b", torch::nn::Linear(4, 4));
    b->weight = b->register_parameter("tied", a->weight);
  }
  at::Tensor forward(at::Tensor x) { return b(torch::tanh(a(x))); }
  torch::nn::Linear a{nullptr}, b{nullptr};
};
TORCH_MODULE(Tied);

TEST(TraceTest, ATiedParameterIsOneNode) {
  Tied net;
  auto traced = Trace(net, torch::randn({2, 4}));
  ASSERT_TRUE(traced.ok()) << traced.status();
  int uses = 0;
  for (const fx::Node* node : traced->module->graph().nodes()) {
    if (node->op() == fx::Op::kGetAttr && node->path() == "a.weight") uses = static_cast<int>(node->users().size());
    if (node->op() == fx::Op::kGetAttr) {
      EXPECT_NE(node->path(), "b.tied");
    }
  }
  EXPECT_EQ(uses, 2);
  EXPECT_THAT(traced->ties, ::testing::ElementsAre(::testing::Pair("b.tied", "a.weight")));
}

struct FnImpl : torch::nn::Module {
  explicit FnImpl(std::function<at::Tensor(at::Tensor, at::Tensor)> fn) : fn(std::move(fn)) { weight = register_parameter("weight", torch::ones({3})); }
  at::Tensor forward(at::Tensor x) { return fn(x, weight); }
  std::function<at::Tensor(at::Tensor, at::Tensor)> fn;
  at::Tensor weight;
};
TORCH_MODULE(Fn);

TEST(TraceTest, TensorsMadeInForwardAreTraced) {
  Fn net([](at::Tensor x, at::Tensor w) { return x * w + torch::zeros({3}) + torch::full({3}, 2.0) + x.detach() + w.data(); });
  const at::Tensor x = torch::tensor({1.0f, 2.0f, 3.0f});
  auto traced = Trace(net, x);
  ASSERT_TRUE(traced.ok()) << traced.status();
  const at::Tensor y = CallGraphModule(*traced->module, {x}).toTensor();
  EXPECT_TRUE(torch::equal(y, net->forward(x)));
  y.sum().backward();
  EXPECT_TRUE(torch::equal(net->weight.grad(), x));
}

TEST(TraceTest, ARealTensorFromOutsideBecomesAConstant) {
  const at::Tensor table = torch::arange(3, torch::kFloat);
  Fn net([&](at::Tensor x, at::Tensor w) { return x * w + table; });
  const at::Tensor x = torch::ones({3});
  auto traced = Trace(net, x);
  ASSERT_TRUE(traced.ok()) << traced.status();
  EXPECT_TRUE(traced->module->GetAttr("_tensor_constant0")->value.toTensor().is_same(table));
  EXPECT_TRUE(torch::equal(CallGraphModule(*traced->module, {x}).toTensor(), net->forward(x)));
}

TEST(TraceTest, SplitsAndInPlaceOperatorsKeepTheirMeaning) {
  Fn net([](at::Tensor x, at::Tensor w) {
    at::Tensor y = x * w;
    y.add_(1);
    auto parts = torch::stack({y, y.mul(2)}).split(1);
    return parts[1] + std::get<0>(torch::max(parts[0], 1, true));
  });
  const at::Tensor x = torch::tensor({1.0f, 2.0f, 3.0f});
  auto traced = Trace(net, x);
  ASSERT_TRUE(traced.ok()) << traced.status();
  EXPECT_TRUE(torch::equal(CallGraphModule(*traced->module, {x}).toTensor(), net->forward(x)));
}

void ExpectRefused(std::function<at::Tensor(at::Tensor, at::Tensor)> fn, const std::string& text) {
  Fn net(std::move(fn));
  auto traced = Trace(net, torch::ones({3}));
  ASSERT_FALSE(traced.ok());
  EXPECT_THAT(std::string(traced.status().message()), HasSubstr(text));
}

TEST(TraceTest, RefusesByName) {
  ExpectRefused([](at::Tensor x, at::Tensor w) { return x.sum().item<float>() > 0 ? x * w : w; }, "_local_scalar_dense");
  ExpectRefused([](at::Tensor x, at::Tensor w) { return torch::masked_select(x * w, w > 0); }, "masked_select");
  const at::Tensor outside = torch::ones({3}, torch::requires_grad());
  ExpectRefused([&](at::Tensor x, at::Tensor w) { return x * w * outside; }, "neither a parameter nor an input");
}

TEST(TraceTest, RefusesAParameterAsInput) {
  Fn net([](at::Tensor x, at::Tensor w) { return x * w; });
  auto parameter = TraceModule(*net, {net->weight}, FakeTensorMode::Create(), [&](const std::vector<at::Tensor>& in) { return net->forward(in[0]); });
  EXPECT_THAT(std::string(parameter.status().message()), HasSubstr("\"weight\""));
}

}  // namespace
}  // namespace ddpopt
