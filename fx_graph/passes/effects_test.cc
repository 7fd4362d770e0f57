#include "fx_graph/passes/effects.h"

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ATen/core/function_schema.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"

namespace ddpopt::fx {
namespace {

using c10::IValue;
using testing::FindOperator;

// The effects of one node, as text: "writes(x) random other anything aliases(x,y)".
std::string Describe(const GraphModule& module, const Node& node) {
  Effects effects(module);
  const NodeEffects of = effects.Of(node);
  const auto names = [&](const char* title, auto&& visit) {
    std::set<std::string> found;
    visit([&](Node* input) { found.insert(std::string(input->name())); });
    std::string text;
    for (const std::string& name : found) absl::StrAppend(&text, text.empty() ? "" : ",", name);
    return found.empty() ? std::string() : absl::StrCat(title, "(", text, ") ");
  };
  std::string text = names("writes", [&](auto&& fn) { effects.ForEachWritten(node, fn); });
  EXPECT_TRUE(!of.writes || of.anything || !text.empty()) << "writes nothing that it names";
  if (of.random) absl::StrAppend(&text, "random ");
  if (of.anything) {
    EXPECT_TRUE(of.other && of.modes);
    absl::StrAppend(&text, "anything ");
  } else if (of.modes) {
    EXPECT_TRUE(of.other);
    absl::StrAppend(&text, "modes ");
  } else if (of.other) {
    absl::StrAppend(&text, "other ");
  }
  EXPECT_EQ(of.pure(), text.empty());
  absl::StrAppend(&text, names("aliases", [&](auto&& fn) { effects.ForEachAliased(node, fn); }));
  return text.empty() ? "pure" : text.substr(0, text.size() - 1);
}

class EffectsTest : public ::testing::Test {
 protected:
  std::string Op(const char* name, const char* overload, std::vector<Argument> args, Kwargs kwargs = {}) {
    return Describe(module_, *g_.CallFunction(FindOperator(name, overload), std::move(args), std::move(kwargs)));
  }
  std::string Fn(const char* text, std::vector<Argument> args, Kwargs kwargs = {}) {
    return Describe(module_, *g_.CreateNode(fx::Op::kCallFunction, OpaqueTarget{text}, std::move(args), std::move(kwargs)));
  }
  std::string Method(const char* name, std::vector<Argument> args) { return Describe(module_, *g_.CallMethod(name, std::move(args))); }

  GraphModule module_;
  Graph& g_ = module_.graph();
  Node* x_ = g_.Placeholder("x");
  Node* y_ = g_.Placeholder("y");
  Node* z_ = g_.Placeholder("z");
};

TEST_F(EffectsTest, FollowsTheSchema) {
  EXPECT_EQ(Op("aten::relu", "", {x_}), "pure");
  EXPECT_EQ(Op("aten::add", "Tensor", {x_, y_}), "pure");
  EXPECT_EQ(Op("aten::add_", "Tensor", {x_, y_}), "writes(x) aliases(x)");
  EXPECT_EQ(Op("aten::add", "out", {x_, y_}, {{"out", z_}}), "writes(z) aliases(z)");
  EXPECT_EQ(Op("aten::view", "", {x_, Argument::List({IValue(6)})}), "aliases(x)");
  EXPECT_EQ(Op("aten::split", "Tensor", {x_, IValue(2)}), "aliases(x)");
  EXPECT_EQ(Op("aten::_foreach_add_", "Scalar", {Argument::List({x_, y_}), IValue(1)}), "writes(x,y)");
  EXPECT_EQ(Op("aten::set_", "source_Tensor", {x_, y_}), "writes(x) aliases(x)");
  EXPECT_EQ(Op("aten::t_", "", {x_}), "writes(x) aliases(x)");
}

TEST_F(EffectsTest, CompositesMayHandTheirInputsBack) {
  EXPECT_EQ(Op("aten::type_as", "", {x_, y_}), "aliases(x,y)");
  EXPECT_EQ(Op("aten::broadcast_tensors", "", {Argument::List({x_, y_})}), "aliases(x,y)");
  EXPECT_EQ(Op("aten::_unsafe_view", "", {x_, Argument::List({IValue(6)})}), "aliases(x)");
  EXPECT_EQ(Op("aten::unsafe_split", "Tensor", {x_, IValue(2)}), "aliases(x)");
  EXPECT_EQ(Op("aten::reshape", "", {x_, Argument::List({IValue(6)})}), "aliases(x)");
}

TEST_F(EffectsTest, RandomOperators) {
  EXPECT_EQ(Op("aten::dropout", "", {x_, IValue(0.5), IValue(true)}), "random aliases(x)");
  EXPECT_EQ(Op("aten::rand", "", {Argument::List({IValue(2)})}), "random");
  EXPECT_EQ(Op("aten::bernoulli", "", {x_}), "random");
  EXPECT_EQ(Op("aten::normal_", "", {x_}), "writes(x) random aliases(x)");
  EXPECT_EQ(Op("aten::native_dropout", "", {x_, IValue(0.5), IValue(true)}), "random");
}

TEST_F(EffectsTest, AssertionsAndWhatGivesNothing) {
  EXPECT_EQ(Op("aten::_assert_async", "msg", {x_, IValue("no")}), "other");
  EXPECT_EQ(Op("aten::_assert_scalar", "", {x_, IValue("no")}), "other");
  EXPECT_EQ(Op("aten::_assert_tensor_metadata", "", {x_}), "other");
  EXPECT_EQ(Op("aten::_functional_assert_async", "msg", {x_, IValue("no"), y_}), "other");
  EXPECT_EQ(Op("aten::sym_constrain_range", "", {x_}), "other");
  EXPECT_EQ(Op("aten::_print", "", {IValue("hello")}), "other");
  EXPECT_EQ(Op("profiler::_record_function_enter", "", {IValue("region")}), "other");
  EXPECT_EQ(Op("_c10d_functional::all_reduce", "", {x_, IValue("sum"), IValue("0")}), "other");
}

TEST_F(EffectsTest, StatisticsThatTheSchemaHides) {
  const Argument on(IValue(true)), off(IValue(false)), none, momentum(IValue(0.1)), eps(IValue(1e-5));
  EXPECT_EQ(Op("aten::batch_norm", "", {x_, none, none, y_, z_, on, momentum, eps, off}), "writes(y,z) aliases(x,y,z)");
  EXPECT_EQ(Op("aten::batch_norm", "", {x_, none, none, y_, z_, off, momentum, eps, off}), "aliases(x,y,z)");
  EXPECT_EQ(Op("aten::batch_norm", "", {x_, none, none, none, none, on, momentum, eps, off}), "aliases(x)");
  EXPECT_EQ(Op("aten::native_batch_norm", "", {x_, none, none, y_, z_, on, momentum, eps}), "writes(y,z)");
  EXPECT_EQ(Op("aten::native_batch_norm", "", {x_, none, none, y_, z_, off, momentum, eps}), "pure");
  // A flag that isn't known.
  EXPECT_EQ(Op("aten::native_batch_norm", "", {x_, none, none, y_, z_, x_, momentum, eps}), "writes(y,z)");
  EXPECT_EQ(Op("aten::native_batch_norm", "", {x_, none, none}, {{"running_mean", y_}, {"running_var", z_}, {"training", on}}),
            "writes(y,z)");
  EXPECT_EQ(Op("aten::cudnn_batch_norm", "", {x_, y_, none, y_, z_, on, momentum, eps}), "writes(y,z)");
  EXPECT_EQ(Op("aten::instance_norm", "", {x_, none, none, y_, z_, on, momentum, eps, off}), "writes(y,z) aliases(x,y,z)");
  EXPECT_EQ(Op("aten::instance_norm", "", {x_, none, none, none, none, on, momentum, eps, off}), "aliases(x)");
  EXPECT_EQ(Op("aten::batch_norm_update_stats", "", {x_, y_, z_, momentum}), "writes(y,z)");
  EXPECT_EQ(Op("aten::_native_batch_norm_legit", "", {x_, none, none, y_, z_, on, momentum, eps}), "writes(y,z)");
  EXPECT_EQ(Op("aten::_native_batch_norm_legit", "no_stats", {x_, none, none, on, momentum, eps}), "pure");
}

// A version of LibTorch with one more operator that takes running statistics without saying whether it writes them must be looked at.
TEST_F(EffectsTest, EveryOperatorWithRunningStatisticsIsKnown) {
  const std::set<std::string> reads_only = {
      "aten::_batch_norm_impl_index_backward",    "aten::_native_batch_norm_legit_no_training", "aten::_batch_norm_no_update",
      "aten::native_batch_norm_backward",         "aten::miopen_batch_norm_backward",           "aten::_batch_norm_with_update_functional",
      "aten::_native_batch_norm_legit_functional", "aten::cudnn_batch_norm_backward",           "aten::batch_norm_backward",
      "aten::cudnn_batch_norm_backward",
  };
  Effects effects(module_);
  int known = 0;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op.has_value() || !op->hasSchema() || op->schema().is_mutable()) continue;
    const auto mean = op->schema().argumentIndexWithName("running_mean");
    if (!mean.has_value()) continue;
    std::vector<Argument> args(op->schema().arguments().size());
    args[*mean] = y_;
    const Node* node = g_.CallFunction(*op, std::move(args));
    EXPECT_EQ(effects.Of(*node).writes, reads_only.count(name.name) == 0) << name;
    ++known;
  }
  EXPECT_GE(known, 15);
}

TEST_F(EffectsTest, OpaqueFunctionsAreJudgedByAtensOperators) {
  EXPECT_EQ(Fn("torch.relu", {x_}), "aliases(x)");
  EXPECT_EQ(Fn("torch._C._nn.linear", {x_, y_}), "aliases(x,y)");
  EXPECT_EQ(Fn("torch.ops.aten.numpy_T", {x_}), "aliases(x)");
  EXPECT_EQ(Fn("torch.relu_", {x_}), "writes(x) aliases(x)");
  EXPECT_EQ(Fn("torch.nn.functional.dropout", {x_}), "random aliases(x)");
  EXPECT_EQ(Fn("torch.nn.functional.batch_norm", {x_, y_, z_}), "writes(x,y,z) aliases(x,y,z)");
  EXPECT_EQ(Fn("torch.nn.functional.relu", {x_}, {{"inplace", IValue(false)}}), "aliases(x)");
  EXPECT_EQ(Fn("torch.nn.functional.relu", {x_}, {{"inplace", IValue(true)}}), "writes(x) aliases(x)");
  EXPECT_EQ(Fn("torch.nn.functional.relu", {x_, IValue(true)}), "writes(x) aliases(x)");
  EXPECT_EQ(Fn("torch.add", {x_, y_}, {{"out", z_}}), "writes(x,y,z) aliases(x,y,z)");
  EXPECT_EQ(Fn("_operator.add", {x_, y_}), "aliases(x,y)");
  EXPECT_EQ(Fn("operator.getitem", {x_, IValue(0)}), "aliases(x)");
  EXPECT_EQ(Fn("_operator.iadd", {x_, y_}), "writes(x,y) aliases(x,y)");
  EXPECT_EQ(Fn("_operator.setitem", {x_, IValue(0), y_}), "writes(x,y) aliases(x,y)");
  EXPECT_EQ(Fn("math.sqrt", {x_}), "aliases(x)");
}

TEST_F(EffectsTest, WhatIsNotKnownMayDoAnything) {
  EXPECT_EQ(Fn("torch.frobnicate", {}), "anything");
  EXPECT_EQ(Fn("my.module.relu", {}), "anything");
  EXPECT_EQ(Fn("torch.nn.init.relu", {}), "anything");
  EXPECT_EQ(Fn("torch.manual_seed", {IValue(0)}), "anything");
  EXPECT_EQ(Fn("_operator.call", {}), "anything");
  EXPECT_EQ(Method("frobnicate", {x_}), "writes(x) anything aliases(x)");
}

TEST_F(EffectsTest, Modes) {
  EXPECT_EQ(Fn("torch._C._set_grad_enabled", {IValue(false)}), "modes");
  EXPECT_EQ(Fn("torch.amp.autocast_mode._enter_autocast", {}), "modes");
  EXPECT_EQ(Fn("torch.amp.autocast_mode._exit_autocast", {x_}), "modes aliases(x)");
  EXPECT_EQ(Fn("torch.autograd.grad_mode._enter_inference_mode", {IValue(true)}), "modes");
}

TEST_F(EffectsTest, Methods) {
  EXPECT_EQ(Method("view", {x_}), "aliases(x)");
  EXPECT_EQ(Method("mul_", {x_}), "writes(x) aliases(x)");
  EXPECT_EQ(Method("masked_fill_", {x_, y_}), "writes(x,y) aliases(x,y)");
  EXPECT_EQ(Method("bernoulli", {x_}), "random aliases(x)");
  EXPECT_EQ(Method("bfloat16", {x_}), "aliases(x)");
  EXPECT_EQ(Method("forward", {x_}), "writes(x) anything aliases(x)");
}

std::shared_ptr<GraphModule> Nested(const char* op, const char* overload, int args) {
  auto nested = std::make_shared<GraphModule>();
  std::vector<Argument> arguments;
  for (int i = 0; i < args; ++i) arguments.emplace_back(nested->graph().Placeholder("a"));
  nested->graph().Output(nested->graph().CallFunction(FindOperator(op, overload), std::move(arguments)));
  return nested;
}

class Compiled : public Callable {
 public:
  c10::IValue Call(std::vector<c10::IValue>) const override { return c10::IValue(); }
};

TEST_F(EffectsTest, ModulesAndHigherOrderOperatorsDoWhatTheirGraphsDo) {
  ASSERT_TRUE(module_.AddSubmodule("pure", {Nested("aten::relu", "", 1), nullptr}).ok());
  ASSERT_TRUE(module_.AddSubmodule("writer", {Nested("aten::add_", "Tensor", 2), nullptr}).ok());
  ASSERT_TRUE(module_.AddSubmodule("random", {Nested("aten::bernoulli", "", 1), nullptr}).ok());
  ASSERT_TRUE(module_.AddSubmodule("compiled", {nullptr, std::make_shared<Compiled>()}).ok());
  auto outer = Nested("aten::relu", "", 1);
  ASSERT_TRUE(outer->AddSubmodule("inner", {Nested("aten::add_", "Tensor", 2), nullptr}).ok());
  Node* old = outer->graph().SetInsertBefore(outer->graph().back());
  outer->graph().CallModule("inner", {outer->graph().front(), outer->graph().front()});
  outer->graph().SetInsertBefore(old);
  ASSERT_TRUE(module_.AddSubmodule("outer", {outer, nullptr}).ok());

  EXPECT_EQ(Describe(module_, *g_.CallModule("pure", {x_})), "aliases(x)");
  EXPECT_EQ(Describe(module_, *g_.CallModule("writer", {x_, y_})), "writes(x,y) aliases(x,y)");
  EXPECT_EQ(Describe(module_, *g_.CallModule("outer", {x_})), "writes(x) aliases(x)");
  EXPECT_EQ(Describe(module_, *g_.CallModule("random", {x_})), "random aliases(x)");
  EXPECT_EQ(Describe(module_, *g_.CallModule("compiled", {})), "anything");
  EXPECT_EQ(Describe(module_, *g_.CallModule("gone", {})), "anything");

  const auto higher_order = [&](const char* name, std::vector<const char*> graphs) {
    std::vector<Argument> args;
    for (const char* path : graphs) args.emplace_back(g_.GetAttr(path));
    Effects effects(module_);
    return effects.Of(*g_.CreateNode(Op::kCallFunction, HigherOrderTarget{name}, std::move(args)));
  };
  EXPECT_TRUE(higher_order("cond", {"pure", "pure"}).pure());
  EXPECT_TRUE(higher_order("torch.ops.higher_order.cond", {"pure", "writer"}).writes);
  EXPECT_TRUE(higher_order("wrap_with_set_grad_enabled", {"pure"}).pure());
  EXPECT_TRUE(higher_order("tag_activation_checkpoint", {"random"}).random);
  EXPECT_TRUE(higher_order("cond", {}).anything);
  EXPECT_TRUE(higher_order("triton_kernel_wrapper_mutation", {"pure"}).anything);
}

}  // namespace
}  // namespace ddpopt::fx
