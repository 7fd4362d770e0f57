// Layouts, damage, and tensors for out=.

#include <algorithm>
#include <cctype>
#include <functional>
#include <numeric>
#include <utility>

#include "ATen/core/function_schema.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "c10/util/Exception.h"
#include "fake_tensor/cross_ref/builder.h"

namespace ddpopt::cross_ref {

using c10::IValue;
using c10::ScalarType;

void Builder::ChooseLayout(TensorSpec& spec) {
  using Layout = TensorSpec::Layout;
  spec.detail = static_cast<int64_t>(random_.Next() >> 1);
  const int64_t rank = static_cast<int64_t>(spec.sizes.size());
  const int64_t which = random_.Between(0, 99);
  if (recipe_->contiguous) return;
  const bool structured = spec.values == TensorSpec::Values::kPositiveDefinite || spec.values == TensorSpec::Values::kIncreasing;
  if (which < 50 || rank == 0) {
    spec.layout = which >= 95 ? Layout::kOffset : Layout::kContiguous;
  } else if (which < 66) {
    spec.layout = Layout::kPermuted;
  } else if (which < 76) {
    spec.layout = rank == 4 || rank == 5 ? Layout::kChannelsLast : Layout::kPermuted;
  } else if (which < 88) {
    spec.layout = Layout::kSliced;
  } else if (which < 95) {
    spec.layout = structured ? Layout::kContiguous : Layout::kExpanded;
  } else {
    spec.layout = Layout::kOffset;
  }
  if (c10::isComplexType(spec.dtype)) spec.conj = random_.Chance(12);
  if (spec.dtype != ScalarType::Bool && !structured) spec.neg = (c10::isFloatingType(spec.dtype) || spec.conj) && random_.Chance(2);
  spec.wrapped = rank == 0 && spec.layout == Layout::kContiguous && !spec.conj && !spec.neg && random_.Chance(25) &&
                 (spec.dtype == ScalarType::Double || spec.dtype == ScalarType::Long || spec.dtype == ScalarType::Bool ||
                  spec.dtype == ScalarType::ComplexDouble);
}

void Builder::Arrange() {
  std::vector<TensorSpec*> earlier;
  ForEachTensor([&](TensorSpec& spec) {
    ChooseLayout(spec);
    if (!earlier.empty() && random_.Chance(5) && !recipe_->unchecked) {
      // Another argument's tensor, or a view of it, where that could be meant.
      const int other = static_cast<int>(random_.Between(0, static_cast<int64_t>(earlier.size()) - 1));
      const TensorSpec& that = *earlier[other];
      if (that.dtype == spec.dtype && that.sizes == spec.sizes && that.values == TensorSpec::Values::kPlain &&
          spec.values == TensorSpec::Values::kPlain && that.other < 0) {
        spec = that;
        spec.layout = random_.Chance(60) ? TensorSpec::Layout::kSameAs : TensorSpec::Layout::kViewOf;
        spec.other = other;
      }
    }
    earlier.push_back(&spec);
  });
}

std::string Builder::Damage() {
  std::vector<std::size_t> candidates;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (!values_[i].has_value()) continue;
    const Value& value = *values_[i];
    if (!value.tensors.empty() || value.plain.isInt() || value.plain.isIntList() || value.plain.isDouble()) candidates.push_back(i);
  }
  if (candidates.empty()) return "";
  const std::size_t i = random_.Of(candidates);
  Value& value = *values_[i];
  const std::string& name = schema_.arguments()[i].name();
  if (!value.tensors.empty()) {
    // Whatever views it had been asked to be, sizes may not fit any more.
    ForEachTensor([](TensorSpec& spec) {
      if (spec.other >= 0) spec.layout = TensorSpec::Layout::kContiguous;
      spec.other = -1;
    });
    TensorSpec& spec = value.tensors[random_.Between(0, static_cast<int64_t>(value.tensors.size()) - 1)];
    if (!spec.defined) return "";
    spec.wrapped = false;
    switch (random_.Between(0, 7)) {
      case 0:
      case 1:
        spec.dtype = random_.Of(kDtypes);
        spec.conj &= c10::isComplexType(spec.dtype);
        spec.neg = false;
        return absl::StrCat("dtype of ", name);
      case 2:
      case 3: {
        if (spec.sizes.empty()) break;
        int64_t& size = spec.sizes[random_.Between(0, static_cast<int64_t>(spec.sizes.size()) - 1)];
        size += size == 0 || random_.Chance(60) ? 1 : -1;
        if (random_.Chance(10)) size = 0;
        return absl::StrCat("size of ", name);
      }
      case 4:
        if (spec.sizes.empty()) break;
        spec.sizes.erase(spec.sizes.begin() + random_.Between(0, static_cast<int64_t>(spec.sizes.size()) - 1));
        if (spec.layout == TensorSpec::Layout::kChannelsLast) spec.layout = TensorSpec::Layout::kPermuted;
        return absl::StrCat("rank of ", name);
      case 5:
        spec.sizes.insert(spec.sizes.begin() + random_.Between(0, static_cast<int64_t>(spec.sizes.size())), random_.Between(1, 3));
        if (spec.layout == TensorSpec::Layout::kChannelsLast) spec.layout = TensorSpec::Layout::kPermuted;
        return absl::StrCat("rank of ", name);
      case 6:
        if (spec.sizes.size() < 2) break;
        std::swap(spec.sizes.front(), spec.sizes.back());
        return absl::StrCat("sizes of ", name);
      default: {
        if (schema_.arguments()[i].type()->kind() == c10::TypeKind::OptionalType) {
          spec = Undefined();
          return absl::StrCat(name, " left out");
        }
        if (value.tensors.size() > 1) {
          value.tensors.pop_back();
          return absl::StrCat("length of ", name);
        }
        break;
      }
    }
    return "";
  }
  if (value.plain.isInt()) {
    const int64_t before = value.plain.toInt();
    if (KindOf(schema_.arguments()[i]) != ArgumentKind::kInt) return "";
    value.plain = random_.Of(std::initializer_list<int64_t>{before + 1, before - 1, -before, before + 7, before - 9, 0});
    return absl::StrCat("value of ", name);
  }
  if (value.plain.isIntList()) {
    Ints ints = value.plain.toIntVector();
    switch (random_.Between(0, 3)) {
      case 0:
        ints.push_back(1);
        break;
      case 1:
        if (!ints.empty()) ints.pop_back();
        break;
      case 2:
        if (!ints.empty()) ints[random_.Between(0, static_cast<int64_t>(ints.size()) - 1)] += random_.Chance(50) ? 5 : 1;
        break;
      default:
        if (!ints.empty()) ints[random_.Between(0, static_cast<int64_t>(ints.size()) - 1)] -= random_.Chance(30) ? 5 : 1;
        break;
    }
    value.plain = c10::List<int64_t>(ints);
    return absl::StrCat("value of ", name);
  }
  value.plain = random_.Of(std::initializer_list<double>{-0.5, 0.0, 3.0});
  return absl::StrCat("value of ", name);
}

std::optional<c10::OperatorHandle> Builder::Functional() const {
  std::vector<const c10::Argument*> wanted;
  for (const c10::Argument& argument : schema_.arguments()) {
    if (!IsOut(argument)) wanted.push_back(&argument);
  }
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name != schema_.name() || name.overload_name == schema_.overload_name()) continue;
    const std::optional<c10::OperatorHandle> op = c10::Dispatcher::singleton().findSchema(name);
    if (!op.has_value() || op->schema().arguments().size() != wanted.size()) continue;
    bool equal = true;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      equal &= op->schema().arguments()[i].name() == wanted[i]->name() && *op->schema().arguments()[i].type() == *wanted[i]->type();
    }
    if (equal) return op;
  }
  return std::nullopt;
}

void Builder::MakeOuts(bool damaged) {
  std::vector<std::size_t> outs;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (!values_[i].has_value()) outs.push_back(i);
  }
  if (outs.empty()) return;
  std::vector<TensorSpec> expected;
  bool several = false;  // results, of which out= is one
  // Some kernels read where a damaged operand has no elements.
  bool empty = false;
  ForEachTensor([&](const TensorSpec& spec) { empty |= spec.numel() == 0; });
  if (const std::optional<c10::OperatorHandle> functional = Functional(); functional.has_value() && !(damaged && empty)) {
    Call call{*functional, {}, random_.Next(), ""};
    for (const std::optional<Value>& value : values_) {
      if (value.has_value()) call.arguments.push_back(*value);
    }
    RefuseBadIndices(call);
    several = functional->schema().returns().size() > 1;
    try {
      std::vector<at::Tensor> results;
      Flatten(Run(*functional, Make(call).arguments), &results);
      for (const at::Tensor& result : results) {
        TensorSpec spec;
        if (result.defined() && std::find(std::begin(kDtypes), std::end(kDtypes), result.scalar_type()) != std::end(kDtypes)) {
          spec.dtype = result.scalar_type();
          spec.sizes = result.sizes().vec();
        }
        expected.push_back(spec);
      }
    } catch (const std::exception&) {
      // Refused: any out will do.
    }
  }
  std::size_t next = 0;
  for (const std::size_t i : outs) {
    Value value;
    const ArgumentKind kind = KindOf(schema_.arguments()[i]);
    value.kind = kind == ArgumentKind::kTensors ? Value::Kind::kTensors : Value::Kind::kTensor;
    std::size_t count = 1;
    if (kind == ArgumentKind::kTensors) count = expected.empty() || several ? list_length_ : expected.size();
    for (std::size_t k = 0; k < count; ++k) {
      TensorSpec spec;
      spec.dtype = dtype_;
      spec.sizes = {0};
      if (next < expected.size()) spec = expected[next++];
      OutSpec(spec);
      value.tensors.push_back(spec);
    }
    values_[i] = std::move(value);
  }
}

void Builder::OutSpec(TensorSpec& spec) {
  const int64_t which = random_.Between(0, 99);
  spec.detail = static_cast<int64_t>(random_.Next() >> 1);
  if (which < 45 || recipe_->plain_outs) return;
  if (which < 60) {
    spec.sizes = {0};
  } else if (which < 68) {
    spec.sizes = Shape("S9");
  } else if (which < 78) {
    spec.dtype = random_.Of(kDtypes);
  } else if (recipe_->contiguous) {
    return;
  } else if (which < 88) {
    spec.layout = TensorSpec::Layout::kPermuted;
  } else if (which < 91 && !recipe_->distinct_outs) {
    spec.layout = TensorSpec::Layout::kExpanded;
  } else if (which < 95 || recipe_->distinct_outs) {
    spec.layout = TensorSpec::Layout::kSliced;
  } else if (!recipe_->unchecked) {
    // An input's own tensor or memory.
    std::vector<TensorSpec*> inputs;
    std::vector<int> at;
    int number = 0;
    ForEachTensor([&](TensorSpec& input) {
      if (input.other < 0 && input.dtype == spec.dtype && input.values == TensorSpec::Values::kPlain && !input.wrapped) {
        inputs.push_back(&input);
        at.push_back(number);
      }
      ++number;
    });
    if (inputs.empty()) return;
    const std::size_t k = random_.Between(0, static_cast<int64_t>(inputs.size()) - 1);
    spec = *inputs[k];
    spec.other = at[k];
    spec.layout = random_.Chance(50) ? TensorSpec::Layout::kSameAs : TensorSpec::Layout::kViewOf;
  }
}

void Builder::Flatten(const IValue& value, std::vector<at::Tensor>* out) {
  if (value.isTensor()) {
    out->push_back(value.toTensor());
  } else if (value.isTuple()) {
    for (const IValue& element : value.toTupleRef().elements()) Flatten(element, out);
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) out->push_back(tensor);
  }
}

void Builder::RefuseBadIndices(const Call& call) {
  bool index = false;
  for (const Value& value : call.arguments) {
    for (const TensorSpec& spec : value.tensors) {
      if (!spec.defined || spec.values != TensorSpec::Values::kBelow || spec.numel() == 0) continue;
      if (spec.bound < 1) throw Discard();
      index = true;
    }
  }
  if (!index || call.damage.empty()) return;
  for (const Value& value : call.arguments) {
    for (const TensorSpec& spec : value.tensors) {
      if (spec.defined && spec.values != TensorSpec::Values::kBelow && spec.numel() == 0) throw Discard();
    }
  }
}

}  // namespace ddpopt::cross_ref
