#include "ddpopt/backends/minimizer.h"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/Functions.h"
#include "absl/strings/str_cat.h"
#include "ddpopt/backends/registry.h"
#include "fx_graph/graph_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "interpreter/interpreter.h"
#include "testing/calls.h"
#include "testing/matchers.h"
#include "testing/random_graph.h"
#include "testing/tensors.h"

namespace ddpopt {
namespace {

using c10::IValue;
using testing::FindOperator;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::Ramp;
using ::testing::StartsWith;
using testing::StatusIs;

// A backend that is wrong in one way.
class WrongPiece : public CompiledPiece {
 public:
  using Fn = std::function<IValue(std::vector<IValue>)>;
  explicit WrongPiece(Fn fn) : fn_(std::move(fn)) {}
  IValue Call(std::vector<IValue> args) const override { return fn_(std::move(args)); }
  std::vector<absl::optional<OutputMeta>> output_meta() const override { return {}; }

 private:
  Fn fn_;
};

bool Calls(const fx::GraphModule& module, const char* op) {
  for (const fx::Node* node : module.graph().nodes()) {
    if (node->is_operator() && node->operator_handle().operator_name().name == op) return true;
  }
  return false;
}

// Runs another operator in the place of one.
CompileFn Swaps(const char* op, const char* by) {
  return [=](std::shared_ptr<const fx::GraphModule> piece, const std::vector<IValue>&,
             const CompileContext&) -> absl::StatusOr<std::shared_ptr<const CompiledPiece>> {
    std::shared_ptr<fx::GraphModule> other = piece->Clone();
    for (fx::Node* node : other->graph().nodes()) {
      if (node->is_operator() && node->operator_handle().operator_name().name == op)
        node->set_target(fx::OperatorTarget{FindOperator(by, "")});
    }
    return std::make_shared<const WrongPiece>([other](std::vector<IValue> args) { return CallGraphModule(*other, std::move(args)); });
  };
}

int CallNodes(const fx::GraphModule& module) {
  int count = 0;
  for (const fx::Node* node : module.graph().nodes()) count += node->op() != fx::Op::kPlaceholder && node->op() != fx::Op::kOutput;
  return count;
}

// A chain with branches, a parameter and several results; `op` comes once, in the middle.
std::shared_ptr<fx::GraphModule> Chain(const char* op) {
  auto gm = std::make_shared<fx::GraphModule>();
  EXPECT_TRUE(gm->AddAttr("w", Ramp({4, 4}).requires_grad_(), fx::GraphModule::AttrKind::kParameter).ok());
  fx::Graph& g = gm->graph();
  const auto unary = [&](const char* name, fx::Node* x) { return g.CallFunction(FindOperator(name, ""), {x}); };
  fx::Node* x = g.Placeholder("x");
  fx::Node* y = g.CallFunction(FindOperator("aten::mm", ""), {x, g.GetAttr("w")});
  for (int i = 0; i < 6; ++i) y = unary(i % 2 == 0 ? "aten::sin" : "aten::cos", y);
  fx::Node* side = unary("aten::exp", y);
  fx::Node* z = unary(op, y);
  for (int i = 0; i < 2; ++i) z = unary("aten::sigmoid", z);
  fx::Node* sum = g.CallFunction(FindOperator("aten::add", "Tensor"), {z, side});
  g.Output(fx::Argument::Tuple({sum, side, z}));
  return gm;
}

Reproducer Failing(std::shared_ptr<fx::GraphModule> module, std::vector<IValue> inputs) {
  Reproducer failing;
  failing.backend = "wrong";
  failing.module = std::move(module);
  failing.inputs = std::move(inputs);
  return failing;
}

TEST(FailureOf, TellsWhatIsWrong) {
  const auto module = Chain("aten::tanh");
  const std::vector<IValue> inputs = {Ramp({4, 4})};
  for (const char* right : {"eager", "aot_eager"}) EXPECT_EQ(FailureOf(*FindBackend(right), *module, inputs), "");
  EXPECT_THAT(FailureOf(Swaps("aten::tanh", "aten::neg"), *module, inputs), StartsWith("result 0: differs from eager's, by at most "));
  const CompileFn throws = [](auto, const auto&, const auto&) -> absl::StatusOr<std::shared_ptr<const CompiledPiece>> {
    return std::make_shared<const WrongPiece>([](std::vector<IValue>) -> IValue { TORCH_CHECK(false, "no luck"); });
  };
  EXPECT_EQ(FailureOf(throws, *module, inputs), "throws: no luck");
  const CompileFn fails = [](auto, const auto&, const auto&) -> absl::StatusOr<std::shared_ptr<const CompiledPiece>> {
    return absl::InternalError("lost");
  };
  EXPECT_EQ(FailureOf(fails, *module, inputs), "compiling: INTERNAL: lost");
  const CompileFn refuses = [](auto, const auto&, const auto&) -> absl::StatusOr<std::shared_ptr<const CompiledPiece>> {
    return absl::UnimplementedError("not this one");
  };
  EXPECT_EQ(FailureOf(refuses, *module, inputs), "");
  // The gradient of an operator that a backend runs without history.
  const CompileFn forgets = [](std::shared_ptr<const fx::GraphModule> piece, const auto&,
                               const auto&) -> absl::StatusOr<std::shared_ptr<const CompiledPiece>> {
    return std::make_shared<const WrongPiece>([piece](std::vector<IValue> args) {
      const at::Tensor x = args[0].toTensor();
      args[0] = x.detach();
      return CallGraphModule(*piece, std::move(args));
    });
  };
  const at::Tensor leaf = Ramp({4, 4}).requires_grad_();
  EXPECT_EQ(FailureOf(forgets, *module, {leaf}), "gradient of input 0: there is none where eager has one");
  EXPECT_FALSE(leaf.grad().defined());
}

TEST(Minimize, FindsTheOneOperator) {
  const CompileFn wrong = Swaps("aten::tanh", "aten::neg");
  const auto small = Minimize(Failing(Chain("aten::tanh"), {Ramp({4, 4}).requires_grad_()}), wrong);
  ASSERT_THAT(small, IsOk());
  EXPECT_EQ(small->module->graph().ToString(),
            "graph():\n"
            "    %cos_default_2 : [num_users=1] = placeholder[target=cos_default_2]\n"
            "    %tanh_default : [num_users=1] = call_function[target=torch.ops.aten.tanh.default](args = (%cos_default_2,), kwargs = {})\n"
            "    return (tanh_default,)");
  EXPECT_THAT(small->failure, StartsWith("result 0: "));
  EXPECT_EQ(FailureOf(wrong, *small->module, small->inputs, small->compare), small->failure);
  EXPECT_THAT(Minimize(Failing(Chain("aten::neg"), {Ramp({4, 4})}), wrong), StatusIs(absl::StatusCode::kFailedPrecondition));
}

// Only both together are wrong.
TEST(Minimize, FindsThePair) {
  const CompileFn wrong = [](std::shared_ptr<const fx::GraphModule> piece, const std::vector<IValue>& fakes,
                             const CompileContext& context) -> absl::StatusOr<std::shared_ptr<const CompiledPiece>> {
    if (Calls(*piece, "aten::exp") && Calls(*piece, "aten::tanh")) return absl::InternalError("exp and tanh");
    return EagerBackend()(std::move(piece), fakes, context);
  };
  const auto small = Minimize(Failing(Chain("aten::tanh"), {Ramp({4, 4})}), wrong);
  ASSERT_THAT(small, IsOk());
  EXPECT_EQ(small->failure, "compiling: INTERNAL: exp and tanh");
  EXPECT_EQ(CallNodes(*small->module), 2);
}

TEST(Minimize, RandomGraphs) {
  int minimized = 0;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    const testing::RandomGraph random = testing::MakeRandomGraph(seed, 25);
    for (const char* op : {"aten::sin", "aten::relu", "aten::neg"}) {
      const CompileFn wrong = Swaps(op, "aten::cos");
      const Reproducer failing = Failing(random.module, random.CloneInputs());
      const auto lifted = LiftAttributes(*failing.module, failing.inputs);
      ASSERT_THAT(lifted, IsOk());
      if (FailureOf(wrong, *lifted->module, lifted->inputs).empty()) continue;
      ++minimized;
      const auto small = Minimize(failing, wrong);
      ASSERT_THAT(small, IsOk());
      EXPECT_LE(CallNodes(*small->module), 1) << small->module->graph().ToString();
    }
  }
  std::printf("%d graphs minimized\n", minimized);
  EXPECT_GT(minimized, 3);
}

TEST(Reproducer, ComesBackFromItsFile) {
  const CompileFn wrong = Swaps("aten::tanh", "aten::neg");
  const at::Tensor base = Ramp({4, 4});
  Reproducer failing = Failing(Chain("aten::tanh"), {base.t()});
  failing.compare.seed = 7;
  const auto small = Minimize(failing, wrong);
  ASSERT_THAT(small, IsOk());
  const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/reproducer.json");
  ASSERT_THAT(WriteReproducer(*small, path), IsOk());
  const auto again = ReadReproducer(path);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->backend, "wrong");
  EXPECT_EQ(again->failure, small->failure);
  EXPECT_EQ(again->compare.seed, 7u);
  EXPECT_EQ(again->module->graph().ToString(), small->module->graph().ToString());
  ASSERT_EQ(again->inputs.size(), 1u);
  EXPECT_THAT(again->inputs[0].toTensor().detach(), testing::TensorEq(small->inputs[0].toTensor().detach()));
  EXPECT_EQ(again->inputs[0].toTensor().requires_grad(), small->inputs[0].toTensor().requires_grad());
  EXPECT_EQ(FailureOf(wrong, *again->module, again->inputs, again->compare), small->failure);

  EXPECT_THAT(ReadReproducer(path + ".none"), StatusIs(absl::StatusCode::kNotFound));
}

// Inputs that lie in one memory still do.
TEST(Reproducer, KeepsStridesAndSharedMemory) {
  auto gm = std::make_shared<fx::GraphModule>();
  fx::Node* a = gm->graph().Placeholder("a");
  fx::Node* b = gm->graph().Placeholder("b");
  gm->graph().Output(fx::Argument::Tuple({gm->graph().CallFunction(FindOperator("aten::mm", ""), {a, b})}));
  const at::Tensor base = Ramp({4, 4});
  Reproducer reproducer = Failing(gm, {base, base.t()});
  const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/shared.json");
  ASSERT_THAT(WriteReproducer(reproducer, path), IsOk());
  const auto again = ReadReproducer(path);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->inputs[1].toTensor().strides(), base.t().strides());
  EXPECT_TRUE(again->inputs[0].toTensor().is_alias_of(again->inputs[1].toTensor()));
}

}  // namespace
}  // namespace ddpopt
