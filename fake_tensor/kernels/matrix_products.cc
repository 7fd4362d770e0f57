// Products of matrices and vectors. LibTorch's Meta kernels know shapes; what their kernels on the CPU check besides, on the way to BLAS,
// stands here.

#include <vector>

#include "ATen/ExpandUtils.h"
#include "ATen/MemoryOverlap.h"
#include "ATen/OpMathType.h"
#include "ATen/TensorIterator.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/_addmm_activation.h"
#include "ATen/ops/addmm_meta_dispatch.h"
#include "ATen/ops/addmv_meta_dispatch.h"
#include "ATen/ops/baddbmm_meta_dispatch.h"
#include "ATen/ops/bmm_meta_dispatch.h"
#include "ATen/ops/mm_meta_dispatch.h"
#include "ATen/ops/mul.h"
#include "ATen/ops/mvlgamma.h"
#include "c10/core/Scalar.h"
#include "c10/util/Exception.h"
#include "fake_tensor/fake_kernels.h"
#include "fake_tensor/kernels/dtypes.h"
#include "fake_tensor/kernels/linalg_shapes.h"
#include "fake_tensor/kernels/shapes.h"

namespace ddpopt::kernels {
namespace {

using at::Scalar;
using at::Tensor;

// A factor that the kernel converts to the dtype it computes in.
void CheckFactor(const Scalar& factor, c10::ScalarType dtype) { CheckConvertible(factor, at::toOpMathType(dtype)); }

// In place, elements may share memory where the kernel doesn't copy.
Tensor& CheckedInPlace(Tensor& self, const Tensor& result, const char* op) {
  TORCH_CHECK(self.sizes() == result.sizes(), op, ": self must have shape ", result.sizes(), ", not ", self.sizes());
  TORCH_CHECK(self.scalar_type() == result.scalar_type(), op, ": self must be ", result.scalar_type(), ", not ", self.scalar_type());
  return self;
}

void CheckProductDtype(c10::ScalarType dtype, const char* op) { RequireDtype(op, dtype, kRealDtypes | kComplexDtypes); }

// The summand is there already, times beta, or is to be ignored.
void ScaleBy(const Scalar& beta, const Tensor& result) {
  if (beta.toComplexDouble() == 0.0) return;
  Tensor scaled = result;
  scaled.mul_(beta);
}

// result = beta * self + alpha * mat1 * mat2, all of the right shapes: what the CPU's kernel refuses on its way to BLAS. Without elements
// it gets nowhere, without columns it only scales.
void AddProductInto(const Tensor& result, const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta,
                    const Scalar& alpha, const char* op) {
  CheckSameDtype(mat1, mat2, op);
  if (result.numel() == 0) return;
  const bool adds = beta.toComplexDouble() != 0.0;
  Tensor sum = result;
  if (adds && !self.is_same(result)) sum.copy_(self);
  if (mat1.size(1) == 0) return ScaleBy(beta, result);
  CheckProductDtype(result.scalar_type(), op);
  CheckFactor(beta, result.scalar_type());
  CheckFactor(alpha, result.scalar_type());
}

// BLAS doesn't write to elements that share memory. Without columns it isn't called.
void CheckWritten(const Tensor& out, const Tensor& mat1) {
  if (mat1.size(1) != 0) at::assert_no_internal_overlap(out);
}

// The same for batches. The kernel reads the operands as the first factor's dtype.
void AddBatchedProductInto(const Tensor& result, const Tensor& batch1, const Tensor& batch2, const Scalar& beta, const Scalar& alpha,
                           const char* op) {
  if (result.numel() == 0) return;
  if (batch1.size(2) == 0) return ScaleBy(beta, result);
  CheckProductDtype(batch1.scalar_type(), op);
  CheckSameDtype(result, batch1, op);
  CheckSameDtype(batch1, batch2, op);
  CheckFactor(beta, result.scalar_type());
  CheckFactor(alpha, result.scalar_type());
}

Tensor Mm(const Tensor& self, const Tensor& mat2) {
  Tensor product = at::meta::mm(self, mat2);
  AddProductInto(product, product, self, mat2, 0, 1, "mm");
  return product;
}
Tensor& MmOut(const Tensor& self, const Tensor& mat2, Tensor& out) {
  at::meta::mm_out(out, self, mat2);
  AddProductInto(out, out, self, mat2, 0, 1, "mm");
  CheckWritten(out, self);
  return out;
}

Tensor Addmm(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta, const Scalar& alpha) {
  Tensor sum = at::meta::addmm(self, mat1, mat2, beta, alpha);
  AddProductInto(sum, self.expand(sum.sizes()), mat1, mat2, beta, alpha, "addmm");
  return sum;
}
Tensor& AddmmInPlace(Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta, const Scalar& alpha) {
  CheckedInPlace(self, at::meta::addmm(self, mat1, mat2, beta, alpha), "addmm_");
  AddProductInto(self, self, mat1, mat2, beta, alpha, "addmm_");
  CheckWritten(self, mat1);
  return self;
}
Tensor& AddmmOut(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta, const Scalar& alpha, Tensor& out) {
  at::meta::addmm_out(out, self, mat1, mat2, beta, alpha);
  AddProductInto(out, self.expand(out.sizes()), mat1, mat2, beta, alpha, "addmm");
  CheckWritten(out, mat1);
  return out;
}

Tensor AddmmActivation(const Tensor& self, const Tensor& mat1, const Tensor& mat2, const Scalar& beta, const Scalar& alpha, bool use_gelu) {
  Tensor sum = at::_addmm_activation(self, mat1, mat2, beta, alpha, use_gelu);
  AddProductInto(sum, self.expand(sum.sizes()), mat1, mat2, beta, alpha, "_addmm_activation");
  RequireDtype(use_gelu ? "_addmm_activation with gelu" : "_addmm_activation with relu", sum.scalar_type(),
               use_gelu ? kFloatDtypes : kRealDtypes);
  return sum;
}

Tensor Bmm(const Tensor& self, const Tensor& mat2) {
  Tensor product = at::meta::bmm(self, mat2);
  AddBatchedProductInto(product, self, mat2, 0, 1, "bmm");
  return product;
}

Tensor& BmmOut(const Tensor& self, const Tensor& mat2, Tensor& out) {
  at::meta::bmm_out(out, self, mat2);
  AddBatchedProductInto(out, self, mat2, 0, 1, "bmm");
  return out;
}

Tensor Baddbmm(const Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar& beta, const Scalar& alpha) {
  Tensor sum = at::meta::baddbmm(self, batch1, batch2, beta, alpha);
  AddBatchedProductInto(sum, batch1, batch2, beta, alpha, "baddbmm");
  return sum;
}
Tensor& BaddbmmInPlace(Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar& beta, const Scalar& alpha) {
  CheckedInPlace(self, at::meta::baddbmm(self, batch1, batch2, beta, alpha), "baddbmm_");
  AddBatchedProductInto(self, batch1, batch2, beta, alpha, "baddbmm_");
  if (self.is_conj() && self.numel() != 0) at::assert_no_internal_overlap(self);  // conjugated in place
  return self;
}
Tensor& BaddbmmOut(const Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar& beta, const Scalar& alpha, Tensor& out) {
  at::meta::baddbmm_out(out, self, batch1, batch2, beta, alpha);
  AddBatchedProductInto(out, batch1, batch2, beta, alpha, "baddbmm");
  // Of a product alone nobody looks.
  if (beta.toComplexDouble() != 0.0) at::assert_no_internal_overlap(out);
  return out;
}

// The kernel adds into `out`, whatever its dtype was, batch by batch.
void AddbmmInto(const Tensor& out, const Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar& beta,
                const Scalar& alpha) {
  TORCH_CHECK(batch1.dim() == 3 && batch2.dim() == 3, "addbmm: tensors of 3 dimensions are wanted, not ", batch1.sizes(), " and ",
              batch2.sizes());
  TORCH_CHECK(batch1.size(0) == batch2.size(0) && batch1.size(2) == batch2.size(1), "addbmm: shapes don't match: ", batch1.sizes(), " and ",
              batch2.sizes());
  const std::vector<int64_t> sizes = {batch1.size(1), batch2.size(2)};
  const Tensor summand = out.is_same(self) && self.sizes() == at::IntArrayRef(sizes) ? self : self.expand(sizes);
  if (out.sizes() != at::IntArrayRef(sizes)) out.resize_(sizes);
  if (beta.toComplexDouble() != 0.0 && !summand.is_same(out)) Tensor(out).copy_(summand);
  if (batch1.size(0) == 0) return ScaleBy(beta, out);
  CheckSameDtype(out, batch1, "addbmm");
  AddProductInto(out, out, batch1.select(0, 0), batch2.select(0, 0), beta, alpha, "addbmm");
  if (batch1.size(0) > 1 || batch1.size(2) != 0) at::assert_no_internal_overlap(out);
}
Tensor Addbmm(const Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar& beta, const Scalar& alpha) {
  Tensor out = Empty({0}, self.options());
  AddbmmInto(out, self, batch1, batch2, beta, alpha);
  return out;
}
Tensor& AddbmmInPlace(Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar& beta, const Scalar& alpha) {
  AddbmmInto(self, self, batch1, batch2, beta, alpha);
  return self;
}
Tensor& AddbmmOut(const Tensor& self, const Tensor& batch1, const Tensor& batch2, const Scalar& beta, const Scalar& alpha, Tensor& out) {
  AddbmmInto(out, self, batch1, batch2, beta, alpha);
  return out;
}

// One product after the other, each as mm makes it.
std::vector<Tensor> ForeachMm(at::TensorList self, at::TensorList mat2) {
  TORCH_CHECK(!self.empty() && self.size() == mat2.size(), "_foreach_mm: lists of ", self.size(), " and ", mat2.size(), " tensors");
  std::vector<Tensor> products;
  for (std::size_t i = 0; i < self.size(); ++i) products.push_back(Mm(self[i], mat2[i]));
  return products;
}

void CheckVectors(const Tensor& self, const Tensor& other, const char* op) {
  TORCH_CHECK(self.dim() == 1 && other.dim() == 1 && self.numel() == other.numel(), op, ": two vectors of one length are wanted, not ",
              self.sizes(), " and ", other.sizes());
  CheckSameDtype(self, other, op);
}
// Conjugates are taken out of a product: where both factors are conjugated, or the one that the product doesn't conjugate, the result is.
Tensor Dot(const Tensor& self, const Tensor& other) {
  CheckVectors(self, other, "dot");
  const Tensor product = Empty({}, self.options());
  return self.is_conj() && other.is_conj() ? product.conj() : product;
}
Tensor Vdot(const Tensor& self, const Tensor& other) {
  CheckVectors(self, other, "vdot");
  const Tensor product = Empty({}, self.options());
  return !self.is_conj() && other.is_conj() ? product.conj() : product;
}

// Without a matrix, what is left is self times beta, in self's own shape, cast to the vector's dtype.
void AddMatrixVectorInto(Tensor& out, const Tensor& self, const Tensor& mat, const Scalar& beta, const Scalar& alpha) {
  const bool adds = beta.toComplexDouble() != 0.0;
  if (mat.numel() == 0) {
    if (!adds) return;
    CheckConvertible(beta, self.scalar_type());
    at::mul_out(out, self, Empty({}, self.options()));
    return;
  }
  if (adds && !self.is_same(out)) out.copy_(self.expand({mat.size(0)}));
  CheckProductDtype(mat.scalar_type(), "addmv");
  CheckFactor(beta, mat.scalar_type());
  CheckFactor(alpha, mat.scalar_type());
}
Tensor Addmv(const Tensor& self, const Tensor& mat, const Tensor& vec, const Scalar& beta, const Scalar& alpha) {
  Tensor sum = at::meta::addmv(self, mat, vec, beta, alpha);
  AddMatrixVectorInto(sum, self, mat, beta, alpha);
  return sum;
}
Tensor& AddmvInPlace(Tensor& self, const Tensor& mat, const Tensor& vec, const Scalar& beta, const Scalar& alpha) {
  CheckedInPlace(self, at::meta::addmv(self, mat, vec, beta, alpha), "addmv_");
  AddMatrixVectorInto(self, self, mat, beta, alpha);
  return self;
}
Tensor& AddmvOut(const Tensor& self, const Tensor& mat, const Tensor& vec, const Scalar& beta, const Scalar& alpha, Tensor& out) {
  at::meta::addmv_out(out, self, mat, vec, beta, alpha);
  AddMatrixVectorInto(out, self, mat, beta, alpha);
  return out;
}

// A factor must be of a kind of number that the result's dtype has.
void CheckOuterFactor(const Scalar& factor, c10::ScalarType dtype) {
  TORCH_CHECK(!factor.isBoolean() || dtype == at::kBool, "addr: the factor ", factor, " is boolean, the result ", dtype);
  TORCH_CHECK(at::isFloatingType(dtype) || at::isComplexType(dtype) || factor.isIntegral(/*includeBool=*/true), "addr: the factor ", factor,
              " is no integer, the result is ", dtype);
  TORCH_CHECK(!factor.isComplex() || at::isComplexType(dtype) || factor.toComplexDouble().imag() == 0, "addr: the factor ", factor,
              " is complex, the result isn't");
}
void AddrInto(Tensor& out, const Tensor& self, const Tensor& vec1, const Tensor& vec2, const Scalar& beta, const Scalar& alpha) {
  TORCH_CHECK(vec1.dim() == 1 && vec2.dim() == 1, "addr: vectors are wanted, not ", vec1.sizes(), " and ", vec2.sizes());
  const std::vector<int64_t> sizes = {vec1.size(0), vec2.size(0)};
  const bool in_place = out.is_same(self);
  TORCH_CHECK(!in_place || self.sizes() == at::IntArrayRef(sizes), "addr_: self must have shape ", at::IntArrayRef(sizes), ", not ",
              self.sizes());
  const Tensor summand = in_place ? self : self.expand(sizes);
  const Tensor column = vec1.reshape({vec1.size(0), 1});
  at::TensorIterator iter = at::TensorIteratorConfig()
                                .add_output(out)
                                .add_const_input(summand)
                                .add_const_input(column)
                                .add_const_input(vec2)
                                .allow_cpu_scalars(true)
                                .promote_inputs_to_common_dtype(true)
                                .cast_common_dtype_to_outputs(true)
                                .enforce_safe_casting_to_output(true)
                                .build();
  CheckOuterFactor(beta, iter.common_dtype());
  CheckOuterFactor(alpha, iter.common_dtype());
  out = iter.output();
}
Tensor Addr(const Tensor& self, const Tensor& vec1, const Tensor& vec2, const Scalar& beta, const Scalar& alpha) {
  Tensor out;
  AddrInto(out, self, vec1, vec2, beta, alpha);
  return out;
}
Tensor& AddrInPlace(Tensor& self, const Tensor& vec1, const Tensor& vec2, const Scalar& beta, const Scalar& alpha) {
  Tensor out = self;
  AddrInto(out, self, vec1, vec2, beta, alpha);
  return self;
}
Tensor& AddrOut(const Tensor& self, const Tensor& vec1, const Tensor& vec2, const Scalar& beta, const Scalar& alpha, Tensor& out) {
  Tensor result = out;
  AddrInto(result, self, vec1, vec2, beta, alpha);
  return out;
}

std::vector<int64_t> IntMmSizes(const Tensor& self, const Tensor& mat2) {
  TORCH_CHECK(self.dim() == 2 && mat2.dim() == 2 && self.size(1) == mat2.size(0), "_int_mm: shapes don't match: ", self.sizes(), " and ",
              mat2.sizes());
  TORCH_CHECK((self.scalar_type() == at::kChar || self.scalar_type() == at::kByte) && mat2.scalar_type() == at::kChar,
              "_int_mm: 8-bit integers are wanted, not ", self.scalar_type(), " and ", mat2.scalar_type());
  return {self.size(0), mat2.size(1)};
}
Tensor IntMm(const Tensor& self, const Tensor& mat2) { return Empty(IntMmSizes(self, mat2), self.options().dtype(at::kInt)); }
Tensor& IntMmOut(const Tensor& self, const Tensor& mat2, Tensor& out) {
  const std::vector<int64_t> sizes = IntMmSizes(self, mat2);
  TORCH_CHECK(out.scalar_type() == at::kInt && out.sizes() == at::IntArrayRef(sizes) && out.is_contiguous(),
              "_int_mm: out= must be a contiguous int32 tensor of shape ", at::IntArrayRef(sizes), ", not ", out.scalar_type(), " of ",
              out.sizes());
  return out;
}

// Products of float8 matrices, scaled. The result has the first matrix's dtype unless told otherwise.
std::vector<int64_t> ScaledMmSizes(const Tensor& self, const Tensor& mat2, const Tensor& scale_a, const Tensor& scale_b,
                                   const std::optional<Tensor>& bias) {
  TORCH_CHECK(self.dim() == 2 && mat2.dim() == 2 && self.size(1) == mat2.size(0), "_scaled_mm: shapes don't match: ", self.sizes(), " and ",
              mat2.sizes());
  TORCH_CHECK(at::isFloat8Type(self.scalar_type()) && at::isFloat8Type(mat2.scalar_type()), "_scaled_mm: float8 matrices are wanted, not ",
              self.scalar_type(), " and ", mat2.scalar_type());
  // One scale for each matrix, or one for each row of the first and each column of the second.
  const bool whole = scale_a.numel() == 1 && scale_b.numel() == 1;
  const bool lines = scale_a.dim() == 2 && scale_b.dim() == 2 && scale_a.size(0) == self.size(0) && scale_a.size(1) == 1 &&
                     scale_b.size(0) == 1 && scale_b.size(1) == mat2.size(1) && scale_a.is_contiguous() && scale_b.is_contiguous();
  TORCH_CHECK(scale_a.scalar_type() == at::kFloat && scale_b.scalar_type() == at::kFloat && (whole || lines),
              "_scaled_mm: scales must be floats, one for each matrix or one for each row and column, not ", scale_a.sizes(), " and ",
              scale_b.sizes());
  TORCH_CHECK(!Given(bias) || bias->numel() == mat2.size(1), "_scaled_mm: the bias must have ", mat2.size(1), " elements");
  return {self.size(0), mat2.size(1)};
}
Tensor ScaledMm(const Tensor& self, const Tensor& mat2, const Tensor& scale_a, const Tensor& scale_b, const std::optional<Tensor>& bias,
                const std::optional<Tensor>& /*scale_result*/, std::optional<c10::ScalarType> out_dtype, bool /*use_fast_accum*/) {
  return Empty(ScaledMmSizes(self, mat2, scale_a, scale_b, bias), self.options().dtype(out_dtype.value_or(self.scalar_type())));
}
Tensor& ScaledMmOut(const Tensor& self, const Tensor& mat2, const Tensor& scale_a, const Tensor& scale_b, const std::optional<Tensor>& bias,
                    const std::optional<Tensor>& /*scale_result*/, std::optional<c10::ScalarType> out_dtype, bool /*use_fast_accum*/,
                    Tensor& out) {
  const std::vector<int64_t> sizes = ScaledMmSizes(self, mat2, scale_a, scale_b, bias);
  TORCH_CHECK(!out_dtype.has_value() || out.scalar_type() == *out_dtype, "_scaled_mm: out= is ", out.scalar_type(), ", not out_dtype");
  if (out.sizes() != at::IntArrayRef(sizes)) out.resize_(sizes);
  return out;
}

std::vector<int64_t> CombinedSizes(const Tensor& input, const Tensor& coefficients) {
  TORCH_CHECK(input.dim() >= 1 && coefficients.dim() >= 2 && input.numel() != 0, "_compute_linear_combination: nothing to combine in ",
              input.sizes());
  TORCH_CHECK(coefficients.numel() != 0 || coefficients.size(0) == 0, "_compute_linear_combination: there are no coefficients in ",
              coefficients.sizes());
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes[0] = coefficients.size(0);
  return sizes;
}
Tensor LinearCombination(const Tensor& input, const Tensor& coefficients) {
  return Empty(CombinedSizes(input, coefficients), input.options());
}
Tensor& LinearCombinationOut(const Tensor& input, const Tensor& coefficients, Tensor& out) {
  const std::vector<int64_t> sizes = CombinedSizes(input, coefficients);
  TORCH_CHECK(out.sizes() == at::IntArrayRef(sizes), "_compute_linear_combination: out= must have shape ", at::IntArrayRef(sizes), ", not ",
              out.sizes());
  return out;
}

Tensor& MvlgammaOut(const Tensor& self, int64_t p, Tensor& out) {
  const Tensor result = at::mvlgamma(self, p);
  FillLinalgOuts({{out, result.sizes().vec(), result.scalar_type()}}, "mvlgamma");
  return out;
}

// BLAS's results are contiguous, and of the factors' dtype.
constexpr FakeKernelOptions kBlas = {.out_dtype = FakeKernelOptions::OutDtype::kEqual,
                                     .out_strides = FakeKernelOptions::OutStrides::kContiguous};

DDPOPT_FAKE_KERNELS(m) {
  m.impl("mm", Mm, kNestedToo);
  m.impl("mm.out", MmOut, kNestedToo);
  m.impl("addmm", Addmm, kNestedToo);
  m.impl("addmm_", AddmmInPlace, kNestedToo);
  m.impl("addmm.out", AddmmOut, kNestedToo);
  m.impl("_addmm_activation", AddmmActivation, kBlas);
  m.impl("bmm", Bmm, kNestedToo);
  m.impl("bmm.out", BmmOut, kNestedToo);
  m.impl_if_present("_foreach_mm", ForeachMm, kThisForm);
  m.impl("baddbmm", Baddbmm, kNestedToo);
  m.impl("baddbmm_", BaddbmmInPlace, kNestedToo);
  m.impl("baddbmm.out", BaddbmmOut, kNestedToo);
  m.impl("addbmm", Addbmm);
  m.impl("addbmm_", AddbmmInPlace);
  m.impl("addbmm.out", AddbmmOut);
  m.impl("dot", Dot, kBlas);
  m.impl("vdot", Vdot, kBlas);
  m.impl("addmv", Addmv, kNestedToo);
  m.impl("addmv_", AddmvInPlace, kNestedToo);
  m.impl("addmv.out", AddmvOut, kNestedToo);
  m.impl("addr", Addr);
  m.impl("addr_", AddrInPlace);
  m.impl("addr.out", AddrOut);
  m.impl("_int_mm", IntMm);
  m.impl("_int_mm.out", IntMmOut);
  m.impl("_scaled_mm", ScaledMm);
  m.impl("_scaled_mm.out", ScaledMmOut);
  m.impl("_compute_linear_combination", LinearCombination);
  m.impl("_compute_linear_combination.out", LinearCombinationOut);
  m.impl("mvlgamma.out", MvlgammaOut);
}

}  // namespace
}  // namespace ddpopt::kernels
