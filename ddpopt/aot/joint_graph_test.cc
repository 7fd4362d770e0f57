#include "ddpopt/aot/joint_graph.h"

#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ddpopt/capture/tracer/trace_forward.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/matchers.h"

namespace ddpopt {
namespace {

using ::testing::ElementsAre;
using testing::IsOk;

struct Traced {
  TracedModule module;
  JointGraph joint;
};

template <typename Fn, typename... Args>
absl::StatusOr<Traced> Trace(Fn fn, const Args&... args) {
  absl::StatusOr<TracedModule> traced = TraceFunction(fn, FakeTensorMode::Create(), args...);
  if (!traced.ok()) return traced.status();
  absl::StatusOr<JointGraph> joint = TraceJointGraph(*traced->module, traced->fake_inputs);
  if (!joint.ok()) return joint.status();
  return Traced{*std::move(traced), *std::move(joint)};
}

const at::Tensor& Weight() {
  static const auto* w = new at::Tensor(at::ones({5, 3}).requires_grad_());
  return *w;
}

TEST(JointGraph, ForwardAndBackwardOfLinear) {
  auto traced = Trace([](at::Tensor x, at::Tensor w) { return at::relu(at::linear(x, w)); }, at::ones({4, 3}), Weight());
  ASSERT_THAT(traced, IsOk());
  EXPECT_EQ(traced->joint.module->graph().ToString(),
            "graph():\n"
            "    %primals_1 : [num_users=2] = placeholder[target=primals_1]\n"
            "    %primals_2 : [num_users=1] = placeholder[target=primals_2]\n"
            "    %t : [num_users=1] = call_function[target=torch.ops.aten.t.default](args = (%primals_2,), kwargs = {})\n"
            "    %mm : [num_users=1] = call_function[target=torch.ops.aten.mm.default](args = (%primals_1, %t), kwargs = {})\n"
            "    %relu : [num_users=2] = call_function[target=torch.ops.aten.relu.default](args = (%mm,), kwargs = {})\n"
            "    %tangents_1 : [num_users=1] = placeholder[target=tangents_1]\n"
            "    %threshold_backward : [num_users=1] = call_function[target=torch.ops.aten.threshold_backward.default](args = "
            "(%tangents_1, %relu, 0), "
            "kwargs = {})\n"
            "    %t_1 : [num_users=1] = call_function[target=torch.ops.aten.t.default](args = (%threshold_backward,), kwargs = {})\n"
            "    %mm_1 : [num_users=1] = call_function[target=torch.ops.aten.mm.default](args = (%t_1, %primals_1), kwargs = {})\n"
            "    %t_2 : [num_users=1] = call_function[target=torch.ops.aten.t.default](args = (%mm_1,), kwargs = {})\n"
            "    %t_3 : [num_users=1] = call_function[target=torch.ops.aten.t.default](args = (%t_2,), kwargs = {})\n"
            "    return (relu, t_3)");
  EXPECT_THAT(traced->joint.gradients, ElementsAre(1));
  EXPECT_THAT(traced->joint.tangents, ElementsAre(0));
}

TEST(JointGraph, WritesBecomeNewContents) {
  auto traced = Trace(
      [](at::Tensor x, at::Tensor buffer) {
        buffer.add_(1);
        return x * buffer;
      },
      at::ones({3}).requires_grad_(), at::ones({3}));
  ASSERT_THAT(traced, IsOk());
  EXPECT_THAT(traced->joint.updates, ElementsAre(1));
  EXPECT_EQ(traced->joint.num_values, 1);
  EXPECT_EQ(traced->joint.module->graph().output_node()->args()[0].ToString(), "(%mul, %add, %mul_1)");
}

}  // namespace
}  // namespace ddpopt
