#ifndef DDPOPT_FAKE_TENSOR_FAKE_KERNEL_H_
#define DDPOPT_FAKE_TENSOR_FAKE_KERNEL_H_

// Rules: what an operator returns on fake tensors. A rule is a C++ function of the operator's own signature. It is called with meta tensors
// (sizes, strides, dtype, no data) in the place of the fakes, makes its results on the meta device, and throws where the real kernel would.
//
//   at::Tensor Twice(const at::Tensor& self) { return at::empty_like(self); }
//   RegisterFakeKernel("my::twice", Twice);             // at run time, once a process
//
// A rule goes before LibTorch's own Meta kernel of the operator; a rule that calls its operator reaches that kernel. If LibTorch has no
// Meta kernel for the operator, or only a composition of other operators (CompositeExplicitAutograd), the rule is registered as one, so
// that kernels that call the operator find it too; such a rule must not call its own operator.
//
// Derived forms. A rule for a functional operator also serves the in-place form (`name_`) and the out= overloads with the same arguments.
// They check what LibTorch checks: an in-place result has self's shape, dtypes can be cast, written tensors don't overlap; out= tensors of
// another shape are resized. FakeKernelOptions says where an operator differs from that.
//
// Thread-safe. Rules hold for all modes of the process, and stay.

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "ATen/core/boxing/KernelFunction.h"
#include "ATen/core/boxing/OperatorKernel.h"
#include "ATen/core/dispatch/CppSignature.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/op_registration/infer_schema.h"
#include "ATen/core/stack.h"
#include "c10/core/Device.h"
#include "c10/util/Metaprogramming.h"

namespace ddpopt {

// How the derived forms check and fill what they write to.
struct FakeKernelOptions {
  // Whether out= may have any dtype that the result's can be cast to (as kernels on TensorIterator), or must have the result's.
  enum class OutDtype { kCastable, kEqual };
  // Strides of an out= tensor that had to be resized: those of the rule's result (as kernels on TensorIterator), or contiguous ones.
  enum class OutStrides { kAsResult, kContiguous };
  // Which memory a written tensor may share with the inputs: all of theirs or none (as kernels on TensorIterator), none, or any.
  enum class Overlap { kFullOrNone, kNone, kUnchecked };
  OutDtype out_dtype = OutDtype::kCastable;
  OutStrides out_strides = OutStrides::kAsResult;
  Overlap overlap = Overlap::kFullOrNone;
  bool derive_in_place = true;
  bool derive_out = true;
  // Whether LibTorch's own kernels that call the operator find the rule in the place of LibTorch's Meta kernel. Such a rule must not call
  // its own operator.
  bool replace_meta_kernel = false;
};

// The device that the fake tensors of the running call claim, for rules whose strides or support depend on it. The CPU outside of rules.
c10::Device ClaimedDevice();

namespace fake_kernel_internal {

// A rule that isn't yet matched to its operator.
struct PendingRule {
  std::string name;
  c10::KernelFunction kernel;
  // Null for boxed rules.
  std::optional<c10::impl::CppSignature> signature;
  void (*check_signature)(const c10::OperatorHandle&) = nullptr;
  std::unique_ptr<c10::FunctionSchema> (*infer_schema)() = nullptr;
  FakeKernelOptions options;
  bool may_be_absent = false;
  std::string place;  // for errors
};

// Matched at once if `now`, else at the first use of a FakeTensorMode.
void Register(PendingRule rule, bool now);

class BoxedRule final : public c10::OperatorKernel {
 public:
  explicit BoxedRule(c10::KernelFunction::BoxedKernelFunction* function) : function_(function) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) { function_(op, stack); }

 private:
  c10::KernelFunction::BoxedKernelFunction* function_;
};

template <typename Fn>
PendingRule MakeRule(std::string name, Fn fn, const FakeKernelOptions& options, std::string place) {
  PendingRule rule;
  rule.name = std::move(name);
  rule.options = options;
  rule.place = std::move(place);
  if constexpr (std::is_convertible_v<Fn, c10::KernelFunction::BoxedKernelFunction*>) {
    rule.kernel = c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<BoxedRule>(fn));
  } else {
    using Signature = typename c10::guts::infer_function_traits_t<std::remove_pointer_t<Fn>>::func_type;
    if constexpr (std::is_pointer_v<Fn>) {
      rule.kernel = c10::KernelFunction::makeFromUnboxedRuntimeFunction(fn);
    } else {
      rule.kernel = c10::KernelFunction::makeFromUnboxedLambda(std::move(fn));
    }
    rule.signature = c10::impl::CppSignature::make<Signature>();
    rule.check_signature = [](const c10::OperatorHandle& op) { op.typed<Signature>(); };
    rule.infer_schema = [] { return std::make_unique<c10::FunctionSchema>(c10::inferFunctionSchemaFlattenedReturns<Signature>()); };
  }
  return rule;
}

}  // namespace fake_kernel_internal

// Gives the operator `name` ("ns::op" or "ns::op.overload") the rule `fn`: a function pointer or lambda of the operator's signature on
// tensors, or a boxed kernel, void(const c10::OperatorHandle&, torch::jit::Stack*). Throws c10::Error if the operator has a rule already
// (the error names both), or if the signature doesn't fit. The operator may be defined later, until the first use of a FakeTensorMode, which
// throws for a name that no operator has.
template <typename Fn>
void RegisterFakeKernel(std::string name, Fn fn, const FakeKernelOptions& options = {}) {
  fake_kernel_internal::Register(fake_kernel_internal::MakeRule(std::move(name), std::move(fn), options, "RegisterFakeKernel"), true);
}

}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_FAKE_KERNEL_H_
