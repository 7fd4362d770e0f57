// From a call's description to tensors, text and the call itself.

#include <algorithm>
#include <numeric>
#include <sstream>
#include <utility>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/List.h"
#include "ATen/ops/_neg_view.h"
#include "ATen/ops/as_strided.h"
#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/GradMode.h"
#include "c10/util/Exception.h"
#include "fake_tensor/cross_ref/generator.h"
#include "fake_tensor/cross_ref/words.h"

namespace ddpopt::cross_ref {
namespace {

using c10::IValue;
using c10::ScalarType;
using Ints = std::vector<int64_t>;

template <typename T>
void FillAs(const at::Tensor& flat, const std::vector<double>& values) {
  T* data = flat.mutable_data_ptr<T>();
  for (std::size_t i = 0; i < values.size(); ++i) data[i] = static_cast<T>(values[i]);
}

// A tensor of one dimension and n elements.
at::Tensor Flat(const TensorSpec& spec, int64_t n, bool ordered, Random& random) {
  const at::Tensor flat = at::empty({n}, at::TensorOptions(spec.dtype));
  std::vector<double> values(n);
  const int64_t last = spec.sizes.empty() ? 1 : spec.sizes.back();
  const int64_t rows = spec.sizes.size() < 2 ? 1 : spec.sizes[spec.sizes.size() - 2];
  for (int64_t i = 0; i < n; ++i) {
    switch (spec.values) {
      case TensorSpec::Values::kBelow:
        values[i] = static_cast<double>(random.Between(0, std::max<int64_t>(spec.bound, 1) - 1));
        break;
      case TensorSpec::Values::kEqual:
        values[i] = static_cast<double>(spec.bound);
        break;
      case TensorSpec::Values::kIncreasing:
        values[i] = ordered ? static_cast<double>(i % last) : 0;
        break;
      case TensorSpec::Values::kPositiveDefinite:
        values[i] = ordered && i % last == (i / last) % rows ? static_cast<double>(last + 1)
                    : c10::isIntegralType(spec.dtype, true)  ? 0
                                                             : 0.25;
        break;
      case TensorSpec::Values::kPlain:
        values[i] = c10::isIntegralType(spec.dtype, false) ? static_cast<double>(random.Between(1, 3))
                    : spec.dtype == ScalarType::Bool       ? static_cast<double>(random.Between(0, 1))
                                                           : 0.1 + 0.8 * random.Unit();
        break;
    }
  }
  // The values that the tensor will show.
  if (spec.neg && spec.values == TensorSpec::Values::kPlain) {
    for (double& value : values) value = -value;
  }
  switch (spec.dtype) {
    case ScalarType::Float:
      FillAs<float>(flat, values);
      break;
    case ScalarType::Double:
      FillAs<double>(flat, values);
      break;
    case ScalarType::Half:
      FillAs<at::Half>(flat, values);
      break;
    case ScalarType::BFloat16:
      FillAs<at::BFloat16>(flat, values);
      break;
    case ScalarType::Long:
      FillAs<int64_t>(flat, values);
      break;
    case ScalarType::Int:
      FillAs<int32_t>(flat, values);
      break;
    case ScalarType::Short:
      FillAs<int16_t>(flat, values);
      break;
    case ScalarType::Char:
      FillAs<int8_t>(flat, values);
      break;
    case ScalarType::Byte:
      FillAs<uint8_t>(flat, values);
      break;
    case ScalarType::Bool:
      FillAs<bool>(flat, values);
      break;
    case ScalarType::ComplexFloat:
      FillAs<c10::complex<float>>(flat, values);
      break;
    case ScalarType::ComplexDouble:
      FillAs<c10::complex<double>>(flat, values);
      break;
    default:
      TORCH_CHECK(false, "cross_ref: values of ", c10::toString(spec.dtype));
  }
  return flat;
}

at::Tensor MakeTensor(const TensorSpec& spec, Random& random) {
  using Layout = TensorSpec::Layout;
  const int64_t rank = static_cast<int64_t>(spec.sizes.size());
  Random detail(static_cast<uint64_t>(spec.detail));
  Ints strides(rank, 1);
  int64_t offset = 0;
  // Dimensions from the innermost, and how many elements there are between neighbours.
  Ints order(rank);
  std::iota(order.rbegin(), order.rend(), 0);
  if (spec.layout == Layout::kPermuted) {
    for (int64_t i = rank - 1; i > 0; --i) std::swap(order[i], order[detail.Between(0, i)]);
  } else if (spec.layout == Layout::kChannelsLast && rank >= 3) {
    order.clear();
    order.push_back(1);
    for (int64_t i = rank - 1; i >= 2; --i) order.push_back(i);
    order.push_back(0);
  }
  int64_t step = 1;
  const int64_t special = rank == 0 ? 0 : detail.Between(0, rank - 1);
  for (const int64_t dim : order) {
    if (spec.layout == Layout::kSliced && dim == special) {
      const int64_t pace = detail.Between(1, 2), before = detail.Between(0, 1);
      strides[dim] = step * pace;
      offset += step * before;
      step *= spec.sizes[dim] * pace + before + detail.Between(0, 1);
    } else if (spec.layout == Layout::kExpanded && dim == special) {
      strides[dim] = 0;
    } else {
      strides[dim] = step;
      step *= std::max<int64_t>(spec.sizes[dim], 1);
    }
  }
  if (spec.layout == Layout::kOffset) {
    offset = detail.Between(1, 3);
    step += offset + detail.Between(0, 2);
  }
  // Some kernels write to out= as if it were contiguous; that shall stay within its storage.
  if (spec.layout != Layout::kContiguous) step = std::max(step, offset + spec.numel());
  const bool ordered = spec.layout == Layout::kContiguous;
  at::Tensor flat = Flat(spec, spec.numel() == 0 ? offset : step, ordered, random);
  at::Tensor tensor = at::as_strided(flat, spec.sizes, strides, offset);
  if (ordered && spec.numel() > 0) {
    // A base of its own: as_strided's result is a view.
    tensor = flat.view(spec.sizes);
  }
  if (spec.conj) tensor = tensor.conj();
  if (spec.neg) tensor = at::_neg_view(tensor);
  if (spec.wrapped) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

std::string Text(const IValue& value) {
  if (value.isNone()) return "None";
  std::ostringstream text;
  text << value;
  return text.str();
}

}  // namespace

int64_t TensorSpec::numel() const { return Product(sizes); }

std::string TensorSpec::ToString() const {
  static constexpr const char* kLayouts[] = {"",          " permuted", " channels_last", " sliced",
                                             " expanded", " offset",   " view of #",     " same as #"};
  if (!defined) return "None";
  return absl::StrCat(DtypeWord(dtype), "[", absl::StrJoin(sizes, ","), "]", kLayouts[static_cast<int>(layout)],
                      other >= 0 ? absl::StrCat(other) : "", conj ? " conj" : "", neg ? " neg" : "", wrapped ? " number" : "");
}

std::string Call::ToString() const {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Value& value = arguments[i];
    const c10::Argument& argument = op.schema().arguments()[i];
    std::string text;
    if (value.kind == Value::Kind::kPlain) {
      if (value.plain.isNone()) continue;
      const ArgumentKind kind = KindOf(argument);
      text =
          kind == ArgumentKind::kDtype && value.plain.isInt() ? DtypeWord(static_cast<ScalarType>(value.plain.toInt())) : Text(value.plain);
    } else {
      std::vector<std::string> tensors;
      for (const TensorSpec& spec : value.tensors) tensors.push_back(spec.ToString());
      text = absl::StrJoin(tensors, "; ");
      if (value.kind != Value::Kind::kTensor) text = absl::StrCat("[", text, "]");
    }
    parts.push_back(absl::StrCat(argument.name(), "=", text));
  }
  return absl::StrCat(c10::toString(op.operator_name()), "(", absl::StrJoin(parts, ", "), ")",
                      damage.empty() ? "" : absl::StrCat("  # ", damage));
}

MadeCall Make(const Call& call) {
  // Tensors that autograd doesn't know as views: some operators refuse those.
  const at::AutoDispatchBelowADInplaceOrView no_views;
  Random random(call.seed);
  MadeCall made;
  const auto make = [&](const TensorSpec& spec) {
    at::Tensor tensor;
    if (spec.layout == TensorSpec::Layout::kSameAs) {
      tensor = made.tensors.at(spec.other);
    } else if (spec.layout == TensorSpec::Layout::kViewOf) {
      const at::Tensor& other = made.tensors.at(spec.other);
      tensor = other.dim() >= 2 && spec.detail % 2 == 0 ? other.transpose(0, 1) : other.alias();
    } else {
      tensor = MakeTensor(spec, random);
    }
    made.tensors.push_back(tensor);
    return tensor;
  };
  for (const Value& value : call.arguments) {
    switch (value.kind) {
      case Value::Kind::kPlain:
        made.arguments.push_back(value.plain);
        break;
      case Value::Kind::kTensor:
        if (value.tensors[0].defined) {
          made.arguments.emplace_back(make(value.tensors[0]));
        } else {
          made.arguments.emplace_back();
        }
        break;
      case Value::Kind::kTensors: {
        c10::List<at::Tensor> list;
        for (const TensorSpec& spec : value.tensors) list.push_back(make(spec));
        made.arguments.emplace_back(std::move(list));
        break;
      }
      case Value::Kind::kOptionalTensors: {
        c10::List<std::optional<at::Tensor>> list;
        for (const TensorSpec& spec : value.tensors) {
          if (spec.defined) {
            list.push_back(std::optional<at::Tensor>(make(spec)));
          } else {
            list.push_back(std::optional<at::Tensor>());
          }
        }
        made.arguments.emplace_back(std::move(list));
        break;
      }
    }
  }
  return made;
}

c10::IValue Run(const c10::OperatorHandle& op, std::vector<c10::IValue> arguments) {
  c10::AutoGradMode no_grad(false);
  op.callBoxed(arguments);
  if (arguments.empty()) return IValue();
  if (arguments.size() == 1) return arguments[0];
  return c10::ivalue::Tuple::create(std::move(arguments));
}

}  // namespace ddpopt::cross_ref
