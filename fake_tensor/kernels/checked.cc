// Operators whose Meta kernels in LibTorch find the right result, but don't refuse all that the CPU kernels refuse.

#include <algorithm>
#include <cstddef>
#include <string>
#include <tuple>
#include <vector>

#include "ATen/Context.h"
#include "ATen/MemoryOverlap.h"
#include "ATen/OpMathType.h"
#include "ATen/Version.h"
#include "ATen/core/Tensor.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/stack.h"
#include "ATen/native/BinaryOps.h"
#include "ATen/native/TypeProperties.h"
#include "ATen/ops/gelu_backward.h"
#include "ATen/ops/mean.h"
#include "ATen/ops/pow.h"
#include "ATen/ops/pow_meta_dispatch.h"
#include "ATen/ops/result_type.h"
#include "ATen/ops/sort.h"
#include "c10/core/ScalarType.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/converted.h"
#include "fake_tensor/kernels/dtypes.h"
#include "fake_tensor/kernels/onednn.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Scalar;
using at::Tensor;
using torch::jit::Stack;

bool IsWritten(const c10::Argument& argument) { return argument.alias_info() != nullptr && argument.alias_info()->isWrite(); }

// A composition of other operators, which a rule for it as a Meta kernel hides.
void CallComposite(const c10::OperatorHandle& op, Stack* stack) {
  for (const c10::DispatchKey key : {c10::DispatchKey::CompositeExplicitAutogradNonFunctional, c10::DispatchKey::CompositeExplicitAutograd,
                                     c10::DispatchKey::CompositeImplicitAutograd}) {
    if (op.hasKernelForDispatchKey(key)) return op.callBoxedForDispatchKey(key, *stack);
  }
  op.callBoxed(stack);
}

struct Operands {
  std::vector<Scalar> numbers;
  std::vector<Tensor> read;
  std::vector<Tensor> written;
};
Operands OperandsOf(const c10::OperatorHandle& op, const Stack& stack) {
  Operands operands;
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = stack[stack.size() - arguments.size() + i];
    if (value.isScalar()) operands.numbers.push_back(value.toScalar());
    if (value.isTensor() && value.toTensor().defined()) {
      (IsWritten(arguments[i]) ? operands.written : operands.read).push_back(value.toTensor());
    }
  }
  return operands;
}

// The dtype in which the kernel computes: the inputs', of which an in-place operator's self is one.
at::ScalarType ComputeType(const c10::OperatorHandle& op, const Operands& operands) {
  std::vector<Tensor> inputs = operands.read;
  if (op.schema().name().back() == '_') inputs.insert(inputs.end(), operands.written.begin(), operands.written.end());
  at::ScalarType type = inputs[0].scalar_type();
  for (const Tensor& input : inputs) type = c10::promoteTypes(type, input.scalar_type());
  return type;
}

// Numbers become elements of the dtype that the kernel computes in.
void CheckedNumbers(const c10::OperatorHandle& op, Stack* stack) {
  const Operands operands = OperandsOf(op, *stack);
  op.callBoxed(stack);
  const at::ScalarType type = at::toOpMathType(ComputeType(op, operands));
  for (const Scalar& number : operands.numbers) CheckConvertible(number, type);
}

// Both limits are tensors: another kernel than the one for each.
void CheckedTensorClamp(const c10::OperatorHandle& op, Stack* stack) {
  const std::size_t first = stack->size() - op.schema().arguments().size();
  at::native::ResultTypeState state;
  bool both = true;
  for (std::size_t i = first; i < first + 3; ++i) {
    const bool given = (*stack)[i].isTensor() && (*stack)[i].toTensor().defined();
    both &= given;
    if (given) state = at::native::update_result_type_state((*stack)[i].toTensor(), state);
  }
  op.callBoxed(stack);
  const at::ScalarType type = at::native::result_type(state);
  TORCH_CHECK(!c10::isComplexType(type) && (!both || type != at::kBool), "clamp: not implemented for dtype ", type);
}

// Kernels that write with an iterator of their own.
void CheckedOverlap(const c10::OperatorHandle& op, Stack* stack) {
  const Operands operands = OperandsOf(op, *stack);
  op.callBoxed(stack);
  for (const Tensor& out : operands.written) {
    at::assert_no_internal_overlap(out);
    for (const Tensor& input : operands.read) at::assert_no_partial_overlap(out, input);
  }
}

// Sums and products along a dimension, in the result's dtype, unless there is nothing to add.
void CheckedCumulation(const c10::OperatorHandle& op, Stack* stack) {
  const Tensor self = (*stack)[stack->size() - op.schema().arguments().size()].toTensor();
  if (op.schema().is_mutable()) {
    CheckedOverlap(op, stack);
  } else {
    op.callBoxed(stack);
  }
  if (self.dim() == 0 || self.numel() == 0) return;
  RequireDtype("cumsum and cumprod", stack->back().toTensor().scalar_type(), kRealDtypes | kComplexDtypes);
}

// In place, matrices of few batch dimensions are written where they are; of more, where these are dense.
void CheckedTriangleInPlace(const c10::OperatorHandle& op, Stack* stack) {
  const Tensor self = (*stack)[stack->size() - op.schema().arguments().size()].toTensor();
  op.callBoxed(stack);
  if (self.numel() == 0 || self.dim() <= 3 || self.is_contiguous()) return;
  int64_t stride = self.size(-1) * self.size(-2);
  for (int64_t i = self.dim() - 3; i >= 0; --i) {
    if (i == 0 && (self.stride(i) == 0 || self.size(i) == 1)) continue;
    if (self.stride(i) != stride) return at::assert_no_internal_overlap(self);
    stride *= self.size(i);
  }
}

// The factor must be of a kind of number that the operands' common dtype has: the CPU computes in that, and casts to out= afterwards.
void CheckedAlpha(const c10::OperatorHandle& op, Stack* stack) {
  if (ClaimedDevice().is_cpu()) {
    const std::size_t first = stack->size() - op.schema().arguments().size();
    c10::IValue& alpha = (*stack)[first + 2];
    at::native::alpha_check(at::result_type((*stack)[first].toTensor(), (*stack)[first + 1].toTensor()), alpha.toScalar());
    alpha = 1;  // LibTorch's Meta kernel would compare it with out='s dtype
  }
  op.callBoxed(stack);
}

void CheckedHash(const c10::OperatorHandle& op, Stack* stack) {
  const std::size_t first = stack->size() - op.schema().arguments().size();
  const int64_t mode = (*stack)[first + 3].toInt();
  op.callBoxed(stack);
  TORCH_CHECK(mode == 0, "hash_tensor: there is no mode ", mode);
}

// The kernel for one scale for each power hands numbers of the base's kind to pow; 1.0 alone is filled in.
Tensor& PowOfScalarOut(const Scalar& self, const Tensor& exponent, Tensor& out) {
  at::meta::pow_out(out, self, exponent);
  if (!self.isBoolean() && self.equal(1.0)) return out;
  return at::pow_out(out, WrappedNumber(self), exponent);
}

Tensor& MeanOut(const Tensor& self, at::OptionalIntArrayRef dim, bool keepdim, std::optional<at::ScalarType> dtype, Tensor& out) {
  at::mean_out(out, self, dim, keepdim, dtype);
  TORCH_CHECK(!c10::isIntegralType(out.scalar_type(), /*includeBool=*/true), "mean: the quotient can't be cast to ", out.scalar_type());
  at::assert_no_internal_overlap(out);
  return out;
}

// oneDNN computes it for dense float inputs, and takes no broadcast.
void CheckGeluBackward(const Tensor& grad, const Tensor& self, c10::string_view approximate) {
  if (!ClaimedDevice().is_cpu() || approximate != "none" || self.numel() <= 1 || !self.is_contiguous()) return;
  if (!at::globalContext().userEnabledMkldnn()) return;
  const at::ScalarType type = self.scalar_type();
  if (!OneDnnComputes(type)) return;
  TORCH_CHECK(grad.sizes() == self.sizes(), "gelu_backward: grad_output of shape ", grad.sizes(), " for an input of ", self.sizes());
  RequireDtype("gelu_backward", grad.scalar_type(),
               Dtypes{at::kFloat, at::kBFloat16, at::kByte, at::kChar} |
                   (type == at::kFloat || OneDnnComputes(at::kHalf) ? Dtypes{at::kHalf} : Dtypes{}));
}
Tensor GeluBackward(const Tensor& grad, const Tensor& self, c10::string_view approximate) {
  const at::ScalarType common = at::result_type(grad, self);
  Tensor grad_input = at::gelu_backward(Converted(grad, common), Converted(self, common), approximate);
  CheckGeluBackward(grad, self, approximate);
  return grad_input;
}
Tensor& GeluBackwardOut(const Tensor& grad, const Tensor& self, c10::string_view approximate, Tensor& grad_input) {
  const at::ScalarType common = at::result_type(grad, self);
  at::gelu_backward_out(grad_input, Converted(grad, common), Converted(self, common), approximate);
  CheckGeluBackward(grad, self, approximate);
  CheckGeluBackward(grad_input, self, approximate);
  at::assert_no_internal_overlap(grad_input);
  return grad_input;
}

// 2 to the power of `other`, in a dtype of its own, times self.
void CheckedLdexp(const c10::OperatorHandle& op, Stack* stack) {
  const std::size_t first = stack->size() - op.schema().arguments().size();
  const Tensor self = (*stack)[first].toTensor();
  const Tensor other = (*stack)[first + 1].toTensor();
  CallComposite(op, stack);
  if (self.is_floating_point()) TORCH_CHECK(other.scalar_type() != at::kBool, "ldexp: not implemented for a Bool exponent");
  if (self.is_floating_point() || self.is_complex()) {
    const at::ScalarType power = at::result_type(Empty({}, self.options()), other);
    TORCH_CHECK(!c10::isComplexType(power) || kComplexDtypes.Has(power), "ldexp: not implemented for dtype ", power);
  }
}

// Tensors with negative strides there are none.
void CheckedStrides(const c10::OperatorHandle& op, Stack* stack) {
  const auto& arguments = op.schema().arguments();
  std::vector<int64_t> sizes, strides;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = (*stack)[stack->size() - arguments.size() + i];
    if (arguments[i].name() == "size") sizes = value.toIntVector();
    if (arguments[i].name() == "stride") strides = value.toIntVector();
  }
  CallComposite(op, stack);
  const bool empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    TORCH_CHECK(empty || sizes[i] <= 1 || strides[i] >= 0, c10::toString(op.operator_name()),
                ": negative strides: ", at::IntArrayRef(strides));
  }
}

// LibTorch's Meta kernels don't look where the view ends.
void CheckBounds(const Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset, std::size_t nbytes) {
  int64_t end = offset + 1;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return;
    end += (sizes[i] - 1) * strides[i];
  }
  TORCH_CHECK(end * static_cast<int64_t>(self.itemsize()) <= static_cast<int64_t>(nbytes), "setStorage: sizes ", sizes, ", strides ",
              strides, ", storage offset ", offset, ", and itemsize ", self.itemsize(), " are out of bounds for storage of size ", nbytes);
}
void CheckedStridedCopy(const c10::OperatorHandle& op, Stack* stack) {
  const std::size_t first = stack->size() - op.schema().arguments().size();
  const Tensor self = (*stack)[first].toTensor();
  const std::vector<int64_t> sizes = (*stack)[first + 1].toIntVector(), strides = (*stack)[first + 2].toIntVector();
  const c10::IValue offset = (*stack)[first + 3];
  CallComposite(op, stack);
  CheckBounds(self, sizes, strides, offset.isInt() ? offset.toInt() : self.storage_offset(), self.storage().nbytes());
}
// What is written into is a copy: of the whole storage, unless elements share memory.
void CheckedStridedScatter(const c10::OperatorHandle& op, Stack* stack) {
  const std::size_t first = stack->size() - op.schema().arguments().size();
  const Tensor self = (*stack)[first].toTensor();
  const std::vector<int64_t> sizes = (*stack)[first + 2].toIntVector(), strides = (*stack)[first + 3].toIntVector();
  const c10::IValue offset = (*stack)[first + 4];
  CallComposite(op, stack);
  const bool whole = at::has_internal_overlap(self) != at::MemOverlap::Yes;
  CheckBounds(self, sizes, strides,
              offset.isInt() ? offset.toInt()
              : whole        ? self.storage_offset()
                             : 0,
              whole ? self.storage().nbytes() : static_cast<std::size_t>(self.numel()) * self.itemsize());
}

// Sums of powers are computed in the dtype that is asked for, complex ones of complex numbers.
void CheckPowerSum(const Tensor& self, const c10::IValue& dtype, const Tensor& sums) {
  at::ScalarType type = dtype.isInt() ? dtype.toScalarType() : self.scalar_type();
  if (self.is_complex()) type = c10::toComplexType(type);
  // Where each sum is of one complex number there is nothing to add.
  if (self.numel() > (self.is_complex() ? sums.numel() : 0))
    RequireDtype("powsum", type, kFloatDtypes | kComplexDtypes | Dtypes{at::kComplexHalf});
}
// The sum of no numbers is zero of the dtype that sums have.
Tensor SumsOfNothing(const Tensor& self, const c10::IValue& dtype, const Tensor& sums) {
  if (self.numel() != 0 || self.is_complex()) return sums;
  const bool integral = c10::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  return sums.to(dtype.isInt() ? c10::toRealValueType(dtype.toScalarType()) : integral ? at::kLong : self.scalar_type());
}
void CheckedPowerSum(const c10::OperatorHandle& op, Stack* stack) {
  const std::size_t num_args = op.schema().arguments().size(), first = stack->size() - num_args;
  const c10::IValue self = (*stack)[first], dtype = (*stack)[first + num_args - 1];
  const std::vector<Tensor> operands = self.isTensor() ? std::vector<Tensor>{self.toTensor()} : self.toTensorVector();
  const auto is_nothing = [](const Tensor& tensor) { return tensor.numel() == 0 && !tensor.is_complex(); };
  if (std::all_of(operands.begin(), operands.end(), is_nothing)) (*stack)[first + num_args - 1] = c10::IValue();
  CallComposite(op, stack);
  if (self.isTensor()) {
    const Tensor sums = stack->back().toTensor();
    CheckPowerSum(operands[0], dtype, sums);
    stack->back() = SumsOfNothing(operands[0], dtype, sums);
    return;
  }
  std::vector<Tensor> sums = stack->back().toTensorVector();
  for (std::size_t i = 0; i < operands.size(); ++i) {
    CheckPowerSum(operands[i], dtype, sums[i]);
    sums[i] = SumsOfNothing(operands[i], dtype, sums[i]);
  }
  stack->back() = std::move(sums);
}

// Numbers are written as they are, if at all.
void CheckedScatterValue(const c10::OperatorHandle& op, Stack* stack) {
  const std::size_t first = stack->size() - op.schema().arguments().size();
  const at::ScalarType type = (*stack)[first].toTensor().scalar_type();
  const bool any = (*stack)[first + 2].toTensor().numel() != 0;
  const Scalar value = (*stack)[first + 3].toScalar();
  op.callBoxed(stack);
  if (any) CheckConvertible(value, type);
}

// Bytes of three channels are padded to four by the vectorized kernels, which then can't write a channels-last image of another height.
void CheckImagesOfBytes(const Tensor& self, const Tensor& out) {
  if (self.scalar_type() != at::kByte || self.dim() != 4 || self.numel() == 0 || self.size(1) != 3) return;
  if (at::get_cpu_capability() == "DEFAULT") return;
  TORCH_CHECK(self.size(2) == out.size(2) || self.is_contiguous(at::MemoryFormat::ChannelsLast) ||
                  !out.is_contiguous(at::MemoryFormat::ChannelsLast),
              "upsampling: bytes of three channels can't be resized into a channels-last image if they aren't one");
}

void CheckedUpsample(const c10::OperatorHandle& op, Stack* stack) {
  const Tensor self = (*stack)[stack->size() - op.schema().arguments().size()].toTensor();
  op.callBoxed(stack);
  CheckImagesOfBytes(self, stack->back().toTensor());
}

// Images of the wanted size are copied; others have kernels for few dtypes.
void CheckedAntialias(const c10::OperatorHandle& op, Stack* stack) {
  const std::size_t first = stack->size() - op.schema().arguments().size();
  const Tensor self = (*stack)[first].toTensor();
  const std::vector<int64_t> sizes = (*stack)[first + 1].toIntVector();
  op.callBoxed(stack);
  if (op.schema().is_mutable() && self.scalar_type() != at::kByte) at::assert_no_internal_overlap(stack->back().toTensor());
  if (self.sizes().slice(2) != at::IntArrayRef(sizes)) RequireDtype("upsampling", self.scalar_type(), kFloatOrDouble | Dtypes{at::kByte});
  CheckImagesOfBytes(self, stack->back().toTensor());
}

void CheckedBicubicBackward(const c10::OperatorHandle& op, Stack* stack) {
  const std::size_t first = stack->size() - op.schema().arguments().size();
  const at::ScalarType type = (*stack)[first].toTensor().scalar_type();
  const std::vector<int64_t> output = (*stack)[first + 1].toIntVector(), input = (*stack)[first + 2].toIntVector();
  op.callBoxed(stack);
  if (at::IntArrayRef(input).slice(2) != at::IntArrayRef(output)) RequireDtype("upsample_bicubic2d_backward", type, kFloatDtypes);
}

// Reductions by name, some of which some dtypes lack.
void CheckedScatterReduce(const c10::OperatorHandle& op, Stack* stack) {
  const std::size_t first = stack->size() - op.schema().arguments().size();
  const Tensor self = (*stack)[first].toTensor(), index = (*stack)[first + 2].toTensor();
  const std::string reduce = (*stack)[first + 4].toStringRef();
  op.callBoxed(stack);
  // The sums are divided even where there is nothing to add.
  TORCH_CHECK(reduce != "mean" || self.scalar_type() != at::kBool, "scatter_reduce: there is no mean of ", self.scalar_type());
  if (index.numel() == 0) return;
  const bool extremum = reduce == "amax" || reduce == "amin";
  TORCH_CHECK(!extremum || !self.is_complex(), "scatter_reduce: there is no ", reduce, " of ", self.scalar_type());
}

// Draws into out=, which then is scaled and shifted.
void CheckedNormalOut(const c10::OperatorHandle& op, Stack* stack) {
  op.callBoxed(stack);
  stack->back().toTensor().normal_();
}

std::tuple<Tensor&, Tensor&> SortOut(const Tensor& self, int64_t dim, bool descending, Tensor& values, Tensor& indices) {
  at::sort_out(values, indices, self, /*stable=*/false, dim, descending);
  for (const Tensor* out : {&values, &indices}) {
    at::assert_no_internal_overlap(*out);
    at::assert_no_partial_overlap(*out, self);
  }
  return {values, indices};
}

DDPOPT_FAKE_KERNELS(m) {
  m.impl("sort.values", SortOut, kThisForm);
  for (const char* name :
       {"threshold", "threshold_", "threshold.out", "threshold_backward", "threshold_backward.grad_input", "elu", "elu_", "elu.out",
        "elu_backward", "elu_backward.grad_input", "leaky_relu", "leaky_relu_", "leaky_relu.out", "leaky_relu_backward",
        "leaky_relu_backward.grad_input", "softplus", "softplus.out", "softplus_backward", "softplus_backward.grad_input"}) {
    m.impl(name, CheckedNumbers, kThisForm);
  }
  for (const char* name : {"sort.values_stable", "tril.out", "triu.out", "isin.Tensor_Scalar_out"}) {
    m.impl(name, CheckedOverlap, kThisForm);
  }
  for (const char* name : {"tril_", "triu_"}) m.impl(name, CheckedTriangleInPlace, kThisForm);
  for (const char* name : {"cumsum", "cumsum_", "cumsum.out", "cumprod", "cumprod_", "cumprod.out"}) {
    m.impl(name, CheckedCumulation, kThisForm);
  }
  for (const char* name : {"clamp.Tensor", "clamp_.Tensor", "clamp.Tensor_out"}) m.impl(name, CheckedTensorClamp, kThisForm);
  for (const char* name : {"add.out", "sub.out"}) m.impl(name, CheckedAlpha, kThisForm);
  for (const char* name : {"hash_tensor", "hash_tensor.out"}) m.impl_if_present(name, CheckedHash, kThisForm);
  for (const char* name : {"ldexp.Tensor", "ldexp_", "ldexp.out"}) m.impl(name, CheckedLdexp, kThisForm);
  m.impl("empty_strided", CheckedStrides);
  m.impl("new_empty_strided", CheckedStrides);
  m.impl("as_strided_copy", CheckedStridedCopy);
  m.impl("as_strided_scatter", CheckedStridedScatter);
  m.impl_if_present("linalg__powsum", CheckedPowerSum);
  m.impl_if_present("_foreach_powsum.Scalar", CheckedPowerSum);
  for (const char* name : {"scatter_reduce.two", "scatter_reduce_.two", "scatter_reduce.two_out"}) {
    m.impl(name, CheckedScatterReduce, kThisForm);
  }
  for (const char* name : {"scatter.value", "scatter_.value", "scatter.value_out", "scatter.value_reduce", "scatter_.value_reduce",
                           "scatter.value_reduce_out"}) {
    m.impl(name, CheckedScatterValue, kThisForm);
  }
  for (const char* name : {"upsample_bilinear2d", "upsample_bilinear2d.out", "upsample_bicubic2d", "upsample_bicubic2d.out"}) {
    m.impl(name, CheckedUpsample, kThisForm);
  }
  for (const char* name : {"_upsample_bilinear2d_aa", "_upsample_bilinear2d_aa.out", "_upsample_bicubic2d_aa", "_upsample_bicubic2d_aa.out",
                           "_upsample_lanczos2d_aa", "_upsample_lanczos2d_aa.out"}) {
    m.impl_if_present(name, CheckedAntialias, kThisForm);
  }
  for (const char* name : {"upsample_bicubic2d_backward", "upsample_bicubic2d_backward.grad_input"}) {
    m.impl(name, CheckedBicubicBackward, kThisForm);
  }
  for (const char* name : {"normal.Tensor_Tensor_out", "normal.Tensor_float_out", "normal.float_Tensor_out"}) {
    m.impl(name, CheckedNormalOut, kThisForm);
  }
  m.impl("pow.Scalar_out", PowOfScalarOut, kThisForm);
  m.impl("mean.out", MeanOut, kThisForm);
  m.impl("gelu_backward", GeluBackward, kThisForm);
  m.impl("gelu_backward.grad_input", GeluBackwardOut, kThisForm);
}

}  // namespace
}  // namespace ddpopt::kernels
