#include "ddpopt/optimizer/ddp_optimizer.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "ddpopt/optimizer/submod_compiler.h"
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
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

void AddAttr(fx::GraphModule& gm, const std::string& path, at::Tensor value, Kind kind) {
  ASSERT_TRUE(gm.AddAttr(path, std::move(value), kind).ok());
}

std::vector<at::Tensor> Parameters(const fx::GraphModule& gm) {
  std::vector<at::Tensor> result;
  for (const auto& [path, attr] : gm.attrs()) {
    if (attr.kind == Kind::kParameter) result.push_back(attr.value.toTensor());
  }
  return result;
}

// linear, relu | the seed: tmp = mm(x, w.t()); tmp + where(tmp < 0.5, 0.3, 0.6) | linear
std::shared_ptr<fx::GraphModule> SeedNet() {
  auto gm = std::make_shared<fx::GraphModule>();
  AddAttr(*gm, "in.weight", Ramp({8, 4}).requires_grad_(), Kind::kParameter);
  AddAttr(*gm, "in.bias", Ramp({8}).requires_grad_(), Kind::kParameter);
  AddAttr(*gm, "seed.w", Ramp({6, 8}).requires_grad_(), Kind::kParameter);
  AddAttr(*gm, "out.weight", Ramp({5, 6}).requires_grad_(), Kind::kParameter);
  AddAttr(*gm, "out.bias", Ramp({5}).requires_grad_(), Kind::kParameter);
  fx::Graph& g = gm->graph();
  Node* x = g.Placeholder("x");
  Node* in_weight = g.GetAttr("in.weight");
  Node* in_bias = g.GetAttr("in.bias");
  Node* h = g.CallFunction(FindOperator("aten::relu"), {g.CallFunction(FindOperator("aten::linear"), {x, in_weight, in_bias})});
  Node* t = g.CallFunction(FindOperator("aten::t"), {g.GetAttr("seed.w")});
  Node* tmp = g.CallFunction(FindOperator("aten::mm"), {h, t});
  Node* less = g.CallFunction(FindOperator("aten::lt", "Scalar"), {tmp, IValue(0.5)});
  Node* where = g.CallFunction(FindOperator("aten::where", "Scalar"), {less, IValue(0.3), IValue(0.6)});
  Node* seed = g.CallFunction(FindOperator("aten::add", "Tensor"), {tmp, where});
  Node* out_weight = g.GetAttr("out.weight");
  Node* out_bias = g.GetAttr("out.bias");
  g.Output(g.CallFunction(FindOperator("aten::linear"), {seed, out_weight, out_bias}));
  return gm;
}

// linear | batch_norm in training, relu | mm
std::shared_ptr<fx::GraphModule> BatchNormNet() {
  auto gm = std::make_shared<fx::GraphModule>();
  AddAttr(*gm, "in.weight", Ramp({6, 4}).requires_grad_(), Kind::kParameter);
  AddAttr(*gm, "bn.weight", (Ramp({6}) + 2).requires_grad_(), Kind::kParameter);
  AddAttr(*gm, "bn.bias", Ramp({6}).requires_grad_(), Kind::kParameter);
  AddAttr(*gm, "bn.running_mean", at::zeros({6}), Kind::kBuffer);
  AddAttr(*gm, "bn.running_var", at::ones({6}), Kind::kBuffer);
  AddAttr(*gm, "bn.num_batches_tracked", at::zeros({}, at::kLong), Kind::kBuffer);
  AddAttr(*gm, "out.weight", Ramp({6, 3}).requires_grad_(), Kind::kParameter);
  fx::Graph& g = gm->graph();
  Node* x = g.Placeholder("x");
  Node* h = g.CallFunction(FindOperator("aten::linear"), {x, g.GetAttr("in.weight")});
  g.CallFunction(FindOperator("aten::add_", "Tensor"), {g.GetAttr("bn.num_batches_tracked"), IValue(1)});
  Node* weight = g.GetAttr("bn.weight");
  Node* bias = g.GetAttr("bn.bias");
  Node* mean = g.GetAttr("bn.running_mean");
  Node* var = g.GetAttr("bn.running_var");
  Node* bn = g.CallFunction(FindOperator("aten::batch_norm"),
                            {h, weight, bias, mean, var, IValue(true), IValue(0.1), IValue(1e-5), IValue(false)});
  Node* act = g.CallFunction(FindOperator("aten::relu"), {bn});
  g.Output(g.CallFunction(FindOperator("aten::mm"), {act, g.GetAttr("out.weight")}));
  return gm;
}

BucketOptions Cap(int64_t bytes) {
  BucketOptions options;
  options.bucket_cap_bytes = bytes;
  return options;
}

std::vector<std::string> CallTargets(const fx::GraphModule& gm) {
  std::vector<std::string> targets;
  for (const Node* node : gm.graph().nodes()) {
    if (node->op() == fx::Op::kCallModule) targets.push_back(node->path());
  }
  return targets;
}

// What each compile was asked, and a piece that runs like eager's.
struct Recorder {
  struct Call {
    std::shared_ptr<const fx::GraphModule> piece;
    std::vector<IValue> inputs;
    CompileContext context;
  };
  std::vector<Call> calls;

  CompileFn Fn() {
    return [this](std::shared_ptr<const fx::GraphModule> piece, const std::vector<IValue>& inputs, const CompileContext& context) {
      calls.push_back({piece, inputs, context});
      return EagerBackend()(piece, inputs, context);
    };
  }
};

// An eager piece that claims other strides for its outputs.
class Restrided : public CompiledPiece {
 public:
  Restrided(std::shared_ptr<const CompiledPiece> piece, OutputMeta meta) : piece_(std::move(piece)), meta_(std::move(meta)) {}
  IValue Call(std::vector<IValue> args) const override { return piece_->Call(std::move(args)); }
  std::vector<absl::optional<OutputMeta>> output_meta() const override { return {meta_}; }

 private:
  std::shared_ptr<const CompiledPiece> piece_;
  OutputMeta meta_;
};

TEST(SeedCase, CompilesInAMiddleBucketAndEqualsEager) {
  const auto gm = SeedNet();
  const at::Tensor x = Ramp({3, 4});
  const auto mode = FakeTensorMode::Create();
  Recorder recorder;
  auto optimized = OptimizeDdp(gm, {x}, mode, recorder.Fn(), Cap(130));
  ASSERT_TRUE(optimized.ok()) << optimized.status();

  ASSERT_THAT(CallTargets(*optimized->module), ElementsAre("compiled_submod_0", "compiled_submod_1", "compiled_submod_2"));
  ASSERT_EQ(recorder.calls.size(), 3u);
  EXPECT_THAT(recorder.calls[1].piece->graph().ToString(), HasSubstr("aten.where.Scalar"));

  const at::Tensor want = CallGraphModule(*gm, {x}).toTensor();
  want.pow(2).sum().backward();
  std::vector<at::Tensor> want_grads;
  for (const at::Tensor& parameter : Parameters(*gm)) {
    ASSERT_TRUE(parameter.grad().defined());
    want_grads.push_back(parameter.grad().clone());
    parameter.mutable_grad().reset();
  }
  const at::Tensor got = CallGraphModule(*optimized->module, {x}).toTensor();
  EXPECT_TRUE(at::equal(got, want));
  got.pow(2).sum().backward();
  const std::vector<at::Tensor> parameters = Parameters(*gm);
  for (std::size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(at::equal(parameters[i].grad(), want_grads[i])) << i;
}

TEST(SeedCase, IsRefusedWithoutThePush) {
  const auto gm = SeedNet();
  const auto assignment = AssignBuckets(*gm, Cap(130));
  ASSERT_TRUE(assignment.ok());
  const auto compile = [&](bool push) {
    fx::SplitOptions split;
    split.attributes = fx::SplitOptions::Attributes::kCopy;
    auto outer = fx::SplitModule(*gm, [&](const Node* node) { return assignment->bucket_of.at(node); }, split);
    EXPECT_TRUE(outer.ok());
    SubmodCompilerOptions options;
    options.push_fake_mode = push;
    SubmodCompiler compiler(*outer, FakeTensorMode::Create(), EagerBackend(), options);
    const absl::Status status = compiler.Compile({Ramp({3, 4})});
    EXPECT_THAT(CallTargets(**outer), status.ok() ? ElementsAre("compiled_submod_0", "compiled_submod_1", "compiled_submod_2")
                                                  : ElementsAre("submod_0", "submod_1", "submod_2"));
    return status;
  };
  EXPECT_TRUE(compile(true).ok());
  // where() made two real scalars; where.self is the operator that meets them.
  EXPECT_THAT(std::string(compile(false).message()), AllOf(HasSubstr("compiling submod_1"), HasSubstr("aten::where.self"),
                                                           HasSubstr("real"), HasSubstr("While executing %where")));
}

TEST(OptimizeDdp, GivesTheBackendRealPiecesAndFakeInputs) {
  const auto gm = SeedNet();
  const auto mode = FakeTensorMode::Create();
  Recorder recorder;
  ASSERT_TRUE(OptimizeDdp(gm, {mode->FromReal(Ramp({3, 4}))}, mode, recorder.Fn(), Cap(130)).ok());
  ASSERT_EQ(recorder.calls.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    const Recorder::Call& call = recorder.calls[i];
    EXPECT_EQ(call.context.name, "submod_" + std::to_string(i));
    EXPECT_EQ(call.context.index, i);
    EXPECT_EQ(call.context.count, 3);
    ASSERT_EQ(call.inputs.size(), 1u);
    EXPECT_EQ(ModeOf(call.inputs[0].toTensor()), mode.get());
    EXPECT_EQ(call.inputs[0].toTensor().requires_grad(), i > 0);
    for (const at::Tensor& parameter : Parameters(*call.piece)) EXPECT_FALSE(IsFake(parameter));
  }
  EXPECT_EQ(recorder.calls[1].inputs[0].toTensor().sizes(), (std::vector<int64_t>{3, 8}));
  EXPECT_EQ(recorder.calls[2].inputs[0].toTensor().sizes(), (std::vector<int64_t>{3, 6}));
  EXPECT_TRUE(recorder.calls[1].piece->GetAttr("seed.w")->value.toTensor().is_same(gm->GetAttr("seed.w")->value.toTensor()));
}

TEST(OptimizeDdp, KeepsTheCallersGradMode) {
  at::NoGradGuard no_grad;
  const auto gm = SeedNet();
  for (at::Tensor parameter : Parameters(*gm)) parameter.set_requires_grad(true);
  Recorder recorder;
  ASSERT_TRUE(OptimizeDdp(gm, {Ramp({3, 4})}, FakeTensorMode::Create(), recorder.Fn(), Cap(130)).ok());
  ASSERT_EQ(recorder.calls.size(), 3u);
  EXPECT_FALSE(recorder.calls[1].inputs[0].toTensor().requires_grad());
}

TEST(OptimizeDdp, CompilingChangesNothingReal) {
  const auto gm = BatchNormNet();
  struct Before {
    at::Tensor tensor;
    at::Tensor data;
    int64_t version;
  };
  std::vector<Before> before;
  for (const auto& [path, attr] : gm->attrs()) {
    const at::Tensor tensor = attr.value.toTensor();
    before.push_back({tensor, tensor.detach().clone(), tensor._version()});
  }
  at::Tensor x = Ramp({5, 4});
  const at::Tensor x_data = x.clone();
  const at::Tensor generator = at::detail::getDefaultCPUGenerator().get_state();

  auto optimized = OptimizeDdp(gm, {x}, FakeTensorMode::Create(), EagerBackend(), Cap(40));
  ASSERT_TRUE(optimized.ok()) << optimized.status();
  ASSERT_EQ(CallTargets(*optimized->module).size(), 3u);

  for (const Before& b : before) {
    EXPECT_TRUE(at::equal(b.tensor, b.data));
    EXPECT_EQ(b.tensor._version(), b.version);
    EXPECT_FALSE(b.tensor.grad().defined());
    EXPECT_FALSE(IsFake(b.tensor));
  }
  EXPECT_TRUE(at::equal(x, x_data));
  EXPECT_EQ(x._version(), 0);
  EXPECT_TRUE(at::equal(at::detail::getDefaultCPUGenerator().get_state(), generator));

  // Running does what eager does, statistics included.
  const auto eager = BatchNormNet();
  EXPECT_TRUE(at::equal(CallGraphModule(*optimized->module, {x}).toTensor(), CallGraphModule(*eager, {x}).toTensor()));
  for (const auto& [path, attr] : eager->attrs()) {
    EXPECT_TRUE(at::equal(gm->GetAttr(path)->value.toTensor(), attr.value.toTensor())) << path;
  }
  EXPECT_EQ(gm->GetAttr("bn.num_batches_tracked")->value.toTensor().item<int64_t>(), 1);
}

TEST(OptimizeDdp, OneBucketIsOnePiece) {
  const auto gm = SeedNet();
  auto optimized = OptimizeDdp(gm, {Ramp({3, 4})}, FakeTensorMode::Create(), EagerBackend(), {});
  ASSERT_TRUE(optimized.ok()) << optimized.status();
  EXPECT_THAT(CallTargets(*optimized->module), ElementsAre("compiled_submod_0"));
  EXPECT_TRUE(at::equal(CallGraphModule(*optimized->module, {Ramp({3, 4})}).toTensor(), CallGraphModule(*gm, {Ramp({3, 4})}).toTensor()));
}

TEST(OptimizeDdp, RefusesAWrongNumberOfInputs) {
  const auto optimized = OptimizeDdp(SeedNet(), {}, FakeTensorMode::Create(), EagerBackend(), {});
  EXPECT_EQ(optimized.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(optimized.status().message()), HasSubstr("takes 1 inputs, but 0"));
}

TEST(OptimizeDdp, RefusesShapesThatDoNotFit) {
  const auto optimized = OptimizeDdp(SeedNet(), {Ramp({3, 7})}, FakeTensorMode::Create(), EagerBackend(), Cap(130));
  EXPECT_THAT(std::string(optimized.status().message()), AllOf(HasSubstr("compiling submod_0"), HasSubstr("While executing %linear")));
}

TEST(OptimizeDdp, PassesTheBackendsErrorOn) {
  const CompileFn refuse = [](std::shared_ptr<const fx::GraphModule> piece, const std::vector<IValue>& inputs,
                              const CompileContext& context) -> absl::StatusOr<std::shared_ptr<const CompiledPiece>> {
    if (context.index == 1) return absl::ResourceExhaustedError("no more registers");
    return EagerBackend()(piece, inputs, context);
  };
  const auto refused = OptimizeDdp(SeedNet(), {Ramp({3, 4})}, FakeTensorMode::Create(), refuse, Cap(130));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(refused.status().message()), "compiling submod_1: no more registers");

  const CompileFn crash = [](std::shared_ptr<const fx::GraphModule>, const std::vector<IValue>&,
                             const CompileContext&) -> absl::StatusOr<std::shared_ptr<const CompiledPiece>> {
    throw std::runtime_error("backend crashed");
  };
  const auto crashed = OptimizeDdp(SeedNet(), {Ramp({3, 4})}, FakeTensorMode::Create(), crash, Cap(130));
  EXPECT_EQ(std::string(crashed.status().message()), "compiling submod_0: backend crashed");

  const CompileFn nothing = [](std::shared_ptr<const fx::GraphModule>, const std::vector<IValue>&,
                               const CompileContext&) -> absl::StatusOr<std::shared_ptr<const CompiledPiece>> { return nullptr; };
  EXPECT_THAT(std::string(OptimizeDdp(SeedNet(), {Ramp({3, 4})}, FakeTensorMode::Create(), nothing, {}).status().message()),
              HasSubstr("compiling submod_0: the backend returned no piece"));
}

TEST(OptimizeDdp, TheNextPieceSeesTheCompiledStrides) {
  Recorder recorder;
  const auto with_meta = [&](OutputMeta meta) -> CompileFn {
    recorder.calls.clear();
    return [&recorder, meta](std::shared_ptr<const fx::GraphModule> piece, const std::vector<IValue>& inputs,
                             const CompileContext& context) -> absl::StatusOr<std::shared_ptr<const CompiledPiece>> {
      auto compiled = recorder.Fn()(piece, inputs, context);
      if (!compiled.ok() || context.index != 0) return compiled;
      return std::make_shared<const Restrided>(*compiled, meta);
    };
  };
  const auto mode = FakeTensorMode::Create();
  ASSERT_TRUE(OptimizeDdp(SeedNet(), {Ramp({3, 4})}, mode, with_meta({{3, 8}, {1, 3}}), Cap(130)).ok());
  ASSERT_EQ(recorder.calls.size(), 3u);
  const at::Tensor& seen = recorder.calls[1].inputs[0].toTensor();
  EXPECT_EQ(ModeOf(seen), mode.get());
  EXPECT_EQ(seen.strides(), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(seen.sizes(), (std::vector<int64_t>{3, 8}));
  EXPECT_TRUE(seen.requires_grad());
  EXPECT_EQ(seen.scalar_type(), at::kFloat);

  const auto wrong = OptimizeDdp(SeedNet(), {Ramp({3, 4})}, mode, with_meta({{8, 3}, {3, 1}}), Cap(130));
  EXPECT_THAT(std::string(wrong.status().message()), AllOf(HasSubstr("compiling submod_0"), HasSubstr("[8, 3]"), HasSubstr("[3, 8]")));
}

TEST(SubmodCompiler, RefusesKeywordArgumentsByName) {
  auto outer = std::make_shared<fx::GraphModule>();
  auto inner = std::make_shared<fx::GraphModule>();
  Node* a = inner->graph().Placeholder("a");
  inner->graph().Output(inner->graph().CallFunction(FindOperator("aten::relu"), {a}));
  ASSERT_TRUE(outer->AddSubmodule("submod_0", {inner, nullptr}).ok());
  Node* x = outer->graph().Placeholder("x");
  outer->graph().Output(outer->graph().CallModule("submod_0", {}, {{"a", x}}));
  SubmodCompiler compiler(outer, FakeTensorMode::Create(), EagerBackend());
  const absl::Status status = compiler.Compile({Ramp({2})});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("%submod_0"), HasSubstr("keyword argument 'a'")));
}

TEST(SubmodCompiler, RefusesAPieceCalledTwice) {
  auto outer = std::make_shared<fx::GraphModule>();
  auto inner = std::make_shared<fx::GraphModule>();
  Node* a = inner->graph().Placeholder("a");
  inner->graph().Output(inner->graph().CallFunction(FindOperator("aten::relu"), {a}));
  ASSERT_TRUE(outer->AddSubmodule("submod_0", {inner, nullptr}).ok());
  Node* x = outer->graph().Placeholder("x");
  outer->graph().Output(outer->graph().CallModule("submod_0", {outer->graph().CallModule("submod_0", {x})}));
  SubmodCompiler compiler(outer, FakeTensorMode::Create(), EagerBackend());
  EXPECT_THAT(std::string(compiler.Compile({Ramp({2})}).message()), HasSubstr("compiling submod_0: the piece is called more than once"));
}

TEST(OptimizeDdp, ATiedParameterGetsTheGradientsOfBothPieces) {
  auto gm = std::make_shared<fx::GraphModule>();
  const at::Tensor tied = Ramp({4, 4}).requires_grad_();
  AddAttr(*gm, "first.weight", tied, Kind::kParameter);
  AddAttr(*gm, "last.weight", tied, Kind::kParameter);
  AddAttr(*gm, "middle.weight", Ramp({4, 4}).requires_grad_(), Kind::kParameter);
  fx::Graph& g = gm->graph();
  Node* x = g.CallFunction(FindOperator("aten::mm"), {g.Placeholder("x"), g.GetAttr("first.weight")});
  x = g.CallFunction(FindOperator("aten::mm"), {x, g.GetAttr("middle.weight")});
  g.Output(g.CallFunction(FindOperator("aten::mm"), {x, g.GetAttr("last.weight")}));
  Recorder recorder;
  auto optimized = OptimizeDdp(gm, {Ramp({2, 4})}, FakeTensorMode::Create(), recorder.Fn(), Cap(64));
  ASSERT_TRUE(optimized.ok()) << optimized.status();
  ASSERT_EQ(recorder.calls.size(), 2u);
  EXPECT_THAT(optimized->assignment.buckets[0].parameters, ElementsAre("first.weight"));
  EXPECT_THAT(optimized->assignment.buckets[1].parameters, ElementsAre("middle.weight"));
  const at::Tensor got = CallGraphModule(*optimized->module, {Ramp({2, 4})}).toTensor();
  got.sum().backward();
  const at::Tensor grad = tied.grad().clone();
  tied.mutable_grad().reset();
  CallGraphModule(*gm, {Ramp({2, 4})}).toTensor().sum().backward();
  EXPECT_TRUE(at::equal(tied.grad(), grad));
}

}  // namespace
}  // namespace ddpopt
