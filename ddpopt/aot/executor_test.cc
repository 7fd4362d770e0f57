#include "ddpopt/aot/executor.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/Context.h"
#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "c10/core/Allocator.h"
#include "c10/util/ThreadLocalDebugInfo.h"
#include "ddpopt/aot/workspace.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fx_graph/graph_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "interpreter/interpreter.h"
#include "testing/calls.h"
#include "testing/matchers.h"
#include "testing/tensors.h"

namespace ddpopt {
namespace {

using c10::IValue;
using fx::Argument;
using testing::ErrorOf;
using testing::FindOperator;
using testing::Ramp;
using testing::TensorEq;
using ::testing::HasSubstr;
using Fate = ExecutorOptions::Fate;
using Nodes = std::vector<fx::Node*>;
using Tensors = std::vector<at::Tensor>;

// Gives each node what it is on fakes.
class Annotator : public Interpreter {
 public:
  using Interpreter::Interpreter;

 protected:
  IValue RunNode(const fx::Node& node) override {
    IValue value = Interpreter::RunNode(node);
    const_cast<fx::Node&>(node).meta().val = value;
    return value;
  }
};

fx::Node* Call(fx::Graph& graph, const char* name, std::vector<Argument> args, const char* overload = "") {
  return graph.CallFunction(FindOperator(name, overload), std::move(args));
}
fx::Node* Element(fx::Graph& graph, fx::Node* node, int64_t index) {
  return graph.CreateNode(fx::Op::kCallFunction, fx::OpaqueTarget{"operator.getitem"}, {node, IValue(index)}, {}, "getitem");
}

// A graph of one input for each of the tensors, with metadata.
std::shared_ptr<fx::GraphModule> MakeGraph(const Tensors& inputs, const std::function<Nodes(fx::Graph&, const Nodes&)>& build) {
  auto module = std::make_shared<fx::GraphModule>();
  Nodes placeholders;
  for (std::size_t i = 0; i < inputs.size(); ++i) placeholders.push_back(module->graph().Placeholder("x" + std::to_string(i)));
  std::vector<Argument> results;
  for (fx::Node* node : build(module->graph(), placeholders)) results.emplace_back(node);
  module->graph().Output(Argument::Tuple(std::move(results)));
  const auto mode = FakeTensorMode::Create();
  std::vector<IValue> fakes;
  for (const at::Tensor& input : inputs) fakes.emplace_back(mode->FromReal(input));
  const ModeGuard guard(mode);
  Annotator(*module).Run(std::move(fakes));
  return module;
}

Tensors Interpreted(const fx::GraphModule& module, const Tensors& inputs) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const IValue result = CallGraphModule(module, std::vector<IValue>(inputs.begin(), inputs.end()));
  Tensors tensors;
  for (const IValue& element : result.toTupleRef().elements()) tensors.push_back(element.toTensor());
  return tensors;
}

Tensors RunPlanned(const Executor& executor, Tensors inputs) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return executor.Run(std::move(inputs));
}

void ExpectSame(const Tensors& got, const Tensors& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_THAT(got[i], TensorEq(want[i]));
    EXPECT_EQ(got[i].strides(), want[i].strides());
    for (std::size_t k = 0; k < want.size(); ++k) EXPECT_EQ(got[i].is_alias_of(got[k]), want[i].is_alias_of(want[k])) << k;
  }
}

// Planned, and the same as interpreted, also the second time, and when what the first run gave is looked at after the second.
void ExpectAsInterpreted(const Tensors& inputs, const std::function<Nodes(fx::Graph&, const Nodes&)>& build) {
  const auto module = MakeGraph(inputs, build);
  ExecutorOptions options;
  options.poison = true;
  const auto executor = Executor::Compile(module, options);
  ASSERT_NE(executor->plan(), nullptr) << executor->why_interpreted();
  at::manual_seed(3);
  const Tensors want = Interpreted(*module, inputs);
  at::manual_seed(3);
  const Tensors got = RunPlanned(*executor, inputs);
  at::manual_seed(3);
  const Tensors again = RunPlanned(*executor, inputs);
  ExpectSame(got, want);
  ExpectSame(again, want);
}

// How often c10's CPU allocator is asked.
template <typename Fn>
int64_t Allocations(Fn fn) {
  struct Counter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override { allocations += bytes > 0; }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t allocations = 0;
  };
  const auto counter = std::make_shared<Counter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
  fn();
  return counter->allocations;
}

TEST(Executor, WritesOverWhatHasDied) {
  const Tensors inputs = {Ramp({1000})};
  const auto module = MakeGraph(inputs, [](fx::Graph& graph, const Nodes& in) -> Nodes {
    fx::Node* x = in[0];
    for (int i = 0; i < 10; ++i) x = Call(graph, i % 2 == 0 ? "aten::sin" : "aten::cos", {x});
    return {Call(graph, "aten::exp", {x})};
  });
  const auto executor = Executor::Compile(module);
  ASSERT_NE(executor->plan(), nullptr) << executor->why_interpreted();
  EXPECT_EQ(executor->memory_use().workspace, 4032);  // 1000 floats, once
  ExpectSame(RunPlanned(*executor, inputs), Interpreted(*module, inputs));
  Tensors result;
  EXPECT_EQ(Allocations([&] { result = RunPlanned(*executor, inputs); }), 1);
  EXPECT_EQ(Allocations([&] { Interpreted(*module, inputs); }), 11);
}

TEST(Executor, AnOperandThatIsSeenInAnotherOrderIsKept) {
  ExpectAsInterpreted({Ramp({8, 8})}, [](fx::Graph& graph, const Nodes& in) -> Nodes {
    fx::Node* x = Call(graph, "aten::sin", {in[0]});
    fx::Node* sum = Call(graph, "aten::add", {x, Call(graph, "aten::t", {x})}, "Tensor");
    fx::Node* y = Call(graph, "aten::cos", {sum});
    fx::Node* row = Call(graph, "aten::select", {y, IValue(0), IValue(3)}, "int");
    return {Call(graph, "aten::mul", {y, row}, "Tensor")};
  });
}

TEST(Executor, Views) {
  ExpectAsInterpreted({Ramp({4, 6}), Ramp({6, 4}).t()}, [](fx::Graph& graph, const Nodes& in) -> Nodes {
    const auto views = [&](fx::Node* x) -> Nodes {
      fx::Node* halves = Call(graph, "aten::split", {x, IValue(3), IValue(1)}, "Tensor");
      fx::Node* right = Element(graph, halves, 1);
      fx::Node* column = Call(graph, "aten::unsqueeze", {Call(graph, "aten::select", {right, IValue(1), IValue(2)}, "int"), IValue(1)});
      fx::Node* wide = Call(graph, "aten::expand", {column, IValue(std::vector<int64_t>{4, 5})});
      return {Call(graph, "aten::t", {right}), wide, Call(graph, "aten::mul", {wide, wide}, "Tensor")};
    };
    Nodes results = views(in[0]);                                       // of an input
    for (fx::Node* node : views(in[1])) results.push_back(node);        // of one that lies in another order
    fx::Node* inner = Call(graph, "aten::exp", {in[0]});
    for (fx::Node* node : views(inner)) results.push_back(node);        // of a value that is returned in parts
    fx::Node* gone = Call(graph, "aten::exp", {in[1]});
    results.push_back(views(gone).back());                              // of one that isn't
    results.push_back(in[0]);
    results.push_back(inner);
    return results;
  });
}

TEST(Executor, OperatorsWithKernelsOfOurOwn) {
  ExpectAsInterpreted({Ramp({3, 4, 8}), Ramp({8}) + 2, Ramp({8}), Ramp({3, 4, 8}).exp()}, [](fx::Graph& graph, const Nodes& in) -> Nodes {
    const IValue shape(std::vector<int64_t>{8});
    fx::Node* norm = Call(graph, "aten::native_layer_norm", {in[0], shape, in[1], in[2], IValue(1e-5)});
    fx::Node *mean = Element(graph, norm, 1), *rstd = Element(graph, norm, 2);
    const auto backward = [&](bool weight) {
      return Call(graph, "aten::native_layer_norm_backward",
                  {in[3], in[0], shape, mean, rstd, in[1], in[2], Argument::List({IValue(true), IValue(weight), IValue(weight)})});
    };
    fx::Node *all = backward(true), *input = backward(false);
    return {Element(graph, norm, 0), mean, rstd, Element(graph, all, 0), Element(graph, all, 1), Element(graph, all, 2), Element(graph, input, 0)};
  });
  at::Tensor scores = Ramp({4, 5});
  scores.select(0, 2).fill_(-std::numeric_limits<float>::infinity());
  scores.select(1, 1).fill_(-std::numeric_limits<float>::infinity());
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    ExpectAsInterpreted({scores.to(dtype)}, [](fx::Graph& graph, const Nodes& in) -> Nodes {
      return {Call(graph, "aten::_safe_softmax", {in[0], IValue(-1)}), Call(graph, "aten::_safe_softmax", {in[0], IValue(0)})};
    });
  }
  ExpectAsInterpreted({Ramp({6, 3}), at::arange(4).remainder(3).view({2, 2}).t(), Ramp({3, 4})}, [](fx::Graph& graph, const Nodes& in) -> Nodes {
    const IValue sizes(std::vector<int64_t>{3, 6, 4});
    fx::Node* copied = Call(graph, "aten::clone", {Call(graph, "aten::t", {in[2]})});
    return {Call(graph, "aten::embedding", {in[0], in[1]}),
            Call(graph, "aten::select_backward", {in[2], sizes, IValue(1), IValue(2)}),
            Call(graph, "aten::slice_backward", {in[2], IValue(std::vector<int64_t>{5, 4}), IValue(0), IValue(0), IValue(5), IValue(2)}),
            copied,
            Call(graph, "aten::sin", {copied}),
            Call(graph, "aten::zeros_like", {in[2]}),
            Call(graph, "aten::full_like", {in[2], IValue(1.5)})};
  });
  // Rows that come several times, one that is padding, another order in memory.
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const int64_t size : {6, 500}) {
      const at::Tensor rows = at::arange(5 * size).mul(7).remainder(5).view({5, size}).t().to(size == 6 ? at::kLong : at::kInt);
      const at::Tensor gradient = Ramp({5, size, 19}).transpose(0, 1).to(dtype);
      ExpectAsInterpreted({gradient, rows}, [](fx::Graph& graph, const Nodes& in) -> Nodes {
        Nodes results;
        for (const int64_t padding : {-1, 0, 3}) {
          for (const bool scale : {false, true}) {
            results.push_back(
                Call(graph, "aten::embedding_dense_backward", {in[0], in[1], IValue(int64_t{7}), IValue(padding), IValue(scale)}));
          }
        }
        return results;
      });
    }
  }
  ExpectAsInterpreted({Ramp({3})}, [](fx::Graph& graph, const Nodes& in) -> Nodes {
    const auto kind = [](at::ScalarType dtype) { return fx::Kwargs{{"dtype", IValue(static_cast<int64_t>(dtype))}}; };
    Nodes results = {in[0]};
    for (const at::ScalarType dtype : {at::kLong, at::kFloat, at::kDouble}) {
      const auto add = [&](const char* overload, std::vector<Argument> args) {
        results.push_back(graph.CallFunction(FindOperator("aten::arange", overload), std::move(args), kind(dtype)));
      };
      add("", {IValue(7)});
      add("start", {IValue(2), IValue(9)});
      add("start_step", {IValue(20), IValue(3), IValue(-4)});
    }
    return results;
  });
}

TEST(Executor, RandomNumbersAndWritesInPlace) {
  ExpectAsInterpreted({Ramp({50}).abs()}, [](fx::Graph& graph, const Nodes& in) -> Nodes {
    fx::Node* drawn = Call(graph, "aten::bernoulli_", {Call(graph, "aten::empty_like", {in[0]}), IValue(0.3)}, "float");
    fx::Node* noise = Call(graph, "aten::rand_like", {in[0]});
    fx::Node* dropped = Call(graph, "aten::native_dropout", {in[0], IValue(0.5), IValue(true)});
    return {Call(graph, "aten::mul", {drawn, noise}, "Tensor"), noise, Element(graph, dropped, 0), Element(graph, dropped, 1)};
  });
}

// Drawn as their in-place forms draw, in the same order, also where a result lies in another order or is of odd size.
TEST(Executor, RandomOperatorsAreDrawnWhereTheyAreWanted) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const at::Tensor& x : {Ramp({5, 7}), Ramp({5, 7}).t(), Ramp({64, 3}), Ramp({1}), Ramp({0, 3})}) {
      SCOPED_TRACE(x.sizes());
      ExpectAsInterpreted({x.to(dtype)}, [](fx::Graph& graph, const Nodes& in) -> Nodes {
        fx::Node* inner = Call(graph, "aten::cos", {in[0]});
        const Nodes drawn = {Call(graph, "aten::bernoulli", {inner, IValue(0.3)}, "p"),
                             Call(graph, "aten::uniform", {inner, IValue(-1.0), IValue(2.0)}),
                             Call(graph, "aten::normal_functional", {inner, IValue(1.0), IValue(0.5)}),
                             Call(graph, "aten::exponential", {inner, IValue(2.0)}),
                             Call(graph, "aten::rand_like", {inner}),
                             Call(graph, "aten::randn_like", {inner})};
        Nodes results;
        for (fx::Node* node : drawn) results.push_back(Call(graph, "aten::mul", {node, inner}, "Tensor"));
        results.push_back(Call(graph, "aten::bernoulli", {inner, IValue(0.6)}, "p"));
        return results;
      });
    }
  }
  const Tensors inputs = {Ramp({1000})};
  const auto module = MakeGraph(inputs, [](fx::Graph& graph, const Nodes& in) -> Nodes {
    fx::Node* mask = Call(graph, "aten::bernoulli", {in[0], IValue(0.5)}, "p");
    return {Call(graph, "aten::mul", {in[0], Call(graph, "aten::div", {mask, IValue(0.5)}, "Scalar")}, "Tensor")};
  });
  const auto executor = Executor::Compile(module);
  RunPlanned(*executor, inputs);
  Tensors result;
  EXPECT_EQ(Allocations([&] { result = RunPlanned(*executor, inputs); }), 1);
}

// A large result that goes element by element takes the memory of the operand that dies with it.
TEST(Executor, LargeResultsAreWrittenOverTheirOperands) {
  constexpr int64_t kElements = int64_t{5} << 20;
  const Tensors inputs = {Ramp({kElements}), Ramp({kElements}).cos()};
  const auto build = [](fx::Graph& graph, const Nodes& in) -> Nodes {
    fx::Node *first = Call(graph, "aten::sin", {in[0]}), *second = Call(graph, "aten::cos", {in[1]});
    return {Call(graph, "aten::add", {first, second}, "Tensor")};
  };
  const auto module = MakeGraph(inputs, build);
  ExecutorOptions options;
  options.fates = {Fate::kTogether};
  const auto executor = Executor::Compile(module, options);
  const Tensors want = Interpreted(*module, inputs);
  Tensors got;
  EXPECT_EQ(Allocations([&] { got = RunPlanned(*executor, inputs); }), 2);
  EXPECT_THAT(got[0], TensorEq(want[0]));
  EXPECT_EQ(got[0].use_count(), 1u);
  EXPECT_EQ(got[0].storage().use_count(), 1u);
  const auto use = executor->memory_use();
  EXPECT_EQ(*std::max_element(use.live.begin(), use.live.end()), 2 * kElements * 4);
  EXPECT_EQ(use.outputs[0].bytes, kElements * 4);

  // Where the result is wanted, its operand is computed already.
  const at::Tensor target = at::zeros({kElements});
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    EXPECT_EQ(Allocations([&] { got = executor->Run(inputs, {target}); }), 1);
  }
  EXPECT_TRUE(got[0].is_alias_of(target));
  EXPECT_THAT(target, TensorEq(want[0]));
  // Not over an operand that is returned itself.
  const auto both = MakeGraph(inputs, [](fx::Graph& graph, const Nodes& in) -> Nodes {
    fx::Node* first = Call(graph, "aten::sin", {in[0]});
    return {first, Call(graph, "aten::cos", {first})};
  });
  ExpectSame(RunPlanned(*Executor::Compile(both), inputs), Interpreted(*both, inputs));
}

TEST(Executor, ListsAndElements) {
  ExpectAsInterpreted({Ramp({4, 3}), Ramp({2, 3}), at::arange(3)}, [](fx::Graph& graph, const Nodes& in) -> Nodes {
    fx::Node* cat = Call(graph, "aten::cat", {Argument::List({in[0], Call(graph, "aten::sin", {in[1]}), in[1]}), IValue(0)});
    fx::Node* picked = Call(graph, "aten::index", {cat, Argument::List({Argument(), in[2]})}, "Tensor");
    fx::Node* sorted = Call(graph, "aten::sort", {picked, IValue(0), IValue(true)});
    return {cat, picked, Element(graph, sorted, 0), Element(graph, sorted, 1)};
  });
}

TEST(Executor, WhatBecomesOfResults) {
  const Tensors inputs = {Ramp({4, 3})};
  const auto module = MakeGraph(inputs, [](fx::Graph& graph, const Nodes& in) -> Nodes {
    fx::Node* x = Call(graph, "aten::sin", {in[0]});
    Nodes saved;
    for (int i = 0; i < 3; ++i) saved.push_back(x = Call(graph, "aten::exp", {x}));
    fx::Node *a = Call(graph, "aten::cos", {x}), *b = Call(graph, "aten::neg", {a});
    return {saved[0], saved[1], saved[2], a, b, b, in[0]};
  });
  ExecutorOptions options;
  options.fates = {Fate::kSaved, Fate::kSaved, Fate::kSaved, Fate::kTogether, Fate::kTogether, Fate::kTogether, Fate::kTogether};
  options.freed_at = {3, 2, 1};
  const auto executor = Executor::Compile(module, options);
  const Tensors want = Interpreted(*module, inputs);
  RunPlanned(*executor, inputs);
  Tensors got;
  EXPECT_EQ(Allocations([&] { got = RunPlanned(*executor, inputs); }), 2);
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_THAT(got[i], TensorEq(want[i])) << i;
  EXPECT_TRUE(got[0].is_alias_of(got[2]));
  for (std::size_t i = 3; i < got.size(); ++i) {
    EXPECT_FALSE(got[i].is_alias_of(inputs[0]));
    EXPECT_EQ(got[i].use_count(), 1u);
    for (std::size_t k = 0; k < i; ++k) EXPECT_FALSE(got[i].is_alias_of(got[k]));
  }
  // The memory goes with the last of them, whatever is done to the others.
  const at::Tensor kept = got[4].detach();
  got[5].resize_({1000});
  got.clear();
  RunPlanned(*executor, inputs);
  EXPECT_THAT(kept, TensorEq(want[4]));
}

TEST(Executor, SmallResultsAreAllocatedTogether) {
  const Tensors inputs = {Ramp({4, 3})};
  const auto module = MakeGraph(inputs, [](fx::Graph& graph, const Nodes& in) -> Nodes {
    fx::Node* x = Call(graph, "aten::sin", {in[0]});
    return {x, Call(graph, "aten::t", {x}), Call(graph, "aten::cos", {x}), in[0], Call(graph, "aten::exp", {x})};
  });
  const auto executor = Executor::Compile(module);
  Tensors got;
  RunPlanned(*executor, inputs);
  EXPECT_EQ(Allocations([&] { got = RunPlanned(*executor, inputs); }), 1);
  ExpectSame(got, Interpreted(*module, inputs));
  // Each is its owner's alone.
  const at::Tensor kept = got[2];
  got[4].resize_({100});
  got.clear();
  RunPlanned(*executor, inputs);
  EXPECT_THAT(kept, TensorEq(at::cos(at::sin(inputs[0]))));
}

TEST(Executor, SeveralThreads) {
  const Tensors inputs = {Ramp({16, 16})};
  const auto module = MakeGraph(inputs, [](fx::Graph& graph, const Nodes& in) -> Nodes {
    fx::Node* x = in[0];
    for (int i = 0; i < 6; ++i) x = Call(graph, "aten::sin", {Call(graph, "aten::mm", {x, Call(graph, "aten::t", {in[0]})})});
    return {x};
  });
  const auto executor = Executor::Compile(module);
  std::vector<std::string> errors(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < errors.size(); ++t) {
    threads.emplace_back([&, t] {
      const Tensors mine = {inputs[0] * (1.0 + 0.25 * static_cast<double>(t))};
      const Tensors want = Interpreted(*module, mine);
      for (int i = 0; i < 200 && errors[t].empty(); ++i) {
        if (!at::equal(RunPlanned(*executor, mine)[0], want[0])) errors[t] = "another result";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(Executor, OtherInputsThanToldAreInterpreted) {
  const Tensors inputs = {Ramp({4, 4}), Ramp({4, 4})};
  const auto module = MakeGraph(inputs, [](fx::Graph& graph, const Nodes& in) -> Nodes {
    return {Call(graph, "aten::t", {Call(graph, "aten::sin", {Call(graph, "aten::add", {in[0], in[1]}, "Tensor")})})};
  });
  const auto executor = Executor::Compile(module);
  for (const at::Tensor& other : {Ramp({1, 4}), Ramp({4, 4}).t(), Ramp({4, 1}), Ramp({4, 4}).to(at::kDouble), at::_neg_view(Ramp({4, 4}))}) {
    ExpectSame(RunPlanned(*executor, {inputs[0], other}), Interpreted(*module, {inputs[0], other}));
  }
  const auto mode = FakeTensorMode::Create();
  const Tensors fakes = RunPlanned(*executor, {mode->FromReal(inputs[0]), mode->FromReal(inputs[1])});
  EXPECT_TRUE(IsFake(fakes[0]));
  EXPECT_EQ(fakes[0].sizes(), at::IntArrayRef({4, 4}));
  // A part of a larger tensor is one like any other.
  const at::Tensor large = Ramp({10, 4});
  ExpectSame(RunPlanned(*executor, {inputs[0], large.narrow(0, 3, 4)}), Interpreted(*module, {inputs[0], large.narrow(0, 3, 4)}));
}

TEST(Executor, ErrorsNameTheNodeAndSpoilNothing) {
  const Tensors inputs = {Ramp({4, 3}), at::arange(3)};
  const auto module = MakeGraph(inputs, [](fx::Graph& graph, const Nodes& in) -> Nodes {
    return {Call(graph, "aten::index_select", {Call(graph, "aten::sin", {in[0]}), IValue(0), in[1]})};
  });
  const auto executor = Executor::Compile(module);
  EXPECT_THAT(ErrorOf([&] { RunPlanned(*executor, {inputs[0], inputs[1] + 7}); }), HasSubstr("While executing %index_select"));
  ExpectSame(RunPlanned(*executor, inputs), Interpreted(*module, inputs));
}

TEST(Executor, WhatIsNotPlannedIsInterpreted) {
  const Tensors inputs = {at::view_as_complex(Ramp({4, 2}))};
  const auto module = MakeGraph(inputs, [](fx::Graph& graph, const Nodes& in) -> Nodes {
    return {Call(graph, "aten::mul", {Call(graph, "aten::_conj", {in[0]}), in[0]}, "Tensor")};
  });
  const auto executor = Executor::Compile(module);
  EXPECT_THAT(executor->why_interpreted(), HasSubstr("conjugated"));
  ExpectSame(RunPlanned(*executor, inputs), Interpreted(*module, inputs));
}

TEST(Executor, TheWorkspaceGoesWithThoseThatNeedIt) {
  const int64_t before = IdleWorkspaceBytes();
  const Tensors inputs = {Ramp({500, 500})};
  auto executor = Executor::Compile(MakeGraph(inputs, [](fx::Graph& graph, const Nodes& in) -> Nodes {
    return {Call(graph, "aten::cos", {Call(graph, "aten::sin", {in[0]})})};
  }));
  EXPECT_EQ(IdleWorkspaceBytes(), before);
  RunPlanned(*executor, inputs);
  EXPECT_GE(IdleWorkspaceBytes(), 500 * 500 * 4);
  executor.reset();
  EXPECT_EQ(IdleWorkspaceBytes(), before);
}

}  // namespace
}  // namespace ddpopt
