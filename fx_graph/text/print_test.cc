#include "fx_graph/text/print.h"

#include <memory>

#include "fx_graph/tensor_meta.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"
#include "testing/matchers.h"

namespace ddpopt::fx {
namespace {

using ::c10::IValue;
using ::ddpopt::testing::FindOperator;

IValue Form(std::vector<int64_t> sizes, std::vector<int64_t> strides, const char* device = "cpu") {
  TensorMeta meta;
  meta.sizes = std::move(sizes);
  meta.strides = std::move(strides);
  meta.device = c10::Device(device);
  meta.storage_nbytes = *MinimumStorageBytes(meta);
  return IValue(*HollowTensor(meta));
}

class PrintTest : public ::testing::Test {
 protected:
  PrintTest() {
    Graph& g = module_.graph();
    Node* x = g.Placeholder("x");
    x->meta().val = Form({2, 3}, {1, 2});
    Node* n = g.CreateNode(Op::kPlaceholder, PathTarget{"n"}, {IValue(3)});
    Node* w = g.GetAttr("layers.0.weight");
    Node* add = g.CreateNode(Op::kCallFunction, OperatorTarget{FindOperator("aten::add", "Tensor")}, {x, w}, {{"alpha", n}}, "add");
    add->meta().val = Form({2, 3}, {3, 1}, "cuda:1");
    add->meta().nn_module = "layers.0";
    Node* split = g.CallMethod("split", {add, IValue("s")});
    split->meta().val = IValue(c10::ivalue::Tuple::create({Form({}, {}), IValue(2)}));
    Node* dead = g.CreateNode(Op::kCallFunction, OperatorTarget{FindOperator("aten::to", "dtype")}, {add, IValue(5)}, {}, "dead");
    (void)dead;
    Node* piece = g.CallModule("submod_0", {split});
    g.Output(Argument::Tuple({piece}));
    auto body = std::make_shared<GraphModule>();
    body->graph().Output(body->graph().Placeholder("y"));
    EXPECT_THAT(module_.AddSubmodule("submod_0", {body, nullptr}), ::ddpopt::testing::IsOk());
  }

  GraphModule module_;
};

TEST_F(PrintTest, TabularAsTorchFx) {
  EXPECT_EQ(FormatTabular(module_.graph()),
            "opcode         name             target           args                  kwargs\n"
            "-------------  ---------------  ---------------  --------------------  ------------\n"
            "placeholder    x                x                ()                    {}\n"
            "placeholder    n                n                (3,)                  {}\n"
            "get_attr       layers_0_weight  layers.0.weight  ()                    {}\n"
            "call_function  add              aten.add.Tensor  (x, layers_0_weight)  {'alpha': n}\n"
            "call_method    split            split            (add, 's')            {}\n"
            "call_function  dead             aten.to.dtype    (add, torch.float16)  {}\n"
            "call_module    submod_0         submod_0         (split,)              {}\n"
            "output         output           output           ((submod_0,),)        {}\n");
}

TEST_F(PrintTest, ReadableHasShapesStridesAndLastUses) {
  EXPECT_EQ(
      FormatReadable(module_, {.device = true}),
      "class GraphModule:\n"
      "    def forward(self, x: \"f32[2, 3][1, 2]cpu\", n = 3):\n"
      "        layers_0_weight = getattr(self.layers, \"0\").weight\n"
      "        # layers.0\n"
      "        add: \"f32[2, 3][3, 1]cuda:1\" = torch.ops.aten.add.Tensor(x, layers_0_weight, alpha = n);  x = layers_0_weight = n = None\n"
      "        #\n"
      "        split: \"(f32[][]cpu, 2)\" = add.split('s')\n"
      "        dead = torch.ops.aten.to.dtype(add, torch.float16);  add = dead = None\n"
      "        submod_0 = self.submod_0(split);  split = None\n"
      "        return (submod_0,)\n"
      "\n"
      "    class submod_0:\n"
      "        def forward(self, y):\n"
      "            return y\n");
}

TEST_F(PrintTest, ReadableWithoutStridesAndNestedGraphs) {
  const std::string text = FormatReadable(module_, {.strides = false, .nested = false});
  EXPECT_THAT(text, ::testing::HasSubstr("def forward(self, x: \"f32[2, 3]\", n = 3):\n"));
  EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("class submod_0")));
}

TEST(Print, EmptyGraphs) {
  Graph graph;
  EXPECT_EQ(FormatReadable(graph), "class Graph:\n    def forward(self):\n        pass\n");
  EXPECT_EQ(FormatTabular(graph), "opcode    name    target    args    kwargs\n--------  ------  --------  ------  --------\n");
}

}  // namespace
}  // namespace ddpopt::fx
