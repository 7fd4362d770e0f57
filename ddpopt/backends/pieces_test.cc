// Forwards with autocast regions, with results that are integers, bools or complex, and with users' autograd::Functions: compiled whole,
// and cut after every parameter, they give eager's values, dtypes and gradients.

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/grad_mode.h"
#include "ddpopt/backends/aot_eager.h"
#include "ddpopt/capture/tracer/trace_forward.h"
#include "ddpopt/optimizer/ddp_optimizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "interpreter/interpreter.h"
#include "testing/autocast.h"
#include "testing/matchers.h"
#include "testing/tensors.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/nn/module.h"

namespace ddpopt {
namespace {

using c10::IValue;
using testing::AllClose;
using testing::Autocast;
using testing::IsOk;
using testing::Ramp;
using testing::TensorEq;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::tensor_list;
using Tensors = std::vector<at::Tensor>;

struct Net : torch::nn::Module {
  using Forward = std::function<Tensors(const Net&, const at::Tensor&)>;
  explicit Net(Forward fn) : fn(std::move(fn)) {
    float scale = 0.5;
    for (const char* name : {"a", "b", "c", "d"}) weights.push_back(register_parameter(name, Ramp({4, 4}) * (scale += 0.25f)));
  }
  Tensors forward(const at::Tensor& x) { return fn(*this, x); }
  at::Tensor Layer(const at::Tensor& x, int i) const { return at::linear(x, weights[static_cast<std::size_t>(i)]); }
  const Forward fn;
  Tensors weights;
};

at::Tensor Input() { return (Ramp({3, 4}) + 0.1).requires_grad_(); }

struct Outcome {
  Tensors results;
  Tensors gradients;  // of the input and the weights; undefined where there is none
};

Outcome Train(const Net& net, const std::function<Tensors(const at::Tensor&)>& call) {
  Outcome outcome;
  const at::Tensor x = Input();
  at::manual_seed(5);
  outcome.results = call(x);
  at::Tensor loss = at::zeros({});
  for (const at::Tensor& result : outcome.results) {
    if (!result.requires_grad()) continue;
    const at::Tensor real = result.is_complex() ? at::view_as_real(result.resolve_conj()) : result;
    loss = loss + (real.to(at::kFloat) * Ramp(real.sizes())).sum();
  }
  loss.backward();
  outcome.gradients.push_back(x.grad());
  for (const at::Tensor& weight : net.weights) {
    outcome.gradients.push_back(weight.grad());
    weight.mutable_grad().reset();
  }
  return outcome;
}

// `tolerance`: of gradients; 0: the same bits.
void ExpectEqual(const Outcome& got, const Outcome& want, double tolerance) {
  ASSERT_EQ(got.results.size(), want.results.size());
  for (std::size_t i = 0; i < want.results.size(); ++i) {
    SCOPED_TRACE("result " + std::to_string(i));
    const at::Tensor &a = got.results[i], &b = want.results[i];
    EXPECT_EQ(a.scalar_type(), b.scalar_type());
    EXPECT_EQ(a.requires_grad(), b.requires_grad());
    EXPECT_EQ(a.strides(), b.strides());
    EXPECT_TRUE(at::equal(a.detach(), b.detach())) << a << b;
  }
  for (std::size_t i = 0; i < want.gradients.size(); ++i) {
    SCOPED_TRACE("gradient " + std::to_string(i));
    ASSERT_EQ(got.gradients[i].defined(), want.gradients[i].defined());
    if (!want.gradients[i].defined()) continue;
    if (tolerance == 0) {
      EXPECT_THAT(got.gradients[i], TensorEq(want.gradients[i]));
    } else {
      EXPECT_THAT(got.gradients[i], AllClose(want.gradients[i], tolerance, tolerance));
    }
  }
}

std::string NodeOf(const Tensors& results) {
  for (const at::Tensor& result : results) {
    if (result.grad_fn() != nullptr) return result.grad_fn()->name();
  }
  return "";
}

// Of gradients with several parts.
constexpr double kSummedInAnotherOrder = 1e-5;

void ExpectSameAsEager(const Net::Forward& forward, double tolerance = 0) {
  const auto net = std::make_shared<Net>(forward);
  const Outcome want = Train(*net, [&](const at::Tensor& x) { return net->forward(x); });
  const auto mode = FakeTensorMode::Create();
  auto holder = net;
  auto traced = TraceForward(holder, mode, Input());
  ASSERT_THAT(traced, IsOk());
  const auto run = [](const fx::GraphModule& module, const at::Tensor& x) {
    Tensors results;
    const IValue value = CallGraphModule(module, {x});
    if (value.isTensor()) return Tensors{value.toTensor()};
    if (value.isTuple()) {
      for (const IValue& element : value.toTupleRef().elements()) results.push_back(element.toTensor());
    } else {
      for (const IValue& element : value.toListRef()) results.push_back(element.toTensor());
    }
    return results;
  };
  AotOptions standard, again;
  standard.poison_workspace = again.poison_workspace = true;
  again.partition = {PartitionKind::kMinCut, 0};
  const std::pair<const char*, CompileFn> backends[] = {
      {"eager", EagerBackend()}, {"aot_eager", AotEagerBackend(standard)}, {"aot_eager that computes all again", AotEagerBackend(again)}};
  for (const auto& [name, backend] : backends) {
    for (const bool cut : {false, true}) {
      SCOPED_TRACE(std::string(name) + (cut ? ", cut" : ", whole"));
      BucketOptions buckets;
      buckets.bucket_cap_bytes = cut ? 1 : 1 << 20;
      auto optimized = OptimizeDdp(traced->module, traced->fake_inputs, mode, backend, buckets);
      ASSERT_THAT(optimized, IsOk());
      EXPECT_EQ(optimized->assignment.buckets.size(), cut ? 4u : 1u);
      for (int step = 0; step < 2; ++step) {
        std::string node;
        const Outcome got = Train(*net, [&](const at::Tensor& x) {
          const Tensors results = run(*optimized->module, x);
          node = NodeOf(results);
          return results;
        });
        ExpectEqual(got, want, tolerance);
        // Nothing was refused.
        EXPECT_EQ(node == "AotBackward", name != std::string("eager")) << node;
      }
      EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    }
  }
}

TEST(Pieces, AutocastRegions) {
  {
    SCOPED_TRACE("within a forward");
    ExpectSameAsEager([](const Net& net, const at::Tensor& x) -> Tensors {
      at::Tensor low;
      {
        const Autocast autocast;
        low = net.Layer(net.Layer(net.Layer(x, 0), 1).tanh(), 2);
      }
      EXPECT_EQ(low.scalar_type(), at::kBFloat16);
      return {net.Layer(low.to(at::kFloat), 3), low};
    });
  }
  {
    SCOPED_TRACE("one in another that switches it off");
    ExpectSameAsEager([](const Net& net, const at::Tensor& x) -> Tensors {
      const Autocast autocast;
      at::Tensor y = net.Layer(x, 0).relu();
      {
        const Autocast off(false);
        y = net.Layer(y.to(at::kFloat), 1).sin();
        EXPECT_EQ(y.scalar_type(), at::kFloat);
      }
      const at::Tensor z = net.Layer(y, 2);
      return {at::softmax(z, 1), net.Layer(z, 3)};
    });
  }
  {
    SCOPED_TRACE("with a region without gradients");
    ExpectSameAsEager([](const Net& net, const at::Tensor& x) -> Tensors {
      const at::Tensor first = net.Layer(x, 0);
      at::Tensor seen, low;
      {
        const Autocast autocast;
        low = net.Layer(first, 1).sigmoid();
        const at::NoGradGuard no_grad;
        seen = at::linear(low, first.narrow(0, 0, 3).detach()).sum();
      }
      return {net.Layer(net.Layer(low.to(at::kFloat) * seen, 2), 3), seen};
    });
  }
  {
    // A cast of a weight is kept until the region ends; compiled, each use has its own, and the gradients are added up in float32.
    SCOPED_TRACE("a weight that is used twice");
    ExpectSameAsEager(
        [](const Net& net, const at::Tensor& x) -> Tensors {
          at::Tensor low;
          {
            const Autocast autocast;
            low = net.Layer(net.Layer(net.Layer(net.Layer(x, 0), 1).tanh(), 2), 0);
          }
          return {net.Layer(low.to(at::kFloat), 3)};
        },
        3e-2);
  }
}

TEST(Pieces, IntegersAndBools) {
  ExpectSameAsEager([](const Net& net, const at::Tensor& x) -> Tensors {
    const at::Tensor y = net.Layer(x, 0);
    const at::Tensor best = y.argmax(1), positive = y > 0;  // from one piece to later ones
    const at::Tensor z = at::where(positive, net.Layer(y, 1), -y) + at::embedding(net.weights[2], best);
    const auto [sorted, order] = z.sort(1);
    return {net.Layer(sorted, 3), order, best.to(at::kInt), positive.logical_not(), (z > 0.5).sum()};
  });
  // A piece all of whose results are integers, and one whose results are masks for a dropout in the next.
  ExpectSameAsEager([](const Net& net, const at::Tensor& x) -> Tensors {
    const at::Tensor order = std::get<1>(net.Layer(x, 0).sort(1)), mask = net.Layer(x.detach(), 1) > at::rand({3, 4});
    return {net.Layer(net.Layer(x.gather(1, order), 2) * mask, 3), order, mask, order == order.flip({0})};
  });
}

TEST(Pieces, ComplexValues) {
  ExpectSameAsEager([](const Net& net, const at::Tensor& x) -> Tensors {
    const at::Tensor wave = at::complex(net.Layer(x, 0), net.Layer(x, 1));
    const at::Tensor turned = wave * wave.conj() + at::view_as_complex(x.view({3, 2, 2})).repeat({1, 2}).exp();
    return {net.Layer(at::real(turned) + turned.abs(), 2), turned, net.Layer(at::imag(turned), 3)};
  });
  ExpectSameAsEager([](const Net& net, const at::Tensor& x) -> Tensors {
    const at::Tensor spectrum = at::fft_rfft(net.Layer(x, 0));
    const at::Tensor filtered = spectrum * at::fft_rfft(net.Layer(x, 1));
    return {at::fft_irfft(filtered, 4) + net.Layer(x, 2), spectrum,
            net.Layer(at::view_as_real(filtered).sum(2).repeat({1, 2}).narrow(1, 0, 4), 3)};
  });
}

// Complex numbers seen as their parts, and the other way round, by other pieces and beside each other.
TEST(Pieces, ViewsOfComplexNumbersAndOfTheirParts) {
  ExpectSameAsEager(
      [](const Net& net, const at::Tensor& x) -> Tensors {
        const at::Tensor y = net.Layer(x, 0), pairs = at::view_as_complex(y.view({3, 2, 2}));
        const at::Tensor z = net.Layer(at::view_as_real(pairs * 2).view({3, 4}), 1);
        const at::Tensor wave = at::complex(z, net.Layer(z, 2));
        return {net.Layer(z, 3),   y, pairs, at::view_as_complex(x.view({3, 2, 2})), wave, wave.conj(), at::view_as_real(wave),
                at::real(wave).t()};
      },
      kSummedInAnotherOrder);
}

// Gradients that no differentiation of the forward would give.
struct Scaled : Function<Scaled> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w, double factor) {
    ctx->save_for_backward({x, w});
    ctx->saved_data["factor"] = factor;
    return at::mm(x, w.t()).sin();
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const tensor_list saved = ctx->get_saved_variables();
    const double factor = ctx->saved_data["factor"].toDouble();
    return {at::mm(grads[0], saved[1]) * factor, at::mm(grads[0].t(), saved[0].exp()), at::Tensor()};
  }
};

struct SplitsSigns : Function<SplitsSigns> {
  static tensor_list forward(AutogradContext* ctx, const at::Tensor& x) {
    const at::Tensor positive = x > 0;
    ctx->mark_non_differentiable({positive});
    ctx->saved_data["positive"] = positive;
    return {x.abs(), positive};
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    return {at::where(ctx->saved_data["positive"].toTensor(), grads[0] * 2, grads[0] * -3)};
  }
};

TEST(Pieces, CustomFunctions) {
  // Each has a weight of its own: borders lie between them, and between what a forward computes and the call that gives it its history.
  ExpectSameAsEager([](const Net& net, const at::Tensor& x) -> Tensors {
    at::Tensor y = x;
    for (int i = 0; i < 4; ++i) y = Scaled::apply(y, net.weights[static_cast<std::size_t>(i)], 1.5 + i);
    return {y};
  });
  // Its parts, and what it saved, are used on the other side of a border; one without gradients among them.
  ExpectSameAsEager([](const Net& net, const at::Tensor& x) -> Tensors {
    const at::Tensor y = net.Layer(x, 0);
    const tensor_list parts = SplitsSigns::apply(y);
    const at::Tensor z = Scaled::apply(net.Layer(parts[0], 1), net.weights[2], 0.5) * parts[1];
    return {net.Layer(z + y, 3), parts[1], parts[0]};
  });
  // Views of such an output.
  ExpectSameAsEager([](const Net& net, const at::Tensor& x) -> Tensors {
    const at::Tensor y = Scaled::apply(x, net.weights[0], 2.0), z = Scaled::apply(y, net.weights[1], 0.5);
    return {Scaled::apply(z.narrow(0, 1, 2), net.weights[2], 3.0), z.view({4, 3}), net.Layer(z.t().reshape({3, 4}), 3), y};
  });
  ExpectSameAsEager([](const Net& net, const at::Tensor& x) -> Tensors {
    at::Tensor low, seen;
    {
      const Autocast autocast;
      low = SplitsSigns::apply(net.Layer(net.Layer(x, 0), 1))[0];
      const at::NoGradGuard no_grad;
      seen = Scaled::apply(x, x, 2.0).sum();
    }
    return {net.Layer(Scaled::apply(low.to(at::kFloat), net.weights[2], 3.0) * seen, 3), low};
  });
}

}  // namespace
}  // namespace ddpopt
