#include "fx_graph/passes/effects.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "ATen/core/alias_info.h"
#include "ATen/core/enum_tag.h"
#include "ATen/core/function_schema.h"
#include "ATen/core/jit_type.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace ddpopt::fx {

// Indices are the schema's.
struct Effects::OperatorEffects {
  bool random = false;
  bool other = false;
  bool mutable_schema = false;
  std::vector<int> written;
  std::vector<int> aliased;
  // Arguments that are written although the schema doesn't say so, unless the bool argument `flag` is the constant false (-1: no flag).
  std::vector<int> hidden;
  int flag = -1;
};

namespace {

using OperatorNames = std::vector<c10::OperatorName>;

// The overloads of every aten operator, by the name without "aten::".
const std::unordered_map<std::string, OperatorNames>& AtenOverloads() {
  static const auto* overloads = [] {
    auto* result = new std::unordered_map<std::string, OperatorNames>;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (absl::StartsWith(name.name, "aten::")) (*result)[name.name.substr(6)].push_back(name);
    }
    return result;
  }();
  return *overloads;
}

bool IsWritten(const c10::AliasInfo& alias) {
  const auto& contained = alias.containedTypes();
  return alias.isWrite() || std::any_of(contained.begin(), contained.end(), IsWritten);
}

void CollectSets(const c10::AliasInfo& alias, absl::flat_hash_set<uint32_t>& sets) {
  for (const c10::Symbol symbol : alias.beforeSets()) sets.insert(static_cast<uint32_t>(symbol));
  for (const c10::Symbol symbol : alias.afterSets()) sets.insert(static_cast<uint32_t>(symbol));
  for (const c10::AliasInfo& contained : alias.containedTypes()) CollectSets(contained, sets);
}

bool HoldsTensors(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType || type->kind() == c10::TypeKind::AnyType) return true;
  const auto contained = type->containedTypes();
  return std::any_of(contained.begin(), contained.end(), HoldsTensors);
}

// Operators that update running_mean and running_var although their schemas promise not to. Where there is a flag, only if it is true.
struct HiddenStatistics {
  const char* name;
  const char* flag;
};
constexpr HiddenStatistics kHiddenStatistics[] = {
    {"aten::batch_norm", "training"},           {"aten::native_batch_norm", "training"},
    {"aten::cudnn_batch_norm", "training"},     {"aten::miopen_batch_norm", "training"},
    {"aten::_batch_norm_impl_index", "training"}, {"aten::instance_norm", "use_input_stats"},
    {"aten::batch_norm_update_stats", nullptr}, {"aten::batch_norm_gather_stats", nullptr},
    {"aten::batch_norm_gather_stats_with_counts", nullptr},
};

// Libraries whose operators act on more than their values: collectives, which all ranks must call alike, and profiler marks. The second of
// the pair: whether they write the tensors given although no schema says so.
constexpr std::pair<const char*, bool> kEffectfulNamespaces[] = {
    {"c10d", true},     {"_c10d_functional", false}, {"_c10d_functional_autograd", false},
    {"symm_mem", true}, {"_dtensor", false},         {"profiler", false},
};

// aten's assertions whose result is a token.
bool IsAssertion(absl::string_view name) {
  return absl::StartsWith(name, "aten::_assert") || absl::StartsWith(name, "aten::_functional_assert") ||
         absl::StartsWith(name, "aten::_functional_sym_constrain") || absl::StartsWith(name, "aten::sym_constrain");
}

// PyTorch's sign of an in-place operator; "__and__" is none.
bool HasInPlaceName(absl::string_view name) {
  return name.size() > 1 && absl::EndsWith(name, "_") && !absl::EndsWith(name, "__");
}

NodeEffects Anything() {
  NodeEffects effects;
  effects.other = effects.modes = effects.anything = true;
  return effects;
}

void Add(NodeEffects& to, const NodeEffects& from) {
  to.writes |= from.writes;
  to.random |= from.random;
  to.other |= from.other;
  to.modes |= from.modes;
  to.anything |= from.anything;
}

// The argument of the schema's index, or null if it isn't given.
const Argument* GivenArgument(const Node& node, const c10::FunctionSchema& schema, int index) {
  if (static_cast<std::size_t>(index) < node.args().size()) return &node.args()[index];
  for (const auto& keyword : node.kwargs()) {
    if (schema.arguments()[index].name() == keyword.first) return &keyword.second;
  }
  return nullptr;
}

bool IsGiven(const Argument* argument) { return argument != nullptr && argument->kind() != Argument::Kind::kNone; }

bool IsConstantBool(const Argument& argument, bool value) {
  return argument.kind() == Argument::Kind::kConstant && argument.constant().isBool() && argument.constant().toBool() == value;
}

const Argument* Keyword(const Node& node, absl::string_view name) {
  for (const auto& keyword : node.kwargs()) {
    if (absl::string_view(keyword.first) == name) return &keyword.second;
  }
  return nullptr;
}

// Functions of Python's operator module, "operator.add" or "_operator.add".
std::optional<NodeEffects> OfOperatorModule(absl::string_view text) {
  static const auto* pure = new absl::flat_hash_set<absl::string_view>{
      "abs", "add",     "and_", "concat", "contains", "countOf", "eq", "floordiv", "ge",  "getitem", "gt",     "index",   "indexOf", "inv",
      "invert", "is_",  "is_not", "le",   "length_hint", "lshift", "lt", "matmul", "mod", "mul",     "ne",     "neg",     "not_",    "or_",
      "pos",  "pow",    "rshift", "sub",  "truediv",  "truth",   "xor"};
  static const auto* in_place = new absl::flat_hash_set<absl::string_view>{
      "delitem", "iadd", "iand", "iconcat", "ifloordiv", "ilshift", "imatmul", "imod", "imul",
      "ior",     "ipow", "irshift", "isub", "itruediv",  "ixor",    "setitem"};
  if (!absl::ConsumePrefix(&text, "_operator.") && !absl::ConsumePrefix(&text, "operator.")) return std::nullopt;
  NodeEffects effects;
  if (pure->contains(text)) return effects;
  if (!in_place->contains(text)) return Anything();
  effects.writes = true;
  return effects;
}

// "relu" for "torch.nn.functional.relu" and "torch.ops.aten.relu.default"; "" if the text names no module that gives aten's operators.
absl::string_view AtenNameOfFunction(absl::string_view text) {
  for (const absl::string_view prefix : {"torch.ops.aten.", "aten."}) {
    if (absl::ConsumePrefix(&text, prefix)) return text.substr(0, text.find('.'));
  }
  for (const absl::string_view prefix :
       {"torch.nn.functional.", "torch._C._nn.", "torch._C._VariableFunctions.", "torch.Tensor.", "torch."}) {
    if (absl::ConsumePrefix(&text, prefix)) return text.find('.') == absl::string_view::npos ? text : absl::string_view();
  }
  return "";
}

// The functions by which torch.fx graphs change modes.
bool ChangesModes(absl::string_view text) {
  static const auto* names = new absl::flat_hash_set<absl::string_view>{"_set_grad_enabled", "_enter_autocast", "_exit_autocast",
                                                                        "_enter_inference_mode", "_exit_inference_mode"};
  return absl::StartsWith(text, "torch.") && names->contains(text.substr(text.rfind('.') + 1));
}

// Functions and methods that aten has no operator for, but that only give a value.
bool IsPlainFunction(absl::string_view text) {
  return absl::StartsWith(text, "math.") || absl::StartsWith(text, "torch.sym_") || text == "getattr" || text == "builtins.getattr";
}
bool IsPlainMethod(absl::string_view name) {
  static const auto* names =
      new absl::flat_hash_set<absl::string_view>{"bfloat16", "bool", "byte", "char", "cpu",        "cuda",     "dim",   "double",
                                                 "float",    "half", "int",  "long", "ndimension", "nelement", "short", "type"};
  return names->contains(name);
}

}  // namespace

Effects::Effects(const GraphModule& module) : module_(module) {}
Effects::~Effects() = default;

const Effects::OperatorEffects& Effects::OfOperator(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const auto [place, is_new] = operators_.try_emplace(&schema);
  OperatorEffects& effects = place->second;
  if (!is_new) return effects;

  const std::string& name = schema.name();
  const auto& arguments = schema.arguments();
  effects.random = op.hasTag(at::Tag::nondeterministic_seeded);
  effects.mutable_schema = schema.is_mutable();
  // An operator without results is called for its effect.
  effects.other = (schema.returns().empty() && !schema.is_mutable()) || schema.is_varret() || IsAssertion(name);
  bool hides_writes = !effects.mutable_schema && HasInPlaceName(name);
  for (const auto& [space, writes] : kEffectfulNamespaces) {
    if (!absl::StartsWith(name, space) || name.compare(std::string(space).size(), 2, "::") != 0) continue;
    effects.other = true;
    hides_writes |= writes;
  }

  absl::flat_hash_set<uint32_t> returned;
  bool annotated = false;
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() == nullptr) continue;
    annotated = true;
    CollectSets(*result.alias_info(), returned);
  }
  const bool wildcard = returned.contains(static_cast<uint32_t>(c10::AliasInfo::wildcardSet()));
  // Kernels that autograd differentiates keep to the annotations. A composite of others may hand its input back, or a view of it; so may
  // these, whose point is to hide a view.
  const bool composite = !annotated && (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
                                        name == "aten::_unsafe_view" || absl::StartsWith(name, "aten::unsafe_"));
  for (int i = 0; i < static_cast<int>(arguments.size()); ++i) {
    const c10::Argument& argument = arguments[i];
    if (argument.type()->kind() == c10::TypeKind::GeneratorType ||
        argument.type()->isSubtypeOf(c10::OptionalType::create(c10::GeneratorType::get()))) {
      effects.random = true;
    }
    const bool tensors = HoldsTensors(argument.type());
    bool aliased = tensors && (composite || wildcard || hides_writes);
    bool written = tensors && hides_writes;
    if (const c10::AliasInfo* alias = argument.alias_info(); alias != nullptr) {
      absl::flat_hash_set<uint32_t> sets;
      CollectSets(*alias, sets);
      aliased |= std::any_of(sets.begin(), sets.end(), [&](uint32_t set) { return returned.contains(set); });
      written |= IsWritten(*alias);
    }
    if (aliased) effects.aliased.push_back(i);
    if (written) effects.written.push_back(i);
  }
  for (const HiddenStatistics& hidden : kHiddenStatistics) {
    if (name != hidden.name) continue;
    for (const char* statistic : {"running_mean", "running_var"}) {
      if (const auto index = schema.argumentIndexWithName(statistic)) effects.hidden.push_back(*index);
    }
    if (hidden.flag != nullptr) effects.flag = schema.argumentIndexWithName(hidden.flag).value_or(-1);
  }
  return effects;
}

NodeEffects Effects::OfAtenName(absl::string_view name) {
  const auto [place, is_new] = aten_names_.try_emplace(std::string(name));
  NodeEffects& effects = place->second;
  if (!is_new) return effects;
  const auto overloads = AtenOverloads().find(place->first);
  if (overloads == AtenOverloads().end()) {
    effects = Anything();
    return effects;
  }
  for (const c10::OperatorName& overload : overloads->second) {
    const auto op = c10::Dispatcher::singleton().findOp(overload);
    if (!op.has_value() || !op->hasSchema()) continue;
    const OperatorEffects& of = OfOperator(*op);
    // The out= variants are told by their keyword, elsewhere.
    const auto& arguments = op->schema().arguments();
    const bool out_variant = std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& a) { return a.is_out(); });
    if (out_variant) continue;
    effects.writes |= of.mutable_schema || !of.written.empty() || !of.hidden.empty();
    effects.random |= of.random;
    effects.other |= of.other;
  }
  return effects;
}

NodeEffects Effects::OfMethod(absl::string_view name) {
  if (IsPlainMethod(name)) return NodeEffects();
  return OfAtenName(name);
}

NodeEffects Effects::OfOpaque(const Node& node, absl::string_view text) {
  if (const auto effects = OfOperatorModule(text)) return *effects;
  if (IsPlainFunction(text)) return NodeEffects();
  if (ChangesModes(text)) {
    NodeEffects effects;
    effects.other = effects.modes = true;
    return effects;
  }
  const absl::string_view name = AtenNameOfFunction(text);
  if (name.empty()) return Anything();
  NodeEffects effects = OfAtenName(name);
  if (effects.anything) return effects;
  if (IsGiven(Keyword(node, "out"))) effects.writes = true;
  const Argument* in_place = Keyword(node, "inplace");
  if (IsGiven(in_place) && !IsConstantBool(*in_place, false)) effects.writes = true;
  // `inplace` by position: its place differs from function to function, so any True may be one.
  if (absl::StartsWith(text, "torch.nn.functional.")) {
    for (const Argument& argument : node.args()) effects.writes |= IsConstantBool(argument, true);
  }
  return effects;
}

NodeEffects Effects::OfSubmodule(const GraphModule::Submodule& submodule) {
  // What was compiled from a graph does what the graph does.
  const GraphModule* graph_module = submodule.graph_module.get();
  if (graph_module == nullptr) return Anything();
  const auto [place, is_new] = graphs_.try_emplace(graph_module, Anything());  // while it is looked into: for a module within itself
  if (!is_new) return place->second;
  Effects nested(*graph_module);
  NodeEffects effects;
  for (const Node* node : graph_module->graph().nodes()) Add(effects, nested.Of(*node));
  return graphs_[graph_module] = effects;
}

NodeEffects Effects::OfHigherOrder(const Node& node, absl::string_view name) {
  // Those that do nothing but call their graphs. Grad mode and autocast are restored by those that set them.
  static const auto* calls = new absl::flat_hash_set<absl::string_view>{"associative_scan",
                                                                        "checkpoint",
                                                                        "cond",
                                                                        "flex_attention",
                                                                        "hints_wrapper",
                                                                        "invoke_subgraph",
                                                                        "map",
                                                                        "map_impl",
                                                                        "scan",
                                                                        "strict_mode",
                                                                        "tag_activation_checkpoint",
                                                                        "while_loop",
                                                                        "wrap",
                                                                        "wrap_activation_checkpoint",
                                                                        "wrap_with_autocast",
                                                                        "wrap_with_set_grad_enabled"};
  absl::ConsumePrefix(&name, "torch.ops.higher_order.");
  if (!calls->contains(name)) return Anything();
  NodeEffects effects;
  bool has_graph = false;
  for (const Node* input : node.all_input_nodes()) {
    if (input->op() != Op::kGetAttr) continue;
    const absl::StatusOr<GraphModule::Submodule> submodule = module_.GetSubmodule(input->path());
    if (!submodule.ok()) continue;
    has_graph = true;
    Add(effects, OfSubmodule(*submodule));
  }
  return has_graph ? effects : Anything();
}

NodeEffects Effects::Of(const Node& node) {
  NodeEffects effects;
  switch (node.op()) {
    case Op::kPlaceholder:
    case Op::kGetAttr:
    case Op::kOutput:
      return effects;
    case Op::kCallModule: {
      const absl::StatusOr<GraphModule::Submodule> submodule = module_.GetSubmodule(node.path());
      return submodule.ok() ? OfSubmodule(*submodule) : Anything();
    }
    case Op::kCallMethod:
      if (const auto* method = std::get_if<MethodTarget>(&node.target())) {
        effects = OfMethod(method->name);
        if (IsGiven(Keyword(node, "out"))) effects.writes = true;
        return effects;
      }
      return Anything();
    case Op::kCallFunction:
      break;
  }
  if (const auto* opaque = std::get_if<OpaqueTarget>(&node.target())) return OfOpaque(node, opaque->text);
  if (const auto* higher_order = std::get_if<HigherOrderTarget>(&node.target())) return OfHigherOrder(node, higher_order->name);
  if (!node.is_operator() || !node.operator_handle().hasSchema()) return Anything();
  const OperatorEffects& of = OfOperator(node.operator_handle());
  effects.random = of.random;
  effects.other = of.other;
  effects.writes = of.mutable_schema || !of.written.empty();
  if (!of.hidden.empty() && !effects.writes) {
    const c10::FunctionSchema& schema = node.operator_handle().schema();
    const Argument* flag = of.flag < 0 ? nullptr : GivenArgument(node, schema, of.flag);
    const bool off = flag != nullptr && IsConstantBool(*flag, false);
    effects.writes =
        !off && std::any_of(of.hidden.begin(), of.hidden.end(), [&](int i) { return IsGiven(GivenArgument(node, schema, i)); });
  }
  return effects;
}

void Effects::ForEachWritten(const Node& node, absl::FunctionRef<void(Node*)> fn) {
  const NodeEffects effects = Of(node);
  if (!effects.writes && !effects.anything) return;
  if (!node.is_operator()) {
    for (Node* input : node.all_input_nodes()) fn(input);
    return;
  }
  const OperatorEffects& of = OfOperator(node.operator_handle());
  const c10::FunctionSchema& schema = node.operator_handle().schema();
  for (const std::vector<int>* indices : {&of.written, &of.hidden}) {
    for (const int i : *indices) {
      if (const Argument* argument = GivenArgument(node, schema, i); argument != nullptr) argument->ForEachNode(fn);
    }
  }
}

void Effects::ForEachAliased(const Node& node, absl::FunctionRef<void(Node*)> fn) {
  if (!node.is_operator() || !node.operator_handle().hasSchema()) {
    if (node.op() == Op::kOutput) return;
    for (Node* input : node.all_input_nodes()) fn(input);
    return;
  }
  const OperatorEffects& of = OfOperator(node.operator_handle());
  const c10::FunctionSchema& schema = node.operator_handle().schema();
  for (const int i : of.aliased) {
    if (const Argument* argument = GivenArgument(node, schema, i); argument != nullptr) argument->ForEachNode(fn);
  }
}

}  // namespace ddpopt::fx
