#include "testing/call_outcome.h"

#include <exception>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "c10/core/ScalarType.h"
#include "c10/util/Exception.h"

namespace ddpopt::testing {
namespace {

using c10::IValue;

const c10::StorageImpl* StorageOf(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

void Flatten(const IValue& value, std::vector<IValue>* out) {
  if (value.isTuple()) {
    for (const IValue& element : value.toTupleRef().elements()) Flatten(element, out);
  } else if (value.isList()) {
    for (const IValue& element : value.toListRef()) Flatten(element, out);
  } else {
    out->push_back(value);
  }
}

std::string Text(const IValue& value) {
  if (value.isNone()) return "None";
  std::ostringstream text;
  text << value;
  return text.str();
}

// The first field in which two tensors differ.
std::string TensorDifference(const TensorFacts& want, const TensorFacts& got) {
  const auto differ = [&](const char* field) { return absl::StrCat(field, ": want ", want.ToString(), ", got ", got.ToString()); };
  if (want.defined != got.defined) return differ("definedness");
  if (!want.defined) return "";
  if (want.dtype != got.dtype) return differ("dtype");
  if (want.sizes != got.sizes) return differ("shape");
  if (want.device != got.device) return differ("device");
  bool empty = false;
  for (const int64_t size : want.sizes) empty |= size == 0;
  for (std::size_t i = 0; i < want.sizes.size() && !empty; ++i) {
    if (want.sizes[i] > 1 && want.strides[i] != got.strides[i]) return differ("stride");
  }
  if (want.offset != got.offset) return differ("offset");
  if (want.storage_bytes != got.storage_bytes) return differ("storage size");
  if (want.conj != got.conj || want.neg != got.neg) return differ("conj or neg bit");
  return "";
}

}  // namespace

TensorFacts TensorFacts::Of(const at::Tensor& tensor) {
  TensorFacts facts;
  if (!tensor.defined()) return facts;
  facts.defined = true;
  facts.dtype = tensor.scalar_type();
  facts.sizes = tensor.sizes().vec();
  facts.strides = tensor.strides().vec();
  facts.offset = tensor.storage_offset();
  facts.storage_bytes = static_cast<int64_t>(tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes());
  facts.device = tensor.device();
  facts.conj = tensor.is_conj();
  facts.neg = tensor.is_neg();
  return facts;
}

std::string TensorFacts::ToString() const {
  if (!defined) return "undefined";
  return absl::StrCat(c10::toString(dtype), "[", absl::StrJoin(sizes, ","), "] strides (", absl::StrJoin(strides, ","), ") at ", offset,
                      " of ", storage_bytes, " bytes on ", device.str(), conj ? ", conj" : "", neg ? ", neg" : "");
}

Outcome Observe(const std::vector<at::Tensor>& inputs, const std::function<IValue()>& call) {
  Outcome outcome;
  IValue value;
  try {
    value = call();
  } catch (const std::exception& error) {
    outcome.error = ExceptionMessage(error);
    const bool data_dependent = absl::StrContains(outcome.error, "depends on data") || absl::StrContains(outcome.error, "data-dependent");
    outcome.kind = data_dependent ? Outcome::Kind::kDataDependent : Outcome::Kind::kRejected;
    return outcome;
  }
  std::vector<IValue> flat;
  Flatten(value, &flat);
  std::vector<const c10::StorageImpl*> storages;
  for (const IValue& result : flat) {
    ResultFacts facts;
    if (!result.isTensor()) {
      facts.value = Text(result);
      outcome.results.push_back(facts);
      continue;
    }
    const at::Tensor& tensor = result.toTensor();
    facts.tensor = TensorFacts::Of(tensor);
    if (tensor.defined()) {
      const c10::StorageImpl* storage = StorageOf(tensor);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (!inputs[i].defined()) continue;
        if (facts.same < 0 && inputs[i].is_same(tensor)) facts.same = static_cast<int>(i);
        if (facts.shares < 0 && StorageOf(inputs[i]) == storage) facts.shares = static_cast<int>(i);
      }
      std::size_t number = 0;
      while (number < storages.size() && storages[number] != storage) ++number;
      if (number == storages.size()) storages.push_back(storage);
      facts.storage = static_cast<int>(number);
    }
    outcome.results.push_back(facts);
  }
  for (const at::Tensor& input : inputs) outcome.inputs.push_back(TensorFacts::Of(input));
  return outcome;
}

std::string Difference(const Outcome& want, const Outcome& got) {
  using Kind = Outcome::Kind;
  if (want.kind != got.kind) {
    const auto name = [](const Outcome& outcome) {
      if (outcome.kind == Kind::kReturned) return std::string("a result");
      return absl::StrCat(outcome.kind == Kind::kRejected ? "a rejection" : "a data-dependent error", " (", outcome.error, ")");
    };
    return absl::StrCat("outcome: want ", name(want), ", got ", name(got));
  }
  if (want.kind != Kind::kReturned) return "";
  if (want.results.size() != got.results.size()) {
    return absl::StrCat("number of results: want ", want.results.size(), ", got ", got.results.size());
  }
  for (std::size_t i = 0; i < want.results.size(); ++i) {
    const ResultFacts& a = want.results[i];
    const ResultFacts& b = got.results[i];
    const std::string where = absl::StrCat("result ", i, ", ");
    if (a.value != b.value) return absl::StrCat(where, "value: want ", a.value, ", got ", b.value);
    if (const std::string difference = TensorDifference(a.tensor, b.tensor); !difference.empty()) return where + difference;
    if (a.same != b.same) return absl::StrCat(where, "identity: want input ", a.same, ", got ", b.same, " (-1: none)");
    if (a.shares != b.shares) return absl::StrCat(where, "aliasing: want the storage of input ", a.shares, ", got ", b.shares, " (-1: none)");
    if (a.storage != b.storage) return absl::StrCat(where, "aliasing: want storage ", a.storage, " among the results, got ", b.storage);
  }
  if (want.inputs.size() != got.inputs.size()) {
    return absl::StrCat("number of inputs: want ", want.inputs.size(), ", got ", got.inputs.size());
  }
  for (std::size_t i = 0; i < want.inputs.size(); ++i) {
    if (const std::string difference = TensorDifference(want.inputs[i], got.inputs[i]); !difference.empty()) {
      return absl::StrCat("input ", i, " afterwards, ", difference);
    }
  }
  return "";
}

}  // namespace ddpopt::testing
