#include "ddpopt/aot/joint_graph.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ATen/FunctionalTensorWrapper.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty_like.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "c10/core/InferenceMode.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "ddpopt/aot/recording_mode.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fx_graph/checkpoint_region.h"
#include "fx_graph/passes/dead_code.h"
#include "interpreter/interpreter.h"
#include "interpreter/tracing.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/variable.h"

namespace ddpopt {
namespace {

namespace functional = at::functionalization::impl;
using c10::IValue;
using Output = JointGraph::Output;

// LibTorch's own functionalisation, which stands between autograd and the recording: it turns writes into new values, and remembers which
// tensors share memory. Its wrapper around a fake is what the piece computes with; the fake inside is what a node stands for.
class FunctionalGuard {
 public:
  FunctionalGuard() : include_(c10::DispatchKey::Functionalize), views_(/*reapply_views=*/true) {}

 private:
  c10::impl::IncludeDispatchKeyGuard include_;
  functional::FunctionalizationReapplyViewsGuard views_;
};

const c10::StorageImpl* MemoryOf(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

at::Tensor Inside(const at::Tensor& wrapper) {
  functional::sync(wrapper);
  return functional::from_functional_tensor(wrapper);
}

struct Primals {
  std::vector<at::Tensor> fakes;  // without history
  std::vector<at::Tensor> wrappers;
  absl::flat_hash_map<const c10::TensorImpl*, int> by_attr;   // of the real tensor
  absl::flat_hash_map<const c10::TensorImpl*, int> by_input;  // of the fake that was given
};

// The numbers of the regions that are marked for recomputation: those of CheckpointRegions, and one for each checkpoint of an export.
class RegionNumbers {
 public:
  int64_t Of(int64_t mark) {
    const auto [number, is_new] = numbers_.try_emplace(mark, next_);
    if (is_new) ++next_;
    return number->second;
  }
  int64_t New() { return next_++; }

 private:
  absl::flat_hash_map<int64_t, int64_t> numbers_;
  int64_t next_ = 0;
};

bool IsCheckpoint(const fx::Node& node) {
  const auto* target = std::get_if<fx::HigherOrderTarget>(&node.target());
  if (target == nullptr) return false;
  absl::string_view name = target->name;
  absl::ConsumePrefix(&name, "torch.ops.higher_order.");
  return name == "tag_activation_checkpoint" || name == "wrap_activation_checkpoint" || name == "checkpoint";
}

// Runs the piece with wrappers in the place of its attributes.
class PieceRunner : public Interpreter {
 public:
  PieceRunner(const fx::GraphModule& module, const Primals& primals, RecordingMode* recording, RegionNumbers* regions,
              bool in_region = false)
      : Interpreter(module), primals_(primals), recording_(recording), regions_(regions), in_region_(in_region) {}

 protected:
  IValue RunNode(const fx::Node& node) override {
    if (in_region_) return Interpreter::RunNode(node);
    int64_t region = -1;
    if (IsCheckpoint(node)) {
      region = regions_->New();
    } else if (node.has_meta()) {
      const auto mark = node.meta().custom.find(fx::kCheckpointRegion);
      if (mark != node.meta().custom.end() && mark->second.isInt()) region = regions_->Of(mark->second.toInt());
    }
    recording_->set_region(region);
    IValue value = Interpreter::RunNode(node);
    recording_->set_region(-1);
    return value;
  }
  IValue RunCallFunction(const fx::Node& node, Arguments& arguments) override {
    recording_->set_caller(node.is_operator() ? &node.operator_handle() : nullptr);
    if (node.is_operator() && node.operator_handle().schema().is_mutable()) CheckWritten(node.operator_handle().schema(), arguments);
    return Interpreter::RunCallFunction(node, arguments);
  }
  IValue RunGetAttr(const fx::Node& node) override {
    IValue value = Interpreter::RunGetAttr(node);
    if (!value.isTensor()) return value;
    return primals_.wrappers[primals_.by_attr.at(value.toTensor().unsafeGetTensorImpl())];
  }
  IValue RunSubgraph(const fx::GraphModule::Submodule& submodule, Values args) override {
    if (submodule.graph_module == nullptr) return Interpreter::RunSubgraph(submodule, std::move(args));
    return Nested(*submodule.graph_module).Run(std::move(args));
  }
  IValue RunCallModule(const fx::Node& node, Arguments& arguments) override {
    const fx::GraphModule::Submodule* submodule = module().FindSubmodule(node.path());
    if (submodule == nullptr || submodule->graph_module == nullptr || !arguments.kwargs().empty()) {
      return Interpreter::RunCallModule(node, arguments);
    }
    return Nested(*submodule->graph_module).Run(std::move(arguments.args()));
  }

 private:
  PieceRunner Nested(const fx::GraphModule& module) const {
    return PieceRunner(module, primals_, recording_, regions_, /*in_region=*/recording_->region() >= 0);
  }

  // Functionalisation adds up what is written to places that are one in memory.
  static void CheckWritten(const c10::FunctionSchema& schema, Arguments& arguments) {
    for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      if (argument.alias_info() == nullptr || !argument.alias_info()->isWrite()) continue;
      const IValue* value = i < arguments.args().size() ? &arguments.args()[i] : nullptr;
      for (const auto& [name, keyword] : arguments.kwargs()) {
        if (name == argument.name()) value = &keyword;
      }
      if (value == nullptr || !value->isTensor()) continue;
      const at::Tensor& tensor = value->toTensor();
      for (int64_t d = 0; d < tensor.dim(); ++d) {
        TORCH_CHECK(tensor.size(d) <= 1 || tensor.stride(d) != 0, schema.name(), " writes to an expanded tensor, which can't be compiled");
      }
    }
  }

  const Primals& primals_;
  RecordingMode* recording_;
  RegionNumbers* regions_;
  bool in_region_;  // all of it
};

// Every tensor attribute that a get_attr node of the module or of a graph nested in it names, in their order.
void ForEachAttr(const fx::GraphModule& module, const std::string& prefix,
                 absl::FunctionRef<void(const std::string&, const at::Tensor&)> fn) {
  for (const fx::Node* node : module.graph().FindNodes(fx::Op::kGetAttr)) {
    const fx::GraphModule::Attr* attr = module.FindAttr(node->path());
    if (attr != nullptr && attr->value.isTensor() && attr->value.toTensor().defined())
      fn(absl::StrCat(prefix, node->path()), attr->value.toTensor());
  }
  for (const auto& [path, submodule] : module.submodules()) {
    if (submodule.graph_module != nullptr) ForEachAttr(*submodule.graph_module, absl::StrCat(prefix, path, "."), fn);
  }
}

class Tracer {
 public:
  Tracer(const fx::GraphModule& piece, const std::vector<IValue>& fake_inputs, const JointGraphOptions& options)
      : piece_(piece), inputs_(fake_inputs), options_(options) {}

  absl::StatusOr<JointGraph> Trace() {
    joint_.module = std::make_shared<fx::GraphModule>();
    joint_.num_inputs = static_cast<int>(inputs_.size());
    DDPOPT_RETURN_IF_ERROR(FindMode());
    recording_ = std::make_shared<RecordingMode>(&joint_.module->graph(), options_.decompositions);
    DDPOPT_RETURN_IF_ERROR(AddPrimals());
    {
      const ModeGuard fakes(mode_);
      const AutocastCacheOff cache_off;
      IValue result;
      std::vector<fx::Argument> results;
      const ModeGuard record(recording_);
      const FunctionalGuard functionalize;
      std::vector<IValue> args = inputs_;
      for (IValue& arg : args) {
        if (arg.isTensor() && arg.toTensor().defined()) arg = primals_.wrappers[primals_.by_input.at(arg.toTensor().unsafeGetTensorImpl())];
      }
      RegionNumbers regions;
      result = PieceRunner(piece_, primals_, recording_.get(), &regions).Run(std::move(args));
      recording_->set_caller(nullptr);
      DDPOPT_RETURN_IF_ERROR(DescribeOutputs(result));
      for (const at::Tensor& value : values_) {
        results.push_back(recording_->NodeOf(Inside(value), "output"));
      }
      joint_.num_values = static_cast<int>(values_.size());
      DDPOPT_RETURN_IF_ERROR(FindUpdates(&results));
      joint_.first_backward_id = joint_.module->graph().id_limit();
      Differentiate(&results);
      joint_.module->graph().Output(fx::Argument::Tuple(std::move(results)));
    }
    recording_->Release();
    DDPOPT_RETURN_IF_ERROR(fx::EliminateDeadCode(*joint_.module).status());
    DDPOPT_RETURN_IF_ERROR(joint_.module->Lint());
    return std::move(joint_);
  }

 private:
  absl::Status FindMode() {
    for (const IValue& input : inputs_) {
      if (!input.isTensor() || !input.toTensor().defined()) continue;
      FakeTensorMode* mode = ModeOf(input.toTensor());
      if (mode == nullptr) return absl::InvalidArgumentError("a real tensor among the piece's inputs, where fakes are wanted");
      if (mode_ != nullptr && mode_.get() != mode) return absl::InvalidArgumentError("the piece's inputs are fakes of different modes");
      mode_ = mode->shared_from_this();
    }
    if (mode_ == nullptr) mode_ = FakeTensorMode::Create();
    if (c10::InferenceMode::is_enabled()) return absl::UnimplementedError("compiling under inference mode");
    return absl::OkStatus();
  }

  absl::Status AddPrimal(const at::Tensor& fake, std::string what, JointGraph::Primal primal) {
    if (fake.is_inference()) return absl::UnimplementedError(absl::StrCat(what, " is an inference tensor"));
    if (fake.layout() != at::kStrided) return absl::UnimplementedError(absl::StrCat(what, " is a sparse tensor"));
    primal.requires_grad = fake.requires_grad() && c10::GradMode::is_enabled();
    at::Tensor inside = WithoutHistory(fake);
    at::Tensor wrapper = functional::to_functional_tensor(inside);
    wrapper.set_requires_grad(primal.requires_grad);
    recording_->AddPlaceholder(absl::StrCat("primals_", joint_.primals.size() + 1), inside);
    joint_.primals.push_back(std::move(primal));
    names_.push_back(std::move(what));
    primals_.fakes.push_back(std::move(inside));
    primals_.wrappers.push_back(std::move(wrapper));
    return absl::OkStatus();
  }

  absl::Status AddPrimals() {
    absl::Status status;
    ForEachAttr(piece_, "", [&](const std::string& path, const at::Tensor& real) {
      if (!status.ok() || !primals_.by_attr.try_emplace(real.unsafeGetTensorImpl(), static_cast<int>(joint_.primals.size())).second) return;
      if (real.layout() != at::kStrided) {
        status = absl::UnimplementedError(absl::StrCat("'", path, "' is a sparse tensor"));
        return;
      }
      JointGraph::Primal primal;
      primal.attr = real;
      primal.path = path;
      status = AddPrimal(mode_->FromReal(real), absl::StrCat("'", path, "'"), std::move(primal));
    });
    DDPOPT_RETURN_IF_ERROR(status);
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (!inputs_[i].isTensor()) {
        joint_.number_inputs.emplace_back(i, inputs_[i]);
        continue;
      }
      const at::Tensor& fake = inputs_[i].toTensor();
      if (!fake.defined() || !primals_.by_input.try_emplace(fake.unsafeGetTensorImpl(), static_cast<int>(joint_.primals.size())).second)
        continue;
      JointGraph::Primal primal;
      primal.input = static_cast<int>(i);
      DDPOPT_RETURN_IF_ERROR(AddPrimal(fake, absl::StrCat("input ", i), std::move(primal)));
    }
    return absl::OkStatus();
  }

  // The value's index; a new one is added.
  int ValueOf(const at::Tensor& wrapper) {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (values_[i].is_same(wrapper)) return static_cast<int>(i);
    }
    values_.push_back(wrapper);
    return static_cast<int>(values_.size()) - 1;
  }

  absl::Status DescribeOutputs(const IValue& result) {
    std::vector<IValue> elements;
    if (result.isTuple()) {
      joint_.structure = JointGraph::Structure::kTuple;
      elements = result.toTupleRef().elements().vec();
    } else if (result.isList()) {
      joint_.structure = JointGraph::Structure::kList;
      for (const IValue& element : result.toListRef()) elements.push_back(element);
    } else {
      elements.push_back(result);
    }
    // How many of the results share each memory.
    absl::flat_hash_map<const c10::StorageImpl*, std::vector<at::Tensor>> sharing;
    for (const IValue& element : elements) {
      if (!element.isTensor() || !element.toTensor().defined()) continue;
      auto& peers = sharing[MemoryOf(element.toTensor())];
      if (std::none_of(peers.begin(), peers.end(), [&](const at::Tensor& peer) { return peer.is_same(element.toTensor()); })) {
        peers.push_back(element.toTensor());
      }
    }
    for (std::size_t i = 0; i < elements.size(); ++i) {
      absl::StatusOr<Output> output = Describe(elements[i], sharing);
      if (!output.ok()) return Annotate(output.status(), absl::StrCat("output ", i));
      joint_.outputs.push_back(*std::move(output));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Output> Describe(const IValue& element,
                                  const absl::flat_hash_map<const c10::StorageImpl*, std::vector<at::Tensor>>& sharing) {
    Output output;
    if (!element.isTensor()) {
      if (element.isTuple() || element.isList() || element.isGenericDict()) return absl::UnimplementedError("a nested result");
      output.constant = element;
      return output;
    }
    const at::Tensor& tensor = element.toTensor();
    if (!tensor.defined()) return output;
    if (!functional::isFunctionalTensor(tensor)) return absl::UnimplementedError("a tensor that no operator made");
    for (std::size_t p = 0; p < primals_.wrappers.size(); ++p) {
      if (!primals_.wrappers[p].is_same(tensor) || HasHistory(p)) continue;
      output.kind = Output::Kind::kPrimal;
      output.index = static_cast<int>(p);
      return output;
    }
    output.requires_grad = tensor.requires_grad();
    const at::Tensor inside = Inside(tensor);
    for (std::size_t p = 0; p < primals_.wrappers.size(); ++p) {
      if (MemoryOf(primals_.wrappers[p]) != MemoryOf(tensor)) continue;
      if (MemoryOf(inside) != MemoryOf(primals_.fakes[p])) {
        return absl::UnimplementedError(absl::StrCat("a view of ", names_[p], ", which the piece writes to"));
      }
      if (!SetLayout(inside, primals_.fakes[p], &output)) {
        return absl::UnimplementedError(absl::StrCat("a view of ", names_[p], " as another dtype"));
      }
      output.kind = HasHistory(p) ? Output::Kind::kViewOfValue : Output::Kind::kViewOfPrimal;
      output.index = HasHistory(p) ? ValueOf(primals_.wrappers[p]) : static_cast<int>(p);
      if (HasHistory(p) && primals_.wrappers[p].is_same(tensor)) output.kind = Output::Kind::kValue;
      return output;
    }
    if (sharing.at(MemoryOf(tensor)).size() == 1) {
      output.kind = Output::Kind::kValue;
      output.index = ValueOf(tensor);
      return output;
    }
    // Several results that are views of one value: this value is made, and the views of it when the piece runs.
    at::Tensor base = tensor;
    if (tensor.is_view()) base = tensor._base();
    for (const at::Tensor& peer : sharing.at(MemoryOf(tensor))) {
      const at::Tensor peer_base = peer.is_view() ? at::Tensor(peer._base()) : peer;
      if (!peer_base.is_same(base)) return absl::UnimplementedError("shares memory with another result, of which it is no view");
    }
    output.index = ValueOf(base);
    if (base.is_same(tensor)) {
      output.kind = Output::Kind::kValue;
      return output;
    }
    const at::Tensor base_inside = Inside(base);
    if (MemoryOf(inside) != MemoryOf(base_inside) || !SetLayout(inside, base_inside, &output)) {
      return absl::UnimplementedError("shares memory with another result as another dtype");
    }
    output.kind = Output::Kind::kViewOfValue;
    return output;
  }

  // Whether a custom autograd::Function has given the primal, which is an output of its forward that another piece made, the history of its
  // backward. (What is written to has one too.)
  bool HasHistory(std::size_t p) const {
    const at::Tensor& wrapper = primals_.wrappers[p];
    return wrapper.grad_fn() != nullptr && !functional::unsafeGetFunctionalWrapper(wrapper)->has_data_mutation();
  }

  // False if the view sees other numbers in its base's memory.
  static bool SetLayout(const at::Tensor& view, const at::Tensor& base, Output* output) {
    output->sizes = view.sizes().vec();
    output->strides = view.strides().vec();
    output->is_complex = view.is_complex();
    output->conjugated = view.is_conj() != base.is_conj();
    if (view.is_neg() != base.is_neg()) return false;
    if (view.scalar_type() == base.scalar_type()) {
      output->offset = view.storage_offset() - base.storage_offset();
      return true;
    }
    const bool parts = c10::toRealValueType(view.scalar_type()) == c10::toRealValueType(base.scalar_type());
    const auto begin = [](const at::Tensor& tensor) { return tensor.storage_offset() * (tensor.is_complex() ? 2 : 1); };
    output->offset = begin(view) - begin(base);
    return parts && !view.is_conj() && !base.is_conj();
  }

  absl::Status FindUpdates(std::vector<fx::Argument>* results) {
    for (std::size_t p = 0; p < primals_.wrappers.size(); ++p) {
      const at::Tensor& wrapper = primals_.wrappers[p];
      auto* impl = functional::unsafeGetFunctionalWrapper(wrapper);
      if (impl->has_metadata_mutation() || impl->was_storage_changed()) {
        return absl::UnimplementedError(absl::StrCat("changes the shape of ", names_[p]));
      }
      if (!impl->has_data_mutation()) continue;
      if (joint_.primals[p].requires_grad) return absl::UnimplementedError(absl::StrCat("writes to ", names_[p], ", which requires grad"));
      if (wrapper.requires_grad()) {
        return absl::UnimplementedError(absl::StrCat("writes a value that requires grad to ", names_[p], ", which then has a history"));
      }
      for (std::size_t q = 0; q < primals_.fakes.size(); ++q) {
        if (q != p && MemoryOf(primals_.fakes[q]) == MemoryOf(primals_.fakes[p])) {
          return absl::UnimplementedError(absl::StrCat("writes to ", names_[p], ", which shares memory with ", names_[q]));
        }
      }
      const at::Tensor inside = Inside(wrapper);
      if (inside.sizes() != primals_.fakes[p].sizes()) return absl::UnimplementedError(absl::StrCat("changes the shape of ", names_[p]));
      results->push_back(recording_->NodeOf(inside, names_[p]));
      joint_.updates.push_back(static_cast<int>(p));
    }
    return absl::OkStatus();
  }

  void Differentiate(std::vector<fx::Argument>* results) {
    torch::autograd::variable_list outputs, tangents, leaves;
    for (std::size_t p = 0; p < primals_.wrappers.size(); ++p) {
      if (!joint_.primals[p].requires_grad || HasHistory(p)) continue;
      joint_.gradients.push_back(static_cast<int>(p));
      leaves.push_back(primals_.wrappers[p]);
    }
    for (std::size_t v = 0; v < values_.size(); ++v) {
      if (!values_[v].requires_grad()) continue;
      at::Tensor tangent;
      {
        const c10::impl::ExcludeDispatchKeyGuard plain(c10::DispatchKey::Functionalize);
        const DisableModesGuard unrecorded(Mode::Level::kPostAutograd);
        const ModeGuard fakes(mode_);
        const at::NoGradGuard no_grad;
        tangent = at::empty_like(Inside(values_[v]));
      }
      recording_->AddPlaceholder(absl::StrCat("tangents_", joint_.tangents.size() + 1), tangent);
      joint_.tangents.push_back(static_cast<int>(v));
      outputs.push_back(values_[v]);
      tangents.push_back(functional::to_functional_tensor(tangent));
    }
    torch::autograd::variable_list gradients(leaves.size());
    if (!leaves.empty() && !outputs.empty()) {
      gradients = torch::autograd::grad(outputs, leaves, tangents, /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
    }
    for (const at::Tensor& gradient : gradients) {
      results->push_back(gradient.defined() ? recording_->NodeOf(Inside(gradient), "a gradient") : fx::Argument());
    }
  }

  const fx::GraphModule& piece_;
  const std::vector<IValue>& inputs_;
  const JointGraphOptions& options_;
  std::shared_ptr<FakeTensorMode> mode_;
  std::shared_ptr<RecordingMode> recording_;
  JointGraph joint_;
  Primals primals_;
  std::vector<std::string> names_;  // of primals, in errors
  std::vector<at::Tensor> values_;  // wrappers
};

}  // namespace

absl::StatusOr<JointGraph> TraceJointGraph(const fx::GraphModule& piece, const std::vector<IValue>& fake_inputs,
                                           const JointGraphOptions& options) {
  absl::StatusOr<JointGraph> joint =
      CatchAsStatus("tracing forward and backward", [&] { return Tracer(piece, fake_inputs, options).Trace(); });
  // What can't be traced can't be compiled, whatever the operator's complaint.
  if (joint.status().code() == absl::StatusCode::kInternal) return absl::UnimplementedError(joint.status().message());
  return joint;
}

}  // namespace ddpopt
