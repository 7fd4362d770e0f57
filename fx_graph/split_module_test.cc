#include "fx_graph/split_module.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/ones.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"

namespace ddpopt::fx {
namespace {

using ddpopt::testing::FindOperator;
using ::testing::HasSubstr;

class SplitModuleTest : public ::testing::Test {
 protected:
  Node* Placeholder(const char* name) { return module_.graph().Placeholder(name); }
  Node* Relu(Argument x, int id) { return Put(module_.graph().CallFunction(FindOperator("aten::relu"), {std::move(x)}), id); }
  Node* Add(Argument a, Argument b, int id) {
    return Put(module_.graph().CallFunction(FindOperator("aten::add", "Tensor"), {std::move(a), std::move(b)}), id);
  }
  Node* Param(const char* path) {
    if (!module_.GetAttr(path).ok()) {
      EXPECT_TRUE(module_.AddAttr(path, at::ones({2}), GraphModule::AttrKind::kParameter).ok());
    }
    return module_.graph().GetAttr(path);
  }
  Node* Put(Node* node, int id) {
    ids_[node] = id;
    return node;
  }
  absl::StatusOr<std::shared_ptr<GraphModule>> Split() {
    const std::string before = module_.graph().ToString();
    auto split = SplitModule(module_, [this](const Node* node) { return ids_.at(node); });
    EXPECT_EQ(module_.graph().ToString(), before);
    return split;
  }
  static std::string Text(const GraphModule& outer, const char* path) { return outer.GetSubmodule(path)->graph_module->graph().ToString(); }

  GraphModule module_;
  std::map<const Node*, int> ids_;
};

TEST_F(SplitModuleTest, ChainBecomesCalls) {
  Node* a = Relu(Placeholder("x"), 0);
  Node* b = Add(a, Param("layer.w"), 1);
  b->meta().custom["tag"] = c10::IValue(int64_t{7});
  module_.graph().Output(Relu(b, 2));
  auto split = Split();
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ((*split)->graph().ToString(),
            "graph():\n"
            "    %x : [num_users=1] = placeholder[target=x]\n"
            "    %submod_0 : [num_users=1] = call_module[target=submod_0](args = (%x,), kwargs = {})\n"
            "    %submod_1 : [num_users=1] = call_module[target=submod_1](args = (%submod_0,), kwargs = {})\n"
            "    %submod_2 : [num_users=1] = call_module[target=submod_2](args = (%submod_1,), kwargs = {})\n"
            "    return submod_2");
  EXPECT_EQ(Text(**split, "submod_1"),
            "graph():\n"
            "    %relu_default : [num_users=1] = placeholder[target=relu_default]\n"
            "    %layer_w : [num_users=1] = get_attr[target=layer.w]\n"
            "    %add_tensor : [num_users=1] = call_function[target=torch.ops.aten.add.Tensor](args = (%relu_default, %layer_w), kwargs = {})\n"
            "    return add_tensor");
  const Node* call = *++ ++(*split)->graph().nodes().begin();
  EXPECT_EQ(call->meta().custom.at("tag").toInt(), 7);
}

TEST_F(SplitModuleTest, SeveralOutputsAreTakenApart) {
  Node* x = Placeholder("x");
  Node* a = Relu(x, 0);
  Node* b = Add(a, x, 0);
  Node* c = Add(a, b, 1);
  module_.graph().Output(Argument::Tuple({Add(c, b, 2), a}));
  auto split = Split();
  ASSERT_TRUE(split.ok()) << split.status();
  const std::string text = (*split)->graph().ToString();
  EXPECT_THAT(text, HasSubstr("%getitem_1 : [num_users=2] = call_function[target=operator.getitem](args = (%submod_0, 1), kwargs = {})"));
  EXPECT_THAT(text, HasSubstr("target=submod_2](args = (%submod_1, %getitem_1)"));
  EXPECT_THAT(text, HasSubstr("return (submod_2, getitem)"));
}

TEST_F(SplitModuleTest, ATiedParameterIsSharedByIdentity) {
  Node* w = Param("w");
  Node* a = Add(Placeholder("x"), w, 0);
  module_.graph().Output(Add(a, w, 1));
  auto split = Split();
  ASSERT_TRUE(split.ok()) << split.status();
  const auto first = (*split)->GetSubmodule("submod_0")->graph_module->GetAttr("w")->value.toTensor();
  const auto second = (*split)->GetSubmodule("submod_1")->graph_module->GetAttr("w")->value.toTensor();
  EXPECT_TRUE(first.is_same(second));
  EXPECT_TRUE((*split)->attrs().empty());
}

TEST_F(SplitModuleTest, NestedArgumentsCross) {
  Node* x = Placeholder("x");
  Node* a = Relu(x, 0);
  Node* cat = Put(module_.graph().CallFunction(FindOperator("aten::cat"), {Argument::List({x, a, Param("w")})}), 1);
  module_.graph().Output(cat);
  auto split = Split();
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_THAT(Text(**split, "submod_1"), HasSubstr("aten.cat.default](args = ([%x, %relu_default, %w],)"));
}

TEST_F(SplitModuleTest, NoOperatorsNoPartitions) {
  module_.graph().Output(Placeholder("x"));
  auto split = Split();
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ((*split)->graph().ToString(), module_.graph().ToString());
  EXPECT_TRUE((*split)->submodules().empty());
}

TEST_F(SplitModuleTest, APartitionThatOnlyMutatesIsStillCalled) {
  Node* x = Placeholder("x");
  Put(module_.graph().CallFunction(FindOperator("aten::relu_"), {x}), 0);
  module_.graph().Output(Relu(x, 1));
  auto split = Split();
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_THAT((*split)->graph().ToString(), HasSubstr("target=submod_0](args = (%x,)"));
  EXPECT_THAT(Text(**split, "submod_0"), HasSubstr("return None"));
}

TEST_F(SplitModuleTest, AnAttributeReturnedAsItIsStaysOutside) {
  Node* a = Relu(Placeholder("x"), 0);
  module_.graph().Output(Argument::Tuple({a, Param("w")}));
  auto split = Split();
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_TRUE((*split)->GetAttr("w").ok());
  EXPECT_THAT((*split)->graph().ToString(), HasSubstr("return (submod_0, w)"));
}

TEST_F(SplitModuleTest, ACycleIsRefusedByName) {
  Node* a = Relu(Placeholder("x"), 0);
  Node* b = Relu(a, 1);
  module_.graph().Output(Relu(b, 0));
  auto split = Split();
  EXPECT_EQ(split.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(split.status().message()), HasSubstr("submod_0, submod_1"));
}

TEST_F(SplitModuleTest, ANegativeIdIsRefusedByName) {
  module_.graph().Output(Relu(Placeholder("x"), -1));
  auto split = Split();
  EXPECT_EQ(split.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(split.status().message()), HasSubstr("%relu"));
}

}  // namespace
}  // namespace ddpopt::fx
