// A compiled module to autograd: hooks, retained graphs, when saved memory goes, where gradients are written.

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ATen/Functions.h"
#include "c10/core/Allocator.h"
#include "c10/util/ThreadLocalDebugInfo.h"
#include "ddpopt/aot/aot_function.h"
#include "ddpopt/capture/tracer/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"
#include "testing/matchers.h"
#include "testing/tensors.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/nn/module.h"

namespace ddpopt {
namespace {

using c10::IValue;
using testing::IsOk;
using testing::Ramp;
using testing::TensorEq;
using ::testing::UnorderedElementsAre;
using Tensors = std::vector<at::Tensor>;

struct Net : torch::nn::Module {
  Net() {
    at::manual_seed(1);
    for (const char* name : {"a", "b", "c"}) weights[name] = register_parameter(name, at::rand({64, 64}));
    bias = register_parameter("bias", at::rand({64}));
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& [name, weight] : weights) x = at::tanh(at::mm(x, weight));
    return (x + bias).sin().sum();
  }
  std::map<std::string, at::Tensor> weights;
  at::Tensor bias;
};

class CompiledNet {
 public:
  explicit CompiledNet(AotOptions options = {}) {
    traced_ = TraceModule(net, {x}, FakeTensorMode::Create(), [this](const Tensors& in) { return net.forward(in[0]); });
    EXPECT_THAT(traced_, IsOk());
    auto compiled = AotFunction::Compile(*traced_->module, traced_->fake_inputs, options);
    EXPECT_THAT(compiled, IsOk());
    function = *compiled;
  }
  at::Tensor Forward() const { return function->Call({x}).toTensor(); }
  Tensors Gradients() const {
    Tensors result;
    for (const at::Tensor& parameter : net.parameters()) result.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
    return result;
  }
  // What eager gives.
  Tensors Want() {
    net.zero_grad();
    net.forward(x).backward();
    const Tensors want = Gradients();
    net.zero_grad();
    return want;
  }

  Net net;
  const at::Tensor x = Ramp({8, 64});
  std::shared_ptr<const AotFunction> function;

 private:
  absl::StatusOr<TracedModule> traced_ = absl::InternalError("not traced");
};

void ExpectEqual(const Tensors& got, const Tensors& want, double factor = 1) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_THAT(got[i], TensorEq(want[i] * factor)) << i;
}

// Memory of c10's CPU allocator: what is held, the most, and the sizes asked for.
class Watch {
 public:
  int64_t held() const { return counter_->held; }
  int64_t peak() const { return counter_->peak; }
  int64_t OfAtLeast(int64_t bytes) const {
    return std::count_if(counter_->sizes.begin(), counter_->sizes.end(), [&](int64_t size) { return size >= bytes; });
  }

 private:
  struct Counter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
      held += bytes;
      peak = std::max(peak, held);
      if (bytes > 0) sizes.push_back(bytes);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t held = 0, peak = 0;
    std::vector<int64_t> sizes;
  };
  std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, counter_};
};

TEST(AotAutograd, Gradients) {
  CompiledNet compiled;
  const Tensors want = compiled.Want();
  ASSERT_NE(compiled.function->forward().plan(), nullptr) << compiled.function->forward().why_interpreted();
  ASSERT_NE(compiled.function->backward().plan(), nullptr) << compiled.function->backward().why_interpreted();
  for (int i = 1; i <= 3; ++i) {
    compiled.Forward().backward();
    if (i == 1) ExpectEqual(compiled.Gradients(), want);
    if (i == 2) ExpectEqual(compiled.Gradients(), want, 2);
  }
}

TEST(AotAutograd, AccumulatedGradientsAreAutogradsOwn) {
  CompiledNet compiled;
  compiled.Forward().backward();
  for (const at::Tensor& parameter : compiled.net.parameters()) {
    // Taken over, not copied, and nobody else's.
    EXPECT_EQ(parameter.grad().storage().use_count(), 1u);
    for (const at::Tensor& other : compiled.net.parameters()) EXPECT_EQ(other.grad().is_alias_of(parameter.grad()), other.is_same(parameter));
  }
}

TEST(AotAutograd, RetainedGraphsGoBackwardAgain) {
  CompiledNet compiled;
  const Tensors want = compiled.Want();
  const at::Tensor loss = compiled.Forward();
  for (int i = 0; i < 3; ++i) loss.backward({}, /*retain_graph=*/true);
  // Another call in between doesn't disturb what is saved.
  compiled.Forward();
  compiled.net.zero_grad();
  loss.backward();
  ExpectEqual(compiled.Gradients(), want);
  EXPECT_THAT(testing::ErrorOf([&] { loss.backward(); }), ::testing::HasSubstr("a second time"));
}

TEST(AotAutograd, SeveralForwardsBeforeTheirBackwards) {
  CompiledNet compiled;
  const Tensors want = compiled.Want();
  Tensors losses;
  for (int i = 0; i < 3; ++i) losses.push_back(compiled.Forward());
  for (const int i : {1, 0, 2}) {
    compiled.net.zero_grad();
    losses[i].backward();
    ExpectEqual(compiled.Gradients(), want);
  }
}

TEST(AotAutograd, HooksOfTensors) {
  CompiledNet compiled;
  const Tensors want = compiled.Want();
  std::vector<std::string> seen;
  const at::Tensor a = compiled.net.weights["a"], bias = compiled.net.bias;
  a.register_hook([&](const at::Tensor& gradient) {
    seen.push_back("a");
    return gradient * 2;
  });
  const at::Tensor loss = compiled.Forward();
  loss.register_hook([&](const at::Tensor& gradient) {
    seen.push_back("loss");
    return gradient * 3;
  });
  loss.backward();
  EXPECT_THAT(seen, UnorderedElementsAre("a", "loss"));
  EXPECT_TRUE(at::allclose(a.grad(), want[0] * 6));
  EXPECT_TRUE(at::allclose(bias.grad(), want[3] * 3));
}

TEST(AotAutograd, SavedMemoryGoesDuringBackward) {
  CompiledNet compiled;
  compiled.Forward().backward();
  compiled.net.zero_grad();
  Watch watch;
  {
    const at::Tensor loss = compiled.Forward();
    EXPECT_GE(watch.held(), compiled.function->parts().intermediate_bytes);
    loss.backward();
    compiled.net.zero_grad();
    // The graph is still there; what it saved is not.
    EXPECT_LE(watch.held(), 64);
  }
  EXPECT_LE(watch.peak(), compiled.function->PeakBytes());
}

class Targets : public GradientTargets {
 public:
  at::Tensor TargetFor(const at::Tensor& parameter) const override {
    const auto it = places.find(parameter.unsafeGetTensorImpl());
    if (it == places.end()) return at::Tensor();
    ++given;
    return it->second.detach();
  }
  std::map<const c10::TensorImpl*, at::Tensor> places;
  mutable int given = 0;
};

TEST(AotAutograd, GradientsAreWrittenWhereTheyAreWanted) {
  const auto targets = std::make_shared<Targets>();
  AotOptions options;
  options.gradient_targets = targets;
  CompiledNet compiled(options);
  const Tensors want = compiled.Want();
  Net& net = compiled.net;
  const at::Tensor bucket = at::zeros({2 * 64 * 64 + 64});
  const at::Tensor places[] = {bucket.narrow(0, 0, 4096).view({64, 64}), bucket.narrow(0, 4096, 64), bucket.narrow(0, 4160, 4096).view({64, 64})};
  targets->places = {{net.weights["a"].unsafeGetTensorImpl(), places[0]},
                     {net.bias.unsafeGetTensorImpl(), places[1]},
                     {net.weights["c"].unsafeGetTensorImpl(), places[2]}};
  compiled.Forward().backward();
  EXPECT_EQ(targets->given, 3);
  ExpectEqual(compiled.Gradients(), want);
  EXPECT_TRUE(net.weights["a"].grad().is_alias_of(bucket));
  EXPECT_TRUE(net.bias.grad().is_alias_of(bucket));
  EXPECT_FALSE(net.weights["b"].grad().is_alias_of(bucket));
  EXPECT_THAT(places[2], TensorEq(want[2]));
  const at::Tensor once = bucket.clone();

  // Added to what is there, which is not written over first.
  compiled.Forward().backward();
  EXPECT_EQ(targets->given, 3);
  ExpectEqual(compiled.Gradients(), want, 2);
  EXPECT_THAT(bucket, TensorEq(once * 2));

  // A caller's own gradients are no parameters'.
  bucket.zero_();
  const Tensors own = torch::autograd::grad({compiled.Forward()}, {net.weights["a"]});
  EXPECT_THAT(own[0], TensorEq(want[0]));
  EXPECT_FALSE(own[0].is_alias_of(bucket));
  EXPECT_EQ(bucket.abs().max().item<float>(), 0);

  // A hook may keep what it sees.
  net.zero_grad();
  at::Tensor kept;
  const unsigned hook = net.bias.register_hook([&](const at::Tensor& gradient) { kept = gradient; });
  compiled.Forward().backward();
  EXPECT_FALSE(kept.is_alias_of(bucket));
  EXPECT_TRUE(net.weights["c"].grad().is_alias_of(bucket));
  net.bias.remove_hook(hook);

  // Of another layout: somewhere else.
  net.zero_grad();
  targets->places[net.weights["a"].unsafeGetTensorImpl()] = places[0].t();
  compiled.Forward().backward();
  ExpectEqual(compiled.Gradients(), want);
  EXPECT_FALSE(net.weights["a"].grad().is_alias_of(bucket));

  // Nothing as large as a weight is allocated for what is written elsewhere.
  net.zero_grad();
  targets->places[net.weights["a"].unsafeGetTensorImpl()] = places[0];
  const at::Tensor other = at::zeros({64, 64});
  targets->places[net.weights["b"].unsafeGetTensorImpl()] = other;
  const at::Tensor loss = compiled.Forward();
  Watch watch;
  loss.backward();
  EXPECT_EQ(watch.OfAtLeast(64 * 64 * 4), 0);
  ExpectEqual(compiled.Gradients(), want);
}

}  // namespace
}  // namespace ddpopt
