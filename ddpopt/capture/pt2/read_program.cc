#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <utility>

#include "ATen/core/dispatch/Dispatcher.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/status.h"
#include "ddpopt/capture/pt2/archive.h"
#include "ddpopt/capture/pt2/exported_program.h"
#include "ddpopt/capture/pt2/guard.h"
#include "ddpopt/capture/pt2/read_graph.h"
#include "ddpopt/capture/pt2/schema.h"
#include "ddpopt/capture/pt2/tensor_store.h"
#include "fx_graph/passes/effects.h"
#include "fx_graph/tensor_meta.h"
#include "fx_graph/text/json_view.h"

namespace ddpopt {
namespace pt2 {
namespace {

using c10::IValue;
using fx::Argument;
using fx::JsonView;
using fx::Node;
using AttrKind = fx::GraphModule::AttrKind;

absl::StatusOr<std::string> ArgName(const JsonView& spec) {
  DDPOPT_ASSIGN_OR_RETURN(const JsonView arg, spec.Object("arg"));
  return arg.String("name");
}

const c10::OperatorHandle& CopyOperator() {
  static const auto* op = new c10::OperatorHandle(c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", ""));
  return *op;
}
const c10::OperatorHandle& CloneOperator() {
  static const auto* op = new c10::OperatorHandle(c10::Dispatcher::singleton().findSchemaOrThrow("aten::clone", ""));
  return *op;
}
const c10::OperatorHandle& DetachOperator() {
  static const auto* op = new c10::OperatorHandle(c10::Dispatcher::singleton().findSchemaOrThrow("aten::detach", ""));
  return *op;
}

}  // namespace

class ProgramReader {
 public:
  // Null stores: descriptions without data.
  ProgramReader(TensorStore* weights, TensorStore* constants) : weights_(weights), constants_(constants) {}

  absl::StatusOr<std::shared_ptr<ExportedProgram>> Read(absl::string_view text) {
    DDPOPT_ASSIGN_OR_RETURN(const fx::JsonValue json, fx::ParseJson(text));
    const JsonView root(json);
    DDPOPT_RETURN_IF_ERROR(ReadRoot(root));
    return program_;
  }

 private:
  absl::Status ReadRoot(const JsonView& root) {
    DDPOPT_RETURN_IF_ERROR(root.ExpectObject());
    if (!root.Has("graph_module") || !root.Has("schema_version")) {
      return root.Expected("an exported program: an object with graph_module and schema_version");
    }
    DDPOPT_ASSIGN_OR_RETURN(const JsonView version, root.Object("schema_version"));
    DDPOPT_ASSIGN_OR_RETURN(const int64_t major, version.Int("major"));
    DDPOPT_ASSIGN_OR_RETURN(const int64_t minor, version.Int("minor"));
    if (major != kSchemaMajor || minor > kSchemaMinor) {
      return absl::UnimplementedError(absl::StrCat("schema_version: expected ", kSchemaMajor, ".0 to ", kSchemaMajor, ".", kSchemaMinor,
                                                   " (torch.export up to 2.15), got ", major, ".", minor));
    }
    DDPOPT_RETURN_IF_ERROR(root.ExpectKeys(
        {"graph_module", "opset_version", "range_constraints", "schema_version", "verifiers", "torch_version", "guards_code"}));
    DDPOPT_ASSIGN_OR_RETURN(const JsonView opset, root.Object("opset_version"));
    DDPOPT_ASSIGN_OR_RETURN(const int64_t aten, opset.IntOr("aten", kNewestOpset));
    if (aten > kNewestOpset)
      return absl::UnimplementedError(absl::StrCat("opset_version.aten: expected at most ", kNewestOpset, ", got ", aten));
    program_ = std::make_shared<ExportedProgram>();
    program_->module_ = std::make_shared<fx::GraphModule>();
    program_->ties_are_known_ = weights_ != nullptr;
    if (HasValue(root, "torch_version")) {
      DDPOPT_ASSIGN_OR_RETURN(program_->torch_version_, root.String("torch_version"));
    }
    DDPOPT_RETURN_IF_ERROR(ReadRanges(root));
    if (HasValue(root, "guards_code")) {
      DDPOPT_ASSIGN_OR_RETURN(const JsonView guards, root.Array("guards_code"));
      for (std::size_t i = 0; i < guards.size(); ++i) {
        DDPOPT_ASSIGN_OR_RETURN(std::string text, guards[i].AsString());
        program_->guards_.push_back(std::move(text));
      }
    }

    DDPOPT_ASSIGN_OR_RETURN(const JsonView graph_module, root.Object("graph_module"));
    DDPOPT_RETURN_IF_ERROR(graph_module.ExpectKeys({"graph", "signature", "module_call_graph", "metadata", "treespec_namedtuple_fields"}));
    DDPOPT_ASSIGN_OR_RETURN(const JsonView graph, graph_module.Object("graph"));
    DDPOPT_RETURN_IF_ERROR(graph.ExpectKeys({"inputs", "outputs", "nodes", "tensor_values", "sym_int_values", "sym_bool_values",
                                             "is_single_tensor_return", "custom_obj_values", "sym_float_values"}));
    DDPOPT_ASSIGN_OR_RETURN(const JsonView signature, graph_module.Object("signature"));
    DDPOPT_ASSIGN_OR_RETURN(const JsonView input_specs, signature.Array("input_specs"));
    DDPOPT_ASSIGN_OR_RETURN(const JsonView output_specs, signature.Array("output_specs"));

    GraphReader reader(program_->module_.get(), &attributes_);
    DDPOPT_RETURN_IF_ERROR(reader.Begin(graph));
    DDPOPT_RETURN_IF_ERROR(ReadInputs(graph, input_specs, &reader));
    DDPOPT_RETURN_IF_ERROR(AddAttributes());
    DDPOPT_ASSIGN_OR_RETURN(const JsonView nodes, graph.Array("nodes"));
    DDPOPT_RETURN_IF_ERROR(reader.ReadNodes(nodes));
    DDPOPT_RETURN_IF_ERROR(ReadOutputs(graph, output_specs, &reader));
    DDPOPT_RETURN_IF_ERROR(ReadTrees(graph_module));
    ParseGuards();
    return absl::OkStatus();
  }

  // What isn't understood is refused when the program is to be run.
  void ParseGuards() {
    for (const std::string& text : program_->guards_) {
      absl::StatusOr<Guard> guard = Guard::Parse(text);
      absl::Status status = guard.status();
      if (guard.ok()) {
        for (const Guard::Place& place : guard->Places()) {
          if (!program_->input_paths_.contains(place.input)) {
            status.Update(absl::UnimplementedError(absl::StrCat("guard \"", text, "\": the program has no input L", place.input)));
          }
        }
      }
      if (status.ok()) {
        program_->understood_guards_.push_back(*std::move(guard));
      } else {
        program_->guards_status_.Update(absl::UnimplementedError(absl::StrCat("guards_code: ", status.message())));
      }
    }
  }

  // How guards name the leaves of the inputs' tree: by the names of forward's arguments, and the keys within.
  void NameInputs(const std::vector<std::string>& argument_names) {
    std::size_t leaf = 0;
    const auto name = [&](const auto& self, const TreeSpec& spec, const std::string& path) -> void {
      if (spec.kind == TreeSpec::Kind::kLeaf) {
        program_->input_paths_.emplace(path, leaf++);
        return;
      }
      for (std::size_t i = 0; i < spec.children.size(); ++i) {
        std::string key = absl::StrCat("[", i, "]");
        if (spec.kind == TreeSpec::Kind::kDict) {
          const IValue& of = spec.keys[i];
          key = of.isString() ? absl::StrCat("['", of.toStringRef(), "']")
                : of.isBool() ? (of.toBool() ? "[True]" : "[False]")
                              : absl::StrCat("[", of.toInt(), "]");
        }
        self(self, spec.children[i], absl::StrCat(path, key));
      }
    };
    const TreeSpec& args = program_->in_tree_.children[0];
    for (std::size_t i = 0; i < args.children.size(); ++i) {
      // What forward takes by *args has no names of its own.
      name(name, args.children[i],
           i < argument_names.size() ? absl::StrCat("['", argument_names[i], "']")
                                     : absl::StrCat("['args'][", i - argument_names.size(), "]"));
    }
    name(name, program_->in_tree_.children[1], "");
    // Without such names, those of the placeholders, which are forward's where arguments don't nest.
    for (std::size_t i = 0; i < program_->inputs_.size(); ++i)
      program_->input_paths_.emplace(absl::StrCat("['", program_->inputs_[i].name, "']"), i);
  }

  absl::Status ReadRanges(const JsonView& root) {
    if (!HasValue(root, "range_constraints")) return absl::OkStatus();
    DDPOPT_ASSIGN_OR_RETURN(const JsonView ranges, root.Object("range_constraints"));
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const JsonView entry = ranges[i];
      SymbolRange range;
      if (HasValue(entry, "min_val")) {
        DDPOPT_ASSIGN_OR_RETURN(range.min, entry.Int("min_val"));
      }
      if (HasValue(entry, "max_val")) {
        DDPOPT_ASSIGN_OR_RETURN(range.max, entry.Int("max_val"));
      }
      program_->symbol_ranges_.emplace(ranges.KeyAt(i), range);
    }
    return absl::OkStatus();
  }

  absl::Status ReadInputs(const JsonView& graph, const JsonView& specs, GraphReader* reader) {
    DDPOPT_ASSIGN_OR_RETURN(const JsonView inputs, graph.Array("inputs"));
    if (inputs.size() != specs.size()) return specs.Expected(absl::StrCat(inputs.size(), " entries, as many as the graph has inputs"));
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const JsonView spec = specs[i];
      DDPOPT_ASSIGN_OR_RETURN(const std::string kind, UnionKind(spec));
      const JsonView content = spec[0];
      if (kind == "parameter") {
        DDPOPT_RETURN_IF_ERROR(ReadAttribute(content, "parameter_name", AttrKind::kParameter, true, reader));
      } else if (kind == "buffer") {
        DDPOPT_ASSIGN_OR_RETURN(const bool persistent, content.BoolOr("persistent", true));
        DDPOPT_RETURN_IF_ERROR(ReadAttribute(content, "buffer_name", AttrKind::kBuffer, persistent, reader));
      } else if (kind == "tensor_constant") {
        DDPOPT_RETURN_IF_ERROR(ReadAttribute(content, "tensor_constant_name", AttrKind::kConstant, true, reader));
      } else if (kind == "user_input") {
        DDPOPT_ASSIGN_OR_RETURN(const JsonView arg, content.At("arg"));
        DDPOPT_RETURN_IF_ERROR(ReadUserInput(arg, reader));
      } else if (kind == "constant_input") {
        ProgramInput input;
        input.kind = ProgramInput::Kind::kConstant;
        DDPOPT_ASSIGN_OR_RETURN(input.name, content.String("name"));
        DDPOPT_ASSIGN_OR_RETURN(const JsonView value, content.At("value"));
        DDPOPT_ASSIGN_OR_RETURN(input.constant, ReadConstant(value));
        AddConstantPlaceholder(std::move(input));
      } else if (kind == "custom_obj" || kind == "token") {
        return absl::UnimplementedError(absl::StrCat(spec.Path(), ": inputs of kind ", kind, " are not supported"));
      } else {
        return spec.Error("\"", kind, "\" is no kind of input of schema ", kSchemaMajor, ".", kSchemaMinor);
      }
    }
    return absl::OkStatus();
  }

  void AddConstantPlaceholder(ProgramInput input) {
    Node* node = program_->module_->graph().Placeholder(input.name);
    node->meta().val = input.constant;
    program_->inputs_.push_back(std::move(input));
  }

  absl::Status ReadUserInput(const JsonView& arg, GraphReader* reader) {
    DDPOPT_ASSIGN_OR_RETURN(const std::string kind, UnionKind(arg));
    const JsonView content = arg[0];
    ProgramInput input;
    if (kind == "as_tensor") {
      DDPOPT_ASSIGN_OR_RETURN(input.name, content.String("name"));
      const absl::StatusOr<JsonView> value = reader->TensorValue(input.name);
      if (!value.ok()) return arg.Error(value.status().message());
      DDPOPT_ASSIGN_OR_RETURN(const JsonView sizes, value->Array("sizes"));
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        DDPOPT_ASSIGN_OR_RETURN(SymExpr size, ReadSymInt(sizes[i]));
        input.sizes.push_back(std::move(size));
      }
      DDPOPT_ASSIGN_OR_RETURN(const RecordedMeta recorded, ReadTensorMeta(*value));
      input.dtype = recorded.meta.dtype;
      DDPOPT_RETURN_IF_ERROR(reader->AddPlaceholder(input.name));
      program_->inputs_.push_back(std::move(input));
      return absl::OkStatus();
    }
    const bool number = kind == "as_sym_int" || kind == "as_sym_float" || kind == "as_sym_bool";
    if (number && content.is_object() && content.Has("as_name")) {
      input.kind = ProgramInput::Kind::kSymbolic;
      input.dtype = kind == "as_sym_int" ? at::kLong : kind == "as_sym_float" ? at::kDouble : at::kBool;
      DDPOPT_ASSIGN_OR_RETURN(input.name, content.String("as_name"));
      const absl::StatusOr<JsonView> value = reader->SymValue(input.name);
      if (!value.ok()) return arg.Error(value.status().message());
      // No size depends on the others.
      if (input.dtype == at::kLong) {
        DDPOPT_ASSIGN_OR_RETURN(SymExpr expr, ReadSymInt(*value));
        input.sizes.push_back(std::move(expr));
      }
      DDPOPT_RETURN_IF_ERROR(reader->AddPlaceholder(input.name));
      program_->inputs_.push_back(std::move(input));
      return absl::OkStatus();
    }
    if (kind == "as_none" || kind == "as_int" || kind == "as_float" || kind == "as_bool" || kind == "as_string") {
      input.kind = ProgramInput::Kind::kConstant;
      input.name = absl::StrCat("arg_", program_->inputs_.size());
      DDPOPT_ASSIGN_OR_RETURN(input.constant, ReadConstant(arg));
      AddConstantPlaceholder(std::move(input));
      return absl::OkStatus();
    }
    return absl::UnimplementedError(absl::StrCat(arg.Path(), ": user inputs of kind ", kind, " are not supported"));
  }

  // A parameter, buffer or constant: the attribute now, its get_attr node when it is first used.
  absl::Status ReadAttribute(const JsonView& spec, const char* key, AttrKind kind, bool persistent, GraphReader* reader) {
    DDPOPT_ASSIGN_OR_RETURN(const std::string input, ArgName(spec));
    DDPOPT_ASSIGN_OR_RETURN(const std::string name, spec.String(key));
    const absl::StatusOr<JsonView> value = reader->TensorValue(input);
    if (!value.ok()) return spec.Error(value.status().message());
    DDPOPT_ASSIGN_OR_RETURN(RecordedMeta recorded, ReadTensorMeta(*value));
    if (!recorded.symbolic.empty()) return value->Expected("fixed sizes");
    if (!attributes_.emplace(input, AttributeInput{name, kind}).second)
      return spec.Error("the name \"", input, "\" is taken by an earlier input");
    if (specs_.contains(name)) return absl::OkStatus();  // one attribute under two inputs
    if (!recorded.strided) return absl::UnimplementedError(absl::StrCat(value->Path(), ": only strided tensors are supported"));
    recorded.meta.requires_grad &= kind == AttrKind::kParameter;
    specs_.emplace(name, AttributeSpec{kind, persistent, std::move(recorded.meta), spec.Path()});
    spec_order_.push_back(name);
    return absl::OkStatus();
  }

  // The signature's attributes and what the archive holds beside them (further names of tied tensors, parameters that the graph doesn't
  // use), in the archive's order, which is the module's.
  absl::Status AddAttributes() {
    std::vector<std::string> order;
    if (weights_ != nullptr) order = weights_->Names();
    order.insert(order.end(), spec_order_.begin(), spec_order_.end());
    for (const std::string& name : order) {
      if (program_->module_->attrs().contains(name)) continue;
      const auto it = specs_.find(name);
      AttrKind kind = AttrKind::kParameter;
      bool persistent = true;
      at::Tensor tensor;
      if (it != specs_.end()) {
        kind = it->second.kind;
        persistent = it->second.persistent;
        DDPOPT_ASSIGN_OR_RETURN(tensor, AttributeData(name, it->second));
      } else {
        DDPOPT_ASSIGN_OR_RETURN(const bool is_parameter, weights_->IsParameter(name));
        if (!is_parameter) kind = AttrKind::kBuffer;
        DDPOPT_ASSIGN_OR_RETURN(tensor, weights_->Read(name));
      }
      DDPOPT_RETURN_IF_ERROR(program_->module_->AddAttr(name, tensor, kind));
      Register(name, tensor, kind, persistent);
    }
    return absl::OkStatus();
  }

  struct AttributeSpec {
    AttrKind kind;
    bool persistent;
    fx::TensorMeta meta;
    std::string place;
  };

  absl::StatusOr<at::Tensor> AttributeData(const std::string& name, const AttributeSpec& spec) {
    if (weights_ == nullptr) {
      absl::StatusOr<at::Tensor> hollow = fx::HollowTensor(spec.meta);
      return hollow.ok() ? hollow : Annotate(hollow.status(), spec.place);
    }
    TensorStore* const store = weights_->Has(name) ? weights_ : constants_->Has(name) ? constants_ : nullptr;
    if (store == nullptr) return absl::InvalidArgumentError(absl::StrCat(spec.place, ": the archive has no data for \"", name, "\""));
    DDPOPT_ASSIGN_OR_RETURN(at::Tensor tensor, store->Read(name));
    if (tensor.sizes().vec() != spec.meta.sizes || tensor.scalar_type() != spec.meta.dtype) {
      return absl::InvalidArgumentError(absl::StrCat(
          spec.place, ": the graph wants \"", name, "\" to be ", c10::toString(spec.meta.dtype), " [", absl::StrJoin(spec.meta.sizes, ", "),
          "], but its data is ", c10::toString(tensor.scalar_type()), " [", absl::StrJoin(tensor.sizes().vec(), ", "), "]"));
    }
    return tensor;
  }

  void Register(const std::string& name, const at::Tensor& tensor, AttrKind kind, bool persistent) {
    const auto [it, is_new] = first_name_.emplace(tensor.unsafeGetTensorImpl(), name);
    if (!is_new) {
      program_->tied_.emplace_back(name, it->second);
    } else if (kind == AttrKind::kParameter) {
      program_->parameters_.push_back({name, tensor});
    } else if (kind == AttrKind::kBuffer) {
      program_->buffers_.push_back({name, tensor, persistent});
    } else {
      program_->constants_.push_back({name, tensor});
    }
  }

  absl::Status ReadOutputs(const JsonView& graph, const JsonView& specs, GraphReader* reader) {
    DDPOPT_ASSIGN_OR_RETURN(const JsonView outputs, graph.Array("outputs"));
    if (outputs.size() != specs.size()) return specs.Expected(absl::StrCat(outputs.size(), " entries, as many as the graph has outputs"));
    fx::Graph& fx_graph = program_->module_->graph();
    std::vector<std::pair<Node*, Node*>> writes;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const JsonView spec = specs[i];
      DDPOPT_ASSIGN_OR_RETURN(const std::string kind, UnionKind(spec));
      const JsonView content = spec[0];
      DDPOPT_ASSIGN_OR_RETURN(Argument value, reader->ReadArgument(outputs[i]));
      if (kind == "user_output") {
        results_.push_back(std::move(value));
        continue;
      }
      const bool buffer = kind == "buffer_mutation", parameter = kind == "parameter_mutation", input = kind == "user_input_mutation";
      if (!buffer && !parameter && !input) {
        return absl::UnimplementedError(absl::StrCat(spec.Path(), ": outputs of kind ", kind, " are not supported"));
      }
      DDPOPT_ASSIGN_OR_RETURN(const std::string name, content.String(buffer      ? "buffer_name"
                                                                     : parameter ? "parameter_name"
                                                                                 : "user_input_name"));
      Node* target = nullptr;
      if (input) {
        DDPOPT_ASSIGN_OR_RETURN(target, reader->FindNode(content, name));
        if (target->op() != fx::Op::kPlaceholder) return content.Error("\"", name, "\" is no user input");
      } else {
        const auto it = std::find_if(attributes_.begin(), attributes_.end(), [&](const auto& entry) { return entry.second.path == name; });
        if (it == attributes_.end()) return content.Error("\"", name, "\" is no ", buffer ? "buffer" : "parameter", " of the signature");
        DDPOPT_ASSIGN_OR_RETURN(target, reader->FindNode(content, it->first));
        // A leaf that requires gradients can't be written itself.
        if (parameter) target = fx_graph.CallFunction(DetachOperator(), {target});
      }
      if (!value.is_node()) return outputs[i].Expected("a tensor");
      writes.emplace_back(target, value.node());
    }
    const std::set<const Node*> returned = ReturnedMemory();
    for (const auto& [target, value] : writes) KeepOldValue(target, returned.contains(target));
    // A result that is the new value is the buffer or input itself, as in Python.
    std::map<const Node*, Node*> copies;
    for (const auto& [target, value] : writes) {
      Node* copy = fx_graph.CallFunction(CopyOperator(), {target, value});
      copy->meta().val = target->meta().val;
      copies[value] = copy;
    }
    for (Argument& result : results_) {
      if (const auto copy = copies.find(result.node()); result.is_node() && copy != copies.end()) result = Argument(copy->second);
    }
    return absl::OkStatus();
  }

  // Placeholders and get_attr nodes whose memory a result shows.
  std::set<const Node*> ReturnedMemory() const {
    fx::Effects effects(*program_->module_);
    std::map<const Node*, std::set<const Node*>> roots;
    for (Node* node : program_->module_->graph().nodes()) {
      std::set<const Node*> own;
      if (node->op() == fx::Op::kPlaceholder || node->op() == fx::Op::kGetAttr) {
        own.insert(node);
      } else {
        effects.ForEachAliased(*node, [&](Node* input) { own.insert(roots[input].begin(), roots[input].end()); });
      }
      roots[node] = std::move(own);
    }
    std::set<const Node*> returned;
    for (const Argument& result : results_) {
      if (result.is_node()) returned.insert(roots[result.node()].begin(), roots[result.node()].end());
    }
    return returned;
  }

  // What reads a buffer or an input before its new value is written back may need the old one in backward, or gives it to the caller: it
  // gets a copy. (Python's module leaves the memory to autograd, which then refuses the backward.)
  void KeepOldValue(Node* target, bool returned) {
    if (!target->meta().val.isTensor()) return;
    const bool in_backward = c10::isFloatingType(target->meta().val.toTensor().scalar_type()) && !target->users().empty();
    if (!returned && !in_backward) return;
    const auto scope = program_->module_->graph().InsertingAfter(target);
    Node* clone = program_->module_->graph().CallFunction(CloneOperator(), {target});
    clone->meta().val = target->meta().val;
    target->ReplaceAllUsesWith(clone, [&](Node* user) { return user != clone; });
    for (Argument& result : results_) {
      if (result.node() == target) result = Argument(clone);
    }
  }

  // The trees, and the output node, which depends on whether there is one.
  absl::Status ReadTrees(const JsonView& graph_module) {
    program_->in_tree_ = TreeSpec::TupleOf(2);
    program_->in_tree_.children[0] = TreeSpec::TupleOf(program_->inputs_.size());
    program_->in_tree_.children[1].kind = TreeSpec::Kind::kDict;
    program_->in_tree_.children[1].type = "builtins.dict";
    std::vector<std::string> argument_names;
    program_->out_tree_ = results_.size() == 1 ? TreeSpec() : TreeSpec::TupleOf(results_.size());
    DDPOPT_ASSIGN_OR_RETURN(const JsonView calls, graph_module.Array("module_call_graph"));
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const JsonView call = calls[i];
      DDPOPT_ASSIGN_OR_RETURN(const std::string fqn, call.String("fqn"));
      if (!fqn.empty() || !HasValue(call, "signature")) continue;
      DDPOPT_ASSIGN_OR_RETURN(const JsonView signature, call.Object("signature"));
      const auto read = [&](const char* key, std::size_t leaves, TreeSpec* tree) -> absl::Status {
        DDPOPT_ASSIGN_OR_RETURN(const JsonView field, signature.At(key));
        DDPOPT_ASSIGN_OR_RETURN(const std::string text, field.AsString());
        absl::StatusOr<TreeSpec> spec = TreeSpec::Parse(text);
        if (!spec.ok()) return absl::Status(spec.status().code(), absl::StrCat(field.Path(), ": ", spec.status().message()));
        if (spec->num_leaves() != leaves)
          return field.Error("expected a tree of ", leaves, " leaves, got ", spec->num_leaves(), ": ", spec->ToString());
        *tree = *std::move(spec);
        return absl::OkStatus();
      };
      DDPOPT_RETURN_IF_ERROR(read("in_spec", program_->inputs_.size(), &program_->in_tree_));
      DDPOPT_RETURN_IF_ERROR(read("out_spec", results_.size(), &program_->out_tree_));
      if (HasValue(signature, "forward_arg_names")) {
        DDPOPT_ASSIGN_OR_RETURN(const JsonView names, signature.Array("forward_arg_names"));
        for (std::size_t k = 0; k < names.size(); ++k) {
          DDPOPT_ASSIGN_OR_RETURN(std::string name, names[k].AsString());
          argument_names.push_back(std::move(name));
        }
      }
      const TreeSpec& in = program_->in_tree_;
      if (in.kind != TreeSpec::Kind::kTuple || in.children.size() != 2 || in.children[0].kind != TreeSpec::Kind::kTuple ||
          in.children[1].kind != TreeSpec::Kind::kDict) {
        return signature.Error("in_spec: expected ((arguments...), {keyword arguments}), got ", in.ToString());
      }
    }
    NameInputs(argument_names);
    program_->single_output_ = program_->out_tree_.kind == TreeSpec::Kind::kLeaf;
    program_->module_->graph().Output(program_->single_output_ ? results_[0] : Argument::Tuple(std::move(results_)));
    return absl::OkStatus();
  }

  TensorStore* const weights_;
  TensorStore* const constants_;
  std::shared_ptr<ExportedProgram> program_;
  absl::flat_hash_map<std::string, AttributeInput> attributes_;
  absl::flat_hash_map<const c10::TensorImpl*, std::string> first_name_;
  std::map<std::string, AttributeSpec> specs_;
  std::vector<std::string> spec_order_;
  std::vector<Argument> results_;
};

namespace {

absl::StatusOr<std::string> ModelRecord(const Archive& archive, const std::string& wanted, std::string* name) {
  std::vector<std::string> names;
  for (const std::string& record : archive.records()) {
    absl::string_view rest(record);
    if (absl::ConsumePrefix(&rest, "models/") && absl::ConsumeSuffix(&rest, ".json") && !absl::StrContains(rest, "/"))
      names.emplace_back(rest);
  }
  const std::string list = absl::StrCat("the archive holds ", names.empty() ? "no model" : absl::StrJoin(names, ", "));
  if (!wanted.empty()) {
    if (std::find(names.begin(), names.end(), wanted) == names.end()) {
      return absl::NotFoundError(absl::StrCat("expected a record \"models/", wanted, ".json\"; ", list));
    }
    *name = wanted;
  } else if (names.size() == 1) {
    *name = names[0];
  } else {
    return absl::InvalidArgumentError(absl::StrCat("expected one record \"models/NAME.json\"; ", list,
                                                   names.empty() ? " (is it another kind of PyTorch archive?)" : "; name one"));
  }
  return absl::StrCat("models/", *name, ".json");
}

absl::Status CheckFormat(Archive* archive) {
  const auto check = [&](const char* record, absl::string_view expected, bool required, absl::StatusCode code) -> absl::Status {
    if (!archive->Has(record)) {
      if (!required) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("expected a record \"", record, "\" that says \"", expected, "\", as torch.export.save writes it; there is none"));
    }
    DDPOPT_ASSIGN_OR_RETURN(const int64_t size, archive->Size(record));
    if (size > 100)
      return absl::InvalidArgumentError(absl::StrCat("record \"", record, "\": expected \"", expected, "\", got ", size, " bytes"));
    DDPOPT_ASSIGN_OR_RETURN(std::string text, archive->Text(record));
    absl::string_view content(text);
    while (absl::ConsumeSuffix(&content, "\n")) {
    }
    if (content != expected)
      return absl::Status(code, absl::StrCat("record \"", record, "\": expected \"", expected, "\", got \"", content, "\""));
    return absl::OkStatus();
  };
  DDPOPT_RETURN_IF_ERROR(check("archive_format", "pt2", true, absl::StatusCode::kInvalidArgument));
  DDPOPT_RETURN_IF_ERROR(check("archive_version", "0", true, absl::StatusCode::kUnimplemented));
  return check("byteorder", "little", false, absl::StatusCode::kUnimplemented);
}

// The first bytes tell an archive from a graph file.
absl::StatusOr<bool> StartsAsZip(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const std::string text = absl::StrCat("\"", path, "\": ", std::strerror(errno));
    return errno == EACCES ? absl::PermissionDeniedError(text) : absl::NotFoundError(text);
  }
  char start[2] = {};
  file.read(start, sizeof(start));
  return start[0] == 'P' && start[1] == 'K';
}

absl::StatusOr<std::shared_ptr<ExportedProgram>> LoadArchive(const std::string& path, const LoadOptions& options) {
  DDPOPT_ASSIGN_OR_RETURN(std::unique_ptr<Archive> archive, Archive::Open(path));
  DDPOPT_RETURN_IF_ERROR(CheckFormat(archive.get()));
  std::string name;
  DDPOPT_ASSIGN_OR_RETURN(const std::string record, ModelRecord(*archive, options.model_name, &name));
  DDPOPT_ASSIGN_OR_RETURN(const std::string text, archive->Text(record));
  TensorStore weights(archive.get(), "data/weights/", options.load_weights);
  TensorStore constants(archive.get(), "data/constants/", options.load_weights);
  DDPOPT_RETURN_IF_ERROR(weights.Begin(absl::StrCat("data/weights/", name, "_weights_config.json")));
  const std::string constants_config = absl::StrCat("data/constants/", name, "_constants_config.json");
  if (archive->Has(constants_config)) DDPOPT_RETURN_IF_ERROR(constants.Begin(constants_config));
  absl::StatusOr<std::shared_ptr<ExportedProgram>> program = ProgramReader(&weights, &constants).Read(text);
  if (!program.ok() && !absl::StartsWith(program.status().message(), "record ")) return OfRecord(record, program.status());
  return program;
}

}  // namespace
}  // namespace pt2

absl::StatusOr<std::shared_ptr<ExportedProgram>> ParseExportedProgram(absl::string_view json) {
  return CatchAsStatus("reading the graph", [&] { return pt2::ProgramReader(nullptr, nullptr).Read(json); });
}

absl::StatusOr<std::shared_ptr<ExportedProgram>> LoadExportedProgram(const std::string& path, const LoadOptions& options) {
  DDPOPT_ASSIGN_OR_RETURN(const bool zip, pt2::StartsAsZip(path));
  absl::StatusOr<std::shared_ptr<ExportedProgram>> program =
      CatchAsStatus("reading it", [&]() -> absl::StatusOr<std::shared_ptr<ExportedProgram>> {
        if (zip) return pt2::LoadArchive(path, options);
        DDPOPT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
        return pt2::ProgramReader(nullptr, nullptr).Read(text);
      });
  if (program.ok() || absl::StrContains(program.status().message(), path)) return program;
  return Annotate(program.status(), absl::StrCat("\"", path, "\""));
}

}  // namespace ddpopt
