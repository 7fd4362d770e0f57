#include "ddpopt/capture/tracer/compare_traces.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "ddpopt/capture/tracer/trace_forward.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/matchers.h"
#include "torch/types.h"
#include "torch/utils.h"

namespace ddpopt {
namespace {

using testing::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename Fn>
TracedModule Trace(const Fn& fn, const at::Tensor& x = torch::ones({3})) {
  auto traced = TraceFunction(fn, FakeTensorMode::Create(), x);
  EXPECT_THAT(traced, IsOk());
  return *std::move(traced);
}

// Traces fn, changes the host state, traces again.
template <typename Fn, typename Change>
std::optional<TraceDifference> AfterChange(const Fn& fn, const Change& change) {
  const TracedModule before = Trace(fn);
  EXPECT_FALSE(CompareTraces(before, Trace(fn)).has_value());
  change();
  return CompareTraces(before, Trace(fn));
}

TEST(CompareTracesTest, AnotherNumber) {
  double scale = 0.5;
  const auto difference = AfterChange([&](at::Tensor x) { return (x + 1) * scale; }, [&] { scale = 0.25; });
  ASSERT_TRUE(difference.has_value());
  EXPECT_EQ(difference->node, "mul");
  EXPECT_THAT(difference->what, AllOf(HasSubstr("%mul"), HasSubstr("0.5"), HasSubstr("0.25")));
  // The last bit counts.
  EXPECT_TRUE(AfterChange([&](at::Tensor x) { return x * scale; }, [&] { scale = std::nextafter(scale, 1.0); }).has_value());
}

TEST(CompareTracesTest, AnotherBranch) {
  int step = 0;
  const auto difference = AfterChange([&](at::Tensor x) { return step > 2 ? x.exp() : x.sin(); }, [&] { step = 3; });
  ASSERT_TRUE(difference.has_value());
  EXPECT_EQ(difference->node, "sin");
  EXPECT_THAT(difference->what, AllOf(HasSubstr("aten.sin"), HasSubstr("aten.exp")));
}

TEST(CompareTracesTest, MoreOrFewerNodes) {
  int layers = 1;
  const auto fn = [&](at::Tensor x) {
    for (int i = 0; i < layers; ++i) x = x.sin();
    x.add_(1);  // an effect, so that the next is no argument
    return x;
  };
  EXPECT_TRUE(AfterChange(fn, [&] { layers = 2; }).has_value());
  EXPECT_TRUE(AfterChange(fn, [&] { layers = 1; }).has_value());
}

TEST(CompareTracesTest, AnotherConstant) {
  std::vector<float> numbers{1, 2, 3};
  const auto difference = AfterChange([&](at::Tensor x) { return x + torch::tensor(numbers); }, [&] { numbers[1] = 5; });
  ASSERT_TRUE(difference.has_value());
  EXPECT_THAT(difference->what, HasSubstr("_tensor_constant0"));
}

TEST(CompareTracesTest, AnotherTensorOutside) {
  at::Tensor table = torch::ones({3});
  const auto fn = [&](at::Tensor x) { return x + table; };
  // The graph sees what is written to the tensor; it doesn't see another one.
  EXPECT_FALSE(AfterChange(fn, [&] { table.fill_(2); }).has_value());
  EXPECT_TRUE(AfterChange(fn, [&] { table = table.clone(); }).has_value());
}

TEST(CompareTracesTest, OtherShapesAndArguments) {
  const auto fn = [](at::Tensor x) { return x * 2; };
  const auto difference = CompareTraces(Trace(fn), Trace(fn, torch::ones({4})));
  ASSERT_TRUE(difference.has_value());
  EXPECT_EQ(difference->node, "arg_0");
  EXPECT_TRUE(CompareTraces(Trace(fn), Trace(fn, torch::ones({3}).requires_grad_())).has_value());
  EXPECT_TRUE(CompareTraces(Trace(fn, torch::ones({3, 3})), Trace(fn, torch::ones({3, 3}).t())).has_value());
}

}  // namespace
}  // namespace ddpopt
