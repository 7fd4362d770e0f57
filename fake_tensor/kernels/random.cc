// Random numbers. What the CPU kernels check before they draw is in LibTorch's templates; they run here with nothing to draw with.

#define AT_PER_OPERATOR_HEADERS

#include <optional>
#include <tuple>
#include <vector>

#include "ATen/ExpandUtils.h"
#include "ATen/MemoryOverlap.h"
#include "ATen/TensorIterator.h"
#include "ATen/core/Tensor.h"
#include "ATen/native/DistributionTemplates.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/mul.h"
#include "ATen/ops/resize.h"
#include "ATen/ops/sum.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/dtypes.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Generator;
using at::Tensor;
using at::TensorIteratorConfig;
using MaybeGenerator = std::optional<Generator>;
namespace templates = at::native::templates;

template <typename Rng>
struct NoKernel {
  template <typename... Args>
  void operator()(Args&&... /*args*/) const {}
};

// The CPU's kernel of bernoulli with a probability for each element.
template <typename Rng>
struct BernoulliTensorKernel {
  void operator()(const Tensor& self, const Tensor& p, const MaybeGenerator& /*generator*/) const {
    TORCH_CHECK(p.is_floating_point(), "bernoulli: probabilities must be floating-point numbers, not ", p.scalar_type());
    const c10::MaybeOwned<Tensor> expanded = at::expand_inplace(self, p, "bernoulli_");
    TensorIteratorConfig().add_output(self).add_const_input(*expanded).check_all_same_dtype(false).build();
    RequireDtype("bernoulli_", self.scalar_type(), kRealDtypes | kBoolDtype);
  }
};

template <typename Rng>
struct NormalKernel {
  void operator()(const Tensor& self, double /*mean*/, double /*std*/, const MaybeGenerator& /*generator*/) const {
    RequireDtype("normal_", self.scalar_type(), kFloatDtypes);
    at::TensorIterator::borrowing_nullary_op(self);
  }
};

// Kernels on an iterator.
template <typename Rng>
struct LogNormalKernel {
  void operator()(const at::TensorIterator& iter, double /*mean*/, double /*std*/, const MaybeGenerator& /*generator*/) const {
    RequireDtype("log_normal_", iter.dtype(), kFloatDtypes);
  }
};

template <typename Rng>
struct GeometricKernel {
  void operator()(const at::TensorIterator& iter, double /*p*/, const MaybeGenerator& /*generator*/) const {
    RequireDtype("geometric_", iter.dtype(), kRealDtypes);
  }
};

template <typename Rng>
struct RandomKernel {
  void operator()(const at::TensorIterator& iter, const MaybeGenerator& /*generator*/) const {
    RequireDtype("random_", iter.dtype(), kRealDtypes | kBoolDtype);
  }
};

template <typename Rng>
struct BernoulliKernel {
  void operator()(const Tensor& self, double /*p*/, const MaybeGenerator& /*generator*/) const {
    RequireDtype("bernoulli_", self.scalar_type(), kRealDtypes | kBoolDtype);
  }
};

template <typename Rng>
struct ExponentialKernel {
  void operator()(const at::TensorIterator& iter, double /*lambda*/, const MaybeGenerator& /*generator*/) const {
    TORCH_CHECK(c10::isFloatingType(iter.dtype()), "exponential_: a floating-point tensor is wanted, not ", iter.dtype());
  }
};

Tensor& BernoulliOut(const Tensor& self, MaybeGenerator generator, Tensor& out) {
  return templates::bernoulli_out_impl<BernoulliTensorKernel, Generator>(out, self, std::move(generator));
}
Tensor& BernoulliTensor(Tensor& self, const Tensor& p, MaybeGenerator generator) {
  return templates::bernoulli_impl_<BernoulliTensorKernel, Generator>(self, p, std::move(generator));
}
Tensor& BernoulliFloat(Tensor& self, double p, MaybeGenerator generator) {
  return templates::bernoulli_impl_<BernoulliKernel, Generator>(self, p, std::move(generator));
}
Tensor& Uniform(Tensor& self, double from, double to, MaybeGenerator generator) {
  RequireDtype("uniform_", self.scalar_type(), kFloatDtypes | kComplexDtypes);
  return templates::uniform_impl_<NoKernel, Generator>(self, from, to, std::move(generator));
}
Tensor& Normal(Tensor& self, double mean, double std, MaybeGenerator generator) {
  return templates::normal_impl_<NormalKernel, Generator>(self, mean, std, std::move(generator));
}
Tensor& LogNormal(Tensor& self, double mean, double std, MaybeGenerator generator) {
  return templates::log_normal_impl_<LogNormalKernel, Generator>(self, mean, std, std::move(generator));
}
Tensor& Cauchy(Tensor& self, double median, double sigma, MaybeGenerator generator) {
  return templates::cauchy_impl_<NoKernel, Generator>(self, median, sigma, std::move(generator));
}
Tensor& Exponential(Tensor& self, double lambda, MaybeGenerator generator) {
  return templates::exponential_impl_<ExponentialKernel, Generator>(self, lambda, std::move(generator));
}
Tensor& Geometric(Tensor& self, double p, MaybeGenerator generator) {
  return templates::geometric_impl_<GeometricKernel, Generator>(self, p, std::move(generator));
}
Tensor& Random(Tensor& self, MaybeGenerator generator) {
  return templates::random_impl<RandomKernel, Generator>(self, std::move(generator));
}
Tensor& RandomFromTo(Tensor& self, int64_t from, std::optional<int64_t> to, MaybeGenerator generator) {
  return templates::random_from_to_impl<NoKernel, Generator>(self, from, to, std::move(generator));
}
Tensor& RandomTo(Tensor& self, int64_t to, MaybeGenerator generator) { return RandomFromTo(self, 0, to, std::move(generator)); }

// Samples of the first tensor's shape; TensorIterator checks, or grows, the rest.
Tensor SampleLike(const Tensor& self, Dtypes supported, const Tensor* second = nullptr, const Tensor* third = nullptr) {
  Tensor out = EmptyContiguousLike(self);
  TensorIteratorConfig config;
  config.add_output(out).add_const_input(self);
  if (second != nullptr) config.add_const_input(*second);
  if (third != nullptr) config.add_const_input(*third);
  config.build();
  RequireDtype("a distribution", self.scalar_type(), supported);
  return out;
}
Tensor StandardGamma(const Tensor& self, MaybeGenerator /*generator*/) { return SampleLike(self, kFloatOrDouble); }
Tensor StandardGammaGrad(const Tensor& self, const Tensor& output) { return SampleLike(self, kFloatOrDouble, &output); }
Tensor DirichletGrad(const Tensor& x, const Tensor& alpha, const Tensor& total) { return SampleLike(x, kFloatOrDouble, &alpha, &total); }
Tensor SampleDirichlet(const Tensor& self, MaybeGenerator /*generator*/) { return SampleLike(self, kFloatOrDouble); }
Tensor Poisson(const Tensor& self, MaybeGenerator /*generator*/) { return SampleLike(self, kFloatDtypes); }
Tensor Binomial(const Tensor& count, const Tensor& prob, MaybeGenerator /*generator*/) { return SampleLike(count, kFloatOrDouble, &prob); }

Tensor& MultinomialOut(const Tensor& self, int64_t num_samples, bool replacement, MaybeGenerator /*generator*/, Tensor& out) {
  TORCH_CHECK(self.dim() == 1 || self.dim() == 2, "multinomial: 1 or 2 dimensions are wanted, not ", self.sizes());
  TORCH_CHECK(self.is_floating_point(), "multinomial: floating-point tensors are wanted, not ", self.scalar_type());
  TORCH_CHECK(out.scalar_type() == at::kLong, "multinomial: the result must be of dtype long, not ", out.scalar_type());
  TORCH_CHECK(num_samples > 0, "multinomial: ", num_samples, " samples");
  const int64_t categories = self.size(-1);
  TORCH_CHECK(replacement || num_samples <= categories, "multinomial: ", num_samples, " samples without replacement of ", categories);
  TORCH_CHECK(categories <= int64_t{1} << 24, "multinomial: more than 2^24 categories");
  if (self.dim() == 1) {
    out.resize_({num_samples});
  } else {
    out.resize_({self.size(0), num_samples});
  }
  TORCH_CHECK(out.numel() == 0 || categories > 0, "multinomial: there are no categories");
  // The largest of random numbers; several are copied.
  if (!replacement && num_samples > 1 && out.numel() != 0) at::assert_no_internal_overlap(out);
  return out;
}
Tensor Multinomial(const Tensor& self, int64_t num_samples, bool replacement, MaybeGenerator generator) {
  Tensor out = Empty({0}, self.options().dtype(at::kLong));
  return MultinomialOut(self, num_samples, replacement, std::move(generator), out);
}

std::tuple<Tensor, Tensor> NativeDropout(const Tensor& input, double p, std::optional<bool> train) {
  if (input.numel() == 0) return {input, at::empty_like(input)};
  Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  if (!train.value_or(true)) return {input.clone(), mask};
  BernoulliFloat(mask, 1 - p, std::nullopt);
  return {at::mul(input, mask).mul_(p == 1 ? 0 : 1 / (1 - p)), mask};
}
Tensor NativeDropoutBackward(const Tensor& grad, const Tensor& mask, double scale) { return at::mul(at::mul(grad, mask), scale); }

// Stateless generation from a key: pairs of seed and offset in the last dimension.
void CheckPhiloxKey(const Tensor& key) {
  TORCH_CHECK(key.dim() >= 1 && key.size(-1) == 2, "philox: a key has shape (…, 2), not ", key.sizes());
  TORCH_CHECK(key.scalar_type() == at::kUInt64, "philox: a key is of dtype uint64, not ", key.scalar_type());
}
Tensor PhiloxKeySplit(const Tensor& key, int64_t num_splits) {
  CheckPhiloxKey(key);
  TORCH_CHECK(num_splits > 0, "philox: ", num_splits, " splits");
  std::vector<int64_t> sizes = key.sizes().vec();
  sizes.insert(sizes.begin(), num_splits);
  return Empty(sizes, key.options());
}
Tensor PhiloxKeyFoldIn(const Tensor& key, int64_t /*data*/) {
  CheckPhiloxKey(key);
  return EmptyContiguousLike(key);
}
void CheckPhiloxTarget(const Tensor& self, const Tensor& key) {
  CheckPhiloxKey(key);
  if (key.dim() == 1) return;
  TORCH_CHECK(key.dim() == self.dim() + 1 && at::is_expandable_to(key.sizes().slice(0, self.dim()), self.sizes()), "philox: keys of shape ",
              key.sizes(), " for a tensor of shape ", self.sizes());
}
Tensor& PhiloxReal(Tensor& self, const Tensor& key, double /*first*/, double /*second*/) {
  TORCH_CHECK(self.is_floating_point(), "philox: a floating-point tensor is wanted, not ", self.scalar_type());
  CheckPhiloxTarget(self, key);
  return self;
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("bernoulli.out", BernoulliOut, kThisForm);
  m.impl("bernoulli_.Tensor", BernoulliTensor, kNestedToo);
  m.impl("bernoulli_.float", BernoulliFloat, kNestedToo);
  m.impl("uniform_", Uniform, kNestedToo);
  m.impl("normal_", Normal, kNestedToo);
  m.impl("log_normal_", LogNormal, kNestedToo);
  m.impl("cauchy_", Cauchy, kNestedToo);
  m.impl("exponential_", Exponential, kNestedToo);
  m.impl("geometric_", Geometric, kNestedToo);
  m.impl("random_", Random, kNestedToo);
  m.impl("random_.from", RandomFromTo, kNestedToo);
  m.impl("random_.to", RandomTo, kNestedToo);
  m.impl("_standard_gamma", StandardGamma, kThisForm);
  m.impl("_standard_gamma_grad", StandardGammaGrad, kThisForm);
  m.impl("_dirichlet_grad", DirichletGrad, kThisForm);
  m.impl("_sample_dirichlet", SampleDirichlet, kThisForm);
  m.impl("poisson", Poisson, kThisForm);
  m.impl("binomial", Binomial, kThisForm);
  m.impl("multinomial", Multinomial, kThisForm);
  m.impl("multinomial.out", MultinomialOut, kThisForm);
  m.impl("native_dropout", NativeDropout, kThisForm);
  m.impl("native_dropout_backward", NativeDropoutBackward, kThisForm);
  m.impl_if_present("_philox_key_split", PhiloxKeySplit, kThisForm);
  m.impl_if_present("_philox_key_fold_in", PhiloxKeyFoldIn, kThisForm);
  m.impl_if_present("_philox_uniform_", PhiloxReal, kNestedToo);
  m.impl_if_present("_philox_normal_", PhiloxReal, kNestedToo);
}

}  // namespace
}  // namespace ddpopt::kernels
