#include "ddpopt/ddp/captured_forward.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Context.h"
#include "ATen/Functions.h"
#include "c10/core/DefaultDtype.h"
#include "ddpopt/backends/backend.h"
#include "ddpopt/capture/tracer/values.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"
#include "testing/matchers.h"
#include "torch/nn/module.h"

namespace ddpopt {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::TensorEq;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (const char* name : {"a", "b", "c", "d"}) weights.push_back(register_parameter(name, at::ones({8, 8}).div(4)));
    state = register_buffer("state", at::zeros({}));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    // The last one for five rows alone.
    for (std::size_t i = 0; i < (x.size(0) == 5 ? 4 : 3); ++i) y = at::relu(at::mm(y, weights[i]));
    if (is_training()) state.add_(1);
    return after ? after(y) : y;
  }
  std::vector<at::Tensor> weights;
  at::Tensor state;
  std::function<at::Tensor(at::Tensor)> after;
};

class CapturedForwardTest : public ::testing::Test {
 protected:
  void Make(int64_t retrace_every = 100) {
    CapturedForwardOptions options;
    options.backend = EagerBackend();
    options.buckets.bucket_cap_bytes = 8 * 8 * 4 + 1;
    options.retrace_every = retrace_every;
    captured = std::make_unique<CapturedForward>(net, options);
    forward = [this](const c10::IValue& arguments) {
      ++forwards;
      return ToValue(net->forward(std::get<0>(FromValue<std::tuple<at::Tensor>>(arguments))));
    };
    ASSERT_THAT(captured->CaptureFirst(ToValue(std::make_tuple(X())), forward), IsOk());
  }
  static at::Tensor X(int64_t rows = 2) { return at::arange(rows * 8, at::kFloat).reshape({rows, 8}); }
  // One call; whether it gives what eager gives now.
  bool Call(const at::Tensor& x) {
    const at::Tensor y = captured->Run(ToValue(std::make_tuple(x)), forward).toTensor();
    const at::Tensor state = net->state.clone();
    const at::Tensor expected = net->forward(x);
    net->state.copy_(state);
    return at::equal(y, expected);
  }
  static std::vector<std::vector<std::string>> Table(const BucketAssignment& assignment) {
    std::vector<std::vector<std::string>> result;
    for (const Bucket& bucket : assignment.buckets) result.push_back(bucket.parameters);
    return result;
  }

  std::shared_ptr<NetImpl> net = std::make_shared<NetImpl>();
  std::unique_ptr<CapturedForward> captured;
  ValueForward forward;
  int forwards = 0;  // real or under fakes
};

TEST_F(CapturedForwardTest, RecompilesAreCutToTheSameTable) {
  Make();
  // What forward doesn't use is reduced last.
  EXPECT_THAT(Table(captured->assignment()), ElementsAre(ElementsAre("a", "d"), ElementsAre("c", "b")));
  // By the cap it would be cut into a and b, c and d.
  EXPECT_TRUE(Call(X(5)));
  EXPECT_EQ(captured->recompiles(), 1);
  EXPECT_THAT(Table(captured->last_assignment()), ElementsAre(ElementsAre("a"), ElementsAre("d", "c", "b")));
  EXPECT_THAT(Table(captured->assignment()), ElementsAre(ElementsAre("a", "d"), ElementsAre("c", "b")));
}

TEST_F(CapturedForwardTest, AtMostEightRecompilesThenEager) {
  Make(/*retrace_every=*/0);
  for (int64_t rows = 3; rows < 11; ++rows) EXPECT_TRUE(Call(X(rows)));
  EXPECT_EQ(captured->recompiles(), 8);
  EXPECT_FALSE(captured->eager());
  // Known kinds of calls go on.
  EXPECT_TRUE(Call(X(4)));
  EXPECT_TRUE(Call(X()));
  EXPECT_FALSE(captured->eager());
  EXPECT_TRUE(Call(X(11)));
  EXPECT_TRUE(captured->eager());
  EXPECT_THAT(captured->eager_reason(), AllOf(HasSubstr("8 times"), HasSubstr("shape [11, 8]")));
  EXPECT_THAT(captured->Explain(),
              AllOf(HasSubstr("runs eagerly"), HasSubstr("because input 0 was captured with shape [2, 8], and has shape [3, 8]")));
}

TEST_F(CapturedForwardTest, AMemberThatChangesIsFoundWithinRetraceEvery) {
  double scale = 1;
  net->after = [&](at::Tensor y) { return y * scale; };
  Make(/*retrace_every=*/4);
  for (int call = 1; call <= 3; ++call) EXPECT_TRUE(Call(X()));
  scale = 2;
  int wrong = 0;
  while (!Call(X())) ASSERT_LT(++wrong, 4);
  EXPECT_EQ(captured->recompiles(), 1);
  EXPECT_FALSE(captured->eager());
  EXPECT_THAT(captured->Explain(), AllOf(HasSubstr("host state has changed"), HasSubstr("%mul")));
  scale = 3;
  for (wrong = 0; !Call(X());) ASSERT_LT(++wrong, 4);
  EXPECT_TRUE(captured->eager());
  EXPECT_THAT(captured->eager_reason(), HasSubstr("changed again"));
}

TEST_F(CapturedForwardTest, AStepCounterThatDecidesABranch) {
  int step = 0;
  net->after = [&](at::Tensor y) { return step >= 3 ? y.exp() : y.sin(); };
  Make(/*retrace_every=*/1);
  for (; step < 6; ++step) EXPECT_TRUE(Call(X())) << step;
  EXPECT_EQ(captured->recompiles(), 1);
  EXPECT_FALSE(captured->eager());
}

TEST_F(CapturedForwardTest, AHostRandomNumberRunsEagerly) {
  int number = 0;
  net->after = [&](at::Tensor y) { return y + ++number; };
  Make();
  captured->Run(ToValue(std::make_tuple(X())), forward);
  EXPECT_EQ(captured->retraces(), 0);
  captured->Run(ToValue(std::make_tuple(X())), forward);  // the second call is compared
  EXPECT_EQ(captured->recompiles(), 1);
  for (int call = 3; call <= 102; ++call) captured->Run(ToValue(std::make_tuple(X())), forward);
  EXPECT_TRUE(captured->eager());
  EXPECT_THAT(captured->eager_reason(), HasSubstr("%add"));
}

TEST_F(CapturedForwardTest, TrainAndEvalAreGraphsOfTheirOwnAndAreComparedAfterASwitch) {
  double scale = 1;
  net->after = [&](at::Tensor y) { return y * scale; };
  Make();
  EXPECT_TRUE(Call(X()));
  net->eval();
  EXPECT_TRUE(Call(X()));
  EXPECT_EQ(captured->recompiles(), 1);
  EXPECT_TRUE(Call(X()));
  EXPECT_EQ(captured->retraces(), 1);
  scale = 2;
  net->train();
  EXPECT_TRUE(Call(X()));
  EXPECT_EQ(captured->recompiles(), 2);
  // The other graph is doubted too.
  net->eval();
  net->train();
  EXPECT_TRUE(Call(X()));
}

TEST_F(CapturedForwardTest, GraphsUpdateBuffersAndComparingDoesNot) {
  Make(/*retrace_every=*/1);
  for (int call = 1; call <= 4; ++call) {
    captured->Run(ToValue(std::make_tuple(X())), forward);
    EXPECT_EQ(net->state.item<float>(), call);
  }
  EXPECT_EQ(captured->retraces(), 3);
  EXPECT_EQ(forwards, 4);  // the capture, and one a comparison
}

TEST_F(CapturedForwardTest, WhatCanNoLongerBeCapturedRunsEagerly) {
  bool read = false;
  net->after = [&](at::Tensor y) { return read ? y * y.sum().item<float>() : y; };
  Make();
  EXPECT_TRUE(Call(X()));
  read = true;
  EXPECT_TRUE(Call(X()));
  EXPECT_TRUE(captured->eager());
  EXPECT_THAT(captured->eager_reason(), HasSubstr("_local_scalar_dense"));
}

// The first kind of call is captured; in the next one forward keeps what it computes, and what a capture leaves in the member has no data.
TEST_F(CapturedForwardTest, AMemberThatACaptureHasFilled) {
  at::Tensor state;
  bool keep = false;
  net->after = [&](at::Tensor y) {
    if (!keep) return y;
    at::Tensor result = state.defined() ? y + state : y;
    state = result.detach();
    return result;
  };
  Make();
  EXPECT_TRUE(Call(X()));
  keep = true;
  const auto call = [&] { return captured->Run(ToValue(std::make_tuple(X(3))), forward).toTensor(); };
  EXPECT_THAT(testing::ErrorOf(call), HasSubstr("give it the value that it had before"));
  // Not captured any more.
  EXPECT_TRUE(captured->eager());
  state = at::Tensor();
  const at::Tensor first = call();
  EXPECT_THAT(call(), TensorEq(first + first));
}

// One odd kind of call runs eagerly; the others go on as graphs.
TEST_F(CapturedForwardTest, AKindOfCallThatCannotBeCaptured) {
  net->after = [](at::Tensor y) { return y.size(0) == 3 ? y * y.sum().item<float>() : y; };
  Make(/*retrace_every=*/0);
  EXPECT_TRUE(Call(X()));
  EXPECT_TRUE(Call(X(3)));
  EXPECT_TRUE(Call(X(3)));
  EXPECT_EQ(captured->eager_kinds(), 1u);
  EXPECT_FALSE(captured->eager());
  EXPECT_EQ(captured->recompiles(), 0);
  const int before = forwards;
  EXPECT_TRUE(Call(X()));
  EXPECT_EQ(forwards, before);
  EXPECT_TRUE(Call(X(4)));
  EXPECT_EQ(captured->recompiles(), 1);
  EXPECT_THAT(captured->Explain(),
              AllOf(HasSubstr("runs as 2 graphs"), HasSubstr("eagerly, 2 times, for calls with"), HasSubstr("_local_scalar_dense")));
}

TEST_F(CapturedForwardTest, AtMostEightKindsOfCallThatCannotBeCaptured) {
  net->after = [](at::Tensor y) { return y.size(0) > 2 ? y * y.sum().item<float>() : y; };
  Make();
  for (int64_t rows = 3; rows < 11; ++rows) EXPECT_TRUE(Call(X(rows)));
  EXPECT_FALSE(captured->eager());
  EXPECT_TRUE(Call(X(11)));
  EXPECT_TRUE(captured->eager());
  EXPECT_THAT(captured->eager_reason(), HasSubstr("8 kinds of call"));
}

// What forward may ask of an input, and what its constants are made with.
TEST_F(CapturedForwardTest, LeavesAndResultsAreOtherCalls) {
  at::Tensor input;
  net->after = [&](at::Tensor y) { return input.is_leaf() ? y : y * 2; };
  forward = [this, &input](const c10::IValue& arguments) {
    input = std::get<0>(FromValue<std::tuple<at::Tensor>>(arguments));
    at::Tensor result = net->forward(input);
    input = at::Tensor();
    return ToValue(result);
  };
  CapturedForwardOptions options;
  options.backend = EagerBackend();
  captured = std::make_unique<CapturedForward>(net, options);
  const at::Tensor leaf = X().requires_grad_(), result = leaf * 1;
  ASSERT_THAT(captured->CaptureFirst(ToValue(std::make_tuple(leaf)), forward), IsOk());
  const auto run = [&](const at::Tensor& x) { return captured->Run(ToValue(std::make_tuple(x)), forward).toTensor(); };
  const at::Tensor y = run(leaf);
  EXPECT_THAT(run(result), TensorEq(y * 2));
  EXPECT_EQ(captured->recompiles(), 1);
  EXPECT_THAT(captured->Explain(), HasSubstr("because input 0 was captured as a leaf, and is the result of an operator"));
}

TEST_F(CapturedForwardTest, AnotherDefaultDtypeIsAnotherCall) {
  net->after = [](at::Tensor y) { return y * at::full({8}, 0.1).add(at::ones({8})); };
  Make();
  EXPECT_TRUE(Call(X()));
  const auto before = c10::get_default_dtype();
  c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
  EXPECT_TRUE(Call(X()));
  const at::Tensor y = captured->Run(ToValue(std::make_tuple(X())), forward).toTensor();
  c10::set_default_dtype(before);
  EXPECT_EQ(y.scalar_type(), at::kDouble);
  EXPECT_EQ(captured->recompiles(), 1);
  EXPECT_THAT(captured->Explain(), HasSubstr("default dtype Float"));
  at::globalContext().setUserEnabledMkldnn(false);
  EXPECT_TRUE(Call(X()));
  at::globalContext().setUserEnabledMkldnn(true);
  EXPECT_EQ(captured->recompiles(), 2);
  EXPECT_TRUE(Call(X()));
  EXPECT_EQ(captured->recompiles(), 2);
}

TEST_F(CapturedForwardTest, InputsThatShareMemoryAreAnotherCall) {
  net->after = [](at::Tensor y) { return y; };
  Make();
  const at::Tensor base = X(4);
  EXPECT_TRUE(Call(base.slice(0, 0, 2)));
  EXPECT_EQ(captured->recompiles(), 0);
  EXPECT_TRUE(Call(net->weights[0].detach().slice(0, 0, 2)));
  EXPECT_EQ(captured->recompiles(), 1);
  EXPECT_THAT(captured->Explain(), HasSubstr("memory shared with parameter \"a\""));
}

}  // namespace
}  // namespace ddpopt
