#include "ddpopt/aot/decompositions.h"

#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/core/Reduction.h"
#include "ddpopt/aot/joint_graph.h"
#include "ddpopt/aot/partition.h"
#include "ddpopt/capture/tracer/trace_forward.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "interpreter/interpreter.h"
#include "testing/matchers.h"
#include "testing/tensors.h"

namespace ddpopt {
namespace {

using c10::IValue;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::Ramp;
using testing::StatusIs;
using Tensors = std::vector<at::Tensor>;
using Fn = std::function<at::Tensor(const Tensors&)>;

// The operators that the joint graph of a case is expected to be made of before decomposition are told by `covers`; afterwards there are
// none of them, and forward and backward give what they gave.
struct Case {
  std::string name;
  std::vector<std::string> covers;
  Fn fn;
  Tensors inputs;
};

at::Tensor Leaf(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) { return (Ramp(sizes) * 1.7).to(dtype).requires_grad_(); }

std::set<std::string> Operators(const fx::GraphModule& module) {
  std::set<std::string> names;
  for (const fx::Node* node : module.graph().nodes()) {
    if (node->is_operator()) names.insert(c10::toString(node->operator_handle().operator_name()));
  }
  return names;
}

std::vector<Case> Cases() {
  const at::Tensor x = Leaf({4, 6}), y = Leaf({6, 4}).t();
  const at::Tensor classes = at::arange(4) % 6;
  std::vector<Case> cases;
  const auto unary = [&](std::string name, std::vector<std::string> covers, std::function<at::Tensor(const at::Tensor&)> fn) {
    for (const at::Tensor& input : {x, y, Leaf({2, 3, 4}).transpose(0, 2).detach().requires_grad_(), Leaf({3, 5}, at::kDouble)}) {
      cases.push_back({name, covers, [fn](const Tensors& in) { return fn(in[0]); }, {input}});
    }
  };
  unary("gelu", {"aten::gelu", "aten::gelu_backward"}, [](const at::Tensor& t) { return at::gelu(t); });
  unary("gelu_tanh", {"aten::gelu", "aten::gelu_backward"}, [](const at::Tensor& t) { return at::gelu(t, "tanh"); });
  unary("silu", {"aten::silu", "aten::silu_backward"}, [](const at::Tensor& t) { return at::silu(t); });
  unary("sigmoid", {"aten::sigmoid_backward"}, [](const at::Tensor& t) { return at::sigmoid(t); });
  unary("tanh", {"aten::tanh_backward"}, [](const at::Tensor& t) { return at::tanh(t); });
  unary("relu", {"aten::threshold_backward"}, [](const at::Tensor& t) { return at::relu(t); });
  unary("hardtanh", {"aten::hardtanh", "aten::hardtanh_backward"}, [](const at::Tensor& t) { return at::hardtanh(t, -0.5, 0.7); });
  unary("leaky_relu", {"aten::leaky_relu", "aten::leaky_relu_backward"}, [](const at::Tensor& t) { return at::leaky_relu(t, 0.2); });
  unary("elu", {"aten::elu"}, [](const at::Tensor& t) { return at::elu(t, 1.3); });
  unary("softplus", {"aten::softplus", "aten::softplus_backward"}, [](const at::Tensor& t) { return at::softplus(t, 2.0, 1.5); });
  unary("hardsigmoid", {"aten::hardsigmoid"}, [](const at::Tensor& t) { return at::hardsigmoid(t * 3); });
  unary("hardswish", {"aten::hardswish"}, [](const at::Tensor& t) { return at::hardswish(t * 3); });
  unary("clamp", {"aten::clamp"}, [](const at::Tensor& t) { return at::clamp(t, -0.5, 0.7); });
  unary("clamp above", {"aten::clamp"}, [](const at::Tensor& t) { return at::clamp(t, {}, 0.7); });
  unary("var_mean", {"aten::var_mean.correction"}, [](const at::Tensor& t) {
    const auto [var, mean] = at::var_mean(t, at::IntArrayRef({0, 1}), 1, true);
    return var * 2 + mean;
  });
  unary("softmax", {"aten::_softmax", "aten::_softmax_backward_data"}, [](const at::Tensor& t) { return at::softmax(t, 1); });
  unary("log_softmax", {"aten::_log_softmax", "aten::_log_softmax_backward_data"},
        [](const at::Tensor& t) { return at::log_softmax(t, 0); });

  cases.push_back(
      {"addmm", {"aten::addmm"}, [](const Tensors& in) { return at::addmm(in[0], in[1], in[2], 0.5, 2); }, {Leaf({5}), x, Leaf({6, 5})}});
  cases.push_back(
      {"linear", {"aten::addmm"}, [](const Tensors& in) { return at::linear(in[0], in[1], in[2]); }, {x, Leaf({5, 6}), Leaf({5})}});
  cases.push_back({"baddbmm",
                   {"aten::baddbmm"},
                   [](const Tensors& in) { return at::baddbmm(in[0], in[1], in[2]); },
                   {Leaf({2, 3, 5}), Leaf({2, 3, 4}), Leaf({2, 4, 5})}});
  cases.push_back({"addcmul",
                   {"aten::addcmul"},
                   [](const Tensors& in) { return at::addcmul(in[0], in[1], in[2], 0.3); },
                   {x, Leaf({4, 6}), Leaf({6})}});
  cases.push_back({"addcdiv",
                   {"aten::addcdiv"},
                   [](const Tensors& in) { return at::addcdiv(in[0], in[1], in[2] + 3, 0.3); },
                   {x, Leaf({4, 6}), Leaf({6})}});
  cases.push_back({"lerp", {"aten::lerp.Scalar"}, [](const Tensors& in) { return at::lerp(in[0], in[1], 0.3); }, {x, Leaf({4, 6})}});
  for (const int64_t reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
    cases.push_back({"mse_loss",
                     {"aten::mse_loss", "aten::mse_loss_backward"},
                     [=](const Tensors& in) { return at::mse_loss(in[0], in[1], reduction); },
                     {x, Leaf({4, 6})}});
    cases.push_back({"smooth_l1_loss",
                     {"aten::smooth_l1_loss"},
                     [=](const Tensors& in) { return at::smooth_l1_loss(in[0], in[1], reduction, 0.6); },
                     {x, Leaf({4, 6})}});
    cases.push_back({"huber_loss",
                     {"aten::huber_loss"},
                     [=](const Tensors& in) { return at::huber_loss(in[0], in[1], reduction, 0.6); },
                     {x, Leaf({4, 6})}});
    cases.push_back({"binary_cross_entropy_with_logits",
                     {"aten::binary_cross_entropy_with_logits"},
                     [=](const Tensors& in) { return at::binary_cross_entropy_with_logits(in[0], in[1], {}, in[2], reduction); },
                     {x, at::rand({4, 6}), at::rand({6}) + 0.5}});
    cases.push_back({"nll_loss",
                     {"aten::nll_loss_forward", "aten::nll_loss_backward"},
                     [=](const Tensors& in) { return at::nll_loss(in[0], in[1], {}, reduction, 1); },
                     {x, classes}});
    cases.push_back({"nll_loss with weights",
                     {"aten::nll_loss_forward", "aten::nll_loss_backward"},
                     [=](const Tensors& in) { return at::nll_loss(in[0], in[1], in[2], reduction, 2); },
                     {x, classes, at::rand({6}) + 0.5}});
    cases.push_back({"nll_loss of one row",
                     {"aten::nll_loss_forward", "aten::nll_loss_backward"},
                     [=](const Tensors& in) { return at::nll_loss(in[0], in[1], {}, reduction); },
                     {Leaf({6}), at::full({}, 2, at::kLong)}});
  }
  cases.push_back({"layer_norm",
                   {"aten::native_layer_norm", "aten::native_layer_norm_backward"},
                   [](const Tensors& in) { return at::layer_norm(in[0], {6}, in[1], in[2]); },
                   {x, Leaf({6}), Leaf({6})}});
  cases.push_back({"layer_norm of two dimensions",
                   {"aten::native_layer_norm", "aten::native_layer_norm_backward"},
                   [](const Tensors& in) {
                     return at::layer_norm(in[0], {3, 4});
                   },
                   {Leaf({2, 3, 4})}});
  for (const bool training : {true, false}) {
    cases.push_back({"batch_norm",
                     {"aten::native_batch_norm"},
                     [=](const Tensors& in) { return at::batch_norm(in[0], in[1], in[2], in[3], in[4], training, 0.3, 1e-5, false); },
                     {Leaf({3, 4, 5}), Leaf({4}), Leaf({4}), Ramp({4}), at::rand({4}) + 0.5}});
  }
  cases.push_back({"group_norm",
                   {"aten::native_group_norm"},
                   [](const Tensors& in) { return at::group_norm(in[0], 2, in[1], in[2], 1e-5, false); },
                   {Leaf({3, 4, 5}), Leaf({4}), Leaf({4})}});
  for (const bool by_frequency : {false, true}) {
    cases.push_back({"embedding",
                     {"aten::embedding_dense_backward"},
                     [=](const Tensors& in) { return at::embedding(in[0], in[1], 1, by_frequency); },
                     {Leaf({5, 3}), at::arange(8).reshape({2, 4}) % 3}});
  }
  for (const double p : {0.0, 0.4, 1.0}) {
    cases.push_back({"native_dropout",
                     {"aten::native_dropout", "aten::native_dropout_backward"},
                     [=](const Tensors& in) { return std::get<0>(at::native_dropout(in[0], p, true)); },
                     {x}});
  }
  return cases;
}

struct Outcome {
  Tensors forward, backward, inputs;
};

Outcome Execute(const JointGraph& joint, const PartitionedGraph& parts, const Tensors& inputs) {
  Outcome outcome;
  for (const at::Tensor& input : inputs)
    outcome.inputs.push_back(at::empty_strided(input.sizes(), input.strides(), input.options().requires_grad(false)).copy_(input.detach()));
  at::manual_seed(3);
  std::vector<IValue> primals;
  for (const JointGraph::Primal& primal : joint.primals) primals.emplace_back(outcome.inputs[primal.input]);
  const IValue made = CallGraphModule(*parts.forward, primals);
  const auto& elements = made.toTupleRef().elements();
  for (int i = 0; i < joint.num_values; ++i) outcome.forward.push_back(elements[i].toTensor());
  std::vector<IValue> args;
  for (const auto& saved : parts.saved) {
    using Kind = PartitionedGraph::Saved::Kind;
    if (saved.kind == Kind::kPrimal) args.push_back(primals[saved.index]);
    if (saved.kind == Kind::kValue) args.push_back(elements[saved.index]);
    if (saved.kind == Kind::kIntermediate) args.push_back(elements[joint.num_values + joint.updates.size() + saved.index]);
  }
  for (const int value : joint.tangents) {
    const at::Tensor& result = outcome.forward[value];
    args.emplace_back(at::empty_strided(result.sizes(), result.strides(), result.options()).copy_(Ramp(result.sizes()) + 0.5));
  }
  const IValue gradients = CallGraphModule(*parts.backward, args);
  for (const IValue& gradient : gradients.toTupleRef().elements()) {
    outcome.backward.push_back(gradient.isTensor() ? gradient.toTensor() : at::Tensor());
  }
  return outcome;
}

void ExpectClose(const Tensors& got, const Tensors& want, const char* what) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << what << " " << i);
    ASSERT_EQ(got[i].defined(), want[i].defined());
    if (!want[i].defined()) continue;
    EXPECT_THAT(got[i], testing::AllClose(want[i], 2e-5, 2e-6));
    EXPECT_EQ(got[i].strides(), want[i].strides());
  }
}

TEST(Decompositions, GiveWhatTheOperatorsGive) {
  std::set<std::string> covered;
  for (const Case& one : Cases()) {
    SCOPED_TRACE(one.name);
    const auto traced = TraceFunction([&](Tensors in) { return one.fn(in); }, FakeTensorMode::Create(), one.inputs);
    ASSERT_THAT(traced, IsOk());
    const auto plain = TraceJointGraph(*traced->module, traced->fake_inputs);
    ASSERT_THAT(plain, IsOk());
    JointGraphOptions options;
    options.decompositions = DecompositionSet::All();
    const auto simple = TraceJointGraph(*traced->module, traced->fake_inputs, options);
    ASSERT_THAT(simple, IsOk());
    const std::set<std::string> before = Operators(*plain->module), after = Operators(*simple->module);
    for (const std::string& name : one.covers) {
      EXPECT_TRUE(before.contains(name)) << name << "\n" << plain->module->graph().ToString();
      covered.insert(name);
    }
    for (const std::string& name : DecompositionNames()) EXPECT_FALSE(after.contains(name)) << name;
    const auto plain_parts = Partition(*plain), simple_parts = Partition(*simple);
    ASSERT_THAT(plain_parts, IsOk());
    ASSERT_THAT(simple_parts, IsOk());
    const Outcome want = Execute(*plain, *plain_parts, one.inputs), got = Execute(*simple, *simple_parts, one.inputs);
    ExpectClose(got.forward, want.forward, "result");
    ExpectClose(got.backward, want.backward, "gradient");
    ExpectClose(got.inputs, want.inputs, "input");
  }
  // Each of them is looked at somewhere.
  for (const std::string& name : DecompositionNames()) EXPECT_TRUE(covered.contains(name)) << name;
}

TEST(Decompositions, OfAChoice) {
  const auto traced = TraceFunction([](at::Tensor a, at::Tensor w, at::Tensor b) { return at::gelu(at::linear(a, w, b)); },
                                    FakeTensorMode::Create(), Leaf({4, 6}), Leaf({5, 6}), Leaf({5}));
  ASSERT_THAT(traced, IsOk());
  JointGraphOptions options;
  const auto set = DecompositionSet::Of({"aten::addmm"});
  ASSERT_THAT(set, IsOk());
  options.decompositions = *set;
  const auto joint = TraceJointGraph(*traced->module, traced->fake_inputs, options);
  ASSERT_THAT(joint, IsOk());
  const std::set<std::string> names = Operators(*joint->module);
  EXPECT_FALSE(names.contains("aten::addmm"));
  EXPECT_TRUE(names.contains("aten::mm"));
  EXPECT_TRUE(names.contains("aten::gelu"));
  EXPECT_THAT(DecompositionSet::Of({"aten::addmm", "aten::frobnicate"}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'aten::frobnicate'")));
  EXPECT_GE(DecompositionNames().size(), 24u);
}

}  // namespace
}  // namespace ddpopt
