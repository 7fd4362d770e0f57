#include "ddpopt/optimizer/piece_contract.h"

#include <algorithm>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/GradMode.h"
#include "c10/util/Exception.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fx_graph/passes/effects.h"
#include "fx_graph/passes/memory.h"

namespace ddpopt {
namespace {

using c10::IValue;

void WalkTensorAttrs(const fx::GraphModule& module, const std::string& prefix,
                     absl::FunctionRef<void(const std::string& name, const at::Tensor& tensor)> fn) {
  for (const auto& [path, attr] : module.attrs()) {
    if (!attr.value.isTensor() || !attr.value.toTensor().defined()) continue;
    if (prefix.empty()) {
      fn(path, attr.value.toTensor());
    } else {
      fn(absl::StrCat(prefix, path), attr.value.toTensor());
    }
  }
  for (const auto& [path, submodule] : module.submodules()) {
    if (submodule.graph_module != nullptr) WalkTensorAttrs(*submodule.graph_module, absl::StrCat(prefix, path, "."), fn);
  }
}

// Inference tensors count no writes.
uint32_t VersionOf(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

bool IsTensor(const IValue& value) { return value.isTensor() && value.toTensor().defined(); }

std::string Brackets(c10::IntArrayRef values) { return absl::StrCat("[", absl::StrJoin(values, ", "), "]"); }

// Strides that address differently: those of dimensions of one element, and of empty tensors, don't matter.
bool SameLayout(const at::Tensor& tensor, const std::vector<int64_t>& strides) {
  if (tensor.numel() == 0) return true;
  for (std::size_t d = 0; d < strides.size(); ++d) {
    if (tensor.sizes()[d] > 1 && tensor.strides()[d] != strides[d]) return false;
  }
  return true;
}

}  // namespace

std::vector<NamedTensor> TensorAttrs(const fx::GraphModule& module) {
  std::vector<NamedTensor> tensors;
  ForEachTensorAttr(module, [&](const std::string& name, const at::Tensor& tensor) { tensors.push_back({name, tensor}); });
  return tensors;
}

void ForEachTensorAttr(const fx::GraphModule& module,
                       absl::FunctionRef<void(const std::string& name, const at::Tensor& tensor)> fn) {
  WalkTensorAttrs(module, "", fn);
}

const void* MemoryOf(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.numel() == 0) return nullptr;
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return impl->has_storage() ? static_cast<const void*>(impl->unsafe_storage().unsafeGetStorageImpl()) : impl;
}

std::vector<IValue> OutputList(const IValue& outputs) {
  if (outputs.isTuple()) return outputs.toTupleRef().elements().vec();
  if (outputs.isList()) return outputs.toListRef().vec();
  if (outputs.isNone()) return {};
  return {outputs};
}

PieceContract::PieceContract(std::string name, const fx::GraphModule& graph_module, const fx::GraphModule& fake_module,
                             const std::vector<IValue>& fake_inputs, const IValue& fake_outputs)
    : name_(std::move(name)), several_(fake_outputs.isTuple() || fake_outputs.isList()), attrs_(TensorAttrs(graph_module)) {
  const std::vector<NamedTensor> fake_attrs = TensorAttrs(fake_module);
  for (const IValue& value : OutputList(fake_outputs)) {
    Output output;
    output.is_tensor = IsTensor(value);
    output.kind = value.tagKind();
    if (output.is_tensor) {
      const at::Tensor& tensor = value.toTensor();
      output.dtype = tensor.scalar_type();
      output.device = tensor.device();
      output.sizes = tensor.sizes().vec();
      output.strides = tensor.strides().vec();
      output.requires_grad = tensor.requires_grad();
      const void* memory = MemoryOf(tensor);
      for (std::size_t i = 0; i < fake_inputs.size() && memory != nullptr; ++i) {
        if (IsTensor(fake_inputs[i]) && MemoryOf(fake_inputs[i].toTensor()) == memory) output.inputs.push_back(static_cast<int>(i));
      }
      output.shares_attr = memory != nullptr && std::any_of(fake_attrs.begin(), fake_attrs.end(),
                                                            [&](const NamedTensor& attr) { return MemoryOf(attr.tensor) == memory; });
    }
    outputs_.push_back(std::move(output));
  }

  // What the graph may write, by what shares memory with what in it.
  fx::Effects effects(fake_module);
  fx::Memory memory(fake_module, effects);
  std::vector<bool> written(memory.size(), false);
  bool writes_anything = false;
  for (const fx::Node* node : fake_module.graph().nodes()) {
    writes_anything |= effects.Of(*node).anything;
    effects.ForEachWritten(*node, [&](fx::Node* input) { written[memory.ClassOf(*input)] = true; });
    // A nested graph that writes may write its own attributes.
    writes_anything |= node->op() == fx::Op::kCallModule && !effects.Of(*node).pure();
  }
  std::vector<std::string> maybe_written;
  for (const fx::Node* node : fake_module.graph().nodes()) {
    const bool may_write = writes_anything || written[memory.ClassOf(*node)];
    if (node->op() == fx::Op::kPlaceholder) may_write_input_.push_back(may_write);
    if (node->op() == fx::Op::kGetAttr && may_write) maybe_written.emplace_back(node->path());
  }
  if (writes_anything) return;
  // Attributes that share memory with one that may be written may be written too.
  std::vector<const void*> written_memory;
  for (const NamedTensor& attr : attrs_) {
    if (std::find(maybe_written.begin(), maybe_written.end(), attr.name) != maybe_written.end())
      written_memory.push_back(MemoryOf(attr.tensor));
  }
  for (const NamedTensor& attr : attrs_) {
    if (std::find(written_memory.begin(), written_memory.end(), MemoryOf(attr.tensor)) == written_memory.end())
      unwritten_attrs_.push_back(attr);
  }
}

absl::Status PieceContract::CheckClaims(const std::vector<absl::optional<OutputMeta>>& claims) const {
  for (std::size_t i = 0; i < outputs_.size() && i < claims.size(); ++i) {
    if (!claims[i].has_value()) continue;
    const auto lie = [&](const auto&... parts) { return absl::InternalError(absl::StrCat("the backend gives output ", i, " ", parts...)); };
    const Output& output = outputs_[i];
    if (claims[i]->dtype.has_value() && *claims[i]->dtype != output.dtype) {
      return lie("the dtype ", c10::toString(*claims[i]->dtype), ", but the graph gives it ", c10::toString(output.dtype));
    }
    if (claims[i]->aliased_input.has_value()) {
      const int claimed = *claims[i]->aliased_input;
      const bool right =
          claimed < 0 ? output.inputs.empty() : std::find(output.inputs.begin(), output.inputs.end(), claimed) != output.inputs.end();
      if (!right) {
        const std::string graph = output.inputs.empty() ? "none" : absl::StrCat("that of input ", absl::StrJoin(output.inputs, " and "));
        return lie(claimed < 0 ? "memory of its own" : absl::StrCat("the memory of input ", claimed), ", but in the graph it shares ",
                   graph);
      }
    }
  }
  return absl::OkStatus();
}

template <typename... Parts>
void PieceContract::Fail(const Parts&... parts) const {
  TORCH_CHECK(false, "the compiled piece ", name_, " ", parts...);
}

PieceContract::Witnesses PieceContract::Observe(const std::vector<IValue>& inputs) const {
  Witnesses witnesses;
  witnesses.inputs.reserve(inputs.size());
  for (const IValue& input : inputs) {
    Witness& witness = witnesses.inputs.emplace_back();
    if (!IsTensor(input)) continue;
    const at::Tensor& tensor = input.toTensor();
    witness.is_tensor = true;
    witness.is_fake = IsFake(tensor);
    witnesses.requires_grad |= tensor.requires_grad();
    if (!tensor.is_inference()) {
      witness.version = tensor.unsafeGetTensorImpl()->version_counter();
      witness.version_before = witness.version.current_version();
    }
    witness.memory = MemoryOf(tensor);
    if (witness.memory != nullptr && tensor.has_storage())
      witness.storage = tensor.unsafeGetTensorImpl()->unsafe_storage().getWeakStorageImpl();
  }
  witnesses.attr_versions.reserve(unwritten_attrs_.size());
  for (const NamedTensor& attr : unwritten_attrs_) witnesses.attr_versions.push_back(VersionOf(attr.tensor));
  return witnesses;
}

void PieceContract::CheckUnwritten(const Witnesses& before) const {
  for (std::size_t i = 0; i < before.inputs.size(); ++i) {
    const Witness& input = before.inputs[i];
    if (!input.version.enabled() || input.version.current_version() == input.version_before) continue;
    if (i < may_write_input_.size() && may_write_input_[i]) continue;
    Fail("writes its input ", i, ", which the graph doesn't");
  }
  for (std::size_t i = 0; i < unwritten_attrs_.size(); ++i) {
    if (VersionOf(unwritten_attrs_[i].tensor) != before.attr_versions[i])
      Fail("writes '", unwritten_attrs_[i].name, "', which the graph doesn't");
  }
}

void PieceContract::Check(const Witnesses& before, const IValue& outputs) const {
  CheckUnwritten(before);
  const std::vector<Witness>& inputs = before.inputs;
  const std::vector<IValue> values = OutputList(outputs);
  if (values.size() != outputs_.size() || (outputs.isTuple() || outputs.isList()) != several_) {
    Fail("returns ",
         outputs.isTuple() || outputs.isList() ? absl::StrCat(values.size(), " values")
         : values.empty()                      ? "nothing"
                                               : "one bare value",
         ", but the graph has ",
         several_           ? absl::StrCat("a tuple of ", outputs_.size())
         : outputs_.empty() ? "nothing"
                            : "one bare output");
  }
  const bool fake_run = std::any_of(inputs.begin(), inputs.end(), [](const Witness& input) { return input.is_tensor && input.is_fake; });
  const bool real_run = std::any_of(inputs.begin(), inputs.end(), [](const Witness& input) { return input.is_tensor && !input.is_fake; });
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Output& output = outputs_[i];
    if (IsTensor(values[i]) != output.is_tensor || (!output.is_tensor && output.kind != values[i].tagKind())) {
      Fail("returns for output ", i, " ", values[i].tagKind(), ", but the graph gives ", output.is_tensor ? "Tensor" : output.kind);
    }
    if (!output.is_tensor) continue;
    const at::Tensor& tensor = values[i].toTensor();
    if (IsFake(tensor) && real_run && !fake_run) Fail("returns a fake tensor as output ", i, " of a run on real ones");
    if (!IsFake(tensor) && fake_run) Fail("returns a real tensor as output ", i, " of a run on fake ones");
    if (tensor.scalar_type() != output.dtype) {
      Fail("returns output ", i, " with dtype ", tensor.scalar_type(), ", but it was compiled for ", output.dtype);
    }
    if (tensor.device().type() != output.device.type()) {
      Fail("returns output ", i, " on device ", tensor.device(), ", but it was compiled for ", output.device);
    }
    if (tensor.sizes() != c10::IntArrayRef(output.sizes)) {
      Fail("returns output ", i, " with sizes ", Brackets(tensor.sizes()), ", but it was compiled for ", Brackets(output.sizes));
    }
    if (!SameLayout(tensor, output.strides)) {
      Fail("returns output ", i, " with strides ", Brackets(tensor.strides()), ", but the next piece was compiled for ",
           Brackets(output.strides));
    }
    // A piece that loses the history would end the gradient there without a word. Frozen parameters may end it too.
    if (output.requires_grad && !tensor.requires_grad() && c10::GradMode::is_enabled() &&
        (before.requires_grad ||
         std::any_of(attrs_.begin(), attrs_.end(), [](const NamedTensor& attr) { return attr.tensor.requires_grad(); }))) {
      Fail("returns output ", i, " without a gradient function, but it was compiled for one that requires grad");
    }
    const void* memory = MemoryOf(tensor);
    if (memory == nullptr) continue;
    bool shares_expected = output.inputs.empty();
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      if (inputs[k].memory != memory) continue;
      const bool expected = std::find(output.inputs.begin(), output.inputs.end(), static_cast<int>(k)) != output.inputs.end();
      shares_expected |= expected;
      // Inputs may share memory with each other, and then an output with all of these.
      if (!expected && output.inputs.empty()) Fail("returns output ", i, " in the memory of its input ", k, ", which the graph doesn't");
    }
    if (!shares_expected) {
      Fail("returns output ", i, " in memory of its own, but in the graph it shares that of input ", absl::StrJoin(output.inputs, " and "));
    }
    if (output.shares_attr || !output.inputs.empty()) continue;
    for (const NamedTensor& attr : attrs_) {
      if (MemoryOf(attr.tensor) == memory) Fail("returns output ", i, " in the memory of '", attr.name, "', which the graph doesn't");
    }
  }
}

std::shared_ptr<const CompiledPiece> CheckedPiece(std::shared_ptr<const CompiledPiece> piece, PieceContract contract) {
  class Checked : public CompiledPiece {
   public:
    Checked(std::shared_ptr<const CompiledPiece> piece, PieceContract contract)
        : piece_(std::move(piece)), contract_(std::move(contract)) {}
    IValue Call(std::vector<IValue> args) const override {
      // The piece alone holds its inputs, so that it can free them as it goes.
      const PieceContract::Witnesses before = contract_.Observe(args);
      IValue outputs = piece_->Call(std::move(args));
      contract_.Check(before, outputs);
      return outputs;
    }
    std::vector<absl::optional<OutputMeta>> output_meta() const override { return piece_->output_meta(); }

   private:
    std::shared_ptr<const CompiledPiece> piece_;
    PieceContract contract_;
  };
  return std::make_shared<const Checked>(std::move(piece), std::move(contract));
}

}  // namespace ddpopt
