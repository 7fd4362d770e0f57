#include "fake_tensor/call_cache.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "ATen/Context.h"
#include "ATen/Parallel.h"
#include "ATen/core/Generator.h"
#include "ATen/core/List.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/DefaultDtype.h"
#include "c10/core/GradMode.h"
#include "c10/core/InferenceMode.h"
#include "fake_tensor/constants.h"
#include "fake_tensor/rules.h"

namespace ddpopt {
namespace {

using c10::IValue;

// More operands than this are not worth the search for shared memory.
constexpr std::size_t kMaxInputs = 48;

enum Tag : uint64_t {
  kNone,
  kInt,
  kDouble,
  kBool,
  kComplex,
  kNumber,
  kString,
  kDevice,
  kInts,
  kDoubles,
  kBools,
  kTensors,
  kOptionalTensors,
  kTensor,
  kSameTensor,
  kWrapped,
  kUndefined,
  kScalars,
  kGenerator
};

uint64_t Bits(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

uint64_t DeviceWord(c10::Device device) {
  return static_cast<uint64_t>(static_cast<uint8_t>(device.type())) | static_cast<uint64_t>(static_cast<uint8_t>(device.index())) << 8;
}

// What rules can read of the thread and the process.
uint64_t StateWord() {
  const at::Context& context = at::globalContext();
  uint64_t word = RulesEpoch() << 32;
  word |= static_cast<uint64_t>(static_cast<uint8_t>(c10::typeMetaToScalarType(c10::get_default_dtype()))) << 8;
  word |= c10::InferenceMode::is_enabled() ? 1 : 0;
  word |= c10::GradMode::is_enabled() ? 2 : 0;
  word |= context.deterministicAlgorithms() ? 4 : 0;
  word |= context.userEnabledMkldnn() ? 8 : 0;
  word |= context.deterministicFillUninitializedMemory() ? 16 : 0;
  word |= context.deterministicAlgorithmsWarnOnly() ? 32 : 0;
  word |= at::get_num_threads() > 1 ? 64 : 0;
  return word;
}

uint64_t HashOf(absl::Span<const uint64_t> words) {
  uint64_t hash = 0x9e3779b97f4a7c15ULL ^ words.size();
  for (const uint64_t word : words) {
    const unsigned __int128 product = static_cast<unsigned __int128>(hash ^ word) * 0xd6e8feb86659fd93ULL;
    hash = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    hash += 0x9e3779b97f4a7c15ULL;
  }
  return hash;
}

}  // namespace

CallKey::CallKey(const c10::OperatorHandle& op, const OpInfo& info, const torch::jit::Stack& stack, std::size_t first, std::size_t num_args)
    : bypass_(info.cacheable ? nullptr : info.bypass), views_(info.returns_views) {
  words_.push_back(reinterpret_cast<uint64_t>(&op.schema()));
  words_.push_back(StateWord());
  for (std::size_t i = 0; i < num_args; ++i) Add(stack[first + i], info.value_irrelevant[i]);
}

int CallKey::IndexOf(const FakeTensorImpl* impl) const {
  const auto found = std::find(inputs_.begin(), inputs_.end(), impl);
  return found == inputs_.end() ? -1 : static_cast<int>(found - inputs_.begin());
}

void CallKey::Add(const IValue& value, bool value_irrelevant) {
  if (value.isTensor()) {
    Add(value.toTensor());
  } else if (value.isNone()) {
    words_.push_back(kNone);
  } else if (value.isInt()) {
    words_.push_back(kInt);
    words_.push_back(static_cast<uint64_t>(value.toInt()));
  } else if (value.isDouble()) {
    // Small ones fit into every dtype; a rule may still ask for the sign.
    const double number = value.toDouble();
    const bool same_for_all = value_irrelevant && number >= -127 && number <= 127;
    words_.push_back(kDouble | (same_for_all ? (number < 0 ? 1 : 2) : 0) << 8);
    if (!same_for_all) words_.push_back(Bits(number));
  } else if (value.isBool()) {
    words_.push_back(kBool);
    words_.push_back(value.toBool() ? 1 : 0);
  } else if (value.isIntList()) {
    const c10::List<int64_t> list = value.toIntList();
    words_.push_back(kInts | list.size() << 8);
    for (const int64_t element : list) words_.push_back(static_cast<uint64_t>(element));
  } else if (value.isTensorList()) {
    const c10::ArrayRef<IValue> list = value.toListRef();
    words_.push_back(kTensors | list.size() << 8);
    for (const IValue& element : list) Add(element.toTensor());
  } else if (value.isDevice()) {
    words_.push_back(kDevice | DeviceWord(value.toDevice()) << 8);
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    words_.push_back(kString | text.size() << 8);
    for (std::size_t i = 0; i < text.size(); i += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + i, std::min(sizeof(word), text.size() - i));
      words_.push_back(word);
    }
  } else if (value.isBoolList()) {
    const c10::List<bool> list = value.toBoolList();
    words_.push_back(kBools | list.size() << 8);
    for (const bool element : list) words_.push_back(element ? 1 : 0);
  } else if (value.isDoubleList()) {
    const c10::List<double> list = value.toDoubleList();
    words_.push_back(kDoubles | list.size() << 8);
    for (const double element : list) words_.push_back(Bits(element));
  } else if (value.isComplexDouble()) {
    const c10::complex<double> complex = value.toComplexDouble();
    words_.push_back(kComplex);
    words_.push_back(Bits(complex.real()));
    words_.push_back(Bits(complex.imag()));
  } else if (value.isOptionalTensorList() || (value.isList() && value.toListRef().empty())) {
    const c10::ArrayRef<IValue> list = value.toListRef();
    words_.push_back(kOptionalTensors | list.size() << 8);
    for (const IValue& element : list) Add(element, false);
  } else if (value.isList()) {
    // Lists of numbers of several kinds, as _foreach_ operators take.
    const c10::ArrayRef<IValue> list = value.toListRef();
    words_.push_back(kScalars | list.size() << 8);
    for (const IValue& element : list) {
      if (element.isTensor() || element.isList()) {
        Bypass("argument of an unusual kind");
      } else {
        Add(element, value_irrelevant);
      }
    }
  } else if (value.isGenerator()) {
    // Random operators draw nothing here, but look where the generator is.
    words_.push_back(value.isPtrType() ? kGenerator | DeviceWord(value.toGenerator().device()) << 8 : kNone);
  } else {
    Bypass("argument of an unusual kind");
  }
}

void CallKey::Add(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    words_.push_back(kUndefined);
    return;
  }
  FakeTensorImpl* impl = FakeTensorImpl::Of(tensor);
  if (impl == nullptr) {
    if (!tensor.unsafeGetTensorImpl()->is_wrapped_number() || !tensor.device().is_cpu()) {
      has_real_ = true;
      all_known_ = false;
      Bypass("real tensor");
      return;
    }
    if (views_) Bypass("view of a number");
    words_.push_back(kWrapped | static_cast<uint64_t>(tensor.scalar_type()) << 8);
    return;
  }
  if (const int known = IndexOf(impl); known >= 0) {
    words_.push_back(kSameTensor | static_cast<uint64_t>(known) << 8);
    return;
  }
  if (inputs_.size() >= kMaxInputs) {
    Bypass("many operands");
    all_known_ = false;
    return;
  }
  const c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  uint64_t shared = 0;
  for (std::size_t i = 0; i < inputs_.size() && shared == 0; ++i) {
    if (inputs_[i]->unsafe_storage().unsafeGetStorageImpl() == storage) shared = i + 1;
  }
  inputs_.push_back(impl);
  all_known_ = all_known_ && IsKnown(*impl);

  const c10::IntArrayRef sizes = impl->sizes();
  const c10::IntArrayRef strides = impl->strides();
  const uint64_t flags =
      (impl->is_conj() ? 1 : 0) | (impl->is_neg() ? 2 : 0) | (impl->is_wrapped_number() ? 4 : 0) | (impl->is_inference() ? 8 : 0);
  words_.push_back(kTensor | static_cast<uint64_t>(static_cast<uint8_t>(c10::typeMetaToScalarType(impl->dtype()))) << 8 | flags << 16 |
                   DeviceWord(impl->device()) << 24 | shared << 40 | static_cast<uint64_t>(sizes.size()) << 48);
  words_.push_back(storage->nbytes());
  words_.push_back(static_cast<uint64_t>(impl->storage_offset()));
  for (const int64_t size : sizes) words_.push_back(static_cast<uint64_t>(size));
  for (const int64_t stride : strides) words_.push_back(static_cast<uint64_t>(stride));
}

bool CachedTensor::operator==(const CachedTensor& other) const {
  if (kind != other.kind || index != other.index) return false;
  if (kind == Kind::kUndefined || kind == Kind::kInput) return true;
  return conj == other.conj && neg == other.neg && wrapped_number == other.wrapped_number && view_kind == other.view_kind &&
         dtype == other.dtype && device == other.device && offset == other.offset && sizes == other.sizes && strides == other.strides;
}

bool CachedCall::operator==(const CachedCall& other) const {
  return returns == other.returns && new_bytes == other.new_bytes && tensors.size() == other.tensors.size() &&
         std::equal(tensors.begin(), tensors.end(), other.tensors.begin());
}

std::string CachedCall::ToString() const {
  std::vector<std::string> parts;
  for (const CachedTensor& tensor : tensors) {
    const std::string geometry =
        absl::StrCat(" (", std::string(tensor.dtype.name()), "[", absl::StrJoin(tensor.sizes, ","), "] strides [",
                     absl::StrJoin(tensor.strides, ","), "] at ", tensor.offset, " on ", tensor.device.str(), tensor.conj ? ", conj" : "",
                     tensor.neg ? ", neg" : "", tensor.wrapped_number ? ", number" : "", ")");
    switch (tensor.kind) {
      case CachedTensor::Kind::kUndefined:
        parts.emplace_back("undefined");
        break;
      case CachedTensor::Kind::kInput:
        parts.push_back(absl::StrCat("operand ", tensor.index));
        break;
      case CachedTensor::Kind::kView:
        parts.push_back(absl::StrCat("view of operand ", tensor.index, geometry));
        break;
      case CachedTensor::Kind::kNew:
        parts.push_back(absl::StrCat("new in storage ", tensor.index, " of ", new_bytes[tensor.index], " bytes", geometry));
    }
  }
  return absl::StrCat(absl::StrJoin(parts, "; "), ", returned as [", absl::StrJoin(returns, ","), "]");
}

CallCache::KeyView CallCache::ViewOf(absl::Span<const uint64_t> words) { return {HashOf(words), words}; }

const CachedCall* CallCache::Find(absl::Span<const uint64_t> key) const {
  const auto found = calls_.find(ViewOf(key));
  return found == calls_.end() ? nullptr : &(*found)->call;
}

void CallCache::Insert(absl::Span<const uint64_t> key, CachedCall call) {
  if (limit_ == 0) return;
  if (calls_.size() >= limit_) calls_.clear();
  auto entry = std::make_unique<Entry>(Entry{HashOf(key), key.size(), std::make_unique<uint64_t[]>(key.size()), std::move(call)});
  std::copy(key.begin(), key.end(), entry->words.get());
  calls_.insert(std::move(entry));
}

void PushResults(const CachedCall& call, const CallKey& key, const std::shared_ptr<FakeTensorMode>& mode, torch::jit::Stack* stack,
                 std::size_t first) {
  c10::SmallVector<c10::Storage, 2> storages(call.new_bytes.size());
  const auto make = [&](const CachedTensor& tensor) -> at::Tensor {
    c10::intrusive_ptr<FakeTensorImpl> impl;
    switch (tensor.kind) {
      case CachedTensor::Kind::kUndefined:
        return at::Tensor();
      case CachedTensor::Kind::kInput:
        return at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::unsafe_reclaim_from_nonowning(key.inputs()[tensor.index]));
      case CachedTensor::Kind::kView:
        impl = key.inputs()[tensor.index]->View(tensor.view_kind, tensor.dtype);
        break;
      case CachedTensor::Kind::kNew: {
        c10::Storage& storage = storages[tensor.index];
        if (!storage) storage = FakeStorageImpl::OfSize(call.new_bytes[tensor.index], tensor.device);
        impl = c10::make_intrusive<FakeTensorImpl>(storage, tensor.device, tensor.dtype, mode);
      }
    }
    impl->set_sizes_and_strides(tensor.sizes, tensor.strides, tensor.offset);
    if (tensor.wrapped_number) impl->set_wrapped_number(true);
    impl->_set_conj(tensor.conj);
    impl->_set_neg(tensor.neg);
    return at::Tensor(std::move(impl));
  };

  // The arguments keep the inputs alive while results are made.
  c10::SmallVector<IValue, 3> results;
  std::size_t next = 0;
  for (const int32_t kind : call.returns) {
    if (kind == CachedCall::kNone) {
      results.emplace_back();
    } else if (kind == CachedCall::kTensor) {
      results.emplace_back(make(call.tensors[next++]));
    } else {
      c10::List<at::Tensor> list;
      list.reserve(kind);
      for (int32_t i = 0; i < kind; ++i) list.push_back(make(call.tensors[next++]));
      results.emplace_back(std::move(list));
    }
  }
  stack->resize(first);
  for (IValue& result : results) stack->push_back(std::move(result));
}

std::optional<CachedCall> DescribeResults(const CallKey& key, const torch::jit::Stack& stack, std::size_t first_result) {
  CachedCall call;
  c10::SmallVector<const c10::StorageImpl*, 2> new_storages;
  const auto describe = [&](const at::Tensor& tensor) {
    CachedTensor cached;
    if (!tensor.defined()) {
      call.tensors.push_back(std::move(cached));
      return true;
    }
    const FakeTensorImpl* impl = FakeTensorImpl::Of(tensor);
    if (impl == nullptr) return false;
    const int same = key.IndexOf(impl);
    if (same >= 0) {
      cached.kind = CachedTensor::Kind::kInput;
      cached.index = same;
      call.tensors.push_back(std::move(cached));
      return true;
    }
    cached.dtype = impl->dtype();
    cached.device = impl->device();
    cached.offset = impl->storage_offset();
    cached.sizes.assign(impl->sizes().begin(), impl->sizes().end());
    cached.strides.assign(impl->strides().begin(), impl->strides().end());
    cached.conj = impl->is_conj();
    cached.neg = impl->is_neg();
    cached.wrapped_number = impl->is_wrapped_number();
    const c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
    for (std::size_t i = 0; i < key.inputs().size(); ++i) {
      if (key.inputs()[i]->unsafe_storage().unsafeGetStorageImpl() != storage) continue;
      cached.kind = CachedTensor::Kind::kView;
      cached.index = i;
      cached.view_kind = FakeTensorImpl::KindOfView(*key.inputs()[i], *tensor.unsafeGetTensorImpl());
      call.tensors.push_back(std::move(cached));
      return true;
    }
    cached.kind = CachedTensor::Kind::kNew;
    const auto known = std::find(new_storages.begin(), new_storages.end(), storage);
    cached.index = known - new_storages.begin();
    if (known == new_storages.end()) {
      new_storages.push_back(storage);
      call.new_bytes.push_back(storage->nbytes());
    }
    call.tensors.push_back(std::move(cached));
    return true;
  };
  for (std::size_t i = first_result; i < stack.size(); ++i) {
    const IValue& value = stack[i];
    if (value.isNone()) {
      call.returns.push_back(CachedCall::kNone);
    } else if (value.isTensor()) {
      call.returns.push_back(CachedCall::kTensor);
      if (!describe(value.toTensor())) return std::nullopt;
    } else if (value.isTensorList()) {
      const c10::ArrayRef<IValue> list = value.toListRef();
      call.returns.push_back(static_cast<int32_t>(list.size()));
      for (const IValue& element : list) {
        if (!describe(element.toTensor())) return std::nullopt;
      }
    } else {
      return std::nullopt;
    }
  }
  return call;
}

}  // namespace ddpopt
