// One graph, called by several threads at once, each with modes of its own.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "ATen/autocast_mode.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "c10/core/InferenceMode.h"
#include "fx_graph/graph_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "interpreter/interpreter.h"
#include "testing/calls.h"
#include "torch/csrc/autograd/autograd.h"

namespace ddpopt {
namespace {

using c10::IValue;
using fx::Argument;
using testing::FindOperator;

fx::Node* Opaque(fx::Graph& g, const char* text, std::vector<Argument> args) {
  return g.CreateNode(fx::Op::kCallFunction, fx::OpaqueTarget{text}, std::move(args));
}

// y = cond(p, exp, neg)(mm(x, w)), then without gradients y * 2, then mm under autocast: (y, y * 2, mm(x, w) in bfloat16).
class ThreadsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    gm_ = std::make_unique<fx::GraphModule>();
    ASSERT_TRUE(gm_->AddAttr("w", w_, fx::GraphModule::AttrKind::kParameter).ok());
    for (const char* name : {"exp", "neg"}) {
      auto branch = std::make_shared<fx::GraphModule>();
      fx::Node* a = branch->graph().Placeholder("a");
      branch->graph().Output(Argument::Tuple({branch->graph().CallFunction(FindOperator(absl::StrCat("aten::", name).c_str()), {a})}));
      ASSERT_TRUE(gm_->AddSubmodule(name, {branch, nullptr}).ok());
    }
    fx::Graph& g = gm_->graph();
    fx::Node* p = g.Placeholder("p");
    fx::Node* x = g.Placeholder("x");
    fx::Node* w = g.GetAttr("w");
    fx::Node* mm = g.CallFunction(FindOperator("aten::mm"), {x, w});
    fx::Node* both =
        g.CreateNode(fx::Op::kCallFunction, fx::HigherOrderTarget{"cond"}, {p, g.GetAttr("exp"), g.GetAttr("neg"), Argument::Tuple({mm})});
    fx::Node* y = g.CreateNode(fx::Op::kCallFunction, fx::OpaqueTarget{"operator.getitem"}, {both, IValue(0)});
    Opaque(g, "torch._C._set_grad_enabled", {IValue(false)});
    fx::Node* doubled = g.CallFunction(FindOperator("aten::mul", "Tensor"), {y, IValue(2)});
    Opaque(g, "torch._C._set_grad_enabled", {IValue(true)});
    fx::Node* entered = Opaque(g, "torch.amp.autocast_mode._enter_autocast",
                               {IValue("cpu"), IValue(static_cast<int64_t>(at::kBFloat16)), IValue(true), Argument()});
    fx::Node* half = g.CallFunction(FindOperator("aten::mm"), {x, w});
    Opaque(g, "torch._C._exit_autocast", {entered});
    g.Output(Argument::Tuple({y, doubled, half}));
  }

  std::unique_ptr<fx::GraphModule> gm_;
  const at::Tensor w_ = at::arange(9, at::kFloat).view({3, 3}).div(9).requires_grad_();
};

TEST_F(ThreadsTest, ResultsGradientsAndModesAreEachThreadsOwn) {
  constexpr int kThreads = 8, kCalls = 50;
  std::atomic<int> waiting{kThreads};
  std::vector<std::string> wrong(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto fail = [&](const char* what, int call) {
        if (wrong[t].empty()) wrong[t] = absl::StrCat("thread ", t, ", call ", call, ": ", what);
      };
      --waiting;
      while (waiting > 0) {
      }  // all begin together, on a graph that nobody has run yet
      for (int call = 0; call < kCalls; ++call) {
        const bool p = (call + t) % 2 == 0;
        const at::Tensor x = at::full({2, 3}, 0.1 * t + 0.01 * call);
        const at::Tensor product = at::mm(x, w_);
        const at::Tensor expected = p ? product.exp() : product.neg();
        if (t % 3 == 0) {  // as in training
          const auto result = CallGraphModule(*gm_, {p, x}).toTupleRef().elements().vec();
          if (!at::equal(result[0].toTensor(), expected)) fail("another value", call);
          if (!result[0].toTensor().requires_grad() || result[1].toTensor().requires_grad()) fail("another grad mode", call);
          const at::Tensor gradient = torch::autograd::grad({result[0].toTensor().sum()}, {w_})[0];
          if (!at::equal(gradient, torch::autograd::grad({expected.sum()}, {w_})[0])) fail("another gradient", call);
          if (result[2].toTensor().scalar_type() != at::kBFloat16) fail("no autocast", call);
          if (!c10::GradMode::is_enabled() || at::autocast::is_autocast_enabled(at::kCPU)) fail("modes were left changed", call);
        } else if (t % 3 == 1) {
          const c10::InferenceMode inference;
          const auto result = CallGraphModule(*gm_, {p, x}).toTupleRef().elements().vec();
          if (!at::equal(result[0].toTensor(), expected)) fail("another value", call);
          if (!result[0].toTensor().is_inference()) fail("no inference mode", call);
        } else {
          at::autocast::set_autocast_enabled(at::kCPU, true);
          const auto result = CallGraphModule(*gm_, {p, x}).toTupleRef().elements().vec();
          if (result[0].toTensor().scalar_type() != at::kBFloat16) fail("no autocast", call);
          if (!at::autocast::is_autocast_enabled(at::kCPU)) fail("autocast was left off", call);
          at::autocast::clear_cache();
          at::autocast::set_autocast_enabled(at::kCPU, false);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : wrong) EXPECT_EQ(text, "");
}

// The same program under each mode of the caller's.
TEST_F(ThreadsTest, TheCallersModesHold) {
  const at::Tensor x = at::ones({2, 3});
  const auto run = [&] { return CallGraphModule(*gm_, {true, x}).toTupleRef().elements()[0].toTensor(); };
  EXPECT_TRUE(run().requires_grad());
  {
    const c10::NoGradGuard no_grad;
    EXPECT_FALSE(run().requires_grad());
  }
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(run().is_inference());
  }
  EXPECT_FALSE(run().is_inference());
}

}  // namespace
}  // namespace ddpopt
