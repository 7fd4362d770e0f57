// A counterpart of each thing that PyTorch tests of its DDPOptimizer: what is compiled, that it computes and differentiates what eager
// does, and which graphs are cut where.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ddpopt/backends/backend.h"
#include "ddpopt/optimizer/bucket_assignment.h"
#include "ddpopt/optimizer/ddp_optimizer.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fx_graph/split_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "interpreter/interpreter.h"
#include "testing/calls.h"
#include "testing/tensors.h"

namespace ddpopt {
namespace {

using c10::IValue;
using fx::Argument;
using fx::Node;
using testing::FindOperator;
using testing::Ramp;
using Kind = fx::GraphModule::AttrKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PyTorchCounterparts : public ::testing::Test {
 protected:
  Node* Call(const char* name, const char* overload, std::vector<Argument> args, fx::Kwargs kwargs = {}) {
    return gm_->graph().CallFunction(FindOperator(name, overload), std::move(args), std::move(kwargs));
  }
  Node* Input(const char* name) { return gm_->graph().Placeholder(name); }
  Node* Weight(const std::string& path, at::IntArrayRef sizes, bool requires_grad = true) {
    if (!gm_->attrs().contains(path)) {
      EXPECT_TRUE(gm_->AddAttr(path, Ramp(sizes).set_requires_grad(requires_grad), Kind::kParameter).ok());
    }
    return gm_->graph().GetAttr(path);
  }
  Node* Linear(Argument x, const std::string& path, int64_t in, int64_t out) {
    return Call("aten::linear", "", {std::move(x), Weight(path, {out, in})});
  }
  Node* Relu(Argument x) { return Call("aten::relu", "", {std::move(x)}); }
  void Output(Argument result) { gm_->graph().Output(std::move(result)); }

  // Compiles with an eager backend that counts, runs, and compares values and gradients with the uncut graph. Returns what was
  // compiled.
  std::vector<std::string> Compiled(std::vector<at::Tensor> inputs, const BucketOptions& options) {
    std::vector<std::string> pieces;
    const CompileFn counting = [&](std::shared_ptr<const fx::GraphModule> piece, const std::vector<IValue>& fakes,
                                   const CompileContext& context) {
      pieces.push_back(context.name);
      fakes_.push_back(fakes);
      return EagerBackend()(std::move(piece), fakes, context);
    };
    fakes_.clear();
    const std::vector<IValue> examples(inputs.begin(), inputs.end());
    auto optimized = OptimizeDdp(gm_, examples, FakeTensorMode::Create(), counting, options);
    EXPECT_TRUE(optimized.ok()) << optimized.status();
    if (!optimized.ok()) return pieces;
    const std::vector<at::Tensor> want = RunAndDifferentiate(*gm_, inputs);
    const std::vector<at::Tensor> got = RunAndDifferentiate(*optimized->module, inputs);
    EXPECT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
      EXPECT_EQ(got[i].defined(), want[i].defined()) << i;
      if (!got[i].defined() || !want[i].defined()) continue;
      EXPECT_TRUE(at::equal(got[i], want[i])) << i;
    }
    return pieces;
  }
  std::vector<std::string> Compiled(std::vector<at::Tensor> inputs, int64_t cap) {
    BucketOptions options;
    options.bucket_cap_bytes = cap;
    return Compiled(std::move(inputs), options);
  }

  // Outputs, then the inputs afterwards, then the parameters' gradients.
  std::vector<at::Tensor> RunAndDifferentiate(const fx::GraphModule& module, const std::vector<at::Tensor>& inputs) {
    std::vector<IValue> copies;
    for (const at::Tensor& input : inputs) copies.emplace_back(input.clone());
    const IValue result = CallGraphModule(module, copies);
    std::vector<at::Tensor> outputs;
    if (result.isTensor()) outputs.push_back(result.toTensor());
    if (result.isTuple()) {
      for (const IValue& element : result.toTupleRef().elements()) {
        if (element.isTensor()) outputs.push_back(element.toTensor());
      }
    }
    at::Tensor loss;
    for (const at::Tensor& output : outputs) {
      if (output.requires_grad()) loss = loss.defined() ? loss.add(output.pow(2).sum()) : output.pow(2).sum();
    }
    if (loss.defined()) loss.backward();
    for (const IValue& copy : copies) outputs.push_back(copy.toTensor());
    for (const auto& [path, attr] : gm_->attrs()) {
      if (attr.kind != Kind::kParameter) continue;
      outputs.push_back(attr.value.toTensor().grad());
      attr.value.toTensor().mutable_grad().reset();
    }
    return outputs;
  }

  BucketAssignment Assign(int64_t cap, BucketRule rule = BucketRule::kDefault) {
    BucketOptions options;
    options.rule = rule;
    options.bucket_cap_bytes = cap;
    options.first_bucket_cap_bytes = cap;
    auto assignment = AssignBuckets(*gm_, options);
    EXPECT_TRUE(assignment.ok()) << assignment.status();
    return assignment.ok() ? *std::move(assignment) : BucketAssignment();
  }
  // What can't be executed here is cut all the same.
  std::shared_ptr<fx::GraphModule> Split(const BucketAssignment& assignment) {
    auto split = fx::SplitModule(*gm_, [&](const Node* node) { return assignment.bucket_of.at(node); });
    EXPECT_TRUE(split.ok()) << split.status();
    return split.ok() ? *split : std::make_shared<fx::GraphModule>();
  }
  static std::string Text(const fx::GraphModule& split, const char* path) {
    return split.GetSubmodule(path)->graph_module->graph().ToString();
  }

  std::shared_ptr<fx::GraphModule> gm_ = std::make_shared<fx::GraphModule>();
  std::vector<std::vector<IValue>> fakes_;  // what the backend was given, piece by piece
};

TEST_F(PyTorchCounterparts, GraphSplit) {
  Node* x = Relu(Linear(Input("x"), "net.0.weight", 4, 8));
  x = Relu(Linear(x, "net.2.weight", 8, 8));
  Output(Argument::Tuple({Linear(x, "net.4.weight", 8, 2)}));
  EXPECT_THAT(Compiled({Ramp({3, 4})}, 100), ElementsAre("submod_0", "submod_1"));
  EXPECT_THAT(Compiled({Ramp({3, 4})}, 1), ElementsAre("submod_0", "submod_1", "submod_2"));
}

TEST_F(PyTorchCounterparts, NoSplit) {
  Output(Linear(Relu(Linear(Input("x"), "a", 4, 4)), "b", 4, 4));
  EXPECT_THAT(Compiled({Ramp({3, 4})}, 1 << 20), ElementsAre("submod_0"));
}

// What crosses is not contiguous, and the next piece is compiled for just that.
TEST_F(PyTorchCounterparts, TransposedInputs) {
  Node* x = Linear(Input("x"), "a", 4, 5);
  x = Call("aten::t", "", {x});
  x = Linear(x, "b", 3, 6);
  Output(Argument::Tuple({x, Call("aten::transpose", "int", {x, IValue(0), IValue(1)})}));
  BucketOptions options;
  options.bucket_ends = {"t_default"};
  EXPECT_THAT(Compiled({Ramp({3, 4})}, options), ElementsAre("submod_0", "submod_1"));
  ASSERT_EQ(fakes_.size(), 2u);
  EXPECT_EQ(fakes_[1][0].toTensor().strides(), (std::vector<int64_t>{1, 5}));
  EXPECT_THAT(Compiled({Ramp({4, 3}).t()}, options), ElementsAre("submod_0", "submod_1"));
  EXPECT_EQ(fakes_[0][0].toTensor().strides(), (std::vector<int64_t>{1, 3}));
}

// Two values of one storage cross the same border; the next piece writes to one and reads the other.
TEST_F(PyTorchCounterparts, AliasedInputs) {
  Node* x = Linear(Input("x"), "a", 4, 4);
  Node* whole = Call("aten::clone", "", {x});
  Node* row = Call("aten::select", "int", {whole, IValue(0), IValue(0)});
  Node* w = Weight("b", {4, 4});
  Call("aten::add_", "Tensor", {row, Call("aten::select", "int", {w, IValue(0), IValue(1)})});
  Output(Argument::Tuple({Call("aten::mm", "", {whole, w}), row, whole}));
  EXPECT_THAT(Compiled({Ramp({3, 4})}, 1), ElementsAre("submod_0", "submod_1"));
  // The same tensor twice.
  gm_ = std::make_shared<fx::GraphModule>();
  Node* y = Linear(Input("y"), "a", 4, 4);
  Output(Call("aten::mul", "Tensor", {Linear(y, "b", 4, 4), y}));
  EXPECT_THAT(Compiled({Ramp({3, 4})}, 1), ElementsAre("submod_0", "submod_1"));
}

TEST_F(PyTorchCounterparts, IgnoredParameters) {
  Node* x = Input("x");
  for (const char* path : {"a", "b", "c"}) x = Linear(x, path, 4, 4);
  Output(x);
  BucketOptions options;
  options.bucket_cap_bytes = 64;
  EXPECT_EQ(Compiled({Ramp({3, 4})}, options).size(), 3u);
  options.ignored_parameters = {"b"};
  EXPECT_EQ(Compiled({Ramp({3, 4})}, options).size(), 2u);
  options.ignored_parameters = {"a", "b", "c"};
  EXPECT_EQ(Compiled({Ramp({3, 4})}, options).size(), 1u);
}

TEST_F(PyTorchCounterparts, CustomLayers) {
  Node* x = Relu(Linear(Input("x"), "linear", 4, 6));
  for (const char* path : {"custom.0", "custom.1"}) {
    Node* tmp = Call("aten::mm", "", {x, Call("aten::t", "", {Weight(path, {6, 6})})});
    Node* less = Call("aten::lt", "Scalar", {tmp, IValue(0.5)});
    x = Relu(Call("aten::add", "Tensor", {tmp, Call("aten::where", "Scalar", {less, IValue(0.3), IValue(0.6)})}));
  }
  Output(x);
  EXPECT_EQ(Compiled({Ramp({3, 4})}, 1).size(), 3u);
}

TEST_F(PyTorchCounterparts, EmptyGraphs) {
  Output(Argument::Tuple({Input("x")}));
  EXPECT_THAT(Compiled({Ramp({3, 4})}, 1), IsEmpty());
}

TEST_F(PyTorchCounterparts, MutationOnlyBuckets) {
  Node* x = Linear(Input("x"), "a", 4, 4);
  Node* state = Call("aten::zeros_like", "", {x});
  for (const char* path : {"b", "c", "d"}) Call("aten::add_", "Tensor", {state, Weight(path, {4})});
  Output(Argument::Tuple({x, state}));
  const BucketAssignment assignment = Assign(1);
  ASSERT_EQ(assignment.buckets.size(), 2u);
  EXPECT_GT(assignment.buckets[1].extended_by_nodes, 0);
  EXPECT_EQ(Compiled({Ramp({3, 4})}, 1).size(), 2u);
}

// Ints cross a border like tensors.
TEST_F(PyTorchCounterparts, ValuesOtherThanTensorsAcrossBorders) {
  Node* x = Linear(Input("x"), "a", 4, 6);
  Node* rows = Call("aten::size", "int", {x, IValue(0)});
  Node* y = Linear(x, "b", 6, 6);
  y = Call("aten::view", "", {y, Argument::List({IValue(2), rows, IValue(3)})});
  Output(Argument::Tuple({y, rows}));
  EXPECT_THAT(Compiled({Ramp({3, 4})}, 1), ElementsAre("submod_0", "submod_1"));
  ASSERT_EQ(fakes_.size(), 2u);
  const bool has_int =
      std::any_of(fakes_[1].begin(), fakes_[1].end(), [](const IValue& value) { return value.isInt() && value.toInt() == 3; });
  EXPECT_TRUE(has_int);
}

// A region with a graph of its own is cut around, never through, and keeps its graph.
TEST_F(PyTorchCounterparts, HigherOrderOperators) {
  Node* x = Relu(Linear(Input("x"), "a", 4, 4));
  auto branch = std::make_shared<fx::GraphModule>();
  branch->graph().Output(branch->graph().Placeholder("x"));
  for (const char* path : {"cond_true_0", "cond_false_0"}) ASSERT_TRUE(gm_->AddSubmodule(path, {branch, nullptr}).ok());
  Node* cond = gm_->graph().CreateNode(fx::Op::kCallFunction, fx::HigherOrderTarget{"cond"},
                                       {x, gm_->graph().GetAttr("cond_true_0"), gm_->graph().GetAttr("cond_false_0"),
                                        Argument::Tuple({x, Weight("in_branch", {4, 4})})});
  Node* y = gm_->graph().CreateNode(fx::Op::kCallFunction, fx::OpaqueTarget{"operator.getitem"}, {cond, IValue(0)});
  Output(Linear(y, "b", 4, 4));
  const BucketAssignment assignment = Assign(1);
  ASSERT_EQ(assignment.buckets.size(), 3u);
  EXPECT_THAT(assignment.buckets[1].parameters, ElementsAre("in_branch"));  // an operand in a tuple
  const auto split = Split(assignment);
  EXPECT_THAT(Text(*split, "submod_1"), HasSubstr("%cond_true_0, %cond_false_0, (%relu_default, %in_branch))"));
  EXPECT_EQ(split->GetSubmodule("submod_1")->graph_module->GetSubmodule("cond_true_0")->graph_module, branch);
}

// Case 13.
TEST_F(PyTorchCounterparts, CheckpointedBlocks) {
  Node* x = Input("x");
  for (int i = 0; i < 3; ++i) {
    const std::string name = "wrap_body_" + std::to_string(i);
    auto body = std::make_shared<fx::GraphModule>();
    fx::Graph& g = body->graph();
    Node* in = g.Placeholder("x");
    g.Output(Argument::Tuple({g.CallFunction(FindOperator("aten::linear"), {in, g.Placeholder("w")})}));
    ASSERT_TRUE(gm_->AddSubmodule(name, {body, nullptr}).ok());
    Node* call = gm_->graph().CreateNode(fx::Op::kCallFunction, fx::HigherOrderTarget{"tag_activation_checkpoint"},
                                         {gm_->graph().GetAttr(name), x, Weight("blocks." + std::to_string(i), {4, 4})},
                                         {{"use_reentrant", IValue(false)}});
    x = gm_->graph().CreateNode(fx::Op::kCallFunction, fx::OpaqueTarget{"operator.getitem"}, {call, IValue(0)});
  }
  Output(x);
  const BucketAssignment assignment = Assign(1);
  ASSERT_EQ(assignment.buckets.size(), 3u);
  EXPECT_THAT(assignment.buckets[2].parameters, ElementsAre("blocks.2"));
  const auto split = Split(assignment);
  for (const char* path : {"submod_0", "submod_1", "submod_2"})
    EXPECT_THAT(Text(*split, path), HasSubstr("tag_activation_checkpoint"));
}

// Case 3: self.linear.forward(x) beside self.linear(x).
TEST_F(PyTorchCounterparts, MethodFormCalls) {
  for (const char* path : {"first", "second"}) {
    auto leaf = std::make_shared<fx::GraphModule>();
    ASSERT_TRUE(leaf->AddAttr("weight", Ramp({4, 4}).set_requires_grad(true), Kind::kParameter).ok());
    ASSERT_TRUE(gm_->AddSubmodule(path, {leaf, nullptr}).ok());
  }
  Node* x = gm_->graph().CallMethod("forward", {gm_->graph().GetAttr("first"), Input("x")});
  x = gm_->graph().CallModule("second", {x});
  x = gm_->graph().CallMethod("forward", {gm_->graph().GetAttr("second"), x});
  Output(x);
  const BucketAssignment assignment = Assign(1);
  ASSERT_EQ(assignment.buckets.size(), 2u);
  EXPECT_THAT(assignment.buckets[0].parameters, ElementsAre("first.weight"));
  EXPECT_THAT(assignment.buckets[1].parameters, ElementsAre("second.weight"));  // once, at its first call
  EXPECT_THAT(Text(*Split(assignment), "submod_1"), HasSubstr("%second : [num_users=1] = get_attr[target=second]"));
}

// Parameters that are returned, read by an operator alone, passed by keyword, in a list, or through another operator.
TEST_F(PyTorchCounterparts, ParametersInOddPlaces) {
  Node* x = Linear(Input("x"), "plain", 4, 4);
  Node* sum = Call("aten::sum", "", {Weight("read_alone", {4, 4})});
  x = Call("aten::mul", "Tensor", {x, sum});
  x = Call("aten::linear", "", {x}, {{"weight", Weight("by_keyword", {4, 4})}});
  x = Call("aten::mm", "", {x, Call("aten::cat", "", {Argument::List({Weight("listed.0", {2, 4}), Weight("listed.1", {2, 4})})})});
  x = Call("aten::mm", "", {x, Call("aten::t", "", {Weight("transposed", {4, 4})})});
  Output(Argument::Tuple({x, Weight("returned", {4})}));
  const BucketAssignment assignment = Assign(1);
  std::vector<std::string> parameters;
  for (const Bucket& bucket : assignment.buckets)
    parameters.insert(parameters.end(), bucket.parameters.begin(), bucket.parameters.end());
  EXPECT_THAT(parameters, ElementsAre("plain", "returned", "read_alone", "by_keyword", "listed.1", "listed.0", "transposed"));
  EXPECT_EQ(Compiled({Ramp({3, 4})}, 1).size(), assignment.buckets.size());
}

}  // namespace
}  // namespace ddpopt
