#include "fake_tensor/fake_cuda.h"

#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Context.h"
#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "ATen/autocast_mode.h"
#include "base/status.h"
#include "fake_tensor/fake_errors.h"
#include "fake_tensor/fake_kernel.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/modules/rnn.h"
#include "torch/optim/adam.h"

namespace ddpopt {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

const at::Device kCuda0(at::kCUDA, 0);

class FakeCudaTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { EnableFakeCuda(); }
  const std::shared_ptr<FakeTensorMode> mode_ = FakeTensorMode::Create();
};

TEST_F(FakeCudaTest, TheProcessHasCuda) {
  EXPECT_TRUE(at::hasCUDA());
  EnableFakeCuda();
  at::manual_seed(1);
}

TEST_F(FakeCudaTest, CudaIsCudaZero) {
  ModeGuard guard(mode_);
  EXPECT_EQ(at::ones({2}, at::Device(at::kCUDA)).device(), kCuda0);
  EXPECT_EQ(at::ones({2}).to(at::kCUDA).device(), kCuda0);
  EXPECT_EQ(at::ones({2}).cuda().device(), kCuda0);
  EXPECT_TRUE(at::ones({2}).cuda().is_cuda());
  EXPECT_EQ(at::ones({2}).cuda().cpu().device(), at::Device(at::kCPU));
  EXPECT_EQ((at::ones({2}, at::Device(at::kCUDA)) + at::ones({2}, kCuda0)).device(), kCuda0);
  EXPECT_EQ(at::ones({2}).cuda().new_zeros({3}).device(), kCuda0);
}

TEST_F(FakeCudaTest, ForwardAndBackward) {
  ModeGuard guard(mode_);
  const auto options = at::TensorOptions().device(at::kCUDA);
  const Tensor w1 = at::randn({8, 4}, options).requires_grad_();
  const Tensor w2 = at::randn({3, 8}, options).requires_grad_();
  const Tensor x = at::randn({5, 4}, options);
  for (int step = 0; step < 2; ++step) {
    Tensor h = at::gelu(at::linear(x, w1));
    // select's backward makes its zeros on autograd's own thread.
    const Tensor loss =
        at::cross_entropy_loss(at::linear(h, w2), at::ones({5}, options.dtype(at::kLong))) + h.select(0, 1).sum() + h.slice(0, 1, 3).mean();
    EXPECT_EQ(loss.device(), kCuda0);
    loss.backward();
  }
  for (const Tensor& w : {w1, w2}) {
    ASSERT_TRUE(w.grad().defined());
    EXPECT_TRUE(IsFake(w.grad()));
    EXPECT_EQ(w.grad().device(), kCuda0);
    EXPECT_EQ(w.grad().sizes(), w.sizes());
  }
}

// A model over several devices, in one pass backward.
TEST_F(FakeCudaTest, SeveralDevices) {
  ModeGuard guard(mode_);
  const Tensor x = at::ones({2, 4});
  std::vector<Tensor> weights;
  for (const c10::DeviceIndex index : {0, 1, 7}) {
    weights.push_back(at::ones({4, 4}, at::Device(at::kCUDA, index)).requires_grad_());
  }
  for (int step = 0; step < 2; ++step) {
    Tensor h = x;
    for (const Tensor& w : weights) h = at::gelu(at::linear(h.to(w.device()), w)).slice(0, 0, 1);
    EXPECT_EQ(h.device(), at::Device(at::kCUDA, 7));
    h.cpu().sum().backward();
    for (const Tensor& w : weights) {
      ASSERT_TRUE(w.grad().defined());
      EXPECT_EQ(w.grad().device(), w.device());
      EXPECT_EQ(ModeOf(w.grad()), mode_.get());
    }
  }
  EXPECT_THROW(at::mm(weights[0], weights[1]), FakeDeviceMismatch);
  EXPECT_EQ(at::ones({1}, at::Device(at::kCUDA)).device(), kCuda0) << "the thread's device is what it was";
  for (int pass = 0; pass < 2; ++pass) {
    try {
      at::ones({2}).to(at::Device(at::kCUDA, 8));
      FAIL();
    } catch (const c10::Error& error) {
      EXPECT_THAT(ExceptionMessage(error), ::testing::AllOf(HasSubstr("there is no cuda:8"), HasSubstr("cuda:7")));
    }
    EXPECT_THROW(at::ones({2}, at::Device(at::kCUDA, 8)), c10::Error);
  }
}

// Kernels draw from a generator of their own device, also where the cache has the answer of another.
TEST_F(FakeCudaTest, GeneratorsOfOtherDevices) {
  struct CudaGenerator final : c10::GeneratorImpl {
    CudaGenerator() : GeneratorImpl(kCuda0, c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}
    void set_current_seed(uint64_t /*seed*/) override {}
    void set_offset(uint64_t /*offset*/) override {}
    uint64_t get_offset() const override { return 0; }
    uint64_t current_seed() const override { return 0; }
    uint64_t seed() override { return 0; }
    void set_state(const c10::TensorImpl& /*state*/) override {}
    c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return nullptr; }
    c10::GeneratorImpl* clone_impl() const override { return new CudaGenerator(); }
  };
  const at::Generator cuda = at::make_generator<CudaGenerator>(), cpu = at::make_generator<at::CPUGeneratorImpl>(1);
  const std::pair<const char*, void (*)(const Tensor&, const at::Generator&)> draws[] = {
      {"normal_", [](const Tensor& x, const at::Generator& g) { x.normal_(0, 1, g); }},
      {"bernoulli", [](const Tensor& x, const at::Generator& g) { at::bernoulli(x, g); }},
      {"multinomial", [](const Tensor& x, const at::Generator& g) { at::multinomial(x, 1, true, g); }},
      {"poisson", [](const Tensor& x, const at::Generator& g) { at::poisson(x, g); }},
      {"rand", [](const Tensor& x, const at::Generator& g) { at::rand({2}, g, x.options()); }},
      {"randn", [](const Tensor& x, const at::Generator& g) { at::randn({2}, g, x.options()); }},
      {"randint", [](const Tensor& x, const at::Generator& g) { at::randint(0, 5, {2}, g, x.options()); }},
      {"randperm", [](const Tensor& x, const at::Generator& g) { at::randperm(5, g, x.options()); }},
  };
  ModeGuard guard(mode_);
  for (const auto& [name, draw] : draws) {
    for (int pass = 0; pass < 2; ++pass) {
      draw(at::ones({2}), cpu);
      draw(at::ones({2}), at::Generator());
      draw(at::ones({2}, kCuda0), cuda);
      for (const bool on_cuda : {false, true}) {
        try {
          draw(at::ones({2}, on_cuda ? kCuda0 : at::Device(at::kCPU)), on_cuda ? cpu : cuda);
          ADD_FAILURE() << name;
        } catch (const c10::Error& error) {
          EXPECT_THAT(ExceptionMessage(error), HasSubstr(on_cuda ? "Expected a 'cuda' device type for generator but found 'cpu'"
                                                                 : "Expected a 'cpu' device type for generator but found 'cuda'"))
              << name;
        }
      }
    }
  }
}

TEST_F(FakeCudaTest, EqualIsForOneDevice) {
  ModeGuard guard(mode_);
  EXPECT_THROW(at::equal(at::ones({2}, kCuda0), at::ones({3})), FakeDeviceMismatch);
  EXPECT_THROW(at::equal(at::ones({2}, kCuda0), at::ones({})), FakeDeviceMismatch);
}

TEST_F(FakeCudaTest, ConvolutionAndNorms) {
  ModeGuard guard(mode_);
  const auto options = at::TensorOptions().device(at::kCUDA);
  const Tensor w = at::randn({4, 3, 3, 3}, options).requires_grad_();
  const Tensor y = at::conv2d(at::randn({2, 3, 8, 8}, options), w, {}, 1, 1);
  const Tensor z = at::layer_norm(at::max_pool2d(at::relu(y), 2), {4, 4}).sum();
  const auto grads = torch::autograd::grad({z}, {w});
  EXPECT_EQ(grads[0].device(), kCuda0);
  EXPECT_EQ(grads[0].sizes(), w.sizes());
}

// Cells for which CUDA has kernels of its own.
TEST_F(FakeCudaTest, RecurrentLayers) {
  ModeGuard guard(mode_);
  const auto train = [](torch::nn::Module& module, const std::function<Tensor()>& forward, at::IntArrayRef sizes) {
    module.to(kCuda0);
    for (int step = 0; step < 2; ++step) {
      const Tensor y = forward();
      EXPECT_EQ(y.sizes(), sizes);
      EXPECT_EQ(y.device(), kCuda0);
      y.sum().backward();
    }
    for (const Tensor& p : module.parameters()) {
      ASSERT_TRUE(p.grad().defined());
      EXPECT_EQ(p.grad().sizes(), p.sizes());
      EXPECT_EQ(p.grad().device(), kCuda0);
    }
  };
  const Tensor steps = at::ones({5, 2, 3}, kCuda0), x = at::ones({2, 3}, kCuda0);
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(3, 4).num_layers(2).bidirectional(true).dropout(0.1));
  train(*lstm, [&] { return std::get<0>(lstm->forward(steps)); }, {5, 2, 8});
  torch::nn::LSTM projected(torch::nn::LSTMOptions(3, 4).proj_size(2).bias(false));
  train(*projected, [&] { return std::get<0>(projected->forward(steps)); }, {5, 2, 2});
  torch::nn::GRU gru(torch::nn::GRUOptions(3, 4).batch_first(true));
  train(*gru, [&] { return std::get<0>(gru->forward(steps)); }, {5, 2, 4});
  torch::nn::GRU unbiased(torch::nn::GRUOptions(3, 4).bias(false));
  train(*unbiased, [&] { return std::get<0>(unbiased->forward(steps)); }, {5, 2, 4});
  torch::nn::LSTMCell lstm_cell(3, 4);
  train(*lstm_cell, [&] { return std::get<1>(lstm_cell->forward(x)); }, {2, 4});
  torch::nn::GRUCell gru_cell(3, 4);
  train(*gru_cell, [&] { return gru_cell->forward(x); }, {2, 4});

  const auto [hy, cy, workspace] =
      at::_thnn_fused_lstm_cell(at::ones({2, 16}, kCuda0), at::ones({2, 16}, kCuda0), at::ones({4, 2}, kCuda0).t());
  EXPECT_TRUE(hy.is_contiguous() && cy.is_contiguous());
  EXPECT_EQ(workspace.sizes(), at::IntArrayRef({2, 16}));
  EXPECT_THROW(at::_thnn_fused_lstm_cell(at::ones({2, 16}, kCuda0), at::ones({2, 16}, kCuda0), at::ones({2, 5}, kCuda0)), c10::Error);
  EXPECT_THROW(at::_thnn_fused_gru_cell(at::ones({2, 12}), at::ones({2, 12}), at::ones({2, 4})), c10::Error) << "as on the real CPU";
}

// LibTorch asks first whether other libraries take the loss.
TEST_F(FakeCudaTest, CtcLossIsRefusedAsOnTheCpu) {
  ModeGuard guard(mode_);
  for (const at::Device device : {kCuda0, at::Device(at::kCPU)}) {
    const Tensor log_probs = at::ones({5, 2, 4}, device);
    const Tensor targets = at::ones({2, 3}, at::TensorOptions(device).dtype(at::kLong));
    EXPECT_THROW(at::ctc_loss(log_probs, targets, at::IntArrayRef{5, 5}, at::IntArrayRef{3, 3}), DynamicOutputShape) << device;
  }
}

TEST_F(FakeCudaTest, ModulesMove) {
  ModeGuard guard(mode_);
  torch::nn::Linear net(4, 3);
  net->to(at::Device(at::kCUDA));
  EXPECT_EQ(net->weight.device(), kCuda0);
  EXPECT_TRUE(net->weight.requires_grad() && net->weight.is_leaf());
  EXPECT_EQ(net->parameters()[0].device(), kCuda0);
  const Tensor y = net->forward(at::ones({2, 4}, kCuda0));
  EXPECT_EQ(y.device(), kCuda0);
  y.sum().backward();
  EXPECT_EQ(net->weight.grad().device(), kCuda0);
  net->to(at::kHalf);
  EXPECT_EQ(net->bias.scalar_type(), at::kHalf);
}

// A tied parameter, a buffer, a gradient and an optimizer from before.
TEST_F(FakeCudaTest, ModulesMoveWithTiesAndOptimizers) {
  struct Net : torch::nn::Module {
    Net() {
      first = register_parameter("first", at::randn({4, 4}));
      second = register_parameter("second", first);
      shift = register_buffer("shift", at::ones({4}));
    }
    Tensor forward(const Tensor& x) { return at::linear(at::linear(x, first), second) + shift; }
    Tensor first, second, shift;
  };
  ModeGuard guard(mode_);
  Net net;
  torch::optim::Adam optimizer(net.parameters());
  const auto step = [&](at::Device device) {
    net.forward(at::ones({2, 4}, device)).sum().backward();
    optimizer.step();
  };
  step(at::Device(at::kCPU));
  const Tensor before = net.first;
  net.to(kCuda0);
  EXPECT_TRUE(net.first.is_same(before) && net.second.is_same(before)) << "the same tensors, elsewhere";
  EXPECT_EQ(net.first.device(), kCuda0);
  EXPECT_EQ(net.shift.device(), kCuda0);
  EXPECT_TRUE(net.first.requires_grad() && net.first.is_leaf());
  EXPECT_EQ(net.first.grad().device(), at::Device(at::kCPU)) << "set_data leaves the gradient where it was, as on real tensors";
  EXPECT_THROW(step(kCuda0), c10::Error) << "gradients on two devices";
  net.zero_grad();
  // The optimizer's own state is where it was: as with real tensors, it has to be made after the move.
  EXPECT_THROW(step(kCuda0), c10::Error);
  torch::optim::Adam anew(net.parameters());
  net.zero_grad();
  net.forward(at::ones({2, 4}, kCuda0)).sum().backward();
  anew.step();
  EXPECT_EQ(net.second.grad().device(), kCuda0);
  EXPECT_TRUE(net.first.grad().is_same(net.second.grad()));
  net.to(at::Device(at::kCPU), at::kDouble);
  EXPECT_EQ(before.device(), at::Device(at::kCPU));
  EXPECT_EQ(net.second.scalar_type(), at::kDouble);
}

// Backward passes run on autograd's own thread, where no mode is pushed. One inside the other, and tensors that formulas make of nothing,
// after the inner one too.
struct Reentrant : torch::autograd::Function<Reentrant> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list grads) {
    const at::AutoGradMode with_grad(true);
    const Tensor first = at::zeros({3, 2}, grads[0].options());
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const Tensor inner = torch::autograd::grad({at::gelu(x).select(0, 1).sum()}, {x})[0];
    return {grads[0] + inner + first + at::zeros(x.sizes(), x.options())};
  }
};

TEST_F(FakeCudaTest, BackwardInsideBackward) {
  const auto other = FakeTensorMode::Create();
  for (const auto& mode : {mode_, other, mode_}) {
    ModeGuard guard(mode);
    const Tensor x = at::ones({3, 2}, kCuda0).requires_grad_();
    for (int step = 0; step < 2; ++step) {
      (Reentrant::apply(Reentrant::apply(x)) * 3).sum().backward();
      EXPECT_EQ(ModeOf(x.grad()), mode.get());
      EXPECT_EQ(x.grad().device(), kCuda0);
    }
  }
}

TEST_F(FakeCudaTest, AutocastGoesByTheFakeDevice) {
  ModeGuard guard(mode_);
  const Tensor cpu = at::randn({4, 4});
  const Tensor cuda = cpu.cuda();
  at::autocast::set_autocast_enabled(at::kCUDA, true);
  at::autocast::set_autocast_dtype(at::kCUDA, at::kHalf);
  at::autocast::set_autocast_cache_enabled(false);
  // The second time from the operators' cache.
  const auto product = [&](const Tensor& x) {
    const at::ScalarType first = at::mm(x, x).scalar_type();
    const int64_t hits = mode_->CacheInfo().hits;
    EXPECT_EQ(at::mm(x, x).scalar_type(), first);
    EXPECT_GT(mode_->CacheInfo().hits, hits);
    return first;
  };
  EXPECT_EQ(product(cuda), at::kHalf);
  EXPECT_EQ(product(cpu), at::kFloat);
  at::autocast::set_autocast_enabled(at::kCUDA, false);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  EXPECT_EQ(product(cuda), at::kFloat);
  EXPECT_EQ(product(cpu), at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::set_autocast_cache_enabled(true);
}

TEST_F(FakeCudaTest, RealTensorsOnItFail) { EXPECT_THROW(at::ones({2}, at::Device(at::kCUDA)), c10::Error); }

TEST_F(FakeCudaTest, DevicesThatDoNotGoTogether) {
  ModeGuard guard(mode_);
  const Tensor cpu = at::ones({2});
  const Tensor cuda = cpu.cuda();
  EXPECT_THROW(cpu + cuda, FakeDeviceMismatch);
  EXPECT_THROW(at::cat({cpu, cuda}), FakeDeviceMismatch);
  EXPECT_THROW(cpu.add_(cuda), FakeDeviceMismatch);
  EXPECT_THROW(cpu + at::scalar_tensor(1).cuda(), FakeDeviceMismatch) << "a number on CUDA doesn't go to the CPU";
  EXPECT_THROW(at::scalar_tensor(1.0).add_(cuda.sum()), FakeDeviceMismatch) << "the written tensor decides";
  EXPECT_THROW(cpu.index({at::ones({1}, cuda.options().dtype(at::kLong))}), FakeDeviceMismatch);
  try {
    at::mm(at::ones({2, 2}), at::ones({2, 2}, kCuda0));
    FAIL();
  } catch (const FakeDeviceMismatch& error) {
    EXPECT_THAT(ExceptionMessage(error), ::testing::AllOf(HasSubstr("aten::mm"), HasSubstr("mat2"), HasSubstr("cuda:0"), HasSubstr("cpu"),
                                                          HasSubstr("same device")));
  }
}

TEST_F(FakeCudaTest, DevicesThatGoTogether) {
  ModeGuard guard(mode_);
  const Tensor cpu = at::ones({3, 3});
  const Tensor cuda = cpu.cuda();
  const Tensor row = at::ones({3}).cuda();
  const Tensor number = at::scalar_tensor(2.0);
  const Tensor index = at::ones({1}, at::kLong);
  EXPECT_EQ((cuda + number).device(), kCuda0);
  EXPECT_EQ((number + cuda).device(), kCuda0);
  EXPECT_EQ(at::where(cuda > 0, cuda, number).device(), kCuda0);
  EXPECT_TRUE(cuda.add_(number).is_same(cuda));
  EXPECT_TRUE(cuda.copy_(cpu).is_same(cuda));
  EXPECT_EQ(cpu.copy_(cuda).device(), at::Device(at::kCPU));
  EXPECT_EQ(cuda.index({index}).device(), kCuda0);
  Tensor indexed = cuda;
  EXPECT_TRUE(at::index_put_(indexed, {index}, number).is_same(cuda));
  EXPECT_EQ(at::diagonal_scatter(cpu, row).device(), at::Device(at::kCPU));
  EXPECT_EQ(at::select_scatter(cuda, at::ones({3}), 0, 0).device(), kCuda0);
  EXPECT_TRUE(cuda.fill_(number).is_same(cuda));
  at::_foreach_copy_({cpu}, {cuda});
  EXPECT_EQ(cuda.to(cpu.options()).device(), at::Device(at::kCPU));
}

TEST_F(FakeCudaTest, RulesSeeTheClaimedDevice) {
  static at::Device seen(at::kCPU);
  RegisterFakeKernel("special_bessel_j1", [](const Tensor& self) {
    seen = ClaimedDevice();
    return at::empty_like(self);
  });
  ModeGuard guard(mode_);
  at::special_bessel_j1(at::ones({2}, kCuda0));
  EXPECT_EQ(seen, kCuda0);
  EXPECT_EQ(ClaimedDevice(), at::Device(at::kCPU));
}

TEST_F(FakeCudaTest, AMovedConstantIsNoLongerKnown) {
  ModeGuard guard(mode_);
  const Tensor moved = at::scalar_tensor(3).cuda();
  EXPECT_EQ(moved.device(), kCuda0);
  EXPECT_THROW(moved.item(), DataDependentOutput);
}

}  // namespace
}  // namespace ddpopt
