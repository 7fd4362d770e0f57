#include "ddpopt/capture/tracer/trace_forward.h"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/autocast_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "interpreter/interpreter.h"
#include "testing/autocast.h"
#include "testing/matchers.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/nn/module.h"
#include "torch/types.h"
#include "torch/utils.h"

namespace ddpopt {
namespace {

using testing::Autocast;
using testing::IsOk;
using testing::TensorEq;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using torch::autograd::tensor_list;

std::vector<std::string> Targets(const TracedModule& traced) {
  std::vector<std::string> result;
  for (const fx::Node* node : traced.module->graph().nodes()) {
    if (node->op() != fx::Op::kCallFunction) continue;
    result.push_back(node->is_operator() ? c10::toString(node->operator_handle().operator_name())
                                         : std::get<fx::OpaqueTarget>(node->target()).text);
  }
  return result;
}

// Runs the graph on the arguments' tensors and gives the result its C++ type.
template <typename Result, typename... Args>
Result RunGraph(const TracedModule& traced, const Args&... args) {
  std::vector<at::Tensor> tensors;
  FlattenValue(ToValue(std::make_tuple(args...)), &tensors);
  return FromValue<Result>(CallGraphModule(*traced.module, std::vector<c10::IValue>(tensors.begin(), tensors.end())));
}

// Traces fn for x, and compares value, gradient of x and what is left in x with calling it. Called twice: nothing may be left over from the
// first call.
template <typename Fn>
TracedModule ExpectSame(const Fn& fn, const at::Tensor& x) {
  auto traced = TraceFunction(fn, FakeTensorMode::Create(), x);
  if (!traced.ok()) {
    ADD_FAILURE() << traced.status();
    return {};
  }
  for (int step = 0; step < 2; ++step) {
    const auto input = [&] { return x.detach().clone().add_(step).requires_grad_(x.requires_grad()); };
    const at::Tensor given = input(), expected_given = input();
    torch::manual_seed(5);
    const at::Tensor y = RunGraph<at::Tensor>(*traced, given);
    torch::manual_seed(5);
    const at::Tensor expected = fn(expected_given);
    EXPECT_THAT(y, TensorEq(expected)) << traced->module->graph().ToString();
    EXPECT_EQ(y.requires_grad(), expected.requires_grad()) << traced->module->graph().ToString();
    EXPECT_EQ(y.is_inference(), expected.is_inference());
    EXPECT_THAT(given, TensorEq(expected_given));
    if (x.requires_grad() && expected.requires_grad()) {
      y.sum().backward();
      expected.sum().backward();
      EXPECT_THAT(given.grad(), TensorEq(expected_given.grad()));
    }
  }
  return *std::move(traced);
}

template <typename Fn>
void ExpectRefused(const Fn& fn, const std::string& text, const at::Tensor& x = torch::ones({3})) {
  const auto traced = TraceFunction(fn, FakeTensorMode::Create(), x);
  ASSERT_FALSE(traced.ok()) << text << "\n" << traced->module->graph().ToString();
  EXPECT_THAT(std::string(traced.status().message()), HasSubstr(text));
}

at::Tensor Leaf() { return torch::tensor({1.0f, 2.0f, 4.0f}).requires_grad_(); }

// --- callables

TEST(TraceForwardTest, NestedArgumentsAndResults) {
  using Pair = std::pair<at::Tensor, std::vector<at::Tensor>>;
  using State = std::optional<std::tuple<at::Tensor, at::Tensor>>;
  const auto fn = [](Pair in, State state, std::map<std::string, at::Tensor> named, double scale, std::string mode, State none) {
    at::Tensor y = in.first * scale + in.second[1] + std::get<1>(*state) * named.at("b");
    if (mode == "twice") y = y * 2;
    return std::make_tuple(y, std::vector<at::Tensor>{in.second[0], y + 1}, State(std::make_tuple(y, std::get<0>(*state))), none,
                           int64_t{7},
                           std::map<std::string, at::Tensor>{{"y", y}});
  };
  const at::Tensor a = torch::randn({3}), b = torch::randn({3}), c = torch::randn({3}), d = torch::randn({3}), e = torch::randn({3});
  const Pair in(a, {b, c});
  const State state(std::make_tuple(d, e)), none;
  const std::map<std::string, at::Tensor> named{{"a", a + 1}, {"b", b + 1}};
  auto traced = TraceFunction(fn, FakeTensorMode::Create(), in, state, named, 0.1, std::string("twice"), none);
  ASSERT_THAT(traced, IsOk());
  EXPECT_EQ(traced->fake_inputs.size(), 7u);
  EXPECT_EQ(traced->arguments,
            "((Tensor, [Tensor, Tensor]), (Tensor, Tensor), {\"a\"1: Tensor, \"b\"1: Tensor}, 0.10000000000000001, \"twice\"5, None)");
  using Result = decltype(fn(in, state, named, 0.1, "twice", none));
  const Result y = RunGraph<Result>(*traced, in, state, named, 0.1, std::string("twice"), none);
  const Result expected = fn(in, state, named, 0.1, "twice", none);
  EXPECT_THAT(std::get<0>(y), TensorEq(std::get<0>(expected)));
  EXPECT_TRUE(std::get<1>(y)[0].is_same(b));
  EXPECT_THAT(std::get<1>(y)[1], TensorEq(std::get<1>(expected)[1]));
  EXPECT_THAT(std::get<0>(*std::get<2>(y)), TensorEq(std::get<0>(expected)));
  EXPECT_FALSE(std::get<3>(y).has_value());
  EXPECT_EQ(std::get<4>(y), 7);
  EXPECT_THAT(std::get<5>(y).at("y"), TensorEq(std::get<0>(expected)));
}

TEST(TraceForwardTest, InputsReturnedAndAliased) {
  const auto fn = [](at::Tensor x, at::Tensor y) { return std::make_tuple(x, y.view({-1}), x.add_(1)); };
  const at::Tensor x = torch::ones({3}), y = torch::ones({2, 2});
  auto traced = TraceFunction(fn, FakeTensorMode::Create(), x, y);
  ASSERT_THAT(traced, IsOk());
  EXPECT_THAT(x, TensorEq(torch::ones({3})));
  const auto [same, view, added] = RunGraph<std::tuple<at::Tensor, at::Tensor, at::Tensor>>(*traced, x, y);
  EXPECT_TRUE(same.is_same(x));
  EXPECT_TRUE(added.is_same(x));
  EXPECT_TRUE(view.is_alias_of(y));
  EXPECT_THAT(x, TensorEq(torch::full({3}, 2.0)));
}

TEST(TraceForwardTest, TheSameTensorTwice) {
  const auto fn = [](at::Tensor x, at::Tensor y) { return torch::equal(x, y) ? x + y : x - y; };
  const at::Tensor x = torch::randn({3});
  auto traced = TraceFunction(fn, FakeTensorMode::Create(), x, x);
  ASSERT_THAT(traced, IsOk());
  EXPECT_THAT(RunGraph<at::Tensor>(*traced, x, x), TensorEq(x + x));
  EXPECT_THAT(Targets(*traced), ElementsAre("aten::add.Tensor"));
}

TEST(TraceForwardTest, DifferentTensorsAreAssertedToDiffer) {
  const auto fn = [](at::Tensor x, at::Tensor y) { return torch::equal(x, y) ? x + y : x - y; };
  const at::Tensor x = torch::randn({3}), y = torch::randn({3});
  auto traced = TraceFunction(fn, FakeTensorMode::Create(), x, y);
  ASSERT_THAT(traced, IsOk());
  EXPECT_THAT(RunGraph<at::Tensor>(*traced, x, y), TensorEq(x - y));
  EXPECT_THROW(RunGraph<at::Tensor>(*traced, x, x.clone()), c10::Error);
  auto shapes = TraceFunction(fn, FakeTensorMode::Create(), x, torch::randn({1}));
  ASSERT_THAT(shapes, IsOk());
  EXPECT_THAT(Targets(*shapes), ElementsAre("aten::sub.Tensor"));
}

// --- constants

TEST(TraceForwardTest, ListsAreOneConstant) {
  const auto traced = ExpectSame([](at::Tensor x) { return x * torch::tensor({1.0f, 2.0f, 3.0f}) + torch::tensor({{1.0f}, {2.0f}}); },
                                 Leaf());
  EXPECT_THAT(Targets(traced), ElementsAre("aten::lift_fresh_copy", "aten::mul.Tensor", "aten::lift_fresh_copy", "aten::add.Tensor"));
  EXPECT_THAT(traced.own_constants, ElementsAre("_tensor_constant0", "_tensor_constant1"));
  EXPECT_THAT(traced.module->GetAttr("_tensor_constant0")->value.toTensor(), TensorEq(torch::tensor({1.0f, 2.0f, 3.0f})));
}

TEST(TraceForwardTest, VectorsAndHostWritesAreConstants) {
  const std::vector<float> numbers{3, 1, 2};
  ExpectSame([&](at::Tensor x) { return x * torch::tensor(numbers) + torch::tensor(std::vector<int64_t>{165, 165, 165}); }, Leaf());
  ExpectSame([&](at::Tensor x) { return x * torch::tensor(std::vector<uint8_t>{165, 0, 165}); }, Leaf());
  ExpectSame(
      [](at::Tensor x) {
        at::Tensor mask = torch::zeros({3, 3});
        auto at = mask.accessor<float, 2>();
        for (int i = 0; i < 3; ++i) at[i][2 - i] = static_cast<float>(i + 1);
        return torch::matmul(mask.t(), x);
      },
      Leaf());
  // Memory that is gone when the graph runs.
  ExpectSame(
      [](at::Tensor x) {
        std::vector<float> local{5, 6, 7};
        at::Tensor view = torch::from_blob(local.data(), {3});
        at::Tensor y = x * view;
        local.assign({0, 0, 0});
        return y;
      },
      torch::ones({3}));
}

TEST(TraceForwardTest, FactoriesStayCalls) {
  const auto traced = ExpectSame(
      [](at::Tensor x) {
        at::Tensor mask = torch::ones({3, 3}).tril();
        at::Tensor zeros = torch::zeros({3});
        zeros.add_(x);
        return torch::matmul(mask, zeros) + torch::arange(3) + torch::full({3}, 2.5) + torch::tensor(1.5f);
      },
      Leaf());
  EXPECT_THAT(Targets(traced), Contains("aten::ones"));
  EXPECT_THAT(Targets(traced), Contains("aten::tril"));
  EXPECT_THAT(Targets(traced), Contains("aten::arange"));
  EXPECT_THAT(Targets(traced), Contains("aten::full"));
  EXPECT_THAT(traced.own_constants, ElementsAre());
  ExpectSame([](at::Tensor x) { return x + torch::empty({3}).fill_(2); }, Leaf());
  ExpectSame([](at::Tensor x) { return x + torch::empty({64}).copy_(x.repeat({22}).slice(0, 0, 64)).sum(); }, Leaf());
  // Written to by the graph, the constant is still the same in the next call.
  ExpectSame([](at::Tensor x) { return torch::tensor({1.0f, 2.0f, 3.0f}).add_(x); }, Leaf());
  // A number read of a constant is a number.
  ExpectSame([](at::Tensor x) { return x * torch::tensor({2.0f, 3.0f})[1].item<float>(); }, Leaf());
  // Random values are none.
  EXPECT_THAT(Targets(ExpectSame([](at::Tensor x) { return x + torch::empty({3}).normal_(); }, Leaf())), Contains("aten::normal_"));
  // A view of a constant that was made before the constant met the graph.
  ExpectSame(
      [](at::Tensor x) {
        at::Tensor table = torch::tensor({1.0f, 2.0f, 3.0f, 4.0f});
        at::Tensor view = table.slice(0, 1, 4);
        at::Tensor y = x + table.slice(0, 0, 3);
        view.add_(y);
        return table.slice(0, 0, 3) + y;
      },
      Leaf());
}

TEST(TraceForwardTest, AMemberKeptFromForwardStaysReal) {
  at::Tensor cache;
  const auto fn = [&](at::Tensor x) {
    if (!cache.defined()) cache = torch::arange(3).to(torch::kFloat);
    return x + cache;
  };
  const at::Tensor x = torch::ones({3});
  auto traced = TraceFunction(fn, FakeTensorMode::Create(), x);
  ASSERT_THAT(traced, IsOk());
  EXPECT_THAT(cache, TensorEq(torch::arange(3).to(torch::kFloat)));
  EXPECT_THAT(RunGraph<at::Tensor>(*traced, x), TensorEq(fn(x)));
}

// --- regions

TEST(TraceForwardTest, NoGradRegions) {
  const auto traced = ExpectSame(
      [](at::Tensor x) {
        at::Tensor scale;
        {
          const torch::NoGradGuard no_grad;
          scale = x * 3;
          {
            const torch::AutoGradMode grad(true);
            scale = scale + x * 0.5;
          }
          scale = scale + x.exp();
        }
        return x * scale;
      },
      Leaf());
  EXPECT_THAT(Targets(traced),
              ElementsAre("torch._C._set_grad_enabled", "aten::mul.Tensor", "torch._C._set_grad_enabled", "aten::mul.Tensor",
                          "aten::add.Tensor", "torch._C._set_grad_enabled", "aten::exp", "aten::add.Tensor",
                          "torch._C._set_grad_enabled", "aten::mul.Tensor"));
}

TEST(TraceForwardTest, ARegionThatReachesTheEndIsLeft) {
  const auto traced = ExpectSame(
      [](at::Tensor x) {
        const torch::NoGradGuard no_grad;
        return x * 3;
      },
      Leaf());
  EXPECT_EQ(Targets(traced).back(), "torch._C._set_grad_enabled");
  EXPECT_TRUE(at::GradMode::is_enabled());
}

TEST(TraceForwardTest, InferenceModeRegions) {
  ExpectSame(
      [](at::Tensor x) {
        at::Tensor index = torch::zeros({1}, torch::kLong);
        at::Tensor y;
        {
          const c10::InferenceMode inference;
          y = (x * 2).index_select(0, index) + torch::ones({1});
        }
        return x + y.clone() + index;
      },
      torch::ones({3}));
}

TEST(TraceForwardTest, AutocastRegions) {
  const at::Tensor x = torch::randn({3, 3}).requires_grad_();
  const auto traced = ExpectSame(
      [](at::Tensor x) {
        at::Tensor y;
        {
          const Autocast on(true);
          y = torch::matmul(x, x);
          {
            const Autocast off(false);
            y = y.to(torch::kFloat);
            y = y + torch::matmul(x, x);
          }
          y = torch::matmul(y, x);
        }
        return y + x;
      },
      x);
  EXPECT_THAT(Targets(traced),
              ElementsAre("torch.amp.autocast_mode._enter_autocast", "aten::matmul", "torch.amp.autocast_mode._enter_autocast",
                          "aten::to.dtype", "aten::matmul", "aten::add.Tensor", "torch.amp.autocast_mode._exit_autocast", "aten::matmul",
                          "torch.amp.autocast_mode._exit_autocast", "aten::add.Tensor"));
}

TEST(TraceForwardTest, InPlaceOperatorsAndViews) {
  ExpectSame(
      [](at::Tensor x) {
        at::Tensor y = x * 2;
        at::Tensor view = y.slice(0, 1, 3);
        view.mul_(x.slice(0, 0, 2));
        y[0] = 3;
        y.index_put_({torch::tensor({2})}, x.slice(0, 0, 1));
        return (1 - y).unsqueeze_(0).squeeze(0) + view.sum();
      },
      Leaf());
  ExpectSame([](at::Tensor x) { return x.add_(1).t(); }, torch::ones({3}));
  ExpectSame([](at::Tensor x) { return torch::dropout(x, 0.5, true) + torch::rand({3}); }, Leaf());
}

TEST(TraceForwardTest, AutocastSetWithoutAGuard) {
  ExpectSame(
      [](at::Tensor x) {
        at::autocast::set_autocast_enabled(at::kCPU, true);
        at::Tensor y = torch::matmul(x, x);
        at::autocast::set_autocast_enabled(at::kCPU, false);
        return y + x;
      },
      torch::randn({3, 3}));
}

struct Double : torch::autograd::Function<Double> {
  static at::Tensor forward(torch::autograd::AutogradContext*, at::Tensor x) { return x * 2; }
  static tensor_list backward(torch::autograd::AutogradContext*, tensor_list grads) { return {grads[0] * 3}; }
};
struct Same : torch::autograd::Function<Same> {
  static at::Tensor forward(torch::autograd::AutogradContext*, at::Tensor x) { return x; }
  static tensor_list backward(torch::autograd::AutogradContext*, tensor_list grads) { return {grads[0] * 3}; }
};

TEST(TraceForwardTest, CustomFunctionsHaveTheirOwnBackward) {
  ExpectSame([](at::Tensor x) { return Double::apply(x) + 1; }, Leaf());
  ExpectSame([](at::Tensor x) { return Double::apply(x); }, Leaf());
  ExpectSame([](at::Tensor x) { return Same::apply(x * 2) + 1; }, Leaf());
  ExpectSame([](at::Tensor x) { return Double::apply(x) + 1; }, torch::ones({3}));
}

// --- refusals

TEST(TraceForwardTest, RefusesDataDependence) {
  ExpectRefused([](at::Tensor x) { return x.sum().item<float>() > 0 ? x : -x; }, "_local_scalar_dense");
  ExpectRefused([](at::Tensor x) { return x.nonzero(); }, "nonzero");
  ExpectRefused([](at::Tensor x) { return x * x.data_ptr<float>()[0]; }, "capturing");
}

TEST(TraceForwardTest, RefusesWritesToTensorsOutside) {
  const at::Tensor table = torch::zeros({3});
  ExpectRefused([&](at::Tensor x) { return table.add_(1) + x; }, "_tensor_constant0");
  ExpectRefused([&](at::Tensor x) { return table.slice(0, 0, 2).add_(1).sum() + x; }, "_tensor_constant0");
  ExpectRefused(
      [&](at::Tensor x) {
        return torch::batch_norm(x.view({3, 1}), {}, {}, table.slice(0, 0, 1), torch::ones({1}), true, 0.1, 1e-5, false);
      },
      "_tensor_constant0");
  EXPECT_THAT(table, TensorEq(torch::zeros({3})));
  at::Tensor kept;
  ExpectRefused(
      [&](at::Tensor x) {
        kept = x * 2;
        return kept + 1;
      },
      "keeps a tensor that it computes (%mul)");
  kept = at::Tensor();
}

TEST(TraceForwardTest, RefusesRandomnessThatTheGraphCannotRepeat) {
  ExpectRefused([](at::Tensor x) { return x + torch::rand({3}, at::detail::getDefaultCPUGenerator()); }, "generator");
  ExpectRefused(
      [](at::Tensor x) {
        torch::manual_seed(77);
        return x + torch::rand({3});
      },
      "random generator");
}

TEST(TraceForwardTest, RefusesThreads) {
  ExpectRefused(
      [](at::Tensor x) {
        at::Tensor y;
        std::thread([&] { y = x * 2; }).join();
        return y + 1;
      },
      "thread");
  ExpectRefused(
      [](at::Tensor x) {
        at::Tensor y = x * 2;
        std::thread([&] { y.add_(1); }).join();
        return y + 1;
      },
      "thread");
}

TEST(TraceForwardTest, RefusesWhatOnlyAutogradSees) {
  ExpectRefused(
      [](at::Tensor x) {
        at::Tensor y = x * 2;
        y.register_hook([](at::Tensor grad) { return grad * 2; });
        return y + 1;
      },
      "hook on %mul", Leaf());
  ExpectRefused(
      [](at::Tensor x) {
        at::Tensor y = x * 2;
        y.set_requires_grad(true);
        return y + 1;
      },
      "requires_grad of %mul");
  ExpectRefused(
      [](at::Tensor x) {
        (x * 2).sum().backward();
        return x + 1;
      },
      "backward", Leaf());
}

struct StatefulImpl : torch::nn::Module {
  explicit StatefulImpl(std::function<at::Tensor(StatefulImpl&, at::Tensor)> fn) : fn(std::move(fn)) {
    weight = register_parameter("weight", torch::ones({3}));
    unused = register_parameter("unused", torch::ones({3}));
    state = register_buffer("state", torch::zeros({3}));
  }
  at::Tensor forward(at::Tensor x) { return fn(*this, x); }
  std::function<at::Tensor(StatefulImpl&, at::Tensor)> fn;
  at::Tensor weight, unused, state;
};

TEST(TraceForwardTest, BuffersAreWrittenWhenTheGraphRuns) {
  const auto net = std::make_shared<StatefulImpl>([](StatefulImpl& net, at::Tensor x) {
    const torch::NoGradGuard no_grad;
    net.state.mul_(0.5).add_(x.mean());
    return x * net.weight + net.state;
  });
  const at::Tensor x = torch::ones({3});
  auto traced = TraceForward(net, FakeTensorMode::Create(), x);
  ASSERT_THAT(traced, IsOk());
  EXPECT_THAT(net->state, TensorEq(torch::zeros({3})));
  RunGraph<at::Tensor>(*traced, x);
  RunGraph<at::Tensor>(*traced, x);
  EXPECT_THAT(net->state, TensorEq(torch::full({3}, 1.5)));
  EXPECT_EQ(traced->module->GetAttr("unused")->kind, fx::GraphModule::AttrKind::kParameter);
}

TEST(TraceForwardTest, RefusesChangesOfTheModule) {
  const auto refused = [](std::function<at::Tensor(StatefulImpl&, at::Tensor)> fn, const std::string& text) {
    const auto net = std::make_shared<StatefulImpl>(std::move(fn));
    auto traced = TraceForward(net, FakeTensorMode::Create(), torch::ones({3}));
    ASSERT_FALSE(traced.ok()) << text;
    EXPECT_THAT(std::string(traced.status().message()), HasSubstr(text));
    // What can be put back is as it was.
    EXPECT_EQ(net->state.unsafeGetTensorImpl(), net->named_buffers()["state"].unsafeGetTensorImpl());
    EXPECT_TRUE(net->unused.requires_grad());
    (net->weight * 2 + net->unused + net->state.sum()).sum().backward();
    EXPECT_THAT(net->weight.grad(), TensorEq(torch::full({3}, 2.0f)));
  };
  // The data of a buffer are a fake's while forward runs.
  refused(
      [](StatefulImpl& net, at::Tensor x) {
        net.state.set_data(x * 2);
        return x * net.state;
      },
      "");
  refused(
      [](StatefulImpl& net, at::Tensor x) {
        net.named_buffers()["state"].set_data(torch::ones({3}));
        return x * net.state;
      },
      "buffer \"state\"");
  refused(
      [](StatefulImpl& net, at::Tensor x) {
        net.weight.register_hook([](at::Tensor grad) { return grad * 100; });
        return x * net.weight;
      },
      "hook on parameter \"weight\"");
  refused(
      [](StatefulImpl& net, at::Tensor x) {
        net.unused.set_requires_grad(false);
        return x * net.weight;
      },
      "requires_grad of parameter \"unused\"");
  refused(
      [](StatefulImpl& net, at::Tensor x) {
        net.register_buffer("late", x * 2);
        return x * net.weight;
      },
      "do that before training");
  refused(
      [](StatefulImpl& net, at::Tensor x) {
        std::thread([&] { net.state.add_(1); }).join();
        return x * net.weight;
      },
      "buffer \"state\"");
}

TEST(TraceForwardTest, AliasesOfParametersAreViewsOfThem) {
  const auto net = std::make_shared<StatefulImpl>(
      [](StatefulImpl& net, at::Tensor x) { return x * net.weight.data() + net.weight.data().slice(0, 0, 1); });
  const at::Tensor x = torch::ones({3});
  auto traced = TraceForward(net, FakeTensorMode::Create(), x);
  ASSERT_THAT(traced, IsOk());
  {
    const torch::NoGradGuard no_grad;
    net->weight.fill_(3);
  }
  EXPECT_THAT(RunGraph<at::Tensor>(*traced, x), TensorEq(torch::full({3}, 6.0)));
  EXPECT_EQ(traced->module->FindAttr("_tensor_constant0"), nullptr);
}

}  // namespace
}  // namespace ddpopt
