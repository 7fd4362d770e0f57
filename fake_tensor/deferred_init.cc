#include "fake_tensor/deferred_init.h"

#include <cstdint>
#include <optional>
#include <string>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/List.h"
#include "ATen/ops/clone.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/dispatch_keys.h"
#include "base/for_each_tensor.h"
#include "c10/core/DefaultDtype.h"
#include "c10/core/GradMode.h"
#include "c10/core/TensorOptions.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "c10/util/Exception.h"
#include "fake_tensor/call_recorder.h"
#include "fake_tensor/fake_errors.h"
#include "fake_tensor/fake_tensor_impl.h"
#include "fake_tensor/op_info.h"
#include "torch/csrc/autograd/function.h"

namespace ddpopt {
namespace {

using at::Tensor;
using c10::IValue;
using StorageKey = const c10::StorageImpl*;

// Replaces every tensor of a value.
template <typename Fn>
IValue MapTensors(const IValue& value, Fn&& fn) {
  if (value.isTensor()) return value.toTensor().defined() ? IValue(fn(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& tensor : value.toTensorVector()) list.push_back(tensor.defined() ? fn(tensor) : tensor);
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor.has_value() && tensor->defined() ? std::optional<Tensor>(fn(*tensor)) : tensor);
    }
    return list;
  }
  // Others' lists are theirs to change.
  return value.isList() ? value.deepcopy() : value;
}

// The fake as it is now, whatever becomes of it; of a real tensor, its data.
Tensor Snapshot(const Tensor& tensor) {
  const FakeTensorImpl* fake = FakeTensorImpl::Of(tensor);
  if (fake == nullptr) return tensor.unsafeGetTensorImpl()->is_wrapped_number() ? tensor : tensor.detach().clone();
  return Tensor(fake->shallow_copy_and_detach(c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
}

StorageKey KeyOf(const Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

// Everything below autograd, on real tensors.
class ForReal {
 public:
  explicit ForReal(caffe2::TypeMeta default_dtype)
      : no_pre_modes_(Mode::Level::kPreAutograd),
        no_post_modes_(Mode::Level::kPostAutograd),
        no_fakes_(kPostAutogradKey),
        no_grad_(false),
        default_dtype_(c10::get_default_dtype()) {
    c10::set_default_dtype(default_dtype);
  }
  ~ForReal() { c10::set_default_dtype(default_dtype_); }
  ForReal(const ForReal&) = delete;
  ForReal& operator=(const ForReal&) = delete;

 private:
  DisableModesGuard no_pre_modes_, no_post_modes_;
  c10::impl::ExcludeDispatchKeyGuard no_fakes_;
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
  c10::AutoGradMode no_grad_;
  caffe2::TypeMeta default_dtype_;
};

}  // namespace

// What was recorded, and what has become real of it.
class DeferredInit::Tape final : public CallRecorder {
 public:
  void Record(const c10::OperatorHandle& op, torch::jit::Stack* stack, absl::FunctionRef<void()> answer) override {
    const OpInfo& info = InfoOf(op);
    const std::size_t num_args = op.schema().arguments().size(), first = stack->size() - num_args;
    Recorded call{op, {}, {}, c10::get_default_dtype(), {}, {}, false};
    bool writes = false;
    {
      const ForReal guard(call.default_dtype);
      for (std::size_t i = 0; i < num_args; ++i) {
        const IValue& argument = (*stack)[first + i];
        call.arguments.push_back(MapTensors(argument, Snapshot));
        const bool written = info.writes[i] || info.hidden_writes[i];
        ForEachTensor(call.arguments.back(), [&](const Tensor& tensor) {
          (written ? call.writes : call.reads).insert(KeyOf(tensor));
          writes |= written;
        });
      }
    }
    const std::vector<Tensor> written = WrittenTensors(info, *stack, first);
    std::vector<StorageKey> before;
    for (const Tensor& tensor : written) before.push_back(KeyOf(tensor));
    answer();
    if (info.writes_metadata_only && info.writes_any) {
      // t_() and the like: tensors are remembered as they are seen. Of set_(), the memory.
      return;
    }
    for (std::size_t i = 0; i < written.size(); ++i) {
      TORCH_CHECK(KeyOf(written[i]) == before[i], "DeferredInit: ", NameOf(op), " gave a tensor other memory; that can't be run later");
    }
    for (std::size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i) {
      ForEachTensor((*stack)[i], [&](const Tensor& tensor) {
        call.results.push_back(Snapshot(tensor));
        if (call.reads.count(KeyOf(tensor)) == 0) call.writes.insert(KeyOf(tensor));
      });
    }
    if (writes || !call.results.empty()) calls_.push_back(std::move(call));
  }

  void Materialize(std::vector<Tensor> tensors, const FakeTensorMode& mode) {
    AddRelatives(&tensors, mode);
    std::vector<std::size_t> needed = Needed(tensors);
    for (std::size_t i = needed.size(); i > 0; --i) Run(calls_[needed[i - 1]]);
    for (const Tensor& tensor : tensors) {
      const auto found = real_.find(KeyOf(tensor));
      TORCH_CHECK(found != real_.end(), "DeferredInit: a tensor (", Describe(tensor), ") has memory that wasn't made under Record()");
      FakeTensorImpl* impl = FakeTensorImpl::Of(tensor);
      Real& real = found->second;
      if (!tensor.is_inference()) real.versions.emplace_back(impl->version_counter(), tensor._version());
      impl->BecomeReal(real.storage);
    }
  }

 private:
  struct Recorded {
    c10::OperatorHandle op;
    torch::jit::Stack arguments;  // tensors as they were
    std::vector<Tensor> results;
    caffe2::TypeMeta default_dtype;
    absl::flat_hash_set<StorageKey> reads, writes;
    bool done;
  };
  // What became of a fake storage, and the counters of the tensors over it that became real, with their versions then. Views of a tensor
  // that is gone write to its counter still.
  struct Real {
    c10::Storage storage;
    std::vector<std::pair<c10::VariableVersion, int64_t>> versions;
  };

  static std::vector<Tensor> WrittenTensors(const OpInfo& info, const torch::jit::Stack& stack, std::size_t first) {
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < info.writes.size(); ++i) {
      if (info.writes[i]) ForEachTensor(stack[first + i], [&](const Tensor& tensor) { tensors.push_back(tensor); });
    }
    return tensors;
  }

  // The fakes alone, once each, with their bases and gradients.
  static void AddRelatives(std::vector<Tensor>* tensors, const FakeTensorMode& mode) {
    absl::flat_hash_set<const c10::TensorImpl*> seen;
    std::vector<Tensor> all;
    for (std::size_t i = 0; i < tensors->size(); ++i) {
      const Tensor tensor = (*tensors)[i];
      if (!IsFake(tensor) || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
      if (ModeOf(tensor) != &mode) {
        fake_errors_internal::Throw<NotOurFake>("DeferredInit: a tensor (", Describe(tensor), ") is a fake tensor of another mode, ",
                                                ModeOf(tensor)->Description());
      }
      TORCH_CHECK(!tensor.grad_fn(), "DeferredInit: a tensor (", Describe(tensor), ") has history (", tensor.grad_fn()->name(),
                  "); only leaves can be made real");
      if (!tensor.is_inference() && tensor.is_view()) tensors->push_back(Tensor(tensor._base()));
      if (tensor.is_leaf() && tensor.grad().defined()) tensors->push_back(tensor.grad());
      all.push_back(tensor);
    }
    *tensors = std::move(all);
  }

  // Indices of the calls that are to be run, from the last to the first: those that fill what is wanted, what these read, others that read
  // what will be overwritten, and before them all that draw random numbers.
  std::vector<std::size_t> Needed(const std::vector<Tensor>& tensors) const {
    absl::flat_hash_set<StorageKey> wanted, overwritten;
    for (const Tensor& tensor : tensors) wanted.insert(KeyOf(tensor));
    const auto meet = [](const absl::flat_hash_set<StorageKey>& a, const absl::flat_hash_set<StorageKey>& b) {
      for (const StorageKey key : a) {
        if (b.contains(key)) return true;
      }
      return false;
    };
    std::vector<std::size_t> needed;
    for (std::size_t i = calls_.size(); i > 0; --i) {
      const Recorded& call = calls_[i - 1];
      const bool draws = !needed.empty() && InfoOf(call.op).random;
      if (call.done || (!draws && !meet(call.writes, wanted) && !meet(call.reads, overwritten))) continue;
      needed.push_back(i - 1);
      wanted.insert(call.reads.begin(), call.reads.end());
      wanted.insert(call.writes.begin(), call.writes.end());
      overwritten.insert(call.writes.begin(), call.writes.end());
    }
    return needed;
  }

  void Run(Recorded& call) {
    const std::string name = NameOf(call.op);
    torch::jit::Stack stack;
    for (const IValue& argument : call.arguments) {
      stack.push_back(MapTensors(argument, [&](const Tensor& tensor) { return Now(tensor, name); }));
    }
    try {
      const ForReal guard(call.default_dtype);
      call.op.callBoxed(stack);
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, "DeferredInit: ", name, " fails when it runs for real: ", error.what_without_backtrace());
    }
    std::vector<Tensor> results;
    for (const IValue& value : stack) ForEachTensor(value, [&](const Tensor& tensor) { results.push_back(tensor); });
    TORCH_CHECK(results.size() == call.results.size(), "DeferredInit: ", name, " gives ", results.size(), " tensors now, and gave ",
                call.results.size());
    for (std::size_t i = 0; i < results.size(); ++i) {
      const Tensor& real = results[i];
      const Tensor& fake = call.results[i];
      TORCH_CHECK(real.sizes() == fake.sizes() && real.strides() == fake.strides() && real.storage_offset() == fake.storage_offset() &&
                      real.scalar_type() == fake.scalar_type() && real.device() == fake.device(),
                  "DeferredInit: ", name, " gives another tensor (", Describe(real), ") now than it did when it was recorded (",
                  Describe(fake), ")");
      const auto [place, is_new] = real_.try_emplace(KeyOf(fake), Real{real.storage(), {}});
      TORCH_CHECK(is_new || KeyOf(real) == place->second.storage.unsafeGetStorageImpl(), "DeferredInit: ", name,
                  " gives other memory now than it did when it was recorded");
    }
    call.done = true;
    // Fakes' storages stay, since their addresses are keys.
  }

  // What a recorded operand is by now.
  Tensor Now(const Tensor& tensor, const std::string& name) const {
    const FakeTensorImpl* fake = FakeTensorImpl::Of(tensor);
    if (fake == nullptr) return tensor;
    const auto found = real_.find(KeyOf(tensor));
    TORCH_CHECK(found != real_.end(), "DeferredInit: ", name, " reads a tensor (", Describe(tensor), ") that wasn't made under Record()");
    for (const auto& [counter, version] : found->second.versions) {
      TORCH_CHECK(counter.current_version() == version, "DeferredInit: ", name, " reads a tensor (", Describe(tensor),
                  ") that was written to after it had been made real");
    }
    return fake->Alias(found->second.storage, c10::computeDispatchKey(std::nullopt, c10::kStrided, fake->device()));
  }

  std::vector<Recorded> calls_;
  absl::flat_hash_map<StorageKey, Real> real_;
};

DeferredInit::DeferredInit(std::source_location made_at) : mode_(FakeTensorMode::Create({}, made_at)), tape_(std::make_shared<Tape>()) {
  mode_->RecordCalls(tape_);
}

DeferredInit::~DeferredInit() { mode_->RecordCalls({}); }

void DeferredInit::Materialize(const std::vector<Tensor>& tensors) { tape_->Materialize(tensors, *mode_); }

}  // namespace ddpopt
