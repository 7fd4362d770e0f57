#include "ddpopt/capture/tracer/trace.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "ddpopt/capture/tracer/canonicalize.h"
#include "ddpopt/capture/tracer/real_state.h"
#include "ddpopt/capture/tracer/tracing_mode.h"
#include "ddpopt/capture/tracer/values.h"
#include "fx_graph/passes/dead_code.h"
#include "interpreter/mode_stack.h"
#include "interpreter/tracing.h"
#include "torch/nn/module.h"

namespace ddpopt {
namespace {

using c10::IValue;

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

// Another fake in its place: what forward does to the first one doesn't show.
at::Tensor TwinOf(const at::Tensor& fake) {
  at::Tensor twin = WithoutHistory(fake);
  if (fake.requires_grad() && !fake.is_inference()) twin.set_requires_grad(true);
  return twin;
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
    if (twin.isNone()) twins.emplace_back(fake, twin = TwinOf(fake));
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
    return absl::UnimplementedError(
        absl::StrCat(kKeepsTensors, " (%", absl::StrJoin(escaped, ", %"),
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
