// Guards of a call, in words and without: both say the same.

#include "ddpopt/ddp/call_guards.h"

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/grad_mode.h"
#include "ddpopt/capture/tracer/values.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/nn/modules/linear.h"

namespace ddpopt {
namespace {

using c10::IValue;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

struct Net : torch::nn::Module {
  Net() {
    linear = register_module("linear", torch::nn::Linear(3, 4));
    running = register_buffer("running", at::zeros({4}));
  }
  torch::nn::Linear linear{nullptr};
  at::Tensor running;
};

IValue Arguments(const Tensors& tensors, double scale = 0.5, std::optional<at::Tensor> mask = std::nullopt) {
  return ToValue(std::make_tuple(tensors, scale, std::string("mean"), std::vector<int>{1, 2}, mask));
}

class CallGuardsTest : public ::testing::Test {
 protected:
  // Why the call is another one than `captured`; what says so without words must agree.
  std::string Why(const IValue& captured, const IValue& given) {
    const CallGuards guards(Call(captured), net_, at::kCPU);
    return Why(guards, given);
  }
  std::string Why(const CallGuards& guards, const IValue& given) {
    const std::string why = guards.Mismatch(Call(given));
    Tensors tensors;
    EXPECT_EQ(guards.Holds(given, &tensors), why.empty()) << why;
    if (why.empty()) {
      const Call call(given);
      EXPECT_EQ(tensors.size(), call.tensors.size());
      for (std::size_t i = 0; i < tensors.size() && i < call.tensors.size(); ++i) EXPECT_TRUE(tensors[i].is_same(call.tensors[i]));
    }
    return why;
  }

  Net net_;
  const at::Tensor x_ = at::ones({2, 3}), y_ = at::ones({3, 1, 2});
};

TEST_F(CallGuardsTest, TheSameCall) {
  EXPECT_EQ(Why(Arguments({x_, y_}), Arguments({x_, y_})), "");
  EXPECT_EQ(Why(Arguments({x_, y_}), Arguments({x_ + 1, y_ + 1})), "");
  EXPECT_EQ(Why(Arguments({x_, x_}), Arguments({x_, x_})), "");
  EXPECT_EQ(Why(Arguments({x_}, std::numeric_limits<double>::quiet_NaN()), Arguments({x_}, std::numeric_limits<double>::quiet_NaN())), "");
  // Strides of dimensions of one element, and of tensors of none, don't count.
  EXPECT_EQ(Why(Arguments({y_}), Arguments({y_.as_strided({3, 1, 2}, {2, 77, 1})})), "");
  EXPECT_EQ(Why(Arguments({at::ones({0, 3})}), Arguments({at::ones({3, 0}).t()})), "");
  EXPECT_EQ(Why(Arguments({x_}, 0.5, y_), Arguments({x_}, 0.5, y_ + 1)), "");
}

TEST_F(CallGuardsTest, OtherTensors) {
  const IValue captured = Arguments({x_, y_});
  EXPECT_THAT(Why(captured, Arguments({at::ones({2, 4}), y_})), HasSubstr("input 0 was captured with shape [2, 3], and has shape [2, 4]"));
  EXPECT_THAT(Why(captured, Arguments({at::ones({3, 2}).t(), y_})), HasSubstr("strides"));
  EXPECT_THAT(Why(captured, Arguments({x_.to(at::kDouble), y_})), HasSubstr("dtype"));
  EXPECT_THAT(Why(captured, Arguments({x_.clone().requires_grad_(), y_})), HasSubstr("requires_grad"));
  EXPECT_THAT(Why(captured, Arguments({x_})), HasSubstr("2 tensors"));
  EXPECT_THAT(Why(captured, Arguments({x_, y_}, 0.5, x_)), HasSubstr("3"));
}

TEST_F(CallGuardsTest, OtherValues) {
  const IValue captured = Arguments({x_});
  EXPECT_THAT(Why(captured, Arguments({x_}, 0.25)), HasSubstr("0.25"));
  EXPECT_THAT(Why(captured, ToValue(std::make_tuple(Tensors{x_}, 0.5, std::string("sum"), std::vector<int>{1, 2}, std::optional<at::Tensor>()))),
              HasSubstr("sum"));
  EXPECT_THAT(Why(captured, ToValue(std::make_tuple(Tensors{x_}, 0.5, std::string("mean"), std::vector<int>{1, 3}, std::optional<at::Tensor>()))),
              HasSubstr("3"));
  EXPECT_THAT(Why(captured, ToValue(std::make_tuple(x_, 0.5, std::string("mean"), std::vector<int>{1, 2}, std::optional<at::Tensor>()))),
              HasSubstr("arguments"));
  EXPECT_THAT(Why(ToValue(std::make_tuple(x_, 1)), ToValue(std::make_tuple(x_, true))), HasSubstr("arguments"));
  EXPECT_THAT(Why(ToValue(std::make_tuple(x_, 1)), ToValue(std::make_tuple(x_, 1.0))), HasSubstr("arguments"));
  EXPECT_THAT(Why(ToValue(std::make_tuple(x_, 0.0)), ToValue(std::make_tuple(x_, -0.0))), HasSubstr("arguments"));
  const std::map<std::string, at::Tensor> named = {{"a", x_}, {"b", y_}}, renamed = {{"a", x_}, {"c", y_}};
  EXPECT_EQ(Why(ToValue(std::make_tuple(named)), ToValue(std::make_tuple(named))), "");
  EXPECT_THAT(Why(ToValue(std::make_tuple(named)), ToValue(std::make_tuple(renamed))), HasSubstr("arguments"));
}

TEST_F(CallGuardsTest, SharedMemory) {
  const at::Tensor base = at::ones({4, 3}), top = base.narrow(0, 0, 2), bottom = base.narrow(0, 2, 2);
  const at::Tensor other = at::ones({2, 3});
  const std::vector<Tensors> calls = {{x_, other, x_ + 1}, {x_, x_, other},     {x_, other, x_},      {top, bottom, other}, {top, other, bottom},
                                      {top, top, bottom},  {top, bottom, top},  {top, bottom, bottom}, {other, top, bottom}};
  for (std::size_t i = 0; i < calls.size(); ++i) {
    for (std::size_t k = 0; k < calls.size(); ++k) {
      SCOPED_TRACE(::testing::Message() << i << ", " << k);
      Why(Arguments(calls[i]), Arguments(calls[k]));
    }
  }
  EXPECT_THAT(Why(Arguments({x_, other}), Arguments({x_, x_})), HasSubstr("the same tensor as input 0"));
  EXPECT_THAT(Why(Arguments({x_, other}), Arguments({top, bottom})), HasSubstr("memory shared with input 0"));
  const at::Tensor weight = net_.linear->weight.detach(), free = at::ones({4, 3});
  EXPECT_THAT(Why(Arguments({free}), Arguments({weight})), HasSubstr("memory shared with parameter \"linear.weight\""));
  EXPECT_THAT(Why(Arguments({weight}), Arguments({free})), HasSubstr("memory of its own"));
  EXPECT_THAT(Why(Arguments({at::ones({4})}), Arguments({net_.running})), HasSubstr("memory shared with buffer \"running\""));
  EXPECT_EQ(Why(Arguments({weight}), Arguments({weight})), "");
}

TEST_F(CallGuardsTest, ModesOfModuleAndThread) {
  const IValue arguments = Arguments({x_});
  const CallGuards guards(Call(arguments), net_, at::kCPU);
  net_.linear->eval();
  EXPECT_THAT(Why(guards, arguments), HasSubstr("submodule \"linear\""));
  net_.linear->train();
  net_.train(false);
  EXPECT_THAT(Why(guards, arguments), HasSubstr("the module"));
  net_.train();
  EXPECT_EQ(Why(guards, arguments), "");
  {
    const at::NoGradGuard no_grad;
    EXPECT_THAT(Why(guards, arguments), HasSubstr("grad mode off"));
  }
  const at::ScalarType before = at::autocast::get_autocast_dtype(at::kCPU);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  EXPECT_THAT(Why(guards, arguments), HasSubstr("autocast to"));
  const CallGuards cast(Call(arguments), net_, at::kCPU);
  EXPECT_EQ(Why(cast, arguments), "");
  at::autocast::set_autocast_dtype(at::kCPU, before == at::kHalf ? at::kBFloat16 : at::kHalf);
  EXPECT_THAT(Why(cast, arguments), HasSubstr("autocast to"));
  at::autocast::set_autocast_dtype(at::kCPU, before);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_THAT(Why(cast, arguments), HasSubstr("autocast off"));
}

}  // namespace
}  // namespace ddpopt
