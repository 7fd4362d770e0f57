#include "ddpopt/ddp/program_data_parallel.h"

#include "ATen/core/Dict.h"
#include "ATen/core/jit_type.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "c10/util/Exception.h"
#include "ddpopt/capture/tracer/values.h"
#include "torch/nn/module.h"

namespace ddpopt {

using c10::IValue;

std::shared_ptr<torch::nn::Module> ModuleOf(const ExportedProgram& program) {
  auto root = std::make_shared<torch::nn::Module>("ExportedProgram");
  // Attributes come in the order of the original module's.
  for (const auto& [path, attr] : program.module()->NamedAttrs()) {
    if (!attr->value.isTensor() || attr->kind == fx::GraphModule::AttrKind::kConstant) continue;
    std::vector<std::string> parts = absl::StrSplit(path, '.');
    const std::string name = parts.back();
    parts.pop_back();
    std::shared_ptr<torch::nn::Module> owner = root;
    for (const std::string& part : parts) {
      std::shared_ptr<torch::nn::Module> child;
      for (const auto& item : owner->named_children()) {
        if (item.key() == part) child = item.value();
      }
      owner = child != nullptr ? child : owner->register_module(part, std::make_shared<torch::nn::Module>(part));
    }
    const at::Tensor& tensor = attr->value.toTensor();
    if (attr->kind == fx::GraphModule::AttrKind::kParameter) {
      owner->register_parameter(name, tensor, tensor.requires_grad());
    } else {
      owner->register_buffer(name, tensor);
    }
  }
  return root;
}

absl::StatusOr<std::unique_ptr<ProgramDataParallel>> ProgramDataParallel::Create(std::shared_ptr<ExportedProgram> program,
                                                                                 ProcessGroup group, DdpOptions options) {
  if (program == nullptr) return absl::InvalidArgumentError("DistributedDataParallel: the program is null");
  DDPOPT_RETURN_IF_ERROR(Annotate(program->CheckExecutable(), "DistributedDataParallel"));
  DDPOPT_RETURN_IF_ERROR(Annotate(program->CheckData(), "DistributedDataParallel"));
  DDPOPT_ASSIGN_OR_RETURN(std::shared_ptr<torch::nn::Module> module,
                          CatchAsStatus("DistributedDataParallel: the program's parameters", [&] { return ModuleOf(*program); }));
  DDPOPT_ASSIGN_OR_RETURN(std::unique_ptr<DdpCore> core, DdpCore::Create(std::move(module), std::move(group), std::move(options)));
  return std::unique_ptr<ProgramDataParallel>(new ProgramDataParallel(std::move(program), std::move(core)));
}

std::vector<IValue> ProgramDataParallel::RunFlat(std::vector<IValue> inputs) {
  const IValue result = core_->Forward(c10::ivalue::Tuple::create(std::move(inputs)), [this](const IValue& arguments) {
    return IValue(c10::ivalue::Tuple::create(program_->RunFlat(ElementsOf(arguments))));
  });
  return ElementsOf(result);
}

IValue ProgramDataParallel::Run(std::vector<IValue> args, const std::map<std::string, IValue>& kwargs) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [name, value] : kwargs) dict.insert(name, value);
  const IValue packed = c10::ivalue::Tuple::create({IValue(c10::ivalue::Tuple::create(std::move(args))), IValue(std::move(dict))});
  absl::StatusOr<std::vector<IValue>> flat = program_->in_tree().Flatten(packed, "inputs");
  TORCH_CHECK_VALUE(flat.ok(), std::string(flat.status().message()));
  absl::StatusOr<IValue> result = program_->out_tree().Unflatten(RunFlat(*std::move(flat)));
  TORCH_CHECK_VALUE(result.ok(), std::string(result.status().message()));
  return *std::move(result);
}

at::Tensor ProgramDataParallel::Forward(const std::vector<at::Tensor>& tensors) {
  std::vector<IValue> inputs;
  std::size_t wanted = 0;
  for (const ProgramInput& input : program_->inputs()) {
    TORCH_CHECK_VALUE(input.kind != ProgramInput::Kind::kSymbolic, "input \"", input.name,
                      "\" is a number that isn't fixed: call RunFlat");
    if (input.kind == ProgramInput::Kind::kConstant) {
      inputs.push_back(input.constant);
    } else {
      inputs.emplace_back(wanted < tensors.size() ? IValue(tensors[wanted]) : IValue());
      ++wanted;
    }
  }
  TORCH_CHECK_VALUE(tensors.size() == wanted, "the program takes ", wanted, " tensors, but ", tensors.size(), " were given");
  std::vector<IValue> outputs = RunFlat(std::move(inputs));
  TORCH_CHECK_VALUE(outputs.size() == 1 && outputs[0].isTensor(), "the program returns ", program_->out_tree().ToString(),
                    ", not one tensor: call RunFlat");
  return outputs[0].toTensor();
}

}  // namespace ddpopt
