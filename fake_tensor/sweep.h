#ifndef DDPOPT_FAKE_TENSOR_SWEEP_H_
#define DDPOPT_FAKE_TENSOR_SWEEP_H_

// Tests of operators on fakes against the real kernels. Each case runs on real tensors and on their fakes; the results, the changed inputs
// and the gradients must agree in everything but data: shapes, strides, dtypes, offsets, storage sizes, aliasing, versions, history.
//
//   std::vector<SweepCase> Cases() {
//     return {OpCase("glu", "aten::glu", {F({4, 6}), 1}),                            // forward, and backward since F requires grad
//             OpCase("sum_out", "aten::sum.IntList_out", {F({4, 5}), Ints({1})}, {{"out", NoGrad({0})}}),
//             Rejected(OpCase("glu_odd", "aten::glu", {F({4, 5}), 1})),              // by the real kernel, so by the fake too
//             {"add_twice", {F({2}), F({2})}, [](const Tensors& i) -> Tensors { return {i[0] + i[1] + i[1]}; }}};
//   }
//   INSTANTIATE_TEST_SUITE_P(Glu, SweepTest, ::testing::ValuesIn(Cases()), SweepName);
//
// Names are unique within a test program, and letters, digits and underscores only.

#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "gtest/gtest.h"

namespace ddpopt {

using Tensors = std::vector<at::Tensor>;

struct SweepCase {
  std::string name;
  Tensors inputs;
  std::function<Tensors(const Tensors&)> run;
  bool rejected = false;  // whether the real kernel throws
};

void PrintTo(const SweepCase& c, std::ostream* os);

// A call of an operator overload ("aten::sum.dim_IntList") as CallOperator takes it; every tensor in the arguments is an input.
SweepCase OpCase(std::string name, const char* op, std::vector<c10::IValue> args,
                 std::vector<std::pair<std::string, c10::IValue>> kwargs = {});
SweepCase Rejected(SweepCase c);

// Arguments. Floats, whose elements are 0.5, that require grad …
at::Tensor F(at::IntArrayRef sizes);
// … or don't (ones); of another dtype; with the strides of channels-last (4-D and 5-D), transposed (last two dimensions) or expanded along
// a new first dimension. A dtype other than a floating one never requires grad.
at::Tensor NoGrad(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat);
at::Tensor Long(at::IntArrayRef sizes);
at::Tensor As(at::ScalarType dtype, const at::Tensor& t);
at::Tensor ChannelsLast(at::IntArrayRef sizes);
at::Tensor T(const at::Tensor& t);
at::Tensor X(const at::Tensor& t, int64_t n);
inline c10::IValue Ints(std::vector<int64_t> values) { return c10::IValue(std::move(values)); }
c10::IValue Bools(std::initializer_list<bool> values);
inline c10::IValue None() { return c10::IValue(); }

class SweepTest : public ::testing::TestWithParam<SweepCase> {};
std::string SweepName(const ::testing::TestParamInfo<SweepCase>& info);

}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_SWEEP_H_
