// Operators that read numbers from a tensor: of their values, only the kind has a say in the result.

#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/_foreach_addcdiv.h"
#include "ATen/ops/_foreach_addcmul.h"
#include "ATen/ops/randint_like.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/dtypes.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Scalar;
using at::Tensor;
using at::TensorList;

std::vector<Scalar> Numbers(const Tensor& scalars, std::size_t wanted) {
  TORCH_CHECK(scalars.is_contiguous() && scalars.dim() == 1 && scalars.size(0) == static_cast<int64_t>(wanted), "a foreach operator over ",
              wanted, " tensors wants as many scalars in a contiguous vector, not shape ", scalars.sizes());
  RequireDtype("a foreach operator", scalars.scalar_type(), kRealDtypes | kComplexDtypes | kBoolDtype | Dtypes{at::kComplexHalf});
  const Scalar number = scalars.is_complex()                 ? Scalar(c10::complex<double>(1, 0))
                        : scalars.is_floating_point()        ? Scalar(1.0)
                        : scalars.scalar_type() == at::kBool ? Scalar(true)
                                                             : Scalar(1);
  return std::vector<Scalar>(wanted, number);
}

std::vector<Tensor> Addcmul(TensorList self, TensorList tensor1, TensorList tensor2, const Tensor& scalars) {
  return at::_foreach_addcmul(self, tensor1, tensor2, Numbers(scalars, self.size()));
}
void AddcmulInPlace(TensorList self, TensorList tensor1, TensorList tensor2, const Tensor& scalars) {
  at::_foreach_addcmul_(self, tensor1, tensor2, Numbers(scalars, self.size()));
}
std::vector<Tensor> Addcdiv(TensorList self, TensorList tensor1, TensorList tensor2, const Tensor& scalars) {
  return at::_foreach_addcdiv(self, tensor1, tensor2, Numbers(scalars, self.size()));
}
void AddcdivInPlace(TensorList self, TensorList tensor1, TensorList tensor2, const Tensor& scalars) {
  at::_foreach_addcdiv_(self, tensor1, tensor2, Numbers(scalars, self.size()));
}

using Dtype = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Device = std::optional<at::Device>;
using Pin = std::optional<bool>;
using Format = std::optional<at::MemoryFormat>;

Tensor RandintLike(const Tensor& self, const Tensor& high, Dtype dtype, Layout layout, Device /*device*/, Pin /*pin*/, Format format) {
  TORCH_CHECK(high.dim() == 0, "randint_like: a limit without dimensions is wanted, not one of shape ", high.sizes());
  return at::randint_like(self, 1, dtype, layout, c10::Device(c10::kMeta), std::nullopt, format);
}
Tensor RandintLikeGenerator(const Tensor& self, const Tensor& high, std::optional<at::Generator> /*generator*/, Dtype dtype, Layout layout,
                            Device device, Pin pin, Format format) {
  return RandintLike(self, high, dtype, layout, device, pin, format);
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl_if_present("_foreach_addcmul.Tensor", Addcmul, kThisForm);
  m.impl_if_present("_foreach_addcmul_.Tensor", AddcmulInPlace, kThisForm);
  m.impl_if_present("_foreach_addcdiv.Tensor", Addcdiv, kThisForm);
  m.impl_if_present("_foreach_addcdiv_.Tensor", AddcdivInPlace, kThisForm);
  m.impl_if_present("randint_like.Tensor", RandintLike, kThisForm);
  m.impl_if_present("randint_like.Tensor_generator", RandintLikeGenerator, kThisForm);
}

}  // namespace
}  // namespace ddpopt::kernels
