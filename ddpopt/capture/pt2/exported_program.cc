#include "ddpopt/capture/pt2/exported_program.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "fx_graph/passes/effects.h"
#include "fx_graph/tensor_meta.h"
#include "interpreter/interpreter.h"

namespace ddpopt {
namespace {

using c10::IValue;
using fx::Node;
using pt2::SymbolValues;
using pt2::SymExpr;

std::string ValueText(const IValue& value) {
  if (value.isNone()) return "None";
  if (value.isString()) return absl::StrCat("\"", value.toStringRef(), "\"");
  if (value.isBool()) return value.toBool() ? "True" : "False";
  if (value.isInt()) return absl::StrCat(value.toInt());
  if (value.isDouble()) return absl::StrCat(value.toDouble());
  return absl::StrCat("a ", value.tagKind());
}

bool SameConstant(const IValue& a, const IValue& b) {
  if (a.isDouble() && b.isDouble()) return a.toDouble() == b.toDouble() || (a.toDouble() != a.toDouble() && b.toDouble() != b.toDouble());
  if (a.isNone() || b.isNone()) return a.isNone() && b.isNone();
  return a.tagKind() == b.tagKind() && ((a.isInt() && a.toInt() == b.toInt()) || (a.isBool() && a.toBool() == b.toBool()) ||
                                        (a.isString() && a.toStringRef() == b.toStringRef()));
}

// One size or symbolic number that came, and what the archive says of it.
struct Observed {
  const SymExpr* expr;
  int64_t value;
  std::string place;
};

std::string RangeText(const SymbolRange& range) {
  if (!range.max.has_value()) return absl::StrCat("at least ", *range.min);
  if (!range.min.has_value()) return absl::StrCat("at most ", *range.max);
  return absl::StrCat("between ", *range.min, " and ", *range.max);
}

// The value of the one symbol of an expression that is linear in it. Errors: NotFound if it isn't, InvalidArgument if no value fits.
absl::StatusOr<int64_t> Solve(const SymExpr& expr, const std::string& symbol, int64_t wanted, SymbolValues values) {
  if (!expr.IsPolynomial()) return absl::NotFoundError("no equation that can be solved");
  const auto at = [&](int64_t value) {
    values[symbol] = value;
    return expr.EvaluateInt(values);
  };
  // Points of which the expression is an integer: it may have a denominator.
  constexpr int64_t kStep = 2520;  // a multiple of 1 to 10
  DDPOPT_ASSIGN_OR_RETURN(const int64_t first, at(kStep));
  DDPOPT_ASSIGN_OR_RETURN(const int64_t second, at(2 * kStep));
  DDPOPT_ASSIGN_OR_RETURN(const int64_t third, at(3 * kStep));
  const __int128 slope = static_cast<__int128>(second) - first;
  if (static_cast<__int128>(third) - second != slope) return absl::NotFoundError("no linear equation");
  if (slope == 0) return absl::InvalidArgumentError("no value fits");
  const __int128 numerator = (static_cast<__int128>(wanted) - first) * kStep;
  if (numerator % slope != 0) return absl::InvalidArgumentError("no value fits");
  const auto solution = static_cast<int64_t>(numerator / slope + kStep);
  DDPOPT_ASSIGN_OR_RETURN(const int64_t check, at(solution));
  if (check != wanted) return absl::InvalidArgumentError("no value fits");
  return solution;
}

std::string Bindings(const SymbolValues& values, const std::map<std::string, std::string>& bound_by, const std::set<std::string>& symbols) {
  std::vector<std::string> texts;
  for (const std::string& symbol : symbols) {
    if (values.contains(symbol)) texts.push_back(absl::StrCat(symbol, " = ", values.at(symbol), " from ", bound_by.at(symbol)));
  }
  return absl::StrJoin(texts, ", ");
}

}  // namespace

absl::StatusOr<SymbolValues> ExportedProgram::BindInputs(absl::Span<const IValue> inputs) const {
  if (inputs.size() != inputs_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the program takes ", inputs_.size(), " inputs, but ", inputs.size(), " were given"));
  }
  std::vector<Observed> observed;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const ProgramInput& input = inputs_[i];
    const IValue& value = inputs[i];
    const std::string name = absl::StrCat("input \"", input.name, "\"");
    switch (input.kind) {
      case ProgramInput::Kind::kConstant:
        if (!SameConstant(value, input.constant)) {
          return absl::InvalidArgumentError(
              absl::StrCat(name, " is ", ValueText(value), ", but the program was exported for ", ValueText(input.constant), " alone"));
        }
        break;
      case ProgramInput::Kind::kSymbolic:
        if (input.dtype == at::kDouble) {
          if (!value.isDouble()) return absl::InvalidArgumentError(absl::StrCat(name, " must be a float, not ", ValueText(value)));
          break;
        }
        if (input.dtype == at::kBool) {
          if (!value.isBool()) return absl::InvalidArgumentError(absl::StrCat(name, " must be a bool, not ", ValueText(value)));
          break;
        }
        if (!value.isInt()) return absl::InvalidArgumentError(absl::StrCat(name, " must be an int, not ", ValueText(value)));
        observed.push_back({&input.sizes[0], value.toInt(), name});
        break;
      case ProgramInput::Kind::kTensor: {
        if (!value.isTensor() || !value.toTensor().defined()) {
          return absl::InvalidArgumentError(absl::StrCat(name, " must be a tensor, not ", ValueText(value)));
        }
        const at::Tensor& tensor = value.toTensor();
        if (tensor.layout() != c10::kStrided)
          return absl::InvalidArgumentError(absl::StrCat(name, " must be a dense tensor, not one of layout ", c10::str(tensor.layout())));
        if (tensor.scalar_type() != input.dtype) {
          return absl::InvalidArgumentError(absl::StrCat(name, " has dtype ", c10::toString(tensor.scalar_type()),
                                                         ", but the program was exported for ", c10::toString(input.dtype)));
        }
        if (static_cast<std::size_t>(tensor.dim()) != input.sizes.size()) {
          return absl::InvalidArgumentError(
              absl::StrCat(name, " has ", tensor.dim(), " dimensions, but the program was exported for ", input.sizes.size()));
        }
        for (std::size_t d = 0; d < input.sizes.size(); ++d) {
          observed.push_back({&input.sizes[d], tensor.size(static_cast<int64_t>(d)), absl::StrCat(name, ", dimension ", d)});
        }
        break;
      }
    }
  }

  // Symbols that stand alone first; then those that an expression leaves no choice for.
  SymbolValues values;
  std::map<std::string, std::string> bound_by;
  for (const Observed& size : observed) {
    const std::string& symbol = size.expr->symbol();
    if (symbol.empty()) continue;
    const auto [it, is_new] = values.emplace(symbol, size.value);
    if (is_new) bound_by[symbol] = size.place;
    if (it->second != size.value) {
      return absl::InvalidArgumentError(absl::StrCat(size.place, " is ", size.value, ", but must equal ", bound_by[symbol], ", which is ",
                                                     it->second, " (", symbol, ")"));
    }
  }
  for (bool progress = true; progress;) {
    progress = false;
    for (const Observed& size : observed) {
      std::vector<std::string> unknown;
      for (const std::string& symbol : size.expr->Symbols()) {
        if (!values.contains(symbol)) unknown.push_back(symbol);
      }
      if (unknown.size() != 1) continue;
      const absl::StatusOr<int64_t> value = Solve(*size.expr, unknown[0], size.value, values);
      if (absl::IsNotFound(value.status())) continue;  // perhaps another size tells
      if (!value.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(size.place, " is ", size.value, ", but must be ", size.expr->ToString(), " for a whole ", unknown[0]));
      }
      values[unknown[0]] = *value;
      bound_by[unknown[0]] = size.place;
      progress = true;
    }
  }
  for (const Observed& size : observed) {
    if (!size.expr->symbol().empty()) continue;
    const absl::StatusOr<int64_t> wanted = size.expr->EvaluateInt(values);
    if (!wanted.ok())
      return absl::InvalidArgumentError(absl::StrCat(size.place, ": ", size.expr->ToString(), ": ", wanted.status().message()));
    if (*wanted == size.value) continue;
    const std::set<std::string> symbols = size.expr->Symbols();
    if (symbols.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(size.place, " is ", size.value, ", but the program was exported for ", *wanted, " alone"));
    }
    return absl::InvalidArgumentError(absl::StrCat(size.place, " is ", size.value, ", but must be ", size.expr->ToString(), " = ", *wanted,
                                                   " (", Bindings(values, bound_by, symbols), ")"));
  }
  for (const auto& [symbol, value] : values) {
    const auto it = symbol_ranges_.find(symbol);
    if (it == symbol_ranges_.end()) continue;
    const SymbolRange& range = it->second;
    if ((range.min.has_value() && value < *range.min) || (range.max.has_value() && value > *range.max)) {
      return absl::InvalidArgumentError(
          absl::StrCat(bound_by[symbol], " makes ", symbol, " = ", value, ", which must be ", RangeText(range)));
    }
  }
  DDPOPT_RETURN_IF_ERROR(CheckGuards(inputs));
  return values;
}

absl::Status ExportedProgram::CheckGuards(absl::Span<const IValue> inputs) const {
  DDPOPT_RETURN_IF_ERROR(guards_status_);
  using Place = pt2::Guard::Place;
  for (const pt2::Guard& guard : understood_guards_) {
    std::vector<std::string> seen;
    const absl::StatusOr<bool> holds = guard.Holds([&](const Place& place) -> absl::StatusOr<IValue> {
      const std::size_t index = input_paths_.at(place.input);
      const IValue& value = inputs[index];
      if (place.what == Place::What::kValue) {
        if (!value.isInt() && !value.isDouble() && !value.isBool())
          return absl::UnimplementedError(absl::StrCat("guard \"", guard.text(), "\" of a ", value.tagKind()));
        seen.push_back(absl::StrCat("input \"", inputs_[index].name, "\" is ", ValueText(value)));
        return value;
      }
      if (!value.isTensor()) return absl::UnimplementedError(absl::StrCat("guard \"", guard.text(), "\": L", place.input, " is no tensor"));
      const at::Tensor& tensor = value.toTensor();
      if (place.what == Place::What::kDim) return IValue(tensor.dim());
      if (place.what == Place::What::kNumel) return IValue(tensor.numel());
      if (place.what == Place::What::kStorageOffset) return IValue(tensor.storage_offset());
      const int64_t dim = place.index < 0 ? place.index + tensor.dim() : place.index;
      if (dim < 0 || dim >= tensor.dim())
        return absl::InvalidArgumentError(absl::StrCat("guard \"", guard.text(), "\": there is no dimension ", place.index));
      const bool size = place.what == Place::What::kSize;
      const int64_t number = size ? tensor.size(dim) : tensor.stride(dim);
      seen.push_back(absl::StrCat(size ? "" : "the stride of ", "input \"", inputs_[index].name, "\", dimension ", dim, ", is ", number));
      return IValue(number);
    });
    if (!holds.ok() && holds.status().code() != absl::StatusCode::kOutOfRange) return holds.status();
    if (!holds.ok() || !*holds) {
      return absl::InvalidArgumentError(absl::StrCat("the program was exported for inputs with ", guard.text(), ", but ",
                                                     absl::StrJoin(seen, " and "),
                                                     holds.ok() ? "" : absl::StrCat(" (", holds.status().message(), ")")));
    }
  }
  return absl::OkStatus();
}

absl::Status ExportedProgram::CheckExecutable() const {
  DDPOPT_RETURN_IF_ERROR(guards_status_);
  std::vector<const fx::GraphModule*> modules = {module_.get()};
  for (std::size_t i = 0; i < modules.size(); ++i) {
    for (const Node* node : modules[i]->graph().nodes()) {
      if (!CanExecute(*node)) {
        return absl::UnimplementedError(absl::StrCat("node %", std::string(node->name()), ": ", fx::TargetToString(node->target()),
                                                     " can't be executed: neither LibTorch nor the interpreter knows it"));
      }
    }
    for (const auto& [path, submodule] : modules[i]->submodules()) {
      if (submodule.graph_module != nullptr) modules.push_back(submodule.graph_module.get());
    }
  }
  return absl::OkStatus();
}

absl::Status ExportedProgram::CheckData() const {
  for (const auto& [name, attr] : module_->attrs()) {
    if (attr.value.isTensor() && fx::IsHollow(attr.value.toTensor())) {
      return absl::FailedPreconditionError(absl::StrCat("\"", name, "\" has no data: the program was read without weights"));
    }
  }
  return absl::OkStatus();
}

// Follows memory from attributes and placeholders through views to what writes it.
std::set<const Node*> ExportedProgram::Written() const {
  fx::Effects effects(*module_);
  std::map<const Node*, std::set<const Node*>> roots;
  std::set<const Node*> written;
  for (Node* node : module_->graph().nodes()) {
    if (node->op() == fx::Op::kPlaceholder || node->op() == fx::Op::kGetAttr) {
      roots[node].insert(node);
      continue;
    }
    if (node->op() == fx::Op::kOutput) continue;
    effects.ForEachWritten(*node, [&](Node* input) { written.insert(roots[input].begin(), roots[input].end()); });
    std::set<const Node*> own;
    effects.ForEachAliased(*node, [&](Node* input) { own.insert(roots[input].begin(), roots[input].end()); });
    roots[node] = std::move(own);
  }
  return written;
}

std::vector<std::string> ExportedProgram::mutated_buffers() const {
  std::vector<std::string> names;
  for (const Node* node : Written()) {
    if (node->op() == fx::Op::kGetAttr && node->meta().is_buffer) names.push_back(node->path());
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::vector<std::string> ExportedProgram::mutated_inputs() const {
  std::vector<std::string> names;
  for (const Node* node : Written()) {
    if (node->op() == fx::Op::kPlaceholder) names.push_back(node->path());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<IValue> ExportedProgram::RunFlat(std::vector<IValue> inputs) const {
  const absl::StatusOr<SymbolValues> bound = BindInputs(inputs);
  TORCH_CHECK_VALUE(bound.ok(), std::string(bound.status().message()));
  IValue result = Interpreter(*module_).Run(std::move(inputs));
  if (single_output_) return {std::move(result)};
  return std::move(*std::move(result).toTuple()).elements().vec();
}

IValue ExportedProgram::Run(std::vector<IValue> args, const std::map<std::string, IValue>& kwargs) const {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [name, value] : kwargs) dict.insert(name, value);
  const IValue packed = c10::ivalue::Tuple::create({IValue(c10::ivalue::Tuple::create(std::move(args))), IValue(std::move(dict))});
  absl::StatusOr<std::vector<IValue>> flat = in_tree_.Flatten(packed, "inputs");
  TORCH_CHECK_VALUE(flat.ok(), std::string(flat.status().message()));
  absl::StatusOr<IValue> result = out_tree_.Unflatten(RunFlat(*std::move(flat)));
  TORCH_CHECK_VALUE(result.ok(), std::string(result.status().message()));
  return *std::move(result);
}

absl::optional<at::Tensor> ExportedProgram::FindTensor(absl::string_view name) const {
  const fx::GraphModule::Attr* attr = module_->FindAttr(name);
  if (attr == nullptr || !attr->value.isTensor()) return absl::nullopt;
  return attr->value.toTensor();
}

namespace {

bool HaveOneForm(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.requires_grad() == b.requires_grad();
}

}  // namespace

std::vector<std::pair<std::string, std::string>> ExportedProgram::LikelyTied() const {
  std::vector<std::pair<std::string, std::string>> pairs;
  if (ties_are_known_) return pairs;
  absl::flat_hash_set<std::string> used;
  for (const Node* node : module_->graph().nodes()) {
    if (node->op() == fx::Op::kGetAttr && !node->users().empty()) used.insert(std::string(node->path()));
  }
  for (const NamedTensor& unused : parameters_) {
    if (used.contains(unused.name)) continue;
    const NamedTensor* twin = nullptr;
    int twins = 0;
    for (const NamedTensor& other : parameters_) {
      if (!used.contains(other.name) || !HaveOneForm(unused.tensor, other.tensor)) continue;
      twin = &other;
      ++twins;
    }
    if (twins == 1) pairs.emplace_back(unused.name, twin->name);
  }
  return pairs;
}

absl::Status ExportedProgram::Tie(absl::string_view name, absl::string_view with) {
  const auto find = [&](absl::string_view which) {
    for (const auto& [further, first] : tied_) {
      if (further == which) which = first;
    }
    return std::find_if(parameters_.begin(), parameters_.end(), [&](const NamedTensor& parameter) { return parameter.name == which; });
  };
  auto first = find(name), last = find(with);
  for (const auto& [found, which] : {std::make_pair(first, name), std::make_pair(last, with)}) {
    if (found == parameters_.end()) return absl::NotFoundError(absl::StrCat("the program has no parameter \"", which, "\""));
  }
  if (first == last || !HaveOneForm(first->tensor, last->tensor))
    return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" can't be another name of \"", with, "\""));
  DDPOPT_RETURN_IF_ERROR(SetTensor(name, last->tensor));
  if (last < first) std::swap(first, last);
  for (auto& tie : tied_) {
    if (tie.second == last->name) tie.second = first->name;
  }
  tied_.emplace_back(last->name, first->name);
  parameters_.erase(last);
  return absl::OkStatus();
}

absl::Status ExportedProgram::SetTensor(absl::string_view name, at::Tensor tensor) {
  const absl::optional<at::Tensor> old = FindTensor(name);
  if (!old.has_value()) return absl::NotFoundError(absl::StrCat("the program has no parameter, buffer or constant \"", name, "\""));
  if (old->sizes() != tensor.sizes() || old->scalar_type() != tensor.scalar_type()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" is ", c10::toString(old->scalar_type()), " [", absl::StrJoin(old->sizes().vec(), ", "),
                     "], but the tensor is ", c10::toString(tensor.scalar_type()), " [", absl::StrJoin(tensor.sizes().vec(), ", "), "]"));
  }
  if (tensor.requires_grad() != old->requires_grad()) tensor = tensor.detach().set_requires_grad(old->requires_grad());
  const c10::TensorImpl* impl = old->unsafeGetTensorImpl();
  std::vector<std::string> paths;
  for (const auto& [path, attr] : module_->attrs()) {
    if (attr.value.isTensor() && attr.value.toTensor().unsafeGetTensorImpl() == impl) paths.push_back(path);
  }
  for (const std::string& path : paths) DDPOPT_RETURN_IF_ERROR(module_->SetAttr(path, tensor));
  const auto replace = [&](auto& list) {
    for (auto& entry : list) {
      if (entry.tensor.unsafeGetTensorImpl() == impl) entry.tensor = tensor;
    }
  };
  replace(parameters_);
  replace(buffers_);
  replace(constants_);
  return absl::OkStatus();
}

}  // namespace ddpopt
