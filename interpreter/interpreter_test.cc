#include "interpreter/interpreter.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "c10/core/CPUAllocator.h"
#include "c10/core/GradMode.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "fx_graph/constants.h"
#include "fx_graph/graph_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"

namespace ddpopt {
namespace {

using c10::IValue;
using fx::Argument;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::ErrorOf;
using testing::FindOperator;
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
  std::vector<std::string> alive_when_called(absl::string_view node) { return alive_[std::string(node)]; }

 protected:
  IValue RunNode(const fx::Node& node) override {
    IValue value = Interpreter::RunNode(node);
    for (const auto& [name, weak] : seen_) {
      if (!weak.expired()) alive_[std::string(node.name())].push_back(name);
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
  EXPECT_THAT(error, AllOf(HasSubstr("While executing %mm_default : "), HasSubstr("target=torch.ops.aten.mm.default"),
                           HasSubstr("While executing %inner : ")));
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
  EXPECT_THAT(run(fx::Op::kCallFunction, fx::HigherOrderTarget{"frobnicate"}), HasSubstr("higher-order target 'frobnicate'"));
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
    IValue RunCallFunction(const fx::Node& node, Arguments& arguments) override {
      return Interpreter::RunCallFunction(node, arguments).toTensor() * 2;
    }
  };
  fx::GraphModule gm;
  gm.graph().Output(gm.graph().CallFunction(FindOperator("aten::relu"), {gm.graph().Placeholder("x")}));
  EXPECT_TRUE(at::equal(Doubler(gm).Run({at::ones({2})}).toTensor(), at::full({2}, 2.0)));
}

TEST(Interpreter, HooksMayChangeArguments) {
  class Negator : public Interpreter {
   public:
    using Interpreter::Interpreter;

   protected:
    IValue RunCallFunction(const fx::Node& node, Arguments& arguments) override {
      arguments.args()[0] = at::neg(arguments.args()[0].toTensor());
      arguments.kwargs().emplace_back("alpha", IValue(3));
      return Interpreter::RunCallFunction(node, arguments);
    }
  };
  fx::GraphModule gm;
  fx::Node* x = gm.graph().Placeholder("x");
  gm.graph().Output(gm.graph().CallFunction(FindOperator("aten::add", "Tensor"), {x, IValue(1)}));
  EXPECT_TRUE(at::equal(Negator(gm).Run({at::ones({2})}).toTensor(), at::full({2}, 2.0)));
}

// What is the graph's state: a plan made for it must not outlive an edit.
TEST(Interpreter, SeesEditsBetweenRuns) {
  fx::GraphModule gm;
  fx::Graph& g = gm.graph();
  fx::Node* x = g.Placeholder("x");
  fx::Node* add = g.CallFunction(FindOperator("aten::add", "Tensor"), {x, IValue(1)});
  fx::Node* output = g.Output(add);
  Interpreter interpreter(gm);
  const auto run = [&] { return interpreter.Run({at::ones({})}).toTensor().item<float>(); };
  EXPECT_EQ(run(), 2);
  add->set_args({x, IValue(5)});
  EXPECT_EQ(run(), 6);
  add->set_target(fx::OperatorTarget{FindOperator("aten::mul", "Tensor")});
  EXPECT_EQ(run(), 5);
  fx::Node* old = g.SetInsertBefore(output);
  fx::Node* twice = g.CallFunction(FindOperator("aten::add", "Tensor"), {add, add});
  g.SetInsertBefore(old);
  output->set_args({Argument::Tuple({twice})});
  EXPECT_EQ(interpreter.Run({at::ones({})}).toTupleRef().elements()[0].toTensor().item<float>(), 10);
}

TEST(Interpreter, TheSameValueTwiceInItsLastUse) {
  fx::GraphModule gm;
  fx::Graph& g = gm.graph();
  fx::Node* x = g.CallFunction(FindOperator("aten::neg"), {g.Placeholder("x")});
  fx::Node* cat = g.CallFunction(FindOperator("aten::cat"), {Argument::List({x, x})});
  fx::Node* add = g.CallFunction(FindOperator("aten::add", "Tensor"), {cat, cat}, {{"alpha", IValue(2)}});
  // Nested and bare, in both orders.
  fx::Node* index = g.CallFunction(FindOperator("aten::index", "Tensor"), {add, Argument::List({add})});
  g.Output(Argument::Tuple({index}));
  const std::string error = ErrorOf([&] { Interpreter(gm).Run({at::ones({2})}); });
  EXPECT_THAT(error, HasSubstr("tensors used as indices must be"));
}

TEST(Interpreter, StartsWithGivenValues) {
  fx::GraphModule gm;
  fx::Graph& g = gm.graph();
  fx::Node* x = g.Placeholder("x");
  fx::Node* y = g.Placeholder("y");
  fx::Node* never = g.CallMethod("never", {x});
  fx::Node* sum = g.CallFunction(FindOperator("aten::add", "Tensor"), {never, y});
  fx::Node* output = g.Output(sum);
  Interpreter interpreter(gm);
  const IValue result = interpreter.Run({at::full({}, 3)}, {{x, at::ones({})}, {never, at::full({}, 4)}});
  EXPECT_EQ(result.toTensor().item<float>(), 7);
  // A None is a value too.
  EXPECT_TRUE(interpreter.Run({}, {{x, IValue()}, {y, IValue()}, {never, IValue()}, {sum, IValue()}}).isNone());
  EXPECT_EQ(interpreter.Run({}, {{x, IValue()}, {y, IValue()}, {never, IValue()}, {sum, IValue()}, {output, IValue(7)}}).toInt(), 7);
  EXPECT_THAT(ErrorOf([&] { interpreter.Run({1, 2}, {{x, IValue()}}); }), HasSubstr("takes 1 inputs, but 2"));
  fx::Graph other;
  EXPECT_THAT(ErrorOf([&] { interpreter.Run({}, {{other.Placeholder("z"), IValue()}}); }), HasSubstr("not in the graph"));
}

TEST(Interpreter, BoxedRunTakesItsInputs) {
  fx::GraphModule gm;
  fx::Graph& g = gm.graph();
  fx::Node* x = g.Placeholder("x");
  g.Placeholder("unused");
  g.Output(g.CallFunction(FindOperator("aten::neg"), {x}));
  Interpreter interpreter(gm);
  Interpreter::Values inputs{at::ones({2}), at::ones({2})};
  const c10::weak_intrusive_ptr<at::TensorImpl> weak(inputs[0].toTensor().getIntrusivePtr());
  interpreter.RunBoxed(inputs);
  EXPECT_TRUE(inputs.empty());
  EXPECT_TRUE(weak.expired());
  inputs = {at::ones({2})};
  EXPECT_THAT(ErrorOf([&] { interpreter.RunBoxed(inputs); }), HasSubstr("takes 2 inputs, but 1"));
  EXPECT_EQ(inputs.size(), 1u);
}

TEST(Interpreter, KeepsValuesWhenAsked) {
  fx::GraphModule gm;
  fx::Graph& g = gm.graph();
  fx::Node* x = g.Placeholder("x");
  fx::Node* neg = g.CallFunction(FindOperator("aten::neg"), {x});
  fx::Node* unused = g.CallFunction(FindOperator("aten::exp"), {neg});
  g.Output(g.CallFunction(FindOperator("aten::relu"), {neg}));
  Interpreter interpreter(gm, {.garbage_collect_values = false});
  interpreter.Run({at::ones({})});
  EXPECT_EQ(interpreter.ValueOf(x).toTensor().item<float>(), 1);
  EXPECT_EQ(interpreter.ValueOf(neg).toTensor().item<float>(), -1);
  EXPECT_NEAR(interpreter.ValueOf(unused).toTensor().item<float>(), std::exp(-1), 1e-6);
  Interpreter frugal(gm);
  frugal.Run({at::ones({})});
  EXPECT_THAT(ErrorOf([&] { frugal.ValueOf(neg); }), HasSubstr("%neg_default is not there"));
}

// Case 35: an interpreter that keeps every intermediate value.
TEST(Interpreter, PeakOfAChainIsTwoTensors) {
  // Counts what is allocated and not yet freed.
  class Counting : public c10::Allocator {
   public:
    explicit Counting(c10::Allocator* below) : below_(below) {}
    c10::DataPtr allocate(std::size_t bytes) override {
      live_ += bytes;
      peak_ = std::max(peak_, live_);
      auto* block = new Block{this, bytes, below_->allocate(bytes)};
      return {block->data.get(), block, &Free, c10::Device(c10::kCPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
    void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }
    std::size_t peak() const { return peak_; }
    std::size_t live() const { return live_; }

   private:
    struct Block {
      Counting* owner;
      std::size_t bytes;
      c10::DataPtr data;
    };
    static void Free(void* context) {
      auto* block = static_cast<Block*>(context);
      block->owner->live_ -= block->bytes;
      delete block;
    }
    c10::Allocator* below_;
    std::size_t live_ = 0;
    std::size_t peak_ = 0;
  };

  constexpr int64_t kNumel = 1 << 14;
  for (const int count : {1, 2, 3, 50}) {
    fx::GraphModule gm;
    fx::Graph& g = gm.graph();
    fx::Node* node = g.Placeholder("x");
    for (int i = 0; i < count; ++i) {
      switch (i % 3) {
        case 0:
          node = g.CallFunction(FindOperator("aten::neg"), {node});
          break;
        case 1:
          node = g.CallFunction(FindOperator("aten::cat"), {Argument::List({node})});
          break;
        default:
          node = g.CallFunction(FindOperator("aten::mul", "Tensor"), {node, node});
      }
    }
    g.Output(node);

    at::NoGradGuard no_grad;
    Counting counting(c10::GetCPUAllocator());
    c10::SetCPUAllocator(&counting, /*priority=*/1);
    {
      Interpreter interpreter(gm);
      Interpreter::Values inputs{at::ones({kNumel})};
      interpreter.RunBoxed(inputs);
    }
    c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), /*priority=*/1);
    EXPECT_EQ(counting.peak(), 2 * kNumel * sizeof(float)) << count;
    EXPECT_EQ(counting.live(), 0u);
  }
}

TEST(Interpreter, ErrorTellsWhereTheNodeCameFrom) {
  fx::GraphModule gm;
  fx::Graph& g = gm.graph();
  fx::Node* mm = g.CallFunction(FindOperator("aten::mm"), {g.Placeholder("x"), g.Placeholder("y")});
  mm->meta().nn_module = "blocks.0.mlp";
  mm->meta().stack_trace = "File \"net.py\", line 7";
  g.Output(mm);
  const std::string error = ErrorOf([&] { Interpreter(gm).Run({at::ones({2, 3}), at::ones({2, 3})}); });
  EXPECT_THAT(error, AllOf(HasSubstr("cannot be multiplied"), HasSubstr("While executing %mm_default : "),
                           HasSubstr("of module blocks.0.mlp\nOriginal traceback:\nFile \"net.py\", line 7")));
}

TEST(Interpreter, AnythingThrownBecomesACTenError) {
  struct Thrower : fx::Callable {
    explicit Thrower(int kind) : kind(kind) {}
    IValue Call(std::vector<IValue>) const override {
      if (kind == 0) throw std::runtime_error("out of luck");
      throw 7;
    }
    int kind;
  };
  for (const int kind : {0, 1}) {
    fx::GraphModule gm;
    ASSERT_TRUE(gm.AddSubmodule("piece", {nullptr, std::make_shared<Thrower>(kind)}).ok());
    gm.graph().Output(gm.graph().CallModule("piece", {}));
    EXPECT_THAT(ErrorOf([&] { Interpreter(gm).Run({}); }),
                AllOf(HasSubstr(kind == 0 ? "out of luck" : "unknown type"), HasSubstr("While executing %piece")));
  }
}

TEST(Interpreter, RefusesAValueBeforeItsDefinition) {
  fx::GraphModule gm;
  fx::Graph& g = gm.graph();
  fx::Node* x = g.Placeholder("x");
  fx::Node* y = g.CallFunction(FindOperator("aten::neg"), {x});
  g.Output(y);
  g.SetInsertBefore(y);
  g.CallFunction(FindOperator("aten::exp"), {y});
  EXPECT_THAT(ErrorOf([&] { Interpreter(gm).Run({at::ones({2})}); }),
              AllOf(HasSubstr("%neg_default is not there"), HasSubstr("While executing %exp_default")));
}

TEST(Interpreter, BindsKeywordsToANestedGraphsInputs) {
  auto inner = std::make_shared<fx::GraphModule>();
  fx::Node* a = inner->graph().Placeholder("a");
  fx::Node* b = inner->graph().CreateNode(fx::Op::kPlaceholder, fx::PathTarget{"b"}, {IValue(10)});
  fx::Node* c = inner->graph().Placeholder("c");
  fx::Node* scaled = inner->graph().CallFunction(FindOperator("aten::mul", "Tensor"), {a, b});
  inner->graph().Output(inner->graph().CallFunction(FindOperator("aten::add", "Tensor"), {scaled, c}));
  const auto run = [&](std::vector<Argument> args, std::vector<const char*> keywords) {
    fx::GraphModule gm;
    EXPECT_TRUE(gm.AddSubmodule("inner", {inner, nullptr}).ok());
    fx::Node* x = gm.graph().Placeholder("x");
    for (Argument& argument : args) argument = x;
    fx::Kwargs kwargs;
    for (const char* keyword : keywords) kwargs.emplace_back(keyword, x);
    gm.graph().Output(gm.graph().CallModule("inner", std::move(args), std::move(kwargs)));
    return Interpreter(gm).Run({at::full({}, 2)}).toTensor().item<float>();
  };
  const Argument x;
  EXPECT_EQ(run({x}, {"c"}), 22);
  EXPECT_EQ(run({x}, {"c", "b"}), 6);
  EXPECT_EQ(run({}, {"c", "a"}), 22);
  EXPECT_THAT(ErrorOf([&] { run({x}, {"d"}); }), HasSubstr("no value was given for input 'c'"));
  EXPECT_THAT(ErrorOf([&] { run({x, x, x}, {"d"}); }), HasSubstr("no input 'd'"));
  EXPECT_THAT(ErrorOf([&] { run({x, x, x}, {"a"}); }), HasSubstr("'a' was given twice"));
  EXPECT_THAT(ErrorOf([&] { run({x, x, x, x}, {"a"}); }), HasSubstr("'a'"));
}

TEST(Interpreter, AStarredPlaceholderTakesTheRest) {
  fx::GraphModule gm;
  fx::Graph& g = gm.graph();
  g.Placeholder("x");
  g.Output(g.CreateNode(fx::Op::kPlaceholder, fx::PathTarget{"*args"}));
  EXPECT_EQ(Interpreter(gm).Run({1, 2, 3}).toListRef().size(), 2u);
  EXPECT_EQ(Interpreter(gm).Run({1}).toListRef().size(), 0u);
}

fx::Node* Opaque(fx::Graph& g, const char* text, std::vector<Argument> args) {
  return g.CreateNode(fx::Op::kCallFunction, fx::OpaqueTarget{text}, std::move(args));
}

TEST(Interpreter, SetsModesWhereTheGraphSays) {
  fx::GraphModule gm;
  fx::Graph& g = gm.graph();
  fx::Node* x = g.Placeholder("x");
  fx::Node* entered = Opaque(g, "torch.amp.autocast_mode._enter_autocast",
                             {IValue("cpu"), IValue(static_cast<int64_t>(at::kBFloat16)), IValue(true), Argument()});
  fx::Node* half = g.CallFunction(FindOperator("aten::mm"), {x, x});
  Opaque(g, "torch.amp.autocast_mode._exit_autocast", {entered});
  Opaque(g, "torch._C._set_grad_enabled", {IValue(false)});
  fx::Node* no_grad = g.CallFunction(FindOperator("aten::mm"), {x, x});
  Opaque(g, "torch._C._set_grad_enabled", {IValue(true)});
  fx::Node* grad = g.CallFunction(FindOperator("aten::mm"), {x, x});
  g.Output(Argument::Tuple({half, no_grad, grad}));
  const auto result = Interpreter(gm).Run({at::ones({2, 2}).requires_grad_()}).toTupleRef().elements().vec();
  EXPECT_EQ(result[0].toTensor().scalar_type(), at::kBFloat16);
  EXPECT_EQ(result[1].toTensor().scalar_type(), at::kFloat);
  EXPECT_FALSE(result[1].toTensor().requires_grad());
  EXPECT_TRUE(result[2].toTensor().requires_grad());
}

// A graph that ends, or throws, in a region leaves the thread's modes as they were (case 29: modes that leak).
TEST(Interpreter, ModesEndWithTheRun) {
  for (const bool throws : {false, true}) {
    fx::GraphModule gm;
    fx::Graph& g = gm.graph();
    fx::Node* x = g.Placeholder("x");
    Opaque(g, "torch._C._set_grad_enabled", {IValue(false)});
    Opaque(g, "torch.amp.autocast_mode._enter_autocast", {IValue("cpu"), Argument(), IValue(true), Argument()});
    fx::Node* mm = g.CallFunction(FindOperator("aten::mm"), {x, x});
    g.Output(mm);
    Interpreter interpreter(gm);
    EXPECT_EQ(ErrorOf([&] { interpreter.Run({at::ones({2, throws ? 3 : 2})}); }).empty(), !throws);
    EXPECT_TRUE(c10::GradMode::is_enabled());
    EXPECT_FALSE(c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::AutocastCPU));
    EXPECT_EQ(at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type(), at::kFloat);
  }
}

// The graphs that a higher-order operator names, and the operator's node over them.
class HigherOrderTest : public ::testing::Test {
 protected:
  // f(a) = op(a)
  void AddGraph(const char* path, const char* op) {
    auto inner = std::make_shared<fx::GraphModule>();
    fx::Node* a = inner->graph().Placeholder("a");
    inner->graph().Output(Argument::Tuple({inner->graph().CallFunction(FindOperator(op), {a})}));
    ASSERT_TRUE(gm_.AddSubmodule(path, {inner, nullptr}).ok());
  }
  fx::Node* Call(const char* name, std::vector<Argument> args, fx::Kwargs kwargs = {}) {
    return g_.CreateNode(fx::Op::kCallFunction, fx::HigherOrderTarget{name}, std::move(args), std::move(kwargs));
  }
  at::Tensor Run(std::vector<IValue> inputs) { return Interpreter(gm_).Run(std::move(inputs)).toTupleRef().elements().at(0).toTensor(); }

  fx::GraphModule gm_;
  fx::Graph& g_ = gm_.graph();
};

TEST_F(HigherOrderTest, CondRunsOneBranch) {
  AddGraph("yes", "aten::exp");
  AddGraph("no", "aten::neg");
  fx::Node* p = g_.Placeholder("p");
  fx::Node* x = g_.Placeholder("x");
  g_.Output(Call("cond", {p, g_.GetAttr("yes"), g_.GetAttr("no"), Argument::Tuple({x})}));
  const at::Tensor one = at::ones({});
  for (const IValue& truth : {IValue(true), IValue(2), IValue(at::full({1}, true)), IValue(at::full({}, 0.5))}) {
    EXPECT_TRUE(at::equal(Run({truth, one}), at::exp(one)));
  }
  for (const IValue& truth : {IValue(false), IValue(0), IValue(at::full({}, false))})
    EXPECT_TRUE(at::equal(Run({truth, one}), at::neg(one)));
  EXPECT_THAT(ErrorOf([&] {
                Run({at::ones({2}), one});
              }),
              AllOf(HasSubstr("tensor of one element, not of 2"), HasSubstr("While executing %cond")));
  EXPECT_THAT(ErrorOf([&] { Run({"yes", one}); }), HasSubstr("not String"));
}

TEST_F(HigherOrderTest, CondGivesZerosToWhatItsBranchDoesNotUse) {
  for (const bool first : {true, false}) {
    auto branch = std::make_shared<fx::GraphModule>();
    fx::Node* a = branch->graph().Placeholder("a");
    fx::Node* b = branch->graph().Placeholder("b");
    branch->graph().Placeholder("c");
    branch->graph().Output(Argument::Tuple({branch->graph().CallFunction(FindOperator("aten::exp"), {first ? a : b})}));
    ASSERT_TRUE(gm_.AddSubmodule(first ? "yes" : "no", {branch, nullptr}).ok());
  }
  fx::Node* p = g_.Placeholder("p");
  const std::vector<Argument> operands = {g_.Placeholder("a"), g_.Placeholder("b"), g_.Placeholder("c")};
  g_.Output(Call("cond", {p, g_.GetAttr("yes"), g_.GetAttr("no"), Argument::List(operands)}));
  const at::Tensor a = at::ones({2}).set_requires_grad(true), b = at::ones({3}).set_requires_grad(true), c = at::ones({2});
  at::sum(Run({true, a, b, c})).backward();
  EXPECT_TRUE(at::equal(a.grad(), at::exp(at::ones({2}))));
  ASSERT_TRUE(b.grad().defined());
  EXPECT_TRUE(at::equal(b.grad(), at::zeros({3})));
  EXPECT_FALSE(c.grad().defined());
}

TEST_F(HigherOrderTest, WhileLoopCarriesItsValues) {
  auto condition = std::make_shared<fx::GraphModule>();
  fx::Node* i = condition->graph().Placeholder("i");
  fx::Node* limit = condition->graph().Placeholder("limit");
  condition->graph().Output(condition->graph().CallFunction(FindOperator("aten::lt", "Tensor"), {i, limit}));
  ASSERT_TRUE(gm_.AddSubmodule("condition", {condition, nullptr}).ok());
  auto body = std::make_shared<fx::GraphModule>();
  i = body->graph().Placeholder("i");
  body->graph().Placeholder("limit");
  body->graph().Output(Argument::Tuple({body->graph().CallFunction(FindOperator("aten::add", "Tensor"), {i, IValue(2)})}));
  ASSERT_TRUE(gm_.AddSubmodule("body", {body, nullptr}).ok());
  fx::Node* x = g_.Placeholder("x");
  fx::Node* y = g_.Placeholder("y");
  g_.Output(Call("while_loop", {g_.GetAttr("condition"), g_.GetAttr("body"), Argument::Tuple({x}), Argument::Tuple({y})}));
  EXPECT_EQ(Run({at::full({}, 1), at::full({}, 6)}).item<float>(), 7);
  EXPECT_EQ(Run({at::full({}, 9), at::full({}, 6)}).item<float>(), 9);
}

TEST_F(HigherOrderTest, MapCallsItsGraphOnEachSlice) {
  auto body = std::make_shared<fx::GraphModule>();
  fx::Node* row = body->graph().Placeholder("row");
  fx::Node* w = body->graph().Placeholder("w");
  fx::Node* product = body->graph().CallFunction(FindOperator("aten::mul", "Tensor"), {row, w});
  body->graph().Output(Argument::Tuple({product, body->graph().CallFunction(FindOperator("aten::sum"), {product})}));
  ASSERT_TRUE(gm_.AddSubmodule("body", {body, nullptr}).ok());
  fx::Node* x = g_.Placeholder("x");
  fx::Node* factor = g_.Placeholder("w");
  fx::Node* map = Call("torch.ops.higher_order.map_impl", {g_.GetAttr("body"), Argument::List({x}), Argument::List({factor})});
  g_.Output(Argument::Tuple({GetItem(g_, map, 0), GetItem(g_, map, 1)}));
  const at::Tensor input = at::arange(6, at::kFloat).view({3, 2}), weight = at::arange(2, at::kFloat).requires_grad_();
  const auto result = Interpreter(gm_).Run({input, weight}).toTupleRef().elements().vec();
  EXPECT_TRUE(at::equal(result[0].toTensor(), input * weight));
  EXPECT_TRUE(at::equal(result[1].toTensor(), (input * weight).sum(1)));
  result[1].toTensor().sum().backward();
  EXPECT_TRUE(at::equal(weight.grad(), input.sum(0)));
  EXPECT_THAT(ErrorOf([&] { Run({at::ones({0, 2}), weight}); }), HasSubstr("hold nothing"));
}

// carry = carry * 2 + x, y = carry; of [3] from 1: 2 + x0, ...
TEST_F(HigherOrderTest, ScanCarriesAndStacks) {
  auto body = std::make_shared<fx::GraphModule>();
  fx::Node* carry = body->graph().Placeholder("carry");
  fx::Node* x = body->graph().Placeholder("x");
  fx::Node* factor = body->graph().Placeholder("factor");
  fx::Node* next = body->graph().CallFunction(FindOperator("aten::add", "Tensor"),
                                              {body->graph().CallFunction(FindOperator("aten::mul", "Tensor"), {carry, factor}), x});
  body->graph().Output(Argument::Tuple({next, body->graph().CallFunction(FindOperator("aten::neg"), {next})}));
  ASSERT_TRUE(gm_.AddSubmodule("body", {body, nullptr}).ok());
  fx::Node* init = g_.Placeholder("init");
  fx::Node* xs = g_.Placeholder("xs");
  fx::Node* two = g_.Placeholder("two");
  fx::Node* scan = Call("scan", {g_.GetAttr("body"), Argument::List({init}), Argument::List({xs}), Argument::Tuple({two})});
  g_.Output(Argument::Tuple({GetItem(g_, scan, 0), GetItem(g_, scan, 1)}));
  const auto result = Interpreter(gm_).Run({at::ones({}), at::arange(3, at::kFloat), at::full({}, 2.0)}).toTupleRef().elements().vec();
  EXPECT_EQ(result[0].toTensor().item<float>(), 12);  // ((1 * 2 + 0) * 2 + 1) * 2 + 2
  EXPECT_TRUE(at::equal(result[1].toTensor(), at::stack({at::full({}, -2.0), at::full({}, -5.0), at::full({}, -12.0)})));
}

TEST_F(HigherOrderTest, AssociativeScanIsARunningCombination) {
  auto body = std::make_shared<fx::GraphModule>();
  fx::Node* a = body->graph().Placeholder("a");
  fx::Node* b = body->graph().Placeholder("b");
  body->graph().Output(Argument::Tuple({body->graph().CallFunction(FindOperator("aten::add", "Tensor"), {a, b})}));
  ASSERT_TRUE(gm_.AddSubmodule("body", {body, nullptr}).ok());
  fx::Node* xs = g_.Placeholder("xs");
  g_.Output(Call("associative_scan", {g_.GetAttr("body"), Argument::List({xs}), Argument::Tuple({})}));
  const at::Tensor input = at::arange(8, at::kFloat).view({4, 2});
  EXPECT_TRUE(at::equal(Run({input}), at::cumsum(input, 0)));
}

TEST_F(HigherOrderTest, WrappersCallTheirGraphInTheirMode) {
  auto mm = std::make_shared<fx::GraphModule>();
  fx::Node* a = mm->graph().Placeholder("a");
  mm->graph().Output(Argument::Tuple({mm->graph().CallFunction(FindOperator("aten::mm"), {a, a})}));
  ASSERT_TRUE(gm_.AddSubmodule("mm", {mm, nullptr}).ok());
  fx::Node* x = g_.Placeholder("x");
  fx::Node* f = g_.GetAttr("mm");
  const auto item = [&](fx::Node* call) { return GetItem(g_, call, 0); };
  fx::Node* no_grad = item(Call("wrap_with_set_grad_enabled", {IValue(false), f, x}));
  fx::Node* half = item(Call("torch.ops.higher_order.wrap_with_autocast",
                             {IValue("cpu"), IValue(static_cast<int64_t>(at::kBFloat16)), IValue(true), IValue(false), f, x}));
  fx::Node* plain = item(Call("tag_activation_checkpoint", {f, x}, {{"use_reentrant", IValue(false)}}));
  fx::Node* wrapped = item(Call("wrap", {f, x}));
  fx::Node* invoked = item(Call("invoke_subgraph", {f, IValue("name"), x}));
  fx::Node* strict = item(Call("strict_mode", {f, Argument::Tuple({x})}));
  fx::Node* hinted = item(Call("hints_wrapper", {f, Argument::Tuple({x}), Argument::Dict({})}, {{"hints", Argument::Dict({})}}));
  g_.Output(Argument::Tuple({no_grad, half, plain, wrapped, invoked, strict, hinted}));
  const at::Tensor input = at::ones({2, 2}).requires_grad_();
  const auto results = Interpreter(gm_).Run({input}).toTupleRef().elements().vec();
  for (std::size_t k = 0; k < results.size(); ++k) {
    const at::Tensor result = results[k].toTensor();
    EXPECT_EQ(result.requires_grad(), k != 0);
    EXPECT_EQ(result.scalar_type(), k == 1 ? at::kBFloat16 : at::kFloat);
    EXPECT_TRUE(at::equal(result.to(at::kFloat), at::mm(input, input)));
  }
}

TEST_F(HigherOrderTest, RefusesWhatItCannotCall) {
  AddGraph("f", "aten::exp");
  fx::Node* x = g_.Placeholder("x");
  const auto error = [&](const char* name, std::vector<Argument> args, fx::Kwargs kwargs = {}) {
    fx::Node* call = Call(name, std::move(args), std::move(kwargs));
    fx::Node* output = g_.Output(call);
    std::string text = ErrorOf([&] { Run({at::ones({2})}); });
    EXPECT_TRUE(g_.EraseNode(output).ok() && g_.EraseNode(call).ok());
    return text;
  };
  fx::Node* f = g_.GetAttr("f");
  EXPECT_THAT(error("flex_attention", {x, f}), HasSubstr("cannot execute the higher-order target 'flex_attention'"));
  EXPECT_THAT(error("wrap", {x}), HasSubstr("takes a nested graph here, not Tensor"));
  EXPECT_THAT(error("cond", {x, f}), HasSubstr("cond: takes at least 4"));
  EXPECT_THAT(error("cond", {IValue(true), f, f, x}), HasSubstr("the operands must be a tuple or list"));
  EXPECT_THAT(error("invoke_subgraph", {f, IValue("n"), x}, {{"k", x}}), HasSubstr("'k' is not supported"));
}

// torch.fx's constants that IValue has no tag for, where the schema doesn't tell.
TEST(Interpreter, TypedConstants) {
  fx::GraphModule gm;
  fx::Graph& g = gm.graph();
  fx::Node* x = g.Placeholder("x");
  fx::Node* entered =
      Opaque(g, "torch.amp.autocast_mode._enter_autocast", {IValue("cpu"), fx::DtypeConstant(at::kHalf), IValue(true), Argument()});
  fx::Node* mm = g.CallFunction(FindOperator("aten::mm"), {x, x});
  Opaque(g, "torch.amp.autocast_mode._exit_autocast", {entered});
  fx::Node* to = g.CallFunction(FindOperator("aten::to", "dtype"), {mm, fx::DtypeConstant(at::kDouble)});
  g.Output(Argument::Tuple({mm, to}));
  const auto result = Interpreter(gm).Run({at::ones({2, 2})}).toTupleRef().elements().vec();
  EXPECT_EQ(result[0].toTensor().scalar_type(), at::kHalf);
  EXPECT_EQ(result[1].toTensor().scalar_type(), at::kDouble);

  fx::GraphModule opaque;
  opaque.graph().Output(opaque.graph().CallFunction(FindOperator("aten::neg"), {IValue(fx::OpaqueConstant("<lock>", "threading.Lock"))}));
  EXPECT_THAT(ErrorOf([&] { Interpreter(opaque).Run({}); }), HasSubstr("cannot execute the argument <lock>"));
}

TEST(Interpreter, GetItemOfPythonsName) {
  fx::GraphModule gm;
  fx::Node* x = gm.graph().Placeholder("x");
  gm.graph().Output(Opaque(gm.graph(), "_operator.getitem", {x, IValue("k")}));
  c10::impl::GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
  dict.insert("k", IValue(3));
  EXPECT_EQ(Interpreter(gm).Run({dict}).toInt(), 3);
}

}  // namespace
}  // namespace ddpopt
