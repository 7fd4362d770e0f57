#include "fake_tensor/fake_tensor_mode.h"

#include <atomic>
#include <source_location>
#include <typeinfo>
#include <utility>
#include <vector>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/List.h"
#include "ATen/core/jit_type.h"
#include "ATen/ops/_conj.h"
#include "ATen/ops/_local_scalar_dense.h"
#include "ATen/ops/_neg_view.h"
#include "ATen/ops/as_strided.h"
#include "ATen/ops/clone.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/dispatch_keys.h"
#include "base/for_each_tensor.h"
#include "c10/core/GradMode.h"
#include "c10/core/InferenceMode.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "c10/util/Exception.h"
#include "fake_tensor/call_cache.h"
#include "fake_tensor/call_recorder.h"
#include "fake_tensor/constants.h"
#include "fake_tensor/converter.h"
#include "fake_tensor/fake_errors.h"
#include "fake_tensor/fake_tensor_impl.h"
#include "fake_tensor/meta_call.h"
#include "fake_tensor/op_info.h"
#include "fake_tensor/rules.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/accumulate_grad.h"
#include "torch/csrc/autograd/graph_task.h"

namespace ddpopt {

using c10::IValue;
using fake_errors_internal::Throw;

struct FakeTensorMode::State {
  explicit State(std::size_t cache_limit) : cache(cache_limit) {}
  Converter converter;
  CallCache cache;
  std::weak_ptr<CallRecorder> recorder;
  int64_t hits = 0;
  int64_t misses = 0;
  absl::flat_hash_map<const char*, int64_t> bypasses;  // by the reasons' addresses: they are literals
};

namespace {

std::atomic<int64_t> modes_made{0};

// Kernels call operators on meta tensors; nobody else is to see those.
class KernelsOnly {
 public:
  KernelsOnly() : no_pre_modes_(Mode::Level::kPreAutograd), no_post_modes_(Mode::Level::kPostAutograd), no_fakes_(kPostAutogradKey) {}

 private:
  DisableModesGuard no_pre_modes_;
  DisableModesGuard no_post_modes_;
  c10::impl::ExcludeDispatchKeyGuard no_fakes_;
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
};

// The reverse: operators on fakes come to the modes again.
class FakesAgain {
 public:
  FakesAgain() : excluded_(c10::impl::tls_is_dispatch_key_excluded(kPostAutogradKey)) {
    if (excluded_) c10::impl::tls_set_dispatch_key_excluded(kPostAutogradKey, false);
  }
  ~FakesAgain() {
    if (excluded_) c10::impl::tls_set_dispatch_key_excluded(kPostAutogradKey, true);
  }
  FakesAgain(const FakesAgain&) = delete;
  FakesAgain& operator=(const FakesAgain&) = delete;

 private:
  bool excluded_;
};

}  // namespace

// One operator call.
class FakeTensorMode::Call {
 public:
  Call(FakeTensorMode& mode, const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : mode_(mode),
        state_(*mode.state_),
        op_(op),
        info_(InfoOf(op)),
        stack_(stack),
        num_args_(op.schema().arguments().size()),
        first_(stack->size() - num_args_) {}

  bool is_composite() const { return info_.way == OpInfo::Way::kComposite; }

  void Run() {
    CheckGradient();
    if (info_.way != OpInfo::Way::kRule && info_.way != OpInfo::Way::kNoRule && info_.way != OpInfo::Way::kPassThrough) CheckModes();
    switch (info_.way) {
      case OpInfo::Way::kPassThrough: {
        CountBypass(info_.bypass);
        const KernelsOnly guard;
        op_.callBoxed(stack_);
        return;
      }
      case OpInfo::Way::kLift:
        CountBypass(info_.bypass);
        Lift();
        return;
      case OpInfo::Way::kScalarOutput:
      case OpInfo::Way::kDynamicShape:
        CountBypass(info_.bypass);
        ConvertReals();
        OfConstants();
        return;
      case OpInfo::Way::kComposite:
        CountBypass(info_.bypass);
        Compose(c10::DispatchKey::CompositeImplicitAutograd);
        return;
      case OpInfo::Way::kRule:
      case OpInfo::Way::kNoRule:
        break;
    }
    std::optional<CallKey> key(std::in_place, op_, info_, *stack_, first_, num_args_);
    if (key->has_real()) {
      ConvertReals();
      key.emplace(op_, info_, *stack_, first_, num_args_);
    }
    CheckModes(*key);
    if (MeetsAutogradInside(*key)) {
      CountBypass("inference tensor that requires grad");
      Compose(c10::DispatchKey::CompositeExplicitAutograd);
      return;
    }
    if (info_.masks && HasMasks()) {
      // A mask selects as many elements as it has ones.
      CountBypass("dynamic output shape");
      OfConstants();
      return;
    }
    const bool follow_constants = key->all_known() && !info_.random && !info_.uninitialized && !info_.writes_any;
    torch::jit::Stack values;
    if (follow_constants) values.assign(stack_->begin() + static_cast<std::ptrdiff_t>(first_), stack_->end());
    // Writes end what is known of data; those that build a torch::tensor() step by step add to it.
    NoteWritten();
    if (info_.makes == OpInfo::Makes::kFill) KeepFill();
    std::optional<c10::Scalar> number;
    if (info_.makes == OpInfo::Makes::kScalarTensor) number = (*stack_)[first_].toScalar();

    if (!FromCache(*key)) Compute(*key);

    if (!converted_.empty() && info_.returns_views) MarkViewsOfReals();
    if (info_.makes != OpInfo::Makes::kNothing && info_.makes != OpInfo::Makes::kFill) Begin(number);
    if (follow_constants) FollowConstants(std::move(values));
  }

 private:
  void CountBypass(const char* why) { ++state_.bypasses[why]; }

  // True if the cache had the answer, which is then on the stack.
  bool FromCache(const CallKey& key) {
    if (!mode_.options_.cache) return false;
    if (key.bypass() != nullptr) {
      CountBypass(key.bypass());
      return false;
    }
    const CachedCall* call = state_.cache.Find(key.words());
    if (call == nullptr) {
      ++state_.misses;
      return false;
    }
    ++state_.hits;
    if (mode_.options_.cross_check_cache) {
      CrossCheck(key, *call);
      return true;
    }
    if (info_.bumps_versions) {
      for (std::size_t i = 0; i < num_args_; ++i) {
        if (!info_.writes[i]) continue;
        ForEachTensor((*stack_)[first_ + i], [](const at::Tensor& tensor) {
          if (FakeTensorImpl* fake = FakeTensorImpl::Of(tensor)) fake->CountWrite();
        });
      }
    }
    PushResults(*call, key, mode_.shared_from_this(), stack_, first_);
    return true;
  }

  void CrossCheck(const CallKey& key, const CachedCall& call) {
    // Compute ends the arguments; the key points to them.
    const torch::jit::Stack keep(stack_->begin() + static_cast<std::ptrdiff_t>(first_), stack_->end());
    RunRule();
    const std::optional<CachedCall> now = DescribeResults(key, *stack_, first_);
    TORCH_CHECK(now.has_value() && *now == call && !changed_metadata_, NameOf(op_),
                ": the fake tensor cache has another result than the rule: ", call.ToString(), " in the cache, ",
                now.has_value() ? now->ToString() : "something that can't be cached", " now");
  }

  void Compute(const CallKey& key) {
    if (key.bypass() != nullptr || !mode_.options_.cache) {
      RunRule();
      return;
    }
    const torch::jit::Stack keep(stack_->begin() + static_cast<std::ptrdiff_t>(first_), stack_->end());
    RunRule();
    if (changed_metadata_) {
      --state_.misses;
      CountBypass("in-place change of metadata");
      return;
    }
    if (std::optional<CachedCall> call = DescribeResults(key, *stack_, first_)) {
      state_.cache.Insert(key.words(), std::move(*call));
    } else {
      --state_.misses;
      CountBypass("result other than tensors");
    }
  }

  void RunRule() {
    const KernelsOnly guard;
    const bool may_fall_back = mode_.options_.allow_fallback_kernels && info_.own == nullptr;
    if (info_.way != OpInfo::Way::kNoRule) {
      torch::jit::Stack arguments;
      if (may_fall_back) arguments.assign(stack_->begin() + static_cast<std::ptrdiff_t>(first_), stack_->end());
      try {
        MetaCall call(mode_.shared_from_this(), op_, info_);
        call.Run(stack_);
        changed_metadata_ = call.changed_metadata();
        return;
      } catch (const UnsupportedOperator&) {
        if (!may_fall_back) throw;
      }
      stack_->resize(first_);
      for (IValue& argument : arguments) stack_->push_back(std::move(argument));
    }
    if (!may_fall_back) ThrowNoRule(op_, "");
    MetaCall call(mode_.shared_from_this(), op_, info_);
    call.RunOnZeros(stack_);
    changed_metadata_ = call.changed_metadata();
  }

  void Compose(c10::DispatchKey key) {
    const ModeGuard on(mode_.shared_from_this());
    const FakesAgain fakes;
    op_.callBoxedForDispatchKey(key, *stack_);
  }

  // Outside of inference mode autograd passes an inference tensor by, but not the other tensors that a composition makes: the result of
  // x * 2 requires grad if x does.
  bool MeetsAutogradInside(const CallKey& key) const {
    if (c10::InferenceMode::is_enabled() || !c10::GradMode::is_enabled() || info_.writes_any || info_.returns_views) return false;
    for (FakeTensorImpl* input : key.inputs()) {
      if (!input->is_inference() || !input->requires_grad()) continue;
      return op_.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
             !op_.hasKernelForDispatchKey(c10::DispatchKey::CPU);
    }
    return false;
  }

  // Constants.

  void Lift() {
    const at::Tensor& real = (*stack_)[first_].toTensor();
    at::Tensor lifted;
    if (IsFake(real)) {
      if (op_.schema().name() != "aten::lift_fresh_copy") return;  // the argument is the result
      std::optional<at::Tensor> value = KnownValue(real);
      if (!value.has_value()) {
        const ModeGuard on(mode_.shared_from_this());
        const FakesAgain fakes;
        lifted = real.clone(at::MemoryFormat::Contiguous);
      } else {
        lifted = mode_.FromConstant(value->contiguous());
      }
    } else if (op_.schema().name() == "aten::lift_fresh_copy") {
      const KernelsOnly guard;
      lifted = mode_.FromConstant(real.clone(at::MemoryFormat::Contiguous));
    } else {
      lifted = mode_.FromConstant(real);
    }
    torch::jit::drop(*stack_, 1);
    torch::jit::push(*stack_, std::move(lifted));
  }

  // Whether the operator could be run for real, on operands that are all known.
  bool RunOnConstants() {
    if (info_.random || info_.writes_any || !OnCpuOnly() || !ReplaceByKnown(stack_, first_, num_args_, CountsFromStorage())) return false;
    const KernelsOnly guard;
    op_.callBoxed(stack_);
    return true;
  }

  // Whether the operator's offset counts from the beginning of the storage, not from the operand's.
  bool CountsFromStorage() const { return absl::StartsWith(op_.schema().name(), "aten::as_strided"); }

  bool OnCpuOnly() const {
    for (const std::size_t i : info_.device_args) {
      const IValue& device = (*stack_)[first_ + i];
      if (device.isDevice() && !device.toDevice().is_cpu()) return false;
    }
    return true;
  }

  void OfConstants() {
    if (RunOnConstants()) {
      for (std::size_t i = first_; i < stack_->size(); ++i) {
        IValue& result = (*stack_)[i];
        if (result.isTensor()) {
          result = mode_.FromConstant(result.toTensor());
        } else if (result.isTensorList()) {
          c10::List<at::Tensor> list;
          for (const at::Tensor& tensor : result.toTensorVector()) list.push_back(mode_.FromConstant(tensor));
          result = std::move(list);
        }
      }
      return;
    }
    const std::string operands = Operands();
    if (info_.own != nullptr) {
      // Checks the operands as the real kernel does, and may know the result after all.
      try {
        RunRule();
        return;
      } catch (const DynamicOutputShape& error) {
        Throw<DynamicOutputShape>(Named(error.what_without_backtrace()), operands);
      } catch (const DataDependentOutput& error) {
        Throw<DataDependentOutput>(Named(error.what_without_backtrace()), operands);
      }
    }
    if (info_.way == OpInfo::Way::kDynamicShape || info_.masks) {
      Throw<DynamicOutputShape>(NameOf(op_), info_.masks ? ": with a mask," : ":",
                                " the shape of its result depends on data, which a fake tensor doesn't have", operands);
    }
    Throw<DataDependentOutput>(
        NameOf(op_), ": data-dependent: its result (item(), a comparison) needs data, which a fake tensor doesn't have", operands);
  }

  // A rule may call another operator that needs data (a mask as an index: nonzero()).
  std::string Named(const char* message) const {
    return absl::StartsWith(message, op_.schema().name()) ? message : absl::StrCat(NameOf(op_), ": ", message);
  }

  // "; operands: self (shape …)".
  std::string Operands() const {
    std::string text;
    for (std::size_t i = 0; i < num_args_; ++i) {
      ForEachTensor((*stack_)[first_ + i], [&](const at::Tensor& tensor) {
        absl::StrAppend(&text, text.empty() ? "; operands: " : ", ", ArgName(op_, i), " (", Describe(tensor), ")");
      });
    }
    return text;
  }

  bool HasMasks() const {
    bool masks = false;
    for (std::size_t i = 0; i < num_args_; ++i) {
      const IValue& value = (*stack_)[first_ + i];
      if (!value.isOptionalTensorList() && !value.isTensorList()) continue;
      ForEachTensor(value, [&](const at::Tensor& index) { masks |= index.scalar_type() == at::kBool || index.scalar_type() == at::kByte; });
    }
    return masks;
  }

  // Whether the call writes to the argument, by its schema or in secret.
  bool Writes(std::size_t index) const {
    if (info_.writes[index] || !info_.hidden_writes[index]) return info_.writes[index];
    if (info_.hidden_writes_flag < 0) return true;
    const IValue& flag = (*stack_)[first_ + static_cast<std::size_t>(info_.hidden_writes_flag)];
    return !flag.isBool() || flag.toBool();
  }

  void NoteWritten() {
    const bool forget = !info_.writes_metadata_only && info_.makes != OpInfo::Makes::kFill;
    for (std::size_t i = 0; i < num_args_; ++i) {
      if (!Writes(i)) continue;
      ForEachTensor((*stack_)[first_ + i], [&](const at::Tensor& tensor) {
        const FakeTensorImpl* fake = FakeTensorImpl::Of(tensor);
        if (fake == nullptr) return;
        if (fake->views_real()) {
          Throw<NotOurFake>(NameOf(op_), ": argument ", i, " ('", ArgName(op_, i), "', ", Describe(tensor),
                            ") is a view of a real tensor, and would be written to. Convert that one with FakeTensorMode::FromReal");
        }
        if (forget) fake->fake_storage_impl()->Forget();
      });
    }
  }

  void KeepFill() {
    FakeTensorImpl* fake = FakeTensorImpl::Of((*stack_)[first_].toTensor());
    if (fake == nullptr || fake->fake_storage_impl()->known() == nullptr) return;
    const KernelsOnly guard;
    Fill(*fake, (*stack_)[first_ + 1].toScalar());
  }

  bool MayKeep(const FakeTensorImpl& fake) const {
    return fake.device().is_cpu() && fake.numel() > 0 && fake.numel() <= mode_.options_.constant_limit && fake.storage_offset() == 0 &&
           fake.fake_storage_impl()->nbytes() == static_cast<std::size_t>(fake.numel()) * fake.itemsize();
  }

  // After empty() and scalar_tensor().
  void Begin(const std::optional<c10::Scalar>& number) {
    FakeTensorImpl* fake = FakeTensorImpl::Of(stack_->back().toTensor());
    if (fake == nullptr || !MayKeep(*fake)) return;
    const KernelsOnly guard;
    StartFilling(*fake);
    if (number.has_value()) Fill(*fake, *number);
  }

  // The results are those of known tensors alone: they are known too, if small.
  void FollowConstants(torch::jit::Stack values) {
    bool any = false;
    for (std::size_t i = first_; i < stack_->size(); ++i) {
      bool keep = true;
      ForEachTensor((*stack_)[i], [&](const at::Tensor& tensor) {
        const FakeTensorImpl* fake = FakeTensorImpl::Of(tensor);
        if (fake == nullptr) return;
        keep = keep && fake->device().is_cpu() && fake->numel() <= mode_.options_.constant_limit;
        any = any || !IsKnown(*fake);
      });
      if (!keep) return;
    }
    if (!any) return;  // views of what is known
    if (!ReplaceByKnown(&values, 0, values.size(), CountsFromStorage())) return;
    {
      const KernelsOnly guard;
      op_.callBoxed(&values);
    }
    std::vector<at::Tensor> fakes;
    std::vector<at::Tensor> reals;
    for (std::size_t i = first_; i < stack_->size(); ++i) ForEachTensor((*stack_)[i], [&](const at::Tensor& t) { fakes.push_back(t); });
    for (const IValue& value : values) ForEachTensor(value, [&](const at::Tensor& t) { reals.push_back(t); });
    if (fakes.size() != reals.size()) return;
    for (std::size_t i = 0; i < fakes.size(); ++i) {
      FakeTensorImpl* fake = FakeTensorImpl::Of(fakes[i]);
      if (fake == nullptr || IsKnown(*fake)) continue;
      const at::Tensor& real = reals[i];
      if (real.sizes() == fake->sizes() && real.strides() == fake->strides() && real.storage_offset() == fake->storage_offset() &&
          real.dtype() == fake->dtype() && real.storage().nbytes() == fake->fake_storage_impl()->nbytes() &&
          real.is_conj() == fake->is_conj() && real.is_neg() == fake->is_neg()) {
        SetKnown(*fake, real.storage());
      }
    }
  }

  // Conversion and validation.

  void CheckModes(const CallKey& key) const {
    for (const FakeTensorImpl* input : key.inputs()) {
      if (input->mode().get() != &mode_) RefuseMode(*input);
    }
    if (key.bypass() != nullptr) CheckModes();  // the key may have left some out
  }

  void CheckModes() const {
    for (std::size_t i = 0; i < num_args_; ++i) {
      ForEachTensor((*stack_)[first_ + i], [&](const at::Tensor& tensor) {
        const FakeTensorImpl* fake = FakeTensorImpl::Of(tensor);
        if (fake != nullptr && fake->mode().get() != &mode_) RefuseMode(*fake);
      });
    }
  }

  [[noreturn]] void RefuseMode(const FakeTensorImpl& fake) const {
    for (std::size_t i = 0; i < num_args_; ++i) {
      ForEachTensor((*stack_)[first_ + i], [&](const at::Tensor& tensor) {
        if (tensor.unsafeGetTensorImpl() != &fake) return;
        Throw<NotOurFake>(NameOf(op_), ": argument ", i, " ('", ArgName(op_, i), "', ", Describe(tensor),
                          ") is a fake tensor of another FakeTensorMode: ", fake.mode()->Description(), " meets ", mode_.Description());
      });
    }
    Throw<NotOurFake>(NameOf(op_), ": a fake tensor of another FakeTensorMode: ", fake.mode()->Description(), " meets ",
                      mode_.Description());
  }

  // What a backward pass is about to keep as a tensor's gradient.
  void CheckGradient() const {
    if (torch::autograd::get_current_graph_task_id() < 0) return;
    const auto node = torch::autograd::get_current_node();
    if (node == nullptr || typeid(*node) != typeid(torch::autograd::AccumulateGrad)) return;
    const at::Tensor& leaf = static_cast<const torch::autograd::AccumulateGrad&>(*node).variable;
    const FakeTensorImpl* fake = FakeTensorImpl::Of(leaf);
    if (fake == nullptr) {
      Throw<NotOurFake>(NameOf(op_), ": a backward pass would leave a fake gradient, of ", mode_.Description(), ", on a real tensor (",
                        Describe(leaf), ")");
    }
    if (fake->mode().get() != &mode_) {
      Throw<NotOurFake>(NameOf(op_), ": a backward pass would leave a gradient of ", mode_.Description(), " on a fake tensor (",
                        Describe(leaf), ") of another mode, ", fake->mode()->Description());
    }
  }

  // The results that are views of operands which were real.
  void MarkViewsOfReals() {
    for (std::size_t i = first_; i < stack_->size(); ++i) {
      ForEachTensor((*stack_)[i], [&](const at::Tensor& result) {
        FakeTensorImpl* view = FakeTensorImpl::Of(result);
        if (view == nullptr) return;
        for (const at::Tensor& of : converted_) {
          if (!of.is_same(result) && FakeTensorImpl::Of(of)->fake_storage_impl() == view->fake_storage_impl()) view->set_views_real();
        }
      });
    }
  }

  // Real tensors become fakes, or are refused.
  void ConvertReals() {
    for (std::size_t i = 0; i < num_args_; ++i) {
      IValue& value = (*stack_)[first_ + i];
      if (value.isTensor()) {
        if (!IsFine(value.toTensor())) value = Convert(value.toTensor(), i);
      } else if (value.isTensorList()) {
        bool fine = true;
        ForEachTensor(value, [&](const at::Tensor& tensor) { fine = fine && IsFine(tensor); });
        if (fine) continue;
        c10::List<at::Tensor> list;
        for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(IsFine(tensor) ? tensor : Convert(tensor, i));
        value = std::move(list);
      } else if (value.isOptionalTensorList()) {
        bool fine = true;
        ForEachTensor(value, [&](const at::Tensor& tensor) { fine = fine && IsFine(tensor); });
        if (fine) continue;
        c10::List<std::optional<at::Tensor>> list;
        for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
          list.push_back(!tensor.has_value() || IsFine(*tensor) ? tensor : std::optional<at::Tensor>(Convert(*tensor, i)));
        }
        value = std::move(list);
      }
    }
  }

  bool IsFine(const at::Tensor& tensor) const {
    if (!tensor.defined() || IsFake(tensor)) return true;
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    return impl->is_wrapped_number() && tensor.device().is_cpu() && !impl->key_set().has(kPostAutogradKey);
  }

  at::Tensor Convert(const at::Tensor& tensor, std::size_t index) {
    const auto name = [&] { return absl::StrCat(NameOf(op_), ": argument ", index, " ('", ArgName(op_, index), "'"); };
    if (tensor.unsafeGetTensorImpl()->key_set().has(kPostAutogradKey)) {
      Throw<NotOurFake>(name(), ", ", Describe(tensor), ") is a real tensor that was given a fake tensor's data (set_data)");
    }
    if (mode_.options_.allow_non_fake_inputs) {
      const char* why = nullptr;
      if (Writes(index)) {
        why = "and would be written to";
      } else if (tensor.requires_grad() && c10::GradMode::is_enabled()) {
        // (What it keeps, autocast converts with gradients on.)
        why = "that requires grad: a backward pass would leave a fake gradient on it, autocast a fake copy in its cache";
      }
      if (why == nullptr) {
        converted_.push_back(mode_.FromReal(tensor));
        return converted_.back();
      }
      Throw<NotOurFake>(name(), ", ", Describe(tensor), ") is a real tensor ", why, ". Convert it with FakeTensorMode::FromReal");
    }
    std::string kind = "real tensor";
    if (tensor.dim() == 0 && tensor.device().is_cpu()) {
      const KernelsOnly guard;
      const c10::Scalar value = at::_local_scalar_dense(tensor);
      if (!value.isComplex()) kind = absl::StrCat("real tensor, the scalar ", value.toDouble());
    }
    Throw<NotOurFake>(
        name(), ") is a ", kind, " (", Describe(tensor),
        "), where fake tensors are wanted. Tensors from outside are made fake with FakeTensorMode::FromReal; tensors made on ",
        "the way (constants, numbers turned into tensors) are fake only while the mode is on the mode stack (ModeGuard)");
  }

  FakeTensorMode& mode_;
  State& state_;
  const c10::OperatorHandle& op_;
  const OpInfo& info_;
  torch::jit::Stack* stack_;
  std::size_t num_args_;
  std::size_t first_;
  bool changed_metadata_ = false;
  std::vector<at::Tensor> converted_;  // fakes of real operands
};

namespace {

// The first fake among the arguments; also whether a real tensor with a fake's key is there.
FakeTensorMode* FindMode(const IValue& value, bool* marked) {
  FakeTensorMode* mode = nullptr;
  ForEachTensor(value, [&](const at::Tensor& tensor) {
    if (mode != nullptr) return;
    if (const FakeTensorImpl* impl = FakeTensorImpl::Of(tensor)) {
      mode = impl->mode().get();
    } else if (tensor.unsafeGetTensorImpl()->key_set().has(kPostAutogradKey)) {
      *marked = true;
    }
  });
  if (mode == nullptr && value.isStorage()) {
    *marked |= FakeStorageImpl::Of(value.toStorage()) != nullptr;
  }
  return mode;
}

// Autograd's device threads have the caller's dispatch keys but not its modes: tensors made during a backward pass belong to the mode of
// the pass's other tensors. A pass may run another one inside, which comes back to it.
class BackwardPasses {
 public:
  void Remember(int pass, const std::shared_ptr<FakeTensorMode>& mode) {
    for (Entry& entry : entries_) {
      if (entry.pass == pass) {
        entry.mode = mode;
        return;
      }
    }
    constexpr std::size_t kDeepest = 64;  // LibTorch itself nests no deeper on one thread
    if (entries_.size() == kDeepest) entries_.erase(entries_.begin());
    entries_.push_back({pass, mode});
  }

  // Of a pass that has shown no fake yet: the mode of the latest one, in which it most likely runs.
  std::shared_ptr<FakeTensorMode> ModeOf(int pass) const {
    for (const Entry& entry : entries_) {
      if (entry.pass == pass) return entry.mode.lock();
    }
    return entries_.empty() ? nullptr : entries_.back().mode.lock();
  }

 private:
  struct Entry {
    int pass;
    std::weak_ptr<FakeTensorMode> mode;
  };
  std::vector<Entry> entries_;
};

// Operators on fakes while no mode is pushed.
void HandleWithoutMode(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  thread_local BackwardPasses passes;
  const int pass = torch::autograd::get_current_graph_task_id();
  bool marked = false;
  for (const IValue& argument : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (FakeTensorMode* mode = FindMode(argument, &marked)) {
      const std::shared_ptr<FakeTensorMode> keep_alive = mode->shared_from_this();
      if (pass >= 0) passes.Remember(pass, keep_alive);
      mode->Handle(op, stack);
      return;
    }
  }
  if (marked) {
    Throw<NotOurFake>(NameOf(op), ": an argument is a real tensor that was given a fake tensor's data or storage (set_data, set_)");
  }
  if (pass >= 0 && c10::impl::tls_is_dispatch_key_included(kPostAutogradKey)) {
    if (const std::shared_ptr<FakeTensorMode> mode = passes.ModeOf(pass)) {
      mode->Handle(op, stack);
      return;
    }
  }
  op.callBoxed(stack);
}

}  // namespace

FakeTensorMode::FakeTensorMode(FakeTensorModeOptions options, std::source_location made_at)
    : options_(std::move(options)), made_at_(made_at), number_(++modes_made), state_(std::make_unique<State>(options_.cache_limit)) {}
FakeTensorMode::~FakeTensorMode() = default;

std::shared_ptr<FakeTensorMode> FakeTensorMode::Create(FakeTensorModeOptions options, std::source_location made_at) {
  ResolveRules();
  SetFallbackHandler(Level::kPostAutograd, &HandleWithoutMode);
  return std::shared_ptr<FakeTensorMode>(new FakeTensorMode(std::move(options), made_at));
}

at::Tensor FakeTensorMode::FromReal(const at::Tensor& real) { return state_->converter.FromReal(*this, real); }

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

at::Tensor FakeTensorMode::FromConstant(const at::Tensor& real) {
  if (!real.defined()) return real;
  TORCH_CHECK(!IsFake(real), "FakeTensorMode::FromConstant: the tensor (", Describe(real), ") is a fake");
  TORCH_CHECK(real.layout() == c10::kStrided && real.has_storage(),
              "FakeTensorMode::FromConstant: only dense tensors with strides, not layout ", real.layout());
  const KernelsOnly guard;
  if (!real.device().is_cpu() || real.numel() > options_.constant_limit) return Converter::Fresh(*this, real);
  // The memory as it is, of which what the tensor sees is enough.
  at::Tensor memory = real.is_conj() ? at::_conj(real) : real;
  if (memory.is_neg()) memory = at::_neg_view(memory);
  int64_t seen = real.numel() == 0 ? 0 : 1;
  for (int64_t i = 0; i < real.dim() && seen != 0; ++i) seen += (real.size(i) - 1) * real.stride(i);
  constexpr int64_t kLargestItem = 16;
  const int64_t first = real.storage_offset() - real.storage_offset() % kLargestItem;  // of whatever dtype it is seen as later
  const at::Tensor copy = memory.as_strided({real.storage_offset() - first + seen}, {1}, first).clone();
  at::Tensor fake = Converter::Fresh(*this, real);
  SetKnown(*FakeTensorImpl::Of(fake), copy.storage(), static_cast<std::size_t>(first) * real.itemsize());
  return fake;
}

std::optional<at::Tensor> FakeTensorMode::KnownValue(const at::Tensor& fake) {
  const FakeTensorImpl* impl = FakeTensorImpl::Of(fake);
  if (impl == nullptr || !IsKnown(*impl)) return std::nullopt;
  const KernelsOnly guard;
  return ddpopt::KnownValue(*impl).clone();
}

FakeCacheInfo FakeTensorMode::CacheInfo() const {
  FakeCacheInfo info;
  info.hits = state_->hits;
  info.misses = state_->misses;
  for (const auto& [why, count] : state_->bypasses) info.bypasses[why] += count;
  info.size = state_->cache.size();
  return info;
}

void FakeTensorMode::ClearCache() {
  state_->cache.Clear();
  state_->hits = 0;
  state_->misses = 0;
  state_->bypasses.clear();
}

std::string FakeTensorMode::Description() const {
  return absl::StrCat("FakeTensorMode ", number_, " (", options_.label.empty() ? "" : absl::StrCat("'", options_.label, "', "), "made at ",
                      made_at_.file_name(), ":", made_at_.line(), ")");
}

void FakeTensorMode::RecordCalls(std::weak_ptr<CallRecorder> recorder) { state_->recorder = std::move(recorder); }

void FakeTensorMode::Handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call call(*this, op, stack);
  if (const std::shared_ptr<CallRecorder> recorder = state_->recorder.lock(); recorder != nullptr && !call.is_composite()) {
    recorder->Record(op, stack, [&] { call.Run(); });
  } else {
    call.Run();
  }
}

bool IsFake(const at::Tensor& tensor) { return FakeTensorImpl::Of(tensor) != nullptr; }

FakeTensorMode* ModeOf(const at::Tensor& tensor) {
  const FakeTensorImpl* impl = FakeTensorImpl::Of(tensor);
  return impl == nullptr ? nullptr : impl->mode().get();
}

}  // namespace ddpopt
