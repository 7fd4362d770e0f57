#include "fake_tensor/derived_kernel.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "ATen/MemoryOverlap.h"
#include "ATen/core/List.h"
#include "ATen/core/function_schema.h"
#include "ATen/core/jit_type.h"
#include "ATen/native/Resize.h"
#include "c10/core/ScalarType.h"
#include "c10/util/Exception.h"

namespace ddpopt {
namespace {

using at::Tensor;
using c10::IValue;
using Stack = torch::jit::Stack;

bool IsWritten(const c10::Argument& argument) { return argument.alias_info() != nullptr && argument.alias_info()->isWrite(); }

bool IsFactoryOption(const c10::Argument& argument) {
  const std::string& name = argument.name();
  return name == "dtype" || name == "layout" || name == "device" || name == "pin_memory";
}

void AppendTensors(const IValue& value, std::vector<Tensor>* tensors) {
  if (value.isTensor()) {
    tensors->push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const Tensor& tensor : value.toTensorVector()) tensors->push_back(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector()) {
      if (tensor.has_value()) tensors->push_back(*tensor);
    }
  }
}

class DerivedKernel final : public c10::OperatorKernel {
 public:
  // functional_args[i]: which of the form's arguments is the functional form's i-th; -1: left to the defaults.
  DerivedKernel(c10::OperatorHandle functional, c10::KernelFunction rule, FakeKernelOptions options, bool in_place, bool generated,
                std::vector<int> functional_args, std::vector<std::size_t> written)
      : functional_(functional),
        rule_(std::move(rule)),
        options_(options),
        in_place_(in_place),
        generated_(generated),
        functional_args_(std::move(functional_args)),
        written_(std::move(written)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const std::size_t num_args = op.schema().arguments().size();
    const std::size_t first = stack->size() - num_args;
    std::vector<Tensor> outs;
    for (const std::size_t i : written_) AppendTensors((*stack)[first + i], &outs);

    Stack inner;
    inner.reserve(functional_args_.size());
    std::vector<Tensor> inputs;
    for (std::size_t i = 0; i < functional_args_.size(); ++i) {
      if (functional_args_[i] >= 0) {
        inner.push_back((*stack)[first + functional_args_[i]]);
        AppendTensors(inner.back(), &inputs);
      } else {
        inner.push_back(FactoryOption(functional_.schema().arguments()[i].name(), outs));
      }
    }
    rule_.callBoxed(functional_, keys, &inner);
    std::vector<Tensor> results;
    for (const IValue& value : inner) AppendTensors(value, &results);
    TORCH_CHECK(results.size() == outs.size(), c10::toString(op.operator_name()), ": ", results.size(), " results for ", outs.size(),
                " tensors to write to");
    for (std::size_t i = 0; i < outs.size(); ++i) {
      TORCH_CHECK(!generated_ || results[i].defined(), c10::toString(op.operator_name()),
                  ": Expected out tensor to have dtype nullptr (uninitialized)");
      if (outs[i].defined() && results[i].defined()) Fill(op, outs[i], results[i], inputs);
    }

    const std::size_t num_returns = op.schema().returns().size();
    Stack returns;
    for (std::size_t i = 0; i < std::min(num_returns, written_.size()); ++i) returns.push_back((*stack)[first + written_[i]]);
    torch::jit::drop(*stack, num_args);
    for (IValue& value : returns) stack->push_back(std::move(value));
  }

 private:
  static IValue FactoryOption(const std::string& name, const std::vector<Tensor>& outs) {
    if (outs.empty() || !outs[0].defined()) return IValue();
    if (name == "dtype") return outs[0].scalar_type();
    if (name == "device") return outs[0].device();
    return IValue();
  }

  void Fill(const c10::OperatorHandle& op, const Tensor& out, const Tensor& result, const std::vector<Tensor>& inputs) const {
    if (generated_) {
      FillGenerated(op, out, result);
      return;
    }
    const bool same_shape = out.sizes() == result.sizes();
    TORCH_CHECK(same_shape || !in_place_, "output with shape ", out.sizes(), " doesn't match the broadcast shape ", result.sizes());
    if (options_.overlap != FakeKernelOptions::Overlap::kUnchecked) {
      at::assert_no_internal_overlap(out);
      for (const Tensor& input : inputs) {
        if (!input.defined() || input.is_same(out)) continue;
        if (options_.overlap == FakeKernelOptions::Overlap::kNone) {
          at::assert_no_overlap(out, input);
        } else {
          at::assert_no_partial_overlap(out, input);
        }
      }
    }
    if (options_.out_dtype == FakeKernelOptions::OutDtype::kEqual && !in_place_) {
      TORCH_CHECK(out.scalar_type() == result.scalar_type(), c10::toString(op.operator_name()), ": Expected out tensor to have dtype ",
                  result.scalar_type(), ", but got ", out.scalar_type(), " instead");
    } else {
      TORCH_CHECK(c10::canCast(result.scalar_type(), out.scalar_type()), "result type ", result.scalar_type(),
                  " can't be cast to the desired output type ", out.scalar_type());
    }
    if (same_shape) return;
    at::native::resize_output(out, result.sizes());
    if (options_.out_strides == FakeKernelOptions::OutStrides::kAsResult && result.numel() != 0) {
      out.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides());
    }
  }

  // What LibTorch generates from a functional form: its result is copied.
  static void FillGenerated(const c10::OperatorHandle& op, const Tensor& out, const Tensor& result) {
    at::native::resize_output(out, result.sizes());
    TORCH_CHECK(out.scalar_type() == result.scalar_type(), c10::toString(op.operator_name()), ": Expected out tensor to have dtype ",
                result.scalar_type(), ", but got ", out.scalar_type(), " instead");
    at::assert_no_internal_overlap(out);
  }

  c10::OperatorHandle functional_;
  c10::KernelFunction rule_;
  FakeKernelOptions options_;
  bool in_place_;
  bool generated_;
  std::vector<int> functional_args_;
  std::vector<std::size_t> written_;
};

// Which of the form's arguments gives each of the functional form's. Nothing if they don't correspond.
std::optional<std::vector<int>> Match(const c10::FunctionSchema& form, const c10::FunctionSchema& functional, bool in_place) {
  std::vector<int> matched;
  const auto& from = form.arguments();
  std::size_t next = 0;
  for (const c10::Argument& wanted : functional.arguments()) {
    if (IsWritten(wanted)) return std::nullopt;
    const bool fits = next < from.size() && from[next].name() == wanted.name() && *from[next].type() == *wanted.type() &&
                      (in_place || !IsWritten(from[next]));
    if (fits) {
      matched.push_back(static_cast<int>(next++));
    } else if (!in_place && IsFactoryOption(wanted)) {
      matched.push_back(-1);
    } else {
      return std::nullopt;
    }
  }
  // What remains are the tensors to write to.
  for (; next < from.size(); ++next) {
    if (in_place || !IsWritten(from[next])) return std::nullopt;
  }
  return matched;
}

}  // namespace

OverloadTable::OverloadTable() : names_(c10::Dispatcher::singleton().getAllOpNames()) {
  std::sort(names_.begin(), names_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
}

std::vector<c10::OperatorHandle> OverloadTable::Named(const std::string& name) const {
  std::vector<c10::OperatorHandle> found;
  const auto less = [](const c10::OperatorName& a, const std::string& b) { return a.name < b; };
  for (auto it = std::lower_bound(names_.begin(), names_.end(), name, less); it != names_.end() && it->name == name; ++it) {
    if (const auto op = c10::Dispatcher::singleton().findSchema(*it)) found.push_back(*op);
  }
  return found;
}

std::optional<c10::KernelFunction> DeriveKernel(const c10::OperatorHandle& form, const c10::OperatorHandle& functional,
                                                const c10::KernelFunction& rule, const FakeKernelOptions& options) {
  const c10::FunctionSchema& schema = form.schema();
  const bool in_place = schema.name() != functional.schema().name();
  std::vector<std::size_t> written;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    if (IsWritten(schema.arguments()[i])) written.push_back(i);
  }
  if (in_place ? written.size() != 1 || written[0] != 0 : written.size() != functional.schema().returns().size()) return std::nullopt;
  const std::optional<std::vector<int>> matched = Match(schema, functional.schema(), in_place);
  if (!matched.has_value() || written.empty()) return std::nullopt;
  const bool generated = !in_place && form.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
                         !form.hasKernelForDispatchKey(c10::DispatchKey::CPU);
  return c10::KernelFunction::makeFromBoxedFunctor(
      std::make_unique<DerivedKernel>(functional, rule, options, in_place, generated, *matched, std::move(written)));
}

}  // namespace ddpopt
