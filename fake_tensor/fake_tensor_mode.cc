#include "fake_tensor/fake_tensor_mode.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/List.h"
#include "ATen/core/function_schema.h"
#include "ATen/core/jit_type.h"
#include "ATen/ops/_local_scalar_dense.h"
#include "ATen/ops/clone.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dispatch_keys.h"
#include "c10/core/GradMode.h"
#include "c10/core/InferenceMode.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "c10/util/Exception.h"
#include "c10/util/SmallVector.h"
#include "fake_tensor/fake_tensor_impl.h"
#include "fake_tensor/rules.h"
#include "torch/csrc/autograd/edge.h"
#include "torch/csrc/autograd/variable.h"

namespace ddpopt {
namespace {

using c10::IValue;

// What Handle needs to know of an operator, found out once.
struct OpInfo {
  enum class Rule { kKernel, kNoRule, kPassThrough, kDynamicShape, kDataDependent, kEqual, kLift, kIndex };
  Rule rule = Rule::kKernel;
  const ddpopt::Rule* own = nullptr;                     // goes before LibTorch's Meta kernel
  bool mixes_devices = false;                     // takes tensors of several devices by its nature
  bool bumps_versions = false;                    // changes its arguments through the operators it calls, which count the change
  c10::SmallVector<std::size_t, 2> device_args;   // which become meta
  c10::SmallVector<std::size_t, 2> dropped_args;  // which become None: generators, pinning
  c10::SmallVector<bool, 8> writes;               // per argument
};

bool MentionsTensor(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) return true;
  for (const c10::TypePtr& inner : type->containedTypes()) {
    if (MentionsTensor(inner)) return true;
  }
  return false;
}

c10::TypePtr WithoutOptional(c10::TypePtr type) {
  while (type->kind() == c10::TypeKind::OptionalType) type = type->containedType(0);
  return type;
}

std::string NameOf(const c10::OperatorHandle& op) { return c10::toString(op.operator_name()); }

std::string Describe(const at::Tensor& tensor) {
  return absl::StrCat("shape [", absl::StrJoin(tensor.sizes(), ", "), "], dtype ", c10::toString(tensor.scalar_type()), ", device ",
                      tensor.device().str());
}

// Operators whose results' shapes or values depend on data, and whose tags don't say so in every version.
bool IsOneOf(const std::string& name, std::initializer_list<const char*> names) {
  for (const char* candidate : names) {
    if (name == candidate) return true;
  }
  return false;
}

OpInfo MakeOpInfo(const c10::OperatorHandle& op) {
  using Rule = OpInfo::Rule;
  OpInfo info;
  const c10::FunctionSchema& schema = op.schema();
  bool has_tensors = false;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const c10::TypePtr type = WithoutOptional(argument.type());
    has_tensors |= MentionsTensor(type);
    info.writes.push_back(argument.alias_info() != nullptr && argument.alias_info()->isWrite());
    if (type->kind() == c10::TypeKind::DeviceObjType) info.device_args.push_back(i);
    if (type->kind() == c10::TypeKind::GeneratorType || argument.name() == "pin_memory") {
      if (argument.type()->kind() == c10::TypeKind::OptionalType) info.dropped_args.push_back(i);
    }
  }
  for (const c10::Argument& result : schema.returns()) has_tensors |= MentionsTensor(result.type());

  const std::string& name = schema.name();
  info.mixes_devices = IsOneOf(name, {"aten::copy_", "aten::_to_copy", "aten::index", "aten::index_put", "aten::index_put_",
                                      "aten::_index_put_impl_", "aten::_unsafe_index", "aten::_copy_from"});
  info.bumps_versions = absl::StartsWith(name, "aten::_foreach_");
  if (!has_tensors) {
    info.rule = Rule::kPassThrough;
  } else if (name == "aten::equal") {
    info.rule = Rule::kEqual;
  } else if (IsOneOf(name, {"aten::lift", "aten::lift_fresh"})) {
    info.rule = Rule::kLift;
  } else if (const ddpopt::Rule* own = FindRule(op.operator_name())) {
    info.own = own;
  } else if (op.hasTag(at::Tag::data_dependent_output) || IsOneOf(name, {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero"})) {
    info.rule = Rule::kDataDependent;
  } else if (IsOneOf(name, {"aten::index", "aten::_unsafe_index"})) {
    info.rule = Rule::kIndex;
  } else if (op.hasTag(at::Tag::dynamic_output_shape) || IsOneOf(name, {"aten::nonzero", "aten::masked_select"})) {
    info.rule = Rule::kDynamicShape;
  } else if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) {
    info.rule = Rule::kNoRule;
  }
  return info;
}

// The table may grow from several threads' modes; each thread keeps its own.
const OpInfo& InfoOf(const c10::OperatorHandle& op) {
  thread_local absl::flat_hash_map<c10::OperatorName, std::unique_ptr<OpInfo>, std::hash<c10::OperatorName>> infos;
  thread_local absl::flat_hash_map<const c10::FunctionSchema*, const OpInfo*> by_schema;
  thread_local uint64_t epoch = 0;
  if (epoch != RulesEpoch()) {
    infos.clear();
    by_schema.clear();
    ResolveRules();
    epoch = RulesEpoch();
  }
  const OpInfo*& cached = by_schema[&op.schema()];
  if (cached == nullptr) {
    std::unique_ptr<OpInfo>& info = infos[op.operator_name()];
    if (info == nullptr) info = std::make_unique<OpInfo>(MakeOpInfo(op));
    cached = info.get();
  }
  return *cached;
}

// One operator call on fakes: fakes become meta aliases, the kernel runs, its results become fakes.
class MetaCall {
 public:
  MetaCall(FakeTensorMode& mode, const c10::OperatorHandle& op, const OpInfo& info) : mode_(mode), op_(op), info_(info) {}

  void Run(torch::jit::Stack* stack) {
    const std::size_t num_args = op_.schema().arguments().size();
    ConvertArguments(stack->data() + (stack->size() - num_args), num_args);
    try {
      const ClaimedDeviceGuard claimed(ResultDevice());
      if (info_.own != nullptr) {
        info_.own->kernel.callBoxed(op_, c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
      } else {
        op_.callBoxed(stack);
      }
    } catch (const c10::NotImplementedError& error) {
      std::string why = error.what_without_backtrace();
      for (const char* tail : {" with arguments from", " to run this operator with Meta tensors", ". You are likely"})
        why = why.substr(0, why.find(tail));
      TORCH_CHECK_NOT_IMPLEMENTED(false, NameOf(op_), " has no fake rule (schema ", c10::toString(op_.schema()), "): ", why);
    }
    for (const Input& input : inputs_) {
      if (input.written) WriteBack(input);
    }
    const std::size_t num_returns = op_.schema().returns().size();
    for (std::size_t i = stack->size() - num_returns; i < stack->size(); ++i) WrapResult(&(*stack)[i]);
  }

 private:
  struct Input {
    at::Tensor fake;
    FakeTensorImpl* impl;
    at::Tensor meta;
    bool written;
  };

  void ConvertArguments(IValue* args, std::size_t num_args) {
    for (std::size_t i = 0; i < num_args; ++i) {
      IValue& value = args[i];
      if (value.isTensor()) {
        value = ToMeta(value.toTensor(), i);
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> metas;
        for (const at::Tensor& tensor : value.toTensorVector()) metas.push_back(ToMeta(tensor, i));
        value = std::move(metas);
      } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> metas;
        for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
          metas.push_back(tensor.has_value() ? std::optional<at::Tensor>(ToMeta(*tensor, i)) : std::nullopt);
        }
        value = std::move(metas);
      } else if (value.isStorage()) {
        TORCH_CHECK_NOT_IMPLEMENTED(false, NameOf(op_), " has no fake rule: argument ", i, " is a storage (schema ",
                                    c10::toString(op_.schema()), ")");
      }
    }
    for (const std::size_t i : info_.device_args) {
      if (args[i].isDevice()) {
        device_ = args[i].toDevice();
        args[i] = c10::Device(c10::kMeta);
      } else if (inputs_.empty()) {
        args[i] = c10::Device(c10::kMeta);
      }
    }
    for (const std::size_t i : info_.dropped_args) args[i] = IValue();
  }

  at::Tensor ToMeta(const at::Tensor& tensor, std::size_t index) {
    if (!tensor.defined()) return tensor;
    FakeTensorImpl* impl = FakeTensorImpl::Of(tensor);
    if (impl == nullptr) {
      // A number that was given as one. Its meta twin takes part in type promotion as a number.
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number() && tensor.device().is_cpu() && !info_.writes[index]) {
        at::Tensor fake = mode_.FromReal(tensor);
        return Record(fake, FakeTensorImpl::Of(fake), index);
      }
      RefuseReal(tensor, index);
    }
    TORCH_CHECK(impl->mode().get() == &mode_, NameOf(op_), ": argument ", index, " ('", ArgName(index), "', ", Describe(tensor),
                ") is a fake tensor of another FakeTensorMode");
    return Record(tensor, impl, index);
  }

  at::Tensor Record(const at::Tensor& fake, FakeTensorImpl* impl, std::size_t index) {
    for (Input& input : inputs_) {
      if (input.impl == impl) {
        input.written |= info_.writes[index];
        return input.meta;
      }
    }
    JoinDevice(fake, index);
    inputs_.push_back({fake, impl, impl->MetaAlias(), info_.writes[index]});
    return inputs_.back().meta;
  }

  // The results' device: the inputs', where scalars on the CPU go along with anything.
  void JoinDevice(const at::Tensor& fake, std::size_t index) {
    const c10::Device device = fake.device();
    const bool weak = fake.dim() == 0 && device.is_cpu();
    if (!device_.has_value() || (weak_device_ && !weak)) {
      device_ = device;
      weak_device_ = weak;
      return;
    }
    if (weak || info_.mixes_devices) return;
    TORCH_CHECK(*device_ == device, NameOf(op_), ": argument ", index, " ('", ArgName(index), "') is on ", device.str(), ", others are on ",
                device_->str());
  }

  [[noreturn]] void RefuseReal(const at::Tensor& tensor, std::size_t index) const {
    TORCH_CHECK(!tensor.unsafeGetTensorImpl()->key_set().has(kPostAutogradKey), NameOf(op_), ": argument ", index, " ('", ArgName(index),
                "', ", Describe(tensor), ") is a real tensor that was given a fake tensor's data (set_data)");
    std::string kind = "real tensor";
    if (tensor.dim() == 0 && tensor.device().is_cpu()) {
      c10::Scalar value = at::_local_scalar_dense(tensor);
      if (!value.isComplex()) kind = absl::StrCat("real tensor, the scalar ", value.toDouble());
    }
    TORCH_CHECK(
        false, NameOf(op_), ": argument ", index, " ('", ArgName(index), "') is a ", kind, " (", Describe(tensor),
        "), where fake tensors are wanted. Tensors from outside are made fake with FakeTensorMode::FromReal; tensors made on the way ",
        "(constants, numbers turned into tensors) are fake only while the mode is on the mode stack (ModeGuard)");
  }

  const std::string& ArgName(std::size_t index) const { return op_.schema().arguments()[index].name(); }

  // The pair of storages over a meta storage: an input's, an earlier result's or a new one.
  FakeStorage StorageOver(const c10::Storage& meta) {
    const c10::StorageImpl* impl = meta.unsafeGetStorageImpl();
    for (const FakeStorage& known : storages_) {
      if (known.meta.unsafeGetStorageImpl() == impl) return known;
    }
    for (const Input& input : inputs_) {
      if (input.impl->meta_storage().unsafeGetStorageImpl() == impl) return input.impl->fake_storage();
    }
    storages_.push_back(FakeStorage::Over(meta, ResultDevice()));
    return storages_.back();
  }

  c10::Device ResultDevice() const { return device_.value_or(c10::Device(c10::kCPU)); }

  void WriteBack(const Input& input) {
    const FakeStorage storage = StorageOver(input.meta.storage());
    input.impl->CopyBack(input.meta, storage);
    if (info_.bumps_versions) input.impl->bump_version();
    if (storage.claimed.nbytes() != storage.meta.nbytes()) storage.claimed.unsafeGetStorageImpl()->set_nbytes(storage.meta.nbytes());
  }

  void WrapResult(IValue* result) {
    if (result->isTensor()) {
      *result = ToFake(result->toTensor());
    } else if (result->isTensorList()) {
      c10::List<at::Tensor> fakes;
      for (const at::Tensor& tensor : result->toTensorVector()) fakes.push_back(ToFake(tensor));
      *result = std::move(fakes);
    }
  }

  at::Tensor ToFake(const at::Tensor& meta) {
    if (!meta.defined()) return meta;
    for (const Input& input : inputs_) {
      if (input.meta.is_same(meta)) return input.fake;
    }
    for (const auto& [result, fake] : results_) {
      if (result.is_same(meta)) return fake;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(meta.is_meta(), NameOf(op_), " has no fake rule (schema ", c10::toString(op_.schema()),
                                "): its kernel made a real tensor");
    at::Tensor fake = MakeFake(meta);
    results_.emplace_back(meta, fake);
    return fake;
  }

  at::Tensor MakeFake(const at::Tensor& meta) {
    const c10::StorageImpl* storage = meta.storage().unsafeGetStorageImpl();
    const FakeTensorImpl* base = nullptr;
    for (const Input& input : inputs_) {
      if (input.impl->meta_storage().unsafeGetStorageImpl() == storage) {
        base = input.impl;
        break;
      }
    }
    c10::intrusive_ptr<FakeTensorImpl> impl;
    if (base != nullptr) {
      impl = c10::make_intrusive<FakeTensorImpl>(base->fake_storage(), base->key_set(), meta.dtype(), mode_.shared_from_this());
    } else {
      impl = c10::make_intrusive<FakeTensorImpl>(StorageOver(meta.storage()), ResultDevice(), meta.dtype(), mode_.shared_from_this());
    }
    impl->CopyGeometry(*meta.unsafeGetTensorImpl());
    return at::Tensor(std::move(impl));
  }

  FakeTensorMode& mode_;
  const c10::OperatorHandle& op_;
  const OpInfo& info_;
  std::optional<c10::Device> device_;
  bool weak_device_ = false;
  c10::SmallVector<Input, 4> inputs_;
  c10::SmallVector<FakeStorage, 2> storages_;
  c10::SmallVector<std::pair<at::Tensor, at::Tensor>, 2> results_;
};

// The first fake among the arguments; also whether a real tensor with a fake's key is there.
FakeTensorMode* FindMode(const IValue& value, bool* marked) {
  const auto look = [&](const at::Tensor& tensor) -> FakeTensorMode* {
    if (const FakeTensorImpl* impl = FakeTensorImpl::Of(tensor)) return impl->mode().get();
    if (tensor.defined() && tensor.unsafeGetTensorImpl()->key_set().has(kPostAutogradKey)) *marked = true;
    return nullptr;
  };
  if (value.isTensor()) return look(value.toTensor());
  if (value.isList()) {
    for (const IValue& element : value.toListRef()) {
      if (FakeTensorMode* mode = FindMode(element, marked)) return mode;
    }
  }
  return nullptr;
}

// Operators on fakes while no mode is pushed.
void HandleWithoutMode(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  bool marked = false;
  for (const IValue& argument : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (FakeTensorMode* mode = FindMode(argument, &marked)) {
      const std::shared_ptr<FakeTensorMode> keep_alive = mode->shared_from_this();
      mode->Handle(op, stack);
      return;
    }
  }
  TORCH_CHECK(!marked, NameOf(op), ": an argument is a real tensor that was given a fake tensor's data (set_data)");
  op.callBoxed(stack);
}

}  // namespace

// What was converted, by identity. Nothing is kept alive; a weak pointer keeps an address from being used again while it is a key.
struct FakeTensorMode::Memo {
  struct TensorEntry {
    c10::weak_intrusive_ptr<c10::TensorImpl> real;
    c10::weak_intrusive_ptr<c10::TensorImpl> fake;
  };
  struct StorageEntry {
    c10::weak_intrusive_ptr<c10::StorageImpl> real;
    c10::weak_intrusive_ptr<c10::StorageImpl> claimed;
    c10::weak_intrusive_ptr<c10::StorageImpl> meta;
  };
  absl::flat_hash_map<const c10::TensorImpl*, TensorEntry> tensors;
  absl::flat_hash_map<const c10::StorageImpl*, StorageEntry> storages;
  std::size_t sweep_at = 256;

  void Sweep() {
    if (tensors.size() + storages.size() < sweep_at) return;
    absl::erase_if(tensors, [](const auto& entry) { return entry.second.real.expired() || entry.second.fake.expired(); });
    absl::erase_if(storages, [](const auto& entry) { return entry.second.real.expired() || entry.second.claimed.expired(); });
    sweep_at = std::max<std::size_t>(256, 2 * (tensors.size() + storages.size()));
  }

  FakeStorage StorageOf(const at::Tensor& real) {
    const auto& storage = real.storage().getWeakStorageImpl();
    const c10::StorageImpl* key = real.storage().unsafeGetStorageImpl();
    if (const auto found = storages.find(key); found != storages.end()) {
      auto claimed = found->second.claimed.lock();
      auto meta = found->second.meta.lock();
      if (claimed.defined() && meta.defined()) return {c10::Storage(std::move(claimed)), c10::Storage(std::move(meta))};
      storages.erase(found);
    }
    FakeStorage fake = FakeStorage::OfSize(real.storage().nbytes(), real.device());
    storages.emplace(key, StorageEntry{storage, fake.claimed.getWeakStorageImpl(), fake.meta.getWeakStorageImpl()});
    return fake;
  }
};

FakeTensorMode::FakeTensorMode() : memo_(std::make_unique<Memo>()) {}
FakeTensorMode::~FakeTensorMode() = default;

std::shared_ptr<FakeTensorMode> FakeTensorMode::Create() {
  ResolveRules();
  SetFallbackHandler(Level::kPostAutograd, &HandleWithoutMode);
  return std::shared_ptr<FakeTensorMode>(new FakeTensorMode());
}

at::Tensor FakeTensorMode::FromReal(const at::Tensor& real) {
  if (!real.defined()) return real;
  if (const FakeTensorImpl* fake = FakeTensorImpl::Of(real)) {
    TORCH_CHECK(fake->mode().get() == this, "FakeTensorMode::FromReal: the tensor (", Describe(real), ") is a fake tensor of another mode");
    return real;
  }
  TORCH_CHECK(!real.unsafeGetTensorImpl()->key_set().has(kPostAutogradKey),
              "FakeTensorMode::FromReal: the real tensor was given a fake tensor's data (set_data)");
  TORCH_CHECK(real.layout() == c10::kStrided && real.has_storage() && !real.is_quantized() && !real.is_nested() &&
                  !real.unsafeGetTensorImpl()->has_symbolic_sizes_strides(),
              "FakeTensorMode::FromReal: only dense tensors with strides can be made fake, not layout ", real.layout(), " of dtype ",
              c10::toString(real.scalar_type()));

  memo_->Sweep();
  const c10::TensorImpl* key = real.unsafeGetTensorImpl();
  if (const auto found = memo_->tensors.find(key); found != memo_->tensors.end()) {
    auto known = found->second.fake.lock();
    // Real tensors may change under their fakes (resize_, set_data, requires_grad_); then a new fake is made.
    if (known.defined()) {
      at::Tensor fake(std::move(known));
      if (fake.sizes() == real.sizes() && fake.strides() == real.strides() && fake.storage_offset() == real.storage_offset() &&
          fake.dtype() == real.dtype() && fake.device() == real.device() && fake.requires_grad() == real.requires_grad() &&
          fake.is_leaf() == real.is_leaf()) {
        return fake;
      }
    }
    memo_->tensors.erase(found);
  }

  // Made outside inference mode if the real one was, so that it has the keys autograd needs.
  c10::InferenceMode inference(real.is_inference());
  auto impl = c10::make_intrusive<FakeTensorImpl>(memo_->StorageOf(real), real.device(), real.dtype(), shared_from_this());
  impl->CopyGeometry(*real.unsafeGetTensorImpl());
  at::Tensor fake(std::move(impl));
  if (real.requires_grad()) {
    if (real.is_leaf()) {
      fake.requires_grad_();
    } else {
      // Some history of its own: that of a copy of a leaf nobody sees.
      DisableModesGuard no_pre_modes(Level::kPreAutograd);
      DisableModesGuard no_post_modes(Level::kPostAutograd);
      c10::AutoGradMode grad(true);
      auto leaf = c10::make_intrusive<FakeTensorImpl>(FakeStorage::OfSize(real.storage().nbytes(), real.device()), real.device(),
                                                      real.dtype(), shared_from_this());
      leaf->CopyGeometry(*real.unsafeGetTensorImpl());
      const at::Tensor copy = at::clone(at::Tensor(std::move(leaf)).requires_grad_());
      torch::autograd::impl::set_gradient_edge(fake, torch::autograd::impl::gradient_edge(copy));
    }
  }
  memo_->tensors.emplace(key, Memo::TensorEntry{c10::weak_intrusive_ptr<c10::TensorImpl>(real.getIntrusivePtr()),
                                                c10::weak_intrusive_ptr<c10::TensorImpl>(fake.getIntrusivePtr())});
  return fake;
}

IValue FakeTensorMode::FromReal(const IValue& value) {
  if (value.isTensor()) return FromReal(value.toTensor());
  if (value.isTuple()) {
    std::vector<IValue> elements;
    for (const IValue& element : value.toTupleRef().elements()) elements.push_back(FromReal(element));
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  if (value.isList()) {
    const c10::List<IValue> list = value.toList();
    if (!MentionsTensor(list.elementType()) && list.elementType()->kind() != c10::TypeKind::AnyType) return value;
    c10::impl::GenericList converted(list.elementType());
    for (std::size_t i = 0; i < list.size(); ++i) converted.push_back(FromReal(list.get(i)));
    return converted;
  }
  if (value.isGenericDict()) {
    const c10::Dict<IValue, IValue> dict = value.toGenericDict();
    c10::impl::GenericDict converted(dict.keyType(), dict.valueType());
    for (const auto& entry : dict) converted.insert(entry.key(), FromReal(entry.value()));
    return converted;
  }
  return value;
}

void FakeTensorMode::Handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  // Kernels call operators on meta tensors; nobody else is to see those.
  DisableModesGuard no_pre_modes(Level::kPreAutograd);
  DisableModesGuard no_post_modes(Level::kPostAutograd);
  c10::impl::ExcludeDispatchKeyGuard no_fakes(kPostAutogradKey);
  at::AutoDispatchBelowADInplaceOrView below_autograd;

  const OpInfo& info = InfoOf(op);
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  switch (info.rule) {
    case OpInfo::Rule::kIndex:
      // A mask selects as many elements as it has ones.
      for (const std::optional<at::Tensor>& index : arguments[1].toOptionalTensorVector()) {
        TORCH_CHECK_NOT_IMPLEMENTED(
            !index.has_value() || !index->defined() || (index->scalar_type() != at::kBool && index->scalar_type() != at::kByte), NameOf(op),
            ": with a mask, the shape of its result depends on data, which a fake tensor doesn't have");
      }
      [[fallthrough]];
    case OpInfo::Rule::kKernel:
      MetaCall(*this, op, info).Run(stack);
      return;
    case OpInfo::Rule::kPassThrough:
      op.callBoxed(stack);
      return;
    case OpInfo::Rule::kNoRule:
      TORCH_CHECK_NOT_IMPLEMENTED(false, NameOf(op), " has no fake rule (schema ", c10::toString(op.schema()), ")");
    case OpInfo::Rule::kDynamicShape:
      TORCH_CHECK_NOT_IMPLEMENTED(false, NameOf(op), ": the shape of its result depends on data, which a fake tensor doesn't have");
    case OpInfo::Rule::kDataDependent:
      TORCH_CHECK_NOT_IMPLEMENTED(false, NameOf(op),
                                  ": data-dependent: its result (item(), a comparison) needs data, which a fake tensor doesn't have");
    case OpInfo::Rule::kEqual: {
      TORCH_CHECK_NOT_IMPLEMENTED(arguments[0].toTensor().is_same(arguments[1].toTensor()), NameOf(op),
                                  ": data-dependent: whether two different fake tensors hold equal values isn't known");
      torch::jit::drop(*stack, 2);
      torch::jit::push(*stack, true);
      return;
    }
    case OpInfo::Rule::kLift: {
      at::Tensor lifted = FromReal(arguments[0].toTensor());
      torch::jit::drop(*stack, 1);
      torch::jit::push(*stack, std::move(lifted));
      return;
    }
  }
}

bool IsFake(const at::Tensor& tensor) { return FakeTensorImpl::Of(tensor) != nullptr; }

FakeTensorMode* ModeOf(const at::Tensor& tensor) {
  const FakeTensorImpl* impl = FakeTensorImpl::Of(tensor);
  return impl == nullptr ? nullptr : impl->mode().get();
}

}  // namespace ddpopt
