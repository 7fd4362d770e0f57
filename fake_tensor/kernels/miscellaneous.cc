// Operators of no family.

#include <cmath>
#include <optional>
#include <tuple>

#include "ATen/core/Tensor.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/narrow.h"
#include "ATen/ops/result_type.h"
#include "c10/core/DefaultDtype.h"
#include "c10/util/Exception.h"
#include "fake_tensor/fake_errors.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Tensor;

// A periodic window is the first part of one that is longer by one element.
Tensor Kaiser(int64_t length, bool periodic, double /*beta*/, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
              std::optional<at::Device> /*device*/, std::optional<bool> /*pin_memory*/) {
  const at::ScalarType type = dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()));
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "kaiser_window: a dense layout is wanted");
  TORCH_CHECK(at::isFloatingType(type) || at::isComplexType(type), "kaiser_window: floating-point dtypes are wanted, not ", type);
  TORCH_CHECK(length >= 0, "kaiser_window: the length must not be negative, but is ", length);
  TORCH_CHECK(length < 2 || at::isFloatingType(type), "kaiser_window: not implemented for ", type);
  const at::TensorOptions options = at::TensorOptions().dtype(type);
  if (length < 2 || !periodic) return Empty({length}, options);
  return Empty({length + 1}, options).narrow(0, 0, length);
}
Tensor KaiserPeriodic(int64_t length, bool periodic, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                      std::optional<at::Device> device, std::optional<bool> pin_memory) {
  return Kaiser(length, periodic, 12.0, dtype, layout, device, pin_memory);
}
Tensor KaiserDefault(int64_t length, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                     std::optional<at::Device> device, std::optional<bool> pin_memory) {
  return Kaiser(length, true, 12.0, dtype, layout, device, pin_memory);
}

// A token that orders assertions.
Tensor DependencyToken(std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/, std::optional<at::Device> /*device*/,
                       std::optional<bool> /*pin_memory*/, std::optional<at::MemoryFormat> /*memory_format*/) {
  return Empty({}, at::TensorOptions().dtype(dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()))));
}

void CheckSearched(c10::ScalarType dtype) {
  TORCH_CHECK(dtype != at::kBool && !at::isComplexType(dtype), "isin: there is no kernel for ", dtype);
}
// Few candidates are compared one by one, as a flat view of them in the common dtype; many are sorted.
void CheckCandidates(const Tensor& candidates, int64_t elements, c10::ScalarType common) {
  if (candidates.numel() < static_cast<int64_t>(10.0F * std::pow(static_cast<double>(elements), 0.145))) candidates.to(common).view(-1);
}
Tensor IsIn(const Tensor& elements, const Tensor& test_elements, bool /*assume_unique*/, bool /*invert*/) {
  CheckSearched(elements.scalar_type());
  CheckSearched(test_elements.scalar_type());
  if (elements.numel() != 0) CheckCandidates(test_elements, elements.numel(), at::result_type(elements, test_elements));
  return Empty(elements.sizes(), elements.options().dtype(at::kBool));
}
// Whether one number is among the elements.
Tensor IsInOfScalar(const at::Scalar& element, const Tensor& test_elements, bool /*assume_unique*/, bool /*invert*/) {
  CheckSearched(element.type());
  CheckSearched(test_elements.scalar_type());
  CheckCandidates(test_elements, 1, at::result_type(test_elements, element));
  return Empty({}, test_elements.options().dtype(at::kBool));
}

// Lengths are data, and so are the batch sizes that come of them.
std::tuple<Tensor, Tensor> PackPaddedSequence(const Tensor& input, const Tensor& lengths, bool batch_first) {
  TORCH_CHECK(input.numel() > 0 && input.dim() >= 2, "_pack_padded_sequence: nothing to pack in ", input.sizes());
  TORCH_CHECK(lengths.dim() == 1 && lengths.scalar_type() == at::kLong && lengths.size(0) == input.size(batch_first ? 0 : 1),
              "_pack_padded_sequence: a length for each sequence is wanted, not ", lengths.sizes(), " for ", input.sizes());
  fake_errors_internal::Throw<DynamicOutputShape>(
      "aten::_pack_padded_sequence: the shape of its result depends on data, which a fake tensor doesn't have");
}

constexpr FakeKernelOptions kNoOut = {.derive_out = false};
constexpr FakeKernelOptions kIsIn = {.out_dtype = FakeKernelOptions::OutDtype::kEqual,
                                     .out_strides = FakeKernelOptions::OutStrides::kContiguous};

DDPOPT_FAKE_KERNELS(m) {
  m.impl("kaiser_window", KaiserDefault, kNoOut);
  m.impl("kaiser_window.periodic", KaiserPeriodic, kNoOut);
  m.impl("kaiser_window.beta", Kaiser, kNoOut);
  m.impl_if_present("_make_dep_token", DependencyToken);
  m.impl("isin.Tensor_Tensor", IsIn, kIsIn);
  m.impl("isin.Scalar_Tensor", IsInOfScalar, kIsIn);
  m.impl("_pack_padded_sequence", PackPaddedSequence);
}

}  // namespace
}  // namespace ddpopt::kernels
