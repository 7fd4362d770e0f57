#include "ddpopt/optimizer/submod_compiler.h"

#include <cstddef>
#include <optional>
#include <utility>

#include "ATen/core/Tensor.h"
#include "ATen/ops/empty_strided.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "interpreter/mode_stack.h"

namespace ddpopt {
namespace {

using c10::IValue;

// Replaces every attribute by its fake, in nested graphs too. A tensor under two paths gives the same fake.
absl::Status MakeAttrsFake(fx::GraphModule& module, FakeTensorMode& mode) {
  std::vector<std::pair<std::string, IValue>> fakes;
  for (const auto& [path, attr] : module.attrs()) fakes.emplace_back(path, mode.FromReal(attr.value));
  for (auto& [path, fake] : fakes) DDPOPT_RETURN_IF_ERROR(module.SetAttr(path, std::move(fake)));
  for (const auto& [path, submodule] : module.submodules()) {
    if (submodule.graph_module == nullptr) continue;
    DDPOPT_RETURN_IF_ERROR(MakeAttrsFake(*submodule.graph_module, mode));
  }
  return absl::OkStatus();
}

std::string Brackets(c10::IntArrayRef values) { return absl::StrCat("[", absl::StrJoin(values, ", "), "]"); }

// The output as the compiled piece lays it out.
absl::StatusOr<IValue> Restamp(const IValue& output, const absl::optional<OutputMeta>& meta, std::size_t index,
                               const std::shared_ptr<FakeTensorMode>& mode) {
  if (!meta.has_value()) return output;
  if (!output.isTensor() || !output.toTensor().defined()) {
    return absl::InternalError(absl::StrCat("the backend gives strides for output ", index, ", which is no tensor but ", output.tagKind()));
  }
  const at::Tensor& tensor = output.toTensor();
  if (tensor.sizes() != c10::IntArrayRef(meta->sizes)) {
    return absl::InternalError(absl::StrCat("the backend gives output ", index, " the sizes ", Brackets(meta->sizes),
                                            ", but the graph gives it ", Brackets(tensor.sizes())));
  }
  if (meta->strides.size() != meta->sizes.size()) {
    return absl::InternalError(
        absl::StrCat("the backend gives output ", index, " ", meta->strides.size(), " strides for ", meta->sizes.size(), " dimensions"));
  }
  if (tensor.strides() == c10::IntArrayRef(meta->strides)) return output;
  ModeGuard push(mode);
  at::Tensor restamped = at::empty_strided(meta->sizes, meta->strides, tensor.options().requires_grad(std::nullopt));
  restamped.set_requires_grad(tensor.requires_grad());
  return IValue(std::move(restamped));
}

absl::StatusOr<IValue> RestampAll(IValue outputs, const std::vector<absl::optional<OutputMeta>>& metas,
                                  const std::shared_ptr<FakeTensorMode>& mode) {
  const bool several = outputs.isTuple() || outputs.isList();
  std::vector<IValue> elements;
  if (outputs.isTuple()) {
    elements = outputs.toTupleRef().elements().vec();
  } else if (outputs.isList()) {
    elements = outputs.toListRef().vec();
  } else if (!outputs.isNone()) {
    elements.push_back(outputs);
  }
  if (metas.size() != elements.size() && !(outputs.isNone() && metas.size() == 1 && !metas.front().has_value())) {
    return absl::InternalError(absl::StrCat("the backend describes ", metas.size(), " outputs, but the piece has ", elements.size()));
  }
  bool changed = false;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    DDPOPT_ASSIGN_OR_RETURN(IValue restamped, Restamp(elements[i], metas[i], i, mode));
    changed = changed || !restamped.is(elements[i]);
    elements[i] = std::move(restamped);
  }
  if (!changed) return outputs;
  if (!several) return std::move(elements.front());
  if (outputs.isTuple()) return IValue(c10::ivalue::Tuple::create(std::move(elements)));
  c10::impl::GenericList list(outputs.toList().elementType());
  for (IValue& element : elements) list.push_back(std::move(element));
  return IValue(std::move(list));
}

}  // namespace

SubmodCompiler::SubmodCompiler(std::shared_ptr<fx::GraphModule> outer, std::shared_ptr<FakeTensorMode> mode, CompileFn compile,
                               SubmodCompilerOptions options)
    : Interpreter(*outer), outer_(std::move(outer)), mode_(std::move(mode)), compile_(std::move(compile)), options_(options) {}

absl::Status SubmodCompiler::Compile(const std::vector<IValue>& example_inputs) {
  for (const fx::Node* node : outer_->graph().nodes()) count_ += node->op() == fx::Op::kCallModule;
  const absl::Status run = CatchAsStatus("compiling the split graph", [&] {
    Values inputs;
    inputs.reserve(example_inputs.size());
    for (const IValue& input : example_inputs) inputs.push_back(mode_->FromReal(input));
    Run(std::move(inputs));
  });
  if (!error_.ok()) return error_;
  DDPOPT_RETURN_IF_ERROR(run);

  for (const auto& [target, piece] : compiled_) {
    if (outer_->GetSubmodule(absl::StrCat("compiled_", target)).ok()) {
      return absl::AlreadyExistsError(absl::StrCat("compiling ", target, ": there is a submodule compiled_", target, " already"));
    }
  }
  for (auto& [target, piece] : compiled_) {
    DDPOPT_RETURN_IF_ERROR(outer_->AddSubmodule(absl::StrCat("compiled_", target), {nullptr, std::move(piece)}));
    DDPOPT_RETURN_IF_ERROR(outer_->DeleteSubmodule(target));
  }
  for (fx::Node* node : outer_->graph().nodes()) {
    if (node->op() == fx::Op::kCallModule) node->set_target(fx::PathTarget{absl::StrCat("compiled_", node->path())});
  }
  return outer_->Lint();
}

void SubmodCompiler::Fail(absl::Status status) {
  error_ = std::move(status);
  TORCH_CHECK(false, std::string(error_.message()));
}

IValue SubmodCompiler::RunCallModule(const fx::Node& node, Arguments& arguments) {
  Values args = std::move(arguments.args());
  const NamedValues& kwargs = arguments.kwargs();
  const std::string context = absl::StrCat("compiling ", node.path());
  if (!kwargs.empty()) {
    Fail(Annotate(absl::InvalidArgumentError(absl::StrCat("call_module %", node.name(), " has the keyword argument '", kwargs.front().first,
                                                          "'; keyword arguments are not supported")),
                  context));
  }
  if (compiled_.contains(node.path())) Fail(Annotate(absl::UnimplementedError("the piece is called more than once"), context));
  absl::StatusOr<fx::GraphModule::Submodule> submodule = outer_->GetSubmodule(node.path());
  if (!submodule.ok()) Fail(Annotate(submodule.status(), context));
  if (submodule->graph_module == nullptr) Fail(Annotate(absl::InvalidArgumentError("the submodule has no graph"), context));

  absl::StatusOr<IValue> result = CatchAsStatus(context, [&]() -> absl::StatusOr<IValue> {
    // 1. Fake inputs; parameters stay real for the backend.
    for (IValue& arg : args) arg = mode_->FromReal(arg);

    // 2. The real submodule, for these inputs.
    absl::StatusOr<std::shared_ptr<const CompiledPiece>> piece =
        compile_(submodule->graph_module, args, CompileContext{node.path(), next_index_, count_});
    if (!piece.ok()) return Annotate(piece.status(), context);
    if (*piece == nullptr) return absl::InternalError(absl::StrCat(context, ": the backend returned no piece"));

    // 4. The uncompiled submodule on fakes. (3, the replacement, comes when all pieces are compiled.)
    const std::shared_ptr<fx::GraphModule> fake = submodule->graph_module->Clone();
    if (absl::Status status = MakeAttrsFake(*fake, *mode_); !status.ok()) return Annotate(status, context);
    IValue outputs;
    {
      std::optional<ModeGuard> push;
      if (options_.push_fake_mode) push.emplace(mode_);
      outputs = CallGraphModule(*fake, std::move(args));
    }
    absl::StatusOr<IValue> restamped = RestampAll(std::move(outputs), (*piece)->output_meta(), mode_);
    if (!restamped.ok()) return Annotate(restamped.status(), context);
    compiled_[node.path()] = *std::move(piece);
    ++next_index_;
    return restamped;
  });
  if (!result.ok()) Fail(result.status());
  return *std::move(result);
}

}  // namespace ddpopt
