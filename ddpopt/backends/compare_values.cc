#include "ddpopt/backends/compare_values.h"

#include <exception>
#include <functional>
#include <string>
#include <utility>

#include "ATen/Context.h"
#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/add.h"
#include "ATen/ops/allclose.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/sin.h"
#include "ATen/ops/sub.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ddpopt/backends/minimizer.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "interpreter/interpreter.h"
#include "torch/csrc/autograd/autograd.h"

namespace ddpopt {
namespace {

using c10::IValue;

void Flatten(const IValue& value, std::vector<IValue>* flat) {
  if (value.isTuple()) {
    for (const IValue& element : value.toTupleRef().elements()) Flatten(element, flat);
  } else if (value.isList()) {
    for (const IValue& element : value.toListRef()) Flatten(element, flat);
  } else {
    flat->push_back(value);
  }
}

struct Run {
  std::string error;
  std::vector<IValue> inputs, results;
};

// Weights without a pattern, the same for the same shape.
at::Tensor WeightsFor(const at::Tensor& result, double phase) {
  return at::sin(at::add(at::arange(result.numel(), at::kDouble), phase)).to(result.scalar_type()).reshape(result.sizes());
}

template <typename Fn>
Run Train(const std::vector<IValue>& inputs, const CompareOptions& options, const Fn& call) {
  Run run;
  run.inputs = CloneInputs(inputs);
  try {
    at::manual_seed(options.seed);
    Flatten(call(run.inputs), &run.results);
    torch::autograd::variable_list roots, weights;
    for (const IValue& result : run.results) {
      if (!result.isTensor() || !result.toTensor().defined() || !result.toTensor().requires_grad()) continue;
      roots.push_back(result.toTensor());
      weights.push_back(WeightsFor(result.toTensor(), static_cast<double>(roots.size())));
    }
    if (!roots.empty()) torch::autograd::backward(roots, weights);
  } catch (const c10::Error& error) {
    run.error = error.what_without_backtrace();
  } catch (const std::exception& error) {
    run.error = error.what();
  }
  if (run.error.empty()) return run;
  run.error = run.error.substr(0, run.error.find('\n'));
  return run;
}

std::string Difference(const at::Tensor& want, const at::Tensor& got, const CompareOptions& options) {
  if (want.defined() != got.defined()) return got.defined() ? "there is one where eager has none" : "there is none where eager has one";
  if (!want.defined()) return "";
  if (want.sizes() != got.sizes()) return absl::StrCat("shapes differ");
  if (want.scalar_type() != got.scalar_type()) {
    return absl::StrCat("is ", c10::toString(got.scalar_type()), " where eager's is ", c10::toString(want.scalar_type()));
  }
  const at::NoGradGuard no_grad;
  const at::Tensor a = want.detach(), b = got.detach();
  if (at::allclose(b, a, options.rtol, options.atol, /*equal_nan=*/true)) return "";
  const at::Tensor off = at::sub(a.to(at::kComplexDouble), b.to(at::kComplexDouble)).abs();
  return absl::StrCat("differs from eager's, by at most ", off.max().item<double>());
}

}  // namespace

std::vector<IValue> CloneInputs(const std::vector<IValue>& inputs) {
  const at::NoGradGuard no_grad;
  absl::flat_hash_map<const c10::StorageImpl*, c10::Storage> storages;
  absl::flat_hash_map<const c10::TensorImpl*, at::Tensor> tensors;
  std::vector<IValue> clones;
  for (const IValue& input : inputs) {
    if (!input.isTensor() || !input.toTensor().defined() || !input.toTensor().has_storage()) {
      clones.push_back(input);
      continue;
    }
    const at::Tensor& tensor = input.toTensor();
    at::Tensor& clone = tensors[tensor.unsafeGetTensorImpl()];
    if (!clone.defined()) {
      c10::Storage& storage = storages[tensor.storage().unsafeGetStorageImpl()];
      if (!storage) {
        const int64_t bytes = static_cast<int64_t>(tensor.storage().nbytes());
        const at::Tensor whole = at::empty({0}, at::device(tensor.device()).dtype(at::kByte)).set_(tensor.storage(), 0, {bytes}, {1});
        storage = whole.clone().storage();
      }
      clone =
          at::empty({0}, tensor.options().requires_grad(false)).set_(storage, tensor.storage_offset(), tensor.sizes(), tensor.strides());
      if (tensor.is_conj()) clone = clone.conj();
      if (tensor.is_neg()) clone = clone._neg_view();
      clone = clone.detach();
      clone.set_requires_grad(tensor.requires_grad());
    }
    clones.emplace_back(clone);
  }
  return clones;
}

std::string FailureOf(const CompileFn& backend, const fx::GraphModule& module, const std::vector<IValue>& inputs,
                      const CompareOptions& options) {
  const Run want = Train(inputs, options, [&](const std::vector<IValue>& args) { return CallGraphModule(module, args); });
  if (!want.error.empty()) return "";
  const auto mode = FakeTensorMode::Create();
  std::vector<IValue> fakes;
  for (const IValue& input : CloneInputs(inputs)) {
    fakes.push_back(input.isTensor() && input.toTensor().defined() ? IValue(mode->FromReal(input.toTensor())) : input);
  }
  absl::StatusOr<std::shared_ptr<const CompiledPiece>> piece =
      CatchAsStatus("", [&] { return backend(module.Clone(), fakes, CompileContext{"minimize"}); });
  if (piece.status().code() == absl::StatusCode::kUnimplemented) return "";
  if (!piece.ok()) return absl::StrCat("compiling: ", piece.status().ToString());
  const Run got = Train(inputs, options, [&](const std::vector<IValue>& args) { return (*piece)->Call(args); });
  if (!got.error.empty()) return absl::StrCat("throws: ", got.error);
  if (got.results.size() != want.results.size()) {
    return absl::StrCat("result ", want.results.size(), ": there are ", got.results.size(), " results where eager has ",
                        want.results.size());
  }
  for (std::size_t i = 0; i < want.results.size(); ++i) {
    const IValue &a = want.results[i], &b = got.results[i];
    if (a.isTensor() != b.isTensor()) return absl::StrCat("result ", i, ": is ", b.tagKind(), " where eager's is ", a.tagKind());
    if (!a.isTensor()) continue;
    if (const std::string what = Difference(a.toTensor(), b.toTensor(), options); !what.empty())
      return absl::StrCat("result ", i, ": ", what);
  }
  for (std::size_t i = 0; i < want.inputs.size(); ++i) {
    if (!want.inputs[i].isTensor() || !want.inputs[i].toTensor().defined()) continue;
    const at::Tensor &a = want.inputs[i].toTensor(), &b = got.inputs[i].toTensor();
    if (const std::string what = Difference(a, b, options); !what.empty()) return absl::StrCat("content of input ", i, ": ", what);
    if (!a.is_leaf() || !b.is_leaf()) continue;
    if (const std::string what = Difference(a.grad(), b.grad(), options); !what.empty())
      return absl::StrCat("gradient of input ", i, ": ", what);
  }
  return "";
}

}  // namespace ddpopt
