#include "ddpopt/aot/aot_function.h"

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/grad_mode.h"
#include "ddpopt/capture/tracer/trace_forward.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "interpreter/interpreter.h"
#include "testing/calls.h"
#include "testing/matchers.h"
#include "testing/tensors.h"
#include "torch/csrc/autograd/autograd.h"

namespace ddpopt {
namespace {

using c10::IValue;
using ::testing::ElementsAre;
using testing::ErrorOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::Ramp;
using testing::SharesStorageWith;
using testing::StatusIs;
using testing::TensorEq;

using Tensors = std::vector<at::Tensor>;

at::Tensor Leaf(at::IntArrayRef sizes) { return Ramp(sizes).requires_grad_(); }

// A function of tensors as a graph, and compiled.
struct Both {
  TracedModule traced;
  std::shared_ptr<const AotFunction> compiled;
};

template <typename Fn>
absl::StatusOr<Both> Compile(Fn fn, const Tensors& inputs) {
  absl::StatusOr<TracedModule> traced = TraceFunction([&](Tensors in) { return fn(in); }, FakeTensorMode::Create(), inputs);
  if (!traced.ok()) return traced.status();
  auto compiled = AotFunction::Compile(*traced->module, traced->fake_inputs);
  if (!compiled.ok()) return compiled.status();
  return Both{*std::move(traced), *std::move(compiled)};
}

Tensors Flat(const IValue& value) {
  if (value.isTensor()) return {value.toTensor()};
  Tensors result;
  if (value.isTuple()) {
    for (const IValue& element : value.toTupleRef().elements()) result.push_back(element.isNone() ? at::Tensor() : element.toTensor());
  } else if (value.isList()) {
    for (const IValue& element : value.toListRef()) result.push_back(element.toTensor());
  }
  return result;
}

Tensors Copies(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) {
    at::Tensor copy = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).copy_(tensor.detach());
    result.push_back(copy.requires_grad_(tensor.requires_grad()));
  }
  return result;
}

// Values, layouts, memory shared, gradients, writes and random numbers are those of the graph run with ATen's kernels under autograd.
template <typename Fn>
void ExpectSameAsEager(const std::string& what, Fn fn, const Tensors& inputs) {
  SCOPED_TRACE(what);
  absl::StatusOr<Both> both = Compile(fn, inputs);
  ASSERT_THAT(both, IsOk());
  const Tensors eager_in = Copies(inputs), compiled_in = Copies(inputs);
  const auto run = [](const Tensors& in, const std::function<IValue(std::vector<IValue>)>& call) {
    at::manual_seed(7);
    const Tensors out = Flat(call(std::vector<IValue>(in.begin(), in.end())));
    at::Tensor loss = at::zeros({});
    for (const at::Tensor& tensor : out) {
      if (tensor.defined() && tensor.requires_grad()) loss = loss + (tensor * tensor).sum();
    }
    if (loss.requires_grad()) loss.backward();
    return out;
  };
  const Tensors want = run(eager_in, [&](std::vector<IValue> args) { return CallGraphModule(*both->traced.module, std::move(args)); });
  const Tensors got = run(compiled_in, [&](std::vector<IValue> args) { return both->compiled->Call(std::move(args)); });
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_EQ(got[i].defined(), want[i].defined());
    if (!want[i].defined()) continue;
    EXPECT_THAT(got[i].detach(), TensorEq(want[i].detach()));
    EXPECT_EQ(got[i].strides(), want[i].strides());
    EXPECT_EQ(got[i].requires_grad(), want[i].requires_grad());
    for (std::size_t k = 0; k < want.size(); ++k) {
      if (!want[k].defined()) continue;
      EXPECT_EQ(got[i].is_alias_of(got[k]), want[i].is_alias_of(want[k]));
    }
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      EXPECT_EQ(got[i].is_alias_of(compiled_in[k]), want[i].is_alias_of(eager_in[k]));
      EXPECT_EQ(got[i].is_same(compiled_in[k]), want[i].is_same(eager_in[k]));
    }
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_THAT(compiled_in[i].detach(), TensorEq(eager_in[i].detach()));
    const at::Tensor &got_grad = compiled_in[i].grad(), &want_grad = eager_in[i].grad();
    ASSERT_EQ(got_grad.defined(), want_grad.defined());
    if (!want_grad.defined()) continue;
    EXPECT_THAT(got_grad, TensorEq(want_grad));
  }
}

TEST(AotFunction, GivesWhatEagerGives) {
  const at::Tensor x = Leaf({4, 3}), w = Leaf({5, 3}), b = Leaf({5}), plain = Ramp({4, 3});
  ExpectSameAsEager("linear", [](Tensors& in) { return at::relu(at::linear(in[0], in[1], in[2])); }, {x, w, b});
  ExpectSameAsEager("a parameter used twice", [](Tensors& in) { return at::linear(at::linear(in[0], in[1]), in[1].t()); }, {x, w});
  ExpectSameAsEager("tensors born on the way", [](Tensors& in) { return in[0] + at::where(in[0] < 0.5, 0.3, 0.6); }, {x});
  ExpectSameAsEager("dropout", [](Tensors& in) { return at::dropout(at::linear(in[0], in[1]), 0.5, true); }, {x, w});
  ExpectSameAsEager("integers", [](Tensors& in) { return at::embedding(in[1], in[0]); }, {at::arange(3), w});
  ExpectSameAsEager("attention", [](Tensors& in) { return at::scaled_dot_product_attention(in[0], in[0], in[0], {}, 0.0, true); },
                    {Leaf({2, 2, 8, 4})});
  ExpectSameAsEager("complex", [](Tensors& in) { return at::real(at::view_as_complex(in[0]) * at::view_as_complex(in[0]).conj()); },
                    {Leaf({4, 2})});
  ExpectSameAsEager("nothing requires grad", [](Tensors& in) { return in[0] * 2; }, {plain});
  ExpectSameAsEager("a saved output", [](Tensors& in) { return at::softmax(in[0], 1).exp(); }, {x});
  ExpectSameAsEager("no-grad region",
                    [](Tensors& in) {
                      at::Tensor scale;
                      {
                        const at::NoGradGuard no_grad;
                        scale = in[0].abs().max();
                      }
                      return in[0] / scale;
                    },
                    {x});
  const at::Tensor image = Leaf({2, 3, 8, 8}), kernel = Leaf({4, 3, 3, 3});
  const auto conv = [](Tensors& in) { return at::max_pool2d(at::conv2d(in[0], in[1], {}, 1, 1).relu_(), {2, 2}); };
  ExpectSameAsEager("convolution", conv, {image, kernel});
  ExpectSameAsEager("channels last", conv,
                    {image.detach().contiguous(at::MemoryFormat::ChannelsLast).requires_grad_(),
                     kernel.detach().contiguous(at::MemoryFormat::ChannelsLast).requires_grad_()});
}

TEST(AotFunction, ViewsAndWritesInside) {
  const at::Tensor x = Leaf({4, 3});
  ExpectSameAsEager("writes through views",
                    [](Tensors& in) {
                      at::Tensor y = in[0] * 2;
                      y.select(0, 1).mul_(in[0].select(0, 0));
                      y.t().add_(1);
                      return at::log_softmax(y, 1).sum();
                    },
                    {x});
  ExpectSameAsEager("a write seen through an older view",
                    [](Tensors& in) {
                      at::Tensor y = in[0] * 2;
                      const at::Tensor row = y.select(0, 0);
                      y.mul_(3);
                      return row + y.select(0, 1);
                    },
                    {x});
  ExpectSameAsEager("copies into a slice",
                    [](Tensors& in) {
                      at::Tensor y = at::zeros({6, 3});
                      y.narrow(0, 1, 4).copy_(in[0]);
                      return y.exp();
                    },
                    {x});
}

TEST(AotFunction, ResultsThatShareMemory) {
  const at::Tensor x = Leaf({4, 3});
  ExpectSameAsEager("parts of one value", [](Tensors& in) { return (in[0] * 2).split(2, 0); }, {x});
  ExpectSameAsEager("a value and its view",
                    [](Tensors& in) {
                      const at::Tensor y = in[0].exp();
                      return std::make_tuple(y.t(), y);
                    },
                    {x});
  ExpectSameAsEager("a value twice",
                    [](Tensors& in) {
                      const at::Tensor y = in[0].exp();
                      return std::make_tuple(y, y);
                    },
                    {x});
  ExpectSameAsEager("an input, a view of it, and a value", [](Tensors& in) { return std::make_tuple(in[0].t(), in[0] + 1, in[0]); }, {x});
  ExpectSameAsEager("a view without history",
                    [](Tensors& in) {
                      const at::Tensor y = in[0] * 2;
                      return std::make_tuple(y.detach(), y.exp(), in[0].detach());
                    },
                    {x});
}

TEST(AotFunction, WritesToInputs) {
  ExpectSameAsEager("a running mean",
                    [](Tensors& in) {
                      in[1].mul_(0.9).add_(in[0].detach());
                      return in[0] * in[1];
                    },
                    {Leaf({4, 3}), Ramp({4, 3})});
  ExpectSameAsEager("backward needs a copy of the old content",
                    [](Tensors& in) {
                      const at::Tensor y = in[0] * in[1].clone();
                      in[1].add_(1);
                      return y;
                    },
                    {Leaf({4, 3}), Ramp({4, 3})});
  ExpectSameAsEager("through a view",
                    [](Tensors& in) {
                      in[1].select(0, 0).zero_();
                      return in[0] + in[1];
                    },
                    {Leaf({4, 3}), Ramp({4, 3})});
  ExpectSameAsEager("a written input is returned", [](Tensors& in) { return std::make_tuple(in[0].exp(), in[1].add_(1)); },
                    {Leaf({4, 3}), Ramp({4, 3})});
  ExpectSameAsEager("batch norm's statistics",
                    [](Tensors& in) { return at::batch_norm(in[0], in[1], in[2], in[3], in[4], true, 0.1, 1e-5, false); },
                    {Leaf({2, 3, 4, 4}), Leaf({3}), Leaf({3}), at::zeros({3}), at::ones({3})});
}

TEST(AotFunction, UnderAutocast) {
  const bool enabled = at::autocast::is_autocast_enabled(at::kCPU);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  ExpectSameAsEager("bf16", [](Tensors& in) { return at::linear(at::linear(in[0], in[1]).relu(), in[1].t()).sum(); },
                    {Leaf({4, 3}), Leaf({5, 3})});
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, enabled);
}

TEST(AotFunction, SavesWhatBackwardNeedsAndFreesIt) {
  const Tensors inputs = {Leaf({4, 3}), Leaf({5, 3})};
  absl::StatusOr<Both> both = Compile([](Tensors& in) { return at::linear(in[0], in[1]).sin().exp().sum(); }, inputs);
  ASSERT_THAT(both, IsOk());
  // The products and the exponentials: 4 x 5 floats each. The weight's transpose is made again.
  EXPECT_EQ(both->compiled->parts().num_intermediates, 2);
  EXPECT_EQ(both->compiled->parts().intermediate_bytes, 2 * 4 * 5 * 4);

  at::Tensor loss = both->compiled->Call({inputs[0], inputs[1]}).toTensor();
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = inputs[1].grad().clone();
  loss.backward();
  EXPECT_THAT(inputs[1].grad(), TensorEq(once + once));
  EXPECT_THAT(ErrorOf([&] { loss.backward(); }), HasSubstr("a second time"));
}

TEST(AotFunction, WithoutGradientsNothingIsSaved) {
  const Tensors inputs = {Leaf({4, 3})};
  absl::StatusOr<Both> both = Compile([](Tensors& in) { return in[0].sin().exp(); }, inputs);
  ASSERT_THAT(both, IsOk());
  const at::NoGradGuard no_grad;
  const at::Tensor result = both->compiled->Call({inputs[0]}).toTensor();
  EXPECT_FALSE(result.requires_grad());
  EXPECT_THAT(result, TensorEq(inputs[0].detach().sin().exp()));
}

TEST(AotFunction, AParameterWrittenBetweenForwardAndBackwardIsAnError) {
  const Tensors inputs = {Leaf({4, 3}), Leaf({5, 3})};
  absl::StatusOr<Both> both = Compile([](Tensors& in) { return at::linear(in[0], in[1]).sum(); }, inputs);
  ASSERT_THAT(both, IsOk());
  const at::Tensor loss = both->compiled->Call({inputs[0], inputs[1]}).toTensor();
  {
    const at::NoGradGuard no_grad;
    inputs[1].add_(1);
  }
  EXPECT_THAT(ErrorOf([&] { loss.backward(); }), HasSubstr("modified by an inplace operation"));
}

TEST(AotFunction, AResultWrittenInWhichSavedValuesLieIsAnError) {
  const Tensors inputs = {Leaf({4, 3})};
  absl::StatusOr<Both> both = Compile([](Tensors& in) { return in[0].exp().t().reshape({3, 2, 2}); }, inputs);
  ASSERT_THAT(both, IsOk());
  for (const bool compiled : {false, true}) {
    SCOPED_TRACE(compiled);
    const at::Tensor leaf = Leaf({4, 3});
    const auto call = [&] { return (compiled ? both->compiled->Call({leaf}) : CallGraphModule(*both->traced.module, {leaf})).toTensor(); };
    const at::Tensor kept = call();
    kept.sum().backward();
    EXPECT_THAT(leaf.grad(), TensorEq(leaf.detach().exp()));
    const at::Tensor written = call();
    written.mul_(2);
    EXPECT_THAT(ErrorOf([&] { written.sum().backward(); }), HasSubstr("modified by an inplace operation"));
  }
}

TEST(AotFunction, OperatorsAreDecomposedWhereAsked) {
  const Tensors inputs = {Leaf({4, 3})};
  const auto gelu = [](Tensors& in) { return at::gelu(in[0]); };
  absl::StatusOr<TracedModule> traced = TraceFunction([&](Tensors in) { return gelu(in); }, FakeTensorMode::Create(), inputs);
  ASSERT_THAT(traced, IsOk());
  AotOptions options;
  options.decompositions = {"aten::gelu", "aten::gelu_backward"};
  const auto compiled = AotFunction::Compile(*traced->module, traced->fake_inputs, options);
  ASSERT_THAT(compiled, IsOk());
  EXPECT_THAT((*compiled)->parts().forward->graph().ToString(), ::testing::Not(HasSubstr("gelu")));
  const at::Tensor want = Leaf({4, 3}), got = Leaf({4, 3});
  at::gelu(want).sum().backward();
  (*compiled)->Call({got}).toTensor().sum().backward();
  EXPECT_TRUE(at::allclose(got.grad(), want.grad(), 1e-5, 1e-6));
  options.decompositions = {"aten::no_such"};
  EXPECT_THAT(AotFunction::Compile(*traced->module, traced->fake_inputs, options).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no_such")));
}

TEST(AotFunction, SecondDerivativesAreRefused) {
  const Tensors inputs = {Leaf({4, 3})};
  absl::StatusOr<Both> both = Compile([](Tensors& in) { return in[0].sin().sum(); }, inputs);
  ASSERT_THAT(both, IsOk());
  const at::Tensor loss = both->compiled->Call({inputs[0]}).toTensor();
  EXPECT_THAT(ErrorOf([&] { torch::autograd::grad({loss}, {inputs[0]}, {}, {}, /*create_graph=*/true); }), HasSubstr("create_graph"));
}

TEST(AotFunction, WhatNoGradientComesToHasNone) {
  const Tensors inputs = {Leaf({4, 3}), Leaf({4, 3})};
  absl::StatusOr<Both> both = Compile([](Tensors& in) { return std::make_tuple(in[0].sin(), in[1].cos()); }, inputs);
  ASSERT_THAT(both, IsOk());
  const IValue result = both->compiled->Call({inputs[0], inputs[1]});
  result.toTupleRef().elements()[0].toTensor().sum().backward();
  EXPECT_THAT(inputs[0].grad(), TensorEq(inputs[0].detach().cos()));
  EXPECT_FALSE(inputs[1].grad().defined());
}

TEST(AotFunction, CompilingChangesNothing) {
  const Tensors inputs = {Leaf({4, 3}), Leaf({5, 3}), Ramp({5})};
  const at::Tensor generator = at::detail::getDefaultCPUGenerator().get_state();
  ASSERT_THAT(Compile([](Tensors& in) { return at::dropout(at::linear(in[0], in[1]), 0.5, true) + in[2].add_(1); }, inputs), IsOk());
  EXPECT_THAT(at::detail::getDefaultCPUGenerator().get_state(), TensorEq(generator));
  EXPECT_EQ(inputs[2]._version(), 0);
  EXPECT_FALSE(inputs[1].grad().defined());
}

TEST(AotFunction, SeveralThreads) {
  const at::Tensor w = Leaf({5, 3});
  absl::StatusOr<Both> both = Compile([](Tensors& in) { return at::linear(in[0], in[1]).sin().sum(); }, {Leaf({4, 3}), w});
  ASSERT_THAT(both, IsOk());
  const at::Tensor reference = Leaf({4, 3});
  both->compiled->Call({reference, w.detach().requires_grad_()}).toTensor().backward();
  std::vector<std::string> errors(4);
  std::vector<std::thread> threads;
  for (std::string& error : errors) {
    threads.emplace_back([&error, &both, &w, &reference] {
      for (int i = 0; i < 50 && error.empty(); ++i) {
        const at::Tensor x = Leaf({4, 3});
        both->compiled->Call({x, w.detach().requires_grad_()}).toTensor().backward();
        if (!at::equal(x.grad(), reference.grad())) error = "another gradient";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(AotFunction, RefusesByName) {
  const at::Tensor x = Leaf({4, 3}), plain = Ramp({4, 3});
  const auto unimplemented = [](const std::string& text) { return StatusIs(absl::StatusCode::kUnimplemented, HasSubstr(text)); };
  const auto double_first = [](Tensors& in) {
    at::Tensor view = in[0].select(0, 0);
    view.mul_(2);
    return std::make_tuple(view, in[0] + 1);
  };
  EXPECT_THAT(Compile(double_first, {plain}), unimplemented("output 0: a view of input 0, which the piece writes to"));
  EXPECT_THAT(Compile([](Tensors& in) { return in[1].copy_(in[0].exp()); }, {x, plain}),
              unimplemented("writes a value that requires grad to input 1"));
  EXPECT_THAT(Compile([](Tensors& in) { return in[0].t_() + 1; }, {plain}), unimplemented("changes the shape of input 0"));
  EXPECT_THAT(Compile(
                  [](Tensors& in) {
                    at::Tensor y = in[0].exp();
                    y.narrow(0, 0, 1).expand({4, 3}).zero_();
                    return y;
                  },
                  {plain}),
              unimplemented("aten::zero_ writes to an expanded tensor"));
  const at::Tensor base = Ramp({4, 3});
  EXPECT_THAT(Compile([](Tensors& in) { return in[0].add_(1) + in[1].sum(); }, {base, base.select(0, 0)}),
              unimplemented("writes to input 0, which shares memory with input 1"));
  // A value that requires grad is no leaf to the caller, but it is one to the piece.
  const at::Tensor inner = (x * 1).detach().requires_grad_();
  absl::StatusOr<TracedModule> traced = TraceFunction([](at::Tensor a) { return (a * 1).add_(1); }, FakeTensorMode::Create(), inner);
  ASSERT_THAT(traced, IsOk());
  EXPECT_THAT(AotFunction::Compile(*traced->module, {IValue(x)}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a real tensor")));
}

TEST(AotFunction, NumbersArePartOfTheGraph) {
  fx::GraphModule gm;
  fx::Node* x = gm.graph().Placeholder("x");
  fx::Node* n = gm.graph().Placeholder("n");
  gm.graph().Output(gm.graph().CallFunction(testing::FindOperator("aten::mul", "Scalar"), {x, n}));
  const auto mode = FakeTensorMode::Create();
  auto compiled = AotFunction::Compile(gm, {mode->FromReal(Leaf({3})), IValue(2)});
  ASSERT_THAT(compiled, IsOk());
  EXPECT_THAT((*compiled)->Call({Ramp({3}), IValue(2)}).toTensor(), TensorEq(Ramp({3}) * 2));
  EXPECT_THAT(ErrorOf([&] {
                (*compiled)->Call({Ramp({3}), IValue(3)});
              }),
              HasSubstr("input 1 of a compiled piece is 3, but it was compiled for 2"));
  EXPECT_THAT(ErrorOf([&] { (*compiled)->Call({Ramp({3})}); }), HasSubstr("takes 2 inputs, not 1"));
}

}  // namespace
}  // namespace ddpopt
