#include "ddpopt/aot/direct_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ATen/Dispatch.h"
#include "ATen/core/function_schema.h"
#include "ATen/ops/_softmax.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/from_blob.h"
#include "ATen/ops/index_select.h"
#include "ddpopt/aot/layer_norm_kernels.h"

namespace ddpopt {

void WriteNothing(const torch::jit::Stack& /*arguments*/, c10::ArrayRef<at::Tensor> /*outs*/) {}

namespace {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;
using Outs = c10::ArrayRef<at::Tensor>;

Tensor OptionalTensor(const IValue& value) { return value.isTensor() ? value.toTensor() : Tensor(); }

void FillZero(const Stack& /*arguments*/, Outs outs) { outs[0].zero_(); }
void FillOne(const Stack& /*arguments*/, Outs outs) { outs[0].fill_(1); }
template <int kArgument>
void FillWith(const Stack& arguments, Outs outs) {
  outs[0].fill_(arguments[kArgument].toScalar());
}

// Larger copies are LibTorch's, which shares them out to threads.
constexpr std::size_t kSmallCopy = 32768;

template <int kSource>
void CopyFrom(const Stack& arguments, Outs outs) {
  const Tensor& from = arguments[kSource].toTensor();
  const Tensor& to = outs[0];
  if (from.nbytes() <= kSmallCopy && from.scalar_type() == to.scalar_type() && from.sizes() == to.sizes() && from.strides() == to.strides() &&
      from.is_non_overlapping_and_dense()) {
    if (from.numel() > 0) std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
    return;
  }
  to.copy_(from);
}

void SelectBackward(const Stack& arguments, Outs outs) {
  outs[0].zero_();
  outs[0].select(arguments[2].toInt(), arguments[3].toInt()).copy_(arguments[0].toTensor());
}

void SliceBackward(const Stack& arguments, Outs outs) {
  outs[0].zero_();
  outs[0].slice(arguments[2].toInt(), arguments[3].toInt(), arguments[4].toInt(), arguments[5].toInt()).copy_(arguments[0].toTensor());
}

void Embedding(const Stack& arguments, Outs outs) {
  const Tensor& weight = arguments[0].toTensor();
  const Tensor& indices = arguments[1].toTensor();
  Tensor rows = outs[0].view({indices.numel(), weight.size(1)});
  at::index_select_out(rows, weight, 0, indices.reshape({-1}));
}

// embedding_dense_backward(grad, indices, num_weights, padding_idx, scale_grad_by_freq): a row's parts are added up in the indices' order.
void EmbeddingDenseBackward(const Stack& arguments, Outs outs) {
  Tensor out = outs[0];
  out.zero_();
  out.index_add_(0, arguments[1].toTensor().reshape({-1}), arguments[0].toTensor().reshape({-1, out.size(1)}));
  const int64_t padding = arguments[3].toInt();
  if (padding >= 0 && padding < out.size(0)) out.select(0, padding).zero_();
}

// arange(end, ...), arange.start(start, end, ...), arange.start_step(start, end, step, ...)
void ArangeTo(const Stack& arguments, Outs outs) {
  Tensor out = outs[0];
  at::arange_out(out, arguments[0].toScalar());
}
void ArangeFrom(const Stack& arguments, Outs outs) {
  Tensor out = outs[0];
  at::arange_out(out, arguments[0].toScalar(), arguments[1].toScalar(), 1);
}
void ArangeBy(const Stack& arguments, Outs outs) {
  Tensor out = outs[0];
  at::arange_out(out, arguments[0].toScalar(), arguments[1].toScalar(), arguments[2].toScalar());
}

// Random numbers, drawn as the operator's in-place form draws them, of which the operator is a copy with other content.

std::optional<at::Generator> GeneratorOf(const IValue& value) { return value.isNone() ? std::nullopt : std::optional(value.toGenerator()); }

// Zeros and ones that were written as ints become numbers of at least the same size, in the same memory: the last ones first.
template <typename scalar_t>
void NumbersOfInts(const Tensor& out) {
  constexpr int64_t kBlock = 16;
  int32_t drawn[kBlock] = {};
  scalar_t numbers[kBlock];
  static_assert(sizeof(numbers) >= sizeof(drawn));
  char* const memory = static_cast<char*>(out.mutable_data_ptr());
  const auto convert = [&](int64_t begin, int64_t size) {
    std::memcpy(drawn, memory + begin * sizeof(drawn[0]), size * sizeof(drawn[0]));
    for (int64_t i = 0; i < kBlock; ++i) numbers[i] = static_cast<scalar_t>(drawn[i]);
    std::memcpy(memory + begin * sizeof(numbers[0]), numbers, size * sizeof(numbers[0]));
  };
  int64_t begin = out.numel() / kBlock * kBlock;
  if (begin < out.numel()) convert(begin, out.numel() - begin);
  while ((begin -= kBlock) >= 0) convert(begin, kBlock);
}

// bernoulli.p(self, p, generator?). Where LibTorch draws by MKL, it draws ints, for which it allocates memory unless ints are asked for.
void Bernoulli(const Stack& arguments, Outs outs) {
  const Tensor& out = outs[0];
  const double p = arguments[1].toDouble();
  const std::optional<at::Generator> generator = GeneratorOf(arguments[2]);
  const bool wide = out.scalar_type() == at::kFloat || out.scalar_type() == at::kDouble;
  if (!wide || !out.is_contiguous() || out.numel() == 0) {
    out.bernoulli_(p, generator);
    return;
  }
  at::from_blob(out.mutable_data_ptr(), out.sizes(), at::TensorOptions(at::kInt)).bernoulli_(p, generator);
  if (out.scalar_type() == at::kFloat) {
    NumbersOfInts<float>(out);
  } else {
    NumbersOfInts<double>(out);
  }
}
// uniform(self, from, to, generator?), normal_functional(self, mean, std, generator?)
void Uniform(const Stack& arguments, Outs outs) {
  outs[0].uniform_(arguments[1].toDouble(), arguments[2].toDouble(), GeneratorOf(arguments[3]));
}
void Normal(const Stack& arguments, Outs outs) {
  outs[0].normal_(arguments[1].toDouble(), arguments[2].toDouble(), GeneratorOf(arguments[3]));
}
// exponential(self, lambd, generator?)
void Exponential(const Stack& arguments, Outs outs) { outs[0].exponential_(arguments[1].toDouble(), GeneratorOf(arguments[2])); }
void RandLike(const Stack& /*arguments*/, Outs outs) { outs[0].uniform_(0, 1); }
void RandnLike(const Stack& /*arguments*/, Outs outs) { outs[0].normal_(0, 1); }

// The numbers of rows, and of elements that each is normalised over.
std::pair<int64_t, int64_t> RowsOf(const Tensor& x, const IValue& normalized_shape) {
  int64_t elements = 1;
  for (const int64_t size : normalized_shape.toIntVector()) elements *= size;
  return {elements == 0 ? 0 : x.numel() / elements, elements};
}

// native_layer_norm(input, normalized_shape, weight?, bias?, eps) -> (out, mean, rstd)
void LayerNorm(const Stack& arguments, Outs outs) {
  const Tensor& x = arguments[0].toTensor();
  const auto [rows, elements] = RowsOf(x, arguments[1]);
  Tensor out = outs[0], mean = outs[1], rstd = outs[2];
  LayerNormInto(x, OptionalTensor(arguments[2]), OptionalTensor(arguments[3]), rows, elements, arguments[4].toDouble(), &out, &mean, &rstd);
}

// native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight?, bias?, mask) -> (grad_input, grad_weight, grad_bias)
void LayerNormBackward(const Stack& arguments, Outs outs) {
  const Tensor& x = arguments[1].toTensor();
  const auto [rows, elements] = RowsOf(x, arguments[2]);
  Tensor grad_input = outs[0], grad_weight = outs[1], grad_bias = outs[2];
  LayerNormBackwardInto(arguments[0].toTensor(), x, arguments[3].toTensor(), arguments[4].toTensor(), OptionalTensor(arguments[5]), rows,
                        elements, &grad_input, &grad_weight, &grad_bias);
}

// Rows of minus infinities alone, of which softmax makes NaN, become zeros.
template <typename scalar_t>
void ZeroMaskedRows(const Tensor& x, const Tensor& out) {
  const int64_t length = x.size(-1);
  const scalar_t* in = x.const_data_ptr<scalar_t>();
  auto* result = out.mutable_data_ptr<scalar_t>();
  for (int64_t begin = 0; begin < x.numel(); begin += length) {
    if (!std::isnan(static_cast<float>(result[begin]))) continue;
    const bool masked = std::all_of(in + begin, in + begin + length, [](scalar_t value) {
      return static_cast<float>(value) == -std::numeric_limits<float>::infinity();
    });
    if (masked) std::fill(result + begin, result + begin + length, scalar_t(0));
  }
}

// _safe_softmax(self, dim, dtype?), of rows that lie one after another.
void SafeSoftmax(const Stack& arguments, Outs outs) {
  const Tensor& x = arguments[0].toTensor();
  Tensor out = outs[0];
  at::_softmax_out(out, x, arguments[1].toInt(), /*half_to_float=*/false);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "_safe_softmax", [&] { ZeroMaskedRows<scalar_t>(x, out); });
}

bool IsContiguous(const Tensor& fake) { return !fake.defined() || fake.is_contiguous(); }

// The dtypes of all these are one, and it is a plain floating one.
bool SameFloat(std::initializer_list<Tensor> fakes) {
  std::optional<at::ScalarType> dtype;
  for (const Tensor& fake : fakes) {
    if (!fake.defined()) continue;
    if (dtype.has_value() && *dtype != fake.scalar_type()) return false;
    dtype = fake.scalar_type();
  }
  return dtype.has_value() && (*dtype == at::kFloat || *dtype == at::kDouble);
}

bool LayerNormApplies(const Stack& arguments, Outs results) {
  const Tensor &x = arguments[0].toTensor(), weight = OptionalTensor(arguments[2]), bias = OptionalTensor(arguments[3]);
  if (!SameFloat({x, weight, bias, results[0], results[1], results[2]}) || x.numel() == 0) return false;
  return IsContiguous(x) && IsContiguous(weight) && IsContiguous(bias) && IsContiguous(results[0]) && IsContiguous(results[1]) &&
         IsContiguous(results[2]);
}

bool LayerNormBackwardApplies(const Stack& arguments, Outs results) {
  const Tensor &grad = arguments[0].toTensor(), &x = arguments[1].toTensor(), &mean = arguments[3].toTensor(), &rstd = arguments[4].toTensor(),
               weight = OptionalTensor(arguments[5]);
  if (!SameFloat({grad, x, mean, rstd, weight, results[0], results[1], results[2]}) || x.numel() == 0) return false;
  return IsContiguous(grad) && IsContiguous(x) && IsContiguous(mean) && IsContiguous(rstd) && IsContiguous(weight) &&
         IsContiguous(results[0]) && IsContiguous(results[1]) && IsContiguous(results[2]);
}

bool SafeSoftmaxApplies(const Stack& arguments, Outs results) {
  const Tensor& x = arguments[0].toTensor();
  const bool last = x.dim() > 0 && (arguments[1].toInt() == -1 || arguments[1].toInt() == x.dim() - 1);
  const bool floating = x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble || x.scalar_type() == at::kHalf ||
                        x.scalar_type() == at::kBFloat16;
  return last && floating && x.numel() > 0 && IsContiguous(x) && IsContiguous(results[0]) && results[0].scalar_type() == x.scalar_type();
}

bool CopyApplies(const Tensor& from, const Tensor& to) { return !from.is_complex() || to.is_complex(); }

bool EmbeddingApplies(const Stack& arguments, Outs results) {
  return arguments[0].toTensor().dim() == 2 && IsContiguous(results[0]) && results[0].numel() > 0;
}

// Of narrower floats, LibTorch rounds the sum of a row's parts in another way.
bool EmbeddingDenseBackwardApplies(const Stack& arguments, Outs results) {
  return !arguments[4].toBool() && SameFloat({arguments[0].toTensor(), results[0]}) && results[0].dim() == 2 && results[0].numel() > 0 &&
         IsContiguous(results[0]);
}

// What there is for the operators of each name.
DirectKernel Find(const std::string& name, const std::string& overload, const Stack& arguments, Outs results) {
  static const std::unordered_map<std::string, DirectKernel> fills = {
      {"aten::empty", &WriteNothing},      {"aten::empty_like", &WriteNothing},        {"aten::new_empty", &WriteNothing},
      {"aten::empty_strided", &WriteNothing}, {"aten::new_empty_strided", &WriteNothing}, {"aten::zeros", &FillZero},
      {"aten::zeros_like", &FillZero},     {"aten::new_zeros", &FillZero},             {"aten::ones", &FillOne},
      {"aten::ones_like", &FillOne},       {"aten::new_ones", &FillOne},               {"aten::full", &FillWith<1>},
      {"aten::full_like", &FillWith<1>},   {"aten::new_full", &FillWith<2>},           {"aten::scalar_tensor", &FillWith<0>},
  };
  if (const auto fill = fills.find(name); fill != fills.end()) return fill->second;
  static const std::unordered_map<std::string, DirectKernel> drawing = {
      {"aten::uniform", &Uniform},    {"aten::normal_functional", &Normal}, {"aten::exponential", &Exponential},
      {"aten::rand_like", &RandLike}, {"aten::randn_like", &RandnLike},
  };
  if (const auto draw = drawing.find(name); draw != drawing.end()) return overload.empty() ? draw->second : nullptr;
  if (name == "aten::bernoulli") return overload == "p" ? &Bernoulli : nullptr;
  if (name == "aten::clone" || name == "aten::_to_copy") {
    return CopyApplies(arguments[0].toTensor(), results[0]) ? &CopyFrom<0> : nullptr;
  }
  if (name == "aten::copy") return CopyApplies(arguments[1].toTensor(), results[0]) ? &CopyFrom<1> : nullptr;
  if (name == "aten::select_backward") return &SelectBackward;
  if (name == "aten::slice_backward") return &SliceBackward;
  if (name == "aten::embedding") return EmbeddingApplies(arguments, results) ? &Embedding : nullptr;
  if (name == "aten::embedding_dense_backward") {
    return EmbeddingDenseBackwardApplies(arguments, results) ? &EmbeddingDenseBackward : nullptr;
  }
  if (name == "aten::arange") {
    return overload.empty() ? &ArangeTo : overload == "start" ? &ArangeFrom : overload == "start_step" ? &ArangeBy : nullptr;
  }
  if (name == "aten::native_layer_norm") return HasLayerNormKernels() && LayerNormApplies(arguments, results) ? &LayerNorm : nullptr;
  if (name == "aten::native_layer_norm_backward") {
    return HasLayerNormKernels() && LayerNormBackwardApplies(arguments, results) ? &LayerNormBackward : nullptr;
  }
  if (name == "aten::_safe_softmax") return SafeSoftmaxApplies(arguments, results) ? &SafeSoftmax : nullptr;
  return nullptr;
}

}  // namespace

DirectKernel FindDirectKernel(const c10::OperatorHandle& op, const Stack& fake_arguments, Outs fake_results) {
  if (op.schema().is_mutable() || fake_results.empty()) return nullptr;
  return Find(op.operator_name().name, op.operator_name().overload_name, fake_arguments, fake_results);
}

namespace {

// Of each name, the overloads that write to arguments, in the dispatcher's order.
const std::unordered_map<std::string, std::vector<c10::OperatorName>>& MutableOverloads() {
  static const auto* const overloads = [] {
    auto* all = new std::unordered_map<std::string, std::vector<c10::OperatorName>>;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      const auto op = c10::Dispatcher::singleton().findSchema(name);
      if (op.has_value() && op->schema().is_mutable()) (*all)[name.name].push_back(name);
    }
    return all;
  }();
  return *overloads;
}

bool IsOutFormOf(const c10::FunctionSchema& form, const c10::FunctionSchema& schema) {
  const auto& wanted = schema.arguments();
  const auto& given = form.arguments();
  if (given.size() != wanted.size() + schema.returns().size()) return false;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const bool written = given[i].alias_info() != nullptr && given[i].alias_info()->isWrite();
    if (written != (i >= wanted.size())) return false;
    if (i >= wanted.size()) {
      if (given[i].type()->kind() != c10::TypeKind::TensorType) return false;
    } else if (given[i].name() != wanted[i].name() || *given[i].type() != *wanted[i].type() || given[i].kwarg_only() != wanted[i].kwarg_only()) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::optional<c10::OperatorHandle> FindOutForm(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  // Losses compute all elements in what they are given, resized, before they reduce them; some then give a wrong result.
  if (schema.argumentIndexWithName("reduction").has_value() && schema.name() != "aten::nll_loss_forward" &&
      schema.argumentIndexWithName("grad_output") == std::nullopt) {
    return std::nullopt;
  }
  if (schema.is_mutable() || schema.returns().empty()) return std::nullopt;
  for (const c10::Argument& result : schema.returns()) {
    if (result.type()->kind() != c10::TypeKind::TensorType || result.alias_info() != nullptr) return std::nullopt;
  }
  const auto overloads = MutableOverloads().find(schema.name());
  if (overloads == MutableOverloads().end()) return std::nullopt;
  for (const c10::OperatorName& name : overloads->second) {
    c10::OperatorHandle form = c10::Dispatcher::singleton().findSchemaOrThrow(name.name.c_str(), name.overload_name.c_str());
    // The others compute elsewhere and copy.
    if (IsOutFormOf(form.schema(), schema) && form.hasKernelForDispatchKey(c10::DispatchKey::CPU)) return form;
  }
  return std::nullopt;
}

}  // namespace ddpopt
