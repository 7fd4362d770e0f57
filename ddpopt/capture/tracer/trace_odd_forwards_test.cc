// Forwards that do unusual things: captured as they are, or refused by name.

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/autocast_mode.h"
#include "ddpopt/capture/tracer/trace_forward.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "interpreter/interpreter.h"
#include "testing/matchers.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/nn/module.h"
#include "torch/nn/modules/activation.h"
#include "torch/nn/modules/linear.h"
#include "torch/types.h"
#include "torch/utils.h"

namespace ddpopt {
namespace {

using testing::IsOk;
using testing::StatusIs;
using testing::TensorEq;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::autograd::tensor_list;
namespace nn = torch::nn;

std::vector<std::string> Operators(const TracedModule& traced) {
  std::vector<std::string> result;
  for (const fx::Node* node : traced.module->graph().nodes()) {
    if (node->is_operator()) result.push_back(c10::toString(node->operator_handle().operator_name()));
  }
  return result;
}

// Value, what is left in x, and the gradient of an x that isn't a leaf, of the graph and of fn.
template <typename Fn>
void ExpectSame(const char* what, const Fn& fn) {
  const at::Tensor x = torch::arange(12, torch::kFloat).view({3, 4}) / 7;
  const auto traced = TraceFunction([&](at::Tensor in) { return fn(in * 1); }, FakeTensorMode::Create(), x);
  const auto on_input = TraceFunction(fn, FakeTensorMode::Create(), x);
  ASSERT_THAT(traced.status(), IsOk()) << what;
  ASSERT_THAT(on_input.status(), IsOk()) << what;
  const at::Tensor leaf = x.clone().requires_grad_(), expected_leaf = x.clone().requires_grad_();
  const at::Tensor y = CallGraphModule(*traced->module, {leaf}).toTensor(), expected = fn(expected_leaf * 1);
  EXPECT_THAT(y, TensorEq(expected)) << what;
  y.sum().backward();
  expected.sum().backward();
  EXPECT_THAT(leaf.grad(), TensorEq(expected_leaf.grad())) << what;
  // The input itself.
  const at::Tensor given = x.clone(), expected_given = x.clone();
  const at::Tensor result = CallGraphModule(*on_input->module, {given}).toTensor(), expected_result = fn(expected_given);
  EXPECT_THAT(given, TensorEq(expected_given)) << what << "\n" << on_input->module->graph().ToString();
  EXPECT_THAT(result, TensorEq(expected_result)) << what;
  EXPECT_EQ(result.is_same(given), expected_result.is_same(expected_given)) << what;
  EXPECT_EQ(result.is_alias_of(given), expected_result.is_alias_of(expected_given)) << what;
}

// What gives its input itself, or a view of it, is written through.
TEST(TraceOddForwardsTest, OperatorsThatGiveTheirInput) {
  const std::vector<std::pair<const char*, std::function<at::Tensor(at::Tensor)>>> same = {
      {"to(dtype)", [](at::Tensor x) { return x.to(torch::kFloat); }},
      {"to(device)", [](at::Tensor x) { return x.to(x.device()); }},
      {"type_as", [](at::Tensor x) { return x.type_as(x); }},
      {"contiguous", [](at::Tensor x) { return x.contiguous(); }},
      {"expand_as", [](at::Tensor x) { return x.expand_as(x); }},
      {"reshape", [](at::Tensor x) { return x.reshape(x.sizes()); }},
      {"dropout off", [](at::Tensor x) { return torch::dropout(x, 0.5, false); }},
      {"view_as", [](at::Tensor x) { return x.view_as(x); }},
      {"squeeze", [](at::Tensor x) { return x.squeeze(); }},
      {"flatten", [](at::Tensor x) { return x.flatten(1); }},
      {"ravel of a row", [](at::Tensor x) { return x.select(0, 1).ravel(); }},
  };
  for (const auto& [what, op] : same) {
    ExpectSame(what, [op = op](at::Tensor x) { return op(x); });
    ExpectSame(what, [op = op](at::Tensor x) {
      at::Tensor y = op(x);
      y.add_(1);
      return y;
    });
    ExpectSame(what, [op = op](at::Tensor x) {
      at::Tensor y = op(x);
      y.mul_(2);
      return x + 1;
    });
  }
}

// Nothing takes the results of these writes, but somebody reads the memory.
TEST(TraceOddForwardsTest, WritesWhoseResultNobodyTakes) {
  ExpectSame("copy_ into a view", [](at::Tensor x) {
    at::Tensor y = x * 2;
    y.select(0, 1).copy_(x.select(0, 0));
    return y;
  });
  ExpectSame("foreach", [](at::Tensor x) {
    std::vector<at::Tensor> list = {x * 2, x * 3};
    torch::_foreach_mul_(list, 2.0);
    return list[0] + list[1];
  });
  ExpectSame("index_put_", [](at::Tensor x) {
    at::Tensor y = x * 2;
    y.index_put_({torch::tensor({0, 2})}, torch::zeros({4}));
    return y;
  });
  ExpectSame("fill_diagonal_ of a slice", [](at::Tensor x) {
    at::Tensor y = x * 2;
    y.slice(1, 0, 3).fill_diagonal_(7);
    return y.t();
  });
  ExpectSame("swap by clones", [](at::Tensor x) {
    at::Tensor y = x * 2;
    const at::Tensor row = y.select(0, 0).clone();
    y.select(0, 0).copy_(y.select(0, 2));
    y.select(0, 2).copy_(row);
    return y;
  });
  const auto out = TraceFunction(
      [](at::Tensor x) {
        at::Tensor y = torch::zeros({3, 4});
        torch::mul_out(y, x, x);
        return y + 1;
      },
      FakeTensorMode::Create(), torch::ones({3, 4}));
  ASSERT_THAT(out.status(), IsOk());
  EXPECT_THAT(CallGraphModule(*out->module, {torch::full({3, 4}, 3.0)}).toTensor(), TensorEq(torch::full({3, 4}, 10.0)));
}

TEST(TraceOddForwardsTest, AWeightWrittenBetweenItsTransposeAndItsUse) {
  struct Net : nn::Module {
    Net() { weight = register_parameter("weight", torch::arange(12, torch::kFloat).view({3, 4}) / 5); }
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor t = weight.t();
      {
        const torch::NoGradGuard no_grad;
        weight.mul_(0.5);
      }
      return torch::matmul(x, t);
    }
    at::Tensor weight;
  };
  const auto net = std::make_shared<Net>(), twin = std::make_shared<Net>();
  const at::Tensor x = torch::arange(8, torch::kFloat).view({2, 4});
  const auto traced = TraceForward(net, FakeTensorMode::Create(), x);
  ASSERT_THAT(traced.status(), IsOk());
  for (int step = 0; step < 2; ++step) {
    const at::Tensor y = CallGraphModule(*traced->module, {x}).toTensor(), expected = twin->forward(x);
    EXPECT_THAT(y, TensorEq(expected));
    EXPECT_THAT(net->weight, TensorEq(twin->weight));
    y.sum().backward();
    expected.sum().backward();
    EXPECT_THAT(net->weight.grad(), TensorEq(twin->weight.grad()));
  }
}

TEST(TraceOddForwardsTest, TheSameValuesAreEqual) {
  torch::manual_seed(1);
  struct Net : nn::Module {
    Net() { attention = register_module("attention", nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2))); }
    at::Tensor forward(const at::Tensor& x, const at::Tensor& position) {
      return std::get<0>(attention(x + position, x + position, x)) + std::get<0>(attention(x, x.clone(), x));
    }
    nn::MultiheadAttention attention{nullptr};
  };
  const auto net = std::make_shared<Net>();
  const at::Tensor x = torch::randn({5, 3, 8}), position = torch::randn({5, 1, 8});
  const auto traced = TraceForward(net, FakeTensorMode::Create(), x, position);
  ASSERT_THAT(traced.status(), IsOk());
  for (int i = 0; i < 2; ++i) {
    const at::Tensor in = torch::randn({5, 3, 8});
    EXPECT_THAT(CallGraphModule(*traced->module, {in, position}).toTensor(), testing::AllClose(net->forward(in, position), 1e-5, 1e-6));
  }
}

TEST(TraceOddForwardsTest, EqualOfWhatMayDiffer) {
  const auto choose = [](const at::Tensor& a, const at::Tensor& b, at::Tensor x) { return torch::equal(a, b) ? x + 1 : x - 1; };
  const at::Tensor x = torch::ones({3});
  // Written to, or random: not the same values though made alike.
  const auto written = TraceFunction(
      [&](at::Tensor in) {
        at::Tensor a = in * 2, b = in * 2;
        b.add_(1);
        return choose(a, b, in);
      },
      FakeTensorMode::Create(), x);
  ASSERT_THAT(written.status(), IsOk());
  EXPECT_THAT(CallGraphModule(*written->module, {x}).toTensor(), TensorEq(x - 1));
  const auto random = TraceFunction([&](at::Tensor in) { return choose(torch::rand_like(in), torch::rand_like(in), in); }, FakeTensorMode::Create(), x);
  ASSERT_THAT(random.status(), IsOk());
  EXPECT_THAT(CallGraphModule(*random->module, {x}).toTensor(), TensorEq(x - 1));
  // Two inputs that are equal just now: no graph could know the answer of the next call.
  const auto inputs = [&](at::Tensor a, at::Tensor b) { return choose(a, b, a); };
  EXPECT_THAT(TraceFunction(inputs, FakeTensorMode::Create(), x, x.clone()).status(), StatusIs(absl::StatusCode::kInternal, HasSubstr("hold the same values now")));
  EXPECT_THAT(TraceFunction(inputs, FakeTensorMode::Create(), x, x + 1).status(), IsOk());
}

// The casts of a capture are nobody else's.
TEST(TraceOddForwardsTest, CaptureUnderAutocastLeavesNothingInItsCache) {
  const auto net = std::make_shared<nn::LinearImpl>(4, 3);
  const at::Tensor x = torch::ones({2, 4});
  for (int step = 0; step < 2; ++step) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
    const auto traced = TraceForward(net, FakeTensorMode::Create(), x);
    const at::Tensor y = net->forward(x);
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    ASSERT_THAT(traced.status(), IsOk());
    EXPECT_FALSE(IsFake(y));
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    net->zero_grad();
    y.sum().backward();
    EXPECT_FALSE(IsFake(net->weight.grad()));
    EXPECT_THAT(net->weight.grad(), TensorEq(torch::full({3, 4}, 2.0)));
  }
}

class Passes : public Mode {
 public:
  explicit Passes(Mode::Level level) : level_(level) {}
  Level level() const override { return level_; }
  absl::string_view name() const override { return "Passes"; }
  void Handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    ++calls;
    op.callBoxed(stack);
  }
  int calls = 0;

 private:
  const Level level_;
};

TEST(TraceOddForwardsTest, UsersModesDoNotChangeTheGraph) {
  const auto net = std::make_shared<nn::LinearImpl>(4, 3);
  const at::Tensor x = torch::ones({2, 4});
  const auto plain = TraceForward(net, FakeTensorMode::Create(), x);
  ASSERT_THAT(plain.status(), IsOk());
  for (const Mode::Level level : {Mode::Level::kPreAutograd, Mode::Level::kPostAutograd}) {
    const auto mode = std::make_shared<Passes>(level);
    absl::StatusOr<TracedModule> traced;
    {
      const ModeGuard below(mode);
      traced = TraceForward(net, FakeTensorMode::Create(), x);
    }
    ASSERT_THAT(traced.status(), IsOk());
    EXPECT_EQ(traced->module->graph().ToString(), plain->module->graph().ToString());
    // Pushed by forward itself, above the tracer.
    const auto inner = std::make_shared<Passes>(level);
    const auto within = TraceFunction(
        [&](at::Tensor in) {
          const ModeGuard above(inner);
          return torch::relu(in + 1);
        },
        FakeTensorMode::Create(), x);
    ASSERT_THAT(within.status(), IsOk());
    EXPECT_THAT(Operators(*within), ElementsAre("aten::add.Tensor", "aten::relu"));
    EXPECT_GT(inner->calls, 0);
  }
}

struct TwoResults : torch::autograd::Function<TwoResults> {
  static tensor_list forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x) {
    const at::Tensor first = x * 2, second = x.sign();
    ctx->mark_non_differentiable({second});
    return {first, second};
  }
  static tensor_list backward(torch::autograd::AutogradContext*, tensor_list grads) { return {grads[0] * 2}; }
};

struct GivesAView : torch::autograd::Function<GivesAView> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.view({-1}); }
  static tensor_list backward(torch::autograd::AutogradContext*, tensor_list grads) { return {grads[0].view({3, 4})}; }
};

TEST(TraceOddForwardsTest, CustomFunctionsOfEveryShape) {
  const at::Tensor x = torch::ones({3, 4}).requires_grad_();
  const auto captured = [&](auto fn) { return TraceFunction(fn, FakeTensorMode::Create(), x).status(); };
  EXPECT_THAT(captured([](at::Tensor in) { return TwoResults::apply(in)[0]; }), IsOk());
  EXPECT_THAT(captured([](at::Tensor in) { return std::make_tuple(TwoResults::apply(in)[0], in); }), IsOk());
  EXPECT_THAT(captured([](at::Tensor in) { return GivesAView::apply(in) + 1; }), IsOk());
  struct Net : nn::Module {
    Net() { weight = register_parameter("weight", torch::ones({3, 4})); }
    at::Tensor forward(const at::Tensor& in) { return TwoResults::apply(weight)[0] + in; }
    at::Tensor weight;
  };
  const auto net = std::make_shared<Net>();
  EXPECT_THAT(TraceForward(net, FakeTensorMode::Create(), x.detach()).status(), IsOk());
  // Without gradients there is no backward to lose: its operators are the graph.
  const auto no_grad = TraceFunction(
      [](at::Tensor in) {
        const torch::NoGradGuard guard;
        const tensor_list results = TwoResults::apply(in);
        return results[0] + results[1];
      },
      FakeTensorMode::Create(), x);
  ASSERT_THAT(no_grad.status(), IsOk());
  EXPECT_THAT(CallGraphModule(*no_grad->module, {torch::full({3, 4}, -3.0)}).toTensor(), TensorEq(torch::full({3, 4}, -7.0)));
}

// A table that would take seconds is left to the graph.
TEST(TraceOddForwardsTest, LargeConstantsAreComputedWhenTheGraphRuns) {
  const auto traced = TraceFunction(
      [](at::Tensor x) {
        const at::Tensor positions = torch::arange(x.size(0));
        return x + (positions.unsqueeze(1) - positions).abs().sum(1);
      },
      FakeTensorMode::Create(), torch::zeros({100000}));
  ASSERT_THAT(traced.status(), IsOk());
  EXPECT_THAT(Operators(*traced), Contains("aten::sub.Tensor"));
}

// What forward put into a member while it was captured can't be taken back: whoever uses it is told.
TEST(TraceOddForwardsTest, AFakeThatAMemberKeepsIsRecognised) {
  struct Net : nn::Module {
    Net() { linear = register_module("linear", nn::Linear(4, 4)); }
    at::Tensor forward(const at::Tensor& x) {
      at::Tensor y = linear(x);
      if (state.defined()) y = y + state;
      state = y.detach();
      return y;
    }
    nn::Linear linear{nullptr};
    at::Tensor state;
  };
  const auto net = std::make_shared<Net>();
  const at::Tensor x = torch::ones({2, 4});
  EXPECT_THAT(TraceForward(net, FakeTensorMode::Create(), x).status(),
              StatusIs(absl::StatusCode::kUnimplemented, AllOf(HasSubstr("keeps a tensor that it computes"), HasSubstr("give it the value that it had before"))));
  EXPECT_TRUE(IsFake(net->state));
  EXPECT_THROW(net->forward(x), c10::Error);
  net->state = at::Tensor();
  EXPECT_THAT(net->forward(x), TensorEq(net->linear(x)));
  EXPECT_FALSE(IsFake(net->state));
}

}  // namespace
}  // namespace ddpopt
