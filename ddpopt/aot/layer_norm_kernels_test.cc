#include "ddpopt/aot/layer_norm_kernels.h"

#include <tuple>

#include "ATen/ops/empty.h"
#include "ATen/ops/native_layer_norm.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/matchers.h"
#include "testing/tensors.h"
#include "torch/headeronly/version.h"

namespace ddpopt {
namespace {

using testing::Ramp;
using testing::TensorEq;

TEST(LayerNormKernels, AreThoseOfTheOperator) {
#ifdef __x86_64__
  // All versions that the build takes.
  ASSERT_TRUE(HasLayerNormKernels()) << TORCH_VERSION;
#endif
  if (!HasLayerNormKernels()) GTEST_SKIP() << "not known for " << TORCH_VERSION << " on this processor";
  const at::Tensor x = Ramp({5, 37}), weight = Ramp({37}).exp(), bias = Ramp({37}).cos();
  at::Tensor out = at::empty({5, 37}), mean = at::empty({5, 1}), rstd = at::empty({5, 1});
  LayerNormInto(x, weight, bias, 5, 37, 1e-5, &out, &mean, &rstd);
  const auto [want, want_mean, want_rstd] = at::native_layer_norm(x, {37}, weight, bias, 1e-5);
  EXPECT_THAT(out, TensorEq(want));
  EXPECT_THAT(mean, TensorEq(want_mean));
  EXPECT_THAT(rstd, TensorEq(want_rstd));
}

}  // namespace
}  // namespace ddpopt
