#include "interpreter/transformer.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "interpreter/interpreter.h"
#include "testing/calls.h"
#include "testing/matchers.h"

namespace ddpopt {
namespace {

using c10::IValue;
using fx::Argument;
using ::testing::AllOf;
using testing::FindOperator;
using ::testing::HasSubstr;
using testing::StatusIs;

fx::GraphModule& Fill(fx::GraphModule& gm) {
  EXPECT_TRUE(gm.AddAttr("w", at::ones({2}), fx::GraphModule::AttrKind::kParameter).ok());
  EXPECT_TRUE(gm.AddAttr("b", at::ones({2}), fx::GraphModule::AttrKind::kBuffer).ok());
  auto inner = std::make_shared<fx::GraphModule>();
  inner->graph().Output(inner->graph().Placeholder("a"));
  EXPECT_TRUE(gm.AddSubmodule("inner", {inner, nullptr}).ok());
  gm.meta()["note"] = IValue(1);
  fx::Graph& g = gm.graph();
  fx::Node* x = g.Placeholder("x");
  fx::Node* w = g.GetAttr("w");
  w->meta().is_parameter = true;
  fx::Node* relu = g.CallFunction(FindOperator("aten::relu"), {x}, {}, "act");
  relu->meta().nn_module = "blocks.0";
  relu->meta().val = at::ones({2});
  fx::Node* cat = g.CallFunction(FindOperator("aten::cat"), {Argument::List({relu, w})}, {{"dim", IValue(0)}});
  fx::Node* inner_call = g.CallModule("inner", {cat});
  g.CallMethod("numpy", {inner_call});
  g.Output(Argument::Tuple({inner_call, IValue(3)}));
  return gm;
}

TEST(Transformer, TheDefaultRebuildsTheSame) {
  fx::GraphModule gm;
  Fill(gm);
  const auto copy = Transformer(gm).Transform();
  DDPOPT_ASSERT_OK(copy);
  EXPECT_EQ((*copy)->graph().ToString(), gm.graph().ToString());
  EXPECT_TRUE((*copy)->GetAttr("w")->value.toTensor().is_same(gm.GetAttr("w")->value.toTensor()));
  EXPECT_LT((*copy)->GetAttr("w")->order, (*copy)->GetAttr("b")->order);
  EXPECT_EQ((*copy)->GetSubmodule("inner")->graph_module, gm.GetSubmodule("inner")->graph_module);
  EXPECT_EQ((*copy)->meta().at("note").toInt(), 1);
  EXPECT_TRUE((*copy)->graph().front()->next()->meta().is_parameter);
  const fx::Node* relu = (*copy)->graph().front()->next()->next();
  EXPECT_EQ(relu->meta().nn_module, "blocks.0");
  EXPECT_TRUE(relu->meta().val.isNone());
}

TEST(Transformer, AHookPutsNodesInPlaceOfOne) {
  class ReluByHand : public Transformer {
   public:
    using Transformer::Transformer;

   protected:
    Argument TransformCallFunction(const fx::Node& node, std::vector<Argument> args, fx::Kwargs kwargs) override {
      if (!node.is_operator() || node.operator_handle().operator_name().name != "aten::relu") {
        return Transformer::TransformCallFunction(node, std::move(args), std::move(kwargs));
      }
      fx::Node* negative = graph().CallFunction(FindOperator("aten::lt", "Scalar"), {args[0], IValue(0)});
      return graph().CallFunction(FindOperator("aten::masked_fill", "Scalar"), {args[0], negative, IValue(0)});
    }
    Argument TransformCallModule(const fx::Node&, std::vector<Argument> args, fx::Kwargs) override { return args[0]; }
    Argument TransformCallMethod(const fx::Node&, std::vector<Argument>, fx::Kwargs) override { return IValue(0); }
    Argument TransformOutput(const fx::Node&, Argument result) override { return result.elements()[0]; }
  };
  fx::GraphModule gm;
  Fill(gm);
  const std::string before = gm.graph().ToString();
  const auto transformed = ReluByHand(gm).Transform();
  DDPOPT_ASSERT_OK(transformed);
  EXPECT_EQ(gm.graph().ToString(), before);
  EXPECT_THAT((*transformed)->graph().ToString(), AllOf(HasSubstr("masked_fill"), ::testing::Not(HasSubstr("call_module"))));
  EXPECT_EQ((*transformed)->graph().front()->next()->next()->meta().nn_module, "blocks.0");
  const at::Tensor x = at::ones({2}).neg_();
  EXPECT_TRUE(
      at::equal(CallGraphModule(**transformed, {x}).toTensor(), CallGraphModule(*ReluByHand(gm).Transform().value(), {x}).toTensor()));
  EXPECT_EQ(CallGraphModule(**transformed, {x}).toTensor().sum().item<float>(), 2);
}

TEST(Transformer, ErrorsNameTheNode) {
  class Thrower : public Transformer {
   public:
    using Transformer::Transformer;

   protected:
    Argument TransformCallFunction(const fx::Node& node, std::vector<Argument>, fx::Kwargs) override {
      if (node.name() == "act") throw std::runtime_error("no such luck");
      return Argument();
    }
  };
  fx::GraphModule gm;
  Fill(gm);
  Thrower thrower(gm);
  EXPECT_THAT(thrower.Transform().status(),
              StatusIs(absl::StatusCode::kInternal, AllOf(HasSubstr("transforming %act"), HasSubstr("no such luck"))));
  EXPECT_THAT(thrower.Transform().status(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(Transformer, ABrokenResultIsAnError) {
  class Renamer : public Transformer {
   public:
    using Transformer::Transformer;

   protected:
    Argument TransformGetAttr(const fx::Node&) override { return graph().GetAttr("gone"); }
  };
  fx::GraphModule gm;
  Fill(gm);
  EXPECT_THAT(std::string(Renamer(gm).Transform().status().message()), AllOf(HasSubstr("the transformed graph"), HasSubstr("gone")));
}

}  // namespace
}  // namespace ddpopt
