#include "ddpopt/optimizer/submod_compiler.h"

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "base/logging.h"
#include "c10/core/GradMode.h"
#include "ddpopt/backends/backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "interpreter/interpreter.h"
#include "testing/calls.h"
#include "testing/matchers.h"
#include "testing/tensors.h"

namespace ddpopt {
namespace {

using c10::IValue;
using fx::Argument;
using fx::Node;
using testing::ErrorOf;
using testing::FindOperator;
using testing::IsOk;
using testing::Ramp;
using testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = fx::GraphModule::AttrKind;

using Compiled = absl::StatusOr<std::shared_ptr<const CompiledPiece>>;
using Piece = std::shared_ptr<const fx::GraphModule>;
using EagerFn = std::function<IValue(std::vector<IValue>)>;

// An eager piece whose results, or claims, are tampered with.
class Tampered : public CompiledPiece {
 public:
  Tampered(std::shared_ptr<const CompiledPiece> piece, std::function<IValue(const EagerFn& eager, std::vector<IValue> args)> run,
           std::vector<absl::optional<OutputMeta>> meta)
      : piece_(std::move(piece)), run_(std::move(run)), meta_(std::move(meta)) {}
  IValue Call(std::vector<IValue> args) const override {
    return run_([this](std::vector<IValue> given) { return piece_->Call(std::move(given)); }, std::move(args));
  }
  std::vector<absl::optional<OutputMeta>> output_meta() const override { return meta_; }

 private:
  std::shared_ptr<const CompiledPiece> piece_;
  std::function<IValue(const EagerFn& eager, std::vector<IValue> args)> run_;
  std::vector<absl::optional<OutputMeta>> meta_;
};

// Two pieces: h = relu(mm(x, w0)), k = x.view(-1), and count += 1  |  mm(h, w1) + k.sum(). Output 1 of piece 0 is a view of its input.
class HostileBackendTest : public ::testing::Test {
 protected:
  void SetUp() override {
    first_ = std::make_shared<fx::GraphModule>();
    w0_ = Ramp({4, 3}).requires_grad_();
    w1_ = Ramp({3, 2}).requires_grad_();
    DDPOPT_ASSERT_OK(first_->AddAttr("w0", w0_, Kind::kParameter));
    DDPOPT_ASSERT_OK(first_->AddAttr("count", at::zeros({}), Kind::kBuffer));
    fx::Graph& f = first_->graph();
    Node* x = f.Placeholder("x");
    Node* mm = f.CallFunction(FindOperator("aten::mm"), {x, f.GetAttr("w0")});
    f.CallFunction(FindOperator("aten::add_", "Scalar"), {f.GetAttr("count"), IValue(1)});
    Node* h = f.CallFunction(FindOperator("aten::relu"), {mm});
    f.Output(Argument::Tuple({h, f.CallFunction(FindOperator("aten::view"), {x, Argument::List({IValue(-1)})})}));

    auto second = std::make_shared<fx::GraphModule>();
    DDPOPT_ASSERT_OK(second->AddAttr("w1", w1_, Kind::kParameter));
    fx::Graph& s = second->graph();
    Node* a = s.Placeholder("h");
    Node* b = s.Placeholder("k");
    Node* out = s.CallFunction(FindOperator("aten::mm"), {a, s.GetAttr("w1")});
    s.Output(s.CallFunction(FindOperator("aten::add", "Tensor"), {out, s.CallFunction(FindOperator("aten::sum"), {b})}));

    outer_ = std::make_shared<fx::GraphModule>();
    DDPOPT_ASSERT_OK(outer_->AddSubmodule("submod_0", {first_, nullptr}));
    DDPOPT_ASSERT_OK(outer_->AddSubmodule("submod_1", {second, nullptr}));
    fx::Graph& g = outer_->graph();
    Node* call = g.CallModule("submod_0", {g.Placeholder("x")});
    const auto item = [&](int64_t i) {
      return g.CreateNode(fx::Op::kCallFunction, fx::OpaqueTarget{"operator.getitem"}, {call, IValue(i)});
    };
    Node* h0 = item(0);
    Node* k0 = item(1);
    g.Output(g.CallModule("submod_1", {h0, k0}));
    text_ = g.ToString();
  }

  at::Tensor Expected() {
    const at::Tensor h = at::relu(at::mm(x_, w0_));
    return at::mm(h, w1_) + x_.sum();
  }

  absl::Status Compile(CompileFn backend, SubmodCompilerOptions options = {}) {
    SubmodCompiler compiler(outer_, mode_, std::move(backend), options);
    const absl::Status status = compiler.Compile({x_});
    refused_ = compiler.refused();
    EXPECT_TRUE(status.ok() || outer_->graph().ToString() == text_) << "a failed compilation must leave the outer graph as it was";
    return status;
  }
  // A backend whose piece 0 is compiled by `hostile`, the other eagerly.
  static CompileFn First(std::function<Compiled(Piece, const std::vector<IValue>&)> hostile) {
    return [hostile](Piece piece, const std::vector<IValue>& inputs, const CompileContext& context) -> Compiled {
      return context.index == 0 ? hostile(piece, inputs) : EagerBackend()(piece, inputs, context);
    };
  }
  // What compiling piece 0 with a backend gives that does `act` first.
  absl::Status CompileAfter(std::function<void(Piece, const std::vector<IValue>&)> act) {
    return Compile(First([act](Piece piece, const std::vector<IValue>& inputs) {
      act(piece, inputs);
      return EagerBackend()(piece, inputs, {});
    }));
  }
  static Compiled Tamper(Piece piece, std::function<IValue(const EagerFn&, std::vector<IValue>)> run,
                         std::vector<absl::optional<OutputMeta>> meta = {absl::nullopt, absl::nullopt}) {
    Compiled eager = EagerBackend()(piece, {}, {});
    if (!eager.ok()) return eager;
    return std::make_shared<const Tampered>(*eager, std::move(run), std::move(meta));
  }
  // The error of running the graph when piece 0's results go through `tamper`.
  std::string RunError(std::function<void(std::vector<IValue>& outputs, const std::vector<IValue>& args)> tamper) {
    const absl::Status status = Compile(First([tamper](Piece piece, const std::vector<IValue>&) {
      return Tamper(piece, [tamper](const EagerFn& eager, std::vector<IValue> args) -> IValue {
        std::vector<IValue> outputs = eager(args).toTupleRef().elements().vec();
        tamper(outputs, args);
        return c10::ivalue::Tuple::create(std::move(outputs));
      });
    }));
    EXPECT_THAT(status, IsOk());
    const std::string error = ErrorOf([&] { CallGraphModule(*outer_, {x_}); });
    EXPECT_THAT(error, HasSubstr("While executing %submod_0"));
    return error;
  }

  const std::shared_ptr<FakeTensorMode> mode_ = FakeTensorMode::Create();
  at::Tensor x_ = Ramp({5, 4});
  at::Tensor w0_, w1_;
  std::shared_ptr<fx::GraphModule> first_, outer_;
  std::string text_;
  std::vector<RefusedPiece> refused_;
};

TEST_F(HostileBackendTest, TheFriendlyOne) {
  DDPOPT_ASSERT_OK(Compile(EagerBackend()));
  EXPECT_TRUE(at::equal(CallGraphModule(*outer_, {x_}).toTensor(), Expected()));
  EXPECT_THAT(refused_, IsEmpty());
}

// Case 8: the layout that the backend declares is what the next piece is compiled for.
TEST_F(HostileBackendTest, DeclaredStridesReachTheNextPiece) {
  std::vector<int64_t> seen;
  const CompileFn backend = [&](Piece piece, const std::vector<IValue>& inputs, const CompileContext& context) -> Compiled {
    if (context.index == 1) {
      seen = inputs[0].toTensor().strides().vec();
      return EagerBackend()(piece, inputs, context);
    }
    const auto permute = [](const EagerFn& eager, std::vector<IValue> args) -> IValue {
      std::vector<IValue> outputs = eager(std::move(args)).toTupleRef().elements().vec();
      outputs[0] = outputs[0].toTensor().t().contiguous().t();
      return c10::ivalue::Tuple::create(std::move(outputs));
    };
    return Tamper(piece, permute, {OutputMeta{{5, 3}, {1, 5}}, absl::nullopt});
  };
  DDPOPT_ASSERT_OK(Compile(backend));
  EXPECT_THAT(seen, ElementsAre(1, 5));
  EXPECT_TRUE(at::allclose(CallGraphModule(*outer_, {x_}).toTensor(), Expected()));
}

TEST_F(HostileBackendTest, UndeclaredStrides) {
  EXPECT_THAT(RunError([](std::vector<IValue>& outputs, const auto&) { outputs[0] = outputs[0].toTensor().t().contiguous().t(); }),
              AllOf(HasSubstr("piece submod_0 returns output 0 with strides [1, 5]"), HasSubstr("compiled for [3, 1]")));
}

TEST_F(HostileBackendTest, ExtraOutputs) {
  EXPECT_THAT(RunError([](std::vector<IValue>& outputs, const auto&) { outputs.push_back(outputs[0]); }),
              HasSubstr("piece submod_0 returns 3 values, but the graph has a tuple of 2"));
}

// Case 9: mutated buffers handed back among the outputs.
TEST_F(HostileBackendTest, MutatedBuffersAmongTheOutputs) {
  EXPECT_THAT(RunError([](std::vector<IValue>& outputs, const auto&) { outputs.insert(outputs.begin(), at::ones({})); }),
              HasSubstr("3 values"));
}

TEST_F(HostileBackendTest, TooFewOutputs) {
  EXPECT_THAT(RunError([](std::vector<IValue>& outputs, const auto&) { outputs.pop_back(); }),
              HasSubstr("1 values, but the graph has a tuple of 2"));
}

TEST_F(HostileBackendTest, ABareOutputForATuple) {
  DDPOPT_ASSERT_OK(Compile(First([](Piece piece, const auto&) {
    return Tamper(piece, [](const EagerFn& eager, std::vector<IValue> args) { return eager(args).toTupleRef().elements()[0]; });
  })));
  EXPECT_THAT(ErrorOf([&] { CallGraphModule(*outer_, {x_}); }), HasSubstr("returns one bare value, but the graph has a tuple of 2"));
}

TEST_F(HostileBackendTest, AnotherType) {
  EXPECT_THAT(RunError([](std::vector<IValue>& outputs, const auto&) { outputs[0] = IValue(7); }),
              HasSubstr("output 0 Int, but the graph gives Tensor"));
}
TEST_F(HostileBackendTest, AnotherDtype) {
  EXPECT_THAT(RunError([](std::vector<IValue>& outputs, const auto&) { outputs[0] = outputs[0].toTensor().to(at::kDouble); }),
              HasSubstr("output 0 with dtype Double, but it was compiled for Float"));
}
TEST_F(HostileBackendTest, AnotherDevice) {
  EXPECT_THAT(RunError([](std::vector<IValue>& outputs, const auto&) { outputs[0] = at::empty({5, 3}, at::kMeta); }),
              HasSubstr("output 0 on device meta, but it was compiled for cpu"));
}
TEST_F(HostileBackendTest, OtherSizes) {
  EXPECT_THAT(RunError([](std::vector<IValue>& outputs, const auto&) { outputs[0] = outputs[0].toTensor().slice(0, 0, 4); }),
              HasSubstr("output 0 with sizes [4, 3], but it was compiled for [5, 3]"));
}
TEST_F(HostileBackendTest, LostGradients) {
  EXPECT_THAT(RunError([](std::vector<IValue>& outputs, const auto&) { outputs[0] = outputs[0].toTensor().detach().clone(); }),
              HasSubstr("output 0 without a gradient function"));
}
TEST_F(HostileBackendTest, ACopyInsteadOfAView) {
  EXPECT_THAT(RunError([](std::vector<IValue>& outputs, const auto&) { outputs[1] = outputs[1].toTensor().clone(); }),
              HasSubstr("output 1 in memory of its own, but in the graph it shares that of input 0"));
}
TEST_F(HostileBackendTest, AViewInsteadOfACopy) {
  EXPECT_THAT(RunError([](std::vector<IValue>& outputs, const std::vector<IValue>& args) {
                const at::NoGradGuard no_grad;
                outputs[0] = args[0].toTensor().as_strided({5, 3}, {3, 1}).requires_grad_();
              }),
              HasSubstr("output 0 in the memory of its input 0, which the graph doesn't"));
}
TEST_F(HostileBackendTest, AParameterAsOutput) {
  x_ = Ramp({4, 4});  // so that output 0 has w0's shape
  EXPECT_THAT(RunError([this](std::vector<IValue>& outputs, const auto&) { outputs[0] = w0_; }),
              HasSubstr("in the memory of 'w0', which the graph doesn't"));
}
TEST_F(HostileBackendTest, AFakeFromARealRun) {
  const at::Tensor fake = mode_->FromReal(at::ones({5, 3}));
  EXPECT_THAT(RunError([&](std::vector<IValue>& outputs, const auto&) { outputs[0] = fake; }),
              HasSubstr("returns a fake tensor as output 0"));
}

TEST_F(HostileBackendTest, RealTensorsFromAFakeRun) {
  DDPOPT_ASSERT_OK(Compile(First([](Piece piece, const auto&) {
    return Tamper(piece, [](const EagerFn&, std::vector<IValue>) -> IValue {
      return c10::ivalue::Tuple::create({IValue(at::ones({5, 3})), IValue(at::ones({20}))});
    });
  })));
  EXPECT_THAT(ErrorOf([&] { CallGraphModule(*outer_, {mode_->FromReal(x_)}); }),
              HasSubstr("returns a real tensor as output 0 of a run on fake ones"));
}

TEST_F(HostileBackendTest, WritesItsInput) {
  EXPECT_THAT(RunError([](std::vector<IValue>&, const std::vector<IValue>& args) { args[0].toTensor().add_(1); }),
              HasSubstr("piece submod_0 writes its input 0, which the graph doesn't"));
}
TEST_F(HostileBackendTest, WritesAParameter) {
  EXPECT_THAT(RunError([this](std::vector<IValue>&, const auto&) {
                const at::NoGradGuard no_grad;
                w0_.mul_(2);
              }),
              HasSubstr("writes 'w0', which the graph doesn't"));
}
TEST_F(HostileBackendTest, ThrowsAnythingWhenItRuns) {
  EXPECT_THAT(RunError([](std::vector<IValue>&, const auto&) { TORCH_CHECK(false, "a c10 error"); }), HasSubstr("a c10 error"));
}
TEST_F(HostileBackendTest, ThrowsAStandardExceptionWhenItRuns) {
  EXPECT_THAT(RunError([](std::vector<IValue>&, const auto&) { throw std::out_of_range("a standard one"); }), HasSubstr("a standard one"));
}
TEST_F(HostileBackendTest, ThrowsSomethingElseWhenItRuns) {
  EXPECT_THAT(RunError([](std::vector<IValue>&, const auto&) { throw 7; }), HasSubstr("unknown type"));
}

TEST_F(HostileBackendTest, ThrowsWhileItCompiles) {
  EXPECT_THAT(CompileAfter([](Piece, const auto&) { TORCH_CHECK(false, "a c10 error"); }),
              StatusIs(absl::StatusCode::kInternal, "compiling submod_0: a c10 error"));
  EXPECT_THAT(CompileAfter([](Piece, const auto&) { throw std::runtime_error("a standard one"); }),
              StatusIs(absl::StatusCode::kInternal, "compiling submod_0: a standard one"));
  EXPECT_THAT(CompileAfter([](Piece, const auto&) { throw 7; }),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("compiling submod_0: the backend threw")));
}

TEST_F(HostileBackendTest, GivesNothing) {
  EXPECT_THAT(Compile(First([](Piece, const auto&) -> Compiled { return std::shared_ptr<const CompiledPiece>(); })),
              StatusIs(absl::StatusCode::kInternal, "compiling submod_0: the backend returned no piece"));
  EXPECT_THAT(Compile(nullptr), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no backend was given")));
}

// Collects warnings.
class Warnings : public google::LogSink {
 public:
  Warnings() { google::AddLogSink(this); }
  ~Warnings() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity severity, const char*, const char*, int, const struct ::tm*, const char* message, size_t length) override {
    if (severity >= google::GLOG_WARNING) texts.emplace_back(message, length);
  }
  std::vector<std::string> texts;
};

TEST_F(HostileBackendTest, ARefusedPieceRunsEagerlyWithOneWarning) {
  const CompileFn refuse = First([](Piece, const auto&) -> Compiled { return absl::UnimplementedError("no relu here"); });
  {
    Warnings warnings;
    DDPOPT_ASSERT_OK(Compile(refuse));
    EXPECT_THAT(warnings.texts, ElementsAre(AllOf(HasSubstr("1 of 2 pieces"), HasSubstr("submod_0 (no relu here)"))));
    ASSERT_THAT(refused_, SizeIs(1));
    EXPECT_EQ(refused_[0].name, "submod_0");
    EXPECT_TRUE(at::equal(CallGraphModule(*outer_, {x_}).toTensor(), Expected()));
    EXPECT_THAT(warnings.texts, SizeIs(1));
  }
  EXPECT_EQ(first_->GetAttr("count")->value.toTensor().item<float>(), 1);  // by the one run
}

TEST_F(HostileBackendTest, AllPiecesRefused) {
  Warnings warnings;
  DDPOPT_ASSERT_OK(Compile([](Piece, const auto&, const auto&) -> Compiled { return absl::UnimplementedError("never"); }));
  EXPECT_THAT(warnings.texts, ElementsAre(AllOf(HasSubstr("2 of 2 pieces"), HasSubstr("submod_0 (never); submod_1 (never)"))));
  EXPECT_TRUE(at::equal(CallGraphModule(*outer_, {x_}).toTensor(), Expected()));
}

TEST_F(HostileBackendTest, RefusalsCanBeErrors) {
  SubmodCompilerOptions options;
  options.refused_pieces_run_eagerly = false;
  EXPECT_THAT(Compile(First([](Piece, const auto&) -> Compiled { return absl::UnimplementedError("no relu here"); }), options),
              StatusIs(absl::StatusCode::kUnimplemented, "compiling submod_0: no relu here"));
}

TEST_F(HostileBackendTest, OtherStatusesAreErrors) {
  EXPECT_THAT(Compile(First([](Piece, const auto&) -> Compiled { return absl::ResourceExhaustedError("no more registers"); })),
              StatusIs(absl::StatusCode::kResourceExhausted, "compiling submod_0: no more registers"));
}

TEST_F(HostileBackendTest, WritesWhileItCompiles) {
  EXPECT_THAT(CompileAfter([](Piece, const std::vector<IValue>& inputs) { inputs[0].toTensor().zero_(); }),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("compiling submod_0: the backend writes its fake input 0")));
}
TEST_F(HostileBackendTest, ReshapesItsFakeInputs) {
  EXPECT_THAT(CompileAfter([](Piece, const std::vector<IValue>& inputs) { inputs[0].toTensor().t_(); }),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("its fake input 0")));
}
TEST_F(HostileBackendTest, WritesABufferWhileItCompiles) {
  EXPECT_THAT(CompileAfter([](Piece piece, const auto&) { piece->GetAttr("count")->value.toTensor().add_(1); }),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("the backend writes 'count' while it compiles")));
}
TEST_F(HostileBackendTest, RunsBackwardWhileItCompiles) {
  EXPECT_THAT(CompileAfter([](Piece piece, const auto&) { at::sum(piece->GetAttr("w0")->value.toTensor()).backward(); }),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("changes the gradient of 'w0'")));
}
TEST_F(HostileBackendTest, FreezesAParameterWhileItCompiles) {
  EXPECT_THAT(CompileAfter([](Piece piece, const auto&) { piece->GetAttr("w0")->value.toTensor().set_requires_grad(false); }),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("requires_grad of 'w0'")));
}
TEST_F(HostileBackendTest, ReplacesAParameterWhileItCompiles) {
  EXPECT_THAT(CompileAfter([](Piece piece, const auto&) {
                EXPECT_THAT(const_cast<fx::GraphModule&>(*piece).SetAttr("w0", at::ones({4, 3})), IsOk());
              }),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("replaces 'w0'")));
}
TEST_F(HostileBackendTest, EditsTheGraphWhileItCompiles) {
  const auto edit = [](Piece piece, const std::vector<IValue>& inputs) {
    Compiled eager = EagerBackend()(piece, inputs, {});
    const_cast<fx::GraphModule&>(*piece).graph().Placeholder("more");
    return eager;
  };
  EXPECT_THAT(Compile(First(edit)), StatusIs(absl::StatusCode::kInternal, "compiling submod_0: the backend edits the piece's graph"));
}

TEST_F(HostileBackendTest, RandomNumbersAndGradModeArePutBack) {
  const at::Tensor generator = at::detail::getDefaultCPUGenerator().get_state();
  DDPOPT_ASSERT_OK(CompileAfter([](Piece, const auto&) {
    at::rand({10});
    c10::GradMode::set_enabled(false);
  }));
  EXPECT_TRUE(at::equal(at::detail::getDefaultCPUGenerator().get_state(), generator));
  EXPECT_TRUE(c10::GradMode::is_enabled());
}

TEST_F(HostileBackendTest, ClaimsThatAreNotTheGraphs) {
  const auto claim = [&](std::vector<absl::optional<OutputMeta>> meta) {
    const auto honest = [](const EagerFn& eager, std::vector<IValue> args) { return eager(std::move(args)); };
    return std::string(Compile(First([&](Piece piece, const auto&) { return Tamper(piece, honest, meta); })).message());
  };
  OutputMeta meta{{5, 3}, {3, 1}};
  const absl::optional<OutputMeta> none;
  EXPECT_THAT(claim({none}), HasSubstr("compiling submod_0: the backend describes 1 outputs, but the piece has 2"));
  EXPECT_THAT(claim({none, none, none}), HasSubstr("describes 3 outputs"));
  EXPECT_THAT(claim({OutputMeta{{3, 5}, {5, 1}}, none}), HasSubstr("output 0 the sizes [3, 5], but the graph gives it [5, 3]"));
  EXPECT_THAT(claim({OutputMeta{{5, 3}, {1}}, none}), HasSubstr("1 strides for 2 dimensions"));
  EXPECT_THAT(claim({OutputMeta{{5, 3}, {-3, 1}}, none}), HasSubstr("output 0 the strides [-3, 1]; none may be negative"));
  EXPECT_THAT(claim({none, OutputMeta{{20}, {2}}}),
              HasSubstr("output 1 the strides [2], not [1], but the graph has it share the memory of input 0"));
  meta.dtype = at::kDouble;
  EXPECT_THAT(claim({meta, none}), HasSubstr("output 0 the dtype Double, but the graph gives it Float"));
  meta.dtype = at::kFloat;
  meta.aliased_input = 0;
  EXPECT_THAT(claim({meta, none}), HasSubstr("output 0 the memory of input 0, but in the graph it shares none"));
  OutputMeta view{{20}, {1}};
  view.aliased_input = -1;
  EXPECT_THAT(claim({none, view}), HasSubstr("output 1 memory of its own, but in the graph it shares that of input 0"));
  view.aliased_input = 0;
  meta.aliased_input = -1;
  EXPECT_EQ(claim({meta, view}), "");
}

TEST_F(HostileBackendTest, ThrowsWhenAskedForItsClaims) {
  class Mute : public CompiledPiece {
    IValue Call(std::vector<IValue>) const override { return IValue(); }
    std::vector<absl::optional<OutputMeta>> output_meta() const override { throw std::runtime_error("not telling"); }
  };
  EXPECT_THAT(Compile(First([](Piece, const auto&) -> Compiled { return std::make_shared<const Mute>(); })),
              StatusIs(absl::StatusCode::kInternal, "compiling submod_0: not telling"));
}

// The check keeps no input alive.
TEST_F(HostileBackendTest, ThePieceAloneHoldsItsInputs) {
  std::size_t uses = 0;
  DDPOPT_ASSERT_OK(Compile(First([&](Piece piece, const auto&) {
    return Tamper(piece, [&](const EagerFn& eager, std::vector<IValue> args) {
      uses = args[0].toTensor().use_count();
      return eager(std::move(args));
    });
  })));
  Interpreter interpreter(*outer_);
  Interpreter::Values inputs{x_.clone()};
  interpreter.RunBoxed(inputs);
  EXPECT_EQ(uses, 1u);
}

TEST(SubmodCompiler, BothBranchesOfACondOnFakes) {
  const auto branch = [](const char* op) {
    auto gm = std::make_shared<fx::GraphModule>();
    Node* a = gm->graph().Placeholder("a");
    gm->graph().Output(Argument::Tuple({gm->graph().CallFunction(FindOperator(op), {a})}));
    return gm;
  };
  for (const bool alike : {true, false}) {
    auto piece = std::make_shared<fx::GraphModule>();
    DDPOPT_ASSERT_OK(piece->AddSubmodule("yes", {branch("aten::relu"), nullptr}));
    DDPOPT_ASSERT_OK(piece->AddSubmodule("no", {branch(alike ? "aten::neg" : "aten::sum"), nullptr}));
    fx::Graph& g = piece->graph();
    Node* x = g.Placeholder("x");
    Node* positive = g.CallFunction(FindOperator("aten::gt", "Scalar"), {g.CallFunction(FindOperator("aten::sum"), {x}), IValue(0)});
    Node* cond = g.CreateNode(fx::Op::kCallFunction, fx::HigherOrderTarget{"cond"},
                              {positive, g.GetAttr("yes"), g.GetAttr("no"), Argument::Tuple({x})}, {}, "cond");
    g.Output(cond);
    auto outer = std::make_shared<fx::GraphModule>();
    DDPOPT_ASSERT_OK(outer->AddSubmodule("submod_0", {piece, nullptr}));
    outer->graph().Output(outer->graph().CallModule("submod_0", {outer->graph().Placeholder("x")}));
    const CompileFn refuse = [](Piece, const auto&, const auto&) -> Compiled { return absl::UnimplementedError("cond"); };
    SubmodCompiler compiler(outer, FakeTensorMode::Create(), refuse);
    const absl::Status status = compiler.Compile({at::ones({2})});
    EXPECT_EQ(status.ok(), alike) << status;
    if (!alike) {
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("compiling submod_0"), HasSubstr("cond: output 0 is"), HasSubstr("%cond")));
      continue;
    }
    const auto run = [&](float value) { return CallGraphModule(*outer, {at::full({2}, value)}).toTupleRef().elements()[0].toTensor(); };
    EXPECT_TRUE(at::equal(run(3), at::full({2}, 3.0)));
    EXPECT_TRUE(at::equal(run(-3), at::full({2}, 3.0)));
  }
}

}  // namespace
}  // namespace ddpopt
