#include "ddpopt/capture/tracer/trace.h"

#include <cstring>
#include <optional>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/autocast_mode.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "ddpopt/capture/tracer/canonicalize.h"
#include "ddpopt/capture/tracer/tracing_mode.h"
#include "ddpopt/capture/tracer/values.h"
#include "fx_graph/passes/dead_code.h"
#include "interpreter/mode_stack.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/nn/module.h"

namespace ddpopt {
namespace {

using c10::IValue;

// What a capture must leave as it is, and what forward would change past the operators that the tracer sees.
class RealState {
 public:
  RealState(const torch::nn::Module* module, const std::vector<at::Tensor>& inputs) : module_(module), generator_(GeneratorState()) {
    for (const auto& [name, tensor] : Attributes()) tensors_.push_back(Look(name, tensor));
    num_attributes_ = tensors_.size();
    for (std::size_t i = 0; i < inputs.size(); ++i) tensors_.push_back(Look(absl::StrCat("input ", i), inputs[i]));
  }

  // What has changed; empty if nothing has.
  std::string Difference() const {
    const auto attributes = Attributes();
    if (attributes.size() != num_attributes_) return "forward registers or removes parameters or buffers";
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const State& before = tensors_[i];
      if (i < num_attributes_ && !attributes[i].second.is_same(before.tensor)) {
        return absl::StrCat("forward replaces ", before.name, " by another tensor");
      }
      const State now = Look(before.name, before.tensor);
      if (now.storage != before.storage || now.sizes != before.sizes) {
        return absl::StrCat("forward changes the data or the shape of ", before.name, " (set_data)");
      }
      if (now.version != before.version) {
        return absl::StrCat("forward writes to ", before.name, " by something that the tracer doesn't see, such as another thread");
      }
      if (now.requires_grad != before.requires_grad) return absl::StrCat("forward changes requires_grad of ", before.name);
      if (now.hooks != before.hooks) return absl::StrCat("forward registers a hook on ", before.name, ", which the graph can't express");
    }
    const at::Tensor generator = GeneratorState();
    if (std::memcmp(generator.const_data_ptr(), generator_.const_data_ptr(), generator.nbytes()) != 0) {
      return "forward seeds the default random generator, or draws from it past ATen's operators; the graph can't express that";
    }
    return "";
  }

 private:
  struct State {
    std::string name;
    at::Tensor tensor;
    const c10::StorageImpl* storage;
    std::vector<int64_t> sizes;
    std::optional<std::uint32_t> version;
    bool requires_grad;
    std::size_t hooks;
  };

  std::vector<std::pair<std::string, at::Tensor>> Attributes() const {
    std::vector<std::pair<std::string, at::Tensor>> result;
    if (module_ == nullptr) return result;
    for (const auto& item : module_->named_parameters()) {
      if (item.value().defined()) result.emplace_back(absl::StrCat("parameter \"", item.key(), "\""), item.value());
    }
    for (const auto& item : module_->named_buffers()) {
      if (item.value().defined()) result.emplace_back(absl::StrCat("buffer \"", item.key(), "\""), item.value());
    }
    return result;
  }

  static State Look(std::string name, const at::Tensor& tensor) {
    return {std::move(name),
            tensor,
            tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr,
            tensor.sizes().vec(),
            tensor.is_inference() ? std::nullopt : std::optional<std::uint32_t>(static_cast<std::uint32_t>(tensor._version())),
            tensor.requires_grad(),
            torch::autograd::impl::get_autograd_meta(tensor) == nullptr ? 0 : torch::autograd::impl::hooks(tensor).size()};
  }

  static at::Tensor GeneratorState() {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    return generator.get_state();
  }

  const torch::nn::Module* module_;
  std::vector<State> tensors_;
  std::size_t num_attributes_ = 0;
  at::Tensor generator_;
};

class AutocastCacheOff {
 public:
  AutocastCacheOff() : before_(at::autocast::is_autocast_cache_enabled()) { at::autocast::set_autocast_cache_enabled(false); }
  ~AutocastCacheOff() { at::autocast::set_autocast_cache_enabled(before_); }

 private:
  bool before_;
};

// "arg_0", "arg_1_0": where the tensor leaves are.
void LeafNames(const IValue& value, const std::string& prefix, std::vector<std::string>* names) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) names->push_back(prefix);
  } else if (value.isGenericDict()) {
    int i = 0;
    for (const auto& entry : value.toGenericDict()) LeafNames(entry.value(), absl::StrCat(prefix, "_", i++), names);
  } else if (value.isTuple() || value.isList()) {
    int i = 0;
    for (const IValue& element : ElementsOf(value)) LeafNames(element, absl::StrCat(prefix, "_", i++), names);
  }
}

at::Tensor WithoutHistory(const at::Tensor& fake) {
  const c10::VariableVersion version = fake.is_inference() ? c10::VariableVersion(c10::VariableVersion::DISABLED) : c10::VariableVersion(0);
  at::Tensor copy(fake.unsafeGetTensorImpl()->shallow_copy_and_detach(version, /*allow_tensor_metadata_change=*/true));
  if (fake.requires_grad() && !fake.is_inference()) copy.set_requires_grad(true);
  return copy;
}

absl::StatusOr<TracedModule> Trace(const torch::nn::Module* module, const IValue& arguments, const std::shared_ptr<FakeTensorMode>& mode,
                                   const ValueForward& forward, const TraceOptions& options) {
  TracedModule traced;
  std::vector<at::Tensor> inputs;
  traced.arguments = FlattenValue(arguments, &inputs);
  std::vector<std::string> names;
  LeafNames(arguments, "arg", &names);
  traced.module = std::make_shared<fx::GraphModule>();
  auto tracing = std::make_shared<TracingMode>(mode, traced.module.get());
  if (module != nullptr) {
    const auto add = [&](const std::string& name, const at::Tensor& tensor, fx::GraphModule::AttrKind kind) {
      if (!tensor.defined()) return;
      if (std::string path = tracing->AddAttr(name, tensor, kind); path != name) traced.ties.emplace_back(name, std::move(path));
    };
    for (const auto& item : module->named_parameters()) add(item.key(), item.value(), fx::GraphModule::AttrKind::kParameter);
    for (const auto& item : module->named_buffers()) add(item.key(), item.value(), fx::GraphModule::AttrKind::kBuffer);
  }
  const RealState before(module, inputs);
  std::vector<IValue> placeholders;
  std::vector<std::pair<at::Tensor, IValue>> twins;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor fake = mode->FromReal(inputs[i]);
    IValue twin;
    for (const auto& [other, others_twin] : twins) {
      if (other.is_same(fake)) twin = others_twin;
    }
    if (twin.isNone()) twins.emplace_back(fake, twin = WithoutHistory(fake));
    traced.fake_inputs.push_back(twin);
    tracing->AddInput(names[i], fake, inputs[i]);
  }
  twins.clear();
  {
    const AutocastCacheOff cache_off;
    const ModeGuard fakes_on(mode);
    IValue result;
    {
      const ModeGuard tracing_on(tracing);
      result = forward(MapTensors(arguments, [&](const at::Tensor& tensor) -> IValue { return mode->FromReal(tensor); }));
    }
    tracing->Finish(result);
  }
  tracing->CheckEnd();
  if (const std::string difference = before.Difference(); !difference.empty()) return absl::UnimplementedError(difference);
  traced.own_constants = tracing->own_constants();
  if (const std::vector<std::string> escaped = tracing->Release(); !escaped.empty()) {
    return absl::UnimplementedError(absl::StrCat(kKeepsTensors, " (%", absl::StrJoin(escaped, ", %"),
                                                 ") beyond the call, in a member or elsewhere, where the graph couldn't put a new one each time. "
                                                 "What is there now has no data: give it the value that it had before"));
  }
  const std::vector<fx::Node*> nodes = traced.module->graph().FindNodes(fx::Op::kPlaceholder);
  for (std::size_t i = 0; i < nodes.size(); ++i) nodes[i]->meta().val = traced.fake_inputs[i];
  if (options.canonicalize) DDPOPT_RETURN_IF_ERROR(CanonicalizeModuleForms(*traced.module).status());
  DDPOPT_RETURN_IF_ERROR(fx::EliminateDeadCode(*traced.module).status());
  DDPOPT_RETURN_IF_ERROR(traced.module->Lint());
  return traced;
}

}  // namespace

absl::StatusOr<TracedModule> TraceCall(const torch::nn::Module* module, const IValue& arguments,
                                       const std::shared_ptr<FakeTensorMode>& mode, const ValueForward& forward,
                                       const TraceOptions& options) {
  return CatchAsStatus("capturing the module's forward", [&]() -> absl::StatusOr<TracedModule> {
    std::vector<at::Tensor> inputs;
    FlattenValue(arguments, &inputs);
    for (std::size_t i = 0; i < inputs.size() && module != nullptr; ++i) {
      for (const auto& parameter : module->named_parameters()) {
        if (inputs[i].is_same(parameter.value())) {
          return absl::InvalidArgumentError(absl::StrCat("input ", i, " is the module's parameter \"", parameter.key(), "\""));
        }
      }
    }
    return Trace(module, arguments, mode, forward, options);
  });
}

absl::StatusOr<TracedModule> TraceModule(const torch::nn::Module& module, const std::vector<at::Tensor>& inputs,
                                         const std::shared_ptr<FakeTensorMode>& mode,
                                         const std::function<at::Tensor(const std::vector<at::Tensor>&)>& forward,
                                         const TraceOptions& options) {
  std::vector<IValue> elements;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) return absl::InvalidArgumentError(absl::StrCat("input ", i, " is an undefined tensor"));
    elements.emplace_back(inputs[i]);
  }
  return TraceCall(
      &module, c10::ivalue::Tuple::create(std::move(elements)), mode,
      [&](const IValue& arguments) -> IValue {
        std::vector<at::Tensor> tensors;
        for (const IValue& element : ElementsOf(arguments)) tensors.push_back(element.toTensor());
        at::Tensor result = forward(tensors);
        TORCH_CHECK(result.defined(), "forward returned an undefined tensor");
        return result;
      },
      options);
}

}  // namespace ddpopt
