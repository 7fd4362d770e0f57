// Custom autograd::Functions in captured forwards: run by the interpreter and compiled ahead of time, they give what eager gives, and the
// gradients that their own backward gives.

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "ddpopt/aot/aot_function.h"
#include "ddpopt/capture/tracer/compare_traces.h"
#include "ddpopt/capture/tracer/trace_forward.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "interpreter/interpreter.h"
#include "testing/matchers.h"
#include "testing/tensors.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/custom_function.h"

namespace ddpopt {
namespace {

using c10::IValue;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::Ramp;
using testing::TensorEq;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::tensor_list;
using Tensors = std::vector<at::Tensor>;

// Gradients that no differentiation of the forward would give, so that it is known whose they are.
struct Scaled : Function<Scaled> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w, double factor) {
    ctx->save_for_backward({x, w});
    ctx->saved_data["factor"] = factor;
    return x.sin() * w;
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const tensor_list saved = ctx->get_saved_variables();
    return {grads[0] * saved[1] * ctx->saved_data["factor"].toDouble(), grads[0] * saved[0].exp(), at::Tensor()};
  }
};

struct SavesItsOutput : Function<SavesItsOutput> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    const at::Tensor y = x.tanh();
    ctx->save_for_backward({y});
    return y;
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) { return {grads[0] * ctx->get_saved_variables()[0] * 5}; }
};

// Three outputs, of which the middle one has no gradient; the sum of grads tells which were materialised.
struct Three : Function<Three> {
  static tensor_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor sign = x.sign();
    ctx->mark_non_differentiable({sign});
    return {x * 2, sign, y * y};
  }
  static tensor_list backward(AutogradContext*, tensor_list grads) {
    EXPECT_EQ(grads.size(), 3u);
    return {grads[0] * 7 + grads[2], grads[0] + grads[2] * 11};
  }
};

struct KeepsATensorInItsData : Function<KeepsATensorInItsData> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    ctx->saved_data["mask"] = x > 0;
    return x.abs();
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    return {at::where(ctx->saved_data["mask"].toTensor(), grads[0] * 2, grads[0] * 3)};
  }
};

struct GivesAView : Function<GivesAView> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    ctx->saved_data["sizes"] = x.sizes();
    return x.view({-1});
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) { return {grads[0].view(ctx->saved_data["sizes"].toIntVector()) * 4}; }
};

struct GivesItsInput : Function<GivesItsInput> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) { return x; }
  static tensor_list backward(AutogradContext*, tensor_list grads) { return {grads[0] * 3}; }
};

// As a backward that saves work asks.
struct AsksWhatIsNeeded : Function<AsksWhatIsNeeded> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w) {
    ctx->save_for_backward({x, w});
    return x * w;
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const tensor_list saved = ctx->get_saved_variables();
    at::Tensor for_x, for_w;
    if (ctx->needs_input_grad(0)) for_x = grads[0] * saved[1] * 2;
    if (ctx->needs_input_grad(1)) for_w = grads[0] * saved[0] * 3;
    return {for_x, for_w};
  }
};

struct WritesToItsInput : Function<WritesToItsInput> {
  static at::Tensor forward(AutogradContext* ctx, at::Tensor x) {
    x.mul_(2);
    ctx->mark_dirty({x});
    return x;
  }
  static tensor_list backward(AutogradContext*, tensor_list grads) { return {grads[0] * 2}; }
};

Tensors Flat(const IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  Tensors result;
  if (value.isTuple()) {
    for (const IValue& element : value.toTupleRef().elements()) result.push_back(element.toTensor());
  } else {
    for (const IValue& element : value.toListRef()) result.push_back(element.toTensor());
  }
  return result;
}

struct Outcome {
  Tensors results, gradients;
};

Outcome Train(const Tensors& inputs, const std::function<Tensors(const Tensors&)>& call) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().clone().requires_grad_(input.requires_grad()));
  Outcome outcome;
  outcome.results = call(leaves);
  at::Tensor loss = at::zeros({});
  for (const at::Tensor& result : outcome.results) {
    if (result.requires_grad()) loss = loss + (result * Ramp(result.sizes())).sum();
  }
  if (loss.requires_grad()) loss.backward();
  for (const at::Tensor& leaf : leaves) outcome.gradients.push_back(leaf.grad());
  return outcome;
}

void ExpectEqual(const Outcome& got, const Outcome& want) {
  ASSERT_EQ(got.results.size(), want.results.size());
  for (std::size_t i = 0; i < want.results.size(); ++i) {
    EXPECT_THAT(got.results[i].detach(), TensorEq(want.results[i].detach())) << "result " << i;
    EXPECT_EQ(got.results[i].requires_grad(), want.results[i].requires_grad()) << "result " << i;
  }
  for (std::size_t i = 0; i < want.gradients.size(); ++i) {
    ASSERT_EQ(got.gradients[i].defined(), want.gradients[i].defined()) << "gradient " << i;
    if (!want.gradients[i].defined()) continue;
    EXPECT_THAT(got.gradients[i], TensorEq(want.gradients[i])) << "gradient " << i;
  }
}

template <typename Fn>
void ExpectSameAsEager(const std::string& what, Fn fn, const Tensors& inputs) {
  SCOPED_TRACE(what);
  const auto traced = TraceFunction([&](Tensors in) { return fn(in); }, FakeTensorMode::Create(), inputs);
  ASSERT_THAT(traced, IsOk());
  const Outcome want = Train(inputs, [&](const Tensors& in) { return Flat(ToValue(fn(in))); });
  {
    SCOPED_TRACE("interpreted");
    ExpectEqual(Train(inputs, [&](const Tensors& in) { return Flat(CallGraphModule(*traced->module, {in.begin(), in.end()})); }), want);
  }
  for (const double budget : {1.0, 0.0}) {
    SCOPED_TRACE("compiled");
    AotOptions options;
    options.partition = {PartitionKind::kMinCut, budget};
    const auto compiled = AotFunction::Compile(*traced->module, traced->fake_inputs, options);
    ASSERT_THAT(compiled, IsOk());
    for (int run = 0; run < 2; ++run) {
      ExpectEqual(Train(inputs, [&](const Tensors& in) { return Flat((*compiled)->Call({in.begin(), in.end()})); }), want);
    }
  }
}

at::Tensor Leaf() { return Ramp({3, 4}).requires_grad_(); }

TEST(CustomFunction, GivesWhatItsOwnBackwardGives) {
  const at::Tensor w = (Ramp({3, 4}) + 0.3).requires_grad_();
  ExpectSameAsEager("saved variables and data", [](const Tensors& in) { return Scaled::apply(in[0], in[1], 2.5).exp(); }, {Leaf(), w});
  ExpectSameAsEager("between other operators", [](const Tensors& in) { return Scaled::apply(in[0].cos(), in[1] * 2, -1.5).exp() + in[0]; },
                    {Leaf(), w});
  ExpectSameAsEager("one input without gradients", [](const Tensors& in) { return Scaled::apply(in[0], in[1], 2.5) * 2; },
                    {Leaf(), w.detach()});
  ExpectSameAsEager("twice", [](const Tensors& in) { return Scaled::apply(Scaled::apply(in[0], in[1], 2.0), in[1], 3.0); }, {Leaf(), w});
  ExpectSameAsEager("its result alone", [](const Tensors& in) { return SavesItsOutput::apply(in[0]); }, {Leaf()});
  ExpectSameAsEager("its result and more of it",
                    [](const Tensors& in) {
                      const at::Tensor y = SavesItsOutput::apply(in[0] * 2);
                      return std::make_tuple(y, y.exp(), in[0] + 1);
                    },
                    {Leaf()});
  ExpectSameAsEager("a tensor in its data", [](const Tensors& in) { return KeepsATensorInItsData::apply(in[0] + 0.1) * 2; }, {Leaf()});
  ExpectSameAsEager("asks what is needed", [](const Tensors& in) { return AsksWhatIsNeeded::apply(in[0], in[1]).sin(); }, {Leaf(), w});
  ExpectSameAsEager("asks what is needed of one input", [](const Tensors& in) { return AsksWhatIsNeeded::apply(in[0], in[1]).sin(); },
                    {Leaf(), w.detach()});
}

TEST(CustomFunction, OutputsOfEveryKind) {
  ExpectSameAsEager("all three",
                    [](const Tensors& in) {
                      const tensor_list out = Three::apply(in[0], in[1]);
                      return std::make_tuple(out[0] + 1, out[1] * 2, out[2]);
                    },
                    {Leaf(), Leaf()});
  ExpectSameAsEager("the last alone, whose neighbours have no gradient",
                    [](const Tensors& in) { return Three::apply(in[0] * 2, in[1])[2].sin(); }, {Leaf(), Leaf()});
  ExpectSameAsEager("the one without gradients", [](const Tensors& in) { return Three::apply(in[0], in[1])[1] + in[0]; }, {Leaf(), Leaf()});
  ExpectSameAsEager("a view", [](const Tensors& in) { return GivesAView::apply(in[0] * 2) + 1; }, {Leaf()});
  ExpectSameAsEager("the input itself", [](const Tensors& in) { return GivesItsInput::apply(in[0] * 2) + 1; }, {Leaf()});
}

TEST(CustomFunction, UnderNoGradItHasNoHistory) {
  ExpectSameAsEager("no-grad region",
                    [](const Tensors& in) {
                      at::Tensor y;
                      {
                        const at::NoGradGuard no_grad;
                        y = Scaled::apply(in[0], in[1], 2.0);
                      }
                      return y * in[0];
                    },
                    {Leaf(), Leaf()});
  ExpectSameAsEager("used in a no-grad region first",
                    [](const Tensors& in) {
                      const at::Tensor y = Scaled::apply(in[0], in[1], 2.0);
                      at::Tensor scale;
                      {
                        const at::NoGradGuard no_grad;
                        scale = y.abs().max();
                      }
                      return y / scale;
                    },
                    {Leaf(), Leaf()});
}

struct Net : torch::nn::Module {
  Net() { weight = register_parameter("weight", Ramp({3, 4})); }
  at::Tensor forward(const at::Tensor& x) { return Scaled::apply(x, weight, 2.0) + SavesItsOutput::apply(weight); }
  at::Tensor weight;
};

TEST(CustomFunction, OfAParameter) {
  const auto net = std::make_shared<Net>();
  const at::Tensor x = Ramp({3, 4}) + 0.1;
  net->forward(x).sum().backward();
  const at::Tensor want = net->weight.grad().clone();
  const auto traced = TraceForward(net, FakeTensorMode::Create(), x);
  ASSERT_THAT(traced, IsOk());
  EXPECT_THAT(net->weight.grad(), TensorEq(want));  // tracing changes nothing
  const auto compiled = AotFunction::Compile(*traced->module, traced->fake_inputs);
  ASSERT_THAT(compiled, IsOk());
  for (const auto& call : std::vector<std::function<IValue()>>{[&] { return CallGraphModule(*traced->module, {x}); },
                                                               [&] { return (*compiled)->Call({x}); }}) {
    net->zero_grad();
    call().toTensor().sum().backward();
    EXPECT_THAT(net->weight.grad(), TensorEq(want));
  }
}

// What a graph of an interpreter's can do, and eager can: a second backward, and second derivatives.
TEST(CustomFunction, RetainedAndDifferentiatedAgain) {
  const auto traced = TraceFunction([](at::Tensor x, at::Tensor w) { return Scaled::apply(x, w, 2.0); }, FakeTensorMode::Create(), Leaf(), Leaf());
  ASSERT_THAT(traced, IsOk());
  const at::Tensor x = Leaf(), w = Leaf();
  const auto second = [&](const at::Tensor& y) {
    const at::Tensor first = torch::autograd::grad({y.sum()}, {w}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    return torch::autograd::grad({first.sum()}, {x})[0];
  };
  EXPECT_THAT(second(CallGraphModule(*traced->module, {x, w}).toTensor()), TensorEq(second(Scaled::apply(x, w, 2.0))));
  at::Tensor loss = CallGraphModule(*traced->module, {x, w}).toTensor().sum();
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = x.grad().clone();
  loss.backward();
  EXPECT_THAT(x.grad(), TensorEq(once + once));
}

// A number that backward reads is part of the trace.
TEST(CustomFunction, RetracingSeesItsData) {
  double factor = 2;
  const auto trace = [&] {
    return TraceFunction([&](at::Tensor x, at::Tensor w) { return Scaled::apply(x, w, factor); }, FakeTensorMode::Create(), Leaf(), Leaf());
  };
  const auto before = trace(), same = trace();
  factor = 3;
  const auto after = trace();
  ASSERT_THAT(before, IsOk());
  ASSERT_THAT(same, IsOk());
  ASSERT_THAT(after, IsOk());
  EXPECT_FALSE(CompareTraces(*before, *same).has_value());
  EXPECT_TRUE(CompareTraces(*before, *after).has_value());
}

TEST(CustomFunction, RefusedByName) {
  const auto traced = TraceFunction([](at::Tensor x) { return WritesToItsInput::apply(x * 1) + 1; }, FakeTensorMode::Create(), Leaf());
  EXPECT_THAT(std::string(traced.status().message()), HasSubstr("WritesToItsInput"));
}

}  // namespace
}  // namespace ddpopt
