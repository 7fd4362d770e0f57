#include "fake_tensor/deferred_init.h"

#include <algorithm>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "c10/core/DefaultDtype.h"
#include "fake_tensor/fake_errors.h"
#include "fake_tensor/test_helpers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/library.h"
#include "torch/nn/init.h"
#include "torch/nn/modules/activation.h"
#include "torch/nn/modules/batchnorm.h"
#include "torch/nn/modules/container/sequential.h"
#include "torch/nn/modules/conv.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/linear.h"
#include "torch/nn/modules/normalization.h"
#include "torch/nn/modules/rnn.h"
#include "torch/nn/modules/transformer.h"
#include "torch/optim/adam.h"
#include "torch/serialize.h"
#include "torch/types.h"

namespace ddpopt {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;

using ModulePtr = std::shared_ptr<nn::Module>;

std::vector<std::pair<const char*, std::function<ModulePtr()>>> Modules() {
  return {
      {"Linear", [] { return nn::Linear(4, 3).ptr(); }},
      {"Sequential",
       [] {
         return nn::Sequential(nn::Conv2d(3, 4, 3), nn::BatchNorm2d(4), nn::ConvTranspose2d(4, 2, 2), nn::GroupNorm(1, 2), nn::Linear(4, 3))
             .ptr();
       }},
      {"Embedding", [] { return nn::Embedding(nn::EmbeddingOptions(10, 4).padding_idx(2)).ptr(); }},
      {"LSTM", [] { return nn::LSTM(nn::LSTMOptions(3, 4).num_layers(2).bidirectional(true)).ptr(); }},
      {"MultiheadAttention", [] { return nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2)).ptr(); }},
      {"Transformer", [] { return nn::Transformer(nn::TransformerOptions(8, 2).num_encoder_layers(1).num_decoder_layers(1)).ptr(); }},
      {"initialised",
       [] {
         const nn::Linear net(6, 6);
         nn::init::xavier_normal_(net->weight);
         nn::init::orthogonal_(net->weight, 2);
         nn::init::constant_(net->bias, 0.25);
         return net.ptr();
       }},
      {"sparse",
       [] {
         const nn::Linear net(6, 6);
         nn::init::sparse_(net->weight, 0.5);
         nn::init::kaiming_normal_(net->bias.view({2, 3}));
         nn::init::eye_(net->weight.slice(0, 0, 3));
         return net.ptr();
       }},
  };
}

void ExpectSame(const nn::Module& got, const nn::Module& want) {
  const auto got_all = got.named_parameters(), want_all = want.named_parameters();
  ASSERT_EQ(got_all.size(), want_all.size());
  for (const auto& item : want_all) {
    const Tensor& tensor = got_all[item.key()];
    EXPECT_FALSE(IsFake(tensor)) << item.key();
    EXPECT_TRUE(at::equal(tensor, item.value())) << item.key();
    EXPECT_EQ(tensor.strides(), item.value().strides()) << item.key();
    EXPECT_EQ(tensor.requires_grad(), item.value().requires_grad()) << item.key();
    EXPECT_TRUE(tensor.is_leaf());
  }
  for (const auto& item : want.named_buffers()) EXPECT_TRUE(at::equal(got.named_buffers()[item.key()], item.value())) << item.key();
}

TEST(DeferredInitTest, ModulesGetTheValuesOfTheirSeed) {
  for (const auto& [name, make] : Modules()) {
    SCOPED_TRACE(name);
    at::manual_seed(7);
    const ModulePtr real = make();
    const Tensor state = at::detail::getDefaultCPUGenerator().get_state();
    at::manual_seed(7);
    DeferredInit deferred;
    const ModulePtr net = deferred.Record(make);
    for (const Tensor& tensor : net->parameters()) {
      EXPECT_TRUE(deferred.IsDeferred(tensor));
      EXPECT_TRUE(tensor.requires_grad());
    }
    deferred.MaterializeModule(*net);
    ExpectSame(*net, *real);
    EXPECT_TRUE(at::equal(at::detail::getDefaultCPUGenerator().get_state(), state)) << "as many random numbers";
    for (const Tensor& tensor : net->parameters()) EXPECT_FALSE(deferred.IsDeferred(tensor));
  }
}

// One by one, in another order than that of construction.
TEST(DeferredInitTest, ParametersOneByOne) {
  for (const auto& [name, make] : Modules()) {
    SCOPED_TRACE(name);
    at::manual_seed(7);
    const ModulePtr real = make();
    at::manual_seed(7);
    DeferredInit deferred;
    const ModulePtr net = deferred.Record(make);
    std::vector<Tensor> tensors = net->parameters();
    for (const Tensor& tensor : net->buffers()) tensors.push_back(tensor);
    std::reverse(tensors.begin(), tensors.end());
    for (const Tensor& tensor : tensors) deferred.Materialize({tensor});
    ExpectSame(*net, *real);
  }
}

// What happens to a deferred module before it is made real.
TEST(DeferredInitTest, ConversionsBetween) {
  const std::vector<std::pair<const char*, std::function<void(nn::Module&)>>> conversions = {
      {"half", [](nn::Module& net) { net.to(at::kHalf); }},
      {"double and back",
       [](nn::Module& net) {
         net.to(at::kDouble);
         net.to(at::kFloat);
       }},
      {"device", [](nn::Module& net) { net.to(at::Device(at::kCPU), at::kBFloat16); }},
      {"eval", [](nn::Module& net) { net.eval(); }},
      {"frozen",
       [](nn::Module& net) {
         for (Tensor& tensor : net.parameters()) tensor.requires_grad_(false);
       }},
      {"scaled",
       [](nn::Module& net) {
         const at::NoGradGuard no_grad;
         for (Tensor& tensor : net.parameters()) tensor.mul_(3).add_(at::ones_like(tensor));
       }},
  };
  for (const bool inside : {false, true}) {
    for (const auto& [name, convert] : conversions) {
      SCOPED_TRACE(name);
      const auto make = [] { return nn::Sequential(nn::Linear(4, 3), nn::BatchNorm1d(3)).ptr(); };
      at::manual_seed(7);
      const ModulePtr real = make();
      convert(*real);
      at::manual_seed(7);
      DeferredInit deferred;
      const ModulePtr net = deferred.Record(make);
      if (inside) {
        deferred.Record([&, &convert = convert] {
          convert(*net);
          return 0;
        });
      } else if (std::string(name) == "scaled") {
        continue;  // ones_like() of a fake is a fake anywhere, but a number like 3 is none
      } else {
        convert(*net);
      }
      deferred.MaterializeModule(*net);
      ExpectSame(*net, *real);
    }
  }
}

// References from outside, tied parameters and an optimizer see the same object become real.
TEST(DeferredInitTest, OneObjectPerTensor) {
  struct Net : nn::Module {
    Net() {
      first = register_parameter("first", at::randn({4, 4}));
      second = register_parameter("second", first);
      positions = register_buffer("positions", at::arange(4, at::kFloat).unsqueeze(0));
    }
    Tensor forward(const Tensor& x) { return at::linear(at::linear(x, first), second) + positions; }
    Tensor first, second, positions;
  };
  DeferredInit deferred;
  const auto net = deferred.Record([] { return std::make_shared<Net>(); });
  const Tensor before = net->first;
  const c10::TensorImpl* impl = before.unsafeGetTensorImpl();
  const Tensor row = net->first.detach().select(0, 1);
  torch::optim::Adam optimizer(net->parameters());
  deferred.MaterializeModule(*net);
  EXPECT_FALSE(IsFake(before));
  EXPECT_EQ(net->second.unsafeGetTensorImpl(), impl);
  EXPECT_TRUE(before.is_same(net->parameters()[0]));
  EXPECT_TRUE(deferred.IsDeferred(row)) << "nobody asked for it";
  deferred.Materialize({row});
  EXPECT_EQ(row.data_ptr<float>(), before.data_ptr<float>() + 4) << "the same memory";
  EXPECT_EQ(net->positions[0][3].item<float>(), 3);

  const Tensor old = before.detach().clone();
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    net->forward(at::ones({2, 4})).sum().backward();
    optimizer.step();
  }
  EXPECT_FALSE(at::equal(before, old));
  EXPECT_TRUE(net->second.grad().is_same(net->first.grad()));
}

// What was made real is an ordinary tensor.
TEST(DeferredInitTest, RealOnesAreOrdinary) {
  DeferredInit deferred;
  nn::Linear net = deferred.Record([] { return nn::Linear(4, 3); });
  deferred.MaterializeModule(*net);
  std::stringstream stream;
  torch::save(net, stream);
  nn::Linear loaded(4, 3);
  torch::load(loaded, stream);
  ExpectSame(*loaded, *net);
  const auto copy = std::dynamic_pointer_cast<nn::LinearImpl>(net->clone());
  ExpectSame(*copy, *net);
  net->to(at::kDouble);
  EXPECT_EQ(net->weight.scalar_type(), at::kDouble);
  EXPECT_EQ(net->forward(at::ones({2, 4}, at::kDouble)).scalar_type(), at::kDouble);
  EXPECT_THAT(c10::str(net->weight), HasSubstr("CPUDoubleType"));
  EXPECT_FALSE(IsFake(net->weight.detach()));
  EXPECT_FALSE(IsFake(net->weight.variable_data()));
  EXPECT_FALSE(IsFake(net->weight.t() + 1));
  {
    const at::NoGradGuard no_grad;
    net->weight.set_data(at::zeros({3, 4}, at::kDouble));
    net->bias.set_data(net->weight.data().select(1, 0));
    EXPECT_EQ(net->weight.sum().item<double>(), 0);
  }
  const auto mode = FakeTensorMode::Create();
  EXPECT_TRUE(IsFake(mode->FromReal(net->weight)));
  net->weight.set_data(mode->FromReal(net->weight));
  EXPECT_TRUE(IsFake(net->weight)) << "and back";
}

// Other tensors than parameters, and only what is needed of them; what draws runs in its order.
TEST(DeferredInitTest, OnlyWhatIsNeededRuns) {
  const auto state = [] { return at::detail::getDefaultCPUGenerator().get_state(); };
  const Tensor before = state();
  DeferredInit deferred;
  const auto [a, b, c, d, e] = deferred.Record([] {
    const Tensor a = at::ones({3});
    const Tensor b = at::ones({3});
    const Tensor c = b + 1;
    b.mul_(5);
    const Tensor d = at::rand({3});
    const Tensor e = at::rand({3});
    return std::tuple(a, b, c, d, e);
  });
  deferred.Materialize({b});
  EXPECT_TRUE(at::equal(b, at::full({3}, 5)));
  EXPECT_TRUE(at::equal(state(), before)) << "nothing random was needed";
  deferred.Materialize({c});
  EXPECT_TRUE(at::equal(c, at::full({3}, 2))) << "of b as it was then";
  EXPECT_TRUE(deferred.IsDeferred(a));
  at::manual_seed(5);
  deferred.Materialize({e});
  deferred.Materialize({a, b, d});
  at::manual_seed(5);
  EXPECT_TRUE(at::equal(d, at::rand({3})));
  EXPECT_TRUE(at::equal(e, at::rand({3})));
}

TEST(DeferredInitTest, StateOfTheThreadIsRecorded) {
  DeferredInit deferred;
  c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
  const Tensor x = deferred.Record([] { return at::linspace(0, 1, 3) + at::full({3}, 0.5); });
  c10::set_default_dtype(caffe2::TypeMeta::Make<float>());
  deferred.Materialize({x});
  EXPECT_EQ(x.scalar_type(), at::kDouble);
  EXPECT_EQ(x[2].item<double>(), 1.5);
}

TEST(DeferredInitTest, ConstantsAndGeneratorsAreRecorded) {
  DeferredInit deferred;
  const auto own = at::make_generator<at::CPUGeneratorImpl>(3);
  const Tensor outside = at::arange(3);
  const auto [x, y] = deferred.Record([&] {
    const Tensor x = torch::detail::TensorDataContainer{1.5, 2.5}.convert_to_tensor({}) * 2;
    return std::tuple(x, at::rand({2}, own) + at::lift_fresh_copy(outside).slice(0, 1));
  });
  outside.zero_();
  deferred.Materialize({x, y});
  EXPECT_EQ(x[1].item<float>(), 5);
  const auto same = at::make_generator<at::CPUGeneratorImpl>(3);
  EXPECT_TRUE(at::equal(y, at::rand({2}, same) + at::arange(1, 3)));
}

int real_size = 2;
TORCH_LIBRARY(deferred_init_test, m) { m.def("fickle(Tensor self) -> Tensor"); }
TORCH_LIBRARY_IMPL(deferred_init_test, Meta, m) {
  m.impl("fickle", [](const Tensor& self) { return at::empty({2}, self.options()); });
}
TORCH_LIBRARY_IMPL(deferred_init_test, CPU, m) {
  m.impl("fickle", [](const Tensor& self) { return at::ones({real_size}, self.options()); });
}
Tensor Fickle(const Tensor& x) {
  return c10::Dispatcher::singleton().findSchemaOrThrow("deferred_init_test::fickle", "").typed<Tensor(const Tensor&)>().call(x);
}

TEST(DeferredInitTest, RefusalsAreNamed) {
  DeferredInit deferred;
  EXPECT_THROW(deferred.Record([] { return at::rand({3}).sum().item<float>(); }), DataDependentOutput);
  const Tensor real = at::ones({3});
  EXPECT_THROW(deferred.Record([&] { return real + 1; }), NotOurFake);

  const Tensor computed = deferred.Record([] { return at::ones({2}).requires_grad_() * 2; });
  EXPECT_THAT(ErrorOf([&] { deferred.Materialize({computed}); }), AllOf(HasSubstr("has history"), HasSubstr("Mul")));

  const Tensor foreign = FakeTensorMode::Create()->FromReal(real);
  EXPECT_THROW(deferred.Materialize({foreign}), NotOurFake);
  const Tensor converted = deferred.mode()->FromReal(real);
  EXPECT_THAT(ErrorOf([&] { deferred.Materialize({converted}); }), HasSubstr("wasn't made under Record()"));
  EXPECT_THAT(ErrorOf([&] { deferred.Materialize({converted + 1}); }),
              AllOf(HasSubstr("aten::add"), HasSubstr("wasn't made under Record()")));

  real_size = 3;
  const Tensor other = deferred.Record([] { return Fickle(at::ones({2})); });
  EXPECT_THAT(ErrorOf([&] { deferred.Materialize({other}); }), AllOf(HasSubstr("deferred_init_test::fickle"), HasSubstr("another tensor")));

  const auto [a, b] = deferred.Record([] {
    const Tensor a = at::ones({2});
    return std::pair(a, a + 1);
  });
  deferred.Materialize({a});
  a.zero_();
  EXPECT_THAT(ErrorOf([&] { deferred.Materialize({b}); }), AllOf(HasSubstr("aten::add"), HasSubstr("written to after")));

  // Through a view, when the tensor itself is gone.
  auto [gone, after] = deferred.Record([] {
    const Tensor x = at::ones({2});
    return std::pair(x, x + 1);
  });
  deferred.Materialize({gone});
  const Tensor view = gone.view({2, 1});
  gone.reset();
  view.zero_();
  EXPECT_THAT(ErrorOf([&, later = after] { deferred.Materialize({later}); }), AllOf(HasSubstr("aten::add"), HasSubstr("written to after")));

  const Tensor moved = deferred.Record([] {
    const Tensor x = at::ones({2});
    return at::ones({2}).set_(x);
  });
  EXPECT_THAT(ErrorOf([&] { moved.add_(a); }), HasSubstr("real tensor"));
  deferred.Materialize({moved});
  EXPECT_EQ(moved.sum().item<float>(), 2);
  deferred.Materialize({moved, Tensor(), real});
}

}  // namespace
}  // namespace ddpopt
