// A C++ module and the Python module of the same architecture become the same graph: operators, parameters and constants, one by one; and
// the same weights give the same bits.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/clone.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "ddpopt/capture/pt2/exported_program.h"
#include "ddpopt/capture/tracer/trace_forward.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "interpreter/interpreter.h"
#include "testing/matchers.h"
#include "testing/models/exported_twins.h"
#include "testing/tensors.h"

namespace ddpopt {
namespace {

using c10::IValue;
using ::testing::ContainerEq;
using ::testing::ElementsAre;
using testing::IsOk;
using testing::Ramp;
using ::testing::SizeIs;
using testing::TensorEq;

// Each node as "operator(arguments)", where values are numbered in order and attributes named without `prefix`.
std::vector<std::string> Form(const fx::GraphModule& module, absl::string_view prefix) {
  std::vector<std::string> lines;
  std::vector<std::pair<const fx::Node*, std::string>> names;
  const auto name_of = [&](const fx::Node* node) -> std::string {
    for (const auto& [known, name] : names) {
      if (known == node) return name;
    }
    return "?";
  };
  const auto text = [&](const auto& self, const fx::Argument& argument) -> std::string {
    if (argument.is_node()) return name_of(argument.node());
    if (argument.kind() == fx::Argument::Kind::kList || argument.kind() == fx::Argument::Kind::kTuple) {
      std::string all;
      for (const fx::Argument& element : argument.elements()) absl::StrAppend(&all, all.empty() ? "" : ", ", self(self, element));
      return absl::StrCat("[", all, "]");
    }
    return argument.ToString();
  };
  int inputs = 0;
  for (const fx::Node* node : module.graph().nodes()) {
    if (node->op() == fx::Op::kPlaceholder) names.emplace_back(node, absl::StrCat("input ", inputs++));
    if (node->op() == fx::Op::kGetAttr) names.emplace_back(node, std::string(absl::StripPrefix(node->path(), prefix)));
    if (node->op() != fx::Op::kCallFunction) continue;
    std::string line = absl::StrCat(fx::TargetToString(node->target()), "(");
    for (const fx::Argument& argument : node->args()) absl::StrAppend(&line, absl::EndsWith(line, "(") ? "" : ", ", text(text, argument));
    for (const auto& keyword : node->kwargs())
      absl::StrAppend(&line, ", ", absl::string_view(keyword.first), "=", text(text, keyword.second));
    // Whether cuDNN may be used is a setting of the process that captures.
    if (absl::StartsWith(line, "aten.batch_norm")) line.resize(line.rfind(", "));
    lines.push_back(line + ")");
    names.emplace_back(node, absl::StrCat("value ", lines.size() - 1));
  }
  return lines;
}

template <typename Net>
void ExpectSame(const std::string& model, Net net, const at::Tensor& x, const at::Tensor& labels) {
  const auto program = LoadExportedProgram(absl::StrCat("testing/testdata/exported/models/", model, "/model.pt2"));
  ASSERT_THAT(program, IsOk());
  {
    const at::NoGradGuard no_grad;
    for (const auto& item : net->named_parameters()) {
      const auto weight = (*program)->FindTensor(absl::StrCat("m.", item.key()));
      ASSERT_TRUE(weight.has_value()) << item.key();
      item.value().copy_(*weight);
    }
    for (const auto& item : net->named_buffers()) {
      const auto buffer = (*program)->FindTensor(absl::StrCat("m.", item.key()));
      ASSERT_TRUE(buffer.has_value()) << item.key();
      item.value().copy_(*buffer);
    }
  }
  ASSERT_THAT((*program)->parameters(), SizeIs(net->parameters().size()));
  const auto traced = TraceForward(net, FakeTensorMode::Create(), x, labels);
  ASSERT_THAT(traced, IsOk());
  EXPECT_THAT(Form(*traced->module, ""), ContainerEq(Form(*(*program)->module(), "m.")));

  const at::Tensor loss = CallGraphModule(*traced->module, {x, labels}).toTensor(),
                   exported = (*program)->RunFlat({x, labels})[0].toTensor();
  loss.backward();
  exported.backward();
  EXPECT_THAT(loss, TensorEq(exported));
  for (const auto& item : net->named_parameters()) {
    const at::Tensor grad = item.value().grad(), expected = (*program)->FindTensor(absl::StrCat("m.", item.key()))->grad();
    ASSERT_EQ(grad.defined(), expected.defined()) << item.key();
    if (!grad.defined()) continue;
    EXPECT_THAT(grad, TensorEq(expected)) << item.key();
  }
  for (const auto& item : net->named_buffers()) {
    EXPECT_THAT(item.value(), TensorEq(*(*program)->FindTensor(absl::StrCat("m.", item.key())))) << item.key();
  }
}

TEST(SameFormTest, ConvnetBn) { ExpectSame("convnet_bn", testing::ConvnetBn(), Ramp({8, 3, 16, 16}), at::arange(8)); }

TEST(SameFormTest, UnusedParams) { ExpectSame("unused_params", testing::UnusedParams(), Ramp({16, 64}), at::arange(16).remainder(10)); }

// As torch.export writes the same Python module, in which two numbers become tensors.
TEST(SameFormTest, CustomLinear) {
  testing::CustomLinear net;
  const auto traced = TraceForward(net, FakeTensorMode::Create(), Ramp({16, 32}), at::arange(16).remainder(10));
  ASSERT_THAT(traced, IsOk());
  EXPECT_THAT(
      Form(*traced->module, ""),
      ElementsAre("aten.linear.default(input 0, seq.0.weight, seq.0.bias)", "aten.relu.default(value 0)", "aten.t.default(seq.2.weight)",
                  "aten.mm.default(value 1, value 2)", "aten.lt.Scalar(value 3, 0.5)", "aten.where.Scalar(value 4, 0.3, 0.6)",
                  "aten.add.Tensor(value 3, value 5)", "aten.relu.default(value 6)", "aten.t.default(seq.4.weight)",
                  "aten.mm.default(value 7, value 8)", "aten.lt.Scalar(value 9, 0.5)", "aten.where.Scalar(value 10, 0.3, 0.6)",
                  "aten.add.Tensor(value 9, value 11)", "aten.relu.default(value 12)", "aten.t.default(seq.6.weight)",
                  "aten.mm.default(value 13, value 14)", "aten.lt.Scalar(value 15, 0.5)", "aten.where.Scalar(value 16, 0.3, 0.6)",
                  "aten.add.Tensor(value 15, value 17)", "aten.cross_entropy_loss.default(value 18, input 1)"));
}

}  // namespace
}  // namespace ddpopt
