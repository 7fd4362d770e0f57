#include "interpreter/interpreter.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "fx_graph/graph_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"

namespace ddpopt {
namespace {

using testing::ErrorOf;
using testing::FindOperator;
using c10::IValue;
using fx::Argument;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::size_t Count(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

fx::Node* GetItem(fx::Graph& g, fx::Node* from, int64_t index) {
  return g.CreateNode(fx::Op::kCallFunction, fx::OpaqueTarget{"operator.getitem"}, {from, IValue(index)}, {}, "getitem");
}

TEST(Interpreter, RunsEveryExecutableKind) {
  fx::GraphModule gm;
  const at::Tensor w = at::full({2, 3}, 2.0);
  ASSERT_TRUE(gm.AddAttr("layer.weight", w, fx::GraphModule::AttrKind::kParameter).ok());
  auto inner = std::make_shared<fx::GraphModule>();
  fx::Node* in = inner->graph().Placeholder("a");
  inner->graph().Output(inner->graph().CallFunction(FindOperator("aten::relu"), {in}));
  ASSERT_TRUE(gm.AddSubmodule("act", {inner, nullptr}).ok());

  fx::Graph& g = gm.graph();
  fx::Node* x = g.Placeholder("x");
  fx::Node* weight = g.GetAttr("layer.weight");
  fx::Node* mul = g.CallFunction(FindOperator("aten::mul", "Tensor"), {x, weight});
  fx::Node* act = g.CallModule("act", {mul});
  fx::Node* cat = g.CallFunction(FindOperator("aten::cat"), {Argument::List({act, act})}, {{"dim", IValue(1)}});
  fx::Node* max = g.CallFunction(FindOperator("aten::max", "dim"), {cat, IValue(1)});
  fx::Node* values = GetItem(g, max, 0);
  fx::Node* indices = GetItem(g, max, -1);
  g.Output(Argument::Tuple({values, indices, IValue(7)}));

  const at::Tensor input = at::arange(6, at::kFloat).view({2, 3}) - 2;
  const IValue result = Interpreter(gm).Run({input});
  const auto [want_values, want_indices] = at::cat({at::relu(input * w), at::relu(input * w)}, 1).max(1);
  const auto& elements = result.toTupleRef().elements();
  EXPECT_TRUE(at::equal(elements[0].toTensor(), want_values));
  EXPECT_TRUE(at::equal(elements[1].toTensor(), want_indices));
  EXPECT_EQ(elements[2].toInt(), 7);
}

// tmp = mm(x, w.t()); return tmp + where(tmp < 0.5, 0.3, 0.6)
TEST(SeedCase, InterpretedOnRealTensors) {
  fx::GraphModule gm;
  at::Tensor w = (at::arange(12, at::kFloat).view({3, 4}) / 12).requires_grad_();
  ASSERT_TRUE(gm.AddAttr("w", w, fx::GraphModule::AttrKind::kParameter).ok());
  fx::Graph& g = gm.graph();
  fx::Node* x = g.Placeholder("x");
  fx::Node* t = g.CallFunction(FindOperator("aten::t"), {g.GetAttr("w")});
  fx::Node* tmp = g.CallFunction(FindOperator("aten::mm"), {x, t});
  fx::Node* less = g.CallFunction(FindOperator("aten::lt", "Scalar"), {tmp, IValue(0.5)});
  fx::Node* where = g.CallFunction(FindOperator("aten::where", "Scalar"), {less, IValue(0.3), IValue(0.6)});
  g.Output(g.CallFunction(FindOperator("aten::add", "Tensor"), {tmp, where}));

  const at::Tensor input = at::arange(8, at::kFloat).view({2, 4}) / 10;
  const at::Tensor result = Interpreter(gm).Run({input}).toTensor();
  const at::Tensor want_tmp = at::mm(input, w.t());
  const at::Tensor want = want_tmp + at::where(want_tmp < 0.5, 0.3, 0.6);
  EXPECT_TRUE(at::equal(result, want));
  result.sum().backward();
  const at::Tensor grad = w.grad().clone();
  w.mutable_grad().reset();
  want.sum().backward();
  EXPECT_TRUE(at::equal(grad, w.grad()));
}

// Remembers weakly what each node gave, and looks at every step which of it is still alive.
class Watcher : public Interpreter {
 public:
  using Interpreter::Interpreter;
  std::vector<std::string> alive_when_called(const std::string& node) { return alive_[node]; }

 protected:
  IValue RunNode(const fx::Node& node) override {
    IValue value = Interpreter::RunNode(node);
    for (const auto& [name, weak] : seen_) {
      if (!weak.expired()) alive_[node.name()].push_back(name);
    }
    if (value.isTensor()) seen_.emplace(node.name(), c10::weak_intrusive_ptr<at::TensorImpl>(value.toTensor().getIntrusivePtr()));
    return value;
  }

 private:
  std::map<std::string, c10::weak_intrusive_ptr<at::TensorImpl>> seen_;
  std::map<std::string, std::vector<std::string>> alive_;
};

TEST(Interpreter, FreesValuesAfterTheirLastUse) {
  fx::GraphModule gm;
  fx::Graph& g = gm.graph();
  fx::Node* x = g.Placeholder("x");
  fx::Node* a = g.CallFunction(FindOperator("aten::exp"), {x});
  fx::Node* unused = g.CallFunction(FindOperator("aten::neg"), {x});
  fx::Node* b = g.CallFunction(FindOperator("aten::exp"), {a});
  fx::Node* c = g.CallFunction(FindOperator("aten::add", "Tensor"), {b, a});
  fx::Node* d = g.CallFunction(FindOperator("aten::exp"), {c});
  g.Output(d);

  at::NoGradGuard no_grad;
  Watcher watcher(gm);
  // An initializer list would keep a copy of its own until the statement ends.
  std::vector<IValue> inputs(1, IValue(at::ones({2})));
  watcher.Run(std::move(inputs));
  EXPECT_THAT(watcher.alive_when_called(unused->name()), ElementsAre(a->name()));
  EXPECT_THAT(watcher.alive_when_called(b->name()), ElementsAre(a->name()));
  EXPECT_THAT(watcher.alive_when_called(c->name()), ElementsAre());
  EXPECT_THAT(watcher.alive_when_called(d->name()), ElementsAre());
}

class LastReference : public fx::Callable {
 public:
  IValue Call(std::vector<IValue> args) const override {
    uses = args.at(0).toTensor().use_count();
    return std::move(args.at(0));
  }
  mutable std::size_t uses = 0;
};

TEST(Interpreter, GivesACallableTheLastReference) {
  fx::GraphModule gm;
  auto callable = std::make_shared<LastReference>();
  ASSERT_TRUE(gm.AddSubmodule("piece", {nullptr, callable}).ok());
  fx::Graph& g = gm.graph();
  fx::Node* x = g.Placeholder("x");
  g.Output(g.CallModule("piece", {g.CallFunction(FindOperator("aten::exp"), {x})}));
  Interpreter interpreter(gm);
  const at::Tensor result = interpreter.Run({at::ones({2})}).toTensor();
  EXPECT_EQ(callable->uses, 1u);
  EXPECT_EQ(result.use_count(), 1u);
}

TEST(Interpreter, PrefersTheCallableToTheGraph) {
  fx::GraphModule gm;
  auto graph = std::make_shared<fx::GraphModule>();
  graph->graph().Output(graph->graph().CallMethod("never", {graph->graph().Placeholder("x")}));
  ASSERT_TRUE(gm.AddSubmodule("piece", {graph, std::make_shared<LastReference>()}).ok());
  gm.graph().Output(gm.graph().CallModule("piece", {gm.graph().Placeholder("x")}));
  EXPECT_EQ(Interpreter(gm).Run({at::ones({2})}).toTensor().numel(), 2);
}

TEST(Interpreter, RunsAgainAfterAnError) {
  fx::GraphModule gm;
  fx::Graph& g = gm.graph();
  g.Output(g.CallFunction(FindOperator("aten::mm"), {g.Placeholder("x"), g.Placeholder("y")}));
  Interpreter interpreter(gm);
  at::Tensor bad = at::ones({3});
  EXPECT_THROW(interpreter.Run({bad, bad}), c10::Error);
  EXPECT_EQ(bad.use_count(), 1u);
  EXPECT_EQ(interpreter.Run({at::ones({2, 2}), at::ones({2, 2})}).toTensor().sum().item<float>(), 8);
}

TEST(Interpreter, ErrorNamesTheNodeAndSaysTheCauseOnce) {
  fx::GraphModule gm;
  auto inner = std::make_shared<fx::GraphModule>();
  fx::Node* a = inner->graph().Placeholder("a");
  inner->graph().Output(inner->graph().CallFunction(FindOperator("aten::mm"), {a, a}));
  ASSERT_TRUE(gm.AddSubmodule("inner", {inner, nullptr}).ok());
  gm.graph().Output(gm.graph().CallModule("inner", {gm.graph().Placeholder("x")}));
  const std::string error = ErrorOf([&] { Interpreter(gm).Run({at::ones({2, 3})}); });
  EXPECT_THAT(error,
              AllOf(HasSubstr("While executing %mm_default : "), HasSubstr("target=torch.ops.aten.mm.default"), HasSubstr("While executing %inner : ")));
  EXPECT_EQ(Count(error, "cannot be multiplied"), 1u) << error;
}

TEST(Interpreter, KeepsTheExceptionsType) {
  fx::GraphModule gm;
  gm.graph().Output(GetItem(gm.graph(), gm.graph().Placeholder("x"), 2));
  EXPECT_THROW(Interpreter(gm).Run({c10::ivalue::Tuple::create({IValue(1)})}), c10::IndexError);
}

TEST(Interpreter, RefusesOpaqueMethodAndHigherOrderTargetsByName) {
  const auto run = [](fx::Op op, fx::Target target) {
    fx::GraphModule gm;
    fx::Node* x = gm.graph().Placeholder("x");
    gm.graph().Output(gm.graph().CreateNode(op, std::move(target), {x}));
    return ErrorOf([&] { Interpreter(gm).Run({at::ones({2})}); });
  };
  EXPECT_THAT(run(fx::Op::kCallFunction, fx::OpaqueTarget{"torch.frobnicate"}), HasSubstr("opaque target 'torch.frobnicate'"));
  EXPECT_THAT(run(fx::Op::kCallMethod, fx::MethodTarget{"view_as"}), HasSubstr("method target 'view_as'"));
  EXPECT_THAT(run(fx::Op::kCallFunction, fx::HigherOrderTarget{"cond"}), HasSubstr("higher-order target"));
}

TEST(Interpreter, ChecksInputsAttributesAndKeywords) {
  fx::GraphModule gm;
  fx::Graph& g = gm.graph();
  fx::Node* x = g.Placeholder("x");
  fx::Node* y = g.Placeholder("y");
  g.Output(Argument::Tuple({x, y}));
  EXPECT_THAT(ErrorOf([&] { Interpreter(gm).Run({1}); }), HasSubstr("input 'y'"));
  EXPECT_THAT(ErrorOf([&] { Interpreter(gm).Run({1, 2, 3}); }), HasSubstr("takes 2 inputs, but 3"));

  fx::GraphModule missing;
  missing.graph().Output(missing.graph().GetAttr("nowhere"));
  EXPECT_THAT(ErrorOf([&] { Interpreter(missing).Run({}); }), HasSubstr("nowhere"));

  fx::GraphModule keyword;
  ASSERT_TRUE(keyword.AddSubmodule("piece", {nullptr, std::make_shared<LastReference>()}).ok());
  keyword.graph().Output(keyword.graph().CallModule("piece", {}, {{"scale", keyword.graph().Placeholder("x")}}));
  EXPECT_THAT(ErrorOf([&] { Interpreter(keyword).Run({at::ones({2})}); }), AllOf(HasSubstr("'piece'"), HasSubstr("'scale'")));
}

TEST(Interpreter, HooksSeeTheirNodes) {
  class Doubler : public Interpreter {
   public:
    using Interpreter::Interpreter;

   protected:
    IValue RunCallFunction(const fx::Node& node, Values args, NamedValues kwargs) override {
      return Interpreter::RunCallFunction(node, std::move(args), std::move(kwargs)).toTensor() * 2;
    }
  };
  fx::GraphModule gm;
  gm.graph().Output(gm.graph().CallFunction(FindOperator("aten::relu"), {gm.graph().Placeholder("x")}));
  EXPECT_TRUE(at::equal(Doubler(gm).Run({at::ones({2})}).toTensor(), at::full({2}, 2.0)));
}

}  // namespace
}  // namespace ddpopt
