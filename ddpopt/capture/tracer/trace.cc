#include "ddpopt/capture/tracer/trace.h"

#include <string>
#include <utility>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/grad_mode.h"
#include "ATen/autocast_mode.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "c10/core/InferenceMode.h"
#include "ddpopt/capture/tracer/canonicalize.h"
#include "interpreter/mode_stack.h"
#include "torch/nn/module.h"

namespace ddpopt {
namespace {

// Whether an argument may be left out of the node because it has its default value.
bool IsDefault(const c10::Argument& argument, const c10::IValue& value) {
  const auto& fallback = argument.default_value();
  if (!fallback.has_value()) return false;
  if (fallback->isNone() || value.isNone()) return fallback->isNone() && value.isNone();
  if (value.isTensor() || value.isTensorList()) return false;
  return fallback->tagKind() == value.tagKind() && *fallback == value;
}

// "add" of aten::add.Tensor: what PyTorch's own tracers name the node.
absl::string_view PacketName(const c10::OperatorHandle& op) {
  const absl::string_view name = op.operator_name().name;
  return name.substr(name.rfind(':') + 1);
}

// Sees every operator that forward calls, runs it on fakes, and writes it down.
class TracingMode : public Mode {
 public:
  TracingMode(std::shared_ptr<FakeTensorMode> fakes, fx::GraphModule* module)
      : fakes_(std::move(fakes)), module_(module), grad_enabled_(c10::GradMode::is_enabled()) {}

  Level level() const override { return Level::kPreAutograd; }
  absl::string_view name() const override { return "TracingMode"; }

  void AddInput(std::size_t index, const at::Tensor& fake) {
    fx::Node* node = module_->graph().Placeholder(absl::StrCat("arg_", index));
    Record(node, fake);
  }

  void AddAttr(const std::string& path, const at::Tensor& real, fx::GraphModule::AttrKind kind) {
    if (attr_paths_.contains(real.unsafeGetTensorImpl())) return;  // a tie: the first path stands for it
    attr_paths_[real.unsafeGetTensorImpl()] = path;
    const absl::Status status = module_->AddAttr(path, real, kind);
    TORCH_CHECK(status.ok(), status.ToString());
  }

  void Handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    const std::string name = c10::toString(op.operator_name());
    TORCH_CHECK(c10::GradMode::is_enabled() == grad_enabled_, "tracing ", name,
                ": forward changes the grad mode (a no_grad region, or a custom autograd::Function), which the tracer does not support");
    TORCH_CHECK(!c10::InferenceMode::is_enabled(), "tracing ", name, ": forward runs in inference mode, which the tracer does not support");
    for (const at::DeviceType device : {at::kCPU, at::kCUDA}) {
      TORCH_CHECK(!at::autocast::is_autocast_enabled(device), "tracing ", name, ": forward runs under autocast, which the tracer does not support");
    }

    const c10::FunctionSchema& schema = op.schema();
    const std::size_t num_args = schema.arguments().size();
    std::vector<fx::Argument> args;
    fx::Kwargs kwargs;
    auto values = torch::jit::last(*stack, num_args);
    // Positional arguments that follow the last one without its default value are left out, as torch.fx's printed graphs do.
    std::size_t last_kept = 0;
    for (std::size_t i = 0; i < num_args; ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      if (!argument.kwarg_only() && !IsDefault(argument, values[i])) last_kept = i + 1;
    }
    for (std::size_t i = 0; i < num_args; ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      c10::IValue& value = (*stack)[stack->size() - num_args + i];
      if (argument.kwarg_only()) {
        if (!IsDefault(argument, value)) kwargs.emplace_back(argument.name(), Convert(value, name));
      } else if (i < last_kept) {
        args.push_back(Convert(value, name));
      }
    }

    try {
      op.callBoxed(stack);
    } catch (const c10::Error& error) {
      TORCH_CHECK(false, "tracing ", name, ": ", error.what_without_backtrace());
    }

    const std::size_t num_returns = schema.returns().size();
    const auto results = torch::jit::last(*stack, num_returns);
    bool any_tensor = num_returns == 0;
    for (const c10::IValue& result : results) any_tensor |= result.isTensor() || result.isTensorList();
    // Questions about metadata (is_same_size, result_type, ...) are answered by the fakes and leave nothing to run.
    if (!any_tensor) return;
    fx::Node* node = module_->graph().CallFunction(op, std::move(args), std::move(kwargs), PacketName(op));
    if (num_returns == 0) return;
    if (num_returns == 1) {
      RecordResult(node, results[0]);
      return;
    }
    std::vector<c10::IValue> elements(results.begin(), results.end());
    node->meta().val = c10::ivalue::Tuple::create(elements);
    RecordElements(node, elements);
  }

  // The node of forward's result.
  fx::Argument Result(const at::Tensor& tensor) { return TensorNode(tensor, "output", nullptr); }

 private:
  struct Known {
    fx::Node* node;
    at::Tensor fake;  // keeps the address from being used again
    bool requires_grad;
  };

  void Record(fx::Node* node, const at::Tensor& fake) {
    node->meta().val = fake;
    known_.insert_or_assign(fake.unsafeGetTensorImpl(), Known{node, fake, fake.requires_grad()});
    if (fake.has_storage()) by_storage_[fake.storage().unsafeGetStorageImpl()].push_back(fake.unsafeGetTensorImpl());
  }

  void RecordResult(fx::Node* node, const c10::IValue& result) {
    if (result.isTensor()) {
      if (result.toTensor().defined()) Record(node, result.toTensor());
    } else if (result.isTensorList()) {
      node->meta().val = result;
      std::vector<c10::IValue> elements;
      for (const at::Tensor& tensor : result.toTensorVector()) elements.emplace_back(tensor);
      RecordElements(node, elements);
    }
  }

  void RecordElements(fx::Node* node, const std::vector<c10::IValue>& elements) {
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if (!elements[i].isTensor() && !elements[i].isTensorList()) continue;
      fx::Node* item = module_->graph().CreateNode(fx::Op::kCallFunction, fx::OpaqueTarget{"operator.getitem"},
                                                   {node, c10::IValue(static_cast<int64_t>(i))}, {}, "getitem");
      RecordResult(item, elements[i]);
    }
  }

  // The argument a value stands for; tensors inside `value` are replaced by their fakes.
  fx::Argument Convert(c10::IValue& value, const std::string& op) {
    if (value.isTensor()) {
      if (!value.toTensor().defined()) return fx::Argument();
      at::Tensor fake;
      fx::Argument argument = TensorNode(value.toTensor(), op, &fake);
      value = fake;
      return argument;
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> fakes;
      std::vector<fx::Argument> elements;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        at::Tensor fake;
        elements.push_back(TensorNode(tensor, op, &fake));
        fakes.push_back(fake);
      }
      value = fakes;
      return fx::Argument::List(std::move(elements));
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> fakes;
      std::vector<fx::Argument> elements;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        if (tensor.has_value() && tensor->defined()) {
          at::Tensor fake;
          elements.push_back(TensorNode(*tensor, op, &fake));
          fakes.push_back(fake);
        } else {
          elements.emplace_back();
          fakes.push_back(std::nullopt);
        }
      }
      value = fakes;
      return fx::Argument::List(std::move(elements));
    }
    TORCH_CHECK(!value.isGenerator(), "tracing ", op, ": an explicit random generator can't be captured in a graph");
    return fx::Argument(value);
  }

  fx::Argument TensorNode(const at::Tensor& tensor, const std::string& op, at::Tensor* fake_out) {
    const at::Tensor fake = IsFake(tensor) ? tensor : fakes_->FromReal(tensor);
    if (fake_out != nullptr) *fake_out = fake;
    if (const auto it = known_.find(fake.unsafeGetTensorImpl()); it != known_.end()) {
      TORCH_CHECK(it->second.requires_grad == fake.requires_grad(), "tracing ", op, ": requires_grad of %", it->second.node->name(),
                  " was changed outside of the graph");
      return it->second.node;
    }
    if (!IsFake(tensor)) return AttrNode(tensor, fake);
    // torch::zeros, .data() and the like hand out a new tensor object over a storage we know.
    if (tensor.has_storage()) {
      if (const auto it = by_storage_.find(tensor.storage().unsafeGetStorageImpl()); it != by_storage_.end()) {
        for (auto impl = it->second.rbegin(); impl != it->second.rend(); ++impl) {
          const Known known = known_.at(*impl);
          if (!SameLayout(known.fake, tensor)) continue;
          if (known.requires_grad == tensor.requires_grad()) {
            Alias(known.node, tensor);
            return known.node;
          }
          TORCH_CHECK(known.requires_grad, "tracing ", op, ": a tensor made in forward was given requires_grad outside of the graph");
          fx::Node* detached = module_->graph().CallFunction(c10::Dispatcher::singleton().findSchemaOrThrow("aten::detach", ""),
                                                                    {known.node}, {}, "detach");
          Record(detached, tensor);
          return detached;
        }
      }
    }
    TORCH_CHECK(false, "tracing ", op, ": takes a tensor of shape ", tensor.sizes(),
                " that was made in forward by something the tracer cannot see (not an ATen operator)");
  }

  void Alias(fx::Node* node, const at::Tensor& fake) {
    known_.insert_or_assign(fake.unsafeGetTensorImpl(), Known{node, fake, fake.requires_grad()});
  }

  static bool SameLayout(const at::Tensor& a, const at::Tensor& b) {
    return a.sizes() == b.sizes() && a.strides() == b.strides() && a.storage_offset() == b.storage_offset() && a.scalar_type() == b.scalar_type();
  }

  // A parameter or buffer of the module, or else a constant of the graph.
  fx::Node* AttrNode(const at::Tensor& real, const at::Tensor& fake) {
    auto it = attr_paths_.find(real.unsafeGetTensorImpl());
    if (it == attr_paths_.end()) {
      const std::string path = absl::StrCat("_tensor_constant", num_constants_++);
      TORCH_CHECK(!real.requires_grad(), "forward uses a tensor of shape ", real.sizes(),
                  " that requires grad and is neither a parameter nor an input of the module; register it as a parameter");
      AddAttr(path, real, fx::GraphModule::AttrKind::kConstant);
      it = attr_paths_.find(real.unsafeGetTensorImpl());
    }
    fx::Node* node = module_->graph().GetAttr(it->second);
    const fx::GraphModule::AttrKind kind = module_->GetAttr(it->second)->kind;
    node->meta().is_parameter = kind == fx::GraphModule::AttrKind::kParameter;
    node->meta().is_buffer = kind == fx::GraphModule::AttrKind::kBuffer;
    Record(node, fake);
    return node;
  }

  std::shared_ptr<FakeTensorMode> fakes_;
  fx::GraphModule* module_;
  bool grad_enabled_;
  int num_constants_ = 0;
  absl::flat_hash_map<const c10::TensorImpl*, Known> known_;
  absl::flat_hash_map<const c10::StorageImpl*, std::vector<const c10::TensorImpl*>> by_storage_;
  absl::flat_hash_map<const c10::TensorImpl*, std::string> attr_paths_;
};

}  // namespace

absl::StatusOr<TracedModule> TraceModule(const torch::nn::Module& module, const std::vector<at::Tensor>& inputs,
                                         const std::shared_ptr<FakeTensorMode>& mode,
                                         const std::function<at::Tensor(const std::vector<at::Tensor>&)>& forward,
                                         const TraceOptions& options) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) return absl::InvalidArgumentError(absl::StrCat("input ", i, " is an undefined tensor"));
    for (std::size_t j = 0; j < i; ++j) {
      if (inputs[i].is_same(inputs[j])) {
        return absl::InvalidArgumentError(
            absl::StrCat("inputs ", j, " and ", i, " are the same tensor; the graph could not tell them apart in a later call: pass a clone"));
      }
    }
    for (const auto& parameter : module.named_parameters()) {
      if (inputs[i].is_same(parameter.value())) {
        return absl::InvalidArgumentError(absl::StrCat("input ", i, " is the module's parameter \"", parameter.key(), "\""));
      }
    }
  }
  return CatchAsStatus("capturing the module's forward", [&]() -> absl::StatusOr<TracedModule> {
    TracedModule traced;
    traced.module = std::make_shared<fx::GraphModule>();
    auto tracing = std::make_shared<TracingMode>(mode, traced.module.get());
    for (const auto& parameter : module.named_parameters()) {
      tracing->AddAttr(parameter.key(), parameter.value(), fx::GraphModule::AttrKind::kParameter);
    }
    for (const auto& buffer : module.named_buffers()) {
      if (buffer.value().defined()) tracing->AddAttr(buffer.key(), buffer.value(), fx::GraphModule::AttrKind::kBuffer);
    }
    std::vector<at::Tensor> fake_inputs;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      fake_inputs.push_back(mode->FromReal(inputs[i]));
      traced.fake_inputs.emplace_back(fake_inputs.back());
      tracing->AddInput(i, fake_inputs.back());
    }
    at::Tensor result;
    {
      ModeGuard fakes_on(mode);
      ModeGuard tracing_on(tracing);
      result = forward(fake_inputs);
    }
    TORCH_CHECK(result.defined(), "forward returned an undefined tensor");
    traced.module->graph().Output(tracing->Result(result));
    if (options.canonicalize) DDPOPT_RETURN_IF_ERROR(CanonicalizeModuleForms(*traced.module).status());
    DDPOPT_RETURN_IF_ERROR(traced.module->Lint());
    return traced;
  });
}

}  // namespace ddpopt
