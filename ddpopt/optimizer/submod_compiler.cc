#include "ddpopt/optimizer/submod_compiler.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "ATen/core/Tensor.h"
#include "ATen/ops/empty_strided.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/generator_guard.h"
#include "base/logging.h"
#include "base/status.h"
#include "c10/core/GradMode.h"
#include "ddpopt/optimizer/fake_interpreter.h"
#include "ddpopt/optimizer/piece_contract.h"
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

// What of a tensor may not change while the backend compiles.
struct TensorState {
  at::Tensor tensor;
  uint32_t version;
  const void* memory;
  std::size_t geometry;
  c10::ScalarType dtype;
  bool requires_grad;
  at::Tensor grad;
  uint32_t grad_version;

  static uint32_t Version(const at::Tensor& tensor) {
    return !tensor.defined() || tensor.is_inference() ? 0 : tensor.unsafeGetTensorImpl()->version_counter().current_version();
  }
  static at::Tensor GradOf(const at::Tensor& tensor) { return tensor.is_leaf() ? tensor.grad() : at::Tensor(); }
  explicit TensorState(const at::Tensor& of)
      : tensor(of),
        version(Version(of)),
        memory(MemoryOf(of)),
        geometry(GeometryOf(of)),
        dtype(of.scalar_type()),
        requires_grad(of.requires_grad()),
        grad(GradOf(of)),
        grad_version(Version(grad)) {}
  // Small, since there may be many tensors: a hash of sizes and strides.
  static std::size_t GeometryOf(const at::Tensor& tensor) {
    return absl::HashOf(absl::MakeConstSpan(tensor.sizes().data(), tensor.sizes().size()),
                        absl::MakeConstSpan(tensor.strides().data(), tensor.strides().size()));
  }
  bool IsSame() const {
    if (Version(tensor) != version || MemoryOf(tensor) != memory || tensor.scalar_type() != dtype ||
        tensor.requires_grad() != requires_grad)
      return false;
    if (GeometryOf(tensor) != geometry) return false;
    const at::Tensor now = GradOf(tensor);
    return now.is_same(grad) && Version(now) == grad_version;
  }
  // What changed, if it isn't the same.
  std::string Change(const std::string& name) const {
    if (Version(tensor) != version) return absl::StrCat("writes ", name);
    if (GeometryOf(tensor) != geometry) return absl::StrCat("gives ", name, " other sizes or strides");
    if (MemoryOf(tensor) != memory || tensor.scalar_type() != dtype) return absl::StrCat("gives ", name, " other data");
    if (tensor.requires_grad() != requires_grad) return absl::StrCat("changes requires_grad of ", name);
    return absl::StrCat("changes the gradient of ", name);
  }
};

// The number of edits of the graph and of those nested in it.
std::uint64_t Edits(const fx::GraphModule& module) {
  std::uint64_t edits = module.graph().version() + module.attrs().size() + module.submodules().size();
  for (const auto& [path, submodule] : module.submodules()) {
    if (submodule.graph_module != nullptr) edits += Edits(*submodule.graph_module);
  }
  return edits;
}

// The name of the tensor that was the attribute of that number before the backend came.
std::string NameOf(const fx::GraphModule& piece, const at::Tensor& tensor, std::size_t number) {
  const std::vector<NamedTensor> now = TensorAttrs(piece);
  for (const NamedTensor& attr : now) {
    if (attr.tensor.is_same(tensor)) return absl::StrCat("'", attr.name, "'");
  }
  return number < now.size() ? absl::StrCat("'", now[number].name, "'") : "a parameter or buffer";  // it was taken out, too
}

// What runs in the place of a refused piece.
class EagerPiece : public CompiledPiece {
 public:
  EagerPiece(std::shared_ptr<const fx::GraphModule> piece, std::size_t outputs) : piece_(std::move(piece)), outputs_(outputs) {}
  IValue Call(std::vector<IValue> args) const override { return CallGraphModule(*piece_, std::move(args)); }
  std::vector<absl::optional<OutputMeta>> output_meta() const override { return std::vector<absl::optional<OutputMeta>>(outputs_); }

 private:
  std::shared_ptr<const fx::GraphModule> piece_;
  std::size_t outputs_;
};

std::string Brackets(c10::IntArrayRef values) { return absl::StrCat("[", absl::StrJoin(values, ", "), "]"); }

// The output as the compiled piece lays it out.
absl::StatusOr<IValue> Restamp(const IValue& output, const absl::optional<OutputMeta>& meta, std::size_t index,
                               const std::vector<IValue>& inputs, const std::shared_ptr<FakeTensorMode>& mode) {
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
  if (std::any_of(meta->strides.begin(), meta->strides.end(), [](int64_t stride) { return stride < 0; })) {
    return absl::InternalError(
        absl::StrCat("the backend gives output ", index, " the strides ", Brackets(meta->strides), "; none may be negative"));
  }
  if (tensor.strides() == c10::IntArrayRef(meta->strides)) return output;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].isTensor() || MemoryOf(tensor) == nullptr || MemoryOf(inputs[i].toTensor()) != MemoryOf(tensor)) continue;
    return absl::InternalError(absl::StrCat("the backend gives output ", index, " the strides ", Brackets(meta->strides), ", not ",
                                            Brackets(tensor.strides()), ", but the graph has it share the memory of input ", i));
  }
  ModeGuard push(mode);
  at::Tensor restamped = at::empty_strided(meta->sizes, meta->strides, tensor.options().requires_grad(std::nullopt));
  restamped.set_requires_grad(tensor.requires_grad());
  return IValue(std::move(restamped));
}

absl::StatusOr<IValue> RestampAll(IValue outputs, const std::vector<absl::optional<OutputMeta>>& metas, const std::vector<IValue>& inputs,
                                  const std::shared_ptr<FakeTensorMode>& mode) {
  const bool several = outputs.isTuple() || outputs.isList();
  std::vector<IValue> elements = OutputList(outputs);
  if (metas.size() != elements.size() && !(outputs.isNone() && metas.size() == 1 && !metas.front().has_value())) {
    return absl::InternalError(absl::StrCat("the backend describes ", metas.size(), " outputs, but the piece has ", elements.size()));
  }
  bool changed = false;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    DDPOPT_ASSIGN_OR_RETURN(IValue restamped, Restamp(elements[i], metas[i], i, inputs, mode));
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
  if (compile_ == nullptr) return absl::InvalidArgumentError("compiling the split graph: no backend was given");
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
  if (!refused_.empty()) {
    const auto append = [](std::string* out, const RefusedPiece& piece) { absl::StrAppend(out, piece.name, " (", piece.reason, ")"); };
    LOG(WARNING) << "the backend refused " << refused_.size() << " of " << count_
                 << " pieces, which run eagerly: " << absl::StrJoin(refused_, "; ", append);
  }
  return outer_->Lint();
}

void SubmodCompiler::Fail(absl::Status status) {
  error_ = std::move(status);
  TORCH_CHECK(false, std::string(error_.message()));
}

absl::StatusOr<std::shared_ptr<const CompiledPiece>> SubmodCompiler::CallBackend(const std::shared_ptr<fx::GraphModule>& piece,
                                                                                 const Values& fake_inputs, const std::string& name) {
  std::vector<TensorState> attrs, inputs;
  attrs.reserve(piece->attrs().size());
  ForEachTensorAttr(*piece, [&](const std::string&, const at::Tensor& tensor) { attrs.emplace_back(tensor); });
  std::vector<std::size_t> input_numbers;
  for (std::size_t i = 0; i < fake_inputs.size(); ++i) {
    if (!fake_inputs[i].isTensor() || !fake_inputs[i].toTensor().defined()) continue;
    inputs.emplace_back(fake_inputs[i].toTensor());
    input_numbers.push_back(i);
  }
  const std::uint64_t edits = Edits(*piece);
  absl::StatusOr<std::shared_ptr<const CompiledPiece>> compiled;
  {
    const GeneratorGuard generator;
    const c10::AutoGradMode grad_mode(c10::GradMode::is_enabled());
    try {
      compiled = compile_(piece, fake_inputs, CompileContext{name, next_index_, count_});
    } catch (const std::exception& error) {
      return absl::InternalError(ExceptionMessage(error));
    } catch (...) {
      return absl::InternalError("the backend threw an exception of unknown type");
    }
  }
  if (!compiled.ok() && compiled.status().code() != absl::StatusCode::kUnimplemented) return compiled;
  const auto changes = [](const std::string& change) {
    return absl::InternalError(absl::StrCat("the backend ", change, " while it compiles, where nothing may change"));
  };
  for (std::size_t i = 0; i < attrs.size(); ++i) {
    if (!attrs[i].IsSame()) return changes(attrs[i].Change(NameOf(*piece, attrs[i].tensor, i)));
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].IsSame()) return changes(inputs[i].Change(absl::StrCat("its fake input ", input_numbers[i])));
  }
  // A parameter that was replaced leaves the old one as it was.
  std::optional<std::size_t> replaced;
  std::size_t next = 0;
  ForEachTensorAttr(*piece, [&](const std::string&, const at::Tensor& tensor) {
    const std::size_t i = next++;
    const auto same = [&](const TensorState& state) { return state.tensor.is_same(tensor); };
    if (replaced.has_value() || (i < attrs.size() && same(attrs[i]))) return;  // in the order of before, as long as nothing was replaced
    if (std::none_of(attrs.begin(), attrs.end(), same)) replaced = i;
  });
  if (replaced.has_value()) return absl::InternalError(absl::StrCat("the backend replaces '", TensorAttrs(*piece)[*replaced].name, "'"));
  if (Edits(*piece) != edits) return absl::InternalError("the backend edits the piece's graph");
  if (!compiled.ok()) {
    if (!options_.refused_pieces_run_eagerly) return compiled;
    refused_.push_back({name, std::string(compiled.status().message())});
    return std::shared_ptr<const CompiledPiece>();
  }
  if (*compiled == nullptr) return absl::InternalError("the backend returned no piece");
  return compiled;
}

absl::StatusOr<IValue> SubmodCompiler::CompilePiece(const std::shared_ptr<fx::GraphModule>& piece, Values args, const std::string& name) {
  // 1. Fake inputs; parameters stay real for the backend.
  for (IValue& arg : args) arg = mode_->FromReal(arg);

  // 2. The real submodule, for these inputs.
  DDPOPT_ASSIGN_OR_RETURN(std::shared_ptr<const CompiledPiece> compiled, CallBackend(piece, args, name));

  // 4. The uncompiled submodule on fakes. (3, the replacement, comes when all pieces are compiled.)
  std::vector<absl::optional<OutputMeta>> claims;
  if (compiled != nullptr) claims = compiled->output_meta();
  const bool claims_something = std::any_of(claims.begin(), claims.end(), [](const auto& claim) { return claim.has_value(); });
  const bool checked = compiled != nullptr && (!compiled->interprets_graph() || claims_something);
  // A copy, only to tell what the piece promises.
  std::shared_ptr<fx::GraphModule> fake;
  if (checked) {
    fake = piece->Clone();
    DDPOPT_RETURN_IF_ERROR(MakeAttrsFake(*fake, *mode_));
    std::size_t next_input = 0;
    for (fx::Node* node : fake->graph().nodes()) {
      if (node->op() == fx::Op::kPlaceholder && next_input < args.size()) node->meta().val = args[next_input++];
    }
  }
  IValue outputs;
  {
    std::optional<ModeGuard> push;
    if (options_.push_fake_mode) push.emplace(mode_);
    outputs = fake == nullptr ? FakeInterpreter(*piece, mode_.get()).Run(args) : FakeInterpreter(*fake).Run(args);
  }
  if (compiled == nullptr) {
    compiled_[name] = std::make_shared<const EagerPiece>(piece, OutputList(outputs).size());
    ++next_index_;
    return outputs;
  }
  DDPOPT_ASSIGN_OR_RETURN(outputs, RestampAll(std::move(outputs), claims, args, mode_));
  if (!checked) {
    compiled_[name] = std::move(compiled);
    ++next_index_;
    return outputs;
  }
  PieceContract contract(name, *piece, *fake, args, outputs);
  DDPOPT_RETURN_IF_ERROR(contract.CheckClaims(claims));
  compiled_[name] = compiled->interprets_graph() ? std::move(compiled) : CheckedPiece(std::move(compiled), std::move(contract));
  ++next_index_;
  return outputs;
}

IValue SubmodCompiler::RunCallModule(const fx::Node& node, Arguments& arguments) {
  const std::string name(node.path());
  const std::string context = absl::StrCat("compiling ", name);
  if (!arguments.kwargs().empty()) {
    Fail(Annotate(absl::InvalidArgumentError(absl::StrCat("call_module %", node.name(), " has the keyword argument '",
                                                          arguments.kwargs().front().first, "'; keyword arguments are not supported")),
                  context));
  }
  if (compiled_.contains(name)) Fail(Annotate(absl::UnimplementedError("the piece is called more than once"), context));
  const absl::StatusOr<fx::GraphModule::Submodule> submodule = outer_->GetSubmodule(name);
  if (!submodule.ok()) Fail(Annotate(submodule.status(), context));
  if (submodule->graph_module == nullptr) Fail(Annotate(absl::InvalidArgumentError("the submodule has no graph"), context));

  absl::StatusOr<IValue> result;
  try {
    result = CompilePiece(submodule->graph_module, std::move(arguments.args()), name);
    if (!result.ok()) result = Annotate(result.status(), context);
  } catch (const std::exception& error) {
    result = Annotate(absl::InternalError(ExceptionMessage(error)), context);
  } catch (...) {
    result = Annotate(absl::InternalError("an exception of unknown type"), context);
  }
  if (!result.ok()) Fail(result.status());
  return *std::move(result);
}

}  // namespace ddpopt
