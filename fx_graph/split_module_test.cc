#include "fx_graph/split_module.h"

#include <cstdint>
#include <map>
#include <random>
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
using Kind = GraphModule::AttrKind;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

class SplitModuleTest : public ::testing::Test {
 protected:
  Node* Placeholder(const char* name) { return module_.graph().Placeholder(name); }
  Node* Relu(Argument x, int id) { return Put(module_.graph().CallFunction(FindOperator("aten::relu"), {std::move(x)}), id); }
  Node* Add(Argument a, Argument b, int id) {
    return Put(module_.graph().CallFunction(FindOperator("aten::add", "Tensor"), {std::move(a), std::move(b)}), id);
  }
  Node* Opaque(const char* target, std::vector<Argument> args, int id) {
    return Put(module_.graph().CreateNode(Op::kCallFunction, OpaqueTarget{target}, std::move(args)), id);
  }
  Node* Param(const char* path) {
    if (!module_.GetAttr(path).ok()) {
      EXPECT_TRUE(module_.AddAttr(path, at::ones({2}), Kind::kParameter).ok());
    }
    return module_.graph().GetAttr(path);
  }
  // A submodule x -> relu(x).
  std::shared_ptr<GraphModule> Submodule(const char* path) {
    auto inner = std::make_shared<GraphModule>();
    inner->graph().Output(inner->graph().CallFunction(FindOperator("aten::relu"), {inner->graph().Placeholder("x")}));
    EXPECT_TRUE(module_.AddSubmodule(path, {inner, nullptr}).ok());
    return inner;
  }
  Node* Put(Node* node, int id) {
    ids_[node] = id;
    return node;
  }
  void Symbol(Node* node, const char* symbol) {
    node->meta().custom[kSymbol] = c10::IValue(symbol);
    Sizes(node, {symbol});
  }
  void Sizes(Node* node, const std::vector<std::string>& symbols) {
    c10::List<std::string> list;
    for (const std::string& symbol : symbols) list.push_back(symbol);
    node->meta().custom[kFreeSymbols] = list;
  }

  absl::StatusOr<std::shared_ptr<GraphModule>> Split(const SplitOptions& options = {}) {
    const std::string before = module_.graph().ToString();
    auto split = SplitModule(
        module_, [this](const Node* node) { return ids_.at(node); }, options);
    EXPECT_EQ(module_.graph().ToString(), before);
    if (split.ok()) {
      const absl::Status lint = (*split)->Lint();
      EXPECT_TRUE(lint.ok()) << lint;
    }
    return split;
  }
  // Where it must work.
  std::shared_ptr<GraphModule> Get(const SplitOptions& options = {}) {
    auto split = Split(options);
    EXPECT_TRUE(split.ok()) << split.status();
    return split.ok() ? *split : std::make_shared<GraphModule>();
  }
  std::string Refused(absl::StatusCode code, const SplitOptions& options = {}) {
    const auto split = Split(options);
    EXPECT_EQ(split.status().code(), code) << split.status();
    return std::string(split.status().message());
  }
  static std::string Text(const GraphModule& outer, const char* path) {
    const auto part = outer.GetSubmodule(path);
    return part.ok() ? part->graph_module->graph().ToString() : "no such submodule";
  }
  static std::vector<std::string> Calls(const GraphModule& outer) {
    std::vector<std::string> calls;
    for (const Node* node : outer.graph().nodes()) {
      if (node->op() == Op::kCallModule) calls.emplace_back(node->path());
    }
    return calls;
  }

  GraphModule module_;
  std::map<const Node*, int> ids_;
};

TEST_F(SplitModuleTest, ChainBecomesCalls) {
  Node* a = Relu(Placeholder("x"), 0);
  Node* b = Add(a, Param("layer.w"), 1);
  b->meta().custom["tag"] = c10::IValue(int64_t{7});
  module_.graph().Output(Relu(b, 2));
  const auto split = Get();
  EXPECT_EQ(split->graph().ToString(),
            "graph():\n"
            "    %x : [num_users=1] = placeholder[target=x]\n"
            "    %layer_w : [num_users=1] = get_attr[target=layer.w]\n"
            "    %submod_0 : [num_users=1] = call_module[target=submod_0](args = (%x,), kwargs = {})\n"
            "    %submod_1 : [num_users=1] = call_module[target=submod_1](args = (%submod_0, %layer_w), kwargs = {})\n"
            "    %submod_2 : [num_users=1] = call_module[target=submod_2](args = (%submod_1,), kwargs = {})\n"
            "    return submod_2");
  // Placeholders are named after the values, the rest after the targets.
  EXPECT_EQ(Text(*split, "submod_1"),
            "graph():\n"
            "    %relu_default : [num_users=1] = placeholder[target=relu_default]\n"
            "    %layer_w : [num_users=1] = placeholder[target=layer_w]\n"
            "    %add_tensor : [num_users=1] = call_function[target=torch.ops.aten.add.Tensor](args = (%relu_default, %layer_w), "
            "kwargs = {})\n"
            "    return add_tensor");
  const Node* call = *++ ++ ++split->graph().nodes().begin();
  EXPECT_EQ(call->meta().custom.at("tag").toInt(), 7);
  EXPECT_EQ(split->meta().at(kPartitionNames).toListRef().size(), 3u);
}

TEST_F(SplitModuleTest, AttributesCanGoIntoEachPartition) {
  Node* a = Add(Placeholder("x"), Param("w"), 0);
  module_.graph().Output(Add(a, Param("w"), 1));
  SplitOptions options;
  options.attributes = SplitOptions::Attributes::kCopy;
  options.keep_original_node_names = true;
  const auto split = Get(options);
  EXPECT_EQ(split->graph().ToString(),
            "graph():\n"
            "    %x : [num_users=1] = placeholder[target=x]\n"
            "    %submod_0 : [num_users=1] = call_module[target=submod_0](args = (%x,), kwargs = {})\n"
            "    %submod_1 : [num_users=1] = call_module[target=submod_1](args = (%submod_0,), kwargs = {})\n"
            "    return submod_1");
  EXPECT_THAT(Text(*split, "submod_1"), HasSubstr("%w_1 : [num_users=1] = get_attr[target=w]"));
  // A tied parameter (case 30) is one tensor in both.
  const auto first = split->GetSubmodule("submod_0")->graph_module->GetAttr("w")->value.toTensor();
  const auto second = split->GetSubmodule("submod_1")->graph_module->GetAttr("w")->value.toTensor();
  EXPECT_TRUE(first.is_same(second));
  EXPECT_TRUE(first.is_same(module_.GetAttr("w")->value.toTensor()));
  EXPECT_TRUE(split->attrs().empty());
}

// Case 31: what lies in containers keeps its registered path in the parts, so that states saved before the split load after it.
TEST_F(SplitModuleTest, AttributesKeepTheirPaths) {
  Node* a = Add(Placeholder("x"), Param("blocks.0.weight"), 0);
  module_.graph().Output(Add(a, Param("heads.main.weight"), 1));
  SplitOptions options;
  options.attributes = SplitOptions::Attributes::kCopy;
  const auto split = Get(options);
  std::map<std::string, std::string> found;
  for (const auto& [part, submodule] : split->submodules()) {
    for (const auto& [path, attr] : submodule.graph_module->attrs()) found[path] = part;
  }
  EXPECT_THAT(found, UnorderedElementsAre(Pair("blocks.0.weight", "submod_0"), Pair("heads.main.weight", "submod_1")));
}

TEST_F(SplitModuleTest, SeveralOutputsAreTakenApart) {
  Node* x = Placeholder("x");
  Node* a = Relu(x, 0);
  Node* b = Add(a, x, 0);
  Node* c = Add(a, b, 1);
  module_.graph().Output(Argument::Tuple({Add(c, b, 2), a}));
  const std::string text = Get()->graph().ToString();
  EXPECT_THAT(text,
              HasSubstr("%getitem_1 : [num_users=2] = call_function[target=operator.getitem](args = (%submod_0, 1), kwargs = {})"));
  EXPECT_THAT(text, HasSubstr("target=submod_2](args = (%submod_1, %getitem_1)"));
  EXPECT_THAT(text, HasSubstr("return (submod_2, getitem)"));
}

TEST_F(SplitModuleTest, ATupleCanBeReturnedForOneValueToo) {
  module_.graph().Output(Relu(Relu(Placeholder("x"), 0), 1));
  SplitOptions options;
  options.tuple_return = true;
  const auto split = Get(options);
  EXPECT_THAT(Text(*split, "submod_0"), HasSubstr("return (relu_default,)"));
  EXPECT_THAT(split->graph().ToString(), AllOf(HasSubstr("target=submod_1](args = (%getitem,)"), HasSubstr("return getitem_1")));
}

TEST_F(SplitModuleTest, NestedArgumentsAndKeywordsCross) {
  Node* x = Placeholder("x");
  Node* a = Relu(x, 0);
  Put(module_.graph().CreateNode(Op::kCallFunction, OpaqueTarget{"my.mix"},
                                 {Argument::List({x, Argument::Tuple({a})}), Argument::Slice(a, Argument(), Argument()),
                                  Argument::Dict({c10::IValue("k"), Param("w")})},
                                 {{"other", Relu(a, 0)}}),
      1);
  module_.graph().Output(Argument());
  EXPECT_THAT(Text(*Get(), "submod_1"),
              HasSubstr("target=my.mix](args = ([%x, (%relu_default,)], slice(relu_default, None, None), {k: %w}), "
                        "kwargs = {other: %relu_default_1})"));
}

// A node's value may be anything: here a tuple of values crosses whole, and an int.
TEST_F(SplitModuleTest, ValuesOfAnyTypeCross) {
  Node* x = Placeholder("x");
  Node* both = Opaque("my.both", {x}, 0);
  Node* n = Opaque("operator.floordiv", {c10::IValue(int64_t{7}), c10::IValue(int64_t{2})}, 0);
  Node* first = Opaque("operator.getitem", {both, c10::IValue(int64_t{0})}, 1);
  module_.graph().Output(Opaque("operator.mul", {first, n}, 1));
  const auto split = Get();
  EXPECT_THAT(Text(*split, "submod_0"), HasSubstr("return (both, floordiv)"));
  EXPECT_THAT(Text(*split, "submod_1"),
              HasSubstr("%getitem : [num_users=1] = call_function[target=operator.getitem](args = (%both, 0)"));
}

// Case 25.
TEST_F(SplitModuleTest, NoOperatorsNoPartitions) {
  module_.graph().Output(Argument::Tuple({Placeholder("x"), Param("w")}));
  for (const bool keep_order : {false, true}) {
    SplitOptions options;
    options.keep_original_order = keep_order;
    const auto split = Get(options);
    EXPECT_EQ(split->graph().ToString(), module_.graph().ToString());
    EXPECT_TRUE(split->submodules().empty());
    EXPECT_TRUE(split->GetAttr("w").ok());
  }
}

// Case 5: nothing of the partition is used outside.
TEST_F(SplitModuleTest, APartitionThatOnlyMutatesIsStillCalled) {
  Node* x = Placeholder("x");
  Put(module_.graph().CallFunction(FindOperator("aten::relu_"), {x}), 0);
  module_.graph().Output(Relu(x, 1));
  const auto split = Get();
  EXPECT_THAT(split->graph().ToString(), HasSubstr("%submod_0 : [num_users=0] = call_module[target=submod_0](args = (%x,)"));
  EXPECT_THAT(Text(*split, "submod_0"), HasSubstr("return ()"));
}

TEST_F(SplitModuleTest, AnAttributeReturnedAsItIsStaysOutside) {
  Node* a = Relu(Placeholder("x"), 0);
  module_.graph().Output(Argument::Tuple({a, Param("w")}));
  for (const auto attributes : {SplitOptions::Attributes::kPass, SplitOptions::Attributes::kCopy}) {
    SplitOptions options;
    options.attributes = attributes;
    const auto split = Get(options);
    EXPECT_TRUE(split->GetAttr("w").ok());
    EXPECT_THAT(split->graph().ToString(), HasSubstr("return (submod_0, w)"));
  }
}

TEST_F(SplitModuleTest, NumbersMayHaveGapsAndAnAffix) {
  module_.graph().Output(Relu(Relu(Placeholder("x"), 3), 17));
  SplitOptions options;
  options.partition_affix = "pp";
  EXPECT_THAT(Calls(*Get()), ElementsAre("submod_3", "submod_17"));
  EXPECT_THAT(Calls(*Get(options)), ElementsAre("submod_pp_3", "submod_pp_17"));
}

TEST_F(SplitModuleTest, ACycleIsRefusedByName) {
  Node* a = Relu(Placeholder("x"), 5);  // has no part in it
  Node* b = Relu(a, 0);
  Node* c = Relu(b, 1);
  module_.graph().Output(Relu(Relu(c, 0), 2));
  EXPECT_THAT(Refused(absl::StatusCode::kFailedPrecondition), AllOf(HasSubstr("submod_0 takes %relu_default_2 from submod_1"),
                                                                    HasSubstr("submod_1 takes %relu_default_1 from submod_0"),
                                                                    Not(HasSubstr("submod_5")), Not(HasSubstr("submod_2 "))));
}

TEST_F(SplitModuleTest, ANegativeNumberIsRefusedByName) {
  module_.graph().Output(Relu(Placeholder("x"), -1));
  EXPECT_THAT(Refused(absl::StatusCode::kInvalidArgument), AllOf(HasSubstr("%relu_default"), HasSubstr("-1")));
}

TEST_F(SplitModuleTest, WhatTheModuleDoesNotHaveIsRefusedByName) {
  Node* x = Placeholder("x");
  module_.graph().Output(Put(module_.graph().CallModule("blocks.7", {x}), 0));
  EXPECT_THAT(Refused(absl::StatusCode::kNotFound), AllOf(HasSubstr("%blocks_7"), HasSubstr("\"blocks.7\"")));
  Submodule("blocks.7");
  ids_[module_.graph().back()->prev()] = 0;
  EXPECT_THAT(Text(*Get(), "submod_0"), HasSubstr("%blocks_7 : [num_users=1] = call_module[target=blocks_7](args = (%x,)"));
}

// Of the partitions that wait for none, torch.fx calls the one first that became so last.
TEST_F(SplitModuleTest, IndependentPartitionsAreCalledInTorchFxsOrder) {
  Node* x = Placeholder("x");
  Node* a = Relu(x, 0);
  Node* b = Relu(x, 1);
  Node* c = Relu(a, 2);
  Node* d = Relu(a, 3);
  module_.graph().Output(Argument::Tuple({Add(Add(b, c, 4), d, 4)}));
  EXPECT_THAT(Calls(*Get()), ElementsAre("submod_1", "submod_0", "submod_3", "submod_2", "submod_4"));
  SplitOptions options;
  options.keep_original_order = true;
  EXPECT_THAT(Calls(*Get(options)), ElementsAre("submod_0", "submod_1", "submod_2", "submod_3", "submod_4"));
}

// Case 26: what a partition needs comes before it, sizes too.
TEST_F(SplitModuleTest, TheOriginalOrderCanBeKept) {
  Node* x = Placeholder("x");
  Node* w = Param("w");
  Node* unused = Param("v");
  Node* size = Opaque("my.size", {x}, 4);
  Node* y = Placeholder("y");
  Node* sum = Add(y, w, 2);
  module_.graph().Output(Argument::Tuple({Opaque("my.expand", {sum, size}, 0), unused}));
  SplitOptions options;
  options.keep_original_order = true;
  EXPECT_EQ(Get(options)->graph().ToString(),
            "graph():\n"
            "    %x : [num_users=1] = placeholder[target=x]\n"
            "    %y : [num_users=1] = placeholder[target=y]\n"
            "    %submod_4 : [num_users=1] = call_module[target=submod_4](args = (%x,), kwargs = {})\n"
            "    %w : [num_users=1] = get_attr[target=w]\n"
            "    %submod_2 : [num_users=1] = call_module[target=submod_2](args = (%y, %w), kwargs = {})\n"
            "    %submod_0 : [num_users=1] = call_module[target=submod_0](args = (%submod_2, %submod_4), kwargs = {})\n"
            "    %v : [num_users=1] = get_attr[target=v]\n"
            "    return (submod_0, v)");
}

TEST_F(SplitModuleTest, AnOrderThatCannotBeKeptIsRefusedByName) {
  Node* x = Placeholder("x");
  Relu(x, 0);
  Node* b = Relu(x, 1);
  module_.graph().Output(Relu(b, 0));
  EXPECT_THAT(Calls(*Get()), ElementsAre("submod_1", "submod_0"));
  SplitOptions options;
  options.keep_original_order = true;
  EXPECT_THAT(Refused(absl::StatusCode::kFailedPrecondition, options),
              HasSubstr("submod_0 comes first but takes %relu_default_1 from submod_1"));
}

TEST_F(SplitModuleTest, NodesAreNamedAfterTheirTargets) {
  Node* x = Placeholder("x");
  for (const char* target :
       {"torch.ops.only_python.myOp.Scalar_out", "torch.ops.aten.numpy_T", "torch._C._nn.linear", "operator.getitem"}) {
    x = Opaque(target, {x}, 0);
  }
  module_.graph().Output(x);
  EXPECT_THAT(Text(*Get(), "submod_0"), AllOf(HasSubstr("%my_op_scalar_out :"), HasSubstr("%numpy_t :"), HasSubstr("%linear :"),
                                              HasSubstr("%getitem :")));
}

TEST_F(SplitModuleTest, NamesCanBeKept) {
  Node* x = module_.graph().CreateNode(Op::kPlaceholder, PathTarget{"L_x_"}, {c10::IValue(3)}, {}, "l_x");
  Node* a = Put(module_.graph().CallFunction(FindOperator("aten::relu"), {x}, {}, "first"), 0);
  module_.graph().Output(Put(module_.graph().CallFunction(FindOperator("aten::relu"), {a}, {}, "second"), 1));
  SplitOptions options;
  options.keep_original_node_names = true;
  options.keep_original_input_names = false;
  const auto split = Get(options);
  EXPECT_THAT(split->graph().ToString(), HasSubstr("%l_x : [num_users=1] = placeholder[target=l_x](default=3)"));
  EXPECT_EQ(Text(*split, "submod_1"),
            "graph():\n"
            "    %arg_0 : [num_users=1] = placeholder[target=arg_0]\n"
            "    %second : [num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%arg_0,), kwargs = {})\n"
            "    return second");
}

TEST_F(SplitModuleTest, TellsWhichPathIsWhich) {
  Node* x = Placeholder("x");
  const auto dotted = Submodule("a.b");
  const auto plain = Submodule("a_b");
  Submodule("body");
  x = Put(module_.graph().CallModule("a.b", {x}), 0);
  x = Put(module_.graph().CallModule("a_b", {x}), 0);
  x = Put(module_.graph().CallModule("a.b", {x}), 0);
  module_.graph().Output(Opaque("my.wrap", {module_.graph().GetAttr("body"), x}, 1));
  std::map<std::string, std::string> paths;
  SplitOptions options;
  options.qualname_map = &paths;
  const auto split = Get(options);
  EXPECT_THAT(paths, UnorderedElementsAre(Pair("submod_0.a_b", "a.b"), Pair("submod_0.a_b_1", "a_b"), Pair("submod_1.body", "body")));
  const auto part = split->GetSubmodule("submod_0")->graph_module;
  EXPECT_EQ(part->GetSubmodule("a_b")->graph_module, dotted);
  EXPECT_EQ(part->GetSubmodule("a_b_1")->graph_module, plain);
}

// Case 2, and a module's method called by its name: a get_attr may name a module.
TEST_F(SplitModuleTest, ModulesAreReadInsideThePartitions) {
  Node* x = Placeholder("x");
  Submodule("conv.parametrizations");
  Node* y = Put(module_.graph().CallMethod("forward", {module_.graph().GetAttr("conv.parametrizations"), Relu(x, 0)}), 1);
  module_.graph().Output(y);
  const auto split = Get();
  EXPECT_EQ(Text(*split, "submod_1"),
            "graph():\n"
            "    %relu_default : [num_users=1] = placeholder[target=relu_default]\n"
            "    %conv_parametrizations : [num_users=1] = get_attr[target=conv.parametrizations]\n"
            "    %forward : [num_users=1] = call_method[target=forward](args = (%conv_parametrizations, %relu_default), kwargs = {})\n"
            "    return forward");
  // torch.fx reads it outside too, though nobody there uses it.
  EXPECT_THAT(split->graph().ToString(), HasSubstr("%conv_parametrizations : [num_users=0] = get_attr[target=conv.parametrizations]"));
}

// Cases 12, 18 and 11.
TEST_F(SplitModuleTest, PartitionsGetTheModulesMetadataAndNestedGraphsKeepTheirs) {
  const auto body = Submodule("wrap_body_0");
  body->meta()["policy"] = c10::IValue("recompute");
  Node* x = Placeholder("x");
  Node* p = Placeholder("p");
  Node* q = Placeholder("q");
  module_.meta()["compile_reason"] = c10::IValue("training step");
  module_.meta()["dynamo_static_input_indices"] = c10::IValue(c10::List<int64_t>({1, 2}));
  Node* a = Opaque("tag_activation_checkpoint", {module_.graph().GetAttr("wrap_body_0"), x, p}, 0);
  module_.graph().Output(Add(Add(a, q, 1), Param("w"), 1));
  const auto split = Get();
  const auto first = split->GetSubmodule("submod_0")->graph_module;
  const auto second = split->GetSubmodule("submod_1")->graph_module;
  EXPECT_EQ(first->GetSubmodule("wrap_body_0")->graph_module, body);
  EXPECT_EQ(body->meta().size(), 1u);
  EXPECT_EQ(body->meta().at("policy").toStringRef(), "recompute");
  for (const auto& part : {first, second}) EXPECT_EQ(part->meta().at("compile_reason").toStringRef(), "training step");
  EXPECT_EQ(first->meta().at("dynamo_static_input_indices").toIntVector(), (std::vector<int64_t>{1}));
  EXPECT_EQ(second->meta().at("dynamo_static_input_indices").toIntVector(),
            (std::vector<int64_t>{1, 2}));  // q, and w that is passed in
  EXPECT_EQ(split->meta().at("dynamo_static_input_indices").toIntVector(), (std::vector<int64_t>{1, 2}));
}

// Case 29.
TEST_F(SplitModuleTest, GradModesAreEnteredAgain) {
  constexpr char kSet[] = "torch._C._set_grad_enabled";
  Node* x = Placeholder("x");
  Opaque(kSet, {c10::IValue(false)}, 0);
  Node* a = Relu(x, 0);
  Node* b = Relu(a, 1);
  Opaque(kSet, {c10::IValue(true)}, 1);
  module_.graph().Output(Relu(b, 2));
  const auto split = Get();
  EXPECT_EQ(
      Text(*split, "submod_1"),
      "graph():\n"
      "    %_set_grad_enabled : [num_users=0] = call_function[target=torch._C._set_grad_enabled](args = (False,), kwargs = {})\n"
      "    %relu_default : [num_users=1] = placeholder[target=relu_default]\n"
      "    %relu_default_1 : [num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%relu_default,), kwargs = {})\n"
      "    %_set_grad_enabled_1 : [num_users=0] = call_function[target=torch._C._set_grad_enabled](args = (True,), kwargs = {})\n"
      "    return relu_default_1");
  EXPECT_THAT(Text(*split, "submod_2"), HasSubstr("_set_grad_enabled](args = (True,)"));
}

TEST_F(SplitModuleTest, AutocastIsEnteredAndLeftInEachPartition) {
  Node* x = Placeholder("x");
  Node* enter = Opaque("torch.amp.autocast_mode._enter_autocast", {c10::IValue("cpu"), Argument(), c10::IValue(true), Argument()}, 0);
  Node* inner = Opaque("torch.amp.autocast_mode._enter_autocast", {c10::IValue("cuda")}, 0);
  Node* a = Relu(x, 0);
  Node* b = Relu(a, 1);
  Node* c = Relu(b, 2);
  Opaque("torch.amp.autocast_mode._exit_autocast", {inner}, 2);
  Opaque("torch.amp.autocast_mode._exit_autocast", {enter}, 2);
  module_.graph().Output(Relu(c, 3));
  const auto split = Get();
  EXPECT_EQ(
      Text(*split, "submod_1"),
      "graph():\n"
      "    %_enter_autocast : [num_users=1] = call_function[target=torch.amp.autocast_mode._enter_autocast]"
      "(args = (cpu, None, True, None), kwargs = {})\n"
      "    %_enter_autocast_1 : [num_users=1] = call_function[target=torch.amp.autocast_mode._enter_autocast]"
      "(args = (cuda,), kwargs = {})\n"
      "    %relu_default : [num_users=1] = placeholder[target=relu_default]\n"
      "    %relu_default_1 : [num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%relu_default,), kwargs = {})\n"
      "    %_exit_autocast : [num_users=0] = call_function[target=torch.amp.autocast_mode._exit_autocast]"
      "(args = (%_enter_autocast_1,), kwargs = {})\n"
      "    %_exit_autocast_1 : [num_users=0] = call_function[target=torch.amp.autocast_mode._exit_autocast]"
      "(args = (%_enter_autocast,), kwargs = {})\n"
      "    return relu_default_1");
  // No enter crosses a border, and outside the region there is none.
  EXPECT_THAT(split->graph().ToString(), HasSubstr("target=submod_1](args = (%submod_0,)"));
  EXPECT_THAT(Text(*split, "submod_3"), Not(HasSubstr("autocast")));
}

TEST_F(SplitModuleTest, InferenceModeIsEnteredAgainToo) {
  Node* x = Placeholder("x");
  Node* enter = Opaque("torch.autograd.grad_mode._enter_inference_mode", {c10::IValue(true)}, 0);
  Node* a = Relu(x, 0);
  Node* b = Relu(a, 1);
  Opaque("torch.autograd.grad_mode._exit_inference_mode", {enter}, 1);
  module_.graph().Output(b);
  const auto split = Get();
  EXPECT_THAT(split->graph().ToString(), HasSubstr("target=submod_1](args = (%submod_0,)"));
  EXPECT_THAT(Text(*split, "submod_0"), HasSubstr("_exit_inference_mode](args = (%_enter_inference_mode,)"));
  EXPECT_THAT(Text(*split, "submod_1"), HasSubstr("_enter_inference_mode](args = (True,)"));
}

TEST_F(SplitModuleTest, RegionsThatDoNotAllowThePartitionAreRefusedByName) {
  Node* x = Placeholder("x");
  Node* set = Opaque("torch._C._set_grad_enabled", {c10::IValue(false)}, 0);
  Node* a = Relu(x, 1);
  Node* b = Relu(x, 0);
  module_.graph().Output(Argument::Tuple({a, b}));
  EXPECT_THAT(Refused(absl::StatusCode::kFailedPrecondition), AllOf(HasSubstr("%relu_default_1"), HasSubstr("%relu_default,")));
  ids_[b] = 1;
  Get();
  set->set_args({c10::IValue(int64_t{0})});
  EXPECT_THAT(Refused(absl::StatusCode::kFailedPrecondition), AllOf(HasSubstr("%_set_grad_enabled"), HasSubstr("one bool")));
}

TEST_F(SplitModuleTest, UnpairedAutocastIsRefusedByName) {
  Node* x = Placeholder("x");
  Node* enter = Opaque("torch.amp.autocast_mode._enter_autocast", {}, 0);
  Node* output = module_.graph().Output(Relu(x, 1));
  EXPECT_THAT(Refused(absl::StatusCode::kFailedPrecondition), AllOf(HasSubstr("%_enter_autocast"), HasSubstr("never left")));
  module_.graph().SetInsertBefore(output);
  Opaque("torch.amp.autocast_mode._exit_autocast", {enter}, 1);
  Get();
  Opaque("torch.amp.autocast_mode._exit_autocast", {enter}, 1);
  EXPECT_THAT(Refused(absl::StatusCode::kFailedPrecondition), AllOf(HasSubstr("%_exit_autocast_1"), HasSubstr("no region")));
}

// torch.fx would call submod_1, which turns gradients off for good, before submod_0.
TEST_F(SplitModuleTest, WhatRunsInTheCallersGradModeRunsFirst) {
  Node* x = Placeholder("x");
  Node* a = Relu(x, 0);
  Opaque("torch._C._set_grad_enabled", {c10::IValue(false)}, 1);
  Node* b = Relu(x, 1);
  module_.graph().Output(Argument::Tuple({a, b}));
  EXPECT_THAT(Calls(*Get()), ElementsAre("submod_0", "submod_1"));
}

// Cases 6 and 28: a symbol from an input, one that a node computes, one that nothing stands for.
TEST_F(SplitModuleTest, SymbolsGoWithTheValuesThatDependOnThem) {
  Node* s = Placeholder("s77");
  Node* x = Placeholder("x");
  Symbol(s, "s77");
  Sizes(x, {"s77"});
  Node* n = Opaque("my.item", {x}, 0);
  Symbol(n, "u0");
  Node* zeros = Opaque("my.zeros", {n}, 0);
  Sizes(zeros, {"u0", "unbound"});
  Node* y = Relu(zeros, 1);
  Sizes(y, {"s77", "u0"});
  module_.graph().Output(Relu(y, 2));
  const auto split = Get();
  EXPECT_THAT(split->graph().ToString(),
              AllOf(HasSubstr("target=submod_0](args = (%x, %s77)"), HasSubstr("target=submod_1](args = (%getitem, %getitem_1)"),
                    HasSubstr("target=submod_2](args = (%submod_1, %s77, %getitem_1)")));
  EXPECT_THAT(Text(*split, "submod_0"), HasSubstr("return (zeros, item)"));
  EXPECT_THAT(Text(*split, "submod_1"), HasSubstr("%item : [num_users=0] = placeholder[target=item]"));
}

// What a graph computes, as hashes of targets and arguments.
class Meaning {
 public:
  using Values = std::vector<uint64_t>;

  static Values Of(const GraphModule& module, const Values& inputs) {
    std::map<const Node*, Values> values;
    std::size_t next_input = 0;
    for (const Node* node : module.graph().nodes()) {
      Values& value = values[node];
      if (node->op() == Op::kPlaceholder) {
        value = {inputs.at(next_input++)};
        continue;
      }
      Values args;
      for (const Argument& argument : node->args()) {
        argument.ForEachNode([&](const Node* input) { args.insert(args.end(), values.at(input).begin(), values.at(input).end()); });
      }
      const std::string target = TargetToString(node->target());
      if (node->op() == Op::kOutput) return args;
      if (node->op() == Op::kCallModule) {
        value = Of(*module.GetSubmodule(node->path())->graph_module, args);
      } else if (target == "operator.getitem") {
        value = {args.at(node->args()[1].constant().toInt())};
      } else {
        uint64_t hash = std::hash<std::string>()(target);
        for (const uint64_t arg : args) hash = hash * 0x9E3779B97F4A7C15u + (arg ^ (hash >> 29));
        value = {hash};
      }
    }
    return {};
  }
};

TEST_F(SplitModuleTest, RandomGraphsComputeTheSameWhenSplit) {
  int refused = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    const auto below = [&random](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    GraphModule module;
    Graph& graph = module.graph();
    std::map<const Node*, int> ids;
    std::vector<Node*> values = {graph.Placeholder("x"), graph.Placeholder("y")};
    for (const char* path : {"a.w", "b.w"}) ASSERT_TRUE(module.AddAttr(path, at::ones({2}), Kind::kParameter).ok());
    const std::size_t size = 5 + below(40);
    const int parts = 1 + static_cast<int>(below(6));
    for (std::size_t i = 0; i < size; ++i) {
      if (below(6) == 0) values.push_back(graph.GetAttr(below(2) == 0 ? "a.w" : "b.w"));
      std::vector<Argument> args = {values[below(values.size())],
                                    Argument::List({values[values.size() - 1 - below(std::min<std::size_t>(values.size(), 4))]})};
      Node* node = graph.CreateNode(Op::kCallFunction, OpaqueTarget{absl::StrCat("my.op", below(4))}, std::move(args));
      // Mostly forward, sometimes anywhere.
      ids[node] = below(25) == 0 ? static_cast<int>(below(parts)) : static_cast<int>(i * parts / size);
      values.push_back(node);
    }
    std::vector<Argument> results;
    for (std::size_t i = 0; i <= below(4); ++i) results.emplace_back(values[below(values.size())]);
    graph.Output(Argument::Tuple(std::move(results)));

    const Meaning::Values want = Meaning::Of(module, {11, 22});
    for (int variant = 0; variant < 8; ++variant) {
      SplitOptions options;
      options.attributes = variant & 1 ? SplitOptions::Attributes::kCopy : SplitOptions::Attributes::kPass;
      options.tuple_return = (variant & 2) != 0;
      options.keep_original_order = (variant & 4) != 0;
      const auto split = SplitModule(
          module, [&ids](const Node* node) { return ids.at(node); }, options);
      if (!split.ok()) {
        EXPECT_EQ(split.status().code(), absl::StatusCode::kFailedPrecondition) << split.status();
        ++refused;
        continue;
      }
      const absl::Status lint = (*split)->Lint();
      EXPECT_TRUE(lint.ok()) << lint;
      EXPECT_EQ(Meaning::Of(**split, {11, 22}), want);
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 60 * 4);
}

}  // namespace
}  // namespace ddpopt::fx
